"""Heads of an ensemble as seen from the last place: relocated logits, attention, one swap at a time."""

from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.gptj import GPTJEnsemble
from possym.errors import InputError, as_whole, need
from possym.rope import as_float
from possym.scores import check_relocated, relocated_logits, swap_scores


class LastPlace(NamedTuple):
    """Relocated logits (E, L, B, H, T−1, T−1) of the keys before the last place, and its own logit (E, L, B, H, 1)."""

    relocated: Tensor
    own: Tensor


def last_place(model: GPTJEnsemble, tokens: Tensor) -> LastPlace:
    """Return what the last token's query sees in every head: the keys before it movable, its own key not.

    Args:
        model: an ensemble of E members with L layers of H heads.
        tokens: (B, T) token ids, T ≥ 3.

    Raises:
        InputError: tokens of the wrong shape, dtype or range.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0])
    >>> relocated, own = last_place(model, torch.zeros(3, 5, dtype=torch.int64))
    >>> relocated.shape, own.shape
    (torch.Size([1, 2, 3, 1, 4, 4]), torch.Size([1, 2, 3, 1, 1]))
    """
    need(model, GPTJEnsemble, "model")
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] < 3:
        shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise InputError(f"tokens {shape}: expected (B, T) token ids with T of at least 3")
    with torch.no_grad():
        queries, keys, _ = model.trace(tokens)
    last = tokens.shape[1] - 1
    relocated = relocated_logits(
        queries,
        keys[..., :last, :],
        query_position=last,
        positions=torch.arange(last),
        frequencies=model.config.frequencies,
        layout="interleaved",
    )
    own = (queries * keys[..., last, :]).sum(-1, keepdim=True) * model.config.head_width**-0.5
    return LastPlace(relocated, own)


def attention(relocated: Tensor, own: Tensor) -> Tensor:
    """Return the attention (..., T) of the last place over the keys where they are, its own last.

    >>> attention(torch.zeros(3, 3), torch.zeros(1))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    logits = check_relocated(relocated).diagonal(dim1=-2, dim2=-1)
    return torch.cat([logits, unmoved(own, logits)], -1).softmax(-1)


def swapped_attention(relocated: Tensor, own: Tensor, first: int, second: int) -> Tensor:
    """Return the attention (..., T) after the keys at two places have changed places.

    Raises:
        InputError: a place that holds no movable key.

    >>> by_content = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    >>> swapped_attention(by_content, torch.zeros(1), 0, 1).argmax()
    tensor(0)
    """
    count = check_relocated(relocated).shape[-1]
    for place in (first, second):
        found = as_whole(place)
        if found is None or not 0 <= found < count:
            raise InputError(f"place {place!r}: movable keys are at places 0 to {count - 1}")
    content = torch.arange(count)
    content[[first, second]] = content[[second, first]]
    moved = relocated[..., content, torch.arange(count)]
    return torch.cat([moved, unmoved(own, moved)], -1).softmax(-1)


def unmoved(own: Tensor, logits: Tensor) -> Tensor:
    """Return the logits (..., X) of keys that stay, in the dtype and leading shape of the movable keys' (..., T)."""
    try:
        return as_float(own, "own").to(logits.dtype).expand(*logits.shape[:-1], -1)
    except RuntimeError:
        shapes = f"own {tuple(own.shape)} beside logits {tuple(logits.shape)}"
        raise InputError(f"{shapes}: expected (..., X) and (..., T) with one leading shape") from None


def plane_table(
    model: GPTJEnsemble, tokens: Tensor, *, member: int = 0, layer: int, head: int = 0, temperature: float
) -> pd.DataFrame:
    """Return scores and logit norm of every RoPE plane of one head, each plane taken as a head of its own.

    The query is the last token; the keys before it are moved. Values are means over the sequences.

    Args:
        model: the ensemble.
        tokens: (B, T) token ids.
        member, layer, head: which head.
        temperature: τ of the weights over swaps.

    Returns:
        frequency_id (1 is the fastest), angle (radians a place), positional, symbolic, logit_norm (L2 norm of the
        plane's observed logits).

    Source: 2511.11579, scores by frequency.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0])
    >>> plane_table(model, torch.arange(5)[None], layer=1, temperature=0.1)["frequency_id"].tolist()
    [1, 2, 3, 4]
    """
    need(model, GPTJEnsemble, "model")
    sizes = {"member": model.members, "layer": model.config.layers, "head": model.config.heads}
    member, layer, head = (need(n, int, name) for name, n in zip(sizes, (member, layer, head), strict=True))
    for (name, size), number in zip(sizes.items(), (member, layer, head), strict=True):
        if not 0 <= number < size:
            raise InputError(f"{name} = {number}: this model has {name}s 0 to {size - 1}")
    with torch.no_grad():
        queries, keys, _ = model.trace(tokens)
    last = tokens.shape[1] - 1
    angles = model.config.frequencies
    relocated = relocated_logits(
        queries[member, layer, :, head],
        keys[member, layer, :, head, :last],
        query_position=last,
        positions=torch.arange(last),
        frequencies=angles,
        layout="interleaved",
        per_plane=True,
    )
    scores = swap_scores(relocated, temperature=temperature)
    norm = relocated.diagonal(dim1=-2, dim2=-1).norm(dim=-1)
    return pd.DataFrame(
        {
            "frequency_id": range(1, len(angles) + 1),
            "angle": angles.numpy(),
            "positional": scores.positional.mean(0).numpy(),
            "symbolic": scores.symbolic.mean(0).numpy(),
            "logit_norm": norm.mean(0).numpy(),
        }
    )
