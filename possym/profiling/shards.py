"""What a long profile has done so far, kept in a folder: one subfolder per part, each whole or not there at all.

A run that is interrupted, by whatever means, is called again with the same folder and goes on with the batches that
are not there. The folder says what it was made of, so that another model or other prompts are refused.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from possym.errors import ResultsError
from possym.profiling.identity import marked_alike
from possym.results import atomic_write, sha256, writing
from possym.results.files import scratch

SECONDS = 30.0  # between two writings
NAMES = ("heads", "frequencies", "predicted")
HASHES = "sha256.json"


class Shards:
    """A folder with the tables of batches.

    Args:
        folder: it is made if it is not there.
        identity: what the run is of: it must be that which the folder was begun with.

    Raises:
        ResultsError: the folder holds something else, cannot be written, or was begun by another run.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]):
        self.folder = folder
        self.waiting: dict[int, Sequence[pd.DataFrame]] = {}
        self.last = time.monotonic()
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        marker = folder / "run.json"
        if not marker.exists():
            if any(not path.name.startswith(".") for path in folder.iterdir()):
                raise ResultsError(f"{folder} holds something that is no profile in the making: choose another folder")
            with atomic_write(marker) as path:
                path.write_text(json.dumps(identity, indent=1))
        begun = self.begun(marker)
        if differing := sorted(key for key in {*begun, *identity} if begun.get(key) != identity.get(key)):
            if differing == ["weights"] and not marked_alike(begun["weights"], identity["weights"]):
                raise ResultsError(
                    f"{folder} was begun by an early possym 0.2, whose hashes of weights do not compare with today's: "
                    "give another folder"
                )
            raise ResultsError(
                f"{folder} was begun with other {', '.join(differing)}: give the same arguments to go on, or another "
                "folder"
            )

    def begun(self, marker: Path) -> dict[str, Any]:
        """Return what the run that began the folder was of."""
        try:
            return dict(json.loads(marker.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise ResultsError(f"{marker} cannot be read ({error}): give another folder") from error

    def read(self) -> dict[int, tuple[pd.DataFrame, ...]]:
        """Return the tables of every batch that is there."""
        found = {}
        for part in sorted(path for path in self.folder.iterdir() if path.is_dir() and path.name.isdigit()):
            try:
                if (part / HASHES).exists():  # a part that an earlier possym wrote has none
                    check_hashes(part, json.loads((part / HASHES).read_text()))
                tables = [pd.read_parquet(part / f"{name}.parquet") for name in NAMES]
                groups = [dict(list(table.groupby("batch"))) for table in tables]
                for batch in groups[0]:
                    rows = [
                        group.get(batch, table.iloc[:0]).drop(columns="batch").reset_index(drop=True)
                        for group, table in zip(groups, tables, strict=True)
                    ]
                    found[int(batch)] = tuple(rows)
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise ResultsError(f"{part} cannot be read ({error}): delete it, and it is made again") from error
        return found

    def add(self, number: int, tables: Sequence[pd.DataFrame]) -> None:
        """Keep the tables of one batch, and write what waits if that is due."""
        self.waiting[number] = tables
        if time.monotonic() - self.last >= SECONDS:
            self.write()

    def write(self) -> None:
        """Write what waits, as a part of its own."""
        if not self.waiting:
            return
        with writing(self.folder), scratch(self.folder) as folder:
            (new := folder / "new").mkdir()
            for k, name in enumerate(NAMES):
                parts = [tables[k].assign(batch=number) for number, tables in self.waiting.items()]
                pd.concat(parts, ignore_index=True).to_parquet(new / f"{name}.parquet", index=False)
            (new / HASHES).write_text(json.dumps(hashes(new), indent=1))
            os.replace(new, self.folder / f"{min(self.waiting):08d}")
        self.waiting, self.last = {}, time.monotonic()


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every table of a folder, by the name of its file."""
    return {file.name: sha256(file) for file in sorted(folder.glob("*.parquet"))}


def check_hashes(folder: Path, expected: Mapping[str, str]) -> None:
    """Raise a ValueError if a table of a folder is not the one that was written."""
    for name, digest in expected.items():
        if sha256(folder / name) != digest:
            raise ValueError(f"{name} was changed after it was written")
