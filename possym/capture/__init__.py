"""Queries and keys of every attention layer of a Hugging Face RoPE model, taken in one forward pass.

- `Capture(model)` finds out, layer by layer and by asking the model itself, which dimensions form the RoPE planes,
  and checks its reading against the model's own rotation at other places.
- `Capture.run(tokens, visit)` runs the model once and hands each layer's `LayerInputs` to ``visit`` while the pass
  goes on, so that memory does not grow with the layers; small layers that are alike can come together.
- `LayerInputs.relocated_logits` gives the logit of every key content at every key place.

What is captured is handed on unchanged, under the model's own mask. A softcap counts where it is applied, which SDPA
does not. How a model is listened to says `possym.capture.hooks`, how a rotation is found `possym.capture.rotation`.

Keys are contents frozen where they were computed. In layer 0, relocating a key equals moving its token; deeper it is
the counterfactual that the papers' code uses too.
"""

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from possym.capture.hooks import Call, attached, check_model, modules_of, parameters_of
from possym.capture.rotation import (
    Rotation,
    alike,
    distance,
    find_gain,
    find_rotation,
    rotated_tables,
    table_angles,
    unrotate,
)
from possym.errors import InputError, UnsupportedModelError, as_whole
from possym.rope import pairs, turn

PROBE_LENGTH = 12
TOGETHER = 2**24  # numbers in the keys of layers that come together
_probed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@dataclass
class Layer:
    """What the probe found out about one attention layer."""

    layer: int
    heads: int
    key_heads: int
    width: int
    rotation: Rotation | None
    method: str
    self_check: float
    window: int | None = None
    shares_keys: bool = False
    sinks: bool = False
    softcap: float | None = None


@dataclass
class LayerInputs:
    """What one attention layer did with one query: the query, every key before rotation, and the tables.

    Where `Capture.run` takes layers together, the batch B holds the prompts of the first, then of the second, ….

    Attributes:
        layers: numbers of the layers, from 0; one unless they come together.
        query: (B, H, D) the query after rotation, gains included, in the order of `Rotation`.
        keys: (B, G, T, D) key contents before rotation, in the same order; H is a multiple of G.
        cos, sin: (T, F) tables as the model used them, fastest plane first; F = 0 where the layer does not rotate.
        angles: (F,) radians a position, read off the tables, to their precision.
        query_place: place of the query.
        moved: (N,) places of the keys that the query sees before itself.
        scale: factor of the logits.
        softcap: c of c·tanh(logit/c), or None.
        sinks: (H,) logits of the layer's sinks, or None.
        replayed: (B, H, N + 1, N + 1) logits of the moved keys and the query's own at each other's places, asked from
            the model itself where its rotation does not turn planes; else None.
    """

    layers: list[int]
    query: Tensor
    keys: Tensor
    cos: Tensor
    sin: Tensor
    angles: Tensor
    query_place: int
    moved: Tensor
    scale: float
    softcap: float | None = None
    sinks: Tensor | None = None
    replayed: Tensor | None = None

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
        """Return the logit of every moved key's content at every moved key's place.

        Args:
            heads: which query heads.
            rows: which of the batch.
            per_plane: which planes to return one by one (``slice(None)`` for all) instead of their sum. Planes are
                taken before the softcap: only there do they add up to the head.

        Returns:
            (B, h, N, N), with ``per_plane`` (B, h, f, N, N), float32; entry [a, b] is content a at place b.

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
            keys, turned = self.plane_factors(heads, rows, per_plane)
            return keys.mT @ turned
        contents, places = self.factors(heads, rows)
        return self.capped(contents @ places.mT)

    def factors(self, heads: slice = slice(None), rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return what relocated logits are the product of, before the softcap: contents (B, h, N, K) and places (N, K).

        A plane's logit of key content k at a place of angle φ is kᵀR(−φ)q = (k·q) cos φ + (k₁q₂ − k₂q₁) sin φ, the
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
        contents = keys.new_empty(*query.shape[:3], len(self.moved), self.places.shape[1])
        first, second, rest = contents.tensor_split((count, 2 * count), -1)
        torch.mul(k1, q1, out=first).addcmul_(k2, q2)
        torch.mul(k1, q2, out=second).addcmul_(k2, q1, value=-1)
        if k.shape[-1]:
            rest.zero_()[..., 0] = (k * q).sum(-1)
        return contents.flatten(1, 2), self.places

    @functools.cached_property
    def places(self) -> Tensor:
        """Cosines and sines of the moved keys' places (N, K), and a column of ones where dimensions do not rotate."""
        places = torch.cat([self.cos, self.sin], -1)[self.moved]
        if 2 * len(self.angles) == self.keys.shape[-1]:
            return places
        return torch.cat([places, F.pad(places.new_ones(len(places), 1), (0, 3))], -1)

    @functools.cached_property
    def key_heads(self) -> Tensor:
        """Which head of keys each query head reads (H,)."""
        return torch.arange(self.heads, device=self.keys.device) // (self.heads // self.keys.shape[1])

    def plane_factors(self, heads: slice, rows: slice, planes: slice) -> tuple[Tensor, Tensor]:
        """Return `factors` plane by plane, both (B, h, f, 2, N): relocated logits are their product."""
        count = len(self.angles)
        contents, places = (
            pairs(x[..., : 2 * count], count, "half")[..., planes, :].movedim(-3, -1) for x in self.factors(heads, rows)
        )
        return contents, places.expand_as(contents)

    def own_logits(self, heads: slice = slice(None), *, per_plane: slice | None = None) -> Tensor:
        """Return the logit of the query's own key (B, h, 1), with ``per_plane`` (B, h, f, 1)."""
        if self.replayed is not None and per_plane is None:
            return self.capped(self.replayed[:, heads, -1, -1:])
        place = torch.full((1,), self.query_place, device=self.keys.device)
        return replace(self, moved=place).relocated_logits(heads, per_plane=per_plane).squeeze(-1)

    def extra_logits(self, heads: slice = slice(None)) -> Tensor:
        """Return the logits of what is attended but never moved (B, h, X): the query's own key, and sinks."""
        own = self.own_logits(heads)
        if self.sinks is None:
            return own
        return torch.cat([own, self.sinks[heads].expand(len(own), -1).unsqueeze(-1)], -1)

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the layer's softcap."""
        return logits if self.softcap is None else (logits / self.softcap).tanh_().mul_(self.softcap)


