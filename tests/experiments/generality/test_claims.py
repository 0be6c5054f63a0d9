"""Verdicts follow the data: a study in which all carries over makes every claim hold, and each change flips its own."""

import pytest

from possym import claims
from possym.experiments.generality import claims as generality

from .synthetic import GENERAL, PAIRS, study


def rows(**changes):
    return claims.ledger(generality.CHAPTER, {"generality": study(**changes)})


@pytest.fixture(scope="module")
def carried_over():
    return rows()["verdict"].to_dict()


def test_a_study_in_which_all_carries_over_makes_every_claim_hold(carried_over):
    assert set(carried_over.values()) == {"holds"} and len(carried_over) == len(generality.CLAIMS) == 9


def kinds(setting, task, those, seed=None):
    changed = GENERAL["kinds"] | {(setting, task): those}
    return {"kinds": changed if seed is None else lambda s: changed if s == seed else GENERAL["kinds"]}


def final(value, *pairs):
    return {"final": GENERAL["final"] | dict.fromkeys(pairs, value)}


FLIPS = [
    ("general-heads", kinds("heads", "number", "SSSN"), "does not hold"),
    ("general-heads", kinds("heads", "letter", "PSSS", seed=1), "holds in part"),
    ("general-layers", kinds("layers", "letter", "NNNN"), "does not hold"),
    ("general-llama", {"kinds": GENERAL["kinds"] | {("llama", "number"): "NNNN", ("llama", "letter"): "PPPP"}},
     "does not hold"),
    ("general-llama", final(0.98, ("llama", "number")), "not testable here"),
    ("general-llama", final(0.98, ("llama", "letter")) | kinds("llama", "number", "SSSN"), "does not hold"),
    ("general-llama", final(0.98, ("llama", "letter")) | kinds("llama", "number", "SSSN", seed=1), "not testable here"),
    ("general-every-place", final(0.5, ("every-place", "letter")), "not testable here"),
    ("general-every-place", kinds("every-place", "number", "PPPP", seed=0), "holds in part"),
    ("general-shares", kinds("shares", "letter", "NNNN"), "does not hold"),
    ("general-mixed", kinds("mixed", "mixed", "SSSS", seed=2), "holds in part"),
    ("general-mixed", kinds("mixed", "mixed", "SSSS"), "does not hold"),
    ("general-mixed", final(0.3, ("mixed", "mixed")), "not testable here"),
    ("general-positional-first", kinds("heads", "number", "SSPP"), "holds in part"),
    ("general-positional-first", {"kinds": {pair: "SSPP" for pair in PAIRS}}, "does not hold"),
    ("general-positional-first", {"kinds": {pair: "SSSS" for pair in PAIRS}}, "not testable here"),
    ("general-success", {"turns": GENERAL["turns"] | {("heads", "letter"): 1000}}, "holds in part"),
    ("general-success", {"turns": dict.fromkeys(PAIRS, 1000)}, "does not hold"),
    ("general-success", final(0.6, *PAIRS), "not testable here"),
    ("general-short-paths-first",
     {"learnt": lambda s: GENERAL["learnt"] | ({(("shares", "number"), 2): 5000} if s == 0 else {})}, "holds in part"),
    ("general-short-paths-first", {"learnt": dict.fromkeys(GENERAL["learnt"], 3000)}, "does not hold"),
    ("general-short-paths-first", {"learnt": dict.fromkeys(GENERAL["learnt"], 10**9)}, "not testable here"),
]  # fmt: skip


def test_every_claim_has_a_flip():
    assert {name for name, _, _ in FLIPS} == {claim.id for claim in generality.CLAIMS}


@pytest.mark.parametrize(("name", "changes", "verdict"), FLIPS)
def test_each_change_flips_its_claim(name, changes, verdict, carried_over):
    assert carried_over[name] == "holds"
    assert rows(**changes).loc[name, "verdict"] == verdict


@pytest.mark.parametrize(("seeds", "verdict"), [(3, "not shown"), (8, "holds in part")])
def test_a_majority_that_chance_explains_shows_nothing(seeds, verdict):
    late = lambda s: GENERAL["learnt"] | ({(("shares", "number"), 2): 5000} if s == 0 else {})  # noqa: E731
    assert rows(seeds=seeds, learnt=late).loc["general-short-paths-first", "verdict"] == verdict
    mixed = kinds("mixed", "mixed", "SSSS", seed=1)
    assert rows(seeds=seeds, **mixed).loc["general-mixed", "verdict"] == verdict


def test_what_is_said_is_what_was_counted():
    one = kinds("heads", "number", "SSSN", seed=1)
    row = rows(seeds=3, **one).loc["general-heads"]
    assert row["measured"].split("; ")[:3] == [
        "number task: both kinds in 2 of 3 models",
        "letter task: symbolic ones alone in 3 of 3 models",
        "number: median 2 positional, 1 symbolic of 4 heads",
    ]
    assert (
        row["interval"]
        == "21\N{NO-BREAK SPACE}% to 94\N{NO-BREAK SPACE}% and 44\N{NO-BREAK SPACE}% to 100\N{NO-BREAK SPACE}%"
    )
    some = {"final": lambda seed: GENERAL["final"] | ({("heads", "number"): 0.5} if seed == 0 else {})}
    found = rows(seeds=3, **some)
    assert found.loc["general-heads", "measured"].startswith(
        "number task: both kinds in 2 of 2 models that learn it (of 3)"
    )
    assert found.loc["general-success", "measured"].startswith("in 32 of 32 models that learn; ")
    assert found.loc["general-success", "measured"].endswith("1 of 1 models that do not learn end with more pure heads")
    none = rows(seeds=3, **final(0.1, ("heads", "number"))).loc["general-heads", "measured"]
    assert none.startswith("number task: learnt by none of 3 models, so not testable; ")
