"""Is accuracy U-shaped over the answer's position? A test over seeds.

Each seed gives one curve over the positions. Its bend is the quadratic coefficient of a least-squares parabola
over the position, centred and scaled to [−1, 1]; a U has a positive bend, an inverse U a negative one. The seeds
are the independent draws, so the interval and the p-value are over seeds, not over sequences.
"""

from typing import NamedTuple

import scipy
import torch
from torch import Tensor


class UShapeTest(NamedTuple):
    """Mean bend over seeds, its 95 % t-interval (low, high), exact sign-flip p-value, and the name of the shape."""

    bend: float
    low: float
    high: float
    p_value: float
    shape: str


def bends(curves: Tensor) -> Tensor:
    """Return the quadratic coefficient of each curve (..., positions) over the position scaled to [−1, 1].

    >>> place = torch.linspace(-1, 1, 5)
    >>> bends(0.5 + 0.3 * place**2 - 0.2 * place)
    tensor(0.3000)
    """
    curves = curves.double()
    position = torch.linspace(-1, 1, curves.shape[-1], dtype=torch.float64, device=curves.device)
    # The square without its constant and linear part; by symmetry it has no linear part.
    direction = position.square() - position.square().mean()
    return (curves @ direction / direction.square().sum()).float()


def u_shape_test(curves: Tensor) -> UShapeTest:
    """Test over seeds whether curves (seeds, positions) bend up (``"U"``), down (``"inverse U"``) or not (``"flat"``).

    A shape is named if the sign-flip p-value is at most 0.05 and the 95 % t-interval leaves zero out. The p-value is
    exact under symmetry: the share of all 2^seeds sign patterns of the bends whose mean is at least as far from zero.

    >>> place = torch.linspace(-1, 1, 9)
    >>> seeds = torch.linspace(0.2, 0.4, 8)[:, None]
    >>> u_shape_test(0.5 - seeds * place**2).shape
    'inverse U'
    """
    bend = bends(curves).double().cpu()
    count, mean = len(bend), bend.mean()
    half = float(scipy.stats.t.ppf(0.975, count - 1) * bend.std() / count**0.5)
    signs = 1 - 2 * ((torch.arange(2**count)[:, None] >> torch.arange(count)) & 1).double()
    p_value = float(((signs @ bend / count).abs() >= mean.abs() - 1e-12).double().mean())
    low, high = float(mean) - half, float(mean) + half
    significant = p_value <= 0.05 and low * high > 0
    return UShapeTest(float(mean), low, high, p_value, ("U" if mean > 0 else "inverse U") if significant else "flat")
