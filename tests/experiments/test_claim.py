"""The numbers that verdicts rest on, by hand."""

import math

import pandas as pd
import pytest

from possym.experiments.claim import (
    claims_in,
    exact,
    judge,
    judge_most,
    not_testable,
    percent_interval,
    proportion,
    seed_range,
)


def test_a_share_has_wilsons_interval():
    found = proportion(3, 12)
    z, p, n = 1.959964, 0.25, 12
    middle, half = p + z**2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    assert found[:3] == pytest.approx((p, (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)))
    assert found.p_value == pytest.approx(2 * sum(math.comb(12, k) for k in range(4)) / 2**12)
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


def test_a_verdict_is_the_strongest_that_its_criterion_and_its_interval_allow():
    verdicts = {
        (True, True, True): "holds", (True, False, False): "holds", (False, True, True): "not shown",
        (False, False, True): "not shown", (False, True, False): "holds in part",
        (False, False, False): "does not hold",
    }  # fmt: skip
    for (holds, in_part, undecided), verdict in verdicts.items():
        assert judge(holds, in_part, undecided=undecided) == verdict
    assert judge(False) == "does not hold"
    assert not_testable("no data")() == ("no data", "", "not testable here", ())


def test_claims_of_one_chapter_differ_in_what_is_said_of_each():
    words = ("one", "section 3", "One is 1.", "1", "holds if it is")
    claim = claims_in("P1", "03-scoring-a-head", "scoring")(*words, exact)
    told = (claim.id, claim.where, claim.statement, claim.paper_value, claim.criterion, claim.measure)
    assert told == (*words, exact) and (claim.paper, claim.chapter) == ("P1", "03-scoring-a-head")
    found = (claim.kind, claim.study, claim.interval_kind, claim.changed)
    assert found == ("replication", "scoring", "none", "")
    assert claims_in("own", "03-scoring-a-head")(*words, exact).kind == "own question"
    other = claims_in("own", "03", kind="theorem")(*words, exact, "exact", study="theory", changed="as before")
    assert (other.kind, other.study, other.interval_kind, other.changed) == ("theorem", "theory", "exact", "as before")
