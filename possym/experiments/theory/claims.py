"""Claims of theory: the verdicts of the audit, and what the exact curves say about figure 5A."""

from possym.experiments.claim import (
    EXACT,
    EXTENT,
    OWN,
    OWN_CODE,
    OWN_QUESTION,
    THEOREM,
    Claim,
    Measurement,
    claims_in,
    judge,
    not_testable,
)
from possym.results import Study
from possym.theory import audit  # noqa: F401  (importing registers the checks)
from possym.theory.check import CHECKS, HOLDS, NONE, REPAIRED, Check

EXCLUSION, GEOMETRY = "02-exclusion-principle", "04-rope-geometry"
OURS = ("p2_theorem_3_1_floating_point", "p2_theorem_3_2_gap")
# Repaired only by a condition that takes the place of the statement's own, so that nothing of the statement is left.
NOT_REPAIRED = ("p2_theorem_3_2_gap",)
CHANGED = {
    "p2_theorem_3_1_index": "the criterion is as it was; “at every length” was added to the statement after its result "
    "was seen",
    "p2_theorem_3_2_gap": "it held in part, since the answers are right under another condition than that of the "
    "statement; and it counted as a theorem of the paper, though the sentence is this book's reading of what the "
    "bound is used for",
}
PAPERS = {"2511.11579": "P1", "2605.31558": "P2"}


def verdict(check: Check, study: Study) -> Measurement:
    """Return the audit's verdict on one statement."""
    rows = study.tables["audit"].query("name == @check.name").to_dict("records")
    if not rows:
        return not_testable("the stored audit is older than this check: run the theory study")()
    row = rows[0]
    found = judge(row["verdict"] == HOLDS, row["verdict"] == REPAIRED and check.name not in NOT_REPAIRED)
    violation = row.get("violation", NONE)
    size = f" ({violation})" if violation != NONE else ""
    return Measurement(f"counterexample: {row['counterexample']}{size}", row["range"], found)


def audited(check: Check) -> Claim:
    """Return a statement of the audit as a claim; what no paper states is a question of ours."""
    ours = check.name in OURS
    criterion = (
        "holds if a search finds no counterexample. What it says of the gap is true under another condition: "
        f"{check.conditions}"
        if check.name in NOT_REPAIRED
        else "holds if a search finds no counterexample; in part if an added condition removes all counterexamples and "
        f"leaves the statement something to say. Condition: {check.conditions}"
    )
    return Claim(
        id=check.name.replace("_", "-"),
        paper=OWN if ours else PAPERS[check.paper],
        where=f"after {check.paper}, {check.where}" if ours else check.where,
        chapter=EXCLUSION if check.name == "p1_theorem_1" else GEOMETRY,
        statement=check.statement,
        kind=OWN_QUESTION if ours else THEOREM,
        interval_kind=EXTENT,
        paper_value="not studied" if ours else "stated",
        criterion=f"{criterion}. Checked by: {check.method}",
        measure=lambda study: verdict(check, study),
        study="theory",
        changed=CHANGED.get(check.name, ""),
    )


def tight(study: Study) -> Measurement:
    """Measure how much of the exclusion bound heads use."""
    largest = study.tables["tightness"].groupby("head")["ratio"].max()
    random = study.tables["tightness"].query("head == 'random RoPE head' and n == 64")["ratio"].median()
    return Measurement(
        f"variance/bound at most {largest.max():.3f}, {largest['positional']:.3f} for pure heads, median {random:.2f} "
        "for random heads of 64 keys",
        f"{len(study.tables['tightness']):,} heads, 2 to 64 keys",
        judge(largest.max() <= 1 + 1e-9),
    )


def retrieval_keeps_its_gap(study: Study) -> Measurement:
    """Measure the two smallest gaps at length 100 with the angles of figure 5A."""
    index = study.tables["index"].query("theta == 0.8 and n <= 100").iloc[-1]
    retrieval = study.tables["retrieval"].query("theta == 0.0027 and alphabet == 8 and n <= 100").iloc[-1]
    return Measurement(
        f"gap at n = {retrieval['n']:.0f}, worst input: Retrieval {retrieval['margin']:.4f}, Index "
        f"{index['smallest']:.5f}; but Retrieval, of a query that keeps itself, {retrieval['integer_margin']:.1e}",
        "exact, all inputs",
        judge(
            min(retrieval["margin"], retrieval["integer_margin"]) > index["smallest"],
            in_part=retrieval["margin"] > index["smallest"],
        ),
    )


def composed(study: Study) -> Measurement:
    """Measure the share of task sequences that stacks with a layer for each hop answer."""
    table = study.tables["composition"].query("layers >= hops")
    right, all_of_them = int(table["correct"].sum()), int(table["sequences"].sum())
    return Measurement(
        f"{right:,} of {all_of_them:,} right",
        "1 to 4 hops, up to 6 layers, hard attention",
        judge(right == all_of_them),
    )


excluded = claims_in("P1", EXCLUSION, "theory")
geometry = claims_in("P2", GEOMETRY, "theory")

CLAIMS = (
    *(audited(check) for check in CHECKS.values()),
    excluded(
        "exclusion-tightness",
        "Theorem 1",
        "The bound holds for heads of every kind, pure, mixed and random.",
        "variance/bound ≤ 1",
        "holds if no head's variance exceeds its bound",
        tight,
        EXTENT,
        kind=OWN_CODE,
    ),
    geometry(
        "figure-5a",
        "Fig. 5A",
        "With θ = 0.8 for Index and θ = 0.0027 for Retrieval, Retrieval keeps the larger gap at length 100.",
        "larger bound",
        "the figure compares bounds from above, which cannot show that a gap is kept, so exact gaps are "
        "compared. Holds if the smallest gap over all inputs is larger, in part if only over letter–letter queries",
        retrieval_keeps_its_gap,
        EXACT,
    ),
    geometry(
        "constructions-solve-the-tasks",
        "Theorem 3.1, appendix F",
        "Composed over layers, T_Index and T_Retrieval solve the two tasks for every hop count.",
        "all sequences",
        "holds if stacks with at least one layer per hop answer every drawn sequence",
        composed,
        EXTENT,
        kind=OWN_CODE,
    ),
)
