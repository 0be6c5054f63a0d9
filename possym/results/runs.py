"""Runs of studies: what they take with their interruptions, what is stored or unfinished, and what can be deleted.

A run notes among its checkpoints when it began. The run that goes on from them adds what the earlier ones took: up to
the moment that ended them, or up to their last checkpoint where they were killed and could not say so.
"""

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock
import pandas as pd

from possym.errors import ResultsError
from possym.results.files import atomic_write

COLUMNS = ("study", "result", "state", "started", "seconds", "device", "megabytes")
NOTES = ".runs"  # among the checkpoints, so that it goes where they are taken
SMALL = "smoke"  # the preset whose results are made anew in seconds


class Clock:
    """The time that a study has taken so far, in all its runs.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Path(folder, "toy-smoke-0123456789abcdef")
    ...     checkpoints.mkdir()
    ...     clock = Clock(checkpoints)
    ...     _ = (checkpoints / "step").write_text("5")
    ...     clock.stop()
    ...     again = Clock(checkpoints)
    >>> again.runs, again.seconds() > again.earlier[0]["seconds"] > 0
    (2, True)
    """

    def __init__(self, checkpoints: Path) -> None:
        """Begin a run that goes on from a folder of checkpoints; an empty folder is a first run."""
        self.notes = checkpoints / NOTES
        kept = [path.stat().st_mtime for path in checkpoints.rglob("*") if path.is_file() and path != self.notes]
        self.earlier = earlier_runs(self.notes) if kept else []
        for run in self.earlier:
            if run["seconds"] is None:
                run["seconds"] = max(0.0, max(kept) - run["started"])
        self.started, self.clock = time.time(), time.perf_counter()
        self.note(None)

    @property
    def runs(self) -> int:
        """How many runs there were, this one included."""
        return len(self.earlier) + 1

    @property
    def began(self) -> float:
        """When the first run began, in seconds since 1970."""
        return self.earlier[0]["started"] if self.earlier else self.started

    def seconds(self) -> float:
        """Return the seconds of all runs until now."""
        return sum(run["seconds"] for run in self.earlier) + time.perf_counter() - self.clock

    def stop(self) -> None:
        """Note what this run took, because it ends before the study does."""
        with suppress(ResultsError):  # on a full disk, of which the run's own error speaks
            self.note(time.perf_counter() - self.clock)

    def note(self, seconds: float | None) -> None:
        """Write down the earlier runs and this one."""
        runs = [*self.earlier, {"started": self.started, "seconds": seconds}]
        with atomic_write(self.notes) as path:
            path.write_text(json.dumps(runs) + "\n", encoding="utf-8")


def earlier_runs(notes: Path) -> list[dict]:
    """Return what was noted of earlier runs; what cannot be read was not noted."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        runs = json.loads(notes.read_text(encoding="utf-8"))
        return [{"started": float(run["started"]), "seconds": run["seconds"]} for run in runs]
    return []


def stored_time(folder: Path) -> tuple[float, str] | None:
    """Return the seconds and the device that a stored result names; None where none can be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        return float(manifest["seconds"]), str(manifest["device"])
    return None


def listed(root: Path, study: str | None = None) -> pd.DataFrame:
    """Return what a folder of results holds: one row per stored result, an unfinished run or a lock that a run left.

    The state is ``stored``, ``running``, ``unfinished`` (the same call goes on from its checkpoints) or ``lock``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(listed(Path(folder)))
    0
    """
    rows = []
    for manifest in sorted(root.glob("*/*/manifest.json")):
        folder = manifest.parent
        seconds, device = stored_time(folder) or (None, "")
        with suppress(OSError, ValueError, KeyError, TypeError):
            started = json.loads(manifest.read_text(encoding="utf-8"))["started"]
            rows.append((folder.parent.name, folder.name, "stored", started[:16], seconds, device, size(folder)))
    for lock in sorted(root.glob(".partial/*.lock")):
        folder = lock.with_suffix("")
        runs = earlier_runs(folder / NOTES)
        started = time.strftime("%Y-%m-%dT%H:%M", time.gmtime(runs[0]["started"])) if runs else ""
        with lock_of(lock) as free:
            state = "running" if not free else "unfinished" if has_checkpoints(folder) else "lock"
        name, _, rest = folder.name.partition("-")
        rows.append((name, rest, state, started, None, "", size(folder)))
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"seconds": float})
    return table if study is None else table[table["study"] == study].reset_index(drop=True)


def delete_small(root: Path, study: str | None = None) -> list[str]:
    """Delete the stored and unfinished results of the preset ``smoke`` and every lock that no run holds.

    Results and unfinished runs of other presets stay: they may be hours of a GPU.

    Args:
        root: the folder of results.
        study: of this study alone; of all without it.

    Returns:
        What was deleted, as names in ``root``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     delete_small(Path(folder))
    []
    """
    gone = []
    for row in listed(root, study).itertuples():
        small = row.result == SMALL or row.result.startswith(f"{SMALL}-")
        if row.state == "stored" and small:
            shutil.rmtree(root / row.study / row.result)
            gone.append(f"{row.study}/{row.result}")
        elif row.state == "lock" or (row.state == "unfinished" and small):
            folder = root / ".partial" / f"{row.study}-{row.result}"
            with lock_of(folder.with_suffix(".lock")) as free:
                if free:
                    shutil.rmtree(folder, ignore_errors=True)
                    folder.with_suffix(".lock").unlink(missing_ok=True)
                    gone.append(f".partial/{folder.name}")
    return gone


def has_checkpoints(folder: Path) -> bool:
    """Return whether a run left something to go on from."""
    return folder.is_dir() and any(path.name != NOTES for path in folder.iterdir())


@contextmanager
def lock_of(lock: Path) -> Iterator[bool]:
    """Hold a lock if nobody else does; yield whether it is held."""
    held = filelock.FileLock(lock)
    try:
        held.acquire(blocking=False)
    except filelock.Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()


def size(folder: Path) -> float:
    """Return the megabytes of a folder's files."""
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1)
