"""Rotation, causal softmax, dropout and mixing of short sequences in one Triton kernel, with its gradient.

- `precision` says whether a model's blocks can go this way: on a GPU where Triton runs, up to `PLACES` places, all
  planes turned. Elsewhere `possym.models.ensemble.causal_attention` does the same in several steps.
- A program works on one head of one sequence. Keys, values and queries are read where a block's first product left
  them; the gradient computes the weights again, so that nothing between is stored.
- The dropout masks are those of `possym.dropout`, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..dropout import GOLDEN, signed
from ..kernels import jit, on, tl, triton, works

PLACES = 64
STREAM = 1  # of a block's masks, the one of its attention weights
SIZE = 16  # planes worked on at a time: with more, registers spill
GIVEN = "Tensor cos, Tensor sin, Tensor? keys, int heads, float dropped, bool half, str precision"


def precision(device: torch.device, places: int, width: int, planes: int) -> str | None:
    """Return how the kernel's products of float32 are taken, None where it cannot be used.

    Args:
        device: of the model.
        places: T.
        width: D, of a head.
        planes: F that turn.

    Returns:
        ``"tf32"``, or ``"tf32x3"`` where `torch.get_float32_matmul_precision` asks for all of float32.

    >>> precision(torch.device("cpu"), places=17, width=128, planes=64) is None
    True
    """
    fits = places <= PLACES and width >= 2 * SIZE and width & (width - 1) == 0 and 2 * planes == width
    if device.type != "cuda" or not fits or not works(device):
        return None
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@jit
def hashed(x):
    """`possym.dropout.mixed`: the second factor is 0x846CA68B as an int32."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


