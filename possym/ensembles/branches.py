"""Work beside a chain of kernels on a GPU: other streams, forked from the current one and joined again."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Branch:
    """Work beside the chain: on a GPU another stream does it, elsewhere it is done at once.

    What it reads and writes must live until the chain has waited for it. A CUDA graph holds branches as it holds the
    chain.

    >>> beside = branch(torch.device("cpu"), 0)
    >>> with beside.forked():
    ...     total = torch.ones(3).sum()
    >>> beside.join(beside.asked())
    """

    def __init__(self, stream: torch.cuda.Stream | None):
        """Keep the stream."""
        self.stream = stream

    @contextmanager
    def forked(self) -> Iterator[None]:
        """Do what is asked within beside the chain, after what the chain has been asked so far."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def asked(self) -> torch.cuda.Event | None:
        """Return a mark behind all that the branch has been asked so far."""
        return None if self.stream is None else self.stream.record_event()

    def join(self, mark: torch.cuda.Event | None) -> None:
        """Let the chain wait for what is before a mark."""
        if mark is not None:
            torch.cuda.current_stream(self.stream.device).wait_event(mark)


@functools.cache
def branch(device: torch.device, number: int) -> Branch:
    """Return one of a device's branches, always the same."""
    return Branch(torch.cuda.Stream(device) if device.type == "cuda" else None)
