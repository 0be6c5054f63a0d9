"""What the tables of a length study say: where accuracy falls, which layers fail, what repairs gain, where heads look.

The *90 % point* of a curve is the length where accuracy first falls below 0.9, read off between the lengths measured
on a logarithmic axis. A curve that stays above is given its longest length: a point *at least* so far out.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from possym.experiments.generality.summaries import LEARNT

LEVEL = 0.9
KIND = ("task", "learning_rate")


def crossing(lengths: Sequence[float], accuracy: Sequence[float], level: float = LEVEL) -> float:
    """Return the length where accuracy first falls below a level, interpolated in the logarithm of the length.

    Args:
        lengths: ascending.
        accuracy: at these lengths.
        level: between 0 and 1.

    Returns:
        The length; the first one where accuracy starts below the level, infinity where it never falls below.

    >>> round(crossing([10, 100, 1000], [1.0, 0.95, 0.85]), 3)
    316.228
    """
    lengths, accuracy = np.asarray(lengths, float), np.asarray(accuracy, float)
    below = np.flatnonzero(accuracy < level)
    if not len(below):
        return math.inf
    at = below[0]
    if at == 0:
        return float(lengths[0])
    part = (accuracy[at - 1] - level) / (accuracy[at - 1] - accuracy[at])
    return float(lengths[at - 1] * (lengths[at] / lengths[at - 1]) ** part)


def crossings(table: pd.DataFrame, by: list[str], level: float = LEVEL) -> pd.DataFrame:
    """Return where every curve falls below a level: the columns of ``by``, ``point``, and ``censored`` for a limit.

    Args:
        table: accuracy, a row per length of a curve.
        by: columns that tell curves apart.
        level: of accuracy.

    >>> table = pd.DataFrame({"seed": 0, "length": [10, 100], "accuracy": [1.0, 0.95]})
    >>> crossings(table, ["seed"]).values.tolist()
    [[0, 100, True]]
    """
    rows = []
    for names, curve in table.groupby(by):
        curve = curve.sort_values("length")
        point = crossing(curve["length"].tolist(), curve["accuracy"].tolist(), level)
        rows.append([*names, min(point, curve["length"].max()), math.isinf(point)])
    return pd.DataFrame(rows, columns=[*by, "point", "censored"])


def failing_layers(parts: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return which layers bring a model down, at the first length where the whole model falls below `LEVEL`.

    Args:
        parts: rows with ``by``, way, layer, length and accuracy, see
        `possym.experiments.generalization.layers.layer_effects`.
        by: columns that tell models apart.

    Returns:
        ``by``, length, whole (the accuracy there), first (the lowest layer up to which exposure brings accuracy below
        the level), cause (the layer whose shielding returns most) and returned (the accuracy with that shielding).
        Models that stay above the level are left out.

    >>> table = pd.DataFrame({"seed": 0, "length": 35, "way": ["whole", "upto", "upto", "shielded", "shielded"],
    ...                       "layer": [-1, 0, 1, 0, 1], "accuracy": [0.5, 0.95, 0.5, 0.6, 0.9]})
    >>> failing_layers(table, ["seed"])[["length", "first", "cause", "returned"]].values.tolist()
    [[35.0, 1.0, 1.0, 0.9]]
    """
    rows = []
    for names, model in parts.groupby(by):
        whole = model[(model["way"] == "whole") & (model["accuracy"] < LEVEL)].sort_values("length")
        if whole.empty:
            continue
        length, accuracy = whole["length"].iloc[0], whole["accuracy"].iloc[0]
        there = model[model["length"] == length]
        upto = there[(there["way"] == "upto") & (there["accuracy"] < LEVEL)]
        shielded = there[there["way"] == "shielded"].sort_values("layer")
        best = shielded["accuracy"].idxmax()
        rows.append(
            [*names, length, accuracy, upto["layer"].min(), shielded.loc[best, "layer"], shielded.loc[best, "accuracy"]]
        )
    return pd.DataFrame(rows, columns=[*by, "length", "whole", "first", "cause", "returned"])


def learnt(accuracy: pd.DataFrame, by: Sequence[str] = KIND) -> pd.DataFrame:
    """Return each model's accuracy at the shortest length, and whether it has learnt its task: `LEARNT` or more.

    Args:
        accuracy: table of a length study.
        by: columns that tell kinds of models apart.

    Returns:
        ``by``, seed, accuracy, learnt.

    >>> table = pd.DataFrame({"task": "letter", "seed": [0, 0, 1], "length": [17, 50, 17], "hops": 0,
    ...                       "accuracy": [1.0, 0.5, 0.97]})
    >>> learnt(table, ["task"])["learnt"].tolist()
    [True, False]
    """
    home = accuracy[(accuracy["hops"] == 0) & (accuracy["length"] == accuracy["length"].min())]
    table = home[[*by, "seed", "accuracy"]].reset_index(drop=True)
    return table.assign(learnt=table["accuracy"] >= LEARNT)


