"""The ledger: the claims of both papers and questions of our own, each with its measurement and verdict.

Each study holds its claims in ``possym.experiments.<study>.claims``; a verdict is computed from stored results by the
criterion that the claim states.

- `rows`: all claims, and what they are measured on.
- `multiplicity`: the number of tests in the ledger, and their correction.
- `table`, `page`, `figures`: their display.
- `found`: the five findings of the landing page.
- `comparison`, `reproduction`: two folders of results compared; the stored results and their cost.
"""

import html
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from possym.claims.figures import link
from possym.claims.found import Cards, what_we_found
from possym.claims.multiplicity import p_values
from possym.claims.page import Browser
from possym.claims.rows import CLAIMS, claims_of, given, measure, stored, whole
from possym.claims.table import SYMBOLS, Table, anchor, badge, mathematics
from possym.errors import InputError, require_type
from possym.experiments.claim import (
    CONFIDENCE,
    COUNTED,
    INTERVALS,
    KINDS,
    OWN,
    SEED_RANGE,
    VERDICTS,
    Claim,
    Measurement,
)
from possym.results import Study
from possym.results.published import papers

__all__ = [
    "CLAIMS",
    "COUNTED",
    "INTERVALS",
    "KINDS",
    "VERDICTS",
    "Browser",
    "Cards",
    "Claim",
    "Measurement",
    "Table",
    "browser",
    "finding",
    "ledger",
    "p_values",
    "studies",
    "summary",
    "what_holds",
    "what_we_found",
]  # fmt: skip

COLUMNS = [
    "claim", "paper", "where", "measured", "interval", "paper_value", "verdict", "chapter",
    "kind", "interval_kind", "criterion", "changed",
]  # fmt: skip
BARE = re.compile(r"(?:^| and )[+−]?[\d.]+(?:\s%)? to ")  # an interval that does not say what it is
NAMES = {CONFIDENCE: (CONFIDENCE, "95 % intervals"), SEED_RANGE: (SEED_RANGE, "ranges over seeds")}  # one, several
PLURALS = {
    "replication": "replications",
    "theorem": "theorems",
    "own code": "checks of our own code",
    "re-reading": "re-readings of a printed table",
    "own question": "questions of our own",
}
MARKUP = ("Claim", "Measured here", "Verdict")
OWN_TITLE = "Questions of our own: findings of the papers, taken to settings that they did not study"
ORIGIN = ("experiment", "config_hash", "device", "seconds", "commit")


def ledger(chapter: str | None = None, studies: Mapping[str, Study] | None = None) -> pd.DataFrame:
    """Return the ledger, one row per claim, indexed by the claim's id.

    Args:
        chapter: a chapter's file name without ending, such as ``"07-learning-dynamics"``; None for all whose
            studies are stored.
        studies: results to measure on, by the study's name; the others are read from the stored paper preset.

    Returns:
        DataFrame with columns claim, paper (P1 to P3, or own for a question of ours), where, measured, interval,
        paper_value, verdict, chapter, kind (a key of `KINDS`), interval_kind (a key of `INTERVALS`), criterion, and
        changed: what the criterion was, if it was changed after its result was seen, else empty.

    Raises:
        InputError: no claim belongs to this chapter.
        ResultsError: a study is not stored; the message says what to run.

    >>> ledger("01-positional-and-symbolic")["verdict"].isin(VERDICTS).all()
    np.True_
    """
    known = given(studies)
    chosen = whole(known) if chapter is None else claims_of(chapter)
    rows = []
    for claim in chosen:
        found = measure(claim, known)
        said = [claim.statement, claim.paper, claim.where, *found[:2], claim.paper_value, found[2], claim.chapter]
        rows.append([*said, claim.kind, claim.interval_kind, claim.criterion, claim.changed])
    return pd.DataFrame(rows, columns=COLUMNS, index=pd.Index([claim.id for claim in chosen], name="id"))


def studies() -> dict[str, Study]:
    """Return the stored studies that the whole ledger is measured on, by name."""
    return {name: stored(name) for name in dict.fromkeys(claim.study for claim in whole({}) if claim.study)}


