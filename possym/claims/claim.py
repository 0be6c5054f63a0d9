"""What a claim is, and the four verdicts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

VERDICTS = ("holds", "holds in part", "does not hold", "not testable here")


class Measurement(NamedTuple):
    """What was measured, its interval, and the verdict, as the ledger prints them."""

    measured: str
    interval: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim of a paper and how it is measured here.

    ``measure`` takes the `Study` named by ``study`` (a module of `possym.experiments`), or nothing where
    ``study`` is None and the claim is computed on the spot. It returns a `Measurement` whose verdict follows
    from ``criterion``, by `judge`.
    """

    id: str
    paper: str
    where: str
    statement: str
    chapter: str
    paper_value: str
    criterion: str
    measure: Callable[..., Measurement]
    study: str | None = None


def claims_in(paper: str, chapter: str, study: str | None = None) -> Callable[..., Claim]:
    """Return a function that makes the claims of one paper in one chapter from what tells them apart.

    >>> claim = claims_in("P1", "03-scoring-a-head")
    >>> claim("one", "section 3", "One is 1.", "1", "holds if it is", lambda: Measurement("1", "", judge(True))).chapter
    '03-scoring-a-head'
    """

    def claim(
        id: str,
        where: str,
        statement: str,
        paper_value: str,
        criterion: str,
        measure: Callable[..., Measurement],
        study: str | None = study,
    ) -> Claim:
        return Claim(
            id=id,
            paper=paper,
            where=where,
            statement=statement,
            chapter=chapter,
            paper_value=paper_value,
            criterion=criterion,
            measure=measure,
            study=study,
        )

    return claim


def judge(holds: bool, in_part: bool = False) -> str:
    """Return the verdict of a criterion: met, met in part, or not.

    >>> judge(False, in_part=True)
    'holds in part'
    """
    return VERDICTS[0] if holds else VERDICTS[1] if in_part else VERDICTS[2]


def not_testable(reason: str) -> Callable[..., Measurement]:
    """Return the measure of a claim that cannot be tested here, with the reason.

    >>> not_testable("needs the authors' machine")().verdict
    'not testable here'
    """
    return lambda: Measurement(reason, "", VERDICTS[3])
