"""What the heads of a model did while it trained, from the table of `possym.profiling.monitor.HeadScoreCallback`."""

import pandas as pd

from possym.charts import POSITIONAL, SYMBOLIC, alt, click_menu
from possym.errors import InputError, require_type


def heads_over_training(table: pd.DataFrame) -> alt.FacetChart:
    """Return both scores over training, one panel per layer and one line per head; a menu picks a head.

    Args:
        table: columns step, layer, head, positional, symbolic.

    Raises:
        InputError: no such table, or an empty one.
    """
    require_type(table, pd.DataFrame, "table")
    columns = ["step", "layer", "head", "positional", "symbolic"]
    if missing := [name for name in columns if name not in table]:
        raise InputError(f"the table lacks {', '.join(missing)}: give that of a HeadScoreCallback")
    if table.empty:
        raise InputError("the table is empty: give that of a HeadScoreCallback after training")
    data = table[columns].melt(["step", "layer", "head"], var_name="kind", value_name="score").round(4)
    data["panel"] = [f"layer {layer}" for layer in data.layer]
    data["name"] = [f"layer {layer}, head {head}" for layer, head in zip(data["layer"], data["head"], strict=True)]
    last = table[table.step == table.step.max()]
    end = f"positional {last.positional.mean():.2f}, symbolic {last.symbolic.mean():.2f}"
    heads = data.sort_values(["layer", "head"])["name"].unique().tolist()
    names = [f"layer {layer}" for layer in sorted(table.layer.unique())]
    return (
        alt.Chart(data)
        .mark_line(point=alt.OverlayMarkDef(size=14), strokeWidth=1.5)
        .encode(
            x=alt.X("step:Q", title="Training step"),
            y=alt.Y("score:Q", title="Score").scale(domain=[0, 1]),
            color=alt.Color("kind:N", title=None)
            .scale(domain=["positional", "symbolic"], range=[POSITIONAL, SYMBOLIC])
            .legend(orient="bottom"),
            detail="head:N",
            opacity=alt.condition("shown == 'all' || datum.name == shown", alt.value(0.8), alt.value(0.08)),
            tooltip=["layer:O", "head:O", "step:Q", "kind:N", alt.Tooltip("score:Q", format=".2f")],
        )
        .properties(width=250, height=130)
        .facet(alt.Facet("panel:N", title=None, sort=names), columns=2)
        .add_params(*click_menu("shown", "name", ["all", *heads], "all", "Head"))
        .properties(
            title=alt.TitleParams(
                f"Means over heads at step {last.step.iloc[0]:,}: {end}",
                subtitle="One line per head and score; the menu picks out a head",
            ),
            description="Line charts, one a layer: positional and symbolic score of every head over "
            f"{last.step.iloc[0]:,} training steps. Means over heads at the end: {end}.",
        )
    )
