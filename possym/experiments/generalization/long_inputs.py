"""Accuracy and attention of an ensemble at lengths that it was not trained on, with memory held under a limit.

Sequences are taken in chunks of at most `TOKENS` tokens, and so are members once one sequence of each is too many;
attention never holds a table of T × T. What is left to grow with length is one sequence of one member.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.experiments.generalization.attending import (
    all_frequencies,
    causal,
    last_contents,
    rotate_pair,
    with_planes_interleaved,
)
from possym.tasks import Batch, LetterTask, NumberTask

TOKENS = 2**20
WINDOW = 17
HOPS = (1, 2, 3, 4)


class Precision(NamedTuple):
    """Type of the products with weights, and of rotated queries and keys; logits and softmax stay float32."""

    weights: torch.dtype
    vectors: torch.dtype

    @classmethod
    def of(cls, device: torch.device) -> "Precision":
        """Return what a device is fast at: half the width on CUDA, float32 elsewhere."""
        return cls(torch.bfloat16, torch.float16) if device.type == "cuda" else EXACT


EXACT = Precision(torch.float32, torch.float32)


class Answers(NamedTuple):
    """What models do with N sequences of one length.

    ``correct`` (E, N) and ``hops`` (E, N). Where the steps that heads attend to were given, of the last query:
    ``gap`` (E, L, H, N), logit of the right key less the best other one; ``outside`` (E, L, H, N), its attention before
    the window; else None.
    """

    correct: Tensor
    hops: Tensor
    gap: Tensor | None
    outside: Tensor | None


class AttendedSteps(NamedTuple):
    """Where heads attend at training length: ``step`` (E, L, H, 4) on the path by number of hops, and its ``weight``.

    Step 0 is the query's own position, step k where the k-th hop lands.
    """

    step: Tensor
    weight: Tensor


def members_of(model: Ensemble, rows: slice | list[int]) -> Ensemble:
    """Return some members as an ensemble of their own."""
    if rows == slice(0, model.members):
        return model
    return model.from_weights(model.config, {name: p[rows].detach() for name, p in model.named_parameters()})


def sample_members(
    task: NumberTask | LetterTask,
    members: int,
    count: int,
    length: int,
    source: torch.Generator,
    hops: int | None = None,
) -> Batch:
    """Draw ``count`` sequences per member, (members, count, …); ``hops`` None: 1 to 4 in equal share over all."""
    batch = task.sample(members * count, hops=hops, length=length, generator=source)
    return Batch(*(field.unflatten(0, (members, count)) for field in batch))


@torch.no_grad()
def answer(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    count: int,
    source: torch.Generator,
    *,
    hops: int | None = None,
    attended: AttendedSteps | None = None,
    precision: Precision | None = None,
) -> Answers:
    """Answer ``count`` sequences of one length with every member, each member its own sequences.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        length: tokens, from 17.
        count: sequences per member.
        source: generator on the model's device.
        hops: of every sequence; None is 1 to 4 in equal share.
        attended: see `find_attended_steps`; then gaps are measured too.
        precision: of the products; None is `Precision.of` the device.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0, 1])
    >>> answer(model, NumberTask(), 40, 8, torch.Generator().manual_seed(0)).correct.shape
    torch.Size([2, 8])
    """
    precision = precision or Precision.of(source.device)
    together = max(1, min(model.members, TOKENS // length))
    groups = []
    for first in range(0, model.members, together):
        rows = slice(first, min(first + together, model.members))
        group = members_of(model, rows)
        chosen = None if attended is None else AttendedSteps(*(each[rows] for each in attended))
        chunk = max(1, TOKENS // (length * group.members))
        parts = []
        for start in range(0, count, chunk):
            size = min(chunk, count - start)
            batch = sample_members(task, group.members, size, length, source, hops)
            parts.append(answer_chunk(group, batch, chosen, precision))
        groups.append([join(each, -1) for each in zip(*parts, strict=True)])
    return Answers(*(join(each, 0) for each in zip(*groups, strict=True)))


def answer_chunk(
    model: Ensemble, batch: Batch, attended: AttendedSteps | None, precision: Precision
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return ``correct``, ``hops``, ``gap`` and ``outside`` of sequences (E, B, T) that fit in memory together."""
    frequencies = all_frequencies(model.config)
    gaps, outside = [], []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = rotate_pair(query, key, frequencies)
        if attended is not None:
            logits = last_logits(query[:, :, -1:], key)  # (E, B, H, T)
            right = right_positions(batch, attended.step[:, layer])  # (E, B, H, 1)
            own = logits.gather(-1, right).squeeze(-1)
            others = logits.scatter(-1, right, -math.inf).amax(-1)
            gaps.append((own - others).transpose(1, 2))
            outside.append(logits.softmax(-1)[..., :-WINDOW].sum(-1).transpose(1, 2))
        return causal(query, key, value, precision.vectors)

    logits = model(batch.tokens, dtype=precision.weights, attend=with_planes_interleaved(model, attend))
    correct = logits.argmax(-1) == batch.answer
    if attended is None:
        return correct, batch.hops, None, None
    return correct, batch.hops, torch.stack(gaps, 1), torch.stack(outside, 1)


