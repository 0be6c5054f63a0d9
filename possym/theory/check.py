"""What a check of a statement is, and the registry of all checks.

A check is a function named after its statement; `statements_p1` and `statements_p2` hold them, `audit` runs them. It
looks for counterexamples to the statement as printed and, where it finds one, to the statement with a repaired
condition.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

HOLDS = "holds"
REPAIRED = "holds with a condition the paper leaves out"
FAILS = "fails"


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


@dataclass(frozen=True)
class Check:
    """A statement and the function that looks for its counterexamples; calling it gives the verdict.

    ``function`` returns (printed, repaired, counterexample). ``printed``: no counterexample to the statement as
    printed was found; ``repaired``: none with the condition under ``conditions``, and under it the statement still
    says something; ``counterexample``: the one found to the printed statement, or "none", and what bounds its use.
    """

    name: str
    paper: str
    where: str
    statement: str
    conditions: str
    method: str
    range: str
    function: Callable[[], tuple[bool, bool, str]]

    def __call__(self) -> Verdict:
        """Run the check."""
        printed, repaired, counterexample = self.function()
        verdict = HOLDS if printed else REPAIRED if repaired else FAILS
        said = (self.name, self.paper, self.where, self.statement, self.conditions, self.method, self.range)
        return Verdict(*said, verdict, counterexample)


CHECKS: dict[str, Check] = {}


def check(*said: str) -> Callable[[Callable[[], tuple[bool, bool, str]]], Check]:
    """Register a function as the `Check` of its name, given paper, where, statement, conditions, method and range."""

    def register(function: Callable[[], tuple[bool, bool, str]]) -> Check:
        CHECKS[function.__name__] = Check(function.__name__, *said, function)
        return CHECKS[function.__name__]

    return register


def sequences(tokens: int, length: int) -> Tensor:
    """Return every sequence of a length over token ids 0 … tokens − 1, (tokens^length, length) int64.

    >>> sequences(2, 2)
    tensor([[0, 0],
            [0, 1],
            [1, 0],
            [1, 1]])
    """
    return torch.cartesian_prod(*[torch.arange(tokens)] * length).view(-1, length)
