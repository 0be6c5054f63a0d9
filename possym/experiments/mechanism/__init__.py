"""What the layers of trained models do, which of them are needed, and whether the letter task's shortcut is used.

The models are those of the learning-dynamics study: the same settings and seeds, taken from the cache of ensembles if
they have been trained on this machine. The first ``tracked`` members are trained under observation, to see when each
layer takes up its function. Every member reads held-out sequences of its own, unless stated otherwise.

Tables of the study. ``function`` is the k of F^k (`possym.experiments.mechanism.token_flow`), −1 for none; hops = 0
means all together:
- ``agreement``: task, seed, layer, where (path or last), power, share
- ``labels``: task, seed, without, layer, function, agreement, last_function: labels of every layer, from all positions
  of the path and from the last alone; ``without`` is the layer that was made to move nothing, −1 for none
- ``left``: task, seed, layer, hops, left, share: after each layer, −1 before the first; left = 5 means never
- ``advance``: task, seed, layer, advance, share
- ``frequencies``: task, seed, layer, head, weighting, dominant, strongest: frequency IDs
- ``planes``: task, layer, head, weighting, frequency_id, share: mean over seeds
- ``causes``: task, seed, change, places, layer, hops, accuracy; change ``none`` has layer −1
- ``kept``: task, seed, instead, order, kept, hops, accuracy: layers left out one by one; order says which: ``greedy``
  (the least needed first, chosen on other sequences), ``first`` (from layer 0 up) or ``last`` (from the top down)
- ``left_out``: task, seed, instead, step, layer: the greedy order
- ``rule``: kind, hops, seed, answer, share: what models answer to letter sequences of `possym.tasks.counterfactual`,
  the same for all members: the token at the end of the path, the rule's, another target or something else
- ``training``: task, seed, step, layer, function, agreement, positional, symbolic (tracked members, mean over heads)
- ``progress``: task, seed, step, hops, accuracy (tracked members)
- ``undropped_labels`` and ``undropped_accuracy``: task, seed, without, … as ``labels``, and hops, accuracy: the first
  ``undropped`` members trained without dropout, whole and with each layer made to move nothing
- ``timing``: task, phase, seconds

Source: 2605.31558, section 3.2 and appendix F.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.planes import dominant_frequency, plane_weights
from possym.ensembles.streams import generator
from possym.errors import ConfigError
from possym.experiments.learning_dynamics import score_heads, tidy
from possym.experiments.mechanism.interventions import greedy_layer_ablation, intervention, keep_layers
from possym.experiments.mechanism.token_flow import NEVER, POWERS, functions, label
from possym.experiments.trained import (
    SMOKE,
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
from possym.tasks import Batch, LetterTask
from possym.tasks.counterfactual import KINDS, TARGETS, conflicts

NAME = "mechanism"
CHANGES = (
    ("uniform", "all"),
    ("self", "all"),
    ("self", "last"),
    ("self", "others"),
    ("next", "all"),
    ("ahead", "all"),
    ("exchanged", "all"),
)
ANSWERS = ("path", "rule", "target", "other")
INSTEAD = ("uniform", "self")


@dataclass(frozen=True, kw_only=True)
class Config(EnsembleConfig):
    """Settings of the study beside those of the ensembles; sequences are counted per member.

    Raises:
        ConfigError: as `EnsembleConfig`, or counts that are too small.

    >>> Config.preset_named("paper").tracked
    8
    """

    sequences: int = 4_000
    weighed_sequences: int = 400
    changed_sequences: int = 800
    chosen_sequences: int = 200
    rule_sequences: int = 500
    tracked: int = 8
    points: int = 32
    tracked_sequences: int = 400
    undropped: int = 8
    temperature: float = 1e-4

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            **SMOKE,
            "sequences": 200,
            "weighed_sequences": 40,
            "changed_sequences": 100,
            "chosen_sequences": 60,
            "rule_sequences": 40,
            "tracked": 2,
            "points": 6,
            "tracked_sequences": 60,
            "undropped": 2,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        self.need_sequences(
            "sequences", "weighed_sequences", "changed_sequences", "chosen_sequences", "tracked_sequences"
        )
        self.each_at_least(1, "rule_sequences")
        for name in ("tracked", "undropped"):
            if not 1 <= getattr(self, name) <= self.members:
                few = f"{name} = {getattr(self, name)}"
                raise ConfigError(f"{few}: give a whole number from 1 to members = {self.members}")
        self.each_positive("temperature")
        evaluation_steps(self.steps, self.points)


def run(config: Config) -> Study:
    """Take the trained members of both tasks apart; trained ensembles come from the cache."""
    device = choose_device(config.device)
    tables: dict[str, list[pd.DataFrame]] = {}
    for name in config.tasks:
        clock, seconds = time.perf_counter(), {}
        for phase, frames in phases(name, config, device):
            seconds[phase], clock = time.perf_counter() - clock, time.perf_counter()
            for key, frame in frames.items():
                tables.setdefault(key, []).append(frame.assign(task=name))
        timing = pd.DataFrame({"task": name, "phase": seconds.keys(), "seconds": seconds.values()})
        tables.setdefault("timing", []).append(timing.round(3))
    return Study(
        {key: pd.concat(frames, ignore_index=True) for key, frames in tables.items()},
        {},
        {"seeds": config.seeds(), "devices": len(devices_of(device))},
    )


def phases(name: str, config: Config, device: torch.device) -> Iterator[tuple[str, dict[str, pd.DataFrame]]]:
    """Yield the parts of one task's study with their tables."""
    yield "tracked training", track(name, config, device)
    model = trained(name, config, device)
    yield "training, or reading the cache", {}
    counts = config.sequences, config.changed_sequences, config.chosen_sequences
    whole, changed, chosen = held_out(name, config, device, *counts)
    yield "sequences", {}
    yield "flow", read_flow(name, model, config, whole, changed)
    yield "planes", weigh_planes(name, model, config)
    yield "one layer changed", change_attention(model, config, changed)
    yield "layers left out", leave_layers_out(model, config, changed, chosen)
    if isinstance(task_named(name), LetterTask):
        yield "path against rule", try_rule(model, config)
    del model
    plain = dataclasses.replace(config, members=config.undropped, dropout=0.0)
    few = Batch(*(column[: plain.members] for column in changed))
    yield "without dropout", without_dropout(name, trained(name, plain, device), plain, few)


