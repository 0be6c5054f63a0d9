"""Runs prompts through a model, those alike together, and collects the scores of every layer into tables.

- `plan_batches` says which prompts run together; a profile of the same prompts always has the same batches.
- `score_prompts` runs batches one after the other, writes what is done where a folder is given, and goes on from there;
  `Progress` shows how far it is.
- `ScoreCollector` takes the scores of the layers of one batch. Nothing waits for the device while a layer is scored:
  values stay there until the batch's tables are made.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from possym.capture import Capture, LayerInputs
from possym.capture.layer_inputs import LayerScores
from possym.errors import InputError
from possym.profiling.prompts import Prompt, Span
from possym.profiling.shards import Shards
from possym.results.progress import tqdm
from possym.scores import purity

HEAD_VALUES = (*LayerScores._fields, "moved")
ERRORS = ("positional_error", "symbolic_error")
FREQUENCY_VALUES = ("positional", "symbolic", "entropy", "logit_norm", "angle")
ORDER = ("prompt", "query", "layer", "pass", "head")
FREQUENCY_ORDER = (*ORDER, "frequency_id")
FREQUENCY_COLUMNS = (*FREQUENCY_ORDER, "angle", "logit_norm", "positional", "symbolic", "entropy")
TOKENS_AT_ONCE = 4096
PATIENCE = 3.0  # seconds until progress within a prompt is shown


@dataclass(frozen=True)
class Batch:
    """Prompts that run together, by number: of one length, with the same queries, blocks and held tokens."""

    prompts: tuple[int, ...]
    queries: tuple[int, ...]
    blocks: tuple[Span, ...] | None
    held: tuple[int, ...]


@dataclass(frozen=True)
class Scoring:
    """How layers are scored: τ, its unit, planes too or not, which layers, by how many swaps (None for all of both).

    With a ``gamma``, the purity of every head is told too.
    """

    temperature: float
    relative: bool
    per_frequency: bool = False
    layers: Sequence[int] | None = None
    swaps: int | None = None
    gamma: float | None = None

    @property
    def head_values(self) -> tuple[str, ...]:
        """What is known of a head: the standard errors of its scores too, where these are estimates."""
        return HEAD_VALUES if self.swaps is None else (*ERRORS, *HEAD_VALUES)


class Tables(NamedTuple):
    """One row per prompt, query, layer, pass and head; the same and frequency; one row per prompt and query."""

    heads: pd.DataFrame
    frequencies: pd.DataFrame
    predicted: pd.DataFrame


def plan_batches(
    prompts: list[Prompt],
    queries: list[list[int]],
    blocks: list[list[Span] | None],
    holds: list[tuple[int, ...]],
    at_once: int | None = None,
) -> list[Batch]:
    """Return which prompts run together, ``at_once`` at most, else `TOKENS_AT_ONCE` tokens at most, or one prompt.

    >>> prompts = [Prompt([1, 2, 3]), Prompt([1, 2, 3, 4]), Prompt([4, 5, 6])]
    >>> [batch.prompts for batch in plan_batches(prompts, [[2], [3], [2]], [None] * 3, [()] * 3)]
    [(0, 2), (1,)]
    """
    groups: dict[tuple, list[int]] = {}
    for number, (prompt, at, spans, held) in enumerate(zip(prompts, queries, blocks, holds, strict=True)):
        alike = len(prompt.ids), tuple(at), None if spans is None else tuple(spans), held
        groups.setdefault(alike, []).append(number)
    found = []
    for (length, *alike), members in groups.items():
        step = at_once or max(1, TOKENS_AT_ONCE // length)
        found += [Batch(tuple(members[k : k + step]), *alike) for k in range(0, len(members), step)]
    return found


def score_prompts(
    capture: Capture,
    prompts: list[Prompt],
    queries: list[list[int]],
    blocks: list[list[Span] | None],
    holds: list[tuple[int, ...]],
    how: Scoring,
    shards: Shards | None = None,
    progress: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
    also: Callable[[LayerInputs, Batch], object] = lambda inputs, batch: None,
) -> Tables:
    """Score prompts, those alike together, and return tables in order of prompt, query, layer, head and frequency.

    ``meanwhile`` is called whenever a device is busy with all of a batch, ``also`` with whatever is scored.
    Whatever stops it on the way is told how many prompts were scored; with ``shards`` they are kept.
    """
    batches = plan_batches(prompts, queries, blocks, holds, capture.prompts_at_once)
    parts = {} if shards is None else {number: Tables(*tables) for number, tables in shards.read().items()}
    total = sum(len(batch.prompts) for batch in batches)
    done = sum(len(batches[number].prompts) for number in parts)
    with Progress(total, done, len(capture.layers if how.layers is None else how.layers), progress) as shown:
        try:
            for number, batch in enumerate(batches):
                if number in parts:
                    continue
                parts[number] = score_batch(capture, batch, prompts, how, shown, meanwhile, also)
                done += len(batch.prompts)
                shown.prompts(len(batch.prompts))
                if shards is not None:
                    shards.add(number, parts[number])
        except BaseException as error:
            where = "give checkpoint='folder' to keep them" if shards is None else f"{shards.folder} keeps them"
            error.add_note(f"{done} of {total} prompts were scored before this; {where}")
            raise
        finally:
            if shards is not None:
                shards.write()
    if len(parts) == 1:  # in order already, and without a column that says nothing
        return next(iter(parts.values()))
    tables = (joined([part[k] for _, part in sorted(parts.items())]) for k in range(3))
    return Tables(*(without_one_pass(in_order(table)) for table in tables))


class Progress:
    """A bar of prompts; of layers where one prompt takes longer than `PATIENCE`.

    Args:
        total, done: prompts in all, and of these scored before.
        layers: how many a prompt takes.
        progress: whether anything is shown.
    """

    def __init__(self, total: int, done: int, layers: int, progress: bool):
        self.layers = layers
        self.alone = total == 1
        count = dict(total=layers, unit="layer", delay=PATIENCE) if self.alone else dict(total=total, unit="prompt")
        self.bar = tqdm(initial=0 if self.alone else done, disable=not progress or done == total == 1, **count)
        self.last = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()

    def seen(self, inputs: LayerInputs, is_last: bool) -> None:
        """Note layers that were scored on a batch; ``is_last`` says that no query of theirs is left."""
        if self.alone and is_last:
            self.bar.update(len(inputs.layers))
        elif not self.alone and time.monotonic() - self.last > PATIENCE:
            self.bar.set_postfix_str(f"layer {inputs.layers[-1]} scored")
            self.last = time.monotonic()

    def prompts(self, count: int) -> None:
        """Note prompts that were scored."""
        self.last = time.monotonic()
        if not self.alone:
            self.bar.set_postfix_str("", refresh=False)
            self.bar.update(count)


def score_batch(
    capture: Capture,
    batch: Batch,
    prompts: list[Prompt],
    how: Scoring,
    shown: Progress,
    meanwhile: Callable[[], object],
    also: Callable[[LayerInputs, Batch], object],
) -> Tables:
    """Score one batch in one forward pass."""
    collector = ScoreCollector(how)
    predictions: list[Callable[[], pd.DataFrame]] = []

    def visit(inputs: LayerInputs) -> None:
        collector.add(inputs.hold(batch.held), batch)
        also(inputs, batch)
        shown.seen(inputs, inputs.query_position == batch.queries[-1])

    def wait(logits: Tensor | None) -> None:
        predictions.append(begin_predictions(logits, batch))
        meanwhile()
        collector.rows()

    # An array is made sooner than a tensor.
    tokens = torch.from_numpy(np.array([prompts[number].ids for number in batch.prompts], np.int64))
    tokens = tokens.to(capture.device, non_blocking=True)
    capture.read(tokens, visit, batch.queries, how.layers, together=True, meanwhile=wait)
    return Tables(*collector.tables(), predictions[0]())


def begin_predictions(logits: Tensor | None, batch: Batch) -> Callable[[], pd.DataFrame]:
    """Let a device begin to find what each query predicts, and return what waits for it and gives a table of it.

    Missing where logits are not numbers, no rows where the model has no head.
    """
    prompt, query = (np.array(part, np.int64) for part in (batch.prompts, batch.queries if logits is not None else ()))
    columns = dict(prompt=prompt.repeat(len(query)), query=np.tile(query, len(prompt)))
    if logits is None:
        return lambda: pd.DataFrame(columns | dict(predicted=missing_integers(0)))
    begun = torch.where(logits.isnan().any(-1), -1, logits.argmax(-1)).flatten()

    def finish() -> pd.DataFrame:
        found = begun.cpu().numpy()
        return pd.DataFrame(columns | dict(predicted=pd.arrays.IntegerArray(found, found < 0)))

    return finish


def missing_integers(count: int) -> pd.arrays.IntegerArray:
    """Return so many whole numbers that are missing.

    >>> missing_integers(2).isna().tolist()
    [True, True]
    """
    return pd.arrays.IntegerArray(np.zeros(count, np.int64), np.ones(count, bool))


class Rows(NamedTuple):
    """Whose some values are, in order: prompt, query, … (C, R), ``known`` and ``moved``; and where each value was."""

    numbers: np.ndarray
    known: np.ndarray
    moved: np.ndarray
    rank: np.ndarray


class ScoreCollector:
    """Collects the scores of one batch's layers as they come by."""

    def __init__(self, how: Scoring):
        self.how = how
        self.heads: list[ScoreBatch] = []
        self.frequencies: list[ScoreBatch] = []
        self.found: tuple[Rows, Rows | None] | None = None

    def add(self, inputs: LayerInputs, batch: Batch) -> None:
        """Score layers on a batch of prompts, all with NaN where there is nothing to swap."""
        blocks = None if batch.blocks is None else visible_blocks(batch.blocks, inputs)
        known = len(inputs.moved if blocks is None else blocks) >= 2
        how, shape = (blocks, self.how.temperature, self.how.relative), inputs.query.shape[:2]
        where = inputs.query_position, inputs.layers, inputs.pass_index
        if known:
            found, errors = inputs.scores(*how, self.how.swaps)
            values = torch.stack([*(() if errors is None else errors), *found], -1)
        else:
            values = inputs.query.new_full((*shape, len(self.how.head_values) - 1), torch.nan)
        self.heads.append(ScoreBatch(values, batch.prompts, *where, known, len(inputs.moved)))
        if not self.how.per_frequency or not inputs.planes:
            return
        values = inputs.query.new_full((*shape, inputs.planes, len(FREQUENCY_VALUES)), torch.nan)
        values[..., -1] = inputs.angles
        if known:
            values[..., :-1] = inputs.plane_scores(*how)
        self.frequencies.append(ScoreBatch(values, batch.prompts, *where, known, len(inputs.moved)))

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return both tables, in order of prompt, query, layer, head and frequency.

        Raises:
            InputError: logits that are not finite.
        """
        here, there = self.rows()
        heads = tidy_columns(self.heads, here, self.how.head_values[:-1], ORDER)
        # Before tables are made, since to drop or insert a column takes as long as that.
        loops = bool(heads["pass"].any())
        if not loops:
            del heads["pass"]
        if self.how.gamma is not None:
            heads = with_purity(heads, self.how.gamma)
        if there is None:
            return pd.DataFrame(heads), no_frequencies(loops).copy()
        found = tidy_columns(self.frequencies, there, FREQUENCY_VALUES, FREQUENCY_ORDER)
        found["frequency_id"] += 1
        frequencies = {name: found[name] for name in FREQUENCY_COLUMNS if loops or name != "pass"}
        return pd.DataFrame(heads), pd.DataFrame(frequencies)

    def rows(self) -> tuple[Rows, Rows | None]:
        """Return whose the values of both tables are, found once."""
        if self.found is None:
            self.found = rows_of(self.heads), rows_of(self.frequencies) if self.frequencies else None
        return self.found


@functools.cache
def no_frequencies(loops: bool) -> pd.DataFrame:
    """Return a table of frequencies without rows, to be copied: to make one takes ten times as long."""
    names = [name for name in FREQUENCY_COLUMNS if loops or name != "pass"]
    return pd.DataFrame({name: np.empty(0, np.int64 if name in FREQUENCY_ORDER else float) for name in names})


@dataclass
class ScoreBatch:
    """Values (layers · prompts, H, …, names) of one query that saw some moved keys; ``known`` says if enough."""

    values: Tensor
    prompts: Sequence[int]
    query: int
    layers: list[int]
    pass_index: int
    known: bool
    moved: int


def rows_of(parts: list[ScoreBatch]) -> Rows:
    """Return whose the values of some batches are, for which no device is waited for."""
    numbers = []
    for part in parts:
        shape = len(part.layers), len(part.prompts), *part.values.shape[1:-1]
        layer, prompt, *rest = np.indices(shape).reshape(len(shape), -1)
        query, which = (np.full_like(layer, number) for number in (part.query, part.pass_index))
        numbers.append(np.stack([np.array(part.prompts)[prompt], query, np.array(part.layers)[layer], which, *rest]))
    counts = [rows.shape[1] for rows in numbers]
    known, moved = (np.repeat([getattr(part, name) for part in parts], counts) for name in ("known", "moved"))
    whole = np.concatenate(numbers, 1)
    rank = np.lexsort(whole[::-1])
    return Rows(whole[:, rank], known[rank], moved[rank], rank)


def tidy_columns(
    parts: list[ScoreBatch], rows: Rows, names: Sequence[str], order: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return values as the columns of a tidy table, copied at once and sorted, then the number of moved keys.

    Raises:
        InputError: values that are not finite.
    """
    device = parts[0].values.device
    found = torch.cat([part.values.flatten(end_dim=-2).to(device) for part in parts]).cpu().double().numpy()[rows.rank]
    wrong = rows.known & ~np.isfinite(found).all(1)
    if wrong.any():
        raise InputError(
            f"prompt {rows.numbers[0, wrong].min()}, layer {rows.numbers[2, wrong].min()}: logits are not finite. The "
            "model overflows on this prompt: check its weights, or load it in float32 or bfloat16"
        )
    return dict(zip([*order, *names, "moved"], [*rows.numbers, *found.T, rows.moved], strict=True))


