"""Summaries of models trained in different settings: what they end as, and what came with learning.

Tables in are those of `possym.experiments.generality`, with or without the paper's setting before them. Depth counts
from 0 at the first layer's start to 1 at the last one's end, so that models of different numbers of layers compare.
"""

import pandas as pd

from possym.errors import InputError
from possym.experiments.learning_dynamics.summaries import SIGNS, kinds

MODEL = ["setting", "task", "seed"]
LEARNT = 0.99
BEFORE = 0.5
LABELS = {
    "paper": "the paper's setting",
    "heads": "more heads a layer",
    "layers": "fewer layers",
    "llama": "Llama's blocks",
    "every-place": "loss on every position",
    "shares": "few short paths",
    "mixed": "the mixed task",
}


def final_purity(accuracy: pd.DataFrame, heads: pd.DataFrame, gamma: float = 0.1) -> pd.DataFrame:
    """Return each model's end: setting, task, seed, accuracy, heads, positional, symbolic, and the depths of both.

    ``accuracy`` is that of the test set, ``heads`` their number, ``positional`` and ``symbolic`` how many of them end
    pure, ``positional_depth`` and ``symbolic_depth`` the mean depth of those (NaN where there are none).

    Args:
        accuracy, heads: tables of the study.
        gamma: one of those in ``heads``.

    >>> accuracy = pd.DataFrame({"setting": "layers", "task": "letter", "seed": 0, "split": ["test"], "hops": 0,
    ...                          "accuracy": 0.995})
    >>> heads = pd.DataFrame({"setting": "layers", "task": "letter", "seed": 0, "gamma": 0.1, "layer": [0, 1],
    ...                       "kind": [0, -1]})
    >>> final_purity(accuracy, heads)[["heads", "positional", "symbolic", "symbolic_depth"]].values.tolist()
    [[2.0, 0.0, 1.0, 0.75]]
    """
    judged = at_gamma(heads, gamma)
    depth = (judged["layer"] + 0.5) / (judged.groupby(MODEL)["layer"].transform("max") + 1)
    table = judged.groupby(MODEL, as_index=False).agg(heads=("kind", "size"))
    for name, sign in SIGNS.items():
        pure = judged["kind"] == sign
        counted = judged.assign(**{name: pure, f"{name}_depth": depth.where(pure)}).groupby(MODEL, as_index=False)
        table = table.merge(counted.agg({name: "sum", f"{name}_depth": "mean"}), on=MODEL)
    final = accuracy[(accuracy["split"] == "test") & (accuracy["hops"] == 0)]
    return final[[*MODEL, "accuracy"]].merge(table, on=MODEL).reset_index(drop=True)


def course(accuracy: pd.DataFrame, scores: pd.DataFrame, gamma: float = 0.1) -> pd.DataFrame:
    """Return, at every evaluated step, validation accuracy and the shares of heads that are pure just then.

    Args:
        accuracy, scores: tables of the study.
        gamma: a head is pure where one score is at least 1 − γ and the other at most γ.

    Returns:
        setting, task, seed, step, accuracy, positional, symbolic.
    """
    key = [*MODEL, "step"]
    kind = kinds(scores, gamma)
    shares = scores[key].assign(**{name: kind == sign for name, sign in SIGNS.items()})
    shares = shares.groupby(key, as_index=False)[list(SIGNS)].mean()
    overall = accuracy[(accuracy["split"] == "validation") & (accuracy["hops"] == 0)]
    return overall[[*key, "accuracy"]].merge(shares, on=key).sort_values(key, ignore_index=True)


