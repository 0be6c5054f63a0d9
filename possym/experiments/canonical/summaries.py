"""Summaries of the canonical sweep: means over seeds, what is learnt where, shapes over the answer's position.

Tables in are those of `possym.experiments.canonical`. Frequency ID 0 is NoPE. An angle is *learnt* where the mean
accuracy over seeds is at least `LEARNT`.
"""

import itertools
import math

import pandas as pd
import scipy
import torch

from possym.errors import InputError
from possym.experiments.canonical.u_shape_test import u_shape_test

LEARNT = 0.9
MIDDLE = (0.05, 0.95)  # shapes are tested where accuracy lies between these shares of the way from worst to best


def ends(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last step.

    >>> ends(pd.DataFrame({"step": [0, 9], "accuracy": [0.1, 0.9]}))["accuracy"].tolist()
    [0.9]
    """
    return table[table["step"] == table["step"].max()]


def heads(table: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Return the rows in which columns have the values given.

    Raises:
        InputError: an unknown column, or no such rows; the message lists the values there are.

    >>> heads(pd.DataFrame({"task": ["index", "retrieval"], "planes": [1, 1]}), task="index").shape
    (1, 2)
    """
    for column, value in wanted.items():
        if column not in table:
            raise InputError(f"{column!r} is no column; columns are {', '.join(table.columns)}")
        found = table[table[column] == value]
        if found.empty:
            known = ", ".join(str(v) for v in sorted(table[column].unique()))
            raise InputError(f"{column} = {value!r}: no such rows; there are {known}")
        table = found
    return table


def over_seeds(table: pd.DataFrame, by: list[str], column: str = "accuracy") -> pd.DataFrame:
    """Return mean and 95 % t-interval over seeds of a column, one row for each combination of ``by``.

    The interval of shares is cut at 0 and 1.

    >>> over_seeds(pd.DataFrame({"seed": [0, 1], "x": [1, 1], "accuracy": [0.4, 0.6]}), ["x"])["mean"].tolist()
    [0.5]
    """
    found = table.groupby(by, observed=True)[column].agg(["mean", "std", "count"]).astype("float64").reset_index()
    half = scipy.stats.t.ppf(0.975, (found["count"] - 1).clip(lower=1)) * found["std"].fillna(0) / found["count"] ** 0.5
    found["low"] = (found["mean"] - half).clip(lower=0)
    found["high"] = (found["mean"] + half).clip(upper=1)
    return found.drop(columns=["std", "count"])


def slowness(frequency_id: int) -> float:
    """Return a key that sorts frequency IDs from the fastest angle to NoPE.

    >>> sorted([0, 9, 1], key=slowness)
    [1, 9, 0]
    """
    return frequency_id or math.inf


def by_angle(accuracy: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Return final accuracy by frequency ID, fastest first, mean and interval over seeds; ``wanted`` as for `heads`."""
    found = over_seeds(ends(heads(accuracy, **wanted)), ["first_id"])
    return found.sort_values("first_id", key=lambda ids: ids.map(slowness)).reset_index(drop=True)


def learnt_ids(accuracy: pd.DataFrame, **wanted: object) -> list[int]:
    """Return the frequency IDs at which the mean accuracy over seeds is at least `LEARNT`, fastest first."""
    found = by_angle(accuracy, **wanted)
    return found.loc[found["mean"] >= LEARNT, "first_id"].tolist()


def shapes(by_place: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Return the shape of accuracy over the answer's position, tested over seeds, for each frequency ID.

    Returns:
        first_id, accuracy (mean over positions and seeds), bend, low, high, p_value, shape, and ``between``:
        whether the accuracy lies between `MIDDLE` of the way from the worst angle's to the best one's. Near the
        worst there is nothing to have a shape, near the best nothing is mismatched.
    """
    table = heads(by_place, **wanted)
    rows = []
    for frequency_id, head in table.groupby("first_id", observed=True):
        curves = head.pivot(index="seed", columns="place", values="accuracy")
        found = u_shape_test(torch.tensor(curves.to_numpy(dtype="float64")))
        rows.append({"first_id": frequency_id, "accuracy": float(curves.to_numpy().mean()), **found._asdict()})
    found = pd.DataFrame(rows).sort_values("first_id", key=lambda ids: ids.map(slowness)).reset_index(drop=True)
    worst, best = found["accuracy"].min(), found["accuracy"].max()
    share = (found["accuracy"] - worst) / max(best - worst, 1e-9)
    return found.assign(between=share.between(*MIDDLE))


def mismatched(by_place: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Return the shapes of the angles that do not suit the task: too slow for Index, too fast for the others.

    That is, those between worst and best on the wrong side of the best angle.
    """
    found = shapes(by_place, **wanted)
    best = slowness(int(found.loc[found["accuracy"].idxmax(), "first_id"]))
    order = found["first_id"].map(slowness)
    wrong = order > best if wanted.get("task") == "index" else order < best
    return found[wrong & found["between"]].reset_index(drop=True)


def learnt_words(accuracy: pd.DataFrame, **wanted: object) -> str:
    """Return which frequency IDs are learnt in words, each run of neighbours in the sweep as its two ends.

    >>> table = pd.DataFrame({"step": 9, "first_id": [1, 2, 5, 7, 0], "accuracy": [0.9, 1, 0.5, 1, 1]})
    >>> learnt_words(table), learnt_words(table[table["first_id"] == 5])
    ('IDs 1 to 2, 7 to NoPE', 'none of the angles')
    """
    found = by_angle(accuracy, **wanted)
    names = ["NoPE" if i == 0 else str(i) for i in found["first_id"]]
    runs = []
    for is_learnt, rows in itertools.groupby(zip(found["mean"] >= LEARNT, names, strict=True), lambda row: row[0]):
        run = [name for _, name in rows]
        if is_learnt:
            runs.append(run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}")
    if not runs:
        return "none of the angles"
    if runs == ["NoPE"]:
        return "NoPE"
    return f"{'ID' if len(runs) == 1 and ' ' not in runs[0] else 'IDs'} {', '.join(runs)}"


def best_words(found: pd.DataFrame, column: str = "first_id") -> str:
    """Return the first angle with the highest mean in words, and how many others reach the same.

    >>> table = pd.DataFrame({"first_id": [7, 9, 0], "mean": [0.9, 1.0, 1.0]})
    >>> best_words(table), best_words(table[:2])
    ('ID 9 and 1 other', 'ID 9')
    """
    first, *others = found.loc[found["mean"] == found["mean"].max(), column].tolist()
    name = f"ID {first}" if first else "NoPE"
    return f"{name} and {len(others)} other{'s' * (len(others) > 1)}" if others else name


def short_keys(key: torch.Tensor, symbols: int) -> torch.Tensor:
    """Return the share of symbols whose key is less than half as long as the median symbol's.

    Args:
        key: (…, V, 2) contents of a plane; tokens below ``symbols`` are the symbols.

    >>> short_keys(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.3, 0.0], [1.0, 0.0]]]), 4)
    tensor([0.2500])
    """
    length = key[..., :symbols, :].norm(dim=-1)
    return (length < length.median(-1, keepdim=True).values / 2).to(length.dtype).mean(-1)


def gathering(query: torch.Tensor, key: torch.Tensor, angles: list[float], symbols: int) -> pd.DataFrame:
    """Return how the contents of one-plane Index heads lie in their plane, one row per seed and head.

    Args:
        query, key: (seeds, heads, V, 2) contents before rotation; tokens below ``symbols`` are keys, token
            symbols − 1 + σ asks for distance σ.
        angles: the heads' angles, radians per position.
        symbols: number of symbols.

    Returns:
        seed (counted from 0), head, and resultant lengths between 0 (spread evenly) and 1 (one direction):
        ``keys`` of the symbols' keys, ``queries`` of the queries, and ``turned``, of the queries after each has
        been turned by its own distance σ·angle. T_Index of 2605.31558 has keys = turned = 1 and queries =
        ``construction``.
    """
    keys = torch.view_as_complex(key[:, :, :symbols].double().contiguous())
    queries = torch.view_as_complex(query[:, :, symbols:].double().contiguous())
    distance = torch.arange(1, queries.shape[-1] + 1, dtype=torch.float64)
    turns = torch.exp(1j * torch.tensor(angles, dtype=torch.float64)[:, None] * distance)
    lengths = [torch.sgn(x).mean(-1).abs() for x in (keys, queries, queries * turns, turns.expand_as(queries))]
    rows = [
        (seed, head, *(float(x[seed, head]) for x in lengths))
        for seed in range(query.shape[0])
        for head in range(query.shape[1])
    ]
    return pd.DataFrame(rows, columns=["seed", "head", "keys", "queries", "turned", "construction"])
