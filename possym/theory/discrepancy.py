"""Exact discrepancy and margin of the constructed heads over all inputs, and the β that a softmax needs.

A logit of T_Index or T_Retrieval depends on the input through few numbers, so all inputs of a length are
covered without drawing any: T_Index has one row of logits for each query value, and each key of T_Retrieval
chooses its left letter freely. Lengths n count the query, which sees all n positions.

- `index_gaps`, `retrieval_gaps`: largest minus second-largest logit, over all inputs.
- `index_bound`, `retrieval_bound`: the bounds of theorem 3.2.
- `retrieval_margin`: logit of the answer minus the best logit of a wrong token; negative where the head errs.
- `index_beta`, `retrieval_beta`, `lemma_beta`, `measured_beta`: the inverse temperature that a softmax needs.
- `retrieval_error_rate`, `index_error_rate`: how often a head errs on random inputs, beside the worst one.
- `first_error`, `nearest_turn`: where nearly equal cosines are no longer told apart in floating point.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from possym.errors import InputError, require_type
from possym.theory.heads import ConstructedHead, angle, turned, whole

HALVINGS = 40
PI = Fraction("3.14159265358979323846264338327950288419716939937510582097494459")


class Gaps(NamedTuple):
    """Smallest and largest discrepancy over the inputs of a length."""

    smallest: float
    largest: float


def index_gaps(length: int, theta: float) -> Tensor:
    """Return T_Index's largest minus second-largest logit for each query value, hence for all inputs.

    With σ positions back asked for, the logits are cos((d − σ)θ) at distances d = 0 … n−1: the largest is 1 at
    d = σ, the second is the largest cosine of mθ, 1 ≤ m ≤ max(σ, n−1−σ).

    Args:
        length: n, at least 2.
        theta: the angle, in radians per position.

    Returns:
        (n,) float64, entry σ for the query value σ (0: a letter).

    Source: 2605.31558, definition 3.1.

    >>> index_gaps(3, 0.8)
    tensor([0.3033, 0.3033, 0.3033], dtype=torch.float64)
    """
    length, theta = whole(length, "length", 2), angle(theta)
    best = (torch.arange(1, length, dtype=torch.float64) * theta).cos().cummax(0).values
    value = torch.arange(length)
    reach = torch.maximum(value, length - 1 - value)
    return 1 - best[reach - 1]


def index_bound(length: int, theta: float) -> float:
    """Return theorem 3.2's bound on T_Index's discrepancy, min{1 − cos θ, 2π²/n²}.

    >>> round(index_bound(100, 0.8), 6)
    0.001974
    """
    return min(1 - math.cos(angle(theta)), 2 * math.pi**2 / whole(length, "length", 2) ** 2)


def retrieval_logits(length: int, theta: float, alphabet: int) -> Tensor:
    """Return cos(δω + dθ), (n, |ALPH|): the logit of a key d positions back whose left letter is δ past the sought.

    >>> retrieval_logits(2, 0.1, 4)[1]
    tensor([ 0.9950, -0.0998, -0.9950,  0.0998], dtype=torch.float64)
    """
    length, alphabet, theta = whole(length, "length", 2), whole(alphabet, "alphabet", 2), angle(theta)
    ahead = torch.arange(alphabet, dtype=torch.float64) * (2 * math.pi / alphabet)
    back = torch.arange(length, dtype=torch.float64) * theta
    return (ahead + back[:, None]).cos()


def retrieval_gaps(length: int, theta: float, alphabet: int, single: bool = True) -> Gaps:
    """Return the smallest and largest discrepancy of T_Retrieval over all inputs of a length.

    Args:
        length: n, at least 2.
        theta: the angle, in radians per position.
        alphabet: |ALPH|, at least 2.
        single: count only inputs where exactly one key has the sought left letter; False counts every
            input with at least one (repeated tokens then compete with their own copies).

    Returns:
        `Gaps`, exact: each key's left letter is free but for the key that matches, and every key but the first
        two has only to stay below them.

    Source: 2605.31558, definition 3.1.

    >>> smallest, largest = retrieval_gaps(2, 0.1, 4)
    >>> round(smallest, 4), round(largest, 4)
    (0.9002, 1.995)
    """
    require_type(single, bool, "single")
    table = retrieval_logits(length, theta, alphabet)
    smallest, largest = math.inf, -math.inf
    for position in range(length):
        options = table.clone()
        if single:
            options[:, 0] = math.nan
        options[position] = math.nan
        options[position, 0] = table[position, 0]
        gaps = gaps_of_choices(options)
        smallest, largest = min(smallest, gaps.smallest), max(largest, gaps.largest)
    return Gaps(smallest, largest)


def gaps_of_choices(options: Tensor) -> Gaps:
    """Return the extremes of (largest − second-largest) when each row picks one of its entries; NaN is no entry.

    >>> gaps_of_choices(torch.tensor([[1.0, 5.0], [2.0, math.nan]]))
    Gaps(smallest=1.0, largest=3.0)
    """
    rows, width = options.shape
    least = options.nan_to_num(nan=math.inf).amin(-1)
    floor, holder = least.topk(min(3, rows))
    present = ~options.isnan()
    row = torch.arange(rows)[:, None].expand(rows, width)[present]
    value, order = options[present].sort(descending=True)
    row = row[order]
    # Largest gap: one row takes a value on top, every other row stays at its least.
    rest = torch.where(row == holder[0], floor[1], floor[0])
    largest = float((value - rest).max())
    # Smallest gap: neighbours in sorted order will do. Between two entries of different rows there is a first change
    # of row, and its gap is no larger and asks less of the others.
    top, second = row[:-1], row[1:]
    floors = torch.full_like(value[1:], -math.inf)
    for level, owner in zip(floor.flip(0), holder.flip(0), strict=True):
        floors = torch.where((top != owner) & (second != owner), level, floors)
    allowed = (top != second) & (value[1:] >= floors)
    return Gaps(float((value[:-1] - value[1:])[allowed].min()), largest)


def retrieval_bound(length: int, theta: float, alphabet: int) -> float:
    """Return theorem 3.2's bound on T_Retrieval's discrepancy, 1 − cos(ω − nθ).

    >>> round(retrieval_bound(100, 0.0027, 8), 4)
    0.1299
    """
    return 1 - math.cos(2 * math.pi / whole(alphabet, "alphabet", 2) - whole(length, "length", 2) * angle(theta))


def retrieval_margin(length: int, theta: float, alphabet: int, integer_query: bool = False) -> float:
    """Return T_Retrieval's smallest margin over all inputs: the answer's logit minus the best wrong token's.

    Where the margin is positive, hard attention is right on every input of the length; where it is negative,
    some input is answered wrongly.

    Args:
        length: n, at least 2.
        theta, alphabet: see `retrieval_gaps`.
        integer_query: the query is a letter–integer token, whose answer is itself, instead of a letter–letter
            token, whose answer stands at a key with the sought left letter.

    >>> retrieval_margin(100, 0.0027, 8) > 0 > retrieval_margin(200, 0.0027, 8)
    True
    """
    require_type(integer_query, bool, "integer_query")
    table = retrieval_logits(length, theta, alphabet)
    if integer_query:
        return float(1 - table[1:].max())
    wrong = table[:, 1:].amax(-1)
    best, at = wrong.topk(2)
    rival = torch.where(torch.arange(length) == at[0], best[1], best[0])
    return float((table[:, 0] - rival).min())


def retrieval_error_rate(length: int, theta: float, alphabet: int) -> float:
    """Return the error rate of T_Retrieval with hard attention on random inputs with one matching key.

    The match is equally likely at each of the n positions; every other key's left letter is drawn uniformly and
    independently from the |ALPH| − 1 wrong ones. So the rate has a closed form: a key is no rival if its wrong letter
    has a logit below the match's, and the answer is right if no key is a rival.

    Args:
        length, theta, alphabet: see `retrieval_gaps`.

    Returns:
        The share of inputs answered wrongly, ties counted as wrong.

    >>> round(retrieval_error_rate(147, 0.0027, 8), 6), round(retrieval_error_rate(290, 0.0027, 8), 3)
    (0.001944, 0.972)
    """
    table = retrieval_logits(length, theta, alphabet)
    match, wrong = table[:, 0], table[:, 1:].contiguous()
    # (position of the match, position of another key): share of wrong letters that stay below
    below = torch.stack([(wrong < logit).double().mean(-1) for logit in match])
    below.fill_diagonal_(1.0)
    return float(1 - below.prod(-1).mean())


def index_beta(length: int, theta: float) -> float:
    """Return the smallest β with which T_Index under a softmax is right on every valid input of a length.

    The residual holds the query's own token at 1 and the attended letter counts twice, so the right key needs
    more than half of the weight: Σ_m exp(−β(1 − cos mθ)) < 1 over the other keys, for the worst query value.

    Returns:
        β, where that sum reaches 1; infinity where another key ties with the right one.

    Source: 2605.31558, lemma F.1, made exact.

    >>> round(index_beta(3, 0.8), 4)
    2.2854
    """
    length, theta = whole(length, "length", 2), angle(theta)
    gaps = 1 - (torch.arange(length, dtype=torch.float64) * theta).cos()

    def worst(beta: float) -> float:
        terms = (-beta * gaps[1:]).exp().cumsum(0)
        terms = torch.cat([torch.zeros(1, dtype=torch.float64), terms])
        return float((terms + terms.flip(0)).max())

    return smallest_root(worst, float(gaps[1:].min()), length)


def retrieval_beta(length: int, theta: float, alphabet: int, integer_query: bool = False) -> float:
    """Return the smallest β with which T_Retrieval under a softmax is right on every input of a length.

    The answer's weight must exceed any other token's. In the worst input all keys but the answer hold one wrong
    token.

    Args:
        length, theta, alphabet, integer_query: see `retrieval_margin`.

    Returns:
        β; infinity where hard attention already errs.

    Source: 2605.31558, lemma F.1, made exact.

    >>> round(retrieval_beta(10, 0.0027, 8), 2)
    7.75
    """
    require_type(integer_query, bool, "integer_query")
    table = retrieval_logits(length, theta, alphabet)
    margin = retrieval_margin(length, theta, alphabet, integer_query)

    def worst(beta: float) -> float:
        wrong = (beta * (table - 1)).exp()
        if integer_query:
            return float(wrong[1:].sum(0).max())
        others = wrong[:, 1:].sum(0) - wrong[:, 1:]
        return float((others.amax(-1) / wrong[:, 0]).max())

    return smallest_root(worst, margin, length)


def lemma_beta(length: int, margin: float) -> float:
    """Return ln(n − 1)/margin: with a larger β the right key outweighs all n − 1 others together.

    Source: 2605.31558, lemma F.1, with the constant worked out.

    >>> round(lemma_beta(3, 0.5), 4)
    1.3863
    """
    margin = require_type(margin, (int, float), "margin")
    return math.log(whole(length, "length", 2) - 1) / margin if margin > 0 else math.inf


def smallest_root(worst, margin: float, length: int) -> float:
    """Return the smallest β ≥ 0 with worst(β) ≤ 1 for a decreasing function, by bisection."""
    if margin <= 0:
        return math.inf
    low, high = 0.0, lemma_beta(length, margin) * (1 + 1e-9) + 1e-9
    if worst(low) <= 1:
        return 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if worst(middle) <= 1 else (middle, high)
    return high


def measured_beta(head: ConstructedHead, tokens: Tensor, answer: Tensor, high: float) -> float:
    """Return the smallest β with which a head's softmax gives every answer at the last position, by bisection.

    Args:
        head: a constructed head.
        tokens: (B, n) int64 sequences.
        answer: (B,) int64 answers.
        high: a β with which all answers are right.

    Raises:
        InputError: an answer is wrong at ``high``.

    >>> from possym.theory import t_index
    >>> tokens = torch.tensor([[0, 1, 3]])
    >>> beta = measured_beta(t_index(torch.tensor([0, 0, 1, 2]), 0.8), tokens, torch.tensor([0]), high=100.0)
    >>> 0 < beta < index_beta(3, 0.8) + 1e-6
    True
    """

    require_type(head, ConstructedHead, "head")
    require_type(answer, Tensor, "answer")
    high = require_type(high, (int, float), "high")
    if answer.shape != head.check_tokens(tokens).shape[:-1] or answer.dtype != torch.int64:
        raise InputError(f"answer {tuple(answer.shape)} {answer.dtype}: give one int64 answer for each sequence")

    def right(beta: float) -> bool:
        return bool((head(tokens, beta)[..., -1] == answer).all())

    if not right(high):
        raise InputError(f"high = {high!r}: some answers are wrong with it; give a larger β, or check the head")
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if right(middle) else (middle, high)
    return high


def first_error(theta: float, dtype: torch.dtype, longest: int) -> int | None:
    """Return the shortest length at which T_Index, run in a floating-point type, confuses its key with another.

    Queries, keys and rotated vectors are rounded to ``dtype`` and their products summed in it; the angles are
    exact to float64. An error is any query value for which another key's logit reaches the right key's.

    Args:
        theta: the angle, in radians per position.
        dtype: a floating-point type.
        longest: lengths up to this are searched.

    Returns:
        The length, or None where there is no error up to ``longest``.

    >>> first_error(0.8, torch.bfloat16, 64)
    12
    """
    rival = rounded_rivals(theta, dtype, whole(longest, "longest", 2))
    if not rival.any():
        return None
    value, distance = rival.nonzero().unbind(1)
    return int(torch.maximum(value, distance).min()) + 1


def rounded_rivals(theta: float, dtype: torch.dtype, length: int) -> Tensor:
    """Return (n, n), query value by distance: whether a key's rounded logit reaches the right key's."""
    theta = angle(theta)
    require_type(dtype, torch.dtype, "dtype")
    if not dtype.is_floating_point:
        raise InputError(f"dtype = {dtype}: give a floating-point type, such as torch.bfloat16")
    position = torch.arange(length, dtype=torch.float64)
    query = turned(-position * theta).to(dtype)  # (value σ, 2)
    turn = (position * theta).remainder(2 * math.pi)  # (distance d,)
    cos, sin = turn.cos().to(dtype), turn.sin().to(dtype)
    # The key (0, 1) picks the second coordinate of the turned query.
    logits = query[:, :1] * sin + query[:, 1:] * cos  # (σ, d)
    return (logits >= logits.diagonal()[:, None]).fill_diagonal_(False)


def index_error_rate(theta: float, dtype: torch.dtype, length: int) -> float:
    """Return the share of query values for which T_Index, run in a floating-point type, confuses its key with another.

    Args:
        theta, dtype: see `first_error`.
        length: n; the query values 0 … n − 1 are alike.

    >>> index_error_rate(0.8, torch.bfloat16, 11), index_error_rate(0.8, torch.bfloat16, 12) > 0
    (0.0, True)
    """
    rival = rounded_rivals(theta, dtype, whole(length, "length", 2))
    return float(rival.any(-1).double().mean())


def nearest_turn(theta: float, closeness: float) -> int:
    """Return the smallest m ≥ 1 for which mθ is closer than ``closeness`` radians to a multiple of 2π.

    Distances that set a record are denominators of the continued fraction of θ/2π, worked out in exact
    fractions with π to 60 digits.

    Args:
        theta: the angle, in radians per position, not 0.
        closeness: radians, at least 1e-12.

    Raises:
        InputError: an angle of 0, or a closeness below what float64 angles can mean.

    >>> nearest_turn(1.0, 1e-4)
    710
    """
    closeness = require_type(closeness, (int, float), "closeness")
    exact = Fraction(angle(theta)) / (2 * PI)
    if exact == 0 or not closeness >= 1e-12:
        raise InputError(f"theta = {theta!r}, closeness = {closeness!r}: give an angle ≠ 0 and a closeness ≥ 1e-12")
    before, now, rest = 0, 1, exact
    while True:
        off = abs(now * exact - round(now * exact)) * 2 * PI
        if off < closeness:
            return now
        rest = 1 / (rest - math.floor(rest))
        before, now = now, math.floor(rest) * now + before
