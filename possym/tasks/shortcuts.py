"""Guessers that follow no path: how far the form of a sequence alone gives its answer away."""

from string import ascii_letters

import torch
from torch import Tensor

from possym.errors import InputError
from possym.tasks.batch import Batch
from possym.tasks.mixed import MixedTask
from possym.tasks.multihop import LetterTask, NumberTask

TARGETS = 8


def shortcut_accuracy(task: NumberTask | LetterTask | MixedTask, batch: Batch) -> Tensor:
    """Return the chance (n,), float64, that a guess among the likely targets is right, without following the path.

    Number task: a guess among the targets that some integer points to. Letter task: among the targets whose first
    letter begins no other token of the sequence, since letters on a path (2605.31558, appendix B.2) do so once. Mixed
    task: among the targets of either kind.

    Args:
        task: the task that drew the batch.
        batch: sequences of 17 tokens.

    Raises:
        InputError: another task, or sequences of another length.

    >>> task = LetterTask()
    >>> shortcut_accuracy(task, task.sample(1000)).mean() > 1 / 8
    tensor(True)
    """
    if not isinstance(task, (NumberTask, LetterTask, MixedTask)):
        raise InputError(f"task = {task!r}: give a NumberTask, a LetterTask or a MixedTask")
    if batch.tokens.shape[1] != 2 * TARGETS + 1:
        raise InputError(f"sequences of {batch.tokens.shape[1]} tokens: give {2 * TARGETS + 1}")
    device = batch.tokens.device
    places = torch.arange(batch.tokens.shape[1], device=device)
    likely = torch.zeros_like(batch.tokens[:, :TARGETS], dtype=torch.bool)
    if not isinstance(task, LetterTask):
        value = torch.tensor([int(token.lstrip(ascii_letters) or 0) for token in task.vocabulary], device=device)
        jump = value[batch.tokens]
        pointed = torch.where(jump > 0, places - jump, -1)
        likely |= (pointed[:, :, None] == places[:TARGETS]).any(1)
    if not isinstance(task, NumberTask):
        first = torch.tensor([ord(token[0]) for token in task.vocabulary], device=device)[batch.tokens]
        likely |= (first[:, :TARGETS, None] == first[:, None, :]).sum(-1) == 1
    place = batch.path.gather(1, batch.hops[:, None])
    return likely.gather(1, place)[:, 0].double() / likely.sum(1).clamp(min=1)
