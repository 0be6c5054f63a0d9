"""Where verdicts on other settings change, just on each side of every threshold of their criteria."""

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, UNTESTABLE
from possym.experiments.generality import claims
from possym.results import Study

from ...claims.stored_numbers import figures

EMPTY = Study({"accuracy": pd.DataFrame(), "heads": pd.DataFrame(), "scores": pd.DataFrame()})
GOOD = (0.99, 1, 1, 0.25, 0.5)  # accuracy, positional and symbolic heads, mean depths of both


def models_of(monkeypatch, number, letter=((0.99, 0, 1, None, 0.5),) * 8, setting="heads"):
    rows = [(setting, task, seed, 4, *model) for task, models in (("number", number), ("letter", letter))
            for seed, model in enumerate(models)]  # fmt: skip
    columns = ["setting", "task", "seed", "heads", "accuracy", "positional", "symbolic"]
    columns += ["positional_depth", "symbolic_depth"]
    table = pd.DataFrame(rows, columns=columns)
    monkeypatch.setattr(claims, "final_purity", lambda accuracy, heads, gamma: table if gamma == 0.1 else None)


@pytest.mark.parametrize(
    ("number", "letter", "verdict"),
    [
        (GOOD, (0.99, 0, 1), HOLDS), (GOOD, (0.99, 1, 1), IN_PART), (GOOD, (0.99, 0, 0), IN_PART),
        ((0.99, 0, 1), (0.99, 0, 1), IN_PART), ((0.99, 1, 0), (0.99, 0, 1), IN_PART),
        ((0.989, 1, 0), (0.99, 0, 1), HOLDS), (GOOD, (0.989, 1, 1), HOLDS),
    ],
)  # fmt: skip
def test_one_head_of_a_kind_is_enough_in_models_that_learn(number, letter, verdict, monkeypatch):
    first = [(*each, None, None)[:5] for each in (number, letter)]
    models_of(monkeypatch, [first[0], *[GOOD] * 7], [first[1], *[(0.99, 0, 2, None, 0.5)] * 7])
    found = claims.pure_as_expected("heads")(EMPTY)
    assert found.verdict == verdict
    some = "7 of 7 models that learn it (of 8)"
    assert (f"both kinds in {some}" in found.measured) == (number[0] < 0.99)
    assert (f"symbolic ones alone in {some}" in found.measured) == (letter[0] < 0.99)


def test_a_task_that_nobody_learns_is_refuted_by_the_other_alone(monkeypatch):
    for number, verdict in ([GOOD] * 8, UNTESTABLE), ([(0.99, 1, 0, None, None)] * 8, FAILS):
        models_of(monkeypatch, number, [(0.5, 0, 1, None, None)] * 8)
        assert claims.pure_as_expected("heads")(EMPTY).verdict == verdict


def test_positional_heads_are_first_if_strictly(monkeypatch):
    for depth, verdict in ((0.49, HOLDS), (0.5, IN_PART)):
        models_of(monkeypatch, [(0.99, 1, 1, depth, 0.5), *[GOOD] * 7, (0.98, 1, 1, 0.9, 0.5), (0.99, 0, 1, None, 0.1)])
        found = claims.positional_first(EMPTY)
        assert found.verdict == verdict and f"of 8 models (more heads a layer {8 if depth < 0.5 else 7} of 8)" in (
            found.measured
        )


def test_more_heads_turn_pure_than_by_drift_if_strictly(monkeypatch):
    monkeypatch.setattr(claims, "course", lambda accuracy, scores, gamma: gamma)
    for gained, verdict in ((0.51, HOLDS), (0.5, IN_PART)):
        rows = [("number", True, gained, 0.5, 0.9)] + [("letter", True, 0.75, 0.25, 0.9)] * 7
        rows += [("mixed", False, 0.0, 0.5, rise) for rise in (0.0, 0.01, -0.1)] + [("word", True, 0.0, 0.5, 0.5)]
        table = pd.DataFrame(rows, columns=["task", "learnt", "gained", "drift", "rise"])
        monkeypatch.setattr(claims, "gained_while_learning", lambda gamma, t=table: t if gamma == 0.1 else None)
        found = claims.with_success(EMPTY)
        assert found.verdict == verdict
        assert figures(found.measured) == [str(7 + (gained > 0.5)), "8", "75", "25", "1", "3"]


@pytest.mark.parametrize(
    ("steps", "ordered"),
    [((1, 2, 3, 4), True), ((1, 1, 1, 2), True), ((2, 2, 2, 2), False), ((1, 3, 2, 4), False), ((2, 1, 3, 4), False),
     ((1, 2, 3, None), True), ((1, 2, None, None), True), ((1, 2, None, 4), False), ((None,) * 4, False)],
)  # fmt: skip
def test_no_hop_count_may_be_learnt_before_a_shorter_one(steps, ordered, monkeypatch):
    rows = [(seed, hops, float("nan") if step is None else 1000.0 * step)
            for seed, each in enumerate((steps, (1, 2, 3, 4))) for hops, step in enumerate(each, 1)]  # fmt: skip
    table = pd.DataFrame(rows, columns=["seed", "hops", "step"])
    monkeypatch.setattr(claims, "learnt_steps", lambda accuracy, level: table if level == 0.9 else None)
    monkeypatch.setattr(claims, "learnt_medians", lambda *_: pd.DataFrame({"median": [1000.0, float("nan")]}))
    accuracy = pd.DataFrame({"setting": ["shares"], "task": ["number"]})
    found = claims.short_paths_first(Study({"accuracy": accuracy}))
    assert found.verdict == (HOLDS if ordered else FAILS)
    assert figures(found.measured) == [str(1 + ordered), "2", "1,000"] and found.measured.endswith("never")
