"""Charts of a profile: the plane of heads, heatmaps by layer, one head by frequency."""

import math
from typing import Any

import pandas as pd
import scipy

from possym.charts import NEUTRAL, POSITIONAL, SYMBOLIC, alt, click_menu

TOLD = ("positional", "symbolic", "entropy", "attention_moved", "effective_swaps")
PLANE = 380  # pixels of the plane's sides
HARDLY = 0.05  # a share of attention on what is moved below which scores are about crumbs


def plane(summary: pd.DataFrame) -> alt.Chart:
    """Draw heads by mean positional and symbolic score, faint where they hardly attend to what is moved.

    A menu picks out a layer.
    """
    layers = ["all", *sorted(summary["layer"].unique().tolist())]
    r = summary.positional.corr(summary.symbolic) if len(summary) > 1 else float("nan")
    correlation = "" if math.isnan(r) else f", r = {r:.2f}"
    relation = "trade one score for the other" if r < -0.5 else "do not clearly trade one score for the other"
    opacity = alt.condition(
        "shown == 'all' || datum.layer == shown",
        alt.Opacity("attention_moved:Q", scale=fading(0.12, 0.85), legend=None),
        alt.value(0.06),
    )
    return (
        heads_in_plane(with_shares(summary), ["layer:Q", "head:Q", *told(summary)])
        .encode(opacity=opacity)
        .add_params(*click_menu("shown", "layer", layers, "all", "Layer"))
        .properties(
            title=alt.TitleParams(
                f"Heads {relation}",
                subtitle=f"{counted_heads(summary)}{correlation}; {faint(summary)}the menu picks out a layer",
            ),
            description=(
                f"Scatter plot of {len(summary)} attention heads by positional score (across) and symbolic score (up), "
                f"coloured by layer, faint where they hardly attend to what is moved{correlation}."
            ),
        )
    )


def heads_in_plane(table: pd.DataFrame, tooltip: list) -> alt.Chart:
    """Return one dot per row of a table in the plane of both scores, coloured by layer."""
    color = alt.Color("layer:Q").scale(scheme="viridis").title("layer")
    dots = alt.Chart(table, width=PLANE, height=PLANE).mark_circle(size=55)
    return dots.encode(**plane_axes(), color=color, tooltip=tooltip)


def plane_axes(suffix: str = "") -> dict[str, Any]:
    """Return the axes of the plane of both scores, of columns with a suffix.

    >>> plane_axes("_after")["x"].shorthand
    'positional_after:Q'
    """
    return {
        axis: kind(f"{score}{suffix}:Q").title(f"{score.capitalize()} score").scale(domain=[0, 1])
        for axis, kind, score in (("x", alt.X, "positional"), ("y", alt.Y, "symbolic"))
    }


def heatmap(summary: pd.DataFrame) -> alt.HConcatChart:
    """Draw both mean scores by layer and head, side by side, faint where heads hardly attend to what is moved."""
    panels: list[alt.Chart] = []
    for score, color in (("positional", POSITIONAL), ("symbolic", SYMBOLIC)):
        panels.append(
            alt.Chart(with_shares(summary))
            .mark_rect()
            .encode(
                x=alt.X("head:O").title("head").axis(labelAngle=0),
                y=alt.Y("layer:O").title("layer"),
                color=alt.Color(f"{score}:Q").scale(domain=[0, 1], range=["#f7f7f7", color]).title(f"{score} score"),
                opacity=alt.Opacity("attention_moved:Q", scale=fading(0.3, 1.0), legend=None),
                tooltip=["layer:O", "head:O", *told(summary)],
            )
            .properties(width=max(160, 24 * summary["head"].nunique()), height=max(120, 14 * summary.layer.nunique()))
        )
    fades = faint(summary).removesuffix("; ")
    title, how, medians = layers_in_words(summary), "By Kendall's test over layers. ", medians_in_words(summary)
    if summary.layer.nunique() == 1:
        title, how = f"Both scores of the heads of layer {summary.layer.iloc[0]}", ""
    return (
        alt.hconcat(*panels)
        .resolve_scale(color="independent")
        .properties(
            title=alt.TitleParams(
                title,
                subtitle=[*filter(None, (f"{how}{medians}", fades))],
            ),
            description=f"Heatmaps of both scores by layer and head. {medians}.",
        )
    )


