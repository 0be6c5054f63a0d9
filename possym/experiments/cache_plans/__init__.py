"""Which heads may forget: rules that give key heads a window, side by side, at equal bytes of cache.

Subjects are language models of the study `language_models`, loaded from this machine's cache or trained anew, and real
ones (`subjects`). On one half of a subject's text its key heads are measured; on the other half every rule's plan is
tried at every share of windowed heads. Then chosen heads lose their slowest planes by dose, or their whole output
(`dissociation`). What the plans of a subject cost is stored as soon as it is known, its other tables when it is done.

Tables of the study; ``model`` and ``seed`` name the subject in each:
- ``heads``: layer, key_head and the columns of `possym.kv_cache.Heads`, oracle among them
- ``loss``: rule, draw, share, sequence, loss: nats a token over the second half of each sequence; the rule "none" is
  the model as it is, draws differ for "random" alone
- ``positions``: rule, draw, share, position, loss: the mean over sequences in `BINS` bins, at `Config.asked` shares
- ``copying``: rule, draw, share, sequence, accuracy, loss: see `possym.kv_cache.evaluation.copying`
- ``needle``: rule, draw, share, length, depth, distance, sequence, right, loss: see `possym.kv_cache.evaluation.needle`
- ``plans``: rule, draw, share, fraction, tokens: what of the cache each plan holds at the length evaluated
- ``held``: rule, share, bytes, planned, whole, off: bytes that `possym.kv_cache.holding` held, those planned, those of
  the whole cache, and how far its logits are from those of `possym.kv_cache.applied`, relative to the largest
- ``groups``: group, arm, layer, head: the heads of `dissociation`; their ``kinds``: layer, head, positional, symbolic,
  retrieval, norm
- ``dose``: group, arm, planes, mode, dose, depth, sequence, right, loss: needles with ``dose`` planes edited
- ``knock_out``: group, arm, probe, sequence, value: what is left without the heads; see `dissociation`
- ``timing``: what, seconds, device: of making and of measuring a subject, more than once where it took several runs

Source: ours; for doses and knock-outs the question of 2606.21249; the plans are those of DuoAttention, 2410.10819.
"""

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch

from possym import kv_cache
from possym.capture import Capture
from possym.errors import ConfigError
from possym.experiments import language_models
from possym.experiments.cache_plans import dissociation
from possym.experiments.cache_plans.subjects import Subject, language_subject, losses, real_subject
from possym.experiments.language_models.model import ENCODINGS
from possym.kv_cache import RULES, CachePlan, Heads, applied, keep, measure, try_each
from possym.kv_cache.evaluation import copying, needle
from possym.results import ExperimentConfig, Study, checkpoint_folder, choose_device
from possym.results.parts import join_parts, load_part, save_part
from possym.results.progress import tqdm