def with_purity(columns: dict[str, np.ndarray], gamma: float) -> dict[str, np.ndarray]:
    """Return the columns of a table of heads with ``purity`` where it stands, behind the entropy.

    >>> list(with_purity(dict.fromkeys(["positional", "symbolic", "entropy", "bound"], np.ones(1)), 0.1))
    ['positional', 'symbolic', 'entropy', 'purity', 'bound']
    """
    found: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        found[name] = column
        if name == "entropy":
            found["purity"] = purity_of(columns["positional"], columns["symbolic"], gamma)
    return found


def joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return one table of several batches' rows, with a column ``pass`` if one of them has it."""
    if any("pass" in table for table in tables):
        tables = [table if "pass" in table else table.copy(deep=False) for table in tables]
        for table in tables:
            if "pass" not in table:
                table.insert(3, "pass", 0)
    return pd.concat(tables, ignore_index=True)


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in order of what it has of prompt, query, layer, head and frequency."""
    columns = [name for name in (*ORDER, "frequency_id") if name in table]
    return table.sort_values(columns, kind="stable", ignore_index=True)


def without_one_pass(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the column ``pass`` unless layers ran several times in a forward pass."""
    return table.drop(columns="pass") if "pass" in table and not table["pass"].any() else table


def visible_blocks(blocks: Sequence[Span], inputs: LayerInputs) -> list[Span]:
    """Return the blocks that the query sees whole, counted among the moved keys; held tokens in them stay behind."""
    rank = {position: number for number, position in enumerate(inputs.moved.tolist())}
    held = set() if inputs.held is None else set(inputs.held.tolist())
    found = []
    for start, stop in blocks:
        moved = [rank[key] for key in range(start, stop) if key in rank]
        if moved and all(key in rank or key in held for key in range(start, stop)):
            found.append((moved[0], moved[-1] + 1))
    return found


def purity_of(positional: pd.Series | np.ndarray, symbolic: pd.Series | np.ndarray, gamma: float) -> Any:
    """Return `possym.scores.purity` of two columns; NaN counts as neither."""
    columns = (torch.from_numpy(np.array(column, np.float64)) for column in (positional, symbolic))
    return purity(*columns, gamma).numpy()  # type: ignore[call-arg, arg-type]
