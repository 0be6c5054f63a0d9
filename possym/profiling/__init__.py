"""Profile a language model: does each head, on these prompts, look at places or at contents?

- `profile(model, prompts)` scores every layer, head and, if asked, RoPE frequency in one forward pass a prompt.
- `Profile` holds the tables, prints, draws, saves, loads and concatenates.

Prompts are never padded: those of one length run together, the rest one after the other.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from possym import __version__
from possym.capture import Capture, LayerInputs
from possym.errors import InputError, ResultsError, as_real, as_whole, need
from possym.results.scratch import scratch
from possym.scores import check_blocks, head_scores, plane_scores, purity, scores_and_exclusion

TABLES = ("heads", "frequencies", "prompts", "coverage")
HEAD_VALUES = ("positional", "symbolic", "entropy", "variance", "bound", "moved")
FREQUENCY_VALUES = ("positional", "symbolic", "entropy", "logit_norm", "angle")
TOKENS_AT_ONCE = 4096
MATRIX_ENTRIES = 2**27  # of relocated logits at once on a GPU, those of one head at least
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


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
        table["purity"] = kind(table.positional, table.symbolic, self.settings["gamma"])
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
        need(path, (str, os.PathLike), "path")
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
        need(path, (str, os.PathLike), "path")
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
    rows = Rows(temperature, per_frequency)
    with tqdm(total=len(texts), unit="prompt", disable=not progress or len(texts) == 1) as bar:
        predicted = run_prompts(capture, texts, places, spans, rows, bar)
    heads, frequencies = rows.tables()
    heads["purity"] = kind(heads.positional, heads.symbolic, gamma)
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


class Rows:
    """Collects the scores of layers as they come by."""

    def __init__(self, temperature: float, per_frequency: bool):
        self.temperature = temperature
        self.per_frequency = per_frequency
        self.heads: list[Part] = []
        self.frequencies: list[Part] = []

    def add(self, inputs: LayerInputs, prompts: list[int], spans: tuple | None) -> None:
        """Score layers on a batch of prompts. Nothing waits for the device: the values stay there."""
        count, shape, threads = len(inputs.moved), inputs.query.shape[:2], torch.get_num_threads()
        seen = None if spans is None else seen_blocks(spans, inputs.moved)
        enough = count >= 2 and (seen is None or len(seen) >= 2)
        # Entries of matrices and of vectors at once: what a GPU has memory for, what a CPU's cache holds.
        whole, vectors = (MATRIX_ENTRIES, 2**23) if inputs.keys.is_cuda else (2**19 * threads, 2**13 * threads)
        values = inputs.query.new_full((*shape, len(HEAD_VALUES)), torch.nan)
        values[..., -1] = count
        if enough:
            extra = inputs.extra_logits()
            products = seen is None and inputs.replayed is None
            numbers = 2 * inputs.keys.shape[-1] if products else count  # that a key of a head takes
            for rows, heads in boxes(shape, whole // (count * numbers)):
                if products:
                    factors = *inputs.factors(heads, rows), extra[rows, heads]
                    scores, found = head_scores(*factors, self.temperature, inputs.capped, whole)
                else:  # blocks need their matrices, and so does a layer that has no factors
                    relocated = inputs.relocated_logits(heads, rows)
                    scores, found = scores_and_exclusion(relocated, extra[rows, heads], seen, self.temperature)
                    del relocated
                values[rows, heads, :-1] = torch.stack([*scores, found.variance, found.bound], -1)
        self.heads.append(Part(values, prompts, inputs.layers, enough))
        if not self.per_frequency or not len(inputs.angles):
            return
        values = inputs.query.new_full((*shape, len(inputs.angles), len(FREQUENCY_VALUES)), torch.nan)
        values[..., -1] = inputs.angles
        if enough:
            own = inputs.own_logits(per_plane=slice(None))
            # Blocks need matrices of logits, single tokens vectors alone.
            for box in boxes(values.shape[:-1], vectors // count if seen is None else whole // count**2):
                values[*box, :-1] = self.plane_values(inputs, *box, own[box], seen)
        self.frequencies.append(Part(values, prompts, inputs.layers, enough))

    def plane_values(
        self, inputs: LayerInputs, rows: slice, heads: slice, planes: slice, own: Tensor, blocks: list | None
    ) -> Tensor:
        """Return scores and logit norm (…, 4) of some planes."""
        if blocks is None:
            scores, logits = plane_scores(*inputs.plane_factors(heads, rows, planes), own, self.temperature)
        else:
            relocated = inputs.relocated_logits(heads, rows, per_plane=planes)
            scores, _ = scores_and_exclusion(relocated, own, blocks, self.temperature)
            logits = relocated.diagonal(dim1=-2, dim2=-1)
        return torch.stack([*scores, logits.norm(dim=-1)], -1)

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return both tables, in order of prompt, layer, head and frequency.

        Raises:
            InputError: logits that are not finite.
        """
        order = ["prompt", "layer", "head"]
        heads = as_table(self.heads, HEAD_VALUES, order)
        heads["moved"] = heads["moved"].astype("int64")
        order.append("frequency_id")
        columns = [*order, "angle", "logit_norm", "positional", "symbolic", "entropy"]
        if not self.frequencies:
            return heads, pd.DataFrame(
                {name: pd.Series(dtype="int64" if name in order else "float64") for name in columns}
            )
        frequencies = as_table(self.frequencies, FREQUENCY_VALUES, order)
        frequencies["frequency_id"] += 1
        return heads, frequencies[columns]


