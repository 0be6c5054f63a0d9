"""What the study asks, with criteria that were written down before any of its models was trained at full size.

The null of a question is in its criterion: the same heads before the first update (random weights of the same shape),
labels shuffled within models, the same model edited elsewhere, or the same seeds with another encoding. Two criteria
have none, born-fast-planes and born-other-sizes; what random weights give is said beside what is measured.
"""

import pandas as pd

from possym.experiments.claim import (
    CONFIDENCE,
    OWN,
    SEED_RANGE,
    UNTESTABLE,
    Measurement,
    claims_in,
    judge,
    seed_range,
)
from possym.experiments.language_models import BINDING, summaries
from possym.profiling.statistics import Estimate
from possym.results import Study

CHAPTER = "12-a-language-model-is-born"
STUDY = "language_models"
FEWEST = 3  # seeds from which a question is answered at all
FAR = "difference in loss from 4 times the trained length on, nats per token:"


def scores_of(study: Study, encoding: str | None = None) -> pd.DataFrame:
    """Return held-out scores of the models of the main width and corpus, of one encoding or all."""
    rows = summaries.main_models(summaries.held_out(study.tables["scores"]))
    return rows if encoding is None else rows[rows["encoding"] == encoding]


def steps_of(study: Study) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return onsets of kinds and of jobs of the models with RoPE, base 10⁴."""
    jobs = summaries.main_models(study.tables["jobs"]).query("encoding == 'rope'")
    kinds = summaries.onsets(summaries.counts(scores_of(study, "rope")), ["positional", "symbolic"])
    return kinds, summaries.onsets(summaries.job_counts(jobs), ["previous_token", "induction"])


def range_words(values: Estimate, digits: int = 2) -> str:
    """Return an interval in words."""
    return f"{values.low:.{digits}f} to {values.high:.{digits}f}"


def by_interval(estimate: Estimate, sign: int = 1) -> str:
    """Return the verdict on a difference: its whole interval on the side of ``sign``, on the other, or on both."""
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return judge(low > 0, undecided=low <= 0 <= high)


def difference(words: str, estimate: Estimate, sign: int = 1) -> Measurement:
    """Return the measurement of a mean difference over seeds."""
    return Measurement(
        f"{words} {estimate.value:+.3f} (p = {estimate.p_value:.2g})",
        range_words(estimate, 3),
        by_interval(estimate, sign),
        (estimate,),
    )


def too_few(models: pd.DataFrame, *encodings: str) -> Measurement | None:
    """Return what is said where fewer than `FEWEST` seeds have been trained, of each of some encodings or at all."""
    seeds = models["seed"].nunique()
    if encodings:
        seeds = min(models.loc[models["encoding"] == name, "seed"].nunique() for name in encodings)
    return Measurement(f"{seeds} seeds so far", "", UNTESTABLE) if seeds < FEWEST else None


def both_kinds(study: Study) -> Measurement:
    """Count clearly positional and clearly symbolic heads at the start and at the end."""
    counts = summaries.counts(scores_of(study, "rope"))
    last = summaries.at_end(counts)
    if missing := too_few(last):
        return missing
    first = counts[counts["step"] == 0]
    ends = [seed_range(last[kind]) for kind in ("positional", "symbolic")]
    starts = [int(first[kind].max()) for kind in ("positional", "symbolic")]
    return Measurement(
        f"{ends[0].value:g} positional and {ends[1].value:g} symbolic heads of 64 (medians); at the start at most "
        f"{starts[0]} and {starts[1]}",
        " and ".join(range_words(end, 0) for end in ends),
        judge(
            all(end.low > start for end, start in zip(ends, starts, strict=True)), all(end.value > 0 for end in ends)
        ),
        tuple(ends),
    )


def positional_first(study: Study) -> Measurement:
    """Compare when the first clearly positional and the first clearly symbolic head stay."""
    kinds, _ = steps_of(study)
    if missing := too_few(kinds):
        return missing
    both = kinds.dropna()
    earlier, later = (
        int((both["positional"] < both["symbolic"]).sum()),
        int((both["positional"] > both["symbolic"]).sum()),
    )
    medians = [seed_range(kinds[kind].dropna()) for kind in ("positional", "symbolic")]
    return Measurement(
        f"positional first in {earlier} of {len(kinds)} seeds, symbolic first in {later}; median updates "
        f"{medians[0].value:.0f} and {medians[1].value:.0f}",
        " and ".join(range_words(median, 0) for median in medians),
        judge(earlier >= 7 / 8 * len(kinds), earlier > len(kinds) / 2),
        tuple(medians),
    )


def symbolic_with_induction(study: Study) -> Measurement:
    """Compare the onset of symbolic heads with that of induction heads, by evaluation points between them."""
    kinds, jobs = steps_of(study)
    if missing := too_few(kinds):
        return missing
    points = sorted(study.tables["loss"]["step"].unique())
    rank = {step: index for index, step in enumerate(points)}
    both = kinds.merge(jobs, on=summaries.KEYS).dropna(subset=["symbolic", "induction"])
    near = sum(abs(rank[row.symbolic] - rank[row.induction]) <= 1 for row in both.itertuples())
    apart = both["symbolic"] - both["induction"]
    return Measurement(
        f"at most one evaluation apart in {near} of {len(kinds)} seeds; symbolic minus induction, median "
        f"{apart.median():+.0f} updates",
        f"{apart.min():.0f} to {apart.max():.0f}",
        judge(near >= 6 / 8 * len(kinds), near > len(kinds) / 2),
    )


def job_score(study: Study, job: str, score: str) -> Measurement:
    """Measure how well a score tells the heads that do a job from all others."""
    scores = summaries.at_end(scores_of(study, "rope"))
    if missing := too_few(scores):
        return missing
    heads = summaries.with_jobs(scores, study.tables["jobs"])
    heads["doing"] = heads[job] >= summaries.JOB
    if not heads["doing"].any():
        return Measurement("no head does this job", "", UNTESTABLE)
    found = summaries.clustered_auc(heads, "doing", score)
    return Measurement(
        f"AUC {found.value:.2f} for {int(heads['doing'].sum())} of {len(heads)} heads (p = {found.p_value:.2g})",
        range_words(found),
        judge(found.low > 0.75, found.low > 0.5, undecided=found.low <= 0.5 <= found.high),
        (found,),
    )


def trade(study: Study) -> Measurement:
    """Measure the correlation of the two scores at the end, against that before the first update."""
    rows = summaries.correlations(scores_of(study, "rope"))
    if missing := too_few(rows):
        return missing
    last, first = seed_range(summaries.at_end(rows)["r"]), seed_range(rows[rows["step"] == 0]["r"])
    return Measurement(
        f"before the first update r = {first.value:.2f} ({range_words(first)}), at the end {last.value:.2f}",
        range_words(last),
        judge(last.value <= -0.5 and last.high < first.low, last.high < 0),
        (last, first),
    )


def early_positional(study: Study) -> Measurement:
    """Measure whether the first half of the layers is more positional than the second."""
    scores = summaries.at_end(scores_of(study, "rope"))
    if missing := too_few(scores):
        return missing
    rows = summaries.early_minus_late(scores)
    return difference("positional − symbolic, first half minus second:", summaries.over_seeds(rows["difference"]))


def fast_planes(study: Study) -> Measurement:
    """Measure whether slower planes are more symbolic, over planes with large logits."""
    planes = summaries.main_models(study.tables["planes"]).query("encoding == 'rope'")
    if missing := too_few(planes):
        return missing
    found = seed_range(summaries.plane_trend(planes)["trend"])
    first = seed_range(summaries.plane_trend(planes[planes["step"] == 0])["trend"])
    return Measurement(
        "Spearman's correlation of frequency ID with positional − symbolic: before the first update "
        f"{first.value:.2f} ({range_words(first)}), at the end {found.value:.2f}",
        range_words(found),
        judge(found.high <= -0.3, found.high < 0),
        (found, first),
    )


def nope_previous_token(study: Study) -> Measurement:
    """Look for heads of NoPE models that attend to the token before while the score calls them symbolic."""
    scores = summaries.at_end(scores_of(study, "nope"))
    if missing := too_few(scores):
        return missing
    heads = summaries.with_jobs(scores, study.tables["jobs"])
    found = heads[(heads["previous_token"] >= summaries.JOB) & (heads["symbolic"] >= 0.999)]
    seeds = found["seed"].nunique()
    total = heads["seed"].nunique()
    return Measurement(
        f"{len(found)} such heads in {seeds} of {total} seeds; lowest symbolic score of any head "
        f"{heads['symbolic'].min():.4f}",
        "",
        judge(seeds == total, seeds > 0),
    )


def kind_by_encoding(study: Study, kind: str, first: str, second: str) -> Measurement:
    """Compare the number of clearly positional or symbolic heads of two encodings, seed by seed."""
    counts = summaries.at_end(summaries.counts(scores_of(study))).astype({kind: float})
    if missing := too_few(counts, first, second):
        return missing
    return difference(f"{kind} heads of 64, mean difference", summaries.paired(counts, kind, first, second))


def far_by_encoding(study: Study, first: str, second: str) -> Measurement:
    """Compare the loss far beyond the trained length of two encodings, seed by seed."""
    rows = far_rows(study).query("edit == 'none'")
    if missing := too_few(rows, first, second):
        return missing
    found = summaries.paired(rows, "loss", first, second)
    return difference(FAR, found, sign=-1)


def far_by_edit(study: Study, first: str, second: str) -> Measurement:
    """Compare the loss far beyond the trained length of the same models under two edits."""
    rows = far_rows(study).query("encoding == 'rope'")
    if missing := too_few(rows):
        return missing
    found = summaries.paired(rows, "loss", first, second, by="edit")
    return difference(FAR, found, sign=-1)


def far_rows(study: Study) -> pd.DataFrame:
    """Return the loss far beyond the trained length of the models of the main width and corpus."""
    return summaries.far_loss(summaries.main_models(study.tables["length"]), study.manifest["config"]["length"])


def lost_in_the_middle(study: Study) -> Measurement:
    """Measure whether a pair planted in the middle of the window is recalled worse than one near and than one far."""
    recall = summaries.main_models(study.tables["recall"]).query("encoding == 'rope_million'")
    if missing := too_few(recall):
        return missing
    sides = summaries.recall_less_middle(recall)
    near, far = (summaries.over_seeds(sides[side]) for side in ("near", "far"))
    return Measurement(
        f"recall minus that of the middle third: nearest third {near.value:+.3f} (p = {near.p_value:.2g}), farthest "
        f"{far.value:+.3f} (p = {far.p_value:.2g})",
        f"{range_words(near, 3)} and {range_words(far, 3)}",
        judge(min(near.low, far.low) > 0, undecided=min(near.high, far.high) >= 0),
        (near, far),
    )


def same_kind_elsewhere(study: Study, text: str) -> Measurement:
    """Measure how well heads keep their order from positional to symbolic on another text."""
    scores = summaries.main_models(study.tables["scores"]).query("encoding == 'rope'")
    if missing := too_few(scores[scores["text"] == text]):
        return missing
    rows = summaries.agreement(scores, text)
    found = seed_range(rows["agreement"])
    return Measurement(
        f"Spearman's correlation over heads {found.value:.2f}",
        range_words(found),
        judge(found.low >= 0.8, found.low >= 0.5),
        (found,),
    )


def probe(study: Study, name: str, encoding: str | None = None) -> pd.DataFrame:
    """Return a table that only probed models have, of one encoding or all; without such models, one without rows."""
    rows = study.tables.get(name, pd.DataFrame(columns=summaries.KEYS))
    return rows if encoding is None else rows[rows["encoding"] == encoding]


def recall_symbolic(study: Study) -> Measurement:
    """Measure how well heads' leads tell those that carry recall from all other heads."""
    without = probe(study, "without_heads", "rope")
    if missing := too_few(without):
        return missing
    heads = summaries.recall_carriers(summaries.recall_lost(without), scores_of(study, "rope"))
    if not heads["carrier"].any():
        return Measurement(f"no head carries {summaries.CARRIES:.0%} of recall", "", UNTESTABLE)
    found = summaries.clustered_auc(heads.assign(symbolic=-heads["lead"]), "carrier", "symbolic")
    ranks = [model["share"].corr(-model["lead"], method="spearman") for _, model in heads.groupby(summaries.KEYS)]
    return Measurement(
        f"Spearman's correlation over all heads {pd.Series(ranks).median():.2f} (median over seeds); "
        f"AUC {found.value:.2f} for {int(heads['carrier'].sum())} of {len(heads)} heads (p = {found.p_value:.2g})",
        range_words(found),
        judge(found.low > 0.75, found.low > 0.5, undecided=found.low <= 0.5 <= found.high),
        (found,),
    )


