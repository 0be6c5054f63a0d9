"""What the tables of a length study say: where accuracy falls, and how good a forecast of that is.

The *90 % point* of a curve is the length where accuracy first falls below 0.9, read off between the lengths measured
on a logarithmic axis. A curve that stays above is given its longest length: a point *at least* so far out.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from possym.experiments.generality.summaries import LEARNT
from possym.profiling.statistics import Estimate

LEVEL = 0.9
KIND = ("task", "learning_rate")
QUALITY = ["way", "measure", "value", "low", "high", "seeds"]


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


def crossings(table: pd.DataFrame, by: list[str], value: str = "accuracy", level: float = LEVEL) -> pd.DataFrame:
    """Return the 90 % point of every curve: the columns of ``by``, ``point``, and ``censored`` where it is a limit.

    Args:
        table: a row a length of a curve.
        by: columns that tell curves apart.
        value: the accuracy's column.
        level: another level than 0.9.

    >>> table = pd.DataFrame({"seed": 0, "length": [10, 100], "accuracy": [1.0, 0.95]})
    >>> crossings(table, ["seed"]).values.tolist()
    [[0, 100, True]]
    """
    rows = []
    for names, curve in table.groupby(by):
        curve = curve.sort_values("length")
        point = crossing(curve["length"].tolist(), curve[value].tolist(), level)
        rows.append([*names, min(point, curve["length"].max()), math.isinf(point)])
    return pd.DataFrame(rows, columns=[*by, "point", "censored"])


def failing_layers(parts: pd.DataFrame, by: list[str], level: float = LEVEL) -> pd.DataFrame:
    """Return which layers bring a model down, at the first length where the whole model falls below a level.

    Args:
        parts: rows with ``by``, way, layer, length and accuracy, see
        `possym.experiments.generalization.layers.layer_effects`.
        by: columns that tell models apart.
        level: see `crossing`.

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
        whole = model[(model["way"] == "whole") & (model["accuracy"] < level)].sort_values("length")
        if whole.empty:
            continue
        length, accuracy = whole["length"].iloc[0], whole["accuracy"].iloc[0]
        there = model[model["length"] == length]
        upto = there[(there["way"] == "upto") & (there["accuracy"] < level)]
        shielded = there[there["way"] == "shielded"].sort_values("layer")
        best = shielded["accuracy"].idxmax()
        rows.append(
            [*names, length, accuracy, upto["layer"].min(), shielded.loc[best, "layer"], shielded.loc[best, "accuracy"]]
        )
    return pd.DataFrame(rows, columns=[*by, "length", "whole", "first", "cause", "returned"])


def predictions(points: pd.DataFrame, features: pd.DataFrame, training: Sequence[int]) -> pd.DataFrame:
    """Return, for every seed that is not among the training seeds, what each way of predicting says of its 90 % point.

    Ways: ``forecast``, the forecast as it is; ``shifted``, the forecast times one number fitted on the training seeds;
    ``one number``, the training seeds' median for all; ``nearest seed``, the point of the training seed whose features
    are nearest.

    Args:
        points: seed, observed and forecast (lengths), of models of one kind.
        features: numbers that describe each model at training length, indexed by seed.
        training: seeds that predictions may learn from.

    Returns:
        seed, way, predicted, observed.
    """
    known = points[points["seed"].isin(training)]
    held_out = points[~points["seed"].isin(training)]
    shift = (np.log(known["observed"]) - np.log(known["forecast"])).median()
    usual = float(np.exp(np.log(known["observed"]).median()))
    rows = []
    for row in held_out.itertuples():
        apart = np.square(features.loc[known["seed"]].to_numpy() - features.loc[row.seed].to_numpy()).sum(1)
        ways = {
            "forecast": row.forecast,
            "shifted": row.forecast * math.exp(shift),
            "one number": usual,
            "nearest seed": known["observed"].iloc[int(apart.argmin())],
        }
        rows += [(row.seed, way, float(value), float(row.observed)) for way, value in ways.items()]
    return pd.DataFrame(rows, columns=["seed", "way", "predicted", "observed"])


