"""Number and letter task: against the papers' recursive definitions, balance, paths, distractors, longer inputs."""

import re

import pytest
import torch

from possym.errors import InputError
from possym.tasks import LetterTask, NumberTask

from . import truth
from .draws import generator, within

NUMBER, LETTER, ANY = NumberTask(), LetterTask(), LetterTask(off_path="any")
each = pytest.mark.parametrize("task", [NUMBER, LETTER, ANY], ids=["number", "letter", "letter-any"])
rules = pytest.mark.parametrize("task", [LETTER, ANY], ids=["excluded", "any"])
LENGTHS = pytest.mark.parametrize("length", [17, 45])


def ids(task, text):
    return [task.vocabulary.index(token) for token in text.split()]


def off_path(batch):
    """Boolean (n, length): places that the path does not visit."""
    places = torch.arange(batch.tokens.shape[1])
    return ~(batch.path[:, :, None] == places).any(1)


@LENGTHS
@each
def test_answers_are_those_of_the_recursive_definition(task, length):
    basic = truth.index if task is NUMBER else truth.retrieval
    batch = task.sample(600, length=length, generator=generator(length))
    answers, targets = task.decode(batch.answer), re.compile("[a-z]+" if task is NUMBER else "[a-h][1-8]")
    for tokens, answer, hops in zip(task.decode(batch.tokens), answers, batch.hops.tolist(), strict=True):
        assert truth.composed(basic, tokens, hops) == answer
        assert truth.composed(basic, tokens, 12) == answer
        assert not targets.fullmatch(truth.composed(basic, tokens, hops - 1))


@LENGTHS
@each
def test_path_is_the_one_that_the_tokens_say(task, length):
    walk = truth.number_path if task is NUMBER else truth.letter_path
    batch = task.sample(600, length=length, generator=generator(length))
    for tokens, path in zip(task.decode(batch.tokens), batch.path.tolist(), strict=True):
        visited = walk(tokens)
        assert visited + [-1] * (5 - len(visited)) == path
        assert all(length - 9 <= place < length - 1 for place in visited[1:-1])
        assert length - 17 <= visited[-1] < length - 9


@LENGTHS
@each
def test_each_place_holds_its_kind_of_token(task, length):
    batch = task.sample(300, length=length, generator=generator())
    target, other = ("[a-z]+", "[0-9]+") if task is NUMBER else ("[a-h][1-8]", "[a-h][a-h]")
    for tokens in task.decode(batch.tokens):
        assert all(re.fullmatch(target, token) for token in tokens[:-9])
        assert all(re.fullmatch(other, token) for token in tokens[-9:])


@each
@pytest.mark.parametrize("n", [1, 5, 1001, 4 * 960])
def test_hops_places_and_answers_are_balanced(task, n):
    batch = task.sample(n, length=20, generator=generator(n))
    hops = batch.hops.bincount(minlength=5)
    assert hops[0] == 0 and len(hops) == 5 and hops[1:].max() - hops[1:].min() <= 1
    place = batch.path.gather(1, batch.hops[:, None])[:, 0] - 3
    for hop in range(1, 5):
        inside = batch.hops == hop
        for drawn, options in [(place[inside], 8), (batch.answer[inside], 120 if task is NUMBER else 64)]:
            counts = drawn.bincount(minlength=options)
            assert len(counts) == options and counts.max() - counts.min() <= 1


@each
@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_fixed_hops(task, hops):
    batch = task.sample(400, hops=hops, generator=generator())
    assert (batch.hops == hops).all()
    counts = batch.path[:, hops].bincount(minlength=8)
    assert (counts == 50).all()


