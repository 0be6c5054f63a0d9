"""Charts of length generalization: accuracy by length, the right key's lead, the forecast, layers and repairs.

Tables in are those of `possym.experiments.generalization` and of `possym.experiments.generalization.summaries`. Bands
show the
smallest and the largest seed, lines the median.
"""

import math

import altair as alt
import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, SYMBOLIC, dynamic_title
from possym.errors import InputError
from possym.experiments.generalization.summaries import attending_heads, kept_leads
from possym.experiments.learning_dynamics.summaries import over_seeds
from possym.results.published import published
from possym.theory import index_bound, retrieval_bound

TICKS = [17, 50, 100, 200, 500, 1000, 2000, 5000]
TASKS = ("number", "letter")
COLORS = (CATEGORIES[0], CATEGORIES[1])
LETTERS = 8
RULES = {"number": "number task", "letter_any": "letter task, any letter off the path", "letter": "letter task"}


def length_axis(title: str = "Length (tokens)", field: str = "length") -> alt.X:
    """Return a logarithmic axis of lengths."""
    return alt.X(f"{field}:Q", title=title).scale(type="log", nice=False).axis(values=TICKS, format=",d", grid=True)


def task_color() -> alt.Color:
    """Return the colour of each task."""
    return alt.Color("task:N", title=None).scale(domain=list(TASKS), range=list(COLORS))


def accuracy_by_length(accuracy: pd.DataFrame) -> alt.LayerChart:
    """Return accuracy by length with the paper's readings; a menu picks the number of hops.

    Args:
        accuracy: models of one learning rate.
    """
    data = over_seeds(accuracy, ["task", "hops", "length"], "accuracy")
    data["which"] = ["all" if hops == 0 else str(int(hops)) for hops in data["hops"]]
    menu = alt.param(
        name="hops", value="all", bind=alt.binding_select(options=list(dict.fromkeys(data["which"])), name="Hops ")
    )
    shown = data[["task", "which", "length", "median", "low", "high"]].round(4)
    base = alt.Chart(shown).transform_filter("datum.which == hops").encode(x=length_axis(), color=task_color())
    height = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="Accuracy", scale=height), y2="high:Q")
    lines = base.mark_line(point={"size": 30}).encode(
        y=alt.Y("median:Q", title="Accuracy", scale=height),
        tooltip=["task:N", "length:Q", "median:Q", "low:Q", "high:Q"],
    )
    paper = [
        {"task": task, "length": point["length"], "accuracy": point["accuracy"], "source": "2605.31558, Fig. 5B"}
        for task in TASKS
        for point in published(f"P2.fig5b.{task}").value
    ]
    diamonds = (
        alt.Chart(pd.DataFrame(paper))
        .transform_filter("hops == 'all'")
        .mark_point(shape="diamond", filled=False, size=110, strokeWidth=2)
        .encode(
            x="length:Q",
            y=alt.Y("accuracy:Q", title="Accuracy").scale(domain=[0, 1]),
            color=task_color(),
            tooltip=["source:N", "task:N", "length:Q", "accuracy:Q"],
        )
    )
    far = data[data["length"] == data["length"].max()]
    titles = {}
    for which, rows in far.groupby("which"):
        found = rows.set_index("task")["median"]
        words = " and ".join(f"{found[task]:.0%} ({task})" for task in TASKS if task in found)
        over = "" if which == "all" else f" with {which} hop{'s' if which != '1' else ''}"
        titles[which] = f"At {far['length'].iloc[0]:,} tokens the median model is right on {words}{over}"
    return (
        (band + lines + diamonds)
        .add_params(menu)
        .properties(
            title=alt.Title(
                dynamic_title("hops", titles),
                subtitle=f"Median, smallest and largest of {int(data['seeds'].max())} seeds; diamonds, hops mixed: "
                "read off the paper's Fig. 5B",
            ),
            description="Line chart of accuracy by input length on a logarithmic axis, one line with a band a task, "
            "with the paper's readings as diamonds. A menu picks the number of hops.",
            height=320,
        )
    )