def last_logits(query: Tensor, key: Tensor) -> Tensor:
    """Return the last position's logits (E, B, H, T) from its rotated query (E, B, 1, H, D) and all rotated keys."""
    logits = query.transpose(2, 3) @ key.permute(0, 1, 3, 4, 2)
    return logits.squeeze(-2) * key.shape[-1] ** -0.5


def right_positions(batch: Batch, step: Tensor) -> Tensor:
    """Return the position (E, B, H, 1) of the right key, from the step on the path (E, H, 4) by number of hops."""
    chosen = step.gather(-1, (batch.hops - 1)[:, None].expand(-1, step.shape[1], -1))  # (E, H, B)
    path = batch.path[:, None].expand(-1, step.shape[1], -1, -1)  # (E, H, B, 5)
    return path.gather(-1, chosen[..., None]).transpose(1, 2)


@torch.no_grad()
def find_attended_steps(model: Ensemble, batch: Batch) -> AttendedSteps:
    """Return which step of the path each head's last query attends to most, by number of hops, and how much.

    Args:
        model: the ensemble.
        batch: sequences of training length with a leading member axis, every number of hops among them.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> find_attended_steps(model, sample_members(NumberTask(), 1, 8, 17, torch.Generator())).weight.shape
    torch.Size([1, 2, 1, 4])
    """
    frequencies = all_frequencies(model.config)
    found = []
    for query, key in last_contents(model, batch.tokens):
        weights = last_logits(*rotate_pair(query, key, frequencies)).softmax(-1)  # (E, B, H, T)
        path = batch.path[:, :, None].expand(-1, -1, weights.shape[2], -1)
        on_path = weights.gather(-1, path.clamp(min=0)).masked_fill(path < 0, 0)  # (E, B, H, 5)
        means = []
        for h in HOPS:
            chosen = (batch.hops == h)[..., None, None]
            means.append((on_path * chosen).sum(1) / chosen.sum(1))
        found.append(torch.stack(means, 2))  # (E, H, 4, 5)
    weight, step = torch.stack(found, 1).max(-1)
    return AttendedSteps(step, weight)


@torch.no_grad()
def plane_norms(model: Ensemble, tokens: Tensor) -> Tensor:
    """Return the mean L2 norm of every plane's logits over the keys before the last position (E, L, H, D/2).

    Args:
        model: the ensemble.
        tokens: (E, B, T), or (B, T) that all members read.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> plane_norms(model, torch.arange(17)[None]).shape
    torch.Size([1, 2, 1, 4])
    """
    frequencies = all_frequencies(model.config)
    found = []
    for query, key in last_contents(model, tokens):
        query, key = rotate_pair(query, key, frequencies)
        key = key[:, :, :-1]
        shares = (query * key).unflatten(-1, (-1, 2)).sum(-1) * key.shape[-1] ** -0.5  # (E, B, T - 1, H, F)
        found.append(shares.norm(dim=2).mean(1))
    return torch.stack(found, 1)


def join(tensors: tuple[Tensor | None, ...], axis: int) -> Tensor | None:
    """Return tensors put together along an axis, None where there are none."""
    return None if tensors[0] is None else torch.cat(tensors, axis)
