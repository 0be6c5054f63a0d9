"""One pass of a Hugging Face model with its attention layers listened to, and everything put back afterwards.

- `attached` calls a function at every attention layer, with an `AttentionCall`: queries and keys after rotation, the
  mask, and how the module was called. The function may return others to attend with.
- `AttentionCall.replay` asks the module for its queries and keys again with every token at one position, or none
  rotated. `AttentionCall.own_attention` asks the attention function itself for its weights.

The model runs its own attention: transformers' registered functions, and the eager function of a model's file, hear
the listener first and then do what they did. Their names in the config stay, because models compare with them (sparse
indexers mask their keys only under "eager" and "sdpa"). Fused kernels alone (flash, flex, paged) give way to SDPA or
eager, because their masks are not a matrix. One convention bites: transformers hands its attention function queries
and keys *after* rotation, never the cosines. Those are read where the attention module receives or makes them, in the
same pass, because some models change them with the length.

A model is listened to by one thread at a time; a second one waits.
"""

import copy
import functools
import inspect
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from possym.errors import InputError, UnsupportedModelError


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
    again: Callable[[Tensor, Tensor, Tensor], Any] | None = None

    @property
    def pass_index(self) -> int:
        """How many times the layer has attended before in this forward pass: 0 but for layers that run in a loop."""
        return self.session.passes[self.module] - 1

    @property
    def layer(self) -> int:
        """Number of the layer, from 0."""
        return self.session.number(self.module)

    def visible(self, position: int) -> Tensor:
        """Return which keys (T,) the query at ``position`` sees, on the CPU."""
        count = self.key.shape[2]
        if self.mask is None:
            return torch.arange(count) <= (position if self.causal else count)
        if not isinstance(self.mask, Tensor) or self.mask.ndim < 2 or self.mask.shape[-2] <= position:
            raise UnsupportedModelError(
                f"layer {self.layer}: its attention function takes a mask that is no matrix, so possym does not see "
                "which keys it reads. Load the model with attn_implementation='sdpa' or 'eager'"
            )
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
        heads = seen.reshape(-1, seen.shape[-2] if seen.ndim > 2 else 1, count)
        if (heads != heads[:, :1]).any():
            raise UnsupportedModelError(
                f"layer {self.layer}: each head reads keys of its own choice (sparse attention per head). possym moves "
                "the same keys in all heads of a layer"
            )
        if (heads != heads[:1]).any():
            raise InputError(
                f"layer {self.layer}: the mask differs within the batch. Give prompts without padding, and one by one "
                "to a model that picks the keys to read (sparse attention)"
            )
        return heads[0, 0].clone()

    def once(self, what: object, source: object, make: Callable[[], object]) -> Any:
        """Return ``make()``, made once for all layers that got the same ``source``: each may wait for the device."""
        memory, key = self.session.memory, (what, id(source), self.key.device)
        if key not in memory:
            if len(memory) >= 32:
                memory.clear()
            memory[key] = make(), source  # kept, so that no other object gets its id
        return memory[key][0]

    @property
    def embeddings(self) -> Any:
        """The tables that the module received or made for itself: a tensor or a pair, None where it has none."""
        given = self.session.inputs[self.module].get("position_embeddings")
        if given is None:
            return self.session.inner_tables.get(self.module)
        if isinstance(given, dict):  # one pair for each kind of layer, of which the module picks its own
            kinds = [kind for kind in vars(self.module).values() if isinstance(kind, str) and kind in given]
            return given[kinds[0]] if kinds else None
        return given

    @property
    def tables_from(self) -> object:
        """What the tables are read from, alive as long as they are: a table of the module's, else the module."""
        embeddings = self.embeddings
        return self.module if embeddings is None else embeddings

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return cosines and sines as the module received them, each (T, W), in float32."""
        return self.once("tables", self.tables_from, self.read_tables)

    def read_tables(self) -> tuple[Tensor, Tensor]:
        """Do what `tables` says."""
        embeddings = self.embeddings
        if embeddings is None:
            sines = self.module.embed_positions[self.session.inputs[self.module]["position_ids"][0]]
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
        session = self.session
        embeddings = given.get("position_embeddings")
        if isinstance(embeddings, dict):
            given["position_embeddings"] = {kind: moved_tables(x, position) for kind, x in embeddings.items()}
        elif embeddings is not None:
            given["position_embeddings"] = moved_tables(embeddings, position)
        elif self.module in session.inner_tables:
            pass  # the module makes its tables anew, and is given others
        elif hasattr(self.module, "embed_positions") and given.get("position_ids") is not None:
            given["position_ids"] = torch.full_like(given["position_ids"], position or 0)
        else:
            return None
        session.replaying, session.current, before = (position,), self.module, session.current
        try:
            self.module.forward(**given)
        except _Replayed as replayed:
            return replayed.args
        finally:
            session.replaying, session.current = None, before
        raise UnsupportedModelError(f"layer {self.layer}: asked again, the module attended in another way")

    def attention(self) -> Tensor:
        """Return the attention of every query (B, H, T, T) that logits, mask and sinks give, in float32."""
        query, key = self.query.float(), self.key.float()
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        logits = query @ key.mT * self.scale
        if self.options.get("softcap") is not None:
            logits = self.options["softcap"] * torch.tanh(logits / self.options["softcap"])
        seen = torch.stack([self.visible(position) for position in range(query.shape[2])]).to(logits.device)
        logits = logits.masked_fill(~seen, -torch.inf)
        if self.options.get("s_aux") is not None:
            sinks = self.options["s_aux"].float()[:, None, None].expand(*logits.shape[:-1], 1)
            return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        return logits.softmax(-1)

    def own_attention(self) -> Tensor | None:
        """Return the attention (B, H, T, T) that the model's own function computes, read off by attending over rows
        of the identity; None where the module calls no function that can be asked."""
        if self.again is None:
            return None
        count = self.key.shape[2]
        rows = torch.eye(count, dtype=self.query.dtype, device=self.key.device)
        output = self.again(self.query, self.key, rows.expand(*self.key.shape[:2], count, count))[0]
        return output.transpose(1, 2).float()


def is_sine(table: Tensor) -> bool:
    """Return whether a table that starts at position 0 holds sines."""
    return bool((table.select(-2, 0) == 0).all())


def moved_tables(embeddings: Any, position: int | None) -> Any:
    """Return tables with one position's rotation everywhere, or no rotation; complex ones or a pair."""
    if isinstance(embeddings, Tensor):
        return moved_table(embeddings, position, 1)
    return tuple(moved_table(x, position, 0 if is_sine(x) else 1) for x in embeddings)


