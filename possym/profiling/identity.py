"""What tells one model, one tokenizer, one set of prompts from another, so that only what is alike is joined.

A model's name does not: two seeds, or two checkpoints of one run, may bear the same. Its config and its weights do, of
which hashes are cheap to take. What hooks or other code do to a model while it runs is in neither.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import marshal
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from possym.capture.model_state import Parts, asked_once
from possym.profiling.bit_sums import bit_digests, bit_sums, digests

# What a config says besides how the model computes: where it came from, how it is run, tokens by name.
VOLATILE = {
    "_name_or_path", "_commit_hash", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache",
    "_attn_implementation", "_attn_implementation_internal", "attn_implementation", "_experts_implementation",
    "_experts_implementation_internal", "output_attentions", "output_hidden_states", "return_dict", "id2label",
    "label2id", "problem_type", "gradient_checkpointing", "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip
# How hashes of weights begin, the newest first: those of former ways fit their models still. In the second, rows had no
# factors; the third is of all sums, before `digests` were taken.
MARKS = ("3-", "2-", "")
SAVING = {"state_dict", "_save_to_state_dict", "get_extra_state"}  # methods that say what a module's state is
CHANGING = {"dynamic", "longrope"}  # kinds of rotation whose frequencies follow the length of the last prompt
_config_hashes: weakref.WeakKeyDictionary[type, dict[bytes, str]] = weakref.WeakKeyDictionary()


def model_identity(model: nn.Module) -> dict[str, Any]:
    """Return a model's name, class, config and weights (see `config_hash`, `weights_hash`), dtype, revision and device.

    ``revision`` is the commit of the hub that it was loaded from, None where there is none.
    """
    return begin_identity(model)()


def begin_identity(model: nn.Module, parts: Parts | None = None) -> Callable[[], dict[str, Any]]:
    """Let the devices begin the sums of `weights_hash`, and return what waits for them and gives `model_identity`.

    ``parts`` are those of the model, where they are known.
    """
    parts = Parts(model) if parts is None else parts
    devices = devices_of(parts)
    weights = begin_weights_hash(model, parts, devices)
    found = {
        "model": model_name(model),
        "class": type(model).__name__,
        "config": config_hash(model.config),
        "weights": None,
        "dtype": str(getattr(model, "dtype", None) or next(model.parameters()).dtype).removeprefix("torch."),
        "revision": getattr(model.config, "_commit_hash", None),
        "device": ", ".join(sorted(map(str, devices))),
    }
    return lambda: found | {"weights": weights()}


def model_name(model: nn.Module) -> str:
    """Return a model's hub id, the last part of its folder, or its class."""
    name = getattr(model.config, "name_or_path", "")
    return (Path(name).name if os.path.isdir(name) else name) or type(model).__name__


def config_hash(config: Any) -> str:
    """Return a hash of what a config says of how the model computes, such as its rotation and its windows.

    >>> from transformers import LlamaConfig
    >>> config_hash(LlamaConfig()) == config_hash(LlamaConfig(use_cache=False))
    True
    >>> config_hash(LlamaConfig()) == config_hash(LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0}))
    False
    """
    known = _config_hashes.setdefault(type(config), {})
    try:
        said = marshal.dumps({name: value for name, value in vars(config).items() if name not in VOLATILE}, 2)
    except ValueError:  # something in it is no plain value, of which a change might not be seen
        return hash_of_said(config)
    if said not in known:
        if len(known) >= 8:
            known.clear()
        known[said] = hash_of_said(config)
    return known[said]


def hash_of_said(config: Any) -> str:
    """Return `config_hash` of a config that is asked what it says, for which transformers makes another."""
    said = config.to_diff_dict() if hasattr(config, "to_diff_dict") else vars(config)
    return hash_of(json.dumps(lasting(said), default=str, sort_keys=True))


