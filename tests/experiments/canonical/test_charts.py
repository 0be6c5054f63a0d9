"""Charts say what their tables say: titles, values and order of angles."""

import numpy as np
import pandas as pd
import pytest
import torch

from possym.errors import InputError
from possym.experiments.canonical import TASKS, charts
from possym.experiments.canonical.one_angle_limits import smallest_turn

from ...charts.drawn import title_of, titles_at_every_setting, value_of
from .synthetic import IDS, study


@pytest.fixture(scope="module")
def tables():
    return study().tables


def data_of(chart):
    """All rows that a chart draws, from the data sets of its specification."""
    sets = chart.to_dict()["datasets"].values()
    return [row for rows in sets for row in rows]


def x_order(chart):
    spec = chart.to_dict()
    layer = spec.get("spec", spec)
    return layer["layer"][0]["encoding"]["x"]["sort"]


def test_accuracy_by_angle_names_what_is_learnt_and_runs_from_fast_to_nope(tables):
    chart = charts.accuracy_by_angle(tables["accuracy"])
    found = titles_at_every_setting(chart)
    for (planes, maps), title in found.items():
        assert title.startswith(f"Learnt to 90 % with {planes} and {maps}: ")
    assert (
        "Index with IDs 1 to 7; Retrieval with IDs 10 to NoPE; Partial induction with none of the angles"
        in title_of(chart)
    )
    weak = tables["accuracy"].assign(accuracy=lambda t: t["accuracy"].where(t["piece"] != "fixed-maps", 0.5))
    chart_of_weak = charts.accuracy_by_angle(weak)
    assert "Index with none of the angles" in title_of(chart_of_weak, maps="fixed maps")
    assert "Index with IDs 1 to 7" in title_of(chart_of_weak, maps="learnt maps")
    assert x_order(chart) == [*[str(i) for i in IDS if i], "NoPE"]
    rows = [r for r in data_of(chart) if (r["task"], r["first_id"], r["planes"]) == ("Index", 3, 16)]
    assert {r["maps"]: r["mean"] for r in rows} == pytest.approx({"learnt maps": 0.95, "fixed maps": 0.93})
    assert all(r["low"] < r["mean"] < r["high"] for r in rows)


def test_accuracy_by_place_opens_at_a_bent_angle_and_counts_shapes(tables):
    chart = charts.accuracy_by_position(tables["by_place"], "index", 16)
    assert "U at 3, inverse U at 0 of the 3 mismatched angles" in title_of(chart)
    (rank,) = [p["value"] for p in chart.to_dict()["params"] if p["name"] == "rank"]
    shown = [*[str(i) for i in IDS if i], "NoPE"]
    assert shown[rank] in {"8", "9", "10"}
    assert [value_of(chart, "rank_said", rank=place) for place in (0, len(shown) - 1)] == [shown[0], "NoPE"]
    words = [r["words"] for r in data_of(chart) if "words" in r]
    assert len(words) == len(IDS) and any(w.startswith("ID 8: U, bend +0.20") for w in words)


def test_bend_by_angle_marks_the_mismatched(tables):
    rows = data_of(charts.bend_by_angle(tables["by_place"], 16))
    marked = {(r["task"], r["first_id"], r["shape"]) for r in rows if r["mismatched"]}
    expected = {("Index", i, "U") for i in (8, 9, 10)} | {("Retrieval", i, "inverse U") for i in (7, 8, 9)}
    assert marked == expected


def test_scores_by_angle_shows_one_temperature(tables):
    rows = data_of(charts.scores_by_angle(tables["scores"], 16, 0.1))
    assert len(rows) == len(IDS) * len(TASKS) * 2
    assert {r["mean"] for r in rows if r["task"] == "Index" and r["kind"] == "positional"} == {0.97}


