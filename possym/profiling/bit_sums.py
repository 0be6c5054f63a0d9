"""Digests of the bits of many matrices, read as whole numbers: what a hash of a model's weights is made of.

Where Triton runs one kernel reads all matrices once. Elsewhere their rows and columns are summed in pieces, since
PyTorch sums 32-bit numbers into 64 bits by copying them first, and matrices of one shape together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from possym.kernels import device_context, jit, tl, triton_available

INTEGERS = (torch.int32, torch.int16, torch.int8)  # what bits are read as: as few numbers as fit a row
TOGETHER, TOGETHER_ON_GPU = 2**18, 2**25  # numbers that are widened at once: what a cache holds, few calls
ROWS, COLUMNS, AHEAD = 256, 256, 4  # of a program's tile, and of how many rows it waits for at once
# Odd numbers of 64 bits without a pattern, of which factors of places are made.
MIXERS = (-7046029254386353131, -4658895280553007687), (-7723592293110705685, -4417276706812531889)


def bit_digests(tensors: Sequence[Tensor]) -> Tensor:
    """Return `digests` of `bit_sums` with factors of several tensors (n, 2), on one device, where the digests lie too.

    >>> bit_digests([torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)]).shape
    torch.Size([1, 2])
    """
    return in_one_kernel(tensors) if triton_available(tensors[0].device) else digests(bit_sums(tensors, factors=True))


def bit_sums(tensors: Sequence[Tensor], *, factors: bool = False) -> list[Tensor]:
    """Return of each tensor the sums of its bits, read as whole numbers, over each row and each column.

    With ``factors``, sums over a column count each row with an odd factor of its place, and so change when two rows are
    swapped. Of a single column, or a tensor of one dimension, the numbers themselves are returned. All are on one
    device.

    >>> bit_sums([torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)])
    [tensor([3, 7, 4, 6]), tensor([5])]
    """
    bits = [as_integers(x) for x in tensors]
    alike: dict[tuple, list[int]] = {}
    for k, x in enumerate(bits):
        alike.setdefault((x.dtype, x.shape if x.shape[1] > 1 else None), []).append(k)
    sums: dict[int, Tensor] = {}
    for (_, shape), places in alike.items():
        some = [bits[k] for k in places]
        if shape is None:  # columns are widened together, since a call costs more than they do
            found = torch.cat(some).flatten().long().split([len(x) for x in some])
        else:
            together = at_once(some[0]) // some[0].numel()
            if together < 2:  # large ones are read where they lie
                stacks = (x[None] for x in some)
            else:
                stacks = (torch.stack(some[k : k + together]) for k in range(0, len(some), together))
            of_rows = row_factors(some[0]) if factors else None
            found = [x for stack in stacks for x in in_pieces(stack, of_rows)]
        sums |= zip(places, found, strict=True)
    return [sums[k] for k in range(len(bits))]


def digests(sums: Sequence[Tensor]) -> Tensor:
    """Return two numbers of each of several tensors of whole numbers, (n, 2), on the device where these lie.

    Either is a sum modulo 2⁶⁴ in which every number counts with an odd factor of its place, the same on every device:
    so a change of one number changes both, and what a hash needs of a model is a few bytes a tensor.
    """
    device = sums[0].device
    lengths = torch.tensor([len(x) for x in sums], device="cpu").to(device, non_blocking=True)
    ends = lengths.cumsum(0)
    numbers = torch.cat(list(sums))
    starts = (ends - lengths).repeat_interleave(lengths, output_size=len(numbers))
    places = torch.arange(len(numbers), device=device) - starts + 1
    found = []
    for mixers in MIXERS:
        totals = (numbers * factors_of(places, mixers)).cumsum(0)[ends - 1]
        found.append(totals.diff(prepend=totals.new_zeros(1)))
    return torch.stack(found, 1)


def factors_of(places: Tensor, mixers: tuple[int, int]) -> Tensor:
    """Return odd factors of places, from 1."""
    factors = places * mixers[0]
    return ((factors ^ (factors >> 31)) * mixers[1]) | 1


def as_integers(x: Tensor) -> Tensor:
    """Return the bits of a tensor as a matrix of whole numbers, where they lie if possible."""
    if x.ndim != 2:
        x = x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)
    x, width = x.contiguous(), x.shape[1] * x.element_size()
    kind = INTEGERS[0 if width % 4 == 0 else 1 if width % 2 == 0 else 2]
    # Elsewhere bits cannot be read where they lie; a single column may be in one piece with any stride.
    if x.storage_offset() * x.element_size() % kind.itemsize or x.stride(1) != 1:
        x = x.clone(memory_format=torch.contiguous_format)
    return x.view(kind)


def at_once(bits: Tensor) -> int:
    """Return how many numbers are widened at once where some lie."""
    return TOGETHER_ON_GPU if bits.is_cuda else TOGETHER


def row_factors(bits: Tensor) -> Tensor:
    """Return the factors of a matrix's rows (R, 1): 32 bits of those of `digests`, for one instruction of a GPU."""
    places = torch.arange(1, len(bits) + 1, device=bits.device)
    return factors_of(places, MIXERS[0]).to(torch.int32)[:, None]