def what_holds(chapter: str, studies: Mapping[str, Study] | None = None) -> Table:
    """Return a chapter's claims as a table: claim with its criterion, where, paper's value, measured, verdict.

    Each row links to the claim's row on the ledger's page. An executed notebook keeps the same as data, with what made
    it, for `possym.sweeps.gallery` to join.

    Args:
        chapter: a chapter's file name without ending.
        studies: as for `ledger`; a chapter gives the studies that it has loaded.

    Raises:
        InputError, ResultsError: as for `ledger`.

    >>> what_holds("01-positional-and-symbolic").frame.columns.tolist()
    ['Claim', 'Where', "Paper's value", 'Measured here', 'Verdict']
    """
    presets = sorted({study.manifest["config"]["preset"] for study in given(studies).values()} - {"paper"})
    note = f", measured on the {' and '.join(presets)} preset: too small a run to judge the papers" if presets else ""
    rows = ledger(chapter, studies)
    names = [{"id": anchor("claim", id)} for id in rows.index]
    figures = [link(id) for id in rows.index]
    table = shown(rows, figures)
    table["Verdict"] = [
        f'{verdict}<br><a href="../ledger.md#{name["id"]}">in the ledger</a>'
        for verdict, name in zip(table["Verdict"], names, strict=True)
    ]
    return Table(table, f"What holds{note}", MARKUP, names, with_origin(rows, given(studies)))


def with_origin(rows: pd.DataFrame, known: Mapping[str, Study]) -> pd.DataFrame:
    """Return rows of the ledger with each claim's id and, where its study is known, what made that."""
    study_of = {claim.id: claim.study for claim in CLAIMS}
    made = [known[study_of[id]].manifest if study_of[id] in known else {} for id in rows.index]
    origin = {f"study_{name}": [manifest.get(name) for manifest in made] for name in ORIGIN}
    preset = [manifest.get("config", {}).get("preset") for manifest in made]
    return rows.drop(columns="chapter").assign(**origin, study_preset=preset).reset_index()


def shown(rows: pd.DataFrame, figures: list[str]) -> pd.DataFrame:
    """Return rows of the ledger as readers see them: criteria folded under claims, figures below measurements."""
    return pd.DataFrame(
        {
            "Claim": [claim_folded(row) for row in rows.itertuples()],
            "Where": [
                row["where"] if row.paper == OWN else f"{papers()[row.paper]['arxiv']}, {row['where']}"
                for _, row in rows.iterrows()
            ],
            "Paper's value": rows["paper_value"].to_numpy(),
            "Measured here": [
                f"{mathematics(html.escape(in_words(row.measured, row.interval, row.interval_kind)))}<br>{figure}"
                for row, figure in zip(rows.itertuples(), figures, strict=True)
            ],
            "Verdict": [badge(verdict) for verdict in rows["verdict"]],
        }
    )


def in_words(measured: str, interval: str, kind: str) -> str:
    """Return a measurement with its interval, which is named where it begins with bare numbers.

    >>> in_words("r = −0.6", "−0.8 to −0.3, p = 0.001", CONFIDENCE)
    'r = −0.6; 95 % interval −0.8 to −0.3, p = 0.001'
    >>> in_words("medians 16 and 158", "16 to 20 and 100 to 158", SEED_RANGE)
    'medians 16 and 158; ranges over seeds 16 to 20 and 100 to 158'
    >>> in_words("median 3", "2 to 4 over 32 seeds", SEED_RANGE)
    'median 3; 2 to 4 over 32 seeds'
    """
    if kind in NAMES and "over" not in interval and BARE.match(interval):
        interval = f"{NAMES[kind][len(BARE.findall(interval)) > 1]} {interval}"
    return "; ".join(filter(None, (measured, interval)))


def claim_folded(row: Any) -> str:
    """Return a row's claim, with its kind, its criterion and what its interval is folded under it, as HTML."""
    said = [f"Criterion: {row.criterion}.", f"Kind: {row.kind}."]
    if row.interval:
        said.append(f"Interval: {row.interval_kind}.")
    if row.changed:
        said.append(f"Changed after its result was seen: {row.changed}.")
    claim, more = (mathematics(html.escape(text)) for text in (row.claim, " ".join(said)))
    return f"<details><summary>{claim}</summary>{more}</details>"


