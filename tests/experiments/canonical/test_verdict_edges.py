"""Where verdicts on the canonical tasks change, just on each side of every threshold of their criteria."""

import itertools

import numpy as np
import pandas as pd
import pytest

from possym.experiments.canonical import GRID, claims
from possym.experiments.claim import FAILS, HOLDS, IN_PART
from possym.results import Study

EMPTY = Study({"accuracy": pd.DataFrame(), "by_place": pd.DataFrame(), "scores": pd.DataFrame()})
HALF, QUARTER = GRID // 2, GRID // 4


@pytest.fixture(autouse=True)
def without_words(monkeypatch):
    monkeypatch.setattr(claims, "many", lambda _: 16)
    monkeypatch.setattr(claims, "learnt_words", lambda study, task, more: more)


def angles(monkeypatch, **tables):
    """Mean accuracies by frequency ID, fastest first, by task and number of planes."""
    made = {
        name: pd.DataFrame({"first_id": [*means], "mean": [*means.values()]}).assign(
            low=lambda t: t["mean"] - 0.01, high=lambda t: t["mean"] + 0.01
        )
        for name, means in tables.items()
    }
    names = {claims.INDEX: "index", claims.RETRIEVAL: "retrieval", claims.PARTIAL: "partial"}
    monkeypatch.setattr(claims, "one_angle", lambda _, task, planes=16: made[f"{names[task]}{'_one' * (planes == 1)}"])


@pytest.mark.parametrize(
    ("means", "slow", "verdict"),
    [
        ({1: 0.9, HALF: 0.9, 0: 0.1}, 0, HOLDS), ({1: 0.9, HALF + 1: 0.9, 0: 0.1}, 1, FAILS),
        ({1: 0.9, HALF: 0.89, 0: 0.9}, 1, FAILS), ({1: 0.89, HALF: 0.9, 0: 0.1}, 0, IN_PART),
        ({1: 0.89, HALF: 0.89, 0: 0.1}, 0, FAILS),
    ],
)  # fmt: skip
def test_index_runs_from_the_fastest_to_the_middle(means, slow, verdict, monkeypatch):
    angles(monkeypatch, index=means)
    found = claims.index_fast(EMPTY)
    assert found.verdict == verdict
    assert found.measured.startswith(f"{slow} of these {sum(mean >= 0.9 for mean in means.values())} lie in the slower")


@pytest.mark.parametrize(
    ("means", "fast", "verdict"),
    [
        ({1: 0.1, HALF + 1: 0.9, 0: 0.9}, 0, HOLDS), ({1: 0.1, HALF: 0.9, 0: 0.9}, 1, IN_PART),
        ({QUARTER + 1: 0.9, 30: 0.1, 0: 0.9}, 1, IN_PART), ({QUARTER: 0.9, 30: 0.1, 0: 0.9}, 1, FAILS),
        ({1: 0.9, 30: 0.1, 0: 0.9}, 1, FAILS), ({1: 0.1, 30: 0.89, 0: 0.89}, 0, FAILS),
        ({1: 0.1, 30: 0.9, 0: 0.89}, 0, IN_PART),
    ],
)  # fmt: skip
def test_retrieval_runs_from_the_middle_to_nope(means, fast, verdict, monkeypatch):
    angles(monkeypatch, retrieval=means)
    found = claims.retrieval_slow(EMPTY)
    assert found.verdict == verdict and found.measured.startswith(f"{fast} of these ")


@pytest.mark.parametrize(
    ("both", "verdict"), [(0, HOLDS), (1, IN_PART), (2, IN_PART), (3, FAILS), ("neither", FAILS), ("one", FAILS)]
)
def test_at_most_one_angle_in_eight_learns_both(both, verdict, monkeypatch):
    count = both if isinstance(both, int) else 0
    index = {k: 0.9 if k <= 8 + count and both != "neither" else 0.1 for k in range(1, 17)}
    retrieval = {k: 0.95 if k > 8 and isinstance(both, int) else 0.1 for k in range(1, 17)}
    angles(monkeypatch, index=index, retrieval=retrieval)
    found = claims.tension(EMPTY)
    assert found.verdict == verdict and found.measured.startswith(f"{count} angles learn both; best is ")


@pytest.mark.parametrize(
    ("one", "more", "verdict"), [(0.89, 0.89, HOLDS), (0.89, 0.9, IN_PART), (0.9, 0.89, FAILS), (0.9, 0.95, FAILS)]
)
def test_partial_induction_is_not_learnt_with_one_plane_nor_many(one, more, verdict, monkeypatch):
    angles(monkeypatch, partial_one={1: 0.1, 2: one}, partial={1: 0.2, 2: more})
    found = claims.not_with_one_angle(EMPTY)
    assert found.verdict == verdict and [each.value for each in found.estimates] == [one, more]


@pytest.mark.parametrize(
    ("mean", "low", "verdict"), [(0.95, 0.9, HOLDS), (0.95, 0.89, IN_PART), (0.8, 0.7, IN_PART), (0.79, 0.7, FAILS)]
)
def test_two_angles_are_judged_by_the_best_pairs_interval(mean, low, verdict, monkeypatch):
    rows = [(3, 0.1, 0.1, 0.1), (7, mean, low, 1.0), (9, 0.2, 0.95, 1.0)]
    table = pd.DataFrame(rows, columns=["second_id", "mean", "low", "high"])
    monkeypatch.setattr(claims, "pairs_with_nope", lambda _: table)
    assert claims.with_two_angles(EMPTY).verdict == verdict


