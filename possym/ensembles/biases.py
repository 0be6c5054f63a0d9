"""Gradients of a block's biases, as a Triton kernel: sums over some rows each, which other kernels left, added up."""

from __future__ import annotations

from torch import Tensor

from possym.kernels import device_context, jit, tl, triton

ROWS, COLUMNS = 16, 128  # of a tile


@jit
def total_of(sums, member, tile, number, across, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return some columns of one member's sums (number, across) added up, the columns, and which are there."""
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < across
    sums += member.to(tl.int64) * number * across
    added = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, number, ROWS):
        places = start + tl.arange(0, ROWS)
        inside = (places[:, None] < number) & there[None, :]
        added += tl.load(sums + places[:, None] * across + columns[None, :], mask=inside, other=0.0)
    return tl.sum(added, 0), columns, there


@jit
def add_up_kernel(
    attention, hidden, output, entry_bias, output_bias, of_attention, of_hidden, of_output, first, inner, last,
    entry_step, output_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add up some columns of one of three tensors of sums."""
    until, behind = tl.cdiv(first, COLUMNS), tl.cdiv(inner, COLUMNS)
    number = until + behind + tl.cdiv(last, COLUMNS)
    member, tile = tl.program_id(0) // number, tl.program_id(0) % number
    if tile < until:
        total, columns, there = total_of(attention, member, tile, of_attention, first, ROWS, COLUMNS)
        tl.store(entry_bias + member * entry_step + columns, total, mask=there)
    elif tile < until + behind:
        total, columns, there = total_of(hidden, member, tile - until, of_hidden, inner, ROWS, COLUMNS)
        tl.store(entry_bias + member * entry_step + first + columns, total, mask=there)
    else:
        total, columns, there = total_of(output, member, tile - until - behind, of_output, last, ROWS, COLUMNS)
        tl.store(output_bias + member * output_step + columns, total, mask=there)


def add_up(attention: Tensor, hidden: Tensor, output: Tensor, entry_bias: Tensor, output_bias: Tensor) -> None:
    """Write the gradients of a block's biases.

    Args:
        attention, hidden: sums (E, P, 3C) and (E, Q, I), whose totals beside each other are ``entry_bias``.
        output: sums (E, R, C), whose total is ``output_bias``.
        entry_bias, output_bias: (E, 3C + I) and (E, C), each member's in a row.
    """
    given = attention, hidden, output
    programs = len(attention) * sum(triton.cdiv(each.shape[2], COLUMNS) for each in given)
    with device_context(attention):
        add_up_kernel[(programs,)](
            *given, entry_bias, output_bias, *(each.shape[1] for each in given), *(each.shape[2] for each in given),
            entry_bias.stride(0), output_bias.stride(0), ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
