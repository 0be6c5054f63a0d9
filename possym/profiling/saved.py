"""A profile, or an atlas, as a folder: Parquet tables, and one JSON file that says what they are, with their hashes."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from possym.errors import InputError, ResultsError, require_type
from possym.profiling.shards import check_hashes, hashes
from possym.results import writing
from possym.results.files import scratch


def save_tables(
    path: str | os.PathLike, kind: str, tables: Mapping[str, pd.DataFrame], manifest: Mapping[str, Any]
) -> Path:
    """Write tables and ``{kind}.json`` as a folder, whole or not at all; an earlier one of that kind is replaced.

    Raises:
        InputError: ``path`` holds something else.
        ResultsError: it cannot be written, as for want of room.
    """
    require_type(path, (str, os.PathLike), "path")
    path = Path(os.path.expanduser(path))
    if path.exists() and not (path / f"{kind}.json").exists():
        raise InputError(f"{path} exists and is not a saved {kind}: choose another place")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch(path.parent) as folder:
            (new := folder / "new").mkdir()
            for name, table in tables.items():
                table.to_parquet(new / f"{name}.parquet", index=False)
            (new / f"{kind}.json").write_text(json.dumps({**manifest, "sha256": hashes(new)}, indent=1))
            if path.exists():
                os.replace(path, folder / "before")
            os.replace(new, path)
    return path


@contextmanager
def saved_tables(path: str | os.PathLike, kind: str, formats: tuple[int, ...]) -> Iterator[tuple[Path, dict]]:
    """Yield a folder that `save_tables` wrote and what its JSON file says, its tables' hashes checked.

    Raises:
        ResultsError: nothing of that kind there, or what is incomplete, was changed, or is of another format; also
            where the block cannot read it.
    """
    require_type(path, (str, os.PathLike), "path")
    path = Path(os.path.expanduser(path))
    try:
        manifest = json.loads((path / f"{kind}.json").read_text())
        if manifest["format"] not in formats:
            known = " and ".join(map(str, formats))
            raise ResultsError(
                f"{path} has format {manifest['format']!r}; this possym reads format{'s' * (len(formats) > 1)} {known}"
            )
        check_hashes(path, manifest.get("sha256", {}))  # early profiles have none
        yield path, manifest
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"{path} holds no whole {kind} ({error}): give a folder that {kind.capitalize()}.save wrote"
        ) from error
