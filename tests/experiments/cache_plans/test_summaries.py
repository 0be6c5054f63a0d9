"""Summaries of cache plans against plain loops over small random tables."""

import itertools
from statistics import mean

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.experiments.cache_plans import summaries
from possym.experiments.language_models.summaries import auc

MODELS = [("rope", seed) for seed in range(3)] + [("real", 0)]
RULES = ("none", *summaries.COMPARED, "oracle")
SHARES = (0.25, 0.5, 0.75)


@pytest.fixture(scope="module")
def loss():
    random = np.random.default_rng(0)
    rows = [
        (model, seed, rule, draw, share, sequence, random.random())
        for (model, seed), rule, sequence in itertools.product(MODELS, RULES, range(4))
        for share in ((0.0,) if rule == "none" else SHARES)
        for draw in range(3 if rule == "random" else 1)
    ]
    table = pd.DataFrame(rows, columns=["model", "seed", "rule", "draw", "share", "sequence", "loss"])
    return table.sample(frac=1, random_state=0, ignore_index=True)


def added(loss, model, rule, share):
    """The loss added by a rule: a mean a unit, from a loop over rows."""
    rows = [row for row in loss.itertuples() if row.model == model]
    key = "seed" if len({row.seed for row in rows}) > 1 else "sequence"
    found = {}
    for row in rows:
        if row.rule == rule and row.share == share:
            same = (row.seed, row.sequence)
            (intact,) = (each.loss for each in rows if each.rule == "none" and (each.seed, each.sequence) == same)
            found.setdefault(getattr(row, key), []).append(row.loss - intact)
    return {unit: mean(values) for unit, values in sorted(found.items())}


def student(values):
    """Mean, low, high and p-value by hand."""
    count, middle = len(values), mean(values)
    error = (sum((value - middle) ** 2 for value in values) / (count - 1) / count) ** 0.5
    half = stats.t(count - 1).ppf(0.975) * error
    return middle, middle - half, middle + half, 2 * stats.t(count - 1).sf(abs(middle) / error)


def test_an_estimate_is_students_and_of_equal_or_single_values_a_point():
    values = pd.Series([0.3, 0.1, None, 0.5, -0.2])
    assert summaries.estimate(values) == pytest.approx(student([0.3, 0.1, 0.5, -0.2]))
    assert summaries.estimate(pd.Series([0.3, None]))[:3] == (0.3, 0.3, 0.3)
    assert summaries.estimate(pd.Series([0.25, 0.25]))[:3] == (0.25, 0.25, 0.25)
    assert summaries.estimate(pd.Series([0.3, 0.1]))[:3] == pytest.approx(student([0.3, 0.1])[:3])


@pytest.mark.parametrize("model", ["rope", "real"])
def test_rules_are_compared_unit_by_unit(loss, model):
    curve = summaries.curve(loss).set_index(["model", "rule", "share"])
    assert len(curve) == 2 * 9 * 3
    for share in SHARES:
        by_rule = {rule: added(loss, model, rule, share) for rule in RULES[1:]}
        means = {rule: mean(values.values()) for rule, values in by_rule.items()}
        for rule, values in by_rule.items():
            assert curve.loc[(model, rule, share)].tolist() == pytest.approx(student([*values.values()])[:3])
        less = [by_rule["fitted"][unit] - by_rule["random"][unit] for unit in by_rule["random"]]
        found = summaries.rule_less_rule(loss, model, "fitted", "random", share)
        assert found == pytest.approx(student(less))
        assert summaries.best_rule(loss, model, share) == min(summaries.COMPARED, key=means.get)
        assert summaries.best_rule(loss, model, share, ("area", "beyond")) == min(("area", "beyond"), key=means.get)
        gap = summaries.gap_closed(loss, model, "area", share)
        random, own, oracle = (by_rule[rule] for rule in ("random", "area", "oracle"))
        assert gap.to_dict() == pytest.approx(
            {unit: (random[unit] - own[unit]) / (random[unit] - oracle[unit]) for unit in random}
        )


def test_what_is_saved_stands_beside_what_it_costs(loss):
    plans = pd.DataFrame(
        [(model, seed, rule, share, share * (1 + seed) / 8) for (model, seed), rule, share in
         itertools.product(MODELS, ("positional", "area"), SHARES)],
        columns=["model", "seed", "rule", "share", "fraction"],
    )  # fmt: skip
    plans.loc[plans["rule"] == "area", "fraction"] = 9.0
    found = summaries.bargain(loss, plans)
    assert found[["model", "share"]].values.tolist() == [[m, s] for m in ("real", "rope") for s in SHARES]
    for row in found.to_dict("records"):
        assert row["cache"] == pytest.approx(row["share"] * (1 if row["model"] == "real" else 2) / 8)
        for rule in ("positional", "beyond", "random", "oracle"):
            assert row[rule] == pytest.approx(mean(added(loss, row["model"], rule, row["share"]).values()))
    tenths = loss.assign(share=loss["share"].replace({0.75: 0.9, 0.5: 0.6}))
    assert summaries.bargain(tenths, plans.assign(share=0.9))["share"].tolist() == [0.25, 0.9] * 2


ARMS = [(*pair, "slowest") for pair in itertools.product(("retrieval", "symbolic"), ("group", "matched"))]
ARMS.append(("retrieval", "group", "random"))


