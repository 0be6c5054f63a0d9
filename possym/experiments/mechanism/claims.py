"""Claims on what the heads do: what each layer computes, and by which frequencies."""

import numpy as np
import pandas as pd
import torch

from possym.experiments.claim import (
    CONFIDENCE,
    SEED_RANGE,
    Claim,
    Measurement,
    claims_in,
    judge,
    percent_interval,
    proportion,
    seed_range,
)
from possym.experiments.mechanism.token_flow import function_name
from possym.results import Study
from possym.results.published import published
from possym.scores import purity

CHAPTER = "08-what-the-heads-do"
STUDY = "mechanism"
READING = 2  # frequency IDs by which a range over seeds is widened
SLOW = 18  # the fastest dominant frequency ID of the letter task in Table 1
HOPS = 4


def of_task(study: Study, table: str, task: str) -> pd.DataFrame:
    """Return one task's rows of a table."""
    rows = study.tables[table]
    return rows[rows["task"] == task]


def dominant(study: Study, task: str) -> dict[str, pd.DataFrame]:
    """Return dominant frequency IDs by weighting, seeds as rows and layers as columns, mean over heads."""
    rows = of_task(study, "frequencies", task)
    return {
        weighting: group.pivot_table(index="seed", columns="layer", values="dominant")
        for weighting, group in rows.groupby("weighting", sort=False)
    }


def table_one(task: str):
    """Measure dominant frequency IDs against Table 1, under the weighting that comes closest."""

    def measure(study: Study) -> Measurement:
        paper = np.array(published(f"P2.table1.{task}").value)
        hits, every_seed = {}, {}
        for weighting, ids in dominant(study, task).items():
            shared = min(len(paper), ids.shape[1])
            low, high = ids.min().to_numpy()[:shared] - READING, ids.max().to_numpy()[:shared] + READING
            hits[weighting] = int(((low <= paper[:shared]) & (paper[:shared] <= high)).sum())
            every_seed[weighting] = ids
        best = max(hits, key=hits.get)
        words = ", ".join(f"{value:.0f}" for value in every_seed[best].median())
        every = ", ".join(f"{weighting} {count}" for weighting, count in hits.items())
        return Measurement(
            f"weighted by {best}: {words} (medians over seeds); layers that agree: {every} of {len(paper)}",
            "",
            judge(hits[best] == len(paper), hits[best] >= len(paper) / 2),
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
        f"fastest layer of a seed: median ID {median:.0f} or slower",
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
            judge(exact == len(labels), known > len(labels) / 2),
            found,
        )

    return measure


def impossible(task: str, kind: int):
    """Measure how many heads with the task's function end purely of the kind that cannot compute it."""

    def measure(study: Study) -> Measurement:
        rows = of_task(study, "training", task)
        end = rows[rows["step"] == rows["step"].max()]
        scores = (torch.tensor(end[name].to_numpy()) for name in ("positional", "symbolic"))
        kinds = pd.Series(purity(*scores, 0.1).numpy(), index=end.index)[end["function"] > 0]
        wrong, total = int((kinds == kind).sum()), len(kinds)
        name = {1: "positional", -1: "symbolic"}[kind]
        other = int((kinds == -kind).sum())
        opposite = {1: "positional", -1: "symbolic"}[-kind]
        found = (proportion(wrong, total), proportion(other, total))
        return Measurement(
            f"{wrong} of {total} such heads are purely {name}, {other} purely {opposite}",
            percent_interval(found[0]),
            judge(total > 0 and wrong == 0, total > 0 and wrong <= total / 10),
            found,
        )

    return measure


claim = claims_in("P2", CHAPTER, STUDY)


def table_claim(task: str) -> Claim:
    """Return the claim on Table 1."""
    value = published(f"P2.table1.{task}").value
    return claim(
        f"{task}-table1",
        "Table 1",
        f"On the {task} task layers 0 to 11 have these dominant frequency IDs.",
        ", ".join(map(str, value)),
        "the paper does not say how its average is weighted, so four weightings are tried and the one that agrees in "
        f"most layers counts. Holds if the paper's ID lies within the range over seeds, widened by {READING}, in every "
        "layer; in part if in half of them",
        table_one(task),
    )


CLAIMS = (
    claim(
        "number-composition",
        "section 3.2 and appendix F",
        "The number task is computed as Reflexive^(L−h)(Index^h): each of the first layers takes one hop by Index, the "
        "others leave their input alone.",
        "Index^h, then Reflexive",
        "a layer's function is the power of Index that its states agree with best, at 80 % of the places on paths or "
        f"more. Holds if in every seed layers 0 to {HOPS - 1} are Index and all others Reflexive; in part if in most "
        "seeds there is nothing but Index layers and, above them, Reflexive ones",
        composition("number"),
        CONFIDENCE,
    ),
    claim(
        "letter-composition",
        "section 3.2 and appendix F",
        "The letter task is computed as Reflexive^(L−h)(Retrieval^h): each of the first layers takes one hop by "
        "Retrieval, the others leave their input alone.",
        "Retrieval^h, then Reflexive",
        f"as for the number task. Holds if in every seed layers 0 to {HOPS - 1} are Retrieval and all others "
        "Reflexive; in part if in most seeds there is nothing but Retrieval layers and, above them, Reflexive ones",
        composition("letter"),
        CONFIDENCE,
    ),
    claim(
        "no-symbolic-index",
        "Remark 3.1",
        "A purely symbolic head cannot compute Index.",
        "none",
        "looks at trained heads whose layer is labelled Index or a power of it. Holds if none is purely symbolic at "
        "the last place (γ = 0.1); in part if one in ten is",
        impossible("number", -1),
        CONFIDENCE,
    ),
    claim(
        "no-positional-retrieval",
        "Remark 3.1",
        "A purely positional head cannot compute Retrieval.",
        "none",
        "looks at trained heads whose layer is labelled Retrieval or a power of it. Holds if none is purely positional "
        "at the last place (γ = 0.1); in part if one in ten is",
        impossible("letter", 1),
        CONFIDENCE,
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
)
