"""Claims on real language models, measured on the stored study of one model.

The papers' model is gemma-2-2b-it; the stored one is another, much smaller. So a claim is judged by what it says of
real models, not by whether its numbers come back: against models of random weights, against random sets of frequencies
whose logits are as large, or against no difference, with intervals from draws of whole layers.
Scores are in the papers' form, means over prompts of the binding task with the most pairs, statements as blocks, unless
said otherwise.
"""

import numpy as np
import pandas as pd

from possym.experiments.claim import (
    CONFIDENCE,
    EXTENT,
    OWN,
    OWN_CODE,
    Measurement,
    claims_in,
    exact,
    judge,
    not_testable,
    percent_interval,
)
from possym.experiments.real_models import FORMS, PAPERS, REPEATED, binding_name
from possym.experiments.real_models.summaries import (
    heads_whose_keys_gather,
    knob_effects,
    known_against_others,
    large_of_third,
    layer_interval,
    mean_heads,
    of_task,
    own_effects,
    random_correlations,
    random_leads,
    sensitivity_table,
    symbolic_lead,
    thirds,
    with_known,
)
from possym.profiling import statistics
from possym.profiling.statistics import Estimate, correlation, early_late
from possym.results import Study
from possym.results.published import published

CHAPTER = "13-profiling-real-models"
STUDY = "real_models"
BLOCKS = "statements"
MARGIN = 0.1  # by which one median must exceed the other
HIGH = 0.9
LEVEL = 0.05  # of a test


def settings(study: Study) -> dict:
    """Return the configuration of a study."""
    return study.manifest["config"]


def task(study: Study) -> str:
    """Return the name of the binding task with the most pairs."""
    return binding_name(max(settings(study)["pairs"]))


def interval(found: statistics.Estimate) -> str:
    """Return interval and p-value in words."""
    small = "p ≤ 0.0001" if found.p_value <= 1e-4 else f"p = {found.p_value:.2g}"
    return f"{found.low:.2f} to {found.high:.2f}, {small}"


def ends(*found: Estimate) -> str:
    """Return intervals in words."""
    return " and ".join(f"{one.low:.2f} to {one.high:.2f}" for one in found)


def trade(study: Study) -> Measurement:
    """Measure the correlation of both scores over heads against that in models of random weights."""
    found = {form: correlation(mean_heads(study.tables["heads"], task(study), BLOCKS, form)) for form in FORMS}
    random = {form: random_correlations(study.tables["random"], form)["r"] for form in FORMS}
    r = found[PAPERS]
    verdict = judge(r.high < min(0, random[PAPERS].min()), undecided=r.low <= 0)
    words = "; ".join(
        f"{name}: r = {found[form].value:.2f} (random weights {random[form].min():.2f} to {random[form].max():.2f})"
        for form, name in zip(FORMS, ("papers' form", "scale-free form"), strict=True)
    )
    return Measurement(words, ends(*found.values()), verdict, tuple(found.values()))


def halves(score: str, sign: int):
    """Measure the difference between the medians of early and late layers, which should have this sign."""

    def measure(study: Study) -> Measurement:
        heads = mean_heads(study.tables["heads"], task(study), BLOCKS)
        early = heads["layer"] < (heads["layer"].max() + 1) // 2
        found = early_late(heads, score)
        apart = min(sign * found.low, sign * found.high) > 0
        unlikely = sign * found.value > 0 and found.p_value <= LEVEL
        medians = f"{heads[score][early].median():.2f} early, {heads[score][~early].median():.2f} late, difference "
        reversed_ = max(sign * found.low, sign * found.high) < 0
        verdict = judge(apart and unlikely, undecided=not reversed_)
        return Measurement(f"median {medians}{found.value:+.2f}", interval(found), verdict, (found,))

    return measure


def planes(study: Study) -> pd.DataFrame:
    """Return the scores of every head's planes."""
    return of_task(study.tables["frequencies"], task(study), BLOCKS)


def scores(medians: pd.Series) -> str:
    """Return both medians in words."""
    return f"positional {medians['positional']:.3f}, symbolic {medians['symbolic']:.3f}"


def third_leads(study: Study, name: str) -> tuple[pd.Series, Estimate, pd.Series]:
    """Return of one third's planes with large logits: both medians, the symbolic lead, and that of random weights."""
    rows = large_of_third(planes(study), name)
    random = random_leads(study.tables["random_planes"], name)
    return rows[["positional", "symbolic"]].median(), symbolic_lead(rows), random


def said(name: str, medians: pd.Series, lead: Estimate, random: pd.Series) -> str:
    """Return what `third_leads` found in words."""
    others = f"{random.min():+.3f} to {random.max():+.3f}"
    return f"{name}: {scores(medians)}, lead {lead.value:+.3f}, of random weights {others}"