@dataclass
class Part:
    """Values (layers · prompts, H, …, names); ``known`` says whether there was enough to score."""

    values: Tensor
    prompts: list[int]
    layers: list[int]
    known: bool


def boxes(shape: Sequence[int], size: int) -> Iterator[tuple[slice, ...]]:
    """Return slices that cut ``shape`` into boxes of ``size`` entries at most, or one, that are wide in the last.

    >>> list(boxes((2, 3), 2))[:2]
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 4, None))]
    """
    cuts = []
    for count in reversed(shape):
        step = max(1, min(count, size))
        cuts.insert(0, [slice(start, start + step) for start in range(0, count, step)])
        size //= step
    return itertools.product(*cuts)


def as_table(parts: list[Part], names: Sequence[str], order: Sequence[str]) -> pd.DataFrame:
    """Return values as a tidy table, copied at once and sorted, or raise an InputError where they are not finite."""
    device = parts[0].values.device
    found = torch.cat([part.values.flatten(end_dim=-2).to(device) for part in parts]).double().cpu().numpy()
    numbers = []
    for part in parts:
        shape = len(part.layers), len(part.prompts), *part.values.shape[1:-1]
        layer, prompt, *rest = np.indices(shape).reshape(len(shape), -1)
        numbers.append(np.stack([np.array(part.prompts)[prompt], np.array(part.layers)[layer], *rest]))
    known = np.concatenate([np.full(rows.shape[1], part.known) for part, rows in zip(parts, numbers, strict=True)])
    numbers = np.concatenate(numbers, 1)
    wrong = known & ~np.isfinite(found).all(1)
    if wrong.any():
        raise InputError(
            f"layer {numbers[1, wrong].min()}: logits are not finite. The model overflows on this prompt: check its "
            "weights, or load it in float32 or bfloat16"
        )
    rank = np.lexsort(numbers[::-1])
    columns = zip([*order, *names], [*numbers[:, rank], *found[rank].T], strict=True)
    return pd.DataFrame(dict(columns))


def kind(positional: pd.Series, symbolic: pd.Series, gamma: float) -> Any:
    """Return `possym.scores.purity` of two columns; NaN counts as neither."""
    columns = (torch.tensor(column.to_numpy()) for column in (positional, symbolic))
    return purity(*columns, gamma).numpy()


@dataclass
class Text:
    """One prompt as token ids, with the places of sentences where it came as text."""

    ids: list[int]
    sentences: list[tuple[int, int]] | None = None


