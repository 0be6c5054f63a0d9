"""One pass of a Hugging Face model with its attention layers listened to, and everything put back afterwards.

- `attached` calls a function at every attention layer, with an `AttentionCall`: queries and keys after rotation, the
  mask, and how the module was called. The function may return others to attend with, and a mask by head.

The model runs its own attention: transformers' registered functions, and the eager function of a model's file, hear
the listener first and then do what they did. Their names in the config stay, because models compare with them (sparse
indexers mask their keys only under "eager" and "sdpa"). Fused kernels alone (flash, flex, paged) give way to SDPA or
eager, because their masks are not a matrix.

A model is listened to by one thread at a time; a second one waits.
"""

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from possym.capture.attention_call import AttentionCall, Replayed, moved_tables
from possym.capture.model_state import (
    EAGER,
    Parts,
    asked_once,
    settle,
    uninterrupted,
    uses_interface,
)
from possym.errors import InputError, UnsupportedModelError

OnCall = Callable[[AttentionCall], tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor] | None]


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
        self.inputs[module] = dict(zip(forward_names(type(module)), args, strict=False)) | kwargs if args else kwargs
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

    def attend(self, function: Callable, module, query, key, value, attention_mask, options: dict):
        """Stand in for an attention function: hand its queries and keys on, then attend as the model would have."""
        if options.get("scaling") is None:
            options["scaling"] = query.shape[-1] ** -0.5
        applied = options
        if options.get("softcap") is not None and not takes_softcap(function):
            applied = options | dict(softcap=None)

        def again(query, key, value, mask=attention_mask):
            self.inside = True
            try:
                return function(module, query, key, value, mask, **options)
            finally:
                self.inside = False

        causal = getattr(module, "is_causal", True)
        query, key, mask = self.capture(module, query, key, attention_mask, options["scaling"], causal, applied, again)
        return again(query, key, value, mask)

    def capture(self, module, query, key, mask, scaling, causal, options, again=None) -> tuple[Tensor, Tensor, Any]:
        """Hand one layer's queries, keys and mask on, or break off if this is a replay; return those to attend with."""
        if self.replaying is not None:
            raise Replayed(query, key)
        if options.get("position_bias") is not None:
            raise UnsupportedModelError(
                f"layer {self.number(module)} adds a relative position bias. possym reads models with rotary position "
                "embedding (RoPE) alone"
            )
        causal = causal if options.get("is_causal") is None else options["is_causal"]
        if module not in self.inputs:
            if self.attended.get(module) == (query.data_ptr(), key.data_ptr()):
                return query, key, mask  # the same attention once more, over other values (DiffLlama)
            if module in self.attended:
                raise UnsupportedModelError(
                    f"layer {self.number(module)}: {type(module).__name__} attends more than once each time it is "
                    "called, with other queries or keys: no single softmax is its attention"
                )
            raise UnsupportedModelError(
                f"{type(module).__name__} attends, but its forward does not call transformers' attention interface "
                "itself, so possym did not see how it was called"
            )
        number, before = self.number(module), self.passes[module] - 1
        edited = self.on_call(
            AttentionCall(self, module, number, before, query, key, mask, scaling, causal, options, again)
        )
        self.attended[module] = query.data_ptr(), key.data_ptr()
        del self.inputs[module]
        return (*(edited or (query, key)), mask)[:3]


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
            given = kwargs.get("attn_mask")
            with self:  # a mode is off inside its own handler, but replays must be heard too
                query, key, mask = session.capture(module, query, key, given, scale, causal, {})
            args, kwargs = (query, key, *args[2:]), kwargs | dict(scale=scale)
            if mask is not given:
                kwargs |= dict(attn_mask=mask, is_causal=False)
        return function(*args, **kwargs)


@asked_once
def forward_names(kind: type[nn.Module]) -> list[str]:
    """Return the names of what a module's ``forward`` takes."""
    return list(inspect.signature(kind.forward).parameters)[1:]


@asked_once
def takes_softcap(function: Callable) -> bool:
    """Return whether an attention function applies the softcap that it is given."""
    return "softcap" in inspect.signature(function).parameters


_lock = threading.Condition(threading.RLock())


_sessions: dict[nn.Module, HookSession] = {}  # who listens to a module


_replaced: list[tuple[dict, str]] = []


