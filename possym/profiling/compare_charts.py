"""Charts of a comparison of two profiles: arrows in the plane, and changes by layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from possym.charts import NEUTRAL, POSITIONAL, SYMBOLIC, alt, click_menu
from possym.profiling.charts import PLANE, number, plane_axes

TOWARDS = {"positional": POSITIONAL, "symbolic": SYMBOLIC}


def arrows(heads: pd.DataFrame, settings: Mapping[str, Any]) -> alt.TopLevelMixin:
    """Draw heads that changed as arrows from their scores before to those after, the others as faint dots.

    A menu picks out a layer. ``heads`` and ``settings`` are those of a `possym.profiling.compare.Comparison`.
    """
    by, heads = settings["by"], heads.round(4)
    right, up = heads.positional_change, heads.symbolic_change
    heads["towards"] = np.where(up >= right, "symbolic", "positional")
    heads["angle"] = np.degrees(np.arctan2(right, up)).round(1)
    moved, still = heads[heads.changed], heads[~heads.changed]
    layers = ["all", *sorted(heads.layer.unique().tolist())]
    ends = plane_axes("_after")
    color = alt.Color("towards:N").scale(domain=list(TOWARDS), range=list(TOWARDS.values())).title("more")
    tooltip: list[Any] = ["layer:Q", f"{by}:Q", "kind_before:N", "kind_after:N"]
    for score in ("positional", "symbolic"):
        tooltip += [number(f"{score}_{name}") for name in ("before", "after", "low", "high", "p")]
    faded = alt.condition("shown == 'all' || datum.layer == shown", alt.value(0.9), alt.value(0.06))
    dots = alt.Chart(still).mark_circle(size=30, color=NEUTRAL, opacity=0.35).encode(**ends, tooltip=tooltip)
    shafts = (
        alt.Chart(moved)
        .mark_rule(strokeWidth=1.5)
        .encode(
            x=alt.X("positional_before:Q"), x2="positional_after:Q",
            y=alt.Y("symbolic_before:Q"), y2="symbolic_after:Q",
            color=color, opacity=faded, tooltip=tooltip,
        )
    )  # fmt: skip
    tips = (
        alt.Chart(moved)
        .mark_point(shape="triangle", size=70, filled=True)
        .encode(**ends, angle=alt.Angle("angle:Q").scale(None), color=color, opacity=faded, tooltip=tooltip)
    )
    names = f"{settings['before']} → {settings['after']}"
    told = f"{len(moved)} of {len(heads)} {by.replace('_', ' ')}s changed"
    told += f", {(heads.kind_before != heads.kind_after).sum()} are of another kind"
    return (
        alt.layer(dots, shafts, tips)
        .add_params(*click_menu("shown", "layer", layers, "all", "Layer"))
        .properties(
            title=alt.TitleParams(
                told.capitalize(),
                subtitle=[
                    names, f"An arrow goes from before to after, p < {settings['level']:g} for all heads together"
                ],
            ),
            width=PLANE,
            height=PLANE,
            description=f"Plane of positional (across) and symbolic score (up), {names}: {told}. Arrows are heads that "
            "changed, dots those that did not.",
        )
    )  # fmt: skip


def changes_by_layer(layers: pd.DataFrame, settings: Mapping[str, Any]) -> alt.TopLevelMixin:
    """Draw the mean change of both scores over the heads of each layer, with its 95 % interval over prompts.

    ``layers`` and ``settings`` are those of a `possym.profiling.compare.Comparison`.
    """
    parts = [
        layers[["layer", *(f"{score}_{name}" for name in ("change", "low", "high", "p"))]]
        .rename(columns=lambda name, score=score: name.removeprefix(f"{score}_"))
        .assign(score=score)
        for score in TOWARDS
    ]
    table = pd.concat(parts, ignore_index=True)
    largest = table.loc[table.change.abs().idxmax()]
    base = alt.Chart(table).encode(
        x=alt.X("layer:O").title("layer").axis(labelAngle=0),
        xOffset=alt.XOffset("score:N"),
        color=alt.Color("score:N").scale(domain=list(TOWARDS), range=list(TOWARDS.values())).title(None),
        tooltip=["layer:Q", "score:N", *(number(name) for name in ("change", "low", "high", "p"))],
    )
    words = f"The largest change is {largest['change']:+.3f} {largest['score']}, in layer {largest['layer']}"
    return (
        alt.layer(
            base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q").title("mean change of the score"), y2="high:Q"),
            base.mark_point(filled=True).encode(y=alt.Y("change:Q")),
            alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(opacity=0.4).encode(y="zero:Q"),
        )
    ).properties(
        title=alt.TitleParams(
            words,
            subtitle=f"{settings['before']} → {settings['after']}; bars are 95 % intervals over prompts",
        ),
        width=max(240, 26 * layers.layer.nunique()),
        height=220,
        description=f"Mean change of both scores by layer with 95 % intervals over prompts. {words}.",
    )
