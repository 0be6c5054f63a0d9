"""GELU as Triton kernels: alone, and where a product is written whose gradient or argument it is.

- `launch_gelu` takes the columns of a product; evaluations do.
- `enter` computes a block's first product and GELU of its last columns in one pass, `gradient` the MLP's gradient up to
  there: the product that leads to GELU's gradient is never stored.
- The bias is added where a product's columns are read or written; its gradient is left as sums over some rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from possym.kernels import PTX, device_context, jit, tl, triton

LENGTH = 16  # rows that a program of GELU alone works on
ENTER, GRADIENT = (64, 128, 64, 4), (64, 64, 64, 4)  # tiles of products: rows, columns, terms at a time, and warps


@jit
def tail_and_density(x):
    """Return Φ(−|x|), of the normal distribution's Φ, and its density at x times √2π.

    Φ is off by at most 5e-7: Abramowitz and Stegun 7.1.26, whose exponential is the density's. A library's erf takes
    three times as many instructions, more time than the values take to come and go.
    """
    density = tl.exp2(-0.72134752 * x * x)
    t = tl.rsqrt(1.0 + 0.23164188 * tl.abs(x))
    t *= t  # a reciprocal in two instructions where a division takes eight
    tail = ((((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368) * t + 0.127414796) * t
    return tail * density, density


@jit
def gelu_of(x):
    """Return GELU, x · Φ(x), as max(x, 0) − |x| · Φ(−|x|)."""
    tail, _density = tail_and_density(x)
    return tl.maximum(x, 0.0) - tl.abs(x) * tail


@jit
def gelu_and_slope(x):
    """Return GELU and its derivative."""
    tail, density = tail_and_density(x)
    share = tl.where(x < 0, tail, 1.0 - tail)
    return x * share, share + x * density * 0.3989422804014327


@jit
def gelu_kernel(
    hidden, bias, active, inner, each, stride, step,
    LENGTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write GELU of some columns of some rows of one member."""
    parts, across = tl.cdiv(each, LENGTH), tl.cdiv(inner, COLUMNS)
    member, part = tl.program_id(0) // (parts * across), (tl.program_id(0) // across) % parts
    columns = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < inner
    added = tl.load(bias + member * step + columns, mask=there, other=0.0)[None, :].to(tl.float32)
    first = member.to(tl.int64) * each
    for row in tl.static_range(0, LENGTH, ROWS):
        rows = part * LENGTH + row + tl.arange(0, ROWS)
        inside = (rows[:, None] < each) & there[None, :]
        x = tl.load(hidden + (first + rows[:, None]) * stride + columns[None, :], mask=inside, other=0.0)
        x, _ = gelu_and_slope(x.to(tl.float32) + added)
        tl.store(active + (first + rows[:, None]) * inner + columns[None, :], x, mask=inside)


