"""The numbers that verdicts rest on, by hand."""

import math

import pandas as pd
import pytest

from possym.experiments.claim import exact, judge_most, percent_interval, proportion, seed_range


def test_a_share_has_wilsons_interval():
    found = proportion(3, 12)
    z, p, n = 1.959964, 0.25, 12
    middle, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert found[:3] == pytest.approx((p, (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)))
    none = proportion(0, 0)
    assert math.isnan(none.value) and none[1:3] == (0.0, 1.0) and math.isnan(none.p_value)
    assert percent_interval(found, none) == "9% to 53% and 0% to 100%"  # the ledger typesets it


def test_a_number_alone_and_a_range():
    assert exact(2)[:3] == (2.0, 2.0, 2.0)
    assert seed_range(pd.Series([1, 2, 9]))[:3] == (2.0, 1.0, 9.0)
    assert seed_range(pd.Series([1, 2, 9]), "mean")[:3] == (4.0, 1.0, 9.0)


@pytest.mark.parametrize(
    ("count", "total", "verdict"),
    [
        (1, 1, "holds"), (0, 0, "does not hold"), (0, 1, "does not hold"), (2, 4, "does not hold"),
        (3, 4, "not shown"), (5, 8, "not shown"), (7, 8, "holds in part"), (17, 32, "not shown"),
    ],
)  # fmt: skip
def test_a_majority_counts_where_its_interval_lies_above_one_half(count, total, verdict):
    assert judge_most(count, total) == verdict
