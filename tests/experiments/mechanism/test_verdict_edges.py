"""Where verdicts of chapter 08 change, just on each side of every threshold of their criteria."""

import itertools

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN, UNTESTABLE
from possym.experiments.mechanism import claims
from possym.results import Study

EMPTY = Study({})


def frame(columns, rows):
    return pd.DataFrame(rows, columns=columns.split())


def ids_of(monkeypatch, *weightings):
    """Dominant IDs by weighting, each with its seeds, each with its layers."""
    found = {f"way {k}": pd.DataFrame(seeds) for k, seeds in enumerate(weightings)}
    monkeypatch.setattr(claims, "dominant", lambda *_: found)


FAST, SLOW, TIED = [2, 2, 3, 3, 9, 4, 5], [2, 2, 3, 5, 9, 4, 5], [2, 2, 3, 4, 9, 4, 5]


@pytest.mark.parametrize(
    ("ways", "verdict"),
    [
        (([FAST] * 4,) * 2, HOLDS), (([FAST] * 4, [FAST] * 3 + [TIED]), IN_PART), (([SLOW] * 4, [FAST] * 4), IN_PART),
        (([SLOW] * 4, [FAST] * 3 + [SLOW]), IN_PART), (([SLOW] * 4, [FAST, FAST, TIED, SLOW]), FAILS),
        (([[2, 2, 3, 3, 9]] * 4,) * 2, FAILS),
    ],
)  # fmt: skip
def test_layers_that_take_hops_are_faster_than_each_late_one(ways, verdict, monkeypatch):
    ids_of(monkeypatch, *ways)
    found = claims.fast_then_slow(EMPTY)
    assert found.verdict == verdict
    assert [one.value for one in found.estimates] == [sum(seed == FAST for seed in way) / 4 for way in ways]


@pytest.mark.parametrize(
    ("ways", "verdict"),
    [
        (([[18, 30]] * 3, [[40, 18]] * 3), HOLDS), (([[17, 30], [18, 30], [18, 20]], [[40, 40]] * 3), IN_PART),
        (([[17, 30], [17, 30], [18, 20]], [[40, 40]] * 3), FAILS),
    ],
)  # fmt: skip
def test_the_fastest_layer_is_no_faster_than_18(ways, verdict, monkeypatch):
    ids_of(monkeypatch, *ways)
    assert claims.slow_everywhere(EMPTY).verdict == verdict


def test_a_table_is_compared_layer_by_layer_widened_by_two_ids(monkeypatch):
    monkeypatch.setattr(claims, "published", lambda _: claims.published_value)
    monkeypatch.setattr(claims, "published_value", type("Value", (), {"value": [10, 20, 30, 40]}), raising=False)
    for seeds, agree, null, verdict in (
        ([[8, 22, 28, 42], [6, 22, 28, 44]], 4, 1, HOLDS),  # the range of the first layer is 6 to 8, so 4 to 10
        ([[7, 22, 28, 42], [6, 22, 28, 44]], 3, 1, IN_PART),
        ([[7, 23, 28, 42], [6, 23, 28, 44]], 2, 1, IN_PART),
        ([[7, 23, 33, 42], [6, 23, 33, 44]], 1, 1, FAILS),
        ([[10, 20], [10, 20]], 2, 1, IN_PART),  # of a model with two layers
        ([[10, 20, 30, 40], [36, 46, 4, 14]], 4, 4, NOT_SHOWN),  # ranges so wide that 25 for every layer agrees
    ):
        ids_of(monkeypatch, seeds)
        found = claims.table_one("number")(EMPTY)
        assert found.verdict == verdict, seeds
        assert f"way 0 {agree} " in found.measured and found.measured.endswith(f" would agree in at most {null}")
    monkeypatch.setattr(claims.published_value, "value", [1, 1, 64, 64])
    ids_of(monkeypatch, [[9, 9, 64, 64]])
    assert claims.table_one("number")(EMPTY).verdict == NOT_SHOWN  # 64 is an ID that one could take
    ids_of(monkeypatch, [[1, 1, 9, 9]])
    assert claims.table_one("number")(EMPTY).verdict == NOT_SHOWN


