"""Where verdicts on length in other settings change, just on each side of every threshold of their criteria."""

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN
from possym.experiments.length_elsewhere import claims
from possym.profiling.statistics import Estimate
from possym.results import Study

from ...claims.stored_numbers import figures


@pytest.mark.parametrize(
    ("rank", "p", "verdict"),
    [(0.5, 0.049, HOLDS), (0.5, 0.05, NOT_SHOWN), (0.49, 0.049, IN_PART), (0.49, 0.05, NOT_SHOWN)],
)
def test_the_mean_rank_is_one_half_and_not_by_chance(rank, p, verdict, monkeypatch):
    table = pd.DataFrame({"setting": ["heads"], "task": ["letter"], "rank": [rank], "models": [4]})
    monkeypatch.setattr(claims.judging, "predicted_points", lambda *_: None)
    monkeypatch.setattr(claims.judging, "ranks_within", lambda *_: (table, Estimate(rank, rank, rank, p)))
    made = Study({"accuracy": pd.DataFrame(), "forecast": pd.DataFrame()})
    assert claims.forecast_ranks(made).verdict == verdict


@pytest.mark.parametrize(
    ("letter", "verdict"),
    [([(101, 150)] * 2, HOLDS), ([(100, 150)] * 2, IN_PART), ([(100, 150), (50, 120)], FAILS),
     ([(100, 150), (50, 102), (70, 150)], IN_PART), ([(101, 150), (40, 60), (40, 60)], FAILS)],
)  # fmt: skip
def test_the_letter_tasks_points_lie_beyond_in_every_setting_or_their_median_in_most(letter, verdict, monkeypatch):
    """The number task's points are 50 and 100 in the first setting, so that their median is 75; else 70 and 100."""
    names = ("heads", "layers", "llama")[: len(letter)]
    number = [(50, 100), *[(70, 100)] * 2]
    rows = [(name, task, seed, point, hops) for k, name in enumerate(names)
            for task, points in (("number", number[k]), ("letter", letter[k]))
            for seed, point in enumerate(points) for hops in (0, 1)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["setting", "task", "seed", "point", "hops"])
    monkeypatch.setattr(claims, "learnt", lambda accuracy, by: table[table["hops"] == 0].assign(learnt=True)[
        [*by, "seed", "learnt"]])  # fmt: skip
    monkeypatch.setattr(claims, "crossings", lambda curves, by: curves)
    found = claims.letter_goes_further(Study({"accuracy": table}))
    assert found.verdict == verdict
    times = [sum(here) / sum(there) for here, there in zip(letter, number, strict=False)]
    apart, later = sum(low > 100 for low, _ in letter), sum(each > 1 for each in times)
    expected = [apart, len(letter), later, f"{min(times):.1f}", f"{max(times):.1f}"]
    told = figures(found.measured)
    assert [told[0], told[1], *told[-3:]] == [str(each) for each in expected]
