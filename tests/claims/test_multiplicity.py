"""What many tests leave: Holm's correction by its definition, and which rows of the ledger make a test."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym import claims
from possym.claims import multiplicity
from possym.experiments.claim import proportion
from tests.experiments.learning_dynamics.synthetic import PAPER_LIKE, study


def holm_by_definition(p_values: list[float], level: float) -> list[bool]:
    """Which hypotheses Holm's steps reject: from the smallest up, until one is not below its share of the level."""
    rejected = [False] * len(p_values)
    for step, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > level / (len(p_values) - step):
            break
        rejected[index] = True
    return rejected


def test_corrected_p_values_reject_what_the_steps_reject():
    for order in itertools.permutations((0.004, 0.011, 0.02, 0.3)):
        corrected = multiplicity.holm(np.array(order))
        for level in (0.001, 0.016, 0.0161, 0.033, 0.0331, 0.04, 0.05, 0.3):
            assert (corrected <= level).tolist() == holm_by_definition(list(order), level), (order, level)


def test_no_corrected_p_value_exceeds_one_or_falls_below_its_own():
    p_values = np.random.default_rng(0).random(50)
    corrected = multiplicity.holm(p_values)
    assert (corrected <= 1).all() and (corrected >= p_values).all()
    assert corrected.max() == 1 and corrected[p_values.argmin()] == pytest.approx(min(50 * p_values.min(), 1))


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