def lasting(said: Any) -> Any:
    """Return what a config says without what is `VOLATILE`, in its parts too."""
    if isinstance(said, dict):
        return {str(key): lasting(value) for key, value in said.items() if key not in VOLATILE}
    return [lasting(value) for value in said] if isinstance(said, (list, tuple)) else said


def weights_hash(model: nn.Module, mark: str = MARKS[0]) -> str:
    """Return a hash of all parameters, buffers and packed weights: names, shapes, dtypes and sums of the numbers' bits.

    It is the same on every device, and inside wrappers that only prefix names. Of each row and each column of a matrix
    the bits, taken as whole numbers, are added up, over a column with a factor of each row, so every number and its
    place count, and exactly; of these sums a device hands over `possym.profiling.bit_sums.digests`. What lies on the
    disk alone counts with its shape; buffers that are made anew with the model count as rounded to bfloat16, because
    devices differ in their last digits. ``mark`` is one of `MARKS`: how the hash is made.

    >>> torch.manual_seed(0) and len(weights_hash(nn.Linear(3, 2)))
    16
    >>> weights_hash(nn.Linear(3, 2)) == weights_hash(nn.Linear(3, 2))
    False
    """
    parts = Parts(model)
    return begin_weights_hash(model, parts, devices_of(parts), mark)()


def devices_of(parts: Parts) -> set[torch.device]:
    """Return where the parameters of a model lie."""
    return set(map(operator.attrgetter("device"), parts.parameters))


def begin_weights_hash(
    model: nn.Module, parts: Parts, devices: Iterable[torch.device], mark: str = MARKS[0]
) -> Callable[[], str]:
    """Let a model's devices begin the sums of `weights_hash`, and return what waits for them and gives the hash.

    A GPU sums beside what it is asked next, which does not wait for the sums.
    """
    begun = []
    with torch.no_grad(), beside(devices) as join:
        found = sorted(stored_tensors(model, parts), key=operator.itemgetter(0))
        shapes, lie = [x.shape for _, x in found], [x.device for _, x in found]
        said = [f"{name} {described(shape, x.dtype)}\n" for (name, x), shape in zip(found, shapes, strict=True)]
        digest = hashlib.sha256("".join(said).encode())
        where = [None if 0 in shape else device for shape, device in zip(shapes, lie, strict=True)]
        for device in dict.fromkeys(where):  # a device is asked once
            if device is None or device.type == "meta":
                continue
            names, tensors = zip(*[pair for pair, at in zip(found, where, strict=True) if at == device], strict=True)
            if mark:
                sums = bit_digests(tensors) if mark == MARKS[0] else digests(bit_sums(tensors))
                lengths = [16] * len(names)
            else:
                each = bit_sums(tensors)
                sums, lengths = torch.cat(each), [8 * len(x) for x in each]
            ends = list(itertools.accumulate(lengths))
            begun.append((list(map(str.encode, names)), sums, [0, *ends[:-1]], ends))

    def finish() -> str:
        join()
        whole, numbers = digest.copy(), []
        for names, sums, starts, ends in begun:
            said = sums.cpu().numpy().tobytes()
            numbers += [(name, said[a:b]) for name, a, b in zip(names, starts, ends, strict=True)]
        whole.update(b"".join([name + each for name, each in sorted(numbers)]))
        return (mark + whole.hexdigest())[:16]

    return finish


@functools.lru_cache(256)
def described(shape: torch.Size, dtype: torch.dtype) -> str:
    """Return a shape and a dtype as text: many tensors of a model have the same, and to write it takes longer.

    >>> described(torch.Size([3, 2]), torch.float32)
    '(3, 2) torch.float32'
    """
    return f"{tuple(shape)} {dtype}"


