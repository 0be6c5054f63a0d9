"""Products of float32 with weights on tensor cores, as near to float64 as those of float32 units: a Triton kernel.

- `split` describes a weight as a sum of two numbers of float16, which tensor cores multiply without loss.
- `multiply` does the same with the rows that it reads, scaled row by row, and adds three products. GELU may follow.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from possym.ensembles.gelu import gelu_and_slope
from possym.kernels import device_context, halves, jit, scale_of, tl, triton

if triton is not None:
    from triton.tools.tensor_descriptor import TensorDescriptor

# Tiles: rows, columns, terms that tensor cores add, warps and stages, where all terms are added at once and elsewhere.
ONCE, PIECEWISE = (64, 64, 128, 4, 2), (128, 128, 64, 8, 3)


class Split(NamedTuple):
    """A weight (E, K, N) as `multiply` reads it: two numbers of float16 each, and each member's largest (E,)."""

    high: Tensor
    low: Tensor
    most: Tensor
    columns: int


def split(weight: Tensor) -> Split:
    """Split a weight (E, K, N) of float32 into two numbers of float16, scaled by a power of two."""
    weight = weight.contiguous()
    most = torch.linalg.vector_norm(weight, torch.inf, (1, 2))
    return Split(*halves(weight, most), most, weight.shape[2])


@jit
def row_halves(place, inside):
    """Load rows and split them into two numbers of float16, scaled; return these and each row's unit."""
    x = tl.load(place, mask=inside, other=0.0)
    scale, unit = scale_of(tl.max(tl.abs(x), 1))
    x *= scale[:, None]
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16), unit[:, None]


@jit
def add_products(high, low, unit, right_high, right_low, member, start, column, total, DEPTH: tl.constexpr):
    """Add to a tile the products of some terms, the smallest first."""
    width: tl.constexpr = total.shape[1]
    b_high = tl.reshape(right_high.load([member, start, column]), (DEPTH, width))
    b_low = tl.reshape(right_low.load([member, start, column]), (DEPTH, width))
    found = tl.dot(low, b_high)
    found = tl.dot(high, b_low, found)
    found = tl.dot(high, b_high, found)
    return total + found * unit


@jit
def multiply_kernel(
    x, right_high, right_low, most, bias, product, active, each, depth, whole, first, step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ONCE: tl.constexpr, ACTIVE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Write some rows of one member's product, and GELU of its columns from ``first`` on, with their bias.

    ``ONCE`` says that a row's terms are added at once, so that rows are read once for all columns.
    """
    tall = tl.cdiv(each, ROWS)
    member = tl.program_id(0) // tall
    rows = (tl.program_id(0) % tall) * ROWS + tl.arange(0, ROWS)
    terms = tl.arange(0, DEPTH)
    begin = member.to(tl.int64) * each
    x += begin * depth
    place = rows[:, None] * depth + terms[None, :]
    there = rows[:, None] < each
    _, unit_of_weight = scale_of(tl.load(most + member))
    if ONCE:
        high, low, unit = row_halves(x + place, there & (terms[None, :] < depth))
    for column in tl.range(0, whole, COLUMNS, num_stages=STAGES):
        found = tl.zeros((ROWS, COLUMNS), tl.float32)
        if ONCE:
            found = add_products(high, low, unit, right_high, right_low, member, 0, column, found, DEPTH)
        else:
            for start in tl.range(0, depth, DEPTH, num_stages=STAGES):
                high, low, unit = row_halves(x + start + place, there & (start + terms[None, :] < depth))
                found = add_products(high, low, unit, right_high, right_low, member, start, column, found, DEPTH)
        found *= unit_of_weight
        columns = column + tl.arange(0, COLUMNS)
        if column < first:
            inside = there & (columns[None, :] < first)
            tl.store(product + (begin + rows[:, None]) * first + columns[None, :], found, mask=inside)
        if ACTIVE:
            if column + COLUMNS > first:
                inside = there & (columns[None, :] >= first) & (columns[None, :] < whole)
                found += tl.load(bias + member * step + columns, mask=columns < whole, other=0.0)[None, :]
                found, _slope = gelu_and_slope(found)
                target = (begin + rows[:, None]) * (whole - first) + (columns - first)[None, :]
                tl.store(active + target, found, mask=inside)


def multiply(x: Tensor, weight: Split, bias: Tensor | None = None, first: int | None = None) -> tuple[Tensor, Tensor]:
    """Return rows (E, B, T, K) of float32 times a weight, and GELU of the columns from ``first`` on.

    Args:
        x: rows, in one piece.
        weight: see `split`.
        bias: (E, N) to add before GELU, each member's in a row.
        first: None takes no GELU.

    Returns:
        (E, B, T, first) and (E, B, T, N − first).
    """
    (E, B, T, K), N = x.shape, weight.columns
    until = N if first is None else first
    product, active = x.new_empty(E, B, T, until), x.new_empty(E, B, T, N - until)
    once = K <= ONCE[2]
    rows, columns, depth, warps, stages = ONCE if once else PIECEWISE
    right = [TensorDescriptor.from_tensor(part, [1, depth, columns]) for part in (weight.high, weight.low)]
    with device_context(x):
        multiply_kernel[(E * triton.cdiv(B * T, rows),)](
            x, *right, weight.most, x if bias is None else bias, product, active, B * T, K, N, until,
            0 if bias is None else bias.stride(0), ROWS=rows, COLUMNS=columns, DEPTH=depth, ONCE=once,
            ACTIVE=first is not None, STAGES=stages, num_warps=warps,
        )  # fmt: skip
    return product, active
