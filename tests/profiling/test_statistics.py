"""Statistics of heads against loops, scipy, and data whose answer is known."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.errors import InputError
from possym.profiling.statistics import clustered, correlation, early_late, pearson, rank_difference, stability


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


def test_rank_difference_counts_pairs():
    table = heads(2, 5, seed=4)
    table["inside"] = table["head"] < 2
    inside, outside = table.positional[table.inside], table.positional[~table.inside]
    wins = np.mean([a > b for a in inside for b in outside])
    found = rank_difference(table, "positional", "inside")
    assert found.value == pytest.approx(2 * wins - 1)
    assert np.isnan(found.low) and np.isnan(found.high)
    # Of all ways to call four heads of ten inside, the share whose count of pairs is as far from one half.
    values, shares = table.positional.to_numpy(), []
    for some in itertools.combinations(range(10), 4):
        rest = [k for k in range(10) if k not in some]
        shares.append(np.mean([values[a] > values[b] for a in some for b in rest]))
    exact = np.mean(np.abs(np.array(shares) - 0.5) >= abs(wins - 0.5) - 1e-12)
    assert found.p_value == pytest.approx(exact)


def test_a_score_that_does_not_vary_has_no_correlation():
    assert np.isnan(pearson(np.ones(4), np.arange(4.0)))
    rows = np.array([[0.0, 1.0, 5.0], [2.0, 2.0, 2.0]])
    assert pearson(rows, np.array([[1.0, 0.0, 3.0]] * 2))[0] == pytest.approx(np.corrcoef([0, 1, 5], [1, 0, 3])[0, 1])


def test_rows_may_come_in_any_order():
    table = heads(5, 3)
    assert np.array_equal(
        clustered(table, ["positional"], "layer")[..., 0].sum(1),
        table.groupby("layer").positional.sum().to_numpy(),
    )
    shuffled = table.sort_values("head", kind="stable")
    assert np.allclose(
        clustered(shuffled, ["positional"], "layer")[..., 0].sum(1), table.groupby("layer").positional.sum()
    )
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
        rank_difference(table.assign(g=True), "positional", "g")
