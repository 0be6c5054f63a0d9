"""What all tasks share: reproducible draws, solvers that agree, strings and ids, balanced labels, refusals."""

import re

import pytest
import torch

from possym.errors import InputError
from possym.tasks import Batch, IndexTask, LetterTask, MixedTask, NumberTask, PartialInductionTask, RetrievalTask
from possym.tasks.batch import balanced, letter_names, uniform

from .draws import generator, within

MULTIHOP = [NumberTask(), LetterTask(), LetterTask(off_path="any"), MixedTask()]
CANONICAL = [IndexTask(), RetrievalTask(), PartialInductionTask()]
TASKS = MULTIHOP + CANONICAL
named = pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__ + getattr(task, "off_path", ""))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@named
def test_batch_has_the_shapes_it_promises(task):
    shortest = 17 if task in MULTIHOP else 2
    for n, length in [(1, shortest), (3, 32), (50, 128)]:
        batch = task.sample(n, length=length, generator=generator())
        columns = 5 if task in MULTIHOP else 2
        assert isinstance(batch, Batch)
        assert [tuple(x.shape) for x in batch] == [(n, length), (n,), (n,), (n, columns)]
        assert {x.dtype for x in batch} == {torch.int64}
        assert batch.tokens.is_contiguous()
        assert 0 <= batch.tokens.min() and batch.tokens.max() < len(task.vocabulary)


@named
def test_default_length(task):
    assert task.sample(2).tokens.shape[1] == 17


@named
def test_solver_agrees_with_sampler(task):
    for length in (17, 32, 128):
        batch = task.sample(3000, length=length, generator=generator(length))
        assert torch.equal(task.solve(batch.tokens), batch.answer)
        assert torch.equal(task.solve(batch.tokens.int()), batch.answer)


@named
def test_path_starts_at_the_query_and_ends_at_the_answer(task):
    batch = task.sample(500, length=40, generator=generator(1))
    assert (batch.path[:, 0] == 39).all()
    columns = torch.arange(batch.path.shape[1])
    on_path = columns <= batch.hops[:, None]
    assert ((batch.path >= 0) == on_path).all() and (batch.path[~on_path] == -1).all()
    steps = batch.path[:, 1:] - batch.path[:, :-1]
    assert (steps[on_path[:, 1:]] < 0).all()


@named
def test_same_seed_same_batch(task):
    first, second = generator(5), generator(5)
    assert same(task.sample(100, generator=first), task.sample(100, generator=second))
    assert same(task.sample(100, generator=first), task.sample(100, generator=second))
    assert not torch.equal(task.sample(100, generator=first).tokens, task.sample(100, generator=generator(6)).tokens)
    assert not torch.equal(task.sample(100, generator=first).tokens, task.sample(100, generator=first).tokens)


@named
def test_no_generator_is_seed_zero_and_leaves_global_state(task):
    before = torch.get_rng_state()
    assert same(task.sample(100), task.sample(100, generator=generator(0)))
    assert torch.equal(before, torch.get_rng_state())


@named
def test_vocabulary_is_a_list_of_distinct_strings(task):
    assert isinstance(task.vocabulary, list) and all(isinstance(token, str) for token in task.vocabulary)
    assert len(set(task.vocabulary)) == len(task.vocabulary)


@named
def test_decode_round_trip(task):
    ids = {token: i for i, token in enumerate(task.vocabulary)}
    batch = task.sample(20, generator=generator(2))
    assert [[ids[t] for t in row] for row in task.decode(batch.tokens)] == batch.tokens.tolist()
    assert [ids[t] for t in task.decode(batch.answer)] == batch.answer.tolist()
    assert task.decode(batch.answer[0]) == task.vocabulary[batch.answer[0]]
    assert task.decode(torch.arange(len(task.vocabulary))) == task.vocabulary


def test_vocabulary_sizes():
    sizes = [len(task.vocabulary) for task in TASKS]
    assert sizes == [136, 128, 128, 256, 32 + 127, 128 * 8 + 128 + 8, 8 * 8 + 8 + 8]


