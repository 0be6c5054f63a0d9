"""How forecasts are judged: hand-made tables, worked out by hand, by scipy or by enumeration."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.experiments.generalization.judging import (
    LEVELS,
    errors_by_level,
    forecast_quality,
    held_out_predictions,
    predicted_points,
    predictions,
    quality,
    ranks_within,
    ratios_by_level,
    sign_test,
)


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


def test_intervals_hold_95_percent_of_what_is_drawn():
    random = np.random.default_rng(1)
    observed = 10 ** random.uniform(1, 3, 40)
    predicted = observed * 10 ** random.normal(0, 0.2, 40)
    table = pd.DataFrame({"way": "forecast", "predicted": predicted, "observed": observed})
    row = quality(table, draws=20_000).set_index("measure").loc["error"]
    errors = np.abs(np.log10(predicted / observed))
    theirs = stats.bootstrap((errors,), np.mean, n_resamples=20_000, method="percentile", rng=2).confidence_interval
    tolerance = 0.08 * errors.std() / 40**0.5
    assert (row["low"], row["high"]) == pytest.approx((theirs.low, theirs.high), abs=tolerance)
    flat = quality(table.assign(observed=50.0), draws=20).set_index("measure")["value"]
    assert math.isnan(flat["rank"]) and not math.isnan(flat["error"])


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
    pair = points.query("seed < 2 and setting == 'llama'")
    assert held_out_predictions(pair, both[2], by)["seed"].unique().tolist() == [1]
    alone = points.query("seed == 0")
    assert list(held_out_predictions(alone, both[2], by)) == list(predicted)
    assert list(forecast_quality(alone, both[2], by)) == list(found.reset_index())[2:] + by
    assert forecast_quality(alone, both[2], by).empty


def curves(points, level=0.9):
    """Curves of one task that fall below the levels at a point and 1, 2 and 3 times as far again."""
    rows = []
    for seed, point in enumerate(points):
        for times, accuracy in ((0.5, 1.0), *zip((1, 2, 3, 4), LEVELS, strict=True), (5, 0.0)):
            rows.append(("a", seed, point * times, 0, accuracy))
            rows.append(("a", seed, point * times, 1, 0.0))
    return pd.DataFrame(rows, columns=["task", "seed", "length", "hops", "accuracy"])


def test_ratios_are_forecast_over_measured_at_every_level():
    measured, forecast = curves([100, 200, 400]), curves([110, 220, 800]).query("hops == 0")
    stays = measured["seed"].eq(2) & measured["accuracy"].between(0.01, 0.65)
    measured.loc[stays, "accuracy"] = 0.65  # the third model stays above 50 % but for its last length
    table = ratios_by_level(measured[measured["length"] < 2000], forecast, ["task"]).set_index("level")
    assert table["models"].eq(3).all() and table["fall"].tolist() == [3, 3, 2, 2]
    assert table["median"].tolist() == pytest.approx([1.1] * 4)
    assert table["high"].tolist() == pytest.approx([2, 2, 1.1, 1.1]) and table["low"].tolist() == pytest.approx(
        [1.1] * 4
    )


def test_errors_are_compared_on_held_out_seeds():
    random = np.random.default_rng(0)
    lengths = 100 * 2 ** random.uniform(0, 3, 16)
    off = 10 ** random.normal(0, 0.05, 16)
    measured, forecast = curves(lengths), curves(lengths * off).query("hops == 0")
    heads = pd.DataFrame({"task": "a", "seed": range(16), "layer": 0, "head": 0, "positional": 0.0, "symbolic": 1.0})
    found = errors_by_level(measured, forecast, heads, ["task"])
    usual = np.exp(np.median(np.log(lengths[:8])))
    expected = np.abs(np.log10(off[8:])) - np.abs(np.log10(usual / lengths[8:]))
    assert found["seeds"].eq(8).all() and found["level"].tolist() == [0.9, 0.7, 0.5, 0.3]
    assert found["difference"].tolist() == pytest.approx([expected.mean()] * 4, abs=1e-3)
    signs = np.array(list(itertools.product((1, -1), repeat=8)))
    flipped = np.abs((signs * expected).mean(1))
    assert found["p"].iloc[0] == pytest.approx((flipped >= abs(expected.mean()) - 1e-12).mean(), abs=0.01)
    assert found["holm"].tolist() == pytest.approx([min(1, 4 * found["p"].iloc[0])] * 4, abs=0.03)


def test_models_that_never_fall_are_not_compared():
    measured = curves([100] * 4)
    heads = pd.DataFrame({"task": "a", "seed": range(4), "layer": 0, "head": 0, "positional": 0.0, "symbolic": 1.0})
    found = errors_by_level(measured.assign(accuracy=1.0), measured.query("hops == 0"), heads, ["task"])
    assert found.empty and list(found) == ["task", "level", "seeds", "difference", "p", "holm"]


def test_signs_are_changed_one_by_one():
    for differences in ([1.0, -2.0, 3.0, 4.0], [0.5, 0.5], [-1.0, -2.0, -3.0, -4.0, -5.0]):
        values = np.array(differences)
        flipped = [abs((np.array(signs) * values).mean()) for signs in itertools.product((1, -1), repeat=len(values))]
        mean, p = sign_test(values)
        assert mean == pytest.approx(values.mean())
        assert p == pytest.approx(np.mean([each >= abs(mean) - 1e-12 for each in flipped]))
    assert sign_test(np.zeros(4)) == (0.0, 1.0) and sign_test(np.array([0.3])) == (0.3, 1.0)


def test_ranks_are_taken_within_kinds():
    """Two kinds far apart, each ranked the wrong way round: together they look well ranked."""
    rows = [
        (kind, seed, base + seed, base - seed, False) for kind, base in (("a", 100), ("b", 1000)) for seed in range(5)
    ]
    rows += [("a", 9, 5000, 1, True), ("c", 0, 10, 10, False)]
    points = pd.DataFrame(rows, columns=["task", "seed", "observed", "forecast", "censored"])
    table, mean = ranks_within(points, ["task"])
    assert table.values.tolist() == [["a", 5, pytest.approx(-1)], ["b", 5, pytest.approx(-1)]]
    assert mean[:3] == pytest.approx((-1, -1, -1)) and mean.p_value == pytest.approx(1)
    right = points.assign(forecast=points["forecast"].where(points["task"] != "b", points["observed"]))
    table, mean = ranks_within(right, ["task"])
    assert table["rank"].tolist() == pytest.approx([-1, 1]) and mean.value == pytest.approx(0)
    assert (mean.low, mean.high) == pytest.approx((-1, 1))
    one = right.query("task == 'b'").assign(forecast=[3, 1, 2, 5, 4])
    table, mean = ranks_within(one, ["task"])
    exact = stats.permutation_test(
        (one["forecast"],), lambda x: stats.spearmanr(x, one["observed"]).statistic,
        permutation_type="pairings", alternative="greater",
    )  # fmt: skip
    assert table["rank"].tolist() == pytest.approx([exact.statistic])
    assert mean.p_value == pytest.approx(exact.pvalue, abs=0.02)
    assert len(ranks_within(one[:4], ["task"])[0]) == 1 and ranks_within(one[:3], ["task"])[0].empty
    for flat in ("observed", "forecast"):
        assert ranks_within(one.assign(**{flat: 7}), ["task"])[0].empty
    empty, mean = ranks_within(points.query("task == 'c'"), ["task"])
    assert empty.empty and math.isnan(mean.value)
