"""Claims, their kinds, the five verdicts, and the numbers with intervals that a verdict rests on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import scipy

from possym.profiling.statistics import Estimate

VERDICTS = ("holds", "holds in part", "not shown", "does not hold", "not testable here")
HOLDS, IN_PART, NOT_SHOWN, FAILS, UNTESTABLE = VERDICTS
OWN = "own"  # in place of a paper: it claims nothing there, we ask whether its finding carries over
KINDS = {
    "replication": "an experiment of the paper, repeated",
    "theorem": "a statement of the paper, searched for a counterexample",
    "own code": "a check of this book's code that correct code cannot fail",
    "re-reading": "a sentence of the paper, read against its own printed table",
    "own question": "a question that the papers do not ask",
}
REPLICATION, THEOREM, OWN_CODE, REREADING, OWN_QUESTION = KINDS
COUNTED = (REPLICATION, THEOREM)  # the kinds that speak for or against a paper
INTERVALS = {
    "none": "no interval",
    "number of cases": "no interval; how many cases were examined",
    "95 % interval": "Wilson's for a share; otherwise the criterion names the method",
    "range over seeds": "the smallest and largest value over models that differ in their seed",
    "range over heads and seeds": "the smallest and largest value over all heads of all models",
    "range over angles": "the smallest and largest value over angles",
    "exact": "no interval; every case was examined, none was sampled",
}
MOST = (
    "in part if in most, and the 95 % interval of their share lies above one half; not shown if in most, but that "
    "interval reaches one half"
)
MOST_BEFORE = "a bare majority was enough to hold in part, whatever its interval"
NO_INTERVAL, EXTENT, CONFIDENCE, SEED_RANGE, HEAD_RANGE, ANGLE_RANGE, EXACT = INTERVALS


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
    """One claim and how it is measured here: of a paper (``"P1"`` to ``"P3"``) or ``"own"``, a question of ours.

    ``measure`` takes the `Study` named by ``study`` (a module of `possym.experiments`), or nothing where
    ``study`` is None and the claim is computed on the spot. It returns a `Measurement` whose verdict follows
    from ``criterion``, by `judge`. ``kind`` is one of `KINDS`; ``interval_kind``, one of `INTERVALS`, says what the
    measurement's interval is. ``changed`` says what the criterion was, if it was changed after its result was seen.
    """

    id: str
    paper: str
    kind: str
    where: str
    statement: str
    chapter: str
    paper_value: str
    criterion: str
    measure: Callable[..., Measurement]
    study: str | None = None
    interval_kind: str = NO_INTERVAL
    changed: str = ""


def claims_in(paper: str, chapter: str, study: str | None = None, kind: str = "") -> Callable[..., Claim]:
    """Return a function that makes the claims of one paper, or our own, in one chapter from what tells them apart.

    A claim of a paper is a replication, and one of ours a question of our own, unless another kind is given.

    >>> claim = claims_in("P1", "03-scoring-a-head")
    >>> claim("one", "section 3", "One is 1.", "1", "holds if it is", lambda: Measurement("1", "", judge(True))).chapter
    '03-scoring-a-head'
    """
    usual = kind or (OWN_QUESTION if paper == OWN else REPLICATION)

    def claim(
        id: str,
        where: str,
        statement: str,
        paper_value: str,
        criterion: str,
        measure: Callable[..., Measurement],
        interval_kind: str = NO_INTERVAL,
        *,
        kind: str = usual,
        study: str | None = study,
        changed: str = "",
    ) -> Claim:
        texts = dict(where=where, statement=statement, paper_value=paper_value, criterion=criterion, changed=changed)
        return Claim(
            id=id,
            paper=paper,
            chapter=chapter,
            kind=kind,
            study=study,
            measure=measure,
            interval_kind=interval_kind,
            **texts,
        )

    return claim


def judge(holds: bool, in_part: bool = False, *, undecided: bool = False) -> str:
    """Return the verdict of a criterion: met, met in part, or not; not shown where the interval holds both directions.

    >>> judge(False, in_part=True)
    'holds in part'
    >>> judge(False, in_part=True, undecided=True)
    'not shown'
    """
    return HOLDS if holds else NOT_SHOWN if undecided else IN_PART if in_part else FAILS


def judge_most(count: int, total: int) -> str:
    """Return the verdict on cases that should all agree; `MOST` says the rule in words.

    >>> [judge_most(count, 32) for count in (32, 25, 18, 16)]
    ['holds', 'holds in part', 'not shown', 'does not hold']
    """
    most = total > 0 and count > total / 2
    return judge(total > 0 and count == total, most, undecided=most and proportion(count, total).low <= 0.5)


def exact(value: float) -> Estimate:
    """Return a number that has no interval.

    >>> exact(0.5)
    Estimate(value=0.5, low=0.5, high=0.5, p_value=nan)
    """
    return Estimate(float(value), float(value), float(value))


def seed_range(values: pd.Series, middle: str = "median") -> Estimate:
    """Return the median or mean of values, one a seed, and their range.

    >>> seed_range(pd.Series([1, 2, 6]))
    Estimate(value=2.0, low=1.0, high=6.0, p_value=nan)
    """
    return Estimate(float(values.agg(middle)), float(values.min()), float(values.max()))


def proportion(count: int, total: int) -> Estimate:
    """Return a share of independent cases, its 95 % interval by Wilson and the p-value of its being one half.

    Of no cases, the share may be any from 0 to 1.

    >>> [round(end, 2) for end in proportion(8, 8)[:3]]
    [1.0, 0.68, 1.0]
    """
    if not total:
        return Estimate(float("nan"), 0.0, 1.0)
    test = scipy.stats.binomtest(int(count), int(total))
    found = test.proportion_ci(method="wilson")
    return Estimate(count / total, float(found.low), float(found.high), float(test.pvalue))


def percent_interval(*estimates: Estimate) -> str:
    """Return the intervals of shares in words.

    >>> percent_interval(proportion(8, 8))
    '68% to 100%'
    """
    return " and ".join(f"{estimate.low:.0%} to {estimate.high:.0%}" for estimate in estimates)


def not_testable(reason: str) -> Callable[..., Measurement]:
    """Return the measure of a claim that cannot be tested here, with the reason.

    >>> not_testable("needs the authors' machine")().verdict
    'not testable here'
    """
    return lambda: Measurement(reason, "", UNTESTABLE)
