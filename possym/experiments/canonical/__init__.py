"""The frequency knob: which canonical task can a head learn that sees only the RoPE angles it is given?

The sweep trains one-layer attention-only transformers (`possym.ensembles.toy`) on Index, Retrieval and Partial
induction. 2511.11579 states neither sizes nor optimiser of this experiment; all settings here are ours.

Pieces, each one ensemble with its own checkpoint, every one over all seeds:
- ``one-angle``: every task × frequency IDs of a base-10000 grid and NoPE × one plane and many planes per angle;
- ``fixed-maps``: the same with one-hot embedding and identity values, as the theorems assume;
- ``long``: the longer length, fewer angles;
- ``two-angles``: Partial induction on all unordered pairs of the fewer angles, equal ones included;
- ``planes``: Retrieval and Partial induction, one angle, the number of planes varied.

Learnt tables start small (standard deviation 0.1). Started at 1, heads with many planes memorise pairs one by one: on
Retrieval without angle, which one-hot heads learn to 100 %, they stay near 76 %. One-hot queries and keys start at 1.

Members of one seed read the same sequences, fresh at every step; test sequences come from another stream. Heads
with one plane keep the contents of their plane: ``<task>/query`` and ``<task>/key`` (heads, steps, V, 2) through the
training of the first seed, ``final_query`` and ``final_key`` (seeds, heads, V, 2) after it.
"""

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from possym.ensembles.schedule import TrainingConfig
from possym.ensembles.streams import generator
from possym.ensembles.token_table import TokenTable
from possym.ensembles.toy import Member, ToyEnsemble
from possym.ensembles.training import Trainer
from possym.errors import ConfigError
from possym.results import ExperimentConfig, Study, atomic_write, checkpoint_folder, choose_device
from possym.results.devices import devices_of, side_by_side
from possym.results.evaluation_steps import evaluation_steps
from possym.rope import frequencies
from possym.scores import swap_scores
from possym.tasks import IndexTask, PartialInductionTask, RetrievalTask

