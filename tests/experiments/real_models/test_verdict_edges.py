"""Where verdicts on real models change, just on each side of every threshold of their criteria."""

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN
from possym.experiments.real_models import FORMS, PAPERS, binding_name, claims
from possym.profiling.statistics import Estimate
from possym.results import Study

from ...claims.stored_numbers import figures
from .. import edges

CONFIG = {"pairs": [8, 64], "reference": 16, "temperature": 0.1, "temperatures": [1e-4, 0.1], "known_heads": 3}
NAMES = ("heads", "frequencies", "random", "random_planes", "directions", "sensitivity", "known", "knob")


def study(**tables):
    return Study(dict.fromkeys(NAMES, pd.DataFrame()) | tables, manifest={"config": CONFIG})


def between(low, high, p=float("nan")):
    return Estimate((low + high) / 2, low, high, p)


def test_small_p_values_are_bounds():
    assert claims.interval(between(0.25, 0.75, 1e-4)).endswith(", p ≤ 0.0001")
    assert claims.interval(between(0.25, 0.75, 1.1e-4)) == "0.25 to 0.75, p = 0.00011"


@edges.TRADE
def test_the_trade_is_judged_in_the_papers_form_alone(low, high, random, verdict, monkeypatch):
    monkeypatch.setattr(claims, "mean_heads", lambda table, task, blocks, form: (task, form))
    ends = {(binding_name(64), form): (low, high) if form == PAPERS else (0.5, 0.9) for form in FORMS}
    monkeypatch.setattr(claims, "correlation", lambda given: between(*ends[given]))
    smallest = {form: random if form == PAPERS else -0.9 for form in FORMS}
    monkeypatch.setattr(claims, "random_correlations", lambda _, form: pd.DataFrame({"r": [smallest[form], 0.9]}))
    assert claims.trade(study()).verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "value", "p", "verdict"),
    [
        (0.01, 0.5, 0.2, 0.05, HOLDS), (0.0, 0.5, 0.2, 0.05, NOT_SHOWN), (0.01, 0.5, 0.2, 0.051, NOT_SHOWN),
        (0.01, 0.5, 0.0, 0.05, NOT_SHOWN), (-0.5, 0.0, -0.2, 0.01, NOT_SHOWN), (-0.5, -0.01, -0.2, 0.01, FAILS),
    ],
)  # fmt: skip
def test_halves_differ_in_the_stated_direction_by_two_tests(low, high, value, p, verdict, monkeypatch):
    heads = pd.DataFrame({"layer": [0, 1, 1, 2, 3, 4], "positional": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]})
    monkeypatch.setattr(claims, "mean_heads", lambda *_: heads)
    for sign in (1, -1):
        ends = (low, high) if sign == 1 else (-high, -low)
        monkeypatch.setattr(claims, "early_late", lambda *_, e=ends, s=sign: Estimate(s * value, *e, p))
        found = claims.halves("positional", sign)(study())
        assert found.verdict == verdict and figures(found.measured)[:2] == ["0.20", "0.50"]


@pytest.mark.parametrize(
    ("symbolic", "low", "high", "random", "verdict"),
    [
        (0.9, 0.1, 0.5, 0.09, HOLDS), (0.89, 0.1, 0.5, 0.09, IN_PART), (0.9, 0.09, 0.5, 0.0, IN_PART),
        (0.9, 0.1, 0.5, 0.1, NOT_SHOWN), (0.9, 0.0, 0.5, -0.5, NOT_SHOWN), (0.9, 0.01, 0.5, -0.5, IN_PART),
        (0.9, -0.5, 0.0, -0.9, NOT_SHOWN), (0.9, -0.5, -0.01, -0.9, FAILS),
    ],
)  # fmt: skip
def test_slow_planes_lead_by_a_tenth_and_beyond_random_weights(symbolic, low, high, random, verdict, monkeypatch):
    medians = pd.Series({"positional": 0.5, "symbolic": symbolic})
    found = medians, between(low, high), pd.Series([random, -0.95])
    monkeypatch.setattr(claims, "third_leads", lambda _, name: found if name == "slow" else None)
    assert claims.slow_symbolic(study()).verdict == verdict


GOOD, SMALL, RANDOM, TIED, ZERO, AGAINST = (
    (-0.5, -0.1, 0.0), (-0.5, -0.09, 0.0), (-0.5, -0.2, -0.3), (-0.5, -0.2, -0.2), (-0.5, 0.0, 0.5), (0.01, 0.5, 0.9),
)  # fmt: skip


@pytest.mark.parametrize(
    ("middle", "fast", "verdict"),
    [
        (GOOD, GOOD, HOLDS), (GOOD, SMALL, IN_PART), (GOOD, RANDOM, IN_PART), (GOOD, TIED, IN_PART),
        (TIED, TIED, NOT_SHOWN), (ZERO, ZERO, NOT_SHOWN), (GOOD, AGAINST, FAILS), (AGAINST, ZERO, FAILS),
        ((0.0, 0.5, 0.9), GOOD, IN_PART),
    ],
)  # fmt: skip
def test_middle_and_fast_planes_are_positional_by_a_tenth(middle, fast, verdict, monkeypatch):
    medians = pd.Series({"positional": 0.9, "symbolic": 0.5})
    ends = {"middle": middle, "fast": fast}
    monkeypatch.setattr(
        claims, "third_leads", lambda _, name: (medians, between(*ends[name][:2]), pd.Series([ends[name][2], 0.95]))
    )
    assert claims.fast_positional(study()).verdict == verdict


