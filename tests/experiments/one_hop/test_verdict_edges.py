"""Where verdicts on one-hop prompts change, just on each side of every threshold."""

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART
from possym.experiments.one_hop import claims

from .synthetic import study
from .test_claims import GOOD, table


@pytest.mark.parametrize(("behind", "verdict"), [(0, HOLDS), (1, IN_PART), (3, IN_PART), (4, FAILS)])
def test_letters_are_ahead_in_nine_of_ten_cells_and_a_tie_is_not_ahead(behind, verdict, monkeypatch):
    rows = table(lambda kind, length, mean: 0.6 if kind == "letter" else 0.5).sort_values(["kind", "model", "length"])
    rows.loc[rows.index[rows["kind"] == "letter"][:behind], "mean"] = 0.5
    monkeypatch.setattr(claims, "table3", lambda: rows)
    assert claims.letters_ahead().verdict == verdict
    assert claims.letters_ahead().measured.startswith(f"in {30 - behind} of 30 cells")


@pytest.mark.parametrize(
    ("number", "letter", "verdict"),
    [(300, None, HOLDS), (None, 300, FAILS), (300, 300, FAILS), (None, None, FAILS), (200, 300, HOLDS)],
)
def test_a_kind_that_never_falls_comes_after_the_longest_prompt(number, letter, verdict, monkeypatch):
    lost = {"number": number, "letter": letter}
    rows = table(lambda kind, length, mean: 0.4 if lost[kind] and length >= lost[kind] else 0.5)
    monkeypatch.setattr(claims, "table3", lambda: rows)
    assert claims.numbers_first().verdict == verdict


@pytest.mark.parametrize(("end", "verdict"), [(0.1, HOLDS), (0.101, FAILS)])
def test_hardly_any_is_a_tenth(end, verdict, monkeypatch):
    rows = table(lambda kind, length, mean: end if length == 300 else 0.9)
    monkeypatch.setattr(claims, "table3", lambda: rows)
    assert claims.numbers_fall().verdict == verdict


APART, TOUCHING, BELOW, BARELY = ((0.6, 0.9), (0.1, 0.5)), ((0.5, 0.9), (0.1, 0.5)), ((0.1, 0.2), (0.3, 0.4)), (
    (0.1, 0.3), (0.3, 0.4),
)  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "verdict"),
    [
        ([APART] * 4, HOLDS),
        ([TOUCHING] * 4, FAILS),
        ([APART] * 2 + [TOUCHING] * 2, IN_PART),
        ([APART] + [TOUCHING] * 3, FAILS),
        ([APART] * 3 + [BARELY], IN_PART),
        ([APART] * 3 + [BELOW], FAILS),
    ],
)
def test_intervals_must_be_apart_and_never_the_other_way(lengths, verdict, monkeypatch):
    rows = [
        (kind, length, *ends)
        for length, pair in enumerate(lengths)
        for kind, ends in zip(("letter", "number"), pair, strict=True)
    ]
    made = pd.DataFrame(rows, columns=["kind", "length", "low", "high"])
    monkeypatch.setattr(claims, "accuracy", lambda _: made)
    found = claims.letters_ahead_here(study(right=GOOD, forms=("chat",)))
    assert found.verdict == verdict
    assert found.measured.endswith(f"at {lengths.count(APART)} of 4 lengths")
