"""Verdicts follow the data: a study as the paper says makes every claim hold, and each change flips its own."""

import pandas as pd
import pytest

from possym import claims
from possym.experiments.canonical import claims as canonical

from .synthetic import BENT, LEARNT, PAPER_LIKE, study


def verdicts(**changes):
    return claims.ledger(canonical.CHAPTER, {"canonical": study(**changes)})["verdict"].to_dict()


@pytest.fixture(scope="module")
def as_published():
    return verdicts()


def test_a_study_as_published_makes_every_claim_hold(as_published):
    # There IDs 10 to 16, of the faster half, learn Retrieval too.
    assert as_published == {claim.id: "holds" for claim in canonical.CLAIMS} | {
        "canonical-retrieval-slow": "holds in part"
    }


SLOW = [*LEARNT["retrieval"]]
FLIPS = {
    "canonical-index-fast": ({"learnt": LEARNT | {"index": [2, 3, 4, 5]}}, "holds in part"),
    "canonical-retrieval-slow": ({"learnt": LEARNT | {"retrieval": [20, 24, 32, 0]}}, "holds"),
    "canonical-tension": ({"learnt": LEARNT | {"retrieval": [7, *SLOW]}}, "holds in part"),
    "canonical-partial-one-angle": ({"many_learnt": {"partial-induction": [12]}}, "holds in part"),
    "canonical-partial-two-angles": ({"pairs": {(0, 7): 0.85, (0, 1): 0.3}}, "holds in part"),
    "canonical-moderate-angle": ({"pairs": {(0, 1): 0.97}}, "does not hold"),
    "canonical-index-u": ({"bent": BENT | {"index": ([8, 9, 10], -0.2)}}, "does not hold"),
    "canonical-retrieval-inverse-u": ({"bent": BENT | {"retrieval": ([7, 8, 9], 0.0)}}, "does not hold"),
    "canonical-index-positional": ({"kind": PAPER_LIKE["kind"] | {"index": (0.8, 0.3)}}, "holds in part"),
    "canonical-retrieval-symbolic": ({"kind": PAPER_LIKE["kind"] | {"retrieval": (0.9, 0.1)}}, "does not hold"),
    "canonical-plane": ({"plane": (1.0, 0.0, 1.0)}, "does not hold"),
}  # fmt: skip


def test_every_claim_has_a_flip():
    assert set(FLIPS) == {claim.id for claim in canonical.CLAIMS}


@pytest.mark.parametrize("name", FLIPS)
def test_each_change_flips_its_own_claim(name, as_published):
    changes, expected = FLIPS[name]
    found = verdicts(**changes)
    assert found[name] == expected
    changed = {key for key in found if found[key] != as_published[key]}
    # Angles that become learnt, or cease to be, bear on the other claims about learning.
    related = {"canonical-tension", "canonical-retrieval-slow"} if "learnt" in changes else set()
    assert changed <= {name} | related


def test_fixed_maps_are_told_and_not_judged(as_published):
    changed = study(fixed_learnt={"retrieval": [1, 2, 7]})
    rows = claims.ledger(canonical.CHAPTER, {"canonical": changed})
    assert rows["verdict"].to_dict() == as_published
    assert "with fixed maps IDs 1 to 2, 7, 10 to NoPE" in rows.loc["canonical-retrieval-slow", "measured"]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("canonical-index-fast", {"learnt": LEARNT | {"index": [16, 20]}}),
        ("canonical-index-fast", {"learnt": LEARNT | {"index": []}}),
        ("canonical-retrieval-slow", {"learnt": LEARNT | {"retrieval": [1, 2]}}),
        ("canonical-retrieval-slow", {"learnt": LEARNT | {"retrieval": []}}),
        ("canonical-tension", {"learnt": LEARNT | {"index": []}}),
        ("canonical-tension", {"learnt": LEARNT | {"retrieval": [*LEARNT["index"], *SLOW]}}),
        ("canonical-partial-one-angle", {"learnt": LEARNT | {"partial-induction": [12]}}),
        ("canonical-partial-two-angles", {"pairs": {}}),
        ("canonical-index-positional", {"kind": PAPER_LIKE["kind"] | {"index": (0.1, 0.9)}}),
        ("canonical-plane", {"plane": (0.0, 0.0, -1.0)}),
    ],
)
def test_what_the_paper_does_not_say_does_not_hold(name, changes):
    assert verdicts(**changes)[name] == "does not hold"


def test_both_rows_on_one_angle_ask_for_a_run_and_for_its_half_of_the_grid():
    found = verdicts(learnt=LEARNT | {"index": [*LEARNT["index"], 8, 9, 10, 11, 12, 16, 20], "retrieval": [20, 32, 0]})
    assert found["canonical-index-fast"] == "does not hold"
    assert found["canonical-retrieval-slow"] == "holds in part"  # ID 24 is a gap
    rows = claims.ledger(canonical.CHAPTER, {"canonical": study()})
    assert "; 4 of these 8 lie in the faster half of the grid; " in rows.loc["canonical-retrieval-slow", "measured"]


def test_queries_that_lie_as_built_hold_in_part_unless_they_spread(monkeypatch):
    rows = pd.DataFrame({"seed": range(8), "head": 0, "keys": 1.0, "queries": 0.58, "turned": 0.95})
    made = study()
    best = made.manifest["traced_ids"]
    found = {}
    for built, queries in ((0.65, 0.58), (0.65, 0.5), (0.65, 0.9)):
        heads = pd.concat([rows.assign(head=i, queries=queries, construction=built) for i in range(len(best))])
        monkeypatch.setattr(canonical.sweep, "gathering", lambda *_, heads=heads: heads)
        found[queries] = canonical.plane(made).verdict
    assert found == {0.58: "holds in part", 0.5: "holds", 0.9: "does not hold"}
