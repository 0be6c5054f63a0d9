"""Where verdicts on the tasks change: how uneven the counts, what share of answers and integers."""

from collections import Counter

import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART
from possym.experiments.multihop_tasks import claims
from possym.tasks import Batch, LetterTask, NumberTask


@pytest.fixture(scope="module")
def batches():
    return {"number": claims.drawn(NumberTask()), "letter": claims.drawn(LetterTask())}


def test_counts_are_as_uneven_as_a_plain_count_says(batches):
    number = batches["number"]
    for rows in (slice(0, 1000), slice(5, 48_000, 3)):
        part = Batch(*(one[rows] for one in number))
        hops, answers = part.hops.tolist(), part.answer.tolist()
        places = [path[hop] for path, hop in zip(part.path.tolist(), hops, strict=True)]
        counts = [Counter(hops).values()]
        for hop in (1, 2, 3, 4):
            mine = [k for k, each in enumerate(hops) if each == hop]
            for found, size in ((places, 8), (answers, 120)):
                count = [*Counter(found[k] for k in mine).values()]
                counts.append(count + [0] * (size - len(count)))
        worst = max(max(count) - min(count) for count in counts)
        assert claims.balanced(part, 120).measured == f"counts differ by at most {worst}"
        alone = claims.balanced(Batch(*(one[part.hops == 4] for one in part)), 120)
        assert alone.measured == f"counts differ by at most {Counter(hops)[4]}"


@pytest.mark.parametrize(("worst", "verdict"), [(1, HOLDS), (2, IN_PART), (5, IN_PART), (6, FAILS)])
def test_every_count_may_differ_by_one(worst, verdict, batches, monkeypatch):
    asked = []
    for which in range(9):  # hops, then place and value for each hop count
        asked.clear()
        monkeypatch.setattr(claims, "spread", lambda _, n, w=which: asked.append(n) or worst * (len(asked) == w + 1))
        assert claims.balanced(batches["letter"], 64).verdict == verdict
        assert asked == [4, *[8, 64] * 4]


def test_one_wrong_answer_in_a_hundred_holds_in_part(batches):
    number = Batch(*(one[:200] for one in batches["number"]))
    letter = Batch(*(one[:4000] for one in batches["letter"]))
    for measure, batch, steps in (
        (claims.number_answers, number, ((0, HOLDS), (1, IN_PART), (2, IN_PART), (3, FAILS))),
        (claims.letter_answers, letter, ((0, HOLDS), (1, IN_PART), (40, IN_PART), (41, FAILS))),
    ):
        for wrong, verdict in steps:
            answer = batch.answer.clone()
            answer[:wrong] = (answer[:wrong] + 1) % 8
            found = measure(batch._replace(answer=answer))
            assert found.verdict == verdict and found.measured.startswith(f"{1 - wrong / len(answer):.2%} of answers")
    hops = letter.hops.clone()
    hops[:41] = hops[:41] % 4 + 1
    assert claims.letter_answers(letter._replace(hops=hops)).verdict == FAILS


def test_an_integer_may_reach_the_first_position_and_no_further(batches):
    vocabulary = NumberTask().vocabulary
    letter = next(k for k, token in enumerate(vocabulary) if not token.isdigit())
    tokens = batches["number"].tokens[:100, :16].clone().fill_(letter)
    for place, jump, verdict in ((4, 4, HOLDS), (4, 5, IN_PART)):
        changed = tokens.clone()
        changed[:16, place] = vocabulary.index(str(jump))  # 16 of 1,600 are one in a hundred
        assert claims.integers_inside(batches["number"]._replace(tokens=changed)).verdict == verdict
    changed[16, 4] = vocabulary.index("5")
    assert claims.integers_inside(batches["number"]._replace(tokens=changed)).verdict == FAILS
