"""Statistics of heads against loops, scipy, and data whose answer is known."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.errors import InputError
from possym.profiling.statistics import (
    area_under_curve,
    clustered,
    correlation,
    early_late,
    holm,
    pearson,
    prompt_draws,
    sign_flips,
    stability,
)


def heads(layers, count, seed=0, slope=0.0, tied=0.0):
    """Heads with a share ``tied`` of their scores common to a layer, and symbolic = slope · positional + noise."""
    random = np.random.default_rng(seed)
    layer = np.repeat(np.arange(layers), count)
    common, own = random.normal(size=(2, layers))[:, layer]
    x = tied * common + random.normal(size=len(layer))
    y = tied * own + slope * x + random.normal(size=len(layer))
    return pd.DataFrame({"layer": layer, "head": np.tile(np.arange(count), layers), "positional": x, "symbolic": y})


def parts_of(table, column):
    """A column's values layer by layer."""
    return [rows[column].to_numpy() for _, rows in table.groupby("layer")]


def interval(values):
    """The 2.5 to 97.5 % range, between the sorted values where the share falls."""
    values, ends = sorted(values), []
    for share in (0.025, 0.975):
        at = share * (len(values) - 1)
        low = int(at)
        ends.append(values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low]))
    return ends


def test_correlation_its_interval_and_its_p_value_are_those_of_loops_over_the_same_draws():
    table, draws = heads(5, 3, slope=-0.4), 300
    found = correlation(table, draws=draws, seed=4)
    x, y = parts_of(table, "positional"), parts_of(table, "symbolic")
    assert found.value == pytest.approx(stats.pearsonr(table.positional, table.symbolic).statistic, abs=1e-12)
    random = np.random.default_rng(4)
    drawn = random.integers(5, size=(draws, 5))
    both = [[np.concatenate([part[k] for k in some]) for part in (x, y)] for some in drawn]
    assert [found.low, found.high] == pytest.approx(interval([stats.pearsonr(*pair).statistic for pair in both]))
    orders = random.permuted(np.tile(np.arange(5), (draws, 1)), axis=1)
    within = random.permuted(np.tile(np.arange(3), (draws, 5, 1)), axis=2)
    far = 0
    for order, inside in zip(orders, within, strict=True):
        moved = np.concatenate([y[layer][heads_] for layer, heads_ in zip(order, inside, strict=True)])
        far += abs(stats.pearsonr(np.concatenate(x), moved).statistic) >= abs(found.value) - 1e-12
    assert 0 < far < draws and found.p_value == (far + 1) / (draws + 1)


def test_p_value_of_a_correlation_is_that_of_all_permutations():
    table = heads(4, 1, seed=3, slope=-0.5)
    x, y = table.positional.to_numpy(), table.symbolic.to_numpy()
    observed = abs(np.corrcoef(x, y)[0, 1])
    every = [abs(np.corrcoef(x, y[list(order)])[0, 1]) for order in itertools.permutations(range(4))]
    exact = np.mean(np.array(every) >= observed - 1e-12)
    assert correlation(table, draws=4000).p_value == pytest.approx(exact, abs=0.04)


def test_what_is_observed_counts_as_a_permutation():
    """Where every arrangement is as far from zero p is 1, where none is it is one in the draws and one more."""
    alike = pd.DataFrame({"layer": [0, 1, 2], "positional": [0.0, 0.0, 1.0], "symbolic": [1.0, 0.0, 0.0]})
    assert correlation(alike, draws=20).p_value == 1
    rising = pd.DataFrame({"layer": range(9), "positional": np.arange(9.0) ** 2, "symbolic": np.arange(9.0) ** 2})
    assert correlation(rising, draws=20).p_value == 1 / 21
    assert early_late(alike.assign(positional=[1.0, 1.0, 1.0]), "positional", draws=20).p_value == 1
    apart = pd.DataFrame({"layer": range(12), "positional": np.arange(12.0)})
    assert early_late(apart, "positional", draws=20).p_value == 1 / 21


def test_layers_that_share_their_scores_do_not_count_as_many_heads():
    """Where all heads of a layer are alike, tests that ignore layers find what is not there; this one does not."""
    naive, ours = [], []
    for seed in range(60):
        table = heads(8, 12, seed=seed, tied=4.0)
        naive.append(stats.pearsonr(table.positional, table.symbolic).pvalue < 0.05)
        ours.append(correlation(table, draws=200, seed=seed).p_value < 0.05)
    assert np.mean(naive) > 0.3
    assert np.mean(ours) < 0.15