def recall_quarter(study: Study) -> Measurement:
    """Compare the recall lost without the most symbolic quarter and without random heads of the same layers."""
    without = probe(study, "without_heads", "rope")
    if missing := too_few(without):
        return missing
    lost = summaries.quarter_lost(summaries.recall_lost(without))
    found = difference(
        "symbolic minus random heads:",
        summaries.paired(lost, "lost", "symbolic quarter", "as many as symbolic", by="group"),
    )
    means = lost.groupby("group")["lost"].mean()
    words = f"{means['symbolic quarter']:.2f}, without the positional {means['positional quarter']:.2f}"
    return found._replace(measured=f"nats of recall lost: without the symbolic quarter {words}; {found.measured}")


def recall_depth(study: Study) -> Measurement:
    """Measure whether recall rests more on symbolic than on positional heads the farther back a pair stands."""
    without = probe(study, "without_heads", "rope")
    if missing := too_few(without):
        return missing
    shares = summaries.share_by_kind(summaries.recall_lost(without), scores_of(study, "rope"))
    found = summaries.over_seeds(summaries.turn_symbolic(shares)["turn"])
    return difference("share of recall, symbolic minus positional quarter, far minus near:", found)


def forecast_length(study: Study) -> Measurement:
    """Compare the forecast of the failing length with two constants, by their errors in powers of 2."""
    reach = probe(study, "reach")
    if missing := too_few(reach):
        return missing
    lengths = summaries.failing_lengths(reach)
    errors = summaries.forecast_errors(lengths, study.manifest["config"]["length"])
    means = errors.groupby("seed")[["forecast", "at once", "others"]].mean()
    against = [summaries.over_seeds(means["forecast"] - means[name]) for name in ("at once", "others")]
    better, worse = [found.high < 0 for found in against], any(found.low > 0 for found in against)
    medians = lengths.groupby("encoding", sort=False)[["relocated", summaries.TOLD]].median()
    medians["off"] = errors.groupby("encoding")["forecast"].mean()
    words = ", ".join(
        f"{row.relocated:.0f} and {row.measured:.0f} ({summaries.ENCODING_NAMES.get(name, name)}; error {row.off:.2f})"
        for name, row in medians.iterrows()
    )
    return Measurement(
        f"median forecast and measured length: {words}; mean error {means['forecast'].mean():.2f} powers of 2 "
        f"({against[0].value:+.2f} against failing at the trained length, {against[1].value:+.2f} against the other "
        "encodings' mean)",
        " and ".join(range_words(found) for found in against),
        judge(all(better), any(better) and not worse, undecided=not any(better) and not worse),
        tuple(against),
    )


