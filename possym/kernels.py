"""Sums over all swaps of two tokens in one pass on a GPU: what `possym.scores` does in bands, as Triton kernels.

- `supported` says whether a tensor can go this way: float32, no gradient asked for, on a device where kernels run.
- `triton_available` says whether they do. PyTorch's CUDA builds bring Triton along; it needs a C compiler once. Where
  it fails, a warning says so and the slower way is taken. With TRITON_INTERPRET=1 Triton interprets kernels on a CPU
  (numpy below 2.4 alone), so that every test of what has a kernel can run it there.
- `head_sums` reads relocated logits once, both triangles together, or a band of rows and its mirror image.
- `product_sums` sums where relocated logits are products of contents and positions, and makes no matrix of them.
- `plane_sums` never sees a matrix: a single plane's relocated logits are products of two short vectors.

`jit`, `device_context`, `triton_available` and `in_rows` serve every other file of kernels too:
`possym.ensembles.adamw`, `possym.ensembles.folding` and `possym.ensembles.fused`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

try:
    import triton
    from triton import language as tl
    from triton.language.extra import libdevice
    from triton.tools.tensor_descriptor import TensorDescriptor

    PTX = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1" and torch.version.cuda is not None)
    LOG2_E = tl.constexpr(1.4426950408889634)
except ImportError:  # PyTorch for CPUs comes without it
    triton = tl = None

SIZE, COLUMNS = 16, 32  # of a tile of swaps of a head
SHARES = 4, 2  # programs that work on one strip of tiles, of few keys and of many
MANY = 4096  # keys
PLANE_SIZE = 32  # of a square tile of swaps of a plane
PRODUCT_SIZE, PRODUCT_PIECE = 64, 16  # of a square tile of products, and how many of its columns are summed at once
HALVES = 4096  # numbers that a program splits


def jit(function):
    """Compile a kernel where there is Triton; it is not specialised on sizes, so that one compilation serves all."""
    return (
        function
        if triton is None
        else triton.jit(do_not_specialize=["count", "width", "padded", "parts", "rows", "tiles", "every"])(function)
    )


@jit
def exp2(x):
    """Return 2ˣ, 0 where that is not a normal number, for which a GPU takes one instruction and not four."""
    if PTX:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(x)


@jit
def log2(x):
    """Return log₂ of a normal number, as `exp2` does."""
    if PTX:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.log2(x)


@jit
def rsqrt(x):
    """Return 1/√x of a normal number, as `exp2` does."""
    if PTX:
        return tl.inline_asm_elementwise(
            "rsqrt.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.rsqrt(x)


@jit
def tanh(x):
    """Return tanh x."""
    if PTX:
        return libdevice.tanh(x)
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@jit
def swap_terms(before, moved, weight):
    """Return weight · cos(v′, v) and weight · cos(v′, reverse(v)) from log₂ of the ratios of v and of v′.

    Ratios past e^20 are cut there, as in `possym.scores.band_of_swaps`; those below e^−20 change nothing either way.
    """
    r = exp2(tl.minimum(before, 28.853901))
    s = exp2(tl.minimum(moved, 28.853901))
    share = weight * rsqrt((r * r + 1.0) * (s * s + 1.0))
    return share * (r * s + 1.0), share * (r + s)


@jit
def swap_weight(
    first_here, first_after, second_here, second_after, power, RELATIVE: tl.constexpr, PLAIN: tl.constexpr
):  # fmt: skip
    """Return the weights of swaps, made as `possym.scores.SwapWeights` says, and log₂ of relative differences.

    ``PLAIN`` says that the power is 1: a weight is the difference itself.
    """
    if RELATIVE:
        gap = tl.maximum(tl.abs(first_here - first_after), second_here)
        log = log2(gap)
        weight = gap if PLAIN else exp2(log * power)
    else:
        weight = tl.maximum(first_here * second_after, second_here * first_after)
        log = tl.zeros_like(weight)
    return weight, log


@jit
def deviations(there, back, logits_here, logits_after):
    """Return the two squared deviations of `possym.scores.exclusion`, of both entries of each swap."""
    far_here, near_here = there - logits_after, there - logits_here
    far_after, near_after = back - logits_here, back - logits_after
    return far_here * far_here + far_after * far_after, near_here * near_here + near_after * near_after


@jit
def store_sums(target, straights, crosseds, weights, logs, by_position, by_content):
    """Write what a program summed over the tiles that it went through."""
    tl.store(target, tl.sum(tl.sum(straights, 1), 0))
    tl.store(target + 1, tl.sum(tl.sum(crosseds, 1), 0))
    tl.store(target + 2, tl.sum(tl.sum(weights, 1), 0))
    tl.store(target + 3, tl.sum(tl.sum(logs, 1), 0) * 0.69314718)
    tl.store(target + 4, tl.sum(tl.sum(by_position, 1), 0))
    tl.store(target + 5, tl.sum(tl.sum(by_content, 1), 0))


@jit
def head_kernel(
    upper, lower, logits, first, second, sums, count, rows, upper_stride, lower_stride, tiles, every, power,
    RELATIVE: tl.constexpr, PLAIN: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sum swaps i < j of one head, i among the first ``rows`` of ``count`` keys, over some tiles of one strip of rows.

    ``upper`` (rows, count) has contents i at positions j, ``lower`` (count, rows) contents j at positions i; their rows
    are a stride apart. Of a strip's tiles the program takes those whose columns are ``every`` apart.
    """
    head = (tl.program_id(0) // tiles).to(tl.int64)
    part = tl.program_id(0) % tiles
    strips = (rows + SIZE - 1) // SIZE
    row = (part % strips) * SIZE
    step = tl.arange(0, SIZE)
    across = tl.arange(0, COLUMNS)
    i = row + step
    here = i < rows
    # A matrix may have more entries than 32 bits count: they count from a tile's corner.
    upper_long = tl.cast(upper_stride, tl.int64)
    lower_long = tl.cast(lower_stride, tl.int64)
    upper += head * rows * upper_long + row * upper_long
    lower += head * count * lower_long + row
    logits += head * count
    first += head * count
    second += head * count
    logits_here = tl.load(logits + i, mask=here, other=0.0)[:, None]
    first_here = tl.load(first + i, mask=here, other=0.0)[:, None]
    second_here = tl.load(second + i, mask=here, other=1.0)[:, None]
    straights = tl.zeros((SIZE, COLUMNS), tl.float32)
    crosseds = tl.zeros((SIZE, COLUMNS), tl.float32)
    weights = tl.zeros((SIZE, COLUMNS), tl.float32)
    logs = tl.zeros((SIZE, COLUMNS), tl.float32)
    by_position = tl.zeros((SIZE, COLUMNS), tl.float32)
    by_content = tl.zeros((SIZE, COLUMNS), tl.float32)
    begin = (row // COLUMNS + part // strips) * COLUMNS
    for column in tl.range(begin, count, every, num_stages=3):
        j = column + across
        after = j < count
        # Columns up to the stride may be read, of which whole vectors of memory are known to lie within.
        above = upper + column + step[:, None] * upper_stride + across[None, :]
        below = lower + column * lower_long + across[:, None] * lower_stride + step[None, :]
        there = tl.load(above, mask=here[:, None] & (j < upper_stride)[None, :], other=0.0)
        back = tl.trans(tl.load(below, mask=after[:, None] & (i < lower_stride)[None, :], other=0.0))
        logits_after = tl.load(logits + j, mask=after, other=0.0)[None, :]
        first_after = tl.load(first + j, mask=after, other=0.0)[None, :]
        second_after = tl.load(second + j, mask=after, other=0.0)[None, :]
        swap = here[:, None] & after[None, :] & (i[:, None] < j[None, :])
        weight, log = swap_weight(first_here, first_after, second_here, second_after, power, RELATIVE, PLAIN)
        weight = tl.where(swap, weight, 0.0)
        straight, crossed = swap_terms((logits_after - logits_here) * LOG2_E, (there - back) * LOG2_E, weight)
        straights += straight
        crosseds += crossed
        weights += weight
        logs += weight * log
        far, near = deviations(there, back, logits_here, logits_after)
        by_position += tl.where(swap, far, 0.0)
        by_content += tl.where(swap, near, 0.0)
    store_sums(sums + (head * tiles + part) * 6, straights, crosseds, weights, logs, by_position, by_content)


@jit
def plane_kernel(keys, rotated, first, second, sums, count, tiles, power, RELATIVE: tl.constexpr, SIZE: tl.constexpr):
    """Sum all swaps i < j of one plane whose i lies in one strip of rows."""
    planes = tl.num_programs(0) // tiles
    strip = tl.program_id(0) // planes  # the longest strips come first
    plane = (tl.program_id(0) % planes).to(tl.int64)
    keys += plane * 2 * count
    rotated += plane * 2 * count
    first += plane * count
    second += plane * count
    i = strip * SIZE + tl.arange(0, SIZE)
    here = i < count
    key_x = tl.load(keys + i, mask=here, other=0.0)[:, None]
    key_y = tl.load(keys + count + i, mask=here, other=0.0)[:, None]
    rotated_x = tl.load(rotated + i, mask=here, other=0.0)[:, None]
    rotated_y = tl.load(rotated + count + i, mask=here, other=0.0)[:, None]
    first_here = tl.load(first + i, mask=here, other=0.0)[:, None]
    second_here = tl.load(second + i, mask=here, other=1.0)[:, None]
    logits_here = key_x * rotated_x + key_y * rotated_y
    straights = tl.zeros((SIZE, SIZE), tl.float32)
    crosseds = tl.zeros((SIZE, SIZE), tl.float32)
    weights = tl.zeros((SIZE, SIZE), tl.float32)
    for start in range(strip * SIZE, count, SIZE):
        j = start + tl.arange(0, SIZE)
        after = j < count
        x = tl.load(keys + j, mask=after, other=0.0)[None, :]
        y = tl.load(keys + count + j, mask=after, other=0.0)[None, :]
        u = tl.load(rotated + j, mask=after, other=0.0)[None, :]
        v = tl.load(rotated + count + j, mask=after, other=0.0)[None, :]
        first_after = tl.load(first + j, mask=after, other=0.0)[None, :]
        second_after = tl.load(second + j, mask=after, other=0.0)[None, :]
        weight, _ = swap_weight(first_here, first_after, second_here, second_after, power, RELATIVE, False)
        weight = tl.where(after[None, :] & (i[:, None] < j[None, :]), weight, 0.0)
        moved = (key_x * u + key_y * v) - (x * rotated_x + y * rotated_y)
        straight, crossed = swap_terms((x * u + y * v) - logits_here, moved, weight)
        straights += straight
        crosseds += crossed
        weights += weight
    target = sums + (plane * tiles + strip) * 3
    tl.store(target, tl.sum(tl.sum(straights, 1), 0))
    tl.store(target + 1, tl.sum(tl.sum(crosseds, 1), 0))
    tl.store(target + 2, tl.sum(tl.sum(weights, 1), 0))


@jit
def scale_of(most):
    """Return the power of two that brings numbers up to ``most`` below 2¹⁵, and its inverse."""
    exponent = (most.to(tl.int32, bitcast=True) >> 23) & 255
    scale = (tl.minimum(268 - exponent, 253) << 23).to(tl.float32, bitcast=True)
    return scale, (tl.maximum(exponent - 14, 1) << 23).to(tl.float32, bitcast=True)


@jit
def halves_kernel(
    numbers, most, high, low, positions, observed, count, width, padded, parts,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, OBSERVED: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """Write some rows of a head as the sum of two numbers of float16, scaled, zeros behind them, and observed logits."""
    head = (tl.program_id(0) // parts).to(tl.int64)
    row = (tl.program_id(0) % parts) * ROWS + tl.arange(0, ROWS)
    k = tl.arange(0, WIDTH)
    inside = (row < count)[:, None] & (k < width)[None, :]
    place = row.to(tl.int64)[:, None]
    x = tl.load(numbers + head * count * width + place * width + k[None, :], mask=inside, other=0.0).to(tl.float32)
    if OBSERVED:
        there = tl.load(positions + place * width + k[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(observed + head * count + row, tl.sum(x * there, 1), mask=row < count)
    scale, _ = scale_of(tl.load(most + head))
    x *= scale
    first = x.to(tl.float16)
    target = head * count * padded + place * padded + k[None, :]
    inside = (row < count)[:, None] & (k < padded)[None, :]
    tl.store(high + target, first, mask=inside)
    if not SHORT:
        tl.store(low + target, (x - first.to(tl.float32)).to(tl.float16), mask=inside)


@jit
def in_bits(products, unit, cap, CAPPED: tl.constexpr):
    """Return logits times log₂ e, after a softcap if there is one, of products and their unit."""
    if CAPPED:
        return tanh(products * (unit / cap)) * (cap * LOG2_E)
    return products * (unit * LOG2_E)


@jit
def columns_halved(x):
    """Return the left and the right half of a tile's columns."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@jit
def sum_of_tile(
    there, back, unit, column, count, i, logits, first, second, logits_here, first_here, second_here, power, cap,
    straights, crosseds, weights, logs, by_position, by_content,
    RELATIVE: tl.constexpr, PLAIN: tl.constexpr, CAPPED: tl.constexpr, WHOLE: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Add the swaps of a tile of products to their sums, ``PIECE`` columns at a time, for which registers suffice.

    ``WHOLE`` says that every entry is a swap: i < j < count.
    """
    WIDE: tl.constexpr = there.shape[1]
    if WIDE > PIECE:
        there_left, there_right = columns_halved(there)
        back_left, back_right = columns_halved(back)
        straights, crosseds, weights, logs, by_position, by_content = sum_of_tile(
            there_left, back_left, unit, column, count, i, logits, first, second, logits_here, first_here, second_here,
            power, cap, straights, crosseds, weights, logs, by_position, by_content,
            RELATIVE, PLAIN, CAPPED, WHOLE, PIECE,
        )  # fmt: skip
        return sum_of_tile(
            there_right, back_right, unit, column + WIDE // 2, count, i, logits, first, second, logits_here,
            first_here, second_here, power, cap, straights, crosseds, weights, logs, by_position, by_content,
            RELATIVE, PLAIN, CAPPED, WHOLE, PIECE,
        )  # fmt: skip
    else:
        j = column + tl.arange(0, WIDE)
        j_inside = j if WHOLE else tl.minimum(j, count - 1)
        logits_after = tl.load(logits + j_inside)[None, :] * LOG2_E
        first_after = tl.load(first + j_inside)[None, :]
        second_after = tl.load(second + j_inside)[None, :]
        weight, log = swap_weight(first_here, first_after, second_here, second_after, power, RELATIVE, PLAIN)
        swap = (j < count)[None, :] & (i[:, None] < j[None, :])
        if not WHOLE:
            weight = tl.where(swap, weight, 0.0)
        weights += weight
        logs += weight * log
        there = in_bits(there, unit, cap, CAPPED)
        back = in_bits(back, unit, cap, CAPPED)
        straight, crossed = swap_terms(logits_after - logits_here, there - back, weight)
        far, near = deviations(there, back, logits_here, logits_after)
        if not WHOLE:
            far = tl.where(swap, far, 0.0)
            near = tl.where(swap, near, 0.0)
        return (
            straights + straight,
            crosseds + crossed,
            weights,
            logs,
            by_position + far,
            by_content + near,
        )


@jit
def product_kernel(
    high, low, positions, rests, most, furthest, logits, first, second, sums, count, width, tiles, every, power, cap,
    RELATIVE: tl.constexpr, PLAIN: tl.constexpr, CAPPED: tl.constexpr, SHORT: tl.constexpr,
    SIZE: tl.constexpr, DEPTH: tl.constexpr, PIECE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sum swaps i < j of one head over some tiles of one strip of rows, whose logits are products.

    ``high`` and ``low`` describe contents (H, count, width) as sums of two numbers of float16, ``positions`` and, unless
    they are ``SHORT``, ``rests`` positions (count, width).
    """
    head = tl.program_id(0) // tiles
    part = tl.program_id(0) % tiles
    strips = (count + SIZE - 1) // SIZE
    row = (part % strips) * SIZE
    i = row + tl.arange(0, SIZE)
    i_inside = tl.minimum(i, count - 1)
    start = head.to(tl.int64) * count
    logits += start
    first += start
    second += start
    _, unit = scale_of(tl.load(most + head))
    _, unit_of_positions = scale_of(tl.load(furthest))
    unit *= unit_of_positions
    logits_here = tl.load(logits + i_inside)[:, None] * LOG2_E
    first_here = tl.load(first + i_inside)[:, None]
    second_here = tl.load(second + i_inside)[:, None]
    straights = tl.zeros((SIZE, PIECE), tl.float32)
    crosseds = tl.zeros((SIZE, PIECE), tl.float32)
    weights = tl.zeros((SIZE, PIECE), tl.float32)
    logs = tl.zeros((SIZE, PIECE), tl.float32)
    by_position = tl.zeros((SIZE, PIECE), tl.float32)
    by_content = tl.zeros((SIZE, PIECE), tl.float32)
    for column in range(row + (part // strips) * SIZE, count, every):
        there = tl.zeros((SIZE, SIZE), tl.float32)
        back = tl.zeros((SIZE, SIZE), tl.float32)
        for k in tl.range(0, width, DEPTH, num_stages=STAGES):
            position_here = positions.load([row, k])
            high_here = tl.reshape(high.load([head, row, k]), (SIZE, DEPTH))
            low_here = tl.reshape(low.load([head, row, k]), (SIZE, DEPTH))
            position_after = positions.load([column, k])
            high_after = tl.reshape(high.load([head, column, k]), (SIZE, DEPTH))
            low_after = tl.reshape(low.load([head, column, k]), (SIZE, DEPTH))
            there = tl.dot(low_here, tl.trans(position_after), there)
            back = tl.dot(position_here, tl.trans(low_after), back)
            if not SHORT:
                there = tl.dot(high_here, tl.trans(rests.load([column, k])), there)
                back = tl.dot(rests.load([row, k]), tl.trans(high_after), back)
            there = tl.dot(high_here, tl.trans(position_after), there)
            back = tl.dot(position_here, tl.trans(high_after), back)
        if (column > row) & (column + SIZE <= count):
            straights, crosseds, weights, logs, by_position, by_content = sum_of_tile(
                there, back, unit, column, count, i, logits, first, second, logits_here, first_here, second_here,
                power, cap, straights, crosseds, weights, logs, by_position, by_content,
                RELATIVE, PLAIN, CAPPED, True, PIECE,
            )  # fmt: skip
        else:
            straights, crosseds, weights, logs, by_position, by_content = sum_of_tile(
                there, back, unit, column, count, i, logits, first, second, logits_here, first_here, second_here,
                power, cap, straights, crosseds, weights, logs, by_position, by_content,
                RELATIVE, PLAIN, CAPPED, False, PIECE,
            )  # fmt: skip
    by_position *= 1.0 / (LOG2_E * LOG2_E)
    by_content *= 1.0 / (LOG2_E * LOG2_E)
    store_sums(
        sums + (head.to(tl.int64) * tiles + part) * 6, straights, crosseds, weights, logs, by_position, by_content
    )


class Products(NamedTuple):
    """Contents and positions as `product_sums` reads them, the largest of each, observed logits before a softcap."""

    contents: tuple[Tensor, Tensor]
    positions: tuple[Tensor, Tensor]
    most: tuple[Tensor, Tensor]
    width: int
    observed: Tensor


def as_products(contents: Tensor, positions: Tensor) -> Products:
    """Split contents (H, T, K) in float32 and positions (T, K) in float32 or bfloat16 into numbers of float16.

    Scaled by a power of two, a number of float32 is the sum of two of float16, to a unit of its last place; one of
    bfloat16 is a single one, unless it is 2²⁸ times smaller than the largest.
    """
    contents, positions = contents.contiguous(), positions.contiguous()
    short, (count, width) = positions.dtype == torch.bfloat16, positions.shape
    padded = triton.cdiv(width, 8) * 8  # rows of whole vectors of memory
    most = (
        torch.linalg.vector_norm(contents, torch.inf, (1, 2)),
        torch.linalg.vector_norm(positions.float(), torch.inf)[None],
    )
    observed = contents.new_empty(len(contents), count)
    wide = triton.next_power_of_2(padded)
    rows = max(1, HALVES // wide)
    parts = triton.cdiv(count, rows)

    def halves(numbers: Tensor, most: Tensor, short: bool) -> tuple[Tensor, Tensor]:
        high = numbers.new_empty(*numbers.shape[:-1], padded, dtype=torch.float16)
        low = high if short else torch.empty_like(high)
        halves_kernel[(len(most) * parts,)](
            numbers, most, high, low, positions, observed, count, width, padded, parts,
            ROWS=rows, WIDTH=wide, OBSERVED=numbers is contents, SHORT=short, num_warps=4,
        )  # fmt: skip
        return high, low

    with device_context(contents):
        return Products(halves(contents, most[0], False), halves(positions, most[1], short), most, padded, observed)


def product_sums(products: Products, vectors: Sequence[Tensor], power: float, cap: float | None) -> Tensor:
    """Return what `head_sums` does (H, 6), of logits that are products: no matrix of them is ever made.

    Args:
        products: what `as_products` made.
        vectors: (H, T) each: the observed logits after the softcap, and first and second of
            `possym.scores.SwapWeights`.
        power: as there.
        cap: c of c·tanh(logit/c), or None.
    """
    heads, count = products.observed.shape
    depth = min(64, triton.next_power_of_2(max(16, products.width)))
    strips = triton.cdiv(count, PRODUCT_SIZE)
    shares = min(4, max(1, 1024 // (heads * strips)))
    tiles = strips * shares
    sums = products.observed.new_empty(heads, tiles, 6)
    high, low = (TensorDescriptor.from_tensor(x, [1, PRODUCT_SIZE, depth]) for x in products.contents)
    positions, rests = (TensorDescriptor.from_tensor(x, [PRODUCT_SIZE, depth]) for x in products.positions)
    with device_context(sums):
        product_kernel[(heads * tiles,)](
            high, low, positions, rests, *products.most, *(vector.contiguous() for vector in vectors), sums,
            count, products.width, tiles, shares * PRODUCT_SIZE, float(power), float(cap or 1),
            RELATIVE=power > 0, PLAIN=power == 1, CAPPED=cap is not None,
            SHORT=products.positions[0] is products.positions[1],
            SIZE=PRODUCT_SIZE, DEPTH=depth, PIECE=PRODUCT_PIECE, STAGES=2, num_warps=4,
        )  # fmt: skip
    return sums.sum(1)


def head_sums(upper: Tensor, lower: Tensor, vectors: Sequence[Tensor], power: float) -> Tensor:
    """Return six sums over all swaps (..., 6) of two tokens, one of them among the first R, as `swap_bands` has them.

    Args:
        upper: (..., R, T) relocated logits of the first R of T keys' contents at all positions.
        lower: (..., T, R) of all contents at the first R positions; where R is T, the same matrix.
        vectors: (..., T) each: the observed logits, and first and second of `possym.scores.SwapWeights`.
        power: as there.
    """
    rows, count, shape = *upper.shape[-2:], upper.shape[:-2]
    shares = SHARES[count > MANY]
    tiles = triton.cdiv(rows, SIZE) * shares
    sums = upper.new_empty(shape.numel(), tiles, 6)
    upper, lower = in_rows(upper), in_rows(lower)
    with device_context(upper):
        head_kernel[(len(sums) * tiles,)](
            upper, lower, *(vector.contiguous() for vector in vectors), sums, count, rows,
            upper.stride(-2), lower.stride(-2), tiles, shares * COLUMNS, float(power),
            RELATIVE=power > 0, PLAIN=power == 1, SIZE=SIZE, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
    return sums.sum(1).view(*shape, 6)


def in_rows(x: Tensor) -> Tensor:
    """Return ``x`` (..., T, N) with all its rows one stride apart in memory, as a slice of a wider tensor has them."""
    strides = torch.empty((*x.shape[:-1], max(x.stride(-2), x.shape[-1])), device="meta").stride()
    return x if x.stride() == strides else x.contiguous()


def plane_sums(keys: Tensor, rotated: Tensor, first: Tensor, second: Tensor, power: float) -> Tensor:
    """Return the first three sums of `head_sums` (..., 3) for planes whose relocated logits are keysᵀ · rotated.

    keys and rotated are (..., 2, T): key contents, and the query as each position sees it.
    """
    count, shape = keys.shape[-1], keys.shape[:-2]
    strips = triton.cdiv(count, PLANE_SIZE)
    sums = keys.new_empty(shape.numel(), strips, 3)
    with device_context(keys):
        plane_kernel[(len(sums) * strips,)](
            (keys * math.log2(math.e)).contiguous(), rotated.contiguous(), first.contiguous(), second.contiguous(),
            sums, count, strips, float(power), RELATIVE=power > 0, SIZE=PLANE_SIZE, num_warps=4,
        )  # fmt: skip
    return sums.sum(1).view(*shape, 3)


@functools.cache
def takes_products(device: torch.device) -> bool:
    """Return whether `product_sums` runs on a device where other kernels do, tried once."""
    tiny = torch.ones(1, 2, 128, device=device)
    try:
        products = as_products(tiny, tiny[0].bfloat16())
        return bool(product_sums(products, [products.observed] * 3, 1.0, None).isfinite().all())
    except Exception as error:  # an old card, or one with little memory beside its processors
        warnings.warn(
            f"Triton does not multiply here ({type(error).__name__}: {error!s:.200}), so scores take a slower way",
            stacklevel=2,
        )
        return False


def device_context(x: Tensor):
    """Return a context in which kernels run on the device of ``x``."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def supported(x: Tensor) -> bool:
    """Return whether the kernels can sum over swaps of ``x``."""
    graded = torch.is_grad_enabled() and x.requires_grad
    return x.dtype == torch.float32 and x.numel() > 0 and not graded and triton_available(x.device)


@functools.cache
def triton_available(device: torch.device) -> bool:
    """Return whether kernels run on a device, tried once."""
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if triton is None or not (device.type == "cuda" or interpreted):
        return False
    tiny = torch.ones(2, 2, device=device)
    try:
        sums = head_sums(tiny, tiny, [tiny[0]] * 3, 0.0), plane_sums(tiny, tiny, tiny[0], tiny[0], 0.0)
        return all(bool(x.isfinite().all()) for x in sums)
    except Exception as error:  # a missing compiler, an old driver, an old card: each has an exception of its own
        warnings.warn(
            f"Triton does not run here ({type(error).__name__}: {error!s:.200}), so scores and training take the "
            "slower way. It needs a C compiler such as gcc",
            stacklevel=2,
        )
        return False
