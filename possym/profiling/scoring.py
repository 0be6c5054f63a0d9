"""Runs prompts through a model, those alike together, and collects the scores of every layer into tables.

Nothing waits for the device while a layer is scored: values stay there until the tables are made.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from possym.capture import Capture, LayerInputs
from possym.errors import InputError
from possym.profiling.prompts import Prompt
from possym.scores import head_scores, plane_scores, purity, scores_and_exclusion

HEAD_VALUES = ("positional", "symbolic", "entropy", "variance", "bound", "moved")
FREQUENCY_VALUES = ("positional", "symbolic", "entropy", "logit_norm", "angle")
TOKENS_AT_ONCE = 4096
MATRIX_ENTRIES = 2**27  # of relocated logits at once on a GPU, those of one head at least


class ScoreCollector:
    """Collects the scores of layers as they come by."""

    def __init__(self, temperature: float, per_frequency: bool):
        self.temperature = temperature
        self.per_frequency = per_frequency
        self.heads: list[ScoreBatch] = []
        self.frequencies: list[ScoreBatch] = []

    def add(self, inputs: LayerInputs, prompts: list[int], spans: tuple | None) -> None:
        """Score layers on a batch of prompts. Nothing waits for the device: the values stay there."""
        count, shape, threads = len(inputs.moved), inputs.query.shape[:2], torch.get_num_threads()
        seen = None if spans is None else visible_blocks(spans, inputs.moved)
        enough = count >= 2 and (seen is None or len(seen) >= 2)
        # Entries of matrices and of vectors at once: what a GPU has memory for, what a CPU's cache holds.
        whole, vectors = (MATRIX_ENTRIES, 2**23) if inputs.keys.is_cuda else (2**19 * threads, 2**13 * threads)
        values = inputs.query.new_full((*shape, len(HEAD_VALUES)), torch.nan)
        values[..., -1] = count
        if enough:
            extra = inputs.extra_logits()
            products = seen is None and inputs.replayed is None
            numbers = 2 * inputs.keys.shape[-1] if products else count  # that a key of a head takes
            for rows, heads in chunks(shape, whole // (count * numbers)):
                if products:
                    factors = *inputs.factors(heads, rows), extra[rows, heads]
                    scores, found = head_scores(*factors, self.temperature, inputs.capped, whole)
                else:  # blocks need their matrices, and so does a layer that has no factors
                    relocated = inputs.relocated_logits(heads, rows)
                    scores, found = scores_and_exclusion(relocated, extra[rows, heads], seen, self.temperature)
                    del relocated
                values[rows, heads, :-1] = torch.stack([*scores, found.variance, found.bound], -1)
        self.heads.append(ScoreBatch(values, prompts, inputs.layers, enough))
        if not self.per_frequency or not len(inputs.angles):
            return
        values = inputs.query.new_full((*shape, len(inputs.angles), len(FREQUENCY_VALUES)), torch.nan)
        values[..., -1] = inputs.angles
        if enough:
            own = inputs.own_logits(per_plane=slice(None))
            # Blocks need matrices of logits, single tokens vectors alone.
            for chunk in chunks(values.shape[:-1], vectors // count if seen is None else whole // count**2):
                values[*chunk, :-1] = self.plane_values(inputs, *chunk, own[chunk], seen)
        self.frequencies.append(ScoreBatch(values, prompts, inputs.layers, enough))

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
        heads = tidy_table(self.heads, HEAD_VALUES, order)
        heads["moved"] = heads["moved"].astype("int64")
        order.append("frequency_id")
        columns = [*order, "angle", "logit_norm", "positional", "symbolic", "entropy"]
        if not self.frequencies:
            return heads, pd.DataFrame(
                {name: pd.Series(dtype="int64" if name in order else "float64") for name in columns}
            )
        frequencies = tidy_table(self.frequencies, FREQUENCY_VALUES, order)
        frequencies["frequency_id"] += 1
        return heads, frequencies[columns]


@dataclass
class ScoreBatch:
    """Values (layers · prompts, H, …, names); ``known`` says whether there was enough to score."""

    values: Tensor
    prompts: list[int]
    layers: list[int]
    known: bool


def chunks(shape: Sequence[int], size: int) -> Iterator[tuple[slice, ...]]:
    """Return slices that cut ``shape`` into chunks of ``size`` entries at most, or one, that are wide in the last.

    >>> list(chunks((2, 3), 2))[:2]
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 4, None))]
    """
    cuts = []
    for count in reversed(shape):
        step = max(1, min(count, size))
        cuts.insert(0, [slice(start, start + step) for start in range(0, count, step)])
        size //= step
    return itertools.product(*cuts)


def tidy_table(parts: list[ScoreBatch], names: Sequence[str], order: Sequence[str]) -> pd.DataFrame:
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


def purity_of(positional: pd.Series, symbolic: pd.Series, gamma: float) -> Any:
    """Return `possym.scores.purity` of two columns; NaN counts as neither."""
    columns = (torch.tensor(column.to_numpy()) for column in (positional, symbolic))
    return purity(*columns, gamma).numpy()


def score_prompts(
    capture: Capture, texts: list[Prompt], places: list[int], spans: list, rows: ScoreCollector, bar: tqdm | None = None
) -> list[int | None]:
    """Score every prompt into ``rows``, those alike together, and return the token that each one's query predicts."""
    groups: dict[tuple, list[int]] = {}
    for number, (text, place, span) in enumerate(zip(texts, places, spans, strict=True)):
        groups.setdefault((len(text.ids), place, None if span is None else tuple(span)), []).append(number)
    predicted = [None] * len(texts)
    for (length, place, span), members in groups.items():
        at_once = capture.prompts_at_once or max(1, TOKENS_AT_ONCE // length)
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


def visible_blocks(spans: Sequence[tuple[int, int]], moved: Tensor) -> list[tuple[int, int]]:
    """Return the blocks that the query sees whole, counted among the moved keys."""
    rank = {place: number for number, place in enumerate(moved.tolist())}
    return [(rank[start], rank[stop - 1] + 1) for start, stop in spans if start in rank and stop - 1 in rank]
