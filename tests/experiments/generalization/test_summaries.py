"""Summaries of hand-made tables, worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from possym.experiments.generalization.summaries import (
    crossing,
    crossings,
    failing_layers,
    forecast_quality,
    held_out_predictions,
    layer_agreement,
    learnt,
    predicted_points,
    predictions,
    quality,
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


def points():
    return pd.DataFrame(
        {"seed": range(6), "observed": [100, 200, 400, 100, 400, 200], "forecast": [50, 100, 200, 50, 220, 90]}
    )


def test_predictions_learn_from_training_seeds_alone():
    features = pd.DataFrame({"x": [0.0, 1.0, 2.0, 0.1, 1.9, 0.6]}, index=range(6))
    found = predictions(points(), features, training=[0, 1, 2]).pivot(index="seed", columns="way", values="predicted")
    assert found.index.tolist() == [3, 4, 5]
    assert found["forecast"].tolist() == [50, 220, 90]
    assert found["shifted"].tolist() == pytest.approx([100, 440, 180])
    assert found["one number"].tolist() == pytest.approx([200, 200, 200])
    assert found["nearest seed"].tolist() == [100, 400, 200]


def test_quality_is_error_and_rank_with_intervals_that_hold_them():
    random = np.random.default_rng(0)
    observed = 10 ** random.uniform(1, 3, 40)
    table = pd.concat(
        [
            pd.DataFrame(
                {"way": "good", "predicted": observed * 10 ** random.normal(0, 0.1, 40), "observed": observed}
            ),
            pd.DataFrame({"way": "flat", "predicted": 100.0, "observed": observed}),
        ]
    )
    found = quality(table, draws=300).set_index(["way", "measure"])
    errors = np.abs(np.log10(table["predicted"]) - np.log10(table["observed"])).groupby(table["way"]).mean()
    for way in ("good", "flat"):
        row = found.loc[(way, "error")]
        assert row["value"] == pytest.approx(errors[way]) and row["low"] < row["value"] < row["high"]
        assert row["seeds"] == 40
    ranks = table[table["way"] == "good"][["predicted", "observed"]].rank().corr().iloc[0, 1]
    assert found.loc[("good", "rank"), "value"] == pytest.approx(ranks)
    assert math.isnan(found.loc[("flat", "rank"), "value"])
    assert found.loc[("good", "error"), "high"] < found.loc[("flat", "error"), "low"]
    assert found.equals(quality(table, draws=300).set_index(["way", "measure"]))


def two_kinds():
    """Eight seeds of one task: accuracy falls at a length of its own, the forecast at half of it."""
    rows, foretold, heads = [], [], []
    for seed in range(8):
        point = 100 * 2 ** (seed % 4)
        for length in (17, 50, 100, 200, 400, 800, 1600):
            key = ("letter", 1e-4, seed, length)
            rows += [(*key, 0, 0.9 if length == point else float(length < point)), (*key, 1, 0.0)]
            foretold.append((*key, 0.9 if length == point // 2 else float(length < point // 2)))
        heads += [("letter", 1e-4, seed, layer, 0, seed % 4 / 4, 1 - seed % 4 / 4) for layer in (0, 1)]
    return (
        pd.DataFrame(rows, columns=["task", "learning_rate", "seed", "length", "hops", "accuracy"]),
        pd.DataFrame(foretold, columns=["task", "learning_rate", "seed", "length", "accuracy"]),
        pd.DataFrame(heads, columns=["task", "learning_rate", "seed", "layer", "head", "positional", "symbolic"]),
    )


def test_judging_learns_from_the_first_half_of_the_seeds():
    accuracy, forecast, heads = two_kinds()
    points = predicted_points(accuracy, forecast)
    assert points["observed"].tolist() == pytest.approx([100 * 2 ** (s % 4) for s in range(8)])
    assert points["forecast"].tolist() == pytest.approx([50 * 2 ** (s % 4) for s in range(8)])
    found = forecast_quality(points, heads, draws=20).set_index(["way", "measure"])["value"]
    assert found["forecast", "error"] == pytest.approx(math.log10(2)) and found["forecast", "rank"] == 1
    assert found["shifted", "error"] == pytest.approx(0, abs=1e-6)
    assert found["nearest seed", "error"] == pytest.approx(0, abs=1e-6)  # equal scores, equal points
    usual = math.log10(200 * 2**0.5)
    expected = np.mean([abs(usual - math.log10(100 * 2**k)) for k in range(4)])
    assert found["one number", "error"] == pytest.approx(expected)


def test_kinds_of_models_are_told_apart_by_any_columns():
    """Another setting of two layers beside one of a single layer: each is forecast_quality as it would be alone."""
    tables = [table.drop(columns="learning_rate") for table in two_kinds()]
    accuracy, forecast, heads = tables
    other = [*(t.assign(accuracy=t["accuracy"] ** 2) for t in (accuracy, forecast)), heads.query("layer == 0")]
    other[2] = other[2].assign(positional=other[2]["seed"] % 3)  # others are nearest
    both = [
        pd.concat([a.assign(setting="llama"), b.assign(setting="layers")]) for a, b in zip(tables, other, strict=True)
    ]
    by = ["setting", "task"]
    points = predicted_points(*both[:2], by)
    found = forecast_quality(points, both[2], by, draws=20).set_index(by)
    for setting, (accuracy, forecast, heads) in (("llama", tables), ("layers", other)):
        alone = predicted_points(accuracy, forecast, ["task"])
        expected = forecast_quality(alone, heads, ["task"], draws=20).drop(columns="task")
        pd.testing.assert_frame_equal(found.loc[(setting, "letter")].reset_index(drop=True), expected)
    predicted = held_out_predictions(points, both[2], by)
    assert predicted.groupby(by)["seed"].unique().map(list).tolist() == [[4, 5, 6, 7]] * 2
    alone = points.query("seed == 0")
    assert list(held_out_predictions(alone, both[2], by)) == list(predicted)
    assert list(forecast_quality(alone, both[2], by)) == list(found.reset_index())[2:] + by
    assert forecast_quality(alone, both[2], by).empty


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
