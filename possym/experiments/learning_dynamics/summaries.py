"""Summaries of a training study: tables of single seeds in, tables that charts and claims read out.

Tables in are those of `possym.experiments.learning_dynamics`. Every summary keeps the seeds apart until
`over_seeds` joins them.
"""

import numpy as np
import pandas as pd
import scipy
import torch

from possym.scores import purity

SIGNS = {"positional": 1, "symbolic": -1}


def over_seeds(table: pd.DataFrame, by: list[str], value: str) -> pd.DataFrame:
    """Return count, mean, median, low and high of ``value`` over the seeds, one row for each group of ``by``.

    ``low`` and ``high`` are the smallest and the largest seed: with a handful of seeds the range is the honest
    interval. A seed without a value (NaN, such as a level never reached) makes ``high`` NaN and counts as
    the largest for the median; the mean is NaN then.

    >>> table = pd.DataFrame({"step": [0, 0, 0], "seed": [0, 1, 2], "accuracy": [0.25, 0.5, 1.0]})
    >>> over_seeds(table, ["step"], "accuracy").iloc[0].to_dict()
    {'step': 0.0, 'seeds': 3.0, 'mean': 0.5833333333333334, 'median': 0.5, 'low': 0.25, 'high': 1.0}
    """
    filled = table.assign(**{value: table[value].astype(float).fillna(float("inf"))})
    groups = filled.groupby(by, sort=True, dropna=False)[value]
    summary = groups.agg(seeds="size", mean="mean", median="median", low="min", high="max").reset_index()
    return summary.replace([float("inf")], float("nan"))