class Capture:
    """Reads the queries and keys of a causal RoPE language model from transformers.

    Args:
        model: a transformers model with rotary attention; any dtype, any device, several devices too.

    Attributes:
        layers: what was found out about each attention layer, by number.
        coverage: DataFrame with one row a layer of the model: attention, planes, method, self_check, window, ….

    Raises:
        UnsupportedModelError: not a transformers model, not causal, or nothing that rotates.

    Source: the relocated keys of 2511.11579, section 3, taken as 2605.31558's code takes them.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> capture = Capture(LlamaForCausalLM(config))
    >>> shapes = []
    >>> _ = capture.run(torch.arange(7), lambda inputs: shapes.append(inputs.relocated_logits().shape))
    >>> shapes
    [torch.Size([1, 4, 6, 6]), torch.Size([1, 4, 6, 6])]
    """

    def __init__(self, model: nn.Module):
        """Ask the model, or take what it answered earlier: a model whose parameters did not change is asked once."""
        modules = modules_of(model)
        check_model(model, modules)
        self.model = model
        self.layers: dict[int, Layer] = {}
        embedding = model.get_input_embeddings()
        self.device = embedding.weight.device
        if self.device.type == "meta":
            self.device = torch.device(getattr(embedding._hf_hook, "execution_device", "cpu"))
        marks = fingerprint(modules)
        known = _probed.get(model)
        if known is not None and known[0] == marks:
            _, self.layers, coverage_before = known
            self.coverage = coverage_before.copy()
            return
        vocabulary = embedding.weight.shape[0]
        tokens = (torch.arange(PROBE_LENGTH, device=self.device) * 7919 + 11) % vocabulary
        self.forward(tokens[None], self.probe, PROBE_LENGTH - 1)
        count = getattr(model.config.get_text_config(), "num_hidden_layers", len(self.layers))
        self.coverage = coverage([self.layers.get(number) for number in range(count)])
        name = type(model).__name__
        if not self.layers:
            raise UnsupportedModelError(
                f"{name}: no attention layer could be read (it uses neither transformers' attention interface nor a "
                "known fallback). possym reads causal language models with rotary position embedding"
            )
        if not self.coverage.rotates.any():
            raise UnsupportedModelError(
                f"{name}: no layer rotates its queries and keys, so places enter in another way (learned positions, "
                "ALiBi, or none). possym reads models with rotary position embedding (RoPE)"
            )
        _probed[model] = marks, self.layers, self.coverage.copy()

    def run(
        self, tokens: Tensor, visit: Callable[[LayerInputs], None], *, query: int = -1, together: bool = False
    ) -> Tensor | None:
        """Run the model on ``tokens`` and hand every attention layer's inputs to ``visit``, first layer first.

        Args:
            tokens: (T,) or (B, T) token ids, without padding: every row is B prompts of one length.
            visit: called once a layer with its `LayerInputs`, without gradients.
            query: place of the query; negative counts from the end.
            together: hand over layers that are alike at once, while their keys are small: not in order then, and the
                last after the pass.

        Returns:
            (B, V) logits of the next token at the query, or None where the model has no language head.

        Raises:
            InputError: tokens or query that do not fit.

        >>> from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
        >>> model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=50, hidden_size=32, intermediate_size=32,
        ...                                          num_hidden_layers=1, num_attention_heads=2))
        >>> Capture(model).run(torch.arange(5), lambda inputs: print(inputs.layer, inputs.moved), query=3).shape
        0 tensor([0, 1, 2])
        torch.Size([1, 50])
        """
        if (
            not isinstance(tokens, Tensor)
            or tokens.dtype not in (torch.int64, torch.int32)
            or tokens.ndim not in (1, 2)
        ):
            given = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"tokens: got {given}, expected whole numbers of shape (T,) or (B, T)")
        tokens = tokens[None] if tokens.ndim == 1 else tokens
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        if not tokens.numel() or tokens.min() < 0 or tokens.max() >= vocabulary:
            raise InputError(f"tokens: give at least one, each from 0 to {vocabulary - 1}, the model's vocabulary")
        length = tokens.shape[1]
        found = as_whole(query)
        if found is None or not -length <= found < length:
            raise InputError(
                f"query = {query!r}: give a place among the {length} tokens (negative counts from the end)"
            )
        place = found % length
        sound: list[tuple[list[int], Tensor]] = []
        waiting: dict[tuple, list[Reading]] = {}

        def hand_over() -> None:
            for readings in waiting.values():
                inputs, finite = joined(readings, place)
                readings.clear()  # the keys as the model has them are let go
                sound.append((inputs.layers, finite))
                # A GPU is asked after the pass: waiting for its answer would leave it idle.
                if not finite.is_cuda:
                    check_sound(sound[-1:])
                visit(inputs)
            waiting.clear()

        def on_call(call: Call) -> None:
            one = self.read(call, place)
            waiting.setdefault(one.kind, []).append(one)
            numbers = sum(each.key.numel() for readings in waiting.values() for each in readings)
            if not together or one.replayed is not None or numbers + one.key.numel() > TOGETHER:
                hand_over()

        logits = self.forward(tokens.to(self.device), on_call, place)
        with torch.no_grad():
            hand_over()
        check_sound(sound)
        return logits

    def forward(self, tokens: Tensor, on_call: Callable[[Call], None], place: int) -> Tensor | None:
        """Run the model with ``on_call`` at every attention layer and leave it as it was found."""
        with attached(self.model, on_call), torch.no_grad():
            accepted = inspect.signature(self.model.forward).parameters
            options = {"use_cache": False} if "use_cache" in accepted or "kwargs" in accepted else {}
            if "logits_to_keep" in accepted:
                options["logits_to_keep"] = tokens.shape[1] - place
            output = self.model(input_ids=tokens, **options)
        logits = getattr(output, "logits", None)
        if logits is None:
            return None
        return logits[:, 0 if "logits_to_keep" in accepted else place]

    def probe(self, call: Call) -> None:
        """Find out how one layer rotates, and check it against the layer's own rotation at other places."""
        name = f"{type(self.model).__name__}, layer {call.layer}"
        visible = call.visible(PROBE_LENGTH // 2)
        if visible[PROBE_LENGTH // 2 + 1 :].any():
            raise UnsupportedModelError(
                f"{name}: attention reads in both directions, as an encoder does. Give a causal language model"
            )
        # All the comparing is done on the CPU, where an answer costs no waiting.
        query, key = call.query[0].float().cpu(), call.key[0].float().cpu()
        plain = call.replay(None)
        found = Layer(
            layer=call.layer,
            heads=call.query.shape[1],
            key_heads=call.key.shape[1],
            width=call.key.shape[-1],
            rotation=None,
            method="direct",
            self_check=0.0,
            window=call.options.get("sliding_window"),
            sinks=call.options.get("s_aux") is not None,
            softcap=call.options.get("softcap"),
        )
        self.layers[call.layer] = found
        if plain is None:
            return
        tolerance = 1e-5 if call.key.dtype in (torch.float32, torch.float64) else 0.03
        plain_query, plain_key = (x[0].float().cpu() for x in plain)
        query_turns, key_turns = distance(plain_query, query) > 1e-6, distance(plain_key, key) > 1e-6
        if not query_turns and not key_turns:
            return
        found.shares_keys = not key_turns
        tables = tuple(table.cpu() for table in call.tables())
        gains = [gain.cpu() for gain in call.gains()]
        rotation = find_rotation(plain_query, query, tables, gains, tolerance)
        if rotation is not None and not found.shares_keys:
            key_weight = find_gain(plain_key, key, tables, rotation, gains, tolerance)
            rotation = None if key_weight is False else replace(rotation, key_weight=key_weight)
        if rotation is not None:
            found.rotation = rotation
            found.self_check = check(call, found, query, key, tables)
            if found.self_check <= tolerance:
                found.rotation = self.shared(rotation, call.key.device)
                return
        if found.shares_keys:
            raise UnsupportedModelError(f"{name}: takes its keys from another layer and rotates in no known way")
        found.rotation, found.method = None, "replay"

    def shared(self, rotation: Rotation, device: torch.device) -> Rotation:
        """Return ``rotation`` on a device, as the one object of all layers that turn alike and have no gains."""
        parts = {name: x.to(device) for name, x in vars(rotation).items() if isinstance(x, Tensor)}
        rotation = replace(rotation, **parts)
        for other in (layer.rotation for layer in self.layers.values()):
            if other is not None and other.order.device == device and alike(rotation, other):
                return other
        return rotation

    def read(self, call: Call, place: int) -> "Reading":
        """Keep what one layer's `LayerInputs` are made of."""
        found = self.layers[call.layer]
        query = call.query[:, :, place].to(torch.float32, copy=True)  # a view would keep all queries
        moved = call.once("moved", call.mask, lambda: call.visible(place)[:place].nonzero().flatten().to(query.device))
        tables, turned, replayed = None, None, None
        if found.rotation is not None:
            tables = call.tables()
            turned = call.once(("turns", id(found.rotation)), call.tables_from, lambda: turns(call, found.rotation))
        if found.method == "replay":
            replayed = replayed_logits(call, query * call.scale, [*moved.tolist(), place])
        return Reading(
            layer=call.layer,
            query=query,
            key=call.key,
            moved=moved,
            rotation=found.rotation,
            tables=tables,
            turns=turned,
            scale=float(call.scale),
            softcap=call.options.get("softcap"),
            sinks=call.options["s_aux"].detach().float() if found.sinks else None,
            replayed=replayed,
        )


@dataclass
class Reading:
    """What one layer's `LayerInputs` are made of: the query in float32 and the keys, after rotation, and the rest."""

    layer: int
    query: Tensor
    key: Tensor
    moved: Tensor
    rotation: Rotation | None
    tables: tuple[Tensor, Tensor] | None
    turns: tuple[Tensor, Tensor, Tensor] | None
    scale: float
    softcap: float | None
    sinks: Tensor | None
    replayed: Tensor | None

    @property
    def kind(self) -> tuple:
        """What layers have in common that can come together."""
        alone = self.layer if self.sinks is not None or self.replayed is not None else None
        shared = (id(x) for x in (self.moved, self.rotation, self.tables, self.turns))
        return alone, *shared, self.scale, self.softcap, self.query.shape, self.key.shape, self.key.dtype


def joined(readings: list[Reading], place: int) -> tuple[LayerInputs, Tensor]:
    """Return what alike layers gave as one, and whether each layer's queries and keys are finite."""
    first = readings[0]
    rotation, query, keys = first.rotation, torch.cat([one.query for one in readings]), [one.key for one in readings]
    if rotation is None:
        keys = torch.cat(keys).float()
        cos = sin = keys.new_empty(keys.shape[2], 0)
        angles = keys.new_empty(0)
    else:
        cos, sin, angles = first.turns
        keys = unrotate(torch.cat(keys).float(), first.tables, rotation, rotation.key_weight)
        query = query if rotation.key_weight is None else query * rotation.key_weight
        query = query[..., rotation.order]
    finite = [x.isfinite().reshape(len(readings), -1).all(1) for x in (query, keys)]
    inputs = LayerInputs(
        layers=[one.layer for one in readings],
        query=query,
        keys=keys,
        cos=cos,
        sin=sin,
        angles=angles,
        query_place=place,
        moved=first.moved,
        scale=first.scale,
        softcap=first.softcap,
        sinks=first.sinks,
        replayed=first.replayed,
    )
    return inputs, finite[0] & finite[1]


def check(call: Call, found: Layer, query: Tensor, key: Tensor, tables: tuple[Tensor, Tensor]) -> float:
    """Return how far our relocation is from the module's own, relative to the largest entry."""
    worst = 0.0
    for place in (0, PROBE_LENGTH // 2, PROBE_LENGTH - 1):
        truth_query, truth_key = (x[0].float().cpu() for x in call.replay(place))
        cos, sin = (table[place] for table in rotated_tables(tables, found.rotation))
        compared = [(query, truth_query, found.rotation.query_weight)]
        if not found.shares_keys:
            compared.append((key, truth_key, found.rotation.key_weight))
        for captured, truth, weight in compared:
            content = unrotate(captured, tables, found.rotation, weight)
            ours = turn(content, cos, sin, "half")
            truth = truth[..., found.rotation.order]
            ours = ours if weight is None else ours * weight[found.rotation.order]
            worst = max(worst, distance(ours, truth))
    return worst


def turns(call: Call, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Return cosines and sines (T, F) of the planes, and their angles (F,)."""
    cos, sin = rotated_tables(call.tables(), rotation)
    return cos, sin, table_angles(cos, sin).abs()


def check_sound(layers: list[tuple[list[int], Tensor]]) -> None:
    """Raise an InputError that names the first layer that is not sound."""
    wrong = [number for some, sound in layers for number, fine in zip(some, sound.tolist(), strict=True) if not fine]
    if wrong:
        raise InputError(
            f"layer {min(wrong)}: queries or keys are not finite. The model overflows on this prompt: check its "
            "weights, or load it in float32 or bfloat16"
        )


def fingerprint(modules: list[nn.Module]) -> tuple:
    """Return what changes when a model's parts, their place or their parameters change.

    Vectors, such as gains that a probe copies, count with their values: an optimiser may change them unseen.
    """
    parameters = parameters_of(modules)
    marks = tuple((p.data_ptr(), p.dtype, p.device, 0 if p.is_inference() else p._version) for p in parameters)
    vectors: dict[torch.device, list[Tensor]] = {}
    for p in parameters:
        if p.ndim == 1 and not p.is_meta:
            vectors.setdefault(p.device, []).append(p.detach())
    values = tuple(torch.cat(some).float().cpu().numpy().tobytes() for some in vectors.values())
    return marks, values, tuple(map(id, modules))


def replayed_logits(call: Call, query: Tensor, places: list[int]) -> Tensor:
    """Return the logit of each place's key content at each place (B, H, P, P), the module asked once a place."""
    columns = []
    for place in places:
        keys = call.replay(place)[1].float()[:, :, places]
        keys = keys.repeat_interleave(query.shape[1] // keys.shape[1], 1)
        columns.append((keys @ query.unsqueeze(-1)).squeeze(-1))
    return torch.stack(columns, -1)


def coverage(layers: list[Layer | None]) -> pd.DataFrame:
    """Return one row a layer: what it is, how its rotation was read, and how far the self-check was off."""
    rows = [
        dict(layer=number, attention=False, rotates=False, planes=0, method="none")
        if found is None
        else dict(
            layer=number,
            attention=True,
            rotates=found.rotation is not None or found.method == "replay",
            planes=0 if found.rotation is None else len(found.rotation.columns),
            method=found.method,
            heads=found.heads,
            key_heads=found.key_heads,
            width=found.width,
            window=found.window,
            softcap=found.softcap,
            sinks=found.sinks,
            shares_keys=found.shares_keys,
            self_check=found.self_check,
        )
        for number, found in enumerate(layers)
    ]
    kinds = dict.fromkeys(("heads", "key_heads", "width", "window"), "Int64")
    kinds |= dict.fromkeys(("sinks", "shares_keys"), "boolean") | dict.fromkeys(("softcap", "self_check"), "float64")
    table = pd.DataFrame(rows)
    return table.reindex(columns=[*table.columns, *(k for k in kinds if k not in table.columns)]).astype(kinds)