def moved_table(table: Tensor, position: int | None, plain: int) -> Tensor:
    """Return a table with one position's row everywhere, or ``plain`` everywhere."""
    if position is None:
        return torch.full_like(table, plain)
    return table.narrow(-2, position, 1).expand_as(table).contiguous()


OnCall = Callable[[AttentionCall], tuple[Tensor, Tensor] | None]


class HookSession:
    """One pass of a model with its attention layers listened to, by the thread that made it."""

    def __init__(self, on_call: OnCall):
        self.on_call = on_call
        self.thread = threading.get_ident()
        self.inputs: dict[nn.Module, dict] = {}
        self.inner_tables: dict[nn.Module, Any] = {}
        self.attended: dict[nn.Module, tuple[int, int]] = {}
        self.passes: Counter[nn.Module] = Counter()
        self.memory: dict[tuple, tuple] = {}
        self.numbers: dict[nn.Module, int] = {}
        self.taken: set[int] = set()
        self.current: nn.Module | None = None
        self.replaying: tuple[int | None] | None = None
        self.inside = False

    def here(self) -> bool:
        """Return whether the thread that asks is the one whose pass this is."""
        return threading.get_ident() == self.thread

    def number(self, module: nn.Module) -> int:
        """Return a module's layer number: its own, or the next free one where it has none or another has the same."""
        if module not in self.numbers:
            own = getattr(module, "layer_idx", None)
            if not isinstance(own, int) or own in self.taken:
                own = max(self.taken, default=-1) + 1
            self.numbers[module] = own
            self.taken.add(own)
        return self.numbers[module]

    def remember(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        """Keep how an attention module was called, until it has attended."""
        if not self.here():
            return
        self.inputs[module] = dict(zip(forward_names(type(module)), args, strict=False)) | kwargs
        self.inner_tables.pop(module, None)
        self.attended.pop(module, None)
        self.passes[module] += 1
        self.current = module

    def remember_tables(self, module: nn.Module, output: Any) -> Any:
        """Keep the tables that an attention module makes for itself, or give it those of a replay."""
        if not self.here() or not isinstance(output, tuple) or len(output) != 2:
            return None
        if self.replaying is not None and self.current is module:
            return moved_tables(output, self.replaying[0])
        self.inner_tables[module] = output
        return None

    def attend(self, function: Callable, module, query, key, value, attention_mask, **options):
        """Stand in for an attention function: hand its queries and keys on, then attend as the model would have."""
        causal = getattr(module, "is_causal", True)
        scaling = query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]
        applied = {k: v for k, v in options.items() if k not in ("scaling", "dropout")}
        if not takes_softcap(function):
            applied.pop("softcap", None)

        def again(query, key, value):
            self.inside = True
            try:
                return function(module, query, key, value, attention_mask, **options | dict(scaling=scaling))
            finally:
                self.inside = False

        query, key = self.capture(module, query, key, attention_mask, scaling, causal, applied, again)
        return again(query, key, value)

    def capture(self, module, query, key, mask, scaling, causal, options, again=None) -> tuple[Tensor, Tensor]:
        """Hand one layer's queries and keys on, or break off if this is a replay; return those to attend with."""
        if self.replaying is not None:
            raise _Replayed(query, key)
        if options.get("position_bias") is not None:
            raise UnsupportedModelError(
                f"layer {self.number(module)} adds a relative position bias. possym reads models with rotary position "
                "embedding (RoPE) alone"
            )
        causal = causal if options.get("is_causal") is None else options["is_causal"]
        if module not in self.inputs:
            if self.attended.get(module) == (query.data_ptr(), key.data_ptr()):
                return query, key  # the same attention once more, over other values (DiffLlama)
            if module in self.attended:
                raise UnsupportedModelError(
                    f"layer {self.number(module)}: {type(module).__name__} attends more than once each time it is "
                    "called, with other queries or keys: no single softmax is its attention"
                )
            raise UnsupportedModelError(
                f"{type(module).__name__} attends, but its forward does not call transformers' attention interface "
                "itself, so possym did not see how it was called"
            )
        call = AttentionCall(self, module, query, key, mask, scaling, causal, options, again)
        edited = self.on_call(call)
        self.attended[module] = query.data_ptr(), key.data_ptr()
        del self.inputs[module]
        return edited or (query, key)