def heard(function: Callable) -> Callable:
    """Return an attention function that lets the module's listener hear it first."""

    @functools.wraps(function)
    def attend(module, query, key, value, attention_mask=None, *rest, **options):
        session = _sessions.get(module)
        if session is None or session.inside or not session.here() or rest:
            return function(module, query, key, value, attention_mask, *rest, **options)
        return session.attend(function, module, query, key, value, attention_mask, options)

    attend.possym_original = function
    return attend


def replace_functions(modules: list[nn.Module]) -> None:
    """Let every attention function that these modules can reach be heard."""
    from transformers.modeling_utils import AttentionInterface

    places = [AttentionInterface._global_mapping]
    files = {cls.__module__ for kind in set(map(type, modules)) for cls in kind.__mro__}
    places += [vars(sys.modules[name]) for name in files if name in sys.modules]
    for place in places:
        for name, function in list(place.items()):
            known = place is places[0] or ("eager" in name and EAGER.fullmatch(name))
            if known and callable(function) and not hasattr(function, "possym_original"):
                place[name] = heard(function)
                _replaced.append((place, name))


def restore_functions() -> None:
    """Put every attention function back, once nobody listens."""
    while _replaced:
        place, name = _replaced[-1]
        place[name] = getattr(place.get(name), "possym_original", place.get(name))
        _replaced.pop()


def claim(modules: list[nn.Module], session: HookSession) -> None:
    """Wait until nobody listens to these modules, then let ``session``.

    Raises:
        InputError: the thread that asks listens to them already.
    """
    with _lock:
        while owners := [_sessions[module] for module in (modules if _sessions else ()) if module in _sessions]:
            if any(owner.here() for owner in owners):
                raise InputError(
                    "this model is being read already, by the code that calls: leave `ablate_frequencies`, "
                    "`possym.kv_cache.applied`, or the function that `Capture.run` calls at every layer, before you "
                    "read it again"
                )
            _lock.wait()
        _sessions.update(dict.fromkeys(modules, session))


def release(modules: list[nn.Module], session: HookSession) -> None:
    """Let others listen to these modules again."""
    with _lock:
        for module in [m for m in modules if _sessions.get(m) is session]:
            del _sessions[module]
        if not _sessions:
            restore_functions()
        _lock.notify_all()


@contextmanager
def attached(model: nn.Module, on_call: OnCall, parts: Parts | None = None) -> Iterator[HookSession]:
    """Listen to a model's attention layers, and put everything back on leaving, exception or not.

    ``on_call`` may return the query and key to attend with instead of the model's, and a mask to go with them.
    ``parts`` are those of the model, where they are known.

    Raises:
        InputError: the model is listened to already in this thread. Another thread waits for its turn.
    """
    session = HookSession(on_call)
    parts = Parts(model) if parts is None else parts
    stack = ExitStack()
    try:
        claim(parts.modules, session)  # may wait long, so Ctrl-C must reach it
        with uninterrupted():
            attach(stack, model, parts, session)
        yield session
    finally:
        with uninterrupted():
            stack.close()
            release(parts.modules, session)


def attach(stack: ExitStack, model: nn.Module, parts: Parts, session: HookSession) -> None:
    """Set a model up to be listened to; ``stack`` puts it back."""
    modules = parts.attention
    for memory in (session.inputs, session.memory, session.inner_tables, session.attended):
        stack.callback(memory.clear)
    settle(stack, model, parts)
    for module in modules:
        stack.callback(module.register_forward_pre_hook(session.remember, with_kwargs=True).remove)
        for child in (c for c in module._modules.values() if "Rotary" in type(c).__name__):
            hook = functools.partial(lambda parent, _, args, output: session.remember_tables(parent, output), module)
            stack.callback(child.register_forward_hook(hook).remove)
    if any(uses_interface(m) for m in modules):
        replace_functions(modules)
        return
    stack.enter_context(_CaptureSDPA(session))
    for module in (m for m in modules if hasattr(m, "_attn")):
        stack.callback(vars(module).pop, "_attn")
        module._attn = listening(session, module)


def listening(session: HookSession, module: nn.Module) -> Callable:
    """Return a module's own ``_attn`` method with a capture before it."""
    own = type(module)._attn

    def attend(query, key, value, attention_mask=None, *rest, **options):
        if query.shape[-2:] == key.shape[-2:]:  # GPT-1 keeps its keys transposed, and rotates nothing
            scale = query.shape[-1] ** -0.5
            query, key, attention_mask = session.capture(module, query, key, attention_mask, scale, True, {})
        return own(module, query, key, value, attention_mask, *rest, **options)

    return attend
