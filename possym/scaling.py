"""The ways of stretching RoPE to longer inputs, each as the angles it gives the planes of a head.

Every function returns (dim/2,) float64 angles in radians a position, fastest first, like
`possym.rope.frequencies`. The factor that yarn and longrope put on all logits of a head is left out.

- `linear` slows every plane alike; `dynamic` raises the base as the input grows.
- `yarn` and `llama3` keep fast planes, slow slow ones and blend between.
- `longrope` divides each plane by a factor of its own.
- `proportional` stops the slowest planes (p-RoPE); none left is RoPE's absence, NoPE.
"""

import math

import torch
from torch import Tensor

from possym.errors import InputError, as_real, need
from possym.rope import frequencies


def linear(dim: int, base: float = 10000.0, factor: float = 8.0) -> Tensor:
    """Return all angles divided by ``factor``: position interpolation.

    Raises:
        InputError: here and below, a number that is not positive and finite, or an odd ``dim``.

    Source: Chen et al. 2023, 2306.15595.

    >>> linear(4, factor=2.0)
    tensor([0.5000, 0.0050], dtype=torch.float64)
    """
    return frequencies(dim, base) / number(factor, "factor", 1)


def dynamic(dim: int, base: float = 10000.0, factor: float = 8.0, trained: int = 2048, length: int = 2048) -> Tensor:
    """Return the angles of a base that grows with the input, so that the slowest plane turns no further.

    Args:
        dim, base: as in `possym.rope.frequencies`; ``dim`` over 2.
        factor: stretch s; the base is multiplied by (s·max(length, trained)/trained − (s − 1))^(dim/(dim − 2)).
        trained: length seen in training.
        length: length of the input.

    Source: NTK-aware scaling as in transformers.

    >>> torch.equal(dynamic(4, trained=2048, length=1000), frequencies(4))
    True
    """
    plain = frequencies(dim, base)
    if dim == 2:
        raise InputError("dim = 2: dynamic scaling keeps the fastest plane and needs a second; give at least 4")
    stretch = max(number(length, "length", 0) / number(trained, "trained", 0), 1.0)
    raised = number(factor, "factor", 1) * stretch - (factor - 1)
    return frequencies(dim, base * raised ** (dim / (dim - 2))) if raised > 1 else plain


def yarn(
    dim: int, base: float = 10000.0, factor: float = 8.0, trained: int = 2048, fast: float = 32.0, slow: float = 1.0
) -> Tensor:
    """Return angles kept where a plane turns ``fast`` times in ``trained``, divided where it turns ``slow`` times.

    Between the two frequency IDs, rounded outwards, the share of the divided angle grows linearly.

    Source: Peng et al. 2023, 2309.00071.

    >>> yarn(8, factor=4.0) / frequencies(8)
    tensor([1.0000, 1.0000, 0.6250, 0.2500], dtype=torch.float64)
    """
    plain = frequencies(dim, base)
    factor, trained = number(factor, "factor", 1), number(trained, "trained", 0)

    def plane(turns: float) -> float:
        return dim * math.log(trained / (number(turns, "turns", 0) * 2 * math.pi)) / (2 * math.log(base))

    first, last = max(math.floor(plane(fast)), 0), min(math.ceil(plane(slow)), dim - 1)
    width = last - first if last != first else 0.001
    share = ((torch.arange(dim // 2, dtype=torch.float64) - first) / width).clamp(0, 1)
    return plain * (1 - share) + plain / factor * share


def llama3(
    dim: int, base: float = 500000.0, factor: float = 8.0, trained: int = 8192, low: float = 1.0, high: float = 4.0
) -> Tensor:
    """Return angles kept for planes that turn over ``high`` times in ``trained``, divided under ``low`` times.

    Between, the share of the kept angle is (turns − low)/(high − low).

    Source: Llama 3.1, as in transformers.

    >>> llama3(8) / frequencies(8, 500000.0)
    tensor([1.0000, 1.0000, 0.3711, 0.1250], dtype=torch.float64)
    """
    plain = frequencies(dim, base)
    factor, trained = number(factor, "factor", 1), number(trained, "trained", 0)
    low = number(low, "low", 0)
    if not number(high, "high", 0) > low:
        raise InputError(f"low = {low!r}, high = {high!r}: give high over low")
    turns = trained * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / factor * (1 - kept)


def longrope(dim: int, base: float = 10000.0, factors: Tensor | None = None) -> Tensor:
    """Return each plane's angle divided by its own factor, found by search for the model at hand.

    Args:
        factors: (dim/2,) positive; None leaves the angles as they are.

    Source: Ding et al. 2024, 2402.13753.

    >>> longrope(4, factors=torch.tensor([1.0, 10.0]))
    tensor([1.0000, 0.0010], dtype=torch.float64)
    """
    plain = frequencies(dim, base)
    if factors is None:
        return plain
    need(factors, Tensor, "factors")
    if factors.shape != plain.shape or not bool(((factors > 0) & factors.isfinite()).all()):
        raise InputError(f"factors {tuple(factors.shape)}: give ({len(plain)},) positive numbers, one a plane")
    return plain / factors.double()


def proportional(dim: int, base: float = 10000.0, proportion: float = 0.75) -> Tensor:
    """Return the angles of p-RoPE: the fastest ``proportion`` of the planes turn, the others stand still.

    1 is RoPE and 0 is NoPE, no plane turning.

    Source: Barbero et al. 2024, 2410.06205.

    >>> proportional(4, proportion=0.5)
    tensor([1., 0.], dtype=torch.float64)
    """
    plain = frequencies(dim, base)
    share = as_real(proportion)
    if share is None or not 0 <= share <= 1:
        raise InputError(f"proportion = {proportion!r:.40}: give a number from 0 (NoPE) to 1 (RoPE)")
    turning = torch.arange(dim // 2) < int(share * dim // 2)
    return plain * turning


def number(value: float, name: str, over: float) -> float:
    """Return a finite number over ``over`` (or equal to it, where that is 1), or raise an InputError."""
    found = as_real(value)
    if found is None or not math.isfinite(found):
        raise InputError(f"{name} = {value!r:.40}: give a finite number")
    if found < over or (found == over and over == 0):
        raise InputError(f"{name} = {value!r:.40}: give {'a positive number' if over == 0 else f'at least {over}'}")
    return found
