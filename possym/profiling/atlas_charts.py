"""Charts of an atlas of known heads: where they lie in the plane, and which definitions name the same heads."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from possym.charts import INK, NEUTRAL, SYMBOLIC, alt
from possym.profiling.charts import number
from possym.profiling.known_kinds import DEFINITIONS, REPEATED

LABELS = {name: one.label for name, one in DEFINITIONS.items()}


def known_plane(atlas: Any, count: int | None = None, material: str = REPEATED) -> alt.Chart | alt.HConcatChart:
    """Draw all heads in the plane of both scores; a menu chooses the definition whose heads stand out."""
    return known_planes({"": atlas}, count, material)


def known_planes(
    atlases: Mapping[str, Any], count: int | None = None, material: str = REPEATED
) -> alt.Chart | alt.HConcatChart:
    """Draw the planes of several models side by side, with one menu of definitions for all.

    Args:
        atlases: by the model's name, each a `possym.profiling.atlas.Atlas`.
        count: heads that a definition names; None as in `possym.profiling.atlas.Atlas`, of the smallest model.
        material: what the heads are scored on.
    """
    parts, count = [], min(atlas.first(count) for atlas in atlases.values())
    for model, atlas in atlases.items():
        values = atlas.summary()
        for name in DEFINITIONS:
            rows = atlas.placed(name, material, count).merge(values[["layer", "head", name]])
            rows = rows.rename(columns={name: "value"})[["layer", "head", "positional", "symbolic", "known", "value"]]
            parts.append(rows.assign(model=model, definition=LABELS[name]))
    table = pd.concat(parts, ignore_index=True).round(3)
    options = list(LABELS.values())
    found = {
        model: {name: row for name, row in atlas.places(material, count, draws=10).set_index("definition").iterrows()}
        for model, atlas in atlases.items()
    }
    sides = [
        f"{LABELS[name]} {' and '.join(lead(rows[name].symbolic_lead) for rows in found.values())}"
        for name in DEFINITIONS
    ]
    apart = min(r["induction"].symbolic_lead - r["previous_token"].symbolic_lead for r in found.values())
    title = (
        "Heads that copy lie above, previous-token heads to the right" if apart > 0.5
        else "Heads that copy and previous-token heads do not clearly lie apart"
    )  # fmt: skip
    points = (
        alt.Chart(table)
        .transform_filter("datum.definition == shown")
        .mark_circle()
        .encode(
            x=alt.X("positional:Q", title="Positional score").scale(domain=[0, 1]),
            y=alt.Y("symbolic:Q", title="Symbolic score").scale(domain=[0, 1]),
            color=alt.condition("datum.known", alt.value(INK), alt.value(NEUTRAL)),
            size=alt.condition("datum.known", alt.value(130), alt.value(30)),
            opacity=alt.condition("datum.known", alt.value(0.95), alt.value(0.35)),
            tooltip=["layer:Q", "head:Q", "known:N", number("value"), number("positional"), number("symbolic")],
        )
    )
    heads = "the head that" if count == 1 else f"the {count} heads that"
    width = 380 if len(atlases) == 1 else 300
    panels = [
        points.transform_filter(alt.datum.model == model).properties(
            width=width, height=width, **({"title": alt.Title(model, fontSize=12)} if model else {})
        )
        for model in atlases
    ]
    menu = alt.param(
        name="shown", value=LABELS["induction"], bind=alt.binding_select(options=options, name="Known heads ")
    )
    chart = panels[0] if len(panels) == 1 else alt.hconcat(*panels)
    return chart.add_params(menu).properties(
        title=alt.Title(title, subtitle=f"Large: {heads} the chosen definition names first"),
        description=f"Scatter plot of heads by positional and symbolic score on {material}, the first {count} of a "
        f"chosen kind large. Probability that one leads further toward symbolic than another head: "
        f"{'; '.join(sides)}.",
    )


def lead(value: float) -> str:
    """Return a probability as the description of a chart has it.

    >>> lead(0.123), lead(float("nan"))
    ('0.12', 'unknown')
    """
    return "unknown" if pd.isna(value) else f"{value:.2f}"


def definitions_agree(atlases: Mapping[str, Any], count: int = 10) -> alt.HConcatChart:
    """Draw for each model how many heads every two definitions have in common.

    Args:
        atlases: by the model's name, each a `possym.profiling.atlas.Atlas`.
        count: heads that a definition names.
    """
    panels: list = []
    words: list[str] = []
    order = list(LABELS.values())
    for model, atlas in atlases.items():
        table = atlas.agreement(count).replace({"first": LABELS, "second": LABELS})
        table = table.assign(shared=(table["overlap"] * count).round().astype(int), chance=table["by_chance"] * count)
        table = table.loc[
            table["first"] != table["second"], ["first", "second", "shared", "chance", "rank_correlation"]
        ]
        pair = table[(table["first"] == LABELS["retrieval"]) & (table["second"] == LABELS["query_focused"])]
        words.append(f"{model} {pair['shared'].iloc[0]} of {count}")
        base = alt.Chart(table.round(3)).encode(
            x=alt.X("second:N", title=None, sort=order).axis(labelAngle=-60, labelLimit=200),
            y=alt.Y("first:N", title=None, sort=order).axis(labelLimit=200, labels=not panels),
            tooltip=["first:N", "second:N", "shared:Q", number("chance", ".1f"), number("rank_correlation")],
        )
        tiles = base.mark_rect().encode(
            color=alt.Color("shared:Q", title="shared").scale(domain=[0, count], range=["#f7f7f7", SYMBOLIC])
        )
        label = base.mark_text(fontSize=10).encode(text=alt.Text("shared:Q"), color=alt.value("#222222"))
        panels.append((tiles + label).properties(width=240, height=240, title=alt.Title(model, fontSize=12)))
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            f"Both definitions of retrieval heads share: {', '.join(words)}",
            subtitle=f"How many of their first {count} heads two definitions have in common",
        ),
        description=f"Heatmaps of how many of their first {count} heads every two definitions have in common. "
        f"Retrieval and query-focused retrieval: {', '.join(words)}.",
    )
