"""Accuracy and attention of an ensemble at lengths that it was not trained on, with memory held under a limit.

Sequences are taken in pieces of at most `TOKENS` places, and so are members once one sequence of each is too many;
attention never holds a table of T × T. What is left to grow with length is one sequence of one member.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.errors import InputError, need_room, require_type
from possym.experiments.generalization.attending import (
    all_frequencies,
    causal,
    last_contents,
    side_by_side,
    turned_pair,
)
from possym.tasks import Batch, LetterTask, NumberTask
from possym.tasks.batch import Task, check_count

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


class Sweep(NamedTuple):
    """What a sweep finds at one length, for each of N sequences.

    ``correct`` (E, N) and ``hops`` (E, N). Where right keys were given, of the last place's query: ``gap``
    (E, L, H, N), logit of the right key less the best other one; ``outside`` (E, L, H, N), its attention before the
    window; else None.
    """

    correct: Tensor
    hops: Tensor
    gap: Tensor | None
    outside: Tensor | None


class Looks(NamedTuple):
    """Where heads look at training length: ``step`` (E, L, H, 4) on the path by number of hops, ``weight`` likewise.

    Step 0 is the query's own place, step k where the k-th hop lands.
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
    """Draw ``count`` sequences for each member, (members, count, …); ``hops`` None: 1 to 4 in equal share over all.

    Raises:
        InputError: no task, or numbers that it cannot draw.
    """
    require_type(task, Task, "task")
    members, count = check_count("members", members, 1), check_count("count", count, 1)
    batch = task.sample(members * count, hops=hops, length=length, generator=source)
    return Batch(*(field.unflatten(0, (members, count)) for field in batch))


