"""What the study of weightings says: errors by weighting, and which of them its criteria choose."""

from typing import NamedTuple

import pandas as pd

from possym.experiments.scoring import CLOSE, STEADY


def weighting_errors(cells: pd.DataFrame) -> pd.DataFrame:
    """Return a row per weighting and temperature, in the study's order.

    Columns: worst and mean error over all cells, moved (the largest change of any head's score as the sink grows),
    withstands (whether that is small), named (share of pure heads called their kind, lowest over keys and sinks).
    """
    groups = cells.groupby(["weighting", "temperature"], sort=False)
    pure = cells[cells["kind"].isin(["positional", "symbolic"])].groupby(["weighting", "temperature"], sort=False)
    found = groups["error"].agg(worst="max", mean="mean")
    found["moved"] = groups["moved"].max()
    found["withstands"] = found["moved"] <= STEADY
    found["named"] = pure["named"].min()
    return found.reset_index()


class Choice(NamedTuple):
    """The weighting that the criteria choose, with its errors."""

    weighting: str
    temperature: float
    worst: float
    mean: float
    moved: float


def choose(errors: pd.DataFrame) -> Choice:
    """Return what the study's third criterion chooses from `weighting_errors`.

    >>> rows = [("a", 1.0, 0.3, 0.1, 0.5, False), ("b", 1.0, 0.4, 0.2, 0.0, True), ("b", 2.0, 0.405, 0.1, 0.0, True)]
    >>> choose(pd.DataFrame(rows, columns=["weighting", "temperature", "worst", "mean", "moved", "withstands"]))
    Choice(weighting='b', temperature=2.0, worst=0.405, mean=0.1, moved=0.0)
    """
    steady = errors[errors["withstands"]]
    close = steady[steady["worst"] <= steady["worst"].min() + CLOSE]
    row = close.loc[close["mean"].idxmin()]
    return Choice(row["weighting"], *(float(row[name]) for name in Choice._fields[1:]))
