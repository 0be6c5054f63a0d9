"""A block's products of float32 with weights on tensor cores, as near to float64 as those of float32 units.

- `split` describes a weight as a sum of two numbers of float16, which tensor cores multiply without loss. Kernels do so
  with rows, scaled by a power of two, each by its own or all by one that a bound tells, and add three products.
- `enter` norms rows of the residual stream and multiplies them: keys, values and queries.
- `leave` adds to the stream what attention and MLP bring: the MLP's inner values are never stored.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from possym.ensembles.gelu import gelu_of
from possym.kernels import device_context, halves, jit, scale_of, tl, triton

if triton is not None:
    from triton.tools.tensor_descriptor import TensorDescriptor

WIDTH = 128  # of the rows that kernels hold, narrower ones too: of fewer columns Triton 3.6 made wrong code
# Tiles: rows, columns of the first product worked on at a time, warps and stages.
ENTER, LEAVE = (128, 64, 8, 3), (64, 32, 4, 2)


class Split(NamedTuple):
    """A weight (E, K, N) as the kernels read it: two numbers of float16 each, and each member's largest (E,)."""

    high: Tensor
    low: Tensor
    most: Tensor


def split(weight: Tensor) -> list[Split]:
    """Split a weight (E, L, K, N) of float32 into two numbers of float16, scaled by a power of two, for each layer."""
    most = torch.linalg.vector_norm(weight, torch.inf, (2, 3))
    parts = (part.unflatten(0, most.shape).unbind(1) for part in halves(weight.flatten(0, 1), most.flatten()))
    return [Split(*layer) for layer in zip(*parts, most.T.contiguous(), strict=True)]


