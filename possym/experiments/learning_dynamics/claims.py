"""Claims on learning dynamics: accuracy by hops and scores of every head over training."""

import math

import numpy as np
import pandas as pd

from possym.experiments.claim import (
    CONFIDENCE,
    HEAD_RANGE,
    MOST,
    MOST_BEFORE,
    NO_INTERVAL,
    NOT_SHOWN,
    OWN_CODE,
    SEED_RANGE,
    Claim,
    Measurement,
    claims_in,
    judge,
    judge_most,
    not_testable,
    percent_interval,
    proportion,
    seed_range,
)
from possym.experiments.learning_dynamics import summaries as dynamics
from possym.experiments.learning_dynamics.summaries import SIGNS, best_steps, crossing_steps, learnt_steps, pure_counts
from possym.profiling.statistics import Estimate
from possym.results import Study
from possym.results.published import published

CHAPTER = "07-learning-dynamics"
STUDY = "learning_dynamics"
LEVEL = 0.9
STEP_READING = 500
TOGETHER = 500
LENGTH = 17


def interval(values: pd.Series, digits: int = 0) -> str:
    """Return the range over the seeds in words."""
    low, high = values.min(), values.max()
    return f"{low:,.{digits}f} to {high:,.{digits}f} over {len(values)} seeds"


def of_task(study: Study, table: str, task: str) -> pd.DataFrame:
    """Return one task's rows of a table."""
    rows = study.tables[table]
    return rows[rows["task"] == task]


def ends(study: Study, task: str, gamma: float) -> pd.DataFrame:
    """Return what every head of a task's models ends as."""
    rows = of_task(study, "heads", task)
    return rows[rows["gamma"] == gamma]


def final_accuracy(task: str):
    """Measure the test accuracy over all hop counts at the end of training."""

    def measure(study: Study) -> Measurement:
        final = dynamics.final_accuracy(of_task(study, "accuracy", task))
        final = final[final["hops"] == 0]["accuracy"]
        verdict = judge((final >= 0.99).all(), final.median() >= 0.9)
        return Measurement(
            f"median {final.median():.1%}",
            interval(final * 100, 1).replace(" over", " % over"),
            verdict,
            (seed_range(final),),
        )

    return measure


def hop_order(study: Study) -> Measurement:
    """Measure in how many seeds the number task's hop counts are learnt in the order 1, 2, 3, 4."""
    accuracy = of_task(study, "accuracy", "number")
    learnt = crossing_steps(accuracy, LEVEL).pivot(index="seed", columns="hops", values="step")
    # A hop count that is never learnt comes after all that are; two such, or a tie, settle no order.
    filled = learnt.fillna(float("inf"))
    gaps = filled.diff(axis=1).iloc[:, 1:]
    ordered = (gaps > 0).all(axis=1)
    reversed_ = int((gaps < 0).any(axis=1).sum())
    tied = len(ordered) - int(ordered.sum()) - reversed_
    medians = ", ".join(step_words(step) for step in filled.median().replace(float("inf"), float("nan")))
    found = proportion(ordered.sum(), len(ordered))
    return Measurement(
        f"in order in {ordered.sum()} of {len(ordered)} seeds, tied in {tied}, otherwise in {reversed_}; "
        f"median steps {medians}",
        percent_interval(found),
        judge_most(int(ordered.sum()), len(ordered)),
        (found,),
    )


def step_words(step: float) -> str:
    """Return a step in words, that of a level never reached too."""
    return "never" if pd.isna(step) else f"{step:,.0f}"


def first_task(study: Study) -> Measurement:
    """Measure in how many seeds 1-hop number sequences are learnt before any hop count of the letter task."""
    learnt = learnt_steps(study.tables["accuracy"], LEVEL)
    number = learnt[(learnt["task"] == "number") & (learnt["hops"] == 1)].set_index("seed")["step"]
    letter = learnt[learnt["task"] == "letter"].groupby("seed")["step"].min()
    first = number < letter.reindex(number.index).fillna(float("inf"))
    ends = [step_words(steps.fillna(float("inf")).median()) for steps in (number, letter)]
    medians = f"median steps: number {ends[0]}, letter's first hop count {ends[1]}"
    found, verdict = proportion(first.sum(), len(first)), judge_most(int(first.sum()), len(first))
    measured = f"in {first.sum()} of {len(first)} seeds; {medians}"
    return Measurement(measured, percent_interval(found), verdict, (found,))


