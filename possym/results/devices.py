"""The devices of a study, and independent jobs run side by side with one process per device.

With one device, or one job, everything happens in the calling process. Otherwise each device gets a fresh process that
takes the next job when it has done one, so a job must leave its result in a file. If one process fails, or the one that
asked is interrupted or killed, the others end too.
"""

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partialmethod
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import RLock
from types import ModuleType
from typing import TypeVar

import torch
from torch.multiprocessing.spawn import ProcessContext, ProcessException, spawn
from tqdm import std
from tqdm.auto import tqdm

from possym.errors import ConfigError, DeviceError, InputError, require_type

FAILED = "a job failed: "
Job = TypeVar("Job")


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of that name; ``"auto"`` is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: unknown device, or CUDA where there is none.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    named = known_device(name)
    if named is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if named.type == "cuda" and (named.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device = {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; try 'auto'")
    return named


def known_device(name: str) -> torch.device | None:
    """Return the device of that name, here or on another machine, None for ``"auto"``; refuse any other name."""
    if name == "auto":
        return None
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except (RuntimeError, TypeError):
        device = None
    # A number past 127 wraps around in torch: 'cuda:256' would be the first device.
    if device is None or str(device) != name or (device.type != "cuda" and name != "cpu"):
        raise ConfigError(f"device = {name!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'")
    return device


def devices_of(device: torch.device) -> list[torch.device]:
    """Return the devices that a study set to ``device`` may use: for CUDA without a number all that are visible.

    Which are visible is up to the environment variable ``CUDA_VISIBLE_DEVICES``.

    >>> devices_of(torch.device("cpu"))
    [device(type='cpu')]
    """
    require_type(device, torch.device, "device")
    if device.type != "cuda" or device.index is not None:
        return [device]
    return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def side_by_side(
    work: Callable[[Job, torch.device], None], jobs: Sequence[Job], devices: Sequence[torch.device]
) -> None:
    """Call ``work(job, device)`` for every job, on several devices at once.

    Args:
        work: where there are several devices and jobs, a function of a module, or a partial of one, whose arguments
            can be sent to another process.
        jobs: independent of each other.
        devices: one process each.

    Raises:
        DeviceError: a process failed or was killed; the message says on which device, and why.
        InputError: no device.

    >>> side_by_side(lambda job, device: print(job, "on", device), [1, 2], [torch.device("cpu")])
    1 on cpu
    2 on cpu
    """
    if not devices:
        raise InputError("devices = []: give at least one device")
    if min(len(devices), len(jobs)) < 2:
        for job in jobs:
            work(job, devices[0])
        return
    count = min(len(devices), len(jobs))
    context = multiprocessing.get_context("spawn")
    waiting = context.SimpleQueue()
    for job in [*jobs, *[None] * count]:
        waiting.put(job)
    arguments = (work, waiting, list(devices), torch.get_num_threads(), context.RLock())
    with without_main():
        started = spawn(take_jobs, arguments, nprocs=count, join=False, daemon=True)
    try:
        wait(started, devices)
    finally:
        for process in started.processes:
            process.terminate()
            process.join()


def wait(started: ProcessContext, devices: Sequence[torch.device]) -> None:
    """Wait until all processes are done, or end them and say why one of them failed."""
    try:
        while not started.join():
            pass
    except ProcessException as error:
        reason = error.msg.rpartition(FAILED)[2].strip()  # what follows the traceback, if there is one
        raise DeviceError(
            f"the work on {devices[error.error_index]} broke off ({reason}). The other devices were stopped; what was "
            "finished is kept, and started again the run goes on from its last checkpoints"
        ) from error


def take_jobs(
    rank: int,
    work: Callable[[Job, torch.device], None],
    waiting: SimpleQueue,
    devices: Sequence[torch.device],
    threads: int,
    lock: RLock,
) -> None:
    """Do one job after the other on the device of this rank, as one of the processes of `side_by_side`."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    device = devices[rank]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    tqdm.set_lock(lock)
    std.tqdm.__init__ = partialmethod(std.tqdm.__init__, position=rank)  # a line for each device's progress bar
    try:
        for job in iter(waiting.get, None):
            work(job, device)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        raise DeviceError(f"{FAILED}{type(error).__name__}: {error}") from error


def end_with_parent() -> None:
    """Wait until the process that started this one is gone, however it ended, and end too."""
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


@contextmanager
def without_main() -> Iterator[None]:
    """Keep new processes from running the caller's script once more, as multiprocessing makes them do otherwise."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
