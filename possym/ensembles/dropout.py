"""Dropout masks as a hash of a member's key and a value's place: nothing is stored, and no order of drawing matters.

A mask costs a dozen integer operations a value, which a compiler fuses into the product that it masks.
"""

import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B9


def keep_mask(keys: Tensor, stream: int, shape: tuple[int, ...], probability: float) -> Tensor:
    """Return booleans (E, *shape), False with the given probability: where dropout drops a value.

    A member's booleans depend on its own key, the stream and the position alone.

    Args:
        keys: (E, 2) int32, a fresh random pair a member and step.
        stream: which of a step's masks, a whole number from 0.
        shape: of one member's mask, fewer than 2³¹ values.
        probability: of False.

    >>> keys = torch.tensor([[3, 4], [5, 6]], dtype=torch.int32)
    >>> keep_mask(keys, 0, (2, 3), 0.5)[0]
    tensor([[False, False, False],
            [False,  True,  True]])
    """
    size = math.prod(shape)
    first, second = hash32(advance_keys(keys, stream)).unsqueeze(-1).unbind(1)
    place = torch.arange(size, dtype=torch.int32, device=keys.device)
    hashed = hash32(hash32(place ^ first) + second)
    return ((hashed & 0xFFFFFF) >= round(probability * 2**24)).unflatten(1, shape)


def advance_keys(keys: Tensor, streams: int) -> Tensor:
    """Return keys whose stream 0 is these keys' stream ``streams``.

    >>> keys = torch.tensor([[3, 4]], dtype=torch.int32)
    >>> bool((keep_mask(advance_keys(keys, 5), 2, (100,), 0.5) == keep_mask(keys, 7, (100,), 0.5)).all())
    True
    """
    return keys + as_int32(streams * GOLDEN)


def keys_of_layers(keys: Tensor, layers: int, masks: int) -> Tensor:
    """Return the keys (L, E, 2) of layers with some masks each, `advance_keys` by those of the layers before.

    >>> keys = torch.tensor([[3, 4]], dtype=torch.int32)
    >>> torch.equal(keys_of_layers(keys, 6, 3)[5], advance_keys(keys, 15))
    True
    """
    layer = torch.arange(layers, dtype=torch.int32, device=keys.device)
    return keys + (layer * as_int32(masks * GOLDEN))[:, None, None]


def hash32(x: Tensor) -> Tensor:
    """Return a hash of each int32: shifts, xors and products modulo 2³², so that every bit depends on every bit."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * as_int32(0x7FEB352D)
    x = (x ^ ((x >> 15) & 0x1FFFF)) * as_int32(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def as_int32(number: int) -> int:
    """Return the int32 with the same last 32 bits.

    >>> as_int32(2**32 - 1)
    -1
    """
    return (number + 2**31) % 2**32 - 2**31


def keys_by_step(generators: list[torch.Generator], steps: int) -> Tensor:
    """Return a pair of int32 a step and member (steps, E, 2), each member's from its own generator.

    >>> keys_by_step([torch.Generator().manual_seed(0)], 3).shape
    torch.Size([3, 1, 2])
    """
    drawn = [torch.randint(-(2**31), 2**31, (steps, 2), generator=g, device=g.device) for g in generators]
    return torch.stack(drawn, 1).to(torch.int32)