def learnt_step(task: str, hops: int | None, key: str):
    """Measure the step at which a hop count (None: the last of all) is learnt, against a published step."""

    def measure(study: Study) -> Measurement:
        learnt = learnt_steps(of_task(study, "accuracy", task), LEVEL)
        if hops is not None:
            learnt = learnt[learnt["hops"] == hops]
        return near_step(learnt.groupby("seed")["step"].max(skipna=False), published(key).value)

    return measure


def best_step(task: str, key: str):
    """Measure the step of the best accuracy against a published step."""

    def measure(study: Study) -> Measurement:
        best = best_steps(of_task(study, "accuracy", task)).set_index("seed")["step"]
        return near_step(best, published(key).value)

    return measure


def reaching(values: pd.Series, paper: float, middle: str = "median") -> str:
    """Return how many seeds lie at a published value or beyond it, seen from the middle: a range widens with seeds.

    >>> reaching(pd.Series([1, 2, 6]), 5)
    '1 of 3 seeds at 5 or more'
    """
    sense, found = np.sign(paper - values.agg(middle)), np.sign(paper - values)
    words = {1: " or more", -1: " or less", 0: ""}[int(sense)]
    return f"{int(((found == 0) | (found == -sense)).sum())} of {len(values)} seeds at {paper:,}{words}"


def near_step(steps: pd.Series, paper: float) -> Measurement:
    """Return the verdict of steps, one a seed, against a step read off a plot."""
    if steps.isna().any():
        missing = int(steps.isna().sum())
        known = f"median of the others {steps.median():,.0f}" if steps.notna().any() else ""
        return Measurement(f"not reached in {missing} of {len(steps)} seeds", known, judge(False))
    inside = steps.min() - STEP_READING <= paper <= steps.max() + STEP_READING
    verdict = judge(inside, paper / 2 <= steps.median() <= paper * 2)
    measured = f"median step {steps.median():,.0f}; {reaching(steps, paper)}"
    if inside and not steps.min() <= paper <= steps.max():
        measured += f"; the range holds {paper:,} only because it is widened by {STEP_READING}"
    return Measurement(measured, interval(steps), verdict, (seed_range(steps),))


def hops_together(study: Study) -> Measurement:
    """Measure the steps between the first and the last hop count that the letter task learns."""
    learnt = learnt_steps(of_task(study, "accuracy", "letter"), LEVEL).groupby("seed")["step"]
    gap = learnt.max(skipna=False) - learnt.min(skipna=False)
    if gap.isna().any():
        return Measurement(f"not all learnt in {int(gap.isna().sum())} of {len(gap)} seeds", "", judge(False))
    verdict = judge((gap <= TOGETHER).all(), gap.median() <= TOGETHER)
    return Measurement(f"median gap {gap.median():,.0f} steps", interval(gap), verdict, (seed_range(gap),))


def start_scores(study: Study) -> Measurement:
    """Measure the smaller of the two scores of every head before the first step."""
    scores = study.tables["scores"]
    start = scores[scores["step"] == scores["step"].min()]
    lower = start[["positional", "symbolic"]].min(axis=1)
    near = (lower >= 0.9).mean()
    verdict = judge(near == 1, near > 0.5)
    return Measurement(
        f"median {lower.median():.2f}; {near:.0%} of heads have both above 0.9",
        f"{lower.min():.2f} to {lower.max():.2f} over heads and seeds",
        verdict,
        (seed_range(lower),),
    )


def start_entropy(study: Study) -> Measurement:
    """Measure the entropy of every head's attention at the start, as a share of the uniform's."""
    scores = study.tables["scores"]
    start = scores[scores["step"] == scores["step"].min()]
    uniform = start["entropy"] / math.log(LENGTH)
    verdict = judge((uniform >= 0.99).all(), uniform.median() >= 0.95)
    return Measurement(
        f"median {uniform.median():.1%} of the uniform's entropy",
        f"{uniform.min():.1%} to {uniform.max():.1%} over heads and seeds",
        verdict,
        (seed_range(uniform),),
    )


def count_of(task: str, gamma: float, kind: str, key: str):
    """Measure the pure heads of a kind at the end, against a published count."""

    def measure(study: Study) -> Measurement:
        counts = pure_counts(ends(study, task, gamma))
        heads = counts[counts["kind"] == kind]["heads"]
        paper = published(key).value
        verdict = judge(heads.min() <= paper <= heads.max(), abs(heads.mean() - paper) <= 2)
        measured = f"mean {heads.mean():.1f}; {reaching(heads, paper, 'mean')}"
        return Measurement(measured, interval(heads), verdict, (seed_range(heads, "mean"),))

    return measure