@functools.cache
def attends(kind: type[nn.Module]) -> bool:
    """Return whether modules of a class are attention modules: by name, or because their forward attends."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    names = () if code is None else code.co_names
    return "Attention" in kind.__name__ or bool({"ALL_ATTENTION_FUNCTIONS", "scaled_dot_product_attention"} & {*names})


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


@functools.cache
def takes_softcap(function: Callable) -> bool:
    """Return whether an attention function applies the softcap that it is given."""
    return "softcap" in inspect.signature(function).parameters


def uses_interface(module: nn.Module) -> bool:
    """Return whether the file that defines a module has an eager attention function of its own."""
    files = (sys.modules.get(cls.__module__) for cls in type(module).__mro__)
    return any(EAGER.fullmatch(name) for file in files if file is not None for name in vars(file))


_lock = threading.Condition(threading.RLock())
_sessions: dict[nn.Module, HookSession] = {}  # who listens to a module


def heard(function: Callable) -> Callable:
    """Return an attention function that lets the module's listener hear it first."""

    @functools.wraps(function)
    def attend(module, query, key, value, attention_mask=None, *rest, **options):
        session = _sessions.get(module)
        if session is None or session.inside or not session.here() or rest:
            return function(module, query, key, value, attention_mask, *rest, **options)
        return session.attend(function, module, query, key, value, attention_mask, **options)

    attend.possym_original = function
    return attend


