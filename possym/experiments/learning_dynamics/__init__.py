"""How heads turn positional or symbolic while GPT-J models learn the number and the letter task.

Each task trains several members from their own seeds, in weights, data and dropout. At points that are denser
early, every head is scored on one held-out set that all members share: the query is the last position, the keys
before it move, its own token stays. Accuracy is that of each member's own validation set, by hops, and at the
end of its test set.

Tables of the study (steps count updates, hops = 0 means all together):
- ``accuracy``: task, seed, step, split, hops, accuracy, loss, count
- ``scores``: task, seed, step, layer, head, positional, symbolic, positional_sd, symbolic_sd, entropy; means and
  standard deviations over sequences, entropy in nats
- ``heads``: task, seed, layer, head, gamma, kind, since: pure heads at the end, see `pure_heads`
- ``training``: task, seed, step, loss, accuracy; means over the `WINDOW` updates up to ``step``
- ``timing``: task, learning_rate, phase, seconds
- ``variants``: task, seed, step, layer, head, query, temperature, positional, symbolic: the scores with other
  temperatures and with the query at other positions, see `score_variants`; every `THINNED` th evaluation and the last
- ``best``: task, seed, step, hops, accuracy, loss, count: as the test rows of ``accuracy``, of each member's weights at
  its best validation, which was at ``step``; see `possym.experiments.trained.trained`
- ``rate_accuracy``, ``rate_scores``: as ``accuracy`` and ``scores``, of fewer members trained at other learning
  rates; a column learning_rate
- ``rule_accuracy``, ``rule_scores``, ``rule_heads``, ``rule_best``: as those without ``rule_``, of fewer members
  trained on the letter task with another rule for tokens off the path, see `possym.tasks.LetterTask`; task is its name
Arrays: the final weights of the first `STORED` members of each task in float16, named task.parameter; `trained_model`
makes a model of them.

Source: 2605.31558, section 3.1 and appendices C and E.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.attention import causal_attention
from possym.ensembles.ensemble import Ensemble
from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.query_scores import query_scores
from possym.ensembles.streams import generator
from possym.ensembles.training import training_dtype
from possym.errors import ConfigError, InputError
from possym.experiments.trained import (
    SMOKE,
    TASKS,
    EnsembleConfig,
    accuracy_by_hops,
    draw,
    held_out,
    memory_chunks,
    task_named,
    train,
    trained,
)
from possym.results import Study, checkpoint_folder, choose_device
from possym.results.devices import devices_of
from possym.results.evaluation_steps import evaluation_steps
from possym.scores import purity
from possym.tasks import Batch

NAME = "learning_dynamics"
WINDOW = 25
THINNED = 4
STORED = 2
QUERIES = ("last", "path", "all")
VARIANTS = ("variant_positional", "variant_symbolic")
GAMMAS = (0.1, 0.05)


@dataclass(frozen=True, kw_only=True)
class Config(EnsembleConfig):
    """Settings of the study; the defaults are the papers' setting where they state one.

    Raises:
        ConfigError: an unknown task, hops outside 1 to 4, or sizes that cannot be trained.

    >>> Config.preset_named("paper").steps
    6750
    """

    validation_sequences: int = 2_400
    test_sequences: int = 45_600
    scored_sequences: int = 1_000
    points: int = 100
    temperature: float = 1e-4
    variant_sequences: int = 48
    temperatures: tuple[float, ...] = (1e-4, 1e-2, 1e-1)
    other_rates: tuple[float, ...] = (3e-4, 1e-3)
    other_members: int = 8
    other_rules: tuple[str, ...] = ("letter_any",)
    rule_members: int = 8

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            **SMOKE,
            "validation_sequences": 200,
            "test_sequences": 400,
            "scored_sequences": 50,
            "points": 9,
            "variant_sequences": 10,
            "other_rates": (6e-3,),
            "other_members": 1,
            "rule_members": 1,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        self.need_sequences("validation_sequences", "test_sequences", "scored_sequences", "variant_sequences")
        self.each_positive("temperature", "temperatures")
        if not 1 <= self.other_members <= self.members:
            raise ConfigError(
                f"other_members = {self.other_members}: give a number from 1 to {self.members}, the members"
            )
        evaluation_steps(self.steps, self.points)
        for rate in self.other_rates:
            self.at_rate(rate)

    def at_rate(self, learning_rate: float) -> Self:
        """Return this configuration with another learning rate, fewer members, a quarter of the points, no variants."""
        if learning_rate == self.learning_rate:
            raise ConfigError(f"other_rates holds {learning_rate:g}, the learning rate itself: leave it out")
        return dataclasses.replace(
            self,
            learning_rate=learning_rate,
            members=self.other_members,
            points=max(self.points // 4, 2),
            temperatures=(),
            other_rates=(),
            other_members=1,
        )

    def of_rule(self) -> Self:
        """Return this configuration with fewer members and no variants, for another rule of the letter task."""
        members = min(self.rule_members, self.members)
        return dataclasses.replace(self, members=members, temperatures=(), other_rates=(), other_members=1)


def run(config: Config) -> Study:
    """Train both tasks' members and score their heads; an interrupted run goes on from its checkpoints."""
    device = choose_device(config.device)
    tables: dict[str, list[pd.DataFrame]] = {}
    arrays = {}
    folder = checkpoint_folder(NAME, config)
    for name in config.tasks:
        found, model = run_task(name, config, device, folder / name)
        arrays |= {f"{name}.{key}": p[:STORED].detach().half().cpu() for key, p in model.named_parameters()}
        del model
        for rate in config.other_rates:
            other, _ = run_task(name, config.at_rate(rate), device, folder / f"{name}-{rate:g}")
            for table in ("accuracy", "scores"):
                found[f"rate_{table}"] = found.get(f"rate_{table}", []) + other[table]
            found["timing"] += other["timing"]
        add(tables, found, name)
    for name in config.other_rules if "letter" in config.tasks else ():
        other, _ = run_task(name, config.of_rule(), device, folder / name)
        add(tables, {f"rule_{table}": other[table] for table in ("accuracy", "scores", "best")}, name)
        add(tables, {"timing": other["timing"]}, name)
    joined = {table: pd.concat(frames, ignore_index=True) for table, frames in tables.items()}
    for table in joined.keys() - {"timing", "rate_accuracy", "rate_scores"}:
        del joined[table]["learning_rate"]
    for kind in ("", "rule_"):
        if f"{kind}scores" in joined:
            heads = [pure_heads(joined[f"{kind}scores"], gamma) for gamma in GAMMAS]
            joined[f"{kind}heads"] = pd.concat(heads, ignore_index=True)
    return Study(joined, arrays, {"seeds": config.seeds(), "devices": len(devices_of(device))})


