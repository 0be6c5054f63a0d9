"""The values that the papers publish, each with its source, from ``possym/data/published.json``."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from possym.errors import InputError, require_type


class Published(NamedTuple):
    """One published value: the paper (``"P1"`` to ``"P3"``), where in it, how it was read, its unit and the value."""

    paper: str
    where: str
    reading: str
    unit: str
    value: Any

    @property
    def approximate(self) -> bool:
        """Whether the value was read off a plot rather than printed."""
        return self.reading == "read off a plot"


def published(key: str) -> Published:
    """Return the published value called ``key``, such as ``"P2.table1.number"``.

    Raises:
        InputError: no value has this name; the message lists the known ones.

    >>> published("P2.table1.letter").value[:3]
    [18, 32, 42]
    >>> published("P2.fig2.number.best_step").approximate
    True
    """
    require_type(key, str, "key")
    known = read()["values"]
    if key not in known:
        raise InputError(f"published value {key!r}: not in the data file, known are {', '.join(sorted(known))}")
    return Published(**known[key])


def papers() -> dict[str, dict[str, str]]:
    """Return title, arXiv number and citation key of the papers: the two that the book re-runs, and a third (``P3``).

    >>> papers()["P1"]["arxiv"]
    '2511.11579'
    """
    return read()["papers"]


@cache
def read() -> dict:
    """Return the whole data file."""
    return json.loads(files("possym").joinpath("data/published.json").read_text(encoding="utf-8"))
