"""Scores of many heads and queries from their queries and keys: relocated logits, attention and swaps in one kernel.

Where Triton runs, up to `MOST` keys move and all planes turn, a program takes one head and one query: it reads the
keys once, and no matrix of logits is ever stored. Elsewhere `possym.scores` does the same in several steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from possym.ensembles.last_token import query_logits
from possym.errors import InputError
from possym.kernels import device_context, jit, supported, swap_terms, tl, triton
from possym.scores import Scores, scores_by_temperature

MOST = 32  # keys that move: their matrix is held in registers
SIZE = 16  # planes worked on at a time
WARPS = 1  # of a program, for every 16 keys
_read: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # numbers of tensors on devices, which nothing keeps alive


def query_scores(
    queries: Tensor, keys: Tensor, *, frequencies: Tensor, layout: str, temperatures: Sequence[float]
) -> Scores:
    """Return the scores of the last Q positions' queries, each over all swaps of two keys before its own.

    Args:
        queries: (..., Q, D) contents of the queries of the last Q positions before rotation, the first of which has
            two keys before it at least.
        keys: (..., T, D) contents of all keys.
        frequencies, layout: see `possym.scores.relocated_logits`.
        temperatures: τ of the weights of swaps; S of them.

    Returns:
        positional and symbolic (S, ..., Q), entropy (..., Q).

    Raises:
        InputError: logits are not finite.

    >>> turn = dict(frequencies=torch.ones(1), layout="half")
    >>> query_scores(torch.ones(1, 2), torch.ones(4, 2), **turn, temperatures=[0.1]).entropy
    tensor([0.9939])
    """
    *_, count, width = keys.shape
    fits = count <= MOST + 1 and 2 * frequencies.shape[0] == width
    how = in_one_kernel if fits and supported(keys) else step_by_step
    found = how(queries, keys, frequencies, layout, temperatures)
    # What is not finite stays so in a sum: one kernel, where all() takes five.
    if not math.isfinite(found.entropy.sum().item()):
        raise InputError("logits of heads are not finite: check the model")
    return found


def step_by_step(
    queries: Tensor, keys: Tensor, frequencies: Tensor, layout: str, temperatures: Sequence[float]
) -> Scores:
    """Return what `query_scores` does, one query of all heads at a time."""
    count, asked = keys.shape[-2], queries.shape[-2]
    found = []
    for index in range(asked):
        upto = keys[..., : count - asked + index + 1, :]
        logits = query_logits(queries[..., index, :], upto, frequencies=frequencies, layout=layout)
        found.append(scores_by_temperature(*logits, temperatures))
    return Scores(*(torch.stack(each, -1) for each in zip(*found, strict=True)))


@jit
def load_planes(start, stride, rows, there, planes, first, SIZE: tl.constexpr, HALF: tl.constexpr):
    """Load both coordinates (ROWS, SIZE) of rows' planes from ``first`` on; rows that are not there hold zeros."""
    start += rows[:, None] * stride
    if HALF:
        plane = first + tl.arange(0, SIZE)
        inside = there[:, None] & (plane < planes)[None, :]
        x = tl.load(start + plane[None, :], mask=inside, other=0.0)
        y = tl.load(start + plane[None, :] + planes, mask=inside, other=0.0)
    else:  # as they lie together, in half as many accesses
        column = 2 * first + tl.arange(0, 2 * SIZE)
        inside = there[:, None] & (column < 2 * planes)[None, :]
        both = tl.load(start + column[None, :], mask=inside, other=0.0)
        x, y = tl.split(both.reshape(rows.shape[0], SIZE, 2))
    return x, y


