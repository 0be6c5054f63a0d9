"""Numbers that the chapter and the claims read from the tables of the study, one per model or per pair of models."""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from possym.profiling.statistics import Estimate

KEYS = ["encoding", "width", "corpus", "seed"]
MARGIN = 0.5  # a head is clearly of one kind where its two scores differ by this much
JOB = 0.3  # mean attention from which a head does a known job
DRAWS = 2000


def held_out(scores: pd.DataFrame, weighting: str = "relative") -> pd.DataFrame:
    """Return the scores on held-out windows of the model's own corpus, with ``lead`` = positional − symbolic."""
    rows = scores[(scores["text"] == "held out") & (scores["weighting"] == weighting)]
    return rows.assign(lead=rows["positional"] - rows["symbolic"])


def main_models(table: pd.DataFrame, width: int = 512, corpus: str = "source") -> pd.DataFrame:
    """Return the rows of the models of one width and corpus."""
    return table[(table["width"] == width) & (table["corpus"] == corpus)]


def at_end(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the last update."""
    return table[table["step"] == table["step"].max()]


def counts(scores: pd.DataFrame) -> pd.DataFrame:
    """Return per model and step the number of clearly positional and clearly symbolic heads.

    >>> table = pd.DataFrame({"encoding": "rope", "width": 8, "corpus": "source", "seed": 0, "step": 0,
    ...                       "lead": [0.6, 0.1, -0.5, -0.9]})
    >>> counts(table)[["positional", "symbolic"]].iloc[0].tolist()
    [1, 2]
    """
    kinds = scores.assign(positional=scores["lead"] >= MARGIN, symbolic=scores["lead"] <= -MARGIN)
    return kinds.groupby([*KEYS, "step"], as_index=False)[["positional", "symbolic"]].sum()


def onsets(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return per model the first step from which each count is never 0 again; NaN where it is 0 at the end.

    >>> table = pd.DataFrame({"encoding": "rope", "width": 8, "corpus": "source", "seed": 0, "step": [0, 10, 20, 30],
    ...                       "heads": [1, 0, 1, 2], "none": 0})
    >>> onsets(table, ["heads", "none"])[["heads", "none"]].iloc[0].tolist()
    [20.0, nan]
    """
    rows = []
    for key, model in table.sort_values("step").groupby(KEYS):
        found = []
        for column in columns:
            there = (model[column] > 0).to_numpy()
            gone = np.flatnonzero(~there)
            first = gone[-1] + 1 if len(gone) else 0
            found.append(float(model["step"].iloc[first]) if first < len(model) else np.nan)
        rows.append((*key, *found))
    return pd.DataFrame(rows, columns=[*KEYS, *columns])


def job_counts(jobs: pd.DataFrame) -> pd.DataFrame:
    """Return per model and step the number of previous-token heads (on text) and of induction heads."""
    doing = jobs.assign(previous_token=jobs["previous_token"] >= JOB, induction=jobs["induction"] >= JOB)
    return doing.groupby([*KEYS, "step"], as_index=False)[["previous_token", "induction"]].sum()


def correlations(scores: pd.DataFrame) -> pd.DataFrame:
    """Return per model and step Pearson's r between the two scores over heads."""
    rows = [
        (*key, float(np.corrcoef(model["positional"], model["symbolic"])[0, 1]))
        for key, model in scores.groupby([*KEYS, "step"])
    ]
    return pd.DataFrame(rows, columns=[*KEYS, "step", "r"])


def early_minus_late(scores: pd.DataFrame) -> pd.DataFrame:
    """Return per model the median lead of the first half of the layers less that of the second."""
    half = scores["layer"].max() // 2
    medians = scores.assign(early=scores["layer"] <= half).groupby([*KEYS, "early"])["lead"].median().unstack()
    return (medians[True] - medians[False]).rename("difference").reset_index()


def auc(labels: np.ndarray, values: np.ndarray) -> float:
    """Return how often a labelled head has the greater value than another, ties counted half; NaN of one sort alone.

    >>> auc(np.array([True, False, False]), np.array([2.0, 1.0, 2.0]))
    0.75
    """
    chosen, others = values[labels], values[~labels]
    if not len(chosen) or not len(others):
        return float("nan")
    return float(stats.mannwhitneyu(chosen, others).statistic / (len(chosen) * len(others)))


def clustered_auc(table: pd.DataFrame, label: str, value: str, seed: int = 0) -> Estimate:
    """Return the AUC of a score for a job, its 95 % interval from resampled models and layers, and a p-value.

    A draw takes models with replacement, and of each its layers with replacement: heads of one layer are not
    independent, nor are layers of one model. The p-value is that of labels shuffled within models, (k + 1)/(n + 1).

    Args:
        table: `KEYS`, layer, the column ``label`` (bool) and the column ``value``, one row a head.
    """
    generator = np.random.default_rng(seed)
    models = [model for _, model in table.groupby(KEYS)]
    layers = [[(l[label].to_numpy(), l[value].to_numpy()) for _, l in model.groupby("layer")] for model in models]
    observed = auc(table[label].to_numpy(), table[value].to_numpy())
    drawn = []
    for _ in range(DRAWS):
        parts = []
        for m in generator.integers(len(layers), size=len(layers)):
            parts += [layers[m][k] for k in generator.integers(len(layers[m]), size=len(layers[m]))]
        drawn.append(auc(*(np.concatenate(column) for column in zip(*parts, strict=True))))
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    labels = [model[label].to_numpy() for model in models]
    values = np.concatenate([model[value].to_numpy() for model in models])
    shuffled = [auc(np.concatenate([generator.permutation(own) for own in labels]), values) for _ in range(DRAWS)]
    beyond = int(np.sum(np.abs(np.array(shuffled) - 0.5) >= abs(observed - 0.5)))
    return Estimate(observed, float(low), float(high), (beyond + 1) / (DRAWS + 1))


def paired(table: pd.DataFrame, value: str, first: str, second: str, by: str = "encoding") -> Estimate:
    """Return the mean over seeds of one group's value less another's, with its 95 % interval and p-value by Student.

    >>> table = pd.DataFrame({"encoding": ["a", "a", "b", "b"], "seed": [0, 1, 0, 1], "value": [3.0, 5.0, 1.0, 1.0]})
    >>> paired(table, "value", "a", "b").value
    3.0
    """
    wide = table.pivot_table(index="seed", columns=by, values=value)
    return over_seeds((wide[first] - wide[second]).dropna())


def over_seeds(values: pd.Series) -> Estimate:
    """Return the mean of values, one per seed, with the 95 % interval and the p-value against 0 by Student.

    >>> [round(number, 2) for number in over_seeds(pd.Series([1.0, 2.0, 3.0]))]
    [2.0, -0.48, 4.48, 0.07]
    """
    found = stats.ttest_1samp(values, 0.0)
    low, high = found.confidence_interval(0.95)
    return Estimate(float(values.mean()), float(low), float(high), float(found.pvalue))


def agreement(scores: pd.DataFrame, text: str) -> pd.DataFrame:
    """Return per model Spearman's correlation of heads' leads on another text with those on held-out windows."""
    rows = scores[scores["weighting"] == "relative"]
    rows = at_end(rows).assign(lead=lambda table: table["positional"] - table["symbolic"])
    wide = rows.pivot_table(index=[*KEYS, "layer", "head"], columns="text", values="lead")
    pairs = wide[["held out", text]].dropna().reset_index()
    found = [(*key, float(stats.spearmanr(m["held out"], m[text]).statistic)) for key, m in pairs.groupby(KEYS)]
    return pd.DataFrame(found, columns=[*KEYS, "agreement"])


def plane_trend(planes: pd.DataFrame) -> pd.DataFrame:
    """Return per model Spearman's correlation of frequency ID with lead, over the planes with norms above the median.

    Planes whose logits are all next to nothing are uniform, which satisfies both definitions; the median is that of
    each head.
    """
    last = at_end(planes).assign(lead=lambda table: table["positional"] - table["symbolic"])
    large = last[last["norm"] > last.groupby([*KEYS, "layer", "head"])["norm"].transform("median")]
    rows = [(*key, float(stats.spearmanr(m["frequency_id"], m["lead"]).statistic)) for key, m in large.groupby(KEYS)]
    return pd.DataFrame(rows, columns=[*KEYS, "trend"])


def far_loss(length: pd.DataFrame, trained: int, factor: int = 4) -> pd.DataFrame:
    """Return per model and edit the mean held-out loss at positions from ``factor`` times the trained length on."""
    far = length[length["position"] >= factor * trained]
    return far.groupby([*KEYS, "edit"], as_index=False)["loss"].mean()


def recall_dip(recall: pd.DataFrame) -> pd.DataFrame:
    """Return per model the mean recall of the outer thirds of distances less that of the middle third.

    Positive where the middle is lost, negative where the middle is recalled best.
    """
    part = recall.groupby(KEYS)["distance"].rank(pct=True)
    where = pd.Series(np.select([part <= 1 / 3, part <= 2 / 3], ["near", "middle"], "far"), index=recall.index)
    means = recall.assign(where=where).groupby([*KEYS, "where"])["accuracy"].mean().unstack()
    return ((means["near"] + means["far"]) / 2 - means["middle"]).rename("dip").reset_index()


def each(values: pd.DataFrame, column: str, holds: Callable[[pd.Series], pd.Series]) -> tuple[int, int]:
    """Return of how many models a column satisfies a condition, and how many there are."""
    return int(holds(values[column]).sum()), len(values)
