"""What a model is made of, and what it is set to while it is read: all of it put back afterwards.

- `Parts` are a model's modules, parameters and configs, each asked for once.
- `check_model` refuses what is no causal language model of transformers.
- `settled` runs a model in evaluation mode, with an attention whose mask is a matrix.
- `plainly` leaves gradients and autocast out, `unprepared` the autocast that accelerate puts into a model, `unrecorded`
  all that PyTorch writes down for gradients.
- `uninterrupted` holds Ctrl-C back while a model is set up or put back.
"""

import copy
import functools
import inspect
import operator
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

from possym.errors import UnsupportedModelError, install_command

Answer = TypeVar("Answer")


def asked_once(ask: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    """Return a function that asks about each class or function once, and lets go of it when everyone else does.

    A class that PyTorch makes for a parametrized layer holds that layer, so a cache that keeps the class keeps weights.

    >>> asked_once(lambda kind: kind.__name__)(nn.Linear)
    'Linear'
    """
    answers: dict[int, tuple[Answer, weakref.ref]] = {}

    @functools.wraps(ask)
    def answer(about: Any) -> Answer:
        number = id(about)
        if number not in answers:
            found = ask(about)
            answers[number] = found, weakref.ref(about, lambda _: answers.pop(number, None))
            return found
        return answers[number][0]

    return answer


def modules_of(model: Any) -> list[nn.Module]:
    """Return a model's modules in the order of `torch.nn.Module.modules`, which takes four times as long.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    >>> modules_of(model) == list(model.modules())
    True
    """
    found: dict[nn.Module, None] = {}
    waiting = [model] if isinstance(model, nn.Module) else []
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            if module._modules:
                waiting += [part for part in reversed(module._modules.values()) if part is not None]
    return list(found)


class Parts:
    """What a model is made of while it is profiled; its modules are walked through once for all who ask.

    Tensors are not kept: others may take their place.

    >>> parts = Parts(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
    >>> len(parts.modules), len(parts.parameters), parts.attention
    (3, 2, [])
    """

    def __init__(self, model: Any):
        self.modules = modules_of(model)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters as they are now; one that two modules share is there twice."""
        return [p for some in map(PARAMETERS, self.modules) if some for p in some.values() if p is not None]

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The buffers as they are now; one that two modules share is there twice."""
        return [b for some in map(BUFFERS, self.modules) if some for b in some.values() if b is not None]

    @functools.cached_property
    def attention(self) -> list[nn.Module]:
        """The attention modules."""
        return attention_modules(self.modules)

    @functools.cached_property
    def configs(self) -> dict[int, Any]:
        """The configs of the modules and of all their parts, by identity."""
        return all_configs(self.modules)


PARAMETERS, BUFFERS = operator.attrgetter("_parameters"), operator.attrgetter("_buffers")


def all_configs(modules: list[nn.Module]) -> dict:
    """Return the configs of a model's modules and of all their parts, by identity."""
    # To look for what a module has not is slow, so only those are asked that have a config or a property of that name.
    named = set(filter(names_config, set(map(type, modules))))
    holders = [m for m in modules if type(m) in named or "config" in vars(m)]
    held = {id(config): config for config in (getattr(m, "config", None) for m in holders)}
    found, waiting = {}, [config for config in held.values() if hasattr(config, "sub_configs")]
    while waiting:
        config = waiting.pop()
        if config is None or id(config) in found:
            continue
        found[id(config)] = config
        waiting.extend(getattr(config, key, None) for key in config.sub_configs)
    return found


@asked_once
def names_config(kind: type[nn.Module]) -> bool:
    """Return whether a class has a config, or a property of that name."""
    return hasattr(kind, "config")


def attention_functions(parts: Parts) -> list[tuple[str, Callable | None]]:
    """Return which attention every part of a model is set to: its name, and the function registered under it."""
    if not parts.configs:
        return []
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    names = [config._attn_implementation for config in parts.configs.values()]
    return [(name, ALL_ATTENTION_FUNCTIONS.get(name)) for name in names]


EAGER = re.compile(r"\w*eager\w*attention\w*")


@asked_once
def attends(kind: type[nn.Module]) -> bool:
    """Return whether modules of a class are attention modules: by name, or because their forward attends."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)
    names = () if code is None else code.co_names
    return "Attention" in kind.__name__ or bool({"ALL_ATTENTION_FUNCTIONS", "scaled_dot_product_attention"} & {*names})


def attention_modules(modules: list[nn.Module]) -> list[nn.Module]:
    """Return the attention modules among some, each class asked once."""
    kinds = set(filter(attends, set(map(type, modules))))
    return [module for module in modules if type(module) in kinds]


def uses_interface(module: nn.Module) -> bool:
    """Return whether the file that defines a module has an eager attention function of its own."""
    files = (sys.modules.get(cls.__module__) for cls in type(module).__mro__)
    return any(EAGER.fullmatch(name) for file in files if file is not None for name in vars(file))


@contextmanager
def plainly() -> Iterator[None]:
    """Compute without gradients, and in the precision of a model's weights, outside `torch.autocast`.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16), plainly():
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    accelerator = torch.accelerator.current_accelerator()
    kinds = ["cpu"] + ([] if accelerator is None else [accelerator.type])
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for kind in filter(torch.is_autocast_enabled, kinds):
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def unprepared(model: nn.Module) -> Iterator[None]:
    """Let a model run without what accelerate puts around its forward for mixed precision: autocast, turned on inside.

    >>> model = nn.Linear(2, 2)
    >>> model._original_forward, model.forward = model.forward, lambda x: model._original_forward(x).bfloat16()
    >>> with unprepared(model):
    ...     model(torch.ones(2)).dtype
    torch.float32
    """
    prepared = vars(model).get("forward")
    if prepared is None or "_original_forward" not in vars(model):
        yield
        return
    model.forward = vars(model)["_original_forward"]
    try:
        yield
    finally:
        model.forward = prepared


def unrecorded(parts: Parts) -> AbstractContextManager:
    """Compute in inference mode, in which an operation takes a GPU's host less time than without gradients alone.

    Not where a hook, a module or an attention function of others takes part: it may keep what it is given or makes,
    and what is made in that mode is never differentiated.

    >>> with unrecorded(Parts(nn.Linear(1, 1))):
    ...     torch.ones(1).is_inference()
    True
    """
    hooks, said = ("_forward_hooks", "_forward_pre_hooks"), map(vars, parts.modules)
    heard = any(getattr(torch.nn.modules.module, f"_global{name}") for name in hooks)
    heard = heard or any([own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own for own in said])
    plain = not heard and all(map(keeps_nothing, set(map(type, parts.modules)))) and not attends_by_others(parts)
    return torch.inference_mode() if plain else nullcontext()


def attends_by_others(parts: Parts) -> bool:
    """Return whether a layer attends by a function that is neither PyTorch's nor transformers'.

    >>> attends_by_others(Parts(nn.Linear(1, 1)))
    False
    """
    functions = {function for _, function in attention_functions(parts) if function is not None}
    return not all(map(keeps_nothing, functions))


@asked_once
def keeps_nothing(of: Any) -> bool:
    """Return whether a class or function is one of PyTorch or transformers, which keep nothing of a pass.

    A function that wraps another bears its name and module, but not where it was written.
    """
    written = getattr(of, "__globals__", {}).get("__name__", getattr(of, "__module__", ""))
    return (written or "").partition(".")[0] in ("torch", "transformers")


@contextmanager
def recorded() -> Iterator[None]:
    """Compute without gradients what is handed on, perhaps to who differentiates it, though the rest is `unrecorded`.

    >>> with unrecorded(Parts(None)), recorded():
    ...     torch.ones(1).is_inference()
    False
    """
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def settled(model: nn.Module) -> Iterator[None]:
    """Run a model by itself as it runs while it is listened to: in evaluation mode, with no fused kernel."""
    stack = ExitStack()
    try:
        with uninterrupted():
            settle(stack, model, Parts(model))
        yield
    finally:
        with uninterrupted():
            stack.close()


def settle(stack: ExitStack, model: nn.Module, parts: Parts) -> None:
    """Put a model into evaluation mode, with an attention that can be listened to; ``stack`` puts it back."""
    configs = parts.configs
    implementations = {key: config._attn_implementation for key, config in configs.items()}
    training = [m for m in parts.modules if m.training]

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
    stack.enter_context(rotary_state(parts.modules))
    interface = any(map(uses_interface, parts.attention))
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


@contextmanager
def rotary_state(modules: list[nn.Module]) -> Iterator[None]:
    """Keep what rotary modules remember of earlier lengths (dynamic scaling) from changing."""
    saved = []
    kinds = {kind for kind in set(map(type, modules)) if "Rotary" in kind.__name__}
    for module in modules:
        if type(module) in kinds:
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


def check_model(model: nn.Module, parts: Parts) -> None:
    """Raise an UnsupportedModelError unless ``model`` can hold rotary, causal attention that possym reads."""
    try:
        from transformers import PreTrainedModel
    except ImportError:
        raise UnsupportedModelError(f"reading a model needs transformers: {install_command('models')}") from None
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise UnsupportedModelError(
            f"model is a {type(model).__name__}: give a transformers model, e.g. "
            "AutoModelForCausalLM.from_pretrained(folder)"
        )
    if not any(isinstance(m, PreTrainedModel) for m in parts.modules):
        raise UnsupportedModelError(f"{type(model).__name__} holds no transformers model")
    # accelerate keeps offloaded weights on the meta device too, with a hook that brings them when their module runs.
    unhooked = [m for m in parts.modules if "_hf_hook" not in vars(m)]
    if any(p.is_meta for some in map(PARAMETERS, unhooked) for p in some.values() if p is not None):
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
