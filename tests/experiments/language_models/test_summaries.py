"""Summaries against scipy, enumeration and tables whose answers are plain."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.experiments.language_models import summaries

RANDOM = np.random.default_rng(0)


def model(seed=0, **columns):
    return pd.DataFrame({"encoding": "rope", "width": 512, "corpus": "source", "seed": seed, **columns})


def test_auc_counts_pairs():
    labels, values = RANDOM.random(40) < 0.3, RANDOM.integers(0, 6, 40).astype(float)
    pairs = [(a > b) + (a == b) / 2 for a in values[labels] for b in values[~labels]]
    assert summaries.auc(labels, values) == pytest.approx(np.mean(pairs))


def test_a_score_without_a_job_has_an_interval_around_a_half():
    heads = pd.concat(
        model(seed, layer=np.repeat(range(8), 8), doing=RANDOM.random(64) < 0.2, score=RANDOM.random(64))
        for seed in range(4)
    )
    found = summaries.clustered_auc(heads, "doing", "score")
    assert found.low < 0.5 < found.high and found.high - found.low < 0.4 and found.p_value > 0.02
    heads["score"] += heads["doing"]
    better = summaries.clustered_auc(heads, "doing", "score")
    assert better.value == better.low == 1 and better.p_value == 1 / (summaries.DRAWS + 1)


def test_intervals_and_p_values_are_those_of_tables_drawn_one_by_one(monkeypatch):
    monkeypatch.setattr(summaries, "DRAWS", 300)
    sizes = [2, 3, 5]  # layers a model
    heads = pd.concat(
        model(seed, layer=RANDOM.permutation(np.repeat(range(size), 4)), doing=RANDOM.random(4 * size) < 0.2,
              score=RANDOM.integers(0, 6, 4 * size).astype(float))
        for seed, size in enumerate(sizes)
    )  # fmt: skip
    own = [table["doing"].to_numpy() for _, table in heads.groupby("seed")]
    layers = {key: table[["doing", "score"]].to_numpy() for key, table in heads.groupby(["seed", "layer"])}
    generator, drawn = np.random.default_rng(0), []
    for _ in range(300):
        parts = []
        for m in generator.integers(3, size=3):
            parts += [layers[m, k] for k in generator.integers(sizes[m], size=sizes[m])]
        doing, score = np.concatenate(parts).astype(float).T
        drawn.append(summaries.auc(doing == 1, score))
    shuffles = [np.concatenate([generator.permutation(labels) for labels in own]) for _ in range(300)]
    by_chance = np.array([summaries.auc(labels, heads["score"].to_numpy()) for labels in shuffles])
    found = summaries.clustered_auc(heads, "doing", "score")
    assert (found.low, found.high) == pytest.approx(tuple(np.nanquantile(drawn, [0.025, 0.975])), abs=1e-12)
    assert found.p_value == (1 + (abs(by_chance - 0.5) >= abs(found.value - 0.5)).sum()) / 301 < 1


def test_resampled_layers_widen_the_interval():
    """A whole layer that does the job with high scores is one case, not eight."""
    layers = np.repeat(range(8), 8)
    heads = model(layer=layers, doing=layers == 3, score=(layers == 3) * 0.5 + RANDOM.random(64))
    wide = summaries.clustered_auc(heads, "doing", "score")
    single = summaries.clustered_auc(heads.assign(layer=range(64)), "doing", "score")
    assert wide.high - wide.low > 0 and single.value == wide.value


def test_an_onset_is_the_step_after_the_last_absence():
    steps = [0, 10, 20, 40]
    table = pd.concat(
        [model(0, step=steps, n=[0, 2, 0, 1]), model(1, step=steps, n=[1, 1, 1, 1]), model(2, step=steps, n=0)]
    )
    found = summaries.onsets(table.sample(frac=1, random_state=1), ["n"])["n"].tolist()
    assert found[:2] == [40.0, 0.0] and np.isnan(found[2])


def test_kinds_are_counted_from_the_margin_on():
    lead = [summaries.MARGIN, summaries.MARGIN - 1e-9, -summaries.MARGIN, -summaries.MARGIN + 1e-9, 0]
    row = summaries.counts(model(step=0, lead=lead)).iloc[0]
    assert (row["positional"], row["symbolic"]) == (1, 1)
    jobs = model(step=0, previous_token=[0.3, 0.29], induction=[0.29, 0.1])
    row = summaries.job_counts(jobs).iloc[0]
    assert (row["previous_token"], row["induction"]) == (1, 0)


def test_differences_are_students():
    first, second = RANDOM.random(8), RANDOM.random(8)
    table = pd.concat(
        [model(s, value=[first[s]]) for s in range(8)]
        + [model(s, value=[second[s]]).assign(encoding="nope") for s in range(8)]
    )
    found = summaries.paired(table, "value", "rope", "nope")
    expected = stats.ttest_rel(first, second)
    assert found.p_value == pytest.approx(expected.pvalue) and found.value == pytest.approx((first - second).mean())
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_halves_of_eight_layers_are_four_and_four():
    table = model(layer=range(8), lead=[1, 1, 1, 1, 0, 0, 0, 0])
    assert summaries.early_minus_late(table)["difference"].tolist() == [1]


def test_the_middle_is_the_middle_third_of_distances():
    table = model(distance=[2, 5, 10, 20, 30, 40], accuracy=[0.9, 0.7, 0.1, 0.3, 0.5, 0.6])
    assert summaries.recall_less_middle(table)[["near", "far"]].loc[0].tolist() == pytest.approx([0.6, 0.35])


def test_small_planes_take_no_part_in_the_trend():
    table = model(layer=0, head=0, step=5, frequency_id=[1, 2, 3, 4, 5, 6], norm=[9, 0, 9, 0, 9, 0], symbolic=0.0)
    table = table.assign(positional=[0.9, 0, 0.5, 0.99, 0.1, 1])
    assert summaries.plane_trend(table)["trend"].tolist() == [-1]


def test_loss_far_out_begins_at_its_factor():
    table = model(position=[10.0, 40.0, 50.0], loss=[1.0, 2.0, 4.0], edit="none")
    assert summaries.far_loss(table, trained=10)["loss"].tolist() == [3]
