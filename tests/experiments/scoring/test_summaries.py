"""Errors of weightings against plain loops, and which weighting the criteria choose, at the edges."""

import itertools
from statistics import mean

import numpy as np
import pandas as pd
import pytest

from possym.experiments.scoring import CLOSE, STEADY, summaries


def test_errors_are_those_of_each_weighting_in_the_studys_order():
    random = np.random.default_rng(0)
    ways = [("relative", 0.5), ("absolute", 1.0), ("absolute", 0.1)]
    rows = [(*way, kind, *random.random(3)) for way, kind, _ in
            itertools.product(ways, ("positional", "symbolic", "mixed"), range(4))]  # fmt: skip
    cells = pd.DataFrame(rows, columns=["weighting", "temperature", "kind", "error", "moved", "named"])
    cells.loc[cells["weighting"] == "relative", "moved"] = STEADY
    found = summaries.weighting_errors(cells)
    assert list(found[["weighting", "temperature"]].itertuples(index=False, name=None)) == ways
    for row in found.itertuples():
        own = [r for r in cells.itertuples() if (r.weighting, r.temperature) == (row.weighting, row.temperature)]
        assert row.worst == max(r.error for r in own) and row.mean == pytest.approx(mean(r.error for r in own))
        assert row.moved == max(r.moved for r in own) and row.withstands == (row.moved <= STEADY)
        assert row.named == min(r.named for r in own if r.kind != "mixed")
    assert found["withstands"].tolist() == [True, False, False]


def test_the_mean_decides_between_worst_cases_that_are_close():
    names = ["weighting", "temperature", "worst", "mean", "moved", "withstands"]
    for worst, chosen in ((0.5 + CLOSE, "b"), (0.5 + 2 * CLOSE, "a")):
        rows = [("a", 1.0, 0.5, 0.2, 0.0, True), ("b", 1.0, worst, 0.1, 0.0, True), ("c", 1.0, 0.1, 0.0, 0.9, False)]
        assert summaries.choose(pd.DataFrame(rows, columns=names)).weighting == chosen
