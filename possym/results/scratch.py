"""Files in the making, beside the place they are meant for, and nothing of them left once their process is gone.

A file is made in a folder of `scratch` and moved to its place when it is whole. A process that is killed cannot tidy
up, so the next one that makes something in the same place does it. Whether the owner of a folder still lives says a
lock, which the system gives back however a process ends. File systems that machines share need not show one the locks
of another, so a folder also bears the name of its machine, and other machines leave it alone.
"""

import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

PREFIX = f".unfinished,{platform.node()},"  # no machine's name has a comma


@contextmanager
def scratch(place: str | os.PathLike) -> Iterator[Path]:
    """Yield an empty folder inside ``place``, gone afterwards with all that was not moved out of it.

    Folders that processes of this machine left in ``place`` when they were killed go too.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with scratch(place) as folder:
    ...         _ = (folder / "a.txt").write_text("whole")
    ...         _ = (folder / "a.txt").rename(Path(place, "a.txt"))
    ...     os.listdir(place)
    ['a.txt']
    """
    for name in os.listdir(place):
        if name.startswith(PREFIX) and name.endswith(".lock"):
            clear(Path(place, name))
    lock = Path(place, f"{PREFIX}{secrets.token_hex(8)}.lock")
    try:
        with filelock.FileLock(lock):  # before the folder is there, so that nobody takes it for left behind
            folder = lock.with_suffix("")
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.unlink(missing_ok=True)


def clear(lock: Path) -> None:
    """Delete a folder of `scratch` and its lock if their owner is gone."""
    with suppress(filelock.Timeout, OSError), filelock.FileLock(lock, blocking=False):
        shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
        lock.unlink(missing_ok=True)
