"""How heads turn positional or symbolic while GPT-J models learn the number and the letter task.

Each task trains several members from their own seeds, in weights, data and dropout. At points that are denser
early, every head is scored on one held-out set that all members share: the query is the last place, the keys
before it move, its own token stays. Accuracy is that of each member's own validation set, by hops, and at the
end of its test set.

Tables of the study (steps count updates, hops = 0 means all together):
- ``accuracy``: task, seed, step, split, hops, accuracy, loss, count
- ``scores``: task, seed, step, layer, head, positional, symbolic, positional_sd, symbolic_sd, entropy; means and
  standard deviations over sequences, entropy in nats
- ``heads``: task, seed, layer, head, gamma, kind, since: pure heads at the end, see `pure_heads`
- ``training``: task, seed, step, loss, accuracy; means over the `WINDOW` updates up to ``step``
- ``timing``: task, phase, seconds
Arrays: the final weights of the first member of each task in float16, named task.parameter; `trained_model`
makes a model of them.

Source: 2605.31558, section 3.1 and appendices C and E.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError, InputError, need
from ..models.gptj import GPTJConfig, GPTJEnsemble
from ..results import ExperimentConfig, Study, checkpoint_folder, choose_device
from ..scores import purity, relocated_logits, swap_scores
from ..tasks import Batch, LetterTask, NumberTask
from ..training import TokenTable, Trainer, TrainingConfig, evaluation_steps, generator

NAME = "learning_dynamics"
TASKS = {"number": NumberTask, "letter": LetterTask}
WINDOW = 25
GAMMAS = (0.1, 0.05)
MEMORY = 2 * 2**30


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study; the defaults are the papers' setting where they state one.

    Members are seeded ``seed``, ``seed`` + 1, …; sequences are counted per member.

    Raises:
        ConfigError: an unknown task, hops outside 1 to 4, or sizes that cannot be trained.

    >>> Config.preset_named("paper").steps
    6750
    """

    tasks: tuple[str, ...] = ("number", "letter")
    members: int = 8
    layers: int = 12
    heads: int = 1
    width: int = 128
    dropout: float = 0.1
    hops: tuple[int, ...] = (1, 2, 3, 4)
    training_sequences: int = 432_000
    validation_sequences: int = 2_400
    test_sequences: int = 45_600
    scored_sequences: int = 1_000
    steps: int = 6_750
    batch: int = 64
    learning_rate: float = 1e-4
    warmup: int = 750
    points: int = 64
    temperature: float = 1e-4

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "members": 2,
            "layers": 2,
            "width": 48,
            "dropout": 0.0,
            "hops": (1, 2),
            "training_sequences": 25_600,
            "validation_sequences": 200,
            "test_sequences": 400,
            "scored_sequences": 50,
            "steps": 400,
            "learning_rate": 3e-3,
            "warmup": 40,
            "points": 9,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        if not self.tasks or len(set(self.tasks)) < len(self.tasks) or not set(self.tasks) <= TASKS.keys():
            raise ConfigError(f"tasks = {self.tasks!r}: give one or more of {', '.join(TASKS)}, each once")
        if not self.hops or list(self.hops) != sorted(set(self.hops)) or not set(self.hops) <= {1, 2, 3, 4}:
            raise ConfigError(f"hops = {self.hops!r}: give ascending numbers from 1 to 4")
        for name in ("training_sequences", "validation_sequences", "test_sequences", "scored_sequences"):
            if getattr(self, name) < len(self.hops):
                raise ConfigError(f"{name} = {getattr(self, name)}: give at least one for each of {self.hops} hops")
        if self.members < 1:
            raise ConfigError(f"members = {self.members}: give a whole number from 1")
        if not self.temperature > 0:
            raise ConfigError(f"temperature = {self.temperature}: give a positive number")
        self.model(vocabulary_size=1)
        self.training()
        evaluation_steps(self.steps, self.points)
        if self.steps * self.batch > self.training_sequences:
            raise ConfigError(
                f"steps = {self.steps} with batch = {self.batch} need {self.steps * self.batch} training sequences, "
                f"training_sequences = {self.training_sequences}: each is read once"
            )

    def model(self, vocabulary_size: int) -> GPTJConfig:
        """Return the sizes of the models."""
        return GPTJConfig(vocabulary_size, self.layers, self.heads, self.width, dropout=self.dropout)

    def training(self) -> TrainingConfig:
        """Return how they are trained."""
        return TrainingConfig(self.steps, self.batch, self.learning_rate, warmup=self.warmup)

    def seeds(self) -> list[int]:
        """Return the members' seeds."""
        return list(range(self.seed, self.seed + self.members))


