"""Counterfactual letter sequences are what their names say, read as strings."""

from collections import Counter

import pytest
import torch

from possym.errors import InputError
from possym.tasks import LetterTask
from possym.tasks.counterfactual import KINDS, conflicts, first_letters, marked_targets
from possym.tasks.shortcuts import shortcut_accuracy

TASK = LetterTask()


def marked_by_hand(names):
    counts = Counter(name[0] for name in names)
    return [place for place in range(8) if counts[names[place][0]] == 1]


def follow(names, start):
    """The tokens that a path of letters leads to, each hop to the one token that begins with the letter."""
    walk, token = [], start
    while token[1].isalpha():
        found = {name for name in names if name[0] == token[1]}
        if len(found) != 1:
            return walk
        (token,) = found
        walk.append(token)
    return walk


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hops", [1, 4])
def test_sequences_are_what_their_kind_says(kind, hops):
    batch, rule = conflicts(60, kind, hops=hops, generator=torch.Generator().manual_seed(hops))
    assert len(batch.tokens) == len(rule) == 60 and (batch.hops == hops).all()
    for names, answer, place, path in zip(
        TASK.decode(batch.tokens), TASK.decode(batch.answer), rule.tolist(), batch.path.tolist(), strict=True
    ):
        assert all(name[1].isdigit() for name in names[:8]) and all(name[1].isalpha() for name in names[8:])
        marked, copies = marked_by_hand(names), names.count(answer)
        assert names[path[hops]] == answer
        tail = [names[step] for step in path[1 : hops + 1]]
        if kind.startswith("cut"):
            assert names[-1][1] not in {name[0] for name in names}
            if hops > 1:  # the rest of the path still leads to the answer
                assert follow(names, tail[0]) == tail[1:]
        else:
            assert follow(names, names[-1]) == tail
        if kind in ("drawn", "cut"):
            assert marked == [place] and names[place] == answer and copies == 1
        elif kind == "decoys":
            assert len(marked) == 3 and place in marked and path[hops] in marked and place != path[hops] and copies == 1
        elif kind == "copied":
            assert marked == [] and place == -1 and copies == 2
        else:
            assert marked == [place] and names[place] != answer and copies == 2


def test_marks_are_what_the_shortcut_guesses_from():
    batch = TASK.sample(400)
    marked = marked_targets(batch.tokens)
    place = batch.path.gather(1, batch.hops[:, None])
    chance = marked.gather(1, place)[:, 0].double() / marked.sum(1)
    torch.testing.assert_close(chance, shortcut_accuracy(TASK, batch))
    for names, row in zip(TASK.decode(batch.tokens[:50]), marked.tolist(), strict=False):
        assert [place for place, mark in enumerate(row) if mark] == marked_by_hand(names)
    assert first_letters(batch.tokens[0]).tolist() == ["abcdefgh".index(n[0]) for n in TASK.decode(batch.tokens[0])]


def test_the_same_generator_gives_the_same_sequences():
    first, again = (conflicts(9, "disagree", hops=2, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first[0].tokens, again[0].tokens) and torch.equal(first[1], again[1])
    other = conflicts(9, "disagree", hops=2, generator=torch.Generator().manual_seed(5))
    assert (other[0].tokens != first[0].tokens).any(1).all()
    assert torch.equal(conflicts(9, "cut", hops=2)[0].tokens, conflicts(9, "cut", hops=2)[0].tokens)


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="known kinds are drawn"):
        conflicts(3, "broken", hops=1)
    for hops in (0, 5, True, "1"):
        with pytest.raises(InputError, match="hops"):
            conflicts(3, "drawn", hops=hops)
    with pytest.raises(InputError, match="n = 0"):
        conflicts(0, "drawn", hops=1)
    with pytest.raises(InputError, match="17 tokens"):
        marked_targets(torch.zeros(2, 16, dtype=torch.int64))