def slow_symbolic(study: Study) -> Measurement:
    """Measure both scores of slow planes with large logits."""
    medians, lead, random = third_leads(study, "slow")
    sure = lead.low > max(0, random.max())
    verdict = judge(
        sure and medians["symbolic"] >= HIGH and lead.low >= MARGIN, sure, undecided=not sure and lead.high >= 0
    )
    return Measurement(said("slow", medians, lead, random), ends(lead), verdict, (lead,))


def fast_positional(study: Study) -> Measurement:
    """Measure both scores of planes of middle and fast frequencies with large logits."""
    found = {name: third_leads(study, name) for name in ("middle", "fast")}
    leads = [lead for _, lead, _ in found.values()]
    sure = [lead.high < min(0, random.min()) for _, lead, random in found.values()]
    against = any(lead.low > 0 for lead in leads)
    verdict = judge(
        all(sure) and all(lead.high <= -MARGIN for lead in leads),
        any(sure) and not against,
        undecided=not any(sure) and not against,
    )
    words = "; ".join(said(name, *one) for name, one in found.items())
    return Measurement(words, ends(*leads), verdict, tuple(leads))


def fastest_both(study: Study) -> Measurement:
    """Measure both scores of the very fastest plane and the size of its logits, beside those of all others."""
    table = planes(study)
    fastest = thirds(table)["fastest"]
    medians = table.groupby("frequency_id")[["positional", "symbolic", "logit_norm"]].median()
    both = (medians[["positional", "symbolic"]] >= HIGH).all(axis=1)
    size = medians["logit_norm"].rank()[1]
    high = fastest.min() >= HIGH
    return Measurement(
        f"ID 1: {scores(fastest)}; its logits rank {size:.0f} of {len(medians)}, smallest first; "
        f"{both.drop(1).sum()} of the other {len(both) - 1} frequencies score {HIGH:g} or more on both too", "",
        judge(high and size == 1, high), tuple(map(exact, fastest)),
    )  # fmt: skip


def keys_gather(study: Study) -> Measurement:
    """Measure in how many heads keys share a direction more than queries do, in the planes that matter."""
    reference = of_task(study.tables["frequencies"], binding_name(settings(study)["reference"]), BLOCKS)
    found = heads_whose_keys_gather(study.tables["directions"], reference)
    share = layer_interval(found["more"], found["layer"], np.mean)
    verdict = judge(
        share.value >= HIGH and share.low > 0.5, share.low > 0.5, undecided=share.low <= 0.5 <= share.high
    )  # fmt: skip
    words = (
        f"median resultant length {found['key'].median():.2f} of keys, {found['query'].median():.2f} of queries; "
        f"keys gather more in {found['more'].sum()} of {len(found)} heads"
    )
    return Measurement(words, percent_interval(share), verdict, (share,))


def bounded(study: Study) -> Measurement:
    """Measure the largest share of its bound that a head's variance reaches; what is moved matters to neither."""
    heads = study.tables["heads"].query("bound > 0").drop_duplicates(["task", "prompt", "layer", "head"])
    reached = heads["variance"] / heads["bound"]
    inside = reached <= 1 + 1e-4
    return Measurement(
        f"variance at most {reached.max():.2f} of the bound", f"{len(reached):,} heads and prompts",
        judge(inside.all(), inside.mean() > 0.99), (exact(reached.max()),),
    )  # fmt: skip


def temperature(study: Study) -> Measurement:
    """Measure on how many swaps the scores rest, and the correlation, at the study's τ and at the smallest."""
    config = settings(study)
    at = {
        name: f"{value:g}" for name, value in (("own", config["temperature"]), ("least", min(config["temperatures"])))
    }
    table = sensitivity_table(study.tables["sensitivity"], "", at["own"])
    rows = table[table["choice"] == "temperature"].set_index("value").loc[list(at.values())]
    swaps = config["reference"] * (config["reference"] - 1) // 2
    share = rows.loc[at["own"], "effective_swaps"] / swaps
    another = abs(rows.loc[at["own"], "r"] - rows.loc[at["least"], "r"]) >= MARGIN
    words = "; ".join(
        f"τ = {value}: {row['effective_swaps']:,.1f} of {swaps:,} swaps count (median head "
        f"{row['median_swaps']:,.0f}), r = {row['r']:.2f}"
        for value, row in rows.iterrows()
    )
    verdict = judge(share >= 0.99 and another, share >= 0.5 and another)
    return Measurement(words, "", verdict, tuple(exact(value) for value in (*rows["effective_swaps"], *rows["r"])))


