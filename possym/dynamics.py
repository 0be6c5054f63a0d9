"""Summaries of a training study: tables of single seeds in, tables that charts and claims read out.

Tables in are those of `possym.experiments.learning_dynamics`. Every summary keeps the seeds apart until
`over_seeds` joins them.
"""

import pandas as pd
import torch

from .errors import InputError
from .scores import purity

SIGNS = {"positional": 1, "symbolic": -1}


def over_seeds(table: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Return count, mean, median, low and high of ``value`` over the seeds, one row for each group of ``by``.

    ``low`` and ``high`` are the smallest and the largest seed: with a handful of seeds the range is the honest
    interval. A seed without a value (NaN, such as a level never reached) makes ``high`` NaN and counts as
    the largest for the median; the mean is NaN then.

    Raises:
        InputError: a column is missing.

    >>> table = pd.DataFrame({"step": [0, 0, 0], "seed": [0, 1, 2], "accuracy": [0.25, 0.5, 1.0]})
    >>> over_seeds(table, ["step"], "accuracy").iloc[0].to_dict()
    {'step': 0.0, 'seeds': 3.0, 'mean': 0.5833333333333334, 'median': 0.5, 'low': 0.25, 'high': 1.0}
    """
    if not isinstance(by, list):
        raise InputError(f"by = {by!r}: give a list of columns")
    need(table, [*by, "seed", value])
    filled = table.assign(**{value: table[value].astype(float).fillna(float("inf"))})
    groups = filled.groupby(by, sort=True, dropna=False)[value]
    summary = groups.agg(seeds="size", mean="mean", median="median", low="min", high="max").reset_index()
    return summary.replace([float("inf")], float("nan"))


def learnt_steps(accuracy: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """Return the first evaluated step at which each hop count reaches ``level`` (task, seed, hops, step).

    Validation accuracy counts; NaN where it never gets there.

    Raises:
        InputError: a column is missing, or ``level`` is not between 0 and 1.

    >>> table = pd.DataFrame({"task": "number", "seed": 0, "split": "validation", "hops": 1, "step": [0, 50, 100],
    ...                       "accuracy": [0.1, 0.95, 0.97]})
    >>> learnt_steps(table)["step"].tolist()
    [50.0]
    """
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level <= 1:
        raise InputError(f"level = {level!r}: give an accuracy above 0 and at most 1")
    single = validation(accuracy)
    single = single[single["hops"] > 0]
    reached = single["step"].where(single["accuracy"] >= level)
    return single.assign(step=reached).groupby(["task", "seed", "hops"], as_index=False)["step"].min()


def best_steps(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the first step of the best validation accuracy over all hop counts (task, seed, step, accuracy)."""
    overall = validation(accuracy)
    overall = overall[overall["hops"] == 0].sort_values(["accuracy", "step"], ascending=[False, True])
    return overall.groupby(["task", "seed"], as_index=False)[["step", "accuracy"]].first()


def final_accuracy(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the test accuracy at the end, by hop count, 0 for all together (task, seed, hops, accuracy)."""
    need(accuracy, ["task", "seed", "split", "hops", "accuracy"])
    return accuracy.loc[accuracy["split"] == "test", ["task", "seed", "hops", "accuracy"]].reset_index(drop=True)


def validation(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the validation split."""
    need(accuracy, ["task", "seed", "split", "step", "hops", "accuracy"])
    return accuracy[accuracy["split"] == "validation"]


def pure_counts(heads: pd.DataFrame) -> pd.DataFrame:
    """Return how many heads of each model end pure (task, seed, gamma, kind, heads), zeros included.

    >>> heads = pd.DataFrame({"task": "letter", "seed": 0, "layer": [0, 1], "gamma": 0.1, "kind": [-1, 0]})
    >>> pure_counts(heads)[["kind", "heads"]].values.tolist()
    [['positional', 0], ['symbolic', 1]]
    """
    need(heads, ["task", "seed", "gamma", "kind"])
    groups = heads.groupby(["task", "seed", "gamma"])["kind"]
    counts = [
        groups.agg(lambda kinds, sign=sign: (kinds == sign).sum()).rename("heads").reset_index().assign(kind=kind)
        for kind, sign in SIGNS.items()
    ]
    return pd.concat(counts, ignore_index=True)[["task", "seed", "gamma", "kind", "heads"]]


def passing_kinds(scores: pd.DataFrame, gamma: float = 0.1) -> pd.DataFrame:
    """Return the kinds that a head was of for a while and is not at the end (task, seed, layer, kind, first, last).

    ``first`` and ``last`` are the first and the last evaluated step at which it was pure at ``gamma``.

    Raises:
        InputError: a column is missing, or ``gamma`` is out of range.

    >>> table = pd.DataFrame({"task": "letter", "seed": 0, "layer": 9, "step": [0, 50, 100],
    ...                       "positional": [1.0, 0.95, 0.02], "symbolic": [1.0, 0.04, 0.99]})
    >>> passing_kinds(table)[["layer", "kind", "first", "last"]].values.tolist()
    [[9, 'positional', 50, 50]]
    """
    head = ["task", "seed", "layer"]
    need(scores, [*head, "step", "positional", "symbolic"])
    ordered = scores.sort_values([*head, "step"], ignore_index=True)
    kind = purity(*(torch.tensor(ordered[name].to_numpy(float)) for name in SIGNS), gamma=gamma).numpy()
    ordered["kind"] = pd.Series(kind).map({sign: name for name, sign in SIGNS.items()})
    end = ordered.groupby(head)["kind"].transform(lambda kinds: kinds.iloc[-1])
    passing = ordered[ordered["kind"].notna() & (ordered["kind"] != end)]
    return passing.groupby([*head, "kind"], as_index=False).agg(first=("step", "min"), last=("step", "max"))


def normalised_entropy(scores: pd.DataFrame) -> pd.DataFrame:
    """Return ``scores`` with the entropy of every head scaled to 0…1 over its own training.

    A head whose entropy never changes gets 0.

    Source: 2605.31558, Fig. 2 (min-max normalised a layer).

    >>> table = pd.DataFrame({"task": "letter", "seed": 0, "layer": 0, "step": [0, 1, 2], "entropy": [3.0, 1.0, 2.0]})
    >>> normalised_entropy(table)["entropy"].tolist()
    [1.0, 0.0, 0.5]
    """
    need(scores, ["task", "seed", "layer", "entropy"])
    groups = scores.groupby(["task", "seed", "layer"])["entropy"]
    low, high = groups.transform("min"), groups.transform("max")
    return scores.assign(entropy=((scores["entropy"] - low) / (high - low).where(high > low, 1.0)))


def need(table: pd.DataFrame, columns: list[str]) -> None:
    """Raise an InputError unless ``table`` is a data frame with rows and all of ``columns``."""
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"table is a {type(table).__name__}: give a pandas DataFrame")
    if wrong := [name for name in columns if not isinstance(name, str)]:
        raise InputError(f"column {wrong[0]!r}: give a column's name")
    if missing := [name for name in columns if name not in table]:
        raise InputError(f"the table lacks {', '.join(missing)}: it has {', '.join(map(str, table.columns))}")
    if table.empty:
        raise InputError("the table has no rows")
