"""Rotary position embedding: frequencies, rotation and the two ways of pairing dimensions.

A RoPE plane is a pair of dimensions that turns by one angle per position. Frequency ID 1 is the fastest plane. The
convention throughout possym: a vector at position p is turned by +p·g (counter-clockwise in its plane), so the logit
between a query at i and a key at j depends on the turn (i − j)·g.
"""

import math

import torch
from torch import Tensor

from possym.errors import InputError, require_type, to_float, to_int

LAYOUTS = ("interleaved", "half")
WIDEST = 2**20  # dimensions of a head; beyond any model's, and still cheap to list


def frequencies(dim: int, base: float = 10000.0) -> Tensor:
    """Return the angles of all RoPE planes of a head, in radians per position, fastest first.

    ``frequencies(dim)[k - 1]`` is g_k = base^(−2(k−1)/dim), the angle of frequency ID k.

    Args:
        dim: number of dimensions that rotate; even, from 2 to 2**20.
        base: the RoPE base, positive.

    Returns:
        float64 tensor of shape (dim/2,).

    Raises:
        InputError: ``dim`` is odd or out of range, or ``base`` is not a positive finite number.

    Source: RoFormer, eq. 15; 2511.11579, section 2.

    >>> frequencies(4)
    tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    width, ground = to_int(dim), to_float(base)
    if width is None or not 0 < width <= WIDEST or width % 2:
        raise InputError(f"dim = {dim!r:.40}: RoPE pairs dimensions, so give an even whole number from 2 to {WIDEST}")
    if ground is None or not 0 < ground < math.inf:
        raise InputError(f"base = {base!r:.40}: give a positive finite number (10000 is usual)")
    return ground ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def rotate(x: Tensor, positions: Tensor | float, frequencies: Tensor, layout: str) -> Tensor:
    """Turn every plane of ``x`` by position · frequency.

    Angles are computed in float64 and reduced to one turn before the cosine, so that far positions keep
    their precision; the product is float64 for float64 input and float32 otherwise.

    Args:
        x: (..., D) vectors before rotation.
        positions: a number, or a tensor that broadcasts against the leading shape of ``x``.
        frequencies: (F,) angles in radians per position, 2F ≤ D. The first 2F dimensions rotate, the rest
            stay as they are.
        layout: ``"interleaved"`` pairs dimensions 2k and 2k+1 (GPT-J), ``"half"`` pairs k and k+F (Llama).

    Returns:
        (..., D) rotated vectors.

    Raises:
        InputError: unknown layout, or shapes that do not fit.

    >>> rotate(torch.tensor([1.0, 0.0]), 1, torch.tensor([math.pi / 2]), "half")
    tensor([-4.3711e-08,  1.0000e+00])
    """
    x = as_float(x, "x")
    check_planes(x.shape[-1], frequencies, layout)
    positions = as_positions(positions, "positions", x.device)
    try:
        torch.broadcast_shapes(positions.shape, x.shape[:-1])
    except RuntimeError:
        raise InputError(
            f"positions {tuple(positions.shape)} do not broadcast against the leading shape of x {tuple(x.shape)}"
        ) from None
    angles = (positions[..., None] * frequencies.to(x.device)).remainder(2 * math.pi)
    return rotate_by(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype), layout)


def rotate_by(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Turn every plane of ``x`` (..., D) by the angle whose cosine and sine (..., F) are given.

    If a model has scaled its cosines and sines, the planes are scaled too; −``sin`` applies the transpose.

    >>> rotate_by(torch.tensor([1.0, 0.0]), torch.tensor([0.0]), torch.tensor([1.0]), "half")
    tensor([0., 1.])
    """
    count = cos.shape[-1]
    if x.dtype == cos.dtype and x.dtype in (torch.float32, torch.float64) and not torch.compiler.is_compiling():
        # One product of complex numbers moves a fraction of the memory that its real parts do one by one.
        rotated = torch.view_as_real(as_complex(x, count, layout) * torch.complex(cos, sin))
    else:  # half precision has no complex numbers, and compilers fuse the real parts themselves
        first, second = pairs(x, count, layout).unbind(-1)
        rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], -1)
    parts = [rotated.flatten(-2)] if layout == "interleaved" else [rotated[..., 0], rotated[..., 1]]
    if 2 * count < x.shape[-1]:
        parts.append(x[..., 2 * count :].expand(*rotated.shape[:-2], -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def planes(x: Tensor, frequencies: Tensor, layout: str) -> Tensor:
    """Return the rotating dimensions of ``x`` (..., D) as planes (..., F, 2), in the order of the frequencies.

    Raises:
        InputError: unknown layout, or more planes than dimensions.

    >>> planes(torch.arange(4.0), torch.tensor([1.0, 0.1]), "half")
    tensor([[0., 2.],
            [1., 3.]])
    """
    x = as_float(x, "x")
    check_planes(x.shape[-1], frequencies, layout)
    return pairs(x, len(frequencies), layout)


def pairs(x: Tensor, count: int, layout: str) -> Tensor:
    """Return the first ``count`` pairs of dimensions of ``x`` (..., D) as (..., count, 2)."""
    rotating = x[..., : 2 * count]
    if layout == "interleaved":
        return rotating.unflatten(-1, (-1, 2))
    return rotating.unflatten(-1, (2, -1)).transpose(-1, -2)


def as_complex(x: Tensor, count: int, layout: str) -> Tensor:
    """Return the first ``count`` pairs of dimensions of ``x`` (..., D) as complex numbers, a view where possible.

    >>> as_complex(torch.arange(4.0), 2, "half")
    tensor([0.+2.j, 1.+3.j])
    """
    pair = pairs(x, count, layout)
    *strides, together = pair.stride()
    if together == 1 and not pair.storage_offset() % 2 and not any(stride % 2 for stride in strides):
        return torch.view_as_complex(pair)
    return torch.complex(*pair.unbind(-1))


def as_float(x: Tensor, name: str) -> Tensor:
    """Return ``x`` in float64 if it is float64, else in float32; refuse what is not a real tensor."""
    require_type(x, Tensor, name)
    if x.is_complex() or x.dtype == torch.bool or x.layout != torch.strided or x.is_meta:
        raise InputError(f"{name} is {x.dtype}, {x.layout} and on {x.device}: give real numbers, dense and with values")
    if x.ndim == 0:
        raise InputError(f"{name} is a single number: give a tensor with at least one dimension")
    return x if x.dtype == torch.float64 else x.float()


def as_positions(positions: Tensor | float, name: str, device: torch.device) -> Tensor:
    """Return positions as finite float64 on ``device``, or raise an InputError."""
    try:
        given = torch.as_tensor(positions)
        if given.is_complex() or given.dtype == torch.bool:
            raise TypeError
        positions = given.to(device, torch.float64).to_dense()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} = {positions!r}: give a number or a tensor of numbers") from None
    if not positions.isfinite().all():
        raise InputError(f"{name} holds values that are not finite")
    return positions


def check_planes(dim: int, frequencies: Tensor, layout: str) -> None:
    """Raise an InputError unless ``frequencies`` (F,) fit into ``dim`` dimensions and the layout is known."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise InputError(f"layout = {layout!r}: known layouts are {', '.join(LAYOUTS)}")
    if not isinstance(frequencies, Tensor) or frequencies.ndim != 1:
        shape = tuple(frequencies.shape) if isinstance(frequencies, Tensor) else type(frequencies).__name__
        raise InputError(f"frequencies: got {shape}, expected a tensor of shape (F,), one angle a plane")
    if not as_float(frequencies, "frequencies").isfinite().all():
        raise InputError("frequencies: angles are finite real numbers, in radians per position")
    if 2 * len(frequencies) > dim:
        raise InputError(
            f"{len(frequencies)} frequencies turn {2 * len(frequencies)} dimensions, but the vectors have {dim}: "
            "give at most half as many frequencies as dimensions"
        )
