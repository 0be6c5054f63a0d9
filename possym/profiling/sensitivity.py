"""How much a head's scores owe to choices that the papers leave open: swaps, blocks, temperature, weights or logits.

- `block_logits` turns relocated logits of tokens into those of blocks of equal length, from which every score of
  blocks follows: ``swap_scores(block_logits(M, blocks), …)`` equals ``swap_scores(M, blocks=blocks, …)`` once the
  other keys' logits and the temperature are put into the same unit, which `rest_logits` and `block_scores` do.
- `subset_scores` uses some swaps only, `permutation_scores` whole permutations instead of swaps.
- `logit_share` measures the same thing on the logits, without softmax.
"""

import math

import torch
from torch import Tensor

from possym.errors import InputError, require_type
from possym.scores import Scores, check_blocks, check_relocated, exclusion, pair_cosines, swap_scores


def block_logits(relocated: Tensor, blocks: list[tuple[int, int]]) -> Tensor:
    """Return relocated logits (..., m, m) of m blocks of equal length.

    Entry [a, b] is the logarithm of the mean of e^M when block a stands where block b stood, token for token.

    Args:
        relocated: (..., T, T) relocated logits of tokens.
        blocks: (start, stop) pairs of one length, in order, not overlapping.

    Raises:
        InputError: shapes or blocks that do not fit, or blocks of different lengths.

    Source: 2511.11579, section 3 (blocks of tokens).

    >>> block_logits(torch.zeros(4, 4), [(0, 2), (2, 4)])
    tensor([[0., 0.],
            [0., 0.]])
    """
    relocated = check_relocated(relocated)
    starts, stops = check_blocks(blocks, relocated.shape[-1])
    lengths = stops - starts
    if (lengths != lengths[0]).any():
        raise InputError(f"blocks have lengths {sorted(set(lengths.tolist()))}: give blocks of one length")
    tokens = (starts[:, None] + torch.arange(int(lengths[0]))).to(relocated.device)
    return relocated[..., tokens[:, None], tokens[None]].logsumexp(-1) - math.log(int(lengths[0]))


def rest_logits(relocated: Tensor, own: Tensor, blocks: list[tuple[int, int]]) -> Tensor:
    """Return the logits (..., X) of all keys outside the blocks, less the logarithm of a block's length.

    They are what `swap_scores` needs as ``extra_logits`` beside `block_logits`. ``own`` (..., Y) are the logits of
    keys that never move.

    >>> rest_logits(torch.zeros(3, 3), torch.ones(1), [(0, 1), (1, 2)])
    tensor([0., 1.])
    """
    outside = torch.ones(relocated.shape[-1], dtype=torch.bool, device=relocated.device)
    for start, stop in blocks:
        outside[start:stop] = False
    logits = relocated.diagonal(dim1=-2, dim2=-1)[..., outside]
    length = blocks[0][1] - blocks[0][0]
    return torch.cat([logits, own.expand(*logits.shape[:-1], -1)], -1) - math.log(length)


def block_scores(relocated: Tensor, own: Tensor, blocks: list[tuple[int, int]], temperature: float) -> Scores:
    """Return the scores of blocks of equal length, every pair swapped, by way of `block_logits`.

    >>> M = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    >>> round(block_scores(M, torch.zeros(1), [(0, 1), (1, 2)], 0.1).positional.item(), 4)
    1.0
    """
    length = blocks[0][1] - blocks[0][0]
    extra = rest_logits(relocated, own, blocks)
    return swap_scores(block_logits(relocated, blocks), extra_logits=extra, temperature=temperature * length)


def subset_scores(logits: Tensor, extra: Tensor, pairs: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return positional and symbolic score over some swaps only.

    Args:
        logits: (..., m, m) relocated logits of keys or blocks.
        extra: (..., X) logits of what is attended but never moved.
        pairs: (P, 2) positions that swap, P ≥ 1.
        temperature: τ of the weights of swaps, in the unit of the attention of ``logits``.

    >>> M = torch.tensor([[0.0, 1.0, 2.0]]).expand(3, 3)
    >>> subset_scores(M, torch.zeros(1), torch.tensor([[0, 2]]), 0.1)[0]
    tensor(1.)
    """
    first, second = pairs.to(logits.device).unbind(1)
    observed = logits.diagonal(dim1=-2, dim2=-1)
    attention = torch.cat([observed, extra], -1).softmax(-1)
    weight = ((attention[..., first] - attention[..., second]).abs() / temperature).softmax(-1)
    after = logits[..., second, first], logits[..., first, second]
    same, crossed = pair_cosines(observed[..., first], observed[..., second], *after)
    return (weight * same).sum(-1), (weight * crossed).sum(-1)


def permutation_scores(logits: Tensor, permutations: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two cosines under whole permutations, averaged over the permutations.

    With d the attention over the m positions and d′ that after permutation π, which puts content π(b) at position b:
    the mean of cos(d′, d), and the mean of cos(d′, d∘π).

    Args:
        logits: (..., m, m) relocated logits of keys or blocks.
        permutations: (K, m), each row a permutation of 0 … m − 1.

    >>> M = torch.tensor([[0.0, 1.0, 2.0]]).expand(3, 3)
    >>> round(permutation_scores(M, torch.tensor([[1, 2, 0]]))[0].item(), 4)
    1.0
    """
    logits = check_relocated(logits)
    require_type(permutations, Tensor, "permutations")
    count = logits.shape[-1]
    if permutations.dtype != torch.int64 or permutations.ndim != 2 or permutations.shape[1] != count:
        raise InputError(f"permutations {tuple(permutations.shape)} {permutations.dtype}: give (K, {count}) int64")
    permutations = permutations.to(logits.device)
    if not len(permutations) or (permutations.sort(-1).values != torch.arange(count, device=logits.device)).any():
        raise InputError(f"permutations: give one or more rows, each the numbers 0 to {count - 1} in some order")
    observed = logits.diagonal(dim1=-2, dim2=-1)
    before = (observed - observed.amax(-1, keepdim=True)).exp()
    after = logits[..., permutations, torch.arange(logits.shape[-1], device=logits.device)]
    after = (after - after.amax(-1, keepdim=True)).exp()
    norm = before.norm(dim=-1, keepdim=True) * after.norm(dim=-1)
    straight = (after * before.unsqueeze(-2)).sum(-1) / norm
    moved = (after * before[..., permutations]).sum(-1) / norm
    return straight.mean(-1), moved.mean(-1)


def logit_share(logits: Tensor) -> Tensor:
    """Return A/(A + B) of relocated logits (..., m, m): 0 purely positional, 1 purely symbolic, no softmax.

    A and B are the squared deviations of `possym.scores.exclusion`. NaN where nothing varies.

    Source: 2511.11579, theorem 1.

    >>> logit_share(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    tensor(0.)
    """
    found = exclusion(logits)
    return found.positional_deviation / (found.positional_deviation + found.symbolic_deviation)
