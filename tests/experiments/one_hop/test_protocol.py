"""Grading, accuracy and screens of one-hop prompts against counts by hand."""

import statistics

import pandas as pd
import pytest

from possym.errors import InputError
from possym.experiments.one_hop import protocol as onehop
from possym.models.runners import Reply


@pytest.fixture(scope="module")
def prompts():
    return onehop.draw(4, lengths=(12, 16), runs=3, seed=2)


def replies(prompts, right):
    """A reply to every prompt, right where ``right(row)`` says so."""
    return [Reply(row.answer if right(row) else "no", 1, True) for row in prompts.itertuples()]


def test_data_sets_are_those_of_their_runs(prompts):
    assert prompts.groupby(["kind", "length", "run"]).size().tolist() == [4] * 12
    assert sorted(prompts.run.unique()) == [2, 3, 4]
    again = onehop.draw(4, lengths=(16,), runs=1, seed=3)
    same = prompts[(prompts.length == 16) & (prompts.run == 3)].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, same)
    assert prompts.text.is_unique
    for row in prompts.itertuples():
        assert row.items.split()[row.place] == row.answer and f"Sequence: {row.items}\nAnswer:" in row.text
        assert [row.text.split("Answer: ")[k].split()[0] for k in (1, 2, 3)] == row.examples.split()


@pytest.mark.parametrize(
    ("reply", "correct", "one"),
    [
        ("k3", True, True), (" K3.\n", True, True), ('"k3"', True, True), ("**k3**", True, True),
        ("k4", False, True), ("The answer is k3", False, False), ("k3 k3", False, False), ("", False, False),
        (" . ", False, False), ("k", False, True),
    ],
)  # fmt: skip
def test_a_reply_is_right_if_it_is_the_answer_and_nothing_else(reply, correct, one):
    row = {"kind": "letter", "length": 16, "run": 0, "prompt": 0, "answer": "k3", "reply": reply}
    found = onehop.graded(pd.DataFrame([row])).iloc[0]
    assert (found.correct, found.one_item) == (correct, one)


def test_mean_and_sd_are_over_runs(prompts):
    table = onehop.collect(prompts, replies(prompts, lambda row: row.prompt < row.run - 1))
    found = onehop.accuracy(table).set_index(["kind", "length"])
    shares = [1 / 4, 2 / 4, 3 / 4]
    for cell in found.itertuples():
        assert cell.mean == pytest.approx(statistics.mean(shares)) and cell.sd == pytest.approx(
            statistics.stdev(shares)
        )
        assert cell.prompts == 12 and cell.low < 0.5 < cell.high
    one = onehop.accuracy(table[table.run == 2])
    assert one.sd.isna().all() and (one["mean"] == 0.25).all()


def test_the_interval_is_wilson_s():
    right, total, z = 37, 90, 1.959963984540054
    share, square = right / total, z**2 / total
    middle = (share + square / 2) / (1 + square)
    half = z / (1 + square) * (share * (1 - share) / total + square / (4 * total)) ** 0.5
    assert onehop.wilson(right, total) == pytest.approx((middle - half, middle + half), abs=1e-12)


@pytest.mark.parametrize(
    ("right", "talks", "passed"), [(85, 0, True), (84, 0, False), (100, 5, False), (95, 5, True), (90, 6, False)]
)
def test_both_screens(right, talks, passed):
    rows = [
        {"kind": "letter", "length": 16, "one_item": i >= talks, "correct": talks <= i < min(100, right + talks)}
        for i in range(100)
    ]
    others = [
        {"kind": kind, "length": n, "one_item": False, "correct": False} for kind, n in (("number", 16), ("letter", 12))
    ]
    found = onehop.screen(pd.DataFrame(rows + others))
    expected = min(right, 100 - talks) / 100
    assert found.accuracy == pytest.approx(expected) and found.prompts == 100
    assert found.passed == (expected >= 0.85 and talks <= 5)
    assert found.passed == passed or (right, talks) == (100, 5)


def test_reach_is_the_last_length_before_the_first_failure():
    rows = [("m", "number", length, mean) for length, mean in ((12, 0.9), (16, 0.5), (24, 0.4), (32, 0.8))]
    rows += [("m", "letter", 12, 0.9), ("m", "letter", 16, 0.6), ("n", "number", 12, 0.1)]
    found = onehop.reach(pd.DataFrame(rows, columns=["model", "kind", "length", "mean"]))
    assert found.reach.tolist() == [16, 16, 0]
    assert found.lost.tolist() == [24, pd.NA, 12]


def test_habits_are_told_apart_and_add_up(prompts):
    some = prompts[(prompts.kind == "letter") & (prompts.length == 12) & (prompts.run == 2)]
    (first, second, third, fourth) = some.itertuples()
    other = next(item for item in second.items.split()[:-1] if item != second.answer)
    said = [first.answer, other, third.items.split()[-1], "I do not know"]
    table = onehop.habits(onehop.collect(some, [Reply(text, 1, True) for text in said])).iloc[0]
    assert [table[name] for name in ("right", "other item", "query", "more or nothing")] == [0.25] * 4
    shown = next(item for item in fourth.examples.split() if item not in fourth.items.split())
    said = ["zz", shown, "zz", "zz"]
    some = some.iloc[[0, 3, 1, 2]]
    table = onehop.habits(onehop.collect(some, [Reply(text, 1, True) for text in said])).iloc[0]
    assert table["example"] == 0.25 and table["other word"] == 0.75
    assert table[list(onehop.HABITS)].sum() == pytest.approx(1)


def test_a_prompt_without_a_reply_is_not_a_wrong_answer(prompts):
    given = replies(prompts, lambda row: True)
    given[0] = given[5] = None
    table = onehop.collect(prompts, given)
    assert len(table) == len(prompts) - 2 and table.correct.all()
    with pytest.raises(InputError, match="none of the prompts was answered"):
        onehop.collect(prompts, [None] * len(prompts))
