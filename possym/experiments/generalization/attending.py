"""Ways to attend that a model is not trained with: at any length, beyond its window, or rotated another way.

Functions made here are `attend` hooks of `possym.ensembles.ensemble.Ensemble`: they get a layer's query
(E, B, Q, H, D), key and value (E, B, T, H, D) before rotation, Q = T or the last position alone, and return what each
query reads (E, B, Q, H, D). Planes are pairs of neighbouring dimensions throughout: models that pair others give their
hooks through `with_planes_interleaved`.

A task's longer inputs hold extra tokens *before* the window of 17, so distances inside the window stay, and all that
length changes is what a window query sees before its window: the `Prefix`.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles.attention import Attend
from possym.ensembles.ensemble import Ensemble, Sizes
from possym.rope import pairs


class Prefix(NamedTuple):
    """What a window sees before it: contents (E, B, M, H, D) at positions (M,) below 0, with log weights (E, B, M).

    Weights of None are 1. B may be 1 where all sequences see the same contents.
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    log_weight: Tensor | None = None


def all_frequencies(config: Sizes) -> Tensor:
    """Return the angle of every plane (D/2,) float64, 0 for planes that do not rotate.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> all_frequencies(GPTJConfig(vocabulary_size=8, width=8, rotary_dim=4))
    tensor([1.0000, 0.0100, 0.0000, 0.0000], dtype=torch.float64)
    """
    rotating = config.frequencies
    return F.pad(rotating, (0, config.head_width // 2 - len(rotating)))


def interleave_planes(x: Tensor, layout: str) -> Tensor:
    """Return contents (..., D) of a layout of `possym.rope.rotate` with each plane's dimensions beside each other.

    The half layout pairs k with k + D/2, as models do that rotate the whole head width.

    >>> interleave_planes(torch.arange(4), "half")
    tensor([0, 2, 1, 3])
    """
    return x if layout == "interleaved" else pairs(x, x.shape[-1] // 2, layout).flatten(-2)


def with_planes_interleaved(model: Ensemble, attend: Attend) -> Attend:
    """Return an `attend` hook for a model of any layout from one whose planes are neighbouring dimensions."""

    def arranged(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(layer, interleave_planes(query, model.layout), interleave_planes(key, model.layout), value)

    return arranged


def last_contents(model: Ensemble, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each layer's last query (E, B, 1, H, D) and keys (E, B, T, H, D), before rotation."""
    trace = model.trace(tokens)
    queries, keys = (interleave_planes(x, model.layout).unbind(1) for x in (trace.queries, trace.keys))
    return [(query.unsqueeze(2), key.transpose(2, 3)) for query, key in zip(queries, keys, strict=True)]


def rotate_planes(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Rotate interleaved planes of x (E, B, T, H, D) at positions (T,) by frequencies (F,), or (E, H, F) per head.

    Angles are float64 and reduced to one rotation before the cosine; the product is float32.

    >>> x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 1, 2)
    >>> rotate_planes(x, torch.tensor([1]), torch.tensor([math.pi / 2], dtype=torch.float64)).flatten().round().abs()
    tensor([0., 1.])
    """
    if frequencies.ndim == 1:
        frequencies = frequencies[None, None]
    positions = positions.to(x.device, torch.float64)[:, None, None]
    angles = frequencies.to(x.device)[:, None, None] * positions  # (E, 1, T, H, F)
    angles = angles.remainder(2 * math.pi)
    rotation = torch.complex(angles.cos().float(), angles.sin().float())
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * rotation).flatten(-2)


def attention(
    query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor, dtype: torch.dtype, factor: Tensor | None = None
) -> Tensor:
    """Return what queries read under causal attention, whatever the length, without a table of T × T.

    Args:
        query, key, value: as an `attend` hook gets them.
        frequencies: (F,), or (E, H, F) where heads differ.
        dtype: of the rotated vectors in the product; sums and softmax are float32.
        factor: (E, H) by which each head's logits are multiplied, or None.
    """
    query, key = rotate_pair(query, key, frequencies)
    if factor is not None:
        query = query * factor[:, None, None, :, None]
    return causal(query, key, value, dtype)


def rotate_pair(query: Tensor, key: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate a layer's queries, those of the last positions, and its keys, each by its position."""
    positions = torch.arange(key.shape[2], device=key.device)
    asking = positions[key.shape[2] - query.shape[2] :]
    return rotate_planes(query, asking, frequencies), rotate_planes(key, positions, frequencies)


def causal(query: Tensor, key: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return causal attention of rotated queries (all, or the last alone) and keys, the product in ``dtype``."""
    members, rows = query.shape[:2]
    every = query.shape[2] == key.shape[2]
    query, key, value = (x.to(dtype).transpose(2, 3).flatten(0, 1) for x in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=every)
    return mixed.float().transpose(1, 2).unflatten(0, (members, rows))


def attention_with_prefix(
    query: Tensor, key: Tensor, value: Tensor, frequencies: Tensor, prefix: Prefix | None
) -> Tensor:
    """Return what a window's queries read with a prefix before the window; None leaves the window alone.

    Args:
        query, key, value: the window's, as an `attend` hook gets them.
        frequencies: (F,).
        prefix: what stands before it.
    """
    length, asked = key.shape[2], query.shape[2]
    positions = torch.arange(length, device=key.device)
    query = rotate_planes(query, positions[length - asked :], frequencies).transpose(2, 3) * key.shape[-1] ** -0.5
    window = query @ rotate_planes(key, positions, frequencies).permute(0, 1, 3, 4, 2)  # (E, B, H, Q, T)
    window = window.masked_fill(positions > positions[length - asked :, None], -math.inf)
    if prefix is None:
        return (window.softmax(-1) @ value.float().transpose(2, 3)).transpose(2, 3)
    far = shared_product(query, rotate_planes(prefix.key, prefix.positions, frequencies).permute(0, 1, 3, 4, 2))
    if prefix.log_weight is not None:
        far = far + prefix.log_weight[:, :, None, None]  # (E, B, H, Q, M)
    weights = torch.cat([window, far], -1).softmax(-1)
    near, far = weights.split([length, far.shape[-1]], -1)
    mixed = near @ value.float().transpose(2, 3) + shared_product(far, prefix.value.float().transpose(2, 3))
    return mixed.transpose(2, 3)


def shared_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for a (E, B, H, Q, X), b (E, B or 1, H, X, Y); what all sequences share is not copied for each.

    >>> shared_product(torch.ones(1, 3, 2, 5, 4), torch.ones(1, 1, 2, 4, 6)).shape
    torch.Size([1, 3, 2, 5, 6])
    """
    if b.shape[1] > 1:
        return a @ b
    rows = a.transpose(1, 2)  # (E, H, B, Q, X)
    return (rows.flatten(2, 3) @ b[:, 0]).unflatten(2, rows.shape[2:4]).transpose(1, 2)


def run_prefix(
    model: Ensemble, tokens: Tensor, weights: torch.dtype, vectors: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Return key and value (E, B, M, H, D) of every layer, for the tokens (E, B, M) that stand before a window."""
    contents, frequencies = [], all_frequencies(model.config)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        contents.append((key.to(vectors), value.to(vectors)))
        return attention(query, key, value, frequencies, vectors)

    model(tokens, dtype=weights, attend=with_planes_interleaved(model, attend))
    return contents
