"""What a build took: a table of its studies, pages and chapters, from the benchmarks that Snakemake writes."""

import csv
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import gpus
from tabulate import tabulate

PARTS = {"studies": "study", "stage/chapters": "chapter", "stage": "page", "site": "site", "smoke": "small chapter"}


def report(build: Path, results: Path, started: float) -> None:
    """Write ``times.md`` into a build folder and print it, if a job has ended since ``started``."""
    files = sorted((build / "benchmarks").rglob("*.tsv"))
    if not any(file.stat().st_mtime >= started for file in files):
        return
    rows = []
    for file in files:
        part, *name = file.relative_to(build / "benchmarks").with_suffix("").parts
        if part in ("stage", "smoke") and not (build / part).joinpath(*name).with_suffix(".ipynb").exists():
            continue  # of a chapter that is gone
        if not file.stat().st_size:
            continue  # of a job that a full disk ended
        made_on = (noted(results, *name, "device") or "") if part == "studies" else ""
        kind = "stage/chapters" if (part, *name[:1]) == ("stage", "chapters") else part
        rows.append((kind, "/".join(name), *measured(file), made_on))
    print(f"\n{page(rows)}")
    try:
        (build / "times.md").write_text(page(rows), encoding="utf-8")
        print(f"This table is in {build / 'times.md'}.")
    except OSError as error:  # such as a full disk, which may be why the build failed
        print(f"This table is not kept: {error}.")


def measured(benchmark: Path) -> tuple[float, float | None]:
    """Seconds and the largest memory in GB; a job of less than a few seconds may have no memory measured."""
    [values] = csv.DictReader(benchmark.read_text(encoding="utf-8").splitlines(), delimiter="\t")
    try:
        return float(values["s"]), float(values["max_rss"]) / 1000
    except ValueError:
        return float(values["s"]), None


def noted(results: Path, preset: str, study: str, key: str) -> str | float | None:
    """What the manifest of a stored study says, such as its device; None where there is none to read."""
    manifest = results / study / preset / "manifest.json"
    try:
        return json.loads(manifest.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def page(rows: list[tuple]) -> str:
    """The table as Markdown, part by part, each with its sum."""
    lines = []
    for part, title in PARTS.items():
        mine = [row[1:] for row in rows if row[0] == part]
        lines += [(title, *row) for row in mine]
        if len(mine) > 1:
            lines.append((f"{title}: all", "", sum(seconds for _, seconds, *_ in mine), None, ""))
    lines.append(("sum", "", sum(row[2] for row in rows), None, ""))
    headers = ("", "", "seconds", "GB of memory", "device")
    return (
        f"Build of {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} CPU cores, GPUs: "
        f"{', '.join(gpus.installed()) or 'none'}. Jobs that ran side by side count in full; one that was interrupted "
        "counts from where it went on.\n\n"
        + tabulate(lines, headers, tablefmt="github", floatfmt=("", "", ".0f", ".1f", ""))
        + "\n"
    )
