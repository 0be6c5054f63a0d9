"""Relocated logits and attention of an ensemble's heads for the last token, and single swaps."""

from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.scores import relocated_logits, swap_scores


class QueryLogits(NamedTuple):
    """Relocated logits (..., T−1, T−1) of the keys before a query, and the logit (..., 1) of the query's own key."""

    relocated: Tensor
    extra_logits: Tensor


def query_logits(queries: Tensor, keys: Tensor, *, frequencies: Tensor, layout: str) -> QueryLogits:
    """Return the relocated logits of the keys before a query, and the logit of its own key, which never moves.

    Args:
        queries: (..., D) contents of the queries before rotation; each stands at the last key.
        keys: (..., T, D) contents of the keys up to the query's own.
        frequencies, layout: see `possym.scores.relocated_logits`.

    >>> turn = dict(frequencies=torch.ones(1), layout="half")
    >>> relocated, extra_logits = query_logits(torch.ones(2), torch.ones(4, 2), **turn)
    >>> relocated.shape, extra_logits
    (torch.Size([3, 3]), tensor([1.4142]))
    """
    last = keys.shape[-2] - 1
    relocated = relocated_logits(
        queries,
        keys[..., :last, :],
        query_position=last,
        positions=torch.arange(last),
        frequencies=frequencies,
        layout=layout,
    )
    return QueryLogits(relocated, (queries * keys[..., last, :]).sum(-1, keepdim=True) * queries.shape[-1] ** -0.5)


def last_token_logits(model: Ensemble, tokens: Tensor) -> QueryLogits:
    """Return `query_logits` of the last token in every head: (E, L, B, H, T−1, T−1) and (E, L, B, H, 1).

    Args:
        model: an ensemble of E members with L layers of H heads.
        tokens: (B, T) token ids that all members read, T ≥ 3.

    Raises:
        InputError: tokens of the wrong shape, dtype or range.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0])
    >>> relocated, extra_logits = last_token_logits(model, torch.zeros(3, 5, dtype=torch.int64))
    >>> relocated.shape, extra_logits.shape
    (torch.Size([1, 2, 3, 1, 4, 4]), torch.Size([1, 2, 3, 1, 1]))
    """
    with torch.no_grad():
        queries, keys, _ = model.trace(tokens)
    return query_logits(queries, keys, frequencies=model.config.frequencies, layout=model.layout)


def attention(relocated: Tensor, extra_logits: Tensor) -> Tensor:
    """Return the attention over the unswapped keys (..., T−1), then over the keys that never move (..., X).

    >>> attention(torch.zeros(3, 3), torch.zeros(1))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    return torch.cat([relocated.diagonal(dim1=-2, dim2=-1), extra_logits], -1).softmax(-1)


def swapped_attention(relocated: Tensor, extra_logits: Tensor, first: int, second: int) -> Tensor:
    """Return `attention` after the keys at two positions have changed places.

    >>> by_content = torch.tensor([[0.0, 0.0], [5.0, 5.0]])
    >>> swapped_attention(by_content, torch.zeros(1), 0, 1).argmax()
    tensor(0)
    """
    content = torch.arange(relocated.shape[-1])
    content[[first, second]] = content[[second, first]]
    return attention(relocated[..., content, :], extra_logits)


def plane_table(
    model: Ensemble, tokens: Tensor, *, member: int = 0, layer: int, head: int = 0, temperature: float
) -> pd.DataFrame:
    """Return the scores and the logit norm of every RoPE plane of one head, each plane treated as a head of its own.

    The query is the last token; the keys before it are moved. Values are means over the sequences.

    Args:
        model: the ensemble.
        tokens: (B, T) token ids.
        member, layer, head: which head.
        temperature: τ of the weights over swaps.

    Returns:
        frequency_id (1 is the fastest), angle (radians per position), positional, symbolic, logit_norm (L2 norm of the
        plane's observed logits).

    Source: 2511.11579, scores by frequency.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0])
    >>> plane_table(model, torch.arange(5)[None], layer=1, temperature=0.1)["frequency_id"].tolist()
    [1, 2, 3, 4]
    """
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
        layout=model.layout,
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