def add(tables: dict[str, list[pd.DataFrame]], found: dict[str, list[pd.DataFrame]], task: str) -> None:
    """Put one task's tables behind those of the others."""
    for table, frames in found.items():
        for frame in frames:
            frame.insert(0, "task", task)
        tables.setdefault(table, []).extend(frames)


def run_task(
    name: str, config: Config, device: torch.device, checkpoints: Path
) -> tuple[dict[str, list[pd.DataFrame]], GPTJEnsemble]:
    """Train one task's members; return their tables, each with a column learning_rate, and themselves."""
    clock = time.perf_counter()
    validation, test = held_out(name, config, device, config.validation_sequences, config.test_sequences)
    prepared = time.perf_counter() - clock
    points = evaluation_steps(config.steps, config.points)
    measured = partial(evaluation, name, config)
    model, result = train(name, config, device, checkpoints, evaluation=measured, evaluate_at=points)
    clock = time.perf_counter()
    seeds = config.seeds()
    final = {key: value[None] for key, value in accuracy_by_hops(model, test, config.hops).items()}
    best = {
        key: value[None]
        for key, value in accuracy_by_hops(trained(name, config, device, "best"), test, config.hops).items()
    }
    chosen = accuracy_table(best, [0], seeds, "test", test, config.hops).drop(columns="split")
    chosen["step"] = chosen["seed"].map(dict(zip(seeds, result.best_steps.tolist(), strict=True)))
    phases = {
        "data": prepared,
        "training": result.seconds_training,
        "evaluation": result.seconds_evaluation,
        "test": time.perf_counter() - clock,
    }
    tables = {
        "best": [chosen],
        "accuracy": [
            accuracy_table(result.evaluations, points, seeds, "validation", validation, config.hops),
            accuracy_table(final, [config.steps], seeds, "test", test, config.hops),
        ],
        "scores": [score_table(result.evaluations, points, seeds)],
        "variants": [variant_table(result.evaluations, points, seeds, config.temperatures)],
        "training": [training_table(result.losses, result.accuracies, seeds)],
        "timing": [pd.DataFrame({"phase": phases.keys(), "seconds": [round(s, 3) for s in phases.values()]})],
    }
    for frames in tables.values():
        for frame in frames:
            frame.insert(0, "learning_rate", config.learning_rate)
    return tables, model