EXACT, THREE, IDLE, LATE, SQUARED = [1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [0] * 5, [1, 1, 0, 1, 0], [1, 1, 2, 0, 0]


@pytest.mark.parametrize(
    ("models", "counts", "verdict"),
    [
        ([EXACT] * 8, (8, 8), HOLDS), ([EXACT] * 7 + [THREE], (7, 8), IN_PART), ([EXACT] * 7 + [IDLE], (7, 7), IN_PART),
        ([THREE] * 5 + [LATE] * 3, (0, 5), NOT_SHOWN), ([THREE] * 4 + [SQUARED] * 4, (0, 4), FAILS),
    ],
)  # fmt: skip
def test_layers_compute_the_function_first_and_then_nothing(models, counts, verdict, monkeypatch):
    monkeypatch.setattr(claims, "sequences_of_labels", lambda *_: pd.DataFrame(models))
    found = claims.composition("letter")(EMPTY)
    assert found.verdict == verdict and [round(8 * one.value) for one in found.estimates] == list(counts)
    assert f"layers 0 to 3 and Reflexive above in {counts[0]} of 8 seeds" in found.measured


def test_a_layer_is_needed_below_nine_tenths_over_all_hops():
    def models(lowest):
        rows = [(task, seed, change, places, layer, hops, accuracy)
                for task, seed, layer in itertools.product(("number", "letter", "mixed"), range(8), range(2))
                for change, places, hops, accuracy in (
                    ("self", "all", 0, lowest if (task, layer, seed) < ("letter", 1, 9) and layer else 1.0),
                    ("self", "last", 0, 0.0), ("self", "all", 1, 0.0), ("uniform", "all", 0, 0.0))
                if task != "mixed" or change == "self"]  # fmt: skip
        rows += [("mixed", 0, "self", "all", 0, 0, 0.0)]
        return Study({"causes": frame("task seed change places layer hops accuracy", rows)})

    assert claims.layers_needed(models(0.9)).verdict == HOLDS
    found = claims.layers_needed(models(0.899))
    assert found.verdict == FAILS
    assert found.measured.startswith("no layer is needed in 8 of 8 models of the number task and 0 of 8 models of the "
                                     "letter task (layer 1 is needed in 8); with attention")  # fmt: skip


def test_hops_ahead_are_more_than_one_a_layer_counted_from_the_first():
    rows = [("letter", seed, layer, 4, left, share) for seed in (0, 1) for layer, left, share in (
        (-1, 1, 0.9), (0, 3, 0.5), (0, 2, 0.2), (0, 1, 0.1), (0, 5, 0.9), (1, 2, 0.6), (1, 1, 0.25 + 0.1 * seed),
        (3, 0, 1.0))]  # fmt: skip
    rows += [("letter", 0, 0, 3, 0, 0.9), ("number", 0, 0, 4, 0, 0.9)]
    rows += [("letter", 2, 0, 4, 3, 1.0), ("letter", 3, 0, 4, 4, 1.0), ("letter", 4, 0, 4, 5, 1.0)]
    found = claims.hops_ahead(Study({"left": frame("task seed layer hops left share", rows)}), "letter")
    assert found.round(6).to_dict() == {0: 0.3, 1: 0.35, 2: 0.0, 3: 0.0}


@pytest.mark.parametrize(
    ("shares", "verdict"), [([0.5] * 8, HOLDS), ([0.499] + [0.5] * 7, IN_PART), ([0.499] * 8, FAILS), ([], UNTESTABLE)]
)
def test_a_model_doubles_where_half_of_the_paths_run_ahead(shares, verdict, monkeypatch):
    monkeypatch.setattr(claims, "hops_ahead", lambda _, task: pd.Series(shares if task == "letter" else [1.0] * 8)
                        if shares else pd.Series(dtype=float))  # fmt: skip
    assert claims.pointer_doubling(EMPTY).verdict == verdict


def told(kind, *seeds):
    """Shares of answers by seed, over two hop counts whose mean they are, beside sequences of another kind."""
    rows = [
        ("letter", each, hops, seed, answer, share + off if each == kind else 0.5)
        for each in (kind, "drawn")
        for seed, shares in enumerate(seeds)
        for answer, share in zip(("path", "rule", "target"), shares, strict=True)
        for hops, off in ((1, -0.015625), (2, 0.015625))
    ]
    return Study({"rule": frame("task kind hops seed answer share", rows)})


def test_the_path_is_followed_in_19_of_20():
    above, below = (0.96875, 0.03125, 0.0), (0.9375, 0.0625, 0.0)
    for seeds, verdict in (([above] * 3, HOLDS), ([below, above, above], IN_PART), ([below, below, above], FAILS)):
        assert claims.path_followed(told("disagree", *seeds)).verdict == verdict
    assert claims.FOLLOWED == 0.95


def test_the_rule_is_above_a_fifth_of_the_other_targets():
    more, tie, less = (0.5, 0.125, 0.5), (0.25, 0.125, 0.625), (0.25, 0.0625, 0.625)
    for seeds, verdict in (([more] * 8, HOLDS), ([more] * 7 + [tie], IN_PART), ([tie] * 5 + [more] * 3, FAILS),
                           ([less] * 8, FAILS)):  # fmt: skip
        assert claims.rule_where_cut(told("cut-disagree", *seeds)).verdict == verdict


@pytest.mark.parametrize(("wrong", "total", "verdict"), [(0, 10, HOLDS), (1, 10, IN_PART), (2, 20, IN_PART),
                                                         (2, 19, FAILS), (0, 0, UNTESTABLE)])  # fmt: skip
def test_one_head_in_ten_may_be_of_the_kind_that_cannot(wrong, total, verdict):
    pure, not_quite = (0.1, 0.9), (0.11, 1.0)
    for kind, order in ((-1, 1), (1, -1)):
        scores = [pure if k < wrong else not_quite for k in range(total)]
        rows = [("number", 9, 0, 1 + k % 2, *pair[::order]) for k, pair in enumerate(scores)]
        rows += [("number", 9, 0, 0, *pure[::order]), ("number", 5, 0, 1, *pure[::order])]
        table = frame("task step seed function positional symbolic", rows)
        found = claims.impossible("number", kind)(Study({"training": table}))
        assert found.verdict == verdict
        if total:
            name, other = ("symbolic", "positional")[::order]
            assert found.measured == f"{wrong} of {total} heads that compute it are purely {name}, 0 purely {other}"