def run(config: Config) -> Study:
    """Train both tasks' members and score their heads; an interrupted run goes on from its checkpoints."""
    device = choose_device(config.device)
    tables: dict[str, list[pd.DataFrame]] = {}
    arrays = {}
    for name in config.tasks:
        task_tables, weights = run_task(name, config, device)
        for table, frame in task_tables.items():
            frame.insert(0, "task", name)
            tables.setdefault(table, []).append(frame)
        arrays |= {f"{name}.{key}": weight for key, weight in weights.items()}
    joined = {table: pd.concat(frames, ignore_index=True) for table, frames in tables.items()}
    joined["heads"] = pd.concat([pure_heads(joined["scores"], gamma) for gamma in GAMMAS], ignore_index=True)
    return Study(joined, arrays, {"seeds": config.seeds()})


def run_task(name: str, config: Config, device: torch.device) -> tuple[dict[str, pd.DataFrame], dict[str, Tensor]]:
    """Train one task's members; return its tables and the first member's weights in float16."""
    clock = time.perf_counter()
    task = TASKS[name]()
    seeds = config.seeds()
    splits = [
        tuple(draw(task, size, config.hops, source) for size in sizes(config))
        for source in (generator(seed, "data", device) for seed in seeds)
    ]
    training, validation, test = (stack(batches) for batches in zip(*splits, strict=True))
    scored = draw(task, config.scored_sequences, config.hops, generator(config.seed, "held-out", device)).tokens
    source = TokenTable(training.tokens, training.answer, config.batch)
    del splits, training
    model = GPTJEnsemble(config.model(len(task.vocabulary)), seeds).to(device)
    prepared = time.perf_counter() - clock

    def evaluate(model: GPTJEnsemble) -> dict[str, Tensor]:
        return {**accuracy_by_hops(model, validation, config.hops), **score_heads(model, scored, config.temperature)}

    points = evaluation_steps(config.steps, config.points)
    result = Trainer(
        model,
        source,
        config.training(),
        seeds,
        evaluate=evaluate,
        evaluate_at=points,
        checkpoint=checkpoint_folder(NAME, config) / f"{name}.safetensors",
        description=f"{name} task, {config.members} members",
    ).run()
    clock = time.perf_counter()
    final = {key: value[None] for key, value in accuracy_by_hops(model, test, config.hops).items()}
    phases = {
        "data": prepared,
        "training": result.seconds_training,
        "evaluation": result.seconds_evaluation,
        "test": time.perf_counter() - clock,
    }
    tables = {
        "accuracy": pd.concat(
            [
                accuracy_table(result.evaluations, points, seeds, "validation", validation, config.hops),
                accuracy_table(final, [config.steps], seeds, "test", test, config.hops),
            ],
            ignore_index=True,
        ),
        "scores": score_table(result.evaluations, points, seeds),
        "training": training_table(result.losses, result.accuracies, seeds),
        "timing": pd.DataFrame({"phase": phases.keys(), "seconds": [round(s, 3) for s in phases.values()]}),
    }
    weights = {key: p[:1].detach().half().cpu() for key, p in model.named_parameters()}
    return tables, weights


def sizes(config: Config) -> tuple[int, int, int]:
    """Return the numbers of training, validation and test sequences."""
    return config.training_sequences, config.validation_sequences, config.test_sequences