def checkpoints_by_length(checkpoints: pd.DataFrame) -> alt.LayerChart:
    """Return accuracy by length of the best and the last checkpoint, with the paper's readings; a menu picks the task.

    Args:
        checkpoints: task, checkpoint (best, last), seed, length, accuracy.
    """
    data = over_seeds(checkpoints, ["task", "checkpoint", "length"], "accuracy").round(4)
    data["which"] = data["task"].map(RULES)
    names = [name for name in RULES.values() if name in set(data["which"])]
    menu = alt.param(name="which", value=names[-1], bind=alt.binding_select(options=names, name="Task "))
    base = alt.Chart(data).transform_filter("datum.which == which")
    color = alt.Color("checkpoint:N", title="Checkpoint").scale(domain=["last", "best"], range=[INK, CATEGORIES[2]])
    scale = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.2).encode(
        x=length_axis(), y=alt.Y("low:Q", title="Accuracy", scale=scale), y2="high:Q", color=color
    )
    lines = base.mark_line(point={"size": 30}).encode(
        x=length_axis(),
        y=alt.Y("median:Q", title="Accuracy", scale=scale),
        color=color,
        tooltip=["which:N", "checkpoint:N", "length:Q", "median:Q", "low:Q", "high:Q"],
    )
    paper = pd.DataFrame(
        [
            {"which": RULES[task], "length": point["length"], "accuracy": point["accuracy"]}
            for task in RULES
            for point in published(f"P2.fig5b.{task.removesuffix('_any')}").value
        ]
    )
    diamonds = (
        alt.Chart(paper)
        .transform_filter("datum.which == which")
        .mark_point(shape="diamond", filled=False, size=110, strokeWidth=2, color=NEUTRAL)
        .encode(x="length:Q", y="accuracy:Q", tooltip=["length:Q", "accuracy:Q"])
    )
    far = data[data["length"] == data["length"].max()]
    titles = {}
    for which, rows in far.groupby("which"):
        found = rows.set_index("checkpoint")["median"]
        words = f"the median best checkpoint is right on {found['best']:.0%}, the last one on {found['last']:.0%}"
        titles[which] = f"{which[0].upper()}{which[1:]}, {rows['length'].iloc[0]:,} tokens: {words}"
    return (
        (band + lines + diamonds)
        .add_params(menu)
        .properties(
            title=alt.Title(
                dynamic_title("which", titles),
                subtitle="Median, smallest and largest seed; diamonds: read off the paper's Fig. 5B",
            ),
            description="Line chart of accuracy by input length on a logarithmic axis, a line with a band for the best "
            "and for the last checkpoint, with the paper's readings as diamonds. A menu picks the task.",
            height=300,
        )
    )


def points_by_rate(points: pd.DataFrame) -> alt.LayerChart:
    """Return the 90 % point of every model, a row a task and learning rate.

    Args:
        points: task, learning_rate, seed, point, censored, as `possym.experiments.generalization.summaries.crossings`
        gives them.
    """
    data = points.copy()
    data["row"] = [f"{task}, rate {rate:g}" for task, rate in zip(data["task"], data["learning_rate"], strict=True)]
    data["reach"] = ["at least this" if censored else "falls here" for censored in data["censored"]]
    groups = data.groupby(["task", "learning_rate"])["point"]
    widest = (groups.max() / groups.min()).max()
    rows = alt.Y("row:N", title=None, sort=list(dict.fromkeys(data["row"])))
    dots = (
        alt.Chart(data)
        .mark_point(filled=True, size=60, opacity=0.6)
        .encode(
            x=length_axis("Length where accuracy falls below 90 % (tokens)", "point"),
            y=rows,
            color=task_color(),
            shape=alt.Shape("reach:N", title=None).scale(
                domain=["falls here", "at least this"], range=["circle", "triangle-right"]
            ),
            tooltip=["row:N", "seed:O", alt.Tooltip("point:Q", format=",.0f"), "reach:N"],
        )
    )
    median = (
        alt.Chart(data)
        .mark_tick(thickness=3, size=22, color=INK)
        .encode(x=alt.X("median(point):Q").scale(type="log", nice=False), y=rows)
    )
    return (dots + median).properties(
        title=alt.Title(
            f"Seeds of one setting differ by up to a factor of {widest:.1f} in how far they reach",
            subtitle="One mark a seed; bar: median",
        ),
        description="Dot plot of the length where accuracy falls below 90 percent, one dot a seed, a row for each "
        f"task and learning rate. The largest ratio between two seeds of a row is {widest:.1f}.",
        height=34 * data["row"].nunique(),
    )


