"""Verdicts on heads and their scores: they hold for pure heads alone."""

import pandas as pd
import pytest

from possym.experiments.scoring import claims as heads
from possym.results import Study
from possym.scores import DEFAULT_TEMPERATURE


def study(absolute, proportional):
    """Errors and moves of absolute weights at both temperatures, and of proportional ones at the library's."""
    rows = [("absolute", 1e-4, *absolute[0]), ("absolute", 0.1, *absolute[1])]
    rows += [("absolute", 1.0, 0.5, 0.5), ("proportional", DEFAULT_TEMPERATURE, *proportional)]
    cells = pd.DataFrame(rows, columns=["weighting", "temperature", "error", "moved"])
    return Study({"cells": cells.assign(kind="positional", keys=8, sink=0.5, named=1.0)}, {})


def test_heads_that_are_not_pure_fail_their_claims():
    mixed = heads.random_logits()
    found = [measure(mixed) for measure in (heads.one_content, heads.no_rotation, heads.uniform_scores)]
    found += [heads.own_score(kind, mixed) for kind in ("positional", "symbolic")]
    assert {each.verdict for each in found} == {"does not hold"}


def test_pure_heads_and_uniform_ones_are_as_the_theorems_say():
    for claim in heads.CLAIMS:
        if claim.study is None:
            assert claim.measure().verdict == "holds", claim.id


@pytest.mark.parametrize(
    ("moved", "verdict"),
    [((0.01, 0.01), "holds"), ((0.0, 0.02), "holds in part"), ((0.011, 0.3), "does not hold")],
)
def test_absolute_weights_withstand_sinks_where_no_score_moves(moved, verdict):
    found = heads.withstands_sinks(study([(0.1, each) for each in moved], (0.1, 0.5)))
    assert found.verdict == verdict and found.interval == "sinks of 0 to 50.0% of the attention"
    assert found.measured == f"largest change: {moved[0]:.2f} at τ = 0.0001, {moved[1]:.2f} at τ = 0.1"


@pytest.mark.parametrize(("error", "verdict"), [(0.1, "holds"), (0.4, "does not hold")])
def test_the_library_weighs_as_the_criteria_choose(error, verdict):
    found = heads.chosen_weights(study([(0.2, 0.0), (0.3, 0.5)], (error, 0.0)))
    assert found.verdict == verdict
    assert "that withstands sinks: " + ("0.20" if verdict == "holds" else "0.40") in found.measured