def device_of(model: GPTJEnsemble) -> torch.device:
    """Return where a model is."""
    return next(model.parameters()).device


def read_flow(name: str, model: GPTJEnsemble, config: Config, whole: Batch, part: Batch) -> dict[str, pd.DataFrame]:
    """Return which function every layer agrees with, the hops left, and the same with each layer taken out."""
    task = task_named(name)
    seeds, layers = config.seeds(), range(config.layers)
    found = functions(model, task, whole)
    agreement = torch.stack([found["path"], found["last"]], 2)  # (E, L, 2, P + 1)
    axes = {"seed": seeds, "layer": layers}
    return {
        "agreement": table({"share": agreement}, axes | {"where": ("path", "last"), "power": range(POWERS + 1)}),
        "labels": pd.concat([label_table(found, axes, -1), labels_without(name, model, part, axes)], ignore_index=True),
        "left": table(
            {"share": found["left"][:, :, [h - 1 for h in config.hops]]},
            {"seed": seeds, "layer": range(-1, config.layers), "hops": config.hops, "left": range(NEVER + 1)},
        ),
        "advance": table({"share": found["advance"]}, axes | {"advance": range(POWERS + 1)}),
    }


def labels_without(name: str, model: GPTJEnsemble, batch: Batch, axes: dict[str, Sequence[Any]]) -> pd.DataFrame:
    """Return the labels of all layers with each layer in turn made to move nothing."""
    frames = [
        label_table(functions(model, task_named(name), batch, layer), axes, layer)
        for layer in range(model.config.layers)
    ]
    return pd.concat(frames, ignore_index=True)


def label_table(found: dict[str, Tensor], axes: dict[str, Sequence[Any]], without: int) -> pd.DataFrame:
    """Return the labels of `functions`' agreements."""
    values = {
        "function": label(found["path"]),
        "agreement": found["path"].amax(-1),
        "last_function": label(found["last"]),
    }
    frame = table(values, axes).astype({"function": int, "last_function": int})
    frame.insert(1, "without", without)
    return frame


def table(values: dict[str, Tensor], axes: dict[str, Sequence[Any]]) -> pd.DataFrame:
    """Return tensors on any device as one table, one row per entry."""
    return tidy({name: value.cpu() for name, value in values.items()}, axes)


