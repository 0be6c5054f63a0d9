"""How the trained number and letter models do on inputs far longer than those they were trained on.

The models are whole ensembles of `possym.experiments.trained`, `members` of them at the main learning rate and
fewer at others. Sequences are drawn for each member, at every length in blocks that fit in memory. What each model
knows at training length (scores, frequencies, where its heads look, the forecast) is measured before any long input.

Tables of the study (a row per seed; hops = 0 means all together):
- ``accuracy``: task, learning_rate, seed, length, hops, accuracy, count
- ``checkpoints``: task (letter_any too: any letter off the path), checkpoint (last, best on validation), seed, length,
  accuracy
- ``heads``: task, learning_rate, seed, layer, head, positional, symbolic, kind (1 positional, −1 symbolic, 0 neither,
  at γ = 0.1), frequency_id, angle: the dominant frequency, a mean weighted by the planes' logit norms
- ``looks``: task, seed, layer, head, hops, step, weight: see
  `possym.experiments.generalization.long_inputs.AttendedSteps`
- ``leads``: task, seed, layer, head, hops, length, least, median, most, outside: the right key's logit less the best
  other one over sequences, and the mean attention that goes before the window
- ``forecast``: task, learning_rate, seed, length, accuracy
- ``alike``: task, learning_rate, seed, length, accuracy: the forecast if every extra token were as those next to the
  window
- ``parts``: task, seed, source (forecast, measured), way (whole, exposed, shielded, upto), layer (−1 for whole),
  length, accuracy: see `possym.experiments.generalization.layers.layer_effects`
- ``repairs``: task, seed, repair, heads (all, symbolic, others; none for the model as it is), length, accuracy
- ``precision``: task, length, sequences, same, change: answers alike in float32 and in the types used, and the
  difference in accuracy
- ``timing``: task, learning_rate, stage, seconds, gib (the most memory held at once, NaN on the CPU)

Source: 2605.31558, section 4 and figure 5.
"""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.streams import generator
from possym.errors import ConfigError
from possym.experiments import trained as ensembles
from possym.experiments.generalization import long_inputs
from possym.experiments.generalization.forecasting import TargetContents, forecast, target_contents
from possym.experiments.generalization.layers import exposed_layers, layer_effects
from possym.experiments.generalization.long_inputs import EXACT, HOPS, WINDOW, Answers, Precision, sample_members
from possym.experiments.generalization.repairs import REPAIRS, repaired
from possym.experiments.learning_dynamics import score_heads, tidy
from possym.experiments.trained import SMOKE, TASKS, EnsembleConfig
from possym.results import Study, atomic_write, checkpoint_folder, choose_device
from possym.results.devices import devices_of
from possym.results.progress import tqdm
from possym.scores import purity
from possym.tasks import Batch, LetterTask, NumberTask

NAME = "generalization"
GAMMA = 0.1
GROUPS = ("all", "symbolic", "others")