NAME = "cache_plans"
BINS = 16
KEYS = ["model", "seed"]
OF_PLANS = ("heads", "loss", "positions", "copying", "needle", "plans", "held")
TABLES = (*OF_PLANS, "kinds", "groups", "dose", "knock_out", "timing")


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study.

    ``language`` is the preset of `language_models` by which models of ``encodings`` are trained, with ``seeds`` seeds;
    ``models`` are names that `possym.models.hub` knows, or ``"random-llama"``. Sequences have ``length`` tokens for the
    former and ``real_length`` for the latter, windows a sixteenth of that. ``chosen`` sequences are measured,
    ``evaluated`` others evaluated; ``asked`` shares are asked for copying and needles too. ``doses`` are shares of the
    planes; ``group`` is the share of the query heads in a group. Needles under doses and knock-outs lie at ``depths``
    in the text of the language models, at ``real_depths`` in that of real ones: from 0, its beginning, to 1, its end.
    """

    language: str = "paper"
    encodings: tuple[str, ...] = ("rope", "slow_half_still")
    seeds: int = 8
    models: tuple[str, ...] = ("SmolLM2-135M-Instruct",)
    length: int = 512
    real_length: int = 1024
    sink: int = 4
    chosen: int = 16
    evaluated: int = 48
    shares: tuple[float, ...] = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9)
    asked: tuple[float, ...] = (0.25, 0.5, 0.75)
    draws: int = 3
    needles: int = 32
    copies: int = 32
    doses: tuple[float, ...] = (0.0, 0.0625, 0.125, 0.25, 0.5, 1.0)
    group: float = 0.125
    counted: int = 64
    depths: tuple[float, ...] = (0.0, 0.5, 1.0)
    real_depths: tuple[float, ...] = (0.25, 0.5, 0.75)

    PRESETS: ClassVar = {
        "smoke": {
            "language": "smoke",
            "encodings": ("rope",),
            "seeds": 1,
            "models": ("random-llama",),
            "length": 64,
            "real_length": 64,
            "sink": 1,
            "chosen": 4,
            "evaluated": 6,
            "shares": (0.25, 0.5, 0.75),
            "asked": (0.5,),
            "draws": 1,
            "needles": 4,
            "copies": 4,
            "doses": (0.0, 0.5),
            "counted": 4,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        super().__post_init__()
        if self.language not in language_models.Config.PRESETS:
            raise ConfigError(f"language = {self.language!r}: presets are {', '.join(language_models.Config.PRESETS)}")
        for name, known in {"encodings": ENCODINGS, "models": (), "asked": self.shares}.items():
            if getattr(self, name):  # one of the two kinds of subjects may be left out, and so may what is asked
                self.each_once(name, known=known)
        self.each_once("shares", "doses", "depths", "real_depths")
        if not self.models + self.encodings or set(self.models) & set(self.encodings):
            raise ConfigError(
                f"models = {self.models}, encodings = {self.encodings}: give at least one, none the name of the other"
            )
        if not all(0 < share < 1 for share in (*self.shares, self.group)):
            raise ConfigError(f"shares = {self.shares}, group = {self.group}: give shares between 0 and 1")
        if not all(0 <= dose <= 1 for dose in self.doses) or self.doses[:1] != (0.0,):
            raise ConfigError(f"doses = {self.doses}: give shares of the planes from 0 to 1, the first 0")
        for name in ("depths", "real_depths"):
            if not all(0 <= depth <= 1 for depth in getattr(self, name)):
                raise ConfigError(
                    f"{name} = {getattr(self, name)}: give depths from 0, the beginning, to 1, the end of the text"
                )
        trained = self.training().length
        if self.encodings and self.length > trained:
            raise ConfigError(f"length = {self.length}: its models are trained at {trained} tokens")
        self.each_at_least(0, "sink")
        self.each_at_least(1, "seeds", "chosen", "draws", "needles", "copies", "counted")
        self.each_at_least(2, "evaluated")
        self.each_at_least(64, "length", "real_length")

    def training(self) -> language_models.Config:
        """How the language models are trained."""
        return language_models.Config.preset_named(self.language, seed=self.seed)

    def subjects(self) -> list[tuple[str, int]]:
        """Model and seed of every subject: real models first, then a seed of all encodings before the next."""
        trained = [(name, seed) for seed in range(self.seed, self.seed + self.seeds) for name in self.encodings]
        return [(name, self.seed) for name in self.models] + trained

    def window(self, length: int) -> int:
        """How many of the latest tokens a head that forgets keeps: a sixteenth of the sequence."""
        return length // 16


def run(config: Config) -> Study:
    """Measure every subject that is not stored yet."""
    device, folder = choose_device(config.device), checkpoint_folder(NAME, config)
    tables = join_parts(
        (dict(zip(KEYS, subject, strict=True)), subject_tables(*subject, config, device, folder))
        for subject in tqdm(config.subjects(), desc="cache plans", unit="model")
    )
    seconds = float(tables["timing"]["seconds"].sum())
    return Study(tables, manifest={"seeds": list(range(config.seed, config.seed + config.seeds)), "seconds": seconds})


def subject_tables(name: str, seed: int, config: Config, device: torch.device, folder: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of one subject: those stored, or those measured now."""
    stem = f"{name.replace('/', '--')}-{seed}"
    if (stored := load_part(folder, stem, TABLES)) is not None:
        return stored
    started = time.perf_counter()
    subject = (
        language_subject(name, seed, config, device, folder)
        if name in config.encodings
        else real_subject(name, config, device, folder)
    )
    clock = Laps(started, torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU")
    making = clock.lap("making")
    if (tables := load_part(folder, f"{stem}-plans", (*OF_PLANS, "timing"))) is None:
        heads = measured_heads(subject, config)
        tables = {"heads": heads.table} | by_plan(subject, heads, config)
        tables["timing"] = clock.lap("measuring")
        save_part(folder, f"{stem}-plans", tables)
    timing = [making, tables["timing"]]
    tables |= dissociation.tables(subject, config)
    tables["timing"] = pd.concat([*timing, clock.lap("measuring")], ignore_index=True)
    save_part(folder, stem, tables)
    return tables


class Laps:
    """The time since the last lap, as rows of the table timing."""

    def __init__(self, started: float, device: str) -> None:
        self.last, self.device = started, device

    def lap(self, what: str) -> pd.DataFrame:
        """Return what, seconds, device of the lap that ends now."""
        before, self.last = self.last, time.perf_counter()
        return pd.DataFrame([(what, self.last - before, self.device)], columns=["what", "seconds", "device"])


def measured_heads(subject: Subject, config: Config) -> Heads:
    """Return what is known of the key heads from the chosen sequences, each head's trial among it."""
    length = subject.chosen.shape[1]
    sizes = dict(sink=config.sink, window=config.window(length))
    heads = measure(subject.model, subject.chosen, queries=8, progress=False, **sizes)

    def loss() -> float:
        return float(late(losses(subject, subject.chosen)).double().mean())

    return try_each(subject.model, heads, loss, **sizes)


def late(losses: torch.Tensor) -> torch.Tensor:
    """Return the mean loss (B,) over the second half of each sequence of (B, T) losses, where a window has a say."""
    return losses[:, losses.shape[1] // 2 :].mean(1)


def plans(heads: Heads, config: Config, length: int) -> list[tuple[dict, CachePlan]]:
    """Return every plan with its rule, draw and share; the first leaves everything as it is."""
    none = heads.plan([None] * len(heads.table), sink=config.sink)
    found = [({"rule": "none", "draw": 0, "share": 0.0}, none)]
    for rule, share in product(RULES, config.shares):
        for draw in range(config.draws if rule == "random" else 1):
            plan = keep(heads, share, rule=rule, sink=config.sink, window=config.window(length), seed=draw)
            found.append(({"rule": rule, "draw": draw, "share": share}, plan))
    return found


def by_plan(subject: Subject, heads: Heads, config: Config) -> dict[str, pd.DataFrame]:
    """Return what every plan costs."""
    length = subject.evaluated.shape[1]
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in ("loss", "positions", "copying", "needle", "held")}
    rows = []
    for named, plan in tqdm(plans(heads, config, length), desc=f"plans of {subject.name}", unit="plan", leave=False):
        rows.append({**named, "fraction": plan.fraction(length), "tokens": plan.tokens(length)})
        asked = named["rule"] == "none" or named["share"] in config.asked
        with applied(subject.model, plan, check=False):
            whole = losses(subject, subject.evaluated)
            by_sequence = pd.DataFrame({"loss": late(whole).double().tolist()}).rename_axis("sequence").reset_index()
            found["loss"].append(by_sequence.assign(**named))
            if not asked:
                continue
            found["positions"].append(binned(whole.double().mean(0)).assign(**named))
            found["copying"].append(copied(subject, config).assign(**named))
            found["needle"].append(needles(subject, config).assign(**named))
        if named["rule"] in ("none", "positional", "fitted"):
            found["held"].append(held(subject, plan).assign(**named))
    tables = {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}
    order = ["rule", "draw", "share"]
    tables = {name: table[[*order, *table.columns.difference(order, sort=False)]] for name, table in tables.items()}
    return tables | {"plans": pd.DataFrame(rows)}


def binned(losses: torch.Tensor) -> pd.DataFrame:
    """Return position (the middle of each of `BINS` bins) and the mean loss there, of losses (T,)."""
    rows, start = [], 0
    for part in losses.tensor_split(BINS):
        rows.append((start + (len(part) - 1) / 2, float(part.mean())))
        start += len(part)
    return pd.DataFrame(rows, columns=["position", "loss"])


def copied(subject: Subject, config: Config) -> pd.DataFrame:
    """Return how well random tokens are said again, over half a sequence."""
    length, generator = subject.evaluated.shape[1] // 2, torch.Generator().manual_seed(11)
    length = min(length, subject.vocabulary // 2)
    return copying(
        subject.model, config.copies, length, beginning=subject.beginning, generator=generator,
        at_once=subject.at_once(2 * length),
    )  # fmt: skip


def needles(subject: Subject, config: Config) -> pd.DataFrame:
    """Return the recall of needles in the evaluated text, at its whole length and a half of it."""
    length = subject.evaluated.shape[1]
    text = subject.evaluated.repeat(-(-config.needles // len(subject.evaluated)), 1)[: config.needles]
    return needle(subject.model, text, lengths=(length // 2, length), seed=12, at_once=subject.at_once())


def held(subject: Subject, plan: CachePlan) -> pd.DataFrame:
    """Return what a cache that holds the plan takes, and how far its logits are from those under the mask.

    One sequence is read, three quarters of it at once, then token by token for eight, then the rest.
    """
    tokens = subject.evaluated[:1].to(subject.device)
    columns = ["bytes", "planned", "whole", "off"]
    if any(layer.window is not None for layer in Capture(subject.model).layers.values()):
        return pd.DataFrame(columns=columns, dtype="float64")  # layers with windows of their own are not held so
    length = tokens.shape[1]
    with torch.no_grad(), applied(subject.model, plan, check=False):
        expected = subject.model(input_ids=tokens, use_cache=False).logits
    with torch.no_grad(), kv_cache.holding(subject.model, plan) as cache:
        cuts = [3 * length // 4, *[1] * 8]
        pieces = tokens.split([*cuts, length - sum(cuts)], 1)
        found = torch.cat(
            [subject.model(input_ids=piece, **cache.given_to(subject.model)).logits for piece in pieces], 1
        )
        size = cache.bytes
    width = subject.head_width * subject.model.dtype.itemsize
    off = (found - expected).abs().max() / expected.abs().max()
    row = size, 2 * width * plan.tokens(length), 2 * width * plan.heads * length, float(off)
    return pd.DataFrame([row], columns=columns)