def before_and_after(courses: pd.DataFrame) -> pd.DataFrame:
    """Return each model's share of pure heads, of either kind, before it has learnt its task and at the end.

    ``before`` is the share at the last evaluation whose accuracy, like that of all evaluations before it, is below
    `BEFORE`; ``after`` is the last evaluation's; ``learnt`` says whether accuracy ends at `LEARNT` or more.

    Args:
        courses: of `course`; every model's first evaluation is below `BEFORE`.

    >>> table = pd.DataFrame({"setting": "heads", "task": "letter", "seed": 0, "step": [0, 50, 100],
    ...                       "accuracy": [0.1, 0.4, 0.995], "positional": [0.0, 0.1, 0.0], "symbolic": [0, 0, 0.5]})
    >>> before_and_after(table)[["before", "after", "learnt"]].values.tolist()
    [[0.1, 0.5, True]]
    """
    rows = []
    for model, run in courses.sort_values("step").groupby(MODEL):
        early = run[(run["accuracy"] < BEFORE).cummin()]
        pure = [row["positional"] + row["symbolic"] for row in (early.iloc[-1], run.iloc[-1])]
        rows.append([*model, *pure, bool(run["accuracy"].iloc[-1] >= LEARNT)])
    return pd.DataFrame(rows, columns=[*MODEL, "before", "after", "learnt"])


def gained_while_learning(courses: pd.DataFrame) -> pd.DataFrame:
    """Return how many heads turn pure while a model learns its task, as a share, beside a constant drift of that share.

    ``gained`` is the rise of the share of pure heads, of either kind, from the last evaluation whose accuracy, like
    that of all evaluations before it, is below `BEFORE` to the first at `LEARNT` or more; ``drift`` the rise in the
    same steps if the share went from its first to its last value at a constant pace; ``rise`` is last less first. Where
    a model does not end at `LEARNT` or more, ``learnt`` is False, and gained and drift are NaN.

    Args:
        courses: of `course`; every model's first evaluation is below `BEFORE`.

    Raises:
        InputError: a model has nothing before.

    >>> table = pd.DataFrame({"setting": "heads", "task": "letter", "seed": 0, "step": [0, 50, 100, 200],
    ...                       "accuracy": [0.1, 0.4, 1.0, 1.0], "positional": 0.0, "symbolic": [0, 0, 0.5, 0.8]})
    >>> gained_while_learning(table)[["gained", "drift", "rise"]].values.tolist()
    [[0.5, 0.2, 0.8]]
    """
    rows = []
    for model, run in courses.sort_values("step").groupby(MODEL):
        pure, step = (run["positional"] + run["symbolic"]).to_numpy(), run["step"].to_numpy()
        early = (run["accuracy"] < BEFORE).cummin().sum() - 1
        if early < 0:
            raise InputError(f"{' '.join(map(str, model))}: accuracy is never below {BEFORE:g}, give an earlier step")
        rise, learnt = pure[-1] - pure[0], bool(run["accuracy"].iloc[-1] >= LEARNT)
        gained = drift = float("nan")
        if learnt:
            done = (run["accuracy"] >= LEARNT).to_numpy().argmax()
            gained = pure[done] - pure[early]
            drift = rise * (step[done] - step[early]) / (step[-1] - step[0])
        rows.append([*model, gained, drift, rise, learnt])
    return pd.DataFrame(rows, columns=[*MODEL, "gained", "drift", "rise", "learnt"])


def by_layer(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the share of each layer's heads that end of each kind, at γ = 0.1, over seeds.

    Columns: setting, task, layer, kind, share.

    >>> heads = pd.DataFrame({"setting": "heads", "task": "letter", "seed": [0, 1], "gamma": 0.1, "layer": 0,
    ...                       "kind": [0, -1]})
    >>> by_layer(heads)[["kind", "share"]].values.tolist()
    [['positional', 0.0], ['symbolic', 0.5], ['neither', 0.5]]
    """
    judged = at_gamma(heads, 0.1)
    layer = ["setting", "task", "layer"]
    frames = [
        judged.assign(share=judged["kind"] == sign).groupby(layer, as_index=False)["share"].mean().assign(kind=name)
        for name, sign in {**SIGNS, "neither": 0}.items()
    ]
    return pd.concat(frames, ignore_index=True)[[*layer, "kind", "share"]]


def at_gamma(heads: pd.DataFrame, gamma: float) -> pd.DataFrame:
    """Return the rows of ``heads`` judged at ``gamma``, or raise an InputError."""
    judged = heads[heads["gamma"] == gamma]
    if judged.empty:
        known = ", ".join(f"{each:g}" for each in sorted(heads["gamma"].unique()))
        raise InputError(f"gamma = {gamma!r}: the heads were judged at {known}")
    return judged
