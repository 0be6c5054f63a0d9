"""The answers of a multi-hop task at every position of a sequence, not only at the last."""

import torch
from torch import Tensor

from possym.errors import InputError
from possym.tasks.batch import check_sequences
from possym.tasks.mixed import MixedTask
from possym.tasks.number_and_letter import MAX_HOPS, LetterTask, NumberTask

ROWS = 2**16


def answers_by_position(task: NumberTask | LetterTask | MixedTask, tokens: Tensor) -> Tensor:
    """Return the answer at every position (n, length), −1 where there is none.

    The answer at a position is the task's answer to the sequence cut off after that position. There is none where that
    beginning is no question of the task: its last token is a target, its path leaves the sequence, a letter on the
    path starts no token or several tokens of the beginning or one that is no earlier, or the path takes more than
    4 hops.

    Args:
        task: a multi-hop task.
        tokens: (n, length) token ids.

    Raises:
        InputError: another task, or tokens that are no sequences of its ids.

    Source: f_NUM and f_LET of 2605.31558, appendix F, at all positions j where they are proper and change σ_j.

    >>> task = NumberTask()
    >>> ids = [task.vocabulary.index(token) for token in ["b", "q", "1", "4", "2"]]
    >>> [task.vocabulary[i] if i >= 0 else None for i in answers_by_position(task, torch.tensor([ids]))[0].tolist()]
    [None, None, 'q', None, 'q']
    """
    if not isinstance(task, (NumberTask, LetterTask, MixedTask)):
        raise InputError(f"task = {task!r}: give a NumberTask, a LetterTask or a MixedTask")
    tokens = check_sequences(tokens, len(task.vocabulary))
    return torch.cat([follow(task, rows) for rows in tokens.split(ROWS)])


def follow(task: NumberTask | LetterTask | MixedTask, tokens: Tensor) -> Tensor:
    """Return `answers_by_position` of checked tokens, all paths taking their hops together."""
    name, letter, jump = readings(task, tokens)
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    names = torch.arange(LetterTask.LETTERS, device=tokens.device)
    named = name[:, :, None] == names  # (n, length, 8)
    count = named.cumsum(1)  # tokens of each name in the beginning that ends at a position
    latest = torch.where(named, positions[:, :, None], -1).cummax(1).values
    target = (jump == 0) & (letter < 0)
    lost = target
    at = positions
    for _ in range(MAX_HOPS):
        wanted = letter.gather(1, at)
        one = wanted.clamp(min=0)[:, :, None]
        found = latest.gather(2, one)[:, :, 0]
        alone = (count.gather(2, one)[:, :, 0] == 1) & (found < at)
        back = at - jump.gather(1, at)
        arrived = target.gather(1, at)
        lost = lost | ~arrived & torch.where(wanted < 0, back < 0, ~alone)
        at = torch.where(lost | arrived, at, torch.where(wanted < 0, back, found))
    return tokens.gather(1, at).masked_fill(lost | ~target.gather(1, at), -1)


def readings(task: NumberTask | LetterTask | MixedTask, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return each token's name and the letter it asks for (0–7, −1 for none), and how far it jumps (0 for no jump)."""
    none = torch.full_like(tokens, -1)
    if isinstance(task, NumberTask):
        return none, none, (tokens - task.LETTERS + 1).clamp(min=0)
    asks = (tokens >= 64) & (tokens < 128)
    letter = torch.where(asks, tokens % 8, none)
    name = tokens % 64 // 8
    if isinstance(task, LetterTask):
        return name, letter, torch.zeros_like(tokens)
    jumps = tokens >= task.JUMPS
    beyond = tokens - task.JUMPS
    return torch.where(jumps, beyond // 16, name), letter, torch.where(jumps, 1 + beyond % 16, 0)
