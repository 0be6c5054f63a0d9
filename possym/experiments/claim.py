"""What a claim is, the four verdicts, and the numbers that a verdict rests on with their intervals."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
from scipy import stats

from possym.profiling.statistics import Estimate

VERDICTS = ("holds", "holds in part", "does not hold", "not testable here")
OWN = "own"  # in place of a paper: it claims nothing there, we ask whether its finding carries over


class Measurement(NamedTuple):
    """What was measured, its interval, and the verdict, as the ledger prints them; the numbers of both by themselves.

    ``estimates`` is empty where a claim is about closed forms, or where what was measured has no interval.
    """

    measured: str
    interval: str
    verdict: str
    estimates: tuple[Estimate, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim and how it is measured here: of the paper named ``"P1"`` or ``"P2"``, or ``"own"``, a question of ours.

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
    """Return a function that makes the claims of one paper, or our own, in one chapter from what tells them apart.

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


def alone(value: float) -> Estimate:
    """Return a number that has no interval.

    >>> alone(0.5)
    Estimate(value=0.5, low=0.5, high=0.5, p_value=nan)
    """
    return Estimate(float(value), float(value), float(value))


def spread(values: pd.Series, middle: str = "median") -> Estimate:
    """Return the median or mean of values, one a seed, and their range.

    >>> spread(pd.Series([1, 2, 6]))
    Estimate(value=2.0, low=1.0, high=6.0, p_value=nan)
    """
    return Estimate(float(values.agg(middle)), float(values.min()), float(values.max()))


def share(count: int, total: int) -> Estimate:
    """Return a share of independent cases and its 95 % interval by Wilson; of no cases, any share from 0 to 1.

    >>> [round(end, 2) for end in share(8, 8)[:3]]
    [1.0, 0.68, 1.0]
    """
    if not total:
        return Estimate(float("nan"), 0.0, 1.0)
    found = stats.binomtest(int(count), int(total)).proportion_ci(method="wilson")
    return Estimate(count / total, float(found.low), float(found.high))


def not_testable(reason: str) -> Callable[..., Measurement]:
    """Return the measure of a claim that cannot be tested here, with the reason.

    >>> not_testable("needs the authors' machine")().verdict
    'not testable here'
    """
    return lambda: Measurement(reason, "", VERDICTS[3])
