"""Charts of causes: accuracy with a layer's attention changed or layers left out, and the shortcut against the path.

Tables in are those of `possym.experiments.mechanism`. Charts show the median over seeds and the range between the
smallest and the largest.
"""

import pandas as pd

from possym.charts import CATEGORIES, NEUTRAL, alt, dynamic_title, tile_font
from possym.experiments.learning_dynamics.charts import hop_words
from possym.experiments.learning_dynamics.summaries import over_seeds

CHANGES = {
    ("uniform", "all"): "uniform",
    ("self", "all"): "at itself",
    ("self", "last"): "at itself, last position only",
    ("self", "others"): "at itself, other positions only",
    ("next", "all"): "next position of the path",
    ("ahead", "all"): "position ℓ + 1 ahead on the path",
    ("exchanged", "all"): "another sequence's",
}
KINDS = {
    "drawn": "as drawn: rule and path agree",
    "decoys": "three marked targets",
    "disagree": "rule and path disagree",
    "copied": "nothing marked",
    "cut": "path cut, rule intact",
    "cut-disagree": "path cut, rule elsewhere",
}
ANSWERS = {"path": "end of the path", "rule": "what the rule names", "target": "another target", "other": "no target"}


def causes(table: pd.DataFrame, task: str) -> alt.LayerChart:
    """Return accuracy with one layer's attention changed, by layer and change; a menu picks the hops.

    Args:
        table: task, seed, change, places, layer, hops, accuracy.
        task: ``"number"`` or ``"letter"``.
    """
    rows = table[table["task"] == task]
    rows = rows[rows["change"] != "none"].copy()
    rows["what"] = [CHANGES[pair] for pair in zip(rows["change"], rows["places"], strict=True)]
    data = over_seeds(rows, ["what", "layer", "hops"], "accuracy")
    hops = sorted(data["hops"].unique().tolist())
    names = {h: hop_words(h) if h else "all" for h in hops}
    data["class"] = data["hops"].map(names)
    chosen = alt.param(name="chosen", value="all", bind=alt.binding_select(options=list(names.values()), name="Hops "))
    order = [name for name in CHANGES.values() if name in set(data["what"])]
    single = data[data["what"] == CHANGES["self", "all"]]
    titles = {
        name: f"{task.capitalize()} task{'' if name == 'all' else f', {name}'}: with a layer that moves nothing, "
        f"median accuracy stays at {worst:.1%}{'' if worst >= 0.9995 else ' or above'}"
        for name, worst in single.groupby("class")["median"].min().items()
    }
    base = (
        alt.Chart(data.drop(columns=["hops", "mean"]))
        .transform_filter("datum.class == chosen")
        .encode(
            x=alt.X("layer:O", title="Layer whose attention is changed").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("what:N", title=None, sort=order).axis(labelLimit=230),
        )
    )
    tiles = base.mark_rect().encode(
        color=alt.Color("median:Q", title="Accuracy").scale(scheme="viridis", domain=[0, 1]).legend(format="%"),
        tooltip=["what:N", "layer:O", *(alt.Tooltip(f"{c}:Q", format=".1%") for c in ("median", "low", "high"))],
    )
    texts = base.mark_text(fontSize=tile_font(4)).encode(
        text=alt.Text("median:Q", format=".0%"),
        color=alt.condition("datum.median > 0.6", alt.value("black"), alt.value("white")),
    )
    return (
        (tiles + texts)
        .add_params(chosen)
        .properties(
            title=alt.Title(
                dynamic_title("chosen", titles), subtitle="Rows: where the layer looks instead; median over seeds"
            ),
            description="Heat map of accuracy by changed layer and kind of change, with a menu of hop counts. "
            f"{titles['all']}.",
            height=30 * len(order),
        )
    )


