"""Constructed heads against the functions they are built for, and against their formulas."""

import math

import pytest
import torch

from possym.errors import InputError
from possym.theory import (
    ConstructedHead,
    h_pos,
    h_sym,
    index,
    letter_head,
    number_head,
    retrieval,
    simplified_symbolic,
    stack,
    t_index,
    t_reflexive,
    t_retrieval,
    two_angle,
)
from possym.theory.inputs import letter_vocabulary, number_vocabulary, sequences
from possym.theory.statements_p1 import pair_margins


def slow_index(tokens, values):
    result = list(tokens)
    for j, token in enumerate(tokens):
        back = values[token]
        if back and j - back >= 0 and values[tokens[j - back]] == 0:
            result[j] = tokens[j - back]
    return result


def slow_retrieval(tokens, left, right):
    """The answer at the last place, or None where it is not defined."""
    last = tokens[-1]
    if right[last] < 0:
        return last
    found = {token for token in tokens if left[token] == right[last]}
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize("theta", [0.8, 0.866, 1.0])
def test_t_index_is_index_on_every_valid_sequence(device, theta):
    for length in (2, 3, 4, 5):
        values = number_vocabulary(2, length - 1)
        tokens = sequences(len(values), length)
        tokens = tokens[(values[tokens] <= torch.arange(length)).all(-1)]
        answers = t_index(values, theta).to(device)(tokens.to(device)).cpu()
        assert answers.tolist() == [slow_index(row, values.tolist()) for row in tokens.tolist()]
        assert torch.equal(index(tokens, values), answers)


def test_t_index_up_to_length_300(device):
    generator = torch.Generator().manual_seed(0)
    for length in (17, 100, 300):
        values = number_vocabulary(8, length - 1)
        tokens = torch.randint(8, (64, length), generator=generator)
        jump = torch.randint(1, 10**6, (64, length), generator=generator) % torch.arange(length).clamp(min=1) + 1
        integer = (torch.rand(64, length, generator=generator) < 0.5) & (torch.arange(length) > 0)
        tokens = torch.where(integer, 7 + jump, tokens)
        answers = t_index(values, 0.8).to(device)(tokens.to(device)).cpu()
        assert answers.tolist() == [slow_index(row, values.tolist()) for row in tokens.tolist()]


@pytest.mark.parametrize(("alphabet", "integers", "longest"), [(2, 1, 4), (2, 2, 4), (3, 1, 3)])
def test_t_retrieval_is_retrieval_on_every_proper_sequence(device, alphabet, integers, longest):
    left, right = letter_vocabulary(alphabet, integers)
    for length in range(2, longest + 1):
        tokens = sequences(len(left), length)
        head = t_retrieval(left, right, 0.999 * math.pi / alphabet / length).to(device)
        answers = head(tokens.to(device)).cpu()[:, -1]
        expected = [slow_retrieval(row, left.tolist(), right.tolist()) for row in tokens.tolist()]
        defined, proper = retrieval(tokens, left, right)
        assert proper[:, -1].tolist() == [answer is not None for answer in expected]
        for got, answer, function in zip(answers.tolist(), expected, defined[:, -1].tolist(), strict=True):
            assert answer is None or got == answer == function


def test_t_retrieval_at_length_100(device):
    generator = torch.Generator().manual_seed(0)
    left, right = letter_vocabulary(8, 8)
    tokens = torch.randint(len(left), (400, 100), generator=generator)
    sought = torch.randint(8, (400,), generator=generator)
    # Tokens with the sought left letter move on by one letter, then one place gets it back.
    move = left[tokens] == sought[:, None]
    other = (left[tokens] + 1) % 8
    tokens = torch.where(move & (right[tokens] >= 0), other * 8 + right[tokens], tokens)
    tokens = torch.where(move & (right[tokens] < 0), 64 + other * 8 + tokens % 8, tokens)
    rows = torch.arange(400)
    tokens[rows, torch.randint(99, (400,), generator=generator)] = 64 + 8 * sought
    tokens[:, -1] = ((sought + 3) % 8) * 8 + sought
    answers = t_retrieval(left, right, 0.0027).to(device)(tokens.to(device)).cpu()[:, -1]
    assert torch.equal(answers, 64 + 8 * sought)
    # Five times the angle: the same head, past nθ = ω, is wrong.
    assert not torch.equal(t_retrieval(left, right, 0.0135)(tokens)[:, -1], answers)