def evaluation(
    name: str, config: Config, seeds: Sequence[int], device: torch.device
) -> Callable[[Ensemble, int], dict[str, Tensor]]:
    """Return what measures the members with these seeds on the way; variants are NaN away from `thinned` points."""
    (validation,) = held_out(name, config, device, config.validation_sequences, seeds=seeds)
    shared = generator(config.seed, "held-out", device)
    scored, varied = (
        draw(task_named(name), count, config.hops, shared)
        for count in (config.scored_sequences, config.variant_sequences)
    )

    points = evaluation_steps(config.steps, config.points)
    kept = {points[index] for index in thinned(points)}
    shape = len(seeds), config.layers, config.heads, len(QUERIES), len(config.temperatures)

    def evaluate(model: Ensemble, step: int) -> dict[str, Tensor]:
        variants = (
            score_variants(model, varied, config.temperatures)
            if step in kept and config.temperatures
            else dict.fromkeys(VARIANTS, torch.full(shape, math.nan, dtype=torch.float64))
        )
        return {
            **accuracy_by_hops(model, validation, config.hops, training_dtype(device)),
            **score_heads(model, scored.tokens, config.temperature),
            **variants,
        }

    return evaluate


def score_heads(model: Ensemble, tokens: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return scores of every head over sequences, query at the last position, each (E, L, H).

    The keys before the last position move; the last token's own key is attended but stays. Means are called
    ``positional``, ``symbolic`` and ``entropy``, standard deviations ``positional_sd`` and ``symbolic_sd``.

    Args:
        model: the ensemble.
        tokens: (B, T) sequences that all members read.
        temperature: τ of the weights over swaps.
    """
    config = model.config
    length = tokens.shape[-1]
    pairs = (length - 1) * (length - 2) // 2
    bytes_each = 4 * model.members * config.layers * config.heads * (6 * length * config.head_width + 16 * pairs)
    found = []
    for rows in memory_chunks(tokens, bytes_each):
        with torch.no_grad():
            queries, keys = (each.transpose(0, 1) for each in model.queries_and_keys(tokens[rows]))  # as they lie
            scores = query_scores(queries.unsqueeze(-2), keys, **planes_of(model), temperatures=(temperature,))
        found.append(torch.stack([scores.positional[0], scores.symbolic[0], scores.entropy]).squeeze(-1))
    positional, symbolic, entropy = torch.cat(found, 3).transpose(1, 2)  # each (E, L, B, H)
    return {
        "positional": positional.mean(2),
        "symbolic": symbolic.mean(2),
        "positional_sd": positional.std(2, correction=0),
        "symbolic_sd": symbolic.std(2, correction=0),
        "entropy": entropy.mean(2),
    }


def score_variants(model: Ensemble, batch: Batch, temperatures: Sequence[float]) -> dict[str, Tensor]:
    """Return the mean scores of every head with the query at other positions and with other temperatures.

    Each query's earlier keys move, at least two. `QUERIES`: ``last`` is the last position; ``path`` the positions from
    which the path jumps, the last one included; ``all`` every position.

    Args:
        model: the ensemble.
        batch: (B, T) sequences that all members read.
        temperatures: τ of the weights over swaps.

    Returns:
        ``variant_positional`` and ``variant_symbolic``, each (E, L, H, queries, temperatures).
    """
    layers = []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layers.append((query, key))
        return causal_attention(query, key, value, frequencies=model.config.frequencies, layout=model.layout)

    length = batch.tokens.shape[-1]
    jumps = torch.zeros(batch.tokens.shape, dtype=torch.bool, device=batch.tokens.device)
    from_here = batch.path[:, :-1].clamp(min=0)
    jumps.scatter_(1, from_here, batch.path[:, 1:] >= 0)
    with torch.no_grad():
        model(batch.tokens, attend=attend, all_positions=True)
        queries, keys = (torch.stack([each[k].transpose(2, 3) for each in layers], 1) for k in (0, 1))
        scores = query_scores(queries[..., 2:, :], keys, **planes_of(model), temperatures=temperatures)
    last = torch.arange(length, device=jumps.device) == length - 1
    asked = torch.stack([last.expand_as(jumps), jumps, torch.ones_like(jumps)])[..., 2:].double()  # (queries, B, T − 2)
    count = asked.sum((1, 2))[:, None]
    return {
        kind: torch.einsum("telbhp,qbp->elhqt", values.double(), asked) / count
        for kind, values in zip(VARIANTS, scores[:2], strict=True)
    }


def planes_of(model: Ensemble) -> dict[str, Any]:
    """Return how a model's planes turn, as functions of queries and keys ask for it."""
    return {"frequencies": model.angles, "layout": model.layout}


def variant_table(
    values: dict[str, Tensor], points: Sequence[int], seeds: Sequence[int], temperatures: Sequence[float]
) -> pd.DataFrame:
    """Return what `score_variants` found (points, E, L, H, queries, temperatures) as a table, thinned."""
    kept = thinned(points)
    chosen = {name.removeprefix("variant_"): values[name][kept] for name in VARIANTS}
    layers, heads = chosen["positional"].shape[2:4]
    axes = {"step": [points[k] for k in kept], "seed": seeds, "layer": range(layers), "head": range(heads)}
    return tidy(chosen, axes | {"query": QUERIES, "temperature": temperatures})


def thinned(points: Sequence[int]) -> list[int]:
    """Return which of the points have variants scored: every `THINNED` th and the last.

    >>> thinned(range(10, 17))
    [0, 4, 6]
    """
    return [index for index in range(len(points)) if index % THINNED == 0 or index == len(points) - 1]


def tidy(values: dict[str, Tensor], axes: dict[str, Sequence[Any]]) -> pd.DataFrame:
    """Return tensors that share their axes as one table, one row per entry; five decimals, so that it stores small."""
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


def trained_model(study: Study, config: Config, task: str, member: int = 0) -> GPTJEnsemble:
    """Return a member that a study trained on a task, as an ensemble of one in float32, on the CPU.

    Raises:
        InputError: the study holds no such model; it keeps the first `STORED` members.
    """
    weights = {key.removeprefix(f"{task}."): w for key, w in study.arrays.items() if key.startswith(f"{task}.")}
    if task not in TASKS or not weights:
        raise InputError(f"task = {task!r}: this study holds {', '.join(config.tasks)}")
    kept = len(weights["embedding"])
    if not 0 <= member < kept:
        raise InputError(f"member = {member}: this study keeps the weights of members 0 to {kept - 1}")
    own = {key: weight[member : member + 1] for key, weight in weights.items()}
    return GPTJEnsemble.from_weights(config.model(len(TASKS[task]().vocabulary)), own)
