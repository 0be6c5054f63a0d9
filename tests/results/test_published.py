"""The published values: complete, sourced, and equal to what the papers print."""

import pytest

from possym.errors import InputError
from possym.results.published import papers, published, read


def test_every_value_names_its_source():
    for key in read()["values"]:
        value = published(key)
        assert key.startswith(f"{value.paper}.") and value.paper in papers()
        assert value.reading in ("printed", "read off a plot")
        assert value.where and value.unit and value.value is not None


def test_table_3_is_whole_and_checks_out():
    rows = published("P2.table3").value
    models, lengths = {row["model"] for row in rows}, {row["length"] for row in rows}
    cells = {(row["model"], row["task"], row["length"]): (row["mean"], row["sd"]) for row in rows}
    assert len(rows) == len(cells) == 60
    assert (len(models), len(lengths)) == (3, 10)
    assert cells["GPT 5.4", "number", 12] == (0.98, 0.01)
    assert cells["GPT 5.5", "letter", 48] == (0.77, 0.01)
    assert cells["Claude Sonnet 3.7", "letter", 300] == (0.80, 0.05)
    assert cells["GPT 5.4", "letter", 300] == (0.40, 0.06)
    assert round(sum(mean for mean, _ in cells.values()), 2) == 32.54


def test_table_1_has_a_frequency_for_every_layer():
    for task, total in (("number", 282), ("letter", 444)):
        row = published(f"P2.table1.{task}").value
        assert len(row) == 12 and all(1 <= identity <= 64 for identity in row) and sum(row) == total


def test_unknown_value_lists_the_known():
    with pytest.raises(InputError, match=r"P2.nothing.*P2.table1.number"):
        published("P2.nothing")