@dataclass(frozen=True, kw_only=True)
class Config(EnsembleConfig):
    """Settings of the study; ``hops`` are those trained on, every sequence measured here has 1 to 4.

    Raises:
        ConfigError: lengths that do not ascend from 17, or counts below 1.

    >>> Config.preset_named("paper").lengths[-1]
    5000
    """

    members: int = 32
    other_rates: tuple[float, ...] = (3e-4, 1e-3)
    other_members: int = 8
    other_longest: int = 1000
    lengths: tuple[int, ...] = (17, 25, 35, 50, 70, 100, 140, 200, 300, 500, 700, 850, 1000, 2000, 5000)
    sequences: int = 1000
    number_lengths: tuple[int, ...] = tuple(range(40, 111))
    letter_lengths: tuple[int, ...] = (170, 240, 350, 420, 600, 800, 1200, 1450, 1700, 2400, 3000, 4000)
    sequences_between: int = 400
    other_rules: tuple[str, ...] = ("letter_any",)
    rule_members: int = 8
    checkpoint_lengths: tuple[int, ...] = (17, 100, 200, 300, 500, 700, 800, 1000, 2000, 5000)
    checkpoint_sequences: int = 160
    scored_sequences: int = 500
    windows: int = 512
    part_lengths: tuple[int, ...] = (35, 70, 140, 300, 700, 1000)
    part_sequences: int = 128
    repair_lengths: tuple[int, ...] = (17, 100, 1000)
    repair_sequences: int = 128
    compared_lengths: tuple[int, ...] = (17, 300, 2000)
    compared_sequences: int = 32
    temperature: float = 1e-4

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            **SMOKE,
            "other_rates": (6e-3,),
            "other_members": 1,
            "other_longest": 50,
            "lengths": (17, 50, 200),
            "sequences": 40,
            "number_lengths": (30, 40),
            "letter_lengths": (100,),
            "sequences_between": 40,
            "rule_members": 1,
            "checkpoint_lengths": (17, 50),
            "checkpoint_sequences": 40,
            "scored_sequences": 40,
            "windows": 64,
            "part_lengths": (50, 200),
            "part_sequences": 20,
            "repair_lengths": (17, 50),
            "repair_sequences": 20,
            "compared_lengths": (17, 50),
            "compared_sequences": 8,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        names = ("", "number_", "letter_", "checkpoint_", "repair_", "compared_")
        self.ascending(WINDOW, *(f"{each}lengths" for each in names))
        self.ascending(WINDOW + 1, "part_lengths")
        self.each_at_least(1, "other_members", "rule_members", "part_sequences", "repair_sequences")
        self.each_at_least(1, "compared_sequences")
        # Drawn at random, every number of hops is among so many.
        self.each_at_least(40, "sequences", "sequences_between", "checkpoint_sequences", "scored_sequences", "windows")
        if self.lengths[0] != WINDOW:
            raise ConfigError(f"lengths = {self.lengths!r}: begin with {WINDOW}, the training length")
        if not set(self.other_rules) <= {"letter_any"}:
            raise ConfigError(f"other_rules = {self.other_rules!r}: known is letter_any")
        self.each_positive("temperature")
        if self.learning_rate in self.other_rates or len(set(self.other_rates)) < len(self.other_rates):
            raise ConfigError(f"other_rates = {self.other_rates!r}: give others than {self.learning_rate}, each once")
        for rate in self.other_rates:
            self.at_rate(rate).training()

    def at_rate(self, rate: float) -> "Config":
        """Return the settings of the ensemble with another learning rate."""
        return dataclasses.replace(self, learning_rate=rate, members=self.other_members, other_rates=())

    def of_rule(self, name: str) -> "Config":
        """Return the settings of the ensemble of a task, of which other rules have fewer members."""
        return dataclasses.replace(self, members=self.rule_members) if name in self.other_rules else self


@dataclass(frozen=True)
class Group:
    """The members of one task and learning rate."""

    name: str
    task: NumberTask | LetterTask
    config: Config
    main: bool
    model: GPTJEnsemble

    @property
    def lengths(self) -> list[int]:
        """Return the lengths to measure: those of both tasks, and those between where this task's accuracy falls."""
        config = self.config
        between = config.number_lengths if isinstance(self.task, NumberTask) else config.letter_lengths
        every = sorted({*config.lengths, *between})
        return [length for length in every if self.main or length <= config.other_longest]

    @property
    def axes(self) -> dict[str, list]:
        """Return the columns that say whose row it is."""
        return {"task": [self.name], "learning_rate": [self.config.learning_rate], "seed": self.config.seeds()}

    def source(self) -> torch.Generator:
        """Return a fresh generator of held-out sequences on the model's device."""
        device = next(self.model.parameters()).device
        return generator(self.config.seed, "held-out", device)


