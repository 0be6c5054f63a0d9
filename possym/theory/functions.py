"""The functions that the constructed heads compute, defined on tokens without any attention."""

import torch
from torch import Tensor

from possym.errors import InputError, require_type


def check_tokens(tokens: Tensor, **tables: Tensor) -> None:
    """Raise an InputError unless ``tokens`` (..., n) and the tables (V,) are int64 and the tokens are ids below V."""
    for name, ids in {"tokens": tokens, **tables}.items():
        require_type(ids, Tensor, name)
        if ids.dtype != torch.int64 or ids.ndim == 0:
            raise InputError(f"{name} {tuple(ids.shape)} {ids.dtype}: give an int64 tensor with a dimension or more")
    sizes = {tuple(table.shape) for table in tables.values()}
    if len(sizes) > 1 or len(size := sizes.pop()) != 1:
        raise InputError(f"{', '.join(tables)}: give one value for every token of the vocabulary, (V,)")
    if tokens.numel() and not 0 <= tokens.min() <= tokens.max() < size[0]:
        raise InputError(f"tokens run from {tokens.min()} to {tokens.max()}: give ids from 0 to {size[0] - 1}")


def index(tokens: Tensor, values: Tensor) -> Tensor:
    """Return Index(σ): σ_{j−i} where σ_j is the integer i and σ_{j−i} a letter, else σ_j.

    Args:
        tokens: (..., n) int64 token ids.
        values: (V,) int64, an integer's value, 0 for a letter.

    Returns:
        (..., n). A position whose integer points before the first position keeps its token.

    Source: 2605.31558, appendix F.

    >>> index(torch.tensor([0, 1, 3]), torch.tensor([0, 0, 1, 2]))
    tensor([0, 1, 0])
    """
    check_tokens(tokens, values=values)
    target = torch.arange(tokens.shape[-1], device=tokens.device) - values[tokens]
    found = tokens.gather(-1, target.clamp(min=0))
    return torch.where((target >= 0) & (values[found] == 0), found, tokens)


def retrieval(tokens: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return Retrieval(σ) and where it is defined.

    A letter–letter token becomes the token at a position up to its own whose left letter is its right letter; any
    other token stays. It is defined where that token exists and is the same wherever it occurs.

    Args:
        tokens: (..., n) int64 token ids.
        left, right: (V,) int64 letters of every token, right = −1 for letter–integer tokens.

    Returns:
        answers (..., n), and proper (..., n), True where they are defined; elsewhere the token itself.

    Source: 2605.31558, appendix F.

    >>> retrieval(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0]), torch.tensor([-1, -1, 1]))
    (tensor([0, 1, 1]), tensor([True, True, True]))
    """
    check_tokens(tokens, left=left, right=right)
    n = tokens.shape[-1]
    match = (left[tokens][..., None, :] == right[tokens][..., None]) & torch.ones(
        n, n, dtype=torch.bool, device=tokens.device
    ).tril()
    keys = tokens[..., None, :].expand(match.shape)
    smallest = keys.masked_fill(~match, len(left)).amin(-1)
    largest = keys.masked_fill(~match, -1).amax(-1)
    looks = right[tokens] >= 0
    proper = ~looks | (smallest == largest)
    return torch.where(looks & proper, largest, tokens), proper
