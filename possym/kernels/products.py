"""Sums over all swaps of two tokens of a head whose relocated logits are products: no matrix of them is ever made.

- `as_products` splits contents and positions into numbers of float16, which tensor cores multiply without loss.
- `products_of_keys` does so of contents that are keys beside a query, and writes no others.
- `product_sums` multiplies and sums them tile by tile, as accurately as float32 does.
- `takes_products` says whether a device can.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from possym.kernels.arithmetic import LOG2_E, device_context, jit, tanh, tl, triton
from possym.kernels.swaps import deviations, store_sums, swap_terms, swap_weight

if triton is not None:
    from triton.tools.tensor_descriptor import TensorDescriptor

SIZE, PIECE = 64, 16  # of a square tile of products, and how many of its columns are summed at once
HALVES = 4096  # numbers that a program splits


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
    """Write some rows of a head as sums of two numbers of float16, scaled, zeros behind them, and observed logits."""
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
def keys_kernel(
    keys, queries, moved, most, high, low, positions, observed, count, parts, heads, first_head, groups, tokens,
    TOGETHER: tl.constexpr, ROWS: tl.constexpr, PLANES: tl.constexpr, WIDE: tl.constexpr, MEASURE: tl.constexpr,
):  # fmt: skip
    """Do what `halves_kernel` does of the contents of some keys, or only find the largest, as the bits of its size.

    ``queries`` are those of ``heads`` heads from ``first_head`` on, of which ``TOGETHER`` read one of ``groups``.
    """
    head = (tl.program_id(0) // parts).to(tl.int64)
    row = (tl.program_id(0) % parts) * ROWS + tl.arange(0, ROWS)
    plane = tl.arange(0, WIDE)
    inside = (row < count)[:, None] & (plane < PLANES)[None, :]
    group = (head // heads) * groups + (first_head + head % heads) // TOGETHER
    there = tl.load(moved + row, mask=row < count, other=0)
    key = keys + (group * tokens + there)[:, None] * (2 * PLANES) + plane[None, :]
    x = tl.load(key, mask=inside, other=0.0)
    y = tl.load(key + PLANES, mask=inside, other=0.0)
    query = queries + head * (2 * PLANES) + plane
    u = tl.load(query, mask=plane < PLANES, other=0.0)[None, :]
    v = tl.load(query + PLANES, mask=plane < PLANES, other=0.0)[None, :]
    straight = tl.fma(y, v, x * u)
    crossed = tl.fma(-y, u, x * v)
    if MEASURE:  # numbers without a sign are in order as their bits are, and what is no number comes last
        sizes = tl.maximum(
            straight.to(tl.int32, bitcast=True) & 0x7FFFFFFF, crossed.to(tl.int32, bitcast=True) & 0x7FFFFFFF
        )
        tl.atomic_max(most + head, tl.max(tl.max(sizes, 1), 0))
    else:
        turns = positions + row.to(tl.int64)[:, None] * (2 * PLANES) + plane[None, :]
        cos = tl.load(turns, mask=inside, other=0.0).to(tl.float32)
        sin = tl.load(turns + PLANES, mask=inside, other=0.0).to(tl.float32)
        tl.store(observed + head * count + row, tl.sum(straight * cos + crossed * sin, 1), mask=row < count)
        scale, _ = scale_of(tl.load(most + head))
        straight *= scale
        crossed *= scale
        target = (head * count + row.to(tl.int64))[:, None] * (2 * PLANES) + plane[None, :]
        first = straight.to(tl.float16)
        second = crossed.to(tl.float16)
        tl.store(high + target, first, mask=inside)
        tl.store(high + target + PLANES, second, mask=inside)
        tl.store(low + target, (straight - first.to(tl.float32)).to(tl.float16), mask=inside)
        tl.store(low + target + PLANES, (crossed - second.to(tl.float32)).to(tl.float16), mask=inside)


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

    ``high`` and ``low`` describe contents (H, count, width) as sums of two numbers of float16, ``positions`` and
    ``rests`` positions (count, width); ``SHORT`` ones have no rests.
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
    most = torch.linalg.vector_norm(contents, torch.inf, (1, 2))
    observed = contents.new_empty(contents.shape[:2])
    return beside_positions(halves(contents, most, observing=(positions, observed)), most, positions, observed)


def beside_positions(contents: tuple[Tensor, Tensor], most: Tensor, positions: Tensor, observed: Tensor) -> Products:
    """Return contents that are split already, the largest of each head, as `as_products` does."""
    furthest = torch.linalg.vector_norm(positions, torch.inf, dtype=torch.float32)[None]
    split = halves(positions, furthest, positions.dtype == torch.bfloat16)
    return Products(contents, split, (most, furthest), contents[0].shape[-1], observed)


def products_of_keys(
    keys: Tensor, queries: Tensor, moved: Tensor, first_head: int, together: int, positions: Tensor
) -> Products:
    """Return `as_products` of the contents of keys, which are made where they are split, and once for their largest.

    Args:
        keys: (B, G, T, D) in float32, D/2 planes in the half layout, all of which turn; D is a multiple of 8.
        queries: (B, h, D) of h heads from number ``first_head`` on, in float32, scaled.
        moved: (N,) which of the T keys.
        together: how many heads read one of the G.
        positions: (N, D) cosines and sines, as there.
    """
    batch, asked, width = queries.shape
    keys, queries, moved, positions = (x.contiguous() for x in (keys, queries, moved, positions))
    heads, count, planes = batch * asked, len(moved), width // 2
    wide = triton.next_power_of_2(planes)
    rows = max(1, HALVES // (2 * wide))
    parts = triton.cdiv(count, rows)
    most, observed = keys.new_zeros(heads), keys.new_empty(heads, count)
    high, low = (keys.new_empty(heads, count, width, dtype=torch.float16) for _ in range(2))
    with device_context(keys):
        for measure in (True, False):
            keys_kernel[(heads * parts,)](
                keys, queries, moved, most.view(torch.int32) if measure else most, high, low, positions, observed,
                count, parts, asked, first_head, *keys.shape[1:3],
                TOGETHER=together, ROWS=rows, PLANES=planes, WIDE=wide, MEASURE=measure, num_warps=4,
            )  # fmt: skip
    return beside_positions((high, low), most, positions, observed)


def halves(
    numbers: Tensor, most: Tensor, short: bool = False, observing: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return numbers as sums of two of float16, scaled by a power of two, in rows of whole vectors of memory.

    Args:
        numbers: (H, T, K), or (T, K) where H is 1.
        most: (H,) the largest of each.
        short: whether the first of the two is enough.
        observing: positions (T, K), and room for the observed logits (H, T).
    """
    *_, count, width = numbers.shape
    padded = triton.cdiv(width, 8) * 8
    wide = triton.next_power_of_2(padded)
    rows = max(1, HALVES // wide)
    parts = triton.cdiv(count, rows)
    high = numbers.new_empty(*numbers.shape[:-1], padded, dtype=torch.float16)
    low = high if short else torch.empty_like(high)
    with device_context(numbers):
        halves_kernel[(len(most) * parts,)](
            numbers, most, high, low, *(observing or (numbers, numbers)), count, width, padded, parts,
            ROWS=rows, WIDTH=wide, OBSERVED=observing is not None, SHORT=short, num_warps=4,
        )  # fmt: skip
    return high, low


def product_sums(products: Products, vectors: Sequence[Tensor], power: float, cap: float | None) -> Tensor:
    """Return what `head_sums` does (H, 6), of logits that are products: no matrix of them is ever made.

    Arguments are those of `tile_sums`.
    """
    return tile_sums(products, vectors, power, cap).sum(1)


def tile_sums(products: Products, vectors: Sequence[Tensor], power: float, cap: float | None) -> Tensor:
    """Return the parts (H, tiles, 6) of `product_sums` that programs add.

    Args:
        products: what `as_products` made, of T keys or more: those behind do not take part.
        vectors: (H, T) each: the observed logits after the softcap, and first and second of
            `possym.scores.SwapWeights`.
        power: as there.
        cap: c of c·tanh(logit/c), or None.
    """
    heads, count = vectors[0].shape
    short = products.positions[0] is products.positions[1]
    depth = min(64 if short else 32, triton.next_power_of_2(max(16, products.width)))
    strips = triton.cdiv(count, SIZE)
    shares = min(4, max(1, 1024 // (heads * strips)))
    tiles = strips * shares
    sums = products.observed.new_empty(heads, tiles, 6)
    high, low = (TensorDescriptor.from_tensor(x, [1, SIZE, depth]) for x in products.contents)
    positions, rests = (TensorDescriptor.from_tensor(x, [SIZE, depth]) for x in products.positions)
    with device_context(sums):
        product_kernel[(heads * tiles,)](
            high, low, positions, rests, *products.most, *(vector.contiguous() for vector in vectors), sums,
            count, products.width, tiles, shares * SIZE, float(power), float(cap or 1),
            RELATIVE=power > 0, PLAIN=power == 1, CAPPED=cap is not None,
            SHORT=short, SIZE=SIZE, DEPTH=depth, PIECE=PIECE, STAGES=2, num_warps=4,
        )  # fmt: skip
    return sums


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
