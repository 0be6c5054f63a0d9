"""Attention of all members at once: RoPE from angles in float64, causal softmax, dropout, mixing.

`causal_attention` defines the computation; `attention_of_block` uses a kernel for it where one runs
(`possym.ensembles.fused`), or a function in its place, such as `Watch`.

Sizes: E members, B sequences, T positions, Q of them ask, C width, H heads, D = C/H head width.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles import dropout, fused
from possym.rope import rotate_by

EXPLICIT = 128  # positions up to which attention weights are held as a whole
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Watch:
    """As ``attend``, keep each layer's queries of the last position and keys before rotation, and attend as usual.

    ``queries`` is (E, L, B, H, D) and ``keys`` (E, L, B, H, T, D), in float32, once the model has run; what is kept of
    a layer lies together.
    """

    queries: Tensor
    keys: Tensor

    def __init__(self, frequencies: Tensor, layout: str, layers: int, alone: bool):
        """Start with no layers; a model of ``layers`` will run, ``alone`` for queries and keys."""
        self.frequencies, self.layout, self.layers, self.alone = frequencies, layout, layers, alone

    def keep(
        self, layer: int, query: Tensor, key: Tensor, query_bias: Tensor | float = 0.0, key_bias: Tensor | float = 0.0
    ) -> None:
        """Keep the last query of (E, B, Q, H, D) and keys (E, B, T, H, D), with biases added.

        These are as the contents lie here, (E, 1, H, D) and (E, 1, H, 1, D).
        """
        query, key = query[:, :, -1], key.movedim(2, -2)
        if layer == 0:
            E, B = key.shape[:2]
            self.queries = query.new_empty(self.layers, E, B, *query.shape[2:], dtype=torch.float32).transpose(0, 1)
            self.keys = key.new_empty(self.layers, E, B, *key.shape[2:], dtype=torch.float32).transpose(0, 1)
        for room, given, bias in (self.queries, query, query_bias), (self.keys, key, key_bias):
            if torch.is_grad_enabled():
                room[:, layer] = given + bias
            else:
                torch.add(given, bias, out=room[:, layer])

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep contents, and return what positions mix."""
        self.keep(layer, query, key)
        return causal_attention(query, key, value, frequencies=self.frequencies, layout=self.layout)


def attention_of_block(
    joint: Tensor,
    query: Tensor,
    turns: tuple[Tensor, Tensor],
    *,
    heads: int,
    layout: str,
    dropped: float,
    keys: Tensor | None,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    precision: str | None,
) -> Tensor:
    """Return what the positions that ask mix, (E, B, Q, C), from products of a block's weights.

    Args:
        joint: (E, B, T, 2C) keys and values before rotation; where all positions ask, (E, B, T, 3C), queries behind
            them.
        query: (E, B, Q, C) of the last Q positions.
        turns: see `tables`: a compiler would make them anew for each value that is turned.
        heads: H.
        layout: how planes pair dimensions, see `possym.rope.rotate`.
        dropped: probability of dropping a weight; ``keys`` (E, 2) are this layer's, None where it is 0.
        attend: in place of `causal_attention`.
        precision: of the kernel where all positions ask, see `possym.ensembles.fused.precision`; None is no kernel.
    """
    (E, B, T, _), (Q, C) = joint.shape, query.shape[2:]
    if precision and attend is None and Q == T:
        return fused.mix(joint, *turns, keys, heads, dropped, layout == "half", precision)[0]
    key, value = joint[..., : 2 * C].chunk(2, -1)
    contents = [each.float().unflatten(-1, (heads, C // heads)) for each in (query, key, value)]
    if attend is not None:
        mixed = attend(*contents)
    else:
        kept = dropout.keep_mask(keys, fused.STREAM, (B, heads, T, T), dropped)[..., T - Q :, :] if dropped else None
        mixed = attention_by_tables(*contents, turns, layout=layout, kept=kept)
    return mixed.reshape(E, B, Q, C).to(joint.dtype)


def tables(positions: int, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of what every plane (F,) has turned at every position, each (T, F) float32."""
    counted = torch.arange(positions, dtype=torch.float64, device=angles.device)[:, None]
    turned = (counted * angles).remainder(2 * math.pi)
    return turned.cos().float(), turned.sin().float()


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    frequencies: Tensor,
    scale: float | None = None,
    layout: str = "interleaved",
    kept: Tensor | None = None,
) -> Tensor:
    """Return the mixture of values that each asking position attends to, (E, B, Q, H, D).

    Past `EXPLICIT` positions the weights are never held as a whole (torch's scaled_dot_product_attention).

    Args:
        query: (E, B, Q, H, D) contents before rotation of the last Q positions.
        key, value: (E, B, T, H, D), keys before rotation.
        frequencies: (F,) float64 angles in radians per position, 2F ≤ D.
        scale: of the logits; None is 1/√D.
        layout: how planes pair dimensions, see `possym.rope.rotate`.
        kept: (E, B, H, Q, T) booleans, False where dropout drops a weight; None drops none.

    Source: 2511.11579, section 2.

    >>> content = torch.ones(1, 1, 2, 1, 2)
    >>> values = torch.tensor([1.0, 3.0]).view(1, 1, 2, 1, 1).expand(1, 1, 2, 1, 2)
    >>> causal_attention(content, content, values, frequencies=torch.zeros(1))[0, 0, :, 0, 0]
    tensor([1., 2.])
    """
    turns = tables(key.shape[2], frequencies.to(query.device, torch.float64))
    return attention_by_tables(query, key, value, turns, scale=scale, layout=layout, kept=kept)


def attention_by_tables(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    turns: tuple[Tensor, Tensor],
    *,
    scale: float | None = None,
    layout: str,
    kept: Tensor | None,
) -> Tensor:
    """Return `causal_attention` by what `tables` returns."""
    (E, B, Q, H, D), T = query.shape, key.shape[2]
    scale = D**-0.5 if scale is None else scale
    cos, sin = (table[:, None] for table in turns)
    query = rotate_by(query, cos[T - Q :], sin[T - Q :], layout)
    key = rotate_by(key, cos, sin, layout)
    query, key, value = (each.transpose(2, 3).flatten(0, 2) for each in (query, key, value))  # (E·B·H, positions, D)
    if T > EXPLICIT and kept is None:
        # With one query, the last position, nothing is hidden; otherwise there are as many queries as keys.
        mixed = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=Q > 1, scale=scale)[0]
    else:
        hidden = query.new_full((T, T), -math.inf).triu(1)[T - Q :]
        weights = torch.baddbmm(hidden.expand(len(query), Q, T), query, key.mT, alpha=scale).softmax(-1)
        if kept is not None:
            weights = weights * kept.flatten(0, 2)
        mixed = weights @ value
    return mixed.unflatten(0, (E, B, H)).transpose(2, 3)