def test_logits_are_the_papers_cosines():
    values = number_vocabulary(3, 4)
    tokens = torch.tensor([0, 3, 1, 4, 2, 6])
    logits = t_index(values, 0.8).logits(tokens)
    left, right = letter_vocabulary(5, 2)
    pairs = torch.tensor([0, 7, 26, 13, 33, 22])
    letters = t_retrieval(left, right, 0.01).logits(pairs)
    for i in range(6):
        for j in range(6):
            if j > i:
                assert logits[i, j] == letters[i, j] == -math.inf
                continue
            assert logits[i, j].item() == pytest.approx(math.cos((i - j - values[tokens[i]].item()) * 0.8), abs=1e-12)
            looks = right[pairs[i]] if right[pairs[i]] >= 0 else left[pairs[i]]
            angle = (left[pairs[j]] - looks).item() * 2 * math.pi / 5 + (i - j) * 0.01
            assert letters[i, j].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_tables_are_linear_maps_of_the_embedding():
    """The paper's embedding is (one-hot, 1): one W_K and one W_Q must give every row."""
    values = number_vocabulary(2, 3)
    head = t_index(values, 0.8)
    embedding = torch.cat([torch.eye(5, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)], 1)
    w_key = torch.zeros(2, 6, dtype=torch.float64)
    w_key[1, -1] = 1
    assert torch.equal(embedding @ w_key.T, head.key_table)
    rotations = [torch.tensor([[math.cos(-s), -math.sin(-s)], [math.sin(-s), math.cos(-s)]]) for s in (0.8, 1.6, 2.4)]
    w_query = torch.stack([torch.tensor([0.0, 1.0])] * 2 + [r @ torch.tensor([0.0, 1.0]) for r in rotations], 1)
    torch.testing.assert_close(embedding[:, :5] @ w_query.T.double(), head.query_table, rtol=0, atol=1e-6)


def test_read_out_gap_is_at_least_one():
    values = number_vocabulary(2, 3)
    tokens = sequences(5, 4)
    tokens = tokens[(values[tokens] <= torch.arange(4)).all(-1)]
    top = t_index(values, 0.8).output(tokens).topk(2).values
    assert (top[..., 0] - top[..., 1]).min().item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("head", "tokens"),
    [
        (t_index(number_vocabulary(3, 4), 0.8), [0, 3, 1, 4, 2, 6]),
        (t_retrieval(*letter_vocabulary(3, 2), 0.05), [0, 7, 12, 4, 9, 5]),
        (h_pos(3, 5, 0.3), [0, 2, 1, 1, 2, 5]),
        (h_sym(3, 2), [0, 2, 1, 5, 4, 7]),
        (two_angle(3, 2, 0.2), [0, 2, 1, 5, 4, 7]),
        (simplified_symbolic(3, 2, 5, 0.2), [0, 2, 1, 5, 4, 7]),
    ],
)
def test_relocated_logits_belong_to_the_head(head, tokens):
    """Moving a key for real gives the relocated logit: every entry by swapping contents and running the head."""
    relocated = head.relocated(torch.tensor(tokens))
    for a in range(5):
        for b in range(5):
            moved = list(tokens)
            moved[a], moved[b] = moved[b], moved[a]
            assert relocated[a, b].item() == pytest.approx(head.logits(torch.tensor(moved))[-1, b].item(), abs=1e-12)


def test_two_angle_takes_the_last_occurrence_where_h_sym_ties():
    tokens = torch.tensor([0 * 2 + 0, 1 * 2 + 1, 0 * 2 + 1, 1 * 2 + 0, 4 + 0])  # a0 b1 a1 b0 | a
    assert two_angle(2, 2, 0.1)(tokens)[-1] == 1
    assert h_sym(2, 2).attention(tokens)[-1].tolist() == [0.5, 0, 0.5, 0, 0]


