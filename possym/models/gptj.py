"""E GPT-J models as one module, with an explicit model axis on every parameter.

What it does:
- the GPT-J block: attention and MLP in parallel on one LayerNorm, no biases in the attention, biases in the
  MLP, tanh-approximate GELU, final LayerNorm, untied output with bias;
- interleaved RoPE from angles in float64, so positions are not limited by the training length;
- one batched product per kind of weight serves all members, and parameters are stacked over layers too, so a
  forward, a backward, a clip or an optimiser step costs few kernels;
- logits, softmax and the residual stream in float32, the large products in the dtype asked for;
- dropout from one mask a step, drawn by the caller, so that it is the same for a member whatever E is;
- queries and keys before rotation of every layer in one forward (`GPTJEnsemble.trace`);
- one member to and from `transformers.GPTJForCausalLM`.

Sizes: E members, B sequences, T places, C width, H heads, D = C/H head width, L layers, V vocabulary.
Two rewritings keep the step short and change no result: LayerNorm's gain and bias are multiplied into the
weights that read it, and dropout's factor 1/(1 − p) into the weights that follow the dropped values.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..errors import ConfigError, InputError, ResultsError, UnsupportedModelError, need
from ..results import atomic_write
from ..rope import frequencies

if TYPE_CHECKING:
    from transformers import GPTJForCausalLM


@dataclass(frozen=True)
class GPTJConfig:
    """Sizes of a GPT-J model. ``rotary_dim=None`` turns the whole head width.

    Raises:
        ConfigError: a value of the wrong type or out of range.

    Source of the defaults: 2605.31558, appendix C.2, and GPT-J.

    >>> GPTJConfig(vocabulary_size=136).head_width
    128
    """

    vocabulary_size: int
    layers: int = 12
    heads: int = 1
    width: int = 128
    rotary_dim: int | None = None
    mlp_ratio: int = 4
    dropout: float = 0.1
    init_std: float = 0.02
    base: float = 10000.0

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        for name in ("vocabulary_size", "layers", "heads", "width", "mlp_ratio"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} = {value!r}: give a whole number from 1")
        for name, low, high in (("dropout", 0.0, 1.0), ("init_std", 0.0, math.inf), ("base", 1.0, math.inf)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < high:
                raise ConfigError(f"{name} = {value!r}: give a number from {low} to below {high}")
        if self.width % self.heads or self.head_width % 2:
            raise ConfigError(
                f"width = {self.width}, heads = {self.heads}: the width must be an even multiple of the heads, since "
                "RoPE pairs the dimensions of a head"
            )
        turned = self.rotary_dim
        if turned is not None and (isinstance(turned, bool) or not isinstance(turned, int)):
            raise ConfigError(f"rotary_dim = {turned!r}: give an even whole number, or None for the head width")
        if turned is not None and (turned < 2 or turned % 2 or turned > self.head_width):
            raise ConfigError(f"rotary_dim = {turned}: give an even number from 2 to the head width {self.head_width}")

    @property
    def head_width(self) -> int:
        """D, the dimensions of one head."""
        return self.width // self.heads

    @property
    def frequencies(self) -> Tensor:
        """(F,) float64 angles of the RoPE planes in radians a position, fastest first."""
        return frequencies(self.rotary_dim or self.head_width, self.base)


class Trace(NamedTuple):
    """Contents before rotation: the last place's queries (E, L, B, H, D), keys (E, L, B, H, T, D); logits (E, B, V)."""

    queries: Tensor
    keys: Tensor
    logits: Tensor


