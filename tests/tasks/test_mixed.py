"""The mixed task: paths as the tokens say, alternation, balance, distractors, longer inputs."""

import re
from itertools import pairwise

import pytest
import torch

from possym.errors import InputError
from possym.tasks import MixedTask

from . import truth
from .draws import generator, within

TASK = MixedTask()
LENGTHS = pytest.mark.parametrize("length", [17, 45])
HOPS = pytest.mark.parametrize("hops", [1, 2, 3, 4])


def ids(text):
    return [TASK.vocabulary.index(token) for token in text.split()]


def kinds(tokens, path):
    """For each hop of a path, n or l."""
    return "".join("l" if tokens[place][1:].isalpha() else "n" for place in path[:-1])


@LENGTHS
def test_path_is_the_one_that_the_tokens_say(length):
    batch = TASK.sample(800, length=length, generator=generator(length))
    answers = TASK.decode(batch.answer)
    for tokens, path, answer in zip(TASK.decode(batch.tokens), batch.path.tolist(), answers, strict=True):
        visited = truth.mixed_path(tokens)
        assert visited + [-1] * (5 - len(visited)) == path and tokens[visited[-1]] == answer
        assert all(length - 9 <= place < length - 1 for place in visited[1:-1])
        assert length - 17 <= visited[-1] < length - 9


@HOPS
def test_kinds_of_hops_alternate_and_both_orders_are_equally_frequent(hops):
    batch = TASK.sample(401, hops=hops, generator=generator(hops))
    found = [
        kinds(tokens, [place for place in path if place >= 0])
        for tokens, path in zip(TASK.decode(batch.tokens), batch.path.tolist(), strict=True)
    ]
    orders = {("nl" * 2)[:hops], ("ln" * 2)[:hops]}
    assert set(found) == orders and sorted(found.count(order) for order in orders) == [200, 201]


@LENGTHS
def test_each_place_holds_its_kind_of_token(length):
    for tokens in TASK.decode(TASK.sample(300, length=length, generator=generator()).tokens):
        assert all(re.fullmatch("[a-h][A-H]", token) for token in tokens[:-9])
        assert all(re.fullmatch("[a-h]([a-h]|[1-9]|1[0-6])", token) for token in tokens[-9:])


@pytest.mark.parametrize("n", [1, 2, 3, 9, 1003, 8 * 512])
def test_hops_kinds_places_and_answers_are_balanced(n):
    batch = TASK.sample(n, length=20, generator=generator(n))
    hops = batch.hops.bincount(minlength=5)
    assert hops[0] == 0 and len(hops) == 5 and hops[1:].max() - hops[1:].min() <= 1
    place = batch.path.gather(1, batch.hops[:, None])[:, 0] - 3
    first = (batch.tokens[:, -1] >= 128).long()
    for hop in range(1, 5):
        inside = batch.hops == hop
        order = first[inside].bincount(minlength=2)
        assert order.max() - order.min() <= 1
        for kind in (0, 1):
            group = inside & (first == kind)
            for drawn, options in [(place[group], 8), (batch.answer[group], 64)]:
                counts = drawn.bincount(minlength=options)
                assert len(counts) == options and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("hops,subsets", [(2, 8), (3, 28), (4, 56)])
def test_every_choice_of_stopovers_is_equally_likely(hops, subsets):
    batch = TASK.sample(subsets * 400, hops=hops, generator=generator())
    counts = (2 ** (batch.path[:, 1:hops] - 8)).sum(1).bincount()
    assert (counts > 0).sum() == subsets and within(counts[counts > 0], torch.full((subsets,), 400))


@LENGTHS
@HOPS
def test_followed_letters_are_distinct_and_name_only_the_path(length, hops):
    batch = TASK.sample(1500, hops=hops, length=length, generator=generator(hops))
    for tokens, path in zip(TASK.decode(batch.tokens), batch.path.tolist(), strict=True):
        by_letter = [(here, there) for here, there in pairwise(path[: hops + 1]) if tokens[here][1:].isalpha()]
        followed = [tokens[here][1] for here, _ in by_letter]
        assert len(set(followed)) == len(followed)
        assert [tokens[there][0] for _, there in by_letter] == followed
        found = {there for _, there in by_letter}
        assert not {token[0] for place, token in enumerate(tokens) if place not in found} & set(followed)


