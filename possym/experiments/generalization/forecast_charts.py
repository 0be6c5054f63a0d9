"""Charts of the forecast: curves and single models, how good it is, and the layers that it says will fail.

Tables in are those of `possym.experiments.generalization` and of `possym.experiments.generalization.judging`.
"""

import math

import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, alt, dynamic_title
from possym.charts.typography import percent
from possym.experiments.generalization.charts import TASKS, TICKS, length_axis, task_color
from possym.experiments.learning_dynamics.summaries import over_seeds


def forecast_curves(accuracy: pd.DataFrame, forecast: pd.DataFrame) -> alt.LayerChart:
    """Return measured accuracy by length beside the forecast, medians over seeds, of one learning rate."""
    names = ["measured", "forecast"]
    tables = (accuracy[accuracy["hops"] == 0], forecast)
    data = pd.concat(
        [
            over_seeds(table, ["task", "length"], "accuracy").assign(source=name)
            for name, table in zip(names, tables, strict=True)
        ]
    )
    wide = data.pivot(index=["task", "length"], columns="source", values="median").dropna()
    off = (wide["forecast"] - wide["measured"]).abs().max()
    chart = (
        alt.Chart(data.round(4))
        .mark_line(point={"size": 30})
        .encode(
            x=length_axis(),
            y=alt.Y("median:Q", title="Accuracy").scale(domain=[0, 1]),
            color=task_color(),
            strokeDash=alt.StrokeDash("source:N", title=None)
            .scale(domain=names, range=[[1, 0], [5, 4]])
            .legend(symbolType="stroke"),
            tooltip=["task:N", "source:N", "length:Q", "median:Q", "low:Q", "high:Q"],
        )
    )
    return chart.properties(
        title=alt.Title(
            f"The forecast's median is within {off:.2f} of the measured one at every length",
            subtitle="Forecast: from windows of 17 tokens alone; medians over seeds",
        ),
        description="Line chart of accuracy by length, measured and forecast, medians over seeds, by task. The largest "
        f"difference of the medians is {off:.2f}.",
        height=300,
    )


def forecast_points(points: pd.DataFrame) -> alt.LayerChart:
    """Return every model's 90 % point, forecast against measured.

    Args:
        points: task, learning_rate, seed, observed, forecast.
    """
    data = points.copy()
    data["rate"] = [f"{rate:g}" for rate in data["learning_rate"]]
    shape = alt.Shape("rate:N", title="Learning rate")
    return forecast_against_measured(data, task_color(), shape, ["task:N", "rate:N", "seed:O"]).properties(height=360)


def forecast_against_measured(
    data: pd.DataFrame, color: alt.Color, shape: alt.Shape, fields: list[str], which: str = "", by: str = ""
) -> alt.LayerChart:
    """Return 90 % points on logarithmic axes, forecast against measured, beside the line where both agree.

    Args:
        data: observed, forecast, and what the other arguments name.
        color, shape: of the marks, one a model.
        fields: further fields of the tooltip.
        which, by: words of the subtitle and the description: which models, and what tells them apart.
    """
    factor = 10 ** (data["forecast"] / data["observed"]).map(lambda ratio: abs(math.log10(ratio))).median()
    dots = (
        alt.Chart(data)
        .mark_point(filled=True, size=55, opacity=0.7)
        .encode(
            x=length_axis("Measured 90 % point (tokens)", "observed"),
            y=alt.Y("forecast:Q", title="Forecast 90 % point (tokens)")
            .scale(type="log", nice=False)
            .axis(values=TICKS, format=",d"),
            color=color,
            shape=shape,
            tooltip=[*fields, *(alt.Tooltip(f"{name}:Q", format=",.0f") for name in ("observed", "forecast"))],
        )
    )
    ends = [data[["observed", "forecast"]].min().min(), data[["observed", "forecast"]].max().max()]
    line = (
        alt.Chart(pd.DataFrame({"observed": ends, "forecast": ends}))
        .mark_line(color=INK, strokeWidth=1, strokeDash=[4, 4], opacity=0.6)
        .encode(x="observed:Q", y="forecast:Q")
    )
    return (line + dots).properties(
        title=alt.Title(
            f"Half of the models are forecast within a factor of {factor:.2f}",
            subtitle=f"One mark per model{which}; dashed: forecast = measurement",
        ),
        description="Scatter plot on logarithmic axes of the forecast against the measured length where accuracy falls "
        f"below 90 percent{by}. The median error is a factor of {factor:.2f}.",
    )