def run(config: Config) -> Study:
    """Train what is not trained yet and measure every stage; finished stages are taken from their checkpoints."""
    device = choose_device(config.device)
    folder = checkpoint_folder(NAME, config)
    found: dict[str, list[pd.DataFrame]] = {}
    groups = [(name, rate) for name in config.tasks for rate in (config.learning_rate, *config.other_rates)]
    for name, rate in tqdm(groups, desc="length generalization"):
        main = rate == config.learning_rate
        chosen = config if main else config.at_rate(rate)
        clock = time.perf_counter()
        model = ensembles.trained(name, chosen, device)
        spent = {"training": (time.perf_counter() - clock, math.nan)}
        group = Group(name, TASKS[name](), chosen, main, model)
        stages: dict[str, Callable[[Group], dict[str, pd.DataFrame]]] = {"forecast": at_training_length, "swept": swept}
        if main:
            stages |= {"parts": parts, "repairs": measure_repairs, "precision": precision, "checkpoints": checkpoints}
        for stage, function in stages.items():
            tables, spent[stage] = kept(folder, f"{name}-{rate:g}-{stage}", device, partial(function, group))
            for table, frame in tables.items():
                found.setdefault(table, []).append(frame)
        timing = [(name, rate, stage, round(seconds, 3), gib) for stage, (seconds, gib) in spent.items()]
        columns = ["task", "learning_rate", "stage", "seconds", "gib"]
        found.setdefault("timing", []).append(pd.DataFrame(timing, columns=columns))
    return Study(
        {table: pd.concat(frames, ignore_index=True) for table, frames in found.items()},
        {},
        {"seeds": config.seeds(), "devices": len(devices_of(device))},
    )


def kept(
    folder: Path, stem: str, device: torch.device, stage: Callable[[], dict[str, pd.DataFrame]]
) -> tuple[dict[str, pd.DataFrame], tuple[float, float]]:
    """Return a stage's tables with seconds and GiB of memory, from its checkpoint if it was finished before."""
    done = folder / f"{stem}.json"
    if done.exists():
        found = json.loads(done.read_text())
        tables = {table: pd.read_parquet(folder / f"{stem}-{table}.parquet") for table in found["tables"]}
        return tables, (found["seconds"], found["gib"])
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    clock = time.perf_counter()
    tables = stage()
    spent = time.perf_counter() - clock, torch.cuda.max_memory_allocated() / 2**30 if cuda else math.nan
    for table, frame in tables.items():
        with atomic_write(folder / f"{stem}-{table}.parquet") as path:
            frame.to_parquet(path, index=False)
    with atomic_write(done) as path:
        path.write_text(json.dumps({"tables": list(tables), "seconds": spent[0], "gib": spent[1]}))
    return tables, spent


