"""A candidate for training on a GPU: rotation, causal softmax, dropout and mixing of up to 64 places in one kernel.

The kernel reads keys, values and queries where the block's first product left them and writes what attention mixes;
its gradient computes the weights again, so nothing between is stored. A program works on one head of one sequence.
`possym` does not use it: it has run in Triton's interpreter alone.

    python benchmarks/attention_kernel.py --interpret     numbers and gradients on the CPU, against float64
    python benchmarks/attention_kernel.py                 the same on a GPU, then milliseconds beside the trainer's

Needs triton. In the interpreter a tile's products are float32. On a GPU they are TF32, as the trainer's are, and in
evaluations three of TF32 for one of float32. A step is timed with it and without, and so are evaluations, as they are
and with blocks compiled as in training.
"""

import os
import time
from collections.abc import Callable

from common import median_ms, parser, report, synchronize

if __name__ == "__main__":  # before triton is imported, which reads the variable
    options = parser(__doc__.split("\n")[0], "attention_kernel.json")
    options.add_argument("--interpret", action="store_true", help="check on the CPU, in Triton's interpreter")
    options.add_argument("--members", type=int, nargs="+", default=[8, 32], help="sizes of ensembles")
    chosen = options.parse_args()
    if chosen.interpret:
        os.environ["TRITON_INTERPRET"] = "1"

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from training import data, ensemble
from triton import language as tl

from possym.dropout import GOLDEN, kept, keys_by_step, signed
from possym.errors import InputError
from possym.experiments import ensembles
from possym.experiments.ensembles import accuracy_by_hops
from possym.experiments.learning_dynamics import score_heads
from possym.models import gptj
from possym.models.ensemble import causal_attention, compiled, project
from possym.models.gptj import GPTJConfig, GPTJEnsemble
from possym.results import choose_device
from possym.rope import frequencies
from possym.training import training_dtype

STREAM = 1  # of a block's masks, the one of its attention weights
SIZE = 16  # planes worked on at a time: with more, registers spill
PLAIN = gptj.block


@triton.jit
def hashed(x):
    """`possym.dropout.mixed`: the second factor is 0x846CA68B as an int32."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
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


@triton.jit
def store_planes(start, rows, stride, inside, chunk, x, y, WIDTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr):
    """Store what `load_planes` loads."""
    if HALF:
        columns = chunk + tl.arange(0, SIZE)
        tl.store(start + rows[:, None] * stride + columns[None, :], x, mask=inside)
        tl.store(start + rows[:, None] * stride + columns[None, :] + WIDTH // 2, y, mask=inside)
    else:
        columns = 2 * chunk + tl.arange(0, 2 * SIZE)
        tl.store(start + rows[:, None] * stride + columns[None, :], tl.interleave(x, y), mask=inside)


@triton.jit
def load_turned(
    start, cosines, sines, rows, stride, inside, chunk, WIDTH: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr
):
    """Load as `load_planes` and turn each row by its place; return the cosines and sines too."""
    x, y = load_planes(start, rows, stride, inside, chunk, WIDTH, SIZE, HALF)
    table = rows[:, None] * (WIDTH // 2) + chunk + tl.arange(0, SIZE)[None, :]
    cos = tl.load(cosines + table, mask=inside, other=1.0)
    sin = tl.load(sines + table, mask=inside, other=0.0)
    return x * cos - y * sin, x * sin + y * cos, cos, sin


@triton.jit
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


@triton.jit
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


@triton.jit
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


def launch(kernel, joint: Tensor, tables: list[Tensor], keys: Tensor | None, heads: int, dropped: float, half: bool,
           precision: str, *given: Tensor) -> None:  # fmt: skip
    """Run a kernel over all heads of all sequences."""
    E, B, T, width = joint.shape
    D = width // (3 * heads)
    kernel[(E * B * heads,)](
        joint, *tables, joint if keys is None else keys, *given, B, T, joint.stride(2), D**-0.5,
        HEADS=heads, WIDTH=D, ROWS=max(16, triton.next_power_of_2(T)), SIZE=SIZE, HALF=half,
        THRESHOLD=0 if keys is None else round(dropped * 2**24), SHIFT=signed(STREAM * GOLDEN), PRECISION=precision,
        num_warps=4,
    )  # fmt: skip


def in_rows(joint: Tensor) -> Tensor:
    """Return ``joint`` (E, B, T, 3C) with its places one stride apart, as a slice of a product has them."""
    _, B, T, _ = joint.shape
    row = joint.stride(2)
    return joint if joint.stride() == (B * T * row, T * row, row, 1) else joint.contiguous()


@torch.library.custom_op("possym_candidate::attention", mutates_args=())
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


@torch.library.custom_op("possym_candidate::attention_gradient", mutates_args=())
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


def tables(angles: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (T, F) of every place, float32, from angles in float64."""
    turns = (torch.arange(length, dtype=torch.float64, device=angles.device)[:, None] * angles).remainder(2 * torch.pi)
    return turns.cos().float(), turns.sin().float()


