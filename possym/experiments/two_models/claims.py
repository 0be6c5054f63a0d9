"""Claims on two real models, with criteria that were written down and committed before the run that judges them.

They are no blind predictions. An exploratory run on sixteen other prompts (16 statements each, tokens moved, the first
held, scale-free form) had shown: mean symbolic and positional score of Gemma 3 270M 0.87 and 0.35 in full layers, 0.49
and 0.71 in sliding ones, p = 0.0098 over layers; with the bases swapped 0.65 and 0.57 against 0.65 and 0.66; r = −0.92.
The atlas had been tried on SmolLM2 with four prompts of another seed: known heads lay in the expected corners, and
four of the ten first retrieval heads were query-focused too.
"""

import numpy as np
import scipy

from possym.experiments.claim import (
    CONFIDENCE,
    OWN,
    UNTESTABLE,
    Measurement,
    claims_in,
    exact,
    judge,
)
from possym.experiments.real_models import HELD
from possym.experiments.two_models import STATEMENTS, atlases
from possym.experiments.two_models.bases import FULL, SLIDING
from possym.experiments.two_models.summaries import (
    by_condition,
    gap_change,
    gap_test,
    layer_leads,
    papers_form,
    random_correlations,
    random_gaps,
)
from possym.profiling.known_kinds import DEFINITIONS, REPEATED
from possym.profiling.statistics import Estimate, area_under_curve, correlation, early_late
from possym.results import Study

CHAPTER = "13-profiling-real-models"
STUDY = "two_models"
LEVEL = 0.05
NO_GEMMA = Measurement("no model with full and sliding layers in this run", "", UNTESTABLE)


def gemma_of(study: Study) -> str | None:
    """Return the name of the first model that has both full and sliding layers."""
    kinds = study.tables["layers"].groupby("model", sort=False)["kind"].nunique()
    both = kinds[kinds > 1]
    return None if both.empty else str(both.index[0])


def interval(*found: Estimate) -> str:
    """Return intervals, and p-values where there are any, in words."""
    words = [f"{one.low:+.2f} to {one.high:+.2f}" for one in found]
    return " and ".join(
        text if np.isnan(one.p_value) else f"{text}, p = {one.p_value:.2g}"
        for text, one in zip(words, found, strict=True)
    )


def trade(study: Study) -> Measurement:
    """Measure the correlation of both scores over the heads of Gemma, against models of random weights."""
    if (model := gemma_of(study)) is None:
        return NO_GEMMA
    r = correlation(papers_form(study.tables["heads"], model))
    random = random_correlations(study.tables, model)
    words = f"r = {r.value:.2f}, of random weights {random.min():.2f} to {random.max():.2f}"
    verdict = judge(r.high < min(0, random.min()), undecided=r.low <= 0)
    return Measurement(words, interval(r), verdict, (r,))


def halves(score: str, sign: int):
    """Measure the difference between the medians of early and late layers of Gemma, which should have this sign."""

    def measure(study: Study) -> Measurement:
        if (model := gemma_of(study)) is None:
            return NO_GEMMA
        heads = papers_form(study.tables["heads"], model)
        early = heads["layer"] < (heads["layer"].max() + 1) // 2
        found = early_late(heads, score)
        low, high = sorted((sign * found.low, sign * found.high))
        medians = f"{heads[score][early].median():.2f} early, {heads[score][~early].median():.2f} late, difference "
        verdict = judge(low > 0 and found.p_value <= LEVEL, undecided=high >= 0)
        return Measurement(f"median {medians}{found.value:+.2f}", interval(found), verdict, (found,))

    return measure


