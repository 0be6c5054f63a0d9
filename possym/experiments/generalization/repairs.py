"""Repairs at test time: the weights stay, the rotation or the scale of chosen heads changes with the length.

- ``no rotation``: the logits lose all sense of position (NoPE);
- ``p-RoPE``: the slowest quarter of the frequencies stops (2410.06205, with p = 0.75);
- ``larger base``: the base grows so that the slowest plane rotates over the new length as over the old one, the fastest
  as ever;
- ``interpolation``: all positions move together until the new length fits the old one;
- ``log length``: logits grow with the logarithm of the length, which keeps a softmax over more keys as sharp.

Each is a function of a model's sizes and the length, and returns the angles (D/2,) float64 and the logits' factor.

Source: NoPE 2305.19466; p-RoPE 2410.06205; interpolation 2306.15595.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble, Sizes
from possym.experiments.generalization.attending import all_frequencies, attention, with_planes_interleaved
from possym.experiments.generalization.long_inputs import TOKENS, WINDOW, Precision, sample_members
from possym.rope import frequencies
from possym.tasks import LetterTask, NumberTask

KEPT = 0.75


def still(config: Sizes, length: int) -> tuple[Tensor, float]:
    """Stop every plane."""
    return torch.zeros_like(all_frequencies(config)), 1.0


def partial(config: Sizes, length: int) -> tuple[Tensor, float]:
    """Stop the slowest quarter of the planes that rotate."""
    angles = all_frequencies(config)
    rotating = len(config.frequencies)
    return torch.where(torch.arange(len(angles)) < round(KEPT * rotating), angles, 0.0), 1.0


def larger_base(config: Sizes, length: int) -> tuple[Tensor, float]:
    """Stretch the base by (n/17)^{d/(d − 2)}: the slowest plane slows down by n/17, the fastest keeps its angle."""
    angles = all_frequencies(config)
    dim = 2 * len(config.frequencies)
    if dim > 2:
        angles[: dim // 2] = frequencies(dim, config.base * (length / WINDOW) ** (dim / (dim - 2)))
    return angles, 1.0


def interpolated(config: Sizes, length: int) -> tuple[Tensor, float]:
    """Slow every plane down by n/17."""
    return all_frequencies(config) * (WINDOW / length), 1.0


def log_length(config: Sizes, length: int) -> tuple[Tensor, float]:
    """Multiply logits by ln n / ln 17."""
    return all_frequencies(config), math.log(length) / math.log(WINDOW)


REPAIRS: dict[str, Callable[[Sizes, int], tuple[Tensor, float]]] = {
    "no rotation": still,
    "p-RoPE": partial,
    "larger base": larger_base,
    "interpolation": interpolated,
    "log length": log_length,
}


@torch.no_grad()
def repaired(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    count: int,
    source: torch.Generator,
    *,
    repair: str | None = None,
    heads: Tensor | None = None,
) -> Tensor:
    """Return the accuracy (E,) at a length with chosen heads repaired.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        length: tokens, from 17.
        count: sequences per member.
        source: generator on the model's device.
        repair: one of `REPAIRS`; None leaves the model as it is.
        heads: (E, L, H) booleans, the heads that are repaired; None is all.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> repaired(model, NumberTask(), 40, 8, torch.Generator().manual_seed(0), repair="p-RoPE").shape
    torch.Size([1])
    """
    precision = Precision.of(source.device)
    config = model.config
    shape = (model.members, config.layers, config.heads)
    if heads is None:
        heads = torch.ones(shape, dtype=torch.bool)
    heads = heads.to(source.device)
    usual = all_frequencies(config).to(source.device)
    angles, factor = (usual, 1.0) if repair is None else REPAIRS[repair](config, length)
    angles = torch.where(heads[..., None], angles.to(source.device), usual)  # (E, L, H, D/2)
    factors = torch.where(heads, factor, 1.0)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attention(query, key, value, angles[:, layer], precision.vectors, factors[:, layer])

    chunk = max(1, TOKENS // (length * model.members))
    correct = torch.zeros(model.members, device=source.device)
    for start in range(0, count, chunk):
        batch = sample_members(task, model.members, min(chunk, count - start), length, source)
        logits = model(batch.tokens, dtype=precision.weights, attend=with_planes_interleaved(model, attend))
        correct += (logits.argmax(-1) == batch.answer).sum(1)
    return correct / count