def replace_functions(modules: list[nn.Module]) -> None:
    """Let every attention function that these modules can reach be heard."""
    from transformers.modeling_utils import AttentionInterface

    places = [AttentionInterface._global_mapping]
    files = {cls.__module__ for module in modules for cls in type(module).__mro__}
    places += [vars(sys.modules[name]) for name in files if name in sys.modules]
    for place in places:
        for name, function in list(place.items()):
            known = place is places[0] or EAGER.fullmatch(name)
            if known and callable(function) and not hasattr(function, "possym_original"):
                place[name] = heard(function)
                _replaced.append((place, name))


def restore_functions() -> None:
    """Put every attention function back, once nobody listens."""
    while _replaced:
        place, name = _replaced[-1]
        place[name] = getattr(place.get(name), "possym_original", place.get(name))
        _replaced.pop()


EAGER = re.compile(r"\w*eager\w*attention\w*")
_replaced: list[tuple[dict, str]] = []


def claim(modules: list[nn.Module], session: HookSession) -> None:
    """Wait until nobody listens to these modules, then let ``session``.

    Raises:
        InputError: the thread that asks listens to them already.
    """
    with _lock:
        while owners := [_sessions[module] for module in modules if module in _sessions]:
            if any(owner.here() for owner in owners):
                raise InputError(
                    "this model is being read already, by the code that calls: leave `ablate_frequencies`, or the "
                    "function that `Capture.run` calls at every layer, before you read it again"
                )
            _lock.wait()
        _sessions.update(dict.fromkeys(modules, session))