@jit
def halves_of(x, scale):
    """Split numbers, scaled, into two of float16 each."""
    x *= scale
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@jit
def times(high, low, right_high, right_low, member, start, column, DEPTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Multiply rows and a part of a weight, in units of both: three products, the smallest first."""
    b_high = tl.reshape(right_high.load([member, start, column]), (DEPTH, COLUMNS))
    b_low = tl.reshape(right_low.load([member, start, column]), (DEPTH, COLUMNS))
    found = tl.dot(low, b_high)
    found = tl.dot(high, b_low, found)
    return tl.dot(high, b_high, found)


@jit
def rows_of_member(each, across, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return whose rows a program works on, these and columns, places in all members' rows, and which are inside."""
    tall = tl.cdiv(each, ROWS)
    member = tl.program_id(0) // tall
    rows = (tl.program_id(0) % tall) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    place = (member.to(tl.int64) * each + rows[:, None]) * across + columns[None, :]
    return member, rows, columns, place, (rows[:, None] < each) & (columns[None, :] < across)


@jit
def normed_halves(x, there, across):
    """Return `halves_of` rows' LayerNorm without gain and bias, which is at most √C, and their unit."""
    scale, unit = scale_of(tl.sqrt(across.to(tl.float32)))
    x = tl.where(there, x - tl.sum(x, 1)[:, None] / across, 0.0)
    high, low = halves_of(x * tl.rsqrt(tl.sum(x * x, 1) / across + 1e-5)[:, None], scale)
    return high, low, unit


@jit
def enter_kernel(
    x, right_high, right_low, most, bias, product, each, across, whole, step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Norm some rows of one member, and write their product with its weight's first ``whole`` columns, and the bias."""
    member, rows, k, place, inside = rows_of_member(each, across, ROWS, WIDTH)
    high, low, unit = normed_halves(tl.load(x + place, mask=inside, other=0.0), k[None, :] < across, across)
    _, unit_of_weight = scale_of(tl.load(most + member))
    unit *= unit_of_weight
    product += member.to(tl.int64) * each * whole
    for column in tl.range(0, whole, COLUMNS, num_stages=STAGES):
        columns = column + tl.arange(0, COLUMNS)
        found = times(high, low, right_high, right_low, member, 0, column, WIDTH, COLUMNS) * unit
        found += tl.load(bias + member * step + columns, mask=columns < whole, other=0.0)[None, :]
        target = product + rows.to(tl.int64)[:, None] * whole + columns[None, :]
        tl.store(target, found, mask=(rows[:, None] < each) & (columns[None, :] < whole))


@jit
def leave_kernel(
    x, mixed, reach, output_high, output_low, output_most, first_high, first_low, first_most, first_bias,
    second_high, second_low, second_most, second_bias, each, across, first, inner, first_step, second_step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Add to some rows of one member what attention and MLP bring, whose inner values are held some columns at a time.

    The MLP's first weight is in the columns from ``first`` on.
    """
    member, _rows, k, place, inside = rows_of_member(each, across, ROWS, WIDTH)
    mixture = tl.load(mixed + place, mask=inside, other=0.0)
    scale, unit = scale_of(tl.max(tl.abs(mixture), 1))
    high, low = halves_of(mixture, scale[:, None])
    _, unit_of_weight = scale_of(tl.load(output_most + member))
    total = times(high, low, output_high, output_low, member, 0, 0, WIDTH, WIDTH) * (unit[:, None] * unit_of_weight)
    total += tl.load(second_bias + member * second_step + k, mask=k < across, other=0.0)[None, :]
    stream = tl.load(x + place, mask=inside, other=0.0)
    total += stream
    high, low, unit = normed_halves(stream, k[None, :] < across, across)
    _, unit_of_weight = scale_of(tl.load(first_most + member))
    unit *= unit_of_weight
    scale, unit_of_active = scale_of(tl.load(reach + member))
    _, unit_of_weight = scale_of(tl.load(second_most + member))
    unit_of_active *= unit_of_weight
    first_bias += member * first_step + first
    hidden = times(high, low, first_high, first_low, member, 0, first, WIDTH, COLUMNS)
    for column in tl.range(0, inner, COLUMNS, num_stages=STAGES):
        # The next columns' product begins here, for tensor cores to work on it beside GELU of these.
        following = times(high, low, first_high, first_low, member, 0, first + column + COLUMNS, WIDTH, COLUMNS)
        columns = column + tl.arange(0, COLUMNS)
        added = tl.load(first_bias + columns, mask=columns < inner, other=0.0)[None, :]
        active_high, active_low = halves_of(gelu_of(hidden * unit + added), scale)
        found = times(active_high, active_low, second_high, second_low, member, column, 0, COLUMNS, WIDTH)
        total += found * unit_of_active
        hidden = following
    tl.store(x + place, total, mask=inside)


def parts(weight: Split, depth: int, columns: int) -> tuple:
    """Return a weight as the kernels take it, that many terms and columns of it at a time."""
    return *(TensorDescriptor.from_tensor(part, [1, depth, columns]) for part in weight[:2]), weight.most


def reaches(weights: list[Split], bias: Tensor) -> Tensor:
    """Return (L, E) what no GELU of a block's first product can exceed in size; ``bias`` (E, L, I) is the MLP's.

    GELU is at most what it is taken of where that is above 0, and below 0 it is above −0.17.
    """
    most = torch.stack([weight.most for weight in weights])
    below = torch.linalg.vector_norm(bias, torch.inf, 2).clamp(max=0.17)
    return weights[0].high.shape[1] * most + torch.maximum(bias.amax(2), below).T


def enter(x: Tensor, weight: Split, bias: Tensor, product: Tensor) -> None:
    """Write LayerNorm of rows times the first columns of a weight, with the bias.

    Args:
        x: (E, B, T, C), in one piece.
        weight: of (E, C, N).
        bias: (E, N), each member's in a row.
        product: (E, B, T, M) with M ≤ N, in one piece.
    """
    (E, B, T, C), (rows, columns, warps, stages) = x.shape, ENTER
    with device_context(x):
        enter_kernel[(E * triton.cdiv(B * T, rows),)](
            x, *parts(weight, WIDTH, columns), bias, product, B * T, C, product.shape[3],
            bias.stride(0), ROWS=rows, COLUMNS=columns, WIDTH=WIDTH, STAGES=stages, num_warps=warps,
        )  # fmt: skip


def leave(
    x: Tensor,
    mixed: Tensor,
    reach: Tensor,
    output: Split,
    first: Split,
    first_bias: Tensor,
    second: Split,
    second_bias: Tensor,
) -> None:
    """Add to rows of the residual stream what a block's attention and MLP bring.

    Args:
        x: (E, B, T, C), in one piece.
        mixed: what attention mixes, like ``x``.
        reach: (E,) what the MLP's inner values do not exceed in size, see `reaches`.
        output: attention's weight (E, C, C).
        first, first_bias: (E, C, N) and (E, N), whose last I columns are the MLP's.
        second, second_bias: (E, I, C) and (E, C).
    """
    (E, B, T, C), (rows, columns, warps, stages) = x.shape, LEAVE
    inner = second.high.shape[1]
    with device_context(x):
        leave_kernel[(E * triton.cdiv(B * T, rows),)](
            x, mixed, reach, *parts(output, WIDTH, WIDTH), *parts(first, WIDTH, columns), first_bias,
            *parts(second, columns, WIDTH), second_bias, B * T, C, first_bias.shape[1] - inner, inner,
            first_bias.stride(0), second_bias.stride(0),
            ROWS=rows, COLUMNS=columns, WIDTH=WIDTH, STAGES=stages, num_warps=warps,
        )  # fmt: skip