def run_prompts(
    capture: Capture, texts: list[Text], places: list[int], spans: list, rows: Rows, bar: tqdm | None = None
) -> list[int | None]:
    """Score every prompt into ``rows``, those alike together, and return the token that each one's query predicts."""
    groups: dict[tuple, list[int]] = {}
    for number, (text, place, span) in enumerate(zip(texts, places, spans, strict=True)):
        groups.setdefault((len(text.ids), place, None if span is None else tuple(span)), []).append(number)
    predicted = [None] * len(texts)
    for (length, place, span), members in groups.items():
        at_once = max(1, TOKENS_AT_ONCE // length)
        for start in range(0, len(members), at_once):
            some = members[start : start + at_once]
            tokens = torch.tensor([texts[number].ids for number in some])
            visit = lambda x, some=some, span=span: rows.add(x, some, span)  # noqa: E731
            logits = capture.run(tokens, visit, query=place, together=True)
            if logits is not None:
                for number, token in zip(some, logits.argmax(-1).tolist(), strict=True):
                    predicted[number] = token
            if bar is not None:
                bar.update(len(some))
    return predicted


def read_prompts(prompts: Any, tokenizer: Any) -> list[Text]:
    """Return prompts as token ids, or raise an InputError."""
    if tokenizer is not None and not callable(tokenizer):
        raise InputError(f"tokenizer is a {type(tokenizer).__name__}: give the model's transformers tokenizer")
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, Mapping) and "input_ids" in prompts:
        rows, masks = prompts["input_ids"], prompts.get("attention_mask")
        rows, masks = (each.tolist() if isinstance(each, (Tensor, np.ndarray)) else each for each in (rows, masks))
        rows = list(rows)
        masks = [[1] * len(row) for row in rows] if masks is None else masks
        prompts = [
            [t for t, keep in zip(row, mask, strict=True) if keep] for row, mask in zip(rows, masks, strict=True)
        ]
    elif isinstance(prompts, str) or (isinstance(prompts, Tensor) and prompts.ndim == 1):
        prompts = [prompts]
    elif (
        isinstance(prompts, (list, tuple))
        and prompts
        and all(isinstance(p, Mapping) or as_whole(p) is not None for p in prompts)
    ):
        prompts = [prompts]
    if not isinstance(prompts, (list, tuple, Tensor)) or not len(prompts):
        raise InputError("prompts: give one or more strings, chats, or sequences of token ids")
    texts = [read_prompt(number, prompt, tokenizer) for number, prompt in enumerate(prompts)]
    for number, text in enumerate(texts):
        if len(text.ids) < 3:
            raise InputError(
                f"prompt {number} has {len(text.ids)} token{'s' * (len(text.ids) != 1)}: a swap needs two keys before "
                "the query, so give at least three"
            )
    return texts


def read_prompt(number: int, prompt: Any, tokenizer: Any) -> Text:
    """Return one prompt as token ids, or raise an InputError."""
    chat = isinstance(prompt, (list, tuple)) and prompt and all(isinstance(turn, Mapping) for turn in prompt)
    if isinstance(prompt, str) or chat:
        if tokenizer is None:
            raise InputError(f"prompt {number} is {'a chat' if chat else 'text'}: give tokenizer, or token ids")
        text, special = prompt, True
        if chat:
            if getattr(tokenizer, "chat_template", None) is None:
                raise InputError(f"prompt {number} is a chat, but the tokenizer has no chat template: give strings")
            # The template writes the special tokens itself, so tokenizing must not add them again.
            text = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
            special = False
        if not tokenizer.is_fast:
            return Text(list(tokenizer(text, add_special_tokens=special)["input_ids"]))
        encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        return Text(list(encoded["input_ids"]), sentence_spans(text, encoded["offset_mapping"]))
    ids = prompt.tolist() if isinstance(prompt, (Tensor, np.ndarray)) else prompt
    found = list(ids) if isinstance(ids, (list, tuple)) else [None]
    if not all(type(token) is int and 0 <= token < 2**63 for token in found):
        found = [as_whole(token) for token in found]
    if None in found:
        raise InputError(f"prompt {number} is {prompt!r:.80}: give a string, a chat, or whole token ids")
    return Text(found)


def sentence_spans(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, stop) token span of every sentence; a token belongs where its last character does."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)] + [len(text)]
    sentence, owner = 0, []
    for start, stop in offsets:
        while stop > ends[sentence] and sentence < len(ends) - 1:
            sentence += 1
        owner.append(sentence if stop > start else None)
    spans = {}
    for token, number in enumerate(owner):
        if number is not None:
            first, _ = spans.get(number, (token, token))
            spans[number] = (first, token + 1)
    return list(spans.values())


