"""Claims on what the heads do: what each layer computes, and by which frequencies."""

import numpy as np
import pandas as pd
import torch

from possym.experiments.claim import (
    CONFIDENCE,
    MOST,
    MOST_BEFORE,
    NO_INTERVAL,
    OWN,
    SEED_RANGE,
    UNTESTABLE,
    VERDICTS,
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
from possym.experiments.learning_dynamics.claims import of_task
from possym.experiments.mechanism.token_flow import function_name
from possym.results import Study
from possym.results.published import papers, published
from possym.scores import purity

CHAPTER = "08-what-the-heads-do"
STUDY = "mechanism"
READING = 2  # frequency IDs by which a range over seeds is widened
SLOW = 18  # the fastest dominant frequency ID of the letter task in Table 1
HOPS = 4
PLANES = 64  # frequency IDs of the paper's heads
NEEDED = 0.9  # a layer is needed if accuracy falls below this without it
FOLLOWED = 0.95


def dominant(study: Study, task: str) -> dict[str, pd.DataFrame]:
    """Return dominant frequency IDs by weighting, seeds as rows and layers as columns, mean over heads."""
    rows = of_task(study, "frequencies", task)
    return {
        weighting: group.pivot_table(index="seed", columns="layer", values="dominant")
        for weighting, group in rows.groupby("weighting", sort=False)
    }


def agreeing(paper: np.ndarray, middle: np.ndarray, reach: np.ndarray) -> int:
    """Return in how many layers the paper's ID lies within ``reach`` of ``middle``.

    >>> agreeing(np.array([1, 2, 9]), np.array([2, 2, 2]), np.array([1, 0, 1]))
    2
    """
    return int((np.abs(paper - middle) <= reach).sum())


def table_one(task: str):
    """Measure dominant frequency IDs against Table 1, under the weighting that comes closest, and one ID for all."""

    def measure(study: Study) -> Measurement:
        paper = np.array(published(f"P2.table1.{task}").value)
        hits, null, every_seed = {}, {}, dominant(study, task)
        for weighting, ids in every_seed.items():
            shared = min(len(paper), ids.shape[1])
            low, high = ids.min().to_numpy()[:shared], ids.max().to_numpy()[:shared]
            middle, reach = (low + high) / 2, (high - low) / 2 + READING
            hits[weighting] = agreeing(paper[:shared], middle, reach)
            null[weighting] = max(agreeing(paper[:shared], np.full(shared, one), reach) for one in range(1, PLANES + 1))
        best = max(hits, key=hits.get)
        words = ", ".join(f"{value:.0f}" for value in every_seed[best].median())
        every = ", ".join(f"{weighting} {count}" for weighting, count in hits.items())
        better, half = hits[best] > max(null.values()), hits[best] >= len(paper) / 2
        return Measurement(
            f"weighted by {best}: {words} (medians over seeds); layers that agree: {every} (of "
            f"{len(paper)}); the same ID for every layer would agree in at most {max(null.values())}",
            "",
            judge(hits[best] == len(paper) and better, half and better, undecided=half and not better),
            tuple(seed_range(every_seed[best][layer]) for layer in every_seed[best]),
        )

    return measure


def fast_then_slow(study: Study) -> Measurement:
    """Measure whether the first four layers of the number task have faster dominant frequencies than the late ones."""
    shares, seeds = {}, 0
    for weighting, ids in dominant(study, "number").items():
        early, late = ids.loc[:, : HOPS - 1], ids.loc[:, HOPS + 1 :]
        shares[weighting] = float((early.max(axis=1) < late.min(axis=1)).mean()) if late.shape[1] else 0.0
        seeds = len(ids)
    words = ", ".join(f"{weighting} {part:.0%}" for weighting, part in shares.items())
    values = list(shares.values())
    found = tuple(proportion(round(part * seeds), seeds) for part in values)
    return Measurement(
        f"in {min(values):.0%} of {seeds} seeds under the weighting that fits least ({words})",
        percent_interval(min(found)),
        judge(min(values) == 1, max(values) > 0.5),
        found,
    )


def slow_everywhere(study: Study) -> Measurement:
    """Measure the fastest dominant frequency of any layer of the letter task."""
    fastest = {weighting: ids.min(axis=1) for weighting, ids in dominant(study, "letter").items()}
    words = ", ".join(f"{weighting} {ids.min():.0f} to {ids.max():.0f}" for weighting, ids in fastest.items())
    lowest, median = min(ids.min() for ids in fastest.values()), min(ids.median() for ids in fastest.values())
    return Measurement(
        f"the fastest layer has ID {median:.0f} or slower in the median seed, whatever the weighting",
        words,
        judge(lowest >= SLOW, median >= SLOW),
        tuple(seed_range(ids) for ids in fastest.values()),
    )


def sequences_of_labels(study: Study, task: str) -> pd.DataFrame:
    """Return each seed's labels of the whole model, layers as columns."""
    rows = of_task(study, "labels", task)
    return rows[rows["without"] == -1].pivot(index="seed", columns="layer", values="function")


def composition(task: str):
    """Measure whether layers compute F in four layers, one hop each, and are Reflexive above."""

    def measure(study: Study) -> Measurement:
        labels = sequences_of_labels(study, task)
        name = function_name(task, 1)
        exact, known = 0, 0
        for values in labels.to_numpy().tolist():
            exact += values == [1] * HOPS + [0] * (len(values) - HOPS)
            known += 1 in values and set(values) <= {0, 1} and values == sorted(values, reverse=True)
        usual = labels.mode().iloc[0].astype(int)
        counts = usual.groupby((usual != usual.shift()).cumsum()).agg(["first", "size"])
        words = ", ".join(f"{function_name(task, int(k))} × {size}" for k, size in counts.to_numpy().tolist())
        found = (proportion(exact, len(labels)), proportion(known, len(labels)))
        return Measurement(
            f"{name} in layers 0 to {HOPS - 1} and Reflexive above in {exact} of {len(labels)} seeds; most often by "
            f"layer: {words}",
            percent_interval(found[0]),
            judge(exact == len(labels), found[1].low > 0.5, undecided=found[1].low <= 0.5 < found[1].value),
            found,
        )

    return measure


def layers_needed(study: Study) -> Measurement:
    """Measure in how many models of each task no layer is one that the model cannot do without."""
    causes = study.tables["causes"]
    rows = causes[causes["task"].isin(TASKS) & (causes["hops"] == 0) & (causes["places"] == "all")]
    rows = rows.assign(needed=rows["accuracy"] < NEEDED)
    said, verdicts, found = [], [], []
    for change, words in (("self", "no layer is needed"), ("uniform", "with attention made uniform instead")):
        parts = []
        for task in TASKS:
            models = rows[(rows["change"] == change) & (rows["task"] == task)]
            none = ~models.groupby("seed")["needed"].any()
            by_layer = models[models["needed"]].groupby("layer").size()
            those = "; ".join(f"layer {layer} is needed in {count}" for layer, count in by_layer.items())
            parts.append(f"{none.sum()} of {len(none)} models of the {task} task{f' ({those})' if those else ''}")
            if change == "self":
                verdicts.append(judge_most(int(none.sum()), len(none)))
                found.append(proportion(int(none.sum()), len(none)))
        said.append(f"{words}{' in' if change == 'self' else ','} {' and '.join(parts)}")
    verdict = max(verdicts, key=VERDICTS.index)
    return Measurement("; ".join(said), percent_interval(*found), verdict, tuple(found))


def hops_ahead(study: Study, task: str) -> pd.Series:
    """Return by seed the largest share of the longest paths with more hops than layers behind, after any layer."""
    left = of_task(study, "left", task)
    left = left[(left["hops"] == HOPS) & (left["layer"] >= 0) & (left["left"] <= HOPS)]
    ahead = left[HOPS - left["left"] > left["layer"] + 1]
    # After layer l, counted from 0, one hop per layer has brought l + 1 hops at most.
    shares = ahead.groupby(["seed", "layer"])["share"].sum().groupby("seed").max()
    return shares.reindex(left["seed"].unique(), fill_value=0.0)


def pointer_doubling(study: Study) -> Measurement:
    """Measure in how many models of each task more hops than layers are behind most of the longest paths."""
    shares = {task: hops_ahead(study, task) for task in TASKS}
    shares = {task: values for task, values in shares.items() if len(values)}
    if not shares:
        return Measurement(f"no model has heads by which a {HOPS}-hop path could be followed", "", UNTESTABLE)
    doubling = {task: int((values >= 0.5).sum()) for task, values in shares.items()}
    found = [proportion(doubling[task], len(values)) for task, values in shares.items()]
    words = "; ".join(
        f"{task} task: in {doubling[task]} of {len(values)} models; the median one runs ahead of one hop a layer on "
        f"{values.median():.0%} of {HOPS}-hop paths"
        for task, values in shares.items()
    )
    verdict = max((judge_most(doubling[task], len(shares[task])) for task in shares), key=VERDICTS.index)
    return Measurement(words, percent_interval(*found), verdict, tuple(found))


def path_followed(study: Study) -> Measurement:
    """Measure what models of the letter task answer where path and rule name different targets."""
    rows = of_task(study, "rule", "letter").query("kind == 'disagree'")
    shares = rows.groupby(["answer", "seed"])["share"].mean().unstack("answer").reindex(columns=["path", "rule"])
    path, rule = shares["path"], shares["rule"]
    return Measurement(
        f"the path in {path.median():.1%} of answers, the rule in {rule.median():.1%} (medians over seeds)",
        f"path {path.min():.1%} to {path.max():.1%}, rule {rule.min():.1%} to {rule.max():.1%}",
        judge(bool(path.min() >= FOLLOWED), bool(path.median() >= FOLLOWED)),
        (seed_range(path), seed_range(rule)),
    )


def rule_where_cut(study: Study) -> Measurement:
    """Measure whether the rule's target is named more often than another where the path is cut."""
    rows = of_task(study, "rule", "letter").query("kind == 'cut-disagree'")
    shares = rows.groupby(["answer", "seed"])["share"].mean().unstack("answer")
    # Of eight targets two hold the answer's token and one is the rule's: five others share what is left.
    rule, chance = shares["rule"], shares["target"] / 5
    more = int((rule > chance).sum())
    found = proportion(more, len(rule))
    return Measurement(
        f"in {more} of {len(rule)} seeds; medians over seeds: the rule's target {rule.median():.1%}, another target "
        f"{chance.median():.1%} each",
        percent_interval(found),
        judge_most(more, len(rule)),
        (found,),
    )


def impossible(task: str, kind: int):
    """Measure how many heads with the task's function end purely of the kind that cannot compute it."""

    def measure(study: Study) -> Measurement:
        rows = of_task(study, "training", task)
        end = rows[rows["step"] == rows["step"].max()]
        scores = (torch.tensor(end[name].to_numpy()) for name in ("positional", "symbolic"))
        kinds = pd.Series(purity(*scores, 0.1).numpy(), index=end.index)[end["function"] > 0]
        wrong, total = int((kinds == kind).sum()), len(kinds)
        if not total:
            return not_testable(f"no head of {end['seed'].nunique()} models computes that function by its label")()
        name = {1: "positional", -1: "symbolic"}[kind]
        other = int((kinds == -kind).sum())
        opposite = {1: "positional", -1: "symbolic"}[-kind]
        found = (proportion(wrong, total), proportion(other, total))
        return Measurement(
            f"{wrong} of {total} heads that compute it are purely {name}, {other} purely {opposite}",
            percent_interval(found[0]),
            judge(wrong == 0, wrong <= total / 10),
            found,
        )

    return measure


claim, own = claims_in("P2", CHAPTER, STUDY), claims_in(OWN, CHAPTER, STUDY)
TASKS = ("number", "letter")
NOT_STUDIED = "not studied"
NO_HEADS = "without any such head it did not hold"
CAUSES, COMPOSITION, SHORTCUT = (
    f"after {papers()['P2']['arxiv']}, {where}"
    for where in ("section 3.2", "section 3.2 and appendix F", "appendix B.2")
)


def table_claim(task: str) -> Claim:
    """Return the claim on Table 1."""
    value = published(f"P2.table1.{task}").value
    return claim(
        f"{task}-table1",
        "Table 1",
        f"On the {task} task layers 0 to 11 have the dominant frequency IDs of the paper's table.",
        ", ".join(map(str, value)),
        "the paper does not say how its average is weighted, so four weightings are tried and the one that agrees in "
        "most layers counts. A layer agrees if the paper's ID lies within the range over seeds, widened by "
        f"{READING}. The null gives all layers one ID and keeps the widths of their ranges; of all IDs and weightings "
        "it takes those that agree in most layers. Holds if every layer agrees; in part if half of them do and more "
        "than under the null; not shown if half do, but no more than under the null",
        table_one(task),
        changed="half of the layers were enough to hold in part, whatever one ID for all layers would reach",
    )


CLAIMS = (
    claim(
        "number-composition",
        "section 3.2 and appendix F",
        "The number task is computed as Reflexive^(L−h)(Index^h): each of the first layers takes one hop by Index, the "
        "others leave their input alone.",
        "Index^h, then Reflexive",
        "a layer's function is the power of Index that its states agree with best, at 80 % of the positions on paths "
        f"or more. Holds if in every seed layers 0 to {HOPS - 1} are Index and all others Reflexive; in part if in "
        "most seeds, with the 95 % interval of their share above one half, the first layers, however many, are Index "
        "and all others Reflexive; not shown if in most, but that interval reaches one half",
        composition("number"),
        CONFIDENCE,
        changed=MOST_BEFORE,
    ),
    claim(
        "letter-composition",
        "section 3.2 and appendix F",
        "The letter task is computed as Reflexive^(L−h)(Retrieval^h): each of the first layers takes one hop by "
        "Retrieval, the others leave their input alone.",
        "Retrieval^h, then Reflexive",
        f"as for the number task. Holds if in every seed layers 0 to {HOPS - 1} are Retrieval and all others "
        "Reflexive; in part if in most seeds, with the 95 % interval of their share above one half, the first "
        "layers, however many, are Retrieval and all others Reflexive; not shown if in most, but that interval reaches "
        "one half",
        composition("letter"),
        CONFIDENCE,
        changed=MOST_BEFORE,
    ),
    claim(
        "no-symbolic-index",
        "Remark 3.1",
        "A purely symbolic head cannot compute Index.",
        "none",
        "looks at trained heads whose layer is labelled Index or a power of it. Holds if none is purely symbolic at "
        "the last position (γ = 0.1); in part if one in ten is; not testable if there is no such head",
        impossible("number", -1),
        CONFIDENCE,
        changed=NO_HEADS,
    ),
    claim(
        "no-positional-retrieval",
        "Remark 3.1",
        "A purely positional head cannot compute Retrieval.",
        "none",
        "looks at trained heads whose layer is labelled Retrieval or a power of it. Holds if none is purely "
        "positional at the last position (γ = 0.1); in part if one in ten is; not testable if there is no such head",
        impossible("letter", 1),
        NO_INTERVAL,
        changed=NO_HEADS,
    ),
    table_claim("number"),
    table_claim("letter"),
    claim(
        "number-fast-then-slow",
        "Table 1",
        "On the number task the layers that take hops use fast frequencies, the late layers slow ones.",
        "1–2 in layers 0–3, 37–39 in layers 5–11",
        f"holds if under every weighting and in every seed each of layers 0 to {HOPS - 1} has a faster dominant "
        f"frequency than each from {HOPS + 1} on; in part if under some weighting in most seeds",
        fast_then_slow,
        CONFIDENCE,
    ),
    claim(
        "letter-slow",
        "Table 1",
        "On the letter task all layers use slow frequencies.",
        "18–42",
        f"holds if under every weighting, in every seed and layer the dominant ID is at least {SLOW}; in part if the "
        "median over seeds of the fastest layer's is",
        slow_everywhere,
        SEED_RANGE,
    ),
    own(
        "no-layer-needed",
        CAUSES,
        "No single layer is needed: whichever one is made to move nothing, the model answers as before.",
        NOT_STUDIED,
        f"each layer in turn attends to its own position alone; it is needed if accuracy over all hop counts falls "
        f"below {NEEDED:.0%}. A model counts if none of its layers is; each task is judged by itself, and the worse "
        f"verdict is the claim's. Holds if every model counts; {MOST}",
        layers_needed,
        CONFIDENCE,
        changed="it held in part if few of all layers of all models were needed: the 95 % interval of their share had "
        "to lie below 5 %. That is met even where one layer is needed in half of the models of a task",
    ),
    own(
        "pointer-doubling",
        COMPOSITION,
        "Layers take more than one hop each, on the number and on the letter task: a position fetches what another "
        "has already fetched.",
        NOT_STUDIED,
        "the null is one hop per layer: after l layers at most l hops are done. A model doubles if after some layer "
        f"more are done on at least half of the {HOPS}-hop paths. Each task is judged by itself, and the worse verdict "
        f"is the claim's. Holds if every model does; {MOST}",
        pointer_doubling,
        CONFIDENCE,
        changed="the statement and its criterion were of the letter task alone",
    ),
    own(
        "path-not-rule",
        SHORTCUT,
        "Models of the letter task follow the path, not the shortcut rule (name the marked target), where the two "
        "disagree.",
        NOT_STUDIED,
        f"on sequences where rule and path disagree. Holds if the path is answered in at least {FOLLOWED:.0%} of them "
        "in every seed; in part if in the median seed",
        path_followed,
        SEED_RANGE,
    ),
    own(
        "rule-where-path-is-cut",
        SHORTCUT,
        "Where the path is cut, models of the letter task give the shortcut rule's answer more often than chance.",
        NOT_STUDIED,
        "on sequences whose path is cut and whose rule names another target than the rest of the path. Chance is the "
        f"mean share of the targets that neither names. Holds if the rule's target is above it in every seed; {MOST}",
        rule_where_cut,
        CONFIDENCE,
    ),
)