def learnt_steps(accuracy: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """Return the first evaluated step at which each hop count reaches ``level`` (task, seed, hops, step).

    Validation accuracy counts; NaN where it never gets there.

    >>> table = pd.DataFrame({"task": "number", "seed": 0, "split": "validation", "hops": 1, "step": [0, 50, 100],
    ...                       "accuracy": [0.1, 0.95, 0.97]})
    >>> learnt_steps(table)["step"].tolist()
    [50.0]
    """
    single = validation(accuracy)
    single = single[single["hops"] > 0]
    reached = single["step"].where(single["accuracy"] >= level)
    return single.assign(step=reached).groupby(["task", "seed", "hops"], as_index=False)["step"].min()


def crossing_steps(accuracy: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """Return the steps of `learnt_steps`, interpolated (task, seed, hops, step): evaluations are far apart.

    Accuracy is taken to rise in a straight line from the evaluation before. NaN where it never gets there.

    >>> table = pd.DataFrame({"task": "number", "seed": 0, "split": "validation", "hops": 1, "step": [0, 50, 100],
    ...                       "accuracy": [0.1, 0.8, 1.0]})
    >>> crossing_steps(table)["step"].tolist()
    [75.0]
    """
    single = validation(accuracy)
    rows = []
    for key, run in single[single["hops"] > 0].sort_values("step").groupby(["task", "seed", "hops"]):
        step, right = run["step"].to_numpy(float), run["accuracy"].to_numpy(float)
        reached = np.flatnonzero(right >= level)
        if not len(reached):
            rows.append([*key, np.nan])
        elif reached[0] == 0:
            rows.append([*key, step[0]])
        else:
            pair = slice(reached[0] - 1, reached[0] + 1)
            rows.append([*key, np.interp(level, right[pair], step[pair])])
    return pd.DataFrame(rows, columns=["task", "seed", "hops", "step"])


def learnt_medians(accuracy: pd.DataFrame, level: float = 0.9) -> pd.DataFrame:
    """Return `learnt_steps` over seeds (task, hops and the columns of `over_seeds`), a median NaN where most never do.

    >>> table = pd.DataFrame({"task": "letter", "seed": [0, 1, 2], "split": "validation", "hops": 1, "step": 50,
    ...                       "accuracy": [0.95, 0.4, 0.97]})
    >>> learnt_medians(table)[["task", "hops", "seeds", "median"]].values.tolist()
    [['letter', 1, 3, 50.0]]
    """
    return over_seeds(learnt_steps(accuracy, level), ["task", "hops"], "step")


def best_steps(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the first step of the best validation accuracy over all hop counts (task, seed, step, accuracy)."""
    overall = validation(accuracy)
    overall = overall[overall["hops"] == 0].sort_values(["accuracy", "step"], ascending=[False, True])
    return overall.groupby(["task", "seed"], as_index=False)[["step", "accuracy"]].first()


def converged_steps(accuracy: pd.DataFrame, level: float = 0.99) -> pd.DataFrame:
    """Return the first evaluated step from which validation accuracy stays at ``level`` (task, seed, step).

    Accuracy over all hop counts counts; NaN where it ends below.

    >>> table = pd.DataFrame({"task": "number", "seed": 0, "split": "validation", "hops": 0, "step": [0, 50, 100, 150],
    ...                       "accuracy": [0.1, 0.995, 0.98, 0.999]})
    >>> converged_steps(table)["step"].tolist()
    [150.0]
    """
    overall = validation(accuracy).query("hops == 0").sort_values("step")
    rows = []
    for (task, seed), run in overall.groupby(["task", "seed"]):
        below = run.loc[run["accuracy"] < level, "step"].max()
        after = run["step"] if pd.isna(below) else run.loc[run["step"] > below, "step"]
        rows.append({"task": task, "seed": seed, "step": float(after.min())})
    return pd.DataFrame(rows)


def purity_steps(heads: pd.DataFrame, share: float = 0.5) -> pd.DataFrame:
    """Return the step since which a share of the heads that end pure has been so (task, seed, gamma, heads, step).

    ``heads`` counts the heads that end pure, of either kind; NaN where there is none.

    >>> heads = pd.DataFrame({"task": "letter", "seed": 0, "gamma": 0.1, "kind": [-1, -1, 0, -1],
    ...                       "since": [50, 100, 0, 300]})
    >>> purity_steps(heads)[["heads", "step"]].values.tolist()
    [[3.0, 100.0]]
    """
    rows = []
    for (task, seed, gamma), run in heads.groupby(["task", "seed", "gamma"]):
        since = run.loc[run["kind"] != 0, "since"].sort_values().to_numpy(float)
        step = since[max(int(np.ceil(share * len(since))) - 1, 0)] if len(since) else np.nan
        rows.append({"task": task, "seed": seed, "gamma": gamma, "heads": len(since), "step": step})
    return pd.DataFrame(rows)


def learning_with_purity(
    accuracy: pd.DataFrame, heads: pd.DataFrame, levels: tuple[float, ...] = (0.9, 0.99), draws: int = 2_000
) -> pd.DataFrame:
    """Return how far seeds that learn late also turn pure late: Spearman's rank correlation over seeds.

    One row for each task, γ, ``level`` (of `converged_steps`) and ``share`` (0.5 and 0.9, of `purity_steps`), with
    its 95 % interval from a bootstrap over seeds; ``shuffled`` is the 95 % quantile of its size once the seeds of one
    side are shuffled, the control, and ``p_value`` the share of such orders with as large a correlation; ``lag`` is the
    median of purity step less convergence step. Seeds without either step are left out and counted in ``without``; with
    fewer than five left, or with steps that do not vary, there is no correlation (NaN).
    """
    rows = []
    for level in levels:
        learnt = converged_steps(accuracy, level).rename(columns={"step": "learnt"})
        for share in (0.5, 0.9):
            joined = learnt.merge(purity_steps(heads, share), on=["task", "seed"])
            for (task, gamma), runs in joined.groupby(["task", "gamma"]):
                both = runs.dropna(subset=["learnt", "step"])
                row = {"task": task, "gamma": gamma, "level": level, "share": share, "seeds": len(both)}
                row |= {"without": len(runs) - len(both), "lag": (both["step"] - both["learnt"]).median()}
                rows.append(row | rank_correlation(both["learnt"].to_numpy(), both["step"].to_numpy(), draws))
    return pd.DataFrame(rows)


def reading_counts(variants: pd.DataFrame, gammas: tuple[float, ...] = (0.1, 0.05)) -> pd.DataFrame:
    """Return the pure heads at the last step by query, temperature and γ (…, task, seed, kind, heads), zeros included.

    >>> table = pd.DataFrame({"task": "letter", "seed": 0, "step": 9, "layer": [0, 1], "query": "all",
    ...                       "temperature": 0.1, "positional": [0.02, 0.3], "symbolic": [0.97, 0.8]})
    >>> reading_counts(table, (0.1,))[["kind", "heads"]].values.tolist()
    [['positional', 0], ['symbolic', 1]]
    """
    group = ["task", "seed", "query", "temperature"]
    last = variants[variants["step"] == variants["step"].max()]
    frames = []
    for gamma in gammas:
        kind = kinds(last, gamma)
        for name, sign in SIGNS.items():
            counted = last.assign(heads=(kind == sign).astype(int)).groupby(group, as_index=False)["heads"].sum()
            frames.append(counted.assign(gamma=gamma, kind=name))
    return pd.concat(frames, ignore_index=True)[[*group, "gamma", "kind", "heads"]]


def rate_summary(accuracy: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Return each model's end: task, learning_rate, seed, accuracy, learnt, positional, symbolic, pure.

    ``accuracy`` is that of the test set, ``learnt`` the step since which validation accuracy is at least 99 %, and
    ``pure`` the heads of either kind at the last step, at γ = 0.1.

    Args:
        accuracy, scores: tables of the study with a column learning_rate.
    """
    key = ["task", "learning_rate", "seed"]
    end = accuracy.query("split == 'test' and hops == 0")[[*key, "accuracy"]]
    learnt = [
        converged_steps(rows).assign(learning_rate=rate).rename(columns={"step": "learnt"})
        for rate, rows in accuracy.groupby("learning_rate")
    ]
    last = scores[scores["step"] == scores.groupby(key)["step"].transform("max")]
    kind = kinds(last, 0.1)
    marks = last.assign(**{name: (kind == sign).astype(int) for name, sign in SIGNS.items()})
    counts = marks.groupby(key, as_index=False)[list(SIGNS)].sum()
    table = end.merge(pd.concat(learnt), on=key).merge(counts, on=key)
    return table.assign(pure=table["positional"] + table["symbolic"])


def top_layer_last(heads: pd.DataFrame) -> pd.Series:
    """Return for each task and seed whether the top layer's head turns symbolic after all that do below it.

    A top layer that is not symbolic by the end counts as later than every layer that is; where no layer below is
    symbolic, nothing is shown and the answer is False.

    Args:
        heads: the study's table at one γ, one head per layer.

    >>> heads = pd.DataFrame({"task": "letter", "seed": 0, "layer": [0, 1, 2], "kind": -1, "since": [50, 100, 300]})
    >>> top_layer_last(heads).tolist()
    [True]
    """
    top = heads["layer"].max()
    turned = heads.assign(since=heads["since"].where(heads["kind"] == -1))
    last = turned[turned["layer"] == top].set_index(["task", "seed"])["since"]
    below = turned[turned["layer"] < top].groupby(["task", "seed"])["since"].max()
    return below.notna() & (last.fillna(float("inf")).reindex(below.index) > below)


def model_ends(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return what became of every model: task, seed, learnt, gap, symbolic, top_last, accuracy, best, best_step.

    ``learnt`` is the step at which the last hop count reaches 90 % and ``gap`` how much later that is than the
    first one; ``symbolic`` counts pure symbolic heads; ``top_last`` is `top_layer_last`; ``accuracy`` is that of the
    test set at the end and ``best`` that of the weights of the best validation, at ``best_step``, NaN where the study
    has no table of them. Models trained under other rules of the letter task come last, if there are any.

    Args:
        tables: of the study.
    """
    key = ["task", "seed"]
    accuracy, heads, best = (
        pd.concat([tables[prefix + name] for prefix in ("", "rule_") if prefix + name in tables] or [pd.DataFrame()])
        for name in ("accuracy", "heads", "best")
    )
    steps = learnt_steps(accuracy, 0.9).groupby(key)["step"]
    last = steps.max(skipna=False)
    pure = heads[heads["gamma"] == 0.1]
    columns = {
        "learnt": last,
        "gap": last - steps.min(),
        "symbolic": pure_counts(pure).query("kind == 'symbolic'").set_index(key)["heads"],
        "top_last": top_layer_last(pure),
        "accuracy": final_accuracy(accuracy).query("hops == 0").set_index(key)["accuracy"],
    }
    found = pd.DataFrame(columns)
    if best.empty:
        return found.assign(best=np.nan, best_step=np.nan).reset_index()
    chosen = best[best["hops"] == 0].set_index(key)
    return found.assign(best=chosen["accuracy"], best_step=chosen["step"]).reset_index()


def rank_correlation(first: np.ndarray, second: np.ndarray, draws: int) -> dict[str, float]:
    """Return Spearman's correlation of pairs, its bootstrap interval, and its control under shuffling."""
    names = ("correlation", "low", "high", "shuffled", "p_value")
    if len(first) < 5 or len(set(first)) < 2 or len(set(second)) < 2:
        return dict.fromkeys(names, np.nan)
    ranks = np.stack([scipy.stats.rankdata(first), scipy.stats.rankdata(second)])
    random = np.random.default_rng(0)
    picked = random.integers(len(first), size=(draws, len(first)))
    drawn = scipy.stats.rankdata(np.stack([first[picked], second[picked]]), axis=-1)  # ranks within each draw
    drawn -= drawn.mean(-1, keepdims=True)
    size = np.sqrt((drawn**2).sum(-1).prod(0))
    spread = np.divide((drawn[0] * drawn[1]).sum(-1), size, out=np.full(draws, np.nan), where=size > 0)
    order = random.permuted(np.broadcast_to(np.arange(len(first)), picked.shape), axis=1)
    centred = (ranks - ranks.mean(1, keepdims=True)) / ranks.std(1, keepdims=True)
    control = np.abs((centred[0] * centred[1][order]).mean(1))
    low, high = np.nanpercentile(spread, [2.5, 97.5])
    found = float((centred[0] * centred[1]).mean())
    p_value = (1 + (control >= abs(found) - 1e-12).sum()) / (1 + draws)  # the order at hand is one of those possible
    return dict(zip(names, (found, low, high, np.quantile(control, 0.95), float(p_value)), strict=True))


def final_accuracy(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the test accuracy at the end, by hop count, 0 for all together (task, seed, hops, accuracy)."""
    return accuracy.loc[accuracy["split"] == "test", ["task", "seed", "hops", "accuracy"]].reset_index(drop=True)


def validation(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the validation split."""
    return accuracy[accuracy["split"] == "validation"]


def pure_counts(heads: pd.DataFrame) -> pd.DataFrame:
    """Return how many heads of each model end pure (task, seed, gamma, kind, heads), zeros included.

    >>> heads = pd.DataFrame({"task": "letter", "seed": 0, "layer": [0, 1], "gamma": 0.1, "kind": [-1, 0]})
    >>> pure_counts(heads)[["kind", "heads"]].values.tolist()
    [['positional', 0], ['symbolic', 1]]
    """
    groups = heads.groupby(["task", "seed", "gamma"])["kind"]
    counts = [
        groups.agg(lambda kinds, sign=sign: (kinds == sign).sum()).rename("heads").reset_index().assign(kind=kind)
        for kind, sign in SIGNS.items()
    ]
    return pd.concat(counts, ignore_index=True)[["task", "seed", "gamma", "kind", "heads"]]


def passing_kinds(scores: pd.DataFrame, gamma: float = 0.1) -> pd.DataFrame:
    """Return the kinds that a head was of for a while and is not at the end (task, seed, layer, kind, first, last).

    ``first`` and ``last`` are the first and the last evaluated step at which it was pure at ``gamma``.

    >>> table = pd.DataFrame({"task": "letter", "seed": 0, "layer": 9, "step": [0, 50, 100],
    ...                       "positional": [1.0, 0.95, 0.02], "symbolic": [1.0, 0.04, 0.99]})
    >>> passing_kinds(table)[["layer", "kind", "first", "last"]].values.tolist()
    [[9, 'positional', 50, 50]]
    """
    head = ["task", "seed", "layer"]
    ordered = scores.sort_values([*head, "step"], ignore_index=True)
    kind = kinds(ordered, gamma)
    ordered["kind"] = pd.Series(kind).map({sign: name for name, sign in SIGNS.items()})
    end = ordered.groupby(head)["kind"].transform(lambda kinds: kinds.iloc[-1])
    passing = ordered[ordered["kind"].notna() & (ordered["kind"] != end)]
    return passing.groupby([*head, "kind"], as_index=False).agg(first=("step", "min"), last=("step", "max"))


def kinds(scores: pd.DataFrame, gamma: float) -> np.ndarray:
    """Return the kind of every row of scores at γ: 1 positional, −1 symbolic, 0 neither.

    >>> kinds(pd.DataFrame({"positional": [0.95, 0.5], "symbolic": [0.02, 0.5]}), 0.1)
    array([1, 0], dtype=int8)
    """
    return purity(*(torch.tensor(scores[name].to_numpy(float)) for name in SIGNS), gamma=gamma).numpy()
