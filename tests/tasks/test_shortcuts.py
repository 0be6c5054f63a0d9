"""Guessers without a path: by hand, and against a count over decoded tokens."""

import re

import pytest
import torch

from possym.errors import InputError
from possym.tasks import Batch, IndexTask, LetterTask, MixedTask, NumberTask
from possym.tasks.shortcuts import pointers_at_path, shortcut_accuracy

from .draws import generator


def by_counting(task, batch):
    chances = []
    for tokens, hops, path in zip(task.decode(batch.tokens), batch.hops.tolist(), batch.path.tolist(), strict=True):
        likely = set()
        if not isinstance(task, LetterTask):
            jumps = [(place, re.search("[0-9]+$", token)) for place, token in enumerate(tokens)]
            likely |= {place - int(jump[0]) for place, jump in jumps if jump} & set(range(8))
        if not isinstance(task, NumberTask):
            firsts = "".join(token[0] for token in tokens)
            likely |= {place for place in range(8) if firsts.count(firsts[place]) == 1}
        chances.append((path[hops] in likely) / len(likely))
    return torch.tensor(chances, dtype=torch.float64)


@pytest.mark.parametrize("task", [NumberTask(), LetterTask(), LetterTask("any"), MixedTask()])
def test_against_counting(task):
    batch = task.sample(2000, generator=generator(3))
    assert torch.equal(shortcut_accuracy(task, batch), by_counting(task, batch))


@pytest.mark.parametrize("rule", LetterTask.OFF_PATH)
@pytest.mark.parametrize("hops", [1, 4])
def test_pointers_at_the_path_are_counted_on_strings(rule, hops):
    task = LetterTask(rule)
    batch = task.sample(300, hops=hops, generator=generator(hops))
    expected = []
    for tokens, path in zip(task.decode(batch.tokens), batch.path.tolist(), strict=True):
        path = [place for place in path if place >= 0]
        begun = {tokens[place][0] for place in path}
        off = [token for place, token in enumerate(tokens) if place >= 8 and place not in path]
        expected.append(sum(token[1] in begun for token in off) / len(off))
    assert pointers_at_path(batch).tolist() == pytest.approx(expected)
    assert (max(expected) > 0) == (rule == "any")


def by_hand(task, text, path):
    tokens = torch.tensor([[task.vocabulary.index(token) for token in text.split()]])
    return Batch(tokens, tokens[:, path[-1]], torch.tensor([len(path) - 1]), torch.tensor([path + [-1] * 3]))


def test_by_hand():
    number = by_hand(NumberTask(), "a b c d e f g h 1 1 1 1 1 1 1 14 15", [16, 1])
    assert shortcut_accuracy(NumberTask(), number).tolist() == [1 / 2]  # 8 − 1 is h and 16 − 15 = 15 − 14 is b
    letter = by_hand(LetterTask(), "a1 b1 b2 b3 b4 c1 c2 d1 ba ba ba ba ba ba ba ba ba", [16, 0])
    assert shortcut_accuracy(LetterTask(), letter).tolist() == [1 / 2]  # a1 or d1
    mixed = by_hand(MixedTask(), "aA bA bB bC bD cA cB bE ba b1 ba ba ba ba ba ba b15", [16, 1])
    assert shortcut_accuracy(MixedTask(), mixed).tolist() == [1 / 2]  # aA is alone of its name, 16 − 15 is place 1


def test_bad_input():
    with pytest.raises(InputError, match="NumberTask, a LetterTask or a MixedTask"):
        shortcut_accuracy(IndexTask(), NumberTask().sample(2))
    with pytest.raises(InputError, match="18 tokens"):
        shortcut_accuracy(NumberTask(), NumberTask().sample(2, length=18))
    with pytest.raises(InputError, match="18 tokens"):
        pointers_at_path(LetterTask().sample(2, length=18))
