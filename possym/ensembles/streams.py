"""Random numbers of one seed for several purposes."""

import torch

from possym.errors import InputError, to_int
from possym.results.config import SEEDS

STREAMS = ("weights", "data", "dropout", "held-out")


def generator(seed: int, stream: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator for one purpose of one seed, so that purposes never share random numbers.

    Raises:
        InputError: unknown purpose, or a seed that is no whole number from 0.

    >>> generator(3, "data").initial_seed()
    13
    """
    if not isinstance(stream, str) or stream not in STREAMS:
        raise InputError(f"stream = {stream!r}: known streams are {', '.join(STREAMS)}")
    number = to_int(seed)
    if number is None or not 0 <= number < SEEDS:
        raise InputError(
            f"seed = {seed!r}: give a whole number from 0 to below 2**30: torch's CPU generator tells no more apart"
        )
    try:
        fresh = torch.Generator(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device = {device!r}: give a device that is here, such as 'cpu' or 'cuda'") from None
    return fresh.manual_seed(len(STREAMS) * number + STREAMS.index(stream))
