"""Verdicts on one-hop prompts follow the table and the replies, each way."""

import pandas as pd
import pytest

from possym import claims
from possym.experiments.one_hop import claims as subject
from possym.experiments.one_hop import protocol as onehop

from .synthetic import LENGTHS, study

CHAPTER = "14-one-hop-prompts"
GOOD = {("letter", n): 0.95 for n in LENGTHS} | {("number", n): 0.2 for n in LENGTHS}


def here(**changes):
    return subject.letters_ahead_here(study(**changes))


def table(change):
    """Table 3 with cells changed by ``change(kind, length, mean)``."""
    rows = onehop.table3()
    rows["mean"] = [change(row.kind, row.length, row.mean) for row in rows.itertuples()]
    return rows


def test_the_table_as_printed():
    found = claims.ledger(CHAPTER, {"one_hop": study()})
    assert found.loc["prompts-letters-ahead", ["measured", "interval", "verdict"]].tolist() == [
        "in 29 of 30 cells, not for GPT 5.4 at 12", "", "holds in part",
    ]  # fmt: skip
    assert found.loc["prompts-numbers-first", "measured"] == (
        "Claude Sonnet 3.7: numbers at 12, letters not by 300 items; GPT 5.4: numbers at 32, letters at 300 items; "
        "GPT 5.5: numbers at 24, letters not by 300 items"
    )
    assert found.loc["prompts-numbers-first", "verdict"] == found.loc["prompts-numbers-fall", "verdict"] == "holds"


@pytest.mark.parametrize(
    ("measure", "change", "verdict"),
    [
        ("letters_ahead", lambda kind, length, mean: 0.9 if kind == "letter" else 0.1, "holds"),
        ("letters_ahead", lambda kind, length, mean: 0.5, "does not hold"),
        ("numbers_first", lambda kind, length, mean: 0.4, "does not hold"),
        ("numbers_first", lambda kind, length, mean: 0.4 if kind == "letter" else 0.9, "does not hold"),
        ("numbers_fall", lambda kind, length, mean: 0.5, "does not hold"),
        ("numbers_fall", lambda kind, length, mean: mean + 0.045 * (length == 300), "holds in part"),
    ],
)
def test_another_table_has_another_verdict(monkeypatch, measure, change, verdict):
    changed = table(change)
    monkeypatch.setattr(subject, "table3", lambda: changed)
    assert getattr(subject, measure)().verdict == verdict


def test_a_model_that_fails_a_screen_speaks_neither_for_nor_against():
    for changes in ({"right": {("letter", 16): 0.5}}, {"right": GOOD, "talks": 0.08}):
        found = here(**changes)
        assert found.verdict == "not testable here" and "made-up fails the screens" in found.measured
    assert "chat: 50% of letters at 16, 100% of replies one item" in here(right={("letter", 16): 0.5}).measured


def test_a_model_that_passes_is_judged():
    assert here(right=GOOD).verdict == "holds"
    assert here(right=GOOD | {("number", 12): 0.94}).verdict == "holds in part"
    assert here(right=GOOD | {("number", 12): 0.94, ("number", 100): 0.94}).verdict == "does not hold"
    assert here(right=GOOD | {("letter", 100): 0.01}).verdict == "does not hold"


def test_the_chapter_s_table_names_every_claim():
    shown = claims.what_holds(CHAPTER, {"one_hop": study()})
    assert isinstance(shown.frame, pd.DataFrame) and len(shown.frame) == len(subject.CLAIMS)
