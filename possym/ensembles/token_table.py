"""The sequences that a trainer reads."""

from typing import Protocol

import torch
from torch import Tensor

from possym.errors import InputError


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
    """

    def __init__(self, tokens: Tensor, answers: Tensor, batch: int):
        """Keep both tensors compact, on their device."""
        self.tokens, self.answers, self.size = tokens.to(torch.int16), answers.to(torch.int16), batch

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens (E, B, T) and answers (E, B) or (E, B, T) of an update, int64.

        Raises:
            InputError: the sequences are used up.
        """
        rows = slice(step * self.size, (step + 1) * self.size)
        if rows.stop > self.tokens.shape[1]:
            raise InputError(f"update {step} needs {rows.stop} sequences a member, there are {self.tokens.shape[1]}")
        return self.tokens[:, rows].long(), self.answers[:, rows].long()
