"""Attention of short sequences, as Triton kernels.

- `precision` says whether a model's blocks can go this way: where Triton runs, up to `PLACES` positions, all
  planes turned. Elsewhere `possym.ensembles.attention.causal_attention` does the same in several steps.
- A program of the attention works on one head of one sequence: rotation, causal softmax, dropout and mixing. Keys,
  values and queries are read where a block's first product left them; the weights are kept for the gradient, a few
  bytes a place.
- The bias of that product is added where its columns are read: a batched product would copy it to every row before.
- The dropout masks are those of `possym.ensembles.dropout`, bit for bit.
- `mix` is attention with its gradient; `possym.ensembles.trunk` and `possym.ensembles.evaluation` launch the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from possym.ensembles.dropout import GOLDEN, as_int32
from possym.kernels import device_context, in_rows, jit, tl, triton, triton_available

PLACES = 64
STREAM = 1  # of a block's masks, the one of its attention weights
SIZE = 16  # planes worked on at a time: with more, registers spill


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
    if not fits or not triton_available(device):
        return None
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@jit
def hashed(x):
    """`possym.ensembles.dropout.hash32`: the second factor is 0x846CA68B as an int32."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


@jit
def load_rows(start, bias, rows, stride, inside, columns, BIASED: tl.constexpr):
    """Load rows of a product and add its bias, in float32; rows that are not inside hold the bias alone."""
    x = tl.load(start + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        x += tl.load(bias + columns)[None, :].to(tl.float32)
    return x


@jit
def load_turned(
    start, bias, cosines, sines, rows, stride, inside, chunk,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Load rows of a head as coordinates (ROWS, SIZE) of its planes from ``chunk`` on, turned by each row's position.

    Returns both coordinates, cosines and sines.
    """
    if HALF:
        columns = chunk + tl.arange(0, SIZE)
        x = load_rows(start, bias, rows, stride, inside, columns, BIASED)
        y = load_rows(start, bias, rows, stride, inside, columns + WIDTH // 2, BIASED)
    else:
        both = load_rows(start, bias, rows, stride, inside, 2 * chunk + tl.arange(0, 2 * SIZE), BIASED)
        x, y = tl.split(both.reshape(rows.shape[0], SIZE, 2))
    table = rows[:, None] * (WIDTH // 2) + chunk + tl.arange(0, SIZE)[None, :]
    cos = tl.load(cosines + table, mask=inside, other=1.0)
    sin = tl.load(sines + table, mask=inside, other=0.0)
    return x * cos - y * sin, x * sin + y * cos, cos, sin


@jit
def store_rows(start, sums, rows, stride, inside, columns, x, BIASED: tl.constexpr):
    """Store rows of a product's gradient, and their sum for that of its bias; rows that are not inside are 0."""
    tl.store(start + rows[:, None] * stride + columns[None, :], x, mask=inside)
    if BIASED:
        tl.store(sums + columns, tl.sum(x, 0))


@jit
def store_turned(
    start, sums, rows, stride, inside, chunk, x, y, cos, sin,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Store the gradient of what `load_turned` loads from that of what it returns."""
    x, y = x * cos + y * sin, y * cos - x * sin
    if HALF:
        columns = chunk + tl.arange(0, SIZE)
        store_rows(start, sums, rows, stride, inside, columns, x, BIASED)
        store_rows(start, sums, rows, stride, inside, columns + WIDTH // 2, y, BIASED)
    else:
        columns = 2 * chunk + tl.arange(0, 2 * SIZE)
        store_rows(start, sums, rows, stride, inside, columns, tl.interleave(x, y), BIASED)


@jit
def weigh(
    key, bias, cosines, sines, keys, sequence, head, sequences, length, stride, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    BIASED: tl.constexpr, THRESHOLD: tl.constexpr, SHIFT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the weights (ROWS, ROWS) of one head of one sequence, and which of them stay."""
    rows = tl.arange(0, ROWS)
    inside = rows[:, None] < length
    query, query_bias = key + 2 * HEADS * WIDTH, bias + 2 * HEADS * WIDTH
    logits = tl.zeros((ROWS, ROWS), tl.float32)
    for chunk in range(0, WIDTH // 2, SIZE):
        key_x, key_y, _, _ = load_turned(
            key, bias, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF, BIASED
        )
        query_x, query_y, _, _ = load_turned(
            query, query_bias, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF, BIASED
        )
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
    product, bias, cosines, sines, keys, mixed, kept, apart, sequences, length, stride, step, whole, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    BIASED: tl.constexpr, KEEPING: tl.constexpr, THRESHOLD: tl.constexpr, SHIFT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write what one head of one sequence mixes, in rows ``apart``, and its weights, negative where dropped."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first = sequence.to(tl.int64) * length
    key = product + first * stride + head * WIDTH
    bias += (sequence // sequences) * step + head * WIDTH
    weights, stays = weigh(
        key, bias, cosines, sines, keys, sequence, head, sequences, length, stride, scale,
        HEADS, WIDTH, ROWS, SIZE, HALF, BIASED, THRESHOLD, SHIFT, PRECISION,
    )  # fmt: skip
    rows = tl.arange(0, ROWS)
    inside = rows[:, None] < length
    if KEEPING:
        place = tl.program_id(0).to(tl.int64) * length * length + rows[:, None] * length + rows[None, :]
        tl.store(kept + place, tl.where(stays, weights, -weights), mask=inside & (rows[None, :] < length))
    weights = tl.where(stays, weights, 0.0)
    value, value_bias = key + HEADS * WIDTH, bias + HEADS * WIDTH
    for chunk in range(0, WIDTH, 2 * SIZE):
        columns = chunk + tl.arange(0, 2 * SIZE)
        found = load_rows(value, value_bias, rows, stride, inside, columns, BIASED)
        found = tl.dot(weights, found, input_precision=PRECISION)
        tl.store(mixed + (first + rows[:, None]) * apart + head * WIDTH + columns[None, :], found, mask=inside)


@jit
def backward_kernel(
    product, bias, cosines, sines, kept, asked, gradient, sums, sequences, length, stride, step, whole, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one head's keys, values and queries from that of what it mixed, and their sums."""
    sequence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    first = sequence.to(tl.int64) * length
    key = product + first * stride + head * WIDTH
    bias += (sequence // sequences) * step + head * WIDTH
    value, value_bias = key + HEADS * WIDTH, bias + HEADS * WIDTH
    query, query_bias = value + HEADS * WIDTH, value_bias + HEADS * WIDTH
    rows = tl.arange(0, ROWS)
    inside = rows[:, None] < length
    place = tl.program_id(0).to(tl.int64) * length * length + rows[:, None] * length + rows[None, :]
    weights = tl.load(kept + place, mask=inside & (rows[None, :] < length), other=0.0)
    stays = weights > 0
    weights = tl.abs(weights)
    gradient += first * whole + head * WIDTH
    sums += sequence.to(tl.int64) * (3 * HEADS * WIDTH) + head * WIDTH
    dropped = tl.trans(tl.where(stays, weights, 0.0))
    change = tl.zeros((ROWS, ROWS), tl.float32)
    for chunk in range(0, WIDTH, 2 * SIZE):
        columns = chunk + tl.arange(0, 2 * SIZE)
        mixing = load_rows(value, value_bias, rows, stride, inside, columns, BIASED)
        above = asked + ((first + rows[:, None]) * HEADS + head) * WIDTH + columns[None, :]
        above = tl.load(above, mask=inside, other=0.0).to(tl.float32)
        change = tl.dot(above, tl.trans(mixing), change, input_precision=PRECISION)
        found = tl.dot(dropped, above, input_precision=PRECISION)
        store_rows(gradient + HEADS * WIDTH, sums + HEADS * WIDTH, rows, whole, inside, columns, found, BIASED)
    change = tl.where(stays, change, 0.0)
    change = weights * (change - tl.sum(weights * change, 1)[:, None]) * scale
    back = tl.trans(change)
    for chunk in range(0, WIDTH // 2, SIZE):
        x, y, cos, sin = load_turned(key, bias, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF, BIASED)
        x = tl.dot(change, x, input_precision=PRECISION)
        y = tl.dot(change, y, input_precision=PRECISION)
        store_turned(
            gradient + 2 * HEADS * WIDTH, sums + 2 * HEADS * WIDTH, rows, whole, inside, chunk, x, y, cos, sin,
            WIDTH, SIZE, HALF, BIASED,
        )  # fmt: skip
        x, y, cos, sin = load_turned(
            query, query_bias, cosines, sines, rows, stride, inside, chunk, WIDTH, SIZE, HALF, BIASED
        )
        x = tl.dot(back, x, input_precision=PRECISION)
        y = tl.dot(back, y, input_precision=PRECISION)
        store_turned(gradient, sums, rows, whole, inside, chunk, x, y, cos, sin, WIDTH, SIZE, HALF, BIASED)


def launch_attention(
    kernel, product: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, heads: int, half: bool, precision: str,
    *given: Tensor | int, **masks: int,
) -> None:  # fmt: skip
    """Run a kernel of the attention over all heads of all sequences."""
    E, B, T, whole = product.shape
    D, rows = 2 * cos.shape[1], max(16, triton.next_power_of_2(T))
    with device_context(product):
        kernel[(E * B * heads,)](
            product, product if bias is None else bias, cos, sin, *given,
            B, T, product.stride(2), 0 if bias is None else bias.stride(0), whole, D**-0.5,
            HEADS=heads, WIDTH=D, ROWS=rows, SIZE=SIZE, HALF=half, BIASED=bias is not None, PRECISION=precision,
            num_warps=1 if rows <= 32 else 4, num_stages=2, **masks,
        )  # fmt: skip


def launch_mixing(
    product: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, keys: Tensor | None, heads: int, dropped: float,
    half: bool, precision: str, mixed: Tensor, kept: Tensor | None,
) -> None:  # fmt: skip
    """Run the attention's kernel; it keeps no weights without room for them."""
    launch_attention(
        forward_kernel, product, bias, cos, sin, heads, half, precision,
        product if keys is None else keys, mixed, mixed if kept is None else kept, mixed.shape[-1],
        KEEPING=kept is not None, THRESHOLD=0 if keys is None else round(dropped * 2**24),
        SHIFT=as_int32(STREAM * GOLDEN),
    )  # fmt: skip


def outputs(product: Tensor, cos: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Return room for what attention mixes (E, B, T, C) and GELU of the rest (E, B, T, I)."""
    C = 2 * cos.shape[1] * heads
    return tuple(product.new_empty(*product.shape[:3], width) for width in (C, product.shape[3] - 3 * C))


def weights_of(product: Tensor, heads: int) -> Tensor:
    """Return room for the attention's weights, see `mix`."""
    E, B, T, _ = product.shape
    return product.new_empty(E * B * heads, T, T, dtype=torch.float32)


@torch.library.custom_op(
    "possym::mix",
    mutates_args=(),
    schema="(Tensor product, Tensor cos, Tensor sin, Tensor? keys, int heads, float dropped, bool half, str precision)"
    " -> (Tensor, Tensor)",
)
def mix(
    product: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor | None,
    heads: int,
    dropped: float,
    half: bool,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """Return what a block's attention mixes (E, B, T, C), and its weights (E·B·H, T, T) for the gradient.

    The attention is `possym.ensembles.attention.causal_attention` with the block's masks. Weights that dropout drops
    are negative.

    Args:
        product: (E, B, T, 3C) keys, values and queries before rotation.
        cos, sin: (T, D/2) float32 of each position's angles: all planes turn.
        keys: (E, 2) int32 of the block's dropout, None where nothing is dropped.
        heads: H; D = C/H is a power of two from 32, since a tile's products sum over D/2 or more.
        dropped: probability of dropping a weight.
        half: whether planes pair dimensions k and k + D/2 rather than 2k and 2k + 1.
        precision: of the products, ``"tf32"``, or ``"tf32x3"`` where that of float32 is wanted.
    """
    product = in_rows(product)
    (mixed, _), kept = outputs(product, cos, heads), weights_of(product, heads)
    launch_mixing(product, None, cos, sin, keys, heads, dropped, half, precision, mixed, kept)
    return mixed, kept


@mix.register_fake
def _(product, cos, sin, keys, heads, dropped, half, precision):
    return outputs(product, cos, heads)[0], weights_of(product, heads)


@torch.library.custom_op(
    "possym::mix_gradient",
    mutates_args=(),
    schema="(Tensor asked, Tensor product, Tensor cos, Tensor sin, Tensor kept, int heads, bool half, str precision)"
    " -> Tensor",
)
def mix_gradient(
    asked: Tensor,
    product: Tensor,
    cos: Tensor,
    sin: Tensor,
    kept: Tensor,
    heads: int,
    half: bool,
    precision: str,
) -> Tensor:
    """Return the gradient of ``product`` for that of what `mix` mixed."""
    product = in_rows(product)
    gradient = product.new_empty(product.shape)
    launch_attention(
        backward_kernel, product, None, cos, sin, heads, half, precision, kept, asked.contiguous(), gradient, gradient
    )
    return gradient


@mix_gradient.register_fake
def _(asked, product, cos, sin, kept, heads, half, precision):
    return product.new_empty(product.shape)


def keep_inputs(ctx, inputs, output):
    """Keep what the gradient needs: what `mix` was given, and the weights."""
    product, cos, sin, _, heads, _, half, precision = inputs
    ctx.options = heads, half, precision
    ctx.save_for_backward(product, cos, sin, output[1])


def gradient_of_inputs(ctx, asked, _):
    """Return the gradient for ``product``."""
    return mix_gradient(asked, *ctx.saved_tensors, *ctx.options), *[None] * 7


mix.register_autograd(gradient_of_inputs, setup_context=keep_inputs)
