"""Charts of how learning goes with pure heads, and of what the count of pure heads rests on."""

import pandas as pd

from possym.charts import CATEGORIES, INK, alt, kind_color
from possym.experiments.learning_dynamics.summaries import converged_steps, over_seeds, purity_steps

TASK_COLORS = dict(zip(("number", "letter"), CATEGORIES, strict=False))


def learning_against_purity(accuracy: pd.DataFrame, heads: pd.DataFrame) -> alt.LayerChart:
    """Return one mark per seed: the step of convergence against the step since which its heads are pure.

    Accuracy has converged where it stays at 99 %; heads are pure, at γ = 0.1, where half of those are that end pure.

    Args:
        accuracy, heads: tables of the study.
    """
    runs = converged_steps(accuracy, 0.99).rename(columns={"step": "learnt"})
    runs = runs.merge(purity_steps(heads, 0.5).query("gamma == 0.1"), on=["task", "seed"])
    both = runs.dropna(subset=["learnt", "step"])
    before = int((both["step"] <= both["learnt"]).sum())
    title = (
        f"In {before} of {len(both)} models 50% of the heads that end pure are pure before accuracy settles at 99%"
        if len(both)
        else "No model has both pure heads and an accuracy that stays at 99%"
    )
    highest = float(both[["learnt", "step"]].max().max()) if len(both) else 1.0
    line = alt.Chart(pd.DataFrame({"at": [0.0, highest]})).mark_line(color=INK, strokeDash=[4, 4], opacity=0.5)
    marks = (
        alt.Chart(both)
        .mark_point(filled=True, size=60, opacity=0.75)
        .encode(
            x=alt.X("learnt:Q", title="Step since which accuracy is at least 99%"),
            y=alt.Y("step:Q", title="Step since which 50% of the pure heads are pure"),
            color=alt.Color("task:N", title=None).scale(domain=list(TASK_COLORS), range=list(TASK_COLORS.values())),
            shape=alt.Shape("task:N", title=None).scale(domain=list(TASK_COLORS)),
            tooltip=["task:N", "seed:O", alt.Tooltip("learnt:Q", format=","), alt.Tooltip("step:Q", format=",")],
        )
    )
    left_out = len(runs) - len(both)
    missing = f"; {left_out} without one of the steps are left out" if left_out else ""
    return (line.encode(x="at:Q", y="at:Q") + marks).properties(
        title=alt.Title(title, subtitle=f"One mark per seed, γ = 0.1{missing}; dashed: both at once"),
        description=f"Scatter plot: step of convergence against step of purity, one mark per seed. {title}.",
        height=340,
    )


def counts_by_reading(counts: pd.DataFrame) -> alt.FacetChart:
    """Return the number of pure heads by query position, temperature and γ: mean over seeds with its range.

    Args:
        counts: task, seed, query, temperature, gamma, kind, heads, from
        `possym.experiments.learning_dynamics.summaries.reading_counts`.
    """
    summary = over_seeds(counts, ["task", "query", "temperature", "gamma", "kind"], "heads")
    summary["reading"] = [f"τ = {row.temperature:g}, γ = {row.gamma:g}" for row in summary.itertuples()]
    summary["row"] = [f"{row.task}, {row.query}" for row in summary.itertuples()]
    rows = [f"{task}, {query}" for task in TASK_COLORS for query in ("last", "path", "all")]
    order = [
        f"τ = {t:g}, γ = {g:g}"
        for g in sorted(counts["gamma"].unique(), reverse=True)
        for t in sorted(counts["temperature"].unique())
    ]
    spread = summary.groupby(["task", "kind"])["mean"].agg(lambda means: means.max() - means.min()).max()
    title = f"The same heads counted in {len(order) * 3} ways: the mean count moves by up to {spread:.1f} heads"
    base = alt.Chart(summary).encode(
        y=alt.Y("row:N", title=None, sort=rows).scale(domain=[row for row in rows if row in set(summary["row"])]),
        color=kind_color(),
        yOffset=alt.YOffset("kind:N"),
    )
    bars = base.mark_rule(strokeWidth=2, opacity=0.5).encode(
        x=alt.X("low:Q", title="Pure heads per model"), x2="high:Q"
    )
    dots = base.mark_point(filled=True, size=55).encode(
        x="mean:Q",
        shape=alt.Shape("kind:N", title=None),
        tooltip=["row:N", "reading:N", "kind:N", alt.Tooltip("mean:Q", format=".1f"), "low:Q", "high:Q"],
    )
    return (
        (bars + dots)
        .properties(width=170, height=190)
        .facet(facet=alt.Facet("reading:N", title=None, sort=order), columns=3)
        .properties(
            title=alt.Title(
                title, subtitle="Rows: task and positions of the query; mark: mean over seeds; line: their range"
            ),
            description=f"Small multiples of dot plots: pure heads by task, query, temperature and γ. {title}.",
        )
    )


def rates(summary: pd.DataFrame) -> alt.LayerChart:
    """Return one mark per model: how many heads end pure against its test accuracy, by learning rate.

    Args:
        summary: task, learning_rate, seed, accuracy, pure, from
        `possym.experiments.learning_dynamics.summaries.rate_summary`.
    """
    table = summary.assign(rate=[f"{rate:g}" for rate in summary["learning_rate"]])
    order = [f"{rate:g}" for rate in sorted(summary["learning_rate"].unique())]
    means = summary.groupby("learning_rate")["pure"].mean()
    words = ", ".join(f"{mean:.1f} at {rate:g}" for rate, mean in means.items())
    title = f"Mean number of pure heads of a model by learning rate: {words}"
    return (
        alt.Chart(table)
        .mark_point(filled=True, size=60, opacity=0.7)
        .encode(
            x=alt.X("pure:Q", title="Heads that end pure, of either kind").scale(zero=True),
            y=alt.Y("accuracy:Q", title="Test accuracy").axis(format="%").scale(zero=False),
            color=alt.Color("rate:N", title="Learning rate", sort=order).scale(
                domain=order, range=list(CATEGORIES[: len(order)])
            ),
            shape=alt.Shape("task:N", title=None),
            tooltip=["task:N", "rate:N", "seed:O", "pure:Q", alt.Tooltip("accuracy:Q", format=".2%")],
        )
        .properties(
            title=alt.Title(title, subtitle="Means over both tasks; one mark per model"),
            description=f"Scatter plot: test accuracy against the number of pure heads. {title}.",
            height=300,
        )
    )
