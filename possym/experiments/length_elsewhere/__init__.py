"""How far models trained in other settings get on longer inputs, and whether the forecast holds there too.

The models are those of `possym.experiments.generality`, with the same seeds, steps and batches: where that study has
run on this machine they are taken from the cache. In each of its settings they answer longer inputs as in
`possym.experiments.generalization`, whose result is the setting of the paper to lay beside these, see `with_baseline`.
A model gets a forecast only if it has learnt its task: if at training length it answers at least the share
`possym.experiments.generality.summaries.LEARNT` right. The others are measured all the same.

Tables of the study (hops = 0 means all together):
- ``accuracy``: setting, task, seed, length, hops, accuracy, count
- ``forecast``: setting, task, seed, length, accuracy, of models that have learnt
- ``heads``: setting, task, seed, layer, head, positional, symbolic, kind (1 positional, −1 symbolic, 0 neither, at
  γ = 0.1)
- ``timing``: setting, task, stage (training, measuring), seconds, gib (the most memory held at once, NaN on the CPU)

Source: 2605.31558, section 4, and the limits that it states.
"""

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.ensembles.streams import generator
from possym.errors import ConfigError, InputError
from possym.experiments.generality import BASELINE, SettingsConfig
from possym.experiments.generality.summaries import LEARNT
from possym.experiments.generalization import GAMMA, kept, right_by_hops
from possym.experiments.generalization.forecasting import forecast, target_contents
from possym.experiments.generalization.long_inputs import HOPS, WINDOW, answer, members_of, sample_members
from possym.experiments.generalization.summaries import learnt
from possym.experiments.learning_dynamics import score_heads, tidy
from possym.experiments.trained import draw, task_named, trained
from possym.results import Study, checkpoint_folder, choose_device
from possym.results.progress import tqdm
from possym.scores import purity
from possym.tasks import Batch

NAME = "length_elsewhere"
KIND = ("setting", "task")


@dataclass(frozen=True, kw_only=True)
class Config(SettingsConfig):
    """Settings of the study; ``hops`` are those trained on and those measured.

    Raises:
        ConfigError: a setting or task of no longer inputs, hops other than all four or one of them, lengths that do
            not ascend from 17, or counts too small.

    >>> Config.preset_named("paper").of("llama").architecture
    'llama'
    """

    settings: tuple[str, ...] = ("heads", "layers", "llama", "every-place")
    lengths: tuple[int, ...] = (
        *(17, 25, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 100, 110, 140, 170, 200, 240, 300, 350, 420, 500),
        *(600, 700, 850, 1000),
    )
    test_sequences: int = 10_000
    sequences: int = 500
    scored_sequences: int = 400
    windows: int = 512
    temperature: float = 1e-4

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "settings": ("heads", "llama", "every-place"),
            "members": 2,
            "layers": 1,
            "more_heads": 2,
            "width": 32,
            "dropout": 0.0,
            "hops": (1,),
            "training_sequences": 17_280,
            "steps": 270,
            "learning_rate": 6e-3,
            "warmup": 27,
            "lengths": (17, 50, 200),
            "test_sequences": 200,
            "sequences": 40,
            "scored_sequences": 20,
            "windows": 64,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot run, before it runs."""
        super().__post_init__()
        if "mixed" in (*self.settings, *self.tasks):
            raise ConfigError("settings and tasks: the mixed task has no longer inputs, leave it out")
        if self.hops != HOPS and len(self.hops) > 1:
            raise ConfigError(f"hops = {self.hops!r}: give {HOPS}, or one number alone")
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] != WINDOW:
            raise ConfigError(f"lengths = {self.lengths!r}: give ascending lengths from {WINDOW}, the training length")
        self.each_at_least(40, "test_sequences", "sequences", "windows")  # every number of hops is among so many
        self.need_sequences("scored_sequences")
        self.each_positive("temperature")


def run(config: Config) -> Study:
    """Train what is not trained yet and measure it; what was finished before is taken from its checkpoint."""
    device = choose_device(config.device)
    folder = checkpoint_folder(NAME, config)
    found: dict[str, list[pd.DataFrame]] = {}
    groups = [(setting, task) for setting in config.settings for task in config.tasks]
    for setting, task in tqdm(groups, desc="length in other settings"):
        changed = config.of(setting)
        clock = time.perf_counter()
        model = trained(task, changed, device)
        spent = {"training": (time.perf_counter() - clock, math.nan)}
        stage = partial(evaluation, task, changed, model, device)
        tables, spent["measuring"] = kept(folder, f"{setting}-{task}", device, stage)
        timing = [(stage, round(seconds, 3), gib) for stage, (seconds, gib) in spent.items()]
        tables["timing"] = pd.DataFrame(timing, columns=["stage", "seconds", "gib"])
        for table, frame in tables.items():
            frame.insert(0, "task", task)
            frame.insert(0, "setting", setting)
            found.setdefault(table, []).append(frame)
    joined = {table: pd.concat(frames, ignore_index=True) for table, frames in found.items()}
    return Study(joined, {}, {"seeds": config.seeds()})


def evaluation(name: str, config: Config, model: Ensemble, device: torch.device) -> dict[str, pd.DataFrame]:
    """Return the tables of one setting's members on one task."""
    task, only = task_named(name), None if config.hops == HOPS else config.hops[0]
    source = generator(config.seed, "held-out", device)
    counts = [config.test_sequences if length == WINDOW else config.sequences for length in config.lengths]
    sweeps = [
        answer(model, task, length, count, source, hops=only)
        for length, count in zip(config.lengths, counts, strict=True)
    ]
    right = [right_by_hops(found, config.hops) for found in sweeps]
    answered = {key: torch.stack([each[key] for each in right], 1) for key in right[0]}  # (E, lengths, 1 + hops)
    able = (answered["accuracy"][:, 0, 0] >= LEARNT).nonzero().flatten().tolist()
    axes = {"length": config.lengths, "hops": (0, *config.hops)}
    source = generator(config.seed, "held-out", device)
    scored = draw(task, config.scored_sequences, config.hops, source).tokens
    windows = sample_members(task, config.members, config.windows, WINDOW, source, only)
    predicted = torch.full((config.members, len(config.lengths)), math.nan, device=device)
    if able:
        chosen, own = members_of(model, able), Batch(*(field[able] for field in windows))
        contents = target_contents(chosen, task, config.lengths[-1], source)
        found = [forecast(chosen, task, length, own, contents, source) for length in config.lengths]
        predicted[able] = torch.stack(found, 1)
    return {
        "accuracy": rows(config, answered, axes).astype({"count": "int64"}),
        "forecast": rows(config, {"accuracy": predicted}, {"length": config.lengths}).dropna(ignore_index=True),
        "heads": heads(model, scored, config),
    }


