"""Claims on the canonical tasks and the frequency knob, measured on the sweep.

Learnt means a mean accuracy over seeds of at least `LEARNT`. Where a claim names no number of planes, heads have many
planes per angle. Verdicts are on heads with learnt maps, at the shorter length; fixed maps are told beside them.
"""

import pandas as pd

from possym.experiments.canonical import GRID, TASKS, angle
from possym.experiments.canonical import summaries as sweep
from possym.experiments.canonical.summaries import LEARNT
from possym.experiments.claim import (
    ANGLE_RANGE,
    CONFIDENCE,
    SEED_RANGE,
    Measurement,
    claims_in,
    judge,
    proportion,
    seed_range,
)
from possym.profiling.statistics import Estimate
from possym.results import Study
from possym.tasks import IndexTask

CHAPTER = "05-canonical-tasks"
STUDY = "canonical"
HALF = GRID // 2
INDEX, RETRIEVAL, PARTIAL = TASKS


def many(study: Study) -> int:
    """Return the larger number of planes of the sweep's one-angle heads."""
    return int(sweep.heads(study.tables["accuracy"], piece="one-angle")["planes"].max())


def one_angle(study: Study, task: str, planes: int | None = None) -> pd.DataFrame:
    """Return final accuracy by angle with learnt maps."""
    return sweep.by_angle(study.tables["accuracy"], piece="one-angle", task=task, planes=planes or many(study))


def words(row: pd.Series) -> str:
    """Return mean and interval of an accuracy in words."""
    return f"{row['mean']:.1%}, 95 % interval {row['low']:.1%} to {row['high']:.1%}"


def estimate(row: pd.Series) -> Estimate:
    """Return mean and interval of an accuracy as numbers."""
    return Estimate(row["mean"], row["low"], row["high"])


def name(frequency_id: int) -> str:
    """Return a frequency ID in words."""
    return f"ID {frequency_id}" if frequency_id else "NoPE"


def learnt_words(study: Study, task: str, more: str) -> str:
    """Return which angles are learnt with learnt maps, more about these, and which with fixed ones, in words."""
    learnt, fixed = (
        sweep.learnt_words(study.tables["accuracy"], piece=piece, task=task, planes=many(study))
        for piece in ("one-angle", "fixed-maps")
    )
    return f"learnt with {learnt}; {more}; with fixed maps {fixed}"


def index_fast(study: Study) -> Measurement:
    """Measure which angles learn Index."""
    table = one_angle(study, INDEX)
    learnt = table["mean"] >= LEARNT
    ids = table.loc[learnt, "first_id"].tolist()
    slow = sum(sweep.slowness(i) > HALF for i in ids)
    from_fastest = bool(ids) and learnt.tolist() == sorted(learnt, reverse=True)
    best = words(table.loc[table["mean"].idxmax()])
    return Measurement(
        learnt_words(
            study, INDEX, f"{slow} of these {len(ids)} lie in the slower half of the grid; best accuracy {best}"
        ),
        "",
        judge(from_fastest and not slow, bool(ids) and not slow),
        (estimate(table.loc[table["mean"].idxmax()]),),
    )