NAME = "canonical"
TASK_NAMES = {"index": "Index", "retrieval": "Retrieval", "partial-induction": "Partial induction"}
TASKS = tuple(TASK_NAMES)
BASE, GRID = 10000.0, 32  # the frequency grid of a head 64 wide
CHUNK = 512  # test sequences in one pass


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the sweep. Frequency IDs count from 1, the fastest; 0 stands for NoPE."""

    frequency_ids: tuple[int, ...] = (0, *range(1, GRID + 1))
    few_ids: tuple[int, ...] = (0, 1, 3, 5, 7, 9, 11, 13, 15, 17, 20, 24)
    seeds: int = 8
    many_planes: int = 16
    plane_counts: tuple[int, ...] = (1, 2, 4, 8, 16)
    length: int = 32
    long_length: int = 128
    width: int = 64
    deviation: float = 0.1
    fixed_deviation: float = 1.0
    steps: int = 8000
    batch: int = 256
    learning_rate: float = 3e-3
    fixed_learning_rate: float = 1e-2
    warmup: int = 200
    points: int = 20
    test_sequences: int = 1024
    final_sequences: int = 8192
    scored_sequences: int = 32
    temperatures: tuple[float, ...] = (1e-4, 0.1)

    def __post_init__(self) -> None:
        """Refuse impossible sizes before anything is trained."""
        super().__post_init__()
        self.each_once("frequency_ids", "few_ids", "plane_counts", "temperatures")
        for name in ("frequency_ids", "few_ids"):
            if not all(0 <= i <= GRID for i in getattr(self, name)):
                raise ConfigError(f"{name} = {getattr(self, name)}: IDs are 1 to {GRID}, and 0 for NoPE")
        self.each_positive("deviation", "fixed_deviation", "temperatures")
        self.each_at_least(1, "width", "steps", "batch", "test_sequences", "final_sequences", "scored_sequences")
        self.each_at_least(1, "plane_counts")
        self.each_at_least(2, "seeds", "points", "many_planes")
        self.each_at_least(4, "length", "long_length")
        if max(self.test_sequences, self.scored_sequences) > self.final_sequences:
            raise ConfigError(
                f"final_sequences = {self.final_sequences}: the other tests read the first of these; give more"
            )
        if self.final_sequences < self.long_length:
            raise ConfigError(f"final_sequences = {self.final_sequences}: every answer's position needs one; give more")

    PRESETS: ClassVar = {
        "smoke": {
            "frequency_ids": (0, 3, 8, 15, 24),
            "few_ids": (0, 8, 15),
            "seeds": 2,
            "many_planes": 4,
            "plane_counts": (1, 4),
            "length": 12,
            "long_length": 20,
            "width": 16,
            "steps": 100,
            "batch": 32,
            "learning_rate": 1e-2,
            "warmup": 10,
            "points": 4,
            "test_sequences": 128,
            "final_sequences": 256,
            "scored_sequences": 4,
        },
        "paper": {},
    }


@dataclass(frozen=True)
class Piece:
    """One ensemble of the sweep: what it trains on, and the members of one seed as (frequency IDs, planes)."""

    name: str
    task: str
    length: int
    maps: str
    heads: tuple[tuple[tuple[int, ...], int], ...]


def pieces(config: Config) -> list[Piece]:
    """Return the pieces of the sweep in the order in which they run."""
    learnt, fixed = "learnt", "fixed"

    def one_angle(ids, planes):
        return tuple(((i,), p) for i in ids for p in planes)

    both = (1, config.many_planes)
    pairs = tuple(itertools.combinations_with_replacement(config.few_ids, 2))
    found = [Piece("one-angle", task, config.length, learnt, one_angle(config.frequency_ids, both)) for task in TASKS]
    found += [Piece("fixed-maps", task, config.length, fixed, one_angle(config.frequency_ids, both)) for task in TASKS]
    grid = tuple((pair, planes) for pair in pairs for planes in both)
    found.append(Piece("two-angles", TASKS[2], config.length, learnt, grid))
    counted = one_angle(config.few_ids, config.plane_counts)
    found += [Piece("planes", task, config.length, learnt, counted) for task in TASKS[1:]]
    found += [Piece("long", task, config.long_length, learnt, one_angle(config.few_ids, both)) for task in TASKS]
    return found


def angle(frequency_id: int) -> float:
    """Return the angle of a frequency ID in radians per position; ID 0 is NoPE, angle 0.

    >>> angle(1), angle(0), round(angle(9), 3)
    (1.0, 0.0, 0.1)
    """
    return float(frequencies(2 * GRID, BASE)[frequency_id - 1]) if frequency_id else 0.0


def make_task(name: str, length: int):
    """Return a task with no more tokens than inputs of this length need."""
    if name == "index":
        return IndexTask(max_length=length)
    return RetrievalTask(symbols=length) if name == "retrieval" else PartialInductionTask()


def answer_tokens(task) -> tuple[int, Tensor]:
    """Return the first answer's token id, and for every token which answer it gives when attended (V,), −1 for none.

    Answers are neighbours in the vocabulary: Index answers with its symbols, the pair tasks with attributes.
    """
    gives = torch.full((len(task.vocabulary),), -1)
    if isinstance(task, IndexTask):
        gives[: task.symbols] = torch.arange(task.symbols)
        return 0, gives
    pairs = task.symbols * task.attributes
    gives[:pairs] = torch.arange(pairs) % task.attributes
    return pairs + task.symbols, gives


def make_model(piece: Piece, config: Config) -> ToyEnsemble:
    """Return a piece's ensemble, seeds outermost so that each seed's members are neighbours."""
    members = [
        Member(tuple(angle(i) for i in ids), planes, config.seed + seed)
        for seed in range(config.seeds)
        for ids, planes in piece.heads
    ]
    task = make_task(piece.task, piece.length)
    _, gives = answer_tokens(task)
    fixed = piece.maps == "fixed"
    return ToyEnsemble(
        members,
        len(task.vocabulary),
        width=config.width,
        deviation=config.fixed_deviation if fixed else config.deviation,
        embedding="one-hot" if fixed else "learnt",
        values=piece.maps,
        outputs=int(gives.max()) + 1,
        answers=gives if fixed else None,
    )


class Sequences:
    """Each seed's sequences, drawn whole on the device and shared by the seed's members; answers count from 0."""

    def __init__(self, piece: Piece, config: Config, stream: str, count: int, device: torch.device):
        """Draw ``count`` sequences a seed from a stream of `possym.ensembles.streams.generator`."""
        task = make_task(piece.task, piece.length)
        first, _ = answer_tokens(task)
        drawn = []
        for seed in range(config.seed, config.seed + config.seeds):
            source = generator(seed, stream, device)
            parts = [
                task.sample(min(2**16, count - done), length=piece.length, generator=source)
                for done in range(0, count, 2**16)
            ]
            columns = [p.tokens for p in parts], [p.answer for p in parts], [p.path[:, 1] for p in parts]
            drawn.append([torch.cat([x.to(torch.int16) for x in column]) for column in columns])
        self.tokens, self.answers, self.places = (torch.stack(column) for column in zip(*drawn, strict=True))
        self.answers -= first
        self.members_a_seed = len(piece.heads)
        self.table = TokenTable(self.tokens, self.answers, config.batch)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens (seeds, B, T) and answers (E, B) of an update."""
        tokens, answers = self.table.batch(step)
        return tokens, answers.repeat_interleave(self.members_a_seed, 0)

    def correct(self, model: ToyEnsemble, count: int) -> Tensor:
        """Return which of the first ``count`` sequences each member answers rightly, (E, count) bool."""
        right = []
        for start in range(0, count, CHUNK):
            rows = slice(start, min(start + CHUNK, count))
            answers = self.answers[:, rows].repeat_interleave(self.members_a_seed, 0)
            right.append(model(self.tokens[:, rows].long()).argmax(-1) == answers)
        return torch.cat(right, 1)