def test_early_late_its_interval_and_its_p_value_are_those_of_loops_over_the_same_draws():
    table, draws = heads(7, 3, seed=1), 300
    table["positional"] += np.where(table.layer < 3, 0.8, 0.0)
    parts = parts_of(table, "positional")

    def difference(rows):
        return np.median(np.concatenate(rows[:3])) - np.median(np.concatenate(rows[3:]))

    found = early_late(table, "positional", draws=draws, seed=6)
    assert found.value == pytest.approx(difference(parts), abs=1e-12)
    random = np.random.default_rng(6)
    early, late = random.integers(3, size=(draws, 3)), random.integers(3, 7, size=(draws, 4))
    drawn = [difference([parts[k] for k in (*a, *b)]) for a, b in zip(early, late, strict=True)]
    assert [found.low, found.high] == pytest.approx(interval(drawn))
    orders = random.permuted(np.tile(np.arange(7), (draws, 1)), axis=1)
    far = sum(abs(difference([parts[k] for k in order])) >= abs(found.value) - 1e-12 for order in orders)
    assert 0 < far < draws and found.p_value == (far + 1) / (draws + 1)


def test_p_value_of_early_and_late_is_that_of_all_permutations():
    table = heads(5, 2, seed=1)
    parts = parts_of(table, "positional")
    every = []
    for order in itertools.permutations(range(5)):
        moved = [parts[k] for k in order]
        every.append(np.median(np.concatenate(moved[:2])) - np.median(np.concatenate(moved[2:])))
    exact = np.mean(np.abs(every) >= abs(every[0]) - 1e-12)
    assert early_late(table, "positional", draws=4000).p_value == pytest.approx(exact, abs=0.04)


def test_middle_layer_belongs_to_the_second_half():
    table = pd.DataFrame({"layer": [0, 1, 2], "positional": [1.0, 0.0, 0.0]})
    assert early_late(table, "positional", draws=50).value == 1.0


def test_stability_is_spearmans_over_matching_heads():
    first, second = heads(3, 4, seed=1), heads(3, 4, seed=2)
    shuffled = second.sample(frac=1, random_state=0)
    found = stability({"a": first, "b": shuffled}, "positional").set_index(["first", "second"])["rank_correlation"]
    expected = stats.spearmanr(first.positional, second.positional).statistic
    assert found["a", "b"] == pytest.approx(expected, abs=1e-12)
    assert found["b", "a"] == pytest.approx(expected, abs=1e-12)
    assert found["a", "a"] == 1


def test_area_under_curve_and_its_interval_are_those_of_loops_over_the_same_draws():
    random = np.random.default_rng(2)
    values, inside = random.integers(0, 5, 24).astype(float), random.random(24) < 0.4
    layers = np.arange(24) // 4 + 3
    found = area_under_curve(*map(pd.Series, (values, inside, layers)), draws=300, seed=5)

    def share(chosen):
        wins = [
            (values[a] > values[b]) + 0.5 * (values[a] == values[b])
            for a in chosen if inside[a] for b in chosen if not inside[b]
        ]  # fmt: skip
        return np.mean(wins) if wins else np.nan

    assert found.value == pytest.approx(share(range(24)))
    times = np.random.default_rng(5).multinomial(6, np.full(6, 1 / 6), size=300)
    drawn = [
        share([k for layer in range(6) for _ in range(row[layer]) for k in np.flatnonzero(layers == layer + 3)])
        for row in times
    ]
    assert [found.low, found.high] == pytest.approx(interval([x for x in drawn if not np.isnan(x)]))


def test_sign_flips_against_every_flip_tried_one_by_one():
    changes = np.random.default_rng(0).normal(0.3, 1, (7, 5))
    changes[:, 3], changes[:, 4] = 0.0, 1.0
    size = [math.sqrt(sum(value**2 for value in column)) or 1.0 for column in changes.T]

    def statistic(signs):
        columns = zip(changes.T, size, strict=True)
        return [abs(sum(s * value for s, value in zip(signs, column, strict=True))) / root for column, root in columns]

    seen, flips = statistic([1] * 7), [statistic(signs) for signs in itertools.product([1, -1], repeat=7)]
    expected = [sum(max(flip) >= each - 1e-12 for flip in flips) / len(flips) for each in seen]
    np.testing.assert_allclose(sign_flips(changes), expected)
    assert expected[3] == 1 and expected[4] == 2 / 128
    drawn = [statistic(1 - 2 * row) for row in np.random.default_rng(1).integers(2, size=(60, 7))]
    expected = [(sum(max(flip) >= each - 1e-12 for flip in drawn) + 1) / 61 for each in seen]
    np.testing.assert_allclose(sign_flips(changes, draws=60, seed=1), expected)


