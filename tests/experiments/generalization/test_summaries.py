"""Summaries of hand-made tables, worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from possym.experiments.generalization.summaries import (
    attending_heads,
    crossing,
    crossings,
    failing_layers,
    kept_leads,
    layer_agreement,
    learnt,
    repair_gains,
)


def test_a_point_is_where_a_line_in_log_length_meets_the_level():
    lengths, accuracy = [17, 50, 200, 1000], [1.0, 0.98, 0.7, 0.2]
    fine = np.geomspace(17, 1000, 200_001)
    curve = np.interp(np.log(fine), np.log(lengths), accuracy)
    for level in (0.9, 0.5):
        assert crossing(lengths, accuracy, level) == pytest.approx(fine[np.argmax(curve < level)], rel=1e-3)
    assert crossing([17, 50], [0.8, 1.0]) == 17
    assert crossing([17, 50], [0.9, 0.9]) == math.inf
    assert crossing([17, 50, 100], [1.0, 0.8, 1.0]) < 50  # the first time counts


def test_points_that_are_never_reached_are_limits():
    table = pd.DataFrame(
        [("a", 0, 100, 0.5), ("a", 0, 10, 1.0), ("b", 0, 10, 1.0), ("b", 0, 100, 0.91)],
        columns=["task", "seed", "length", "accuracy"],
    )
    found = crossings(table, ["task", "seed"]).set_index("task")
    assert found.loc["a", "point"] == pytest.approx(10 * 10**0.2) and not found.loc["a", "censored"]
    assert found.loc["b", "point"] == 100 and found.loc["b", "censored"]


def test_failing_layers_are_told_at_the_first_length_that_fails():
    rows = []
    for length, whole, upto, shielded in (
        (35, 0.95, (1.0, 0.95, 0.95), (0.96, 0.95, 0.95)),
        (70, 0.60, (1.0, 0.85, 0.60), (0.60, 0.70, 0.90)),
        (140, 0.2, (0.5, 0.2, 0.2), (0.9, 0.2, 0.2)),
    ):
        rows.append((0, "whole", -1, length, whole))
        rows += [(0, "upto", layer, length, value) for layer, value in enumerate(upto)]
        rows += [(0, "shielded", layer, length, value) for layer, value in enumerate(shielded)]
        rows.append((1, "whole", -1, length, 1.0))
    table = pd.DataFrame(rows[::-1], columns=["seed", "way", "layer", "length", "accuracy"])
    assert failing_layers(table, ["seed"]).values.tolist() == [[0, 70, 0.6, 1, 2, 0.9]]


def test_a_task_is_learnt_at_the_shortest_length_over_all_hops():
    rows = [(seed, length, hops, right) for seed, home in ((0, 0.99), (1, 0.98)) for length, hops, right in (
        (17, 0, home), (17, 1, 0.5), (100, 0, 1 - home))]  # fmt: skip
    table = pd.DataFrame(rows, columns=["seed", "length", "hops", "accuracy"]).assign(task="a")
    found = learnt(table.sample(frac=1, random_state=1), ["task"]).sort_values("seed")
    assert found[["seed", "accuracy", "learnt"]].values.tolist() == [[0, 0.99, True], [1, 0.98, False]]


def test_agreement_of_layers_is_counted_among_models_that_fail_in_both():
    rows = [("a", 0, "measured", 1), ("a", 0, "forecast", 1), ("a", 1, "measured", 1), ("a", 1, "forecast", 3)]
    rows += [("a", 2, "measured", 2), ("a", 2, "forecast", 3), ("a", 3, "measured", 9)]
    found = layer_agreement(pd.DataFrame(rows, columns=["task", "seed", "source", "cause"]))
    assert found.values.tolist() == [["a", 3, pytest.approx(1 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3)]]


def test_gains_are_of_each_model_against_itself():
    rows = [(seed, "none", "none", 0.2 * seed) for seed in range(3)]
    rows += [(seed, "p-RoPE", "all", 0.2 * seed + gain) for seed, gain in enumerate((0.3, -0.1, 0.1))]
    table = pd.DataFrame(rows, columns=["seed", "repair", "heads", "accuracy"]).assign(task="a", length=100)
    row = repair_gains(table.sample(frac=1, random_state=0)).iloc[0]
    assert row[["gain", "low", "high", "better"]].tolist() == pytest.approx([0.1, -0.1, 0.3, 2 / 3])
    assert row["seeds"] == 3


def test_a_head_attends_to_a_step_with_half_of_its_attention():
    head = {"task": "a", "seed": 0, "layer": 0, "head": 0}
    looks = pd.DataFrame(
        [head | {"hops": h, "step": s, "weight": w} for h, s, w in ((1, 1, 0.5), (2, 2, 0.49), (3, 0, 1))]
    )
    leads = pd.DataFrame([head | {"hops": h} for h in (1, 2, 3)])
    assert attending_heads(leads, looks)["hops"].tolist() == [1]


def test_tables_keep_the_order_of_the_study_and_a_seed_that_gains_nothing_is_not_better():
    rows = [(task, seed, repair, heads, 0.5 + gain * (repair != "none"))
            for task in ("number", "letter") for seed, gain in enumerate((0.0, 0.25, -0.25))
            for repair, heads in (("none", "none"), ("p-RoPE", "others"), ("p-RoPE", "all"))]  # fmt: skip
    table = pd.DataFrame(rows, columns=["task", "seed", "repair", "heads", "accuracy"]).assign(length=100)
    found = repair_gains(table)
    assert found[["task", "heads"]].values.tolist() == [
        ["number", "others"], ["number", "all"], ["letter", "others"], ["letter", "all"]
    ]  # fmt: skip
    assert found["better"].tolist() == [pytest.approx(1 / 3)] * 4 and found["gain"].tolist() == [0.0] * 4
    causes = [(task, seed, source, seed) for task in ("number", "letter") for seed in (0, 1)
              for source in ("measured", "forecast")]  # fmt: skip
    agreement = layer_agreement(pd.DataFrame(causes, columns=["task", "seed", "source", "cause"]))
    assert agreement["task"].tolist() == ["letter", "number"] or agreement["task"].tolist() == ["number", "letter"]
    assert agreement[["models", "same", "near", "usual"]].values.tolist() == [[2, 1.0, 1.0, 0.5]] * 2


def test_accuracy_at_the_level_itself_has_not_fallen():
    ways = [("whole", -1, 0.9, 0.8), ("upto", 0, 0.5, 0.9), ("upto", 1, 0.5, 0.89), ("shielded", 0, 1.0, 0.7),
            ("shielded", 1, 0.9, 0.95)]  # fmt: skip
    rows = [(0, way, layer, length, value) for way, layer, *values in ways
            for length, value in zip((20, 40), values, strict=True)]  # fmt: skip
    rows += [(0, "whole", -1, 80, 0.1)]
    table = pd.DataFrame(rows, columns=["seed", "way", "layer", "length", "accuracy"])
    assert failing_layers(table, ["seed"]).values.tolist() == [[0, 40, 0.8, 1, 1, 0.95]]
    assert crossing([10, 100, 1000], [1.0, 0.9, 0.8]) == pytest.approx(100)


def test_a_seed_keeps_the_last_lead_as_a_share_of_the_first():
    rows = [(task, seed, length, lead * factor) for task, factor in (("number", 0.5), ("letter", 1.0))
            for seed in (0, 1) for length, lead in ((17, 4.0 + seed), (50, 9.0), (100, 3.0))
            for _ in range(2)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["task", "seed", "length", "median"])
    assert kept_leads(table.sample(frac=1, random_state=0)).to_dict() == {
        task: {0: pytest.approx(0.75), 1: pytest.approx(0.6)} for task in ("number", "letter")
    }