def known_lead(kind: str):
    """Measure how known heads lead toward their own side, against all other heads."""

    def measure(study: Study) -> Measurement:
        found = []
        for form in FORMS:
            means = mean_heads(study.tables["heads"], REPEATED, "tokens", form)
            table = with_known(means, study.tables["known"], settings(study)["known_heads"])
            found.append(known_against_others(table, kind))
        verdict = judge(
            all(one.low > 0.5 for one in found),
            any(one.low > 0.5 for one in found) and not any(one.high < 0.5 for one in found),
            undecided=all(one.low <= 0.5 <= one.high for one in found),
        )
        words = ", ".join(f"{form}: {one.value:.2f}" for form, one in zip(FORMS, found, strict=True))
        return Measurement(f"area under the curve, {words}", ends(*found), verdict, tuple(found))

    return measure


def shared_planes(study: Study, heads: str, band: str) -> str:
    """Return in words how many of a band's planes its matched sets hold: silencing them silences some of the band."""
    effects = knob_effects(study.tables["knob"], heads).drop_duplicates(["band", "draw"])
    own = {plane for planes in effects.loc[effects["band"] == band, "frequencies"] for plane in str(planes).split()}
    matched = effects.loc[effects["band"] == f"matched {band}", "frequencies"]
    shared = pd.Series([len(own & {*str(planes).split()}) for planes in matched], dtype=float)
    if not own or not shared.any():
        return ""
    return (
        f"; {(shared > 0).sum()} of {len(shared)} matched sets hold planes of the band itself, {shared.mean():.1f} of "
        f"its {len(own)} on average, so that they are no clean null"
    )


def needs_own_band(kind: str):
    """Measure what known heads lose without their own band, against sets of frequencies with logits of its size."""

    def measure(study: Study) -> Measurement:
        row = own_effects(study.tables["knob"]).set_index("measure").loc[kind]
        p = row["p_value"]
        words = (
            f"attention {row['own_change']:+.2f} without the {row['own']} band, {row['matched_change']:+.2f} on "
            f"average without a matched set, {row['other_change']:+.2f} without the other band; {row['beyond']} of "
            f"{row['draws']} matched sets take as much, p = {p:.2g}{shared_planes(study, row['heads'], row['own'])}"
        )
        verdict = judge(p <= LEVEL, undecided=p < 1 - LEVEL)
        found = exact(row["own_change"])._replace(p_value=p), exact(row["matched_change"])
        return Measurement(words, "", verdict, found)

    return measure


claim = claims_in("P1", CHAPTER, STUDY)
ours = claims_in(OWN, CHAPTER, STUDY)
# Of models that could be neither loaded nor asked where these results were made: stated, and not judged.
out_of_reach = claims_in("P1", CHAPTER)
WEIGHTS = not_testable("its weights could not be reached where these results were made")
BY_HAND = "not judged: give its hub id as this chapter's model, where its weights can be reached"

