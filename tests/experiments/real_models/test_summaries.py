"""Summaries of a real model's tables against plain loops."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.experiments.real_models import HELD, summaries


@pytest.fixture
def heads():
    random = np.random.default_rng(4)
    rows = pd.DataFrame(list(itertools.product(range(6), range(3))), columns=["layer", "head"])
    return rows.assign(lead=random.normal(size=18).round(1), known=random.choice(["induction", "other"], 18))


def area(table, kind):
    sign = 1 if kind == "induction" else -1
    inside = sign * table.loc[table["known"] == kind, "lead"].to_numpy()
    outside = sign * table.loc[table["known"] != kind, "lead"].to_numpy()
    if not len(inside) or not len(outside):
        return np.nan
    return np.mean([(a > b) + 0.5 * (a == b) for a in inside for b in outside])


@pytest.mark.parametrize("kind", ["induction", "previous-token"])
def test_area_under_the_curve_counts_pairs_and_draws_layers(heads, kind):
    heads = heads.assign(known=heads["known"].replace("induction", kind))
    found = summaries.known_against_others(heads, kind, draws=3000)
    assert found.value == pytest.approx(area(heads, kind))
    inside = heads["known"] == kind
    sign = 1 if kind == "induction" else -1
    whitney = stats.mannwhitneyu(sign * heads.loc[inside, "lead"], sign * heads.loc[~inside, "lead"]).statistic
    assert found.value == pytest.approx(whitney / (inside.sum() * (~inside).sum()))
    parts = [part for _, part in heads.groupby("layer")]
    random = np.random.default_rng(9)
    drawn = [area(pd.concat([parts[k] for k in random.integers(6, size=6)]), kind) for _ in range(1500)]
    assert [found.low, found.high] == pytest.approx(np.nanpercentile(drawn, [2.5, 97.5]), abs=0.03)
    assert found.low < found.value < found.high
    # To the last digit with the same draws, each a number of times for each layer.
    found = summaries.known_against_others(heads, kind, draws=60)
    times = np.random.default_rng(0).multinomial(6, np.full(6, 1 / 6), size=60)
    drawn = [
        area(pd.concat([part for part, n in zip(parts, row, strict=True) for _ in range(n)]), kind) for row in times
    ]
    assert [found.low, found.high] == pytest.approx(np.nanpercentile(drawn, [2.5, 97.5]))


def test_other_kinds_count_as_others():
    table = pd.DataFrame(
        dict(layer=[0, 1, 2, 3], lead=[0.5, 0.9, 0.1, 0.2], known=["induction", "previous-token", "other", "other"])
    )
    assert summaries.known_against_others(table, "induction", draws=10).value == pytest.approx(2 / 3)
    assert summaries.known_against_others(table, "previous-token", draws=10).value == 0.0


def test_an_interval_draws_whole_layers():
    """Heads of a layer that are alike count as one: the deviation of a mean is that of the mean of the layers."""
    random = np.random.default_rng(1)
    layers = pd.Series(np.repeat(np.arange(40), 25))
    values = pd.Series(random.normal(size=40))[layers].reset_index(drop=True)
    found = summaries.layer_interval(values, layers, np.mean, draws=2000)
    half = 1.96 * values.std() / 40**0.5
    assert found.value == pytest.approx(values.mean())
    assert [found.low, found.high] == pytest.approx([found.value - half, found.value + half], abs=0.06)
    few = summaries.layer_interval(values, layers, np.median, draws=50)
    picked = np.random.default_rng(0).integers(40, size=(50, 40))
    drawn = [np.median(np.concatenate([values[layers == layer] for layer in row])) for row in picked]
    assert [few.low, few.high] == pytest.approx(np.percentile(drawn, [2.5, 97.5]))
    uneven = summaries.layer_interval(pd.Series([0.0, 0.0, 0.0, 1.0]), pd.Series([0, 0, 0, 1]), np.mean, draws=400)
    assert (uneven.value, uneven.low, uneven.high) == (0.25, 0.0, 1.0)


def test_random_correlations_are_pearsons():
    random = np.random.default_rng(2)
    keys = list(itertools.product(["initial", "shuffled"], range(2), ["papers", "scale-free"], range(30)))
    table = pd.DataFrame(keys, columns=["weights", "model", "form", "head"])
    table[["positional", "symbolic"]] = random.normal(size=(len(table), 2))
    found = summaries.random_correlations(table, "scale-free")
    assert found[["weights", "model"]].values.tolist() == [
        ["initial", 0], ["initial", 1], ["shuffled", 0], ["shuffled", 1]
    ]  # fmt: skip
    rows = table[(table["weights"] == "shuffled") & (table["model"] == 0) & (table["form"] == "scale-free")]
    assert found["r"][2] == pytest.approx(stats.pearsonr(rows["positional"], rows["symbolic"])[0])


@pytest.fixture
def planes():
    random = np.random.default_rng(5)
    rows = pd.DataFrame(
        list(itertools.product(range(5), range(4), range(1, 13))), columns=["layer", "head", "frequency_id"]
    )
    rows[["positional", "symbolic"]] = random.uniform(size=(len(rows), 2))
    return rows.assign(logit_norm=random.uniform(size=len(rows)) * rows["frequency_id"])  # fmt: skip


def test_large_planes_are_the_largest_quarter_of_their_own_third(planes):
    for name, ids in (("fast", range(1, 5)), ("middle", range(5, 9)), ("slow", range(9, 13))):
        part = planes[planes["frequency_id"].isin(ids)]
        expected = part.nlargest(len(part) // 4, "logit_norm")
        found = summaries.large_of_third(planes, name)
        assert sorted(found.index) == sorted(expected.index)
        lead = summaries.symbolic_lead(found)
        assert lead.value == pytest.approx(np.median(expected["symbolic"] - expected["positional"]))
        assert lead.low <= lead.value <= lead.high
        models = pd.concat(
            [planes.assign(weights="initial", model=0), planes.assign(weights="initial", model=1, symbolic=0.0)]
        )
        random = summaries.random_leads(models, name)
        assert random.tolist() == pytest.approx([lead.value, np.median(-expected["positional"])])  # fmt: skip


def test_heads_are_judged_by_their_three_largest_planes(planes):
    random = np.random.default_rng(6)
    directions = planes[["layer", "head", "frequency_id"]].assign(
        key=random.uniform(size=len(planes)), query=random.uniform(size=len(planes))
    )
    found = summaries.heads_whose_keys_gather(directions.sample(frac=1, random_state=0), planes).set_index(
        ["layer", "head"]
    )
    for (layer, head), part in planes.groupby(["layer", "head"]):
        largest = part.sort_values("logit_norm").index[-3:]
        key, query = directions.loc[largest, "key"].mean(), directions.loc[largest, "query"].mean()
        row = found.loc[(layer, head)]
        assert (row["key"], row["query"], row["more"]) == (pytest.approx(key), pytest.approx(query), key > query)


def test_pure_heads_are_counted_by_form_and_by_what_moves():
    rows = []
    for (form, blocks), scores in {
        ("papers", "tokens"): [(0.1, 0.9), (0.05, 1.0), (0.11, 1.0), (0.0, 0.89), (1.0, 0.0)],
        ("papers", HELD): [(0.1, 0.9), (1.0, 0.1)],
        ("scale-free", "tokens"): [(0.9, 0.1), (0.95, 0.05), (0.89, 0.0)],
        ("scale-free", HELD): [(1.0, 1.0)],
    }.items():
        rows += [
            ("text", blocks, form, prompt, 0, head, *pair) for head, pair in enumerate(scores) for prompt in (0, 1)
        ]
    table = pd.DataFrame(rows, columns=["task", "blocks", "form", "prompt", "layer", "head", "positional", "symbolic"])
    found = summaries.pure_heads(table, "text")
    assert found.loc[("papers", "tokens")].to_dict() == {"positional": 1, "symbolic": 2}
    assert found.loc[("papers", HELD)].to_dict() == {"positional": 1, "symbolic": 1}
    assert found.loc[("scale-free", "tokens")].to_dict() == {"positional": 2, "symbolic": 0}
    assert found.loc[("scale-free", HELD)].to_dict() == {"positional": 0, "symbolic": 0}


def test_as_many_heads_are_known_as_are_asked_for():
    heads = pd.DataFrame({"layer": 0, "head": range(5)})
    attention = heads.assign(previous_token=[0.9, 0.8, 0.1, 0.0, 0.85], induction=[0.0, 0.1, 0.7, 0.6, 0.95])
    found = summaries.with_known(heads, attention, 2)["known"]
    assert found.tolist() == ["previous-token", "other", "induction", "other", "induction"]
