"""Positional and symbolic scores of an attention head, exactly and in closed form.

Everything follows from the *relocated logits* M: M[a, b] is the logit of key content a at the position of key b, for a
fixed query. The observed logits are the diagonal of M. A head is positional where M[a, b] depends on the position b
alone, symbolic where it depends on the content a alone.

- `relocated_logits` computes M from queries and keys before rotation, for whole heads or plane by plane.
- `swap_scores` turns M into the two scores of the papers, over all swaps of tokens or of blocks.
- `effective_swaps` counts the swaps that such a score rests on.
- `exclusion` turns M into the bound that prevents a head from being both.
- `purity` names a head's kind.
- `head_scores`, `scores_and_exclusion` and `plane_scores` do the same for `possym.profile`, without checks and in
  fewer passes; `head_scores` without ever holding a large matrix.

Float32 on a GPU without gradients goes through `possym.kernels` where Triton runs; all else goes band by band.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from possym import kernels
from possym.errors import InputError, require_type
from possym.rope import as_complex, as_float, as_positions, check_planes

# What `possym.profile` scores with unless told otherwise; the calibration in chapter 03 decided it.
DEFAULT_TEMPERATURE, DEFAULT_RELATIVE = 1.0, True
TINY = 1e-30  # what a relative difference of attention counts at least


class Scores(NamedTuple):
    """Positional score, symbolic score and attention entropy (nats), each of the leading shape."""

    positional: Tensor
    symbolic: Tensor
    entropy: Tensor


class Exclusion(NamedTuple):
    """Variance of the logits, the two squared deviations and the bound on the variance."""

    variance: Tensor
    positional_deviation: Tensor
    symbolic_deviation: Tensor
    bound: Tensor


def relocated_logits(
    query: Tensor,
    keys: Tensor,
    *,
    query_position: float,
    positions: Tensor,
    frequencies: Tensor,
    layout: str,
    scale: float | None = None,
    per_plane: bool = False,
) -> Tensor:
    """Return the logit of every key content at every key position.

    Args:
        query: (..., D) content of the query before rotation.
        keys: (..., T, D) contents of the keys before rotation; leading dimensions broadcast with the query's.
        query_position: the query's position, a number.
        positions: (T,) the keys' positions.
        frequencies: (F,) angles in radians per position; the dimensions past the first 2F do not rotate.
        layout: ``"interleaved"`` or ``"half"``, see `possym.rope`.
        scale: factor of every logit; None means 1/√D, for planes too, so that they add up to the head's.
        per_plane: return each plane's share instead of the sum; unrotated dimensions are left out.

    Returns:
        (..., T, T), with ``per_plane`` (..., F, T, T): entry [a, b] is the logit of key content a at
        ``positions[b]``. float64 if query or keys are float64, else float32.

    Raises:
        InputError: shapes, dtypes or values that do not fit.

    Source: 2511.11579, section 3; 2605.31558, appendix D.

    >>> from possym.rope import frequencies
    >>> keys = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> relocated_logits(keys[0], keys, query_position=1, positions=torch.tensor([0, 1]),
    ...                  frequencies=frequencies(2), layout="half", scale=1.0)
    tensor([[0.5403, 1.0000],
            [0.8415, 0.0000]])
    """
    query, keys = as_float(query, "query"), as_float(keys, "keys")
    if keys.ndim < 2 or keys.shape[-1] != query.shape[-1]:
        raise InputError(
            f"query {tuple(query.shape)} and keys {tuple(keys.shape)}: expected (..., D) and (..., T, D) with one D"
        )
    if query.device != keys.device:
        raise InputError(f"query is on {query.device}, keys are on {keys.device}: put both on one device")
    try:
        torch.broadcast_shapes(query.shape[:-1], keys.shape[:-2])
    except RuntimeError:
        raise InputError(
            f"query {tuple(query.shape)} and keys {tuple(keys.shape)}: the leading dimensions do not broadcast"
        ) from None
    positions = as_positions(positions, "positions", keys.device)
    if positions.shape != keys.shape[-2:-1]:
        raise InputError(f"positions {tuple(positions.shape)}: expected ({keys.shape[-2]},), one for each key")
    try:
        query_position = math.nan if isinstance(query_position, (bool, str)) else float(query_position)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        query_position = math.nan
    if not math.isfinite(query_position):
        raise InputError("query_position: give one finite number, the query's position")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    elif isinstance(scale, bool) or not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise InputError(f"scale = {scale!r}: give a finite number, or None for 1/√D")
    require_type(per_plane, bool, "per_plane")
    check_planes(query.shape[-1], frequencies, layout)
    dtype = torch.promote_types(query.dtype, keys.dtype)
    query, keys = query.to(dtype).unsqueeze(-2) * scale, keys.to(dtype)
    # As complex numbers, kᵀR(φ)q of one plane is Re(k q̄) cos φ + Im(k q̄) sin φ: one product with a key, then one
    # with the cosines and sines of all positions.
    key, asked = (as_complex(x, len(frequencies), layout) for x in (keys, query))
    parts = torch.view_as_real(key * asked.conj())
    angles = (frequencies.to(positions)[:, None] * (query_position - positions)).remainder(2 * math.pi)
    turns = torch.stack([angles.cos(), angles.sin()], 1).to(dtype)
    if per_plane:
        return torch.einsum("...afc,fcb->...fab", parts, turns)
    relocated = parts.flatten(-2) @ turns.flatten(0, 1)
    if 2 * len(frequencies) == query.shape[-1]:
        return relocated
    fixed = slice(2 * len(frequencies), None)
    return relocated + keys[..., fixed] @ query[..., fixed].mT


def swap_scores(
    relocated: Tensor,
    *,
    extra_logits: Tensor | None = None,
    blocks: list[tuple[int, int]] | None = None,
    temperature: float = 1e-4,
    relative: bool = False,
) -> Scores:
    """Score a head by the effect on its attention of swapping two blocks of keys.

    For each pair of blocks let v hold the mean attention of the first and the second position, and v′ the same after
    the swap. A positional head leaves v as it is, a symbolic head reverses it: positional = Σ α cos(v′, v), symbolic =
    Σ α cos(v′, reverse(v)), where α is a softmax over all pairs of δ / ``temperature``, δ being the difference of the
    two blocks' attention. With ``relative`` it is a softmax of log δ / ``temperature``: swaps count in proportion to
    δ^(1/τ), at τ = 1 to δ itself. Attention on keys that do not move divides every δ by one number, so it does not
    change these weights.

    Blocks of equal length exchange their tokens one for one: token t of one goes to position t of the other. Where
    lengths differ, the first position begins where the first block began, the second ends where the second block ended,
    the tokens between shift by the difference of the lengths, and each entry of v′ is the mean over the positions that
    the arriving block now occupies. (The shifted tokens change only the softmax's normaliser, which cancels in every
    cosine.)

    Args:
        relocated: (..., T, T) relocated logits, see `relocated_logits`.
        extra_logits: (..., X) logits of keys that are attended but never moved (the query's own token,
            sinks). They enter the softmax and the entropy alone.
        blocks: None for single tokens, else (start, stop) pairs in order and not overlapping, at least two.
            Keys outside every block take part in the attention.
        temperature: τ of the weights α, positive. 2605.31558 uses 1e-4.
        relative: weigh swaps by ratios of their differences, as `possym.profile` does at τ = 1.

    Returns:
        `Scores`; entropy, in nats, of the attention before any swap.

    Raises:
        InputError: shapes or blocks that do not fit, logits that are not finite, fewer than two keys.

    Source: 2511.11579, section 3; 2605.31558, appendix D.

    >>> by_position = torch.tensor([0.0, 1.0, 2.0]).expand(3, 3)
    >>> swap_scores(by_position)
    Scores(positional=tensor(1.), symbolic=tensor(0.2658), entropy=tensor(0.8324))
    """
    relocated = check_relocated(relocated)
    logits = relocated.diagonal(dim1=-2, dim2=-1)
    extra_logits, spans, temperature = check_swaps(logits, extra_logits, blocks, temperature, relative)
    attention, entropy = attend(logits, extra_logits)
    stakes = swap_stakes(logits, attention, spans, relative)
    if spans is None:
        straight, crossed, total = token_swaps(relocated, swap_weights(stakes, temperature, relative))[:3]
        return Scores(straight / total, crossed / total, entropy)
    return Scores(*block_swaps(relocated, stakes, *spans, temperature, relative), entropy)


def effective_swaps(
    logits: Tensor,
    *,
    extra_logits: Tensor | None = None,
    blocks: list[tuple[int, int]] | None = None,
    temperature: float = 1e-4,
    relative: bool = False,
) -> Tensor:
    """Return how many swaps the scores of `swap_scores` rest on: the exponential of the entropy of α.

    It is 1 if a single swap counts, and the number of pairs if all swaps count equally.

    Args:
        logits: (..., T) observed logits, the diagonal of the relocated logits.
        extra_logits, blocks, temperature, relative: as in `swap_scores`.

    Returns:
        The leading shape, float64.

    Raises:
        InputError: shapes or blocks that do not fit, logits that are not finite, fewer than two keys.

    >>> logits, sink = torch.tensor([0.0, 0.0, 9.0]), torch.tensor([20.0])
    >>> [round(float(effective_swaps(logits, extra_logits=x, temperature=0.1)), 2) for x in (None, sink)]
    [2.0, 3.0]
    >>> round(float(effective_swaps(logits, extra_logits=sink, temperature=1.0, relative=True)), 2)
    2.0
    """
    logits = as_float(logits, "logits")
    if logits.shape[-1] < 2:
        raise InputError(f"logits {tuple(logits.shape)}: expected (..., T) with at least two keys")
    if not logits.isfinite().all():
        raise InputError("logits holds values that are not finite: leave masked keys out, and check the model")
    extra_logits, spans, temperature = check_swaps(logits, extra_logits, blocks, temperature, relative)
    attention, _ = attend(logits, extra_logits)
    stakes = swap_stakes(logits, attention, spans, relative)
    return count_relative_swaps(stakes, temperature) if relative else count_swaps(stakes, temperature)


def scores_and_exclusion(
    relocated: Tensor,
    extra_logits: Tensor,
    blocks: list[tuple[int, int]] | None,
    temperature: float,
    relative: bool = False,
) -> tuple[Scores, Exclusion, Tensor]:
    """Return what `swap_scores`, `exclusion` and `effective_swaps` do, of logits that are not checked.

    What is not finite stays so.

    >>> relocated = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    >>> scores, exclusion, swaps = scores_and_exclusion(relocated, torch.zeros(1), None, 0.1)
    >>> scores.positional, exclusion.bound, swaps
    (tensor(1.), tensor(0.5000), tensor(1., dtype=torch.float64))
    """
    logits = relocated.diagonal(dim1=-2, dim2=-1)
    spans = None if blocks is None else check_blocks(blocks, relocated.shape[-1])
    attention, entropy = attend(logits, extra_logits)
    stakes = swap_stakes(logits, attention, spans, relative)
    if spans is None:
        sums = token_swaps(relocated, swap_weights(stakes, temperature, relative), every=True)
        return from_sums(sums, logits, entropy, stakes, temperature, relative)
    positional, symbolic = block_swaps(relocated, stakes, *spans, temperature, relative)
    swaps = (count_relative_swaps if relative else count_swaps)(stakes, temperature)
    return Scores(positional, symbolic, entropy), bounded(logits, *deviations(relocated)), swaps


def head_scores(
    contents: Tensor | kernels.Products,
    positions: Tensor,
    extra_logits: Tensor,
    temperature: float,
    softcap: float | None,
    entries: int,
    relative: bool = False,
) -> tuple[Scores, Exclusion, Tensor, Tensor]:
    """Return what `scores_and_exclusion` does over all swaps of tokens, of logits that are products; and the observed.

    What is one number a key is done for all heads at once. No head's matrix of logits is ever whole, unless it is
    small: a GPU makes and sums it tile by tile, else it is made a band of rows and a band of columns at a time.

    Args:
        contents: (..., T, K) what each key holds, or `possym.kernels.Products` of them.
        positions: (T, K) what each position makes of it: the relocated logits are contents · positionsᵀ, softcapped.
            Those of a model in bfloat16 may come in it, with which a GPU is faster.
        extra_logits: (..., X) logits of what is attended but never moved.
        temperature: τ of the weights of swaps.
        softcap: c of c·tanh(logit/c), or None.
        entries: of relocated logits at a time, of a few rows and columns at least.
        relative: as in `swap_scores`.

    >>> contents, positions = torch.ones(2, 1), torch.tensor([[0.0], [1.0]])
    >>> scores, exclusion, _, observed = head_scores(contents, positions, torch.zeros(1), 0.1, None, 4)
    >>> scores.positional, exclusion.bound, observed
    (tensor(1.), tensor(0.5000), tensor([0., 1.]))
    """
    count, shape = len(positions), extra_logits.shape[:-1]
    if not isinstance(contents, kernels.Products):
        contents = contents.reshape(-1, *contents.shape[-2:])
        if kernels.supported(contents) and kernels.takes_products(contents.device):
            contents = kernels.as_products(contents, positions)
    if isinstance(contents, kernels.Products):
        observed = contents.observed
    else:
        positions = positions.to(contents)
        observed = (contents * positions).sum(-1)
    observed = capped(observed, softcap).view(*shape, count)
    attention, entropy = attend(observed, extra_logits)
    stakes = swap_stakes(observed, attention, None, relative)
    weights = swap_weights(stakes, temperature, relative)
    logits, first, second = (x.reshape(-1, count) for x in (observed, *weights[:2]))
    if isinstance(contents, kernels.Products):
        sums = kernels.product_sums(contents, (logits, first, second), weights.power, softcap).T
    else:
        step = max(1, entries // count**2)
        rows = rows_of_a_band(count, entries)
        found = []
        for start in range(0, len(contents), step):
            some = contents[start : start + step]

            def band(here: slice, after: slice, some: Tensor = some) -> tuple[Tensor, Tensor]:
                upper, lower = some[:, here] @ positions[after].mT, positions[here] @ some[:, after].mT
                return capped(upper, softcap), capped(lower, softcap)

            here = slice(start, start + step)
            how = SwapWeights(first[here], second[here], weights.power)
            found.append(swap_bands(logits[here], how, band, rows, every=True))
        sums = torch.cat(found, 1)
    return *from_sums(sums.view(-1, *shape), observed, entropy, stakes, temperature, relative), observed


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Return logits after a softcap, if there is one."""
    return logits if softcap is None else (logits / softcap).tanh_().mul_(softcap)


