"""The weight of each RoPE plane in a head's attention, and the queries and keys of a head in one plane.

The logits of a head are the sum of its planes' logits (`possym.rope`), so a plane's part can be weighed. 2605.31558,
Table 1, gives a *dominant frequency*, a weighted average of frequency IDs, without saying how it is weighted. Four
readings, each of the last token's query and all keys that it sees, mean over sequences:
- ``norm``: the L2 norm of the plane's logits λ over the keys, Σ_j λ_j² its square;
- ``energy``: that square;
- ``variance``: the variance of the logits over the keys, since what all keys share moves no attention;
- ``effect``: the amount by which the plane raises the attended logit above the mean, |Σ_j α_j λ_j − mean_j λ_j|, with α
  the whole head's attention.

Sizes: E members, L layers, B sequences, T positions, H heads, F planes.
"""

from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.attention import causal_attention
from possym.ensembles.gptj import GPTJEnsemble
from possym.errors import InputError, require_type
from possym.rope import planes, rotate
from possym.tasks.batch import Task

WEIGHTINGS = ("norm", "energy", "variance", "effect")


def plane_weights(model: GPTJEnsemble, tokens: Tensor) -> dict[str, Tensor]:
    """Return each plane's weight in every head by every weighting, (E, L, H, F).

    Memory grows with E · L · B · T · C.

    Args:
        model: the ensemble.
        tokens: (E, B, T), or (B, T) that all members read.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0])
    >>> plane_weights(model, torch.arange(6)[None])["variance"].shape
    torch.Size([1, 2, 1, 4])
    """
    with torch.no_grad():
        queries, keys, _ = model.trace(tokens)  # (E, L, B, H, D), (E, L, B, H, T, D)
    T, angles = keys.shape[-2], model.config.frequencies
    query = planes(rotate(queries, T - 1, angles, "interleaved"), angles, "interleaved")
    key = planes(rotate(keys, torch.arange(T), angles, "interleaved"), angles, "interleaved")
    logits = torch.einsum("...fi,...tfi->...tf", query, key) * model.config.head_width**-0.5  # (E, L, B, H, T, F)
    attention = logits.sum(-1).softmax(-1)  # all dimensions of a GPT-J head of these sizes turn
    raised = torch.einsum("...t,...tf->...f", attention, logits) - logits.mean(-2)
    found = {
        "norm": logits.norm(dim=-2),
        "energy": logits.square().sum(-2),
        "variance": logits.var(-2, correction=0),
        "effect": raised.abs(),
    }
    return {name: values.mean(2) for name, values in found.items()}


def dominant_frequency(weights: Tensor) -> Tensor:
    """Return the weighted average of frequency IDs (1 is the fastest) of plane weights (..., F).

    Source: 2605.31558, Table 1.

    >>> dominant_frequency(torch.tensor([0.0, 1.0, 1.0]))
    tensor(2.5000)
    """
    require_type(weights, Tensor, "weights")
    if weights.ndim == 0 or not weights.is_floating_point() or (weights < 0).any() or (weights.sum(-1) == 0).any():
        raise InputError(f"weights {tuple(weights.shape)} {weights.dtype}: give (..., F) from 0, not all 0")
    ids = torch.arange(1, weights.shape[-1] + 1, device=weights.device, dtype=weights.dtype)
    return (weights * ids).sum(-1) / weights.sum(-1)


class Contents(NamedTuple):
    """Queries, keys and values of every layer and position before rotation, each (E, L, B, T, H, D)."""

    queries: Tensor
    keys: Tensor
    values: Tensor


def contents(model: GPTJEnsemble, tokens: Tensor) -> Contents:
    """Return the contents that every head reads at every position. Memory grows with E · L · B · T · C.

    Args:
        model: the ensemble.
        tokens: (E, B, T), or (B, T) that all members read.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0])
    >>> contents(model, torch.zeros(3, 5, dtype=torch.int64)).keys.shape
    torch.Size([1, 2, 3, 5, 1, 8])
    """
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found.append((query, key, value))
        return causal_attention(query, key, value, frequencies=model.config.frequencies)

    with torch.no_grad():
        model(tokens, all_positions=True, attend=attend)
    return Contents(*(torch.stack(each, 1) for each in zip(*found, strict=True)))


def plane_contents(
    model: GPTJEnsemble, task: Task, tokens: Tensor, *, layer: int, frequency_id: int, member: int = 0, head: int = 0
) -> pd.DataFrame:
    """Return queries and keys of all positions of one sequence in one plane of a head, before and after rotation.

    Args:
        model: the ensemble.
        task: names the tokens.
        tokens: (T,) one sequence.
        layer, member, head: which head, from 0.
        frequency_id: which plane, 1 is the fastest.

    Returns:
        place, token, kind (``query`` or ``key``), x and y before rotation, turned_x and turned_y at its position. Two
        rotated vectors' product, times 1/√D, is the plane's part of the logit.

    Source: 2605.31558, Fig. 4.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> from possym.tasks import LetterTask
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=128, layers=2, width=8), seeds=[0])
    >>> task = LetterTask()
    >>> len(plane_contents(model, task, task.sample(1).tokens[0], layer=1, frequency_id=2))
    34
    """
    angles = model.config.frequencies
    found = contents(model, tokens[None])
    rows = []
    names = task.decode(tokens)
    for kind, vectors in (("query", found.queries), ("key", found.keys)):
        own = vectors[member, layer, 0, :, head]  # (T, D)
        rotated = rotate(own, torch.arange(len(tokens)), angles, "interleaved")
        plain, after = (planes(each, angles, "interleaved")[:, frequency_id - 1].tolist() for each in (own, rotated))
        rows += [
            (position, token, kind, *before, *behind)
            for position, (token, before, behind) in enumerate(zip(names, plain, after, strict=True))
        ]
    return pd.DataFrame(rows, columns=["place", "token", "kind", "x", "y", "turned_x", "turned_y"])


def strongest_planes(model: GPTJEnsemble, task: Task, tokens: Tensor) -> pd.DataFrame:
    """Return `plane_contents` of the first member and head in every layer's plane of most energy, sequence by sequence.

    Args:
        model: the ensemble.
        task: names the tokens.
        tokens: (B, T), a few sequences; the planes are chosen on them together.

    Returns:
        The columns of `plane_contents` and layer, sequence (from 1), frequency_id and asks (the last token's query).
    """
    found = plane_weights(model, tokens)["energy"][0, :, 0].argmax(-1) + 1
    frames = []
    for layer, frequency_id in enumerate(found.tolist()):
        for sequence, row in enumerate(tokens, 1):
            table = plane_contents(model, task, row, layer=layer, frequency_id=frequency_id)
            asks = (table["kind"] == "query") & (table["place"] == len(row) - 1)
            frames.append(table.assign(layer=layer, sequence=sequence, frequency_id=frequency_id, asks=asks))
    return pd.concat(frames, ignore_index=True)
