"""One member to and from a model of transformers: the same weights, theirs a matrix each and transposed."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from possym.errors import UnsupportedModelError

TRANSPOSED = ("query", "key", "value", "attention_output", "mlp_gate", "mlp_in", "mlp_output", "head")
Named = Iterable[tuple[tuple[str, int | None], Tensor]]  # ((our name, layer or None), transformers' parameter)


@torch.no_grad()
def write_to(theirs: Named, member: nn.Module) -> None:
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


def exported(kind: type, config: Any, tensors: Callable[[Any], Named], member: nn.Module) -> Any:
    """Return a new transformers model of one member's weights, in evaluation mode and on the CPU."""
    with torch.random.fork_rng(devices=[]):
        model = kind(config)
    write_to(tensors(model), member)
    return model.eval()


def check_kind(model: Any, kind: type) -> None:
    """Raise an UnsupportedModelError unless a model is of transformers' kind."""
    if not isinstance(model, kind):
        raise UnsupportedModelError(f"a {type(model).__name__}: give a transformers.{kind.__name__}")


def check_importable(name: str, reasons: list[tuple[bool, str]]) -> None:
    """Raise an UnsupportedModelError with the first reason that holds, if one does."""
    for refused, reason in reasons:
        if refused:
            raise UnsupportedModelError(f"this {name} cannot be imported: {reason}")
