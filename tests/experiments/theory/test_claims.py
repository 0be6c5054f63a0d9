"""The claims of theory follow the study's tables: a changed table changes the verdict."""

import pandas as pd
import pytest

from possym import claims
from possym.experiments.theory import claims as theory
from possym.results import Study
from possym.theory.check import CHECKS, FAILS, HOLDS, REPAIRED


def study(**tables):
    return Study({name: pd.DataFrame(rows) for name, rows in tables.items()})


def audit(verdict):
    row = {"verdict": verdict, "counterexample": "this", "range": "n ≤ 3", "violation": "by 2"}
    return study(audit=[row | {"name": name} for name in CHECKS])


@pytest.mark.parametrize(
    ("verdict", "expected"), [(HOLDS, "holds"), (REPAIRED, "holds in part"), (FAILS, "does not hold")]
)
def test_a_statement_has_the_audits_verdict(verdict, expected):
    for check in CHECKS.values():
        found = theory.verdict(check, audit(verdict))
        # Where the condition takes the place of the statement's own, nothing is left of it to hold.
        own = "does not hold" if verdict == REPAIRED and check.name in theory.NOT_REPAIRED else expected
        assert found.verdict == own and found.measured == "counterexample: this (by 2)" and found.interval == "n ≤ 3"


def test_every_statement_is_a_claim_of_one_of_the_two_chapters():
    ids = {claim.id: claim for claim in theory.CLAIMS}
    assert len(ids) == len(theory.CLAIMS) == len(CHECKS) + 3
    for name, check in CHECKS.items():
        claim = ids[name.replace("_", "-")]
        assert claim.statement == check.statement and claim.measure(audit(FAILS)).verdict == "does not hold"
    ours = ids["p2-theorem-3-1-floating-point"]
    assert (ours.paper, ours.kind, ours.paper_value) == ("own", "own question", "not studied")
    assert ids["p2-theorem-3-2-gap"].kind == "own question" and ids["p2-theorem-3-1-index"].changed
    assert {ids[name.replace("_", "-")].kind for name in CHECKS if name not in theory.OURS} == {"theorem"}
    assert {claim.chapter for claim in theory.CLAIMS} == {theory.EXCLUSION, theory.GEOMETRY}


def test_tightness_is_judged_by_the_largest_ratio():
    rows = [{"head": head, "n": 64, "ratio": 0.5} for head in ("random RoPE head", "positional")]
    assert theory.tight(study(tightness=rows)).verdict == "holds"
    assert theory.tight(study(tightness=[*rows, {"head": "other", "n": 2, "ratio": 1.001}])).verdict == "does not hold"


@pytest.mark.parametrize(
    ("margin", "integer", "expected"),
    [
        (0.1, 0.1, "holds"),
        (0.1, 1e-6, "holds in part"),
        (0.1, 1e-4, "holds in part"),
        (1e-5, 0.1, "does not hold"),
        (1e-4, 0.1, "does not hold"),
    ],
)
def test_figure_5a_is_judged_by_the_smallest_gaps(margin, integer, expected):
    index = [{"theta": 0.8, "n": 100, "smallest": 1e-4}]
    row = {"theta": 0.0027, "alphabet": 8, "n": 100, "margin": margin, "integer_margin": integer}
    assert theory.retrieval_keeps_its_gap(study(index=index, retrieval=[row])).verdict == expected


def test_compositions_are_judged_where_there_is_a_layer_a_hop():
    rows = [{"hops": 2, "layers": layers, "sequences": 5, "correct": 5 * (layers > 1)} for layers in (1, 2, 3)]
    assert theory.composed(study(composition=rows)).verdict == "holds"
    rows[2]["correct"] = 4
    assert theory.composed(study(composition=rows)).verdict == "does not hold"


def test_the_ledger_takes_them():
    ratios = [{"head": head, "n": 64, "ratio": 0.5} for head in ("random RoPE head", "positional")]
    whole = Study(audit(HOLDS).tables | study(tightness=ratios).tables)
    rows = claims.ledger(theory.EXCLUSION, {"theory": whole})
    assert list(rows.index) == ["p1-theorem-1", "exclusion-tightness"]
    assert (rows["verdict"] == "holds").all()
