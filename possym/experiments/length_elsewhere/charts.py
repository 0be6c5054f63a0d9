"""Charts of length generalization in other settings: accuracy by length, and how well the forecast does.

Tables in are those of `possym.experiments.length_elsewhere`, with or without the paper's setting before them.
"""

import pandas as pd

from possym.charts import CATEGORIES, INK, alt
from possym.experiments.generality.charts import TASKS, labelled
from possym.experiments.generality.summaries import LABELS
from possym.experiments.generalization.charts import length_axis
from possym.experiments.generalization.forecast_charts import forecast_against_measured
from possym.experiments.learning_dynamics.summaries import over_seeds

COLORS = dict(zip(LABELS.values(), (INK, *CATEGORIES), strict=True))


def setting_color(data: pd.DataFrame) -> alt.Color:
    """Return the colour of each setting, in the book's order."""
    present = [label for label in COLORS if label in set(data["label"])]
    color = alt.Color("label:N", title=None).scale(domain=present, range=[COLORS[label] for label in present])
    return color.legend(columns=2)


def accuracy_by_setting(accuracy: pd.DataFrame) -> alt.FacetChart:
    """Return the median accuracy by length in each setting, one panel per task."""
    data = labelled(over_seeds(accuracy[accuracy["hops"] == 0], ["setting", "task", "length"], "accuracy"))
    tasks = [task for task in TASKS if task in set(data["task"])]
    longest = int(data["length"].max())
    ends = data[data["length"] == longest].groupby("task")["median"].agg(["min", "max"])
    words = " and ".join(f"{ends.loc[task, 'min']:.0%} to {ends.loc[task, 'max']:.0%} ({task})" for task in tasks)
    title = f"At {longest:,} tokens the median model is right on {words}, by setting"
    chart = (
        alt.Chart(data[["label", "task", "length", "median", "low", "high"]].round(4))
        .mark_line(point={"size": 30})
        .encode(
            x=length_axis(),
            y=alt.Y("median:Q", title="Accuracy").scale(domain=[0, 1]),
            color=setting_color(data),
            tooltip=["label:N", "task:N", "length:Q", "median:Q", "low:Q", "high:Q"],
        )
    )
    return (
        chart.properties(width=270, height=260)
        .facet(alt.Facet("task:N", title=None, sort=tasks), columns=2)
        .properties(
            title=alt.Title(title, subtitle="Medians over seeds, whether or not models have learnt their task"),
            description="Line charts of accuracy by input length on a logarithmic axis, one line per setting. "
            f"{title}.",
        )
    )


def points_by_setting(points: pd.DataFrame) -> alt.LayerChart:
    """Return every model's 90 % point, forecast against measured, by setting and task.

    Args:
        points: setting, task, seed, observed, forecast, see
            `possym.experiments.generalization.judging.predicted_points`.
    """
    data = labelled(points)
    tasks = [task for task in TASKS if task in set(data["task"])]
    shape = alt.Shape("task:N", title="Task", sort=tasks).scale(domain=tasks).legend(orient="bottom")
    return forecast_against_measured(
        data,
        setting_color(data),
        shape,
        ["label:N", "task:N", "seed:O"],
        " that has learnt its task",
        ", by setting and task",
    ).properties(height=320)