@jit
def tile(each, whole, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a program's member, which of its rows it works on, counted in tiles, and rows and columns."""
    tall, across = tl.cdiv(each, ROWS), tl.cdiv(whole, COLUMNS)
    part = (tl.program_id(0) // across) % tall
    columns = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    return tl.program_id(0) // (tall * across), part, part * ROWS + tl.arange(0, ROWS), columns


@jit
def multiply(
    left, right, rows, columns, each, whole, depth, down, along,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return a tile of the product of rows of ``depth`` values and a matrix whose values lie ``down`` and ``along``."""
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        k = start + tl.arange(0, DEPTH)
        a = tl.load(left + rows[:, None] * depth + k[None, :], mask=rows[:, None] < each, other=0.0)
        b = tl.load(right + k[:, None] * down + columns[None, :] * along, mask=columns[None, :] < whole, other=0.0)
        if not PTX:  # an interpreter multiplies no bfloat16
            a, b = a.to(tl.float32), b.to(tl.float32)
        found = tl.dot(a, b, found, input_precision=PRECISION)
    return found


@jit
def enter_kernel(
    normed, weight, bias, product, active, first, inner, each, depth, whole, apart, step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a tile of one member's product, and GELU of what is in columns from ``first`` on, with the bias."""
    member, _part, rows, columns = tile(each, whole, ROWS, COLUMNS)
    start = member.to(tl.int64) * each
    found = multiply(
        normed + start * depth, weight + member.to(tl.int64) * apart, rows, columns, each, whole, depth, whole, 1,
        ROWS, COLUMNS, DEPTH, PRECISION,
    ).to(product.dtype.element_ty)  # fmt: skip
    inside = (rows[:, None] < each) & (columns[None, :] < whole)
    tl.store(product + start * whole + rows[:, None] * whole + columns[None, :], found, mask=inside)
    if (tl.program_id(0) % tl.cdiv(whole, COLUMNS) + 1) * COLUMNS > first:
        x = found.to(tl.float32)  # as the gradient will read it
        x += tl.load(bias + member * step + columns, mask=columns < whole, other=0.0)[None, :].to(tl.float32)
        x, _slope = gelu_and_slope(x)
        place = rows[:, None] * inner + (columns - first)[None, :]
        tl.store(active + start * inner + place, x, mask=inside & (columns[None, :] >= first))


@jit
def gradient_kernel(
    asked, weight, hidden, bias, gradient, sums, inner, each, depth, whole, apart, step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write a tile of one member's gradient before GELU, and its sum over the rows."""
    member, part, rows, columns = tile(each, inner, ROWS, COLUMNS)
    start, there = member.to(tl.int64) * each, columns < inner
    inside = (rows[:, None] < each) & there[None, :]
    place = rows[:, None] * whole + columns[None, :]
    x = tl.load(hidden + start * whole + place, mask=inside, other=0.0)
    added = tl.load(bias + member * step + columns, mask=there, other=0.0)[None, :].to(tl.float32)
    slope = multiply(
        asked + start * depth, weight + member.to(tl.int64) * apart, rows, columns, each, inner, depth, 1, depth,
        ROWS, COLUMNS, DEPTH, PRECISION,
    )  # fmt: skip
    _value, own = gelu_and_slope(x.to(tl.float32) + added)
    slope *= own  # 0 in rows that are not inside
    tl.store(gradient + start * whole + place, slope, mask=inside)
    tall = tl.cdiv(each, ROWS)
    tl.store(sums + (member * tall + part).to(tl.int64) * inner + columns, tl.sum(slope, 0), mask=there)


def launch_gelu(product: Tensor, bias: Tensor, first: int, active: Tensor) -> None:
    """Write to ``active`` (E, B, T, I) GELU of the columns of a product from ``first`` on, see `enter`."""
    E, B, T, inner = active.shape
    columns = min(512, triton.next_power_of_2(inner))
    with device_context(product):
        gelu_kernel[(E * triton.cdiv(B * T, LENGTH) * triton.cdiv(inner, columns),)](
            product[..., first:], bias[:, first:], active, inner, B * T, product.stride(2), bias.stride(0),
            LENGTH=LENGTH, ROWS=4, COLUMNS=columns, num_warps=4,
        )  # fmt: skip


def tiled(sizes: tuple[int, int, int, int], rows: int, columns: int, depth: int, precision: str) -> tuple[int, dict]:
    """Return how many programs write a product of a member, and their options; ``depth`` is a multiple of 32."""
    tall, across, terms, warps = sizes
    options = {
        "ROWS": tall,
        "COLUMNS": across,
        "DEPTH": min(terms, depth & -depth),
        "PRECISION": precision,
        "num_warps": warps,
        "num_stages": 2,
    }
    return triton.cdiv(rows, tall) * triton.cdiv(columns, across), options


def enter(normed: Tensor, weight: Tensor, bias: Tensor, product: Tensor, active: Tensor, precision: str) -> None:
    """Write a block's first product (E, B, T, 3C + I), and GELU of its last I columns with the bias.

    Args:
        normed: (E, B, T, C), contiguous like all but weight and bias.
        weight, bias: (E, C, 3C + I) and (E, 3C + I), each member's contiguous; the product is stored without bias.
        product, active: (E, B, T, 3C + I) and (E, B, T, I), room for what is written.
        precision: see `possym.ensembles.fused.precision`.
    """
    (E, B, T, C), whole, inner = normed.shape, product.shape[3], active.shape[3]
    programs, options = tiled(ENTER, B * T, whole, C, precision)
    with device_context(normed):
        enter_kernel[(E * programs,)](
            normed, weight, bias, product, active, whole - inner, inner, B * T, C, whole, weight.stride(0),
            bias.stride(0), **options,
        )  # fmt: skip


def sums_of(active: Tensor) -> Tensor:
    """Return room for the sums that `gradient` writes (E, P, I), each over some rows."""
    E, B, T, inner = active.shape
    return active.new_empty(E, triton.cdiv(B * T, GRADIENT[0]), inner, dtype=torch.float32)


def gradient(
    asked: Tensor, weight: Tensor, product: Tensor, bias: Tensor, back: Tensor, sums: Tensor, precision: str
) -> None:
    """Write to the last columns of ``back`` that of the product of `enter`, and their sums.

    Args:
        asked: gradient of what the MLP brought, (E, B, T, C).
        weight: (E, I, C) of its second half, each member's contiguous.
        product, bias, precision: as `enter` had them.
        back: of the shape of ``product``; the first columns are left alone.
        sums: see `sums_of`.
    """
    (E, B, T, C), whole, inner = asked.shape, product.shape[3], sums.shape[2]
    first = whole - inner
    programs, options = tiled(GRADIENT, B * T, inner, C, precision)
    with device_context(asked):
        gradient_kernel[(E * programs,)](
            asked, weight, product[..., first:], bias[:, first:], back[..., first:], sums, inner, B * T, C, whole,
            weight.stride(0), bias.stride(0), **options,
        )  # fmt: skip
