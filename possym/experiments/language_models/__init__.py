"""A language model is born: when heads turn positional or symbolic while models of 29 M parameters learn Python.

One model per encoding and seed is trained from nothing (`training`), scored along the way on held-out windows
(`measures`), and asked at the end what its heads do on other texts, on longer windows, and without some of its planes.
Every model's tables are stored as soon as it is trained, so that a study of fifty may take several goes; its weights
stay in the cache (`weights_file`), where `model.load_model` reads them.

Tables of the study; ``encoding``, ``width``, ``corpus``, ``seed`` name the model in each:
- ``scores``: step, text, layer, head, weighting, and the columns of `measures.head_scores`; ``text`` is "held out" on
  the way, and at the end other texts beside it
- ``jobs``: step, layer, head, previous_token, previous_token_random, induction: see `measures.known_jobs`
- ``planes``: step, layer, head, frequency_id, positional, symbolic, norm
- ``loss``: step, loss, early, late: held-out loss in nats, of all positions, of the first and of the last eighth
- ``length``: edit, position, loss: held-out loss at the end by position, in bins up to `FACTOR` times the length
  trained at
- ``recall``: distance, accuracy, loss: see `measures.recall`
- ``without_heads``: see `carriers.recall_without`; ``reach``: see `reach.loss_by_reach`; of the models that
  ``probed`` names alone
- ``attention``: position, key_position, layer, head, weight, token: what every head of the first seed of an encoding
  attends to in `LINE`; ``token`` is that at ``key_position``
- ``training``: step, loss: the training loss, means over `WINDOW` updates
- ``timing``: parameters, tokens, seconds, device
- ``corpora``: corpus, tokens, held_out, sha256, unigram: the loss of token frequencies alone, in nats

Source: ours; the questions are those of 2511.11579 and 2605.31558, section 3.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import pandas as pd
import torch

from possym.capture.known_heads import repeated_tokens
from possym.errors import ConfigError, needed
from possym.experiments.language_models import carriers, measures, reach, summaries
from possym.experiments.language_models import corpus as corpora
from possym.experiments.language_models.corpus import Corpus
from possym.experiments.language_models.model import ENCODINGS, LanguageModel, Sizes, save_model
from possym.experiments.language_models.training import train, windows
from possym.results import ExperimentConfig, Study, atomic_write, cache_root, checkpoint_folder, choose_device
from possym.results.parts import join_parts, load_part, save_part
from possym.results.progress import tqdm
from possym.tasks import binding

NAME = "language_models"
WINDOW = 25
FEWEST_SCORED = 12  # tokens of a window from which the first of four queries has two keys to swap
TRAINED_BY = ("vocabulary", "layers", "heads", "length", "batch", "steps", "warm_up", "learning_rate")
TABLES = ("scores", "jobs", "planes", "loss", "length", "recall", "attention", "training", "timing")
PROBES = ("without_heads", "reach")  # tables of the models that are probed
BINDING = "binding prompts"
FACTOR = 8
BINS = 32
PLANE_POINTS = 5  # planes are scored at every so many of the points, and at the last
LINE = """def mean(values):
    total = sum(values)
    return total / len(values)
