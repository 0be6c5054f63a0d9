"""Summaries of a training study: tables of single seeds in, tables that charts and claims read out.

Tables in: ``accuracy`` (task, seed, step, hops, accuracy) and ``scores`` (task, seed, step, layer, positional,
symbolic, entropy), one row an evaluation. Every summary keeps the seeds apart until `over_seeds` joins them.
"""

import pandas as pd
import torch

from .errors import InputError
from .scores import purity


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
    need(table, [*by, "seed", value])
    filled = table.assign(**{value: table[value].astype(float).fillna(float("inf"))})
    groups = filled.groupby(by, sort=True, dropna=False)[value]
    summary = groups.agg(seeds="size", mean="mean", median="median", low="min", high="max").reset_index()
    return summary.replace([float("inf")], float("nan"))


def overall_accuracy(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy over all hop counts in equal share: columns task, seed, step, accuracy."""
    need(accuracy, ["task", "seed", "step", "hops", "accuracy"])
    return accuracy.groupby(["task", "seed", "step"], as_index=False)["accuracy"].mean()


def learnt_steps(accuracy: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """Return the first evaluated step at which each hop count reaches ``level`` (task, seed, hops, step).

    NaN where it never does.

    Raises:
        InputError: a column is missing, or ``level`` is not between 0 and 1.

    >>> table = pd.DataFrame({"task": "number", "seed": 0, "hops": 1, "step": [0, 50, 100],
    ...                       "accuracy": [0.1, 0.95, 0.97]})
    >>> learnt_steps(table)["step"].tolist()
    [50.0]
    """
    need(accuracy, ["task", "seed", "step", "hops", "accuracy"])
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level <= 1:
        raise InputError(f"level = {level!r}: give an accuracy above 0 and at most 1")
    reached = accuracy["step"].where(accuracy["accuracy"] >= level)
    return accuracy.assign(step=reached).groupby(["task", "seed", "hops"], as_index=False)["step"].min()


def best_steps(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the first step of the best overall accuracy (task, seed, step, accuracy)."""
    overall = overall_accuracy(accuracy).sort_values(["accuracy", "step"], ascending=[False, True])
    return overall.groupby(["task", "seed"], as_index=False).first().sort_values(["task", "seed"])


def head_kinds(scores: pd.DataFrame, gamma: float = 0.1) -> pd.DataFrame:
    """Return each head's kind at the end of training (task, seed, layer, kind, since).

    A head is pure if one score is at least 1 − ``gamma`` and the other at most ``gamma`` from some step to the
    end; ``since`` is that step (NaN for a head that is not pure). ``kind`` is ``"positional"``, ``"symbolic"``
    or ``"neither"``.

    Source: 2605.31558, Figs. 2 and 7; "converged" read as: from some evaluation to the last one.

    >>> table = pd.DataFrame({"task": "letter", "seed": 0, "layer": 3, "step": [0, 50, 100],
    ...                       "positional": [1.0, 0.04, 0.02], "symbolic": [1.0, 0.97, 0.99]})
    >>> head_kinds(table)[["kind", "since"]].values.tolist()
    [['symbolic', 50.0]]
    """
    need(scores, ["task", "seed", "step", "layer", "positional", "symbolic"])
    ordered = scores.sort_values(["task", "seed", "layer", "step"], ignore_index=True)
    pair = [torch.tensor(ordered[name].to_numpy(float)) for name in ("positional", "symbolic")]
    ordered["kind"] = purity(*pair, gamma=gamma).numpy()
    head = ["task", "seed", "layer"]
    ordered["final"] = ordered.groupby(head)["kind"].transform("last")
    # A step counts when no later evaluation, itself included, differs from the last one.
    differs = (ordered["kind"] != ordered["final"]).astype(int)
    later = differs[::-1].groupby([ordered[name] for name in head]).cumsum()[::-1]
    stable = ordered["step"].where((later == 0) & (ordered["final"] != 0))
    kinds = ordered.assign(since=stable).groupby(head, as_index=False).agg(kind=("final", "last"), since=("since", "min"))
    kinds["kind"] = kinds["kind"].map({1: "positional", -1: "symbolic", 0: "neither"})
    return kinds


def pure_counts(scores: pd.DataFrame, gammas: tuple[float, ...] = (0.1, 0.05)) -> pd.DataFrame:
    """Return how many heads of each model end pure (task, seed, gamma, kind, heads), zeros included."""
    counts = []
    for gamma in gammas:
        kinds = head_kinds(scores, gamma)
        for (task, seed), model in kinds.groupby(["task", "seed"]):
            for kind in ("positional", "symbolic"):
                heads = int((model["kind"] == kind).sum())
                counts.append({"task": task, "seed": seed, "gamma": gamma, "kind": kind, "heads": heads})
    return pd.DataFrame(counts)


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
    if missing := [name for name in columns if name not in table]:
        raise InputError(f"the table lacks {', '.join(missing)}: it has {', '.join(map(str, table.columns))}")
    if table.empty:
        raise InputError("the table has no rows")
