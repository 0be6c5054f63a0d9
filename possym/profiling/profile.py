"""The profile of a model: tables of scores by head and frequency, how they are made, drawn, kept and joined."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pandas as pd
from torch import nn
from tqdm.auto import tqdm

from possym import __version__
from possym.capture import Capture
from possym.errors import InputError, ResultsError, require_type
from possym.profiling.prompts import check_number, read_answers, read_blocks, read_prompts, read_queries
from possym.profiling.scoring import ScoreCollector, purity_of, score_prompts
from possym.results.files import scratch

TABLES = ("heads", "frequencies", "prompts", "coverage")


@dataclass
class Profile:
    """Scores of a model's heads on a set of prompts.

    Attributes:
        heads: one row a prompt, layer and head: positional, symbolic, entropy (nats), purity (1 positional,
            −1 symbolic, 0 neither), variance of the logits and its exclusion bound, moved (number of keys moved).
            Scores are NaN where the query sees fewer than two keys or blocks to swap.
        frequencies: one row a prompt, layer, head and frequency ID (from 1, fastest first): angle (radians a
            position), logit_norm, positional, symbolic, entropy. Empty unless asked for.
        prompts: one row a prompt: tokens, query_place, blocks (number), predicted (token id), correct.
        coverage: one row a layer of the model, see `possym.capture.Capture`.
        settings: how the profile was made.
    """

    heads: pd.DataFrame
    frequencies: pd.DataFrame
    prompts: pd.DataFrame
    coverage: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)

    def summary(self) -> pd.DataFrame:
        """Return mean and standard deviation over prompts, one row a layer and head.

        ``purity`` is that of the mean scores; the deviations divide by n − 1 and are NaN for one prompt.
        """
        groups = self.heads.groupby(["layer", "head"])
        columns = ["positional", "symbolic", "entropy", "variance", "bound"]
        table = groups[columns].mean()
        for column in ("positional", "symbolic", "entropy"):
            table[f"{column}_sd"] = groups[column].std()
        table["purity"] = purity_of(table.positional, table.symbolic, self.settings["gamma"])
        return table.reset_index()

    def correlation(self) -> float:
        """Return Pearson's r between the mean positional and symbolic scores over heads."""
        table = self.summary()
        return float(table.positional.corr(table.symbolic))

    def plane(self):
        """Draw every head by its mean positional and symbolic score (an Altair chart)."""
        from possym.profiling.charts import plane

        return plane(self.summary())

    def heatmap(self):
        """Draw both mean scores by layer and head (an Altair chart)."""
        from possym.profiling.charts import heatmap

        return heatmap(self.summary())

    def frequency_profile(self, layer: int, head: int):
        """Draw one head's scores and logit norm by frequency, with the spread over prompts (an Altair chart).

        Raises:
            InputError: frequencies were not asked for, or no such head.
        """
        from possym.profiling.charts import frequency_profile

        return frequency_profile(self.head_frequencies(layer, head))

    def head_frequencies(self, layer: int, head: int) -> pd.DataFrame:
        """Return the rows of `frequencies` of one head.

        Raises:
            InputError: frequencies were not asked for, or no such head.
        """
        if self.frequencies.empty:
            raise InputError("this profile has no frequencies: make it with per_frequency=True")
        rows = self.frequencies[(self.frequencies.layer == layer) & (self.frequencies["head"] == head)]
        if rows.empty:
            layers = sorted(self.frequencies.layer.unique().tolist())
            raise InputError(
                f"layer {layer!r}, head {head!r}: layers with frequencies are {layers}, heads count from 0 to "
                f"{self.frequencies['head'].max()}"
            )
        return rows

    def save(self, path: str | os.PathLike) -> Path:
        """Write the profile as a folder of Parquet tables and ``profile.json``, whole or not at all.

        An earlier profile at ``path`` is replaced; anything else there is left alone.

        Raises:
            InputError: ``path`` holds something that is not a profile.
        """
        require_type(path, (str, os.PathLike), "path")
        path = Path(path)
        if path.exists() and not (path / "profile.json").exists():
            raise InputError(f"{path} exists and is not a saved profile: choose another place")
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch(path.parent) as folder:
            (new := folder / "new").mkdir()
            for name in TABLES:
                getattr(self, name).to_parquet(new / f"{name}.parquet", index=False)
            (new / "profile.json").write_text(json.dumps({"format": 1, "settings": self.settings}, indent=1))
            if path.exists():
                os.replace(path, folder / "before")
            os.replace(new, path)
        return path

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read a profile that `save` wrote.

        Raises:
            ResultsError: no profile there, or one that is incomplete or of another format.
        """
        require_type(path, (str, os.PathLike), "path")
        path = Path(path)
        try:
            manifest = json.loads((path / "profile.json").read_text())
            if manifest["format"] != 1:
                raise ResultsError(f"{path} has format {manifest['format']!r}; this possym reads format 1")
            tables = {name: pd.read_parquet(path / f"{name}.parquet") for name in TABLES}
            return cls(**tables, settings=manifest["settings"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{path} holds no whole profile ({error}): give a folder that Profile.save wrote"
            ) from error

    @classmethod
    def concat(cls, profiles: Sequence[Self]) -> Self:
        """Return one profile of the prompts of several, numbered on, of one model and with one set of settings.

        Raises:
            InputError: nothing given, or models or settings that differ.
        """
        profiles = list(profiles)
        if not profiles or not all(isinstance(p, cls) for p in profiles):
            raise InputError("profiles: give a list of one or more Profile objects")
        first = profiles[0]
        for other in profiles[1:]:
            if other.settings != first.settings:
                names = [k for k in first.settings if other.settings.get(k) != first.settings[k]]
                raise InputError(f"profiles were made with different settings ({', '.join(names)}): make them alike")
            if not other.coverage[["layer", "planes"]].equals(first.coverage[["layer", "planes"]]):
                raise InputError("profiles are of different models: concatenate those of one model")
        tables = {name: [] for name in ("heads", "frequencies", "prompts")}
        shift = 0
        for one in profiles:
            for name, parts in tables.items():
                table = getattr(one, name)
                parts.append(table.assign(prompt=table.prompt + shift))
            shift += int(one.prompts.prompt.max()) + 1
        joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
        return cls(**joined, coverage=first.coverage, settings=first.settings)

    def __repr__(self) -> str:
        """Return a few lines that say what was profiled and what came out."""
        table, settings = self.summary(), self.settings
        counts = table.purity.value_counts()
        tokens = self.prompts.tokens
        length = f"{tokens.min()}" if tokens.min() == tokens.max() else f"{tokens.min()} to {tokens.max()}"
        rotating = int(self.coverage.rotates.sum())
        correct = self.prompts.correct
        answered = "" if correct.isna().all() else f", {int(correct.sum())} answered correctly"
        return (
            f"Profile of {settings['model']}: {len(self.prompts)} prompt{'s' * (len(self.prompts) != 1)} of {length} "
            f"tokens{answered}\n"
            f"  {len(table)} heads in {table.layer.nunique()} layers, {rotating} of {len(self.coverage)} layers rotate"
            f"; blocks: {settings['blocks']}, temperature {settings['temperature']:g}\n"
            f"  purely positional {counts.get(1, 0)}, purely symbolic {counts.get(-1, 0)}, neither {counts.get(0, 0)} "
            f"(γ = {settings['gamma']:g}); positional against symbolic: r = {self.correlation():.2f}"
        )


def profile(
    model: nn.Module,
    prompts: Any,
    *,
    tokenizer: Any = None,
    blocks: Any = "tokens",
    temperature: float = 0.1,
    per_frequency: bool = False,
    query: int | Sequence[int] = -1,
    answers: Sequence[str | int] | None = None,
    only_correct: bool = False,
    gamma: float = 0.1,
    progress: bool = True,
) -> Profile:
    """Score every head of a language model on a set of prompts.

    Keys that the mask hides from the query (after it, or outside a sliding window) take no part. The model comes
    back as it was, its attention implementation, hooks and training mode included.

    Args:
        model: a causal transformers model with rotary position embedding. One too large for a card may be spread over
            several, and over CPU memory and disk, by transformers' ``device_map``.
        prompts: a list of strings, of chats (lists of ``{"role": …, "content": …}``) or of token ids (lists,
            arrays or tensors); a tensor (n, T); a tokenizer's output (padding is taken off). One alone need not
            be in a list.
        tokenizer: needed for strings and chats.
        blocks: what changes places: ``"tokens"``, ``"sentences"`` (strings and chats only), a list of (start, stop)
            for all prompts, or such a list for each prompt. Blocks end before the query.
        temperature: τ of the weights of swaps, positive.
        per_frequency: score every RoPE plane of every head too.
        query: place of the query token, one for all prompts or one for each; negative counts from the end.
        answers: for each prompt, the token that should follow the query: an id, or a string whose first token counts.
        only_correct: leave out prompts that the model answers wrongly; needs ``answers``.
        gamma: tolerance of purity, see `possym.scores.purity`.
        progress: show a progress bar.

    Returns:
        `Profile`.

    Raises:
        InputError: prompts, blocks, query or answers that do not fit, or a model that overflows on them.
        UnsupportedModelError: a model without rotary position embedding, not causal, or none at all.

    Source: 2511.11579, sections 3 and 4; 2605.31558, appendix D.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> profile(LlamaForCausalLM(config), [[3, 14, 15, 9, 2], [6, 5, 35]], progress=False).heads.shape
    (16, 10)
    """
    check_number("temperature", temperature, 0.0, float("inf"))
    check_number("gamma", gamma, 0.0, 0.5)
    for name, flag in dict(per_frequency=per_frequency, only_correct=only_correct, progress=progress).items():
        if not isinstance(flag, bool):
            raise InputError(f"{name} = {flag!r}: give True or False")
    texts = read_prompts(prompts, tokenizer)
    places = read_queries(query, texts)
    spans = read_blocks(blocks, texts, places)
    wanted = read_answers(answers, tokenizer, len(texts))
    if only_correct and wanted is None:
        raise InputError("only_correct=True needs answers, one for each prompt")
    capture = Capture(model)
    rows = ScoreCollector(temperature, per_frequency)
    with tqdm(total=len(texts), unit="prompt", disable=not progress or len(texts) == 1) as bar:
        predicted = score_prompts(capture, texts, places, spans, rows, bar)
    heads, frequencies = rows.tables()
    heads["purity"] = purity_of(heads.positional, heads.symbolic, gamma)
    table = pd.DataFrame(
        dict(
            prompt=range(len(texts)),
            tokens=[len(text.ids) for text in texts],
            query_place=places,
            blocks=pd.array([None if span is None else len(span) for span in spans], dtype="Int64"),
            predicted=pd.array(predicted, dtype="Int64"),
            correct=pd.array([None] * len(texts), dtype="boolean"),
        )
    )
    if wanted is not None:
        if any(token is None for token in predicted):
            raise InputError(f"answers: {type(model).__name__} has no language head to answer with")
        table["correct"] = pd.array([a == b for a, b in zip(predicted, wanted, strict=True)], dtype="boolean")
    if only_correct:
        table = table[table.correct].reset_index(drop=True)
        if table.empty:
            raise InputError("only_correct=True: the model answers none of the prompts correctly")
        heads, frequencies = (x[x.prompt.isin(table.prompt)].reset_index(drop=True) for x in (heads, frequencies))
    columns = ["prompt", "layer", "head", "positional", "symbolic", "entropy", "purity", "variance", "bound", "moved"]
    settings = dict(
        model=model_name(model),
        temperature=float(temperature),
        blocks=blocks if isinstance(blocks, str) else "spans",
        gamma=float(gamma),
        per_frequency=per_frequency,
        only_correct=only_correct,
        possym=__version__,
    )
    return Profile(heads[columns], frequencies, table, capture.coverage, settings)


def model_name(model: nn.Module) -> str:
    """Return a model's hub id, the last part of its folder, or its class."""
    name = getattr(model.config, "name_or_path", "")
    return (Path(name).name if os.path.isdir(name) else name) or type(model).__name__