@contextlib.contextmanager
def beside(devices: Iterable[torch.device]) -> Iterator[Callable[[], None]]:
    """Let GPUs do what is asked of them inside on streams of their own, which begin when what was asked before is done.

    What it gives lets all that is asked later wait for these streams; it is called before their results are read.
    """
    streams = [(device, stream_beside(device)) for device in devices if device.type == "cuda"]

    def join() -> None:
        for device, stream in streams:
            torch.cuda.current_stream(device).wait_stream(stream)

    with contextlib.ExitStack() as stack:
        for device, stream in streams:
            stream.wait_stream(torch.cuda.current_stream(device))
            stack.enter_context(torch.cuda.stream(stream))
        yield join


@functools.cache
def stream_beside(device: torch.device) -> torch.cuda.Stream:
    """Return a GPU's stream for hashes, always the same: PyTorch keeps memory for each stream that was ever used."""
    return torch.cuda.Stream(device)


def has_weights(model: nn.Module, stored: Any) -> bool:
    """Return whether a model has the weights that a stored hash was made of, in whichever of the ways.

    >>> model = nn.Linear(3, 2)
    >>> [has_weights(model, weights_hash(model, mark)) for mark in MARKS]
    [True, True, True]
    """
    return bool(weights_hash(model, mark_of(stored)) == stored)


def marked_alike(first: Any, second: Any) -> bool:
    """Return whether two hashes of weights were made in one way, so that different ones mean different weights.

    >>> marked_alike("3-0123456789abcd", "0123456789abcdef")
    False
    """
    return mark_of(first) == mark_of(second)


def mark_of(stored: Any) -> str:
    """Return how a stored hash of weights begins, one of `MARKS`."""
    return next(mark for mark in MARKS if str(stored).startswith(mark))


def stored_tensors(model: nn.Module, parts: Parts) -> list[tuple[str, Tensor]]:
    """Return a model's parameters and buffers, and what else its state holds, such as packed weights, by name."""
    found: dict[str, Any] = {}
    known: set[str] = set()
    once: set[int] = set()  # modules and parameters that have been met: one that is shared counts under its first name
    named = prefixed_modules(model)
    state = state_besides_parameters(model, named, parts)
    for begin, module in named:
        if module._parameters:
            for name, parameter in module._parameters.items():
                if parameter is not None and id(parameter) not in once:
                    found[begin + name] = parameter
                    once.add(id(parameter))
        if not module._buffers or id(module) in once:
            continue
        once.add(id(module))
        kinds = getattr(module, "rope_type", None)
        changes = bool(CHANGING & set(kinds.values() if isinstance(kinds, dict) else [kinds]))
        for name, buffer in module.named_buffers(begin[:-1], recurse=False):
            known.add(name)
            if changes and name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
                continue
            rounded = name not in state and buffer.dtype.is_floating_point
            found[name] = buffer.to(torch.bfloat16) if rounded else buffer
    found |= {name: value for name, value in state.items() if name not in known}
    named_values = [(n.replace("_orig_mod.", "").removeprefix("module."), value) for n, value in found.items()]
    if all(map(is_plain, found.values())):
        return named_values
    return [pair for name, value in named_values for pair in plain_tensors(name, value)]


