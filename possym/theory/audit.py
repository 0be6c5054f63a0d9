"""The theory audit: every theorem, lemma and remark with a verdict that a check computes."""

from possym.theory import statements_p1, statements_p2  # noqa: F401  (importing registers the checks)
from possym.theory.check import CHECKS, Verdict


def audit() -> list[Verdict]:
    """Run every check and return the verdicts in the order of the papers; about ten seconds on one core.

    >>> from possym.theory.statements_p1 import p1_theorem_5
    >>> p1_theorem_5().verdict
    'holds'
    """
    return [run() for run in CHECKS.values()]