"""


class Run(NamedTuple):
    """One model of the study."""

    encoding: str
    width: int
    corpus: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study.

    ``encodings`` are trained with ``seeds`` seeds at ``width`` on ``corpus``; the first of them with ``few_seeds``
    at each of ``other_widths`` and on each of ``other_corpora`` as well. ``batch`` windows of ``length`` tokens are an
    update. ``points`` evaluations lie denser early; scores read ``scored`` windows of ``scored_length`` tokens. Of the
    main width and corpus, the seeds in ``probed``, counted from ``seed``, are also asked for `PROBES`, and scored on
    binding prompts. (The models of seeds 0 to 3 were trained before those questions had a criterion.)
    """

    encodings: tuple[str, ...] = tuple(ENCODINGS)
    seeds: int = 8
    few_seeds: int = 3
    width: int = 512
    other_widths: tuple[int, ...] = (256, 768)
    corpus: str = "source"
    other_corpora: tuple[str, ...] = ("docstrings",)
    layers: int = 8
    heads: int = 8
    vocabulary: int = corpora.VOCABULARY
    length: int = 512
    batch: int = 64
    steps: int = 2500
    warm_up: int = 100
    learning_rate: float = 1e-3
    points: int = 26
    scored: int = 32
    scored_length: int = 256
    evaluated: int = 128
    probed: tuple[int, ...] = (4, 5, 6, 7)

    PRESETS: ClassVar = {
        "smoke": {
            "encodings": ("rope", "nope"),
            "seeds": 1,
            "few_seeds": 1,
            "width": 64,
            "other_widths": (),
            "other_corpora": (),
            "corpus": "small",
            "layers": 2,
            "heads": 4,
            "vocabulary": 512,
            "length": 64,
            "batch": 16,
            "steps": 240,
            "warm_up": 10,
            "learning_rate": 1e-2,
            "points": 5,
            "scored": 8,
            "scored_length": 48,
            "evaluated": 16,
            "probed": (0,),
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        super().__post_init__()
        least = dict.fromkeys(("seeds", "width", "layers", "heads", "batch", "steps", "scored", "evaluated"), 1)
        for name, low in (least | {"few_seeds": 0, "warm_up": 0, "points": 2, "vocabulary": corpora.FEWEST}).items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} = {getattr(self, name)}: give at least {low}")
        if self.vocabulary > corpora.MOST:
            raise ConfigError(f"vocabulary = {self.vocabulary}: tokens are kept as int16, give at most {corpora.MOST}")
        if self.learning_rate <= 0:
            raise ConfigError(f"learning_rate = {self.learning_rate}: give a number above 0")
        if not self.encodings:
            raise ConfigError(f"encodings = (): give at least one of {', '.join(ENCODINGS)}")
        if unknown := [name for name in self.encodings if name not in ENCODINGS]:
            raise ConfigError(f"encodings = {unknown[0]!r}: known encodings are {', '.join(ENCODINGS)}")
        known = (*corpora.KINDS, "small")
        if unknown := [name for name in (self.corpus, *self.other_corpora) if name not in known]:
            raise ConfigError(f"corpus = {unknown[0]!r}: known corpora are {', '.join(known)}")
        for width in (self.width, *self.other_widths):
            if width < 1 or width % (2 * self.heads):
                raise ConfigError(f"width = {width}: give a multiple of twice the heads, {2 * self.heads}")
        if not FEWEST_SCORED <= self.scored_length <= self.length or self.scored_length % 2:
            raise ConfigError(
                f"scored_length = {self.scored_length}: give an even number from {FEWEST_SCORED} to length, "
                f"{self.length}"
            )
        if self.scored_length // 2 > self.vocabulary:
            raise ConfigError(
                f"scored_length = {self.scored_length}: give at most twice the vocabulary, no token repeats"
            )

    def runs(self) -> list[Run]:
        """Every model once, a seed of all encodings before the next, so that what is finished first can be compared."""
        main = [
            Run(name, self.width, self.corpus, seed) for seed in self.members(self.seeds) for name in self.encodings
        ]
        first = self.encodings[0]
        sizes = [Run(first, width, self.corpus, s) for s in self.members(self.few_seeds) for width in self.other_widths]
        texts = [Run(first, self.width, text, s) for s in self.members(self.few_seeds) for text in self.other_corpora]
        return list(dict.fromkeys(main + sizes + texts))

    def probes(self, entry: Run) -> bool:
        """Whether a model is asked for `PROBES` too."""
        return entry.seed - self.seed in self.probed and entry[1:3] == (self.width, self.corpus)

    def members(self, count: int) -> range:
        """The first ``count`` seeds."""
        return range(self.seed, self.seed + count)


def evaluation_points(steps: int, count: int) -> list[int]:
    """Return up to ``count`` numbers of updates from 0 to ``steps``, denser early.

    >>> evaluation_points(2500, 8)
    [0, 10, 25, 63, 158, 397, 996, 2500]
    """
    first = min(10, steps)
    grown = [first * (steps / first) ** (k / max(1, count - 2)) for k in range(count - 1)]
    return sorted({0, steps, *(round(point) for point in grown)})


def run(config: Config) -> Study:
    """Train and measure every model that is not stored yet."""
    with needed("this study needs", "models"):
        import tokenizers  # noqa: F401  asked for before the training, not after it
    device, folder = choose_device(config.device), checkpoint_folder(NAME, config)
    texts = {name: load_corpus(name, config) for name in dict.fromkeys(entry.corpus for entry in config.runs())}
    for name, text in texts.items():
        fits(name, text, config)
    tables = join_parts(
        (entry._asdict(), trained_tables(entry, config, texts, device, folder))
        for entry in tqdm(config.runs(), desc="language models", unit="model")
    )
    rows = [(name, len(t.train), len(t.held_out), t.sha256, unigram(t, config.vocabulary)) for name, t in texts.items()]
    tables["corpora"] = pd.DataFrame(rows, columns=["corpus", "tokens", "held_out", "sha256", "unigram"])
    seconds = float(tables["timing"]["seconds"].sum())
    return Study(tables, manifest={"seeds": list(config.members(config.seeds)), "seconds": seconds})


def fits(name: str, corpus: Corpus, config: Config) -> None:
    """Refuse a corpus whose tokens the models do not know, or that is shorter than the longest window read."""
    known = 1 + max(int(tokens.max()) for tokens in (corpus.train, corpus.held_out))
    if known > config.vocabulary:
        raise ConfigError(
            f"vocabulary = {config.vocabulary}: corpus {name} has {known:,} tokens, give at least as many"
        )
    longest = (min(len(corpus.train), len(corpus.held_out)) - 1) // FACTOR
    if config.length > longest:
        raise ConfigError(
            f"length = {config.length}: windows of {FACTOR} times as many tokens are read, and corpus {name} has "
            f"{len(corpus.held_out):,} held out; give at most {longest}"
        )


def load_corpus(name: str, config: Config) -> Corpus:
    """Return a corpus from the cache; the small one, of the source of a library that torch needs, is made here."""
    if name != "small":
        return corpora.load(cache_root() / "corpora" / f"{name}.safetensors")
    import networkx

    package = Path(networkx.__file__).parent
    files = sorted(path for path in package.rglob("*.py") if "tests" not in path.parts)
    named = ((str(path.relative_to(package)), path.read_text(encoding="utf-8")) for path in files)
    return corpora.make(named, vocabulary=config.vocabulary)


def unigram(corpus: Corpus, vocabulary: int) -> float:
    """Return the loss per held-out token, in nats, of a model that knows the tokens' frequencies alone."""
    counts = torch.bincount(corpus.train.long(), minlength=vocabulary).double() + 1
    return float(-(counts / counts.sum()).log()[corpus.held_out.long()].mean())


def trained_tables(
    entry: Run, config: Config, texts: dict[str, Corpus], device: torch.device, folder: Path
) -> dict[str, pd.DataFrame]:
    """Return the tables of one model: those stored, or those of a model trained now."""
    name = "-".join(map(str, entry))
    if (stored := load_part(folder, name, TABLES + PROBES * config.probes(entry))) is not None:
        return stored
    observer = Observer(entry, config, texts, device, folder / name)
    started = time.perf_counter()
    points = evaluation_points(config.steps, config.points)
    model, history = trained(entry, config, texts[entry.corpus], device, points, observer.along_the_way, folder / name)
    seconds = time.perf_counter() - started
    save_model(model, weights_file(entry, config))
    tables = observer.at_the_end(model)
    tables["training"] = training_table(history, config.steps)
    parameters = sum(weight.numel() for weight in model.parameters())
    used = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    seen = config.steps * config.batch * config.length
    tables["timing"] = pd.DataFrame(
        [(parameters, seen, seconds, used)], columns=["parameters", "tokens", "seconds", "device"]
    )
    save_part(folder, name, tables)
    (folder / f"{name}.safetensors").unlink(missing_ok=True)
    return tables


def trained(
    entry: Run,
    config: Config,
    text: Corpus,
    device: torch.device,
    points: list[int],
    measure: Callable[[LanguageModel, int], None],
    checkpoint: Path | None = None,
) -> tuple[LanguageModel, list[float]]:
    """Train one model as the settings ask; points, measure, checkpoint and what is returned are those of `train`."""
    return train(
        Sizes(config.vocabulary, config.layers, config.heads, entry.width, entry.encoding),
        text.train.to(device),
        steps=config.steps,
        batch=config.batch,
        length=config.length,
        peak=config.learning_rate,
        warm_up=config.warm_up,
        points=points,
        seed=entry.seed,
        device=device,
        measure=measure,
        checkpoint=checkpoint,
        label="-".join(map(str, entry)),
    )


def weights_file(entry: Run, config: Config | None = None) -> Path:
    """Return where the weights of a trained model stay on this machine: a file of the cache, not of the store.

    Settings that train another model than those of the preset paper, which are meant without ``config``, are in the
    file's name: no run at other settings overwrites those weights.
    """
    paper = Config.preset_named("paper")
    other = {name: getattr(config or paper, name) for name in TRAINED_BY}
    parts = [*entry]
    if any(value != getattr(paper, name) for name, value in other.items()):
        parts.append(hashlib.sha256(json.dumps(other).encode()).hexdigest()[:8])
    return cache_root() / NAME / f"{'-'.join(map(str, parts))}.safetensors"


def training_table(history: list[float], steps: int) -> pd.DataFrame:
    """Return step and loss, means over `WINDOW` updates up to ``step``, of the updates that were made last."""
    first = steps - len(history)
    ends = range(WINDOW, len(history) + 1, WINDOW)
    rows = [(first + end, math.fsum(history[end - WINDOW : end]) / WINDOW) for end in ends]
    return pd.DataFrame(rows, columns=["step", "loss"])


class Observer:
    """Measures one model: at every point along the way, and at the end."""

    def __init__(
        self, entry: Run, config: Config, texts: dict[str, Corpus], device: torch.device, checkpoint: Path
    ) -> None:
        self.config, self.stored = config, checkpoint.with_name(f"{checkpoint.name}.along.parquet")
        held_out = {name: text.held_out.to(device) for name, text in texts.items()}
        self.own = held_out[entry.corpus]
        count, length = config.scored, config.scored_length
        self.scored = {"held out": windows(self.own, count, length, seed=1)}
        self.scored |= {
            name: windows(tokens, count, length, seed=1) for name, tokens in held_out.items() if name != entry.corpus
        }
        # Labels come from other windows than scores, so that both cannot share one window's accidents.
        self.labelled = windows(self.own, count, length, seed=2)
        self.random, self.scored["repeated tokens"] = (
            repeated_tokens(count, length // 2, config.vocabulary, torch.Generator().manual_seed(seed)).to(device)
            for seed in (3, 4)
        )
        self.evaluated = windows(self.own, config.evaluated, config.length + 1, seed=5)
        self.queries = measures.query_positions(length)
        shown = entry[1:] == (config.width, config.corpus, config.seed)
        self.line = corpora.tokens_of(texts[entry.corpus].tokenizer, LINE) if shown else ([], [])
        self.probed = config.probes(entry)
        if self.probed:
            tokenizer = texts[entry.corpus].tokenizer
            self.scored[BINDING] = binding_prompts(tokenizer, count, length, seed=10).to(device)
        points = evaluation_points(config.steps, config.points)
        self.plane_points = {*points[:: -max(1, len(points) // PLANE_POINTS)]}
        self.rows: dict[str, list[pd.DataFrame]] = {"scores": [], "jobs": [], "planes": [], "loss": []}
        try:  # what an interrupted run measured up to its checkpoint
            self.rows = {name: [pd.read_parquet(self.stored.with_suffix(f".{name}.parquet"))] for name in self.rows}
        except (OSError, ValueError):  # gone or cut short: then the model is trained from the start
            checkpoint.with_suffix(".safetensors").unlink(missing_ok=True)

    def along_the_way(self, model: LanguageModel, step: int) -> None:
        """Score the heads on held-out windows, and take the loss, after ``step`` updates."""
        scores = measures.head_scores(model, self.scored["held out"], self.queries)
        by_position = measures.losses(model, self.evaluated).double().cpu()
        part = max(1, len(by_position) // 8)
        loss = [float(values.mean()) for values in (by_position, by_position[:part], by_position[-part:])]
        rows = {
            "scores": scores.assign(text="held out"),
            "jobs": measures.known_jobs(model, self.labelled, self.random),
            "loss": pd.DataFrame([loss], columns=["loss", "early", "late"]),
        }
        if step in self.plane_points:
            rows["planes"] = measures.plane_scores(model, self.scored["held out"][:8], self.queries[-1])
        for name, table in rows.items():
            # An interrupted run may have measured more than its checkpoint knows of: it measures that again.
            before = [rows[rows["step"] < step] for rows in self.rows[name]]
            self.rows[name] = [*before, table.assign(step=step)]
            with atomic_write(self.stored.with_suffix(f".{name}.parquet")) as path:
                pd.concat(self.rows[name], ignore_index=True).to_parquet(path, index=False)

    def at_the_end(self, model: LanguageModel) -> dict[str, pd.DataFrame]:
        """Return the tables of the whole course, and what is asked of the trained model alone."""
        steps = self.config.steps
        for text, tokens in self.scored.items():
            if text != "held out":
                self.rows["scores"].append(
                    measures.head_scores(model, tokens, self.queries).assign(text=text, step=steps)
                )
        tables = {name: pd.concat(parts, ignore_index=True) for name, parts in self.rows.items()}
        distances = sorted(
            {2, *(max(2, round(self.config.length * k / 16)) for k in range(1, 16)), self.config.length - 2}
        )
        spots = windows(self.own, 4 * self.config.evaluated, self.config.length, seed=6)
        tables["recall"] = measures.recall(model, spots, distances, seed=7)
        tables["length"] = self.by_length(model, tables["scores"])
        tables["attention"] = measures.attention_rows(model, *self.line)
        if self.probed:
            tables |= self.probes(model, tables["scores"])
        return tables

    def probes(self, model: LanguageModel, scores: pd.DataFrame) -> dict[str, pd.DataFrame]:
        """Return the tables `PROBES`."""
        length, count = self.config.length, self.config.evaluated
        lead = torch.tensor(last_scores(scores)["lead"].to_numpy()).view(self.config.layers, self.config.heads)
        text = windows(self.own, max(2, count), length, seed=11)
        long = windows(self.own, max(reach.FEWEST, count // 4), FACTOR * length + 1, seed=12)
        return {
            "without_heads": carriers.recall_without(model, text, carriers.distances_of(length), lead, seed=13),
            "reach": reach.loss_by_reach(model, long, length),
        }

    def by_length(self, model: LanguageModel, scores: pd.DataFrame) -> pd.DataFrame:
        """Return the loss by position on windows `FACTOR` times as long, of the model and of the model edited.

        Edits: the slowest and the fastest quarter of the planes stand still; a quarter of the heads, the most
        positional, the most symbolic, or random ones, see the first token and the trained length alone.
        """
        long = windows(self.own, max(2, self.config.evaluated // 8), FACTOR * self.config.length + 1, seed=8)
        planes = len(model.angles)
        quarter = max(1, planes // 4)
        rows = [("none", measures.losses(model, long, at_once=2))]
        for name, still in {"fast still": range(quarter), "slow still": range(planes - quarter, planes)}.items():
            with measures.without_planes(model, still):
                rows.append((name, measures.losses(model, long, at_once=2)))
        last = last_scores(scores)
        count = max(1, len(last) // 4)
        generator = torch.Generator().manual_seed(9)
        orders = {
            "positional windowed": torch.tensor(last["positional"].to_numpy()).argsort(descending=True),
            "symbolic windowed": torch.tensor(last["symbolic"].to_numpy()).argsort(descending=True),
            "random windowed": torch.randperm(len(last), generator=generator),
        }
        for name, order in orders.items():
            heads = torch.zeros(len(last), dtype=torch.bool)
            heads[order[:count]] = True
            shape = (self.config.layers, self.config.heads)
            masks = measures.windowed(heads.view(shape).to(long.device), long.shape[1] - 1, self.config.length, sink=1)
            rows.append((name, measures.losses(model, long, masks, at_once=2)))
        return pd.concat([binned(loss).assign(edit=name) for name, loss in rows], ignore_index=True)


def last_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the scores on held-out windows at the end, by layer and head."""
    return summaries.at_end(summaries.held_out(scores)).sort_values(["layer", "head"])


def binding_prompts(tokenizer: str, count: int, length: int, seed: int) -> torch.Tensor:
    """Return the last ``length`` tokens (count, length) of prompts that say who likes what, and ask for one of them.

    They are P1's in words; `possym.tasks.BindingTask` also wants one token a name, which a tokenizer of source lacks.

    Source: 2511.11579, section 4.
    """
    generator, rows = torch.Generator().manual_seed(seed), []
    pairs = -(-length // 4)  # a statement has four tokens or more: name, "likes", attribute, full stop
    for _ in range(count):
        orders = [torch.randperm(len(words), generator=generator) for words in (binding.NAMES, binding.ATTRIBUTES)]
        names, attributes = (
            [words[order[k % len(order)]] for k in range(pairs)]
            for words, order in zip((binding.NAMES, binding.ATTRIBUTES), orders, strict=True)
        )
        said = "".join(binding.STATEMENT.format(name=a, attribute=b) for a, b in zip(names, attributes, strict=True))
        back = int(torch.randint(max(1, pairs // 4), (1,), generator=generator))  # asked of one that is not cut off
        text = binding.INTRODUCTION + said + binding.QUESTION.format(name=names[-1 - back])
        rows.append(corpora.tokens_of(tokenizer, text)[0][-length:])
    return torch.tensor(rows)


def binned(loss: torch.Tensor) -> pd.DataFrame:
    """Return position (the middle of each of `BINS` bins) and the mean loss there."""
    parts = loss.double().cpu().tensor_split(BINS)
    edges = [0]
    for part in parts:
        edges.append(edges[-1] + len(part))
    middles = [(low + high - 1) / 2 for low, high in pairwise(edges)]
    return pd.DataFrame({"position": middles, "loss": [float(part.mean()) for part in parts]})
