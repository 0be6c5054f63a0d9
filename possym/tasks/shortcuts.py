"""Shortcuts in the form of a sequence: guessers that follow no path, and pointers that lead to it from elsewhere."""

from string import ascii_letters

import torch
from torch import Tensor

from possym.errors import InputError
from possym.tasks.batch import Batch
from possym.tasks.mixed import MixedTask
from possym.tasks.number_and_letter import LetterTask, NumberTask

TARGETS = 8


def shortcut_accuracy(task: NumberTask | LetterTask | MixedTask, batch: Batch) -> Tensor:
    """Return the probability (n,), float64, that a guess among the likely targets is right without following the path.

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
    positions = torch.arange(batch.tokens.shape[1], device=device)
    likely = torch.zeros_like(batch.tokens[:, :TARGETS], dtype=torch.bool)
    if not isinstance(task, LetterTask):
        value = torch.tensor([int(token.lstrip(ascii_letters) or 0) for token in task.vocabulary], device=device)
        jump = value[batch.tokens]
        pointed = torch.where(jump > 0, positions - jump, -1)
        likely |= (pointed[:, :, None] == positions[:TARGETS]).any(1)
    if not isinstance(task, NumberTask):
        first = torch.tensor([ord(token[0]) for token in task.vocabulary], device=device)[batch.tokens]
        likely |= (first[:, :TARGETS, None] == first[:, None, :]).sum(-1) == 1
    position = batch.path.gather(1, batch.hops[:, None])
    return likely.gather(1, position)[:, 0].double() / likely.sum(1).clamp(min=1)


def pointers_at_path(batch: Batch) -> Tensor:
    """Return each letter sequence's share of letter pairs off the path that name a token on it (n,), float64.

    A pair of letters names the token that begins with its second letter. Which share there is depends on the rule for
    tokens off the path, see `possym.tasks.LetterTask`. NaN where every pair is on the path.

    Args:
        batch: sequences of the letter task.

    Raises:
        InputError: sequences of another length than 17.

    >>> pointers_at_path(LetterTask().sample(9)).max(), pointers_at_path(LetterTask("any").sample(9)).max() > 0
    (tensor(0., dtype=torch.float64), tensor(True))
    """
    if batch.tokens.shape[1] != 2 * TARGETS + 1:
        raise InputError(f"sequences of {batch.tokens.shape[1]} tokens: give {2 * TARGETS + 1}")
    size = LetterTask.LETTERS
    first, second = batch.tokens % size**2 // size, batch.tokens % size
    visited = torch.where(batch.path >= 0, first.gather(1, batch.path.clamp(min=0)), -1)
    names = (second[:, :, None] == visited[:, None]).any(-1)
    on_path = torch.zeros_like(names).scatter_(1, batch.path.clamp(min=0), True)
    pairs = ~on_path
    pairs[:, :TARGETS] = False
    return (names & pairs).sum(1).double() / pairs.sum(1)
