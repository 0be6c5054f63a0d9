"""The ledger: the claims of both papers, how each is measured here, and the verdict.

One module a subject holds its claims in ``CLAIMS``. A verdict is computed from stored results by the criterion
that the claim states.
"""

import html
import importlib
from collections.abc import Mapping

import pandas as pd

from ..errors import InputError, ResultsError, need
from ..published import papers
from ..results import Study, load_or_run, result_folder
from . import canonical, heads, learning, real, tasks, theory
from .claim import VERDICTS, Claim, Measurement

__all__ = ["CLAIMS", "VERDICTS", "Claim", "Measurement", "Table", "finding", "ledger", "summary", "what_holds"]

CLAIMS: tuple[Claim, ...] = (
    *heads.CLAIMS,
    *theory.CLAIMS,
    *canonical.CLAIMS,
    *tasks.CLAIMS,
    *learning.CLAIMS,
    *real.CLAIMS,
)
COLUMNS = ["claim", "paper", "where", "measured", "interval", "paper_value", "verdict", "chapter"]
# Studies whose paper preset is still to be run: their claims join the whole ledger once a result is stored.
AWAITED = ("real_models",)
SYMBOLS = dict(zip(VERDICTS, "●◐○–", strict=True))


def ledger(chapter: str | None = None, studies: Mapping[str, Study] | None = None) -> pd.DataFrame:
    """Return the ledger, one row a claim, indexed by the claim's id.

    Args:
        chapter: a chapter's file name without ending, such as ``"07-learning-dynamics"``; None for all but those of
            studies in `AWAITED` that have no stored result.
        studies: results to measure on, by the study's name; the others are read from the stored paper preset.

    Returns:
        DataFrame with columns claim, paper, where, measured, interval, paper_value, verdict, chapter.

    Raises:
        InputError: no claim belongs to this chapter.
        ResultsError: a study is not stored; the message says what to run.

    >>> ledger("01-positional-and-symbolic")["verdict"].isin(VERDICTS).all()
    np.True_
    """
    known = given(studies)
    chosen = [claim for claim in claims_of(chapter) if chapter or claim.study in known or due(claim)]
    rows = []
    for claim in chosen:
        found = measure(claim, known)
        rows.append([claim.statement, claim.paper, claim.where, *found[:2], claim.paper_value, found[2], claim.chapter])
    return pd.DataFrame(rows, columns=COLUMNS, index=pd.Index([claim.id for claim in chosen], name="id"))


def measure(claim: Claim, known: dict[str, Study]) -> Measurement:
    """Return a claim's measurement; a study that is not in ``known`` is loaded into it."""
    if claim.study is None:
        return claim.measure()
    if claim.study not in known:
        known[claim.study] = stored(claim.study)
    return claim.measure(known[claim.study])


def due(claim: Claim) -> bool:
    """Return whether the whole ledger must have a claim's verdict: its study is not awaited, or is stored."""
    if claim.study not in AWAITED:
        return True
    experiment = importlib.import_module(f"possym.experiments.{claim.study}")
    return (result_folder(experiment.NAME, experiment.Config.preset_named("paper")) / "manifest.json").exists()


def claims_of(chapter: str | None) -> list[Claim]:
    """Return the claims of a chapter, or all."""
    need(chapter, (str, type(None)), "chapter")
    chosen = [claim for claim in CLAIMS if chapter in (None, claim.chapter)]
    if not chosen:
        known = sorted({claim.chapter for claim in CLAIMS})
        raise InputError(f"chapter = {chapter!r}: chapters with claims are {', '.join(known)}")
    return chosen


def given(studies: Mapping[str, Study] | None) -> dict[str, Study]:
    """Return a copy of the studies by name, or raise an InputError."""
    need(studies, (Mapping, type(None)), "studies")
    for name, study in (studies or {}).items():
        need(study, Study, f"studies[{name!r}]")
    return dict(studies or {})


def stored(name: str) -> Study:
    """Return the stored paper preset of a study, or say what to run."""
    experiment = importlib.import_module(f"possym.experiments.{name}")
    try:
        return load_or_run(experiment, experiment.Config.preset_named("paper"), "stored")
    except ResultsError as error:
        raise ResultsError(
            f"the ledger needs the stored result of {name}: {error}. To make it, call results.load_or_run(experiments."
            f"{name}, experiments.{name}.Config.preset_named('paper'), compute='always') on a machine with a "
            "CUDA device"
        ) from error


