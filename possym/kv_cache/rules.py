"""Rules that choose which key heads forget, and `keep`, which makes the plan.

Every rule rates how much a head needs its cache; those that need it least get a window first.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from possym.errors import InputError, require_type, to_float, to_int
from possym.kv_cache.heads import Heads
from possym.kv_cache.plan import CachePlan
from possym.profiling import Profile

Need = Callable[[pd.DataFrame, int], pd.Series]


def kind(table: pd.DataFrame) -> pd.Series:
    """Return how symbolic a head is against how positional, from 0 to 1."""
    return (1 + table["symbolic"] - table["positional"]) / 2


def kind_distance(table: pd.DataFrame, seed: int) -> pd.Series:
    """Return the distance attended, times how symbolic the head is."""
    return kind(table) * table["distance"]


def combined(table: pd.DataFrame, seed: int) -> pd.Series:
    """Return the mean rank by attention beyond the window and by kind."""
    return table["beyond"].rank() + kind(table).rank()


RULES: dict[str, Need] = {
    "positional": lambda table, seed: kind(table),
    "kind_distance": kind_distance,
    "fitted": kind_distance,
    "beyond": lambda table, seed: table["beyond"],
    "combined": combined,
    "area": lambda table, seed: table["area"],
    "entropy": lambda table, seed: table["entropy"],
    "random": lambda table, seed: pd.Series(np.random.default_rng(seed).permutation(len(table)), table.index),
    "oracle": lambda table, seed: table["oracle"],
}
KIND = ("positional", "symbolic")
READS: dict[str, tuple[str, ...]] = {
    "positional": KIND,
    "kind_distance": (*KIND, "distance"),
    "fitted": (*KIND, "distance"),
    "beyond": ("beyond",),
    "combined": ("beyond", *KIND),
    "area": ("area",),
    "entropy": ("entropy",),
    "random": (),
    "oracle": ("oracle",),
}


def keep(
    heads: Profile | Heads,
    share: float = 0.5,
    *,
    rule: str = "positional",
    sink: int = 4,
    window: int = 128,
    whole_layers: bool = False,
    seed: int = 0,
) -> CachePlan:
    """Return a plan that gives a window to a ``share`` of the key heads, and everything to the others.

    Args:
        heads: a `possym.Profile` of all layers, or what `possym.kv_cache.measure` found.
        share: share of the key heads that get a window, from 0 to 1.
        rule: which heads get one first. ``"positional"``: the most positional. ``"kind_distance"``: those whose
            distance attended, times how symbolic they are, is least; ``"fitted"``: the same heads, each with a window
            in proportion to that distance, of the same total. ``"entropy"``: the most concentrated. ``"random"``. Of
            `measure` besides: ``"beyond"``, the least attention on what the window drops; ``"combined"``, by rank in
            that and in kind; ``"area"``, see `possym.kv_cache.heads.mean_key_area`; and of `try_each` ``"oracle"``.
            The study `possym.experiments.cache_plans` compares them.
        sink, window: first and latest tokens that heads with a window keep.
        whole_layers: give a window to a share of the layers, by the mean need of their heads; with ``sink=0`` that is a
            plan that transformers' own caches can hold, see `possym.kv_cache.files.cache_configuration`.
        seed: of ``"random"``.

    Raises:
        InputError: an unknown rule, one that needs what was not measured, or numbers out of range.

    >>> table = pd.DataFrame({"layer": [0, 0], "key_head": [0, 1], "positional": [0.9, 0.1], "symbolic": [0.1, 0.9],
    ...                       "entropy": [1.0, 1.0], "distance": [3.0, 70.0]})
    >>> keep(Heads(table, {0: None}, {}), 0.5, window=8).windows
    ((8, None),)
    """
    require_type(heads, (Profile, Heads), "heads")
    found = Heads.of(heads) if isinstance(heads, Profile) else heads
    if not isinstance(rule, str) or rule not in RULES:
        raise InputError(f"rule = {rule!r}: known rules are {', '.join(RULES)}")
    for column in READS[rule]:
        if column not in found.table or not is_numeric_dtype(found.table[column]):
            maker = "try_each" if column == "oracle" else "measure"
            raise InputError(
                f"rule = {rule!r} reads {column!r}, which possym.kv_cache.{maker} finds: give what it returns"
            )
    if (draw := to_int(seed)) is None or draw < 0:
        raise InputError(f"seed = {seed!r}: give a whole number from 0")
    number = to_float(share)
    if number is None or not 0 <= number <= 1:
        raise InputError(f"share = {share!r}: give the share of key heads that get a window, from 0 to 1")
    if (size := to_int(window)) is None or size < 1:
        raise InputError(f"window = {window!r}: give how many of the latest tokens are kept, from 1")
    require_type(whole_layers, bool, "whole_layers")
    need = RULES[rule](found.table, draw)
    if (unknown := int(need.isna().sum())) and number > 0:
        raise InputError(f"rule = {rule!r}: nothing was measured of {unknown} of the {len(need)} key heads (NaN)")
    if whole_layers:
        by_layer = need.groupby(found.table["layer"]).mean().sort_values(kind="stable")
        short = found.table["layer"].isin(by_layer.index[: round(number * len(by_layer))])
        chosen = np.flatnonzero(short)
    else:
        chosen = np.argsort(need.to_numpy(dtype="float64"), kind="stable")[: round(number * len(need))]
    sizes = np.full(len(chosen), size)
    if rule == "fitted" and len(chosen):
        sizes = in_proportion(found.table["distance"].to_numpy()[chosen], size * len(chosen))
    windows: list[int | None] = [None] * len(need)
    for row, entry in zip(chosen, sizes, strict=True):
        windows[row] = int(entry)
    settings = {"share": number, "window": size} | ({"seed": draw} if rule == "random" else {})
    return found.plan(windows, sink=sink, rule=rule, settings=settings | {"measured": found.settings})


def agreement(heads: Profile | Heads, gates: np.ndarray) -> pd.DataFrame:
    """Return how far each rule orders key heads as trained gates do: rule, spearman (1 for the same order), heads.

    Args:
        heads: as `keep` takes them; rules whose column was not measured are left out, and so is ``"random"``.
        gates: (layers, key heads), 1 for a head that keeps all, as `possym.kv_cache.files.load_gates` reads them.

    Raises:
        InputError: gates of another shape.
    """
    require_type(heads, (Profile, Heads), "heads")
    found = Heads.of(heads) if isinstance(heads, Profile) else heads
    table = found.table
    try:
        array = np.asarray(gates, dtype="float64")
    except (TypeError, ValueError):
        array = np.full(1, np.nan)
    if not np.isfinite(array).all():
        raise InputError("gates: give finite numbers, layers by key heads")
    shape = table["layer"].nunique(), int(table["key_head"].max()) + 1
    if array.shape != shape or array.size != len(table):
        raise InputError(f"gates {array.shape}: the model has {shape[0]} layers of {shape[1]} key heads")
    asked = [rule for rule in RULES if rule != "random" and {*READS[rule]} <= {*table}]
    order = table.sort_values(["layer", "key_head"]).index
    ranks = pd.DataFrame({rule: RULES[rule](table, 0)[order].to_numpy() for rule in asked} | {"gates": array.ravel()})
    found = ranks.corr(method="spearman")["gates"].drop("gates")  # NaN, without a warning, where all are alike
    return found.rename_axis("rule").rename("spearman").reset_index().assign(heads=len(table))


def in_proportion(values: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers from 1 that add up to ``total``, what is above 1 in proportion to ``values``.

    >>> in_proportion(np.array([1.0, 3.0, 0.0]), 11).tolist()
    [3, 7, 1]
    """
    values = np.nan_to_num(values).clip(min=0)
    values = values if values.sum() > 0 else np.ones(len(values))
    exact = values / values.sum() * (total - len(values))
    whole = np.floor(exact).astype(int)
    largest = np.argsort(-(exact - whole), kind="stable")[: total - len(values) - whole.sum()]
    whole[largest] += 1
    return whole + 1
