"""What is one number a key or a head of `possym.scores.head_scores`, in one kernel before its swaps and one after.

- `attend_keys` makes, of observed logits, what relative weights of swaps are made of, and what a head attends to.
- `head_values` adds the sums over swaps, and puts all that is said of a head side by side.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from possym.kernels.arithmetic import device_context, jit, tanh, tl

KEYS = 1024  # that a program has at once
TILES = 256  # of sums over swaps, likewise


@jit
def split_exponential(x):
    """Return p and s of eˣ = s · (1 + p), s a power of two and p near 0, to a unit of the last place; x is at most 0.

    So eˣ − 1 is s · p + (s − 1), which loses no digits where x is little.
    """
    x = tl.minimum(tl.maximum(x, -87.0, propagate_nan=tl.PropagateNan.ALL), 0.0, propagate_nan=tl.PropagateNan.ALL)
    whole = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = x - whole * 0.693145751953125 - whole * 1.42860682030941723e-6
    series = 1.0 / 720.0 + rest * (1.0 / 5040.0)
    series = 1.0 / 120.0 + rest * series
    series = 1.0 / 24.0 + rest * series
    series = 1.0 / 6.0 + rest * series
    series = 0.5 + rest * series
    power = ((tl.maximum(whole, -126.0) + 127.0).to(tl.int32) << 23).to(tl.float32, bitcast=True)
    return rest + rest * rest * series, power


@jit
def exponential(x):
    """Return eˣ of numbers up to 0."""
    part, power = split_exponential(x)
    return tl.where(x < -87.0, 0.0, power * part + power)


@jit
def exponential_less_one(x):
    """Return eˣ − 1 of numbers up to 0."""
    part, power = split_exponential(x)
    return power * part + (power - 1.0)


@jit
def seen_logits(observed, key, seen, cap, CAPPED: tl.constexpr):
    """Return logits of keys that the query sees, after a softcap if there is one, and zeros beyond them."""
    x = tl.load(observed + key, mask=key < seen, other=0.0)
    return tanh(x / cap) * cap if CAPPED else x


@jit
def attend_kernel(
    observed, sinks, places, logits, first, second, found, count, tokens, width, query, cap,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Do what `attend_keys` does for one head, of ``tokens`` keys that it sees, the first ``count`` of which move.

    ``width`` is how many heads there are sinks for.
    """
    head = tl.program_id(0)
    observed += head.to(tl.int64) * tokens
    start = head.to(tl.int64) * count
    step = tl.arange(0, KEYS)
    most = tl.full((KEYS,), float("-inf"), tl.float32)
    least = tl.full((KEYS,), float("inf"), tl.float32)
    others = tl.full((KEYS,), float("-inf"), tl.float32)
    total = tl.zeros((KEYS,), tl.float32)
    for block in range(0, tokens, KEYS):
        key = block + step
        x, moves = seen_logits(observed, key, tokens, cap, CAPPED), key < count
        tl.store(logits + start + key, x, mask=moves)
        most = tl.where(moves, tl.maximum(most, x), most)
        least = tl.where(moves, tl.minimum(least, x), least)
        others = tl.where((key >= count) & (key < tokens), tl.maximum(others, x), others)
        total += tl.where(moves, x, 0.0)
    largest = tl.max(most, 0)
    smallest = tl.min(least, 0)
    highest = tl.maximum(largest, tl.max(others, 0))
    mean = tl.sum(total, 0) / count
    range_of_keys = exponential_less_one(smallest - largest)
    divisor = tl.where(range_of_keys < 0, range_of_keys, -1.0)
    gap = tl.where(range_of_keys < 0, 1e-30, 1.0)
    sink = 0.0
    if SINKS:
        sink = tl.load(sinks + head % width)
        highest = tl.maximum(highest, sink)
    shares = tl.zeros((KEYS,), tl.float32)
    moved = tl.zeros((KEYS,), tl.float32)
    at_first = tl.zeros((KEYS,), tl.float32)
    at_itself = tl.zeros((KEYS,), tl.float32)
    back = tl.zeros((KEYS,), tl.float32)
    logs = tl.zeros((KEYS,), tl.float32)
    squares = tl.zeros((KEYS,), tl.float32)
    for block in range(0, tokens, KEYS):
        key = block + step
        inside, moves = key < tokens, key < count
        x = seen_logits(observed, key, tokens, cap, CAPPED)
        place = tl.load(places + key, mask=inside, other=0)
        share = tl.where(inside, exponential(x - highest), 0.0)
        shares += share
        moved += tl.where(moves, share, 0.0)
        at_first += tl.where(place == 0, share, 0.0)
        at_itself += tl.where(place == query, share, 0.0)
        back += share * (query - place).to(tl.float32)
        logs += tl.where(inside, share * (x - highest), 0.0)
        far = x - mean
        squares += tl.where(moves, far * far, 0.0)
        stake = exponential(x - largest) * exponential_less_one(smallest - x) / divisor
        tl.store(first + start + key, stake, mask=moves)
        tl.store(second + start + key, tl.zeros((KEYS,), tl.float32) + gap, mask=moves)
    seen = tl.sum(shares, 0)
    everything = seen
    log = tl.sum(logs, 0)
    if SINKS:
        share_of_sink = exponential(sink - highest)
        everything += share_of_sink
        log += share_of_sink * (sink - highest)
    found += head * 6
    tl.store(found, (tl.log(everything.to(tl.float64)) - log / everything).to(tl.float32))
    tl.store(found + 1, tl.sum(squares, 0) / count)
    tl.store(found + 2, tl.sum(moved, 0) / everything)
    tl.store(found + 3, tl.sum(at_first, 0) / everything)
    tl.store(found + 4, tl.sum(at_itself, 0) / everything)
    tl.store(found + 5, tl.sum(back, 0) / seen)


