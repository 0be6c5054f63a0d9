"""What many tests leave: which rows of the ledger make a test."""

import pandas as pd
import pytest
from scipy import stats

from possym import claims
from possym.experiments.claim import proportion
from tests.experiments.learning_dynamics.synthetic import PAPER_LIKE, study


@pytest.mark.parametrize(("count", "total"), [(0, 8), (7, 8), (8, 8), (16, 32), (25, 32)])
def test_a_share_is_tested_against_one_half_from_both_sides(count, total):
    by_hand = sum(
        stats.binom.pmf(k, total, 0.5) for k in range(total + 1) if abs(k - total / 2) >= abs(count - total / 2)
    )
    assert proportion(count, total).p_value == pytest.approx(min(by_hand, 1.0))


def test_rows_with_a_share_or_a_correlation_are_tested_and_no_others(monkeypatch, tmp_path):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    late = lambda seed: PAPER_LIKE["learnt"] | ({("number", 4): 2500} if seed == 0 else {})  # noqa: E731
    found = claims.p_values({"learning_dynamics": study(seeds=8, learnt=late)})
    assert set(found.index) == {"number-hop-order", "number-one-hop-first", "number-early-late"}
    assert found["p_value"].is_monotonic_increasing
    assert found["p_value"]["number-hop-order"] == pytest.approx(2 * (1 + 8) / 2**8)
    assert found["p_value"]["number-early-late"] == pytest.approx(2 / 2**8)
    assert found["corrected"]["number-early-late"] == pytest.approx(3 * 2 / 2**8)
    assert found["verdict"].to_dict() == claims.ledger(studies={
        "learning_dynamics": study(seeds=8, learnt=late)})["verdict"][found.index].to_dict()  # fmt: skip
    assert isinstance(found, pd.DataFrame)