@jit
def query_kernel(
    queries, keys, cosines, sines, temperatures, found, heads, asked, length, planes, scale,
    query_group, query_head, query_row, key_group, key_head, key_row,
    ROWS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, TEMPERATURES: tl.constexpr,
):  # fmt: skip
    """Write both scores of one head and query at each temperature, and the entropy of its attention.

    Cosines and sines (T, F) are those of distances. Queries and keys lie in groups of ``heads``, as far apart as said.
    ``HALF`` says whether planes pair dimensions k and k + D/2 rather than 2k and 2k + 1.
    """
    group = (tl.program_id(0) // asked // heads).to(tl.int64)
    head, index = (tl.program_id(0) // asked % heads).to(tl.int64), tl.program_id(0) % asked
    position = length - asked + index
    queries += group * query_group + head * query_head + index * query_row
    keys += group * key_group + head * key_head
    rows = tl.arange(0, ROWS)
    moved = rows < position
    relocated = tl.zeros((ROWS, ROWS), tl.float32)
    products = tl.zeros((1, SIZE), tl.float32)
    one = tl.arange(0, 1)
    for start in range(0, planes, SIZE):
        query_x, query_y = load_planes(queries, 0, one, one == 0, planes, start, SIZE, HALF)
        own_x, own_y = load_planes(keys + position * key_row, 0, one, one == 0, planes, start, SIZE, HALF)
        key_x, key_y = load_planes(keys, key_row, rows, moved, planes, start, SIZE, HALF)
        products += query_x * own_x
        products += query_y * own_y
        plane = start + tl.arange(0, SIZE)
        inside = moved[:, None] & (plane < planes)[None, :]
        turn = (position - rows)[:, None] * planes + plane[None, :]
        cos = tl.load(cosines + turn, mask=inside, other=0.0)
        sin = tl.load(sines + turn, mask=inside, other=0.0)
        along = key_x * query_x + key_y * query_y
        across = key_y * query_x - key_x * query_y
        relocated = tl.dot(along, tl.trans(cos), relocated, input_precision="tf32x3")
        relocated = tl.dot(across, tl.trans(sin), relocated, input_precision="tf32x3")
    relocated *= scale
    own_logit = tl.sum(tl.sum(products, 1), 0) * scale

    logits = tl.sum(tl.where(rows[:, None] == rows[None, :], relocated, 0.0), 1)
    most = tl.maximum(tl.max(tl.where(moved, logits, -float("inf")), 0), own_logit)
    attention = tl.where(moved, tl.exp(logits - most), 0.0)
    own_attention = tl.exp(own_logit - most)
    total = tl.sum(attention, 0) + own_attention
    mean = (tl.sum(attention * (logits - most), 0) + own_attention * (own_logit - most)) / total
    attention = attention / total

    swap = (rows[:, None] < rows[None, :]) & moved[None, :]
    before = (logits[None, :] - logits[:, None]) * 1.4426950
    straight, crossed = swap_terms(before, (relocated - tl.trans(relocated)) * 1.4426950, tl.where(swap, 1.0, 0.0))
    gap = tl.abs(attention[:, None] - attention[None, :])
    below = tl.minimum(gap - tl.max(tl.max(tl.where(swap, gap, 0.0), 1), 0), 0.0)
    found += tl.program_id(0).to(tl.int64) * (2 * TEMPERATURES + 1)
    for index in tl.static_range(TEMPERATURES):
        weight = tl.where(swap, tl.exp(below / tl.load(temperatures + index)), 0.0)
        weights = tl.sum(tl.sum(weight, 1), 0)
        tl.store(found + index, tl.sum(tl.sum(weight * straight, 1), 0) / weights)
        tl.store(found + TEMPERATURES + index, tl.sum(tl.sum(weight * crossed, 1), 0) / weights)
    tl.store(found + 2 * TEMPERATURES, tl.log(total) - mean)


def numbers_of(x: Tensor) -> tuple[float, ...]:
    """Return the numbers of a tensor (N,): a device is waited for once, until another or a change in place is given."""
    if x.device.type == "cpu" or x.is_inference():  # whose changes are not counted
        return tuple(x.tolist())
    mark = x._version, x.data_ptr()
    found = _read.get(x)
    if found is None or found[0] != mark:
        found = _read[x] = mark, tuple(x.tolist())
    return found[1]


@functools.lru_cache(16)
def tables(count: int, frequencies: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines (T, F) of distances, made once: to make them takes longer than to use them."""
    distances, turns = (torch.tensor(x, dtype=torch.float64, device="cpu") for x in (range(count), frequencies))
    angles = torch.outer(distances, turns).remainder(2 * math.pi)  # a cosine in float64 first, cast last
    return angles.cos().float().to(device), angles.sin().float().to(device)


@functools.lru_cache(16)
def on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers as a tensor on a device, made once."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def in_groups(x: Tensor) -> Tensor:
    """Return heads' rows (..., H, T, D) as (N, H, T, D), a view where they lie so."""
    heads = x.shape[-3] if x.ndim > 2 else 1
    x = x.reshape(-1, heads, *x.shape[-2:])
    return x if x.stride(-1) == 1 else x.contiguous()


def in_one_kernel(
    queries: Tensor, keys: Tensor, frequencies: Tensor, layout: str, temperatures: Sequence[float]
) -> Scores:
    """Return what `query_scores` does, in one kernel."""
    count, asked, planes = keys.shape[-2], queries.shape[-2], frequencies.shape[0]
    shape, columns = queries.shape[:-1], 2 * len(temperatures) + 1
    found = keys.new_empty(shape.numel(), columns)
    rows = max(16, triton.next_power_of_2(count - 1))
    queries, keys = in_groups(queries), in_groups(keys)
    with device_context(keys):
        query_kernel[(len(found),)](
            queries, keys, *tables(count, numbers_of(frequencies), keys.device),
            on_device(tuple(temperatures), keys.device), found, keys.shape[1], asked, count, planes,
            keys.shape[-1] ** -0.5, *queries.stride()[:3], *keys.stride()[:3],
            ROWS=rows, SIZE=SIZE, HALF=layout == "half", TEMPERATURES=len(temperatures),
            num_warps=WARPS * rows // 16,
        )  # fmt: skip
    found = found.T.view(columns, *shape)
    positional, symbolic, entropy = found.tensor_split((len(temperatures), columns - 1))
    return Scores(positional, symbolic, entropy[0])
