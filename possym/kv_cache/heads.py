"""Measurements of every key head for a plan: one pass per prompt, or one trial per head.

Query heads that share a key head are averaged: what one of them gives up, all do.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from possym.capture import Capture, LayerInputs
from possym.errors import InputError, UnsupportedModelError, require_type, to_float, to_int
from possym.kv_cache.applied import applied
from possym.kv_cache.plan import CachePlan
from possym.profiling import Profile
from possym.profiling.identity import model_identity
from possym.profiling.prompts import check_prompts, read_holds, read_prompts
from possym.profiling.scoring import Batch, Scoring, score_prompts
from possym.results.progress import tqdm
from possym.rope import rotate_by
from possym.scores import DEFAULT_RELATIVE, DEFAULT_TEMPERATURE

KEYS = ["layer", "key_head"]


@dataclass(frozen=True)
class Heads:
    """The measurements that rules use, one row per key head, and the measured model.

    Attributes:
        table: layer, key_head; positional, symbolic, entropy (nats); distance: how many tokens back the head attends
            on average, the first token left out; from `measure` also beyond: its attention on what a window would
            drop, and area: see `mean_key_area`; from `try_each` oracle: by how much a loss grows without.
        limits: layer → the window that the model itself sets, None for none.
        model: the model's fingerprint.
        settings: how it was measured.
    """

    table: pd.DataFrame
    limits: dict[int, int | None]
    model: dict[str, str] | None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a table that is not of one row per key head."""
        require_type(self.table, pd.DataFrame, "table")
        require_type(self.limits, dict, "limits")
        if missing := [name for name in KEYS if name not in self.table]:
            raise InputError(f"table has no column {missing[0]!r}: give one row per layer and key_head")
        layers = self.table["layer"]
        numbered = self.table["key_head"].eq(self.table.groupby("layer").cumcount())
        if self.table.empty or not layers.is_monotonic_increasing or not numbered.all():
            raise InputError("table: give one row per key head, layer by layer, heads from 0 in each")
        if unknown := sorted({*layers} - {*self.limits}):
            raise InputError(f"limits lacks layer {unknown[0]}: give every layer's own window, or None")

    @classmethod
    def of(cls, found: Profile) -> "Heads":
        """Return what a profile knows of key heads: all but beyond, area and oracle."""
        require_type(found, Profile, "profile")
        rows = found.heads.assign(
            rest=found.heads.attention_first.rsub(1),
            back=found.heads.distance - found.heads.attention_first * found.heads["query"],
        )
        sizes = found.coverage[found.coverage.attention.astype(bool)].set_index("layer")
        shared = rows.layer.map(sizes["heads"] // sizes["key_heads"]).astype("int64")
        rows = rows.assign(key_head=rows["head"] // shared)
        means = rows.groupby(KEYS)[["positional", "symbolic", "entropy", "rest", "back"]].mean()
        means["distance"] = (means.pop("back") / means.pop("rest").clip(lower=1e-6)).clip(lower=0)
        window = sizes["window"]
        limits = {int(layer): None if pd.isna(window[layer]) else int(window[layer]) for layer in sizes.index}
        if set(limits) != {*rows.layer}:
            raise InputError("a plan is of all layers: make the profile with layers=None")
        names = ("model", "class", "config", "weights", "dtype")
        return cls(means.reset_index(), limits, {name: found.settings[name] for name in names})

    def plan(self, windows: Sequence[int | None], **options: Any) -> CachePlan:
        """Return the plan that gives the table's rows, in order, these windows; ``options`` go to `CachePlan`."""
        rows: dict[int, list[int | None]] = {}
        for layer, window in zip(self.table.layer, windows, strict=True):
            rows.setdefault(int(layer), []).append(window)
        limits = [self.limits[layer] for layer in rows]
        return CachePlan(list(rows.values()), layers=[*rows], limits=limits, model=self.model, **options)


def measure(
    model: nn.Module,
    prompts: Any,
    *,
    tokenizer: Any = None,
    sink: int = 4,
    window: int = 128,
    queries: int = 8,
    progress: bool = True,
) -> Heads:
    """Measure, in one pass of a model over each prompt, everything by which `possym.kv_cache.keep` chooses heads.

    Args:
        model, prompts, tokenizer: as `possym.profile` takes them; prompts longer than ``sink + window``.
        sink, window: what the heads that forget will keep: ``beyond`` is the attention on the rest.
        queries: number of query positions per prompt, evenly spaced over those after the first ``sink + window``.
        progress: show a progress bar.

    Raises:
        InputError: prompts that are too short, or sizes that are no whole numbers.
        UnsupportedModelError: a model that possym does not read, or does not read plane by plane.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> measure(model, torch.arange(20)[None], sink=1, window=4, progress=False).table.columns[2:].tolist()
    ['positional', 'symbolic', 'entropy', 'distance', 'beyond', 'area']
    """
    sizes: dict[str, Any] = dict(sink=sink, window=window, queries=queries)
    for name, value in sizes.items():
        if (number := to_int(value)) is None or number < (name != "sink"):
            raise InputError(f"{name} = {value!r}: give a whole number from {int(name != 'sink')}")
        sizes[name] = number
    sink, window, queries = sizes.values()
    given = read_prompts(prompts, tokenizer)
    if short := [len(prompt.ids) for prompt in given if len(prompt.ids) <= sink + window]:
        raise InputError(
            f"a prompt has {min(short)} tokens, which a head with sink {sink} and window {window} keeps: give longer "
            "prompts or a smaller window"
        )
    lengths = [len(prompt.ids) for prompt in given]
    positions = [
        sorted({*np.linspace(sink + window, length - 1, queries).round().astype(int).tolist()}) for length in lengths
    ]
    capture, readings = Capture(model), defaultdict[int, list[tuple[int, Reading]]](list)
    check_prompts(given, model, tokenizer, capture.parts.modules)

    def read(inputs: LayerInputs, batch: Batch) -> None:
        for row, (layer, prompt) in enumerate(itertools.product(inputs.layers, batch.prompts)):
            alone = replace(inputs, query=inputs.query[row, None], keys=inputs.keys[row, None])
            readings[layer].append((prompt, Reading.of(alone, sink, window)))

    how = Scoring(DEFAULT_TEMPERATURE, DEFAULT_RELATIVE)
    heads, frequencies, asked = score_prompts(
        capture, given, positions, [None] * len(given), read_holds("first", given), how, progress=progress, also=read
    )
    scored = Profile(heads, frequencies, asked, capture.coverage, model_identity(model))
    found = Heads.of(scored)
    in_order = (sorted(readings[layer], key=itemgetter(0)) for layer in dict.fromkeys(found.table.layer))
    parts = [[reading for _, reading in layer] for layer in in_order]
    beyond = torch.cat([torch.stack([each.beyond for each in part]).mean(0) for part in parts])
    area = torch.cat([mean_key_area(part) for part in parts])
    table = found.table.assign(beyond=beyond.tolist(), area=area.tolist())
    return Heads(table, found.limits, found.model, {**sizes, "prompts": len(given)})


@dataclass(frozen=True)
class Reading:
    """What one query says of one layer's key heads.

    ``beyond`` (G,) is the attention on what a window would drop, ``query`` (H, D) the query's content and ``key``
    (G, D) the mean content of the keys that are no sinks, both before rotation; ``inputs`` has the tables that rotate.
    """

    inputs: LayerInputs
    beyond: Tensor
    query: Tensor
    key: Tensor

    @classmethod
    def of(cls, inputs: LayerInputs, sink: int, window: int) -> "Reading":
        """Read them off, of the one prompt that was run."""
        if inputs.replayed is not None:
            raise UnsupportedModelError(
                f"layer {inputs.layer} does not rotate pairs of dimensions: choose heads by possym.profile alone"
            )
        contents, positions = inputs.factors()
        observed = inputs.capped((contents * positions).sum(-1))
        share = torch.cat([observed, inputs.extra_logits()], -1)[0].softmax(-1)[:, : len(inputs.moved)]
        dropped = (inputs.moved >= sink) & (inputs.moved <= inputs.query_position - window)
        beyond = share @ dropped.to(share)
        groups = inputs.keys.shape[1]
        query = turned(inputs.query[0], inputs, inputs.query_position, back=True)
        nothing = inputs.query.new_empty(0)  # in place of views, which would keep all queries and keys
        kept = replace(inputs, query=nothing, keys=nothing)
        return cls(kept, beyond.unflatten(0, (groups, -1)).mean(1), query, inputs.keys[0, :, sink:].mean(1))


def turned(x: Tensor, inputs: LayerInputs, position: int | slice, *, back: bool = False) -> Tensor:
    """Return contents (..., D) rotated to a position by a layer's own tables, or rotated back from it."""
    cos, sin = inputs.cos[position], inputs.sin[position]
    if not cos.shape[-1]:
        return x if isinstance(position, int) else x.expand(*x.shape[:-2], len(cos), -1)
    if back:
        square = cos.square() + sin.square()
        cos, sin = cos / square, -sin / square
    return rotate_by(x, cos, sin, "half")


def mean_key_area(readings: Sequence[Reading]) -> Tensor:
    """Return the area (G,) under the cumulative attention, oldest key first, of the mean query to the mean key.

    The mean query stands at the last position, the mean key at every position, so that rotation alone tells keys apart:
    near 1 for a head that looks far back, near 0 for one that looks at what is next to it.

    Source: the score that kvpress computes on the fly in place of DuoAttention's trained gates, from its description.
    """
    inputs = max((each.inputs for each in readings), key=lambda found: len(found.cos))
    query = torch.stack([each.query for each in readings]).mean(0)
    key = torch.stack([each.key for each in readings]).mean(0)
    query = turned(query, inputs, len(inputs.cos) - 1).unflatten(0, (len(key), -1))  # (G, H / G, D)
    keys = turned(key[:, None], inputs, slice(None))  # (G, T, D)
    weights = inputs.capped(query @ keys.mT * inputs.scale).softmax(-1)
    return weights.cumsum(-1).mean((-2, -1))


def try_each(
    model: nn.Module,
    heads: Heads,
    loss: Callable[[], float],
    *,
    sink: int = 4,
    window: int = 128,
    progress: bool = True,
) -> Heads:
    """Return the same heads with ``oracle``: by how much a loss grows when that key head alone has a window.

    It costs a run of ``loss``, which calls the model, for every key head: what the rules are measured against, not one
    of them.

    Raises:
        InputError: heads of another model, or a loss that is no finite number.
    """
    require_type(heads, Heads, "heads")
    if not callable(loss):
        raise InputError("loss: give a function without arguments that calls the model and returns its loss")

    def finite() -> float:
        value = loss()
        if (number := to_float(value)) is None or not math.isfinite(number):
            raise InputError(f"loss() is {value!r}: give a function that returns a finite number")
        return number

    check = heads.plan([None] * len(heads.table), sink=sink)
    check.check(model)
    before, found = finite(), []
    for number in tqdm(range(len(heads.table)), desc="each key head alone", disable=not progress, leave=False):
        windows = [window if row == number else None for row in range(len(heads.table))]
        with applied(model, heads.plan(windows, sink=sink), check=False):
            found.append(finite() - before)
    return Heads(heads.table.assign(oracle=found), heads.limits, heads.model, heads.settings)