def full_symbolic(study: Study) -> Measurement:
    """Measure by how much full layers lead further toward symbolic than sliding ones."""
    if (model := gemma_of(study)) is None:
        return NO_GEMMA
    leads = {blocks: layer_leads(study.tables, model, "own", blocks) for blocks in (HELD, STATEMENTS)}
    found = {blocks: gap_test(table) for blocks, table in leads.items()}
    first, second = found[HELD], found[STATEMENTS]
    means = leads[HELD].groupby("kind")[["symbolic", "positional"]].mean().round(2)
    sure = first.value > 0 and first.p_value <= LEVEL
    verdict = judge(sure and second.value > 0, sure, undecided=first.p_value > LEVEL)
    words = "; ".join(
        f"{kind} layers: symbolic {means.loc[kind, 'symbolic']:.2f}, positional {means.loc[kind, 'positional']:.2f}"
        for kind in (FULL, SLIDING)
    )
    random = random_gaps(study.tables, model)
    words += f"; gap in lead: of random weights {random.min():+.2f} to {random.max():+.2f}, with statements "
    words += f"swapped {second.value:+.2f}, with tokens swapped {first.value:+.2f}"
    return Measurement(words, interval(first), verdict, (first, second))


def base_makes_it(study: Study) -> Measurement:
    """Measure what becomes of the gap between full and sliding layers when they swap their bases."""
    if (model := gemma_of(study)) is None:
        return NO_GEMMA
    table = by_condition(study.tables, model).set_index("condition")
    own, swapped = table.loc["own"], table.loc["swapped"]
    change = gap_change(study.tables, model, "swapped")
    undecided = own["gap"] <= 0 or change.low <= 0 <= change.high
    verdict = judge(
        not undecided and change.low > 0 and abs(swapped["gap"]) <= own["gap"] / 2, change.low > 0, undecided=undecided
    )
    words = (
        f"loss on text {own['text_loss']:.2f} nats per token with their own bases, {swapped['text_loss']:.2f} with "
        f"each other's; gap in lead {own['gap']:+.2f} and {swapped['gap']:+.2f}, difference {change.value:+.2f}"
    )
    return Measurement(words, interval(change), verdict, (change, exact(own["gap"]), exact(swapped["gap"])))


def leads_toward(definition: str, side: str):
    """Measure in every model whether the heads of a definition lead toward their side further than other heads."""

    def measure(study: Study) -> Measurement:
        count, sign = study.manifest["config"]["known_heads"], 1 if side == "symbolic" else -1
        found = {}
        for model, atlas in atlases(study).items():
            table = atlas.placed(definition, REPEATED, count)
            found[model] = area_under_curve(sign * table["lead"], table["known"], table["layer"])
        values = list(found.values())
        verdict = judge(
            all(one.low > 0.5 for one in values),
            any(one.low > 0.5 for one in values) and not any(one.high < 0.5 for one in values),
            undecided=all(one.low <= 0.5 <= one.high for one in values),
        )
        words = ", ".join(f"{model}: {one.value:.2f}" for model, one in found.items())
        ends = " and ".join(f"{one.low:.2f} to {one.high:.2f}" for one in values)
        return Measurement(f"area under the curve, {words}", ends, verdict, tuple(values))

    return measure


def same_retrieval_heads(study: Study) -> Measurement:
    """Measure how many of the first heads two definitions of retrieval have in common, in every model."""
    count, words, shared, beyond = study.manifest["config"]["known_heads"], [], [], []
    for model, atlas in atlases(study).items():
        both = atlas.agreement(count).set_index(["first", "second"]).loc[("retrieval", "query_focused")]
        common, heads = round(both["overlap"] * count), round(count / both["by_chance"])
        p = float(scipy.stats.hypergeom.sf(common - 1, heads, count, count))
        shared.append(common)
        beyond.append(p <= LEVEL)
        words.append(f"{model}: {common} of {count} (by chance {count * count / heads:.1f}, p = {p:.2g})")
    verdict = judge(min(shared) >= count / 2, all(beyond))
    return Measurement("; ".join(words), "", verdict, tuple(exact(value) for value in shared))


ours = claims_in(OWN, CHAPTER, STUDY)
ANOTHER = "after 2511.11579, section 4"
PAPERS_WAY = "binding, 64 pairs, statements as blocks, the papers' form"
TESTED = (
    f"{PAPERS_WAY}. Holds if the difference of medians is in the stated direction by two tests: its whole 95 % "
    "interval lies there (whole layers resampled), and p ≤ 0.05 (whole layers permuted); does not hold if the "
    "interval lies in the other direction; else not shown"
)
TOKENS = "binding, 64 pairs, tokens moved and the first held, scale-free form, mean lead (symbolic less positional)"
AREA = (
    "the ten heads are those that the definition ranks first on other prompts ({}). The area under the ROC curve says "
    "how well the lead toward their side (the difference of the two scores), on repeated random tokens, tells them "
    "from all other heads; 95 % intervals from resampling whole layers. Holds if the intervals lie above 0.5 in both "
    "models; in part if in one and not below in the other; not shown if both contain 0.5"
)