def release(modules: list[nn.Module], session: HookSession) -> None:
    """Let others listen to these modules again."""
    with _lock:
        for module in modules:
            if _sessions.get(module) is session:
                del _sessions[module]
        if not _sessions:
            restore_functions()
        _lock.notify_all()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the end, so that what is begun is finished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[tuple] = []
    before = signal.getsignal(signal.SIGINT)
    if before is None:  # set by another than Python, which cannot put it back
        yield
        return
    signal.signal(signal.SIGINT, lambda *given: late.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if late and callable(before):
            before(*late[-1])


@contextmanager
def attached(model: nn.Module, on_call: OnCall) -> Iterator[HookSession]:
    """Listen to a model's attention layers, and put everything back on leaving, exception or not.

    ``on_call`` may return the query and key to attend with instead of the model's.

    Raises:
        InputError: the model is listened to already in this thread. Another thread waits for its turn.
    """
    session = HookSession(on_call)
    everything = modules_of(model)
    stack = ExitStack()
    try:
        claim(everything, session)  # may wait long, so Ctrl-C must reach it
        with uninterrupted():
            attach(stack, model, everything, session)
        yield session
    finally:
        with uninterrupted():
            stack.close()
            release(everything, session)


@contextmanager
def settled(model: nn.Module) -> Iterator[None]:
    """Run a model by itself as it runs while it is listened to: in evaluation mode, with no fused kernel."""
    everything = modules_of(model)
    stack = ExitStack()
    try:
        with uninterrupted():
            settle(stack, model, everything)
        yield
    finally:
        with uninterrupted():
            stack.close()


def attach(stack: ExitStack, model: nn.Module, everything: list[nn.Module], session: HookSession) -> None:
    """Set a model up to be listened to; ``stack`` puts it back."""
    modules = [m for m in everything if attends(type(m))]
    for memory in (session.inputs, session.memory, session.inner_tables, session.attended):
        stack.callback(memory.clear)
    settle(stack, model, everything)
    for module in modules:
        stack.callback(module.register_forward_pre_hook(session.remember, with_kwargs=True).remove)
        for child in (c for c in module.children() if "Rotary" in type(c).__name__):
            hook = functools.partial(lambda parent, _, args, output: session.remember_tables(parent, output), module)
            stack.callback(child.register_forward_hook(hook).remove)
    if any(uses_interface(m) for m in modules):
        replace_functions(modules)
        return
    stack.enter_context(_CaptureSDPA(session))
    for module in (m for m in modules if hasattr(m, "_attn")):
        stack.callback(vars(module).pop, "_attn")
        module._attn = listening(session, module)


def settle(stack: ExitStack, model: nn.Module, everything: list[nn.Module]) -> None:
    """Put a model into evaluation mode, with an attention that can be listened to; ``stack`` puts it back."""
    configs = all_configs(everything)
    implementations = {key: config._attn_implementation for key, config in configs.items()}
    training = [m for m in everything if m.training]

    def restore_configs() -> None:
        for key, config in configs.items():
            config._attn_implementation_internal = implementations[key]

    def set_training(flag: bool) -> None:
        for module in training:
            module.training = flag

    if "torch._dynamo" in sys.modules:  # a compiled model runs as it is written: compiled, it hears no listener
        stack.enter_context(torch.compiler.set_stance("force_eager"))
    stack.callback(set_training, True)
    set_training(False)
    stack.callback(restore_configs)
    stack.enter_context(rotary_state(everything))
    interface = any(uses_interface(m) for m in everything if attends(type(m)))
    for config in configs.values():
        config._attn_implementation_internal = implementation_while_read(model, config, interface)


def implementation_while_read(model: nn.Module, config: Any, interface: bool) -> str:
    """Return what a part of a model attends with while it is listened to: its own, fused kernels excepted.

    Modules that do not use transformers' interface are heard where they call SDPA, so they use it if they can.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if not interface:
        return "sdpa" if model._supports_sdpa else "eager"
    own = config._attn_implementation
    fused = own is None or re.match(r"flash|flex|paged|.*[|/]", own)
    if not fused and (own == "eager" or own in ALL_ATTENTION_FUNCTIONS):
        return own
    softcap = getattr(config, "attn_logit_softcapping", None)
    return "sdpa" if model._supports_sdpa and softcap is None else "eager"


def listening(session: HookSession, module: nn.Module) -> Callable:
    """Return a module's own ``_attn`` method with a capture before it."""
    own = type(module)._attn

    def attend(query, key, value, attention_mask=None, *rest, **options):
        if query.shape[-2:] == key.shape[-2:]:  # GPT-1 keeps its keys transposed, and rotates nothing
            query, key = session.capture(module, query, key, attention_mask, query.shape[-1] ** -0.5, True, {})
        return own(module, query, key, value, attention_mask, *rest, **options)

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


def attention_functions(modules: list[nn.Module]) -> tuple:
    """Return which attention every part of a model is set to: its name, and which function is registered under it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    names = [config._attn_implementation for config in all_configs(modules).values()]
    return tuple((name, id(ALL_ATTENTION_FUNCTIONS.get(name))) for name in names)


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
                with torch.inference_mode(buffer.is_inference()):  # a model made in that mode changes in it alone
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
    if "input_ids" not in getattr(model, "main_input_name", "input_ids"):
        raise UnsupportedModelError(
            f"{type(model).__name__} reads {model.main_input_name}, not token ids. Give a language model with RoPE"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} has an encoder and a decoder. Give a causal language model with RoPE"
        )
    if getattr(model.config, "alibi", False):
        raise UnsupportedModelError(
            f"{type(model).__name__} uses ALiBi (config.alibi), not rotary position embedding. Give a model with RoPE"
        )
