"""The live head: its controls decide what it learns, and its pictures show its numbers."""

import pytest

from possym.charts.typography import percent
from possym.experiments.canonical.explorer import LENGTH, canonical_explorer


def trained(task, frequency_id, planes=1):
    explorer = canonical_explorer(seed=3, steps=400)
    explorer.task.value, explorer.frequency_id.value, explorer.planes.value = task, frequency_id, planes
    explorer.button.click()
    return explorer


def test_the_angle_decides_whether_index_is_learnt():
    fast, without = trained("index", 5), trained("index", 0)
    assert fast.numbers["accuracy"] > 0.9 > 0.4 > without.numbers["accuracy"]
    assert not fast.button.disabled and fast.progress.value == 400
    tokens = fast.numbers["tokens"]
    assert tokens[-1].isdigit()
    asked = LENGTH - 1 - int(tokens[-1])
    attention = fast.numbers["attention"]
    assert attention.index(max(attention)) == asked
    assert percent(fast.numbers["accuracy"], 1) in fast.status.value
    assert f"{attention[asked]:.2f}" in fast.picture.value


def test_without_an_angle_retrieval_is_learnt_with_many_planes():
    explorer = trained("retrieval", 0, 16)
    assert explorer.numbers["accuracy"] > 0.5
    assert sum(explorer.numbers["by_place"]) / (LENGTH - 1) == pytest.approx(explorer.numbers["accuracy"], abs=0.01)
    assert len(explorer.numbers["queries"]) == LENGTH
