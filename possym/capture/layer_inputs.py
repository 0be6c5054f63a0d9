"""What one attention layer did with one query, and the logit of every key content at every key position.

- `LayerInputs` is what `Capture.run` hands over: query, key contents before rotation, tables.
- `Reading` is what is kept of a layer until then; `read_layer` makes it, `merge_layers` makes a `LayerInputs` of it.
"""

import functools
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from possym.capture.hooks import AttentionCall
from possym.capture.probe import Layer
from possym.capture.rope_layout import RopeLayout, plane_tables, table_angles, unrotate
from possym.errors import UnsupportedModelError
from possym.rope import pairs


@dataclass
class LayerInputs:
    """What one attention layer did with one query: the query, every key before rotation, and the tables.

    Where `Capture.run` takes layers together, the batch B holds the prompts of the first, then of the second, ….

    Attributes:
        layers: numbers of the layers, from 0; one unless they come together.
        pass_index: how often these layers have attended before in the same forward pass: 0, but for layers that the
            model runs in a loop.
        query: (B, H, D) the query after rotation, gains included, in the order of `RopeLayout`.
        keys: (B, G, T, D) key contents before rotation, in the same order; H is a multiple of G.
        cos, sin: (T, F) tables as the model used them, fastest plane first; F = 0 where the layer does not rotate.
        angles: (F,) radians a position, read off the tables, to their precision.
        query_position: position of the query.
        moved: (N,) positions of the keys that the query sees before itself.
        scale: factor of the logits.
        softcap: c of c·tanh(logit/c), or None.
        sinks: (H,) logits of the layer's sinks, or None.
        replayed: (B, H, N + 1, N + 1) logits of the moved keys and the query's own at each other's positions, asked
            from the model itself where its rotation does not turn planes; else None.
    """

    layers: list[int]
    query: Tensor
    keys: Tensor
    cos: Tensor
    sin: Tensor
    angles: Tensor
    query_position: int
    moved: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    replayed: Tensor | None = None
    pass_index: int = 0

    @property
    def layer(self) -> int:
        """Number of the layer, the first of those that come together."""
        return self.layers[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[1]

    def relocated_logits(
        self, heads: slice = slice(None), rows: slice = slice(None), *, per_plane: slice | None = None
    ) -> Tensor:
        """Return the logit of every moved key's content at every moved key's position.

        Args:
            heads: which query heads.
            rows: which of the batch.
            per_plane: which planes to return one by one (``slice(None)`` for all) instead of their sum. Planes are
                taken before the softcap: only there do they add up to the head.

        Returns:
            (B, h, N, N), with ``per_plane`` (B, h, f, N, N), float32; entry [a, b] is content a at position b.

        Raises:
            UnsupportedModelError: planes of a layer whose rotation is not pairs of dimensions.
        """
        if self.replayed is not None:
            if per_plane is not None:
                raise UnsupportedModelError(
                    f"layer {self.layer} does not rotate pairs of dimensions, so it has no planes to score: leave "
                    "per_frequency out"
                )
            return self.capped(self.replayed[rows, heads, :-1, :-1])
        if per_plane is not None:
            keys, positions = self.plane_factors(heads, rows, per_plane)
            return keys.mT @ positions
        contents, positions = self.factors(heads, rows)
        return self.capped(contents @ positions.mT)

    def factors(self, heads: slice = slice(None), rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return contents (B, h, N, K) and positions (N, K): relocated logits, before the softcap, are their product.

        A plane's logit of key content k at a position of angle φ is kᵀR(−φ)q = (k·q) cos φ + (k₁q₂ − k₂q₁) sin φ, the
        query q after its rotation. So the heads of all layers share one matrix of cosines and sines. Where dimensions
        do not rotate, what they add is one more column, times 1, and three of zeros keep the rows apart by whole
        vectors of four.

        Raises:
            UnsupportedModelError: a layer whose rotation is not pairs of dimensions.
        """
        if self.replayed is not None:
            raise UnsupportedModelError(f"layer {self.layer} does not rotate pairs of dimensions: it has no factors")
        together = self.heads // self.keys.shape[1]
        start, stop, _ = heads.indices(self.heads)
        if start % together or stop % together:
            keys, together = self.keys[rows, self.key_heads[heads]], 1
        else:
            keys = self.keys[rows, start // together : stop // together]
        keys = keys[:, :, None, self.moved]
        query = (self.query[rows, heads, None] * self.scale).unflatten(1, (-1, together))
        count = len(self.angles)
        (k1, k2, k), (q1, q2, q) = (x.tensor_split((count, 2 * count), -1) for x in (keys, query))
        contents = keys.new_empty(*query.shape[:3], len(self.moved), self.positions.shape[1])
        first, second, rest = contents.tensor_split((count, 2 * count), -1)
        torch.mul(k1, q1, out=first).addcmul_(k2, q2)
        torch.mul(k1, q2, out=second).addcmul_(k2, q1, value=-1)
        if k.shape[-1]:
            rest.zero_()[..., 0] = (k * q).sum(-1)
        return contents.flatten(1, 2), self.positions

    @functools.cached_property
    def positions(self) -> Tensor:
        """Cosines and sines of the moved keys' positions (N, K), and a column of ones for what does not rotate."""
        positions = torch.cat([self.cos, self.sin], -1)[self.moved]
        if 2 * len(self.angles) == self.keys.shape[-1]:
            return positions
        return torch.cat([positions, F.pad(positions.new_ones(len(positions), 1), (0, 3))], -1)

    @functools.cached_property
    def key_heads(self) -> Tensor:
        """Which head of keys each query head reads (H,)."""
        return torch.arange(self.heads, device=self.keys.device) // (self.heads // self.keys.shape[1])

    def plane_factors(self, heads: slice, rows: slice, planes: slice) -> tuple[Tensor, Tensor]:
        """Return `factors` plane by plane, both (B, h, f, 2, N): relocated logits are their product."""
        count = len(self.angles)
        contents, positions = (
            pairs(x[..., : 2 * count], count, "half")[..., planes, :].movedim(-3, -1) for x in self.factors(heads, rows)
        )
        return contents, positions.expand_as(contents)

    def own_logits(self, heads: slice = slice(None), *, per_plane: slice | None = None) -> Tensor:
        """Return the logit of the query's own key (B, h, 1), with ``per_plane`` (B, h, f, 1)."""
        if self.replayed is not None and per_plane is None:
            return self.capped(self.replayed[:, heads, -1, -1:])
        position = torch.full((1,), self.query_position, device=self.keys.device)
        return replace(self, moved=position).relocated_logits(heads, per_plane=per_plane).squeeze(-1)

    def extra_logits(self, heads: slice = slice(None)) -> Tensor:
        """Return the logits of what is attended but never moved (B, h, X): the query's own key, and sinks."""
        own = self.own_logits(heads)
        if self.sinks is None:
            return own
        return torch.cat([own, self.sinks[heads].expand(len(own), -1).unsqueeze(-1)], -1)

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the layer's softcap."""
        return logits if self.softcap is None else (logits / self.softcap).tanh_().mul_(self.softcap)


@dataclass
class Reading:
    """What one layer's `LayerInputs` are made of: the query in float32 and the keys, after rotation, and the rest."""

    layer: int
    query: Tensor
    key: Tensor
    moved: Tensor
    rope_layout: RopeLayout | None
    tables: tuple[Tensor, Tensor] | None
    tables_and_angles: tuple[Tensor, Tensor, Tensor] | None
    scale: float
    softcap: float | None
    sinks: Tensor | None
    replayed: Tensor | None
    pass_index: int

    @property
    def kind(self) -> tuple:
        """What layers have in common that can come together."""
        alone = self.layer if self.sinks is not None or self.replayed is not None else None
        shared = (id(x) for x in (self.moved, self.rope_layout, self.tables, self.tables_and_angles))
        return (
            alone,
            self.pass_index,
            *shared,
            self.scale,
            self.softcap,
            self.query.shape,
            self.key.shape,
            self.key.dtype,
        )


def read_layer(call: AttentionCall, found: Layer, position: int) -> Reading:
    """Keep what one layer's `LayerInputs` are made of."""
    query = call.query[:, :, position].to(torch.float32, copy=True)  # a view would keep all queries
    moved = call.once(
        "moved", call.mask, lambda: call.visible(position)[:position].nonzero().flatten().to(query.device)
    )
    tables, tables_and_angles, replayed = None, None, None
    if found.rope_layout is not None:
        tables = call.tables()
        tables_and_angles = call.once(
            ("angles", id(found.rope_layout)), call.tables_from, lambda: read_angles(call, found.rope_layout)
        )
    if found.method == "replay":
        replayed = replayed_logits(call, query * call.scale * found.factor, [*moved.tolist(), position])
    return Reading(
        layer=call.layer,
        query=query,
        key=call.key,
        moved=moved,
        rope_layout=found.rope_layout,
        tables=tables,
        tables_and_angles=tables_and_angles,
        scale=float(call.scale) * found.factor,
        softcap=call.options.get("softcap"),
        sinks=call.options["s_aux"].detach().float() if found.sinks else None,
        replayed=replayed,
        pass_index=call.pass_index,
    )


def merge_layers(readings: list[Reading], position: int) -> tuple[LayerInputs, Tensor]:
    """Return what alike layers gave as one, and whether each layer's queries and keys are finite."""
    first = readings[0]
    layout, query, keys = first.rope_layout, torch.cat([one.query for one in readings]), [one.key for one in readings]
    if layout is None:
        keys = torch.cat(keys).float()
        cos = sin = keys.new_empty(keys.shape[2], 0)
        angles = keys.new_empty(0)
    else:
        cos, sin, angles = first.tables_and_angles
        keys = unrotate(torch.cat(keys).float(), first.tables, layout, layout.key_weight)
        query = query if layout.key_weight is None else query * layout.key_weight
        query = query[..., layout.order]
    finite = [x.isfinite().reshape(len(readings), -1).all(1) for x in (query, keys)]
    inputs = LayerInputs(
        layers=[one.layer for one in readings],
        query=query,
        keys=keys,
        cos=cos,
        sin=sin,
        angles=angles,
        query_position=position,
        moved=first.moved,
        scale=first.scale,
        softcap=first.softcap,
        sinks=first.sinks,
        replayed=first.replayed,
        pass_index=first.pass_index,
    )
    return inputs, finite[0] & finite[1]


def read_angles(call: AttentionCall, layout: RopeLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Return cosines and sines (T, F) of the planes, and their angles (F,)."""
    cos, sin = plane_tables(call.tables(), layout)
    return cos, sin, table_angles(cos, sin).abs()


def replayed_logits(call: AttentionCall, query: Tensor, positions: list[int]) -> Tensor:
    """Return each content's logit at each position (B, H, P, P), the module asked once per position."""
    columns = []
    for position in positions:
        keys = call.replay(position)[1].float()[:, :, positions]
        keys = keys.repeat_interleave(query.shape[1] // keys.shape[1], 1)
        columns.append((keys @ query.unsqueeze(-1)).squeeze(-1))
    return torch.stack(columns, -1)