def heads(model: Ensemble, tokens: Tensor, config: Config) -> pd.DataFrame:
    """Return the scores and kinds of all heads over sequences (B, T) that all members read."""
    scores = score_heads(model, tokens, config.temperature)
    values = {name: scores[name] for name in ("positional", "symbolic")}
    values["kind"] = purity(values["positional"], values["symbolic"], GAMMA)
    axes = {"layer": range(model.config.layers), "head": range(model.config.heads)}
    return rows(config, values, axes).astype({"kind": "int64"})


def rows(config: Config, values: dict[str, Tensor], axes: dict) -> pd.DataFrame:
    """Return tensors (E, …) as rows: seed, then ``axes``, in this order."""
    return tidy({name: value.cpu() for name, value in values.items()}, {"seed": config.seeds(), **axes})


def with_baseline(study: Study, papers: Study) -> dict[str, pd.DataFrame]:
    """Return the tables accuracy, forecast and heads with those of the paper's setting before them, as `BASELINE`.

    Args:
        study: of this module.
        papers: of `possym.experiments.generalization`; its models at the main learning rate with the seeds of ``study``
            are taken, at the lengths of ``study``, and the forecast of those that have learnt.

    Raises:
        InputError: the two studies share no seed.
    """
    rate = papers.manifest["config"]["learning_rate"]
    seeds, lengths = (study.tables["accuracy"][name].unique() for name in ("seed", "length"))
    tables = {}
    for name in ("accuracy", "forecast", "heads"):
        table = papers.tables[name]
        table = table[(table["learning_rate"] == rate) & table["seed"].isin(seeds)].assign(setting=BASELINE)
        if table.empty:
            raise InputError(f"papers has none of the seeds {', '.join(map(str, seeds))}: give a study that has")
        tables[name] = table if name == "heads" else table[table["length"].isin(lengths)]
    able = learnt(tables["accuracy"], KIND).query("learnt")[[*KIND, "seed"]]
    tables["forecast"] = tables["forecast"].merge(able, on=[*KIND, "seed"])
    ours = study.tables
    return {name: pd.concat([table[list(ours[name])], ours[name]], ignore_index=True) for name, table in tables.items()}