class Table:
    """An HTML table with a caption, as notebooks and the book show it; plain text elsewhere."""

    def __init__(self, frame: pd.DataFrame, caption: str, markup: tuple[str, ...] = ()) -> None:
        """Hold a frame; the columns named in ``markup`` are HTML already, all others are escaped."""
        self.frame, self.caption, self.markup = frame, caption, markup

    def __repr__(self) -> str:
        """Return the plain text."""
        return f"{self.caption}\n{self.frame.to_string()}"

    def _repr_html_(self) -> str:
        names = list(self.frame.columns)
        head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in names)
        lines = []
        for values in self.frame.itertuples(index=False):
            cells = [
                str(value) if name in self.markup else html.escape(str(value))
                for name, value in zip(names, values, strict=True)
            ]
            data = "".join(f"<td>{cell}</td>" for cell in cells[1:])
            lines.append(f'<tr><th scope="row">{cells[0]}</th>{data}</tr>')
        return (
            f'<div class="possym-table" tabindex="0" role="region" aria-label="{html.escape(self.caption)}">'
            f"<table><caption>{html.escape(self.caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        )


def what_holds(chapter: str, studies: Mapping[str, Study] | None = None) -> Table:
    """Return a chapter's claims as a table: claim with its criterion, where, paper's value, measured, verdict.

    Args:
        chapter: a chapter's file name without ending.
        studies: as for `ledger`; a chapter gives the studies that it has loaded.

    Raises:
        InputError, ResultsError: as for `ledger`.

    >>> what_holds("01-positional-and-symbolic").frame.columns.tolist()
    ['Claim', 'Where', 'Paper', 'Measured here', 'Verdict']
    """
    chosen, rows = claims_of(chapter), ledger(chapter, studies)
    claim = [
        f"<details><summary>{html.escape(claim.statement)}</summary>Criterion: {html.escape(claim.criterion)}</details>"
        for claim in chosen
    ]
    frame = pd.DataFrame(
        {
            "Claim": claim,
            "Where": [f"{papers()[row.paper]['arxiv']}, {row['where']}" for _, row in rows.iterrows()],
            "Paper": rows["paper_value"].to_numpy(),
            "Measured here": [f"{m}; {i}" if i else m for m, i in zip(rows["measured"], rows["interval"], strict=True)],
            "Verdict": [badge(verdict) for verdict in rows["verdict"]],
        }
    )
    presets = sorted({study.manifest["config"]["preset"] for study in (studies or {}).values()} - {"paper"})
    note = f", measured on the {' and '.join(presets)} preset: too small a run to judge the papers" if presets else ""
    return Table(frame, f"What holds{note}", markup=("Claim", "Verdict"))


def finding(id: str, studies: Mapping[str, Study] | None = None) -> str:
    """Return one claim with its measurement and verdict as a line of Markdown.

    Args:
        id: the claim's name, as the ledger's index has it.
        studies: as for `ledger`.

    Raises:
        InputError: no claim has this id.
        ResultsError: as for `ledger`.

    >>> finding("nope-symbolic").endswith("The claim **holds**.")
    True
    """
    need(id, str, "id")
    known = {claim.id: claim for claim in CLAIMS}
    if id not in known:
        raise InputError(f"claim {id!r}: known claims are {', '.join(known)}")
    measured, interval, verdict = measure(known[id], given(studies))
    return f"*{known[id].statement}* Here: {measured}{interval and f'; {interval}'}. The claim **{verdict}**."


def summary(rows: pd.DataFrame | None = None) -> Table:
    """Return the count of verdicts by paper, of ``rows`` or of the whole ledger."""
    need(rows, (pd.DataFrame, type(None)), "rows")
    rows = ledger() if rows is None else rows
    if not {"paper", "verdict"} <= set(rows):
        raise InputError("rows: give rows of ledger(), with columns paper and verdict")
    counts = pd.crosstab(rows["paper"], rows["verdict"]).reindex(
        index=list(papers()), columns=list(VERDICTS), fill_value=0
    )
    frame = counts.rename(columns=lambda verdict: f"{SYMBOLS[verdict]} {verdict}").reset_index()
    frame["paper"] = [f"{papers()[paper]['title']} ({papers()[paper]['arxiv']})" for paper in frame["paper"]]
    frame = frame.rename(columns={"paper": "Paper"}).rename_axis(columns=None)
    return Table(frame, f"{len(rows)} claims and what became of them here")


def badge(verdict: str) -> str:
    """Return a verdict as HTML: a sign and the words, so that no meaning hangs on colour."""
    name = verdict.replace(" ", "-")
    return f'<span class="verdict verdict-{name}"><span aria-hidden="true">{SYMBOLS[verdict]}</span> {verdict}</span>'