@jit
def load_planes(start, rows, stride, inside, chunk, WIDTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr):
    """Load rows of a head as the two coordinates (ROWS, SIZE) of its planes from ``chunk`` on, in float32."""
    if HALF:
        columns = chunk + tl.arange(0, SIZE)
        x = tl.load(start + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)
        y = tl.load(start + rows[:, None] * stride + columns[None, :] + WIDTH // 2, mask=inside, other=0.0)
    else:
        columns = 2 * chunk + tl.arange(0, 2 * SIZE)
        both = tl.load(start + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)
        x, y = tl.split(both.reshape(rows.shape[0], SIZE, 2))
    return x.to(tl.float32), y.to(tl.float32)


@jit
def store_planes(start, rows, stride, inside, chunk, x, y, WIDTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr):
    """Store what `load_planes` loads."""
    if HALF:
        columns = chunk + tl.arange(0, SIZE)
        tl.store(start + rows[:, None] * stride + columns[None, :], x, mask=inside)
        tl.store(start + rows[:, None] * stride + columns[None, :] + WIDTH // 2, y, mask=inside)
    else:
        columns = 2 * chunk + tl.arange(0, 2 * SIZE)
        tl.store(start + rows[:, None] * stride + columns[None, :], tl.interleave(x, y), mask=inside)


@jit
def load_turned(
    start, cosines, sines, rows, stride, inside, chunk, WIDTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr
):
    """Load as `load_planes` and turn each row by its place; return the cosines and sines too."""
    x, y = load_planes(start, rows, stride, inside, chunk, WIDTH, SIZE, HALF)
    table = rows[:, None] * (WIDTH // 2) + chunk + tl.arange(0, SIZE)[None, :]
    cos = tl.load(cosines + table, mask=inside, other=1.0)
    sin = tl.load(sines + table, mask=inside, other=0.0)
    return x * cos - y * sin, x * sin + y * cos, cos, sin


@jit
def weigh(
    key, cosines, sines, keys, sequence, head, sequences, length, stride, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    THRESHOLD: tl.constexpr, SHIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the weights (ROWS, ROWS) of one head of one sequence, and which of them stay."""
    rows = tl.arange(0, ROWS)
    inside = rows[:, None] < length
    query = key + 2 * HEADS * WIDTH
    logits = tl.zeros((ROWS, ROWS), tl.float32)
    for chunk in range(0, WIDTH // 2, SIZE):
        key_x, key_y, _, _ = load_turned(key, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF)
        query_x, query_y, _, _ = load_turned(query, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF)
        logits = tl.dot(query_x, tl.trans(key_x), logits, input_precision=PRECISION)
        logits = tl.dot(query_y, tl.trans(key_y), logits, input_precision=PRECISION)
    stays = (rows[:, None] >= rows[None, :]) & (rows[None, :] < length)
    logits = tl.where(stays, logits * scale, -float("inf"))
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    if THRESHOLD > 0:
        member = sequence // sequences
        first = hashed(tl.load(keys + member * 2) + SHIFT)
        second = hashed(tl.load(keys + member * 2 + 1) + SHIFT)
        place = ((sequence % sequences) * HEADS + head) * length * length + rows[:, None] * length + rows[None, :]
        stays = stays & ((hashed(hashed(place ^ first) + second) & 0xFFFFFF) >= THRESHOLD)
    return weights, stays


@jit
def forward_kernel(
    joint, cosines, sines, keys, mixed, sequences, length, stride, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    THRESHOLD: tl.constexpr, SHIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write what one head of one sequence mixes."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first = sequence.to(tl.int64) * length
    key = joint + first * stride + head * WIDTH
    weights, stays = weigh(
        key, cosines, sines, keys, sequence, head, sequences, length, stride, scale,
        HEADS, WIDTH, ROWS, SIZE, HALF, THRESHOLD, SHIFT, PRECISION,
    )  # fmt: skip
    weights = tl.where(stays, weights, 0.0)
    rows = tl.arange(0, ROWS)
    inside = rows[:, None] < length
    for chunk in range(0, WIDTH, 2 * SIZE):
        columns = chunk + tl.arange(0, 2 * SIZE)[None, :]
        value = tl.load(key + HEADS * WIDTH + rows[:, None] * stride + columns, mask=inside, other=0.0)
        found = tl.dot(weights, value.to(tl.float32), input_precision=PRECISION)
        tl.store(mixed + ((first + rows[:, None]) * HEADS + head) * WIDTH + columns, found, mask=inside)


@jit
def backward_kernel(
    joint, cosines, sines, keys, asked, gradient, sequences, length, stride, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    THRESHOLD: tl.constexpr, SHIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one head's keys, values and queries from that of what it mixed."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first = sequence.to(tl.int64) * length
    key = joint + first * stride + head * WIDTH
    weights, stays = weigh(
        key, cosines, sines, keys, sequence, head, sequences, length, stride, scale,
        HEADS, WIDTH, ROWS, SIZE, HALF, THRESHOLD, SHIFT, PRECISION,
    )  # fmt: skip
    rows = tl.arange(0, ROWS)
    inside = rows[:, None] < length
    row = 3 * HEADS * WIDTH
    start = gradient + first * row + head * WIDTH
    dropped = tl.trans(tl.where(stays, weights, 0.0))
    change = tl.zeros((ROWS, ROWS), tl.float32)
    for chunk in range(0, WIDTH, 2 * SIZE):
        columns = chunk + tl.arange(0, 2 * SIZE)[None, :]
        value = tl.load(key + HEADS * WIDTH + rows[:, None] * stride + columns, mask=inside, other=0.0)
        above = asked + ((first + rows[:, None]) * HEADS + head) * WIDTH + columns
        above = tl.load(above, mask=inside, other=0.0).to(tl.float32)
        change = tl.dot(above, tl.trans(value.to(tl.float32)), change, input_precision=PRECISION)
        found = tl.dot(dropped, above, input_precision=PRECISION)
        tl.store(start + HEADS * WIDTH + rows[:, None] * row + columns, found, mask=inside)
    change = tl.where(stays, change, 0.0)
    change = weights * (change - tl.sum(weights * change, 1)[:, None]) * scale
    back = tl.trans(change)
    query = key + 2 * HEADS * WIDTH
    for chunk in range(0, WIDTH // 2, SIZE):
        x, y, cos, sin = load_turned(key, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF)
        x = tl.dot(change, x, input_precision=PRECISION)
        y = tl.dot(change, y, input_precision=PRECISION)
        x, y = x * cos + y * sin, y * cos - x * sin
        store_planes(start + 2 * HEADS * WIDTH, rows, row, inside, chunk, x, y, WIDTH, SIZE, HALF)
        x, y, cos, sin = load_turned(query, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF)
        x = tl.dot(back, x, input_precision=PRECISION)
        y = tl.dot(back, y, input_precision=PRECISION)
        x, y = x * cos + y * sin, y * cos - x * sin
        store_planes(start, rows, row, inside, chunk, x, y, WIDTH, SIZE, HALF)


def launch(
    kernel, joint: Tensor, tables: list[Tensor], keys: Tensor | None, heads: int, dropped: float, half: bool,
    precision: str, *given: Tensor,
) -> None:  # fmt: skip
    """Run a kernel over all heads of all sequences."""
    E, B, T, width = joint.shape
    D = width // (3 * heads)
    with on(joint):
        kernel[(E * B * heads,)](
            joint, *tables, joint if keys is None else keys, *given, B, T, joint.stride(2), D**-0.5,
            HEADS=heads, WIDTH=D, ROWS=max(16, triton.next_power_of_2(T)), SIZE=SIZE, HALF=half,
            THRESHOLD=0 if keys is None else round(dropped * 2**24), SHIFT=signed(STREAM * GOLDEN),
            PRECISION=precision, num_warps=4,
        )  # fmt: skip


def in_rows(joint: Tensor) -> Tensor:
    """Return ``joint`` (E, B, T, 3C) with its places one stride apart, as a slice of a product has them."""
    _, B, T, _ = joint.shape
    row = joint.stride(2)
    return joint if joint.stride() == (B * T * row, T * row, row, 1) else joint.contiguous()


@torch.library.custom_op("possym::attention", mutates_args=(), schema=f"(Tensor joint, {GIVEN}) -> Tensor")
def attention(
    joint: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor | None,
    heads: int,
    dropped: float,
    half: bool,
    precision: str,
) -> Tensor:
    """Return what `possym.models.ensemble.causal_attention` does with a block's masks, (E, B, T, C).

    Args:
        joint: (E, B, T, 3C) keys, values and queries before rotation.
        cos, sin: (T, D/2) float32 of each place's angles: all planes turn.
        keys: (E, 2) int32 of the block's dropout, None where nothing is dropped.
        heads: H; D = C/H is a power of two from 32, since a tile's products sum over D/2 or more.
        dropped: probability of dropping a weight.
        half: whether planes pair dimensions k and k + D/2 rather than 2k and 2k + 1.
        precision: of the products, ``"tf32"``, or ``"tf32x3"`` where that of float32 is wanted.
    """
    joint = in_rows(joint)
    mixed = joint.new_empty(*joint.shape[:3], joint.shape[3] // 3)
    launch(forward_kernel, joint, [cos, sin], keys, heads, dropped, half, precision, mixed)
    return mixed


@attention.register_fake
def _(joint, cos, sin, keys, heads, dropped, half, precision):
    return joint.new_empty(*joint.shape[:3], joint.shape[3] // 3)


@torch.library.custom_op(
    "possym::attention_gradient", mutates_args=(), schema=f"(Tensor asked, Tensor joint, {GIVEN}) -> Tensor"
)
def attention_gradient(
    asked: Tensor,
    joint: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor | None,
    heads: int,
    dropped: float,
    half: bool,
    precision: str,
) -> Tensor:
    """Return the gradient of ``joint`` (E, B, T, 3C) for that of what `attention` returned."""
    joint = in_rows(joint)
    gradient = joint.new_empty(joint.shape)
    launch(backward_kernel, joint, [cos, sin], keys, heads, dropped, half, precision, asked.contiguous(), gradient)
    return gradient


@attention_gradient.register_fake
def _(asked, joint, cos, sin, keys, heads, dropped, half, precision):
    return joint.new_empty(joint.shape)


def keep_inputs(ctx, inputs, output):
    """Keep what the gradient needs: what `attention` was given."""
    joint, cos, sin, keys, *ctx.options = inputs
    ctx.save_for_backward(joint, cos, sin, keys)


def gradient_of_inputs(ctx, asked):
    """Return a gradient for ``joint`` alone."""
    return attention_gradient(asked, *ctx.saved_tensors, *ctx.options), *[None] * 7


attention.register_autograd(gradient_of_inputs, setup_context=keep_inputs)
