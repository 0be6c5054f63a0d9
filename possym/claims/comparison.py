"""Compare two folders of results: which claims moved by more than their intervals, and which numbers differ.

    python -m possym.claims.comparison --new /elsewhere/results > report.md

compares new results with the committed ones; ``--old`` names others, ``--fail`` exits with 1 if anything moved.

The same code measures both sides, so differences come from the results. A claim counts as moved if

- its verdict is another;
- one of its numbers lies outside its old interval, which is the ledger's (a range over seeds, or a 95 % interval),
  Wilson's 95 % interval for a share of seeds, and the number itself where there is none. Each end gives way by
  `TOLERANCE` of its own size, so that rounding on another machine does not count;
- it has no such numbers, as claims about closed forms have none, and reads otherwise in any character.

What could be measured before and cannot be measured now is listed apart, and counts for ``--fail`` too.
"""

import argparse
import io
import math
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from possym.charts.typography import percent, typeset
from possym.claims import CLAIMS, Claim, Measurement
from possym.errors import InputError, PossymError, ResultsError, require_type
from possym.profiling.statistics import Estimate
from possym.results import Study, load, results_root

TOLERANCE = 0.01
MOVED = {
    "verdict": "another verdict",
    "outside": "outside its interval",
    "words": "reads otherwise, and has no interval",
}
STILL = {
    "inside": "within their intervals",
    "same": "the same",
    "new": "measured for the first time",
    "lost": "not measured any more",
}
CLAIM_COLUMNS = ["id", "study", "change", "before", "now", "verdict_before", "verdict_now"]
STUDY_COLUMNS = ["study", "result", "change", "before", "now", "settings"]
TABLE_COLUMNS = ["study", "result", "table", "rows", "column", "largest", "relative"]
MANIFEST = {
    "experiment": str,
    "config": dict,
    "device": str,
    "started": str,
    "seconds": (int, float),
    "seeds": list,
    "commit": (str, type(None)),
    "versions": dict,
}


