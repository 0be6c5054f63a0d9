"""One pass of a Hugging Face model with its attention layers listened to, and everything put back afterwards.

- `attached` calls a function at every attention layer, with an `AttentionCall`: queries and keys after
  rotation, the mask, and how the module was called. The function may return others to attend with.
- `AttentionCall.replay` asks the module for its queries and keys again with every token at one position, or none
  rotated.

The model keeps its own attention, SDPA or eager; instead of any other kind the pass takes one of these two. Two
conventions bite:
- transformers hands its attention function queries and keys *after* rotation, never the cosines. Those are read
  where the attention module receives them, in the same pass, because some models change them with the length.
- A mask function must be registered beside the attention function, or the model silently runs without causality.
"""

import copy
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from possym.errors import InputError, UnsupportedModelError

_numbers = itertools.count()


def modules_of(model: Any) -> list[nn.Module]:
    """Return a model's modules, listed once for all who ask: a walk through a model takes a millisecond."""
    return list(model.modules()) if isinstance(model, nn.Module) else []


def parameters_of(modules: list[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of modules; one that two of them share is there twice."""
    return [p for module in modules for p in module._parameters.values() if p is not None]


class _Replayed(Exception):
    """Carries a replay's queries and keys out of the attention module."""


@dataclass
class AttentionCall:
    """One attention layer at the moment it attends: queries and keys after rotation, and how it was called."""

    session: "HookSession"
    module: nn.Module
    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float
    causal: bool
    options: dict

    @property
    def layer(self) -> int:
        """Number of the layer, from 0."""
        return self.session.number(self.module)

    def visible(self, position: int) -> Tensor:
        """Return which keys (T,) the query at ``position`` sees, on the CPU."""
        count = self.key.shape[2]
        if self.mask is None:
            return torch.arange(count) <= (position if self.causal else count)
        row = self.mask[..., position, :count].cpu()
        if row.dtype == torch.bool:
            seen = row
        else:
            seen = row > torch.finfo(row.dtype).min / 2
            if (row[seen] != 0).any():
                raise UnsupportedModelError(
                    f"layer {self.layer} adds a bias that depends on positions (ALiBi or relative positions). possym "
                    "reads models with rotary position embedding (RoPE) alone"
                )
        seen = seen.reshape(-1, count)
        if (seen != seen[0]).any():
            raise InputError(f"layer {self.layer}: the mask differs within the batch: give prompts without padding")
        return seen[0].clone()

    def once(self, what: object, source: object, make: Callable[[], object]) -> Any:
        """Return ``make()``, made once for all layers that got the same ``source``: each may wait for the device."""
        memory, key = self.session.memory, (what, id(source), self.key.device)
        if key not in memory:
            if len(memory) >= 32:
                memory.clear()
            memory[key] = make(), source  # kept, so that no other object gets its id
        return memory[key][0]

    @property
    def tables_from(self) -> object:
        """What the tables are read from: the embeddings that the module received, else the module."""
        embeddings = self.session.inputs[self.module].get("position_embeddings")
        return self.module if embeddings is None else embeddings

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return cosines and sines as the module received them, each (T, W), in float32."""
        return self.once("tables", self.tables_from, self.read_tables)

    def read_tables(self) -> tuple[Tensor, Tensor]:
        """Do what `tables` says."""
        given = self.session.inputs[self.module]
        embeddings = given.get("position_embeddings")
        if embeddings is None:
            sines = self.module.embed_positions[given["position_ids"][0]]
            sin, cos = sines.chunk(2, -1)
        elif isinstance(embeddings, Tensor):
            cos, sin = embeddings.real, embeddings.imag
        else:
            first, second = embeddings
            # Some families pass (sin, cos): at the first position every sine is zero.
            cos, sin = (second, first) if is_sine(first) else (first, second)
        cos, sin = (x.reshape(-1, *x.shape[-2:])[0].to(self.key.device).float() for x in (cos, sin))
        return cos, sin

    def gains(self) -> list[Tensor]:
        """Return the module's parameters that could be a gain over a head's dimensions, (D,) each."""
        parameters = [p.detach().float() for p in self.module.parameters() if p.shape == self.key.shape[-1:]]
        return [*parameters, *(1 + p for p in parameters)]

    def replay(self, position: int | None) -> tuple[Tensor, Tensor] | None:
        """Ask the module for its queries and keys with every token at ``position``; None asks for no rotation at all.

        Returns None where the module is told no positions, so that nothing can rotate.
        """
        from transformers import Cache

        given = {k: copy.copy(v) if hasattr(v, "keys") else v for k, v in self.session.inputs[self.module].items()}
        # A cache would keep the keys of every replay.
        given |= {name: None for name, value in given.items() if isinstance(value, Cache)}
        embeddings = given.get("position_embeddings")
        if embeddings is not None:
            if isinstance(embeddings, Tensor):
                given["position_embeddings"] = moved_table(embeddings, position, 1)
            else:
                given["position_embeddings"] = tuple(
                    moved_table(x, position, 0 if is_sine(x) else 1) for x in embeddings
                )
        elif hasattr(self.module, "embed_positions") and given.get("position_ids") is not None:
            given["position_ids"] = torch.full_like(given["position_ids"], position or 0)
        else:
            return None
        self.session.replaying, self.session.current = True, self.module
        try:
            self.module.forward(**given)
        except _Replayed as replayed:
            return replayed.args
        finally:
            self.session.replaying = False
        raise UnsupportedModelError(f"layer {self.layer}: asked again, the module attended in another way")


def is_sine(table: Tensor) -> bool:
    """Return whether a table that starts at position 0 holds sines."""
    return bool((table.select(-2, 0) == 0).all())


def moved_table(table: Tensor, position: int | None, plain: int) -> Tensor:
    """Return a table with one position's row everywhere, or ``plain`` everywhere."""
    if position is None:
        return torch.full_like(table, plain)
    return table.narrow(-2, position, 1).expand_as(table).contiguous()


OnCall = Callable[[AttentionCall], tuple[Tensor, Tensor] | None]


class HookSession:
    """One pass of a model with its attention layers listened to."""

    def __init__(self, on_call: OnCall):
        self.on_call = on_call
        self.inputs: dict[nn.Module, dict] = {}
        self.memory: dict[tuple, tuple] = {}
        self.numbers: dict[nn.Module, int] = {}
        self.current: nn.Module | None = None
        self.replaying = False

    def number(self, module: nn.Module) -> int:
        """Return a module's layer number: its own, or its rank in order of use."""
        own = getattr(module, "layer_idx", None)
        return self.numbers.setdefault(module, len(self.numbers)) if own is None else own

    def remember(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Keep how an attention module was called, until it has attended."""
        self.inputs[module] = dict(zip(forward_names(type(module)), args, strict=False)) | kwargs
        self.current = module

    def attend(self, implementation, module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        """Stand in for transformers' attention function: capture, then attend as the model would have."""
        causal = getattr(module, "is_causal", True)
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        function = attention_function(module, implementation)
        applied = options if takes_softcap(function) else {k: v for k, v in options.items() if k != "softcap"}
        query, key = self.capture(module, query, key, attention_mask, scaling, causal, applied)
        return function(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)

    def capture(self, module, query, key, mask, scaling, causal, options) -> tuple[Tensor, Tensor]:
        """Hand one layer's queries and keys on, or break off if this is a replay; return those to attend with."""
        if self.replaying:
            raise _Replayed(query, key)
        if options.get("position_bias") is not None:
            raise UnsupportedModelError(
                f"layer {self.number(module)} adds a relative position bias. possym reads models with rotary position "
                "embedding (RoPE) alone"
            )
        causal = causal if options.get("is_causal") is None else options["is_causal"]
        if module not in self.inputs:
            raise UnsupportedModelError(
                f"{type(module).__name__} attends, but its name does not end as transformers' attention modules do, so "
                "possym did not see how it was called"
            )
        edited = self.on_call(AttentionCall(self, module, query, key, mask, scaling, causal, options))
        del self.inputs[module]
        return edited or (query, key)


@functools.cache
def forward_names(kind: type[nn.Module]) -> list[str]:
    """Return the names of what a module's ``forward`` takes."""
    return list(inspect.signature(kind.forward).parameters)[1:]


class _CaptureSDPA(TorchFunctionMode):
    """Listens to PyTorch's own attention inside modules that call it directly."""

    def __init__(self, session: HookSession):
        super().__init__()
        self.session = session

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        session = self.session
        if function is nn.functional.scaled_dot_product_attention and session.current in session.inputs:
            query, key = args[:2]
            module, session.current = session.current, None
            causal = kwargs.get("is_causal", False)
            scale = query.shape[-1] ** -0.5 if kwargs.get("scale") is None else kwargs["scale"]
            with self:  # a mode is off inside its own handler, but replays must be heard too
                edited = session.capture(module, query, key, kwargs.get("attn_mask"), scale, causal, {})
            args, kwargs = (*edited, *args[2:]), kwargs | dict(scale=scale)
        return function(*args, **kwargs)


def attention_function(module: nn.Module, implementation: str) -> Callable:
    """Return what computes a module's attention: SDPA, or the eager function of its file."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = eager_function(module)
    return ALL_ATTENTION_FUNCTIONS["sdpa"] if implementation == "sdpa" or eager is None else eager


@functools.cache
def takes_softcap(function: Callable) -> bool:
    """Return whether an attention function applies the softcap that it is given."""
    return "softcap" in inspect.signature(function).parameters


def eager_function(module: nn.Module) -> Callable | None:
    """Return the eager attention function of the file that defines a module, or None."""
    for cls in type(module).__mro__:
        found = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if found is not None:
            return found
    return None


@contextmanager
def attached(model: nn.Module, on_call: OnCall) -> Iterator[HookSession]:
    """Listen to a model's attention layers, and put everything back on leaving, exception or not.

    ``on_call`` may return the query and key to attend with instead of the model's.
    """
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

    everything = modules_of(model)
    modules = [m for m in everything if "Attention" in type(m).__name__]
    configs = all_configs(everything)
    implementations = {key: config._attn_implementation for key, config in configs.items()}
    session = HookSession(on_call)
    training = [m for m in everything if m.training]
    name = f"possym_{next(_numbers)}"

    def restore_configs() -> None:
        for key, config in configs.items():
            config._attn_implementation_internal = implementations[key]

    def set_training(flag: bool) -> None:
        for module in training:
            module.training = flag

    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:  # a compiled model runs as it is written: compiled, it hears no listener
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(session.inputs.clear)
        stack.callback(session.memory.clear)
        stack.callback(set_training, True)
        set_training(False)
        stack.callback(restore_configs)
        stack.enter_context(rotary_state(everything))
        for module in modules:
            stack.callback(module.register_forward_pre_hook(session.remember, with_kwargs=True).remove)
        if any(eager_function(m) for m in modules):
            for kind in ("sdpa", "eager"):
                for mapping, interface, function in (
                    (ALL_ATTENTION_FUNCTIONS, AttentionInterface, functools.partial(session.attend, kind)),
                    (ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, ALL_MASK_ATTENTION_FUNCTIONS[kind]),
                ):
                    interface.register(f"{name}_{kind}", function)
                    stack.callback(type(mapping)._global_mapping.pop, f"{name}_{kind}")
            chosen = {key: f"{name}_{kind_of(model, config)}" for key, config in configs.items()}
        else:
            chosen = dict.fromkeys(configs, "sdpa" if model._supports_sdpa else "eager")
            stack.enter_context(_CaptureSDPA(session))
            for module in (m for m in modules if hasattr(m, "_attn")):
                stack.callback(vars(module).pop, "_attn")
                module._attn = listening(session, module)
        for key, config in configs.items():
            config._attn_implementation_internal = chosen[key]
        yield session


def kind_of(model: nn.Module, config: Any) -> str:
    """Return what a part of a model attends with while it is listened to: its own if that is SDPA or eager."""
    own = config._attn_implementation
    if own in ("sdpa", "eager"):
        return own
    softcap = getattr(config, "attn_logit_softcapping", None)
    return "sdpa" if model._supports_sdpa and softcap is None else "eager"


def listening(session: HookSession, module: nn.Module) -> Callable:
    """Return a module's own ``_attn`` method with a capture before it."""
    own = type(module)._attn

    def attend(query, key, value, attention_mask=None, **options):
        query, key = session.capture(module, query, key, attention_mask, query.shape[-1] ** -0.5, True, {})
        return own(module, query, key, value, attention_mask, **options)

    return attend


def all_configs(modules: list[nn.Module]) -> dict:
    """Return the configs of a model's modules and of all their parts, by identity."""
    # To look for what a module has not is slow, so only those are asked that have a config or a property of that name.
    holders = (m for m in modules if "config" in vars(m) or hasattr(type(m), "config"))
    found, waiting = {}, [m.config for m in holders if hasattr(getattr(m, "config", None), "sub_configs")]
    while waiting:
        config = waiting.pop()
        if config is None or id(config) in found:
            continue
        found[id(config)] = config
        waiting.extend(getattr(config, key, None) for key in config.sub_configs)
    return found


@contextmanager
def rotary_state(modules: list[nn.Module]) -> Iterator[None]:
    """Keep what rotary modules remember of earlier lengths (dynamic scaling) from changing."""
    saved = []
    for module in modules:
        if "Rotary" in type(module).__name__:
            values = [(buffer, buffer.clone()) for buffer in module.buffers()]
            containers = module._buffers, module._non_persistent_buffers_set
            saved.append((module, dict(vars(module)), [(c, copy.copy(c)) for c in containers], values))
    try:
        yield
    finally:
        for module, attributes, containers, values in saved:
            vars(module).clear()
            vars(module).update(attributes)
            for container, content in containers:
                container.clear()
                container.update(content)
            for buffer, value in values:
                buffer.copy_(value)


def check_model(model: nn.Module, modules: list[nn.Module]) -> None:
    """Raise an UnsupportedModelError unless ``model`` can hold rotary, causal attention that possym reads."""
    try:
        from transformers import PreTrainedModel
    except ImportError:
        raise UnsupportedModelError("reading a model needs transformers: pip install 'possym[models]'") from None
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise UnsupportedModelError(
            f"model is a {type(model).__name__}: give a transformers model, e.g. "
            "AutoModelForCausalLM.from_pretrained(folder)"
        )
    if not any(isinstance(m, PreTrainedModel) for m in modules):
        raise UnsupportedModelError(f"{type(model).__name__} holds no transformers model")
    # accelerate keeps offloaded weights on the meta device too, with a hook that brings them when their module runs.
    if any(weight.is_meta for weight in parameters_of([m for m in modules if "_hf_hook" not in vars(m)])):
        raise UnsupportedModelError(f"{type(model).__name__} has weights on the meta device: load them first")
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} has an encoder and a decoder. Give a causal language model with RoPE"
        )
    if getattr(model.config, "alibi", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} uses ALiBi (config.alibi), not rotary position embedding. Give a model with RoPE"
        )