def at_training_length(group: Group) -> dict[str, pd.DataFrame]:
    """Return what is known at training length: kinds and frequencies of heads, where they look, the forecast."""
    config, model, source = group.config, group.model, group.source()
    scored = group.task.sample(config.scored_sequences, generator=source)
    scores = score_heads(model, scored.tokens, config.temperature)
    kind = purity(scores["positional"], scores["symbolic"], GAMMA)
    norms = long_inputs.plane_norms(model, scored.tokens[:64])  # (E, L, H, F)
    ids = torch.arange(1, norms.shape[-1] + 1, device=norms.device)
    frequency_id = (norms * ids).sum(-1) / norms.sum(-1)
    heads = {"positional": scores["positional"], "symbolic": scores["symbolic"], "kind": kind}
    by_head = {"layer": range(config.layers), "head": range(config.heads)}
    tables = {"heads": rows(group, heads | {"frequency_id": frequency_id}, by_head)}
    angles = model.config.frequencies.numpy()
    tables["heads"]["angle"] = angles[tables["heads"]["frequency_id"].round().astype(int) - 1]
    windows = sample_members(group.task, config.members, config.windows, WINDOW, source)
    contents = target_contents(model, group.task, group.lengths[-1], source)
    found = [forecast(model, group.task, length, windows, contents, source) for length in group.lengths]
    tables["forecast"] = rows(group, {"accuracy": torch.stack(found, 1)}, {"length": group.lengths})
    if group.main:
        some = Batch(*(field[:, : config.windows // 2] for field in windows))
        found = [forecast(model, group.task, n, some, contents, source, alike=True) for n in group.lengths]
        tables["alike"] = rows(group, {"accuracy": torch.stack(found, 1)}, {"length": group.lengths})
        tables["parts"] = forecast_layer_effects(group, windows, contents, source)
    return tables


def forecast_layer_effects(
    group: Group, windows: Batch, contents: TargetContents, source: torch.Generator
) -> pd.DataFrame:
    """Return what the forecast says that each layer does to accuracy."""
    config, tables = group.config, []
    windows = Batch(*(field[:, : config.part_sequences] for field in windows))
    for length in config.part_lengths:
        for way, sets in exposed_layers(config.layers).items():
            found = [
                forecast(group.model, group.task, length, windows, contents, source, exposed=layers) for layers in sets
            ]
            tables.append(part_rows(group, torch.stack(found, 1), length, way, "forecast"))
    return pd.concat(tables, ignore_index=True)


def part_rows(group: Group, accuracy: Tensor, length: int, way: str, source: str) -> pd.DataFrame:
    """Return accuracy (E, L), or (E, 1) of the whole model, as rows of ``parts``."""
    layers = [-1] if way == "whole" else range(group.config.layers)
    return rows(group, {"accuracy": accuracy}, {"layer": layers}).assign(length=length, way=way, source=source)


def swept(group: Group) -> dict[str, pd.DataFrame]:
    """Return accuracy at every length, and of the main group the leads of the right keys."""
    config, model, source = group.config, group.model, group.source()
    attended, tables = None, {}
    by_head = {"layer": range(config.layers), "head": range(config.heads), "hops": HOPS}
    if group.main:
        batch = sample_members(group.task, config.members, config.scored_sequences, WINDOW, source)
        attended = long_inputs.find_attended_steps(model, batch)
        tables["looks"] = rows(group, attended._asdict(), by_head)
    accuracy, leads = [], []
    for length in group.lengths:
        fully = length in config.lengths
        count, steps = (config.sequences, attended) if fully else (config.sequences_between, None)
        found = long_inputs.answer(model, group.task, length, count, source, attended=steps)
        table = rows(group, right_by_hops(found, HOPS), {"hops": (0, *HOPS)})
        table.insert(3, "length", length)
        accuracy.append(table)
        if group.main and fully:
            table = rows(group, by_hops(found), by_head)
            table.insert(3, "length", length)
            leads.append(table)
    tables["accuracy"] = pd.concat(accuracy, ignore_index=True)
    if group.main:
        tables["leads"] = pd.concat(leads, ignore_index=True)
    return tables


def checkpoints(group: Group) -> dict[str, pd.DataFrame]:
    """Return accuracy of the last checkpoints and of the best on validation, under each rule of the task."""
    config, device = group.config, group.source().device
    names = [group.name, *(rule for rule in config.other_rules if rule.startswith(group.name))]
    tables = []
    for name in names:
        for checkpoint in ensembles.CHECKPOINTS:
            model = ensembles.trained(name, config.of_rule(name), device, checkpoint)
            other = Group(name, TASKS[name](), config.of_rule(name), group.main, model)
            source = other.source()  # a fresh one each time: both checkpoints answer the same sequences
            found = [
                long_inputs.answer(model, other.task, length, config.checkpoint_sequences, source).correct
                for length in config.checkpoint_lengths
            ]
            accuracy = torch.stack([correct.float().mean(-1) for correct in found], 1)
            table = rows(other, {"accuracy": accuracy}, {"length": config.checkpoint_lengths})
            table.insert(1, "checkpoint", checkpoint)
            tables.append(table)
    return {"checkpoints": pd.concat(tables, ignore_index=True)}


def right_by_hops(found: Answers, hops: Sequence[int]) -> dict[str, Tensor]:
    """Return accuracy and count (E, 1 + hops): all together first, then each number of hops."""
    chosen = torch.stack([found.hops > 0, *(found.hops == h for h in hops)], 1)  # (E, 1 + hops, N)
    count = chosen.sum(-1)
    return {"accuracy": (chosen & found.correct[:, None]).sum(-1) / count, "count": count}


def by_hops(found: Answers) -> dict[str, Tensor]:
    """Return least, median and greatest lead and the mean attention outside, each (E, L, H, 4) by number of hops."""
    values: dict[str, list[Tensor]] = {"least": [], "median": [], "most": [], "outside": []}
    for h in HOPS:
        other = (found.hops != h)[:, None, None]
        values["least"].append(found.gap.masked_fill(other, math.inf).amin(-1))
        values["median"].append(found.gap.masked_fill(other, math.nan).nanmedian(-1).values)
        values["most"].append(found.gap.masked_fill(other, -math.inf).amax(-1))
        values["outside"].append(found.outside.masked_fill(other, math.nan).nanmean(-1))
    return {name: torch.stack(parts, -1) for name, parts in values.items()}


def parts(group: Group) -> dict[str, pd.DataFrame]:
    """Return what each layer does to accuracy on real long inputs."""
    config, source = group.config, group.source()
    tables = []
    for length in config.part_lengths:
        found = layer_effects(group.model, group.task, length, config.part_sequences, source)
        tables += [part_rows(group, accuracy, length, way, "measured") for way, accuracy in found.items()]
    return {"parts": pd.concat(tables, ignore_index=True)}


def measure_repairs(group: Group) -> dict[str, pd.DataFrame]:
    """Return accuracy with each repair of all heads, of the symbolic ones and of the others; and with none."""
    config, model = group.config, group.model
    scored = group.task.sample(config.scored_sequences, generator=group.source())
    scores = score_heads(model, scored.tokens, config.temperature)
    symbolic = purity(scores["positional"], scores["symbolic"], GAMMA) == -1
    chosen = {"all": torch.ones_like(symbolic), "symbolic": symbolic, "others": ~symbolic}
    tables = []
    for length in config.repair_lengths:
        for repair, heads in [(None, "none"), *((repair, heads) for repair in REPAIRS for heads in GROUPS)]:
            # A fresh source each time: every repair answers the same sequences.
            accuracy = repaired(
                model, group.task, length, config.repair_sequences, group.source(), repair=repair,
                heads=chosen.get(heads),
            )  # fmt: skip
            table = rows(group, {"accuracy": accuracy}, {})
            tables.append(table.assign(length=length, repair=repair or "none", heads=heads))
    return {"repairs": pd.concat(tables, ignore_index=True)}


def precision(group: Group) -> dict[str, pd.DataFrame]:
    """Return how many answers stay the same in float32, and what that does to accuracy."""
    config, found = group.config, []
    used = Precision.of(group.source().device)
    for length in config.compared_lengths:
        answers = [
            long_inputs.answer(
                group.model, group.task, length, config.compared_sequences, group.source(), precision=each
            ).correct.float()
            for each in (used, EXACT)
        ]
        same = (answers[0] == answers[1]).float().mean().item()
        change = (answers[0].mean() - answers[1].mean()).item()
        found.append((group.name, length, answers[0].numel(), same, change))
    return {"precision": pd.DataFrame(found, columns=["task", "length", "sequences", "same", "change"])}


def rows(group: Group, values: dict[str, Tensor], axes: dict) -> pd.DataFrame:
    """Return tensors of a group as rows: task, learning_rate, seed, then ``axes``, in this order."""
    columns = {name: value.cpu() for name, value in values.items()}
    table = tidy(columns, {"seed": group.config.seeds(), **axes})
    table = table.astype({name: "int64" for name, value in values.items() if not value.is_floating_point()})
    table.insert(0, "learning_rate", group.config.learning_rate)
    table.insert(0, "task", group.name)
    return table
