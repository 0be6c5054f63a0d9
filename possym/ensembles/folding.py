"""Weights of all layers as the products read them: what stands beside them multiplied in, in another dtype.

- `folded` puts weights side by side, with the gain and bias of the norm before them; `scaled` takes one factor.
- By kernels each weight is read once and written once, and so are gradients, whose sums of squares are left with them
  (`possym.ensembles.squares`); where Triton does not run, torch takes several steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from possym.ensembles import squares
from possym.ensembles.branches import branch
from possym.kernels import device_context, jit, tl, triton, triton_available

COLUMNS, ROWS = 64, 32  # of a tile that is worked on at a time
BLOCK = 1024  # values that are scaled at a time


@jit
def fold_kernel(
    weight, gain, bias, product, moved, columns, whole,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write some columns of one layer's weight times its gains, and the sum of its rows times the bias."""
    layer = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here = n < columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # a sum within the loop would pass through shared memory each time
    for start in range(0, WIDTH, ROWS):
        rows = start + tl.arange(0, ROWS)
        there = rows < WIDTH
        inside = there[:, None] & here[None, :]
        row = layer * WIDTH + rows
        w = tl.load(weight + row[:, None] * columns + n[None, :], mask=inside, other=0.0)
        gains = tl.load(gain + row, mask=there, other=0.0)
        tl.store(product + row[:, None] * whole + n[None, :], w * gains[:, None], mask=inside)
        total += w * tl.load(bias + row, mask=there, other=0.0)[:, None]
    tl.store(moved + layer * whole + n, tl.sum(total, 0), mask=here)


@jit
def fold_gradient_kernel(
    weight, gain, bias, asked, asked_moved, gradient, gains, biases, squares, columns, whole,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of some columns of one layer's weight, its squares' sum, and its gains' and bias's share."""
    layer = tl.program_id(1).to(tl.int64)
    part = tl.program_id(0) * tl.num_programs(1).to(tl.int64) * WIDTH
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    here = n < columns
    above_moved = tl.load(asked_moved + layer * whole + n, mask=here, other=0.0)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, WIDTH, ROWS):
        rows = start + tl.arange(0, ROWS)
        there = rows < WIDTH
        inside = there[:, None] & here[None, :]
        row = layer * WIDTH + rows
        w = tl.load(weight + row[:, None] * columns + n[None, :], mask=inside, other=0.0)
        above = tl.load(asked + row[:, None] * whole + n[None, :], mask=inside, other=0.0).to(tl.float32)
        slope = above * tl.load(gain + row, mask=there, other=0.0)[:, None]
        slope += above_moved * tl.load(bias + row, mask=there, other=0.0)[:, None]
        tl.store(gradient + row[:, None] * columns + n[None, :], slope, mask=inside)
        total += slope * slope
        tl.store(gains + part + row, tl.sum(above * w, 1), mask=there)
        tl.store(biases + part + row, tl.sum(above_moved * w, 1), mask=there)
    tl.store(squares + layer * tl.num_programs(0) + tl.program_id(0), tl.sum(tl.sum(total, 0), 0))


@jit
def scale_kernel(x, y, squares, length, factor, SQUARING: tl.constexpr, BLOCK: tl.constexpr):
    """Write a block of one member's values times a factor in the dtype of ``y``, and the sum of their squares."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(1).to(tl.int64) * length + n
    value = tl.load(x + place, mask=n < length, other=0.0).to(tl.float32) * factor
    tl.store(y + place, value, mask=n < length)
    if SQUARING:
        tl.store(squares + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), tl.sum(value * value, 0))


class Scaled(torch.autograd.Function):
    """`scaled` by a kernel, with its gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
        """Multiply and cast."""
        ctx.factor, ctx.dtype = factor, x.dtype
        return times(x, factor, dtype, squaring=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, asked: Tensor) -> tuple[Tensor, None, None]:
        """Multiply and cast back."""
        return times(asked, ctx.factor, ctx.dtype, squaring=True), None, None


def times(x: Tensor, factor: float, dtype: torch.dtype, squaring: bool) -> Tensor:
    """Return the product of x (E, …) and a factor in float32, as ``dtype``, and leave the squares' sums if asked to."""
    x = x.contiguous()
    y, length = torch.empty_like(x, dtype=dtype), x[0].numel()
    sums = x.new_empty(len(x), triton.cdiv(length, BLOCK), dtype=torch.float32)
    with device_context(x):
        scale_kernel[(sums.shape[1], len(x))](x, y, sums, length, factor, SQUARING=squaring, BLOCK=BLOCK)
    return squares.leave(y, sums) if squaring else y