def ratios_by_level_chart(ratios: pd.DataFrame, factor: float) -> alt.LayerChart:
    """Return the forecast length over the measured one at each level of accuracy, by task.

    Args:
        ratios: task, level, fall, median, low, high, see `possym.experiments.generalization.judging.ratios_by_level`.
        factor: how far off the ratio may be.
    """
    data = ratios[ratios["fall"] > 0].round(3)
    data = data.assign(row=[f"{row.task}, {percent(row.level)}" for row in data.itertuples()])
    off = data["median"].map(lambda ratio: max(ratio, 1 / ratio)).groupby(data["task"], sort=False).max()
    words = " and ".join(f"×{off[task]:.2f} ({task})" for task in TASKS if task in off)
    rows = alt.Y("row:N", title="Task and level of accuracy", sort=None)
    x = alt.X("median:Q", title="Forecast length over measured length").scale(type="log", nice=False, padding=10)
    x = x.axis(values=[0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.4, 2], grid=False)
    near = alt.Chart(pd.DataFrame({"low": [1 / factor], "high": [factor]}))
    band = near.mark_rect(color=NEUTRAL, opacity=0.25).encode(x=alt.X("low:Q"), x2="high:Q")
    base = alt.Chart(data).encode(y=rows, color=task_color())
    spread = base.mark_rule(strokeWidth=4, opacity=0.35).encode(x=alt.X("low:Q"), x2="high:Q")
    dots = base.mark_point(filled=True, size=70).encode(
        x=x, tooltip=["row:N", "median:Q", "low:Q", "high:Q", "fall:Q", "models:Q"]
    )
    return (band + spread + dots).properties(
        title=alt.Title(
            f"At every level the median forecast is off by at most {words}",
            subtitle=f"Median, smallest and largest of the models that fall; grey: within a factor of {factor:g}",
        ),
        description="Dot plot on a logarithmic axis of the forecast length over the measured one, a row for each task "
        f"and level of accuracy. The largest factor by which a median is off is {words}.",
        height=34 * len(data),
    )


