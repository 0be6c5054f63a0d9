"""Charts of models trained in different settings: how well they learn, which heads end pure, where, and when.

Tables in are those of `possym.experiments.generality.summaries`, or of `possym.experiments.generality` where a chart
says so.
"""

import pandas as pd

from possym.charts import CATEGORIES, KINDS, NEUTRAL, POSITIONAL, SYMBOLIC, alt, dynamic_title, kind_color
from possym.experiments.generality.summaries import LABELS, before_and_after, final_purity
from possym.experiments.learning_dynamics.charts import STEP, pack
from possym.experiments.learning_dynamics.summaries import SIGNS, over_seeds

TASKS = dict(zip(("number", "letter", "mixed"), CATEGORIES, strict=False))


def accuracies(models: pd.DataFrame) -> alt.LayerChart:
    """Return the test accuracy of every model by setting and task: one mark per model, a tick at the median.

    Args:
        models: of `possym.experiments.generality.summaries.ends`.
    """
    data = labelled(models)
    tasks = [task for task in TASKS if task in set(data["task"])]
    learnt = data.groupby(["setting", "task"])["accuracy"].median() >= 0.99
    title = f"In {learnt.sum()} of {len(learnt)} settings and tasks the median model ends at 99 % or more"
    base = alt.Chart(data[["label", "task", "seed", "accuracy"]]).encode(
        y=setting_axis(data),
        yOffset=alt.YOffset("task:N", sort=tasks),
        color=alt.Color("task:N", title="Task", sort=tasks).scale(domain=tasks, range=[TASKS[task] for task in tasks]),
    )
    marks = base.mark_point(filled=True, size=45, opacity=0.6).encode(
        x=alt.X("accuracy:Q", title="Test accuracy, all hop counts").axis(format="%").scale(domain=[0, 1]),
        shape=alt.Shape("task:N", title="Task", sort=tasks).scale(domain=tasks),
        tooltip=["label:N", "task:N", "seed:O", alt.Tooltip("accuracy:Q", format=".2%")],
    )
    medians = base.mark_tick(thickness=2).encode(x="median(accuracy):Q")
    return (marks + medians).properties(
        title=alt.Title(title, subtitle="One mark per model; tick: median over seeds"),
        description=f"Dot plot: test accuracy of every model by setting and task. {title}.",
        height=46 * data["label"].nunique(),
    )


def pure_shares(accuracy: pd.DataFrame, heads: pd.DataFrame) -> alt.Chart:
    """Return which share of a model's heads ends of each kind, by setting and task, mean over seeds; a menu picks γ.

    Args:
        accuracy, heads: tables of the study.
    """
    gammas = sorted(heads["gamma"].unique(), reverse=True)
    frames = []
    for gamma in gammas:
        models = labelled(final_purity(accuracy, heads, gamma))
        models["neither"] = models["heads"] - models["positional"] - models["symbolic"]
        means = models.groupby(["setting", "label", "task"], sort=False)[[*KINDS, "heads"]].mean().reset_index()
        frames.append(means.assign(gamma=gamma))
    data = pd.concat(frames, ignore_index=True).melt(
        ["setting", "label", "task", "gamma", "heads"], list(KINDS), var_name="kind", value_name="count"
    )
    data["share"] = data["count"] / data["heads"]
    data["row"] = [f"{row.label}: {row.task}" for row in data.itertuples()]
    order = [f"{label}: {task}" for label in LABELS.values() for task in TASKS]
    rows = [row for row in order if row in set(data["row"])]
    pure = data[data["kind"] != "neither"].groupby(["gamma", "row"])["share"].sum().groupby("gamma").agg(["min", "max"])
    titles = {
        f"{each:g}": f"Between {row['min']:.0%} and {row['max']:.0%} of the heads end pure at γ = {each:g}, by setting "
        "and task"
        for each, row in pure.iterrows()
    }
    gamma = alt.param(
        name="gamma",
        value=gammas[0],
        bind=alt.binding_radio(options=gammas, labels=[f"{each:g}" for each in gammas], name="γ "),
    )
    return (
        alt.Chart(data[["row", "kind", "share", "count", "gamma"]])
        .transform_filter("datum.gamma == gamma")
        .transform_calculate(rank=f"indexof({list(KINDS)}, datum.kind)")
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="Share of a model's heads, mean over seeds").axis(format="%").scale(domain=[0, 1]),
            y=alt.Y("row:N", title=None, sort=rows).scale(domain=rows).axis(labelLimit=260),
            color=kind_color(title="Ends"),
            order="rank:Q",
            tooltip=[
                "row:N",
                "kind:N",
                alt.Tooltip("share:Q", format=".0%"),
                alt.Tooltip("count:Q", format=".1f", title="heads"),
            ],
        )
        .add_params(gamma)
        .properties(
            title=alt.Title(
                dynamic_title("gamma", titles),
                subtitle="Query at the last position; pure: one score ≥ 1 − γ, the other ≤ γ",
            ),
            description="Stacked bars: shares of positional, symbolic and other heads by setting and task. "
            f"{'; '.join(titles.values())}.",
            height=24 * len(rows),
        )
    )


