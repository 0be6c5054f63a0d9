"""Claims on real language models, measured on the stored study of one model.

The papers' model is gemma-2-2b-it; the stored one is another, much smaller. So a claim is judged by what it says of
real models, not by whether its numbers come back: direction, a test that respects layers, and a size that is stated.
Scores are means over prompts of the binding task with the most pairs, statements as blocks.
"""

import pandas as pd

from possym.experiments.claim import (
    CONFIDENCE,
    EXTENT,
    OWN_CODE,
    Measurement,
    claims_in,
    exact,
    judge,
    not_testable,
    percent_interval,
    proportion,
)
from possym.experiments.real_models.summaries import gathered, mean_heads, of_task, thirds
from possym.profiling import statistics
from possym.profiling.statistics import correlation, early_late
from possym.results import Study
from possym.results.published import published

CHAPTER = "10-profiling-real-models"
STUDY = "real_models"
BLOCKS = "statements"
MARGIN = 0.1  # by which one median must exceed the other
HIGH = 0.9


def task(study: Study) -> str:
    """Return the name of the binding task with the most pairs."""
    return f"binding, {max(study.manifest['config']['pairs'])} pairs"


def interval(found: statistics.Estimate) -> str:
    """Return interval and p-value in words."""
    small = "p ≤ 0.0001" if found.p_value <= 1e-4 else f"p = {found.p_value:.2g}"
    return f"95 % interval {found.low:.2f} to {found.high:.2f}, {small}, clustered by layer"


def trade(study: Study) -> Measurement:
    """Measure the correlation of both scores over heads."""
    found = correlation(mean_heads(study.tables["heads"], task(study), BLOCKS))
    sure = found.high < 0 and found.p_value <= 0.05
    verdict = judge(found.high < -0.5 and found.p_value <= 1e-3, sure)
    return Measurement(f"r = {found.value:.2f}", interval(found), verdict, (found,))


def halves(score: str, sign: int):
    """Measure the difference between the medians of early and late layers, which should have this sign."""

    def measure(study: Study) -> Measurement:
        heads = mean_heads(study.tables["heads"], task(study), BLOCKS)
        early = heads["layer"] < (heads["layer"].max() + 1) // 2
        found = early_late(heads, score)
        apart = min(sign * found.low, sign * found.high) > 0
        unlikely = sign * found.value > 0 and found.p_value <= 0.05
        medians = f"{heads[score][early].median():.2f} early, {heads[score][~early].median():.2f} late"
        reversed_ = max(sign * found.low, sign * found.high) < 0
        verdict = judge(apart and unlikely, undecided=not reversed_)
        return Measurement(f"median {medians}", interval(found), verdict, (found,))

    return measure


def planes(study: Study) -> pd.DataFrame:
    """Return the scores of every head's planes."""
    return of_task(study.tables["frequencies"], task(study), BLOCKS)


def slow_symbolic(study: Study) -> Measurement:
    """Measure both scores of the slowest third of the planes."""
    found = thirds(planes(study))["slow"]
    lead = found["symbolic"] - found["positional"]
    verdict = judge(found["symbolic"] >= HIGH and lead >= MARGIN, lead > 0)
    words = f"medians over planes; {large(study, 'slow')}"
    return Measurement(f"slow: {scores(found)}; {words}", "", verdict, tuple(map(exact, found)))


def fast_positional(study: Study) -> Measurement:
    """Measure both scores of the middle and the fastest third of the planes."""
    found = thirds(planes(study))
    names = ("middle", "fast")
    leads = [found[name]["positional"] - found[name]["symbolic"] for name in names]
    words = "; ".join(f"{name}: {scores(found[name])}" for name in names)
    verdict = judge(min(leads) >= MARGIN, max(leads) > 0)
    medians = tuple(exact(value) for name in names for value in found[name])
    return Measurement(f"{words}; medians over planes; {large(study, *names)}", "", verdict, medians)


