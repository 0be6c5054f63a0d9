"""What a head with one angle can do in principle: margins of hard attention on the canonical tasks.

A margin is the smallest gap, over all inputs of a length, between the logit of the position to attend and the
largest other logit, for a head whose queries and keys have norm at most 1 in each plane. With a positive margin a
large enough factor solves the task with softmax, up to that length (2605.31558, lemma F.1); the smaller the
margin, the larger the weights have to grow.

- `smallest_turn` and `index_margin`: why Index has a best angle, and the very fastest are not it.
- `one_plane_induction` and `many_plane_induction`: one angle is enough for Partial induction.
- `induction_margin`: how large a gap those two leave.
"""

import math

import torch
from torch import Tensor


def smallest_turn(angle: float, length: int) -> float:
    """Return how close two positions come on the circle: the smallest |k·angle| modulo 2π for k = 1 … length − 2.

    Args:
        angle: radians per position.
        length: number of tokens, the query included; the length − 1 before it are told apart.

    >>> smallest_turn(0.1, 32)
    0.1
    >>> round(smallest_turn(1.0, 32), 3)
    0.133
    """
    return min(abs(math.remainder(k * angle, 2 * math.pi)) for k in range(1, length - 1))


def index_margin(angle: float, length: int) -> float:
    """Return the margin of T_Index: 1 − cos of the smallest turn.

    It is at most 1 − cos(2π/(length − 1)), reached where the positions stand evenly round the circle. Below that
    angle neighbours are too close; above it the positions wrap round and land beside each other.

    Source: 2605.31558, theorems 3.1 and 3.2 (the construction and the bound).

    >>> round(index_margin(0.1, 32), 4), round(index_margin(0.9, 32), 4)
    (0.005, 0.0001)
    """
    return 1 - math.cos(smallest_turn(angle, length))


def one_plane_induction(symbols: int, length: int) -> tuple[float, Tensor, Tensor]:
    """Return an angle and phases with which one plane of one angle solves Partial induction by hard attention.

    The symbols stand evenly round the circle; their keys' phases also shift with the distance, but all distances
    together shift less than half the way from one symbol to the next, so symbols never meet; and the nearest
    match has the largest cosine.

    Returns:
        angle; phases (symbols,) of the queries and of the keys, in radians. The logit of symbol k at distance d
        for query symbol q is cos(d·angle + query_phase[q] − key_phase[k]).

    >>> angle, query, key = one_plane_induction(8, 32)
    >>> round(angle, 4)
    0.0063
    """
    apart = 2 * math.pi / symbols
    phases = torch.arange(symbols, dtype=torch.float64) * apart
    return apart / (4 * (length - 1)), phases + apart / 8, phases


def many_plane_induction(symbols: int, length: int) -> tuple[float, Tensor]:
    """Return an angle and phase with which one plane per symbol, all of one angle, solve Partial induction.

    Query and key of a symbol lie in the symbol's own plane, so other symbols have logit 0, and a match at
    distance d has cos(d·angle + phase), which falls with d and stays above 1/2.

    >>> angle, phase = many_plane_induction(8, 32)
    >>> round(math.cos(31 * angle + phase), 3)
    0.5
    """
    return math.pi / (6 * (length - 1)), math.pi / 6


def induction_margin(planes: str, symbols: int, length: int) -> float:
    """Return the margin of `one_plane_induction` (``"one"``) or `many_plane_induction` (``"many"``).

    The nearest match against the next nearest is the closest race: the farthest match is still well above every
    other symbol.

    >>> round(induction_margin("one", 8, 32), 5), round(induction_margin("many", 8, 32), 5)
    (0.00068, 0.00881)
    """
    if planes == "one":
        angle, query, key = one_plane_induction(symbols, length)
        phase = float(query[0] - key[0])
    else:
        angle, phase = many_plane_induction(symbols, length)
    return math.cos(angle + phase) - math.cos(2 * angle + phase)


def induction_logits(planes: str, symbols: int, length: int) -> tuple[float, Tensor]:
    """Return the construction as an angle and a complex table (symbols, symbols) of query by key symbol.

    The logit of key symbol k at distance d is the real part of table[q, k] · exp(i·d·angle). With one plane the
    table has rank 1: amplitude and phase are products of the query's and the key's. With P planes it is any table
    of rank P, which is all that more planes of one angle add.

    >>> angle, table = induction_logits("one", 4, 8)
    >>> int(torch.linalg.matrix_rank(table))
    1
    """
    if planes == "one":
        angle, query, key = one_plane_induction(symbols, length)
        return angle, torch.polar(torch.ones(symbols, symbols, dtype=torch.float64), query[:, None] - key)
    angle, phase = many_plane_induction(symbols, length)
    own = torch.eye(symbols, dtype=torch.float64)
    return angle, torch.polar(own, torch.full_like(own, phase))