def kinds_by_layer(shares: pd.DataFrame) -> alt.FacetChart:
    """Return, for every setting and task, the share of each layer's heads that ends of each kind.

    Args:
        shares: of `possym.experiments.generality.summaries.by_layer`.
    """
    data = labelled(shares)
    data["panel"] = [f"{row.label}: {row.task}" for row in data.itertuples()]
    order = [f"{label}: {task}" for label in LABELS.values() for task in TASKS]
    panels = [each for each in order if each in set(data["panel"])]
    data = data[data["kind"] != "neither"]
    held = data[data["share"] >= 0.5].groupby("kind")["panel"].nunique().reindex(list(SIGNS), fill_value=0)
    title = (
        f"Of {len(panels)} settings and tasks, {held['positional']} make some layer positional in most seeds, and "
        f"{held['symbolic']} some layer symbolic"
    )
    return (
        alt.Chart(data[["panel", "layer", "kind", "share"]])
        .mark_bar()
        .encode(
            x=alt.X("layer:O", title="Layer").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("share:Q", title="Share").axis(format="%", values=[0, 0.5, 1]).scale(domain=[0, 1]),
            color=kind_color(title="Ends"),
            tooltip=["panel:N", "layer:O", "kind:N", alt.Tooltip("share:Q", format=".0%")],
        )
        .properties(width=170, height=70)
        .facet(
            facet=alt.Facet("panel:N", title=None, sort=panels),
            columns=3,
        )
        .resolve_scale(x="independent")
        .properties(
            title=alt.Title(title, subtitle="Share over heads of the layer and seeds; γ = 0.1; the rest is neither"),
            description=f"Small multiples of stacked bars: kinds of heads by layer, setting and task. {title}.",
        )
    )


def over_training(courses: pd.DataFrame) -> alt.LayerChart:
    """Return accuracy and the shares of pure heads over training; a menu picks setting and task.

    Lines are medians over seeds, bands the range between the smallest and the largest.

    Args:
        courses: of `possym.experiments.generality.summaries.course`.
    """
    data = labelled(courses)
    data["panel"] = [f"{row.label}: {row.task}" for row in data.itertuples()]
    names = {"accuracy": "accuracy", "positional": "pure positional heads", "symbolic": "pure symbolic heads"}
    frames = [over_seeds(data, ["panel", "step"], value).assign(curve=name) for value, name in names.items()]
    arrays = ["step", "median", "low", "high"]
    packed = pack(pd.concat(frames, ignore_index=True), ["panel", "curve"], arrays)
    order = [f"{label}: {task}" for label in LABELS.values() for task in TASKS]
    panels = [each for each in order if each in set(packed["panel"])]
    panel = alt.param(name="panel", value=panels[0], bind=alt.binding_select(options=panels, name="Setting and task "))
    colors = alt.Color("curve:N", title=None, sort=list(names.values())).scale(
        domain=list(names.values()), range=[NEUTRAL, POSITIONAL, SYMBOLIC]
    )
    base = (
        alt.Chart(packed)
        .transform_filter("datum.panel == panel")
        .transform_flatten(arrays)
        .encode(x=alt.X("step:Q", title=STEP), color=colors)
    )
    band = base.mark_area(opacity=0.2).encode(
        y=alt.Y("low:Q", title="Share right, share of heads").axis(format="%").scale(domain=[0, 1]), y2="high:Q"
    )
    line = base.mark_line().encode(
        y="median:Q",
        strokeDash=alt.StrokeDash("curve:N", title=None, sort=list(names.values())).scale(
            domain=list(names.values()), range=[[6, 3], [1, 0], [1, 0]]
        ),
        tooltip=["panel:N", "curve:N", "step:Q", alt.Tooltip("median:Q", format=".0%")],
    )
    change = before_and_after(courses)
    rises = change.assign(rise=change["after"] - change["before"]).groupby(["setting", "task"])["rise"].median() > 0
    title = f"In {rises.sum()} of {len(rises)} settings and tasks more heads are pure at the end than before learning"
    return (
        (band + line)
        .add_params(panel)
        .properties(
            title=alt.Title(title, subtitle="Medians over seeds, bands from smallest to largest; γ = 0.1"),
            description="Line chart with a menu of settings and tasks: validation accuracy, and the shares of heads "
            f"that are pure positional and pure symbolic, over training steps. {title}.",
            height=280,
        )
    )


def labelled(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the settings' names in words as column ``label``."""
    return table.assign(label=table["setting"].map(LABELS))


def setting_axis(data: pd.DataFrame) -> alt.Y:
    """Return the axis of settings, in the book's order."""
    present = [label for label in LABELS.values() if label in set(data["label"])]
    return alt.Y("label:N", title=None, sort=present).scale(domain=present).axis(labelLimit=220)
