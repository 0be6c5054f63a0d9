"""Theorem 7 of 2511.11579: the answer's weight as a function of its position."""

import math

import torch
from torch import Tensor

from possym.errors import InputError, to_float
from possym.rope import as_float
from possym.theory.heads import angle, whole

LEVEL = 1e-12  # what is smaller is rounding
SHAPES = ("U", "inverse U", "flat", "mixed")


def positional_weight(length: int, theta: float, beta: float = 1.0) -> Tensor:
    """Return w_max(j) of the positional construction: the weight of the answer's position j among n keys.

    w(j) = e^β / Σ_i exp(β cos((i − j)θ)).

    Args:
        length: number of keys n, at least 2.
        theta: the angle, in radians per position.
        beta: inverse temperature, positive.

    Returns:
        (n,) float64, for j = 0 … n−1.

    Source: 2511.11579, theorem 7.

    >>> positional_weight(3, 0.5)
    tensor([0.3974, 0.3611, 0.3974], dtype=torch.float64)
    """
    length = whole(length, "length", 2)
    position = torch.arange(length, dtype=torch.float64)
    logits = positive(beta) * ((position - position[:, None]) * angle(theta)).cos()
    return logits.softmax(-1).diagonal()


def symbolic_weight(length: int, theta: float, beta: float = 1.0) -> Tensor:
    """Return w_max(j) of the simplified symbolic construction: the largest weight when the answer stands at j.

    The answer's logit is cos((j − c)θ) with c the middle position, the n − 1 others' 0.

    Args and returns: see `positional_weight`.

    Source: 2511.11579, theorem 7.

    >>> symbolic_weight(3, 0.5)
    tensor([0.5460, 0.5761, 0.5460], dtype=torch.float64)
    """
    length = whole(length, "length", 2)
    position = torch.arange(length, dtype=torch.float64)
    logit = positive(beta) * ((position - (length - 1) / 2) * angle(theta)).cos()
    return logit.clamp(min=0).exp() / (logit.exp() + length - 1)


def positional_slope(length: int, theta: float) -> Tensor:
    """Return the sign of w(j + 1) − w(j) of the positional construction, (n − 1,) in closed form.

    The sums in the denominators differ by exp(β cos((j+1)θ)) − exp(β cos((n−1−j)θ)), so the sign is that of
    sin(nθ/2) · sin((2(j+1) − n)θ/2), whatever β is.

    >>> positional_slope(4, 0.5)
    tensor([-1.,  0.,  1.], dtype=torch.float64)
    """
    length = whole(length, "length", 2)
    step = torch.arange(1, length, dtype=torch.float64)
    product = math.sin(length * angle(theta) / 2) * ((2 * step - length) * theta / 2).sin()
    return torch.where(product.abs() < LEVEL, 0.0, product.sign())


def shape(weight: Tensor) -> str:
    """Name the shape of a curve: "U", "inverse U", "flat" or "mixed".

    U means falling (never rising) up to the middle and rising (never falling) after it; steps of at most
    `LEVEL` count as level.

    >>> shape(torch.tensor([3.0, 1.0, 1.0, 2.0])), shape(torch.tensor([1.0, 2.0, 1.0, 2.0]))
    ('U', 'mixed')
    """
    weight = as_float(weight, "weight")
    if weight.ndim != 1 or len(weight) < 3:
        raise InputError(f"weight {tuple(weight.shape)}: give one curve (n,) of at least three positions")
    step = weight.diff()
    sign = torch.where(step.abs() <= LEVEL, 0, step.sign())
    half = len(step) // 2
    first, second = sign[:half], sign[len(step) - half :]
    if not sign.any():
        return "flat"
    if (first <= 0).all() and (second >= 0).all():
        return "U"
    if (first >= 0).all() and (second <= 0).all():
        return "inverse U"
    return "mixed"


def positive(beta: float) -> float:
    """Return an inverse temperature, or raise an InputError."""
    found = to_float(beta)
    if found is None or not 0 < found < math.inf:
        raise InputError(f"beta = {beta!r:.40}: give a positive finite number")
    return found
