"""Where verdicts on length change, just on each side of every threshold of their criteria."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN, UNTESTABLE
from possym.experiments.generalization import claims
from possym.results import Study

NAMES = ("accuracy", "forecast", "heads", "leads", "looks", "repairs")


def study(**tables):
    empty = pd.DataFrame({"task": [], "hops": [], "learning_rate": []})
    return Study(dict.fromkeys(NAMES, empty) | tables, {}, {"config": {"learning_rate": 1e-4}})


@pytest.mark.parametrize(
    ("above", "longest", "verdict"),
    [(3, 850, HOLDS), (2, 850, IN_PART), (1, 850, IN_PART), (0, 850, FAILS), (4, 849, IN_PART)],
)
def test_most_seeds_are_above_nine_tenths_up_to_850(above, longest, verdict, monkeypatch):
    rows = [(seed, length, 0.91 if seed < above else 0.9) for seed in range(4) for length in (17, longest)]
    rows += [(seed, 851, 0.1) for seed in range(4)]
    monkeypatch.setattr(claims, "whole", lambda _, task: pd.DataFrame(rows, columns=["seed", "length", "accuracy"]))
    found = claims.above_until(study())
    assert found.verdict == verdict
    assert found.measured == f"above 90 % at every length to {longest} in {above} of 4 seeds"


@pytest.mark.parametrize(
    ("off", "verdict"),
    [((0.0499,) * 4, HOLDS), ((-0.0499,) * 4, HOLDS), ((0.0501, 0, 0, 0), IN_PART), ((-0.0501, 0.06, 0, 0), IN_PART),
     ((0.06, 0.06, 0.06, 0), FAILS)],
)  # fmt: skip
def test_a_reading_lies_within_the_range_widened_by_a_twentieth(off, verdict, monkeypatch):
    points = [{"length": 100 * k, "accuracy": 0.5} for k in range(1, 5)]
    monkeypatch.setattr(claims, "published", lambda _: SimpleNamespace(value=points))
    ends = [(0.5 + d, 0.5 + d + 0.1) if d > 0 else (0.4 + d, 0.5 + d) for d in off]  # range above, or below
    table = pd.DataFrame(ends, columns=["low", "high"]).assign(length=[100, 200, 300, 400], median=0.5)
    monkeypatch.setattr(claims, "whole", lambda *_: None)
    monkeypatch.setattr(claims, "over_seeds", lambda *_: table)
    assert claims.readings("letter")(study()).verdict == verdict
    exact = table[:2].assign(low=[0.55, 0.0], high=[1.0, 0.45])  # a twentieth away, from above and from below
    monkeypatch.setattr(claims, "over_seeds", lambda *_: exact)
    assert claims.readings("letter")(study()).verdict == HOLDS
    third = table[:3].assign(low=[0.0, 0.9, 0.9], high=1.0)
    monkeypatch.setattr(claims, "over_seeds", lambda *_: third)
    assert claims.readings("letter")(study()).verdict == FAILS
    few = table[:1]
    monkeypatch.setattr(claims, "over_seeds", lambda *_: few)
    assert claims.readings("letter")(study()).verdict == (HOLDS if abs(off[0]) < 0.05 else FAILS)


@pytest.mark.parametrize(
    ("number", "letter", "verdict"),
    [((50, 99), (100, 300), HOLDS), ((50, 100), (100, 300), IN_PART), ((50, 100), (60, 91), IN_PART),
     ((50, 100), (60, 90), FAILS)],
)  # fmt: skip
def test_the_shortest_letter_point_lies_beyond_the_longest_number_point(number, letter, verdict, monkeypatch):
    points = {"number": number, "letter": letter}
    monkeypatch.setattr(claims, "whole", lambda _, task: task)
    monkeypatch.setattr(claims, "crossings", lambda task, by: pd.DataFrame({"point": points[task]}).astype(float))
    assert claims.letter_goes_further(study()).verdict == verdict


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.1] * 8, HOLDS), ([0.0999] * 8, IN_PART), ([0.0, *[0.2] * 7], IN_PART), ([0.0] * 3 + [0.2] * 5, NOT_SHOWN),
        ([0.0] * 4 + [0.2] * 4, FAILS),
    ],
)  # fmt: skip
def test_sharper_logits_gain_a_tenth_and_in_every_seed(gains, verdict, monkeypatch):
    table = pd.DataFrame({17: 0.9, 500: -0.5, 1000: gains})
    monkeypatch.setattr(claims, "gains", lambda _, *asked: table if asked == ("letter", "log length", "all") else None)
    assert claims.sharper_logits(study()).verdict == verdict


@pytest.mark.parametrize(
    ("home", "far", "verdict"),
    [
        (-0.01, [-0.1] * 8, HOLDS), (-0.011, [-0.1] * 8, FAILS), (0.0, [0.0, *[-0.1] * 7], IN_PART),
        (0.0, [0.0] * 3 + [-0.1] * 5, FAILS), (0.0, [0.0] * 2 + [-0.1] * 14, IN_PART),
    ],
)  # fmt: skip
def test_rotation_is_spared_within_a_hundredth(home, far, verdict, monkeypatch):
    table = pd.DataFrame({17: [home, *[0.0] * (len(far) - 1)], 500: 0.9, 1000: far})
    wanted = ("letter", "no rotation", "symbolic")
    monkeypatch.setattr(claims, "gains", lambda _, *asked: table if asked == wanted else None)
    found = claims.rotation_taken(study())
    assert found.verdict == verdict and " at 17 tokens and " in found.measured and " at 1,000 " in found.measured


@pytest.mark.parametrize(
    ("best", "verdict"), [([0.09] * 4, HOLDS), ([0.05] * 3 + [0.1], IN_PART), ([0.1] * 4, FAILS), ([0.099] * 4, HOLDS)]
)
def test_the_best_change_of_angles_gains_less_than_a_tenth(best, verdict, monkeypatch):
    pairs = [("p-RoPE", "all"), ("larger base", "others"), ("log length", "all"), ("none", "none")]
    repairs = pd.DataFrame(pairs * 2, columns=["repair", "heads"]).assign(task="number")
    repairs = pd.concat([repairs, pd.DataFrame({"repair": ["other"], "heads": "all", "task": "letter"})])
    made = {"p-RoPE": best, "larger base": [0.01, 0.01, 0.5, 0.01]}  # the median counts
    monkeypatch.setattr(claims, "gains", lambda _, task, repair, heads: pd.DataFrame({17: 0.9, 1000: made[repair]}))
    found = claims.angles_changed(study(repairs=repairs))
    assert found.verdict == verdict
    assert found.measured.startswith("at 1,000 tokens the best of 2 changes, p-RoPE of all heads, gains ")


def test_what_is_left_of_the_lead_is_lower_on_the_number_task_if_strictly(monkeypatch):
    leads = pd.DataFrame({"task": ["number", "letter"], "length": [17, 5000]})
    for task in ("number", "letter"):
        alone = leads[leads["task"] != task]
        monkeypatch.setattr(claims, "attending_heads", lambda *_, alone=alone: alone)
        assert claims.leads_fall(study()).measured.startswith(f"no head of the {task} task")
    monkeypatch.setattr(claims, "attending_heads", lambda *_: leads)
    for first, less, verdict in ((0.49, 8, HOLDS), (0.5, 7, IN_PART)):
        kept = pd.DataFrame({"number": [first, *[0.1] * 7, 0.9], "letter": [0.5] * 8 + [np.nan]})
        monkeypatch.setattr(claims, "kept_leads", lambda _, kept=kept: kept)
        found = claims.leads_fall(study())
        assert found.verdict == verdict and found.measured.startswith("at 5,000 tokens")
        assert found.estimates[1] == claims.seed_range(pd.Series([0.5] * 8)) and less in (7, 8)


@pytest.mark.parametrize(
    ("medians", "falls", "verdict"),
    [
        ((1.1, 1 / 1.1, 1.0, 1.0), (8, 8, 8, 8), HOLDS), ((1.11, 1.0, 1.0, 1.0), (8, 8, 8, 8), IN_PART),
        ((1.11, 0.9, 1.0, 1.0), (8, 8, 8, 8), IN_PART), ((1.11, 0.9, 1.2, 1.0), (8, 8, 8, 8), FAILS),
        ((1.11, 1.0, 1.0, 1.0), (7, 8, 8, 8), HOLDS), ((1.0,) * 4, (7, 7, 7, 7), UNTESTABLE),
        ((1.0, 1.2, 1.2, 1.0), (7, 8, 8, 8), FAILS),
    ],
)  # fmt: skip
def test_a_median_forecast_is_within_a_tenth_at_each_level_that_half_of_the_models_reach(
    medians, falls, verdict, monkeypatch
):
    table = pd.DataFrame({"level": [0.9, 0.7, 0.5, 0.3], "median": medians, "fall": falls, "models": 16})
    monkeypatch.setattr(claims.judging, "ratios_by_level", lambda *_: table.assign(low=0.5, high=2.0))
    never = pd.DataFrame({"censored": [False, False]})
    monkeypatch.setattr(claims, "crossings", lambda forecast, by, level: never)
    found = claims.forecast_is_unbiased("number")(study())
    assert found.verdict == verdict and "lower bound" not in found.measured
    never.loc[0, "censored"] = True
    again = claims.forecast_is_unbiased("number")(study()).measured
    assert again.count("1 of 2 forecasts never fall") == sum(fall >= 8 for fall in falls)


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        (((-0.1, 0.049, 8),) * 2, HOLDS), (((-0.1, 0.05, 8), (-0.1, 0.01, 8)), IN_PART),
        (((-0.1, 0.05, 8),) * 2, NOT_SHOWN), (((0.1, 0.049, 8), (-0.1, 0.01, 8)), FAILS),
        (((0.1, 0.05, 8), (-0.1, 0.01, 8)), IN_PART), (((0.1, 0.049, 8), (-0.1, 0.5, 8)), FAILS),
        (((0.1, 0.01, 7), (-0.1, 0.01, 8)), HOLDS), (((-0.1, 0.01, 7),) * 2, UNTESTABLE),
        (((0.0, 0.049, 8),) * 2, NOT_SHOWN), (((0.1, 0.05, 8),) * 2, NOT_SHOWN),
    ],
)  # fmt: skip
def test_the_forecast_errs_less_at_every_level_with_eight_held_out_seeds(levels, verdict, monkeypatch):
    table = pd.DataFrame(levels, columns=["difference", "holm", "seeds"]).assign(level=0.9)
    monkeypatch.setattr(claims.judging, "errors_by_level", lambda *_: table)
    assert claims.forecast_beats_one_number("number")(study()).verdict == verdict


@pytest.mark.parametrize(
    ("mean", "p", "verdict"),
    [(0.1, 0.049, HOLDS), (0.1, 0.05, NOT_SHOWN), (-0.1, 0.049, FAILS), (-0.1, 0.05, NOT_SHOWN), (0.0, 0.049, FAILS)],
)
def test_the_best_checkpoint_is_higher_beyond_chance(mean, p, verdict, monkeypatch):
    rows = [("letter", seed, way, length, 0.5 + 0.25 * (way == "best") * (length > 17) - 0.5 * (length == 17))
            for seed in range(2) for way in ("best", "last") for length in (17, 50, 100)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["task", "seed", "checkpoint", "length", "accuracy"])
    seen = []
    monkeypatch.setattr(claims.judging, "sign_test", lambda gain: seen.extend(gain) or (mean, p))
    found = claims.best_goes_further(study(checkpoints=table))
    assert found.verdict == verdict and seen == [0.25, 0.25] and "over 2 lengths to 100 " in found.measured
