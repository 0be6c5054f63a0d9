"""Two real models side by side: the same prompts, the same atlas of known heads, and what a base of 10⁶ does.

SmolLM2-135M-Instruct and Gemma 3 270M read bindings of names to attributes and are measured by `possym.atlas`. Where a
model has layers of two kinds with a base each, as Gemma 3 has, both kinds are scored with their own base, with the
other's, and swapped. Prompts are shorter than the window, so that all layers see the same keys.

Tables of the study (scores are positional and symbolic; prompts, layers and heads count from 0):
- ``heads``: model, condition (see `possym.experiments.two_models.bases.CONDITIONS`), blocks, form, prompt, layer, head,
  positional, symbolic, attention_moved, distance
- ``conditions``: model, condition, accuracy (share of bindings answered), text_loss (nats per token)
- ``layers``: model, layer, kind, window
- ``random``: model, weights, number, blocks, form, layer, head, positional, symbolic: models of random weights of the
  same shape, means over prompts
- ``atlas``: model, definition, prompt, layer, head, value; ``atlas_scores``: model, material, layer, head, positional,
  symbolic, attention_moved: see `possym.profiling.atlas.Atlas`

It runs on a CPU. Gemma's packages are installed by whoever accepts its terms, see `possym.models.gemma`; where they are
not, its tables are taken from the stored result of the same settings, and the manifest's ``taken`` names it.

Source: 2511.11579, section 4.
"""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor, nn

from possym.errors import UnsupportedModelError
from possym.experiments import real_models
from possym.experiments.real_models import HELD, PAPERS, SCALE_FREE, shrunk, staged
from possym.experiments.real_models.random_weights import random_weights
from possym.experiments.two_models.bases import CONDITIONS, has_two_bases, layer_kinds, with_bases
from possym.models import hub, random_llama
from possym.models.gemma import GEMMA
from possym.profiling import Profile, profile
from possym.profiling.atlas import Atlas, atlas
from possym.results import ExperimentConfig, Study, checkpoint_folder, load, result_folder
from possym.tasks.binding import Binding, BindingTask
from possym.tasks.text import text_hash, text_tokens

NAME = "two_models"
RANDOM = {"random-llama": False, "random-gemma": True}
STATEMENTS = "statements"
TAKEN = "taken.json"
WEIGHTS = ("initial", "shuffled")
KEPT = ["prompt", "layer", "head", "positional", "symbolic", "attention_moved", "distance"]
# What moves, and how scores are weighed; models with other bases are scored in the scale-free form alone.
WAYS = ((HELD, SCALE_FREE), (STATEMENTS, SCALE_FREE), (STATEMENTS, PAPERS))


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study.

    ``models`` are hub ids, folders, names that `possym.models.hub.load` knows, ``"random-llama"`` or
    ``"random-gemma"``, small models of random weights that are made on the spot.

    Raises:
        ConfigError: no models, or numbers below 1.

    >>> Config.preset_named("paper").models
    ('SmolLM2-135M-Instruct', 'gemma-3-270m')
    """

    models: tuple[str, ...] = (hub.DEFAULT, GEMMA)
    pairs: int = 64
    prompts: int = 12
    texts: int = 8
    text_length: int = 256
    random_models: int = 2
    random_prompts: int = 4
    atlas_prompts: int = 16
    atlas_length: int = 64
    known_heads: int = 10
    temperature: float = 0.1
    relative_temperature: float = 1.0
    seed: int = 20

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "models": tuple(RANDOM),
            "pairs": 8,
            "prompts": 2,
            "texts": 2,
            "text_length": 32,
            "random_models": 1,
            "random_prompts": 1,
            "atlas_prompts": 2,
            "atlas_length": 12,
            "known_heads": 3,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse numbers that do not fit before a model is loaded."""
        super().__post_init__()
        self.each_once("models")
        self.each_at_least(1, "pairs", "prompts", "texts", "text_length", "random_models", "random_prompts")
        self.each_at_least(1, "atlas_prompts", "atlas_length", "known_heads")

    form = real_models.Config.form


def run(config: Config) -> Study:
    """Measure each model; a run goes on after its last whole model."""
    folder = checkpoint_folder(NAME, config)
    names = ("heads", "conditions", "layers", "random", "atlas", "atlas_scores")
    parts = []
    for number, model in enumerate(config.models):
        (place := folder / str(number)).mkdir(exist_ok=True)
        parts.append(staged(place, names, lambda model=model, place=place: live_or_stored(config, model, place)))
    taken = {model: (folder / str(number) / TAKEN) for number, model in enumerate(config.models)}
    taken = {model: json.loads(note.read_text()) for model, note in taken.items() if note.exists()}
    return Study(
        {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in names},
        {},
        {"text": text_hash(), "taken": taken},
    )


