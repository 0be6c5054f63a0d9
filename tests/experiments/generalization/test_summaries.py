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
