"""Sums over all swaps of two tokens in one pass, of matrices of relocated logits and of single planes.

- `supported` says whether a tensor can go this way: float32, no gradient asked for, on a device where kernels run.
- `triton_available` says whether they do. Where it fails, a warning says so and the slower way is taken.
- `head_sums` reads relocated logits once, both triangles together, or a band of rows and its mirror image.
- `plane_sums` never sees a matrix: a single plane's relocated logits are products of two short vectors.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from possym.kernels.arithmetic import LOG2_E, device_context, exp2, jit, log2, rsqrt, tl, triton

SIZE, COLUMNS = 16, 32  # of a tile of swaps of a head
SHARES = 4, 2  # programs that work on one strip of tiles, of few keys and of many
MANY = 4096  # keys
PLANE_SIZE = 32  # of a square tile of swaps of a plane


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
