"""Statistics on the heads of a model, which are not independent: heads of one layer share their input.

- `correlation` of two scores over heads, its interval from a bootstrap that draws whole layers, its p-value from
  permutations that move whole layers;
- `early_late`: the difference between the medians of early and late layers, tested by permuting whole layers;
- `stability`: how well one set of prompts ranks heads as another does;
- `area_under_curve`: whether the heads of a group score higher than the others, as a probability;
- `prompt_draws` and `sign_flips`: intervals and p-values of many paired changes at once, prompts as the units;
- `holm`: p-values corrected for their number.
"""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from possym.errors import InputError


class Estimate(NamedTuple):
    """A value, the ends of its 95 % interval, and the p-value of it being zero where that was tested."""

    value: float
    low: float
    high: float
    p_value: float = math.nan


def correlation(
    table: pd.DataFrame,
    first: str = "positional",
    second: str = "symbolic",
    *,
    draws: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Return Pearson's r of two columns, heads as rows, with an interval and a p-value that respect layers.

    The interval is the 2.5 to 97.5 % range over draws of whole layers, with replacement. The p-value is two-sided: the
    layers of the second column are permuted as wholes, heads within a layer in random order, and r is as far from
    zero in that share of permutations (observed one counted in).

    Args:
        table: one row per head, with its layer; all layers have the same number of heads.
        first, second: columns to correlate.
        draws: bootstrap draws, and permutations.
        seed: of the draws.

    Raises:
        InputError: missing columns or values, fewer than three layers, or layers of different sizes.

    >>> heads = pd.DataFrame({"layer": [0, 1, 2, 3], "positional": [0.9, 0.7, 0.4, 0.2]})
    >>> round(correlation(heads.assign(symbolic=1 - heads.positional), draws=100).value, 3)
    -1.0
    """
    groups = clustered(table, [first, second])
    x, y = groups[..., 0], groups[..., 1]
    random = np.random.default_rng(seed)
    layers, heads = x.shape
    value = pearson(x.ravel(), y.ravel())
    picked = random.integers(layers, size=(draws, layers))
    spread = pearson(x[picked].reshape(draws, -1), y[picked].reshape(draws, -1))
    low, high = np.nanpercentile(spread, [2.5, 97.5])
    order = random.permuted(np.broadcast_to(np.arange(layers), (draws, layers)), axis=1)
    within = random.permuted(np.broadcast_to(np.arange(heads), (draws, layers, heads)), axis=2)
    moved = y[order[..., None], within].reshape(draws, -1)
    far = np.abs(pearson(np.broadcast_to(x.ravel(), moved.shape), moved)) >= abs(value) - 1e-12
    return Estimate(float(value), float(low), float(high), (int(far.sum()) + 1) / (draws + 1))


def early_late(table: pd.DataFrame, score: str, *, draws: int = 10_000, seed: int = 0) -> Estimate:
    """Return the median over heads of the first half of the layers less that of the second half.

    Interval: whole layers are drawn with replacement within each half. p-value, two-sided: layers are permuted as
    wholes. An odd layer in the middle belongs to the second half.

    Args:
        table: one row per head, with its layer; all layers have the same number of heads.
        score: column to compare.
        draws, seed: as for `correlation`.

    Raises:
        InputError: as for `correlation`.

    >>> heads = pd.DataFrame({"layer": range(8), "positional": [0.9, 0.8, 0.9, 0.8, 0.3, 0.2, 0.3, 0.2]})
    >>> round(early_late(heads, "positional", draws=200).value, 3)
    0.6
    """
    values = clustered(table, [score])[..., 0]
    random = np.random.default_rng(seed)
    layers = len(values)
    half = layers // 2

    def difference(rows: np.ndarray) -> np.ndarray:
        early, late = rows[..., :half, :], rows[..., half:, :]
        return np.median(early, axis=(-2, -1)) - np.median(late, axis=(-2, -1))

    value = difference(values)
    picked = np.concatenate(
        [random.integers(half, size=(draws, half)), random.integers(half, layers, size=(draws, layers - half))], axis=1
    )
    low, high = np.percentile(difference(values[picked]), [2.5, 97.5])
    order = random.permuted(np.broadcast_to(np.arange(layers), (draws, layers)), axis=1)
    far = np.abs(difference(values[order])) >= abs(value) - 1e-12
    return Estimate(float(value), float(low), float(high), (int(far.sum()) + 1) / (draws + 1))


def stability(tables: dict[str, pd.DataFrame], score: str) -> pd.DataFrame:
    """Return Spearman's rank correlation of heads between every two tables.

    Args:
        tables: by name, one row per layer and head, the same heads in each.
        score: column that ranks the heads.

    Returns:
        DataFrame with columns first, second, rank_correlation; every pair in both orders, and each with itself.

    Raises:
        InputError: no tables, a missing column, or different heads.

    >>> heads = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "kind": [0.1, 0.5, 0.9]})
    >>> stability({"a": heads, "b": heads.assign(kind=-heads.kind)}, "kind")["rank_correlation"].round(1).tolist()
    [1.0, -1.0, -1.0, 1.0]
    """
    if not tables:
        raise InputError("tables: give at least one, by name")
    columns = {}
    for name, table in tables.items():
        check_columns(table, ["layer", "head", score])
        columns[name] = table.set_index(["layer", "head"])[score]
    wide = pd.DataFrame(columns)
    if wide.isna().any(axis=None):
        raise InputError(f"tables {', '.join(tables)}: give the same heads in each, without missing values")
    ranked = wide.corr(method="spearman").rename_axis(index="first", columns="second")
    return ranked.stack().rename("rank_correlation").reset_index()


def area_under_curve(
    values: pd.Series, inside: pd.Series, layers: pd.Series, draws: int = 10_000, seed: int = 0
) -> Estimate:
    """Return how likely a head inside a group has a larger value than one outside, ties half; 0.5 by chance.

    The interval is the 2.5 to 97.5 % range over draws of whole layers, with replacement.

    Raises:
        InputError: a group that is empty or everything.

    >>> area_under_curve(pd.Series([0.9, 0.1, 0.8]), pd.Series([True, False, True]), pd.Series([0, 1, 1]), draws=99)[:3]
    (1.0, 1.0, 1.0)
    """
    numbers, group = values.to_numpy(float), inside.to_numpy(bool)
    if group.all() or not group.any():
        raise InputError("inside: some heads must be inside the group and some outside")
    names, position = np.unique(layers, return_inverse=True)
    member = np.eye(len(names))[position]  # (heads, layers)
    wins = (numbers[group, None] > numbers[~group]) + 0.5 * (numbers[group, None] == numbers[~group])
    between = member[group].T @ wins @ member[~group]  # wins of one layer's heads inside over another's outside
    known, others = member[group].sum(0), member[~group].sum(0)
    times = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    pairs = (times @ known) * (times @ others)
    drawn = np.einsum("da,ab,db->d", times, between, times)[pairs > 0] / pairs[pairs > 0]
    low, high = np.percentile(drawn, [2.5, 97.5]) if len(drawn) else (np.nan, np.nan)
    return Estimate(float(wins.mean()), float(low), float(high))


def prompt_draws(sums: np.ndarray, counts: np.ndarray, draws: int = 2000, seed: int = 0) -> np.ndarray:
    """Return means over whole prompts drawn with replacement, as many as there are.

    Args:
        sums: (P, C), what each prompt adds to each column.
        counts: (P, C), of how many values that is the sum.
        draws: number of draws.
        seed: of the draws; the same seed draws the same prompts.

    Returns:
        (draws, C); NaN where the drawn prompts hold no value.

    >>> prompt_draws(np.array([[1.0], [1.0], [1.0]]), np.ones((3, 1)), draws=2).tolist()
    [[1.0], [1.0]]
    """
    prompts = len(sums)
    drawn = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), size=draws).astype(float)
    total, held = drawn @ sums, drawn @ counts
    return np.divide(total, held, out=np.full_like(total, np.nan), where=held > 0)


def sign_flips(sums: np.ndarray, draws: int = 10_000, seed: int = 0) -> np.ndarray:
    """Return two-sided p-values of paired changes being none, which hold for all columns together.

    If nothing changed on average, a prompt's change could as well have had the other sign. The sign of every prompt is
    flipped, for all columns at once, and each column's |sum| / root of the sum of squares (which orders as |t| does) is
    compared with the largest of any column. So the chance of one false finding among all columns is at most the level,
    and columns that change together cost no more than one. P prompts give no p-value below 2^(1 − P).

    Args:
        sums: (P, C), each prompt's change in each column.
        draws: random flips, where there are more than so many; else every one of them is tried.
        seed: of the flips.

    Returns:
        (C,).

    Source: Westfall and Young, Resampling-Based Multiple Testing (1993), the single-step maxT.

    >>> changes = np.array([[0.1, 0.3], [0.2, -0.3], [0.1, 0.2], [0.3, -0.1], [0.2, 0.0], [0.1, -0.1]])
    >>> sign_flips(changes).round(3).tolist()
    [0.031, 1.0]
    """
    prompts = len(sums)
    size = np.sqrt((sums**2).sum(0))
    unit = np.divide(sums, size, out=np.zeros_like(sums), where=size > 0)
    seen = np.abs(unit.sum(0))
    exact = prompts <= 1 or 2 ** (prompts - 1) <= draws
    if exact:  # the first sign may stay: flipping all gives the same
        patterns = np.arange(2 ** max(0, prompts - 1))[:, None] >> np.arange(prompts) & 1
    else:
        patterns = np.random.default_rng(seed).integers(2, size=(draws, prompts))
    largest = np.concatenate(
        [np.abs((1 - 2 * some) @ unit).max(1) for some in np.array_split(patterns, 20) if len(some)]
    )
    as_far = (largest[:, None] >= seen - 1e-12).sum(0)
    return as_far / len(patterns) if exact else (as_far + 1) / (draws + 1)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return p-values corrected by Holm's method, in the order given.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.

    >>> holm(np.array([0.04, 0.01, 0.03])).round(2).tolist()
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    left = len(p_values) - np.arange(len(p_values))
    corrected = np.minimum(np.maximum.accumulate(p_values[order] * left), 1.0)
    return corrected[np.argsort(order, kind="stable")]


def pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return Pearson's r along the last axis; NaN where one side does not vary.

    >>> pearson(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 3.0])).round(3)
    np.float64(0.982)
    """
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    norm = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.divide((x * y).sum(-1), norm, out=np.full_like(norm, np.nan), where=norm > 0)


def clustered(table: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """Return values (layers, heads, columns) in order of layer, or raise an InputError."""
    check_columns(table, [*columns, "layer"])
    sizes = table.groupby("layer").size()
    if len(sizes) < 3 or sizes.nunique() > 1:
        raise InputError(
            f"{len(sizes)} layers of {sorted(set(sizes.tolist()))} heads: give at least three layers of one size"
        )
    values = table.sort_values("layer", kind="stable")[columns].to_numpy(float)
    return values.reshape(len(sizes), -1, len(columns))


def check_columns(table: pd.DataFrame, columns: list[str]) -> None:
    """Raise an InputError unless a table has these columns, none with a missing value."""
    missing = [name for name in columns if name not in getattr(table, "columns", [])]
    if missing:
        raise InputError(f"table has no column {', '.join(missing)}: give one row per head with {', '.join(columns)}")
    if table[columns].isna().any(axis=None):
        raise InputError(f"columns {', '.join(columns)} hold missing values: leave those heads out")
