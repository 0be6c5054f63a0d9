"""Charts of cache plans show their tables' numbers."""

import re

import pandas as pd
import pytest

from possym.experiments.cache_plans import charts, claims, summaries
from possym.kv_cache import RULES, CachePlan, Heads, keep

from ...charts.drawn import draw, marks
from .test_claims import COST, study


@pytest.fixture(scope="module")
def found():
    return study().tables


def test_every_rule_has_its_cost_at_every_share(found):
    loss = found["loss"][found["loss"]["model"].isin([claims.MAIN, claims.REAL])]
    chart = charts.cost_by_share(loss)
    points = marks(draw(chart), "point")
    assert len(points) == 2 * len(RULES) * 3 and set(charts.RULE_NAMES) == set(RULES)
    names = {name: rule for rule, name in charts.RULE_NAMES.items()}
    for point in points:
        share = float(point["Share of key heads with a window"].rstrip("%")) / 100
        assert float(point["Loss added, nats a token"]) == pytest.approx(share * COST[names[point["name"]]], abs=0.02)
    assert re.fullmatch(".* chosen by kind, cost at most (39|40|41)% .*", chart.title.text)
    other = loss.assign(loss=lambda t: t["loss"] + (t["rule"] == "positional") * (t["model"] == claims.REAL))
    assert "do not cost much less" in charts.cost_by_share(other).title.text


def test_tables_say_what_windows_save_and_which_rule_costs_least(found):
    plans = found["loss"].assign(fraction=1 - 0.9 * found["loss"]["share"])
    table = charts.bargain_table(found["loss"], plans)
    row = table[table["heads with a window"] == "50%"].loc[claims.REAL]
    assert row["cache left"] == "55%"
    assert float(row["most positional"]) == pytest.approx(0.2, abs=0.01) and float(row["random"]) == pytest.approx(
        0.5, abs=0.01
    )
    won = charts.winners_table(found["loss"]).loc["Trained here, RoPE", "75% windowed"]
    name, _, cost = won.rpartition(", ")
    assert name == "kind × distance, fitted windows" and float(cost) == pytest.approx(0.075, abs=0.01)


def test_the_loss_added_by_position_is_less_the_intact_models(found):
    places = found["loss"].drop(columns="sequence").merge(pd.DataFrame({"position": [15.5, 47.5]}), how="cross")
    chart = charts.cost_by_position(places, claims.REAL)
    points = marks(draw(chart), "point")
    assert len(points) == 2 * len(RULES)
    for point in points:
        rule = next(rule for rule, name in charts.RULE_NAMES.items() if name == point["name"])
        assert float(point["Loss added, nats a token"]) == pytest.approx(COST[rule] / 2, abs=0.02)
    assert chart.title.text == "At the end of the sequence, each head tried alone costs least and random most"


def test_recall_by_depth_has_a_line_for_every_rule_and_the_intact_model(found):
    needle = found["needle"].merge(
        pd.DataFrame({"length": [32, 64, 64], "depth": [0.5, 0.0, 0.5], "distance": 9}), how="cross"
    )
    chart = charts.recall_by_depth(needle, claims.MAIN)
    points = marks(draw(chart), "point")
    assert len(points) == 3 * (len(RULES) + 1)
    shown = {point["name"]: point["Recall"] for point in points}
    expected = found["needle"].query("model == 'rope' and rule == 'entropy' and share == 0.5")["right"].mean()
    assert float(shown["entropy"].rstrip("%")) / 100 == pytest.approx(expected, abs=0.006)
    assert shown["intact"].startswith("100")


def test_copying_has_a_point_for_every_rule_and_share(found):
    chart = charts.copying_by_share(found["copying"], claims.REAL)
    points = marks(draw(chart), "point")
    assert len(points) == len(RULES) * 3
    for point in points:
        rule = next(rule for rule, name in charts.RULE_NAMES.items() if name == point["name"])
        assert float(point["Random tokens copied"].rstrip("%")) / 100 == pytest.approx(0.9 - 0.5 * COST[rule], abs=0.02)
    assert "kind × distance, fitted windows copies 8" in chart.title.text and "intact 9" in chart.title.text


def test_recall_has_a_point_for_every_dose(found):
    chart = charts.recall_by_dose(found["dose"], claims.MAIN)
    points = marks(draw(chart), "point")
    table = summaries.dose_curve(found["dose"]).query("model == 'rope'")
    assert len(points) == len(table) == 7 * 3
    shown = sorted(float(point["Recall of needles"].rstrip("%")) / 100 for point in points)
    assert shown == pytest.approx(sorted(table["value"]), abs=0.006)
    words = r"With the \d slowest planes silent in (symbolic|retrieval) heads recall is \d+%, .* intact \d+%"
    assert re.fullmatch(words, chart.title.text)


def test_probes_have_a_dot_for_every_arm(found):
    chart = charts.probes_without_heads(found["knock_out"], claims.MAIN)
    points = marks(draw(chart), "point")
    assert len(points) == 2 * 7
    assert chart.title.text.endswith("counting without positional ones")
    assert min(float(point[charts.PROBE_NAMES["counting"]]) for point in points if charts.PROBE_NAMES["counting"] in
               point) == pytest.approx(0.5, abs=0.02)  # fmt: skip


def test_probes_lost_without_any_kind_are_not_ranked(found):
    table = found["knock_out"].copy()
    table.loc[(table["probe"] == "look-up") & (table["arm"] == "group"), "value"] = 0.0
    title = charts.probes_without_heads(table, claims.MAIN).title.text
    assert title == "Leave out any one kind, and nothing is looked up; counting suffers most without positional heads"


def test_a_plan_has_a_tile_for_every_key_head():
    chart = charts.plan_grid(CachePlan([[None, 8], [8, 8], [None, None]], sink=2))
    tiles = marks(draw(chart), "rect mark")
    assert len(tiles) == 6 and sum(tile["what"] == "window" for tile in tiles) == 3
    assert chart.title.text == "50% of the key heads keep everything"


def test_a_rule_chosen_by_hand_shows_its_heads_and_what_all_rules_cost(found):
    rows = found["kinds"].rename(columns={"head": "key_head"})
    number = rows["key_head"] + 8 * rows["layer"]
    heads = rows.assign(distance=1.0 * number, beyond=-1.0 * number, area=0.0, entropy=0.0, oracle=0.0)
    chart = charts.rules_by_hand(heads, found["loss"], claims.MAIN)
    first = heads[(heads["model"] == claims.MAIN) & (heads["seed"] == 0)]
    for rule, at, share in (("kind_distance", 1, 0.5), ("beyond", 2, 0.75)):
        shown = chart.copy(deep=True)
        for param in shown.params:
            param.value = {"rule": charts.RULE_NAMES[rule], "at": at}.get(param.name, param.value)
        drawn = draw(shown)
        tiles = marks(drawn, "rect mark")
        plan = keep(Heads(first, dict.fromkeys(range(4)), {}), share, rule=rule).table()
        expected = {(row.layer, row.key_head) for row in plan.dropna().itertuples()}
        windowed = {(int(t["Layer"]), int(t["Key head"])) for t in tiles if t["what"] == "window"}
        assert len(tiles) == 32 and windowed == expected
        bars = {bar["name"]: float(bar["Loss added, nats a token"]) for bar in marks(drawn, "bar")}
        costs = summaries.curve(found["loss"]).query("model == 'rope' and share == @share").set_index("rule")["value"]
        assert bars == pytest.approx({charts.RULE_NAMES[name]: value for name, value in costs.items()}, abs=6e-4)