def weigh_planes(name: str, model: GPTJEnsemble, config: Config) -> dict[str, pd.DataFrame]:
    """Return how much each RoPE plane takes part, on sequences that all members share."""
    task = task_named(name)
    tokens = draw(
        task, config.weighed_sequences, config.hops, generator(config.seed, "held-out", device_of(model))
    ).tokens
    length, width = tokens.shape[-1], config.width
    bytes_each = 4 * config.members * config.layers * length * 6 * width
    sums: dict[str, Tensor] = {}
    for rows in memory_chunks(tokens, bytes_each):
        part = tokens[rows]
        for weighting, weights in plane_weights(model, part).items():
            sums[weighting] = sums.get(weighting, 0) + weights * len(part) / len(tokens)
    weights = torch.stack(list(sums.values()), 3)  # (E, L, H, weightings, F)
    heads = {"layer": range(config.layers), "head": range(config.heads), "weighting": list(sums)}
    frequencies = {"dominant": dominant_frequency(weights), "strongest": weights.argmax(-1) + 1}
    shares = (weights / weights.sum(-1, keepdim=True)).mean(0)
    return {
        "frequencies": table(frequencies, {"seed": config.seeds(), **heads}).astype({"strongest": int}),
        "planes": table({"share": shares}, heads | {"frequency_id": range(1, weights.shape[-1] + 1)}),
    }


def parts(model: GPTJEnsemble, batch: Batch) -> Iterator[Batch]:
    """Yield a batch in memory_chunks that fit into memory."""
    length, config = batch.tokens.shape[-1], model.config
    bytes_each = 4 * model.members * length * (40 * config.width + 8 * config.heads * length)
    for rows in memory_chunks(batch.tokens, bytes_each):
        yield Batch(*(column[:, rows] for column in batch))


def accuracies(
    model: GPTJEnsemble, batch: Batch, hops: Sequence[int], attend: Callable[[Batch], Callable | None]
) -> Tensor:
    """Return accuracy (E, 1 + hops), all together first, under the attention that ``attend`` gives for a piece."""
    right = []
    for part in parts(model, batch):
        with torch.no_grad():
            right.append(model(part.tokens, attend=attend(part)).argmax(-1) == part.answer)
    found = torch.cat(right, 1).double()
    chosen = torch.stack([torch.ones_like(batch.hops, dtype=torch.bool), *(batch.hops == h for h in hops)], 1).double()
    return (chosen @ found[..., None])[..., 0] / chosen.sum(-1)


def change_attention(model: GPTJEnsemble, config: Config, batch: Batch) -> dict[str, pd.DataFrame]:
    """Return accuracies with one layer's attention changed."""
    axes = {"seed": config.seeds(), "hops": [0, *config.hops]}
    frames = []

    def measure(change: str, positions: str, layer: int, attend: Callable[[Batch], Callable | None]) -> None:
        frame = table({"accuracy": accuracies(model, batch, config.hops, attend)}, axes)
        frames.append(frame.assign(change=change, places=positions, layer=layer))

    measure("none", "all", -1, lambda part: None)
    for change, positions in CHANGES:
        for layer in range(config.layers):
            chosen = layer, change, positions
            measure(change, positions, layer, lambda part, chosen=chosen: intervention(model, part, *chosen))
    return {"causes": pd.concat(frames, ignore_index=True)}


def without_dropout(name: str, model: GPTJEnsemble, config: Config, batch: Batch) -> dict[str, pd.DataFrame]:
    """Return labels and accuracies of models trained without dropout, whole and with each layer moving nothing."""
    seeds = config.seeds()
    axes = {"seed": seeds, "layer": range(config.layers)}
    labels = [
        label_table(functions(model, task_named(name), batch), axes, -1),
        labels_without(name, model, batch, axes),
    ]
    frames = []
    for layer in range(-1, config.layers):
        found = accuracies(
            model,
            batch,
            config.hops,
            lambda part, layer=layer: None if layer < 0 else intervention(model, part, layer, "self"),
        )
        frames.append(table({"accuracy": found}, {"seed": seeds, "hops": [0, *config.hops]}).assign(without=layer))
    return {
        "undropped_labels": pd.concat(labels, ignore_index=True),
        "undropped_accuracy": pd.concat(frames, ignore_index=True),
    }


