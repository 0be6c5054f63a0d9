"""Estimates from drawn swaps against all swaps: drawn as weighed, unbiased, with the error that they say."""

import itertools

import pytest
import torch

from possym.capture.sampled_swaps import draw_swaps, sampled_scores
from possym.scores import head_scores

WEIGHTS = pytest.mark.parametrize("temperature, relative", [(1.0, True), (0.1, False), (1e-4, False)])


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@WEIGHTS
@pytest.mark.parametrize("tied", [False, True])
def test_swaps_are_drawn_in_proportion_to_their_weights(temperature, relative, tied):
    """Every pair of 500 numbers evenly from 0 to 1, for i and for j, stands for all draws."""
    stakes = torch.ones(6) / 6 if tied else drawn(6).softmax(-1)
    even = (torch.arange(500) + 0.5) / 500
    uniform = torch.stack(torch.meshgrid(even, even, indexing="ij")).flatten(1)
    i, j, log, total = draw_swaps(stakes, temperature, relative, uniform)
    for a, b in itertools.combinations(range(6), 2):
        gap = (stakes[a] - stakes[b]).abs()
        weight = (gap if relative and not tied else torch.ones(()) if relative else (gap / temperature).exp()).double()
        gaps = (stakes[:, None] - stakes).abs().double()[tuple(torch.triu_indices(6, 6, 1))]
        every = gaps if relative and not tied else torch.ones(15) if relative else (gaps / temperature).exp()
        expected = (weight / every.sum()) if every.isfinite().all() else (gap == gaps.max()).double()
        here = ((i == a) & (j == b)) | ((i == b) & (j == a))
        assert here.double().mean().item() == pytest.approx(expected.item(), abs=0.01)
        if here.any():  # the weights are known but for one factor
            assert (log - total)[here].exp()[0].item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-9)


@WEIGHTS
def test_estimates_are_unbiased_and_as_wrong_as_they_say(temperature, relative):
    contents, positions, own = drawn(2, 40, 6), drawn(40, 6, seed=1), drawn(2, 1, seed=2)
    exact, bound, effective, observed = head_scores(contents, positions, own, temperature, 5.0, 2**16, relative)
    runs, swaps = 400, 60
    many = (x.expand(runs, *x.shape) for x in (contents, own))
    how = temperature, 5.0, relative, swaps, torch.Generator().manual_seed(0)
    scores, bounds, counted, logits, errors = sampled_scores(next(many), positions, next(many), *how)
    for score, true, error in zip(scores[:2], exact[:2], errors, strict=True):
        spread = score.std(0)
        assert ((score.mean(0) - true).abs() <= 4 * spread / runs**0.5 + 1e-9).all()
        torch.testing.assert_close(error.square().mean(0).sqrt(), spread, rtol=0.15, atol=1e-9)
    assert torch.equal(scores.entropy[0], exact.entropy) and torch.equal(bounds.variance[0], bound.variance)
    assert torch.equal(logits[0], observed)
    torch.testing.assert_close(bounds.bound.mean(0), bound.bound, rtol=0.05, atol=0)
    torch.testing.assert_close(counted.log().mean(0), effective.log(), rtol=0.02, atol=0.02)