def read_queries(query: int | Sequence[int], texts: list[Text]) -> list[int]:
    """Return the query's place in every prompt, counted from 0, or raise an InputError."""
    queries = [query] * len(texts) if as_whole(query) is not None else query
    if not isinstance(queries, (list, tuple)) or len(queries) != len(texts):
        raise InputError(f"query = {query!r:.80}: give one place, or one for each of the {len(texts)} prompts")
    places = []
    for number, (place, text) in enumerate(zip(queries, texts, strict=True)):
        length = len(text.ids)
        at = as_whole(place)
        if at is None or not -length <= at < length or at % length < 2:
            raise InputError(
                f"query = {place!r} in prompt {number} of {length} tokens: give a place with at least two keys "
                "before it"
            )
        places.append(at % length)
    return places


def read_blocks(blocks: Any, texts: list[Text], places: list[int]) -> list[list[tuple[int, int]] | None]:
    """Return every prompt's blocks, None for single tokens, or raise an InputError."""
    if isinstance(blocks, str):
        if blocks == "tokens":
            return [None] * len(texts)
        if blocks != "sentences":
            raise InputError(f"blocks = {blocks!r}: give 'tokens', 'sentences', or lists of (start, stop)")
        for number, text in enumerate(texts):
            if text.sentences is None:
                raise InputError(
                    f"blocks='sentences': prompt {number} is no text with a fast tokenizer: give (start, stop)"
                )
        lists = [[s for s in text.sentences if s[1] <= at] for text, at in zip(texts, places, strict=True)]
    else:
        try:
            nested = [[len(tuple(part)) for part in entry] for entry in blocks if as_whole(entry[0]) is None]
        except (TypeError, IndexError, KeyError):
            raise InputError(
                f"blocks = {blocks!r:.80}: give (start, stop) pairs, for all prompts or for each"
            ) from None
        lists = list(blocks) if nested else [blocks] * len(texts)
        if len(lists) != len(texts):
            raise InputError(f"blocks: {len(lists)} lists for {len(texts)} prompts, give one for each")
    result = []
    for number, (spans, place) in enumerate(zip(lists, places, strict=True)):
        try:
            check_blocks(spans, place)
        except InputError as error:
            raise InputError(f"prompt {number}, whose query is at {place}: {error}") from None
        result.append([(int(a), int(b)) for a, b in spans])
    return result


def seen_blocks(spans: Sequence[tuple[int, int]], moved: Tensor) -> list[tuple[int, int]]:
    """Return the blocks that the query sees whole, counted among the moved keys."""
    rank = {place: number for number, place in enumerate(moved.tolist())}
    return [(rank[start], rank[stop - 1] + 1) for start, stop in spans if start in rank and stop - 1 in rank]


def read_answers(answers: Sequence[str | int] | None, tokenizer: Any, count: int) -> list[int] | None:
    """Return the token ids that should follow, or raise an InputError."""
    if answers is None:
        return None
    if isinstance(answers, str) or not isinstance(answers, (Sequence, Tensor)) or len(answers) != count:
        raise InputError(f"answers = {answers!r:.80}: give one for each of the {count} prompts")
    wanted = []
    for number, answer in enumerate(answers.tolist() if isinstance(answers, Tensor) else answers):
        if isinstance(answer, str) and tokenizer is not None:
            ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
            if not ids:
                raise InputError(f"answer {number} is empty: give the token that should follow")
            answer = ids[0]
        if as_whole(answer) is None:
            raise InputError(f"answer {number} = {answer!r}: give a token id, or a string and tokenizer")
        wanted.append(as_whole(answer))
    return wanted


def check_number(name: str, value: float, low: float, high: float) -> None:
    """Raise an InputError unless ``value`` is a number strictly between ``low`` and ``high``."""
    found = as_real(value)
    if found is None or not low < found < high:
        raise InputError(f"{name} = {value!r}: give a number between {low:g} and {high:g}")
