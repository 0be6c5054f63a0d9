"""One-hop prompts: their shape, balance and answers, found a second way from the text alone."""

import re
from collections import Counter

import pytest
import torch

from possym.errors import InputError
from possym.tasks import OneHopTask
from possym.tasks.onehop import INSTRUCTIONS, KINDS, LENGTHS


def truth(kind, sequence):
    """The answer by other means: the number by cutting from the right, the letter by a pattern."""
    if kind == "number":
        return f" {sequence}".rsplit(" ", int(sequence.split(" ")[-1]) + 1)[1]
    before, _, last = sequence.rpartition(" ")
    (found,) = re.findall(rf"\b{last[1]}\d\b", before)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [LENGTHS[0], 48, LENGTHS[-1]])
def test_answers_are_what_the_instruction_says(kind, length):
    task = OneHopTask(kind)
    drawn = task.sample(20, length=length, generator=torch.Generator().manual_seed(length))
    for text, answer, items, place in zip(*drawn, strict=True):
        *worked, asked = re.findall(r"Sequence: (.*)\nAnswer:(?: (.*))?", text)
        assert text.startswith(INSTRUCTIONS[kind]) and text.endswith("\nAnswer:")
        assert [len(sequence.split()) for sequence, _ in worked] == [12, 12, 12]
        assert all(truth(kind, sequence) == shown for sequence, shown in worked)
        assert asked[0] == " ".join(items) and len(items) == length
        assert answer == truth(kind, asked[0]) == items[place] == task.solve(text)


@pytest.mark.parametrize("kind", KINDS)
def test_places_are_balanced(kind):
    places = OneHopTask(kind).sample(50, length=12).places
    counts = places.bincount(minlength=11)
    assert len(counts) == 11 and counts.max() - counts.min() <= 1


def test_items_are_drawn_alike():
    letters = Counter("".join("".join(items[:-1]) for items in OneHopTask("number").sample(200, length=66).items))
    assert len(letters) == 26 and max(letters.values()) / min(letters.values()) < 1.5  # 500 each, sd 22
    drawn = OneHopTask("letter").sample(200, length=66)
    assert len({answer for answer in drawn.answers}) > 100
    asked = Counter(items[-1][1] for items in drawn.items)
    others = Counter(item[0] for items in drawn.items for item in items[:-1])
    assert len(asked) == 26 and max(others.values()) / min(others.values()) < 1.5


def test_a_data_set_shares_its_worked_examples_and_another_seed_has_others():
    task = OneHopTask("letter")
    one, same, other = (
        task.sample(3, length=16, generator=torch.Generator().manual_seed(seed)).texts for seed in (1, 1, 2)
    )
    heads = {text.rpartition("Sequence:")[0] for text in one}
    assert len(heads) == 1 and one == same and heads != {text.rpartition("Sequence:")[0] for text in other}
    assert len(set(one)) == 3


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    OneHopTask("number").sample(2)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("text", ["", "a b c", "Sequence: a b 3\nAnswer:", "Sequence: a b 0\nAnswer:"])
def test_what_is_no_prompt_is_not_solved(text):
    for kind in KINDS:
        with pytest.raises(InputError, match="give a prompt of the"):
            OneHopTask(kind).solve(text)


def test_wrong_arguments_are_refused():
    for kind in ("letters", 1, None):
        with pytest.raises(InputError, match="known kinds are number, letter"):
            OneHopTask(kind)
    task = OneHopTask("number")
    for call, message in (
        (lambda: task.sample(0), "n = 0"),
        (lambda: task.sample(2.0), "n = 2.0"),
        (lambda: task.sample(1, length=1), "length = 1"),
        (lambda: task.sample(1, length="16"), "length = '16'"),
        (lambda: task.sample(1, generator=3), "generator = 3"),
        (lambda: task.solve(3), "text is of type int"),
    ):
        with pytest.raises(InputError, match=message):
            call()
