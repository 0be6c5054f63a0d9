"""The sequences that a trainer reads."""

from typing import Protocol

import torch
from torch import Tensor

from possym.errors import InputError, require_type


class Source(Protocol):
    """A source of training batches; the same step always gives the same batch."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the tokens (E, B, T) and answers of an update, int64, on the model's device.

        Answers (E, B) are the last position's; (E, B, T) are every position's, −1 where there is none.
        """
        ...


class TokenTable:
    """Each member's own sequences, read once in order: update s reads rows s·B to (s + 1)·B.

    Args:
        tokens: (E, N, T) token ids; kept in int16.
        answers: (E, N) token ids of the last position's answers, or (E, N, T) of every position's, −1 where there is
            none.
        batch: B, sequences a member an update.

    Raises:
        InputError: shapes that do not fit, or ids beyond int16.
    """

    def __init__(self, tokens: Tensor, answers: Tensor, batch: int):
        """Keep both tensors compact, on their device."""
        for name, ids in (("tokens", tokens), ("answers", answers)):
            require_type(ids, Tensor, name)
            if ids.dtype not in (torch.int64, torch.int32, torch.int16):
                raise InputError(f"{name} is {ids.dtype}: give whole numbers, token ids")
        batch = require_type(batch, int, "batch")
        if tokens.ndim != 3 or answers.shape not in (tokens.shape[:2], tokens.shape):
            shapes = f"tokens {tuple(tokens.shape)}, answers {tuple(answers.shape)}"
            raise InputError(f"{shapes}: expected (E, N, T), and (E, N) or (E, N, T)")
        if tokens.numel() == 0 or not 1 <= batch <= tokens.shape[1]:
            raise InputError(f"tokens {tuple(tokens.shape)}, batch = {batch}: give a batch from 1 to N, and N from 1")
        none = -1 if answers.ndim == 3 else 0
        if tokens.min() < 0 or answers.min() < none or max(tokens.max(), answers.max()) > 32767:
            raise InputError("token ids lie from 0 to 32767, which int16 holds")
        if answers.ndim == 3 and (answers < 0).all(-1).any():
            raise InputError("answers: a sequence has no answer at any position")
        self.tokens, self.answers, self.size = tokens.to(torch.int16), answers.to(torch.int16), batch

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens (E, B, T) and answers (E, B) or (E, B, T) of an update, int64.

        Raises:
            InputError: the sequences are used up.
        """
        step = require_type(step, int, "step")
        rows = slice(step * self.size, (step + 1) * self.size)
        if step < 0 or rows.stop > self.tokens.shape[1]:
            raise InputError(f"update {step} needs {rows.stop} sequences a member, there are {self.tokens.shape[1]}")
        return self.tokens[:, rows].long(), self.answers[:, rows].long()
