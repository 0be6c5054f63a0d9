"""Files that are written whole or not at all, their folders, and the errors when they cannot be written.

A file is made in a `scratch` folder beside its target and moved there when it is complete. A killed process cannot tidy
up, so the next one that writes to the same folder does. A lock says whether the owner of a scratch folder still runs;
the system releases it however a process ends. Shared file systems may not show one machine the locks of another, so a
scratch folder also bears the name of its machine, and other machines leave it alone.
"""

import hashlib
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock
from platformdirs import user_cache_path
from safetensors import SafetensorError

from possym.errors import ResultsError

PREFIX = f".unfinished,{platform.node()},"  # no machine's name has a comma


def cache_root() -> Path:
    """Return the folder for converted and trained models: ``POSSYM_CACHE``, else the platform's cache folder.

    Raises:
        ResultsError: the system names no folder of the user's, and ``POSSYM_CACHE`` none either.
    """
    named = os.environ.get("POSSYM_CACHE", "").strip()
    with suppress(RuntimeError):  # what Path says of a home folder that nobody knows
        path = Path(named).expanduser().absolute() if named else user_cache_path("possym", appauthor=False)
        if path.is_absolute():
            return path
    raise ResultsError(
        "no folder to keep converted and trained models in: the system names no home folder (HOME) and no folder for "
        "caches (XDG_CACHE_HOME). Set POSSYM_CACHE to a folder where you may write"
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says when it cannot write into a ResultsError that names the place and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ResultsError(
            f"{path} cannot be written ({error}): make room, or choose a folder where you may write (POSSYM_RESULTS "
            "names that of results, POSSYM_CACHE that of converted and trained models); an interrupted run goes on "
            "from its last checkpoint"
        ) from error


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` if the block succeeds and vanishes if not, however that ends.

    Raises:
        ResultsError: the file cannot be written, such as for want of room, or is no file but a device or folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a.txt") as path:
    ...         _ = path.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    with writing(path):
        if path.exists() and not path.is_file():
            raise ResultsError(f"{path} cannot be written: it is no file but a device, pipe or folder, give a file")
    with writing(path), scratch(path.parent) as folder:
        yield folder / path.name
        os.replace(folder / path.name, path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
