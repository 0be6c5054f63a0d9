"""The results of a sweep: one table that joins all points, and the page that shows it.

Each executed notebook contributes the table **What holds** at its chapter's end, which it keeps as data
(`possym.claims.what_holds`), and its first chart. `store` joins the tables and keeps them with pictures, notebooks and
a manifest in ``sweeps/<name>/`` of the book's folder; a `Gallery` shows them. The other tables of the points' studies
stay where studies are stored, and `join` joins one of them over all points.

The joined table has one row per point and claim: ``point``, the parameters, ``seconds`` and ``megabytes`` (of the whole
notebook), the columns of `possym.claims.ledger` with the claim's ``id``, and what made the study behind it:
``study_experiment``, ``study_config_hash``, ``study_device``, ``study_seconds``, ``study_commit``, ``study_preset``.
A chapter without claims has one row per point, with the first four.
"""

import base64
import html
import json
import re
import shutil
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from possym.claims.table import SYMBOLS, TABULAR, Table, badge
from possym.errors import InputError, ResultsError
from possym.experiments.claim import VERDICTS
from possym.results import Study, atomic_write, environment, load, results_root, save
from possym.results.store import COMMON
from possym.sweeps import FOLDER, Sweep, check_name, file_of

TABLE = "what_holds"
MANIFEST = (*COMMON, "points", "failed", "joined", "about")
STILL = re.compile(r'<figure class="possym-chart">.*?src="data:image/svg\+xml;base64,([^"]+)"', re.DOTALL)
SIDE_BY_SIDE = 6  # points that fit as columns of a page


def store(sweep: Sweep, folder: Path, failed: dict[str, str] | None = None) -> Study:
    """Join the tables of the executed notebooks in ``folder``, and store them together as the sweep's gallery.

    Args:
        sweep: of `possym.sweeps.read`.
        folder: holds ``<point>.ipynb`` and Snakemake's ``<point>.tsv`` of time and memory.
        failed: what went wrong, by point; these and others without a notebook are left out of the table.

    Raises:
        InputError: no point has a notebook.
        ConfigError: the gallery that is stored under this name is that of another file.
    """
    check_name(sweep)
    done = [point for point in sweep.points if (folder / f"{point}.ipynb").exists()]
    if not done:
        raise InputError(f"{folder} holds no notebook of {sweep.name}: run the sweep")
    shown = FOLDER / sweep.name
    shown.mkdir(parents=True, exist_ok=True)
    frames, kept, files = [], {}, set()
    cells = as_cells(sweep.points)
    for point in done:
        notebook = json.loads((folder / f"{point}.ipynb").read_text(encoding="utf-8"))
        frame = handed_over(notebook).assign(**measured(folder / f"{point}.tsv"))
        values = pd.DataFrame([{"point": point, **cells[point]}] * len(frame), index=frame.index)
        frames.append(pd.concat([values, frame], axis=1))
        with atomic_write(shown / f"{point}.ipynb") as path:
            shutil.copy(folder / f"{point}.ipynb", path)
        still, words = first_chart(notebook)
        if still:
            with atomic_write(shown / f"{point}.svg") as path:
                path.write_bytes(still)
        files |= {f"{point}.ipynb", f"{point}.svg"} if still else {f"{point}.ipynb"}
        kept[point] = {"parameters": sweep.points[point], "chart": words}
    made = environment("cpu")
    manifest = {
        "file": str(file_of(sweep)),
        "config": {"sweep": sweep.name, "chapter": sweep.chapter.stem, "points": sweep.points},
        "about": sweep.about,
        "points": kept,
        "failed": failed or {},
        "joined": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: made[name] for name in ("commit", "dirty", "versions")},
    }
    study = Study({TABLE: pd.concat(frames, ignore_index=True)}, {}, manifest)
    save(shown, study)
    for stale in {*shown.glob("*.ipynb"), *shown.glob("*.svg")} - {shown / name for name in files}:
        stale.unlink()
    return study


