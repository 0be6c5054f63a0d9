"""The profile of a model: `profile` makes it, `Profile` holds its tables, prints, draws, saves and joins them."""

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from torch import Tensor, nn

from possym import __version__
from possym.capture import Capture
from possym.errors import InputError, require_type, to_int
from possym.profiling.identity import begin_identity, hash_of, marked_alike, tokenizer_identity
from possym.profiling.prompts import (
    Prompt,
    check_holds,
    check_number,
    check_prompts,
    read_answers,
    read_blocks,
    read_holds,
    read_layers,
    read_prompts,
    read_queries,
)
from possym.profiling.saved import save_tables, saved_tables
from possym.profiling.scoring import (
    ERRORS,
    HEAD_VALUES,
    Scoring,
    missing_integers,
    purity_of,
    score_prompts,
)
from possym.profiling.shards import Shards
from possym.scores import DEFAULT_RELATIVE, DEFAULT_TEMPERATURE

TABLES = ("heads", "frequencies", "prompts", "inputs", "coverage")
MEANS = tuple(name for name in HEAD_VALUES if name != "moved")
NOT_IDENTITY = ("model", "revision", "device")  # one model may lie in two places, and be read on two devices


@dataclass
class Profile:
    """Scores of a model's heads on a set of prompts.

    Attributes:
        heads: one row per prompt, query, layer and head: positional, symbolic, entropy (nats), purity (1 positional, −1
            symbolic, 0 neither), variance of the logits and its exclusion bound, effective_swaps (how many swaps the
            scores rest on), attention_moved, attention_first, attention_self (shares of the query's attention on the
            keys that move, the first token, its own key), distance (tokens back that it attends on average), moved
            (number of keys that the query sees before itself, held ones left out). NaN where the query sees fewer than
            two keys or blocks to swap. Scores that are estimates, see ``swaps``, come with their standard errors,
            positional_error and symbolic_error. Models that run a layer several times in a forward pass have a column
            ``pass`` (from 0), here and in frequencies.
        frequencies: one row per prompt, query, layer, head and frequency ID (from 1, fastest first): angle (radians a
            position), logit_norm, positional, symbolic, entropy. Empty unless asked for.
        prompts: one row per prompt and query: tokens, query (its position), blocks (number), predicted (token id),
            correct.
        inputs: one row per prompt: token_ids, spans (its blocks), held (positions that stay in place).
        coverage: one row per layer of the model, see `possym.capture.Capture`.
        settings: how and of what the profile was made: the model's name, class, hashes of its config and weights,
            dtype, revision and device, hashes of the tokenizer and its chat template, temperature, relative, blocks,
            hold, layers, gamma, per_frequency, only_correct, swaps where they were drawn, and the version of possym.
    """

    heads: pd.DataFrame
    frequencies: pd.DataFrame
    prompts: pd.DataFrame
    coverage: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)
    inputs: pd.DataFrame = field(default_factory=lambda: inputs_table([], [], []))

    def summary(self, by: str = "head") -> pd.DataFrame:
        """Return mean and standard deviation over prompts and queries, one row per layer (and pass) and head.

        ``purity`` is the purity of the mean scores; standard deviations divide by n − 1 and are NaN for one prompt.

        Args:
            by: ``"head"``, or ``"key_head"`` for the means over the query heads that share a key head.

        Raises:
            InputError: another ``by``.
        """
        return summarize(self.rows_by(by), by, self.settings["gamma"])

    def rows_by(self, by: str) -> pd.DataFrame:
        """Return `heads`, or with ``"key_head"`` the means over the query heads that share a key head.

        Raises:
            InputError: another ``by``.
        """
        if by not in ("head", "key_head"):
            raise InputError(f"by = {by!r}: give 'head' or 'key_head'")
        if by == "head":
            return self.heads
        sizes = self.coverage.set_index("layer")
        shared = self.heads.layer.map(sizes["heads"] // sizes["key_heads"]).astype("int64")
        table = self.heads.assign(key_head=self.heads["head"] // shared)
        keys = [name for name in ("prompt", "query", "layer", "pass", "key_head") if name in table]
        return table.groupby(keys, as_index=False)[list(MEANS)].mean()

    def correlation(self) -> float:
        """Return Pearson's r between the mean positional and symbolic scores over heads, NaN for fewer than two."""
        table = self.summary()
        return float(table.positional.corr(table.symbolic)) if len(table) > 1 else float("nan")

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
            InputError: frequencies were not asked for, no such head, or one that has none.
        """
        if not self.settings.get("per_frequency", True):
            raise InputError("this profile has no frequencies: make it with per_frequency=True")
        rows = self.frequencies[(self.frequencies.layer == layer) & (self.frequencies["head"] == head)]
        if rows.empty:
            there = self.heads[(self.heads.layer == layer) & (self.heads["head"] == head)]
            method = self.coverage.set_index("layer").method.get(layer)
            if len(there):
                why = "turns no pairs of dimensions (method 'replay')" if method == "replay" else "does not rotate"
                raise InputError(f"layer {layer!r} {why}, so its heads have no frequencies")
            layers = sorted(self.heads.layer.unique().tolist())
            raise InputError(
                f"layer {layer!r}, head {head!r}: layers of this profile are {layers}, heads count from 0 to "
                f"{self.heads['head'].max()}"
            )
        return rows

    def save(self, path: str | os.PathLike) -> Path:
        """Write the profile as a folder of Parquet tables and ``profile.json``, whole or not at all.

        An earlier profile at ``path`` is replaced; anything else there is left alone.

        Raises:
            InputError: ``path`` holds something that is not a profile.
            ResultsError: it cannot be written, as for want of room.
        """
        tables = {name: getattr(self, name) for name in TABLES}
        return save_tables(path, "profile", tables, {"format": 2, "settings": self.settings})

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read a profile that `save` wrote.

        Profiles of possym 0.1 lack some columns, which are NaN, and have empty `inputs`.

        Raises:
            ResultsError: no profile there, or one that is incomplete, altered, or of another format.
        """
        with saved_tables(path, "profile", (1, 2)) as (folder, manifest):
            old = manifest["format"] == 1
            tables = {
                name: pd.read_parquet(folder / f"{name}.parquet") for name in TABLES if not (old and name == "inputs")
            }
            found = cls(**tables, settings=manifest["settings"])
            return found.from_format_1() if old else found.with_lists()

    def from_format_1(self) -> Self:
        """Return what possym 0.1 saved with today's columns, NaN where nothing was measured."""
        prompts = self.prompts.rename(columns={"query_place": "query"})
        heads, frequencies = (
            table.merge(prompts[["prompt", "query"]], on="prompt") for table in (self.heads, self.frequencies)
        )
        heads = heads.reindex(columns=[name for name in head_columns() if name not in ("pass", *ERRORS)])
        frequencies = frequencies[["prompt", "query", *(c for c in frequencies if c not in ("prompt", "query"))]]
        settings = {"relative": False, "hold": None, "layers": None} | self.settings
        return type(self)(heads, frequencies, prompts, self.coverage, settings)

    def with_lists(self) -> Self:
        """Return the profile with lists where Parquet gives arrays."""
        for name in ("token_ids", "spans", "held"):
            self.inputs[name] = [
                None if entry is None else [as_list(part) for part in entry] for entry in self.inputs[name]
            ]
        return self

    @classmethod
    def concat(cls, profiles: Self | Sequence[Self]) -> Self:
        """Return one profile of the prompts of several, numbered on, of one model and with one set of settings.

        Raises:
            InputError: nothing given, or profiles that differ in anything but their prompts, the model's name and
                place, and the device.
        """
        profiles = [profiles] if isinstance(profiles, cls) else list(profiles)  # type: ignore[arg-type]
        if not profiles or not all(isinstance(p, cls) for p in profiles):
            raise InputError("profiles: give a list of one or more Profile objects")
        first = profiles[0]
        for other in profiles[1:]:
            check_alike(first, other)
        names = ("heads", "frequencies", "prompts", "inputs")
        tables: dict[str, list[pd.DataFrame]] = {name: [] for name in names}
        shift = 0
        for one in profiles:
            for name, parts in tables.items():
                table = getattr(one, name)
                parts.append(table.assign(prompt=table.prompt + shift))
            shift += int(one.prompts.prompt.max()) + 1
        joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
        devices = dict.fromkeys(one.settings["device"] for one in profiles) if len(profiles) > 1 else {}
        settings = first.settings | ({"device": ", ".join(devices)} if devices else {})
        return cls(**joined, coverage=first.coverage, settings=settings)

    def __repr__(self) -> str:
        """Return a few lines that say what was profiled and what came out."""
        table, settings = self.summary(), self.settings
        counts = table.purity.value_counts()
        tokens, correct = self.prompts.tokens, self.prompts.correct
        length = f"{tokens.min()}" if tokens.min() == tokens.max() else f"{tokens.min()} to {tokens.max()}"
        answered = "" if correct.isna().all() else f", {int(correct.sum())} answered correctly"
        prompts, queries = self.prompts.prompt.nunique(), len(self.prompts)
        asked = f", {queries} queries" if queries > prompts else ""
        held = f", held: {settings['hold']}" if settings["hold"] is not None else ""
        unit = "relative " if settings["relative"] else ""
        r = self.correlation()
        relation = "" if np.isnan(r) else f"; positional against symbolic: r = {r:.2f}"
        return (
            f"Profile of {settings['model']}: {counted(prompts, 'prompt')} of {length} tokens{asked}{answered}\n"
            f"  {counted(len(table), 'head')} in {counted(table.layer.nunique(), 'layer')}, "
            f"{int(self.coverage.rotates.sum())} of {counted(len(self.coverage), 'layer')} "
            f"{'rotates' if len(self.coverage) == 1 else 'rotate'}; blocks: {settings['blocks']}{held}, {unit}"
            f"temperature {settings['temperature']:g}\n"
            f"  purely positional {counts.get(1, 0)}, purely symbolic {counts.get(-1, 0)}, neither {counts.get(0, 0)} "
            f"(γ = {settings['gamma']:g}){relation}"
        )


def profile(
    model: nn.Module,
    prompts: Any,
    *,
    tokenizer: Any = None,
    blocks: Any = "tokens",
    hold: Any = None,
    query: Any = -1,
    layers: Sequence[int] | None = None,
    temperature: float = DEFAULT_TEMPERATURE,
    relative: bool = DEFAULT_RELATIVE,
    per_frequency: bool = False,
    answers: Sequence[str | int] | None = None,
    only_correct: bool = False,
    gamma: float = 0.1,
    checkpoint: str | os.PathLike | None = None,
    swaps: int | None = None,
    progress: bool = True,
) -> Profile:
    """Score every head of a language model on a set of prompts.

    Keys that the mask hides from the query (after it, or outside a sliding window) take no part. The model is left
    unchanged, including its attention implementation, hooks and training mode.

    Args:
        model: a causal transformers model with rotary position embedding. A model too large for one GPU may be spread
            over several, and over CPU memory and disk, by transformers' ``device_map``.
        prompts: strings, chats (lists of ``{"role": …, "content": …}``) or token ids (lists, arrays or tensors), in a
            list or whatever yields them (a column of a table, a generator); a tensor (n, T); a tokenizer's output
            (padding is taken off by its mask). One alone need not be in a list.
        tokenizer: needed for strings and chats.
        blocks: the units that are swapped: ``"tokens"``, ``"sentences"`` (strings and chats only), a list of (start,
            stop) for all prompts, or such a list for each prompt. Blocks end before the query.
        hold: tokens that stay in place, attended but never swapped: ``"first"`` for the first token, on which many
            models park unneeded attention; a position; or a list of positions and (start, stop) spans. Negative ones
            count from the end. Held tokens inside a block stay behind when it moves.
        query: position of the query token; ``"all"``; a list of positions for a single prompt; or for several prompts a
            list with an entry for each, a position or a list of positions. Negative ones count from the end. All
            queries of a prompt share one forward pass.
        layers: numbers of the layers to score; None for all.
        temperature: τ of the weights of swaps, positive.
        relative: weigh swaps by ratios of their differences in attention, so that sinks do not change the scores; False
            is the papers' absolute τ (2605.31558 has ``temperature=1e-4``).
        per_frequency: score every RoPE plane of every head too.
        answers: for each prompt, the token that should follow the query: an id, or a string whose first token counts.
        only_correct: leave out prompts that the model answers wrongly; needs ``answers``.
        gamma: tolerance of purity, see `possym.scores.purity`.
        checkpoint: a folder that keeps finished parts: after an interruption the same call resumes from there and gives
            the same profile. Delete it when it is no longer needed.
        swaps: None, the default, for all swaps, exactly. A number is how many swaps of tokens are drawn for each head,
            in proportion to their weights, where all of them take minutes (a prompt of 131,072 tokens on one card):
            both scores are then unbiased estimates, and ``heads`` has their standard errors, ``positional_error`` and
            ``symbolic_error``. Two calls draw the same ones.
        progress: show a progress bar.

    Returns:
        `Profile`.

    Raises:
        InputError: prompts, blocks, hold, query, layers or answers that do not fit, or a model that overflows on them.
        UnsupportedModelError: a model without rotary position embedding, not causal, or none at all.
        ResultsError: ``checkpoint`` cannot be written, or was begun with other arguments.

    Warns: UserWarning: prompts longer than the model's context, with two beginning-of-text tokens, or with possible
        padding.

    Source: 2511.11579, sections 3 and 4; 2605.31558, appendix D.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> found = profile(LlamaForCausalLM(config), [[3, 14, 15, 9, 2], [6, 5, 35]], progress=False)
    >>> found.heads.shape, found.summary(by="key_head")[["layer", "key_head"]].to_numpy().tolist()
    ((16, 16), [[0, 0], [0, 1], [1, 0], [1, 1]])
    """
    check_number("temperature", temperature, 0.0, float("inf"))
    check_number("gamma", gamma, 0.0, 0.5)
    flags = dict(relative=relative, per_frequency=per_frequency, only_correct=only_correct, progress=progress)
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise InputError(f"{name} = {flag!r}: give True or False")
    require_type(checkpoint, (str, os.PathLike, type(None)), "checkpoint")
    check_sampling(swaps, blocks, temperature, relative, per_frequency)
    texts = read_prompts(prompts, tokenizer)
    queries = read_queries(query, texts)
    spans = read_blocks(blocks, texts, queries)
    holds = read_holds(hold, texts)
    check_holds(holds, spans, queries, hold)
    wanted = read_answers(answers, tokenizer, len(texts))
    if only_correct and wanted is None:
        raise InputError("only_correct=True needs answers, one for each prompt")
    if wanted is not None and any(len(positions) > 1 for positions in queries):
        raise InputError("answers: give one query for each prompt, the one that they follow")
    capture = Capture(model)
    check_prompts(texts, model, tokenizer, capture.parts.modules)
    identity = functools.cache(lambda: begin_identity(model, capture.parts))
    # What has nothing to do with scores is made while a device is busy.
    whole_prompts = functools.cache(lambda: prompts_table(texts, queries, spans))
    whole_inputs = functools.cache(lambda: inputs_table([text.ids for text in texts], spans, holds))
    how = Scoring(
        float(temperature),
        relative,
        per_frequency,
        read_layers(layers, sorted(capture.layers)),
        swaps,
        float(gamma) if checkpoint is None else None,  # a folder may be gone on with at another
    )
    settings = dict(
        **tokenizer_identity(tokenizer),
        temperature=how.temperature,
        relative=relative,
        blocks=blocks if isinstance(blocks, str) else "spans",
        hold=hold if hold is None or isinstance(hold, str) else as_list(hold),
        layers=how.layers,
        gamma=float(gamma),
        per_frequency=per_frequency,
        only_correct=only_correct,
        **({} if swaps is None else {"swaps": swaps}),
        possym=__version__,
    )
    shards = None
    if checkpoint is not None:
        what = {
            key: value
            for key, value in (identity()() | settings).items()
            if key not in ("gamma", "only_correct", "device")
        }
        ids = [text.ids for text in texts]
        shards = Shards(Path(os.path.expanduser(checkpoint)), what | {"prompts": hash_of(ids, queries, spans, holds)})
    heads, frequencies, predicted = score_prompts(
        capture, texts, queries, spans, holds, how, shards, progress,
        lambda: (identity(), whole_prompts(), whole_inputs()),
    )  # fmt: skip
    if how.gamma is None:
        heads.insert(heads.columns.get_loc("entropy") + 1, "purity", purity_of(heads.positional, heads.symbolic, gamma))
    table, inputs = whole_prompts(), whole_inputs()
    if len(predicted):  # the same rows, in order
        table["predicted"] = predicted["predicted"]
    if wanted is not None:
        if predicted.empty:
            raise InputError(f"answers: {type(model).__name__} has no language head to answer with")
        table["correct"] = table.predicted == pd.array(wanted, dtype="Int64")
    if only_correct:
        table = table[table.correct.fillna(False)].reset_index(drop=True)
        if table.empty:
            raise InputError("only_correct=True: the model answers none of the prompts correctly")
        heads, frequencies, inputs = (
            x[x.prompt.isin(table.prompt)].reset_index(drop=True) for x in (heads, frequencies, inputs)
        )
    if swaps is not None:
        heads = heads[[name for name in head_columns() if name in heads]]
    return Profile(heads, frequencies, table, capture.coverage, identity()() | settings, inputs)


def check_sampling(swaps: Any, blocks: Any, temperature: float, relative: bool, per_frequency: bool) -> None:
    """Raise an InputError unless ``swaps`` is None, or a number of swaps that can be drawn."""
    if swaps is None:
        return
    if (to_int(swaps) or 0) < 2:
        raise InputError(f"swaps = {swaps!r}: give a whole number from 2, or None for all swaps")
    if not (isinstance(blocks, str) and blocks == "tokens") or per_frequency:
        raise InputError("swaps: single tokens of whole heads are drawn alone; leave blocks and per_frequency out")
    if relative and temperature != 1:
        raise InputError(
            f"swaps: relative weights are drawn at temperature 1 alone, given {temperature!r}; or give relative=False"
        )


def head_columns() -> list[str]:
    """Return the columns of `Profile.heads`."""
    first = ["prompt", "query", "layer", "pass", "head", "positional", "symbolic", "entropy", "purity"]
    return [*first, *ERRORS, *(name for name in HEAD_VALUES if name not in first)]


def inputs_table(ids: list[list[int]], spans: list, holds: list[tuple[int, ...]]) -> pd.DataFrame:
    """Return one row per prompt: what was handed to the model, and what of it moves."""
    listed = [None if each is None else [list(span) for span in each] for each in spans]
    columns: dict[str, list] = dict(token_ids=ids, spans=listed, held=[list(held) for held in holds])
    whole = dict(prompt=np.arange(len(ids), dtype=np.int64))
    return pd.DataFrame(whole | {name: as_objects(values) for name, values in columns.items()})


def as_objects(values: list) -> np.ndarray:
    """Return an array (n,) of what a list holds, lists too."""
    found = np.empty(len(values), dtype=object)
    for k, value in enumerate(values):
        found[k] = value
    return found


def prompts_table(texts: list[Prompt], queries: list[list[int]], spans: list) -> pd.DataFrame:
    """Return one row per prompt and query, in order, before anything is predicted."""
    numbers = np.array([(k, len(texts[k].ids), at) for k, some in enumerate(queries) for at in some], np.int64)
    blocks = [
        None if some is None else sum(stop <= at for _, stop in some)
        for some, positions in zip(spans, queries, strict=True)
        for at in positions
    ]
    unknown = pd.arrays.BooleanArray(np.zeros(len(numbers), bool), np.ones(len(numbers), bool))
    none = missing_integers(len(numbers))
    columns = dict(zip(("prompt", "tokens", "query"), numbers.T, strict=True)) | dict(
        blocks=pd.array(blocks, dtype="Int64") if any(some is not None for some in spans) else none,
        predicted=none,
        correct=unknown,
    )
    return pd.DataFrame(columns)


def summarize(table: pd.DataFrame, by: str, gamma: float) -> pd.DataFrame:
    """Return mean and spread over prompts and queries per layer and ``by``, see `Profile.summary`."""
    keys = [name for name in ("layer", "pass", by) if name in table]
    groups = table.groupby(keys)
    found = groups[list(MEANS)].mean()
    for column in ("positional", "symbolic", "entropy"):
        found[f"{column}_sd"] = groups[column].std()
    found["purity"] = purity_of(found.positional, found.symbolic, gamma)
    # A terminal shows the first and the last columns of a wide table: both scores are among them.
    scores = ["positional", "symbolic"]
    return found.reset_index()[[*keys, *(name for name in found if name not in scores), *scores]]


def check_alike(first: Profile, other: Profile) -> None:
    """Raise an InputError unless two profiles are of one model and were made alike."""
    ours, theirs = first.settings, other.settings
    if not {"weights", "config"} <= ours.keys() & theirs.keys():
        raise InputError(
            "profiles: one was saved by possym 0.1, or an early 0.2, which did not keep all that tells models apart: "
            "make it anew"
        )
    names = [key for key in {**ours, **theirs} if key not in NOT_IDENTITY and ours.get(key) != theirs.get(key)]
    if "weights" in names and not marked_alike(ours["weights"], theirs["weights"]):
        raise InputError(
            "profiles: one was saved by an early possym 0.2, whose hashes of weights do not compare with today's: make "
            "it anew"
        )
    of_model = [name for name in ("class", "config", "weights", "dtype") if name in names]
    if of_model:
        raise InputError(
            f"profiles are of different models ({', '.join(of_model)} differ: {ours['model']} and {theirs['model']}): "
            "concatenate those of one model"
        )
    if names:
        said = ", ".join(f"{name}: {ours.get(name)!r} and {theirs.get(name)!r}" for name in names)
        raise InputError(f"profiles were made with different settings ({said}): make them alike")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "head"), counted(2, "head")
    ('1 head', '2 heads')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def as_list(value: Any) -> Any:
    """Return whole numbers, and sequences of them, as JSON has them.

    >>> as_list((np.int64(3), range(2)))
    [3, [0, 1]]
    """
    if isinstance(value, Tensor):
        value = value.tolist()
    number = to_int(value)
    return number if number is not None else [as_list(part) for part in value]
