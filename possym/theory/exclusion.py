"""The exclusion principle by brute force, how tight it is, and where scores and definition disagree."""

import math
from itertools import permutations, product

import torch
from torch import Tensor

from possym.errors import InputError, require_type
from possym.rope import as_float
from possym.scores import Scores, check_relocated, exclusion, swap_scores


def permutation_deviations(relocated: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖δ_pos‖² and ‖δ_sym‖², summed one by one over all N! permutations of the keys.

    δ_pos(π, j) = M[π(j), j] − M[j, j]: the change of the logit at position j; δ_sym(π, j) = M[j, π(j)] − M[j, j]:
    the change of the logit of content j. The exclusion principle reads Var ≤ (‖δ_pos‖² + ‖δ_sym‖²)/(N!·N).

    Args:
        relocated: (N, N) relocated logits, N ≤ 8.

    Raises:
        InputError: more keys than can be enumerated.

    Source: 2511.11579, theorem 1.

    >>> permutation_deviations(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    (tensor(0.), tensor(2.))
    """
    relocated = check_relocated(relocated)
    count = relocated.shape[-1]
    if relocated.ndim != 2 or count > 8:
        raise InputError(f"relocated {tuple(relocated.shape)}: give (N, N) with N ≤ 8, N! permutations are visited")
    order = torch.tensor(list(permutations(range(count))))
    position = torch.arange(count)
    logits = relocated.diagonal()
    positional = (relocated[order, position] - logits).square().sum()
    symbolic = (relocated[position, order] - logits).square().sum()
    return positional, symbolic


def tightness(relocated: Tensor) -> Tensor:
    """Return variance / bound, between 0 and 1: 1 where the exclusion principle is an equality, ½ for pure heads.

    Args:
        relocated: (..., N, N) relocated logits. NaN is returned where the bound is zero.

    >>> tightness(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    tensor(0.5000)
    """
    result = exclusion(relocated)
    return result.variance / result.bound


def mixed_head(logits: Tensor, mix: float) -> Tensor:
    """Return relocated logits M[a, b] = (1 − mix)·λ_a + mix·λ_b, (N, N): 0 is symbolic, 1 positional.

    At ½ the exclusion principle is an equality.

    Args:
        logits: (N,) observed logits λ.
        mix: a number; between 0 and 1 for the heads of the book.

    >>> mixed_head(torch.tensor([0.0, 1.0]), 0.5)
    tensor([[0.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    logits = as_float(logits, "logits")
    mix = require_type(mix, (int, float), "mix")
    if logits.ndim != 1 or not math.isfinite(mix):
        raise InputError(f"logits {tuple(logits.shape)}, mix = {mix!r}: give logits (N,) and a finite number")
    return (1 - mix) * logits[:, None] + mix * logits[None, :]


def closer_by_definition(relocated: Tensor) -> Tensor:
    """Return 1 where the positional deviation is the smaller, −1 where the symbolic one is, 0 for a tie (int8).

    >>> closer_by_definition(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    tensor(1, dtype=torch.int8)
    """
    result = exclusion(relocated)
    difference = result.symbolic_deviation - result.positional_deviation
    rounding = 16 * torch.finfo(difference.dtype).eps * (result.symbolic_deviation + result.positional_deviation)
    return torch.where(difference.abs() <= rounding, 0, difference.sign()).to(torch.int8)


def closer_by_score(scores: Scores) -> Tensor:
    """Return 1 where the positional score is the larger, −1 where the symbolic one is, 0 for a tie (int8).

    >>> closer_by_score(swap_scores(torch.tensor([[0.0, 1.0], [0.0, 1.0]])))
    tensor(1, dtype=torch.int8)
    """
    require_type(scores, Scores, "scores")
    difference = scores.positional - scores.symbolic
    return torch.where(difference.abs() <= 1e-9, 0, difference.sign()).to(torch.int8)


def integer_heads(count: int, largest: int) -> Tensor:
    """Return every (N, N) matrix of relocated logits with entries 0 … largest, float64, in counting order.

    >>> integer_heads(2, 1).shape
    torch.Size([16, 2, 2])
    """
    entries = torch.tensor(list(product(range(largest + 1), repeat=count * count)), dtype=torch.float64)
    return entries.unflatten(-1, (count, count))


def smallest_unseen_deviation() -> Tensor:
    """Return the smallest head whose positional score is 1 though its logits are not positional.

    Two keys are the fewest that can be swapped. The heads are searched by their largest entry, then by the size
    of the unseen deviation A, largest first, then in counting order. Heads with equal logits are left out.

    >>> smallest_unseen_deviation()
    tensor([[0., 2.],
            [1., 1.]], dtype=torch.float64)
    """
    entry = 0
    while True:
        entry += 1
        heads = integer_heads(2, entry)
        deviations = exclusion(heads)
        unseen = (swap_scores(heads).positional > 1 - 1e-12) & (deviations.positional_deviation > 0)
        unseen &= deviations.variance > 0
        if unseen.any():
            heads = heads[unseen]
            return heads[deviations.positional_deviation[unseen].round(decimals=9).argmax()]


def smallest_contradiction(count: int, largest: int) -> Tensor | None:
    """Return a smallest head that is closer to one kind by its deviations and to the other by its scores.

    Args:
        count: number of keys N, 2 or 3.
        largest: entries 0 … largest are searched, smallest largest entry first.

    Returns:
        (N, N) relocated logits, or None where no head contradicts.

    >>> smallest_contradiction(2, 4) is None
    True
    """
    count, largest = require_type(count, int, "count"), require_type(largest, int, "largest")
    if count not in (2, 3) or not 1 <= largest <= (9 if count == 2 else 4):
        raise InputError(f"count = {count}, largest = {largest}: give 2 keys and up to 9, or 3 keys and up to 4")
    for entry in range(1, largest + 1):
        heads = integer_heads(count, entry)
        found = closer_by_definition(heads) * closer_by_score(swap_scores(heads)) < 0
        if found.any():
            return heads[found][0]
    return None
