"""Answers at every place: against the solvers on every beginning of every sequence."""

import pytest
import torch

from possym.errors import InputError
from possym.tasks import IndexTask, LetterTask, MixedTask, NumberTask
from possym.tasks import positions as module
from possym.tasks.positions import answers_by_position

from . import truth
from .draws import generator

TASKS = pytest.mark.parametrize("task", [NumberTask(), LetterTask(), MixedTask()], ids=["number", "letter", "mixed"])


def by_solver(task, beginning):
    """The solver's answer to one beginning (places,), −1 where it refuses; `truth` counts the hops."""
    try:
        answer = task.solve(beginning[None])
    except InputError:
        return -1
    walk = {NumberTask: truth.number_path, LetterTask: truth.letter_path, MixedTask: truth.mixed_path}[type(task)]
    return answer.item() if len(walk(task.decode(beginning))) <= 5 else -1


@TASKS
@pytest.mark.parametrize("length", [17, 30])
def test_every_place_is_the_last_of_its_beginning(task, length):
    tokens = task.sample(100, length=length, generator=generator(length)).tokens
    found = answers_by_position(task, tokens)
    expected = [[by_solver(task, row[: place + 1]) for place in range(length)] for row in tokens]
    assert found.tolist() == expected
    assert (found[:, : length - 9] == -1).all() and (found[:, length - 9 :] >= 0).float().mean() > 0.2


@TASKS
def test_the_last_places_answer_is_the_tasks(task):
    batch = task.sample(2000)
    assert torch.equal(answers_by_position(task, batch.tokens)[:, -1], batch.answer)


@TASKS
def test_random_sequences_of_tokens_are_answered_alike(task):
    tokens = torch.randint(len(task.vocabulary), (200, 9), generator=generator())
    found = answers_by_position(task, tokens)
    assert found.tolist() == [[by_solver(task, row[: place + 1]) for place in range(9)] for row in tokens]


def test_paths_of_five_hops_have_no_answer():
    task = NumberTask()
    tokens = torch.tensor([[task.vocabulary.index(token) for token in "q 1 1 1 1 1".split()]])
    assert task.decode(answers_by_position(task, tokens)[:, 1:5]) == [["q"] * 4]
    assert answers_by_position(task, tokens)[0, 5] == -1


def test_working_in_pieces_changes_nothing(monkeypatch):
    tokens = MixedTask().sample(100).tokens
    whole = answers_by_position(MixedTask(), tokens)
    monkeypatch.setattr(module, "ROWS", 7)
    assert torch.equal(answers_by_position(MixedTask(), tokens), whole)


def test_bad_input():
    with pytest.raises(InputError, match="a NumberTask, a LetterTask or a MixedTask"):
        answers_by_position(IndexTask(), torch.zeros(2, 17, dtype=torch.int64))
    with pytest.raises(InputError, match="id 136 at row 0, position 1"):
        answers_by_position(NumberTask(), torch.tensor([[0, 136]]))