def retrieval_slow(study: Study) -> Measurement:
    """Measure which angles learn Retrieval."""
    table = one_angle(study, RETRIEVAL)
    learnt = table["mean"] >= LEARNT
    ids = table.loc[learnt, "first_id"].tolist()
    fast = sum(sweep.slowness(i) <= HALF for i in ids)
    to_slowest = bool(ids) and learnt.tolist() == sorted(learnt)
    slow = bool(ids) and not any(0 < i <= GRID // 4 for i in ids)
    best = words(table.loc[table["mean"].idxmax()])
    return Measurement(
        learnt_words(
            study, RETRIEVAL, f"{fast} of these {len(ids)} lie in the faster half of the grid; best accuracy {best}"
        ),
        "",
        judge(to_slowest and not fast, slow),
        (estimate(table.loc[table["mean"].idxmax()]),),
    )


def tension(study: Study) -> Measurement:
    """Measure the best that one angle does on the worse of Index and Retrieval."""
    both = one_angle(study, INDEX).merge(one_angle(study, RETRIEVAL), on="first_id", suffixes=("_index", "_retrieval"))
    both["worse"] = both[["mean_index", "mean_retrieval"]].min(axis=1)
    row = both.loc[both["worse"].idxmax()]
    shared = int((both["worse"] >= LEARNT).sum())
    each = bool((both[["mean_index", "mean_retrieval"]].max() >= LEARNT).all())
    both["mean"] = both["worse"]
    measured = (
        f"{shared} angles learn both; best is {sweep.best_words(both)}, with Index {row['mean_index']:.1%} and "
        f"Retrieval {row['mean_retrieval']:.1%}"
    )
    ends = tuple(
        Estimate(*(row[f"{end}_{task}"] for end in ("mean", "low", "high"))) for task in ("index", "retrieval")
    )
    return Measurement(measured, "", judge(each and shared == 0, each and shared <= len(both) / 8), ends)


def not_with_one_angle(study: Study) -> Measurement:
    """Measure how well one angle does on Partial induction, with one plane and with many."""
    one, more = one_angle(study, PARTIAL, 1), one_angle(study, PARTIAL)
    best = [table.loc[table["mean"].idxmax()] for table in (one, more)]
    verdict = judge(best[1]["mean"] < LEARNT and best[0]["mean"] < LEARNT, best[0]["mean"] < LEARNT)
    one_words, many_words = (f"{table['mean'].max():.1%} ({sweep.best_words(table)})" for table in (one, more))
    measured = f"best with one plane {one_words}, with {many(study)} planes {many_words}"
    interval = "95 % intervals " + " and ".join(f"{row['low']:.1%} to {row['high']:.1%}" for row in best)
    return Measurement(measured, interval, verdict, tuple(estimate(row) for row in best))


def pairs_with_nope(study: Study) -> pd.DataFrame:
    """Return final accuracy of Partial induction with NoPE and a second angle, many planes each, fastest first."""
    table = sweep.heads(study.tables["accuracy"], piece="two-angles", first_id=0, planes=many(study))
    found = sweep.over_seeds(sweep.ends(table), ["second_id"])
    return found[found["second_id"] > 0].sort_values("second_id").reset_index(drop=True)


def with_two_angles(study: Study) -> Measurement:
    """Measure the best pair of NoPE and a second angle on Partial induction."""
    table = pairs_with_nope(study)
    row = table.loc[table["mean"].idxmax()]
    return Measurement(
        f"best second angle is {sweep.best_words(table, 'second_id')}",
        f"accuracy {words(row)}",
        judge(row["low"] >= LEARNT, row["mean"] >= LEARNT - 0.1),
        (estimate(row),),
    )


def moderate_second_angle(study: Study) -> Measurement:
    """Measure whether the fastest second angle does worse than the best."""
    table = pairs_with_nope(study)
    best, fastest = table.loc[table["mean"].idxmax()], table.iloc[0]
    return Measurement(
        f"{name(int(fastest['second_id']))} reaches {fastest['mean']:.1%}, "
        f"{name(int(best['second_id']))} {best['mean']:.1%}",
        f"95 % intervals {fastest['low']:.1%} to {fastest['high']:.1%} and {best['low']:.1%} to {best['high']:.1%}",
        judge(fastest["high"] < best["low"], fastest["mean"] < best["mean"]),
        (estimate(fastest), estimate(best)),
    )


def shape(task: str, wanted: str):
    """Measure the shape of accuracy over the answer's position at the angles that do not suit a task."""

    def measure(study: Study) -> Measurement:
        counted, total, bends = 0, 0, []
        for planes in (1, many(study)):
            found = sweep.mismatched(study.tables["by_place"], piece="one-angle", task=task, planes=planes)
            counted, total = counted + int((found["shape"] == wanted).sum()), total + len(found)
            bends += found["bend"].tolist()
        measured = (
            f"{wanted} at {counted} of {total} mismatched angles, one-plane and {many(study)}-plane heads together"
        )
        interval = f"bends {min(bends):+.2f} to {max(bends):+.2f}" if bends else ""
        verdict = judge(total > 0 and counted == total, counted > total / 2)
        return Measurement(measured, interval, verdict, (proportion(counted, total),))

    return measure


def behaviour(task: str, kind: str):
    """Measure the scores of heads that have learnt a task."""
    other = {"positional": "symbolic", "symbolic": "positional"}[kind]

    def measure(study: Study) -> Measurement:
        wanted = {"piece": "one-angle", "task": task, "planes": many(study)}
        table = sweep.heads(study.tables["scores"], **wanted)
        table = table[table["first_id"].isin(sweep.learnt_ids(study.tables["accuracy"], **wanted))]
        table = table[table["temperature"] == table["temperature"].min()]
        if table.empty:
            return Measurement("no angle learns the task", "", judge(False))
        means = table.groupby("first_id")[[kind, other]].mean()
        pure = (means[kind] >= 0.9) & (means[other] <= 0.1)
        return Measurement(
            f"{int(pure.sum())} of {len(means)} learnt angles are pure {kind}; mean {kind} "
            f"{means[kind].mean():.2f}, {other} {means[other].mean():.2f}",
            f"{kind} {means[kind].min():.2f} to {means[kind].max():.2f} over them",
            judge(bool(pure.all()), bool((means[kind] > means[other]).all())),
            (seed_range(means[kind], "mean"), seed_range(means[other], "mean")),
        )

    return measure


def plane(study: Study) -> Measurement:
    """Measure how keys and queries of one-plane Index heads lie, at the angles that learn the task best."""
    ids = study.manifest["traced_ids"]
    found = sweep.gathering(
        study.arrays["index/final_query"],
        study.arrays["index/final_key"],
        [angle(i) for i in ids],
        IndexTask().symbols,
    )
    table = sweep.by_angle(study.tables["accuracy"], piece="one-angle", task=INDEX, planes=1)
    table = table[table["first_id"].isin(ids)]
    best = int(table.loc[table["mean"].idxmax(), "first_id"])
    rows = found[found["head"] == ids.index(best)]
    as_built = (rows["queries"] - rows["construction"]).abs() <= 0.15
    gathered = (rows["keys"] >= 0.9) & (rows["turned"] >= 0.9)
    spread = rows["queries"] <= 0.5
    return Measurement(
        f"{name(best)}: resultant of keys {rows['keys'].mean():.2f}, of queries {rows['queries'].mean():.2f} "
        f"(T_Index: {rows['construction'].mean():.2f}), of queries turned by "
        f"their distance {rows['turned'].mean():.2f}",
        f"over {len(rows)} seeds keys at least {rows['keys'].min():.2f}, queries {rows['queries'].min():.3f} to "
        f"{rows['queries'].max():.3f}, turned queries at least {rows['turned'].min():.2f}",
        judge(bool((gathered & spread).all()), bool((gathered & (spread | as_built)).mean() > 0.5)),
        tuple(seed_range(rows[column], "mean") for column in ("keys", "queries", "turned")),
    )


claim = claims_in("P1", CHAPTER, STUDY)


IS_LEARNT = f"an angle learns a task if the mean accuracy over seeds, with learnt maps, is at least {LEARNT:g}"
MAPS_BEFORE = "the criterion first asked for learnt maps, then for learnt or fixed ones, now for learnt ones again"
MISMATCHED = (
    "the shape is tested over seeds, with learnt maps, at every mismatched angle, whose accuracy is at least 5 % of "
    "the way from the worst angle's to the best one's, and at most 95 %. Holds if all have the shape; in part if most"
)
CLAIMS = (
    claim(
        "canonical-index-fast",
        "canonical tasks",
        "With one angle, Index is learnt only with high frequencies.",
        "high frequencies only",
        f"{IS_LEARNT}. Holds if the angles that learn Index run from the fastest without a gap and all are in the "
        "faster half of the grid; in part if only the latter",
        index_fast,
        changed=f"{MAPS_BEFORE}. Before, it was also enough that these angles ran from the fastest without a gap and "
        "ended before NoPE, in either half",
    ),
    claim(
        "canonical-retrieval-slow",
        "canonical tasks",
        "With one angle, Retrieval is learnt only with low frequencies.",
        "low frequencies only",
        f"{IS_LEARNT}. Holds if the angles that learn Retrieval run without a gap to NoPE and all are in the slower "
        "half of the grid; in part if none is in the fastest quarter",
        retrieval_slow,
        changed=f"{MAPS_BEFORE}. Before, it was also enough that these angles ran without a gap to NoPE and began "
        "after the fastest: the claim held, though angles of the faster half learn it too",
    ),
    claim(
        "canonical-tension",
        "canonical tasks",
        "No single angle learns both Index and Retrieval.",
        "none",
        f"{IS_LEARNT}. Holds if some angle learns each and none both; in part if at most one in eight learns both",
        tension,
        changed=MAPS_BEFORE,
    ),
    claim(
        "canonical-partial-one-angle",
        "Corollary 1 and canonical tasks",
        "Partial induction is not learnt with one angle.",
        "not learnt",
        f"{IS_LEARNT}. Holds if no angle learns it, with one plane or many; in part if none does with one plane",
        not_with_one_angle,
        CONFIDENCE,
        changed=MAPS_BEFORE,
    ),
    claim(
        "canonical-partial-two-angles",
        "Theorem 6",
        "Partial induction is learnt with two angles, one of them 0.",
        "learnt",
        f"holds if the best second angle's interval lies at or above {LEARNT:g}; in part if its mean is at least "
        f"{LEARNT - 0.1:g}",
        with_two_angles,
        CONFIDENCE,
    ),
    claim(
        "canonical-moderate-angle",
        "Theorem 6",
        "Beside angle 0, the second angle must not be too large.",
        "a moderate angle",
        "holds if the interval of the fastest second angle lies below that of the best; in part if the mean does",
        moderate_second_angle,
        CONFIDENCE,
    ),
    claim(
        "canonical-index-u",
        "Theorem 7 and canonical tasks",
        "With too low a frequency, Index accuracy is U-shaped over the answer's position.",
        "U",
        MISMATCHED,
        shape(INDEX, "U"),
        ANGLE_RANGE,
    ),
    claim(
        "canonical-retrieval-inverse-u",
        "Theorem 7 and canonical tasks",
        "With a frequency that is not low enough, Retrieval accuracy is inverse-U-shaped over the answer's position.",
        "inverse U",
        MISMATCHED,
        shape(RETRIEVAL, "inverse U"),
        ANGLE_RANGE,
    ),
    claim(
        "canonical-index-positional",
        "Theorems 2 and 3",
        "Heads that have learnt Index are positional.",
        "positional",
        "mean scores over seeds. Holds if at every angle that learns the task the positional score is at least 0.9 "
        "and the symbolic one at most 0.1; in part if the positional score is the larger at every such angle",
        behaviour(INDEX, "positional"),
        ANGLE_RANGE,
        changed=MAPS_BEFORE,
    ),
    claim(
        "canonical-retrieval-symbolic",
        "Theorems 4 and 5",
        "Heads that have learnt Retrieval are symbolic.",
        "symbolic",
        "mean scores over seeds. Holds if at every angle that learns the task the symbolic score is at least 0.9 and "
        "the positional one at most 0.1; in part if the symbolic score is the larger at every such angle",
        behaviour(RETRIEVAL, "symbolic"),
        ANGLE_RANGE,
        changed=MAPS_BEFORE,
    ),
    claim(
        "canonical-plane",
        "canonical tasks",
        "In the plane of a head trained on Index, queries spread by angle and keys gather in one direction.",
        "queries spread, keys gather",
        "by the lengths of three resultants: of the keys, of the queries, and of the queries turned by their "
        "distance, at the angle that learns best with one plane and learnt maps. Holds if in every seed keys and "
        "turned queries have at least 0.9, and queries at most 0.5; in part if in most seeds keys and turned queries "
        "have that, and queries at most 0.5 or within 0.15 of the construction T_Index",
        plane,
        SEED_RANGE,
        changed="the queries' resultant first had to be at most 0.5, by which the claim would not hold; then within "
        "0.15 of T_Index's, by which it held; now the first is needed to hold, the second is enough to hold in part",
    ),
)
