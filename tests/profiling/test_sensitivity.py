"""Other ways to score than `swap_scores`, against loops and against it."""

import itertools
import math

import pytest
import torch

from possym.errors import InputError
from possym.profiling import sensitivity as ways
from possym.profiling.sensitivity import block_scores, rest_logits
from possym.scores import swap_scores


def test_subsets_permutations_and_logits_against_loops():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    extra = torch.randn(2, generator=generator, dtype=torch.float64)
    attention = torch.cat([logits.diagonal(), extra]).softmax(-1)
    cosine = torch.nn.functional.cosine_similarity
    pairs, parts = torch.tensor([[0, 3], [1, 2], [2, 4]]), []
    for i, j in pairs.tolist():
        v, w = logits.diagonal()[[i, j]].exp(), torch.stack([logits[j, i], logits[i, j]]).exp()
        parts.append(((attention[i] - attention[j]).abs() / 0.2, cosine(w, v, dim=0), cosine(w, v.flip(0), dim=0)))
    weight = torch.stack([part[0] for part in parts]).softmax(0)
    found = ways.subset_scores(logits, extra, pairs, 0.2)
    for score, column in zip(found, (1, 2), strict=True):
        assert score.item() == pytest.approx((weight * torch.stack([p[column] for p in parts])).sum().item())
    orders = torch.tensor([[4, 2, 0, 1, 3], [1, 0, 2, 4, 3]])
    stays, follows = [], []
    for order in orders.tolist():
        before = logits.diagonal().exp()
        after = torch.stack([logits[content, place] for place, content in enumerate(order)]).exp()
        stays.append(cosine(after, before, dim=0))
        follows.append(cosine(after, before[order], dim=0))
    found = ways.permutation_scores(logits, orders)
    assert found[0].item() == pytest.approx(torch.stack(stays).mean().item())
    assert found[1].item() == pytest.approx(torch.stack(follows).mean().item())
    a = sum((logits[i, j] - logits[j, j]) ** 2 for i, j in itertools.product(range(5), repeat=2))
    b = sum((logits[i, j] - logits[i, i]) ** 2 for i, j in itertools.product(range(5), repeat=2))
    assert ways.logit_share(logits).item() == pytest.approx((a / (a + b)).item())


def test_blocks_of_different_lengths_have_no_block_logits():
    with pytest.raises(InputError, match="blocks of one length"):
        ways.block_logits(torch.zeros(5, 5), [(0, 2), (2, 5)])


@pytest.mark.parametrize("temperature", [0.01, 0.3])
def test_scores_of_blocks_of_one_length_are_those_of_swap_scores(temperature):
    generator = torch.Generator().manual_seed(2)
    relocated, own = (torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in ((9, 9), (2,)))
    blocks = [(1, 3), (3, 5), (6, 8)]  # tokens 0, 5 and 8 stay outside
    found = block_scores(relocated, own, blocks, temperature)
    expected = swap_scores(relocated, extra_logits=own, blocks=blocks, temperature=temperature)
    assert torch.allclose(found.positional, expected.positional, atol=1e-12)
    assert torch.allclose(found.symbolic, expected.symbolic, atol=1e-12)
    rest = rest_logits(relocated, own, blocks)
    outside = relocated.diagonal(dim1=-2, dim2=-1)[:, [0, 5, 8]]
    assert torch.allclose(rest, torch.cat([outside, own], -1) - math.log(2))
    whole = ways.block_logits(relocated, blocks)
    by_hand = torch.log((relocated[0, 6, 1].exp() + relocated[0, 7, 2].exp()) / 2)
    assert whole[0, 2, 0].item() == pytest.approx(by_hand.item())


def test_large_logits_do_not_overflow():
    logits = 400 * torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
    extra, pairs = torch.zeros(1), torch.tensor([[0, 1], [1, 3], [0, 2]])
    orders = torch.tensor([[1, 0, 3, 2]])
    found = [*ways.subset_scores(logits, extra, pairs, 0.1), *ways.permutation_scores(logits, orders)]
    assert all(0 <= score <= 1 + 1e-6 for score in torch.stack(found).tolist())
    rows = logits.double() - logits.max()
    before, after = rows.diagonal(), rows[orders[0], torch.arange(4)]
    shifted = [(x - x.max()).exp() for x in (before, after)]
    expected = torch.cosine_similarity(*shifted, dim=0, eps=0).item()
    assert found[2].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "permutations, message",
    [
        (torch.tensor([[0, 1, 1]]), "numbers 0 to 2"),
        (torch.zeros(0, 3, dtype=torch.int64), "one or more rows"),
        (torch.tensor([[0, 1]]), r"give \(K, 3\)"),
        (torch.tensor([0, 1, 2]), r"give \(K, 3\)"),
        (torch.tensor([[0.0, 1.0, 2.0]]), "int64"),
    ],
    ids=str,
)
def test_what_is_no_permutation_is_refused(permutations, message):
    with pytest.raises(InputError, match=message):
        ways.permutation_scores(torch.zeros(3, 3), permutations)


def test_heads_in_a_batch_score_as_each_alone():
    generator = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64)
    extra = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    pairs, orders = torch.tensor([[0, 1], [2, 3], [1, 3]]), torch.tensor([[1, 2, 3, 0], [3, 2, 1, 0]])
    blocks = [(0, 2), (2, 4)]
    for way in (
        lambda x, y: torch.stack(ways.subset_scores(x, y, pairs, 0.3), -1),
        lambda x, y: torch.stack(ways.permutation_scores(x, orders), -1),
        lambda x, y: ways.logit_share(x),
        lambda x, y: ways.block_logits(x, blocks),
        lambda x, y: rest_logits(x, y, [(0, 1), (1, 2)]),
    ):
        together = way(logits, extra)
        for place in itertools.product(range(2), range(3)):
            assert torch.allclose(together[place], way(logits[place], extra[place]), atol=1e-12)
