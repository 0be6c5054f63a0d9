"""Where verdicts on learning change, just on each side of every threshold of their criteria."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN
from possym.experiments.learning_dynamics import claims
from possym.results import Study

NEVER = float("nan")


def frame(columns, rows):
    return pd.DataFrame(rows, columns=columns.split())


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((0.99, 1.0, 1.0), HOLDS), ((0.98, 1.0, 1.0), IN_PART), ((0.5, 0.9, 0.9), IN_PART), ((1.0, 0.89, 0.89), FAILS)],
)
def test_every_seed_ends_at_99_percent_or_the_median_at_90(ends, verdict):
    rows = [("letter", 9, seed, "test", hops, end if hops == 0 else 0.3) for seed, end in enumerate(ends)
            for hops in (0, 1)]  # fmt: skip
    rows += [("number", 9, 0, "test", 0, 0.2)]
    found = claims.final_accuracy("letter")(Study({"accuracy": frame("task step seed split hops accuracy", rows)}))
    assert found.verdict == verdict and found.measured == f"median {sorted(ends)[1]:.1%}"
    assert found.interval == f"{min(ends):.1%} to {max(ends):.1%} over 3 seeds".replace("%", "", 1).replace("%", " %")


def seeds_of(steps):
    """The table of `learnt_steps`: a step by hops for every seed."""
    return frame("seed hops step", [(s, h, step) for s, each in enumerate(steps) for h, step in enumerate(each, 1)])


def test_the_number_task_is_first_if_strictly_before_every_letter_hop_count(monkeypatch):
    for number, letter, first in (
        (2000, (3000, 2001, 4000), 1), (2000, (3000, 2000, 4000), 0), (2000, (NEVER,) * 3, 1), (NEVER, (3000,) * 3, 0),
        (NEVER, (NEVER,) * 3, 0),
    ):  # fmt: skip
        table = pd.concat([
            seeds_of([(number, 100)]).assign(task="number"), seeds_of([letter]).assign(task="letter"),
        ])  # fmt: skip
        monkeypatch.setattr(claims, "learnt_steps", lambda *_, table=table: table)
        found = claims.first_task(Study({"accuracy": table}))
        assert found.measured.startswith(f"in {first} of 1 seeds") and found.verdict == (HOLDS if first else FAILS)


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ((2500, 2600), HOLDS), ((2501, 2600), IN_PART), ((1400, 1500), HOLDS), ((1400, 1499), IN_PART),
        ((1000, 1000), IN_PART), ((999, 1000), FAILS), ((4000, 4000), IN_PART), ((4000, 4002), FAILS),
    ],
)  # fmt: skip
def test_a_step_read_off_a_plot_is_half_a_thousand_wide_and_a_factor_of_two_holds_in_part(steps, verdict):
    assert claims.near_step(pd.Series(steps, dtype=float), 2000).verdict == verdict


def test_a_range_that_holds_the_step_itself_was_not_widened():
    for steps, widened in (((2000, 2400), False), ((1800, 2000), False), ((2001, 2400), True), ((1600, 1999), True)):
        found = claims.near_step(pd.Series(steps, dtype=float), 2000)
        assert ("only because it is widened" in found.measured) == widened


def test_steps_of_a_hop_count_or_of_the_last_of_all(monkeypatch):
    table = seeds_of([(1000, 3000), (1500, 2500)]).assign(task="letter")
    monkeypatch.setattr(claims, "learnt_steps", lambda *_: table)
    monkeypatch.setattr(claims, "published", lambda _: SimpleNamespace(value=2000))
    made = Study({"accuracy": table})
    assert claims.learnt_step("letter", 1, "")(made).measured.startswith("median step 1,250; ")
    assert claims.learnt_step("letter", None, "")(made).measured.startswith("median step 2,750; ")


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [((500, 0, 0), HOLDS), ((501, 0, 500), IN_PART), ((501, 500, 501), FAILS), ((NEVER, 0, 0), FAILS)],
)
def test_hop_counts_learnt_together_are_500_steps_apart(gaps, verdict, monkeypatch):
    table = seeds_of([(3000, 3000 + gap, 3000 + gap / 2) for gap in gaps]).assign(task="letter")
    monkeypatch.setattr(claims, "learnt_steps", lambda *_: table)
    assert claims.hops_together(Study({"accuracy": table})).verdict == verdict


def start(lower, share=1.0):
    entropy = math.log(17) * share
    while entropy / math.log(17) < share:  # rounding
        entropy = math.nextafter(entropy, 9)
    rows = [(step, 1.0, low * (step == 0), entropy) for step in (0, 250) for low in lower]
    return Study({"scores": frame("step positional symbolic entropy", rows)})


def test_before_training_both_scores_are_near_one_and_attention_is_uniform():
    for lower, verdict in (([0.9] * 4, HOLDS), ([0.89, 1, 1, 0.9], IN_PART), ([0.89, 0.89, 1, 1], FAILS)):
        assert claims.start_scores(start(lower)).verdict == verdict
    for part, verdict in ((0.99, HOLDS), (0.989, IN_PART), (0.95, IN_PART), (0.949, FAILS)):
        assert claims.start_entropy(start([1.0] * 3, part)).verdict == verdict
    mixed = start([1.0] * 3)
    mixed.tables["scores"].loc[0, "entropy"] = 0.1
    assert claims.start_entropy(mixed).verdict == IN_PART


@pytest.mark.parametrize(
    ("heads", "verdict"),
    [((4, 7), HOLDS), ((1, 4), HOLDS), ((5, 7), IN_PART), ((1, 3), IN_PART), ((5, 8), FAILS), ((1, 2), FAILS)],
)
def test_a_count_lies_within_the_range_or_its_mean_within_two_heads(heads, verdict, monkeypatch):
    monkeypatch.setattr(claims, "published", lambda _: SimpleNamespace(value=4))
    counts = frame("kind heads", [("positional", each) for each in heads] + [("symbolic", 4)] * 2)
    monkeypatch.setattr(claims, "pure_counts", lambda _: counts)
    made = Study({"heads": frame("task gamma", [("number", 0.1)])})
    assert claims.count_of("number", 0.1, "positional", "")(made).verdict == verdict


def ended(*models, task="number", gamma=0.1):
    """Heads of models, each the layers of its positional and of its symbolic heads."""
    rows = [
        (task, gamma, seed, layer, kind)
        for seed, layers in enumerate(models)
        for kind, each in zip((1, -1), layers, strict=True)
        for layer in each
    ] + [(task, gamma, seed, 11, 0) for seed in range(len(models))]  # fmt: skip
    return Study({"heads": frame("task gamma seed layer kind", rows)})


def test_positional_heads_lie_below_all_symbolic_ones_if_both_exist():
    found = claims.early_late(ended(([0, 1], [2, 3]), ([0, 2], [2, 3]), ([], [2]), ([1], [])))
    assert found.measured == "in 1 of 4 seeds (2 have heads of both kinds); median positional layer 1, median " \
        "symbolic layer 2"  # fmt: skip
    assert found.verdict == FAILS and claims.early_late(ended(([0, 1], [2, 3]))).verdict == HOLDS


@pytest.mark.parametrize(
    ("layers", "verdict"),
    [([[1, 2]] * 4, HOLDS), ([[1, 2]] * 3 + [[]], HOLDS), ([[1, 2], [1, 2], [1], []], IN_PART),
     ([[1, 2]] * 2 + [[]] * 2, FAILS), ([[1, 2, 3]] * 4, IN_PART), ([[3]] * 4, FAILS)],
)  # fmt: skip
def test_a_layer_is_usual_in_more_than_half_of_the_seeds(layers, verdict):
    found = claims.positional_layers(ended(*((each, [7]) for each in layers), gamma=0.05))
    assert found.verdict == verdict
    shares = [sum(layer in each for each in layers) / len(layers) for layer in (1, 2, 3, 7, 11)]
    there = {1: shares[0], 2: shares[1], 3: shares[2], 7: 0.0, 11: 0.0}
    known = {layer for each in layers for layer in each} | {7, 11}
    assert [one.value for one in found.estimates] == [there[layer] for layer in sorted(known)]


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (((0.499, 0.521), (0.6, 0.5)), HOLDS), (((0.501, 0.62), (0.6, 0.62)), IN_PART),
        (((0.299, 0.62), (0.2, 0.62)), IN_PART), (((0.301, 0.62), (0.2, 0.62)), HOLDS),
        (((0.4, 0.719), (0.4, 0.9)), HOLDS), (((0.4, 0.721), (0.4, 0.9)), IN_PART),
        (((0.4, 0.519), (0.4, 0.5)), IN_PART), (((0.59, 0.62), (0.6, 0.62)), IN_PART),
        (((0.59, 0.62), (0.62, 0.62)), FAILS), (((0.4, 0.83), (0.4, 0.82)), FAILS), (((0.4, 0.41), (0.4, 0.42)), FAILS),
    ],
)  # fmt: skip
def test_the_lowest_layers_scores_are_within_a_tenth_of_the_range_or_means_within_a_fifth(pairs, verdict):
    rows = [("number", step, 0, s, *(pair if step else (1.0, 1.0))) for step in (0, 9) for s, pair in enumerate(pairs)]
    rows += [("number", 9, 1, 0, 0.0, 0.0), ("letter", 9, 0, 0, 0.0, 0.0)]
    table = frame("task step layer seed positional symbolic", rows)
    found = claims.layer_zero(Study({"scores": table}))
    assert found.verdict == verdict and found.interval.endswith(" over 2 seeds")
    assert [one.value for one in found.estimates] == pytest.approx(np.mean(pairs, axis=0))


def test_a_tenth_and_a_fifth_are_within(monkeypatch):
    for paper, score, verdict in ((0.5, 0.6, HOLDS), (0.5, 0.4, HOLDS), (0.2, 0.4, IN_PART), (0.2, 0.41, FAILS)):
        table = frame(
            "task step layer seed positional symbolic", [("number", 9, 0, seed, score, score) for seed in (0, 1)]
        )
        monkeypatch.setattr(claims, "published", lambda _, paper=paper: SimpleNamespace(value=[paper, paper]))
        assert claims.layer_zero(Study({"scores": table})).verdict == verdict


@pytest.mark.parametrize("first", [(2000, 2000), (2500, 2000), (2000, 2500)])
def test_the_first_two_hop_counts_are_in_order_too(first, monkeypatch):
    table = seeds_of([(*first, 3000, 4000)])
    monkeypatch.setattr(claims, "crossing_steps", lambda *_: table)
    found = claims.hop_order(Study({"accuracy": frame("task", [])}))
    order = first[0] < first[1], first[0] == first[1], first[0] > first[1]
    assert found.measured.startswith("in order in {:d} of 1 seeds, tied in {:d}, otherwise in {:d}; ".format(*order))


@pytest.mark.parametrize(
    ("correlation", "low", "high", "shuffled", "verdict"),
    [
        (0.5, 0.01, 0.9, 0.4, HOLDS), (0.5, 0.0, 0.9, 0.4, IN_PART), (0.5, 0.01, 0.9, 0.5, FAILS),
        (0.5, 0.0, 0.9, 0.5, NOT_SHOWN), (-0.5, -0.9, 0.0, 0.4, NOT_SHOWN), (-0.5, -0.9, -0.01, 0.4, FAILS),
    ],
)  # fmt: skip
def test_learning_goes_with_purity_beyond_shuffled_seeds(correlation, low, high, shuffled, verdict, monkeypatch):
    row = dict(correlation=correlation, low=low, high=high, shuffled=shuffled, lag=250, seeds=8, without=1, p_value=0.1)
    row["task"] = "letter"
    other = row | dict(correlation=0.99, low=0.9, high=1.0, shuffled=0.0)
    table = pd.DataFrame(
        [other | dict(gamma=0.05, share=0.5), other | dict(gamma=0.1, share=0.9), row | dict(gamma=0.1, share=0.5)]
    )
    monkeypatch.setattr(claims.dynamics, "learning_with_purity", lambda *_, levels: table[[levels == (0.99,)] * 3])
    made = Study({name: frame("task", [("letter",)]) for name in ("accuracy", "heads")})
    assert claims.with_purity("letter")(made).verdict == verdict
    table.loc[2, "correlation"] = float("nan")
    assert claims.with_purity("letter")(made).measured.endswith("; 8 of 9 seeds have both steps")
