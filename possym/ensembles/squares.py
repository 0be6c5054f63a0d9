"""Sums of squares that the kernel which writes a gradient leaves with it, so that its norm need not read it again."""

from __future__ import annotations

from torch import Tensor


def leave(gradient: Tensor, sums: Tensor) -> Tensor:
    """Return a gradient (E, …) that has sums (E, P) of each member's squares with it until it is changed."""
    gradient.squares = sums, gradient._version  # type: ignore[attr-defined]
    return gradient


def left(gradient: Tensor) -> Tensor | None:
    """Return what `leave` left with a gradient, None where there is nothing, or where it was changed since.

    A change that PyTorch does not count is not seen, such as one through ``gradient.data``.

    >>> import torch
    >>> gradient = leave(torch.ones(2, 3), torch.tensor([[3.0], [3.0]]))
    >>> left(gradient)
    tensor([[3.],
            [3.]])
    >>> left(gradient.mul_(2)) is None
    True
    """
    sums, version = getattr(gradient, "squares", (None, None))
    return sums if version == gradient._version else None