@each
def test_rows_places_and_answers_are_shuffled_apart(task):
    n, values = 4 * 960, 120 if task is NUMBER else 64
    batch = task.sample(n, hops=1, generator=generator())
    pairs = batch.path[:, 1] * values + batch.answer
    cells = 8 * values
    assert within(len(pairs.unique()), cells * (1 - (1 - 1 / cells) ** n), sigmas=3)
    mixed = task.sample(n, generator=generator())
    assert within(mixed.hops[: n // 2].bincount(minlength=5)[1:], n // 8)
    assert within(mixed.hops[::4].bincount(minlength=5)[1:], n // 16)


@pytest.mark.parametrize("n", [100, 4 * 512, 4 * 512 + 37])
def test_pairs_of_place_and_value_are_balanced_within_each_number_of_hops(n):
    batch = LETTER.sample(n, length=30, generator=generator(n))
    place = batch.path.gather(1, batch.hops[:, None])[:, 0] - 13
    for hop in range(1, 5):
        inside = batch.hops == hop
        pairs = (place * 64 + batch.answer)[inside].bincount(minlength=512)
        assert len(pairs) == 512 and pairs.max() - pairs.min() <= 1


@pytest.mark.parametrize("task, values", [(NUMBER, 120), (ANY, 64)], ids=["number", "letter-any"])
def test_the_other_tasks_leave_these_pairs_to_chance(task, values):
    batch = task.sample(8 * values, hops=2, generator=generator())
    pairs = (batch.path[:, 2] * values + batch.answer).bincount(minlength=8 * values)
    assert pairs.min() == 0 and pairs.max() > 2


def test_which_places_go_with_which_values_is_drawn_anew():
    """Of 64 sequences each value stands once; over many draws it stands at every place equally often."""
    source = generator(7)
    batches = [LETTER.sample(64, hops=1, generator=source) for _ in range(400)]
    for value in (0, 9, 63):
        places = torch.cat([batch.path[batch.answer == value, 1] for batch in batches])
        assert len(places) == 400 and within(places.bincount(minlength=8), torch.full((8,), 50))


@each
@pytest.mark.parametrize("hops,subsets", [(2, 8), (3, 28), (4, 56)])
def test_every_choice_of_stopovers_is_equally_likely(task, hops, subsets):
    batch = task.sample(subsets * 400, hops=hops, length=19, generator=generator())
    stops = batch.path[:, 1:hops] - 10
    counts = (2**stops).sum(1).bincount()
    assert (counts > 0).sum() == subsets and within(counts[counts > 0], torch.full((subsets,), 400))


@LENGTHS
def test_integers_off_the_path_point_anywhere_inside_the_window(length):
    batch = NUMBER.sample(40000, length=length, generator=generator(length))
    free = off_path(batch)
    for index in range(8, 16):
        place = length - 17 + index
        integers = batch.tokens[free[:, place], place] - 119
        counts = integers.bincount(minlength=index + 1)
        assert counts[0] == 0 and len(counts) == index + 1
        assert within(counts[1:], torch.full((index,), len(integers) / index))


@LENGTHS
def test_letters_off_the_path_are_uniform(length):
    batch = NUMBER.sample(20000, length=length, generator=generator(length))
    free = off_path(batch)
    for place in range(length - 9):
        letters = batch.tokens[free[:, place], place]
        assert within(letters.bincount(minlength=120), torch.full((120,), len(letters) / 120))


@LENGTHS
@rules
@pytest.mark.parametrize("hops", [1, 4])
def test_path_letters_are_distinct_and_start_only_the_path(task, length, hops):
    batch = task.sample(1000, hops=hops, length=length, generator=generator(hops))
    for tokens, path in zip(task.decode(batch.tokens), batch.path.tolist(), strict=True):
        followed = [tokens[place][1] for place in path[:hops]]
        assert len(set(followed)) == hops
        assert [tokens[place][0] for place in path[1 : hops + 1]] == followed
        rest = {token[0] for place, token in enumerate(tokens) if place not in path[1:]}
        assert not rest & set(followed)


@LENGTHS
@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_no_token_off_the_path_has_a_letter_of_the_path(length, hops):
    sequences = LETTER.decode(LETTER.sample(1000, hops=hops, length=length, generator=generator(hops)).tokens)
    assert not any(truth.stray_letters(tokens) for tokens in sequences)
    assert any(truth.stray_letters(tokens) for tokens in ANY.decode(ANY.sample(20, hops=hops).tokens))


@LENGTHS
@rules
@pytest.mark.parametrize("hops", [1, 3])
def test_pairs_off_the_path_are_uniform(task, length, hops):
    """Letters by their rank among those of the path, so that every sequence has the same ones to draw from."""
    batch = task.sample(8000, hops=hops, length=length, generator=generator(hops))
    first, second = batch.tokens % 64 // 8, batch.tokens % 8
    free = off_path(batch)
    on_path = torch.cat([first[:, -1:], second.gather(1, batch.path[:, :hops])], 1)
    allowed = ~torch.nn.functional.one_hot(on_path[:, 1:] if task is ANY else on_path, 8).any(1)
    everything = torch.ones_like(allowed)
    for place in range(length - 1):
        rows = free[:, place]
        ends = everything if task is ANY or place < length - 9 else allowed
        for drawn, choices in [(first, allowed), (second, ends)]:
            letters, among = drawn[rows, place], choices[rows]
            assert among.gather(1, letters[:, None]).all()
            expected = (among / among.sum(1, keepdim=True)).sum(0)
            assert within(letters.bincount(minlength=8), expected)
            # The first letter allowed is drawn as often as the second, and so on.
            rank = (among.cumsum(1) - 1).gather(1, letters[:, None])[:, 0].bincount(minlength=int(among[0].sum()))
            assert within(rank, torch.full_like(rank, len(letters) // len(rank)))
    starts = first[:, -1]
    assert within(starts.bincount(minlength=8), torch.full((8,), 1000))
    assert all((starts != followed).all() for followed in second.gather(1, batch.path[:, :hops]).T)


@pytest.mark.parametrize("hops", [2, 3, 4])
def test_letters_that_lead_to_the_answer_are_uniform(hops):
    batch = LETTER.sample(7 * 1000, hops=hops, generator=generator(hops))
    asked = batch.tokens[:, -1] % 8
    difference = (asked - batch.answer // 8) % 8
    assert within(difference.bincount(minlength=8)[1:], torch.full((7,), 1000)) and (difference > 0).all()


def test_other_rules_are_refused():
    with pytest.raises(InputError, match="off_path = 'none': known rules are excluded, any"):
        LetterTask(off_path="none")


@each
def test_extra_tokens_are_never_needed(task):
    batch = task.sample(500, length=300, generator=generator())
    assert torch.equal(task.solve(batch.tokens[:, -17:]), batch.answer)


def test_solvers_take_other_lengths_and_longer_paths():
    assert NUMBER.decode(NUMBER.solve(torch.tensor([ids(NUMBER, "b dp 1 1 1 1 1 1")]))) == ["dp"]
    assert NUMBER.decode(NUMBER.solve(torch.tensor([ids(NUMBER, "b q 1 2"), ids(NUMBER, "a b c 3")]))) == ["q", "a"]
    chain = ids(LETTER, "h7 gh fg ef de cd bc ab")
    assert LETTER.decode(LETTER.solve(torch.tensor([chain]))) == ["h7"]


def test_number_solver_names_the_first_bad_row():
    for row, fault in [
        ("a b c", "the last token is no integer"),
        ("a 1 3", "the path jumps out of the sequence"),
        ("a 2 1", "the path jumps out of the sequence"),
        ("a 16 1", "the path jumps out of the sequence"),
    ]:
        good = ids(NUMBER, "a b 1")
        tokens = torch.tensor([good, good, ids(NUMBER, row), ids(NUMBER, "a b c"), ids(NUMBER, "a b 3")])
        with pytest.raises(InputError, match=f"^tokens, row 2: {fault}; give sequences as"):
            NUMBER.solve(tokens)


def test_letter_solver_names_the_first_bad_row():
    for row, fault in [
        ("a1 b2 c3", "the last token is no letter–letter pair"),
        ("a1 b2 ac", "a letter on the path starts no earlier token"),
        ("a1 b2 aa", "a letter on the path starts more than one token"),
        ("a1 b2 cc", "a letter on the path starts no earlier token"),
        ("a1 ac ca", "a letter on the path starts more than one token"),
        ("ab bc ca", "a letter on the path starts no earlier token"),
        ("b1 b1 cb", "a letter on the path starts more than one token"),
        ("b1 eg fe", "a letter on the path starts no earlier token"),
        ("ab b1 ca", "a letter on the path starts no earlier token"),
        ("b1 aa ca", "a letter on the path starts no earlier token"),
    ]:
        good = ids(LETTER, "a1 b2 ca")
        tokens = torch.tensor([good, good, ids(LETTER, row), ids(LETTER, "a1 a1 a1"), ids(LETTER, "a1 a1 ba")])
        with pytest.raises(InputError, match=f"^tokens, row 2: {fault}; give sequences as"):
            LETTER.solve(tokens)