R, P = (published(f"P1.binding.{name}").value for name in ("correlation", "correlation_p"))
EARLY, LATE = (published(f"P1.binding.median_positional_{half}").value for half in ("early", "late"))
TESTED = (
    "in the stated direction by two tests: its whole 95 % interval lies there (whole layers resampled), and p ≤ 0.05 "
    "(whole layers permuted); does not hold if the interval lies in the other direction; else not shown"
)
ONE_TEST = "it held in part if one of the two tests said so, whatever the interval held"
LARGE = "of {} planes of all heads, the quarter with the largest logits counts. Measured is"
AREA = (
    "the heads are identified on sequences of repeated random tokens, and scored on others. The area under the ROC "
    "curve says how well the lead toward their side (the difference of the two scores) tells them from all other "
    "heads; 95 % intervals from resampling whole layers. Holds if the intervals lie above 0.5 in both forms of the "
    "score; in part if in one; not shown if both contain 0.5"
)
MATCHED = (
    "silencing the band takes away some of the attention that defines these heads, on sequences other than those that "
    "identified them. It is compared with silencing random sets of frequencies whose logits in these heads are as "
    "large, within 5 %. The band counts as one of the sets. Holds if at most 5 % of the sets take away as much; not "
    "shown if at most 95 % do"
)
CLAIMS = (
    claim(
        "real-trade",
        "section 4, gemma-2-2b-it",
        "In a real model, the positional and the symbolic score of heads are negatively correlated.",
        f"r = {R}",
        "in the papers' form, the 95 % interval of r, layers drawn as wholes. Holds if all of it lies below 0 and "
        "below r in every model of random weights of the same shape (initial, shuffled, and sharpened until logits "
        "vary as much as the model's); does not hold if it lies above 0; else not shown",
        trade,
        CONFIDENCE,
        changed="holds if the whole 95 % interval lies below −0.5 and p ≤ 0.001; in part if it lies below 0 and "
        "p ≤ 0.05. Random weights meet that too",
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
        f"{LARGE.format('the slowest third of the')} the median lead (symbolic less positional score), with a 95 % "
        "interval from resampling whole layers. Holds if the interval lies at or above 0.1 and above the lead of "
        "every model of random weights, and the median symbolic score is at least 0.9; in part if it lies above 0 and "
        "above random weights; does not hold if it lies below 0; else not shown",
        slow_symbolic,
        CONFIDENCE,
        changed="over all planes of the slowest third, whatever their logits: holds if the median symbolic score is at "
        "least 0.9 and the median positional score at least 0.1 lower; in part if it is lower",
    ),
    claim(
        "real-fast-positional",
        "section 4, by frequency",
        "Middle to high frequencies score positional.",
        "positional",
        f"{LARGE.format('the middle and of the fastest third of the')} the median lead (symbolic less positional "
        "score) of each third, with a 95 % interval from resampling whole layers. Holds if both intervals lie at or "
        "below −0.1 and below the lead of every model of random weights; in part if one lies below 0 and below random "
        "weights; does not hold if one lies above 0, whatever the other; else not shown",
        fast_positional,
        CONFIDENCE,
        changed="over all planes of both thirds, whatever their logits: holds if the median positional score exceeds "
        "the median symbolic one by at least 0.1 in both; in part if it does so in one",
    ),
    claim(
        "real-fastest-both",
        "section 4, by frequency",
        "The very highest frequencies score both, since their attention is uniform.",
        "both high",
        "over all heads: holds if both medians of frequency ID 1 are at least 0.9, and its median logits are the "
        "smallest, since small logits are what makes attention uniform; in part if only the former",
        fastest_both,
        changed="first: holds if both medians are at least 0.9, in part if one is. After that held, the "
        "lower median of ID 1 had to exceed the lower median of each third of the planes (fast, middle, slow) by at "
        "least 0.1, and its logits had to be the smallest; in part if it exceeded them at all. Given up, since the "
        "sentence says nothing of other planes",
    ),
    claim(
        "real-keys-gather",
        "section 5",
        "In the planes that matter to a real head, queries spread by angle and keys gather in one direction.",
        "keys gather",
        "in the three planes with the largest logits of every head. Holds if in at least 90 % of the heads the mean "
        "resultant length of the keys' directions exceeds the queries', and the 95 % interval of that share, layers "
        "drawn as wholes, lies above one half; in part if the interval does; not shown if it contains one half",
        keys_gather,
        CONFIDENCE,
        changed="in the three planes with the largest logits of two heads, the most positional and the most symbolic. "
        "Holds if in each the resultant length of the keys' directions exceeds the queries'; in part if in most",
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
    ours(
        "real-temperature",
        "after 2511.11579, section 3, the temperature",
        "At the absolute τ used here, all swaps of statements weigh alike; at a small τ, the two scores are correlated "
        "differently.",
        "not studied",
        "on the reference task we measure the effective number of swaps, mean over heads and prompts, and r over "
        f"heads. Holds if at least 99 % of all swaps count and r at the smallest τ differs by {MARGIN:g} or more; in "
        "part if r does and at least half of all swaps count. The 99 % were set when nearly all swaps were known to "
        f"count, the {MARGIN:g} when both r were known",
        temperature,
        changed="the swaps alone: 99 % of them, a threshold that was set when 2,015.9 of 2,016 was known. The second "
        "half of the sentence was not judged",
    ),
    ours(
        "known-induction-symbolic",
        "after 2511.11579, section 3, the scores",
        "Induction heads score more symbolic than other heads.",
        "not studied",
        AREA,
        known_lead("induction"),
        CONFIDENCE,
    ),
    ours(
        "known-previous-token-positional",
        "after 2511.11579, section 3, the scores",
        "Previous-token heads score more positional than other heads.",
        "not studied",
        AREA,
        known_lead("previous-token"),
        CONFIDENCE,
    ),
    ours(
        "knob-induction",
        "after 2511.11579, section 5, frequencies",
        "Induction heads need the frequencies that score symbolic more than they need others with logits as large.",
        "not studied",
        MATCHED,
        needs_own_band("induction"),
    ),
    ours(
        "knob-previous-token",
        "after 2511.11579, section 5, frequencies",
        "Previous-token heads need the frequencies that score positional more than they need others with logits as "
        "large.",
        "not studied",
        MATCHED,
        needs_own_band("previous_token"),
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