def prefixed_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a model's modules with what their parameters' names begin with, those that are shared with each.

    >>> [begin for begin, _ in prefixed_modules(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU())))]
    ['', '0.', '1.', '1.0.']
    """
    found, waiting = [], [("", model)]
    while waiting:
        found.append(waiting.pop())
        begin, module = found[-1]
        if module._modules:
            parts = reversed(module._modules.items())
            waiting += [(f"{begin}{name}.", part) for name, part in parts if part is not None]
    return found


def state_besides_parameters(model: nn.Module, named: list[tuple[str, nn.Module]], parts: Parts) -> dict[str, Any]:
    """Return what a model's state holds, as `torch.nn.Module.state_dict` says, besides its parameters.

    Modules that pack their weights are not asked for it: on a CPU, 4-bit layers of bitsandbytes pack them in their
    first pass. Asked for their state, they unpack them wrongly (0.50.2), and the model is lost. Neither is a model of
    which all is known, since that is slow.
    """
    if keeps_no_more(parts):
        holders = [(begin, m) for begin, m in named if m._buffers]
        buffers = [(begin, *pair, m._non_persistent_buffers_set) for begin, m in holders for pair in m._buffers.items()]
        return {begin + name: x for begin, name, x, left_out in buffers if x is not None and name not in left_out}
    packed = {begin: module for begin, module in named if packing(module) is not None}
    state: dict[str, Any] = {} if packed else model.state_dict()
    for begin, module in named if packed else ():
        if begin in packed:
            state[f"{begin}weight.absmax"] = packing(module).absmax
        else:
            module._save_to_state_dict(state, begin, keep_vars=True)
    parameters = {begin + name for begin, module in named for name in module._parameters}
    return {name: value for name, value in state.items() if name not in parameters}


def keeps_no_more(parts: Parts) -> bool:
    """Return whether a model's state is its plain parameters and buffers, as far as classes and hooks tell."""
    said = list(map(vars, parts.modules))
    return (
        set(map(type, parts.parameters)) <= {nn.Parameter}
        and all(map(saves_plainly, set(map(type, parts.modules))))
        and not any([d["_state_dict_hooks"] or d["_state_dict_pre_hooks"] for d in said])
        and not any([name in d for name in SAVING for d in said])
    )


@asked_once
def saves_plainly(kind: type[nn.Module]) -> bool:
    """Return whether a class saves its state as `torch.nn.Module` does."""
    return all(getattr(kind, name) is getattr(nn.Module, name) for name in SAVING)


def packing(module: nn.Module) -> Any:
    """Return what a module knows of its weights if it has packed them for a CPU, else None."""
    found = getattr(getattr(module, "weight", None), "quant_state", None)
    return found if getattr(found, "packing_format_for_cpu", False) else None


def is_plain(value: Any) -> bool:
    """Return whether a value is a tensor whose numbers lie in its storage."""
    return type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_quantized


def plain_tensors(name: str, value: Any) -> list[tuple[str, Tensor]]:
    """Return the plain tensors that a parameter or an entry of a state is made of."""
    if is_plain(value):
        return [(name, value)]
    if isinstance(value, (list, tuple)):
        return [pair for k, part in enumerate(value) for pair in plain_tensors(f"{name}.{k}", part)]
    if not isinstance(value, Tensor):
        return []
    if hasattr(value, "__tensor_flatten__"):
        parts = value.__tensor_flatten__()[0]
        return [pair for part in parts for pair in plain_tensors(f"{name}.{part}", getattr(value, part))]
    if value.is_quantized:
        value = value.dequantize()
    return [(name, value.detach() if value.layout == torch.strided else value.detach().to_dense())]


def tokenizer_identity(tokenizer: Any) -> dict[str, str | None]:
    """Return hashes of a tokenizer, its vocabulary and rules, and of its chat template; None where there is none.

    >>> tokenizer_identity(None)
    {'tokenizer': None, 'template': None}
    """
    if tokenizer is None:
        return {"tokenizer": None, "template": None}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = backend.to_str() if backend is not None else json.dumps(sorted(vocabulary(tokenizer).items()))
    special = json.dumps(getattr(tokenizer, "special_tokens_map", {}), default=str, sort_keys=True)
    template = getattr(tokenizer, "chat_template", None)
    return {
        "tokenizer": hash_of(type(tokenizer).__name__, words, special),
        "template": None if template is None else hash_of(json.dumps(template, sort_keys=True)),
    }


def vocabulary(tokenizer: Any) -> dict[str, int]:
    """Return a tokenizer's vocabulary, empty where it does not tell."""
    return dict(tokenizer.get_vocab()) if hasattr(tokenizer, "get_vocab") else {}


def hash_of(*parts: Any) -> str:
    """Return a short hash of what JSON can say.

    >>> hash_of([1, 2], "a") == hash_of((1, 2), "a")
    True
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
