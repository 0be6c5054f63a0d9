"""Numbers that the chapter and the claims read from the tables of the study.

Trained models come in seeds, and an interval is one over seeds; a real model has one, and its interval is one over
sequences. `units` takes the means that make both alike: one value a unit.
"""

import numpy as np
import pandas as pd
import scipy

from possym.experiments.language_models.summaries import clustered_auc
from possym.profiling.statistics import Estimate

SCORE_RULES = ("positional", "kind_distance", "fitted")  # what a profile alone knows
BASELINES = ("beyond", "area", "entropy", "random")
SHOWN = (0.25, 0.5, 0.75, 0.9)  # shares of heads with a window that tables have, if the study does
COMPARED = (*SCORE_RULES, "combined", *BASELINES)  # all but the oracle, which is a measure and no rule
RULE_NAMES = {
    "positional": "most positional",
    "kind_distance": "kind × distance",
    "fitted": "kind × distance, fitted windows",
    "combined": "kind and attention beyond",
    "beyond": "attention beyond the window",
    "area": "mean-key area",
    "entropy": "entropy",
    "random": "random",
    "oracle": "each head tried alone",
}


def of_model(table: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return the rows of one model, all its seeds."""
    return table[table["model"] == model]


def units(rows: pd.DataFrame, value: str) -> pd.Series:
    """Return one mean a seed, or a sequence where there is one seed, of a column of one model's rows.

    >>> table = pd.DataFrame({"seed": [0, 0, 1, 1], "sequence": [0, 1, 0, 1], "loss": [1.0, 3.0, 2.0, 4.0]})
    >>> units(table, "loss").tolist(), units(table[:2], "loss").tolist()
    ([2.0, 3.0], [1.0, 3.0])
    """
    return rows.groupby("seed" if rows["seed"].nunique() > 1 else "sequence")[value].mean()


def estimate(values: pd.Series) -> Estimate:
    """Return the mean of one value a unit, its 95 % interval and its p-value against 0, by Student.

    >>> [round(number, 2) for number in estimate(pd.Series([1.0, 2.0, 3.0]))]
    [2.0, -0.48, 4.48, 0.07]
    """
    values = values.dropna()
    if len(values) < 2 or values.nunique() == 1:
        mean = float(values.mean())
        return Estimate(mean, mean, mean)
    found = scipy.stats.ttest_1samp(values, 0.0)
    low, high = found.confidence_interval(0.95)
    return Estimate(float(values.mean()), float(low), float(high), float(found.pvalue))


def estimates(rows: pd.DataFrame, keys: list[str], value: str) -> pd.DataFrame:
    """Return the keys, value, low, high of a column: of every group of rows by ``keys``, the interval over units."""
    found = [(*key, *estimate(units(some, value))[:3]) for key, some in rows.groupby(keys)]
    return pd.DataFrame(found, columns=[*keys, "value", "low", "high"])


def excess(loss: pd.DataFrame) -> pd.DataFrame:
    """Return model, seed, rule, share, sequence, excess: the loss under a plan less that of the intact model.

    Draws of a rule are averaged; an interval over seeds or sequences holds what draws add to it.
    """
    keys = ["model", "seed", "sequence"]
    intact = loss[loss["rule"] == "none"].set_index(keys)["loss"].rename("intact")
    rows = loss[loss["rule"] != "none"].groupby([*keys, "rule", "share"], as_index=False)["loss"].mean()
    rows = rows.join(intact, on=keys)
    return rows.assign(excess=rows["loss"] - rows["intact"]).drop(columns=["loss", "intact"])


def curve(loss: pd.DataFrame) -> pd.DataFrame:
    """Return model, rule, share, value, low, high of the excess loss, the interval over units."""
    return estimates(excess(loss), ["model", "rule", "share"], "excess")


def less(table: pd.DataFrame, value: str, first: pd.Series, second: pd.Series) -> Estimate:
    """Return the mean over units of one model's rows ``first`` less its rows ``second``, two masks."""
    return estimate(units(table[first], value) - units(table[second], value))


def rule_less_rule(loss: pd.DataFrame, model: str, first: str, second: str, share: float) -> Estimate:
    """Return the excess loss under one rule's plan less that under another's, at one share."""
    rows = of_model(excess(loss), model)
    rows = rows[np.isclose(rows["share"], share)]
    return less(rows, "excess", rows["rule"] == first, rows["rule"] == second)


def best_rule(loss: pd.DataFrame, model: str, share: float, rules: tuple[str, ...] = COMPARED) -> str:
    """Return the rule of least mean excess loss at one share."""
    rows = of_model(excess(loss), model)
    rows = rows[np.isclose(rows["share"], share) & rows["rule"].isin(rules)]
    return str(rows.groupby("rule")["excess"].mean().idxmin())


def gap_closed(loss: pd.DataFrame, model: str, rule: str, share: float) -> pd.Series:
    """Return per unit what part of the way from random to the oracle a rule goes."""
    rows = of_model(excess(loss), model)
    rows = rows[np.isclose(rows["share"], share)]
    random, own, oracle = (units(rows[rows["rule"] == name], "excess") for name in ("random", rule, "oracle"))
    return (random - own) / (random - oracle)


def recall_lost(dose: pd.DataFrame, model: str, group: str, arm: str, planes: str, share: float) -> pd.Series:
    """Return per unit the recall with no plane silenced less that with a share of the planes silenced."""
    rows = of_model(dose, model)
    rows = rows[(rows["mode"] == "silence") & (rows["group"] == group) & (rows["arm"] == arm)]
    rows = rows[rows["planes"] == planes]
    rows = rows.assign(right=rows["right"].astype(float))
    at = min(rows["dose"].unique(), key=lambda found: abs(found - share * rows["dose"].max()))
    return units(rows[rows["dose"] == 0], "right") - units(rows[rows["dose"] == at], "right")


def dose_curve(dose: pd.DataFrame) -> pd.DataFrame:
    """Return model, group, arm, planes, mode, dose, value, low, high of recall, the interval over units."""
    keys = ["model", "group", "arm", "planes", "mode", "dose"]
    found = estimates(dose.assign(right=dose["right"].astype(float)), keys, "right")
    return found.assign(low=found["low"].clip(lower=0), high=found["high"].clip(upper=1))  # a share is within these


def silent_or_still(dose: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return recall by the number of slowest planes of the retrieval heads: these silent, and these turning no more.

    >>> rows = [("silence", 0, 0.5), ("silence", 8, 0.0), ("unrotate", 0, 0.5), ("unrotate", 8, 0.25)]
    >>> table = pd.DataFrame(rows, columns=["mode", "dose", "right"])
    >>> table = table.assign(model="a", group="retrieval", arm="group", planes="slowest")
    >>> silent_or_still(table, "a").values.tolist()
    [[0.5, 0.5], [0.0, 0.25]]
    """
    rows = of_model(dose, model)
    rows = rows[(rows["group"] == "retrieval") & (rows["arm"] == "group") & (rows["planes"] == "slowest")]
    table = rows.assign(right=rows["right"].astype(float)).pivot_table(index="dose", columns="mode", values="right")
    names = {"silence": "recall, silent", "unrotate": "recall, not turning"}
    return table.rename(columns=names).rename_axis(index="slowest planes", columns=None)[[*names.values()]]


def probe_lost(knock_out: pd.DataFrame, model: str, probe: str, group: str, arm: str = "group") -> pd.Series:
    """Return per unit what a probe of the intact model had more than without a group's heads."""
    rows = of_model(knock_out, model)
    rows = rows[rows["probe"] == probe]
    intact, without = rows[rows["group"] == "none"], rows[(rows["group"] == group) & (rows["arm"] == arm)]
    return units(intact, "value") - units(without, "value")


def probe_intact(knock_out: pd.DataFrame, model: str, probe: str) -> float:
    """Return the mean of a probe of the intact model."""
    rows = of_model(knock_out, model)
    return float(rows.loc[(rows["probe"] == probe) & (rows["group"] == "none"), "value"].mean())


def retrieval_auc(kinds: pd.DataFrame, groups: pd.DataFrame, model: str) -> Estimate:
    """Return how often a retrieval head is more symbolic than another head, its interval over models and layers."""
    chosen = of_model(groups, model)
    chosen = chosen[(chosen["group"] == "retrieval") & (chosen["arm"] == "group")]
    keys = ["model", "seed", "layer", "head"]
    marked = of_model(kinds, model).merge(chosen[keys].assign(retrieves=True), on=keys, how="left")
    marked = marked.assign(
        retrieves=marked["retrieves"].notna(),
        lead=marked["symbolic"] - marked["positional"],
        encoding=marked["model"],
        width=0,
        corpus="",
    )
    return clustered_auc(marked, "retrieves", "lead")


def bargain(loss: pd.DataFrame, plans: pd.DataFrame) -> pd.DataFrame:
    """Return model, share of heads with a window, cache (the share of it that is held), and by rule the loss added.

    Args:
        loss, plans: the study's tables of these names.
    """
    shown = ["positional", "beyond", "random", "oracle"]
    held = plans[plans["rule"] == "positional"].groupby(["model", "share"])["fraction"].mean().rename("cache")
    table = curve(loss).pivot(index=["model", "share"], columns="rule", values="value")[shown].join(held).reset_index()
    near = np.isclose(table["share"].to_numpy()[:, None], SHOWN).any(1)
    return table.loc[near, ["model", "share", "cache", *shown]].reset_index(drop=True)
