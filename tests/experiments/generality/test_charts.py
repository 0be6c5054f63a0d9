"""What the charts of settings draw is what the tables hold, computed here with plain numpy."""

import numpy as np
import pytest

from possym.experiments.generality import charts
from possym.experiments.generality import summaries as settings

from ...charts.drawn import draw, is_complete, marks, texts, title_of, unpacked
from .synthetic import GENERAL, PAIRS, study


@pytest.fixture(scope="module")
def tables():
    """A study whose seeds differ in accuracy, kinds and the step at which heads turn."""
    patterns = ["PPSN", "PSSN", "NNSS", "PPPS"]
    return study(
        seeds=4,
        kinds=lambda seed: GENERAL["kinds"] | {("heads", "number"): patterns[seed]},
        final=lambda seed: GENERAL["final"] | {("heads", "number"): 0.7 + 0.05 * seed, ("llama", "letter"): 0.2},
        turns=lambda seed: GENERAL["turns"] | {("mixed", "mixed"): 1000 * seed + 1000},
    ).tables


def test_accuracies_mark_every_model_and_the_median(tables):
    chart = charts.accuracies(settings.final_purity(tables["accuracy"], tables["heads"]))
    is_complete(chart)
    svg = draw(chart)
    found = marks(svg, "point")
    assert len(found) == 4 * len(PAIRS)
    mine = [m["accuracy"] for m in found if (m["label"], m["task"]) == ("more heads a layer", "number")]
    assert sorted(mine) == ["70.00\xa0%", "75.00\xa0%", "80.00\xa0%", "85.00\xa0%"]
    ticks = {(mark["label"], mark["task"]): mark for mark in marks(svg, "tick")}
    assert len(ticks) == len(PAIRS)
    (value,) = (v for k, v in ticks["more heads a layer", "number"].items() if k.startswith("Median"))
    assert float(value) == pytest.approx(0.775)
    assert f"In {len(PAIRS) - 2} of {len(PAIRS)} settings" in chart.to_dict()["title"]["text"]


@pytest.mark.parametrize("gamma", [0.1, 0.05])
def test_shares_are_means_over_seeds(tables, gamma):
    heads = tables["heads"].copy()
    heads.loc[(heads["gamma"] == 0.05) & (heads["kind"] == 1), "kind"] = 0
    chart = charts.pure_shares(tables["accuracy"], heads)
    is_complete(chart)
    found = {(m["row"], m["kind"]): m for m in marks(draw(chart, gamma=gamma), "bar") if "kind" in m}
    row = "more heads a layer: number"
    positional = np.mean([2, 1, 0, 3]) if gamma == 0.1 else 0.0
    symbolic = np.mean([1, 2, 2, 1])
    for kind, count in (("positional", positional), ("symbolic", symbolic), ("neither", 4 - positional - symbolic)):
        assert float(found[row, kind]["heads"]) == pytest.approx(count, abs=0.051)
        assert float(found[row, kind]["share"].rstrip("%")) == pytest.approx(25 * count, abs=0.51)
    low = {0.1: 75, 0.05: 25}[gamma]
    assert title_of(chart, gamma=gamma).startswith(f"Between {low} % and 100 % of the heads end pure at γ = {gamma}")


def test_layers_show_the_share_of_each_kind(tables):
    chart = charts.kinds_by_layer(settings.by_layer(tables["heads"]))
    is_complete(chart)
    found = {(m["panel"], m["layer"], m["kind"]): m["share"] for m in marks(draw(chart), "bar")}
    assert len({panel for panel, _, _ in found}) == len(PAIRS)
    assert found["more heads a layer: number", "0", "positional"] == "75\xa0%"
    assert found["more heads a layer: number", "3", "symbolic"] == "50\xa0%"
    assert found["few short paths: letter", "2", "symbolic"] == "100\xa0%"
    assert not any(kind == "neither" for _, _, kind in found)


@pytest.mark.parametrize("panel", ["the mixed task: mixed", "more heads a layer: number"])
def test_the_menu_picks_the_course_of_a_setting(tables, panel):
    courses = settings.course(tables["accuracy"], tables["scores"])
    chart = charts.over_training(courses)
    is_complete(chart)
    label, task = panel.split(": ")
    mine = courses[(courses["setting"].map(charts.LABELS) == label) & (courses["task"] == task)]
    rows = unpacked(chart.data, ["step", "median", "low", "high"])
    names = {"accuracy": "accuracy", "pure positional heads": "positional", "pure symbolic heads": "symbolic"}
    shown = [row for row in rows if row["panel"] == panel]
    assert len(shown) == 7 * 3 and len(rows) == 7 * 3 * len(PAIRS)
    for row in shown:
        values = mine.loc[mine["step"] == row["step"], names[row["curve"]]]
        found = [row["low"], row["median"], row["high"]]
        assert found == pytest.approx(np.quantile(values, [0, 0.5, 1]), abs=1e-4)
    lines = marks(draw(chart, panel=panel), "line mark")
    assert {line["curve"] for line in lines} == set(names)
    assert {line["panel"] for line in lines} == {panel}
    first = {row["curve"]: row["median"] for row in shown if row["step"] == 0}
    for line in lines:
        assert line["step"] == "0" and float(line["median"]) == pytest.approx(first[line["curve"]], abs=1e-3)


def test_the_course_counts_settings_in_which_purity_rises_with_learning(tables):
    courses = settings.course(tables["accuracy"], tables["scores"])
    title = charts.over_training(courses).to_dict()["title"]["text"]
    rises = f"In {len(PAIRS)} of {len(PAIRS)} settings and tasks"
    assert title == f"{rises} more heads are pure at the end than before learning"
    early = study(turns=GENERAL["turns"] | {("heads", "letter"): 1000}).tables
    title = charts.over_training(settings.course(early["accuracy"], early["scores"])).to_dict()["title"]["text"]
    assert title.startswith(f"In {len(PAIRS) - 1} of {len(PAIRS)} ")


def test_settings_stand_in_the_books_order(tables):
    drawn = texts(draw(charts.accuracies(settings.final_purity(tables["accuracy"], tables["heads"]))))
    order = [text for text in drawn if text in charts.LABELS.values()]
    assert order == [label for name, label in charts.LABELS.items() if name != "paper"]