def draw(task: NumberTask | LetterTask, count: int, hops: Sequence[int], source: torch.Generator) -> Batch:
    """Draw sequences with these hops in equal share (counts differ by at most one), shuffled."""
    shares = [count // len(hops) + (index < count % len(hops)) for index in range(len(hops))]
    parts = [task.sample(share, hops=h, generator=source) for share, h in zip(shares, hops, strict=True)]
    order = torch.randperm(count, generator=source, device=source.device)
    return Batch(*(torch.cat([getattr(part, field) for part in parts])[order] for field in Batch._fields))


def stack(batches: Sequence[Batch]) -> Batch:
    """Put the members' batches behind one leading axis."""
    return Batch(*(torch.stack(tensors) for tensors in zip(*batches, strict=True)))


def pieces(tokens: Tensor, bytes_each: int) -> Iterator[slice]:
    """Yield slices over the sequences that keep what each of them takes within `MEMORY`."""
    step = max(1, MEMORY // bytes_each)
    count = tokens.shape[-2]
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def accuracy_by_hops(model: GPTJEnsemble, batch: Batch, hops: Sequence[int]) -> dict[str, Tensor]:
    """Return ``accuracy`` and ``loss`` (E, 1 + hops): all together first, then each number of hops.

    Args:
        model: the ensemble.
        batch: its fields with a leading member axis, (E, N, …).
        hops: which to tell apart.
    """
    length = batch.tokens.shape[-1]
    bytes_each = 4 * model.members * length * (40 * model.config.width + 4 * model.config.heads * length)
    losses, correct = [], []
    for rows in pieces(batch.tokens, bytes_each):
        with torch.no_grad():
            logits = model(batch.tokens[:, rows])
        answer = batch.answer[:, rows]
        losses.append(F.cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="none").view_as(answer))
        correct.append((logits.argmax(-1) == answer).float())
    chosen = torch.stack([torch.ones_like(batch.hops, dtype=torch.bool), *(batch.hops == h for h in hops)], 1)
    chosen = chosen.double()  # (E, 1 + hops, N); in float32 a mean of 45,600 ones falls short of 1
    count = chosen.sum(-1)
    return {
        name: (chosen @ torch.cat(values, 1).double().unsqueeze(-1)).squeeze(-1) / count
        for name, values in (("accuracy", correct), ("loss", losses))
    }


def score_heads(model: GPTJEnsemble, tokens: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return scores of every head over sequences, query at the last place, each (E, L, H).

    The keys before the last place move; the last token's own key is attended but stays. Means are called
    ``positional``, ``symbolic`` and ``entropy``, standard deviations ``positional_sd`` and ``symbolic_sd``.

    Args:
        model: the ensemble.
        tokens: (B, T) sequences that all members read.
        temperature: τ of the weights over swaps.
    """
    config = model.config
    length = tokens.shape[-1]
    own = length - 1
    pairs = own * (own - 1) // 2
    bytes_each = 4 * model.members * config.layers * config.heads * (6 * length * config.head_width + 16 * pairs)
    found = []
    for rows in pieces(tokens, bytes_each):
        with torch.no_grad():
            queries, keys, _ = model.trace(tokens[rows])
        relocated = relocated_logits(
            queries,
            keys[..., :own, :],
            query_position=own,
            positions=torch.arange(own),
            frequencies=config.frequencies,
            layout="interleaved",
        )
        unmoved = (queries * keys[..., own, :]).sum(-1, keepdim=True) * config.head_width**-0.5
        found.append(torch.stack(swap_scores(relocated, extra_logits=unmoved, temperature=temperature)))
    positional, symbolic, entropy = torch.cat(found, 3)  # each (E, L, B, H)
    return {
        "positional": positional.mean(2),
        "symbolic": symbolic.mean(2),
        "positional_sd": positional.std(2, correction=0),
        "symbolic_sd": symbolic.std(2, correction=0),
        "entropy": entropy.mean(2),
    }


def tidy(values: dict[str, Tensor], axes: dict[str, Sequence[Any]]) -> pd.DataFrame:
    """Return tensors that share their axes as one table, a row an entry; five decimals, so that it stores small."""
    index = pd.MultiIndex.from_product(axes.values(), names=axes.keys())
    columns = {name: value.flatten().double().round(decimals=5).float().numpy() for name, value in values.items()}
    return pd.DataFrame(columns, index).reset_index()


def accuracy_table(
    values: dict[str, Tensor],
    points: Sequence[int],
    seeds: Sequence[int],
    split: str,
    batch: Batch,
    hops: Sequence[int],
) -> pd.DataFrame:
    """Return accuracy and loss (points, E, 1 + hops) as a table."""
    chosen = {name: values[name].cpu() for name in ("accuracy", "loss")}
    table = tidy(chosen, {"step": points, "seed": seeds, "hops": [0, *hops]})
    table.insert(2, "split", split)
    drawn = batch.hops[0].cpu()
    counts = {0: len(drawn), **{h: int((drawn == h).sum()) for h in hops}}
    table["count"] = table["hops"].map(counts)
    return table


def score_table(values: dict[str, Tensor], points: Sequence[int], seeds: Sequence[int]) -> pd.DataFrame:
    """Return scores (points, E, L, H) as a table."""
    names = ("positional", "symbolic", "positional_sd", "symbolic_sd", "entropy")
    layers, heads = values["entropy"].shape[-2:]
    axes = {"step": points, "seed": seeds, "layer": range(layers), "head": range(heads)}
    return tidy({name: values[name] for name in names}, axes)


def training_table(losses: Tensor, accuracies: Tensor, seeds: Sequence[int]) -> pd.DataFrame:
    """Return loss and accuracy (steps, E) as a table of means over `WINDOW` updates."""
    windows = len(losses) // WINDOW
    means = {
        name: values[: windows * WINDOW].unflatten(0, (windows, WINDOW)).mean(1)
        for name, values in (("loss", losses), ("accuracy", accuracies))
    }
    return tidy(means, {"step": range(WINDOW, windows * WINDOW + 1, WINDOW), "seed": seeds})


def pure_heads(scores: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """Return each head's kind at the end and the step since which it has been so.

    Args:
        scores: the study's ``scores`` table.
        gamma: a head is pure where one score is at least 1 − γ and the other at most γ.

    Returns:
        task, seed, layer, head, gamma, kind (1 positional, −1 symbolic, 0 neither), since: the first evaluated
        step from which every evaluation up to the last gives this kind.

    Source: 2605.31558, section 3.1, read as: pure from some step to the end.

    >>> scores = pd.DataFrame({"task": "letter", "seed": 0, "layer": 0, "head": 0, "step": [0, 10, 20],
    ...                        "positional": [1.0, 0.05, 0.02], "symbolic": [1.0, 0.95, 0.99]})
    >>> pure_heads(scores, 0.1)[["gamma", "kind", "since"]].values.tolist()
    [[0.1, -1.0, 10.0]]
    """
    head = ["task", "seed", "layer", "head"]
    scores = scores.sort_values([*head, "step"])
    values = (torch.tensor(scores[name].to_numpy()) for name in ("positional", "symbolic"))
    scores = scores.assign(kind=purity(*values, gamma).numpy())
    scores["differs"] = scores["kind"] != scores.groupby(head)["kind"].transform("last")
    last_other = scores["step"].where(scores["differs"], -1).groupby([scores[c] for c in head]).transform("max")
    steady = scores[scores["step"] > last_other].groupby(head, sort=False)
    table = steady.agg(kind=("kind", "last"), since=("step", "first")).reset_index()
    table.insert(len(head), "gamma", gamma)
    return table


def trained_model(study: Study, config: Config, task: str) -> GPTJEnsemble:
    """Return the first member that a study trained on a task, as an ensemble of one in float32, on the CPU.

    Raises:
        InputError: the study holds no such model.
    """
    need(study, Study, "study")
    need(config, Config, "config")
    need(task, str, "task")
    weights = {key.removeprefix(f"{task}."): w for key, w in study.arrays.items() if key.startswith(f"{task}.")}
    if task not in TASKS or not weights:
        raise InputError(f"task = {task!r}: this study holds {', '.join(config.tasks)}")
    return GPTJEnsemble.from_weights(config.model(len(TASKS[task]().vocabulary)), weights)