def train(piece: Piece, config: Config, device: torch.device, number: int) -> dict[str, Tensor]:
    """Train a piece and measure it; return arrays by name, the first axis running over members."""
    model = make_model(piece, config).to(device)
    test = Sequences(piece, config, "held-out", config.final_sequences, device)
    # One-hot tables move only where their own token occurs, so they get the larger steps.
    rate = config.fixed_learning_rate if piece.maps == "fixed" else config.learning_rate
    training = TrainingConfig(
        config.steps, config.batch, rate, betas=(0.9, 0.99), weight_decay=0.0, warmup=config.warmup
    )
    steps = evaluation_steps(config.steps, config.points)
    traced = traced_heads(piece, config)

    def evaluate(ensemble: ToyEnsemble, step: int) -> dict[str, Tensor]:
        accuracy = test.correct(ensemble, config.test_sequences).float().mean(1)
        query, key = (table[traced, :, 0, :2] for table in ensemble.contents())  # of the first seed
        return {"accuracy": accuracy, "query": query, "key": key}

    trainer = Trainer(
        model,
        Sequences(piece, config, "data", config.steps * config.batch, device),
        training,
        [member.seed for member in model.recipes],
        evaluate=evaluate,
        evaluate_at=steps,
        checkpoint=checkpoint(config, number, "training"),
        description=f"{piece.name} {piece.task}",
    )
    evaluations = trainer.run().evaluations
    with torch.no_grad():
        found = {name: values.transpose(0, 1).contiguous() for name, values in evaluations.items()}
        found |= measure(model, test, config)
        for side, table in zip(("query", "key"), model.contents(), strict=True):
            found[f"final_{side}"] = table.unflatten(0, (config.seeds, -1))[:, traced, :, 0, :2]
        if piece.name == "one-angle":
            found["swapped"] = swap_angles(model, test, config)
    return {name: values.cpu().contiguous() for name, values in found.items()}


def traced_heads(piece: Piece, config: Config) -> list[int]:
    """Return which of a piece's heads have one plane of one of the few angles: their contents are kept as arrays."""
    return [
        n for n, (ids, planes) in enumerate(piece.heads) if planes == 1 and len(ids) == 1 and ids[0] in config.few_ids
    ]


def measure(model: ToyEnsemble, test: Sequences, config: Config) -> dict[str, Tensor]:
    """Return accuracy by the answer's position (E, T−1) and the trained heads' scores (E, temperatures)."""
    positions = test.tokens.shape[-1] - 1
    spread = torch.nn.functional.one_hot(test.places.long(), positions).float()  # (G, n, T−1)
    right = test.correct(model, config.final_sequences).float().unflatten(0, (config.seeds, -1))
    by_place = (right @ spread / spread.sum(1, keepdim=True)).flatten(0, 1)
    sums = torch.zeros(3, model.members, len(config.temperatures), device=by_place.device)
    for row in range(config.scored_sequences):
        relocated = model.relocated(test.tokens[:, row : row + 1].long())[:, 0]
        for column, temperature in enumerate(config.temperatures):
            scores = swap_scores(relocated[:, :-1, :-1], extra_logits=relocated[:, -1:, -1], temperature=temperature)
            sums[:, :, column] += torch.stack(scores)
    positional, symbolic, entropy = sums / config.scored_sequences
    return {"by_place": by_place, "positional": positional, "symbolic": symbolic, "entropy": entropy[:, 0]}