def kept_layers(kept: pd.DataFrame, task: str, instead: str = "self") -> alt.LayerChart:
    """Return accuracy against the number of layers that keep their attention, in three orders.

    Args:
        kept: task, seed, instead, order, kept, hops, accuracy.
        task: ``"number"`` or ``"letter"``.
        instead: attention of the layers left out, ``"self"`` or ``"uniform"``.
    """
    rows = kept[kept["task"] == task]
    rows = rows[(rows["instead"] == instead) & (rows["hops"] == 0)]
    data = over_seeds(rows, ["order", "kept"], "accuracy")
    words = {"greedy": "least needed first", "first": "from layer 0 up", "last": "from the top down"}
    data["left out"] = data["order"].map(words)
    order = list(words.values())
    enough = data[(data["order"] == "greedy") & (data["median"] >= 0.9)]["kept"].min()
    colors = alt.Color("left out:N", title="Layers left out", sort=order).scale(
        domain=order, range=list(CATEGORIES[:3])
    )
    base = alt.Chart(data.drop(columns=["order", "mean"])).encode(
        x=alt.X("kept:O", title="Layers that keep their attention").axis(labelAngle=0), color=colors
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="Accuracy").scale(domain=[0, 1]), y2="high:Q")
    line = base.mark_line(point=True).encode(
        y=alt.Y("median:Q", title="Accuracy").axis(format="%"),
        strokeDash=alt.StrokeDash("left out:N", title="Layers left out", sort=order).scale(
            domain=order, range=[[1, 0], [6, 3], [2, 2]]
        ),
        tooltip=["left out:N", "kept:O", *(alt.Tooltip(f"{c}:Q", format=".1%") for c in ("median", "low", "high"))],
    )
    found = f"{enough:g} well-chosen layers suffice" if enough == enough else "no choice of layers suffices"
    title = f"{task.capitalize()} task: {found} for 90 % of answers"
    instead_words = {"self": "look at themselves", "uniform": "look everywhere equally"}[instead]
    return (line + band).properties(
        title=alt.Title(
            title, subtitle=f"Positions {instead_words} in the layers left out; median and range over seeds"
        ),
        description=f"Line chart of accuracy by number of layers kept, for three orders. {title}.",
        height=260,
    )


def rule_answers(rule: pd.DataFrame) -> alt.Chart:
    """Return what letter models answer where the path and the shortcut disagree; a menu picks the hops.

    Args:
        rule: seed, kind, hops, answer, share.
    """
    means = rule.groupby(["kind", "hops", "answer"], as_index=False)["share"].mean()
    whole = means.groupby(["kind", "answer"], as_index=False)["share"].mean().assign(hops=0)
    data = pd.concat([whole, means], ignore_index=True)
    data["class"] = ["all" if hops == 0 else hop_words(hops) for hops in data["hops"]]
    data["case"], data["what"] = data["kind"].map(KINDS), data["answer"].map(ANSWERS)
    classes, answers = data["class"].unique().tolist(), list(ANSWERS.values())
    chosen = alt.param(name="chosen", value="all", bind=alt.binding_select(options=classes, name="Hops "))
    disagree = data[data["kind"] == "disagree"].pivot(index="class", columns="answer", values="share")
    titles = {
        name: f"Where the two disagree{'' if name == 'all' else f', {name}'}: {row['path']:.1%} of answers follow the "
        f"path and {row['rule']:.1%} the rule"
        for name, row in disagree.iterrows()
    }
    data["rank"] = data["what"].map({name: index for index, name in enumerate(answers)})
    return (
        alt.Chart(data[["class", "case", "what", "share", "rank"]])
        .transform_filter("datum.class == chosen")
        .mark_bar()
        .encode(
            x=alt.X("share:Q", title="Share of answers, mean over seeds").scale(domain=[0, 1]).axis(format="%"),
            y=alt.Y("case:N", title=None, sort=list(KINDS.values())).axis(labelLimit=230),
            color=alt.Color("what:N", title=None, sort=answers).scale(
                domain=answers, range=[CATEGORIES[0], CATEGORIES[2], CATEGORIES[3], NEUTRAL]
            ),
            order="rank:Q",
            tooltip=["case:N", "what:N", alt.Tooltip("share:Q", format=".1%")],
        )
        .add_params(chosen)
        .properties(
            title=alt.Title(
                dynamic_title("chosen", titles),
                subtitle="Letter sequences in which the shortcut's marks are moved, or the path is cut",
            ),
            description="Stacked bars with a menu of hop counts: what models answer, by kind of altered sequence. "
            f"{titles['all']}.",
            height=200,
        )
    )
