"""Statistics of heads against loops, scipy, and data whose answer is known."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.errors import InputError
from possym.profiling.statistics import clustered, correlation, early_late, rank_difference, stability


def heads(layers, count, seed=0, slope=0.0, tied=0.0):
    """Heads with a share ``tied`` of their scores common to a layer, and symbolic = slope · positional + noise."""
    random = np.random.default_rng(seed)
    layer = np.repeat(np.arange(layers), count)
    common, own = random.normal(size=(2, layers))[:, layer]
    x = tied * common + random.normal(size=len(layer))
    y = tied * own + slope * x + random.normal(size=len(layer))
    return pd.DataFrame({"layer": layer, "head": np.tile(np.arange(count), layers), "positional": x, "symbolic": y})


def test_correlation_is_scipys_and_its_interval_a_loop_over_layers():
    table = heads(6, 4, slope=-1)
    found = correlation(table, draws=3000)
    assert found.value == pytest.approx(stats.pearsonr(table.positional, table.symbolic).statistic, abs=1e-12)
    random, drawn = np.random.default_rng(9), []
    parts = [rows for _, rows in table.groupby("layer")]
    for _ in range(3000):
        some = pd.concat([parts[k] for k in random.integers(6, size=6)])
        drawn.append(some.positional.corr(some.symbolic))
    assert [found.low, found.high] == pytest.approx(np.percentile(drawn, [2.5, 97.5]).tolist(), abs=0.02)


def test_p_value_of_a_correlation_is_that_of_all_permutations():
    table = heads(4, 1, seed=3, slope=-0.5)
    x, y = table.positional.to_numpy(), table.symbolic.to_numpy()
    observed = abs(np.corrcoef(x, y)[0, 1])
    every = [abs(np.corrcoef(x, y[list(order)])[0, 1]) for order in itertools.permutations(range(4))]
    exact = np.mean(np.array(every) >= observed - 1e-12)
    assert correlation(table, draws=20_000).p_value == pytest.approx(exact, abs=0.02)


def test_layers_that_share_their_scores_do_not_count_as_many_heads():
    """Where all heads of a layer are alike, tests that ignore layers find what is not there; this one does not."""
    naive, ours = [], []
    for seed in range(60):
        table = heads(8, 12, seed=seed, tied=4.0)
        naive.append(stats.pearsonr(table.positional, table.symbolic).pvalue < 0.05)
        ours.append(correlation(table, draws=200, seed=seed).p_value < 0.05)
    assert np.mean(naive) > 0.3
    assert np.mean(ours) < 0.15


def test_early_late_is_a_difference_of_medians_with_an_exact_p_value():
    table = heads(6, 3, seed=1)
    table["positional"] += np.where(table.layer < 3, 2.0, 0.0)
    early = table.positional[table.layer < 3].median() - table.positional[table.layer >= 3].median()
    found = early_late(table, "positional", draws=20_000)
    assert found.value == pytest.approx(early, abs=1e-12)
    parts = [rows.positional.to_numpy() for _, rows in table.groupby("layer")]
    every = []
    for order in itertools.permutations(range(6)):
        moved = [parts[k] for k in order]
        every.append(np.median(np.concatenate(moved[:3])) - np.median(np.concatenate(moved[3:])))
    exact = np.mean(np.abs(every) >= abs(early) - 1e-12)
    assert found.p_value == pytest.approx(exact, abs=0.02)
    random, drawn = np.random.default_rng(5), []
    for _ in range(3000):
        some = [np.concatenate([parts[k] for k in random.integers(a, a + 3, size=3)]) for a in (0, 3)]
        drawn.append(np.median(some[0]) - np.median(some[1]))
    assert [found.low, found.high] == pytest.approx(np.percentile(drawn, [2.5, 97.5]).tolist(), abs=0.15)


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
    assert rank_difference(table, "positional", "inside").value == pytest.approx(2 * wins - 1)


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
