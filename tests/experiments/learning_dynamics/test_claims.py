"""Verdicts on learning: seeds that say nothing do not count, and a range says how many seeds reach a number."""

import pandas as pd
import pytest

from possym.experiments.learning_dynamics import claims as learning

from .synthetic import PAPER_LIKE, study


def top_layer(*since, seeds=8):
    """A study in whose first seeds the top layer of the letter task turns symbolic at these steps, in others never."""
    made = study(seeds=seeds)
    heads = made.tables["heads"]
    for seed, step in enumerate(since):
        mine = (heads["task"] == "letter") & (heads["layer"] == 11) & (heads["seed"] == seed)
        heads.loc[mine, ["kind", "since"]] = [-1, step]
    return made


LATE, TIE, EARLY = 6000, PAPER_LIKE["turns"] + 250 * 10, 0


@pytest.mark.parametrize(
    ("since", "verdict"),
    [
        ([], "not testable here"),
        ([LATE] * 8, "holds"),
        ([LATE] * 4, "holds"),
        ([LATE] * 3, "not shown"),  # of 8 seeds fewer than half turn
        ([EARLY] * 3, "not shown"),
        ([LATE] * 7 + [TIE], "holds in part"),
        ([LATE] * 5 + [EARLY] * 3, "not shown"),
        ([LATE] * 4 + [TIE] * 4, "does not hold"),
    ],
)
def test_the_last_layer_is_judged_on_seeds_in_which_it_turns(since, verdict):
    found = learning.last_layer(top_layer(*since))
    assert found.verdict == verdict
    if since:
        late, turns = since.count(LATE), len(since)
        assert found.measured == (
            f"layer 11 never turns pure symbolic in {8 - turns} of 8 seeds; of the {turns} in which it does it is "
            f"strictly last in {late}"
        )


def test_seeds_at_a_published_value_are_counted_from_the_middle_outwards():
    counts = pd.Series([1, 2, 6])
    assert learning.reaching(counts, 6) == "1 of 3 seeds at 6 or more"
    assert learning.reaching(counts, 1) == "1 of 3 seeds at 1 or less"
    assert learning.reaching(counts, 2) == "1 of 3 seeds at 2"


def test_a_step_that_no_seed_reaches_is_held_by_the_widening_alone():
    steps = pd.Series([2100.0, 2400.0, 2800.0])
    found = learning.near_step(steps, 3000)
    assert found.verdict == "holds"
    assert found.measured == (
        "median step 2,400; 0 of 3 seeds at 3,000 or more, so that the range holds 3,000 by its widening of 500 alone"
    )
    assert learning.near_step(steps, 2700).measured == "median step 2,400; 1 of 3 seeds at 2,700 or more"


@pytest.mark.parametrize(("low", "verdict"), [(-0.1, "not shown"), (0.0, "not shown")])
def test_a_correlation_whose_interval_holds_both_directions_is_not_shown(low, verdict, monkeypatch):
    row = {"gamma": 0.1, "share": 0.5, "correlation": 0.2, "low": low, "high": 0.5, "shuffled": 0.3, "lag": 0,
           "seeds": 32, "without": 0, "p_value": 0.3}  # fmt: skip
    for change, expected in (({}, verdict), ({"shuffled": 0.1}, "holds in part"), ({"high": -0.05}, "does not hold")):
        table = pd.DataFrame([row | change | ({"low": -0.4, "correlation": -0.2} if "high" in change else {})])
        monkeypatch.setattr(learning.dynamics, "learning_with_purity", lambda *_, table=table, **__: table)
        assert learning.with_purity("letter")(study()).verdict == expected
