"""What tells one model, one tokenizer, one set of prompts from another, so that only what is alike is joined.

A model's name does not: two seeds, or two checkpoints of one run, may bear the same. Its weights do, of which a hash
of a fixed sample is cheap to take.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAMPLE = 64  # numbers of each parameter


def model_identity(model: nn.Module) -> dict[str, Any]:
    """Return a model's name, class, weights (see `weights_hash`), dtype, revision and device.

    ``revision`` is the commit of the hub that it was loaded from, None where there is none.
    """
    devices = sorted({str(p.device) for p in model.parameters()})
    return {
        "model": model_name(model),
        "class": type(model).__name__,
        "weights": weights_hash(model),
        "dtype": str(getattr(model, "dtype", None) or next(model.parameters()).dtype).removeprefix("torch."),
        "revision": getattr(model.config, "_commit_hash", None),
        "device": ", ".join(devices),
    }


def model_name(model: nn.Module) -> str:
    """Return a model's hub id, the last part of its folder, or its class."""
    name = getattr(model.config, "name_or_path", "")
    return (Path(name).name if os.path.isdir(name) else name) or type(model).__name__


def weights_hash(model: nn.Module) -> str:
    """Return a hash of every parameter's name, shape and `SAMPLE` of its numbers at even distances.

    It is the same on every device, and inside wrappers that only prefix names. What lies on the disk alone counts with
    its shape; a change of a few numbers between those of the sample is not seen.

    >>> torch.manual_seed(0) and len(weights_hash(nn.Linear(3, 2)))
    16
    >>> weights_hash(nn.Linear(3, 2)) == weights_hash(nn.Linear(3, 2))
    False
    """
    digest = hashlib.sha256()
    samples: dict = {}
    named = [(name.replace("_orig_mod.", "").removeprefix("module."), p) for name, p in model.named_parameters()]
    for name, p in sorted(named, key=lambda pair: pair[0]):
        digest.update(f"{name} {tuple(p.shape)}\n".encode())
        if not p.is_meta and p.numel():
            # Views alone, so that many layers cost few operations. An odd step meets all columns of a matrix.
            step = max(1, p.numel() // SAMPLE)
            sample = p.detach().reshape(-1)[:: step - (step + 1) % 2][:SAMPLE]
            samples.setdefault((p.device, p.dtype), []).append((name, sample))
    numbers = {}
    for some in samples.values():  # a device is asked once
        flat, start = torch.cat([sample for _, sample in some]).view(torch.uint8).cpu().numpy(), 0
        for name, sample in some:
            stop = start + sample.numel() * sample.element_size()
            numbers[name], start = flat[start:stop].tobytes(), stop
    for name in sorted(numbers):
        digest.update(numbers[name])
    return digest.hexdigest()[:16]


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