@dataclass(frozen=True)
class Comparison:
    """What became of every claim, every result and every table between two folders of results.

    Attributes:
        claims: one row per claim that a study measures: id, study, change (a key of `MOVED` or `STILL`), before, now,
            verdict_before, verdict_now; before and now say what is wrong where there is no measurement.
        studies: one row per result of either folder: study, result, change, before and now (who made it), settings
            (those that differ).
        tables: one row per table, or all arrays, of the results in both: study, result, table, rows, column (the one
            that differs most for its size), largest (its largest absolute difference), relative (that over the column's
            largest absolute value before).
        old, new: where the results came from, in words.
    """

    claims: pd.DataFrame
    studies: pd.DataFrame
    tables: pd.DataFrame
    old: str
    new: str

    @property
    def moved(self) -> pd.DataFrame:
        """The rows of `claims` that moved."""
        return self.claims[self.claims["change"].isin(list(MOVED))]

    @property
    def lost(self) -> pd.DataFrame:
        """The rows of `claims` that were measured before and cannot be measured now."""
        return self.claims[self.claims["change"] == "lost"]

    def markdown(self) -> str:
        """Return the report."""
        moved, total = self.moved, len(self.claims)
        counts = self.claims["change"].value_counts()
        others = ", ".join(f"{counts[key]} {text}" for key, text in STILL.items() if key in counts)
        still = self.claims[self.claims["change"].isin(["inside", "new"])]
        parts = [
            "# What moved between two sets of results",
            f"New: {self.new}. Old: {self.old}.",
            f"**{len(moved)} of {total} claims moved by more than their intervals**; the others: {others or 'none'}."
            if total
            else "**No claim could be measured on either side.**",
            "A claim moved if its verdict is another, if a number lies outside its old interval (each end gives way by "
            f"{percent(TOLERANCE)} of its size), or, where it has no interval, if it reads otherwise. Both sides are "
            "measured by the same code. New seeds are a new draw: the mean of another draw of the same size leaves a "
            "95 % interval about once in six times. The ledger's other claims need no stored result.",
            section("Claims that moved", claim_rows(moved)),
            section("Claims that cannot be measured any more", lost_rows(self.lost)) if len(self.lost) else "",
            section("Results", self.studies.rename(columns=str.capitalize)),
            section("Largest difference of each table", table_rows(self.tables)),
            folded(f"{len(still)} claims that differ within their intervals, or are new", claim_rows(still)),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def compare(old: Path, new: Path, *, names: tuple[str, str] | None = None) -> Comparison:
    """Return how the results in one folder differ from those in another.

    What is missing, damaged or made with other settings on one side is a row that says so, not an error.

    Args:
        old: a folder of results, ``study/result/manifest.json`` in it.
        new: another.
        names: what to call the two; None for their paths.

    Raises:
        ResultsError: a folder that is not there, or holds no results.

    >>> import shutil, tempfile
    >>> from possym.results import results_root
    >>> with tempfile.TemporaryDirectory() as one:
    ...     _ = shutil.copytree(results_root() / "theory", Path(one, "theory"))
    ...     compare(one, one).claims["change"].unique().tolist()
    ['same']
    """
    folders = folder_named(old, "old"), folder_named(new, "new")
    found = [stored_in(folder) for folder in folders]
    keys = sorted({*found[0], *found[1]})
    studies, tables = [], []
    for key in keys:
        before, now = found[0].get(key), found[1].get(key)
        studies.append([*key, *change_of_result(before, now)])
        if isinstance(before, Study) and isinstance(now, Study):
            tables += [[*key, *row] for row in table_differences(before, now)]
    claims = [row for claim in CLAIMS if claim.study and (row := change_of_claim(claim, *found))]
    return Comparison(
        pd.DataFrame(claims, columns=CLAIM_COLUMNS),
        pd.DataFrame(studies, columns=STUDY_COLUMNS),
        pd.DataFrame(tables, columns=TABLE_COLUMNS),
        *(names or map(str, folders)),
    )


def folder_named(given: str | Path, name: str) -> Path:
    """Return a folder of results, if it is one."""
    require_type(given, (str, Path), name)
    if given == "" or not Path(given).is_dir():
        raise ResultsError(f"{name} = {str(given)!r} is no folder: give one with study/result/manifest.json in it")
    return Path(given)


def stored_in(folder: Path) -> dict[tuple[str, str], Study | ResultsError]:
    """Return the results in a folder by study and name; one that cannot be read as the error that says why."""
    found = {}
    for path in sorted(folder.glob("*/*/manifest.json")):
        try:
            study = load(path.parent)
            given = study.manifest
            if bad := [key for key, kind in MANIFEST.items() if key not in given or not isinstance(given[key], kind)]:
                raise ResultsError(f"{path} lacks {', '.join(bad)}: restore it, or run the study again")
            found[path.parts[-3:-1]] = study
        except ResultsError as error:
            found[path.parts[-3:-1]] = error
    if not found:
        raise ResultsError(f"{folder} holds no results: give a folder with study/result/manifest.json in it")
    return found


def change_of_result(before: Study | ResultsError | None, now: Study | ResultsError | None) -> list[str]:
    """Return what became of a result, who made it before and now, and the settings that differ."""
    who = [made_by(one) for one in (before, now)]
    damaged = [side for side, one in (("old", before), ("new", now)) if isinstance(one, ResultsError)]
    if damaged:
        return [f"{' and '.join(damaged)} cannot be read", *who, ""]
    if before is None or now is None:
        return ["only new" if before is None else "only old", *who, ""]
    if before.manifest["files"] == now.manifest["files"]:
        return ["the same files", *who, ""]
    one, other = (
        study.manifest["config"] | {f"version of {k}": v for k, v in study.manifest["versions"].items()}
        for study in (before, now)
    )
    settings = [
        f"{key}: {one.get(key, 'none')!s:.60} → {other.get(key, 'none')!s:.60}"
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]
    return ["made anew", *who, "; ".join(settings)]


def made_by(one: Study | ResultsError | None) -> str:
    """Return device, date, commit and time of a result in words, or why there is none."""
    if not isinstance(one, Study):
        return "" if one is None else str(one)
    made = one.manifest
    commit = (made["commit"] or "unknown")[:10]
    return f"{made['device']}, {made['started'][:10]}, commit {commit}, {made['seconds']:,.0f} s"


def table_differences(before: Study, now: Study) -> list[list]:
    """Return table, rows, column, largest and relative difference of every table of two results, and of the arrays."""
    rows = []
    for name in sorted({*before.tables, *now.tables}):
        if name not in before.tables or name not in now.tables:
            rows.append([name, "only new" if name in now.tables else "only old", "", math.nan, math.nan])
            continue
        one, other = before.tables[name], now.tables[name]
        if list(one) != list(other) or len(one) != len(other):
            sizes = " → ".join(f"{len(table)} × {table.shape[1]}" for table in (one, other))
            rows.append([name, sizes, "", math.nan, math.nan])
            continue
        found = differences(Study({name: one}), Study({name: other}))
        if len(found):
            found["relative"] = (found["largest"] / found["size"]).where(found["largest"] != 0, 0.0)
            worst = found.loc[found["relative"].fillna(math.inf).idxmax()]
            rows.append([name, str(len(one)), worst["column"], worst["largest"], worst["relative"]])
    return rows + array_differences(before, now)


def differences(one: Study, other: Study) -> pd.DataFrame:
    """Return how two results of one study differ, a row for each column of each table.

    Args:
        one: a result.
        other: another of the same study; the same configuration on another machine, or another seed.

    Returns:
        DataFrame with columns table, column, rows, largest (absolute difference of numbers; for words and truth values,
        1 if any entry differs, else 0; NaN where one entry is missing and the other is not), size (largest absolute
        value in ``one``, 1 for words).

    Raises:
        InputError: tables, columns or numbers of rows that do not match.

    >>> one, other = (Study({"scores": pd.DataFrame({"layer": [0, 1], "score": [0.5, x]})}) for x in (0.25, 0.75))
    >>> differences(one, other)["largest"].tolist()
    [0.0, 0.5]
    """
    require_type(one, Study, "one")
    require_type(other, Study, "other")
    if one.tables.keys() != other.tables.keys():
        raise InputError(f"tables {', '.join(one.tables)} and {', '.join(other.tables)}: give results of one study")
    rows = []
    for name, table in one.tables.items():
        second = other.tables[name]
        if list(table) != list(second) or len(table) != len(second):
            raise InputError(
                f"table {name!r} has {len(table)} rows of {', '.join(table)} and {len(second)} of {', '.join(second)}: "
                "give results with the same sizes"
            )
        for column in table:
            a, b = table[column].to_numpy(), second[column].to_numpy()
            if np.issubdtype(a.dtype, np.number) and np.issubdtype(b.dtype, np.number):
                a, b = a.astype(float), b.astype(float)
                same = (a == b) | (np.isnan(a) & np.isnan(b))
                gap = np.abs(np.subtract(a, b, out=np.zeros_like(a), where=~same))
                size = np.abs(a[np.isfinite(a)]).max(initial=0.0)
            else:
                same = table[column].equals(second[column]) or [*map(str, a)] == [*map(str, b)]
                gap = np.array([not same], float)
                size = 1.0
            rows.append([name, column, len(table), float(gap.max(initial=0.0)), float(size)])
    return pd.DataFrame(rows, columns=["table", "column", "rows", "largest", "size"])


def array_differences(before: Study, now: Study) -> list[list]:
    """Return one row as `table_differences` does, of the array that differs most for its size; none without arrays."""
    rows = []
    for name in sorted({*before.arrays, *now.arrays}):
        one, other = before.arrays.get(name), now.arrays.get(name)
        if one is None or other is None or one.shape != other.shape:
            sizes = " → ".join("none" if each is None else str(tuple(each.shape)) for each in (one, other))
            rows.append(["arrays", sizes, name, math.nan, math.nan])
        elif one.numel():
            largest, size = float((one.double() - other.double()).abs().max()), float(one.double().abs().max())
            rows.append(["arrays", str(tuple(one.shape)), name, largest, largest / size if largest else 0.0])
    return sorted(rows, key=lambda row: math.inf if math.isnan(row[-1]) else row[-1])[-1:]


def change_of_claim(claim: Claim, before: dict, now: dict) -> list | None:
    """Return a claim's row of `Comparison.claims`; None where neither side has its study."""
    sides = [measure_claim(claim, found.get((claim.study, "paper"))) for found in (before, now)]
    if sides == ["", ""]:
        return None
    texts = [side if isinstance(side, str) else said(side) for side in sides]
    verdicts = ["" if isinstance(side, str) else side.verdict for side in sides]
    if isinstance(sides[1], str):
        change = "lost"
    else:
        change = "new" if isinstance(sides[0], str) else change_of_measurement(*sides)
    return [claim.id, claim.study, change, *texts, *verdicts]


def measure_claim(claim: Claim, study: Study | ResultsError | None) -> Measurement | str:
    """Return a claim's measurement, or in words why there is none."""
    if not isinstance(study, Study):
        return "" if study is None else str(study)
    try:
        return claim.measure(study)
    except Exception as error:  # a result of other settings or an older version may lack anything
        return f"cannot be measured ({type(error).__name__}: {error!s:.100})"


def said(found: Measurement) -> str:
    """Return a measurement as the ledger prints it."""
    return typeset(f"{found.measured}; {found.interval}" if found.interval else found.measured)


def change_of_measurement(before: Measurement, now: Measurement) -> str:
    """Return which of the rules at the top of this module applies first.

    >>> def found(value, verdict="holds"):
    ...     return Measurement(f"{value:.2f}", "0.40 to 0.60", verdict, (Estimate(value, 0.4, 0.6),))
    >>> [change_of_measurement(found(0.5), each) for each in (found(0.5), found(0.6), found(0.7))]
    ['same', 'inside', 'outside']
    >>> change_of_measurement(found(0.5), found(0.5, "does not hold"))
    'verdict'
    """
    if before.verdict != now.verdict:
        return "verdict"
    alike = before[:2] == now[:2]
    if not before.estimates or len(before.estimates) != len(now.estimates):
        return "same" if alike else "words"
    pairs = zip(before.estimates, now.estimates, strict=True)
    if not all(inside(estimate, other.value) for estimate, other in pairs):
        return "outside"
    return "same" if alike else "inside"


def inside(estimate: Estimate, value: float) -> bool:
    """Return whether a value lies within an interval whose ends give way by `TOLERANCE` of their size.

    >>> inside(Estimate(12, 12, 12), 11.9), inside(Estimate(12, 12, 12), 11.8)
    (True, False)
    """
    if math.isnan(value) or math.isnan(estimate.value):
        return math.isnan(value) and math.isnan(estimate.value)
    low, high = (end + sign * TOLERANCE * abs(end) for end, sign in ((estimate.low, -1), (estimate.high, 1)))
    return low <= value <= high


def claim_rows(claims: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `Comparison.claims` as the report shows them."""
    verdicts = [
        one if one == other else f"{one or 'none'} → {other or 'none'}"
        for one, other in zip(claims["verdict_before"], claims["verdict_now"], strict=True)
    ]
    return pd.DataFrame(
        {
            "Claim": [f"`{id}`" for id in claims["id"]],
            "Change": [(MOVED | STILL)[key] for key in claims["change"]],
            "Before": claims["before"].to_numpy(),
            "Now": claims["now"].to_numpy(),
            "Verdict": verdicts,
        }
    )


def lost_rows(claims: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `Comparison.lost` as the report shows them, those of one study and reason together."""
    groups = claims.groupby(["study", "now"], sort=False)["id"]
    rows = [[study, why or "no result named paper", ", ".join(f"`{id}`" for id in ids)] for (study, why), ids in groups]
    return pd.DataFrame(rows, columns=["Study", "Why", "Claims"])


def table_rows(tables: pd.DataFrame) -> pd.DataFrame:
    """Return rows of `Comparison.tables` that differ, as the report shows them."""
    rows = tables[tables["largest"] != 0]
    return pd.DataFrame(
        {
            "Result": rows["study"] + "/" + rows["result"],
            "Table": rows["table"],
            "Rows": rows["rows"],
            "Column": rows["column"],
            "Largest difference": [number(value) for value in rows["largest"]],
            "Of the column's largest value": [typeset(number(value, "{:.2%}")) for value in rows["relative"]],
        }
    )


def number(value: float, form: str = "{:.4g}") -> str:
    """Return a number in words; what one side alone has cannot be told."""
    return "not comparable" if math.isnan(value) else form.format(value)


def section(title: str, rows: pd.DataFrame) -> str:
    """Return a heading and a table in Markdown."""
    return f"## {title}\n\n{markdown_table(rows) if len(rows) else 'None.'}"


def folded(title: str, rows: pd.DataFrame) -> str:
    """Return a table that opens on a click, nothing where it has no rows."""
    return f"<details><summary>{title}</summary>\n\n{markdown_table(rows)}\n\n</details>" if len(rows) else ""


def markdown_table(rows: pd.DataFrame) -> str:
    """Return a table in Markdown, bars and line ends in its cells made harmless.

    >>> print(markdown_table(pd.DataFrame({"A": ["a|b"], "B": [1]})))
    | A | B |
    |---|---|
    | a\\|b | 1 |
    """
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows.itertuples(index=False)]
    lines = [list(rows), ["---"] * rows.shape[1], *cells]
    text = ["| " + " | ".join(line) + " |" for line in lines]
    text[1] = text[1].replace(" ", "")
    return "\n".join(text)


@contextmanager
def committed() -> Iterator[Path]:
    """Yield a folder with the results that the checkout's last commit holds, gone afterwards.

    Raises:
        ResultsError: no checkout, or one without results.
    """
    checkout = Path(__file__).parents[2]
    try:
        command = ["git", "-C", str(checkout), "archive", "--format=tar", "HEAD", "results"]
        packed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode(errors="replace").strip() or error
        raise ResultsError(f"no committed results in {checkout} ({reason}): name a folder with --old") from None
    with tempfile.TemporaryDirectory(prefix="possym-committed-") as folder:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            # Python before 3.11.4 knows no filters; it leaves the attribute alone.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(folder)
        yield Path(folder) / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return 2 where there is none, 1 under ``--fail`` if claims moved or are lost, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m possym.claims.comparison", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--new", help="folder of new results (POSSYM_RESULTS, else results/)")
    parser.add_argument("--old", help="folder of results to compare with (those of the last commit)")
    parser.add_argument("--fail", action="store_true", help="end with 1 if a claim moved")
    chosen = parser.parse_args(arguments)
    new = results_root() if chosen.new is None else chosen.new
    try:
        if chosen.old is not None:
            found = compare(chosen.old, new)
        else:
            with committed() as old:
                found = compare(old, new, names=("the results of the last commit", str(new)))
    except PossymError as error:
        print(error, file=sys.stderr)
        return 2
    print(found.markdown(), end="")
    return int(chosen.fail and len(found.moved) + len(found.lost) > 0)


if __name__ == "__main__":
    sys.exit(main())