def block(x, entry, output, angles, *, heads, cut, dropped, keys, attend):
    """`possym.models.gptj.block` with the kernel; a last layer that computes one place stays as it is."""
    if cut or attend is not None:
        return PLAIN(x, entry, output, angles, heads=heads, cut=cut, dropped=dropped, keys=keys, attend=attend)
    _, B, T, C = x.shape
    product = project(F.layer_norm(x, (C,)).to(entry[0].dtype), *entry)
    joint, hidden = product.split([3 * C, product.shape[-1] - 3 * C], -1)
    precision = "tf32" if torch.is_grad_enabled() else "tf32x3"
    mixed = attention(joint, *tables(angles, T), keys, heads, dropped, False, precision)
    attended = project(mixed, output[0])
    processed = project(F.gelu(hidden, approximate="tanh"), output[1], output[2])
    if dropped:
        attended = attended * kept(keys, 2, (B, T, C), dropped)
        processed = processed * kept(keys, 3, (B, T, C), dropped)
    return x + attended + processed


def enter(x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Return what a block does before its attention: queries, keys and values (E, B, T, H, D), and the MLP's input."""
    C = x.shape[-1]
    joint = project(F.layer_norm(x, (C,)).to(weight.dtype), weight, bias)
    key, value, query, hidden = joint.split([C, C, C, joint.shape[-1] - 3 * C], -1)
    return *(each.float().unflatten(-1, (heads, C // heads)) for each in (query, key, value)), hidden


def leave(x: Tensor, mixed: Tensor, hidden: Tensor, output: tuple[Tensor, ...]) -> Tensor:
    """Return what a block does after its attention."""
    attended = project(mixed.flatten(-2).to(hidden.dtype), output[0])
    return x + attended + project(F.gelu(hidden, approximate="tanh"), output[1], output[2])


def in_parts(used: Callable) -> Callable:
    """Return a block for evaluations: compiled, or where another function attends, compiled before and after that."""

    def run(x, entry, output, angles, *, heads, cut, dropped, keys, attend):
        if attend is None or cut:
            chosen = compiled(used) if attend is None else PLAIN
            return chosen(x, entry, output, angles, heads=heads, cut=cut, dropped=dropped, keys=keys, attend=attend)
        *contents, hidden = compiled(enter)(x, *entry, heads)
        return compiled(leave)(x, attend(*contents), hidden, output)

    return run


def evaluations(members: int, device: torch.device, validated: int, scored: int) -> list[dict]:
    """Return milliseconds of what a study measures at each of its points, as it is done and with blocks compiled.

    ``set-up s`` is the first call, ``difference`` the largest from how it is done.
    """
    model = GPTJEnsemble(GPTJConfig(136), range(members)).to(device)
    validation, tokens = data(members, validated, device), data(1, scored, device).tokens[0]
    functions = {
        "accuracy": lambda: accuracy_by_hops(model, validation, (1, 2, 3, 4), training_dtype(device)),
        "scores": lambda: score_heads(model, tokens, 1e-4),
    }
    rows, before, usual = [], {}, ensembles.MEMORY
    for how, used, memory in (
        ("as it is", PLAIN, usual),
        ("in larger pieces", PLAIN, 16 * usual),
        ("blocks compiled", in_parts(PLAIN), 16 * usual),
        ("compiled, with the kernel", in_parts(block), 16 * usual),
    ):
        gptj.block, ensembles.MEMORY = used, memory
        for what, function in functions.items():
            start = time.perf_counter()
            found = function()
            synchronize(device)
            spent = {"set-up s": time.perf_counter() - start, "ms": median_ms(function, device)}
            known = before.setdefault(what, found)
            far = max((found[name] - known[name]).abs().max().item() for name in known)
            rows.append({"what": f"{what}, {how}", "members": members, **spent, "difference": far})
    gptj.block, ensembles.MEMORY = PLAIN, usual
    return rows


def drawn(members: int, count: int, length: int, heads: int, width: int, dtype: torch.dtype, device: torch.device):
    """Return a product (E, B, T, 3C + 8) whose first columns are keys, values and queries, and dropout keys."""
    source = torch.Generator().manual_seed(length + heads)
    joint = torch.randn(members, count, length, 3 * heads * width + 8, generator=source).to(device, dtype)
    seeds = [torch.Generator().manual_seed(seed) for seed in range(members)]
    return joint, keys_by_step(seeds, 1)[0].to(device)


def difference(sizes: tuple[int, int, int, int, int], dtype: torch.dtype, half: bool, dropped: float, device) -> dict:
    """Return how far the kernel is from `causal_attention` in float64, in values and in gradients.

    Differences are the largest, in units of the largest value.
    """
    _, B, T, H, D = sizes
    wide, keys = drawn(*sizes, dtype, device)
    angles = frequencies(D).to(device)
    wide.requires_grad_()
    joint = wide[..., : 3 * H * D]
    options = (*tables(angles, T), keys if dropped else None, H, dropped, half)
    precision = "tf32x3" if dtype == torch.float32 else "tf32"
    found = attention(joint, *options, precision)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).to(found)
    (slope,) = torch.autograd.grad(found, wide, weight)
    exact = wide.detach().double().requires_grad_()
    key, value, query = (each.unflatten(-1, (H, D)) for each in exact[..., : 3 * H * D].chunk(3, -1))
    stays = kept(keys, STREAM, (B, H, T, T), dropped) if dropped else None
    layout = "half" if half else "interleaved"
    expected = causal_attention(query, key, value, frequencies=angles, layout=layout, kept=stays).flatten(-2)
    (exact_slope,) = torch.autograd.grad(expected, exact, weight.double())
    return {
        "members, sequences, places, heads, width": sizes,
        "dtype": str(dtype).removeprefix("torch."),
        "layout": layout,
        "dropped": dropped,
        "value": ((found - expected).abs().max() / expected.abs().max()).item(),
        "gradient": ((slope - exact_slope).abs().max() / exact_slope.abs().max()).item(),
    }


def same_masks(device: torch.device) -> bool:
    """Return whether the kernel drops exactly what `kept` drops: with unit vectors as values it mixes its weights."""
    E, B, T, H, D = 2, 3, 17, 2, 32
    joint, keys = drawn(E, B, T, H, D, torch.float32, device)
    joint = joint[..., : 3 * H * D].clone()
    joint[..., H * D : 2 * H * D] = F.pad(torch.eye(T, device=device), (0, D - T)).repeat(1, H)
    mixed = attention(joint, *tables(frequencies(D).to(device), T), keys, H, 0.4, False, "tf32x3")
    weights = mixed.unflatten(-1, (H, D))[..., :T].transpose(2, 3)  # (E, B, H, T, T)
    seen = torch.ones(T, T, dtype=torch.bool, device=device).tril()
    return torch.equal(weights > 0, kept(keys, STREAM, (B, H, T, T), 0.4) & seen)


def whole_block(device: torch.device) -> float:
    """Return how far `block` is from the trainer's own, in values and gradients, in units of the largest."""
    E, B, T, C, H = 2, 3, 17, 64, 2
    source = torch.Generator().manual_seed(0)
    shapes = (E, B, T, C), (E, C, 7 * C), (E, 1, 7 * C), (E, C, C), (E, 4 * C, C), (E, 1, C)
    given = [torch.randn(shape, generator=source).mul(0.3).to(device).requires_grad_() for shape in shapes]
    weight = torch.randn(shapes[0], generator=source).to(device)
    keys = drawn(E, 1, 1, 1, 1, torch.float32, device)[1]
    found = []
    for used in (PLAIN, block):
        x, entry, bias, *output = given
        options = {"heads": H, "cut": False, "dropped": 0.1, "keys": keys, "attend": None}
        value = used(x, (entry, bias), tuple(output), frequencies(C // H).to(device), **options)
        found.append([value, *torch.autograd.grad(value, given, weight)])
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(*found, strict=True))


def check(device: torch.device, members: int, count: int) -> list[dict]:
    """Return the differences for several shapes; raise an InputError where one is too large or a mask is another."""
    if not same_masks(device):
        raise InputError("the kernel drops other weights than possym.dropout.kept")
    far, bound = whole_block(device), 1e-5 if device.type == "cpu" else 2e-2  # TF32 keeps three figures
    if not far < bound:
        raise InputError(f"a block with the kernel is {far:g} from the trainer's: expected below {bound:g}")
    joint, keys = drawn(2, 2, 5, 2, 32, torch.float32, device)
    options = (*tables(frequencies(32).to(device), 5), keys, 2, 0.1, False, "tf32x3")
    torch.library.opcheck(attention, (joint[..., :192].detach().requires_grad_(), *options))
    rows = []
    for length, heads, width in ((17, 1, 128), (2, 2, 32), (16, 4, 32), (33, 2, 64)):
        for dtype, half, dropped in (
            (torch.float32, False, 0.0),
            (torch.float32, False, 0.1),
            (torch.float32, True, 0.5),
            (torch.bfloat16, False, 0.1),
        ):
            row = difference((members, count, length, heads, width), dtype, half, dropped, device)
            bound = 2e-2 if dtype == torch.bfloat16 else 1e-5 if device.type == "cpu" else 1e-4
            if not max(row["value"], row["gradient"]) < bound:
                raise InputError(f"{row}: expected differences below {bound}")
            rows.append(row)
    return rows


def main() -> None:
    """Run the checks, and on a GPU the benchmark."""
    if chosen.interpret:
        rows = check(torch.device("cpu"), 2, 2)
        for row in rows:
            print(row)
        return
    device = choose_device(chosen.device)
    if device.type != "cuda":
        raise InputError("the kernel runs on a GPU: give --interpret to check its numbers without one")
    torch._dynamo.config.recompile_limit = 256  # past its own limit of 8 sizes torch runs uncompiled
    checked = check(device, 4, 64)
    rows = []
    for count in chosen.members:
        for what, used in (("the trainer's step", PLAIN), ("with the kernel", block)):
            gptj.block = used
            spent = ensemble(GPTJConfig(136), count, 64, 60, device)
            rows.append({"what": what, "members": count, "ms": spent, "ms_per_model": spent / count})
        gptj.block = PLAIN
        rows += evaluations(count, device, 2_400, 1_000)
    report(rows, chosen.output, device, checked=checked)


if __name__ == "__main__":
    main()
