"""Whether pure heads come with learning beyond the paper's setting: other models, gradings, shares, a mixed task.

Each setting changes one thing of `possym.experiments.learning_dynamics`, whose result is the setting of the paper to
lay beside these, see `with_baseline`. Members have the same seeds, steps and batches. `SETTINGS`:
- ``heads``: more heads a layer, each narrower, the width the same;
- ``layers``: fewer layers;
- ``llama``: Llama's blocks in place of GPT-J's, see `possym.ensembles.llama`;
- ``every-place``: the loss is a mean over every position that has an answer
  (`possym.tasks.positions.answers_by_position`), not the last position alone; accuracy is that of the last position;
- ``shares``: hops in unequal shares among the training sequences; all sets that measure have equal shares;
- ``mixed``: the mixed task (`possym.tasks.MixedTask`) in place of the number and the letter task.

Tables of the study (steps count updates, hops = 0 means all together):
- ``accuracy``: setting, task, seed, step, split, hops, accuracy, loss, count
- ``scores``: setting, task, seed, step, layer, head, positional, symbolic, positional_sd, symbolic_sd, entropy
- ``heads``: setting, task, seed, layer, head, gamma, kind, since: pure heads at the end
- ``timing``: setting, task, phase, seconds

Source: the limits and future work that 2605.31558 states.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.ensembles.streams import generator
from possym.ensembles.training import training_dtype
from possym.errors import InputError
from possym.experiments.learning_dynamics import GAMMAS, accuracy_table, pure_heads, score_heads, score_table
from possym.experiments.trained import EnsembleConfig, accuracy_by_hops, draw, held_out, task_named, train
from possym.results import Study, checkpoint_folder, choose_device
from possym.results.devices import devices_of
from possym.results.evaluation_steps import evaluation_steps

NAME = "generality"
SETTINGS = ("heads", "layers", "llama", "every-place", "shares", "mixed")
BASELINE = "paper"


@dataclass(frozen=True, kw_only=True)
class SettingsConfig(EnsembleConfig):
    """Which settings a study takes, and what each of them changes; the rest is the paper's.

    Raises:
        ConfigError: an unknown setting or task, hops outside 1 to 4, or sizes that cannot be trained.
    """

    members: int = 8
    architecture: str = "gptj"
    supervise: str = "last"
    hop_shares: tuple[float, ...] = ()
    settings: tuple[str, ...] = SETTINGS
    more_heads: int = 4
    fewer_layers: int = 6
    skewed: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        self.each_once("settings", known=SETTINGS)
        if len(self.settings) > 1:
            for setting in self.settings:
                self.of(setting)

    def of(self, setting: str) -> Self:
        """Return the configuration of one setting: one thing changed, and the tasks that it is about.

        Raises:
            InputError: there is no such setting.
        """
        changes = {
            "heads": {"heads": self.more_heads},
            "layers": {"layers": self.fewer_layers},
            "llama": {"architecture": "llama"},
            "every-place": {"supervise": "every"},
            "shares": {"hop_shares": self.skewed},
            "mixed": {"tasks": ("mixed",)},
        }
        if not isinstance(setting, str) or setting not in changes:
            raise InputError(f"setting = {setting!r}: known settings are {', '.join(changes)}")
        return dataclasses.replace(self, settings=(setting,), **changes[setting])


@dataclass(frozen=True, kw_only=True)
class Config(SettingsConfig):
    """Settings of the study.

    Raises:
        ConfigError: an unknown setting or task, hops outside 1 to 4, or sizes that cannot be trained.

    >>> Config.preset_named("paper").of("llama").architecture
    'llama'
    """

    validation_sequences: int = 2_400
    test_sequences: int = 10_000
    scored_sequences: int = 400
    points: int = 20
    temperature: float = 1e-4

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "members": 2,
            "layers": 2,
            "fewer_layers": 1,
            "more_heads": 2,
            "width": 32,
            "dropout": 0.0,
            "hops": (1, 2),
            "skewed": (0.3, 0.7),
            "training_sequences": 3_200,
            "validation_sequences": 100,
            "test_sequences": 100,
            "scored_sequences": 20,
            "steps": 100,
            "batch": 32,
            "learning_rate": 3e-3,
            "warmup": 10,
            "points": 4,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        self.need_sequences("validation_sequences", "test_sequences", "scored_sequences")
        self.each_positive("temperature")
        evaluation_steps(self.steps, self.points)


def run(config: Config) -> Study:
    """Train every setting's members and score their heads; an interrupted run goes on from its checkpoints."""
    device = choose_device(config.device)
    folder = checkpoint_folder(NAME, config)
    tables: dict[str, list[pd.DataFrame]] = {}
    for setting in config.settings:
        changed = config.of(setting)
        for task in changed.tasks:
            for table, frame in run_task(task, changed, device, folder / f"{setting}-{task}").items():
                frame.insert(0, "task", task)
                frame.insert(0, "setting", setting)
                tables.setdefault(table, []).append(frame)
    joined = {table: pd.concat(frames, ignore_index=True) for table, frames in tables.items()}
    return Study(joined, {}, {"seeds": config.seeds(), "devices": len(devices_of(device))})


