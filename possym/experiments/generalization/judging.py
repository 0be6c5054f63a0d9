"""How good a forecast of the length is at which a model fails: against the measured one, and against simpler guesses.

- `predicted_points`: forecast and measured lengths where accuracy falls below a level;
- `held_out_predictions`, `quality`, `forecast_quality`: the forecast and three simpler ways of predicting, learnt from
  the first half of the seeds and judged on the second;
- `ratios_by_level`, `errors_by_level`: whether the forecast is too short or too long, and whether it errs less than one
  number for all seeds, at each of `LEVELS`;
- `ranks_within`: whether it ranks the models of one kind.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import scipy

from possym.experiments.generalization.summaries import KIND, LEVEL, crossings
from possym.profiling.statistics import Estimate, holm

LEVELS = (0.9, 0.7, 0.5, 0.3)
QUALITY = ["way", "measure", "value", "low", "high", "seeds"]
DRAWS = 9999


def predicted_points(
    accuracy: pd.DataFrame, forecast: pd.DataFrame, by: Sequence[str] = KIND, level: float = LEVEL
) -> pd.DataFrame:
    """Return where each model that has a forecast falls below a level: ``by``, seed, observed, forecast, censored.

    Args:
        accuracy, forecast: tables of a length study; ``censored`` is that of the measured point.
        by: columns that tell kinds of models apart.
        level: of accuracy.
    """
    model = [*by, "seed"]
    observed = crossings(accuracy[accuracy["hops"] == 0], model, level).rename(columns={"point": "observed"})
    predicted = crossings(forecast, model, level).rename(columns={"point": "forecast"})
    return observed.merge(predicted.drop(columns="censored"), on=model)


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


def quality(predicted: pd.DataFrame, *, draws: int = 2000) -> pd.DataFrame:
    """Return how good each way of predicting is: mean error in log10 length and rank correlation, with 95 % intervals.

    Intervals draw seeds with replacement. The rank correlation is Spearman's, NaN where one side does not vary.

    Args:
        predicted: way, predicted, observed, as `predictions` gives them.
        draws: bootstrap draws.

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
            found = bootstrap(function, x, y, draws, 0)
            rows.append((way, measure, found.value, found.low, found.high, len(group)))
    return pd.DataFrame(rows, columns=QUALITY)


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


def ratios_by_level(accuracy: pd.DataFrame, forecast: pd.DataFrame, by: Sequence[str] = KIND) -> pd.DataFrame:
    """Return how the forecast lengths stand to the measured ones: ``by``, level, models, fall, median, low, high.

    ``fall`` of the ``models`` fall below the level at the lengths run; the ratio is theirs, ``low`` and ``high`` the
    smallest and the largest model's. A forecast that stays above the level counts with the longest length.

    Args:
        accuracy, forecast: tables of a length study.
        by: columns that tell kinds of models apart.

    >>> curve = pd.DataFrame({"task": "letter", "seed": 0, "length": [10, 100], "accuracy": [1.0, 0.0]})
    >>> ratios_by_level(curve.assign(hops=0), curve, ["task"])[["level", "median"]].values.tolist()
    [[0.9, 1.0], [0.7, 1.0], [0.5, 1.0], [0.3, 1.0]]
    """
    tables = []
    for level in LEVELS:
        points = predicted_points(accuracy, forecast, by, level)
        points["ratio"] = (points["forecast"] / points["observed"]).where(~points["censored"])
        groups = points.groupby(list(by), sort=False)
        found = groups["ratio"].agg(fall="count", median="median", low="min", high="max")
        found.insert(0, "models", groups.size())
        tables.append(found.reset_index().assign(level=level))
    return pd.concat(tables, ignore_index=True)


def errors_by_level(
    accuracy: pd.DataFrame, forecast: pd.DataFrame, heads: pd.DataFrame, by: Sequence[str] = KIND
) -> pd.DataFrame:
    """Return whether the forecast errs less than one number for all: ``by``, level, seeds, difference, p, holm.

    ``difference`` is the mean over held-out seeds of the forecast's error in log10 length less that of the training
    seeds' median; below 0 the forecast is better. ``p`` is two-sided, of changing the signs of the seeds' differences;
    ``holm`` corrects it over the levels. Models that stay above a level at all lengths run are left out of it.

    Args:
        accuracy, forecast, heads: tables of a length study.
        by: columns that tell kinds of models apart.
    """
    tables = []
    for level in LEVELS:
        points = predicted_points(accuracy, forecast, by, level)
        found = held_out_predictions(points[~points["censored"]], heads, by)
        found["error"] = np.log10(found["predicted"].astype(float) / found["observed"].astype(float)).abs()
        for kind, group in found.groupby(list(by), sort=False):
            errors = group.pivot(index="seed", columns="way", values="error")
            difference, p = sign_test((errors["forecast"] - errors["one number"]).to_numpy())
            row = dict(zip(by, kind, strict=True)) | {"level": level, "seeds": len(errors)}
            tables.append(row | {"difference": difference, "p": p})
    table = pd.DataFrame(tables, columns=[*by, "level", "seeds", "difference", "p"])
    return table.assign(holm=table.groupby(list(by))["p"].transform(lambda p: holm(p.to_numpy(float))))


def sign_test(differences: np.ndarray) -> tuple[float, float]:
    """Return the mean of paired differences and its two-sided p-value, from changing their signs.

    Exact for up to 13 pairs, else by `DRAWS` drawn changes.

    >>> mean, p = sign_test(np.array([1.0, 2.0, 3.0]))
    >>> mean, float(p)
    (2.0, 0.25)
    """
    if len(differences) < 2 or not np.any(differences):
        return float(np.mean(differences)), 1.0
    found = scipy.stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=DRAWS, rng=np.random.default_rng(0)
    )
    return float(found.statistic), float(found.pvalue)


def ranks_within(points: pd.DataFrame, by: Sequence[str]) -> tuple[pd.DataFrame, Estimate]:
    """Return how the forecast ranks the models of one kind: a table of kinds, and the mean over kinds with its p-value.

    Models that stay above the level at all lengths run are left out, and kinds of which fewer than four fall. The rank
    correlation is Spearman's. The mean's p is one-sided, from permuting the forecasts within kinds.

    Args:
        points: as `predicted_points` gives them.
        by: columns that tell kinds of models apart.

    Returns:
        ``by``, models, rank; and the mean rank correlation, from the lowest to the highest kind.
    """
    fallen = points[~points["censored"]]
    random, rows, drawn = np.random.default_rng(0), [], []
    for kind, group in fallen.groupby(list(by), sort=False):
        x, y = scipy.stats.rankdata(group["forecast"]), scipy.stats.rankdata(group["observed"])
        if len(group) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
            continue
        rows.append((*kind, len(group), np.corrcoef(x, y)[0, 1]))
        moved = random.permuted(np.tile(x, (DRAWS, 1)), axis=1)
        drawn.append(((moved - x.mean()) @ (y - y.mean())) / (len(x) * x.std() * y.std()))
    table = pd.DataFrame(rows, columns=[*by, "models", "rank"])
    if table.empty:
        return table, Estimate(math.nan, math.nan, math.nan)
    mean = table["rank"].mean()
    p = (1 + (np.mean(drawn, axis=0) >= mean - 1e-12).sum()) / (DRAWS + 1)
    return table, Estimate(mean, table["rank"].min(), table["rank"].max(), float(p))


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
    return float(scipy.stats.spearmanr(x, y).statistic)