def quality(predicted: pd.DataFrame, *, draws: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Return how good each way of predicting is: mean error in log10 length and rank correlation, with 95 % intervals.

    Intervals draw seeds with replacement. The rank correlation is Spearman's, NaN where one side does not vary.

    Args:
        predicted: way, predicted, observed, as `predictions` gives them.
        draws: bootstrap draws.
        seed: of the draws.

    Returns:
        way, measure (``error``, ``rank``), value, low, high, seeds.

    >>> table = pd.DataFrame({"way": "forecast", "predicted": [10.0, 100.0, 90.0], "observed": [100.0, 1000.0, 900.0]})
    >>> quality(table, draws=50)["value"].round(3).tolist()
    [1.0, 1.0]
    """
    rows = []
    for way, group in predicted.groupby("way", sort=False):
        x, y = np.log10(group["predicted"].to_numpy(float)), np.log10(group["observed"].to_numpy(float))
        for measure, function in (("error", log_error), ("rank", rank)):
            found = bootstrap(function, x, y, draws, seed)
            rows.append((way, measure, found.value, found.low, found.high, len(group)))
    return pd.DataFrame(rows, columns=QUALITY)


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


def predicted_points(accuracy: pd.DataFrame, forecast: pd.DataFrame, by: Sequence[str] = KIND) -> pd.DataFrame:
    """Return the 90 % points of every model that has a forecast: ``by``, seed, observed, forecast, censored.

    Args:
        accuracy, forecast: tables of a length study; ``censored`` is that of the measured point.
        by: columns that tell kinds of models apart.
    """
    model = [*by, "seed"]
    observed = crossings(accuracy[accuracy["hops"] == 0], model).rename(columns={"point": "observed"})
    predicted = crossings(forecast, model).rename(columns={"point": "forecast"})
    return observed.merge(predicted.drop(columns="censored"), on=model)


def held_out_predictions(points: pd.DataFrame, heads: pd.DataFrame, by: Sequence[str] = KIND) -> pd.DataFrame:
    """Return `predictions` for the second half of the seeds of each kind of models: their columns, and ``by``.

    The first half of the seeds is what predictions may learn from; a model's features are the two scores of its heads.
    A single seed cannot be split and is left out.

    Args:
        points: as `predicted_points` gives them.
        heads: table of a length study.
        by: columns that tell kinds of models apart.
    """
    tables = []
    for kind, group in points.groupby(list(by), sort=False):
        mine = heads[(heads[list(by)] == list(kind)).all(axis=1)]
        features = mine.pivot(index="seed", columns=["layer", "head"], values=["positional", "symbolic"])
        seeds = sorted(group["seed"])
        if len(seeds) < 2:
            continue
        found = predictions(group, features, seeds[: len(seeds) // 2])
        tables.append(found.assign(**dict(zip(by, kind, strict=True))))
    if not tables:
        return pd.DataFrame(columns=["seed", "way", "predicted", "observed", *by])
    return pd.concat(tables, ignore_index=True)


def forecast_quality(
    points: pd.DataFrame, heads: pd.DataFrame, by: Sequence[str] = KIND, *, draws: int = 2000
) -> pd.DataFrame:
    """Return `quality` of every way of predicting for each kind of models, on the second half of the seeds.

    Args:
        points, heads, by: as for `held_out_predictions`.
        draws: bootstrap draws.
    """
    found = held_out_predictions(points, heads, by)
    rows = [
        quality(group, draws=draws).assign(**dict(zip(by, kind, strict=True)))
        for kind, group in found.groupby(list(by), sort=False)
    ]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=[*QUALITY, *by])


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


def attending_heads(leads: pd.DataFrame, looks: pd.DataFrame, least: float = 0.5) -> pd.DataFrame:
    """Return the rows of ``leads`` of heads that at training length put at least this share of attention on a step.

    Only steps away from the query's own place count: a head that looks at itself looks up nothing.

    Args:
        leads, looks: tables of `possym.experiments.generalization`.
        least: the share.

    >>> head = {"task": "letter", "seed": 0, "layer": 0, "head": 0}
    >>> looks = pd.DataFrame([head | {"hops": h, "step": 1, "weight": w} for h, w in ((1, 0.9), (2, 0.2))])
    >>> attending_heads(pd.DataFrame([head | {"hops": h, "median": 1.0} for h in (1, 2)]), looks)["hops"].tolist()
    [1]
    """
    key = ["task", "seed", "layer", "head", "hops"]
    chosen = looks[(looks["weight"] >= least) & (looks["step"] > 0)]
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


def bootstrap(function, x: np.ndarray, y: np.ndarray, draws: int, seed: int) -> Estimate:
    """Return a function of paired values with the 2.5 to 97.5 % range over draws of pairs; no p-value."""
    drawn = np.random.default_rng(seed).integers(len(x), size=(draws, len(x)))
    spread = np.array([function(x[rows], y[rows]) for rows in drawn])
    spread = spread[~np.isnan(spread)]
    low, high = np.percentile(spread, [2.5, 97.5]) if len(spread) else (math.nan, math.nan)
    return Estimate(function(x, y), float(low), float(high))


def log_error(x: np.ndarray, y: np.ndarray) -> float:
    """Return the mean absolute difference."""
    return float(np.abs(x - y).mean())


def rank(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rank correlation, NaN where one side does not vary."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(stats.spearmanr(x, y).statistic)