def live_or_stored(config: Config, name: str, folder: Path) -> dict[str, pd.DataFrame]:
    """Return all tables of one model; those of a Gemma that is not installed from the stored result, if there is one.

    Raises:
        UnsupportedModelError: not installed and not stored either.
    """
    try:
        return of_model(config, name, folder)
    except UnsupportedModelError:
        stored = result_folder(NAME, config)
        if name != GEMMA or not (stored / "manifest.json").exists():
            raise
    study = load(stored, config)
    made = {key: study.manifest[key] for key in ("started", "commit", "device")}
    (folder / TAKEN).write_text(json.dumps(study.manifest.get("taken", {}).get(name, made)))
    return {key: table[table["model"] == name].reset_index(drop=True) for key, table in study.tables.items()}


def of_model(config: Config, name: str, folder: Path) -> dict[str, pd.DataFrame]:
    """Return all tables of one model."""
    source = name
    if name in RANDOM:
        source = str(random_llama.save(folder / "model", config.seed, gemma=RANDOM[name]))
    model, tokenizer = hub.load(source, device=config.device)
    generator = torch.Generator().manual_seed(config.seed)
    batch = BindingTask(tokenizer, config.pairs).sample(config.prompts, generator=generator)
    texts = text_tokens(tokenizer, config.texts, config.text_length)
    conditions = CONDITIONS if has_two_bases(model) else {"own": CONDITIONS["own"]}
    heads, measured = [], []
    for condition in conditions:
        scored = in_condition(model, condition, lambda condition=condition: scores(config, model, batch, condition))
        heads += [table.assign(condition=condition) for table in scored[0]]
        measured.append((condition, scored[1], in_condition(model, condition, lambda: text_loss(model, texts))))
    known = atlas(model, tokenizer, prompts=config.atlas_prompts, length=config.atlas_length, seed=config.seed)
    tables = {
        "heads": pd.concat(heads, ignore_index=True),
        "conditions": pd.DataFrame(measured, columns=["condition", "accuracy", "text_loss"]),
        "layers": layer_kinds(model),
        "random": random_models(config, model, batch),
        "atlas": shrunk(known.heads),
        "atlas_scores": shrunk(known.scores),
    }
    return {key: table.assign(model=name) for key, table in tables.items()}


def in_condition(model: nn.Module, condition: str, measure: Callable[[], Any]) -> Any:
    """Return what ``measure`` finds while the model rotates as a condition says."""
    if condition == "own":
        return measure()
    with with_bases(model, condition):
        return measure()


def scores(config: Config, model: nn.Module, batch: Binding, condition: str) -> tuple[list[pd.DataFrame], float]:
    """Return the heads' scores in every way, and the share of prompts that the model answers."""
    tables = []
    for blocks, form in WAYS if condition == "own" else [way for way in WAYS if way[1] == SCALE_FREE]:
        answers = batch.answer.tolist()
        found = profiled(config, model, batch.tokens, batch.blocks, blocks, form, answers=answers)
        tables.append(shrunk(found.heads[KEPT]).assign(blocks=blocks, form=form))
    return tables, float(found.prompts["correct"].astype(float).mean())


@torch.no_grad()
def text_loss(model: nn.Module, texts: Tensor) -> float:
    """Return the loss of the next token in text, in nats per token."""
    losses = []
    for row in texts.to(next(model.parameters()).device):
        logits = model(row[None], use_cache=False).logits[0, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits, row[1:]))
    return float(torch.stack(losses).mean())


def random_models(config: Config, model: nn.Module, batch: Binding) -> pd.DataFrame:
    """Return the scores of models of random weights of the same shape."""
    parts = []
    for weights, number in itertools.product(WEIGHTS, range(config.random_models)):
        other = random_weights(model, weights, config.seed + number)
        for blocks, form in WAYS:
            found = profiled(config, other, batch.tokens[: config.random_prompts], batch.blocks, blocks, form)
            means = found.heads.groupby(["layer", "head"])[["positional", "symbolic"]].mean().reset_index()
            parts.append(shrunk(means).assign(weights=weights, number=number, blocks=blocks, form=form))
    return pd.concat(parts, ignore_index=True)


def profiled(
    config: Config, model: nn.Module, tokens: Tensor, statements: list, blocks: str, form: str, **more: Any
) -> Profile:
    """Return a profile with statements as blocks, or with tokens moved and the first held."""
    return profile(
        model,
        tokens,
        blocks=statements if blocks == STATEMENTS else "tokens",
        hold=None if blocks == STATEMENTS else "first",
        progress=False,
        **config.form(form),
        **more,
    )


def atlases(study: Study) -> dict[str, Atlas]:
    """Return the stored atlas of each model by its name, in the order of the study."""
    known, scored = study.tables["atlas"], study.tables["atlas_scores"]
    return {
        name: Atlas(known[known["model"] == name], scored[scored["model"] == name]) for name in known["model"].unique()
    }
