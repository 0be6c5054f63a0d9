"""From one block to the next, as Triton kernels: dropout of what a block brought, the sum, and the next norm.

- `add_and_norm` leads on, `gradient` back. Each reads and writes a value of the residual stream once.
- The norm has no gain and bias: these are in the weights that read it (`possym.ensembles.folding`).
- The dropout masks are those of `possym.ensembles.dropout`, bit for bit; nothing of them is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from possym.ensembles.dropout import GOLDEN, as_int32
from possym.ensembles.fused import hashed
from possym.kernels import device_context, jit, tl, triton

ATTENDED, PROCESSED = 2, 3  # of a block's masks, those of what attention and MLP brought
ROWS = 16  # that a program works on


@jit
def stays(keys, member, place, THRESHOLD: tl.constexpr, SHIFT: tl.constexpr):
    """Return which values of a member dropout leaves: `possym.ensembles.dropout.keep_mask`."""
    first = hashed(tl.load(keys + member * 2) + SHIFT)
    second = hashed(tl.load(keys + member * 2 + 1) + SHIFT)
    return (hashed(hashed(place ^ first) + second) & 0xFFFFFF) >= THRESHOLD


@jit
def rows_of_member(across, each, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_OF: tl.constexpr):
    """Return whose rows a program works on, rows and columns, what is inside, and places: in a member's stream, in all.

    Of each ``LAST_OF`` rows of the stream the last one counts.
    """
    parts = tl.cdiv(each, ROWS)
    member = tl.program_id(0) // parts
    rows = (tl.program_id(0) % parts) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows[:, None] < each) & (columns[None, :] < across)
    own = (rows * LAST_OF + (LAST_OF - 1))[:, None] * across + columns[None, :]
    place = member.to(tl.int64) * each * across + rows[:, None] * across + columns[None, :]
    return member, rows, columns, inside, own, place


@jit
def add_and_norm_kernel(
    x, attended, processed, bias, keys, total, normed, scales, across, each, step,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_OF: tl.constexpr, ADDING: tl.constexpr, NORMING: tl.constexpr,
    SCALED: tl.constexpr, THRESHOLD: tl.constexpr, ATTENDED: tl.constexpr, PROCESSED: tl.constexpr,
):  # fmt: skip
    """Add to some rows of one member's residual stream what a block brought, and write them normed."""
    member, rows, columns, inside, own, place = rows_of_member(across, each, ROWS, COLUMNS, LAST_OF)
    there = columns[None, :] < across
    value = tl.load(x + member.to(tl.int64) * each * LAST_OF * across + own, mask=inside, other=0.0)
    if ADDING:
        by_attention = tl.load(attended + place, mask=inside, other=0.0).to(tl.float32)
        by_mlp = tl.load(processed + place, mask=inside, other=0.0).to(tl.float32)
        by_mlp += tl.load(bias + member * step + columns, mask=columns < across, other=0.0)[None, :].to(tl.float32)
        if THRESHOLD > 0:
            by_attention = tl.where(stays(keys, member, own, THRESHOLD, ATTENDED), by_attention, 0.0)
            by_mlp = tl.where(stays(keys, member, own, THRESHOLD, PROCESSED), by_mlp, 0.0)
        value += by_attention
        value += by_mlp
        tl.store(total + place, value, mask=inside)
    if NORMING:
        value = tl.where(there, value - tl.sum(value, 1)[:, None] / across, 0.0)
        scale = tl.rsqrt(tl.sum(value * value, 1) / across + 1e-5)
        tl.store(normed + place, value * scale[:, None], mask=inside)
        if SCALED:
            tl.store(scales + member * each + rows, scale, mask=rows < each)


@jit
def gradient_kernel(
    asked, above, normed, scales, keys, total, attended, processed, sums, across, each,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LAST_OF: tl.constexpr, NORMED: tl.constexpr, BROUGHT: tl.constexpr,
    THRESHOLD: tl.constexpr, ATTENDED: tl.constexpr, PROCESSED: tl.constexpr,
):  # fmt: skip
    """Write the gradients of some rows of one member's stream, of what was brought to it, and the latter's sum."""
    member, rows, columns, inside, own, place = rows_of_member(across, each, ROWS, COLUMNS, LAST_OF)
    slope = tl.load(asked + place, mask=inside, other=0.0)
    if NORMED:
        back = tl.load(above + place, mask=inside, other=0.0).to(tl.float32)
        n = tl.load(normed + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + member * each + rows, mask=rows < each, other=0.0)[:, None]
        along = tl.sum(back * n, 1)[:, None] / across
        slope += scale * (back - tl.sum(back, 1)[:, None] / across - n * along)
        slope = tl.where(inside, slope, 0.0)
        tl.store(total + place, slope, mask=inside)
    if BROUGHT:
        by_attention, by_mlp = slope, slope
        if THRESHOLD > 0:
            by_attention = tl.where(stays(keys, member, own, THRESHOLD, ATTENDED), slope, 0.0)
            by_mlp = tl.where(stays(keys, member, own, THRESHOLD, PROCESSED), slope, 0.0)
        tl.store(attended + place, by_attention, mask=inside)
        tl.store(processed + place, by_mlp, mask=inside)
        sums += tl.program_id(0).to(tl.int64) * across
        tl.store(sums + columns, tl.sum(by_mlp, 0), mask=columns < across)