def test_false_findings_among_many_heads_are_as_rare_as_the_level_says():
    random = np.random.default_rng(1)
    shared = random.normal(size=(200, 10, 1))  # heads that change together
    found = [(sign_flips(shared[k] + random.normal(size=(10, 40))) < 0.05).any() for k in range(200)]
    assert np.mean(found) < 0.1


def test_draws_are_means_over_whole_prompts():
    sums, counts = np.array([[1.0, 2.0], [6.0, 0.0], [2.0, 0.0]]), np.array([[1.0, 1.0], [2.0, 0.0], [1.0, 0.0]])
    drawn = prompt_draws(sums, counts, draws=4000)
    possible = [
        (sum(sums[k, 0] for k in picked) / sum(counts[k, 0] for k in picked))
        for picked in itertools.product(range(3), repeat=3)
    ]
    assert np.isin(drawn[:, 0].round(9), np.round(possible, 9)).all()
    assert drawn[:, 0].mean() == pytest.approx(np.mean(possible), abs=0.03)
    assert np.isnan(drawn[:, 1]).mean() == pytest.approx((2 / 3) ** 3, abs=0.03)


def holm_by_definition(p_values: list[float], level: float) -> list[bool]:
    """Which hypotheses Holm's steps reject: from the smallest up, until one is not below its share of the level."""
    rejected = [False] * len(p_values)
    for step, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > level / (len(p_values) - step):
            break
        rejected[index] = True
    return rejected


def test_corrected_p_values_reject_what_the_steps_reject():
    for order in itertools.permutations((0.004, 0.011, 0.02, 0.3)):
        corrected = holm(np.array(order))
        for level in (0.001, 0.016, 0.0161, 0.033, 0.0331, 0.04, 0.05, 0.3):
            assert (corrected <= level).tolist() == holm_by_definition(list(order), level), (order, level)


def test_no_corrected_p_value_exceeds_one_or_falls_below_its_own():
    p_values = np.random.default_rng(0).random(50)
    corrected = holm(p_values)
    assert (corrected <= 1).all() and (corrected >= p_values).all()
    assert corrected.max() == 1 and corrected[p_values.argmin()] == pytest.approx(min(50 * p_values.min(), 1))


def test_a_score_that_does_not_vary_has_no_correlation():
    assert np.isnan(pearson(np.ones(4), np.arange(4.0)))
    rows = np.array([[0.0, 1.0, 5.0], [2.0, 2.0, 2.0]])
    assert pearson(rows, np.array([[1.0, 0.0, 3.0]] * 2))[0] == pytest.approx(np.corrcoef([0, 1, 5], [1, 0, 3])[0, 1])


def test_rows_may_come_in_any_order():
    table = heads(5, 3)
    assert np.array_equal(
        clustered(table, ["positional"])[..., 0].sum(1),
        table.groupby("layer").positional.sum().to_numpy(),
    )
    shuffled = table.sort_values("head", kind="stable")
    assert np.allclose(clustered(shuffled, ["positional"])[..., 0].sum(1), table.groupby("layer").positional.sum())
    assert correlation(shuffled, draws=200).value == pytest.approx(correlation(table, draws=200).value)


def test_same_seed_same_estimate():
    assert correlation(heads(5, 3), draws=100, seed=7) == correlation(heads(5, 3), draws=100, seed=7)
    assert correlation(heads(5, 3), draws=100, seed=7) != correlation(heads(5, 3), draws=100, seed=8)
    plain = dict(draws=10_000, seed=0)
    assert correlation(heads(5, 3)) == correlation(heads(5, 3), **plain)
    assert early_late(heads(5, 3), "positional") == early_late(heads(5, 3), "positional", **plain)


def test_what_does_not_fit_is_refused():
    table = heads(5, 3)
    with pytest.raises(InputError, match="no column nothing"):
        correlation(table, "nothing")
    with pytest.raises(InputError, match="missing values"):
        early_late(table.assign(positional=table.positional.where(table.index > 0)), "positional")
    with pytest.raises(InputError, match=r"5 layers of \[2, 3\] heads"):
        correlation(table.iloc[1:])
    with pytest.raises(InputError, match="2 layers"):
        correlation(heads(2, 3))
    with pytest.raises(InputError, match="at least one"):
        stability({}, "positional")
    with pytest.raises(InputError, match="same heads"):
        stability({"a": table, "b": table.iloc[1:]}, "positional")
    with pytest.raises(InputError, match="some heads must be inside"):
        area_under_curve(table.positional, table.positional > 9, table.layer)