def fastest_both(study: Study) -> Measurement:
    """Measure both scores of the very fastest plane, the lead of the lower one over that of others, and the logits."""
    table = planes(study)
    found = thirds(table)
    fastest = found.pop("fastest")
    leads = {name: fastest.min() - found[name].min() for name in ("fast", "middle", "slow")}
    sizes = table.groupby("frequency_id")["logit_norm"].median()
    nearest = sizes.rank()[1]
    above = fastest.min() >= HIGH and min(leads.values()) > 0
    verdict = judge(above and min(leads.values()) >= MARGIN and nearest == 1, above)
    words = ", ".join(f"{lead:.4f} ({name})" for name, lead in leads.items())
    return Measurement(
        f"ID 1: {scores(fastest)}; the lower one leads that of each third by {words}; medians over planes; the logits "
        f"of ID 1 are number {nearest:.0f} of {len(sizes)}, from the smallest", "",
        verdict, tuple(map(exact, (*fastest, *leads.values()))),
    )  # fmt: skip


def scores(medians: pd.Series) -> str:
    """Return both medians in words."""
    return f"positional {medians['positional']:.3f}, symbolic {medians['symbolic']:.3f}"


def large(study: Study, *names: str) -> str:
    """Return the medians over the quarter of the planes with the largest logits, which no criterion uses."""
    found = thirds(planes(study), 0.25)
    words = "; ".join(f"{name} {scores(found[name])}" for name in names if name in found)
    return f"in the quarter of planes with the largest logits, {words or 'none is so fast or slow'}"


def keys_gather(study: Study) -> Measurement:
    """Measure in how many of the stored planes keys share a direction more than queries do."""
    found = gathered(study.tables["planes"])
    more = found["key"] > found["query"]
    words = f"median resultant length {found['key'].median():.2f} of keys, {found['query'].median():.2f} of queries"
    verdict = judge(more.all(), more.mean() > 0.5)
    measured = f"keys gather more in {more.sum()} of {len(more)} planes; {words}"
    found = proportion(more.sum(), len(more))
    return Measurement(measured, percent_interval(found), verdict, (found,))


def bounded(study: Study) -> Measurement:
    """Measure the largest share of its bound that a head's variance reaches; what is moved matters to neither."""
    heads = study.tables["heads"].query("bound > 0").drop_duplicates(["task", "prompt", "layer", "head"])
    reached = heads["variance"] / heads["bound"]
    inside = reached <= 1 + 1e-4
    return Measurement(
        f"variance at most {reached.max():.2f} of the bound", f"{len(reached):,} heads and prompts",
        judge(inside.all(), inside.mean() > 0.99), (exact(reached.max()),),
    )  # fmt: skip


claim = claims_in("P1", CHAPTER, STUDY)
# Of models that could be neither loaded nor asked where these results were made: stated, and not judged.
out_of_reach = claims_in("P1", CHAPTER)
WEIGHTS = not_testable("its weights could not be reached where these results were made")
BY_HAND = "not judged: give its hub id as this chapter's model, where its weights can be reached"

