"""When a layer takes up its function, and when its head becomes pure."""

import pandas as pd

from possym.experiments.learning_dynamics.summaries import kinds
from possym.experiments.mechanism.token_flow import OTHER


def onsets(training: pd.DataFrame, gamma: float = 0.1) -> pd.DataFrame:
    """Return since which evaluation every layer has had its final function, and its head its final kind.

    Args:
        training: task, seed, step, layer, function, positional, symbolic; of `possym.experiments.mechanism`.
        gamma: a head is pure where one score is at least 1 − γ and the other at most γ.

    Returns:
        task, seed, layer, function (k of F^k, −1 none), function_since, kind (1 positional, −1 symbolic, 0 neither),
        pure_since. The steps are NaN where a layer ends without a function, or a head without a kind.

    >>> table = pd.DataFrame({"task": "letter", "seed": 0, "layer": 0, "step": [0, 50, 100], "function": [0, 1, 1],
    ...                       "positional": [1.0, 0.5, 0.02], "symbolic": [1.0, 0.9, 0.99]})
    >>> onsets(table)[["function", "function_since", "kind", "pure_since"]].values.tolist()
    [[1.0, 50.0, -1.0, 100.0]]
    """
    layer = ["task", "seed", "layer"]
    ordered = training.sort_values([*layer, "step"], ignore_index=True)
    ordered["kind"] = kinds(ordered, gamma)
    rows = []
    for key, group in ordered.groupby(layer):
        function, kind = int(group["function"].iloc[-1]), int(group["kind"].iloc[-1])
        rows.append(
            (*key, function, steady(group, "function", function != OTHER), kind, steady(group, "kind", kind != 0))
        )
    return pd.DataFrame(rows, columns=[*layer, "function", "function_since", "kind", "pure_since"])


def steady(group: pd.DataFrame, column: str, counts: bool) -> float:
    """Return the first step from which a column keeps its last value, NaN unless ``counts``."""
    differs = group["step"].where(group[column] != group[column].iloc[-1])
    after = group["step"] > differs.max() if differs.notna().any() else group["step"] >= 0
    return float(group.loc[after, "step"].iloc[0]) if counts else float("nan")