def layer_agreement(failing: pd.DataFrame) -> pd.DataFrame:
    """Return how often the forecast failing layer is the measured one, by task, beside a guess.

    Args:
        failing: task, seed, source (measured, forecast) and cause, as `failing_layers` gives them.

    Returns:
        task, models (that fail in both), same, near (at most one layer off) and usual: the share of models whose
        measured layer is the task's most frequent one, as a guess that knows all measurements would have it.

    >>> rows = [("letter", 0, "measured", 1), ("letter", 0, "forecast", 2)]
    >>> layer_agreement(pd.DataFrame(rows, columns=["task", "seed", "source", "cause"]))["near"].tolist()
    [1.0]
    """
    wide = failing.pivot(index=["task", "seed"], columns="source", values="cause")
    wide = wide.reindex(columns=["measured", "forecast"]).dropna()
    apart = (wide["measured"] - wide["forecast"]).abs()
    tasks = apart.groupby("task", sort=False)
    usual = wide["measured"].groupby("task", sort=False).agg(lambda causes: (causes == causes.mode().iloc[0]).mean())
    table = pd.DataFrame({"models": tasks.size(), "same": tasks.agg(lambda x: (x == 0).mean())})
    return table.assign(near=tasks.agg(lambda x: (x <= 1).mean()), usual=usual).reset_index()


def repair_gains(repairs: pd.DataFrame) -> pd.DataFrame:
    """Return what each repair gains: task, length, repair, heads, seeds, gain, low, high, better.

    ``gain`` is the median over seeds of accuracy less that of the same model as it is, ``low`` and ``high`` the
    smallest and largest seed's, ``better`` the share of seeds that gain.

    >>> rows = [(0, "none", "none", 0.5), (0, "p-RoPE", "all", 0.75)]
    >>> table = pd.DataFrame(rows, columns=["seed", "repair", "heads", "accuracy"]).assign(task="letter", length=100)
    >>> repair_gains(table)[["gain", "better"]].values.tolist()
    [[0.25, 1.0]]
    """
    model = ["task", "length", "seed"]
    plain = repairs[repairs["repair"] == "none"][[*model, "accuracy"]]
    table = repairs[repairs["repair"] != "none"].merge(plain, on=model, suffixes=("", "_plain"))
    table["gain"] = table["accuracy"] - table["accuracy_plain"]
    groups = table.groupby(["task", "length", "repair", "heads"], sort=False)["gain"]
    return groups.agg(
        seeds="size", gain="median", low="min", high="max", better=lambda gains: (gains > 0).mean()
    ).reset_index()


def attending_heads(leads: pd.DataFrame, looks: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``leads`` of heads that at training length put at least half of their attention on a step.

    Only steps away from the query's own position count: a head that attends to itself looks up nothing.

    Args:
        leads, looks: tables of `possym.experiments.generalization`.

    >>> head = {"task": "letter", "seed": 0, "layer": 0, "head": 0}
    >>> looks = pd.DataFrame([head | {"hops": h, "step": 1, "weight": w} for h, w in ((1, 0.9), (2, 0.2))])
    >>> attending_heads(pd.DataFrame([head | {"hops": h, "median": 1.0} for h in (1, 2)]), looks)["hops"].tolist()
    [1]
    """
    key = ["task", "seed", "layer", "head", "hops"]
    chosen = looks[(looks["weight"] >= 0.5) & (looks["step"] > 0)]
    return leads.merge(chosen[key], on=key)


def kept_leads(seen: pd.DataFrame) -> pd.DataFrame:
    """Return what a seed keeps of its lead at the longest length, as a share of that at the shortest: a column a task.

    A seed's lead at a length is the median over sequences, heads and hops; below 0 a wrong key leads.

    Args:
        seen: rows of ``leads`` that `looking` has chosen.

    >>> lead = {"task": "letter", "seed": 3, "length": [17, 500], "median": [8.0, 6.0]}
    >>> kept_leads(pd.DataFrame(lead)).to_dict()
    {'letter': {3: 0.75}}
    """
    curves = seen.groupby(["task", "seed", "length"])["median"].median().unstack("length")
    return (curves.iloc[:, -1] / curves.iloc[:, 0]).unstack("task")