R, P = (published(f"P1.binding.{name}").value for name in ("correlation", "correlation_p"))
EARLY, LATE = (published(f"P1.binding.median_positional_{half}").value for half in ("early", "late"))
TESTED = (
    "in the stated direction by two tests: its whole 95 % interval lies there, layers drawn as wholes, and p ≤ 0.05, "
    "layers permuted as wholes; does not hold if the interval lies in the other direction; else not shown"
)
ONE_TEST = "it held in part if one of the two tests said so, whatever the interval held"
CLAIMS = (
    claim(
        "real-trade",
        "section 4, gemma-2-2b-it",
        "In a real model, the positional and the symbolic score of heads are negatively correlated.",
        f"r = {R}",
        "holds if the whole 95 % interval lies below −0.5 and p ≤ 0.001; in part if it lies below 0 and p ≤ 0.05",
        trade,
        CONFIDENCE,
    ),
    claim(
        "real-early-positional",
        "section 4, gemma-2-2b-it",
        "Heads in the first half of the layers are more positional than those in the second.",
        f"median {EARLY} early, {LATE} late",
        f"holds if the difference of medians is {TESTED}",
        halves("positional", 1),
        CONFIDENCE,
        changed=ONE_TEST,
    ),
    claim(
        "real-late-symbolic",
        "section 4, gemma-2-2b-it",
        "Heads in the second half of the layers are more symbolic than those in the first.",
        "reversed",
        f"holds if the difference of medians is {TESTED}",
        halves("symbolic", -1),
        CONFIDENCE,
        changed=ONE_TEST,
    ),
    claim(
        "real-slow-symbolic",
        "section 4, by frequency",
        "Low frequencies score symbolic.",
        "symbolic",
        "holds if over the slowest third of the planes of all heads the median symbolic score is at least 0.9 and the "
        "median positional score at least 0.1 lower; in part if it is lower",
        slow_symbolic,
    ),
    claim(
        "real-fast-positional",
        "section 4, by frequency",
        "Middle to high frequencies score positional.",
        "positional",
        "holds if in the middle and in the fastest third of all heads' planes the median positional score exceeds the "
        "median symbolic one by at least 0.1; in part if it exceeds it at all in one of them",
        fast_positional,
    ),
    claim(
        "real-fastest-both",
        "section 4, by frequency",
        "The very highest frequencies score both, since their attention is uniform.",
        "both high",
        "over all heads, both medians of frequency ID 1 are at least 0.9, and the lower of them lies above the lower "
        "one of the fast, the middle and the slow third of the planes, since those should score high on one side "
        "alone. Holds if it lies at least 0.1 above each and ID 1's median logits are the smallest, since small "
        "logits are what makes attention uniform; in part if it lies above each at all",
        fastest_both,
    ),
    claim(
        "real-keys-gather",
        "section 5",
        "In the planes that matter to a real head, queries spread by angle and keys gather in one direction.",
        "keys gather",
        "in the three planes with the largest logits of the most positional and of the most symbolic head. Holds if in "
        "each the resultant length of the keys' directions exceeds the queries'; in part if in most",
        keys_gather,
        CONFIDENCE,
    ),
    claim(
        "real-exclusion",
        "Theorem 1",
        "No head's logits vary more than the exclusion bound allows.",
        "variance ≤ bound",
        "holds if for every head and prompt, within 0.01 % for rounding; in part if for 99 %",
        bounded,
        EXTENT,
        kind=OWN_CODE,
    ),
    out_of_reach(
        "gemma-trade",
        "section 4, gemma-2-2b-it",
        "In gemma-2-2b-it, on 256 pairs, the positional and the symbolic score of heads trade off almost linearly.",
        f"r = {R}, p ≤ {P:g}",
        BY_HAND,
        WEIGHTS,
    ),
    out_of_reach(
        "gemma-layers",
        "section 4, gemma-2-2b-it",
        "In gemma-2-2b-it, on 256 pairs, the heads of layers 1 to 13 are more positional than those of layers 14 to "
        "26, and less symbolic.",
        f"median positional score {EARLY} early, {LATE} late",
        BY_HAND,
        WEIGHTS,
    ),
    out_of_reach(
        "gemma-keys-gather",
        "section 5, gemma-2-2b-it",
        "In a head of gemma-2-2b-it, queries spread by angle and keys gather in one direction.",
        "keys gather",
        BY_HAND,
        WEIGHTS,
    ),
    out_of_reach(
        "real-other-families",
        "section 4",
        "Qwen-2 and Llama-3 show the same picture as gemma-2-2b-it.",
        "the same",
        "not judged: give their hub ids as this chapter's model, where their weights can be reached",
        not_testable("their weights could not be reached where these results were made"),
    ),
)  # fmt: skip