def test_pairs_are_symmetric_and_those_that_learn_are_counted(tables):
    chart = charts.angle_pairs(tables["accuracy"], 16)
    means = {tuple(sorted((r["head"], r["other"]))): r["mean"] for r in data_of(chart)}
    learnt = sum(mean >= 0.9 for mean in means.values())
    assert title_of(chart).endswith(f"{learnt} of {len(means)} pairs learn it to 90%, the best to 97.0%")
    values = {(r["head"], r["other"]): r["mean"] for r in data_of(chart)}
    assert values["NoPE", "7"] == values["7", "NoPE"] == pytest.approx(0.97)
    assert len(values) == 25


def more(piece, **columns):
    base = {
        "piece": piece,
        "task": "index",
        "length": 32,
        "maps": "learnt",
        "first_id": 1,
        "second_id": -1,
        "planes": 16,
    }
    rows = pd.DataFrame(columns)
    return rows.assign(**{k: v for k, v in base.items() if k not in rows})


def test_swapped_angles_separate_own_from_other():
    pairs = [(a, b) for a in (1, 9, 0) for b in (1, 9, 0)]
    table = more(
        "one-angle",
        first_id=[a for a, _ in pairs] * 2,
        test_id=[b for _, b in pairs] * 2,
        seed=[0] * 9 + [1] * 9,
        accuracy=[0.9 if a == b else 0.2 for a, b in pairs] * 2,
    )
    chart = charts.swapped_angles(table, "index", 16)
    assert title_of(chart) == "Index: 90% on average with the trained angle, 20% with another"


def test_planes_and_borders_keep_their_groups_apart():
    planes = more(
        "planes",
        planes=[1, 1, 8, 8],
        seed=[0, 1, 0, 1],
        step=[9] * 4,
        accuracy=[0.3, 0.5, 0.8, 1.0],
        task=["retrieval"] * 4,
    )
    assert "best 40.0% with one plane, 90.0% with 8 planes" in title_of(charts.accuracy_by_planes(planes, "retrieval"))
    parts = []
    for task in ("index", "retrieval"):
        common = {"seed": [0, 1, 0, 1], "step": [9] * 4, "task": [task] * 4}
        parts.append(more("one-angle", first_id=[1, 1, 2, 2], accuracy=[0.4, 0.4, 0.2, 0.2], **common))
        parts.append(more("one-angle", first_id=[1, 1, 0, 0], planes=[1] * 4, accuracy=[0.7] * 4, **common))
        parts.append(more("long", first_id=[1, 1, 0, 0], length=[128] * 4, accuracy=[0.1, 0.1, 0.3, 0.3], **common))
        parts.append(more("one-angle", first_id=[0, 0, 3, 3], accuracy=[0.3, 0.3, 0.2, 0.2], **common))
    chart = charts.borders(pd.concat(parts), 16)
    found = {(r["tokens"], r["first_id"], round(r["mean"], 6)) for r in data_of(chart) if r["task"] == "Index"}
    assert found == {
        ("32 tokens", 1, 0.4),
        ("32 tokens", 0, 0.3),
        ("128 tokens", 1, 0.1),
        ("128 tokens", 0, 0.3),
    }
    assert "At 32 tokens Index works up to ID 1 and Retrieval from ID 1 on; at 128 tokens" in title_of(chart)


def test_accuracy_over_training_names_the_first_step(tables):
    assert title_of(charts.accuracy_over_training(tables["accuracy"], "index", 16)).endswith("by step 100")
    assert "never at 90%" in title_of(charts.accuracy_over_training(tables["accuracy"], "partial-induction", 16))


def test_spacing_is_the_share_of_even_spacing_and_maps_keep_their_lines(tables):
    chart = charts.index_and_spacing(tables["accuracy"], 16)
    rows = {r["line"]: r["mean"] for r in data_of(chart) if r["first_id"] == 9}
    assert rows == pytest.approx(
        {
            "accuracy, learnt maps": 0.5,
            "accuracy, fixed maps": 0.48,
            "closest two positions ÷ even spacing": smallest_turn(0.1, 32) / (2 * np.pi / 31),
        }
    )
    assert "farthest apart at ID 7; heads with learnt maps reach 95.0% there, with fixed maps 93.0%" in title_of(chart)
    assert all(r["first_id"] for r in data_of(chart))


