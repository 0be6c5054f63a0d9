"""Charts of one-hop prompts show their tables' numbers."""

import re

import pandas as pd
import pytest

from possym.experiments import one_hop
from possym.experiments.one_hop import charts
from possym.experiments.one_hop import protocol as onehop

from ...charts.drawn import draw, marks, texts
from .synthetic import LENGTHS, study

RIGHT = {("letter", 12): 0.75, ("letter", 16): 0.5, ("number", 12): 0.25}


@pytest.fixture(scope="module")
def rows():
    return one_hop.answers(study(RIGHT, talks=0.1), "chat")


def test_accuracy_has_a_point_for_every_cell_of_every_model(rows):
    mine = onehop.accuracy(rows).assign(model="made-up")
    table = pd.concat([onehop.table3(), mine[["model", "kind", "length", "mean", "sd"]]])
    chart = charts.accuracy_by_length(table)
    drawn = [
        (mark["model"], int(mark["Items in the sequence (log scale)"]), round(float(mark["Accuracy"]), 3))
        for mark in marks(draw(chart), "point")
    ]
    expected = [(row.model, row.length, round(row.mean, 3)) for row in table.itertuples()]
    assert sorted(drawn) == sorted(expected)
    assert chart.title.text == "In 4 of 4 models numbers fall below one half before letters do"
    weak = table.assign(mean=table["mean"].where(table["model"] != "made-up", 0.1))
    title = charts.accuracy_by_length(weak).title.text
    assert title == "In 3 of 3 models that reach one half, numbers fall below it before letters do"
    assert draw(chart).count('aria-roledescription="rule mark"') == len(table) + 2
    marked = re.findall(r'aria-label="[^"]*model: ([^";]*)"[^>]*opacity="([\d.]+)"', draw(chart, shown="made-up"))
    assert {(model == "made-up", opacity) for model, opacity in marked} == {(True, "1"), (False, "0.12")}


def test_the_paper_and_this_book_stand_side_by_side(rows):
    paper = onehop.table3()
    mine = onehop.accuracy(rows).assign(model="made-up")
    drawn = draw(charts.table_3_and_here(paper, mine))
    points = [
        (mark["model"], mark["asks"], round(float(mark["Accuracy"].rstrip("%")))) for mark in marks(drawn, "point")
    ]
    table = pd.concat([paper, mine])
    assert sorted(points) == sorted(
        (row.model, f"{row.kind} prompts", round(100 * row.mean)) for row in table.itertuples()
    )
    assert {"The paper, Table 3", "Here"} <= set(texts(drawn))
    title = charts.table_3_and_here(paper, mine).title.text
    assert title == "In the paper, numbers fall below one half before letters do in 3 of 3 models"


def test_habits_add_up(rows):
    table = onehop.habits(rows)
    bars = marks(draw(charts.habits(table)), "bar")
    shares = {}
    for bar in bars:
        shares[bar["habit"]] = shares.get(bar["habit"], 0) + float(bar["Share of replies"].rstrip("%")) / 100
    assert sum(shares.values()) == pytest.approx(2 * len(LENGTHS), abs=0.02)
    assert shares["right"] == pytest.approx(0.75 + 0.5 + 0.25, abs=0.02)


def test_forced_choice_shows_its_numbers(rows):
    table = pd.concat([onehop.accuracy(rows, "chosen").assign(form=form) for form in ("chat", "plain")])
    chart = charts.forced_choice(table)
    points = marks(draw(chart), "point")
    assert len(points) == 2 * len(table) / 2 == 12
    assert {float(point["Share right"]) for point in points} == {0.5}
    assert "chat: letters 50%, numbers 50%" in chart.title.text
    assert any("As plain text" in text for text in texts(draw(chart)))