class Folded(torch.autograd.Function):
    """`folded` by kernels, with its gradient."""

    @staticmethod
    def forward(ctx, gain: Tensor, bias: Tensor, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, Tensor]:
        """Write product and moved bias weight by weight, into their columns."""
        gain, bias, weights = gain.contiguous(), bias.contiguous(), [weight.contiguous() for weight in weights]
        ctx.save_for_backward(gain, bias, *weights)
        E, L, C, _ = weights[0].shape
        whole = sum(weight.shape[3] for weight in weights)
        product, moved = gain.new_empty(E, L, C, whole, dtype=dtype), gain.new_empty(E, L, whole)
        firsts = [0, *itertools.accumulate(weight.shape[3] for weight in weights)]

        def one(index: int) -> None:
            weight, first, columns = weights[index], firsts[index], weights[index].shape[3]
            fold_kernel[(triton.cdiv(columns, COLUMNS), E * L)](
                weight, gain, bias, product[..., first:], moved[..., first:], columns, whole,
                WIDTH=C, ROWS=ROWS, COLUMNS=COLUMNS,
            )  # fmt: skip

        last_beside(one, weights)
        return product, moved

    @staticmethod
    @once_differentiable
    def backward(ctx, asked: Tensor, asked_moved: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of gain, bias and weights."""
        gain, bias, *weights = ctx.saved_tensors
        asked, asked_moved = asked.contiguous(), asked_moved.contiguous()
        (E, L, C), whole = gain.shape, asked.shape[3]
        tiles = [triton.cdiv(weight.shape[3], COLUMNS) for weight in weights]
        gains, biases = shares = gain.new_empty(2, sum(tiles), E, L, C)
        slopes = [torch.empty_like(weight) for weight in weights]
        sums = [gain.new_empty(E, L * tile) for tile in tiles]
        firsts = [0, *itertools.accumulate(weight.shape[3] for weight in weights)]
        before = [0, *itertools.accumulate(tiles)]

        def one(index: int) -> None:
            weight, first, tile = weights[index], firsts[index], before[index]
            fold_gradient_kernel[(tiles[index], E * L)](
                weight, gain, bias, asked[..., first:], asked_moved[..., first:], slopes[index], gains[tile:],
                biases[tile:], sums[index], weight.shape[3], whole, WIDTH=C, ROWS=ROWS, COLUMNS=COLUMNS,
            )  # fmt: skip

        last_beside(one, weights)
        return *shares.sum(1), None, *map(squares.leave, slopes, sums)


def last_beside(function: Callable[[int], None], weights: Sequence[Tensor]) -> None:
    """Call a function that launches a kernel for each weight by its index, for the last one beside the others."""
    beside, last = branch(weights[0].device, 0), len(weights) - 1
    with device_context(weights[0]):
        with beside.forked():
            function(last)
            mark = beside.asked()
        for index in range(last):
            function(index)
        beside.join(mark)


def folded(gain: Tensor, bias: Tensor, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights side by side with a norm's gain multiplied in, (E, L, C, N) in ``dtype``, and bias @ weights.

    The latter is (E, L, N), in float32.

    Args:
        gain, bias: (E, L, C), of the norm.
        dtype: of the products.
        weights: (E, L, C, …), whose last axes add up to N.
    """
    if supported(gain):
        return Folded.apply(gain, bias, dtype, *weights)
    joint = torch.cat(weights, -1)
    moved = bias.unsqueeze(-2) @ joint
    return (joint * gain.unsqueeze(-1)).to(dtype), moved.squeeze(-2)


def scaled(weight: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    """Return ``weight`` · ``factor`` in ``dtype``."""
    return Scaled.apply(weight, factor, dtype) if supported(weight) else (weight * factor).to(dtype)


def supported(x: Tensor) -> bool:
    """Return whether the kernels can fold weights like ``x``."""
    return x.dtype == torch.float32 and triton_available(x.device)