def test_errors_stand_by_their_own_share_of_short_keys():
    heads = [(first, seed) for first in (3, 9) for seed in (4, 5)]
    accuracy = more(
        "one-angle",
        first_id=[first for first, _ in heads],
        seed=[seed for _, seed in heads],
        planes=[1] * 4,
        step=[50] * 4,
        accuracy=[0.7, 0.5, 1.0, 0.9],
    )
    length = torch.ones(2, 2, 7)
    length[0, 0, 0] = length[1, 0, :2] = 0.1  # at ID 3 one short key of five in the first seed, two in the second
    length[:, :, 5:] = 0.01  # queries' tokens do not count
    key = torch.stack([length, torch.zeros_like(length)], -1)
    chart = charts.errors_and_short_keys(accuracy, key, [3, 9], 5)
    found = {(r["head"], r["seed"]): (r["short"], r["error"]) for r in data_of(chart) if "short" in r}
    expected = {("ID 3", 4): (0.2, 0.3), ("ID 3", 5): (0.4, 0.5), ("ID 9", 4): (0, 0), ("ID 9", 5): (0, 0.1)}
    assert found == {head: pytest.approx(values) for head, values in expected.items()}
    assert f"correlation {np.corrcoef([0.2, 0.4, 0, 0], [0.3, 0.5, 0, 0.1])[0, 1]:.2f}" in title_of(chart)


def test_starts_are_compared_run_by_run(tables):
    other = tables["accuracy"].assign(accuracy=tables["accuracy"]["accuracy"] * 0.8)
    chart = charts.starts_compared(tables["accuracy"], other, 16, ("small", "wide"))
    assert title_of(chart) == "Retrieval without angle: 95% from the small, 76% from the wide"
    means = {r["run"]: r["mean"] for r in data_of(chart) if (r["task"], r["first_id"]) == ("Index", 8)}
    assert means == pytest.approx({"small": 0.5, "wide": 0.4})


def test_titles_count_shapes_and_symbolic_angles(tables):
    assert "Index U at 3 of 3, Retrieval inverse U at 3 of 3" in title_of(charts.bend_by_angle(tables["by_place"], 16))
    title = title_of(charts.scores_by_angle(tables["scores"], 16, 0.1))
    assert title == f"Clearly symbolic at 0 (Index), {len(IDS)} (Retrieval), 0 (Partial induction) of {len(IDS)} angles"


def test_plane_scales_the_longest_to_one_and_keeps_sides_apart():
    contents = torch.zeros(1, 2, 5, 2)
    contents[0, 1] = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 6.0], [0.0, 1.0]])
    chart = charts.plane_in_training(contents, contents, [7], [0, 50], 2)
    assert title_of(chart).startswith("Index at ID 7, step 50, first seed: resultant of the keys 0.71, of the queries")
    assert title_of(chart, point=0).startswith("Index at ID 7, step 0, first seed: resultant of the keys 0.00, of the")
    assert value_of(chart, "point_said") == "50"
    rows = data_of(chart)
    last = [(r["side"], r["token"], r["x"], r["y"]) for r in rows if r["step"] == 50]
    assert last == [
        ("key", "symbol 1", 0.5, 0.0),
        ("key", "symbol 2", 0.0, 1.0),
        ("query", "distance 1", 0.5, 0.0),
        ("query", "distance 2", 0.0, 1.0),
        ("query", "distance 3", 0.0, pytest.approx(1 / 6)),
    ]


@pytest.mark.parametrize("name", ["accuracy_by_planes", "accuracy_over_training"])
def test_unknown_rows_are_refused(tables, name):
    with pytest.raises(InputError, match="there are"):
        getattr(charts, name)(tables["accuracy"], "counting", *([16] if "training" in name else []))