def corner(definition: str, side: str, kind: str):
    """Return the claim that the heads of a definition lie on one side of the plane."""
    source = f"{DEFINITIONS[definition].source}: {DEFINITIONS[definition].words}"
    return ours(
        f"atlas-{definition.replace('_', '-')}",
        "question",
        f"{kind} heads lie on the {side} side of the plane, in both models.",
        "not studied",
        AREA.format(source),
        leads_toward(definition, side),
        CONFIDENCE,
    )


CLAIMS = (
    ours(
        "other-gemma-trade",
        ANOTHER,
        "In Gemma 3 270M, another Gemma than the paper's, the positional and the symbolic score of heads are "
        "negatively correlated.",
        "r = −0.91 in gemma-2-2b-it",
        f"{PAPERS_WAY}. The 95 % interval of r, layers drawn as wholes. Holds if all of it lies below 0 and below r in "
        "every model of random weights of the same shape (initial and shuffled; queries and keys are normalised, so "
        "that larger matrices sharpen nothing); does not hold if it lies above 0; else not shown",
        trade,
        CONFIDENCE,
    ),
    ours(
        "other-gemma-early-positional",
        ANOTHER,
        "In Gemma 3 270M, another Gemma than the paper's, heads in the first half of the layers are more positional "
        "than those in the second.",
        "median 0.83 early, 0.56 late in gemma-2-2b-it",
        TESTED,
        halves("positional", 1),
        CONFIDENCE,
    ),
    ours(
        "other-gemma-late-symbolic",
        ANOTHER,
        "In Gemma 3 270M, another Gemma than the paper's, heads in the second half of the layers are more symbolic "
        "than those in the first.",
        "reversed, in gemma-2-2b-it",
        TESTED,
        halves("symbolic", -1),
        CONFIDENCE,
    ),
    ours(
        "gemma-full-symbolic",
        "question",
        "In Gemma 3 270M, layers with full attention are more symbolic than layers with a sliding window, on prompts "
        "that fit into the window.",
        "not studied",
        f"{TOKENS} of full layers less that of sliding ones. Exact test: p is the share of all choices of as many "
        "layers that give as large a gap, in either direction. Holds if p ≤ 0.05 and full layers lead, by "
        "statements as blocks too; in part if by tokens alone; not shown if p > 0.05; else does not hold",
        full_symbolic,
        CONFIDENCE,
    ),
    ours(
        "gemma-base-makes-it",
        "question",
        "The full layers of Gemma 3 270M are more symbolic because of their base of 10⁶: with the two bases swapped, "
        "the difference is gone.",
        "not studied",
        f"{TOKENS}. Measured is the gap between full and sliding layers with their own bases, minus the gap with "
        "swapped ones, nothing trained again. Its 95 % interval draws layers as wholes within each kind. Holds if the "
        "interval lies above 0 and at most half of the gap is left, in either direction; in part if only the interval "
        "lies so; not shown if it contains 0 or there is no gap; else does not hold",
        base_makes_it,
        CONFIDENCE,
    ),
    corner("previous_token", "positional", "Previous-token"),
    corner("recent", "positional", "Local"),
    corner("induction", "symbolic", "Induction"),
    corner("duplicate_token", "symbolic", "Duplicate-token"),
    corner("retrieval", "symbolic", "Retrieval"),
    corner("query_focused", "symbolic", "Query-focused retrieval"),
    ours(
        "atlas-same-retrieval",
        "question",
        "The heads that copy a needle (retrieval) and those through which a question attends to it (query-focused "
        "retrieval) are the same, in both models.",
        "not studied",
        "compares the ten heads that each definition ranks first. Holds if they share at least half in both models; in "
        "part if they share more than by chance in both, p ≤ 0.05 by the hypergeometric distribution; else does not "
        "hold",
        same_retrieval_heads,
    ),
)
