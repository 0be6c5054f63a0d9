"""The base class of ensembles: E models as one module, with any kind of block.

It provides:
- parameters with an explicit model axis, each member's drawn from its own seed;
- arguments of a forward checked, tokens and members too;
- on a GPU, blocks by kernels where their kind has some (`Ensemble.learnt`, `Ensemble.evaluated`); others are compiled
  where they are trained, once for all layers of a size;
- causal attention with RoPE from angles in float64, so positions are not limited by the training length;
- queries and keys before rotation of every layer in one forward (`Ensemble.trace`);
- members taken out, weights saved and loaded.

Sizes: E members, B sequences, T positions, C width, H heads, D = C/H head width, L layers, V vocabulary.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from possym.ensembles import dropout, fused
from possym.ensembles.attention import Attend, Watch, tables
from possym.ensembles.branches import branch
from possym.errors import ConfigError, InputError, ResultsError, require_type, to_int
from possym.results import atomic_write
from possym.rope import frequencies

MASKS = 3  # of dropout, a block: of attention weights, of attention's output, of the MLP's


@dataclass(frozen=True)
class Sizes:
    """The sizes that all kinds of models have.

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
        """(F,) float64 angles of the RoPE planes in radians per position, fastest first."""
        return frequencies(self.head_width, self.base)


def need_size(name: str, value: int) -> None:
    """Raise a ConfigError unless a size is a whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} = {value!r}: give a whole number from 1")


class Trace(NamedTuple):
    """Contents before rotation, last queries (E, L, B, H, D) and keys (E, L, B, H, T, D), and logits (E, B, V)."""

    queries: Tensor
    keys: Tensor
    logits: Tensor


class Ensemble(nn.Module):
    """E models of one size, each initialised from its own seed; the base class of all kinds of blocks.

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

    block: ClassVar[Callable[..., Tensor]]

    def stacked(self, dtype: torch.dtype, grown: float) -> Sequence[Tensor]:
        """Return the weights of all layers, each (E, L, …), as products in ``dtype`` read them.

        Dropout's factor ``grown`` is multiplied in.
        """
        raise NotImplementedError

    @staticmethod
    def of_block(*weights: Tensor) -> tuple:
        """Return one layer's weights as ``block`` reads them."""
        return weights

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (E, B, Q, V) of a residual stream (E, B, Q, C)."""
        raise NotImplementedError

    def evaluated(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        turns: tuple[Tensor, Tensor],
        cut: bool,
        attend: Attend | None,
        precision: str,
    ) -> Tensor | None:
        """Return what `learnt` does by a way for evaluations alone, None where there is none.

        Where ``attend`` is a `Watch` that is alone, the last block may be missing.
        """
        return None

    def learnt(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        turns: tuple[Tensor, Tensor],
        keys: Tensor | None,
        cut: bool,
        precision: str,
    ) -> Tensor | None:
        """Return the residual stream after all blocks by a way for training alone, None where there is none.

        Weights are as `stacked` returns them, keys (L, E, 2) the layers'. With ``cut`` the last position alone is asked
        for.
        """
        return None

    def compute(
        self,
        tokens: Tensor,
        dropout_keys: Tensor | None,
        all_positions: bool,
        dtype: torch.dtype,
        attend: Attend | None,
    ) -> Tensor:
        """Return what `forward` returns, of arguments that it has checked, tokens (E, B, T)."""
        config = self.config
        _, B, T = tokens.shape
        dropped = config.dropout if dropout_keys is not None else 0.0
        grown = 1 / (1 - dropped)
        compiling = tokens.is_cuda and torch.is_grad_enabled() and attend is None
        run, drop = (compiled(self.block), compiled(masked)) if compiling else (self.block, masked)
        precision = fused.precision(tokens.device, T, config.head_width, len(self.angles))
        beside = branch(tokens.device, 2)
        with beside.forked():
            turns = tables(T, self.angles)
            keys = dropout.keys_of_layers(dropout_keys, config.layers, MASKS) if dropped else None
            x = Lookup.apply(self.embedding * grown, tokens.flatten(1)).unflatten(1, (B, T))  # (E, B, T, C)
            if dropped:
                x = drop(x, dropout_keys, dropped)
            embedded = beside.asked()
        stacked = self.stacked(dtype, grown)
        beside.join(embedded)
        cut, done = not all_positions and T > 1, None
        if precision and attend is None and torch.is_grad_enabled():
            done = self.learnt(x, stacked, turns, keys, cut, precision)
        elif precision and not dropped and not torch.is_grad_enabled():
            done = self.evaluated(x, stacked, turns, cut, attend, precision)
        layers = zip(*(each.unbind(1) for each in stacked), strict=True) if done is None else ()
        for layer, weights in enumerate(layers):
            x = run(
                x,
                self.of_block(*weights),
                turns,
                heads=config.heads,
                cut=layer == config.layers - 1 and cut,
                dropped=dropped,
                keys=keys[layer] if dropped else None,
                attend=None if attend is None else functools.partial(attend, layer),
                precision=precision,
            )
        x = x if done is None else done
        logits = self.logits(x if all_positions else x[:, :, -1:])
        return logits if all_positions else logits.squeeze(2)

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
        all_positions: bool = False,
        dtype: torch.dtype = torch.float32,
        attend: Attend | None = None,
    ) -> Tensor:
        """Return the logits of the last position (E, B, V), or of all positions (E, B, T, V).

        Args:
            tokens: (E, B, T) int64 token ids, or (B, T) that all members read.
            dropout_keys: (E, 2) int32, a fresh random pair a member and step, see `possym.ensembles.dropout`; None
                drops nothing.
            all_positions: also compute the last layer away from the last position.
            dtype: of the products with weights; everything else is float32.
            attend: in place of `causal_attention`, without dropout; called as ``attend(layer, query, key, value)``
                with contents before rotation, query (E, B, Q, H, D), key and value (E, B, T, H, D); returns
                (E, B, Q, H, D). Q = T, but 1 (the last position) in the last layer where ``all_positions`` is False.

        Raises:
            InputError: tokens of the wrong shape, dtype or range.
        """
        return self.compute(self._check_tokens(tokens), dropout_keys, all_positions, dtype, attend)

    def trace(self, tokens: Tensor) -> Trace:
        """Return every layer's last query and all its keys, before rotation, and the logits.

        Memory grows with E · L · B · T · C: feed long or many sequences in pieces.

        >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
        >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8, heads=2), seeds=[0])
        >>> trace = model.trace(torch.zeros(3, 5, dtype=torch.int64))
        >>> trace.queries.shape, trace.keys.shape
        (torch.Size([1, 2, 3, 2, 4]), torch.Size([1, 2, 3, 2, 5, 4]))
        """
        watch = Watch(self.angles, self.layout, self.config.layers, alone=False)
        logits = self(tokens, attend=watch)
        return Trace(watch.queries, watch.keys, logits)

    def queries_and_keys(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `trace` does but the logits, for which the last block need not be computed."""
        watch = Watch(self.angles, self.layout, self.config.layers, alone=True)
        self(tokens, attend=watch)
        return watch.queries, watch.keys

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
    return x * dropout.keep_mask(keys, 0, tuple(x.shape[1:]), dropped)


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