def leave_layers_out(model: GPTJEnsemble, config: Config, batch: Batch, chosen: Batch) -> dict[str, pd.DataFrame]:
    """Return accuracies with ever fewer layers that have their own attention, in three orders."""
    device, seeds = device_of(model), config.seeds()
    axes = {"seed": seeds, "hops": [0, *config.hops]}
    up = torch.arange(config.layers, device=device).expand(config.members, -1)
    kept, orders = [], []
    for instead in INSTEAD:
        greedy, _ = greedy_layer_ablation(
            model, lambda attend: accuracies(model, chosen, config.hops, lambda part: attend)[:, 0], instead
        )
        orders.append(
            table({"layer": greedy}, {"seed": seeds, "step": range(1, config.layers + 1)})
            .astype({"layer": int})
            .assign(instead=instead)
        )
        for order, layers in (("greedy", greedy), ("first", up), ("last", up.flip(1))):
            for count in range(config.layers + 1):
                mask = torch.ones_like(up, dtype=torch.bool).scatter(1, layers[:, :count], False)
                attend = keep_layers(model, mask, instead)
                found = accuracies(model, batch, config.hops, lambda part, attend=attend: attend)
                frame = table({"accuracy": found}, axes)
                kept.append(frame.assign(instead=instead, order=order, kept=config.layers - count))
    return {"kept": pd.concat(kept, ignore_index=True), "left_out": pd.concat(orders, ignore_index=True)}


def try_rule(model: GPTJEnsemble, config: Config) -> dict[str, pd.DataFrame]:
    """Return what models of the letter task answer where path and shortcut disagree."""
    frames = []
    source = generator(config.seed, "held-out", device_of(model))
    for kind in KINDS:
        for hops in config.hops:
            batch, rule = conflicts(config.rule_sequences, kind, hops=hops, generator=source)
            stacked = Batch(*(column.expand(config.members, *column.shape) for column in batch))
            with torch.no_grad():
                answers = torch.cat([model(part.tokens).argmax(-1) for part in parts(model, stacked)], 1)  # (E, B)
            named = batch.tokens.gather(1, rule.clamp(min=0)[:, None])[:, 0].masked_fill(rule < 0, -1)
            path = answers == batch.answer
            by_rule = (answers == named) & ~path
            target = (answers[..., None] == batch.tokens[:, :TARGETS]).any(-1) & ~path & ~by_rule
            shares = torch.stack([path, by_rule, target, ~(path | by_rule | target)], -1).double().mean(1)
            frame = table({"share": shares}, {"seed": config.seeds(), "answer": ANSWERS})
            frames.append(frame.assign(kind=kind, hops=hops))
    return {"rule": pd.concat(frames, ignore_index=True)}


def track(name: str, config: Config, device: torch.device) -> dict[str, pd.DataFrame]:
    """Train the first members; return functions, scores and accuracy at points of their training."""
    few = dataclasses.replace(config, members=config.tracked)
    points = evaluation_steps(config.steps, config.points)
    folder = checkpoint_folder(NAME, config) / name
    _, training = train(name, few, device, folder, evaluation=partial(evaluation, name, few), evaluate_at=points)
    values = dict(training.evaluations)
    accuracy = {"accuracy": values.pop("accuracy")}
    axes = {"step": points, "seed": few.seeds()}
    return {
        "training": table(values, axes | {"layer": range(config.layers)}).astype({"function": int}),
        "progress": table(accuracy, axes | {"hops": [0, *config.hops]}),
    }


def evaluation(
    name: str, config: Config, seeds: Sequence[int], device: torch.device
) -> Callable[[GPTJEnsemble, int], dict[str, Tensor]]:
    """Return what measures the members with these seeds on the way; all heads are scored on member 0's sequences."""
    task = task_named(name)
    (batch,) = held_out(name, config, device, config.tracked_sequences, seeds=seeds)
    (first,) = held_out(name, config, device, config.tracked_sequences, seeds=config.seeds()[:1])

    def evaluate(each: GPTJEnsemble, step: int) -> dict[str, Tensor]:
        found = functions(each, task, batch)["path"]
        scores = score_heads(each, first.tokens[0], config.temperature)
        return {
            "function": label(found),
            "agreement": found.amax(-1),
            "positional": scores["positional"].mean(-1),
            "symbolic": scores["symbolic"].mean(-1),
            "accuracy": accuracy_by_hops(each, batch, config.hops)["accuracy"],
        }

    return evaluate
