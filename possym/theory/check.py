"""The class of a check of one statement, and the registry of all checks.

A check is a function named after its statement; `statements_p1` and `statements_p2` hold them, `audit` runs them. It
looks for counterexamples to the statement as printed and, where it finds one, to the statement with a repaired
condition. Verdicts and counterexamples are always computed, never written down beforehand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

HOLDS = "holds"
REPAIRED = "holds with a condition the paper leaves out"
FAILS = "fails"
NONE = "none"


@dataclass(frozen=True)
class Verdict:
    """One row of the audit."""

    name: str
    paper: str
    where: str
    statement: str
    conditions: str
    method: str
    range: str
    verdict: str
    counterexample: str
    violation: str


class Found(NamedTuple):
    """The findings of one check.

    Attributes:
        printed: no counterexample to the statement as printed was found.
        repaired: none was found with the condition added, and under it the statement still says something.
        counterexample: the one found to the printed statement, else what was seen that bounds its use.
        violation: by how much, or how often, the printed statement fails where it does.
    """

    printed: bool
    repaired: bool
    counterexample: str = ""
    violation: str = ""


@dataclass(frozen=True)
class Check:
    """A statement and the function that looks for its counterexamples; calling it gives the verdict."""

    name: str
    paper: str
    where: str
    statement: str
    conditions: str
    method: str
    range: str
    function: Callable[[], Found]

    def __call__(self) -> Verdict:
        """Run the check."""
        found = self.function()
        verdict = HOLDS if found.printed else REPAIRED if found.repaired else FAILS
        said = (self.name, self.paper, self.where, self.statement, self.conditions, self.method, self.range)
        example = found.counterexample
        if found.printed:
            example = f"{NONE}; {example}" if example else NONE
        return Verdict(*said, verdict, example, NONE if found.printed else found.violation)


CHECKS: dict[str, Check] = {}


def check(*said: str) -> Callable[[Callable[[], Found]], Check]:
    """Register a function as the `Check` of its name, given paper, where, statement, conditions, method and range."""

    def register(function: Callable[[], Found]) -> Check:
        CHECKS[function.__name__] = Check(function.__name__, *said, function)  # type: ignore[call-arg, arg-type]
        return CHECKS[function.__name__]

    return register


def spell(tokens: list[int], words: list[str]) -> str:
    """Return a sequence of token ids in words.

    >>> spell([0, 2], ["a1", "a2", "a?"])
    'a1 a?'
    """
    return " ".join(words[token] for token in tokens)
