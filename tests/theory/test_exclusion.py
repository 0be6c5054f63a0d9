"""The exclusion principle, permutation by permutation, and the smallest heads on which score and definition part."""

import itertools
import math

import pytest
import torch

from possym.errors import InputError
from possym.scores import exclusion, relocated_logits, swap_scores
from possym.theory import (
    closer_by_definition,
    closer_by_score,
    mixed_head,
    permutation_deviations,
    smallest_contradiction,
    smallest_unseen_deviation,
    tightness,
)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7])
def test_permutations_sum_to_the_closed_form(count):
    generator = torch.Generator().manual_seed(count)
    relocated = torch.randn(count, count, generator=generator, dtype=torch.float64)
    m = relocated.tolist()
    positional = symbolic = 0.0
    for order in itertools.permutations(range(count)):
        for j in range(count):
            positional += (m[order[j]][j] - m[j][j]) ** 2
            symbolic += (m[j][order[j]] - m[j][j]) ** 2
    got = permutation_deviations(relocated)
    assert got[0].item() == pytest.approx(positional) and got[1].item() == pytest.approx(symbolic)
    closed = exclusion(relocated)
    repeats = math.factorial(count - 1)
    assert closed.positional_deviation.item() * repeats == pytest.approx(positional)
    assert closed.symbolic_deviation.item() * repeats == pytest.approx(symbolic)
    assert closed.bound.item() == pytest.approx((positional + symbolic) / (math.factorial(count) * count))
    assert closed.variance <= closed.bound


def test_too_many_permutations_are_refused():
    with pytest.raises(InputError, match="N ≤ 8"):
        permutation_deviations(torch.zeros(9, 9))


def test_pure_heads_sit_at_one_half_and_the_even_mixture_is_tight():
    generator = torch.Generator().manual_seed(0)
    for count in (2, 5, 50):
        logits = torch.randn(count, generator=generator, dtype=torch.float64)
        for mix, expected in [(0.0, 0.5), (1.0, 0.5), (0.5, 1.0)]:
            assert tightness(mixed_head(logits, mix)).item() == pytest.approx(expected)
        # Between: the two deviations are mix² and (1 − mix)² of the pure ones.
        assert tightness(mixed_head(logits, 0.2)).item() == pytest.approx(0.5 / (0.2**2 + 0.8**2))
        assert torch.equal(mixed_head(logits, 0.3).diagonal(), 0.7 * logits + 0.3 * logits)


def test_no_head_exceeds_the_bound():
    generator = torch.Generator().manual_seed(1)
    for count in (2, 3, 10):
        heads = torch.randn(2000, count, count, generator=generator, dtype=torch.float64)
        assert tightness(heads).max() <= 1


def test_smallest_unseen_deviation():
    head = smallest_unseen_deviation()
    assert swap_scores(head).positional.item() == pytest.approx(1.0)
    assert exclusion(head).positional_deviation.item() == pytest.approx(2)
    # Found by listing: with entries 0 and 1 alone, no such head has logits that differ.
    for entries in itertools.product((0.0, 1.0), repeat=4):
        small = torch.tensor(entries).view(2, 2)
        deviations = exclusion(small)
        if deviations.variance > 0 and deviations.positional_deviation > 0:
            assert swap_scores(small).positional < 1 - 1e-6


def test_smallest_unseen_deviation_is_a_rope_head_of_one_plane():
    """Two query directions a turn apart span the plane, so every 2 × 2 matrix of relocated logits can be had."""
    head = smallest_unseen_deviation()
    query, angles = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0.7], dtype=torch.float64)
    turns = torch.tensor([[math.cos(t), math.sin(t)] for t in (1.4, 0.7)], dtype=torch.float64)
    keys = torch.linalg.solve(turns, head.T).T
    got = relocated_logits(
        query, keys, query_position=2, positions=torch.arange(2), frequencies=angles, layout="half", scale=1.0
    )
    torch.testing.assert_close(got, head, rtol=0, atol=1e-12)


def test_ties_by_definition_are_ties_in_spite_of_rounding():
    for dtype in (torch.float32, torch.float64):
        logits = torch.randn(200, 9, generator=torch.Generator().manual_seed(3), dtype=dtype)
        even = torch.stack([mixed_head(row, 0.5) for row in logits])
        assert not closer_by_definition(even).any()
        assert (closer_by_definition(torch.stack([mixed_head(row, 0.51) for row in logits])) == 1).all()


def test_smallest_contradiction():
    assert smallest_contradiction(2, 4) is None
    assert smallest_contradiction(3, 1) is None
    head = smallest_contradiction(3, 2)
    scores, deviations = swap_scores(head), exclusion(head)
    assert scores.positional > scores.symbolic
    assert deviations.positional_deviation > deviations.symbolic_deviation
    assert closer_by_score(scores) == 1 and closer_by_definition(head) == -1


def test_two_keys_never_contradict():
    """With two keys A − B = 2(x − y)(λ₁ − λ₀), and the score orders by the same sign."""
    generator = torch.Generator().manual_seed(2)
    heads = torch.randn(5000, 2, 2, generator=generator, dtype=torch.float64)
    by_score = closer_by_score(swap_scores(heads))
    assert (closer_by_definition(heads) == by_score).all()
    logits, x, y = heads.diagonal(dim1=-2, dim2=-1), heads[:, 1, 0], heads[:, 0, 1]
    assert ((y - x) * (logits[:, 1] - logits[:, 0])).sign().to(torch.int8).equal(by_score)