def rows_of_a_band(count: int, entries: int) -> int:
    """Return how many rows of one head's (count, count) matrix are made at once, sixteen at least.

    >>> rows_of_a_band(64, 4096), rows_of_a_band(64, 2048)
    (64, 32)
    """
    return min(count, max(1, entries // (count * 16)) * 16)


def scores_by_temperature(relocated: Tensor, extra_logits: Tensor, temperatures: Sequence[float]) -> Scores:
    """Return the scores over all swaps of tokens, positional and symbolic (temperatures, ...), of logits not checked.

    >>> relocated = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    >>> scores_by_temperature(relocated, torch.zeros(1), (1e-4, 0.1)).positional
    tensor([1., 1.])
    """
    attention, entropy = attend(relocated.diagonal(dim1=-2, dim2=-1), extra_logits)
    found = [token_swaps(relocated, swap_weights(attention, temperature, False)) for temperature in temperatures]
    straight, crossed, total = torch.stack(found, 1)[:3]
    return Scores(straight / total, crossed / total, entropy)


def plane_scores(
    keys: Tensor, rotated: Tensor, extra_logits: Tensor, temperature: float, relative: bool = False
) -> tuple[Scores, Tensor]:
    """Return the scores of single planes over all swaps of tokens, and their logits, without a matrix of logits.

    Args:
        keys: (..., 2, T) key contents in each plane.
        rotated: (..., 2, T) the query as each position sees it, scaled: the relocated logits are keysᵀ · rotated.
        extra_logits: (..., X) logits of what is attended but never moved.
        temperature, relative: as in `swap_scores`.

    >>> keys, rotated = torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0], [1.0, 2.0]])
    >>> scores, logits = plane_scores(keys, rotated, torch.zeros(1), 0.1)
    >>> scores == swap_scores(keys.mT @ rotated, extra_logits=torch.zeros(1), temperature=0.1), logits
    (True, tensor([1., 2.]))
    """
    logits = (keys * rotated).sum(-2)
    attention, entropy = attend(logits, extra_logits)
    weights = swap_weights(swap_stakes(logits, attention, None, relative), temperature, relative)
    if kernels.supported(keys):
        straight, crossed, total = kernels.plane_sums(keys, rotated, *weights).unbind(-1)
        return Scores(straight / total, crossed / total, entropy), logits

    def product(x: Tensor, y: Tensor, rows: slice, columns: slice) -> Tensor:
        x, y = x[..., rows].unsqueeze(-1), y[..., columns].unsqueeze(-2)
        return torch.addcmul(x[..., 0, :, :] * y[..., 0, :, :], x[..., 1, :, :], y[..., 1, :, :])

    def band(here: slice, after: slice) -> tuple[Tensor, Tensor]:
        return product(keys, rotated, here, after), product(rotated, keys, here, after)

    straight, crossed, total = swap_bands(logits, weights, band, band_rows(logits))
    return Scores(straight / total, crossed / total, entropy), logits


def from_sums(
    sums: Tensor, logits: Tensor, entropy: Tensor, stakes: Tensor, temperature: float, relative: bool
) -> tuple[Scores, Exclusion, Tensor]:
    """Return what `scores_and_exclusion` does, of all six sums over swaps (6, ...) that `swap_bands` makes."""
    if relative:
        total, logs = sums[2:4].double()
        swaps = (total.log() - logs / (temperature * total)).exp()
    else:
        swaps = count_swaps(stakes, temperature)
    positional, symbolic = sums[:2] / sums[2]
    return Scores(positional, symbolic, entropy), bounded(logits, *sums[4:]), swaps


def attend(logits: Tensor, extra_logits: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the attention of the keys (..., T) beside what else is attended, and the entropy of it all."""
    everything = logits if extra_logits is None else torch.cat([logits, extra_logits.to(logits)], -1)
    log_attention = everything.log_softmax(-1)
    attention = log_attention.exp()
    return attention[..., : logits.shape[-1]], -(attention * log_attention).sum(-1)


def swap_stakes(logits: Tensor, attention: Tensor, spans: tuple[Tensor, Tensor] | None, relative: bool) -> Tensor:
    """Return what each token or block holds (..., N), whose differences weigh the swaps.

    That is its mean attention or, if ``relative``, where it stands between the least attended, 0, and the most, 1. The
    latter comes from the logits, since the attention may have underflowed or been rounded.
    """
    if not relative:
        return attention if spans is None else over_spans(lambda a, b: attention[..., a:b].mean(-1), *spans)
    if spans is not None:
        logits = over_spans(lambda a, b: logits[..., a:b].logsumexp(-1) - math.log(b - a), *spans)
    least, most = logits.aminmax(dim=-1, keepdim=True)
    # e^l − e^least as e^l (1 − e^(least − l)) loses no digits where attention is little, nor where it hardly differs.
    largest = (least - most).expm1()
    return (logits - most).exp() * (least - logits).expm1() / torch.where(largest < 0, largest, -1)


def over_spans(of_span: Callable[[int, int], Tensor], starts: Tensor, stops: Tensor) -> Tensor:
    """Return one value for each span (..., N)."""
    return torch.stack([of_span(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)], -1)


def least_gap(stakes: Tensor) -> Tensor:
    """Return what a difference of relative stakes (..., N) counts at least (..., 1): 1 where there is no difference."""
    return torch.where(stakes.amax(-1, keepdim=True) > 0, TINY, 1.0).to(stakes)


def count_relative_swaps(stakes: Tensor, temperature: float) -> Tensor:
    """Return exp(H(α)), float64, of relative weights, a band of rows at a time."""
    count, floor = stakes.shape[-1], least_gap(stakes).unsqueeze(-1)
    total, logs = (stakes.new_zeros(stakes.shape[:-1], dtype=torch.float64) for _ in range(2))
    rows = band_rows(stakes)
    for start in range(0, count - 1, rows):
        gap = (stakes[..., start : start + rows].unsqueeze(-1) - stakes[..., start:].unsqueeze(-2)).abs()
        log = torch.maximum(gap, floor).log() / temperature
        weight = log.exp().triu(1)
        total += weight.sum((-2, -1), dtype=torch.float64)
        logs += (weight * log).sum((-2, -1), dtype=torch.float64)
    return (total.log() - logs / total).exp()


def count_swaps(stakes: Tensor, temperature: float) -> Tensor:
    """Return exp(H(α)), float64, of absolute weights, from what each token or block holds (..., N).

    Sorted from the most attended on, a swap's weight is a product of one factor each, as in `swap_weights`, and both
    Σ w and Σ w log w are sums of products with running totals: no pair is visited.
    """
    held = stakes.double().sort(-1, descending=True).values
    first, second = (held - held[..., :1]) / temperature, (held[..., -1:] - held) / temperature
    larger, smaller = first.exp(), second.exp()[..., 1:]
    before = larger.cumsum(-1)[..., :-1]
    logs = (larger * first).cumsum(-1)[..., :-1] + before * second[..., 1:]
    total = (smaller * before).sum(-1)
    return (total.log() - (smaller * logs).sum(-1) / total).exp()


def block_swaps(
    relocated: Tensor, stakes: Tensor, starts: Tensor, stops: Tensor, temperature: float, relative: bool
) -> tuple[Tensor, Tensor]:
    """Return Σ α cos(v′, v) and Σ α cos(v′, reverse(v)) over all pairs of blocks."""
    first, second = torch.triu_indices(len(starts), len(starts), 1, device=relocated.device)
    starts, stops = starts.to(relocated.device), stops.to(relocated.device)
    own = run_mean(relocated, starts, starts, stops - starts)
    before = own[..., first], own[..., second]
    lengths = stops - starts
    after = (
        run_mean(relocated, starts[second], starts[first], lengths[second]),
        run_mean(relocated, starts[first], stops[second] - lengths[first], lengths[first]),
    )
    same, crossed = pair_cosines(*before, *after)
    gap = (stakes[..., first] - stakes[..., second]).abs()
    weight = ((torch.maximum(gap, least_gap(stakes)).log() if relative else gap) / temperature).softmax(-1)
    return (weight * same).sum(-1), (weight * crossed).sum(-1)


class SwapWeights(NamedTuple):
    """Two vectors (..., T) of which every swap's weight is made, and how.

    Where ``power`` is 0, the weight is the larger of first_i · second_j and second_i · first_j. Else it is the larger
    of |first_i − first_j| and second_i, to this power.
    """

    first: Tensor
    second: Tensor
    power: float


def swap_weights(stakes: Tensor, temperature: float, relative: bool) -> SwapWeights:
    """Return the weights of swaps from what each token holds (..., T).

    Absolute ones need no exponential of a swap: |d_i − d_j| = (max − min) − (max − d_larger) − (d_smaller − min).
    """
    if relative:
        return SwapWeights(stakes, least_gap(stakes).expand_as(stakes), 1 / temperature)
    larger = ((stakes - stakes.amax(-1, keepdim=True)) / temperature).exp()
    smaller = ((stakes.amin(-1, keepdim=True) - stakes) / temperature).exp()
    return SwapWeights(larger, smaller, 0.0)


def token_swaps(relocated: Tensor, weights: SwapWeights, every: bool = False) -> Tensor:
    """Return the sums of `swap_bands` over all pairs of single tokens, given the whole matrix."""
    logits = relocated.diagonal(dim1=-2, dim2=-1)
    rows = relocated.shape[-1] if kernels.supported(relocated) else band_rows(logits)
    return swap_bands(
        logits, weights, lambda here, after: (relocated[..., here, after], relocated[..., after, here].mT), rows, every
    )


def swap_bands(
    logits: Tensor,
    weights: SwapWeights,
    band: Callable[[slice, slice], tuple[Tensor, Tensor]],
    rows: int,
    every: bool = False,
) -> Tensor:
    """Return sums over all pairs of single tokens (3, ...), with ``every`` (6, ...), a band of rows at a time.

    In turn: weight · cos(v′, v), weight · cos(v′, reverse(v)), the weights; weight · log |first_i − first_j| where
    weights are relative, and the positional and the symbolic deviation of `exclusion`.

    ``band`` gives the relocated logits of the contents ``here`` at the positions ``after``, and those of the contents
    ``after`` at the positions ``here``, both with ``here`` as rows.
    """
    count = logits.shape[-1]
    fused = kernels.supported(logits)
    found = []
    for start in range(0, count - 1, rows):
        here, after = slice(start, min(start + rows, count)), slice(start, count)
        upper, lower = band(here, after)
        if fused:
            parts = [vector[..., after] for vector in (logits, weights.first, weights.second)]
            found.append(kernels.head_sums(upper, lower.mT, parts, weights.power).movedim(-1, 0))
            continue
        vectors = [vector[..., part] for vector in (logits, weights.first, weights.second) for part in (here, after)]
        sums = band_of_swaps(upper, lower, vectors, weights.power, every)
        found.append(sums if not every else torch.cat([sums, band_of_deviations(upper, lower, *vectors[:2])]))
    return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def band_rows(vectors: Tensor) -> int:
    """Return how many rows of all heads' matrices (..., T, T) are worked on at once, given vectors (..., T) of them."""
    return max(1, (2**24 if vectors.is_cuda else 2**16 * torch.get_num_threads()) // (vectors.numel() or 1))


def band_of_swaps(
    upper: Tensor,
    lower: Tensor,
    vectors: Sequence[Tensor],
    power: float,
    every: bool,
) -> Tensor:
    """Return the first three sums of `swap_bands` over a band (3, ...), with ``every`` the fourth too (4, ...).

    ``vectors`` are the observed logits, and first and second of `SwapWeights`, each of the rows and of the columns,
    which begin with the rows' own keys.

    With r and s the ratios of the two entries of v and of v′, the cosines are (1 + rs)/n and (r + s)/n where
    n² = (1 + r²)(1 + s²). Ratios past e^±limit are cut there: the cosines change by less than rounding, and n² stays
    finite. No value that a gradient needs is overwritten.
    """
    limit = 100.0 if upper.dtype == torch.float64 else 20.0
    logits_here, logits_after, first_here, first_after, second_here, second_after = vectors
    r = (logits_after.unsqueeze(-2) - logits_here.unsqueeze(-1)).clamp_(-limit, limit).exp_()
    s = (upper - lower).clamp_(-limit, limit).exp_()
    logs = None
    if power:
        gap = (first_here.unsqueeze(-1) - first_after.unsqueeze(-2)).abs()
        gap = torch.maximum(gap, second_here.unsqueeze(-1))
        weight = gap if power == 1 else gap.pow(power)
        logs = gap.log() if every else None
    else:
        weight = first_here.unsqueeze(-1) * second_after.unsqueeze(-2)
        weight = torch.maximum(weight, second_here.unsqueeze(-1) * first_after.unsqueeze(-2))
    weight[..., : weight.shape[-2]].triu_(1)
    one = upper.new_ones(())
    share = torch.addcmul(one, r, r).mul_(torch.addcmul(one, s, s)).rsqrt_() * weight
    turned = share * r
    straight, crossed = torch.addcmul(share, turned, s), torch.addcmul(turned, share, s)
    sums = [part.sum((-2, -1)) for part in (straight, crossed, weight)]
    if every:
        sums.append(torch.zeros_like(sums[0]) if logs is None else (logs * weight).sum((-2, -1)))
    return torch.stack(sums)


def band_of_deviations(upper: Tensor, lower: Tensor, here: Tensor, after: Tensor) -> Tensor:
    """Return the last two sums of `swap_bands` over a band (2, ...), given the observed logits of rows and columns."""
    rows, columns = here.unsqueeze(-1), after.unsqueeze(-2)
    count = upper.shape[-2]
    lower, beyond = lower[..., count:], columns[..., count:]  # what the band has of it before, ``upper`` has too
    pairs = ((upper - columns, lower - rows), (upper - rows, lower - beyond))
    norms = [[torch.linalg.vector_norm(x, dim=(-2, -1)).square() for x in pair] for pair in pairs]
    return torch.stack([a + b for a, b in norms])


def pair_cosines(v1: Tensor, v2: Tensor, w1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos((e^w1, e^w2), (e^v1, e^v2)) and the same with v reversed, from logarithms.

    Each pair is divided by its larger entry first: the cosine does not change, and nothing under- or overflows.
    """
    v, w = (torch.stack([a, b]) for a, b in ((v1, v2), (w1, w2)))
    v, w = ((pair - pair.amax(0)).exp() for pair in (v, w))
    norm = v.norm(dim=0) * w.norm(dim=0)
    return (v[0] * w[0] + v[1] * w[1]) / norm, (v[0] * w[1] + v[1] * w[0]) / norm


def run_mean(relocated: Tensor, contents: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
    """Return the log of the mean of e^M along runs M[content + t, position + t], t < length; (..., runs)."""
    steps = torch.arange(int(lengths.max()), device=relocated.device)
    inside = steps < lengths[:, None]
    count = relocated.shape[-1]
    index = (contents[:, None] + steps).clamp(max=count - 1) * count + (positions[:, None] + steps).clamp(max=count - 1)
    values = relocated.flatten(-2)[..., index].masked_fill(~inside, -math.inf)
    return values.logsumexp(-1) - lengths.to(relocated.dtype).log()


def exclusion(relocated: Tensor) -> Exclusion:
    """Return the variance of a head's logits and the bound on it from the two deviations.

    With M the relocated logits of N keys, positional deviation A = Σ (M[a, b] − M[b, b])², symbolic deviation
    B = Σ (M[a, b] − M[a, a])², and the exclusion principle reads variance ≤ (A + B)/N²: a head that is nearly
    both is nearly uniform.

    Args:
        relocated: (..., N, N) relocated logits.

    Returns:
        `Exclusion`, each entry of the leading shape; the variance divides by N.

    Raises:
        InputError: not square, fewer than two keys, or values that are not finite.

    Source: 2511.11579, theorem 1; its N! permutations summed in closed form.

    >>> purely_positional = exclusion(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    >>> purely_positional.positional_deviation, purely_positional.variance, purely_positional.bound
    (tensor(0.), tensor(0.2500), tensor(0.5000))
    """
    relocated = check_relocated(relocated)
    return bounded(relocated.diagonal(dim1=-2, dim2=-1), *deviations(relocated))


def deviations(relocated: Tensor) -> list[Tensor]:
    """Return the positional and the symbolic deviation of `exclusion`."""
    logits = relocated.diagonal(dim1=-2, dim2=-1)
    return [torch.linalg.vector_norm(relocated - logits.unsqueeze(dim), dim=(-2, -1)).square() for dim in (-2, -1)]


def bounded(logits: Tensor, positional: Tensor, symbolic: Tensor) -> Exclusion:
    """Return the variance of logits (..., N) beside two deviations and the bound that they put on it."""
    bound = (positional + symbolic) / logits.shape[-1] ** 2
    return Exclusion((logits - logits.mean(-1, keepdim=True)).square().mean(-1), positional, symbolic, bound)


def purity(positional: Tensor, symbolic: Tensor, gamma: float = 0.1) -> Tensor:
    """Return 1 for a purely positional head, −1 for a purely symbolic one, 0 for neither (int8).

    Pure means that one score is at least 1 − ``gamma`` and the other at most ``gamma``.

    Args:
        positional, symbolic: scores of one shape.
        gamma: between 0 and 0.5, exclusive. 2605.31558 uses 0.1 and 0.05.

    Raises:
        InputError: shapes differ, or ``gamma`` is out of range.

    >>> purity(torch.tensor([0.97, 0.50, 0.02]), torch.tensor([0.03, 0.50, 0.99]))
    tensor([ 1,  0, -1], dtype=torch.int8)
    """
    for name, score in (("positional", positional), ("symbolic", symbolic)):
        require_type(score, Tensor, name)
        if score.is_complex():
            raise InputError(f"{name} is {score.dtype}: give real scores")
    if positional.shape != symbolic.shape:
        shapes = f"positional {tuple(positional.shape)} and symbolic {tuple(symbolic.shape)}"
        raise InputError(f"{shapes}: give two tensors of one shape")
    gamma = require_type(gamma, (int, float), "gamma")
    if not 0 < gamma < 0.5:
        raise InputError(f"gamma = {gamma!r}: give a number between 0 and 0.5")
    high, low = 1 - gamma, gamma
    is_positional = (positional >= high) & (symbolic <= low)
    is_symbolic = (symbolic >= high) & (positional <= low)
    return is_positional.to(torch.int8) - is_symbolic.to(torch.int8)


def check_relocated(relocated: Tensor) -> Tensor:
    """Return relocated logits in float32 or float64, or raise an InputError that says what is wrong."""
    relocated = as_float(relocated, "relocated")
    if relocated.ndim < 2 or relocated.shape[-1] != relocated.shape[-2] or relocated.shape[-1] < 2:
        raise InputError(f"relocated {tuple(relocated.shape)}: expected (..., T, T) with at least two keys")
    if relocated.numel() and not torch.stack(relocated.aminmax()).isfinite().all():
        raise InputError("relocated holds values that are not finite: leave masked keys out, and check the model")
    return relocated


def check_swaps(
    logits: Tensor,
    extra_logits: Tensor | None,
    blocks: list[tuple[int, int]] | None,
    temperature: float,
    relative: bool,
) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None, float]:
    """Return extra logits, spans and temperature as scores take them, or raise an InputError."""
    require_type(relative, bool, "relative")
    temperature = require_type(temperature, (int, float), "temperature")
    if not 1e-30 <= temperature <= 1e30:  # float32 takes others for 0 or infinity
        raise InputError(f"temperature = {temperature!r}: give a positive number, from 1e-30 to 1e30")
    if extra_logits is not None:
        extra_logits = as_float(extra_logits, "extra_logits")
        try:
            extra_logits = extra_logits.expand(*logits.shape[:-1], -1)
        except RuntimeError:
            raise InputError(
                f"extra_logits {tuple(extra_logits.shape)}: expected (..., X) with the leading shape of "
                f"{tuple(logits.shape[:-1])} heads"
            ) from None
        if not extra_logits.isfinite().all():
            raise InputError("extra_logits holds values that are not finite: leave masked keys out")
    spans = None if blocks is None else check_blocks(blocks, logits.shape[-1])
    return extra_logits, spans, float(temperature)


def check_blocks(blocks: list[tuple[int, int]], count: int) -> tuple[Tensor, Tensor]:
    """Return the starts and stops of blocks among ``count`` keys, or raise an InputError."""
    try:
        pairs = [(int(start), int(stop)) for start, stop in blocks]
        whole = all(a == b and c == d for (a, c), (b, d) in zip(pairs, blocks, strict=True))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise InputError(f"blocks = {blocks!r}: expected None or a list of (start, stop) pairs") from None
    if not whole:
        raise InputError(f"blocks = {blocks!r}: starts and stops are whole numbers")
    if len(pairs) < 2:
        raise InputError(f"blocks = {blocks!r}: a swap needs at least two blocks")
    end = 0
    for start, stop in pairs:
        if start < end or stop <= start or stop > count:
            raise InputError(
                f"block ({start}, {stop}): blocks lie within the {count} keys, in order, not empty, not overlapping"
            )
        end = stop
    starts, stops = torch.tensor(pairs, device="cpu").unbind(1)  # whatever the default device
    return starts, stops