def leads_by_length(leads: pd.DataFrame, looks: pd.DataFrame, heads: pd.DataFrame) -> alt.LayerChart:
    """Return the right key's lead by length beside theorem 3.2's bound; a menu picks task and layer.

    Leads are those of heads that look somewhere at training length
    (`possym.experiments.generalization.summaries.attending_heads`): the median over
    sequences, its median over seeds and hops, and the band from the least to the greatest lead of any sequence, each a
    median over seeds too. The bound is that of the layer's median dominant angle, for Index on the number task and for
    Retrieval with eight letters on the letter task, scaled to meet the median lead at training length: the theorem's
    vectors have length one, trained ones do not. It is drawn while it says something, see `bound`. The menu starts at
    the task and layer that lose most logits.
    """
    seen = attending_heads(leads, looks)
    if seen.empty:
        words = "No head puts half of its attention on one step of the path"
        return alt.layer(
            alt.Chart(pd.DataFrame({"words": [words]})).mark_text().encode(text="words:N"),
            title=alt.Title(words, subtitle="so there is no right key to follow"),
            description=f"No chart: {words[0].lower()}{words[1:]}, so there is no right key to follow.",
        )
    data = seen.groupby(["task", "layer", "length"])[["least", "median", "most"]].median().reset_index()
    angles = heads.groupby(["task", "layer"])["angle"].median()
    bounds = [bound(row.task, row.length, angles[row.task, row.layer]) for row in data.itertuples()]
    data["bound"] = bounds
    first = data.groupby(["task", "layer"])[["median", "bound"]].transform("first")
    data["bound"] *= first["median"] / first["bound"]
    data = data.round(4)
    data["head"] = [f"{row.task}, layer {row.layer}" for row in data.itertuples()]
    change = data["median"] - first["median"]
    known = data.sort_values(["task", "layer"])["head"].unique().tolist()
    start = data.loc[change[data["length"] == data["length"].max()].idxmin(), "head"]
    head = alt.param(name="head", value=start, bind=alt.binding_select(options=known, name="Task and layer "))
    base = alt.Chart(data).transform_filter("datum.head == head")
    axis = alt.Y("median:Q", title="Lead of the right key (logits)")
    band = base.mark_area(opacity=0.2, color=CATEGORIES[3]).encode(x=length_axis(), y="least:Q", y2="most:Q")
    names = ["median lead", "bound, scaled"]
    color = alt.Color("curve:N", title=None).scale(domain=names, range=[CATEGORIES[3], NEUTRAL])
    middle = (
        base.transform_calculate(curve=f"'{names[0]}'")
        .mark_line(point={"size": 35})
        .encode(x="length:Q", y=axis, color=color, tooltip=["layer:O", "length:Q", "least:Q", "median:Q", "most:Q"])
    )
    theory = (
        base.transform_filter("isValid(datum.bound)")
        .transform_calculate(curve=f"'{names[1]}'")
        .mark_line(strokeDash=[6, 4])
        .encode(x="length:Q", y="bound:Q", color=color)
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule().encode(y="zero:Q")
    kept = kept_leads(seen).median()
    words = " and ".join(f"{kept[task]:.0%} ({task})" for task in TASKS if task in kept)
    falls = f"At {data['length'].max():,} tokens the median seed keeps {words} of the right key's lead"
    return (
        (band + middle + theory + zero)
        .add_params(head)
        .properties(
            title=alt.Title(
                falls, subtitle="Band: from the least to the greatest lead of any sequence; below 0 a wrong key leads"
            ),
            description="Line chart of the right key's lead in logits by length, for the task and layer that a menu "
            f"picks, with theorem 3.2's bound scaled to meet it at the shortest length. {falls}.",
            height=300,
        )
    )


def bound(task: str, length: int, angle: float) -> float:
    """Return theorem 3.2's bound for a task's basic function: Index for number, Retrieval for letter.

    That of Retrieval, 1 − cos(ω − nθ), says nothing once nθ is beyond ω, the angle between two letters: NaN.

    >>> round(bound("number", 17, 0.866), 4), round(bound("letter", 17, 0.0027), 4), bound("letter", 300, 0.0027)
    (0.0683, 0.2612, nan)
    """
    if task == "number":
        return index_bound(int(length), angle)
    return retrieval_bound(int(length), angle, LETTERS) if length * angle <= 2 * math.pi / LETTERS else math.nan


def distractor_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Return how far a wrong key's logit stays below the right one's as the wrong key moves away.

    Args:
        table: head (a name), farther (positions), gap (logits).
    """
    names = list(dict.fromkeys(table["head"]))
    far = table[table["farther"] > 17].reset_index(drop=True)
    nearest = far.loc[far.groupby("head", sort=False)["gap"].idxmax()]
    words = "; ".join(f"{row.head}: {row.gap:.1f} at {row.farther} positions" for row in nearest.itertuples())
    lines = (
        alt.Chart(table.round(3))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X("farther:Q", title="How many positions farther than the right key"),
            y=alt.Y("gap:Q", title="Wrong key less right key (logits)"),
            color=alt.Color("head:N", title=None).scale(domain=names, range=list(COLORS[: len(names)])),
            tooltip=["head:N", "farther:Q", "gap:Q"],
        )
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule().encode(y="zero:Q")
    return (lines + zero).properties(
        title=alt.Title(
            "Where a far key looks like the right one", subtitle=f"Nearest miss beyond 17 positions, {words}"
        ),
        description=f"Line chart of a wrong key's mean logit less the right key's, by distance. Nearest: {words}.",
        height=280,
    )


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
            strokeDash=alt.StrokeDash("source:N", title=None).scale(domain=names, range=[[1, 0], [5, 4]]),
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
            subtitle=f"One mark a model{which}; dashed: forecast = measurement",
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
    data = data.assign(row=[f"{row.task}, {row.level:.0%}" for row in data.itertuples()])
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
            f"At no level is the median forecast farther off than {words}",
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
    if data.empty:
        raise InputError("table: no row has measure 'error'")
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
                subtitle="Median, smallest and largest seed; dashed: the model as it is",
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
                f"The layer that models owe most to is {words}",
                subtitle="Measured; at the first length where a model falls below 90 %",
            ),
            description="Bar charts by task: how many models owe most of their loss to each layer, measured and "
            f"forecast. The usual one is {words}.",
        )
    )


def repairs_chart(repairs: pd.DataFrame) -> alt.FacetChart:
    """Return accuracy with each repair, by heads repaired and task; a menu picks the length."""
    data = over_seeds(repairs, ["task", "repair", "heads", "length"], "accuracy").round(4)
    lengths = sorted(data["length"].unique().tolist())
    data["plain"] = data.merge(
        data[data["repair"] == "none"][["task", "length", "median"]], on=["task", "length"], suffixes=("", "_plain")
    )["median_plain"]
    names = {"all": "all heads", "symbolic": "symbolic heads", "others": "other heads"}
    data = data[data["repair"] != "none"].assign(which=lambda t: t["heads"].map(names))
    titles = {length: helps_most(data[data["length"] == length], int(length)) for length in lengths}
    at = alt.param(name="at", value=lengths[-1], bind=alt.binding_select(options=lengths, name="Length "))
    base = alt.Chart(data).transform_filter("datum.length == at")
    rows = alt.Y("repair:N", title=None)
    offset = alt.YOffset("which:N", sort=list(names.values()))
    color = alt.Color("which:N", title=None).scale(
        domain=list(names.values()), range=[CATEGORIES[2], SYMBOLIC, NEUTRAL]
    )
    x = alt.X("median:Q", title="Accuracy").scale(domain=[0, 1])
    spread = base.mark_rule(strokeWidth=4, opacity=0.3).encode(
        y=rows, yOffset=offset, x=alt.X("low:Q", title="Accuracy"), x2="high:Q", color=color
    )
    dots = base.mark_point(filled=True, size=55).encode(
        y=rows, yOffset=offset, x=x, color=color,
        tooltip=["task:N", "repair:N", "which:N", "median:Q", "low:Q", "high:Q", "plain:Q"],
    )  # fmt: skip
    plain = base.mark_rule(strokeDash=[5, 4]).encode(x="min(plain):Q")
    return (
        alt.layer(spread, dots, plain)
        .properties(height=200)
        .facet(row=alt.Row("task:N", title=None, sort=list(TASKS)))
        .add_params(at)
        .properties(
            title=alt.Title(
                dynamic_title("at", titles), subtitle="Median, smallest and largest seed; dashed: the model as it is"
            ),
            description="Dot plots of accuracy with each repair at test time, by the heads repaired; a menu of "
            f"lengths. {titles[lengths[-1]]}.",
        )
    )


def helps_most(repairs: pd.DataFrame, length: int) -> str:
    """Return which repair lifts the median model of each task most at a length, in words.

    Args:
        repairs: task, repair, which, median, plain; rows of that length.
    """
    found: dict[str, list[str]] = {}
    for task in [task for task in TASKS if task in set(repairs["task"])]:
        rows = repairs[repairs["task"] == task]
        best = rows.loc[rows["median"].idxmax()]
        lifted = best["median"] > best["plain"]
        what = f"{best['repair']} of {best['which']} helps most" if lifted else "nothing helps"
        change = f"{best['plain']:.0%} → {best['median']:.0%}" if lifted else f"{best['plain']:.0%}"
        found.setdefault(what, []).append(f"{task} {change}")
    return f"At {length:,} tokens " + "; ".join(f"{what} ({', '.join(said)})" for what, said in found.items())