def masks(keys: Tensor | None, dropped: float) -> dict[str, int]:
    """Return what the kernels know of a block's masks."""
    return {
        "THRESHOLD": 0 if keys is None else round(dropped * 2**24),
        "ATTENDED": as_int32(ATTENDED * GOLDEN),
        "PROCESSED": as_int32(PROCESSED * GOLDEN),
    }


def add_and_norm(
    x: Tensor,
    brought: tuple[Tensor, Tensor, Tensor] | None,
    *,
    total: Tensor | None = None,
    normed: Tensor | None = None,
    scales: Tensor | None = None,
    keys: Tensor | None = None,
    dropped: float = 0.0,
    last_of: int = 1,
) -> None:
    """Write to ``total`` the residual stream with what a block brought, and to ``normed`` its LayerNorm.

    Args:
        x: (E, B, T, C) float32, contiguous like all others.
        brought: what attention and MLP brought, (E, B, T, C), and the MLP's bias (E, C), each member's in a row; None
            adds nothing.
        total: of the shape of ``x``, which it may be.
        normed: of the shape of ``x``; None takes no norm.
        scales: (E, B, T) float32 for what each centred row is multiplied by; None keeps none.
        keys: (E, 2) int32 of the block's dropout, None where nothing is dropped.
        dropped: probability of dropping a value.
        last_of: 1, or T where the last position alone is added to: ``brought`` and ``total`` are (E, B, 1, C) then.
    """
    E, B, T, C = x.shape
    each = B * T // last_of
    attended, processed, bias = brought or (x, x, x)
    with device_context(x):
        add_and_norm_kernel[(E * triton.cdiv(each, ROWS),)](
            x, attended, processed, bias, x if keys is None else keys, x if total is None else total,
            x if normed is None else normed, x if scales is None else scales, C, each, bias.stride(0),
            ROWS=ROWS, COLUMNS=triton.next_power_of_2(C), LAST_OF=last_of, ADDING=brought is not None,
            NORMING=normed is not None, SCALED=scales is not None, **masks(keys, dropped), num_warps=4,
        )  # fmt: skip


def sums_of(x: Tensor) -> Tensor:
    """Return room for the sums that `gradient` writes (E, P, C), each over some rows of ``x`` (E, B, T, C)."""
    E, B, T, C = x.shape
    return x.new_empty(E, triton.cdiv(B * T, ROWS), C, dtype=torch.float32)


def gradient(
    asked: Tensor,
    norm: tuple[Tensor, Tensor, Tensor] | None,
    brought: tuple[Tensor, Tensor, Tensor] | None,
    *,
    total: Tensor | None = None,
    keys: Tensor | None = None,
    dropped: float = 0.0,
    last_of: int = 1,
) -> None:
    """Write gradients of what `add_and_norm` was given from those of what it wrote.

    Args:
        asked: of ``total`` by what comes later, (E, B, T, C) float32.
        norm: gradient of ``normed``, and ``normed`` and ``scales`` as written; None where there was no norm.
        brought: room for the gradients of what attention and MLP brought, and for `sums_of` of the latter; None where
            nothing was added.
        total: room for the gradient of ``x``, which may be ``asked``; without a norm that is ``asked``.
        keys, dropped, last_of: as given to `add_and_norm`.
    """
    E, B, T, C = asked.shape
    above, normed, scales = norm or (asked, asked, asked)
    attended, processed, sums = brought or (asked, asked, asked)
    with device_context(asked):
        gradient_kernel[(E * triton.cdiv(B * T, ROWS),)](
            asked, above, normed, scales, asked if keys is None else keys, asked if total is None else total,
            attended, processed, sums, C, B * T,
            ROWS=ROWS, COLUMNS=triton.next_power_of_2(C), LAST_OF=last_of, NORMED=norm is not None,
            BROUGHT=brought is not None, **masks(keys, dropped), num_warps=4,
        )  # fmt: skip