def swap_angles(model: ToyEnsemble, test: Sequences, config: Config) -> Tensor:
    """Return every member's accuracy with each of the few angles put in place of its own, (E, few angles)."""
    own = model.angles.clone()
    swapped = []
    for frequency_id in config.few_ids:
        model.set_angles(torch.full_like(own, angle(frequency_id)))
        swapped.append(test.correct(model, config.test_sequences).float().mean(1))
    model.set_angles(own)
    return torch.stack(swapped, 1)


def run(config: Config) -> Study:
    """Train and measure every piece, side by side on several devices.

    Finished pieces and half-trained ones are taken from their checkpoints.
    """
    devices = devices_of(choose_device(config.device))
    tables: dict[str, list[pd.DataFrame]] = {}
    arrays: dict[str, Tensor] = {}
    numbers = range(len(pieces(config)))
    side_by_side(
        partial(finish, config), [n for n in numbers if not checkpoint(config, n, "finished").exists()], devices
    )
    for number, piece in enumerate(pieces(config)):
        found = load_file(checkpoint(config, number, "finished"))
        for name, table in tabulate(piece, config, found).items():
            tables.setdefault(name, []).append(table)
        if piece.name == "one-angle":
            arrays |= {f"{piece.task}/{name}": found[name] for name in ("query", "key", "final_query", "final_key")}
    joined = {name: compact(pd.concat(parts, ignore_index=True)) for name, parts in tables.items()}
    settings = {
        "traced_ids": [i for i in config.frequency_ids if i in config.few_ids],
        "traced_steps": evaluation_steps(config.steps, config.points),
    }
    seeds = list(range(config.seed, config.seed + config.seeds))
    return Study(joined, arrays, {"seeds": seeds, "devices": len(devices), **settings})


def finish(config: Config, number: int, device: torch.device) -> None:
    """Train and measure a piece, and leave what was found in its file."""
    found = train(pieces(config)[number], config, device, number)
    with atomic_write(checkpoint(config, number, "finished")) as path:
        save_file(found, path)
    checkpoint(config, number, "training").unlink()


def checkpoint(config: Config, number: int, state: str) -> Path:
    """Return the file of a piece in training, or finished."""
    return checkpoint_folder(NAME, config) / f"{number:02d}-{state}.safetensors"


def tabulate(piece: Piece, config: Config, found: dict[str, Tensor]) -> dict[str, pd.DataFrame]:
    """Return a piece's tables; `first_id` and `second_id` are frequency IDs, the second −1 where there is one angle."""
    members = pd.DataFrame(
        [
            {
                "piece": piece.name,
                "task": piece.task,
                "length": piece.length,
                "maps": piece.maps,
                "first_id": ids[0],
                "second_id": ids[1] if len(ids) > 1 else -1,
                "planes": planes,
                "seed": config.seed + seed,
            }
            for seed in range(config.seeds)
            for ids, planes in piece.heads
        ]
    )
    steps = evaluation_steps(config.steps, config.points)
    tables = {
        "accuracy": spread_out(members, {"step": steps}, accuracy=found["accuracy"]),
        "by_place": spread_out(members, {"place": range(piece.length - 1)}, accuracy=found["by_place"]),
        "scores": spread_out(
            members,
            {"temperature": config.temperatures},
            positional=found["positional"],
            symbolic=found["symbolic"],
            entropy=found["entropy"][:, None].expand(-1, len(config.temperatures)),
        ),
    }
    if "swapped" in found:
        table = spread_out(members, {"test_id": config.few_ids}, accuracy=found["swapped"])
        tables["swapped"] = table[table["first_id"].isin(config.few_ids)]
    return tables


def spread_out(members: pd.DataFrame, axis: dict[str, object], **values: Tensor) -> pd.DataFrame:
    """Return one row for each member and entry of ``axis``, with columns from values (members, entries).

    >>> spread_out(pd.DataFrame({"seed": [0, 1]}), {"step": [5, 6]}, accuracy=torch.eye(2))
       seed  step  accuracy
    0     0     5       1.0
    1     0     6       0.0
    2     1     5       0.0
    3     1     6       1.0
    """
    ((name, entries),) = axis.items()
    entries = list(entries)
    table = members.loc[members.index.repeat(len(entries))].reset_index(drop=True)
    table[name] = np.tile(entries, len(members))
    for column, value in values.items():
        table[column] = value.reshape(-1).numpy()
    return table


def compact(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with repeated strings as categories and whole numbers in their smallest type."""
    for name in table:
        if table[name].dtype.kind in "iu":
            table[name] = pd.to_numeric(table[name], downcast="integer")
        elif not pd.api.types.is_numeric_dtype(table[name]):
            table[name] = table[name].astype("category")
    return table