@pytest.mark.parametrize("n,labels", [(1, 5), (4, 5), (5, 5), (997, 8), (1000, 120)])
def test_balanced_counts_differ_by_at_most_one(n, labels):
    groups = torch.arange(3 * n) % 3
    drawn = balanced(groups, 3, labels, generator())
    for group in range(3):
        counts = drawn[groups == group].bincount(minlength=labels)
        assert len(counts) == labels and counts.sum() == n and counts.max() - counts.min() <= 1


def test_balanced_serves_groups_of_unequal_size_and_empty_ones():
    groups = torch.tensor([3] * 10 + [0] * 3 + [1] * 25)
    drawn = balanced(groups, 4, 4, generator())
    for group in (0, 1, 3):
        counts = drawn[groups == group].bincount(minlength=4)
        assert counts.max() - counts.min() <= 1


def test_balanced_labels_and_their_order_are_random():
    source = generator()
    drawn = torch.stack([balanced(torch.zeros(5, dtype=torch.int64), 1, 4, source) for _ in range(8000)])
    for row in range(5):
        assert within(drawn[:, row].bincount(minlength=4), 2000)
    repeated = torch.tensor([row.bincount(minlength=4).argmax() for row in drawn])
    assert within(repeated.bincount(minlength=4), 2000)
    # Two given rows share a label in one draw of ten: one pair of the ten does.
    assert within((drawn[:, 0] == drawn[:, 1]).sum(), 800)
    assert within((drawn[:, 0] == drawn[:, 4]).sum(), 800)


def test_uniform_stays_below_its_bounds_and_fills_them():
    drawn = uniform(torch.tensor([1, 3, 16]), (48000, 3), generator())
    assert (drawn[:, 0] == 0).all()
    assert within(drawn[:, 1].bincount(minlength=3), torch.full((3,), 16000))
    assert within(drawn[:, 2].bincount(minlength=16), torch.full((16,), 3000))


def test_letter_names_follow_the_papers():
    names = letter_names(703)
    assert names[:3] + names[25:27] + names[119:120] + names[-2:] == ["a", "b", "c", "z", "aa", "dp", "zz", "aaa"]


WRONG = {
    "n": [0, -1, True, 2.0, "3", None, torch.tensor(3.0), torch.tensor([3])],
    "hops": [0, 5, True, 1.0, "2", float("nan")],
    "length": [1, 0, -17, True, 17.0, "17", None],
    "generator": [0, "cpu", True],
}


@pytest.mark.parametrize("task", [MULTIHOP[0], CANONICAL[0]])  # every task has one `sample`
def test_wrong_arguments_of_a_draw_are_refused(task):
    for name in WRONG:
        hops, length = (4, 17) if task in MULTIHOP else (1, 2)
        asked = {
            "n": "a whole number of at least 1",
            "hops": rf"a whole number from 1 to {hops} \(or None",
            "length": rf"a whole number .* {length}\b",
            "generator": "a torch.Generator",
        }
        for value in WRONG[name]:
            with pytest.raises(InputError, match=re.escape(f"{name} = {value!r}: give ") + asked[name]):
                task.sample(**{"n": 4, name: value})


@named
def test_malformed_tokens_are_refused(task):
    tokens = task.sample(6, generator=generator(3)).tokens
    last = len(task.vocabulary) - 1
    for bad, message in [
        (tokens.tolist(), "tokens is a list: give a torch.Tensor"),
        (tokens.float(), "tokens is torch.float32: token ids are whole numbers"),
        (tokens.bool(), "tokens is torch.bool"),
        (tokens[0], r"tokens \(\d+,\): expected \(n, length\)"),
        (tokens[None], r"tokens \(1, 6, \d+\): expected \(n, length\)"),
        (tokens[:0], r"tokens \(0, \d+\): expected \(n, length\)"),
        (tokens[:, :0], r"tokens \(6, 0\): expected \(n, length\)"),
    ]:
        with pytest.raises(InputError, match=message):
            task.solve(bad)
    for wrong in (-1, last + 1):
        bad = tokens.clone()
        bad[4, 2] = bad[2, 5] = wrong
        with pytest.raises(InputError, match=f"id {wrong} at row 2, position 5, but this vocabulary has ids 0 to"):
            task.solve(bad)
        with pytest.raises(InputError, match=f"id {wrong} at row 2, position 5"):
            task.decode(bad)
    with pytest.raises(InputError, match="tokens is a int"):
        task.decode(3)