@jit
def values_kernel(sums, attended, values, heads, count, tiles, temperature, TILES: tl.constexpr):
    """Do what `head_values` does for one head."""
    head = tl.program_id(0)
    sums += head.to(tl.int64) * tiles * 6
    step = tl.arange(0, TILES)
    straight = tl.zeros((TILES,), tl.float64)
    crossed = tl.zeros((TILES,), tl.float64)
    weights = tl.zeros((TILES,), tl.float64)
    logs = tl.zeros((TILES,), tl.float64)
    far = tl.zeros((TILES,), tl.float64)
    for block in range(0, tiles, TILES):
        entry = sums + (block + step) * 6
        inside = block + step < tiles
        straight += tl.load(entry, mask=inside, other=0.0).to(tl.float64)
        crossed += tl.load(entry + 1, mask=inside, other=0.0).to(tl.float64)
        weights += tl.load(entry + 2, mask=inside, other=0.0).to(tl.float64)
        logs += tl.load(entry + 3, mask=inside, other=0.0).to(tl.float64)
        far += tl.load(entry + 4, mask=inside, other=0.0).to(tl.float64)
        far += tl.load(entry + 5, mask=inside, other=0.0).to(tl.float64)
    weight = tl.sum(weights, 0)
    swaps = tl.exp(tl.log(weight) - tl.sum(logs, 0) / (weight * temperature))
    values += head
    tl.store(values, (tl.sum(straight, 0) / weight).to(tl.float32))
    tl.store(values + heads, (tl.sum(crossed, 0) / weight).to(tl.float32))
    tl.store(values + 2 * heads, tl.load(attended + head * 6))
    tl.store(values + 3 * heads, tl.load(attended + head * 6 + 1))
    tl.store(values + 4 * heads, (tl.sum(far, 0) / count / count).to(tl.float32))
    tl.store(values + 5 * heads, swaps.to(tl.float32))
    for k in tl.static_range(4):
        tl.store(values + (6 + k) * heads, tl.load(attended + head * 6 + 2 + k))


class Attended(NamedTuple):
    """Of H heads and the N keys that move: logits after the softcap, `possym.scores.SwapWeights` of relative weights,
    each (H, N); and (H, 6) entropy, variance of these logits, and the last four of `possym.capture.LayerScores`."""

    logits: Tensor
    first: Tensor
    second: Tensor
    values: Tensor


def attend_keys(
    observed: Tensor, places: Tensor, count: int, query: int, cap: float | None, sinks: Tensor | None
) -> Attended:
    """Return what relative weights of swaps are made of, and what every head attends to.

    Args:
        observed: (H, S) logits of the keys that the query sees, before the softcap, those that move first.
        places: (S,) their positions.
        count: how many of them move, at least two.
        query: the query's position.
        cap: c of c·tanh(logit/c), or None.
        sinks: logits of sinks, one a head, over and over, or None.
    """
    heads, tokens = observed.shape
    logits, first, second = observed.new_empty(3, heads, count)
    values = observed.new_empty(heads, 6)
    with device_context(observed):
        attend_kernel[(heads,)](
            observed, observed if sinks is None else sinks, places, logits, first, second, values, count, tokens,
            1 if sinks is None else len(sinks), query, float(cap or 1),
            CAPPED=cap is not None, SINKS=sinks is not None, KEYS=KEYS, num_warps=4,
        )  # fmt: skip
    return Attended(logits, first, second, values)


def head_values(sums: Tensor, attended: Attended, temperature: float) -> Tensor:
    """Return `possym.capture.LayerScores` (10, H) of what `attend_keys` found and sums over swaps (H, tiles, 6)."""
    heads, tiles, _ = sums.shape
    values = sums.new_empty(10, heads)
    with device_context(sums):
        values_kernel[(heads,)](
            sums, attended.values, values, heads, attended.logits.shape[1], tiles, float(temperature),
            TILES=TILES, num_warps=4,
        )  # fmt: skip
    return values
