"""Attention of the last position alone, as Triton kernels: its query, and keys and values of all positions.

Rotation and dropout masks are those of `possym.ensembles.fused`. A program works on one head of one sequence; one query
is too few for tensor cores, so products are sums of float32.
"""

from __future__ import annotations

from torch import Tensor

from possym.ensembles.dropout import GOLDEN, as_int32
from possym.ensembles.fused import STREAM, load_rows, load_turned, store_rows, store_turned
from possym.ensembles.residual import stays
from possym.kernels import device_context, jit, tl, triton

PLANES = 64  # worked on at a time


@jit
def places_of_head(
    product, hidden, bias, length, stride, whole, sequences, step,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Return a program's sequence and head, where keys, query and biases start, positions of keys and of the query.

    The query starts where that of position 0 would lie.
    """
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    key = product + sequence.to(tl.int64) * length * stride + head * WIDTH
    query = hidden + (sequence.to(tl.int64) - (length - 1)) * whole + head * WIDTH
    bias += (sequence // sequences) * step + head * WIDTH
    return sequence, head, key, query, bias, tl.arange(0, ROWS), length - 1 + tl.arange(0, 1)


@jit
def forward_kernel(
    product, hidden, bias, cosines, sines, keys, mixed, kept, sequences, length, stride, whole, step, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, THRESHOLD: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """Write what one head mixes for the last position of one sequence, and its weights, negative where dropped."""
    sequence, head, key, query, bias, rows, last = places_of_head(
        product, hidden, bias, length, stride, whole, sequences, step, HEADS, WIDTH, ROWS
    )
    inside, there = rows[:, None] < length, last[:, None] < length
    query_bias = bias + 2 * HEADS * WIDTH
    logits = tl.zeros((ROWS, SIZE), tl.float32)
    for chunk in range(0, WIDTH // 2, SIZE):
        key_x, key_y, _, _ = load_turned(
            key, bias, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, False, True
        )
        query_x, query_y, _, _ = load_turned(
            query, query_bias, cosines, sines, last, whole, there, chunk, WIDTH, SIZE, False, True
        )
        logits += key_x * query_x + key_y * query_y
    logits = tl.where(rows < length, tl.sum(logits, 1) * scale, -float("inf"))
    weights = tl.exp(logits - tl.max(logits, 0))
    weights = weights / tl.sum(weights, 0)
    signed = weights
    if THRESHOLD > 0:
        place = (((sequence % sequences) * HEADS + head) * length + length - 1) * length + rows
        left = stays(keys, sequence // sequences, place, THRESHOLD, SHIFT)
        signed = tl.where(left, weights, -weights)
        weights = tl.where(left, weights, 0.0)
    tl.store(kept + tl.program_id(0).to(tl.int64) * length + rows, signed, mask=rows < length)
    value, value_bias = key + HEADS * WIDTH, bias + HEADS * WIDTH
    for chunk in range(0, WIDTH, 2 * SIZE):
        columns = chunk + tl.arange(0, 2 * SIZE)
        found = load_rows(value, value_bias, rows, stride, inside, columns, True)
        tl.store(mixed + tl.program_id(0).to(tl.int64) * WIDTH + columns, tl.sum(weights[:, None] * found, 0))


@jit
def backward_kernel(
    product, hidden, bias, cosines, sines, kept, asked, back, back_hidden, sums, sequences, length, stride, whole,
    step, scale, HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one head's keys, values and last query from that of what it mixed, and their sums."""
    sequence, head, key, query, bias, rows, last = places_of_head(
        product, hidden, bias, length, stride, whole, sequences, step, HEADS, WIDTH, ROWS
    )
    inside, there = rows[:, None] < length, last[:, None] < length
    back += sequence.to(tl.int64) * length * stride + head * WIDTH
    back_hidden += (sequence.to(tl.int64) - (length - 1)) * whole + head * WIDTH
    sums += sequence.to(tl.int64) * (3 * HEADS * WIDTH) + head * WIDTH
    value, value_bias, query_bias = key + HEADS * WIDTH, bias + HEADS * WIDTH, bias + 2 * HEADS * WIDTH
    weights = tl.load(kept + tl.program_id(0).to(tl.int64) * length + rows, mask=rows < length, other=0.0)
    left = weights > 0
    weights = tl.abs(weights)
    dropped = tl.where(left, weights, 0.0)[:, None]
    change = tl.zeros((ROWS, 2 * SIZE), tl.float32)
    for chunk in range(0, WIDTH, 2 * SIZE):
        columns = chunk + tl.arange(0, 2 * SIZE)
        above = tl.load(asked + tl.program_id(0).to(tl.int64) * WIDTH + columns).to(tl.float32)[None, :]
        change += above * load_rows(value, value_bias, rows, stride, inside, columns, True)
        store_rows(back + HEADS * WIDTH, sums + HEADS * WIDTH, rows, stride, inside, columns, dropped * above, True)
    change = tl.where(left, tl.sum(change, 1), 0.0)
    change = (weights * (change - tl.sum(weights * change, 0)) * scale)[:, None]
    for chunk in range(0, WIDTH // 2, SIZE):
        key_x, key_y, cos, sin = load_turned(
            key, bias, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, False, True
        )
        query_x, query_y, last_cos, last_sin = load_turned(
            query, query_bias, cosines, sines, last, whole, there, chunk, WIDTH, SIZE, False, True
        )
        store_turned(
            back, sums, rows, stride, inside, chunk, change * query_x, change * query_y, cos, sin,
            WIDTH, SIZE, False, True,
        )  # fmt: skip
        x, y = tl.sum(change * key_x, 0)[None, :], tl.sum(change * key_y, 0)[None, :]
        store_turned(
            back_hidden, sums + 2 * HEADS * WIDTH, last, whole, there, chunk, x, y, last_cos, last_sin,
            WIDTH, SIZE, False, True,
        )  # fmt: skip


def launch(
    kernel, product: Tensor, hidden: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, heads: int, *given: Tensor,
    **masks: int,
) -> None:  # fmt: skip
    """Run a kernel over all heads of all sequences."""
    E, B, T, stride = product.shape
    D = 2 * cos.shape[1]
    with device_context(product):
        kernel[(E * B * heads,)](
            product, hidden, bias, cos, sin, *given, B, T, stride, hidden.shape[3], bias.stride(0), D**-0.5,
            HEADS=heads, WIDTH=D, ROWS=triton.next_power_of_2(T), SIZE=min(PLANES, D // 2), num_warps=4, **masks,
        )  # fmt: skip


def mix(
    product: Tensor, hidden: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, keys: Tensor | None, heads: int,
    dropped: float, mixed: Tensor, kept: Tensor,
) -> None:  # fmt: skip
    """Write what attention mixes for the last position, and its weights, negative where dropped.

    Args:
        product: (E, B, T, 2C) keys and values of all positions before rotation, without bias.
        hidden: (E, B, 1, C + …), of which the first columns are the last position's query.
        bias: (E, 3C + …) of keys, values and queries.
        cos, sin: (T, D/2) float32 of each position's angles.
        keys: (E, 2) int32 of the block's dropout, None where nothing is dropped.
        heads: H.
        dropped: probability of dropping a weight.
        mixed: room for (E, B, 1, C).
        kept: room for the weights (E, B, H, T) in float32.
    """
    launch(
        forward_kernel, product, hidden, bias, cos, sin, heads, product if keys is None else keys, mixed, kept,
        THRESHOLD=0 if keys is None else round(dropped * 2**24), SHIFT=as_int32(STREAM * GOLDEN),
    )  # fmt: skip


def gradient(
    product: Tensor, hidden: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, heads: int, kept: Tensor, asked: Tensor,
    back: Tensor, back_hidden: Tensor, sums: Tensor,
) -> None:  # fmt: skip
    """Write the gradients of keys, values and last query from that of what `mix` mixed, and each sequence's sums.

    Args:
        product, hidden, bias, cos, sin, heads: as `mix` had them.
        kept: the weights.
        asked: gradient of ``mixed``.
        back: of the shape of ``product``.
        back_hidden: of the shape of ``hidden``; the columns behind the query are left alone.
        sums: room for (E, B, 3C) in float32, each sequence's sums over positions.
    """
    launch(backward_kernel, product, hidden, bias, cos, sin, heads, kept, asked, back, back_hidden, sums)