def browser(rows: pd.DataFrame | None = None) -> Browser:
    """Return the ledger as a page shows it: filters by paper, kind, verdict and chapter above one table of all claims.

    Args:
        rows: rows of `ledger`; None for all.

    >>> page = browser(ledger("01-positional-and-symbolic"))
    >>> page.filters["verdict"]
    ['holds']
    """
    rows = rows_of_ledger(rows).sort_values("chapter", kind="stable")
    figures = [link(row.Index, f"chapters/{row.chapter}.md") for row in rows.itertuples()]
    return Browser(
        rows, shown(rows, figures), {**{name: entry["title"] for name, entry in papers().items()}, OWN: OWN_TITLE}
    )


def rows_of_ledger(rows: pd.DataFrame | None) -> pd.DataFrame:
    """Return ``rows``, or the whole ledger for None; an InputError if they are not the ledger's."""
    require_type(rows, (pd.DataFrame, type(None)), "rows")
    rows = ledger() if rows is None else rows
    if missing := [name for name in COLUMNS if name not in rows]:
        raise InputError(f"rows lack {', '.join(missing)}: give rows of ledger()")
    return rows


def finding(id: str, studies: Mapping[str, Study] | None = None) -> str:
    """Return one claim with its verdict and measurement as a line of Markdown, to which the ledger's page can link.

    Args:
        id: the claim's name, as the ledger's index has it.
        studies: as for `ledger`.

    Raises:
        InputError: no claim has this id.
        ResultsError: as for `ledger`.

    >>> "whatever its contents.* **Holds**: " in finding("nope-symbolic")
    True
    """
    require_type(id, str, "id")
    known = {claim.id: claim for claim in CLAIMS}
    if id not in known:
        raise InputError(f"claim {id!r}: known claims are {', '.join(known)}")
    measured, interval, verdict, _ = measure(known[id], given(studies))
    found = in_words(measured, interval, known[id].interval_kind)
    said = mathematics(f"*{known[id].statement}* **{verdict.capitalize()}**: {found}.")
    return f'<span id="{anchor("finding", id)}"></span>{said}'


def summary(rows: pd.DataFrame | None = None, kinds: Iterable[str] = COUNTED) -> Table:
    """Return the count of verdicts by paper and kind, each linked to its rows on the ledger's page.

    Args:
        rows: rows of `ledger`; None for all.
        kinds: the kinds of claims to count; those that speak for or against a paper unless told otherwise.

    Raises:
        InputError: rows that are not the ledger's, or a kind that is none.

    >>> summary(ledger("01-positional-and-symbolic"), ["own code"]).frame["● holds"].tolist()
    ['<a href="ledger.md#paper=P1&kind=own+code&verdict=holds">2</a>']
    """
    rows, kinds = rows_of_ledger(rows), list(kinds)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise InputError(f"kind {unknown[0]!r}: the kinds of claims are {', '.join(KINDS)}")
    counted = rows[rows["kind"].isin(kinds)]
    titles = {name: f"{entry['title']} ({entry['arxiv']})" for name, entry in papers().items()} | {OWN: OWN_TITLE}
    groups = [
        (paper, kind) for paper in titles for kind in kinds
        if ((counted["paper"] == paper) & (counted["kind"] == kind)).any()
    ]  # fmt: skip
    names = {verdict: f"{SYMBOLS[verdict]} {verdict}" for verdict in VERDICTS}
    frame = pd.DataFrame(
        {"Paper": [titles[paper] for paper, _ in groups], "Claims": [f"{PLURALS[kind]}" for _, kind in groups]}
    )
    for verdict, name in names.items():
        frame[name] = [counted_cell(counted, paper, kind, verdict) for paper, kind in groups]
    *first, last = [PLURALS[kind] for kind in kinds]
    caption = f"Verdicts on {len(counted)} {', '.join(first)}{' and ' * bool(first)}{last}"
    totals = ", ".join(f"{verdict} {(counted['verdict'] == verdict).sum()}" for verdict in VERDICTS)
    caption += f": {totals}" * bool(len(counted))
    return Table(frame, caption, markup=tuple(names.values()))


def counted_cell(rows: pd.DataFrame, paper: str, kind: str, verdict: str) -> str:
    """Return the number of rows of a paper, kind and verdict, linked to them on the ledger's page, as HTML."""
    wanted = {"paper": paper, "kind": kind, "verdict": verdict}
    count = (rows[list(wanted)] == pd.Series(wanted)).all(axis=1).sum()
    return f'<a href="ledger.md#{urlencode(wanted)}">{count}</a>' if count else "0"
