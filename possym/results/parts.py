"""The tables of one part of a long study, such as one model: stored when done, read when the study goes on."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from possym.results.files import atomic_write

EXACT = "timing"  # the table whose numbers stay float64


def load_part(folder: Path, name: str, tables: Sequence[str]) -> dict[str, pd.DataFrame] | None:
    """Return the tables of a part that `save_part` finished, None of one that it did not or whose files are broken."""
    if not (folder / f"{name}.finished").exists():
        return None
    try:
        return {table: pd.read_parquet(folder / f"{name}.{table}.parquet") for table in tables}
    except (OSError, ValueError):  # a file is gone, or was cut short as a machine went down: the part is made again
        return None


def save_part(folder: Path, name: str, tables: dict[str, pd.DataFrame]) -> None:
    """Store the tables of a part, a file each, their numbers as float32, and note last that it is finished.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     save_part(Path(place), "a", {"loss": pd.DataFrame({"loss": [0.5]})})
    ...     load_part(Path(place), "a", ["loss"])["loss"]["loss"].tolist(), load_part(Path(place), "b", ["loss"])
    ([0.5], None)
    """
    for table, rows in tables.items():
        if table != EXACT:
            rows[rows.select_dtypes("float64").columns] = rows.select_dtypes("float64").astype("float32")
        with atomic_write(folder / f"{name}.{table}.parquet") as path:
            rows.to_parquet(path, index=False)
    (folder / f"{name}.finished").touch()


def join_parts(parts: Iterable[tuple[Mapping[str, Any], Mapping[str, pd.DataFrame]]]) -> dict[str, pd.DataFrame]:
    """Return the tables of all parts together; what names a part comes first in each of its rows.

    >>> tables = [pd.DataFrame({"loss": losses}) for losses in ([0.5, 0.25], [], [2.0])]
    >>> join_parts(({"seed": seed}, {"loss": table}) for seed, table in enumerate(tables))["loss"].values.tolist()
    [[0.0, 0.5], [0.0, 0.25], [2.0, 2.0]]
    """
    found: dict[str, list[pd.DataFrame]] = {}
    for named, tables in parts:
        for name, table in tables.items():
            others = table.columns.difference([*named], sort=False)
            found.setdefault(name, []).append(table.assign(**named)[[*named, *others]])
    # An empty table has columns of other types, which would become those of all.
    return {name: pd.concat([t for t in some if len(t)] or some[:1], ignore_index=True) for name, some in found.items()}