def angles_or_number(study: Study) -> Measurement:
    """Compare the rise of the loss where angles alone are new with that where there are only more keys."""
    reach = probe(study, "reach", "rope")
    if missing := too_few(reach):
        return missing
    rows = summaries.rises(reach)
    ways = {"gap": "gap", "more keys": "more keys", "forecast": "relocated", "measured": summaries.TOLD}
    words = ", ".join(f"{name} {rows[way].mean():+.2f}" for name, way in ways.items())
    found = difference("gap minus more keys", summaries.over_seeds(rows["gap"] - rows["more keys"]))
    return found._replace(measured=f"rise of the loss, nats per token: {words}; {found.measured}")


def number_without_positions(study: Study) -> Measurement:
    """Measure the rise of the loss of NoPE models where there are only more keys."""
    reach = probe(study, "reach", "nope")
    if missing := too_few(reach):
        return missing
    rows = summaries.rises(reach)
    found = difference("more keys", summaries.over_seeds(rows["more keys"]))
    words = ", ".join(f"{name} {rows[name].mean():+.2f}" for name in ("gap", summaries.TOLD))
    return found._replace(measured=f"rise of the loss, nats per token: {words}, {found.measured}")


def same_at_other_sizes(study: Study) -> Measurement:
    """Measure the correlation of the two scores at other widths and on the other corpus."""
    scores = summaries.held_out(study.tables["scores"]).query("encoding == 'rope'")
    rows = summaries.correlations(scores)
    others = rows[(rows["width"] != 512) | (rows["corpus"] != "source")]
    if others.empty:
        return Measurement("no other size or corpus so far", "", UNTESTABLE)
    groups = summaries.at_end(others).groupby(["width", "corpus"])["r"].median()
    words = ", ".join(f"{r:.2f} at width {width} on {corpus}" for (width, corpus), r in groups.items())
    first = others.loc[others["step"] == 0, "r"].median()
    return Measurement(
        f"median r = {words}; before the first update {first:.2f}",
        "",
        judge((groups <= -0.5).all(), (groups < 0).all()),
    )


