"""Scores of heads estimated from some swaps of tokens, where all of them take minutes.

- `draw_swaps` draws swaps in proportion to their weights, though the pairs of a long prompt are never listed.
- `sampled_scores` takes the mean of what these swaps do: an unbiased estimate, and its standard error.
"""

import torch
from torch import Tensor

from possym.scores import Exclusion, Scores, attend, bounded, capped, pair_cosines, swap_stakes


def draw_swaps(
    stakes: Tensor, temperature: float, relative: bool, uniform: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw swaps i, j of tokens (..., n), each in proportion to its weight in `possym.scores.swap_scores`.

    From the most attended token on, a weight is u_i v_j − x_j, so what lies before a swap in the order of i and then j
    is a product of running totals, in which the place of a uniform number is found by halving.

    Args:
        stakes: (..., N) what each token holds, see `possym.scores.swap_stakes`.
        temperature: τ of absolute weights; relative ones are drawn at 1 alone.
        relative: as in `possym.scores.swap_scores`.
        uniform: (2, ..., n) numbers from 0 to 1, for i and for j.

    Returns:
        i and j, the logarithms of their weights, and that of the sum of all weights (...,), in float64.

    >>> held, uniform = torch.tensor([0.0, 1.0, 0.9]), torch.tensor([[0.1, 0.9], [0.05, 0.9]])
    >>> i, j, log, total = draw_swaps(held, 1.0, True, uniform)
    >>> i.tolist(), j.tolist(), round(float(total.exp()), 6)
    ([1, 2], [2, 0], 2.0)
    """
    held, order = stakes.double().sort(-1, descending=True)
    most, least = held[..., :1], held[..., -1:]
    if relative:  # where all hold the same, all swaps count alike
        tied = most == least
        u, v, x = torch.where(tied, 1, held), torch.ones_like(held), torch.where(tied, 0, held)
    else:
        u, v, x = ((held - most) / temperature).exp(), ((least - held) / temperature).exp(), torch.zeros_like(held)
    behind, taken = v.cumsum(-1), x.cumsum(-1)
    sums = (u * (behind[..., -1:] - behind) - (taken[..., -1:] - taken)).clamp_(min=0).cumsum(-1)
    total, uniform = sums[..., -1:], uniform.double()
    last = held.shape[-1] - 1
    i = torch.searchsorted(sums, uniform[0] * total, right=True).clamp_(max=last - 1)
    at = [each.gather(-1, i) for each in (u, behind, taken)]

    def before(j: Tensor) -> Tensor:
        return at[0] * (behind.gather(-1, j) - at[1]) - (taken.gather(-1, j) - at[2])

    low, high = i + 1, torch.full_like(i, last)
    goal = uniform[1] * before(high)
    for _ in range(last.bit_length()):
        middle = (low + high) // 2
        beyond = before(middle) > goal
        low, high = torch.where(beyond, low, (middle + 1).clamp(max=last)), torch.where(beyond, middle, high)
    j = torch.minimum(low, high)
    weight = at[0] * v.gather(-1, j) - x.gather(-1, j)
    return order.gather(-1, i), order.gather(-1, j), weight.log(), total.squeeze(-1).log()


def sampled_scores(
    contents: Tensor,
    positions: Tensor,
    extra_logits: Tensor,
    temperature: float,
    softcap: float | None,
    relative: bool,
    swaps: int,
    generator: torch.Generator,
) -> tuple[Scores, Exclusion, Tensor, Tensor, Tensor]:
    """Return what `possym.scores.head_scores` does, estimated, and the standard errors of both scores (2, ...).

    Both scores are means over swaps drawn in proportion to their weights, the deviations and their bound those over
    as many contents at positions drawn evenly: all unbiased. Entropy and variance are exact. The number of effective
    swaps is the exponential of an unbiased estimate of an entropy.

    Args:
        contents, positions, extra_logits, temperature, softcap, relative: as there; relative weights at τ = 1 alone.
        swaps: how many are drawn for each head, at least 2.
        generator: on the device of the contents.

    >>> contents, positions = torch.ones(3, 1), torch.tensor([[0.0], [1.0], [2.0]])
    >>> how = torch.zeros(1), 1.0, None, True, 10, torch.Generator().manual_seed(0)
    >>> scores, *_, errors = sampled_scores(contents, positions, *how)
    >>> round(float(scores.positional), 6), round(float(errors[0]), 6)
    (1.0, 0.0)
    """
    count, shape = len(positions), contents.shape[:-2]
    logits = capped((contents * positions).sum(-1), softcap)
    attention, entropy = attend(logits, extra_logits)
    uniform = torch.rand((4, *shape, swaps), device=logits.device, generator=generator, dtype=torch.float64)
    i, j, log, total = draw_swaps(swap_stakes(logits, attention, None, relative), temperature, relative, uniform[:2])

    def moved(content: Tensor, position: Tensor) -> Tensor:
        held = contents.gather(-2, content.unsqueeze(-1).expand(*content.shape, contents.shape[-1]))
        return capped((held * positions[position]).sum(-1), softcap)

    both = pair_cosines(logits.gather(-1, i), logits.gather(-1, j), moved(j, i), moved(i, j))
    found = torch.stack(both)
    positional, symbolic = found.mean(-1)
    errors = found.std(-1) / swaps**0.5
    a, b = (uniform[2:] * count).long().clamp_(max=count - 1)
    there = moved(a, b)
    far = [(there - logits.gather(-1, each)).square().mean(-1) * count**2 for each in (b, a)]
    effective = (total - log.mean(-1)).exp()
    return Scores(positional, symbolic, entropy), bounded(logits, *far), effective, logits, errors