def run_task(name: str, config: Config, device: torch.device, checkpoints: Path) -> dict[str, pd.DataFrame]:
    """Train one setting's members on one task; return their tables."""
    clock = time.perf_counter()
    validation, test = held_out(name, config, device, config.validation_sequences, config.test_sequences)
    points, seeds = evaluation_steps(config.steps, config.points), config.seeds()
    on_the_way = partial(evaluation, name, config)
    model, result = train(name, config, device, checkpoints, evaluation=on_the_way, evaluate_at=points)
    final = {key: value[None] for key, value in accuracy_by_hops(model, test, config.hops).items()}
    measured = [
        accuracy_table(result.evaluations, points, seeds, "validation", validation, config.hops),
        accuracy_table(final, [config.steps], seeds, "test", test, config.hops),
    ]
    scores = score_table(result.evaluations, points, seeds)
    named = scores.assign(task=name)
    spent = {"training": result.seconds_training, "evaluation": result.seconds_evaluation}
    spent["the rest"] = time.perf_counter() - clock - sum(spent.values())
    return {
        "accuracy": pd.concat(measured, ignore_index=True),
        "scores": scores,
        "heads": pd.concat([pure_heads(named, gamma) for gamma in GAMMAS], ignore_index=True).drop(columns="task"),
        "timing": pd.DataFrame({"phase": spent.keys(), "seconds": [round(s, 3) for s in spent.values()]}),
    }


def evaluation(
    name: str, config: Config, seeds: Sequence[int], device: torch.device
) -> Callable[[Ensemble, int], dict[str, Tensor]]:
    """Return what measures the members with these seeds on the way."""
    (validation,) = held_out(name, config, device, config.validation_sequences, seeds=seeds)
    shared = generator(config.seed, "held-out", device)
    scored = draw(task_named(name), config.scored_sequences, config.hops, shared).tokens

    def evaluate(model: Ensemble, step: int) -> dict[str, Tensor]:
        found = accuracy_by_hops(model, validation, config.hops, training_dtype(device))
        return {**found, **score_heads(model, scored, config.temperature)}

    return evaluate


def with_baseline(study: Study, dynamics: Study) -> dict[str, pd.DataFrame]:
    """Return the tables accuracy, scores and heads with those of the paper's setting before them, as `BASELINE`.

    Args:
        study: of this module.
        dynamics: of `possym.experiments.learning_dynamics`; its models with the seeds of ``study`` are taken.

    Raises:
        InputError: the two studies share no seed.
    """
    seeds = study.tables["heads"]["seed"].unique()
    joined = {}
    for name in ("accuracy", "scores", "heads"):
        table = dynamics.tables[name]
        table = table[table["seed"].isin(seeds)]
        if table.empty:
            raise InputError(f"dynamics has none of the seeds {', '.join(map(str, seeds))}: give one that has")
        ours = study.tables[name]
        joined[name] = pd.concat([table.assign(setting=BASELINE)[list(ours)], ours], ignore_index=True)
    return joined