def frequency_profile(rows: pd.DataFrame) -> alt.VConcatChart:
    """Draw one head's scores and logit norm by frequency ID, mean and range over prompts."""
    layer, head = int(rows.layer.iloc[0]), int(rows["head"].iloc[0])
    groups = rows.groupby("frequency_id")
    parts = []
    for column in ("positional", "symbolic", "logit_norm"):
        stats = groups[column].agg(["mean", "min", "max"]).reset_index()
        parts.append(stats.assign(score=column, angle=groups.angle.mean().to_numpy()))
    table = pd.concat(parts, ignore_index=True)
    scores, norms = table[table.score != "logit_norm"], table[table.score == "logit_norm"]
    symbolic = groups.symbolic.mean()
    quarter = max(1, len(symbolic) // 4)
    fast, slow = symbolic.iloc[:quarter].mean(), symbolic.iloc[-quarter:].mean()
    across = alt.X("frequency_id:Q").title("frequency ID (1 is the fastest)").scale(nice=False, padding=8)
    across = across.axis(format="d", tickMinStep=1)
    tooltip = ["frequency_id:Q", number("angle", ".3g"), number("mean"), number("min"), number("max")]
    color = alt.Color("score:N").scale(domain=["positional", "symbolic"], range=[POSITIONAL, SYMBOLIC]).title(None)
    color = color.legend(symbolOpacity=1)
    base = alt.Chart(scores).encode(x=across, color=color)
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("min:Q"), y2="max:Q")
    line = base.mark_line(point=True).encode(y=alt.Y("mean:Q").title("score").scale(domain=[0, 1]), tooltip=tooltip)
    lower = (
        alt.Chart(norms)
        .mark_bar(color=NEUTRAL)
        .encode(x=across, y=alt.Y("mean:Q").title("norm of its logits"), tooltip=tooltip)
        .properties(width=460, height=90)
    )
    finding = f"mean symbolic score {fast:.2f} over the fastest quarter of frequencies, {slow:.2f} over the slowest"
    return alt.vconcat((band + line).properties(width=460, height=200), lower).properties(
        title=alt.TitleParams(f"Layer {layer}, head {head}", subtitle=finding.capitalize()),
        description=(
            f"Positional and symbolic score of layer {layer}, head {head} by RoPE frequency, above the norm of each "
            f"frequency's logits: {finding}."
        ),
    )


def layers_in_words(summary: pd.DataFrame) -> str:
    """Return how the median lead (symbolic less positional) of a layer goes with depth, by Kendall's test at 5 %.

    >>> heads = pd.DataFrame({"layer": range(6), "positional": 0.5, "symbolic": [0.1, 0.2, 0.3, 0.5, 0.6, 0.9]})
    >>> layers_in_words(heads), layers_in_words(heads.iloc[:2])
    ('Later layers lean more symbolic', 'Heads do not clearly change with depth')
    """
    lead = (summary.symbolic - summary.positional).groupby(summary.layer).median()
    found = scipy.stats.kendalltau(lead.index, lead) if len(lead) > 2 else None
    if found is None or not found.pvalue <= 0.05:
        return "Heads do not clearly change with depth"
    return f"Later layers lean more {'symbolic' if found.statistic > 0 else 'positional'}"


def split_layers(summary: pd.DataFrame, score: str) -> tuple[float, float]:
    """Return the median of a score over heads in the first and the second half of the layers.

    >>> split_layers(pd.DataFrame({"layer": [0, 1, 2, 3], "positional": [0.9, 0.7, 0.2, 0.4]}), "positional")
    (0.8, 0.30000000000000004)
    """
    layers = sorted(summary.layer.unique())
    early = summary.layer < layers[len(layers) // 2]
    return float(summary[score][early].median()), float(summary[score][~early].median())


def medians_in_words(summary: pd.DataFrame) -> str:
    """Return the median scores of both halves of the layers, of a single layer its own.

    >>> heads = pd.DataFrame({"layer": [3, 7], "positional": [0.9, 0.2], "symbolic": [0.1, 0.6]})
    >>> medians_in_words(heads)
    'Medians of both halves of the layers: positional 0.90, then 0.20; symbolic 0.10, then 0.60'
    >>> medians_in_words(heads[:1])
    'Medians: positional 0.90; symbolic 0.10'
    """
    halves = {score: split_layers(summary, score) for score in ("positional", "symbolic")}
    if summary.layer.nunique() == 1:
        return "Medians: " + "; ".join(f"{score} {late:.2f}" for score, (_, late) in halves.items())
    return "Medians of both halves of the layers: " + "; ".join(
        f"{score} {early:.2f}, then {late:.2f}" for score, (early, late) in halves.items()
    )


def with_shares(summary: pd.DataFrame) -> pd.DataFrame:
    """Return a summary in which heads whose share of attention was not measured fade as little as any."""
    if "attention_moved" not in summary:
        return summary.assign(attention_moved=1.0)
    return summary.assign(attention_moved=summary.attention_moved.fillna(1.0))


def told(summary: pd.DataFrame) -> list[alt.Tooltip]:
    """Return what the pointer is told of a head: what was measured of `TOLD`."""
    return [number(name) for name in TOLD if name in summary]


def fading(least: float, most: float) -> alt.Scale:
    """Return a scale from no attention on what is moved to `HARDLY`, from where on heads are drawn in full."""
    return alt.Scale(domain=[0, HARDLY], range=[least, most], clamp=True)


def faint(summary: pd.DataFrame) -> str:
    """Return how many heads are drawn faint, and why; nothing where none is.

    >>> faint(pd.DataFrame({"attention_moved": [0.01, 0.5]}))
    '1 faint: below 5 % of attention on what is moved; '
    """
    count = int((with_shares(summary).attention_moved < HARDLY).sum())
    return f"{count} faint: below {HARDLY:.0%} of attention on what is moved; ".replace("%", " %") * (count > 0)


def counted_heads(summary: pd.DataFrame) -> str:
    """Return how many heads there are, in words."""
    return f"{len(summary)} head{'s' * (len(summary) != 1)}"


def number(field: str, form: str = ".3f") -> alt.Tooltip:
    """Return a tooltip of a number, shortened."""
    return alt.Tooltip(f"{field}:Q", format=form)
