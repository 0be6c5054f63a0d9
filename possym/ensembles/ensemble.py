"""What every ensemble of E models as one module shares, whatever its blocks.

What it does:
- parameters with an explicit model axis, each member's drawn from its own seed;
- arguments of a forward checked, tokens and members too;
- blocks compiled where they are trained on a GPU, once for all layers of a size;
- causal attention with RoPE from angles in float64, so positions are not limited by the training length;
- queries and keys before rotation of every layer in one forward (`Ensemble.trace`);
- members taken out, weights saved and loaded.

Sizes: E members, B sequences, T places, C width, H heads, D = C/H head width, L layers, V vocabulary.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from possym.ensembles import dropout, fused
from possym.errors import ConfigError, InputError, ResultsError, require_type, to_int
from possym.results import atomic_write
from possym.rope import frequencies, rotate_by

EXPLICIT = 128  # places up to which attention weights are held as a whole
MASKS = 3  # of dropout, a block: of attention weights, of attention's output, of the MLP's


@dataclass(frozen=True)
class Sizes:
    """Sizes that every kind of model has.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    vocabulary_size: int
    layers: int = 12
    heads: int = 1
    width: int = 128
    dropout: float = 0.1
    init_std: float = 0.02
    base: float = 10000.0

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        for name in ("vocabulary_size", "layers", "heads", "width"):
            need_size(name, getattr(self, name))
        for name, low, high in (("dropout", 0.0, 1.0), ("init_std", 0.0, math.inf), ("base", 1.0, math.inf)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
                raise ConfigError(f"{name} = {value!r}: give a number from {low} to below {high}")
        if self.width % self.heads or self.head_width % 2:
            raise ConfigError(
                f"width = {self.width}, heads = {self.heads}: the width must be an even multiple of the heads, since "
                "RoPE pairs the dimensions of a head"
            )

    @property
    def head_width(self) -> int:
        """D, the dimensions of one head."""
        return self.width // self.heads

    @property
    def frequencies(self) -> Tensor:
        """(F,) float64 angles of the RoPE planes in radians a position, fastest first."""
        return frequencies(self.head_width, self.base)


def need_size(name: str, value: int) -> None:
    """Raise a ConfigError unless a size is a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {value!r}: give a whole number from 1")


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Trace(NamedTuple):
    """Contents before rotation: the last place's queries (E, L, B, H, D), keys (E, L, B, H, T, D); logits (E, B, V)."""

    queries: Tensor
    keys: Tensor
    logits: Tensor


class Watch:
    """As ``attend``, keep each layer's queries of the last place and keys before rotation, and attend as usual."""

    def __init__(self, frequencies: Tensor, layout: str):
        """Start with no layers."""
        self.frequencies, self.layout = frequencies, layout
        self.queries, self.keys = [], []

    def keep(self, query: Tensor, key: Tensor) -> None:
        """Keep the last query of (E, B, Q, H, D) as (E, B, H, D) and keys (E, B, T, H, D) as (E, B, H, T, D)."""
        self.queries.append(query[:, :, -1])
        self.keys.append(key.transpose(2, 3))

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep contents, and return what places mix."""
        self.keep(query, key)
        return causal_attention(query, key, value, frequencies=self.frequencies, layout=self.layout)


class Ensemble(nn.Module):
    """E models of one size, each started from its own seed: what the kinds of blocks share.

    Every parameter has the member axis first and, within blocks, the layer axis second; weights multiply from
    the right (in, out). A member's start depends on its own seed alone, not on E or the device. ``layout`` says how
    RoPE pairs dimensions, see `possym.rope.rotate`.
    """

    Config: ClassVar[type[Sizes]]
    layout: ClassVar[str]

    def __init__(self, config: Sizes, seeds: Sequence[int]):
        """Draw the weights: normal with ``config.init_std``, biases 0, gains 1."""
        super().__init__()
        if not isinstance(config, self.Config):
            raise InputError(f"config is a {type(config).__name__}: give a {self.Config.__name__}")
        require_type(seeds, (list, tuple, range), "seeds")
        given, seeds = seeds, [to_int(seed) for seed in seeds]
        if not seeds or any(seed is None or not 0 <= seed < 2**32 for seed in seeds):
            raise InputError(f"seeds = {given!r}: give one whole number from 0 for each member")
        self.config = config
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for name, shape in self.shapes(config).items():
            if name.endswith("_gain"):
                value = torch.ones(len(seeds), *shape)
            elif name.endswith("_bias"):
                value = torch.zeros(len(seeds), *shape)
            else:
                value = torch.stack([torch.randn(shape, generator=g) for g in generators]) * config.init_std
            self.register_parameter(name, nn.Parameter(value))
        self.register_buffer("angles", config.frequencies, persistent=False)

    @staticmethod
    def shapes(config: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one member's parameters by name; gains end in _gain, biases in _bias."""
        raise NotImplementedError

    def compute(
        self, tokens: Tensor, dropout_keys: Tensor | None, all_places: bool, dtype: torch.dtype, attend: Attend | None
    ) -> Tensor:
        """Return what `forward` returns, of arguments that it has checked, tokens (E, B, T)."""
        raise NotImplementedError

    @property
    def members(self) -> int:
        """E, the number of models."""
        return len(self.embedding)

    @property
    def dropout(self) -> float:
        """The probability of dropping a value in training."""
        return self.config.dropout

    def forward(
        self,
        tokens: Tensor,
        *,
        dropout_keys: Tensor | None = None,
        all_places: bool = False,
        dtype: torch.dtype = torch.float32,
        attend: Attend | None = None,
    ) -> Tensor:
        """Return the logits of the last place (E, B, V), or of all places (E, B, T, V).

        Args:
            tokens: (E, B, T) int64 token ids, or (B, T) that all members read.
            dropout_keys: (E, 2) int32, a fresh random pair a member and step, see `possym.ensembles.dropout`; None
            drops
                nothing.
            all_places: also compute the last layer away from the last place.
            dtype: of the products with weights; everything else is float32.
            attend: in place of `causal_attention`, called as ``attend(layer, query, key, value)`` with contents
                before rotation, query (E, B, Q, H, D), key and value (E, B, T, H, D); returns (E, B, Q, H, D).
                Q = T, but 1 (the last place) in the last layer where ``all_places`` is False.

        Raises:
            InputError: tokens or keys of the wrong shape, dtype or range, or ``attend`` beside dropout.
        """
        require_type(all_places, bool, "all_places")
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise InputError(f"dtype = {dtype!r}: give torch.float32, torch.bfloat16 or torch.float16")
        if attend is not None and (dropout_keys is not None or not callable(attend)):
            raise InputError(f"attend is a {type(attend).__name__}: give a function, and no dropout_keys beside it")
        require_type(dropout_keys, (Tensor, NoneType), "dropout_keys")
        if dropout_keys is not None and dropout_keys.shape != (self.members, 2):
            raise InputError(f"dropout_keys {tuple(dropout_keys.shape)}: expected (E, 2) with E = {self.members}")
        return self.compute(self._check_tokens(tokens), dropout_keys, all_places, dtype, attend)

    def trace(self, tokens: Tensor, *, dtype: torch.dtype = torch.float32) -> Trace:
        """Return queries of the last place and all keys of every layer, before rotation, and the logits.

        Memory grows with E · L · B · T · C: feed long or many sequences in pieces.

        >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
        >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8, heads=2), seeds=[0])
        >>> trace = model.trace(torch.zeros(3, 5, dtype=torch.int64))
        >>> trace.queries.shape, trace.keys.shape
        (torch.Size([1, 2, 3, 2, 4]), torch.Size([1, 2, 3, 2, 5, 4]))
        """
        watch = Watch(self.angles, self.layout)
        logits = self(tokens, dtype=dtype, attend=watch)
        return Trace(torch.stack(watch.queries, 1), torch.stack(watch.keys, 1), logits)

    def _check_tokens(self, tokens: Tensor) -> Tensor:
        if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64:
            kind = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"tokens: got {kind}, expected an int64 tensor of token ids")
        E = self.members
        if tokens.ndim == 2:
            tokens = tokens.expand(E, *tokens.shape)
        if tokens.ndim != 3 or len(tokens) != E or 0 in tokens.shape:
            raise InputError(f"tokens {tuple(tokens.shape)}: expected (B, T), or (E, B, T) with E = {E}, not empty")
        # Looking at values is not allowed while a CUDA graph is captured; its warm-up has looked.
        if not (torch.compiler.is_compiling() or (tokens.is_cuda and torch.cuda.is_current_stream_capturing())):
            low, high = torch.stack(tokens.aminmax()).tolist()
            if low < 0 or high >= self.config.vocabulary_size:
                raise InputError(f"token ids from {low} to {high}: expected 0 to {self.config.vocabulary_size - 1}")
        return tokens

    def member(self, index: int) -> Self:
        """Return one member as an ensemble of its own (E = 1), a copy on the same device.

        Raises:
            InputError: there is no such member.
        """
        if not 0 <= require_type(index, int, "index") < self.members:
            raise InputError(f"member {index!r}: this ensemble has members 0 to {self.members - 1}")
        return self.from_weights(self.config, {n: p[index : index + 1] for n, p in self.named_parameters()})

    @classmethod
    def from_weights(cls, config: Sizes, weights: dict[str, Tensor]) -> Self:
        """Return an ensemble that holds copies of these weights, in float32.

        Raises:
            InputError: a weight is missing, unknown or of another shape than ``config`` says.
        """
        require_type(config, cls.Config, "config")
        require_type(weights, dict, "weights")
        shapes = cls.shapes(config)
        if weights.keys() != shapes.keys():
            raise InputError(f"weights {sorted(weights)}: expected {sorted(shapes)}")
        for name, weight in weights.items():
            require_type(weight, Tensor, name)
        count = len(weights["embedding"])
        for name, shape in shapes.items():
            if weights[name].shape != (count, *shape):
                raise InputError(f"{name} {tuple(weights[name].shape)}: expected {(count, *shape)}")
        model = cls(config, [0] * count).to(weights["embedding"].device)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
        return model

    def save(self, path: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write weights and sizes to one safetensors file, in one step; float16 halves its size."""
        if dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            raise InputError(f"dtype = {dtype!r}: give a floating dtype, such as torch.float16")
        require_type(path, (str, Path), "path")
        weights = {n: p.detach().to("cpu", dtype).contiguous() for n, p in self.named_parameters()}
        with atomic_write(Path(path)) as temporary:
            save_file(weights, temporary, metadata={"config": json.dumps(dataclasses.asdict(self.config))})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ResultsError: the file is missing, damaged, or holds something else.
        """
        require_type(path, (str, Path), "path")
        try:
            with safe_open(path, "pt") as file:
                config = cls.Config(**json.loads((file.metadata() or {})["config"]))
                weights = {name: file.get_tensor(name) for name in file.keys()}
            return cls.from_weights(config, weights)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{path} holds no {cls.__name__} ({error}): give a file that save() wrote") from None


TRANSPOSED = ("query", "key", "value", "attention_output", "mlp_gate", "mlp_in", "mlp_output", "head")
Named = Iterable[tuple[tuple[str, int | None], Tensor]]  # ((our name, layer or None), transformers' parameter)


@torch.no_grad()
def write_to(theirs: Named, member: Ensemble) -> None:
    """Copy the weights of an ensemble of one into transformers' parameters."""
    for (name, layer), tensor in theirs:
        weight = getattr(member, name)[0] if layer is None else getattr(member, name)[0, layer]
        tensor.copy_(weight.mT if name in TRANSPOSED else weight)


@torch.no_grad()
def read_from(theirs: Named, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return transformers' parameters as the weights of an ensemble of one, float32, whose members have ``shapes``."""
    weights = {name: torch.empty(1, *shape) for name, shape in shapes.items()}
    for (name, layer), tensor in theirs:
        target = weights[name][0] if layer is None else weights[name][0, layer]
        target.copy_(tensor.mT if name in TRANSPOSED else tensor)
    return weights


@functools.cache
def compiled(function: Callable) -> Callable:
    """Return a function compiled for the sizes it is called with, one compilation for all layers of these sizes."""
    return torch.compile(function, dynamic=False)


class Lookup(torch.autograd.Function):
    """Rows of each member's table (E, V, C) for tokens (E, N) → (E, N, C).

    The gradient is a product with one-hot rows: deterministic, unlike atomic scatter-adds, and free of the
    synchronisations that a CUDA graph cannot hold.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, table: Tensor, tokens: Tensor) -> Tensor:
        """Read the rows."""
        ctx.save_for_backward(tokens)
        ctx.rows = table.shape[1]
        return table.gather(1, tokens.unsqueeze(-1).expand(-1, -1, table.shape[2]))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        """Sum the gradients of each row's uses."""
        (tokens,) = ctx.saved_tensors
        hot = tokens.unsqueeze(1) == torch.arange(ctx.rows, device=tokens.device).unsqueeze(-1)  # (E, V, N)
        return hot.to(grad.dtype) @ grad, None


def masked(x: Tensor, keys: Tensor, dropped: float) -> Tensor:
    """Return embedded tokens (E, B, T, C) with some values dropped: stream 0 of a step's masks, keys (E, 2)."""
    return x * dropout.kept(keys, 0, tuple(x.shape[1:]), dropped)


def project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight + bias, member by member: (E, B, T, I), (E, I, O), (E, 1, O) → (E, B, T, O)."""
    rows = x.flatten(1, 2)
    if bias is None:
        product = rows @ weight
    elif x.is_cuda:  # where baddbmm copies the bias to every row first; a compiler adds it where the product is read
        product = rows @ weight + bias
    else:
        product = torch.baddbmm(bias, rows, weight)
    return product.unflatten(1, x.shape[1:3])


def attention_of_block(
    joint: Tensor,
    query: Tensor,
    angles: Tensor,
    *,
    heads: int,
    layout: str,
    dropped: float,
    keys: Tensor | None,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    precision: str | None,
) -> Tensor:
    """Return what the places that ask mix, (E, B, Q, C), from products of a block's weights.

    Args:
        joint: (E, B, T, 2C) keys and values before rotation; where all places ask, (E, B, T, 3C), queries behind them.
        query: (E, B, Q, C) of the last Q places.
        angles: (F,) float64 of the RoPE planes.
        heads: H.
        layout: how planes pair dimensions, see `possym.rope.rotate`.
        dropped: probability of dropping a weight; ``keys`` (E, 2) are this layer's, None where it is 0.
        attend: in place of `causal_attention`.
        precision: of the kernel where all places ask, see `possym.ensembles.fused.precision`; None is no kernel.
    """
    (E, B, T, _), (Q, C) = joint.shape, query.shape[2:]
    if precision and attend is None and Q == T:
        return fused.mix(joint, None, *tables(T, angles), keys, heads, dropped, layout == "half", precision)[0]
    key, value = joint[..., : 2 * C].chunk(2, -1)
    contents = [each.float().unflatten(-1, (heads, C // heads)) for each in (query, key, value)]
    if attend is not None:
        mixed = attend(*contents)
    else:
        kept = dropout.kept(keys, fused.STREAM, (B, heads, T, T), dropped)[..., T - Q :, :] if dropped else None
        mixed = causal_attention(*contents, frequencies=angles, layout=layout, kept=kept)
    return mixed.reshape(E, B, Q, C).to(joint.dtype)


def cosines_and_sines(places: int, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of what every plane (F,) has turned at every place, each (T, 1, F) float32."""
    counted = torch.arange(places, dtype=torch.float64, device=angles.device)[:, None, None]
    turned = (counted * angles).remainder(2 * math.pi)
    return turned.cos().float(), turned.sin().float()


def tables(places: int, angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return `cosines_and_sines` as the kernels read them, each (T, F)."""
    return tuple(table[:, 0].contiguous() for table in cosines_and_sines(places, angles))


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
    """Return what each place that asks mixes out of the values up to its own place, (E, B, Q, H, D).

    Past `EXPLICIT` places the weights are never held as a whole (torch's scaled_dot_product_attention).

    Args:
        query: (E, B, Q, H, D) contents before rotation of the last Q places.
        key, value: (E, B, T, H, D), keys before rotation.
        frequencies: (F,) float64 angles in radians a place, 2F ≤ D.
        scale: of the logits; None is 1/√D.
        layout: how planes pair dimensions, see `possym.rope.rotate`.
        kept: (E, B, H, Q, T) booleans, False where dropout drops a weight; None drops none.

    Source: 2511.11579, section 2.

    >>> content = torch.ones(1, 1, 2, 1, 2)
    >>> values = torch.tensor([1.0, 3.0]).view(1, 1, 2, 1, 1).expand(1, 1, 2, 1, 2)
    >>> causal_attention(content, content, values, frequencies=torch.zeros(1))[0, 0, :, 0, 0]
    tensor([1., 2.])
    """
    (E, B, Q, H, D), T = query.shape, key.shape[2]
    scale = D**-0.5 if scale is None else scale
    cos, sin = cosines_and_sines(T, frequencies.to(query.device, torch.float64))
    query = rotate_by(query, cos[T - Q :], sin[T - Q :], layout)
    key = rotate_by(key, cos, sin, layout)
    query, key, value = (each.transpose(2, 3).flatten(0, 2) for each in (query, key, value))  # (E·B·H, places, D)
    if T > EXPLICIT and kept is None:
        # With one query, the last place, nothing is hidden; otherwise there are as many queries as keys.
        mixed = F.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=Q > 1, scale=scale)[0]
    else:
        hidden = query.new_full((T, T), -math.inf).triu(1)[T - Q :]
        weights = torch.baddbmm(hidden.expand(len(query), Q, T), query, key.mT, alpha=scale).softmax(-1)
        if kept is not None:
            weights = weights * kept.flatten(0, 2)
        mixed = weights @ value
    return mixed.unflatten(0, (E, B, H)).transpose(2, 3)
