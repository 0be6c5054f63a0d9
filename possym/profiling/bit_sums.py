"""Sums of the bits of many matrices, read as whole numbers: what a hash of a model's weights is made of.

Where Triton runs one kernel reads all matrices once. Elsewhere each is widened in pieces, since PyTorch sums 32-bit
numbers into 64 bits by copying them first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from possym.kernels import device_context, jit, tl, triton_available

INTEGERS = (torch.int32, torch.int16, torch.int8)  # what bits are read as: as few numbers as fit a row
TOGETHER, TOGETHER_ON_GPU = 2**18, 2**25  # numbers that are widened at once: what a cache holds, few calls
ROWS, COLUMNS, STEPS = 16, 256, 8  # a program reads as many tiles, one below the other
# Odd numbers of 64 bits without a pattern, of which factors of places are made.
MIXERS = (-7046029254386353131, -4658895280553007687), (-7723592293110705685, -4417276706812531889)


def bit_sums(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return of each tensor the sums of its bits, read as whole numbers, over each row and each column.

    Of a single column, or a tensor of one dimension, the numbers themselves are returned. All are on one device.

    >>> bit_sums([torch.tensor([[1, 2], [3, 4]], dtype=torch.int32), torch.tensor([5], dtype=torch.int32)])
    [tensor([3, 7, 4, 6]), tensor([5])]
    """
    bits = [as_integers(x) for x in tensors]
    wide = [k for k, x in enumerate(bits) if x.shape[1] > 1]
    if wide and triton_available(bits[wide[0]].device):
        sums = dict(zip(wide, in_one_kernel([bits[k] for k in wide]), strict=True))
    else:
        sums = {k: in_pieces(bits[k]) for k in wide}
    for kind in INTEGERS:  # columns are widened together, since a call costs more than they do
        columns = [k for k, x in enumerate(bits) if x.dtype == kind and k not in sums]
        if columns:
            widened = torch.cat([bits[k] for k in columns]).flatten().long()
            sums |= zip(columns, widened.split([len(bits[k]) for k in columns]), strict=True)
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
    for first, second in MIXERS:
        factors = places * first
        factors = ((factors ^ (factors >> 31)) * second) | 1
        totals = (numbers * factors).cumsum(0)[ends - 1]
        found.append(totals.diff(prepend=totals.new_zeros(1)))
    return torch.stack(found, 1)


def as_integers(x: Tensor) -> Tensor:
    """Return the bits of a tensor as a matrix of whole numbers, where they lie if possible."""
    if x.ndim != 2:
        x = x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)
    x, width = x.contiguous(), x.shape[1] * x.element_size()
    kind = INTEGERS[0 if width % 4 == 0 else 1 if width % 2 == 0 else 2]
    if x.storage_offset() * x.element_size() % kind.itemsize:  # then its bits cannot be read where they lie
        x = x.clone()
    return x.view(kind)


def in_pieces(bits: Tensor) -> Tensor:
    """Return the sums of a matrix (R, C) over each row and each column (R + C)."""
    at_once = (TOGETHER_ON_GPU if bits.is_cuda else TOGETHER) // bits.shape[1]
    widened = (some.long() for some in bits.split(max(1, at_once)))
    rows, columns = zip(*[(wide.sum(1), wide.sum(0)) for wide in widened], strict=True)
    return torch.cat([*rows, sum(columns[1:], columns[0])])


@jit
def bits_kernel(
    owners, table, sums, KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr
):
    """Add to the sums of a matrix those of some of its tiles: whole numbers, so that any order gives the same.

    ``owners`` names each program's matrix; of a matrix the table has where it lies, its rows and columns, its first
    program, where its sums begin and how many programs it takes.
    """
    entry = table + tl.load(owners + tl.program_id(0)) * 6
    start = tl.load(entry).to(tl.pointer_type(KIND))
    rows = tl.load(entry + 1)
    columns = tl.load(entry + 2)
    block = tl.program_id(0) - tl.load(entry + 3)
    sums += tl.load(entry + 4)
    across = (columns + COLUMNS - 1) // COLUMNS
    column = (block % across) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.int64)
    for step in range(STEPS):
        row = ((block // across) * STEPS + step) * ROWS + tl.arange(0, ROWS)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x = tl.load(start + row[:, None] * columns + column[None, :], mask=inside, other=0).to(tl.int64)
        tl.atomic_add(sums + row, tl.sum(x, 1), mask=row < rows)
        total += tl.sum(x, 0)
    tl.atomic_add(sums + rows + column, total, mask=column < columns)


def in_one_kernel(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return what `in_pieces` does for each of several matrices, by one kernel for each kind of whole numbers."""
    device, lengths = matrices[0].device, [sum(x.shape) for x in matrices]
    sums = torch.zeros(sum(lengths), dtype=torch.int64, device=device)
    parts = sums.split(lengths)
    for kind in INTEGERS:
        entries, first = [], 0
        for x, part in zip(matrices, parts, strict=True):
            if x.dtype == kind:
                blocks = -(-x.shape[0] // (ROWS * STEPS)) * -(-x.shape[1] // COLUMNS)
                entries.append((x.data_ptr(), *x.shape, first, part.storage_offset(), blocks))
                first += blocks
        if entries:
            table = torch.tensor(entries, device="cpu").to(device, non_blocking=True)
            owners = torch.repeat_interleave(table[:, -1], output_size=first)
            with device_context(sums):
                bits_kernel[(first,)](
                    owners, table, sums,
                    KIND=getattr(tl, str(kind).removeprefix("torch.")), ROWS=ROWS, COLUMNS=COLUMNS, STEPS=STEPS,
                    num_warps=4,
                )  # fmt: skip
    return list(parts)