@pytest.fixture(scope="module")
def dose():
    random = np.random.default_rng(1)
    rows = [
        (model, seed, group, arm, planes, mode, dose, sequence, needle, bool(random.random() < 0.6))
        for (model, seed), (group, arm, planes), mode, dose, sequence, needle in itertools.product(
            MODELS, ARMS, ("silence", "unrotate"), (0, 8, 12, 32), range(3), range(3)
        )
    ]
    columns = ["model", "seed", "group", "arm", "planes", "mode", "dose", "sequence", "needle", "right"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0, ignore_index=True)


def right(table, key, **asked):
    """Shares right by unit, from a loop."""
    names = ["right", key, *asked]
    found = {}
    for value, unit, *own in zip(*(table[name].tolist() for name in names), strict=True):
        if own == [*asked.values()]:
            found.setdefault(unit, []).append(value)
    return {unit: mean(map(float, values)) for unit, values in sorted(found.items())}


@pytest.mark.parametrize(("model", "key"), [("rope", "seed"), ("real", "sequence")])
def test_recall_lost_is_that_of_the_nearest_dose(dose, model, key):
    for (group, arm, planes), (share, at) in itertools.product(ARMS, ((0.25, 8), (0.3, 8), (0.33, 12), (1.0, 32))):
        asked = dict(model=model, group=group, arm=arm, planes=planes, mode="silence")
        none, some = right(dose, key, dose=0, **asked), right(dose, key, dose=at, **asked)
        found = summaries.recall_lost(dose, model, group, arm, planes, share)
        assert found.to_dict() == pytest.approx({unit: none[unit] - some[unit] for unit in none})
    table = summaries.silent_or_still(dose, model)
    for at, mode in itertools.product((0, 8, 12, 32), ("silence", "unrotate")):
        asked = dict(group="retrieval", arm="group", planes="slowest", dose=at, mode=mode)
        assert table.loc[at].iloc[int(mode == "unrotate")] == pytest.approx(
            right(dose, "model", **asked, model=model)[model]
        )


def test_intervals_of_a_share_end_at_0_and_1(dose):
    found = summaries.dose_curve(dose)
    assert len(found) == 2 * len(ARMS) * 2 * 4
    cut = 0
    for row in found.to_dict("records"):
        asked = {name: row[name] for name in ("model", "group", "arm", "planes", "mode", "dose")}
        values = [*right(dose, "seed" if row["model"] == "rope" else "sequence", **asked).values()]
        if len(set(values)) == 1:
            expected = (values[0],) * 3
        else:
            value, low, high, _ = student(values)
            expected = value, max(low, 0.0), min(high, 1.0)
            cut += (low < 0) - (high > 1) * 1j
        assert (row["value"], row["low"], row["high"]) == pytest.approx(expected)
    assert cut.real and cut.imag  # there are some of each


def test_probes_are_compared_with_the_intact_model():
    random = np.random.default_rng(2)
    rows = [
        (model, seed, group, arm, probe, sequence, random.random())
        for (model, seed), (group, arm), probe, sequence in itertools.product(
            MODELS, [("none", "none"), *{pair[:2] for pair in ARMS}], ("look-up", "counting"), range(4)
        )
    ]
    table = pd.DataFrame(rows, columns=["model", "seed", "group", "arm", "probe", "sequence", "value"])
    for model, key, probe, arm in itertools.product(("rope", "real"), ("seed",), ("look-up", "counting"),
                                                    ("group", "matched")):  # fmt: skip
        key = "sequence" if model == "real" else key
        as_right = table.rename(columns={"value": "right"})
        none = right(as_right, key, model=model, probe=probe, group="none")
        without = right(as_right, key, model=model, probe=probe, group="symbolic", arm=arm)
        found = summaries.probe_lost(table, model, probe, "symbolic", arm)
        assert found.to_dict() == pytest.approx({unit: none[unit] - without[unit] for unit in none})
        assert summaries.probe_intact(table, model, probe) == pytest.approx(mean(none.values()))
    default = summaries.probe_lost(table, "rope", "counting", "symbolic")
    assert default.equals(summaries.probe_lost(table, "rope", "counting", "symbolic", "group"))


def test_retrieval_heads_are_those_of_the_group_itself():
    random = np.random.default_rng(3)
    keys = list(itertools.product(("rope", "real"), range(2), range(3), range(4)))
    kinds = pd.DataFrame(keys, columns=["model", "seed", "layer", "head"])
    kinds[["positional", "symbolic"]] = random.random((len(kinds), 2))
    groups = kinds[["model", "seed", "layer", "head"]].assign(group="symbolic", arm="group")
    groups.loc[groups["head"] == 0, "group"] = "retrieval"
    groups.loc[(groups["head"] == 0) & (groups["layer"] == 0), "arm"] = "matched"
    own = kinds[kinds["model"] == "rope"]
    label = ((own["head"] == 0) & (own["layer"] > 0)).to_numpy()
    expected = auc(label, (own["symbolic"] - own["positional"]).to_numpy())
    found = summaries.retrieval_auc(kinds, groups, "rope")
    assert found.value == pytest.approx(expected) and found.low <= found.value <= found.high