claim = claims_in(OWN, CHAPTER, STUDY)
BY_STUDENT = "95 % interval over seeds (Student's t)"
THREE = f"not testable with fewer than {FEWEST} seeds"
DECIDED = f"holds if the whole {BY_STUDENT} is on the stated side, not shown if it contains both directions; {THREE}"

CLAIMS = (
    claim(
        "born-both-kinds",
        "question",
        "Heads of a language model become clearly positional and clearly symbolic as it learns; random ones "
        "are neither.",
        "not studied",
        f"clearly: the two scores, with swaps weighed in proportion, differ by {summaries.MARGIN}. RoPE, base 10⁴. "
        "Holds if in every seed more heads of both kinds are there at the end than in any seed before the first "
        f"update; {THREE}",
        both_kinds,
        SEED_RANGE,
    ),
    claim(
        "born-positional-first",
        "question",
        "Positional heads appear before symbolic ones.",
        "not studied",
        "of each kind: the update from which on a clear head is always there. Holds if positional "
        f"heads are strictly first in 7 of 8 seeds, in part if in most; {THREE}",
        positional_first,
        SEED_RANGE,
    ),
    claim(
        "born-with-induction",
        "question",
        "Symbolic heads appear together with the induction heads.",
        "not studied",
        f"an induction head, on repeated random tokens, puts {summaries.JOB} of its attention on the token after the "
        "current token's earlier occurrence. Holds if both onsets are at most one evaluation apart in 6 of 8 seeds, "
        f"in part if in most; {THREE}",
        symbolic_with_induction,
        SEED_RANGE,
    ),
    claim(
        "born-previous-token",
        "question",
        "The positional score tells previous-token heads from all other heads.",
        "not studied",
        f"a previous-token head puts {summaries.JOB} of its attention on the token before, on other windows than "
        "those scored. AUC over all heads of RoPE models, models and layers resampled. Holds if the interval is above "
        f"0.75, in part if above 0.5, not shown if it contains 0.5; {THREE}",
        lambda study: job_score(study, "previous_token", "positional"),
        CONFIDENCE,
    ),
    claim(
        "born-induction-symbolic",
        "question",
        "The symbolic score tells induction heads from all other heads.",
        "not studied",
        "as for previous-token heads; induction is labelled on repeated random tokens, scores are taken on text",
        lambda study: job_score(study, "induction", "symbolic"),
        CONFIDENCE,
    ),
    claim(
        "born-trade",
        "after 2511.11579, section 4",
        "The two scores are negatively correlated over the heads of a trained model, more than over random heads.",
        "−0.91 (gemma-2-2b-it)",
        "Pearson's r over heads, RoPE. Holds if the median over seeds is at most −0.5 and every seed's r lies below "
        f"every seed's before the first update; in part if every seed's is negative; {THREE}",
        trade,
        SEED_RANGE,
    ),
    claim(
        "born-early-positional",
        "after 2511.11579, section 4",
        "Early layers are more positional than late ones.",
        "median 0.83 in early layers, 0.56 in late ones (gemma-2-2b-it)",
        f"median over heads of positional − symbolic, first half of the layers minus second, per seed; {DECIDED}",
        early_positional,
        CONFIDENCE,
    ),
    claim(
        "born-fast-planes",
        "after 2511.11579, section 4",
        "Slow planes are symbolic, faster ones positional, where their logits are large.",
        "low frequencies symbolic, middle to high positional",
        "Spearman's correlation of frequency ID with positional − symbolic, over planes whose norm is above the "
        f"median of their head, RoPE. Holds if at most −0.3 in every seed, in part if negative in every seed; {THREE}",
        fast_planes,
        SEED_RANGE,
    ),
    claim(
        "born-nope-blind",
        "question",
        "Models without position encoding have previous-token heads, and the score calls them purely symbolic.",
        "not studied",
        "a head with previous-token attention of "
        f"{summaries.JOB} and a symbolic score of 0.999. Holds if every seed has one, in part if any; {THREE}",
        nope_previous_token,
    ),
    claim(
        "born-slow-still",
        "question",
        "With the slow half of the planes stopped, more heads become symbolic.",
        "not studied",
        f"clearly symbolic heads, slow half stopped minus RoPE, seed by seed; {DECIDED}",
        lambda study: kind_by_encoding(study, "symbolic", "slow_half_still", "rope"),
        CONFIDENCE,
    ),
    claim(
        "born-fast-still",
        "question",
        "With the fast half of the planes stopped, fewer heads become positional.",
        "not studied",
        f"clearly positional heads, RoPE minus fast half stopped, seed by seed; {DECIDED}",
        lambda study: kind_by_encoding(study, "positional", "rope", "fast_half_still"),
        CONFIDENCE,
    ),
    claim(
        "born-length-encoding",
        "after 2410.06205",
        "With the slow half of the planes stopped, a model loses less beyond its trained length.",
        "not studied at this size",
        f"held-out loss from 4 to 8 times the trained length, slow half stopped minus RoPE, seed by seed; {DECIDED}",
        lambda study: far_by_encoding(study, "slow_half_still", "rope"),
        CONFIDENCE,
    ),
    claim(
        "born-length-planes",
        "question",
        "Beyond the trained length, stopping the slowest quarter of the planes of a trained model costs less than "
        "stopping none.",
        "not studied",
        f"held-out loss from 4 to 8 times the trained length, slow quarter stopped minus none, seed by seed; {DECIDED}",
        lambda study: far_by_edit(study, "slow still", "none"),
        CONFIDENCE,
    ),
    claim(
        "born-length-windows",
        "question",
        "Beyond the trained length, a window on the most positional quarter of the heads costs less than one on the "
        "most symbolic quarter.",
        "not studied",
        "windows of the trained length and the first token; held-out loss from 4 to 8 times that length, positional "
        f"minus symbolic windowed, seed by seed; {DECIDED}",
        lambda study: far_by_edit(study, "positional windowed", "symbolic windowed"),
        CONFIDENCE,
    ),
    claim(
        "born-lost-in-the-middle",
        "after 2511.11579, theorem 7",
        "With angles that are too slow, a planted pair is recalled worst in the middle of the window.",
        "U-shaped over the answer's position",
        "RoPE, base 10⁶; recall of the nearest third of distances minus that of the middle third, and of the farthest "
        "minus the middle, per seed. Holds if both 95 % intervals over seeds (Student's t) are above 0, does not hold "
        f"if one is below it, else not shown; {THREE}",
        lost_in_the_middle,
        CONFIDENCE,
        changed="the mean of the two outer thirds had to be above the middle third; it was, by 0.007, though recall "
        "fades with distance and the farthest third is the worst",
    ),
    claim(
        "born-same-on-docstrings",
        "question",
        "Heads keep their order from positional to symbolic on prose.",
        "not studied",
        "Spearman's correlation of positional − symbolic over heads, docstrings against source, RoPE. Holds if at "
        f"least 0.8 in every seed, in part if 0.5; {THREE}",
        lambda study: same_kind_elsewhere(study, "docstrings"),
        SEED_RANGE,
    ),
    claim(
        "born-same-on-repeated",
        "question",
        "Heads keep their order from positional to symbolic on repeated random tokens.",
        "not studied",
        f"as on docstrings; {THREE}",
        lambda study: same_kind_elsewhere(study, "repeated tokens"),
        SEED_RANGE,
    ),
    claim(
        "born-same-on-binding",
        "question",
        "Heads keep their order from positional to symbolic on binding prompts.",
        "not studied",
        f"as on docstrings; prompts as in 2511.11579, cut to the scored length, models of seeds 4 to 7; {THREE}",
        lambda study: same_kind_elsewhere(study, BINDING),
        SEED_RANGE,
    ),
    claim(
        "born-recall-symbolic",
        "question",
        "The heads that carry recall are the symbolic ones.",
        "not studied",
        "a planted pair lowers the loss; a head carries recall if without its output at least "
        f"{summaries.CARRIES:.0%} of this gain is lost, over five distances, on other windows than those scored. AUC "
        "by which symbolic − positional tells these heads from all others, RoPE, models and layers resampled. Null: "
        "labels shuffled within models, whatever their layers, so that p may be small where the interval is wide. "
        f"Holds if the interval is above 0.75, in part if above 0.5, not shown if it contains 0.5; {THREE}",
        recall_symbolic,
        CONFIDENCE,
    ),
    claim(
        "born-recall-quarter",
        "question",
        "Zeroing the most symbolic quarter of the heads costs more recall than zeroing as many in the same layers.",
        "not studied",
        "recall is what planted pairs take off the loss, mean over five distances, RoPE. Null: the recall lost without "
        f"as many random heads in every layer, mean of four draws, seed by seed; {DECIDED}",
        recall_quarter,
        CONFIDENCE,
    ),
    claim(
        "born-recall-depth",
        "after 2511.11579, theorem 7",
        "The farther back a pair stands, the more its recall rests on symbolic rather than positional heads.",
        "not studied",
        "zero the heads one at a time, RoPE, and add up what share of recall those of the most symbolic quarter carry, "
        "minus that of the most positional quarter. Compare, seed by seed, this difference at the two longest of five "
        f"distances with that at the two shortest; null: the same near and far; {DECIDED}",
        recall_depth,
        CONFIDENCE,
    ),
    claim(
        "born-forecast-length",
        "question",
        "Windows of the trained length forecast the length at which a language model fails.",
        "not studied",
        f"a model fails at the length of text where the loss of the same tokens is {summaries.RISE} nats above that "
        "at the trained length; where it never fails, the longest length counts, 8 times the trained one. The "
        "forecast puts keys and values of other windows at the positions before. Both lengths are read from the same "
        "tokens and share the loss at the trained length. The error is |log2 of forecast / measured|, mean over five "
        "encodings. The nulls say that every model fails at the trained length, or where the other encodings do on "
        "average. Holds if the error is below that of both nulls over seeds (95 % intervals, Student's t), in part if "
        f"below one and above none, not shown if undecided; {THREE}",
        forecast_length,
        CONFIDENCE,
    ),
    claim(
        "born-length-angles",
        "question",
        "New angles harm RoPE models more than additional keys do.",
        "not studied",
        "two rises of the loss of the same tokens, the first minus the second. First: the older half of a window is "
        "moved back by 7 trained lengths. Second: keys of 7 windows of other texts stand at positions within the "
        "trained length; some stand next to the query, so more than their number is new. RoPE, base 10⁴, seed by "
        f"seed; {DECIDED}",
        angles_or_number,
        CONFIDENCE,
    ),
    claim(
        "born-length-number",
        "question",
        "More keys alone harm models without position encoding.",
        "not studied",
        "rise of the loss of the same tokens with 7 windows of other texts' keys, NoPE, per seed (a gap in positions, "
        f"the control, cannot change it); {DECIDED}",
        number_without_positions,
        CONFIDENCE,
    ),
    claim(
        "born-other-sizes",
        "question",
        "The two scores are negatively correlated at other widths and on prose too.",
        "not studied",
        "median r over seeds at widths 256 and 768, and of models of docstrings. Holds if at most −0.5 in each, in "
        "part if negative in each",
        same_at_other_sizes,
    ),
)
