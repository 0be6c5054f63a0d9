"""Summaries of the study's tables against plain loops over its rows."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.experiments.learning_dynamics import summaries as dynamics

from .synthetic import study


@pytest.fixture(scope="module")
def made():
    """A study whose accuracies and entropies are random."""
    random = np.random.default_rng(0)
    tables = study(seeds=5).tables
    for table, column in (("accuracy", "accuracy"), ("scores", "entropy"), ("scores", "positional")):
        tables[table][column] = random.random(len(tables[table])).round(3)
    return {name: table.sample(frac=1, random_state=1) for name, table in tables.items()}


def test_over_seeds_is_the_quantile_of_each_group(made):
    found = dynamics.over_seeds(made["scores"], ["task", "layer", "step"], "entropy")
    for row in found.sample(20, random_state=0).itertuples():
        values = [
            r.entropy
            for r in made["scores"].itertuples()
            if (r.task, r.layer, r.step) == (row.task, row.layer, row.step)
        ]
        assert (row.seeds, row.low, row.high) == (5, min(values), max(values))
        assert row.median == sorted(values)[2] and row.mean == pytest.approx(sum(values) / 5)


def test_a_seed_without_a_value_is_the_largest():
    table = pd.DataFrame({"hops": 1, "seed": range(3), "step": [100, np.nan, 300]})
    row = dynamics.over_seeds(table, ["hops"], "step").iloc[0]
    assert (row["median"], row["low"], row["seeds"]) == (300, 100, 3)
    assert np.isnan(row["high"]) and np.isnan(row["mean"])


def test_learnt_and_best_steps_look_at_validation_alone(made):
    accuracy = made["accuracy"].copy()
    accuracy.loc[accuracy["split"] == "test", "accuracy"] = 1.0
    learnt = dynamics.learnt_steps(accuracy, 0.97).set_index(["task", "seed", "hops"])["step"]
    best = dynamics.best_steps(accuracy).set_index(["task", "seed"])
    rows = [r for r in accuracy.sort_values("step").itertuples() if r.split == "validation"]
    assert len(learnt) == 2 * 5 * 4 and learnt.isna().any() and learnt.notna().any()
    for (task, seed, hops), step in learnt.items():
        above = [r.step for r in rows if (r.task, r.seed, r.hops) == (task, seed, hops) and r.accuracy >= 0.97]
        assert step == above[0] if above else np.isnan(step)
    for (task, seed), row in best.iterrows():
        curve = [(r.accuracy, -r.step) for r in rows if (r.task, r.seed, r.hops) == (task, seed, 0)]
        assert (row["accuracy"], -row["step"]) == max(curve)


def test_final_accuracy_is_the_test_split(made):
    final = dynamics.final_accuracy(made["accuracy"])
    assert len(final) == 2 * 5 * 5
    kept = made["accuracy"].query("split == 'test'").set_index(["task", "seed", "hops"])["accuracy"]
    assert final.set_index(["task", "seed", "hops"])["accuracy"].equals(kept)


def test_pure_counts_count_every_model_and_kind():
    heads = study(seeds=3).tables["heads"]
    heads.loc[(heads["seed"] == 1) & (heads["layer"] == 0), "kind"] = 0
    counts = dynamics.pure_counts(heads).set_index(["task", "seed", "gamma", "kind"])["heads"]
    assert len(counts) == 2 * 3 * 2 * 2
    for (task, seed, gamma, kind), found in counts.items():
        sign = {"positional": 1, "symbolic": -1}[kind]
        same = [r for r in heads.itertuples() if (r.task, r.seed, r.gamma, r.kind) == (task, seed, gamma, sign)]
        assert found == len(same)
    assert counts["number", 0, 0.1, "positional"] == 4 and counts["number", 1, 0.1, "positional"] == 3
    assert counts["letter", 0, 0.1, "positional"] == 0


def test_passing_kinds_are_those_that_do_not_last():
    scores = study(seeds=2).tables["scores"]
    assert dynamics.passing_kinds(scores).empty
    here = (scores["task"] == "letter") & (scores["seed"] == 1) & (scores["layer"] == 9)
    scores.loc[here & scores["step"].isin([500, 750, 1250]), ["positional", "symbolic"]] = [0.95, 0.05]
    scores.loc[here & (scores["step"] == 1000), ["positional", "symbolic"]] = [0.05, 0.95]
    found = dynamics.passing_kinds(scores.sample(frac=1, random_state=0))
    assert found.values.tolist() == [["letter", 1, 9, "positional", 500, 1250]]
    assert len(dynamics.passing_kinds(scores, gamma=0.04)) == 0


def test_a_run_has_converged_where_it_stays_above_the_level(made):
    found = dynamics.converged_steps(made["accuracy"], 0.3).set_index(["task", "seed"])["step"]
    rows = [r for r in made["accuracy"].itertuples() if r.split == "validation" and r.hops == 0]
    for task, seed in {(r.task, r.seed) for r in rows}:
        step = None
        for row in sorted((r for r in rows if (r.task, r.seed) == (task, seed)), key=lambda r: r.step):
            step = None if row.accuracy < 0.3 else (row.step if step is None else step)
        assert found[task, seed] == step or (step is None and np.isnan(found[task, seed]))
    assert found.nunique() > 2


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 1.0])
def test_purity_steps_have_that_share_of_the_pure_heads_before_them(share):
    random = np.random.default_rng(1)
    heads = pd.DataFrame(
        [
            (seed, kind, since)
            for seed in range(4)
            for kind, since in zip(random.integers(-1, 2, 12), random.permutation(12), strict=True)
        ],
        columns=["seed", "kind", "since"],
    ).assign(task="letter", gamma=0.1)
    heads = pd.concat([heads, heads[:3].assign(seed=9, kind=0)])
    found = dynamics.purity_steps(heads, share).set_index("seed")
    for seed in range(4):
        since = [r.since for r in heads.itertuples() if r.seed == seed and r.kind != 0]
        step = found.loc[seed, "step"]
        assert found.loc[seed, "heads"] == len(since)
        assert sum(s <= step for s in since) >= share * len(since) > sum(s < step for s in since)
    assert found.loc[9, "heads"] == 0 and np.isnan(found.loc[9, "step"])


def test_rank_correlation_is_scipys_and_shuffling_gives_its_critical_value():
    random = np.random.default_rng(2)
    first = random.integers(0, 20, 32).astype(float)
    second = first + random.integers(0, 20, 32)
    found = dynamics.rank_correlation(first, second, 4_000)
    assert found["correlation"] == pytest.approx(stats.spearmanr(first, second).statistic)
    drawn = [
        stats.spearmanr(*np.stack([first, second])[:, random.integers(32, size=32)]).statistic for _ in range(1500)
    ]
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])), abs=0.06)
    assert found["shuffled"] == pytest.approx(0.35, abs=0.02)  # tables of the two-sided 5 % value at n = 32
    assert all(np.isnan(v) for v in dynamics.rank_correlation(first[:4], second[:4], 10).values())
    assert all(np.isnan(v) for v in dynamics.rank_correlation(first, first * 0, 10).values())


def test_top_layer_last_is_a_loop_over_layers():
    random = np.random.default_rng(4)
    rows = [
        (task, seed, layer, random.choice([-1, -1, -1, 0, 1]), random.integers(1, 5) * 50 + 100 * (layer == 3))
        for task in ("letter", "letter_any")
        for seed in range(40)
        for layer in range(4)
    ]
    heads = pd.DataFrame(rows, columns=["task", "seed", "layer", "kind", "since"])
    heads.loc[(heads["seed"] == 0) & (heads["layer"] < 3), "kind"] = 1
    found = dynamics.top_layer_last(heads.sample(frac=1, random_state=0))
    assert len(found) == 80 and 20 < found.sum() < 70 and not found.loc[("letter", 0)]
    for (task, seed), last in found.items():
        turned = {r[2]: r[4] for r in rows if r[:2] == (task, seed) and r[3] == -1}
        if seed == 0:
            turned = {layer: step for layer, step in turned.items() if layer == 3}
        top, below = turned.pop(3, np.inf), turned.values()
        assert last == (len(below) > 0 and all(top > step for step in below))


def test_model_ends_has_each_models_row(made):
    tables = study(seeds=5).tables
    best = pd.DataFrame(
        [
            (task, seed, 100 * seed, hops, 0.5 + 0.01 * seed + 0.1 * hops)
            for task in ("number", "letter")
            for seed in range(5)
            for hops in range(5)
        ],
        columns=["task", "seed", "step", "hops", "accuracy"],
    )
    accuracy, heads = made["accuracy"].assign(accuracy=lambda t: t["accuracy"] + 0.3), tables["heads"]
    heads.loc[(heads["gamma"] == 0.05) & (heads["layer"] == 7), "kind"] = 0
    other = {
        f"rule_{name}": table.query("task == 'letter' and seed < 2").assign(task="letter_any")
        for name, table in (("accuracy", accuracy), ("heads", heads), ("best", best))
    }
    whole = {"accuracy": accuracy, "heads": heads, "best": best}
    found = dynamics.model_ends(whole | other).set_index(["task", "seed"])
    steps = dynamics.learnt_steps(accuracy, 0.9).set_index(["task", "seed", "hops"])["step"]
    final = dynamics.final_accuracy(accuracy).set_index(["task", "seed", "hops"])["accuracy"]
    counts = dynamics.pure_counts(heads).set_index(["task", "seed", "gamma", "kind"])["heads"]
    assert len(found) == 12 and len(found.loc["letter_any"]) == 2
    for (task, seed), row in found.iterrows():
        key = ("letter" if task == "letter_any" else task, seed)
        reached = [steps[(*key, hops)] for hops in (1, 2, 3, 4)]
        assert row["learnt"] == max(reached) and row["gap"] == max(reached) - min(reached) and row["top_last"]
        assert row["accuracy"] == final[(*key, 0)] and row["symbolic"] == counts[(*key, 0.1, "symbolic")]
        assert (row["best"], row["best_step"]) == (0.5 + 0.01 * seed, 100 * seed)
    whole["accuracy"] = accuracy[~((accuracy["hops"] == 3) & (accuracy["accuracy"] >= 0.9))]
    del whole["best"]
    found = dynamics.model_ends(whole)
    assert len(found) == 10 and found[["learnt", "gap", "best", "best_step"]].isna().all(axis=None)


def test_seeds_that_never_learn_are_counted_and_left_out():
    rows = [
        ("validation", 0, seed, step, float(step > 100 * seed and seed < 7))
        for seed in range(8)
        for step in range(0, 1001, 50)
    ]
    accuracy = pd.DataFrame(rows, columns=["split", "hops", "seed", "step", "accuracy"]).assign(task="letter")
    heads = pd.DataFrame({"task": "letter", "seed": range(8), "gamma": 0.1, "kind": -1, "since": range(50, 850, 100)})
    found = dynamics.learning_with_purity(accuracy, heads, (0.9,), draws=200)
    assert found["seeds"].tolist() == [7, 7] and found["without"].tolist() == [1, 1]
    assert found["correlation"].tolist() == pytest.approx([1, 1])
    assert found["lag"].tolist() == [0, 0]


def test_crossings_are_interpolated_between_evaluations():
    rows = [
        (hops, step, accuracy)
        for hops, run in {1: (0.1, 0.8, 1.0), 2: (0.9, 0.2, 1.0), 3: (0.1, 0.2, 0.3), 4: (0.0, 0.9, 0.1)}.items()
        for step, accuracy in zip((0, 100, 200), run, strict=True)
    ]
    table = pd.DataFrame(rows, columns=["hops", "step", "accuracy"]).assign(task="number", seed=0, split="validation")
    found = dynamics.crossing_steps(table.sample(frac=1, random_state=0)).set_index("hops")["step"]
    assert found[[1, 2, 4]].tolist() == pytest.approx([150, 0, 100]) and pd.isna(found[3])
    # Where accuracy rises through the level at an evaluation, both ways of counting agree.
    assert dynamics.learnt_steps(table).set_index("hops")["step"][[2, 4]].tolist() == [0, 100]
    tested = table.assign(split="test")
    assert dynamics.crossing_steps(pd.concat([table, tested.assign(accuracy=1.0)])).set_index("hops")["step"][1] == 150


def test_the_p_value_counts_the_orders_that_do_as_well():
    first, second = np.arange(5.0), np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    found = dynamics.rank_correlation(first, second, draws=4000)
    # Of the 120 orders two correlate as strongly: the one at hand and its reverse.
    assert found["correlation"] == pytest.approx(1) and found["p_value"] == pytest.approx(2 / 120, abs=0.006)
    assert dynamics.rank_correlation(first, np.array([2.0, 0.0, 4.0, 1.0, 3.0]), draws=400)["p_value"] > 0.4
    assert dynamics.rank_correlation(np.arange(12.0), np.arange(12.0), draws=99)["p_value"] == 1 / 100


def curve(values, task="letter", seed=0, hops=0, split="validation"):
    """Accuracies at steps 0, 50, 100, …."""
    steps = range(0, 50 * len(values), 50)
    return pd.DataFrame(
        {"task": task, "seed": seed, "split": split, "hops": hops, "step": steps, "accuracy": list(values)}
    )


def test_the_levels_that_are_meant_are_reached_where_they_are_met():
    """What counts as learnt, converged, pure and passing unless told otherwise: 90 %, 99 %, half the heads, γ = 0.1."""
    one_hop = curve([0.0, 0.899, 0.9, 0.5], hops=1)
    assert dynamics.learnt_steps(one_hop)["step"].tolist() == [100]
    assert dynamics.crossing_steps(curve([0.9, 1.0], hops=1))["step"].tolist() == [0]
    assert dynamics.crossing_steps(one_hop)["step"].tolist() == pytest.approx([100])
    assert dynamics.crossing_steps(pd.concat([one_hop, curve([0.9, 1.0])]))["hops"].tolist() == [1]
    assert dynamics.learnt_medians(one_hop)["median"].tolist() == [100]
    assert dynamics.converged_steps(curve([0.99, 0.989, 0.99, 1.0]))["step"].tolist() == [100]
    heads = pd.DataFrame({"task": "letter", "seed": 0, "gamma": 0.1, "kind": [-1, -1, 1, 1, 0], "since": range(5)})
    assert dynamics.purity_steps(heads)["step"].tolist() == [1]
    scores = pd.DataFrame({"task": "letter", "seed": 0, "layer": 0, "step": [0, 1, 2, 3], "symbolic": 0.05}).assign(
        positional=[1.0, 0.9, 0.89, 0.5]
    )
    assert dynamics.passing_kinds(scores)[["kind", "first", "last"]].values.tolist() == [["positional", 0, 1]]


def test_rows_of_learning_with_purity_name_both_levels_and_shares():
    accuracy = pd.concat([curve([0.0] * (seed + 1) + [0.95, 0.995] * 9, seed=seed)[:19] for seed in range(6)])
    accuracy = accuracy[accuracy["step"] < 900]
    heads = pd.DataFrame(
        [("letter", seed, 0.1, -1, 50 * seed + 10 * layer) for seed in range(6) for layer in range(10)],
        columns=["task", "seed", "gamma", "kind", "since"],
    )
    found = dynamics.learning_with_purity(accuracy, heads, draws=50).set_index(["level", "share"])
    assert found.index.tolist() == [(0.9, 0.5), (0.9, 0.9), (0.99, 0.5), (0.99, 0.9)]
    assert found["seeds"].tolist() == [6, 6, found.loc[(0.99, 0.5), "seeds"], found.loc[(0.99, 0.9), "seeds"]]
    assert (found["seeds"] + found["without"] == 6).all()
    # Converged at 50 · (seed + 1); half of ten heads are pure at 50 · seed + 40, nine of them at 50 · seed + 80.
    assert found.loc[0.9]["lag"].tolist() == [-10, 30]


def test_readings_and_rates_count_the_heads_of_the_last_step():
    random = np.random.default_rng(3)
    rows = pd.DataFrame(
        [
            ("letter", seed, step, layer, query, tau, *random.choice([0.02, 0.07, 0.93, 0.98, 0.5], 2))
            for seed in range(2)
            for step in (0, 9)
            for layer in range(12)
            for query in ("last", "all")
            for tau in (1e-4, 0.1)
        ],
        columns=["task", "seed", "step", "layer", "query", "temperature", "positional", "symbolic"],
    )
    found = dynamics.reading_counts(rows).set_index(["seed", "query", "temperature", "gamma", "kind"])["heads"]
    assert len(found) == 2 * 2 * 2 * 2 * 2 and found.nunique() > 2
    other = {"positional": "symbolic", "symbolic": "positional"}
    for (seed, query, tau, gamma, kind), heads in found.items():
        same = rows[(rows["seed"] == seed) & (rows["query"] == query) & (rows["temperature"] == tau)]
        same = same[same["step"] == 9]
        assert heads == ((same[kind] >= 1 - gamma) & (same[other[kind]] <= gamma)).sum()

    scores = rows[(rows["query"] == "all") & (rows["temperature"] == 0.1)].assign(learning_rate=1e-3)
    accuracy = pd.concat(
        [
            pd.concat([curve([0.5, 0.99, 0.98, 0.995], seed=seed), curve([0.7], seed=seed, split="test")])
            for seed in range(2)
        ]
    ).assign(learning_rate=1e-3)
    ends = dynamics.rate_summary(accuracy, scores).set_index("seed")
    for seed, row in ends.iterrows():
        last = scores[(scores["seed"] == seed) & (scores["step"] == 9)]
        counts = {kind: ((last[kind] >= 0.9) & (last[other[kind]] <= 0.1)).sum() for kind in other}
        assert (row["accuracy"], row["learnt"], row["learning_rate"]) == (0.7, 150, 1e-3)
        assert {kind: row[kind] for kind in counts} == counts and row["pure"] == sum(counts.values())


def test_rank_correlations_interval_and_control_are_quantiles_of_their_draws():
    """The same draws, taken one at a time."""
    first, second = np.arange(12.0), np.array([2.0, 1, 4, 7, 0, 3, 5, 11, 6, 8, 10, 9])
    found = dynamics.rank_correlation(first, second, 400)
    random = np.random.default_rng(0)
    picked = random.integers(12, size=(400, 12))
    order = random.permuted(np.broadcast_to(np.arange(12), (400, 12)), axis=1)
    drawn = [
        stats.spearmanr(first[rows], second[rows]).statistic
        for rows in picked
        if len(set(first[rows])) > 1 and len(set(second[rows])) > 1
    ]
    assert (found["low"], found["high"]) == pytest.approx((np.percentile(drawn, 2.5), np.percentile(drawn, 97.5)))
    few = np.array([1.0, 1, 2, 2, 2])
    for pair in ((few, first[:5]), (first[:5], few)):
        expected = stats.spearmanr(*pair).statistic
        assert dynamics.rank_correlation(*pair, 50)["correlation"] == pytest.approx(expected)
    control = [abs(stats.spearmanr(first, second[rows]).statistic) for rows in order]
    assert found["shuffled"] == pytest.approx(np.quantile(control, 0.95))