@torch.no_grad()
def sweep(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    count: int,
    source: torch.Generator,
    *,
    hops: int | None = None,
    looks: Looks | None = None,
    precision: Precision | None = None,
) -> Sweep:
    """Answer ``count`` sequences of one length with every member, each member its own sequences.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        length: places, from 17.
        count: sequences a member.
        source: generator on the model's device.
        hops: of every sequence; None is 1 to 4 in equal share.
        looks: see `looked_at`; then gaps are measured too.
        precision: of the products; None is `Precision.of` the device.

    Raises:
        InputError: arguments that do not fit each other.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0, 1])
    >>> sweep(model, NumberTask(), 40, 8, torch.Generator().manual_seed(0)).correct.shape
    torch.Size([2, 8])
    """
    precision = check_run(model, task, length, count, source, precision)
    check_looks(model, looks)
    together = max(1, min(model.members, TOKENS // length))
    groups = []
    for first in range(0, model.members, together):
        rows = slice(first, min(first + together, model.members))
        group = members_of(model, rows)
        chosen = None if looks is None else Looks(*(each[rows] for each in looks))
        piece = max(1, TOKENS // (length * group.members))
        parts = []
        for start in range(0, count, piece):
            size = min(piece, count - start)
            batch = sample_members(task, group.members, size, length, source, hops)
            parts.append(answer_piece(group, batch, chosen, precision))
        groups.append([join(each, -1) for each in zip(*parts, strict=True)])
    return Sweep(*(join(each, 0) for each in zip(*groups, strict=True)))


def answer_piece(
    model: Ensemble, batch: Batch, looks: Looks | None, precision: Precision
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return ``correct``, ``hops``, ``gap`` and ``outside`` of sequences (E, B, T) that fit in memory together."""
    frequencies = all_frequencies(model.config)
    gaps, outside = [], []

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = turned_pair(query, key, frequencies)
        if looks is not None:
            logits = last_logits(query[:, :, -1:], key)  # (E, B, H, T)
            right = right_places(batch, looks.step[:, layer])  # (E, B, H, 1)
            own = logits.gather(-1, right).squeeze(-1)
            others = logits.scatter(-1, right, -math.inf).amax(-1)
            gaps.append((own - others).transpose(1, 2))
            outside.append(logits.softmax(-1)[..., :-WINDOW].sum(-1).transpose(1, 2))
        return causal(query, key, value, precision.vectors)

    logits = model(batch.tokens, dtype=precision.weights, attend=side_by_side(model, attend))
    correct = logits.argmax(-1) == batch.answer
    if looks is None:
        return correct, batch.hops, None, None
    return correct, batch.hops, torch.stack(gaps, 1), torch.stack(outside, 1)


def last_logits(query: Tensor, key: Tensor) -> Tensor:
    """Return the last place's logits (E, B, H, T) from its turned query (E, B, 1, H, D) and all turned keys."""
    logits = query.transpose(2, 3) @ key.permute(0, 1, 3, 4, 2)
    return logits.squeeze(-2) * key.shape[-1] ** -0.5


def right_places(batch: Batch, step: Tensor) -> Tensor:
    """Return the place (E, B, H, 1) of the right key, from the step on the path (E, H, 4) by number of hops."""
    chosen = step.gather(-1, (batch.hops - 1)[:, None].expand(-1, step.shape[1], -1))  # (E, H, B)
    path = batch.path[:, None].expand(-1, step.shape[1], -1, -1)  # (E, H, B, 5)
    return path.gather(-1, chosen[..., None]).transpose(1, 2)


@torch.no_grad()
def looked_at(model: Ensemble, batch: Batch) -> Looks:
    """Return which step of the path each head's last place looks at most, by number of hops, and how much.

    Args:
        model: the ensemble.
        batch: sequences of training length with a leading member axis, every number of hops among them.

    Raises:
        InputError: a number of hops is missing, or arguments that do not fit each other.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> looked_at(model, sample_members(NumberTask(), 1, 8, 17, torch.Generator())).weight.shape
    torch.Size([1, 2, 1, 4])
    """
    require_type(model, Ensemble, "model")
    check_batch(model, batch, 1, None)
    if any(not (batch.hops == h).any(1).all() for h in HOPS):
        raise InputError("batch: give every member sequences of 1, 2, 3 and 4 hops")
    frequencies = all_frequencies(model.config)
    found = []
    for query, key in last_contents(model, batch.tokens):
        weights = last_logits(*turned_pair(query, key, frequencies)).softmax(-1)  # (E, B, H, T)
        path = batch.path[:, :, None].expand(-1, -1, weights.shape[2], -1)
        on_path = weights.gather(-1, path.clamp(min=0)).masked_fill(path < 0, 0)  # (E, B, H, 5)
        means = []
        for h in HOPS:
            chosen = (batch.hops == h)[..., None, None]
            means.append((on_path * chosen).sum(1) / chosen.sum(1))
        found.append(torch.stack(means, 2))  # (E, H, 4, 5)
    weight, step = torch.stack(found, 1).max(-1)
    return Looks(step, weight)


@torch.no_grad()
def plane_norms(model: Ensemble, tokens: Tensor) -> Tensor:
    """Return the mean L2 norm of every plane's logits over the keys before the last place (E, L, H, D/2).

    Args:
        model: the ensemble.
        tokens: (E, B, T), or (B, T) that all members read.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> plane_norms(model, torch.arange(17)[None]).shape
    torch.Size([1, 2, 1, 4])
    """
    require_type(model, Ensemble, "model")
    frequencies = all_frequencies(model.config)
    found = []
    for query, key in last_contents(model, tokens):
        query, key = turned_pair(query, key, frequencies)
        key = key[:, :, :-1]
        shares = (query * key).unflatten(-1, (-1, 2)).sum(-1) * key.shape[-1] ** -0.5  # (E, B, T - 1, H, F)
        found.append(shares.norm(dim=2).mean(1))
    return torch.stack(found, 1)


def join(tensors: tuple[Tensor | None, ...], axis: int) -> Tensor | None:
    """Return tensors put together along an axis, None where there are none."""
    return None if tensors[0] is None else torch.cat(tensors, axis)


def check_model(model: Ensemble, task: NumberTask | LetterTask) -> None:
    """Raise an InputError unless a model can have been trained on a task."""
    require_type(model, Ensemble, "model")
    require_type(task, (NumberTask, LetterTask), "task")
    if len(task.vocabulary) != model.config.vocabulary_size:
        raise InputError(
            f"the model knows {model.config.vocabulary_size} tokens, the task has {len(task.vocabulary)}: give the "
            "task that the model was trained on"
        )


def check_means(model: Ensemble, source: torch.Generator, precision: Precision | None) -> Precision:
    """Return the precision asked for or the device's; raise an InputError for a generator or a precision that is none.

    The generator must be on the model's device.
    """
    require_type(source, torch.Generator, "source")
    require_type(precision, (Precision, type(None)), "precision")
    device = next(model.parameters()).device
    if source.device != device and source.device != torch.device(device.type):  # "cuda" is the current one
        raise InputError(f"source is a generator on {source.device}, the model is on {device}: give one on {device}")
    return precision or Precision.of(device)


def check_run(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    count: int,
    source: torch.Generator,
    precision: Precision | None,
    shortest: int = WINDOW,
) -> Precision:
    """Return the precision of `check_means`; raise an InputError for what no ensemble can be asked."""
    check_model(model, task)
    check_count("length", length, shortest)
    count = check_count("count", count, 1)
    need_room(model.members * count, count=count, members=model.members)  # what is found of each sequence
    return check_means(model, source, precision)


def check_looks(model: Ensemble, looks: Looks | None) -> None:
    """Raise an InputError unless looks are None or what `looked_at` says of such a model."""
    require_type(looks, (Looks, type(None)), "looks")
    shape = (model.members, model.config.layers, model.config.heads, len(HOPS))
    if looks is not None and (looks.step.shape != shape or looks.step.dtype != torch.int64):
        raise InputError(f"looks: give what looked_at returns for this model, steps {shape}")


def check_batch(model: Ensemble, batch: Batch, least: int, length: int | None = WINDOW) -> None:
    """Raise an InputError unless a batch is on the model's device and holds so many sequences a member at least.

    ``length`` None takes any.
    """
    require_type(batch, Batch, "batch")
    for name, field in zip(batch._fields, batch, strict=True):
        require_type(field, Tensor, f"batch.{name}")
    tokens, device = batch.tokens, next(model.parameters()).device
    fits = tokens.ndim == 3 and tokens.shape[0] == model.members and tokens.shape[1] >= least
    if not fits or length not in (None, tokens.shape[2]):
        raise InputError(
            f"tokens {tuple(tokens.shape)}: give (E, B, {length or 'T'}) with E = {model.members} and B at least "
            f"{least}, as sample_members draws them"
        )
    if any(field.shape[:2] != tokens.shape[:2] or field.device != device for field in batch):
        raise InputError(f"batch: give fields that are all {tuple(tokens.shape[:2])}, and on {device} as the model is")