@pytest.mark.parametrize(
    ("mean", "high", "verdict"), [(0.5, 0.84, HOLDS), (0.5, 0.85, IN_PART), (0.89, 0.95, IN_PART), (0.9, 0.95, FAILS)]
)
def test_the_fastest_second_angle_is_worse_than_the_best(mean, high, verdict, monkeypatch):
    rows = [(1, mean, 0.4, high), (7, 0.9, 0.85, 0.95)]
    table = pd.DataFrame(rows, columns=["second_id", "mean", "low", "high"])
    monkeypatch.setattr(claims, "pairs_with_nope", lambda _: table)
    assert claims.moderate_second_angle(EMPTY).verdict == verdict


def test_pairs_with_nope_leave_out_two_of_nope():
    rows = [("two-angles", 0, second, planes, seed, step, 0.5 + 0.1 * seed + 0.01 * second)
            for second, planes, seed, step in itertools.product((7, 0, 1), (1, 16), (0, 1), (0, 9))]  # fmt: skip
    rows += [("two-angles", 1, 7, 16, 0, 9, 0.0), ("one-angle", 0, 7, 16, 0, 9, 0.0)]
    table = pd.DataFrame(rows, columns=["piece", "first_id", "second_id", "planes", "seed", "step", "accuracy"])
    found = claims.pairs_with_nope(Study({"accuracy": table}))
    assert found["second_id"].tolist() == [1, 7] and found["mean"].tolist() == pytest.approx([0.56, 0.62])


@pytest.mark.parametrize(
    ("shapes", "verdict"),
    [(("UU", "UU"), HOLDS), (("UU", "U-"), IN_PART), (("U-", "U-"), FAILS), (("", ""), FAILS), (("", "U"), HOLDS)],
)
def test_most_mismatched_angles_have_the_shape(shapes, verdict, monkeypatch):
    given = {1: shapes[0], 16: shapes[1]}
    monkeypatch.setattr(
        claims.sweep, "mismatched",
        lambda *_, planes, **__: pd.DataFrame({"shape": [*given[planes]], "bend": [0.1 * planes] * len(given[planes])}),
    )  # fmt: skip
    found = claims.shape("index", "U")(EMPTY)
    assert found.verdict == verdict
    assert found.measured.startswith(f"U at {''.join(shapes).count('U')} of {len(''.join(shapes))} mismatched angles")


@pytest.mark.parametrize(
    ("first", "verdict"),
    [((0.9, 0.1), HOLDS), ((0.89, 0.1), IN_PART), ((0.9, 0.11), IN_PART), ((0.51, 0.5), IN_PART), ((0.5, 0.5), FAILS)],
)
def test_learnt_angles_score_nine_tenths_and_one_tenth(first, verdict, monkeypatch):
    rows = [(angle, tau, seed, *((pair[0] + off, pair[1] - off) if tau < 0.1 else (0.5, 0.5)))
            for angle, pair in ((1, first), (2, (1.0, 0.0)), (3, (0.0, 1.0)))
            for tau in (1e-4, 0.1) for seed, off in ((0, 0.0625), (1, -0.0625))]  # fmt: skip
    table = pd.DataFrame(rows, columns=["first_id", "temperature", "seed", "positional", "symbolic"])
    monkeypatch.setattr(claims.sweep, "heads", lambda table, **wanted: table if wanted["planes"] == 16 else None)
    monkeypatch.setattr(claims.sweep, "learnt_ids", lambda *_, **__: [1, 2])
    found = claims.behaviour("index", "positional")(Study({"scores": table, "accuracy": table}))
    assert found.verdict == verdict
    assert found.measured.startswith(f"{1 + (verdict == HOLDS)} of 2 learnt angles are pure positional; ")
    other = claims.behaviour("retrieval", "symbolic")(
        Study({"scores": table.rename(columns={"positional": "symbolic", "symbolic": "positional"}), "accuracy": table})
    )
    assert other.verdict == verdict
    monkeypatch.setattr(claims.sweep, "learnt_ids", lambda *_, **__: [])
    assert claims.behaviour("index", "positional")(Study({"scores": table, "accuracy": table})).verdict == FAILS


@pytest.mark.parametrize(
    ("keys", "turned", "queries", "verdict"),
    [
        (0.9, 0.9, 0.5, HOLDS), (0.89, 0.9, 0.5, FAILS), (0.9, 0.89, 0.5, FAILS), (0.9, 0.9, 0.51, IN_PART),
        (0.9, 0.9, 0.74, IN_PART), (0.9, 0.9, 0.76, FAILS), (1.0, 1.0, 0.875, FAILS),
    ],
)  # fmt: skip
def test_queries_spread_or_lie_as_built_in_most_seeds(keys, turned, queries, verdict, monkeypatch):
    best = dict(keys=keys, turned=turned, queries=queries, construction=0.6)
    other = dict(keys=0.0, turned=0.0, queries=1.0, construction=0.6)
    rows = [dict(each, seed=seed, head=head) for seed in range(4) for head, each in enumerate((other, best, other))]
    monkeypatch.setattr(claims.sweep, "gathering", lambda *_: pd.DataFrame(rows))
    means = pd.DataFrame({"first_id": [1, 2, 3, 7], "mean": [0.5, 0.9, 0.6, 0.95]})  # 7 was not traced
    asked = []
    monkeypatch.setattr(claims.sweep, "by_angle", lambda table, **wanted: asked.append(wanted["planes"]) or means)
    arrays = dict.fromkeys(("index/final_query", "index/final_key"), np.zeros(1))
    made = Study({"accuracy": means}, arrays, {"traced_ids": [1, 2, 3]})
    assert claims.plane(made).verdict == verdict and asked == [1]
    for count, expected in ((1, IN_PART), (2, FAILS)):  # of four seeds, the rest as asked
        for row in rows:
            row.update(best if row["head"] == 1 and row["seed"] >= count else other)
        if verdict == HOLDS:
            assert claims.plane(made).verdict == expected