def early_late(study: Study) -> Measurement:
    """Measure whether the number task's pure positional heads lie below all its pure symbolic ones."""
    heads = ends(study, "number", 0.1)
    sorted_out, both = 0, 0
    for _, model in heads.groupby("seed"):
        positional, symbolic = (model[model["kind"] == sign]["layer"] for sign in SIGNS.values())
        exist = bool(len(positional) and len(symbolic))
        both += exist
        sorted_out += exist and positional.max() < symbolic.min()
    seeds = heads["seed"].nunique()
    medians = {kind: heads[heads["kind"] == sign]["layer"].median() for kind, sign in SIGNS.items()}
    words = ", ".join(f"median {kind} layer {layer:g}" for kind, layer in medians.items() if layer == layer)
    verdict = judge_most(sorted_out, seeds)
    measured = f"in {sorted_out} of {seeds} seeds ({both} have heads of both kinds); {words}"
    found = proportion(sorted_out, seeds)
    return Measurement(measured, percent_interval(found), verdict, (found,))


def positional_layers(study: Study) -> Measurement:
    """Measure which layers end purely positional on the number task at γ = 0.05."""
    heads = ends(study, "number", 0.05)
    paper = published("P2.fig7.number.positional_layers").value
    seeds = heads["seed"].nunique()
    positional = heads[heads["kind"] == 1].groupby("layer")["seed"].nunique() / seeds
    usual = sorted(positional[positional > 0.5].index.tolist())
    words = ", ".join(f"layer {layer} in {part:.0%}" for layer, part in positional.items()) or "none in any seed"
    everywhere = positional.reindex(sorted(heads["layer"].unique()), fill_value=0.0)
    estimates = tuple(proportion(round(part * seeds), seeds) for part in everywhere)
    verdict = judge(usual == paper, bool(set(usual) & set(paper)))
    measured = f"layers {', '.join(map(str, usual))} in most seeds" if usual else "no layer in most seeds"
    return Measurement(f"{measured} ({words})", "", verdict, estimates)


def layer_zero(study: Study) -> Measurement:
    """Measure the final scores of the number task's lowest layer."""
    scores = of_task(study, "scores", "number")
    end = scores[(scores["step"] == scores["step"].max()) & (scores["layer"] == 0)][["positional", "symbolic"]]
    paper = pd.Series(published("P2.number.layer0_scores").value, index=end.columns)
    inside = ((end.min() - 0.1 <= paper) & (paper <= end.max() + 0.1)).all()
    verdict = judge(inside, ((end.mean() - paper).abs() <= 0.2).all())
    ranges = ", ".join(f"{end[kind].min():.2f} to {end[kind].max():.2f}" for kind in end)
    mean = end.mean()
    measured = f"mean {mean['positional']:.2f} and {mean['symbolic']:.2f}"
    both = tuple(seed_range(end[kind], "mean") for kind in end)
    return Measurement(measured, f"{ranges} over {len(end)} seeds", verdict, both)


def last_layer(study: Study) -> Measurement:
    """Measure in how many seeds whose top layer turns symbolic on the letter task it does so after all others."""
    heads = ends(study, "letter", 0.1)
    top, seeds = heads["layer"].max(), heads["seed"].nunique()
    turning = set(heads.query("layer == @top and kind == -1")["seed"])
    if not turning:
        return not_testable(f"layer {top} turns pure symbolic in none of {seeds} seeds")()
    late, turns = int(dynamics.top_layer_last(heads[heads["seed"].isin(turning)]).sum()), len(turning)
    found = proportion(late, turns)
    verdict = judge_most(late, turns) if 2 * turns >= seeds else NOT_SHOWN
    measured = (
        f"layer {top} never turns pure symbolic in {seeds - turns} of {seeds} seeds; in {late} of the other {turns} "
        "it is strictly last"
    )
    return Measurement(measured, percent_interval(found), verdict, (found,))