def as_cells(points: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each point's parameters as cells of a table: as JSON where the values of one are not all of a plain kind.

    >>> as_cells({"a": {"seed": 0, "pairs": [8]}, "b": {"seed": 1, "pairs": [8, 64]}})
    {'a': {'seed': 0, 'pairs': '[8]'}, 'b': {'seed': 1, 'pairs': '[8, 64]'}}
    """
    found: dict[str, dict[str, Any]] = {point: {} for point in points}
    for name in next(iter(points.values())):
        values = [parameters[name] for parameters in points.values()]
        kinds = {type(value) for value in values} - {type(None)}
        plain = any(kinds <= kind for kind in ({str}, {bool}, {int, float}))
        for point, value in zip(points, values, strict=True):
            found[point][name] = value if plain else json.dumps(value)
    return found


def handed_over(notebook: dict[str, Any]) -> pd.DataFrame:
    """Return the table that an executed notebook keeps as data; one row without columns if it keeps none."""
    for output in outputs(notebook):
        if table := output.get("data", {}).get(TABULAR):
            return pd.read_json(StringIO(json.dumps(table)), orient="table")
    return pd.DataFrame(index=[0])


def first_chart(notebook: dict[str, Any]) -> tuple[bytes | None, str]:
    """Return a notebook's first chart as SVG, and what it shows in words; None where it has no chart."""
    for output in outputs(notebook):
        data = output.get("data", {})
        if found := STILL.search("".join(data.get("text/html", ""))):
            return base64.b64decode(found[1]), "".join(data["text/plain"])
    return None, ""


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all outputs of a notebook, in order."""
    return [output for cell in notebook["cells"] for output in cell.get("outputs", [])]


def measured(benchmark: Path) -> dict[str, float]:
    """Return seconds and megabytes that Snakemake has measured; a short job's memory is not known (NaN)."""
    row = pd.read_csv(benchmark, sep="\t", na_values="-").iloc[0]
    return {"seconds": float(row["s"]), "megabytes": float(row["max_rss"])}


def stored() -> list[str]:
    """Return the names of the sweeps whose galleries are in the working folder."""
    return sorted(path.parent.name for path in FOLDER.glob("*/manifest.json"))


def join(name: str, table: str) -> pd.DataFrame:
    """Return one table of the studies behind a sweep, such as every head's scores, joined over the points.

    Args:
        name: of the sweep.
        table: of a study that its chapter loads, such as ``"heads"``.

    Returns:
        The table's rows for every point, with ``point`` and those parameters whose names the table does not use itself.

    Raises:
        ResultsError: the sweep or one of its studies is not stored here.
        InputError: no study has such a table; the message lists what there is.
    """
    sweep = load(FOLDER / name, required=MANIFEST)
    origin = ["point", "study_experiment", "study_config_hash"]
    rows = sweep.tables[TABLE].reindex(columns=origin).dropna().drop_duplicates()
    cells = as_cells({point: entry["parameters"] for point, entry in sweep.manifest["points"].items()})
    frames, known = [], set()
    for point, experiment, digest in rows.itertuples(index=False):
        study = load(folder_of(experiment, digest))
        known |= study.tables.keys()
        if table in study.tables:
            values = {"point": point, **cells[point]}
            frame = study.tables[table]
            frames.append(frame.assign(**{key: value for key, value in values.items() if key not in frame}))
    if not frames:
        raise InputError(f"table = {table!r}: the studies of {name} have {', '.join(sorted(known)) or 'none'}")
    return pd.concat(frames, ignore_index=True)


def folder_of(experiment: str, digest: str) -> Path:
    """Return the folder where the result with this hash of its configuration is stored."""
    for path in results_root().glob(f"{experiment}/*/manifest.json"):
        if json.loads(path.read_text())["config_hash"] == digest:
            return path.parent
    raise ResultsError(f"{results_root() / experiment} has no result {digest}: run the sweep on this machine")


class Gallery:
    """A stored sweep as a page shows it: a picture and a link for each point, and the verdicts at each."""

    def __init__(self, name: str) -> None:
        """Load a sweep's table and manifest, its files checked against their hashes."""
        study = load(FOLDER / name, required=MANIFEST)
        self.name, self.table, self.manifest = name, study.tables[TABLE], study.manifest

    def labels(self) -> dict[str, str]:
        """Return what tells each point from the others: the parameters that differ."""
        points = {point: entry["parameters"] for point, entry in self.manifest["points"].items()}
        values: dict[str, set[str]] = {}
        for parameters in self.manifest["config"]["points"].values():
            for key, value in parameters.items():
                values.setdefault(key, set()).add(repr(value))
        differ = [key for key, found in values.items() if len(found) > 1] or list(values)
        return {
            point: ", ".join(f"{key} = {parameters[key]}" for key in differ) for point, parameters in points.items()
        }

    def claims(self) -> Table | None:
        """Return what holds, claim by claim: at each point, or counts of verdicts where points are many.

        Claims that no point can test are left out.
        """
        if "id" not in self.table:
            return None
        labels = self.labels()
        rows = []
        for _, found in self.table.groupby("id", sort=False):
            if set(found["verdict"]) == {VERDICTS[-1]}:
                continue
            row = {"Claim": found["claim"].iloc[0]}
            if len(labels) <= SIDE_BY_SIDE:
                for point in found.itertuples():
                    said = f"{point.measured}; {point.interval}" if point.interval else point.measured
                    row[labels[point.point]] = f"{html.escape(said)}<br>{badge(point.verdict)}"
            else:
                row |= {f"{SYMBOLS[verdict]} {verdict}": (found["verdict"] == verdict).sum() for verdict in VERDICTS}
            rows.append(row)
        small = sorted({*self.table["study_preset"].dropna()} - {"paper"})
        note = f", measured on the {' and '.join(small)} preset: too small a run to judge the papers" if small else ""
        frame = pd.DataFrame(rows)
        markup = tuple(frame.columns[1:]) if len(labels) <= SIDE_BY_SIDE else ()
        return Table(frame, f"What holds at which point{note}", markup)

    def card(self, point: str, label: str) -> str:
        """Return one point's picture, its link and what made it."""
        address = quote(f"{FOLDER}/{self.name}/{point}", safe="/=,+")
        words = self.manifest["points"][point]["chart"]
        picture = f'<img src="{address}.svg" alt="{html.escape(words)}" loading="lazy">' if words else ""
        row = self.table[self.table["point"] == point].iloc[0]
        device = row.get("study_device")
        made = f"{row['seconds']:.0f} s" + ("" if pd.isna(device) else f"; study computed on {device}")
        return (
            f'<figure class="possym-point">{picture}<figcaption><a href="{address}.ipynb" download>'
            f"{html.escape(label)}</a><span>{html.escape(made)}</span></figcaption></figure>"
        )

    def _repr_html_(self) -> str:
        manifest = self.manifest
        total, commit = len(manifest["config"]["points"]), (manifest["commit"] or "unknown")[:10]
        file = next(name for name in manifest["files"] if name.startswith(TABLE))
        said = (
            f"Notebook {manifest['config']['chapter']}, {len(manifest['points'])} of {total} points, joined on "
            f"{manifest['joined'][:10]} at commit {commit}{' with changes' if manifest['dirty'] else ''}. "
        )
        cards = "".join(self.card(point, label) for point, label in self.labels().items())
        failed = "".join(
            f"<li>{html.escape(point)}: {html.escape(line)}</li>" for point, line in manifest["failed"].items()
        )
        claims = self.claims()
        return (
            f'<section class="possym-gallery" aria-label="Sweep {html.escape(self.name)}">'
            f"<p><strong>{html.escape(self.name)}.</strong> {html.escape(manifest['about'])}</p>"
            f'<p class="possym-made">{html.escape(said)}<a href="{quote(f"{FOLDER}/{self.name}/{file}")}" download>'
            f'The joined table</a> (Parquet).</p><div class="possym-points">{cards}</div>'
            f"{failed and f'<p>Not finished:</p><ul>{failed}</ul>'}{claims._repr_html_() if claims else ''}</section>"
        )
