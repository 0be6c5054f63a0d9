"""What one attention layer did with one query, and the logit of every key content at every key position.

- `LayerInputs` is what `Capture.run` hands over: query, key contents before rotation, tables. It knows in which form
  they are scored: `LayerInputs.scores` and `LayerInputs.plane_scores`.
- `Reading` is what is kept of a layer until then; `read_layer` makes it, `merge_layers` makes a `LayerInputs` of it.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from possym import kernels
from possym.capture.attention_call import AttentionCall, on_device
from possym.capture.model_state import recorded
from possym.capture.probe import Layer
from possym.capture.rope_layout import RopeLayout, plane_tables, table_angles, turned_back, turns_back
from possym.capture.sampled_swaps import sampled_scores
from possym.errors import UnsupportedModelError
from possym.rope import pairs
from possym.scores import (
    capped,
    head_scores,
    plane_scores,
    scores_and_exclusion,
)

MATRIX_ENTRIES = 2**27  # of contents, or of relocated logits, at once on a GPU, those of one head at least


class LayerScores(NamedTuple):
    """What `LayerInputs.scores` says of every prompt and head, (B, H) each.

    - positional, symbolic, entropy: see `possym.scores.swap_scores`.
    - variance, bound: of the moved keys' logits, see `possym.scores.exclusion`.
    - effective_swaps: how many swaps the scores rest on, the exponential of the entropy of α.
    - attention_moved, attention_first, attention_self: the query's attention on the keys that move (those in blocks,
      where there are blocks), on the first token and on its own key, of all its attention (sinks included).
    - distance: how many tokens back the query attends on average, over the tokens that it sees.
    """

    positional: Tensor
    symbolic: Tensor
    entropy: Tensor
    variance: Tensor
    bound: Tensor
    effective_swaps: Tensor
    attention_moved: Tensor
    attention_first: Tensor
    attention_self: Tensor
    distance: Tensor


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
        query_position: position of the query.
        moved: (N,) positions of the keys that the query sees before itself, less those that are held.
        scale: factor of the logits.
        softcap: c of c·tanh(logit/c), or None.
        sinks: (H,) logits of the layer's sinks, or None.
        held: (M,) positions of the keys that the query sees and that stay where they are, see `hold`.
        reads_itself: whether the query sees its own key: always, but for sparse attention that may not pick it.
        in_bfloat16: whether the tables are numbers of bfloat16, as those of a model in that precision are.
        replayed: (B, H, P, P) logits of the moved keys, the held ones and the query's own, in this order, at each
            other's positions, asked from the model itself where its rotation does not turn planes; else None.
    """

    layers: list[int]
    query: Tensor
    keys: Tensor
    cos: Tensor
    sin: Tensor
    query_position: int
    moved: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    held: Tensor | None = None
    replayed: Tensor | None = None
    pass_index: int = 0
    reads_itself: bool = True
    in_bfloat16: bool = False

    @property
    def layer(self) -> int:
        """Number of the layer, the first of those that come together."""
        return self.layers[0]

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return self.query.shape[1]

    @property
    def planes(self) -> int:
        """Number of planes that turn."""
        return self.cos.shape[-1]

    @functools.cached_property
    def angles(self) -> Tensor:
        """Radians per position of the planes (F,), read off the tables, to their precision."""
        return table_angles(self.cos, self.sin).abs()

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
            count = len(self.moved)
            return self.capped(self.replayed[rows, heads, :count, :count])
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
        count = self.planes
        (k1, k2, k), (q1, q2, q) = (x.tensor_split((count, 2 * count), -1) for x in (keys, query))
        contents = keys.new_empty(*query.shape[:3], len(self.moved), self.positions.shape[1])
        first, second, rest = contents.tensor_split((count, 2 * count), -1)
        torch.mul(k1, q1, out=first).addcmul_(k2, q2)
        torch.mul(k1, q2, out=second).addcmul_(k2, q1, value=-1)
        if k.shape[-1]:
            rest.zero_()[..., 0] = (k * q).sum(-1)
        return contents.flatten(1, 2), self.positions

    @property
    def splits_keys(self) -> bool:
        """Whether `split_contents` goes: all dimensions rotate, and a GPU multiplies what is split."""
        all_turn = 2 * self.planes == self.keys.shape[-1] and self.keys.shape[-1] % 8 == 0
        return all_turn and kernels.supported(self.keys) and kernels.takes_products(self.keys.device)

    def split_contents(self, heads: slice, rows: slice, keys: Tensor, positions: Tensor) -> kernels.Products:
        """Return the contents of `factors`, of some keys, as numbers that a GPU multiplies, which it makes at once."""
        start, *_ = heads.indices(self.heads)
        together = self.heads // self.keys.shape[1]
        queries = self.query[rows, heads] * self.scale
        return kernels.products_of_keys(self.keys[rows], queries, keys, start, together, positions)

    @functools.cached_property
    def positions(self) -> Tensor:
        """`positions_of` the moved keys."""
        return self.positions_of(self.moved)

    def positions_of(self, keys: Tensor) -> Tensor:
        """Return cosines and sines of keys' positions (N, K), and a column of ones for what does not rotate."""
        positions = torch.cat([self.cos, self.sin], -1)[keys]
        if 2 * self.planes == self.keys.shape[-1]:
            return positions
        return torch.cat([positions, F.pad(positions.new_ones(len(positions), 1), (0, 3))], -1)

    def shortened(self, positions: Tensor) -> Tensor:
        """Return positions in bfloat16, where that changes none of them."""
        return positions.bfloat16() if self.in_bfloat16 else positions

    @functools.cached_property
    def key_heads(self) -> Tensor:
        """Which head of keys each query head reads (H,)."""
        return torch.arange(self.heads, device=self.keys.device) // (self.heads // self.keys.shape[1])

    def plane_factors(self, heads: slice, rows: slice, planes: slice) -> tuple[Tensor, Tensor]:
        """Return `factors` plane by plane, both (B, h, f, 2, N): relocated logits are their product."""
        count = self.planes
        contents, positions = (
            pairs(x[..., : 2 * count], count, "half")[..., planes, :].movedim(-3, -1) for x in self.factors(heads, rows)
        )
        return contents, positions.expand_as(contents)

    def unmoved_logits(self, heads: slice = slice(None), *, per_plane: slice | None = None) -> Tensor:
        """Return the logits of the query's own key and of held ones (B, h, 1 + M), ``per_plane`` (B, h, f, 1 + M).

        A query that does not see its own key has none of it: M columns.
        """
        if self.replayed is not None and per_plane is None:
            logits = self.replayed[:, heads].diagonal(dim1=-2, dim2=-1)[..., len(self.moved) :]
            return self.capped(logits.roll(1, -1) if self.reads_itself else logits[..., :-1])
        there = replace(self, moved=self.unmoved)
        if per_plane is not None:
            keys, positions = there.plane_factors(heads, slice(None), per_plane)
            return (keys * positions).sum(-2)
        return self.capped(torch.einsum("bhmk,mk->bhm", *there.factors(heads)))

    def extra_logits(self, heads: slice = slice(None)) -> Tensor:
        """Return the logits of what is attended but never moved (B, h, X): the query's own key, held ones, sinks."""
        logits = self.unmoved_logits(heads)
        if self.sinks is None:
            return logits
        return torch.cat([logits, self.sinks[heads].expand(len(logits), -1).unsqueeze(-1)], -1)

    @functools.cached_property
    def unmoved(self) -> Tensor:
        """Positions of the query's own key and of the held ones (1 + M,)."""
        own = torch.full((int(self.reads_itself),), self.query_position, device=self.keys.device)
        return own if self.held is None else torch.cat([own, self.held])

    def hold(self, positions: Sequence[int]) -> "LayerInputs":
        """Return the same with some of the moved keys held in place: they are attended, but take part in no swap.

        Positions that the query does not see change nothing.
        """
        there = self.moved.tolist() if len(positions) else []
        held = [number for number, position in enumerate(there) if position in set(positions)]
        if not held:
            return self
        moved = [number for number in range(len(there)) if number not in set(held)]
        moved, held = (torch.tensor(part, dtype=torch.long, device=self.keys.device) for part in (moved, held))
        replayed = self.replayed
        if replayed is not None:
            order = torch.cat([moved, held, torch.full_like(self.moved[:1], len(there))])
            replayed = replayed[:, :, order[:, None], order]
        return replace(self, moved=self.moved[moved], held=self.moved[held], replayed=replayed)

    def scores(
        self, blocks: list[tuple[int, int]] | None, temperature: float, relative: bool, swaps: int | None = None
    ) -> tuple[LayerScores, Tensor | None]:
        """Return the scores of every prompt and head, of logits that are not checked: what is not finite stays so.

        Args:
            blocks: None for single tokens, else (start, stop) pairs among the moved keys.
            temperature, relative: see `possym.scores.swap_scores`.
            swaps: None for all; else how many swaps of tokens a head's scores are estimated from, drawn anew for each
                layer and query, the same ones in every call.

        Returns:
            The scores, and the standard errors of both (2, B, H) where they are estimates.

        Raises:
            UnsupportedModelError: estimates of a layer whose rotation is not pairs of dimensions.
        """
        count, shape = len(self.moved), self.query.shape[:2]
        entries, band, _ = self.entries_at_once
        products = blocks is None and self.replayed is None
        split = products and swaps is None and self.splits_keys
        if split and relative:
            return self.scores_in_kernels(temperature), None
        extra = self.extra_logits()
        numbers = self.keys.shape[-1] * (1 if split else 2) if products else count  # that a key of a head takes
        found = self.query.new_empty(len(LayerScores._fields), *shape)
        errors = None if swaps is None else found.new_empty(2, *shape)
        if swaps is not None:
            generator = torch.Generator(device=self.keys.device).manual_seed(self.layer + (self.query_position << 20))
        for rows, heads in chunks(shape, entries // (count * numbers)):
            some = extra[rows, heads]
            if products or swaps is not None:
                positions = self.positions if errors is not None else self.shortened(self.positions)
                given = heads, rows
                contents = self.split_contents(*given, self.moved, positions) if split else self.factors(*given)[0]
                if errors is None:
                    given = contents, positions, some, temperature, self.softcap, band, relative
                    scores, exclusion, counted, observed = head_scores(*given)
                else:
                    given = contents, positions, some, temperature, self.softcap, relative, swaps, generator
                    scores, exclusion, counted, observed, errors[:, rows, heads] = sampled_scores(*given)
                del contents, given  # before the next ones are made
            else:  # blocks need their matrices, and so does a layer that has no factors
                relocated = self.relocated_logits(heads, rows)
                observed = relocated.diagonal(dim1=-2, dim2=-1)
                scores, exclusion, counted = scores_and_exclusion(relocated, some, blocks, temperature, relative)
                del relocated
            attended = self.attended(observed, some, blocks)
            rest = exclusion.variance, exclusion.bound, counted.to(observed), *attended
            torch.stack([*scores, *rest], out=found[:, rows, heads])
        return LayerScores(*found), errors

    def scores_in_kernels(self, temperature: float) -> LayerScores:
        """Return the scores of `scores` over all swaps of tokens, their weights relative, where `splits_keys`.

        The keys that stay are made beside those that move, and take part in no swap.
        """
        count, shape = len(self.moved), self.query.shape[:2]
        positions = self.shortened(self.positions_of(self.seen))
        found = self.query.new_empty(len(LayerScores._fields), *shape)
        for rows, heads in chunks(shape, self.entries_at_once[0] // (count * self.keys.shape[-1])):
            sinks = None if self.sinks is None else self.sinks[heads]
            contents = self.split_contents(heads, rows, self.seen, positions)
            attended = kernels.attend_keys(
                contents.observed, self.seen, count, self.query_position, self.softcap, sinks
            )
            sums = kernels.tile_sums(contents, attended[:3], 1 / temperature, self.softcap)
            found[:, rows, heads] = kernels.head_values(sums, attended, temperature).view(found[:, rows, heads].shape)
        return LayerScores(*found)

    @functools.cached_property
    def seen(self) -> Tensor:
        """Positions of all keys that the query sees (N + 1 + M,), those that move first."""
        return torch.cat([self.moved, self.unmoved])

    def attended(self, observed: Tensor, extra: Tensor, blocks: list[tuple[int, int]] | None) -> list[Tensor]:
        """Return the last four of `LayerScores`, which need no more than the observed and the extra logits."""
        count = len(self.moved)
        seen, everything = count + len(self.unmoved), torch.cat([observed, extra], -1)
        share = everything.softmax(-1)[..., :seen]
        on_tokens = share if self.sinks is None else everything[..., :seen].softmax(-1)
        moved = [slice(0, count)] if blocks is None else [slice(*block) for block in blocks]
        on_moved = sum(share[..., part].sum(-1) for part in moved)
        first, own, back = self.places_seen
        return [on_moved, share @ first, share @ own, on_tokens @ back]

    @functools.cached_property
    def places_seen(self) -> Tensor:
        """Of all that the query sees (3, N + 1 + M): whether it is the first token, or the query, and how far back."""
        seen = self.seen
        return torch.stack([seen == 0, seen == self.query_position, self.query_position - seen]).to(self.cos)

    def plane_scores(self, blocks: list[tuple[int, int]] | None, temperature: float, relative: bool) -> Tensor:
        """Return positional, symbolic, entropy and the norm of the logits of every plane (B, H, F, 4)."""
        count, (entries, _, vectors) = len(self.moved), self.entries_at_once
        extra = self.unmoved_logits(per_plane=slice(None))
        found = self.query.new_empty(*self.query.shape[:2], self.planes, 4)
        # Blocks need matrices of logits, single tokens vectors alone.
        for rows, heads, planes in chunks(
            found.shape[:-1], vectors // count if blocks is None else entries // count**2
        ):
            some = extra[rows, heads, planes]
            if blocks is None:
                factors = self.plane_factors(heads, rows, planes)
                scores, logits = plane_scores(*factors, some, temperature, relative)
            else:
                relocated = self.relocated_logits(heads, rows, per_plane=planes)
                scores, *_ = scores_and_exclusion(relocated, some, blocks, temperature, relative)
                logits = relocated.diagonal(dim1=-2, dim2=-1)
            found[rows, heads, planes] = torch.stack([*scores, logits.norm(dim=-1)], -1)
        return found

    @property
    def entries_at_once(self) -> tuple[int, int, int]:
        """How many entries of matrices, of a band, of vectors: what a GPU has memory for, what a CPU's cache holds."""
        threads = torch.get_num_threads()
        on_gpu = (MATRIX_ENTRIES, MATRIX_ENTRIES, 2**23)
        return on_gpu if self.keys.is_cuda else (2**19 * threads, 2**16 * threads, 2**13 * threads)

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the layer's softcap."""
        return capped(logits, self.softcap)


def chunks(shape: Sequence[int], size: int) -> Iterator[tuple[slice, ...]]:
    """Return slices that cut ``shape`` into chunks of ``size`` entries at most, or one, that are wide in the last.

    >>> list(chunks((2, 3), 2))[:2]
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 4, None))]
    """
    cuts: list = []
    for count in reversed(shape):
        step = max(1, min(count, size))
        cuts.insert(0, [slice(start, start + step) for start in range(0, count, step)])
        size //= step
    return itertools.product(*cuts)


class Turns(NamedTuple):
    """Cosines and sines (T, F) of a layer's planes, those that undo them, and whether bfloat16 has all of the first."""

    cos: Tensor
    sin: Tensor
    back: tuple[Tensor, Tensor]
    in_bfloat16: bool


class Shared(NamedTuple):
    """What layers share that got the same mask and tables, and turn alike; made once a pass."""

    positions: Tensor  # of the queries
    moved: list[Tensor]
    reads_itself: list[bool]
    rope_layout: RopeLayout | None
    turns: Turns | None

    @classmethod
    def of(cls, call: AttentionCall, layout: RopeLayout | None, positions: Sequence[int]) -> "Shared":
        """Return what one layer shares with others, for queries at some positions."""
        there = call.once("positions", lambda: on_device(positions, call.query.device))
        moved, itself = call.once("moved", lambda: moved_keys(call, positions), call.mask)
        turns = None
        if layout is not None:
            turns = call.once("turns", lambda: read_turns(call, layout), layout, call.tables_from)
        return cls(there, moved, itself, layout, turns)

    @property
    def alike(self) -> tuple[int, ...]:
        """The same for layers that can come together: another mask may show a query the same keys."""
        return id(self.moved), id(self.rope_layout), id(self.turns)


@dataclass
class Reading:
    """What one layer's `LayerInputs` are made of: Q queries (B, H, Q, D) and keys after rotation, and the rest."""

    layer: int
    queries: Tensor
    key: Tensor
    shared: Shared
    scale: float
    softcap: float | None
    sinks: Tensor | None
    replayed: list[Tensor] | None
    pass_index: int

    @property
    def numbers(self) -> int:
        """How many numbers its keys have, or its queries, if these are more."""
        return max(self.key.numel(), self.queries.numel())

    @property
    def kind(self) -> tuple:
        """What layers have in common that can come together."""
        alone = self.layer if self.sinks is not None or self.replayed is not None else None
        shapes = self.queries.shape, self.key.shape, self.key.dtype
        return (alone, self.pass_index, self.shared.alike, self.scale, self.softcap, *shapes)


def read_layer(call: AttentionCall, found: Layer, positions: Sequence[int]) -> Reading:
    """Keep what one layer's `LayerInputs` are made of, for queries at some positions."""
    layout = found.rope_layout
    tables = None if layout is None else call.tables_from
    shared = call.once("shared", lambda: Shared.of(call, layout, positions), call.mask, layout, tables)
    queries = call.query.index_select(2, shared.positions)  # a copy: a view would keep all queries
    replayed = None
    if found.method == "replay":
        with recorded():
            replayed = [
                replayed_logits(call, query.float() * call.scale * found.factor, [*keys.tolist(), position])
                for query, keys, position in zip(queries.unbind(2), shared.moved, positions, strict=True)
            ]
    return Reading(
        layer=call.layer,
        queries=queries,
        key=call.key,
        shared=shared,
        scale=float(call.scale) * found.factor,
        softcap=call.options.get("softcap"),
        sinks=call.options["s_aux"].detach() if found.sinks else None,
        replayed=replayed,
        pass_index=call.pass_index,
    )


def moved_keys(call: AttentionCall, positions: Sequence[int]) -> tuple[list[Tensor], list[bool]]:
    """Return the positions of the keys that each query sees before itself, and whether it sees itself.

    Masks that show a pass's queries the same keys give the same objects, so that their layers can come together.
    """
    seen = call.visible_to(positions)

    def find() -> tuple[list[Tensor], list[bool]]:
        moved = [keys[:position].nonzero().flatten() for keys, position in zip(seen, positions, strict=True)]
        itself = seen[range(len(positions)), positions].tolist()
        together = torch.cat(moved).to(call.query.device, non_blocking=True)
        return list(together.split([len(keys) for keys in moved])), itself

    return call.once(("keys seen", seen.numpy().tobytes()), find)


def merge_layers(readings: list[Reading], positions: Sequence[int]) -> tuple[list[LayerInputs], Tensor]:
    """Return what alike layers gave as one per query, and whether each layer's queries and keys are finite."""
    first = readings[0]
    shared, keys = first.shared, [one.key for one in readings]
    layout = shared.rope_layout
    queries = torch.cat([one.queries for one in readings]).float()
    if layout is None:
        keys = torch.cat(keys).float()
        cos = sin = keys.new_empty(keys.shape[2], 0)
        in_bfloat16 = False
    else:
        cos, sin, back, in_bfloat16 = shared.turns
        keys = turned_back(torch.cat(keys).float(), *back, layout, layout.key_weight)
        queries = queries if layout.key_weight is None else queries * layout.key_weight
        queries = layout.ordered(queries)
    # The largest entry of each layer, which is not below infinity where one of them is not finite.
    largest = [torch.linalg.vector_norm(x.reshape(len(readings), -1), torch.inf, 1) for x in (queries, keys)]
    found = [
        LayerInputs(
            layers=[one.layer for one in readings],
            query=queries[:, :, number],
            keys=keys,
            cos=cos,
            sin=sin,
            query_position=position,
            moved=shared.moved[number],
            reads_itself=shared.reads_itself[number],
            scale=first.scale,
            softcap=first.softcap,
            sinks=None if first.sinks is None else first.sinks.float(),
            replayed=None if first.replayed is None else first.replayed[number],
            pass_index=first.pass_index,
            in_bfloat16=in_bfloat16,
        )
        for number, position in enumerate(positions)
    ]
    return found, (torch.stack(largest) < torch.inf).all(0)


def read_turns(call: AttentionCall, layout: RopeLayout) -> Turns:
    """Return what layers that got the same tables share."""
    cos, sin = plane_tables(call.tables(), layout)
    given = call.embeddings if isinstance(call.embeddings, tuple) else ()
    short = {x.dtype for x in given} == {torch.bfloat16}  # else they are compared, for which the device is waited for
    if not short:
        tables = torch.stack([cos, sin])
        short = torch.equal(tables, tables.bfloat16().float())
    return Turns(cos, sin, turns_back(cos, sin), short)


def replayed_logits(call: AttentionCall, query: Tensor, positions: list[int]) -> Tensor:
    """Return each content's logit at each position (B, H, P, P), the module asked once per position."""
    columns = []
    for position in positions:
        keys = call.replay(position)[1].float()[:, :, positions]
        keys = keys.repeat_interleave(query.shape[1] // keys.shape[1], 1)
        columns.append((keys @ query.unsqueeze(-1)).squeeze(-1))
    return torch.stack(columns, -1)
