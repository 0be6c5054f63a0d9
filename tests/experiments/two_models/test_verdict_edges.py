"""Where verdicts on two real models change, just on each side of every threshold of their criteria."""

from types import SimpleNamespace

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN
from possym.experiments.two_models import HELD, STATEMENTS, claims
from possym.profiling.statistics import Estimate
from possym.results import Study

from ...claims.stored_numbers import figures
from .. import edges

LAYERS = pd.DataFrame({"model": ["other"] * 2 + ["gemma"] * 2, "kind": ["full", "full", "sliding", "full"]})


def study(**tables):
    return Study({"layers": LAYERS, "heads": pd.DataFrame()} | tables, manifest={"config": {"known_heads": 10}})


def test_the_model_of_both_kinds_is_asked_and_its_interval_is_told_with_its_p_value():
    assert claims.gemma_of(study()) == "gemma" and claims.gemma_of(Study({"layers": LAYERS[:2]})) is None
    one, other = Estimate(0.5, 0.25, 0.75, 0.0312), Estimate(0.0, -1.0, 1.0)
    assert claims.interval(one, other) == "+0.25 to +0.75, p = 0.031 and -1.00 to +1.00"


@edges.TRADE
def test_the_trade_lies_below_zero_and_below_random_weights(low, high, random, verdict, monkeypatch):
    monkeypatch.setattr(claims, "papers_form", lambda *_: None)
    monkeypatch.setattr(claims, "correlation", lambda _: Estimate((low + high) / 2, low, high, 0.5))
    monkeypatch.setattr(claims, "random_correlations", lambda *_: pd.Series([random, 0.9]))
    assert claims.trade(study()).verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "p", "verdict"),
    [
        (0.01, 0.5, 0.05, HOLDS), (0.0, 0.5, 0.05, NOT_SHOWN), (0.01, 0.5, 0.051, NOT_SHOWN),
        (-0.5, 0.0, 0.01, NOT_SHOWN), (-0.5, -0.01, 0.01, FAILS),
    ],
)  # fmt: skip
def test_halves_differ_in_the_stated_direction_by_two_tests(low, high, p, verdict, monkeypatch):
    heads = pd.DataFrame({"layer": [0, 1, 1, 2, 3, 4], "positional": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]})
    for sign in (1, -1):
        ends = (low, high) if sign == 1 else (-high, -low)
        monkeypatch.setattr(claims, "papers_form", lambda *_: heads)
        monkeypatch.setattr(claims, "early_late", lambda *_, ends=ends: Estimate(sum(ends) / 2, *ends, p))
        found = claims.halves("positional", sign)(study())
        assert found.verdict == verdict
        assert figures(found.measured)[:2] == ["0.20", "0.50"]  # of five layers the first two are early


@pytest.mark.parametrize(
    ("value", "p", "second", "verdict"),
    [
        (0.2, 0.05, 0.1, HOLDS), (0.2, 0.05, 0.0, IN_PART), (0.2, 0.051, 0.1, NOT_SHOWN), (0.0, 0.05, 0.1, FAILS),
        (-0.2, 0.01, 0.1, FAILS), (-0.2, 0.051, 0.1, NOT_SHOWN),
    ],
)  # fmt: skip
def test_full_layers_lead_by_an_exact_test_and_by_statements_too(value, p, second, verdict, monkeypatch):
    found = {HELD: Estimate(value, value - 1, value + 1, p), STATEMENTS: Estimate(second, -1.0, 1.0, 0.5)}
    table = pd.DataFrame({"kind": ["full", "sliding"], "symbolic": 0.5, "positional": 0.5})
    monkeypatch.setattr(claims, "layer_leads", lambda *given: table.assign(blocks=given[3]))
    monkeypatch.setattr(claims, "gap_test", lambda table: found[table["blocks"][0]])
    monkeypatch.setattr(claims, "random_gaps", lambda *_: pd.Series([0.0]))
    assert claims.full_symbolic(study()).verdict == verdict


@pytest.mark.parametrize(
    ("own", "swapped", "low", "high", "verdict"),
    [
        (0.4, 0.2, 0.01, 0.9, HOLDS), (0.4, -0.2, 0.01, 0.9, HOLDS), (0.4, 0.21, 0.01, 0.9, IN_PART),
        (0.4, -0.21, 0.01, 0.9, IN_PART), (0.4, 0.2, 0.0, 0.9, NOT_SHOWN), (0.4, 0.2, -0.9, 0.0, NOT_SHOWN),
        (0.4, 0.2, -0.9, -0.01, FAILS), (0.0, 0.0, 0.01, 0.9, NOT_SHOWN), (-0.1, 0.0, 0.01, 0.9, NOT_SHOWN),
        (1e-6, 0.0, 0.01, 0.9, HOLDS),
    ],
)  # fmt: skip
def test_at_most_half_of_the_gap_is_left_with_swapped_bases(own, swapped, low, high, verdict, monkeypatch):
    table = pd.DataFrame({"condition": ["own", "swapped"], "gap": [own, swapped], "text_loss": 2.0})
    monkeypatch.setattr(claims, "by_condition", lambda *_: table)
    monkeypatch.setattr(claims, "gap_change", lambda *_: Estimate(own - swapped, low, high))
    assert claims.base_makes_it(study()).verdict == verdict


@edges.ON_THEIR_SIDE
def test_known_heads_lead_to_their_side_in_both_models(intervals, verdict, monkeypatch):
    asked = []
    table = pd.DataFrame({"lead": [0.5, -0.25], "known": [True, False], "layer": [0, 1]})

    def placed(definition, prompts, count):
        asked.append((definition, prompts, count))
        return table

    models = {str(k): SimpleNamespace(placed=placed) for k in range(len(intervals))}
    monkeypatch.setattr(claims, "atlases", lambda _: models)
    for side, sign in (("symbolic", 1), ("positional", -1)):
        left = iter(intervals)

        def area(lead, known, layer, sign=sign, left=left):
            assert lead.tolist() == [0.5 * sign, -0.25 * sign] and known.any() and layer.any()
            low, high = next(left)
            return Estimate((low + high) / 2, low, high)

        monkeypatch.setattr(claims, "area_under_curve", area)
        assert claims.leads_toward("induction", side)(study()).verdict == verdict
    assert set(asked) == {("induction", claims.REPEATED, 10)}


@pytest.mark.parametrize(
    ("common", "verdict"), [((5, 5), HOLDS), ((4, 9), IN_PART), ((3, 4), IN_PART), ((2, 9), FAILS), ((0, 0), FAILS)]
)
def test_two_definitions_share_half_of_ten_heads_or_more_than_by_chance(common, verdict, monkeypatch):
    """Of 100 heads, 3 in common of ten and ten have p = 0.06 and 4 p = 0.01 by the hypergeometric distribution."""
    models = {}
    for k, each in enumerate(common):
        heads = 200 if common == (3, 4) else 100  # there 3 have p = 0.01
        row = dict(first="retrieval", second="query_focused", overlap=each / 10, by_chance=10 / heads)
        other = row | dict(first="induction", overlap=1.0)
        models[str(k)] = SimpleNamespace(agreement=lambda count, rows=(other, row): pd.DataFrame(rows))
    monkeypatch.setattr(claims, "atlases", lambda _: models)
    found = claims.same_retrieval_heads(study())
    assert found.verdict == verdict and [one.value for one in found.estimates] == list(common)
    assert f"0: {common[0]} of 10 (by chance {0.5 if common == (3, 4) else 1.0}, p = " in found.measured