@pytest.mark.parametrize(
    ("positional", "symbolic", "norm", "verdict"),
    [(0.9, 0.9, 1.0, HOLDS), (0.9, 0.9, 3.0, IN_PART), (0.89, 0.95, 1.0, FAILS), (0.95, 0.89, 1.0, FAILS)],
)
def test_the_fastest_plane_scores_nine_tenths_on_both_and_is_smallest(positional, symbolic, norm, verdict, monkeypatch):
    rows = [(head, k, *((positional, symbolic, norm) if k == 1 else (0.9, 0.9, 2.0) if k == 2 else (0.9, 0.8, 4.0)))
            for head in range(3) for k in range(1, 10)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["head", "frequency_id", "positional", "symbolic", "logit_norm"])
    monkeypatch.setattr(claims, "planes", lambda _: table)
    monkeypatch.setattr(
        claims, "thirds", lambda _: {"fastest": pd.Series(dict(positional=positional, symbolic=symbolic))}
    )
    found = claims.fastest_both(study())
    assert found.verdict == verdict
    assert found.measured.endswith(
        f"rank {1 if norm == 1 else 2} of 9, smallest first; 1 of the other 8 frequencies score 0.9 or more on both too"
    )


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [(0.9, 0.51, 1, HOLDS), (0.9, 0.5, 1, NOT_SHOWN), (0.89, 0.51, 1, IN_PART), (0.3, 0, 0.5, NOT_SHOWN),
     (0.3, 0, 0.49, FAILS)],
)  # fmt: skip
def test_keys_gather_in_nine_of_ten_heads(value, low, high, verdict, monkeypatch):
    heads = pd.DataFrame({"more": [True, False], "layer": 0, "key": 0.5, "query": 0.25})
    monkeypatch.setattr(claims, "of_task", lambda table, name, blocks: (name, blocks))
    wanted = (binding_name(16), claims.BLOCKS)
    monkeypatch.setattr(claims, "heads_whose_keys_gather", lambda _, given: heads if given == wanted else None)
    monkeypatch.setattr(claims, "layer_interval", lambda *_: Estimate(value, low, high))
    assert claims.keys_gather(study()).verdict == verdict


@pytest.mark.parametrize(("over", "verdict"), [(0, HOLDS), (1, IN_PART), (2, FAILS)])
def test_a_variance_may_exceed_its_bound_by_rounding(over, verdict):
    rows = [("a", 0, 0, k, 1.0 + (2e-4 if k < over else 0.9e-4), 1.0) for k in range(200)]
    rows += [("a", 0, 0, 0, 0.5, 1.0), ("a", 0, 1, 0, 9.0, 0.0)]  # seen before; without a bound
    heads = pd.DataFrame(rows, columns=["task", "prompt", "layer", "head", "variance", "bound"])
    found = claims.bounded(study(heads=heads))
    assert found.verdict == verdict and found.interval == "200 heads and prompts"


@pytest.mark.parametrize(
    ("swaps", "r", "verdict"),
    [(118.8, -0.75, HOLDS), (118.7, -0.75, IN_PART), (60, -0.75, IN_PART), (59.9, -0.75, FAILS), (119, -0.501, FAILS),
     (119, -0.25, HOLDS)],
)  # fmt: skip
def test_scores_rest_on_all_swaps_and_another_temperature_changes_the_correlation(swaps, r, verdict, monkeypatch):
    """Of 16 statements there are 120 swaps."""
    rows = [("temperature", "0.1", swaps, r), ("temperature", "0.0001", 3.0, -0.5), ("swaps", "0.1", 1.0, 0.0)]
    table = pd.DataFrame(rows, columns=["choice", "value", "effective_swaps", "r"]).assign(median_swaps=1.0)
    monkeypatch.setattr(claims, "sensitivity_table", lambda *given: table if given[2] == "0.1" else None)
    found = claims.temperature(study())
    assert found.verdict == verdict and f" of 120 swaps count (median head 1), r = {r:.2f}; " in found.measured


@edges.ON_THEIR_SIDE
def test_known_heads_lead_to_their_side_in_both_forms(intervals, verdict, monkeypatch):
    left, asked = iter(intervals), []
    monkeypatch.setattr(claims, "mean_heads", lambda *given: asked.append(given[1:]))
    monkeypatch.setattr(claims, "with_known", lambda means, known, count: count)
    monkeypatch.setattr(claims, "known_against_others", lambda table, kind: between(*next(left)))
    assert claims.known_lead("induction")(study()).verdict == verdict
    assert asked == [(claims.REPEATED, "tokens", form) for form in FORMS]


@pytest.mark.parametrize(("p", "verdict"), [(0.05, HOLDS), (0.051, NOT_SHOWN), (0.94, NOT_SHOWN), (0.95, FAILS)])
def test_a_band_takes_as_much_as_one_in_twenty_matched_sets(p, verdict, monkeypatch):
    row = dict(measure="induction", own_change=-0.5, matched_change=-0.25, other_change=-0.1, own="symbolic", beyond=1,
               draws=40, p_value=p, heads="induction heads")  # fmt: skip
    monkeypatch.setattr(claims, "own_effects", lambda _: pd.DataFrame([row, row | {"measure": "previous_token"}]))
    monkeypatch.setattr(claims, "shared_planes", lambda *_: "")
    found = claims.needs_own_band("induction")(study())
    assert found.verdict == verdict and found.estimates[0] == (-0.5, -0.5, -0.5, p)