def with_purity(task: str):
    """Measure whether seeds that learn a task later also turn pure later."""

    def measure(study: Study) -> Measurement:
        table = dynamics.learning_with_purity(
            of_task(study, "accuracy", task), of_task(study, "heads", task), levels=(0.99,)
        )
        row = table.query("gamma == 0.1 and share == 0.5").iloc[0]
        if pd.isna(row["correlation"]):
            known = f"{row['seeds']} of {row['seeds'] + row['without']} seeds have both steps"
            return not_testable(f"no correlation: too few seeds, or steps that do not vary; {known}")()
        lag = f"step of purity minus step of learning, median {row['lag']:+,.0f}"
        measured = f"rank correlation {row['correlation']:.2f}; {lag}"
        words = f"95 % interval {row['low']:.2f} to {row['high']:.2f}; shuffled seeds stay below {row['shuffled']:.2f}"
        more = row["correlation"] > row["shuffled"]
        verdict = judge(row["low"] > 0 and more, more, undecided=not more and row["low"] <= 0 <= row["high"])
        found = Estimate(row["correlation"], row["low"], row["high"], row["p_value"])
        return Measurement(measured, f"{words} ({row['seeds']} seeds)", verdict, (found,))

    return measure


CRITERION_STEP = (
    f"a hop count is learnt at its first evaluation with accuracy of at least {LEVEL:g}. Holds if the paper's step "
    f"lies within the range over seeds, widened by {STEP_READING} for reading a plot; in part if the median is within "
    "a factor of two"
)
CRITERION_BEST = (
    "the step of the best accuracy. Holds if the paper's lies within the range over seeds, widened by "
    f"{STEP_READING} for reading a plot; in part if the median is within a factor of two"
)
CRITERION_COUNT = (
    "a head is pure if one score is at least 1 − γ and the other at most γ from some evaluation to the end. Holds if "
    "the paper's count lies within the range over seeds; in part if the mean is within 2 heads of it"
)


claim = claims_in("P2", CHAPTER, STUDY)


def accuracy_claim(task: str) -> Claim:
    """Return the claim that a task is learnt."""
    return claim(
        f"{task}-learnt",
        "Fig. 2",
        f"The {task} task is learnt to about 100 % accuracy.",
        "≈ 100 %",
        "on each model's test set. Holds if every seed ends at 99 % or more; in part if the median is at least 90 %",
        final_accuracy(task),
        SEED_RANGE,
    )


def count_claim(task: str, kind: str, gamma: float, key: str) -> Claim:
    """Return the claim on the number of pure heads."""
    value = published(key)
    statement = f"On the {task} task {value.value} of 12 heads end purely {kind} (γ = {gamma:g})."
    paper_value = f"{'≈ ' if value.approximate else ''}{value.value}"
    return claim(
        f"{task}-{kind}-{gamma:g}",
        value.where,
        statement,
        paper_value,
        CRITERION_COUNT,
        count_of(task, gamma, kind, key),
        SEED_RANGE,
    )