def test_stack_and_reflexive():
    values = number_vocabulary(1, 4)
    tokens = torch.tensor([0, 1, 1, 1, 1])
    head = t_index(values, 0.8)
    for hops in range(1, 4):
        assert stack(head, hops, 4)(tokens)[-1] == 1
    assert stack(head, 4, 4)(tokens)[-1] == stack(head, 4, 7)(tokens)[-1] == 0
    assert torch.equal(t_reflexive(5)(tokens), tokens)
    with pytest.raises(InputError, match="at least one layer for each hop"):
        stack(head, 4, 3)


def test_softmax_is_hard_attention_in_the_limit():
    values = number_vocabulary(2, 3)
    tokens = sequences(5, 4)
    tokens = tokens[(values[tokens] <= torch.arange(4)).all(-1)]
    head = t_index(values, 0.8)
    torch.testing.assert_close(head.attention(tokens, 1e4), head.attention(tokens), rtol=0, atol=1e-12)
    uniform = head.attention(tokens, 0)[0]
    torch.testing.assert_close(uniform[-1], torch.full((4,), 0.25, dtype=torch.float64))


def test_vocabularies_are_read():
    head = number_head(["a", "dp", "1", "2"], 0.8)
    assert head(torch.tensor([1, 0, 3]))[-1] == 1
    letters = letter_head(["h5", "a7", "ah"], 0.01)
    assert letters(torch.tensor([0, 1, 2]))[-1] == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: t_index(torch.tensor([0.0, 1.0]), 0.8),
        lambda: t_index(torch.tensor([0, -1]), 0.8),
        lambda: t_index(torch.tensor([0, 1]), math.nan),
        lambda: t_index(torch.tensor([0, 1]), "0.8"),
        lambda: t_retrieval(torch.tensor([0, 3]), torch.tensor([1, -1]), 0.1, 2),
        lambda: t_retrieval(torch.tensor([0, 3]), torch.tensor([1]), 0.1),
        lambda: t_reflexive(0),
        lambda: h_pos(2.0, 3, 0.1),
        lambda: h_sym(2, True),
        lambda: ConstructedHead(torch.zeros(3, 2), torch.zeros(3, 4), torch.zeros(3, 1), torch.zeros(1)),
        lambda: t_index(torch.tensor([0, 1]), 0.8)(torch.tensor([0, 2])),
        lambda: t_index(torch.tensor([0, 1]), 0.8)(torch.tensor([0.0])),
        lambda: t_index(torch.tensor([0, 1]), 0.8)([0, 1]),
        lambda: t_index(torch.tensor([0, 1]), 0.8)(torch.tensor([0, 1]), beta=-1.0),
        lambda: t_index(torch.tensor([0, 1]), 0.8)(torch.tensor([0, 1]), beta=math.inf),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InputError, match=r"give|expected"):
        call()


@pytest.mark.parametrize("seed", range(5))
def test_pair_margins(seed):
    rows = pair_margins(seed)
    leads = [row["margin"] for row in rows]
    for first, second in zip(leads[:6:2], leads[1:6:2], strict=True):
        assert first == pytest.approx(-second) and abs(first) > 1e-6
    # By hand, β = 4: the rival's logit and the question's own against the right key's.
    e = math.exp
    index_lead = (e(4) - 1) / (e(4) + 1 + e(-4))
    retrieval_lead = (e(4) - 1) / (e(4) + 2)
    near, far = 4 * (3 + math.cos(1)), 4 * (3 + math.cos(2))
    induction_lead = (e(near) - e(far)) / (e(near) + e(far) + 1)
    assert leads[6:] == pytest.approx([index_lead] * 2 + [retrieval_lead] * 2 + [induction_lead] * 2)
    assert [row["input"] for row in rows[6:]] == [
        "a b first?", "b a first?", "a1 b2 a?", "b2 a1 a?", "a1 a2 a?", "a2 a1 a?",
    ]  # fmt: skip
    assert [(row["task"], row["head"]) for row in rows[::2]] == [
        ("Index", "symbolic, random"), ("Retrieval", "positional, random"), ("Partial induction", "symbolic, random"),
        ("Index", "positional, one angle"), ("Retrieval", "symbolic, no angle"),
        ("Partial induction", "both, two angles"),
    ]  # fmt: skip