class GPTJEnsemble(nn.Module):
    """E GPT-J models of one size, each started from its own seed.

    Every parameter has the member axis first and, within blocks, the layer axis second; weights multiply from
    the right (in, out). A member's start depends on its own seed alone, not on E or the device.

    Args:
        config: sizes.
        seeds: one whole number from 0 a member.

    Raises:
        InputError: seeds that are no whole numbers from 0, or none.

    Source: 2605.31558, appendix C.2.

    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0, 1])
    >>> model(torch.zeros(2, 3, 5, dtype=torch.int64)).shape
    torch.Size([2, 3, 10])
    """

    def __init__(self, config: GPTJConfig, seeds: Sequence[int]):
        """Draw the weights: normal with ``config.init_std``, biases 0, gains 1."""
        super().__init__()
        if not isinstance(config, GPTJConfig):
            raise InputError(f"config is a {type(config).__name__}: give a GPTJConfig")
        need(seeds, (list, tuple, range), "seeds")
        seeds = list(seeds)
        if not seeds or any(isinstance(s, bool) or not isinstance(s, int) or not 0 <= s < 2**63 for s in seeds):
            raise InputError(f"seeds = {seeds!r}: give one whole number from 0 for each member")
        self.config = config
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for name, shape in parameter_shapes(config).items():
            if name.endswith("_gain"):
                value = torch.ones(len(seeds), *shape)
            elif name.endswith("_bias"):
                value = torch.zeros(len(seeds), *shape)
            else:
                value = torch.stack([torch.randn(shape, generator=g) for g in generators]) * config.init_std
            self.register_parameter(name, nn.Parameter(value))

    @property
    def members(self) -> int:
        """E, the number of models."""
        return len(self.embedding)

    @property
    def dropout(self) -> float:
        """The probability of dropping a value in training."""
        return self.config.dropout

    def mask_shape(self, batch: int, length: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes, for one member, of the dropout masks of a training step by name."""
        layers, heads, width = self.config.layers, self.config.heads, self.config.width
        return {
            "embedding": (batch, length, width),
            "attention": (layers, batch, heads, length, length),
            "attention_output": (layers, batch, length, width),
            "mlp_output": (layers, batch, length, width),
        }

    def mask_size(self, batch: int, length: int) -> int:
        """Return how many booleans one member's dropout takes in a step; 0 where dropout is 0."""
        if self.dropout == 0:
            return 0
        return sum(math.prod(shape) for shape in self.mask_shape(batch, length).values())

    def forward(
        self,
        tokens: Tensor,
        *,
        keep: Tensor | None = None,
        all_places: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Return the logits of the last place (E, B, V), or of all places (E, B, T, V).

        Args:
            tokens: (E, B, T) int64 token ids, or (B, T) that all members read.
            keep: (E, ``mask_size(B, T)``) booleans, True where dropout keeps a value; None drops nothing.
            all_places: also compute the last layer away from the last place.
            dtype: of the products with weights; everything else is float32.

        Raises:
            InputError: tokens or masks of the wrong shape, dtype or range.
        """
        return self._run(tokens, keep, all_places, dtype, None)

    def trace(self, tokens: Tensor, *, dtype: torch.dtype = torch.float32) -> Trace:
        """Return queries of the last place and all keys of every layer, before rotation, and the logits.

        Memory grows with E · L · B · T · C: feed long or many sequences in pieces.

        >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8, heads=2), seeds=[0])
        >>> trace = model.trace(torch.zeros(3, 5, dtype=torch.int64))
        >>> trace.queries.shape, trace.keys.shape
        (torch.Size([1, 2, 3, 2, 4]), torch.Size([1, 2, 3, 2, 5, 4]))
        """
        contents: list[tuple[Tensor, Tensor]] = []
        logits = self._run(tokens, None, False, dtype, contents)
        queries = torch.stack([query[:, :, -1] for query, _ in contents], 1)
        keys = torch.stack([key.transpose(2, 3) for _, key in contents], 1)
        return Trace(queries, keys, logits)

    def _run(
        self,
        tokens: Tensor,
        keep: Tensor | None,
        all_places: bool,
        dtype: torch.dtype,
        contents: list[tuple[Tensor, Tensor]] | None,
    ) -> Tensor:
        config = self.config
        need(all_places, bool, "all_places")
        if dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise InputError(f"dtype = {dtype!r}: give torch.float32, torch.bfloat16 or torch.float16")
        tokens = self._check_tokens(tokens)
        E, B, T = tokens.shape
        C, H, D, L = config.width, config.heads, config.head_width, config.layers
        masks = self._masks(keep, B, T)
        grown = 1.0 if keep is None else 1 / (1 - config.dropout)
        turn = rotation(T, config.rotary_dim or D, D, config.base, tokens.device)
        causal = torch.full((T, T), -math.inf, device=tokens.device).triu(1)

        # Weights of all layers at once, in an order that lets the last layer split off what all places need.
        entry = torch.cat([self.key, self.value, self.query, self.mlp_in], -1)  # (E, L, C, 7C) at mlp_ratio 4
        entry_bias = self.norm_bias.unsqueeze(-2) @ entry  # (E, L, 1, 7C)
        entry_bias = entry_bias + F.pad(self.mlp_in_bias, (3 * C, 0)).unsqueeze(-2)
        entry = (entry * self.norm_gain.unsqueeze(-1)).to(dtype).unbind(1)
        entry_bias = entry_bias.to(dtype).unbind(1)
        attention_output = (self.attention_output * grown**2).to(dtype).unbind(1)
        mlp_output = (self.mlp_output * grown).to(dtype).unbind(1)
        mlp_output_bias = (self.mlp_output_bias * grown).to(dtype).unsqueeze(-2).unbind(1)

        x = Lookup.apply(self.embedding * grown, tokens.flatten(1)).unflatten(1, (B, T))  # (E, B, T, C)
        if keep is not None:
            x = x * masks["embedding"]
        for layer in range(L):
            cut = layer == L - 1 and not all_places and T > 1
            normed = F.layer_norm(x, (C,)).to(dtype)
            if cut:
                seen = project(normed, entry[layer][..., : 2 * C], entry_bias[layer][..., : 2 * C])
                asked = project(normed[:, :, -1:], entry[layer][..., 2 * C :], entry_bias[layer][..., 2 * C :])
                key, value = seen.split(C, -1)
                query, hidden = asked.split([C, asked.shape[-1] - C], -1)
                x = x[:, :, -1:]
            else:
                joint = project(normed, entry[layer], entry_bias[layer])
                key, value, query, hidden = joint.split([C, C, C, joint.shape[-1] - 3 * C], -1)
            Q = query.shape[2]  # places that ask: T, or 1
            query, key, value = (each.float().unflatten(-1, (H, D)) for each in (query, key, value))
            if contents is not None:
                contents.append((query, key))
            query = complex_rotate(query, turn[T - Q :])
            key = complex_rotate(key, turn)
            query, key, value = (each.transpose(2, 3).reshape(E * B * H, -1, D) for each in (query, key, value))
            attention = torch.baddbmm(
                causal[T - Q :].expand(E * B * H, Q, T), query, key.transpose(1, 2), alpha=D**-0.5
            ).softmax(-1)
            if keep is not None:
                attention = attention * masks["attention"][:, layer, :, :, T - Q :].reshape(E * B * H, Q, T)
            mixed = (attention @ value).unflatten(0, (E, B, H)).transpose(2, 3).reshape(E, B * Q, C).to(dtype)
            attended = (mixed @ attention_output[layer]).unflatten(1, (B, Q))
            processed = project(F.gelu(hidden, approximate="tanh"), mlp_output[layer], mlp_output_bias[layer])
            if keep is not None:
                attended = attended * masks["attention_output"][:, layer, :, T - Q :]
                processed = processed * masks["mlp_output"][:, layer, :, T - Q :]
            x = x + attended + processed
        if not all_places:
            x = x[:, :, -1:]
        x = F.layer_norm(x, (C,)) * self.final_norm_gain[:, None, None] + self.final_norm_bias[:, None, None]
        logits = project(x, self.head, self.head_bias.unsqueeze(-2))
        return logits if all_places else logits.squeeze(2)

    def _masks(self, keep: Tensor | None, batch: int, length: int) -> dict[str, Tensor]:
        if keep is None:
            return {}
        need(keep, Tensor, "keep")
        expected = (self.members, self.mask_size(batch, length))
        if keep.shape != expected or keep.dtype != torch.bool:
            raise InputError(f"keep {tuple(keep.shape)} {keep.dtype}: expected {expected} booleans")
        shapes = self.mask_shape(batch, length)
        pieces = keep.split([math.prod(shape) for shape in shapes.values()], 1)
        return {name: piece.unflatten(1, shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}

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
        if not (tokens.is_cuda and torch.cuda.is_current_stream_capturing()):
            low, high = torch.stack(tokens.aminmax()).tolist()
            if low < 0 or high >= self.config.vocabulary_size:
                raise InputError(f"token ids from {low} to {high}: expected 0 to {self.config.vocabulary_size - 1}")
        return tokens

    def member(self, index: int) -> Self:
        """Return one member as an ensemble of its own (E = 1), a copy on the same device.

        Raises:
            InputError: there is no such member.
        """
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < self.members:
            raise InputError(f"member {index!r}: this ensemble has members 0 to {self.members - 1}")
        return self.from_weights(self.config, {n: p[index : index + 1] for n, p in self.named_parameters()})

    @classmethod
    def from_weights(cls, config: GPTJConfig, weights: dict[str, Tensor]) -> Self:
        """Return an ensemble that holds copies of these weights, in float32.

        Raises:
            InputError: a weight is missing, unknown or of another shape than ``config`` says.
        """
        need(config, GPTJConfig, "config")
        need(weights, dict, "weights")
        shapes = parameter_shapes(config)
        if weights.keys() != shapes.keys():
            raise InputError(f"weights {sorted(weights)}: expected {sorted(shapes)}")
        for name, weight in weights.items():
            need(weight, Tensor, name)
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
        need(path, (str, Path), "path")
        weights = {n: p.detach().to("cpu", dtype).contiguous() for n, p in self.named_parameters()}
        with atomic_write(Path(path)) as temporary:
            save_file(weights, temporary, metadata={"config": json.dumps(dataclasses.asdict(self.config))})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises:
            ResultsError: the file is missing, damaged, or holds something else.
        """
        need(path, (str, Path), "path")
        try:
            with safe_open(path, "pt") as file:
                config = GPTJConfig(**json.loads((file.metadata() or {})["config"]))
                weights = {name: file.get_tensor(name) for name in file.keys()}
            return cls.from_weights(config, weights)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{path} holds no GPT-J ensemble ({error}): give a file that save() wrote") from None

    def member_to_transformers(self, index: int, positions: int = 2048) -> "GPTJForCausalLM":
        """Return one member as a `transformers.GPTJForCausalLM` in evaluation mode, on the CPU.

        Args:
            index: which member.
            positions: the longest input the exported model takes (transformers tabulates its angles).

        Raises:
            InputError: no such member.
            UnsupportedModelError: transformers' GPT-J has RoPE base 10000 alone.
        """
        from transformers import GPTJConfig as TheirConfig
        from transformers import GPTJForCausalLM

        need(positions, int, "positions")
        if positions < 1:
            raise InputError(f"positions = {positions}: give a whole number from 1")
        ours = self.config
        member = self.member(index)
        if ours.base != 10000:
            raise UnsupportedModelError(f"RoPE base {ours.base}: transformers' GPT-J knows base 10000 alone")
        theirs = TheirConfig(
            vocab_size=ours.vocabulary_size,
            n_positions=positions,
            n_embd=ours.width,
            n_layer=ours.layers,
            n_head=ours.heads,
            n_inner=ours.mlp_ratio * ours.width,
            rotary_dim=ours.rotary_dim or ours.head_width,
            activation_function="gelu_new",
            resid_pdrop=ours.dropout,
            embd_pdrop=ours.dropout,
            attn_pdrop=ours.dropout,
            initializer_range=ours.init_std,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.random.fork_rng(devices=[]):
            model = GPTJForCausalLM(theirs)
        with torch.no_grad():
            for (name, layer), tensor in transformers_tensors(model):
                weight = getattr(member, name)[0] if layer is None else getattr(member, name)[0, layer]
                tensor.copy_(weight.mT if name in TRANSPOSED else weight)
        return model.eval()

    @classmethod
    def from_transformers(cls, model: "GPTJForCausalLM") -> Self:
        """Return a `transformers.GPTJForCausalLM` as an ensemble of one.

        Raises:
            UnsupportedModelError: another kind of model, another activation, unequal dropouts, a LayerNorm
                epsilon other than 1e-5, or a width that is no multiple of the MLP's.
        """
        from transformers import GPTJForCausalLM

        if not isinstance(model, GPTJForCausalLM):
            raise UnsupportedModelError(f"a {type(model).__name__}: give a transformers.GPTJForCausalLM")
        theirs = model.config
        dropouts = {theirs.resid_pdrop, theirs.embd_pdrop, theirs.attn_pdrop}
        inner = theirs.n_inner or 4 * theirs.n_embd
        same_gelu = theirs.activation_function in ("gelu_new", "gelu_pytorch_tanh")
        reasons = [
            (not same_gelu, "its activation_function is not gelu_new"),
            (len(dropouts) > 1, "its dropouts differ"),
            (theirs.layer_norm_epsilon != 1e-5, "layer_norm_epsilon is not 1e-5"),
            (inner % theirs.n_embd != 0, "n_inner is no multiple of n_embd"),
            (model.lm_head.weight is model.transformer.wte.weight, "its output is tied to its embedding"),
        ]
        for refused, reason in reasons:
            if refused:
                raise UnsupportedModelError(f"this GPT-J cannot be imported: {reason}")
        width = theirs.n_embd // theirs.n_head
        config = GPTJConfig(
            vocabulary_size=theirs.vocab_size,
            layers=theirs.n_layer,
            heads=theirs.n_head,
            width=theirs.n_embd,
            rotary_dim=None if theirs.rotary_dim == width else theirs.rotary_dim,
            mlp_ratio=inner // theirs.n_embd,
            dropout=dropouts.pop(),
            init_std=theirs.initializer_range,
        )
        shapes = parameter_shapes(config)
        weights = {name: torch.empty(1, *shape) for name, shape in shapes.items()}
        with torch.no_grad():
            for (name, layer), tensor in transformers_tensors(model):
                target = weights[name][0] if layer is None else weights[name][0, layer]
                target.copy_(tensor.mT if name in TRANSPOSED else tensor)
        return cls.from_weights(config, weights)


def parameter_shapes(config: GPTJConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one member's parameters by name, the layer axis first within blocks.

    >>> parameter_shapes(GPTJConfig(vocabulary_size=136))["mlp_in"]
    (12, 128, 512)
    """
    V, L, C = config.vocabulary_size, config.layers, config.width
    inner = config.mlp_ratio * C
    return {
        "embedding": (V, C),
        "norm_gain": (L, C),
        "norm_bias": (L, C),
        "query": (L, C, C),
        "key": (L, C, C),
        "value": (L, C, C),
        "attention_output": (L, C, C),
        "mlp_in": (L, C, inner),
        "mlp_in_bias": (L, inner),
        "mlp_output": (L, inner, C),
        "mlp_output_bias": (L, C),
        "final_norm_gain": (C,),
        "final_norm_bias": (C,),
        "head": (C, V),
        "head_bias": (V,),
    }


TRANSPOSED = ("query", "key", "value", "attention_output", "mlp_in", "mlp_output", "head")


def transformers_tensors(model: "GPTJForCausalLM") -> Iterator[tuple[tuple[str, int | None], Tensor]]:
    """Yield ((our name, layer or None), transformers' parameter) for every parameter of a GPT-J."""
    body = model.transformer
    yield ("embedding", None), body.wte.weight
    for layer, block in enumerate(body.h):
        yield ("norm_gain", layer), block.ln_1.weight
        yield ("norm_bias", layer), block.ln_1.bias
        yield ("query", layer), block.attn.q_proj.weight
        yield ("key", layer), block.attn.k_proj.weight
        yield ("value", layer), block.attn.v_proj.weight
        yield ("attention_output", layer), block.attn.out_proj.weight
        yield ("mlp_in", layer), block.mlp.fc_in.weight
        yield ("mlp_in_bias", layer), block.mlp.fc_in.bias
        yield ("mlp_output", layer), block.mlp.fc_out.weight
        yield ("mlp_output_bias", layer), block.mlp.fc_out.bias
    yield ("final_norm_gain", None), body.ln_f.weight
    yield ("final_norm_bias", None), body.ln_f.bias
    yield ("head", None), model.lm_head.weight
    yield ("head_bias", None), model.lm_head.bias


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


def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x @ weight + bias, member by member: (E, B, T, I), (E, I, O), (E, 1, O) → (E, B, T, O)."""
    return torch.baddbmm(bias, x.flatten(1, 2), weight).unflatten(1, x.shape[1:3])


@functools.lru_cache(maxsize=8)
def rotation(length: int, rotary_dim: int, width: int, base: float, device: torch.device) -> Tensor:
    """Return e^{i·position·angle} (length, 1, width/2) complex64; planes past ``rotary_dim`` stand still."""
    with torch.inference_mode(False):
        angles = torch.zeros(width // 2, dtype=torch.float64)
        angles[: rotary_dim // 2] = frequencies(rotary_dim, base)
        turns = torch.outer(torch.arange(length, dtype=torch.float64), angles)
        return torch.polar(torch.ones_like(turns), turns).to(device, torch.complex64).unsqueeze(1)


def complex_rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn interleaved pairs of x (..., T, H, D) as complex numbers by ``turn`` (T, 1, D/2)."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)