def readings(tokens):
    """Names (n, length), and the asking tokens' letter or −1 and integer or 0, from the strings."""
    rows = TASK.decode(tokens)
    name = torch.tensor([["abcdefgh".index(token[0]) for token in row] for row in rows])
    letter = torch.tensor([["abcdefgh".find(token[1:]) for token in row] for row in rows])
    jump = torch.tensor([[int(token[1:]) if token[1:].isdigit() else 0 for token in row] for row in rows])
    return name, letter, jump


@LENGTHS
@HOPS
def test_tokens_off_the_path_are_uniform(length, hops):
    batch = TASK.sample(6000, hops=hops, length=length, generator=generator(10 * hops + length))
    name, letter, jump = readings(batch.tokens)
    free = ~(batch.path[:, :, None] == torch.arange(length)).any(1)
    for place in range(length - 1):
        rows = free[:, place]
        assert within(name[rows, place].bincount(minlength=8), torch.full((8,), rows.sum() / 8))
        index = place - (length - 17)
        if index < 8:
            capitals = batch.tokens[rows, place] % 8
            assert within(capitals.bincount(minlength=8), torch.full((8,), len(capitals) / 8))
            continue
        jumps = jump[rows, place]
        assert within((jumps > 0).sum(), rows.sum() / 2)
        integers = jumps[jumps > 0].bincount(minlength=index + 1)
        assert len(integers) == index + 1 and within(integers[1:], torch.full((index,), (jumps > 0).sum() / index))
        letters = letter[rows, place][jumps == 0]
        assert within(letters.bincount(minlength=8), torch.full((8,), len(letters) / 8))


@HOPS
def test_names_that_a_number_leads_to_are_like_any_other(hops):
    """Neither the query nor a token reached by number gives itself away: it agrees in name with others by chance."""
    batch = TASK.sample(20000, hops=hops, generator=generator(hops))
    name, letter, jump = readings(batch.tokens)
    followed = (letter.gather(1, batch.path[:, :hops]) >= 0).sum(1)
    free = ~(batch.path[:, :, None] == torch.arange(17)).any(1)
    by_number = [(torch.ones(20000, dtype=torch.bool), torch.full((20000,), 16))]
    by_number += [(jump.gather(1, batch.path[:, [hop]])[:, 0] > 0, batch.path[:, hop + 1]) for hop in range(hops)]
    for rows, place in by_number:
        own = name.gather(1, place[:, None])[:, 0]
        for other in (3, 11):
            chosen = rows & free[:, other]
            expected = (1 / (8 - followed[chosen])).sum()
            assert within((own == name[:, other])[chosen].sum(), expected)


def test_extra_tokens_are_never_needed():
    batch = TASK.sample(500, length=300, generator=generator())
    assert torch.equal(TASK.solve(batch.tokens[:, -17:]), batch.answer)


def test_solver_takes_any_order_of_hops():
    assert TASK.decode(TASK.solve(torch.tensor([ids("aA bB c2 dc ad b2"), ids("aA bB c2 d1 e1 f1")]))) == ["aA", "aA"]


def test_solver_names_the_first_bad_row():
    for row, fault in [
        ("aA bB cC", "the last token is a target"),
        ("aA b1 c3", "the path jumps out of the sequence"),
        ("aA b2 c1", "the path jumps out of the sequence"),
        ("aA bB cd", "a letter on the path names no earlier token"),
        ("aA bB cc", "a letter on the path names no earlier token"),
        ("bA ac ca", "a letter on the path names no earlier token"),
        ("aA ab ca", "a letter on the path names more than one token"),
    ]:
        good = ids("aA bB ca")
        tokens = torch.tensor([good, good, ids(row), ids("aA aB cC"), ids("aA aB c3")])
        with pytest.raises(InputError, match=f"^tokens, row 2: {fault}; give sequences as"):
            TASK.solve(tokens)