def in_pieces(bits: Tensor, factors: Tensor | None) -> Tensor:
    """Return the sums of matrices (n, R, C) over each row and each column (n, R + C), there with `row_factors`."""
    step = max(1, at_once(bits) // (len(bits) * bits.shape[2]))
    rows, columns = [], []
    for start in range(0, bits.shape[1], step):
        wide = bits[:, start : start + step].long()
        rows.append(wide.sum(2))
        if factors is not None:
            wide *= factors[start : start + step]
        columns.append(wide.sum(1))
    return torch.cat([*rows, sum(columns[1:], columns[0])], 1)


@jit
def factor_of(place, FIRST: tl.constexpr, SECOND: tl.constexpr):
    """Return the odd factors of places, from 1, as `digests` makes them."""
    factor = place.to(tl.int64) * FIRST
    return ((factor ^ (factor >> 31)) * SECOND) | 1


@jit
def add_rows(
    start, found, block, rows, columns, before,
    MIXERS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Add to both digests of a matrix what a tile of it holds, each number with the factors of row and column.

    Columns count each row with 32 bits of its first factor, since such a product is one instruction. A row is summed
    over the lanes when all rows are done: times its factor, it may be added to others before that.
    """
    LANES: tl.constexpr = 32
    across = (columns + COLUMNS - 1) // COLUMNS
    column = ((block % across) * COLUMNS).to(tl.int32) + tl.arange(0, COLUMNS)
    inside = column < columns.to(tl.int32)
    row = (block // across) * ROWS
    last = tl.minimum(rows, row + ROWS)
    start += row * columns
    total = tl.zeros((COLUMNS,), tl.int64)
    one = tl.zeros((LANES,), tl.int64)
    other = tl.zeros((LANES,), tl.int64)
    for _ in range(0, (last - row).to(tl.int32), AHEAD):
        for k in tl.static_range(AHEAD):  # rows that are read before the first of them is used
            x = tl.load(start + k * columns + column, mask=inside & (row + k < last), other=0).to(tl.int64)
            factor = factor_of(row + k + 1, MIXERS[0][0], MIXERS[0][1])
            total += x * tl.where(before == 0, 1, factor.to(tl.int32)).to(tl.int64)
            in_row = tl.sum(tl.reshape(x, (COLUMNS // LANES, LANES)), 0)
            one += in_row * factor
            other += in_row * factor_of(row + k + 1, MIXERS[1][0], MIXERS[1][1])
        row += AHEAD
        start += AHEAD * columns
    if before == 0:
        one *= 0
        other *= 0
    place = before + column + 1
    tl.atomic_add(found, tl.sum(one, 0) + tl.sum(total * factor_of(place, MIXERS[0][0], MIXERS[0][1]), 0))
    tl.atomic_add(found + 1, tl.sum(other, 0) + tl.sum(total * factor_of(place, MIXERS[1][0], MIXERS[1][1]), 0))


@jit
def digests_kernel(
    owners, table, found,
    MIXERS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Add to both digests of a matrix some of its tiles: whole numbers, so that any order gives the same.

    ``owners`` names each program's matrix; of a matrix the table has where it lies, the bytes of a number, its rows and
    columns, how many numbers its digests take before its columns (its rows, none of a row that stands for itself), its
    first program and how many there are.
    """
    owner = tl.load(owners + tl.program_id(0))
    entry = table + owner * 7
    start = tl.load(entry)
    size = tl.load(entry + 1)
    rows = tl.load(entry + 2)
    columns = tl.load(entry + 3)
    before = tl.load(entry + 4)
    block = tl.program_id(0) - tl.load(entry + 5)
    found += owner * 2
    if size == 4:
        add_rows(start.to(tl.pointer_type(tl.int32)), found, block, rows, columns, before, MIXERS, ROWS, COLUMNS, AHEAD)
    elif size == 2:
        add_rows(start.to(tl.pointer_type(tl.int16)), found, block, rows, columns, before, MIXERS, ROWS, COLUMNS, AHEAD)
    else:
        add_rows(start.to(tl.pointer_type(tl.int8)), found, block, rows, columns, before, MIXERS, ROWS, COLUMNS, AHEAD)


@functools.lru_cache(256)
def as_numbers(shape: torch.Size, itemsize: int) -> tuple[int, int, int, int, int]:
    """Return how the kernel reads a tensor: bytes of a number, rows, columns, rows that count, and how many programs.

    >>> as_numbers(torch.Size([300, 8]), 2), as_numbers(torch.Size([5]), 4)
    ((4, 300, 4, 300, 2), (4, 1, 5, 0, 1))
    """
    width = itemsize * (shape[-1] if len(shape) > 1 else 1)
    size = math.gcd(width, 4)
    rows, columns = shape.numel() * itemsize // width, width // size
    before = rows
    if columns == 1:
        rows, columns, before = 1, rows, 0
    return size, rows, columns, before, -(-rows // ROWS) * -(-columns // COLUMNS)


def in_one_kernel(tensors: Sequence[Tensor]) -> Tensor:
    """Return what `bit_digests` does, by one kernel, which reads tensors where they lie if it can."""
    device, numbers, programs, copies = tensors[0].device, [], 0, []
    for x in tensors:
        size, rows, columns, before, blocks = as_numbers(x.shape, x.dtype.itemsize)
        start = x.data_ptr()
        if start % size or not x.is_contiguous():
            copies.append(x.clone(memory_format=torch.contiguous_format))  # which live until they are read
            start = copies[-1].data_ptr()
        numbers += start, size, rows, columns, before, programs, blocks
        programs += blocks
    # An array is made in a sixth of the time that PyTorch takes for a list.
    table = torch.from_numpy(np.array(numbers, np.int64)).view(-1, 7).to(device, non_blocking=True)
    owners = torch.repeat_interleave(table[:, -1], output_size=programs)
    found = torch.zeros(len(tensors), 2, dtype=torch.int64, device=device)
    with device_context(found):
        digests_kernel[(programs,)](
            owners, table, found, MIXERS=MIXERS, ROWS=ROWS, COLUMNS=COLUMNS, AHEAD=AHEAD, num_warps=1
        )
    return found