CLAIMS = (
    accuracy_claim("number"),
    accuracy_claim("letter"),
    claim(
        "number-hop-order",
        "Fig. 2",
        "The number task is learnt one hop count after another: 1, then 2, 3, 4.",
        "1, 2, 3, 4",
        f"learnt is an accuracy of at least {LEVEL:g}, its step interpolated between evaluations. Holds if the order "
        f"is strict in every seed; {MOST}",
        hop_order,
        CONFIDENCE,
        changed=f"the step was that of the first evaluation at {LEVEL:g}, so that hop counts tied; {MOST_BEFORE}",
    ),
    claim(
        "number-one-hop-step",
        "Fig. 2",
        "On the number task 1-hop sequences are learnt near step 2,000.",
        "≈ 2,000",
        CRITERION_STEP,
        learnt_step("number", 1, "P2.fig2.number.one_hop_step"),
        SEED_RANGE,
    ),
    claim(
        "letter-hops-together",
        "Fig. 2",
        "The letter task is learnt for all hop counts together.",
        "together",
        f"learnt is an accuracy of at least {LEVEL:g}. Holds if first and last hop count are at most {TOGETHER} steps "
        "apart in every seed; in part if the median is",
        hops_together,
        SEED_RANGE,
    ),
    claim(
        "letter-learnt-step",
        "Fig. 2",
        "On the letter task all hop counts are learnt near step 3,000.",
        "≈ 3,000",
        CRITERION_STEP,
        learnt_step("letter", None, "P2.fig2.letter.learnt_step"),
        SEED_RANGE,
    ),
    claim(
        "number-one-hop-first",
        "Fig. 2",
        "1-hop number sequences are learnt before the letter task.",
        "≈ 2,000 before ≈ 3,000",
        f"learnt is an accuracy of at least {LEVEL:g}. Holds if the number task's first hop comes before all hop "
        f"counts of the letter task in every seed; {MOST}",
        first_task,
        CONFIDENCE,
        changed=MOST_BEFORE,
    ),
    claim(
        "number-best-step",
        "Fig. 2",
        "On the number task the best accuracy comes near step 4,800.",
        "≈ 4,800",
        CRITERION_BEST,
        best_step("number", "P2.fig2.number.best_step"),
        SEED_RANGE,
    ),
    claim(
        "letter-best-step",
        "Fig. 2",
        "On the letter task the best accuracy comes near step 3,400.",
        "≈ 3,400",
        CRITERION_BEST,
        best_step("letter", "P2.fig2.letter.best_step"),
        SEED_RANGE,
    ),
    claim(
        "start-both-scores",
        "Fig. 2",
        "Before training both scores of every head are near 1.",
        "≈ 1",
        "holds if both scores are at least 0.9 for every head of every seed; in part if for most",
        start_scores,
        HEAD_RANGE,
        kind=OWN_CODE,
    ),
    claim(
        "start-uniform",
        "Fig. 2",
        "Before training attention is uniform.",
        "uniform",
        f"holds if every head's entropy is at least 99 % of ln {LENGTH}, the uniform's; in part if the median is at "
        "least 95 %",
        start_entropy,
        HEAD_RANGE,
        kind=OWN_CODE,
    ),
    count_claim("number", "positional", 0.1, "P2.fig2.number.pure_positional"),
    count_claim("number", "symbolic", 0.1, "P2.fig2.number.pure_symbolic"),
    count_claim("number", "positional", 0.05, "P2.fig7.number.pure_positional"),
    count_claim("number", "symbolic", 0.05, "P2.fig7.number.pure_symbolic"),
    count_claim("letter", "positional", 0.1, "P2.fig2.letter.pure_positional"),
    count_claim("letter", "symbolic", 0.1, "P2.fig2.letter.pure_symbolic"),
    claim(
        "number-early-late",
        "Fig. 2",
        "On the number task the positional heads are in early layers, the symbolic heads after them.",
        "early, then late",
        "at γ = 0.1. Holds if in every seed both kinds exist and each pure positional "
        "head lies below each pure symbolic one; " + MOST,
        early_late,
        CONFIDENCE,
        changed=MOST_BEFORE,
    ),
    claim(
        "number-positional-layers",
        "Fig. 7",
        "At γ = 0.05 the number task's pure positional heads are in layers 1 and 2.",
        "1, 2",
        "holds if exactly these layers are pure positional in more than half of the seeds; in part if one of them is",
        positional_layers,
        NO_INTERVAL,
    ),
    claim(
        "number-layer-0",
        "Fig. 2",
        "On the number task layer 0 ends with scores of about 0.40 (positional) and 0.62 (symbolic) at the last "
        "position.",
        "≈ 0.40, ≈ 0.62",
        "holds if both lie within the range over seeds, widened by 0.1; in part if both means are within 0.2",
        layer_zero,
        SEED_RANGE,
    ),
    claim(
        "letter-last-layer",
        "Fig. 2",
        "On the letter task layer 11 turns symbolic last.",
        "layer 11",
        "at γ = 0.1. Only seeds in which the top layer turns pure symbolic count. Holds if in every one of them it "
        f"does so strictly after all other layers that do; {MOST}. Not shown either if fewer than half of the seeds "
        "count; not testable if none does",
        last_layer,
        CONFIDENCE,
        changed="a seed whose top layer never turns counted as one in which it turns last, and so the claim held in "
        f"part; before that, {MOST_BEFORE}",
    ),
    *(
        claim(
            f"{task}-with-purity",
            "abstract",
            f"On the {task} task successful learning goes with pure heads.",
            "goes with",
            "rank correlation over seeds between the step since which validation accuracy is at least 99 % and the "
            "step since which half of the heads that end pure (γ = 0.1) are pure. Holds if its 95 % interval lies "
            "above 0 and it exceeds the 95 % quantile under shuffled seeds; in part if it exceeds only the quantile; "
            "not shown if neither, but the interval contains 0",
            with_purity(task),
            CONFIDENCE,
            changed="results that are now “not shown” were “does not hold” before",
        )
        for task in ("number", "letter")
    ),
    claim(
        "training-time",
        "text",
        "Training takes 28 min 30 s (number) and 26 min 29 s (letter).",
        "1,710 s and 1,589 s",
        "needs three RTX A5000",
        not_testable("other hardware; our seconds are in the provenance line"),
        study=None,
    ),
)
