"""Checkpoints of training runs: reading one, and merging the members of several.

A checkpoint is a safetensors file with tensors named kind.name: parameter and best (weights at the end and at the best
validation), optimizer, evaluation; losses, accuracies, validations and best_steps. Its metadata say which run it is of
and how far it has come.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from possym.errors import ResultsError

RESTART = "delete it to start from the beginning"


@dataclass(frozen=True)
class Training:
    """The results of one training run.

    ``losses`` and ``accuracies`` (steps, E) of every update; ``evaluations`` by name (points, …); ``validations``
    (points, E), and ``best_steps`` (E,) of each member's first highest one, −1 where nothing was validated; seconds.
    """

    losses: Tensor
    accuracies: Tensor
    evaluations: dict[str, Tensor]
    validations: Tensor
    best_steps: Tensor
    seconds_training: float
    seconds_evaluation: float


@contextmanager
def reading(checkpoint: Path) -> Iterator[safe_open]:
    """Open a checkpoint; what cannot be read of it becomes a ResultsError."""
    try:
        with safe_open(checkpoint, "pt") as file:
            yield file
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ResultsError(f"{checkpoint} cannot be read ({error}): {RESTART}") from None


def of_kind(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names start with a kind, by the rest of their names."""
    return {name.removeprefix(f"{kind}."): tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}


def is_finished(checkpoint: Path) -> bool:
    """Return whether a checkpoint exists and its training has finished.

    Raises:
        ResultsError: the checkpoint is damaged.
    """
    if not checkpoint.exists():
        return False
    with reading(checkpoint) as file:
        metadata = file.metadata()
        return json.loads(metadata["progress"])["step"] == json.loads(metadata["identity"])["training"]["steps"]


def merge_checkpoints(checkpoints: Sequence[Path]) -> tuple[dict[str, Tensor], dict[str, Tensor], Training]:
    """Return last weights, best weights and training of several checkpoints' members as if trained together.

    The seconds are those of the slowest. Without validations there are no best weights.

    Args:
        checkpoints: of finished trainings, whose evaluations return tensors with the members first.

    Raises:
        ResultsError: a checkpoint is missing or damaged.
    """
    parts: dict[str, list[Tensor]] = {}
    seconds = []
    for checkpoint in checkpoints:
        with reading(checkpoint) as file:
            for name in file.keys():
                if not name.startswith("optimizer."):
                    parts.setdefault(name, []).append(file.get_tensor(name))
            seconds.append(json.loads(file.metadata()["progress"])["seconds"])
    first = ("parameter.", "best.", "best_steps")  # have the members on the first axis, the others on the second
    tensors = {name: torch.cat(tensors, 0 if name.startswith(first) else 1) for name, tensors in parts.items()}
    training = Training(
        tensors["losses"],
        tensors["accuracies"],
        of_kind("evaluation", tensors),
        tensors["validations"],
        tensors["best_steps"],
        max(each["training"] for each in seconds),
        max(each["evaluation"] for each in seconds),
    )
    return of_kind("parameter", tensors), of_kind("best", tensors), training
