"""Sizes beyond what memory holds are refused by name before anything of that size is made."""

import pandas as pd
import pytest

from possym import InputError, errors
from possym.capture.known_heads import repeated_tokens
from possym.profiling import statistics
from possym.profiling.monitor import HeadScoreCallback

HEADS = pd.DataFrame({"layer": range(8), "positional": 0.5, "symbolic": 0.1}).assign(
    positional=lambda t: t["layer"] / 8
)
CALLS = {
    "repeated tokens": (lambda size: repeated_tokens(size, 3, 10), "n"),
    "vocabulary": (lambda size: repeated_tokens(1, 3, size), "vocabulary"),
    "correlation": (lambda size: statistics.correlation(HEADS, draws=size), "draws"),
    "early and late": (lambda size: statistics.early_late(HEADS, "positional", draws=size), "draws"),
    "monitor": (lambda size: HeadScoreCallback([[3, 14, 15]], steps=range(size)), "the number of steps"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_size_that_no_memory_holds_is_refused_by_name(name):
    call, given = CALLS[name]
    with pytest.raises(InputError, match=rf"{given} = {2**40:,}\b.*: this asks for .* GB .* has .* GB: give"):
        call(2**40)


def test_a_range_of_steps_that_has_no_length_is_refused():
    with pytest.raises(InputError, match=r"steps = range\(0, 9223372036854775808\): give fewer"):
        HeadScoreCallback([[3, 14, 15]], steps=range(2**63))


def test_a_machine_that_does_not_say_its_memory_is_taken_to_have_enough(monkeypatch):
    monkeypatch.setattr(errors.os, "sysconf", lambda name: (_ for _ in ()).throw(ValueError(name)), raising=False)
    errors.need_room(2**30, length=2**30)
    with pytest.raises(InputError, match="give a smaller number"):
        errors.need_room(2**40, length=2**40)