def quality_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Return the error of each way of predicting with its interval, by task.

    Args:
        table: task, way, measure, value, low, high, see
            `possym.experiments.generalization.judging.quality`.
    """
    data = table[table["measure"] == "error"].reset_index(drop=True)
    data = data.assign(row=[f"{row.task}: {row.way}" for row in data.itertuples()])
    rows = alt.Y("row:N", title=None, sort=list(data["row"])).axis(labelLimit=220)
    base = alt.Chart(data.round(4)).encode(y=rows, color=task_color())
    title = "Mean error in log₁₀ length (0.3 is a factor of 2)"
    best = data.loc[data.groupby("task", sort=False)["value"].idxmin()]
    words = ", ".join(f"{row.way} ({row.task})" for row in best.itertuples())
    spread = base.mark_rule(strokeWidth=5, opacity=0.35).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    dots = base.mark_point(filled=True, size=80).encode(
        x=alt.X("value:Q", title=title).scale(zero=True),
        tooltip=["row:N", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("value", "low", "high"))],
    )
    return (spread + dots).properties(
        title=alt.Title(f"Smallest error on held-out seeds: {words}", subtitle="Bars: 95 % bootstrap intervals"),
        description=f"Dot plot of the mean error of each way of predicting the 90 percent point. Best: {words}.",
        height=28 * len(data),
    )


def parts_by_layer(parts: pd.DataFrame) -> alt.LayerChart:
    """Return accuracy with one layer shielded, by layer; menus pick the task, the length and the source.

    The line is the whole model. A dot above it is accuracy that returns when this layer attends as at training length.
    """
    data = over_seeds(parts, ["task", "source", "way", "layer", "length"], "accuracy").round(4)
    lengths = sorted(data["length"].unique().tolist())
    tasks = [task for task in TASKS if task in set(data["task"])]
    params = [
        alt.param(name="task", value=tasks[0], bind=alt.binding_radio(options=tasks, name="Task ")),
        alt.param(
            name="source", value="measured", bind=alt.binding_radio(options=["measured", "forecast"], name="From ")
        ),
        alt.param(
            name="at", value=lengths[len(lengths) // 2], bind=alt.binding_select(options=lengths, name="Length ")
        ),
        alt.param(
            name="way",
            value="shielded",
            bind=alt.binding_radio(
                options=["shielded", "exposed", "upto"],
                labels=["all layers but this one", "this layer alone", "layers up to this one"],
                name="See the extra tokens: ",
            ),
        ),
    ]
    base = alt.Chart(data).transform_filter("datum.task == task && datum.source == source && datum.length == at")
    chosen = base.transform_filter("datum.way == way")
    y = alt.Y("median:Q", title="Accuracy").scale(domain=[0, 1])
    spread = chosen.mark_rule(strokeWidth=5, opacity=0.3, color=CATEGORIES[3]).encode(
        x=alt.X("layer:O", title="Layer").axis(labelAngle=0, labelOverlap=True),
        y=alt.Y("low:Q", title="Accuracy"),
        y2="high:Q",
    )
    dots = chosen.mark_point(filled=True, size=70, color=CATEGORIES[3]).encode(
        x="layer:O", y=y, tooltip=["layer:O", "median:Q", "low:Q", "high:Q"]
    )
    whole = base.transform_filter("datum.way == 'whole'").mark_rule(strokeDash=[5, 4], opacity=1).encode(y=y)
    return (
        (spread + dots + whole)
        .add_params(*params)
        .properties(
            title=alt.Title(
                dynamic_title("join([task, source, at, way], ', ')", parts_titles(data)),
                subtitle="Median, smallest and largest seed; dashed: the whole model",
            ),
            description="Dot plot of accuracy by layer: the dashed line is the whole model at the chosen length, each "
            "dot the model in which the chosen layers alone see the extra tokens.",
            height=280,
        )
    )


def parts_titles(data: pd.DataFrame) -> dict[str, str]:
    """Return what the medians of every setting of `parts_by_layer` say, by task, source, length and way."""
    titles = {}
    for (task, source, length), rows in data.groupby(["task", "source", "length"]):
        where = f"{task.capitalize()} task, {length:,} tokens{', forecast' if source == 'forecast' else ''}: "
        found = {way: part.sort_values("layer").set_index("layer")["median"] for way, part in rows.groupby("way")}
        whole = found.pop("whole").iloc[0]
        words = {}
        if "shielded" in found:
            best, layer = found["shielded"].max(), found["shielded"].idxmax()
            words["shielded"] = f"shielding layer {layer} returns most, {whole:.0%} → {best:.0%}"
            if best <= whole:
                words["shielded"] = f"shielding one layer returns nothing to {whole:.0%}"
        if "exposed" in found:
            worst, layer = found["exposed"].min(), found["exposed"].idxmin()
            words["exposed"] = f"layer {layer} alone does most harm, down to {worst:.0%}"
        if "upto" in found:
            below = found["upto"].index[found["upto"] < 0.9]
            words["upto"] = "90 % or more however many layers see the extra tokens"
            if len(below):
                words["upto"] = f"below 90 % once layers up to {below[0]} see the extra tokens"
        titles |= {f"{task}, {source}, {length}, {way}": where + said for way, said in words.items()}
    return titles


def failing_chart(failing: pd.DataFrame) -> alt.Chart:
    """Return how many models each layer brings down, measured and forecast, by task.

    Args:
        failing: task, seed, source, cause, as `possym.experiments.generalization.summaries.failing_layers` gives them.
    """
    counts = failing.groupby(["task", "source", "cause"]).size().rename("models").reset_index()
    causes = failing[failing["source"] == "measured"].groupby("task", sort=False)["cause"]
    usual = {task: (int(found.mode().iloc[0]), found) for task, found in causes}
    words = (
        " and ".join(
            f"layer {layer} in {(found == layer).sum()} of {len(found)} ({task})"
            for task, (layer, found) in usual.items()
        )
        or "none"
    )
    return (
        alt.Chart(counts)
        .mark_bar()
        .encode(
            x=alt.X("cause:O", title="Layer whose shielding returns most").axis(labelAngle=0),
            xOffset=alt.XOffset("source:N", sort=["measured", "forecast"]),
            y=alt.Y("models:Q", title="Models"),
            color=alt.Color("source:N", title=None).scale(
                domain=["measured", "forecast"], range=[CATEGORIES[3], CATEGORIES[2]]
            ),
            row=alt.Row("task:N", title=None, sort=list(TASKS)),
            tooltip=["task:N", "source:N", "cause:O", "models:Q"],
        )
        .properties(
            height=130,
            title=alt.Title(
                f"Shielding returns most at {words}",
                subtitle="Measured; at the first length where a model falls below 90 %",
            ),
            description="Bar charts by task: how many models regain most accuracy by shielding each layer, measured "
            f"and forecast. Shielding returns most at {words}.",
        )
    )
