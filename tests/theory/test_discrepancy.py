"""Exact discrepancies, margins and temperatures against every input, one by one."""

import itertools
import math

import pytest
import torch

from possym.errors import InputError
from possym.rope import rotate
from possym.theory import (
    first_error,
    index_beta,
    index_bound,
    index_error_rate,
    index_gaps,
    lemma_beta,
    measured_beta,
    nearest_turn,
    retrieval,
    retrieval_beta,
    retrieval_bound,
    retrieval_error_rate,
    retrieval_gaps,
    retrieval_margin,
    t_index,
    t_retrieval,
)
from possym.theory.discrepancy import gaps_of_choices
from possym.theory.inputs import letter_vocabulary, number_vocabulary, sequences, worst_retrieval_inputs


def gaps(logits):
    top = logits.topk(2).values
    return top[..., 0] - top[..., 1]


def valid_number_sequences(length):
    values = number_vocabulary(2, length - 1)
    tokens = sequences(len(values), length)
    return tokens[(values[tokens] <= torch.arange(length)).all(-1)], values


@pytest.mark.parametrize("theta", [0.8, 2.5])
@pytest.mark.parametrize("length", [2, 3, 5])
def test_index_gaps_are_those_of_every_input(theta, length):
    tokens, values = valid_number_sequences(length)
    all_gaps = gaps(t_index(values, theta).logits(tokens)[:, -1])
    for value in range(length):
        chosen = all_gaps[values[tokens[:, -1]] == value]
        assert len(chosen) > 0
        torch.testing.assert_close(chosen, index_gaps(length, theta)[value].expand(len(chosen)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("theta", [0.0, 0.3, 2.5])
@pytest.mark.parametrize(("alphabet", "length"), [(2, 2), (2, 5), (3, 3)])
@pytest.mark.parametrize("single", [True, False])
def test_retrieval_gaps_are_the_extremes_over_every_input(theta, alphabet, length, single):
    """A letter–letter query, all left letters: those of the keys are all that the logits see."""
    left, right = letter_vocabulary(alphabet, 1)
    letters = sequences(alphabet, length)
    tokens = alphabet**2 + letters
    tokens[:, -1] = letters[:, -1] * alphabet  # its right letter is the first of the alphabet
    matches = (letters == 0).sum(-1)
    tokens = tokens[matches == 1] if single else tokens[matches >= 1]
    brute = gaps(t_retrieval(left, right, theta).logits(tokens)[:, -1])
    exact = retrieval_gaps(length, theta, alphabet, single)
    assert exact.smallest == pytest.approx(brute.min().item(), abs=1e-12)
    assert exact.largest == pytest.approx(brute.max().item(), abs=1e-12)


def test_gaps_of_choices_against_every_choice():
    generator = torch.Generator().manual_seed(0)
    for rows, width in [(2, 1), (2, 3), (3, 3), (4, 2), (4, 3)]:
        for _ in range(50):
            options = torch.randn(rows, width, generator=generator, dtype=torch.float64)
            missing = torch.rand(rows, width, generator=generator) < 0.3
            missing[:, 0] = False
            options[missing] = math.nan
            picks = torch.cartesian_prod(*options)
            brute = gaps(picks[~picks.isnan().any(-1)])
            got = gaps_of_choices(options)
            assert got.smallest == pytest.approx(brute.min().item(), abs=1e-12)
            assert got.largest == pytest.approx(brute.max().item(), abs=1e-12)


@pytest.mark.parametrize("theta", [0.0, 0.4, 1.3])
@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("integer_query", [False, True])
def test_retrieval_margin_is_the_smallest_over_every_proper_input(theta, length, integer_query):
    left, right = letter_vocabulary(2, 2)
    tokens = sequences(len(left), length)
    answer, proper = retrieval(tokens, left, right)
    chosen = proper[:, -1] & ((right[tokens[:, -1]] < 0) == integer_query)
    tokens, answer = tokens[chosen], answer[chosen, -1]
    logits = t_retrieval(left, right, theta).logits(tokens)[:, -1]
    is_answer = tokens == answer[:, None]
    best = logits.masked_fill(~is_answer, -math.inf).amax(-1)
    wrong = logits.masked_fill(is_answer, -math.inf).amax(-1)
    assert retrieval_margin(length, theta, 2, integer_query) == pytest.approx((best - wrong).min().item(), abs=1e-12)


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_index_beta_is_measured_on_every_valid_sequence(length):
    tokens, values = valid_number_sequences(length)
    head = t_index(values, 0.8)
    answer = head(tokens)[:, -1]
    exact = index_beta(length, 0.8)
    assert measured_beta(head, tokens, answer, exact + 20) == pytest.approx(exact, abs=1e-6)
    assert exact <= lemma_beta(length, index_gaps(length, 0.8).min().item()) + 1e-6


@pytest.mark.parametrize("integer_query", [False, True])
@pytest.mark.parametrize(("alphabet", "integers", "length"), [(2, 2, 2), (2, 2, 3), (2, 2, 4), (3, 2, 3)])
def test_retrieval_beta_is_measured_on_every_proper_sequence(alphabet, integers, length, integer_query):
    left, right = letter_vocabulary(alphabet, integers)
    theta = 0.9 * 2 * math.pi / alphabet / (2 * length)
    tokens = sequences(len(left), length)
    answer, proper = retrieval(tokens, left, right)
    chosen = proper[:, -1] & ((right[tokens[:, -1]] < 0) == integer_query)
    exact = retrieval_beta(length, theta, alphabet, integer_query)
    head = t_retrieval(left, right, theta)
    measured = measured_beta(head, tokens[chosen], answer[chosen, -1], exact + 20)
    assert measured == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize(("length", "alphabet", "theta"), [(2, 2, 0.01), (3, 3, 0.01), (5, 4, 0.05)])
def test_the_worst_inputs_of_retrieval_need_the_largest_beta(length, alphabet, theta):
    exact = retrieval_beta(length, theta, alphabet)
    head = t_retrieval(*letter_vocabulary(alphabet, 1), theta)
    tokens, answer = worst_retrieval_inputs(length, alphabet)
    assert measured_beta(head, tokens, answer, exact + 20) == pytest.approx(exact, abs=1e-6)
    assert torch.equal(head(tokens)[:, -1], answer)


def test_no_softmax_helps_where_hard_attention_errs():
    assert retrieval_beta(200, 0.0027, 8) == math.inf
    assert index_beta(8, 2 * math.pi / 7) > 1e12
    with pytest.raises(InputError, match="larger β"):
        head = t_index(number_vocabulary(2, 2), 0.8)
        measured_beta(head, torch.tensor([[0, 1, 3]]), torch.tensor([1]), 1e3)


def test_bounds_are_theorem_3_2():
    assert index_bound(3, 0.8) == pytest.approx(1 - math.cos(0.8))
    assert index_bound(100, 0.8) == pytest.approx(2 * math.pi**2 / 10000)
    assert retrieval_bound(7, 0.01, 8) == pytest.approx(1 - math.cos(math.pi / 4 - 0.07))


def test_nearest_turn_is_found_by_walking():
    for theta in (0.8, 1.0, 0.0027, 2.9, -0.8, 0.5):
        for closeness in (0.1, 1e-2, 1e-3):
            m = torch.arange(1, 200_000, dtype=torch.float64)
            off = (m * theta / (2 * math.pi)).frac()
            off = torch.minimum(off.abs(), 1 - off.abs()) * 2 * math.pi
            assert nearest_turn(theta, closeness) == int((off < closeness).int().argmax()) + 1


@pytest.mark.parametrize("theta", [0.8, 1.0, 0.866])
def test_first_error_is_where_the_rotated_query_stops_standing_out(theta):
    """Every query value at the failing length and at the one before, through possym.rope in float32."""
    length = first_error(theta, torch.float32, 2048)
    for n, fails in ((length - 1, False), (length, True)):
        head = t_index(number_vocabulary(1, n - 1), theta)
        turned = rotate(head.query_table.float()[:, None], torch.arange(n), head.frequencies, "interleaved")
        logits = turned @ head.key_table[0].float()  # (query value, distance)
        own = logits.diagonal()
        rival = logits.clone().fill_diagonal_(-math.inf).amax(-1)
        assert bool((rival >= own).any()) == fails


@pytest.mark.parametrize(("length", "theta", "alphabet"), [(4, 0.5, 3), (5, 0.3, 4), (3, 1.2, 2)])
def test_the_error_rate_of_retrieval_is_that_of_all_inputs(length, theta, alphabet):
    """Every place of the match, every choice of wrong letters for the other keys, one by one."""
    wrong = total = 0
    for place in range(length):
        for letters in itertools.product(range(1, alphabet), repeat=length - 1):
            ahead = [*letters[:place], 0, *letters[place:]]
            logits = [math.cos(2 * math.pi / alphabet * a + d * theta) for d, a in enumerate(ahead)]
            rival = max(logit for d, logit in enumerate(logits) if d != place)
            wrong, total = wrong + (rival >= logits[place]), total + 1
    assert 0 < wrong < total
    assert retrieval_error_rate(length, theta, alphabet) == pytest.approx(wrong / total)


def test_error_rates_begin_where_the_worst_input_fails():
    assert retrieval_error_rate(146, 0.0027, 8) == 0 < retrieval_error_rate(147, 0.0027, 8) < 0.01
    length = first_error(0.8, torch.float16, 2048)
    rates = [index_error_rate(0.8, torch.float16, n) for n in (length - 1, length, 4 * length)]
    assert rates[0] == 0 < rates[1] < rates[2]
    # At the first failing length the two query values at the ends err, or one of them.
    assert rates[1] * length in (1, 2)


def test_first_error_is_earlier_in_coarser_types():
    found = [first_error(0.8, dtype, 2048) for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)]
    assert found[0] < found[1] < found[2] and found[3] is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: index_gaps(1, 0.8),
        lambda: retrieval_gaps(3, 0.1, 1),
        lambda: retrieval_margin(3, math.inf, 4),
        lambda: index_bound(True, 0.8),
        lambda: nearest_turn(0.0, 0.1),
        lambda: nearest_turn(1.0, 1e-20),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InputError, match="give"):
        call()
