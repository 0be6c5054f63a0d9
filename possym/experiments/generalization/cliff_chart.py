"""Cliff against slope: why a positional head fails all at once with length, and a symbolic one little by little."""

import math

import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, POSITIONAL, SYMBOLIC, alt, dynamic_title, plays, slider_over
from possym.charts.typography import percent
from possym.experiments.generalization.summaries import attending_heads
from possym.experiments.learning_dynamics.summaries import over_seeds
from possym.rope import frequencies

SIDE = 190
HANDS = 4  # fastest planes; chapter 08 finds the number task's hops in IDs 2 and 3
TASKS = {"number": "number task", "letter": "letter task"}


def cliff_and_slope(accuracy: pd.DataFrame, leads: pd.DataFrame, looks: pd.DataFrame, width: int) -> alt.ConcatChart:
    """Return a clock of fast planes, the attention of symbolic heads, and accuracy, all over one slider of length.

    The clock's hands are the fastest planes, which positional heads of the number task rest on: they show by how much
    each has turned between the right key and one that stands as far away as the longer input allows. Attention is that
    of the letter task's heads that look somewhere, median over seeds and heads, on the window and before it.

    Args:
        accuracy: of one learning rate; task, seed, length, hops, accuracy.
        leads, looks: tables of the study.
        width: of a head, which sets the angles of its planes.
    """
    curves = over_seeds(accuracy[accuracy["hops"] == 0], ["task", "length"], "accuracy")
    seen = attending_heads(leads, looks)
    outside = seen[seen["task"] == "letter"].groupby("length")["outside"].median()
    lengths = sorted(set(curves["length"]) & set(outside.index))
    hands = pd.DataFrame({"plane": range(1, HANDS + 1), "angle": frequencies(width)[:HANDS].tolist()})
    start = min(range(len(lengths)), key=lambda index: abs(lengths[index] - 100))
    at = slider_over("at", [f"{length:,}" for length in lengths], start, "Length (tokens)")
    chosen = f"{lengths}[at]"
    titles = {
        index: f"Right answers at {length:,} tokens: {percent(middle(curves, 'number', length))} on the number task, "
        f"{percent(middle(curves, 'letter', length))} on the letter task"
        for index, length in enumerate(lengths)
    }
    return (
        alt.concat(
            clock(hands, f"({chosen} - {lengths[0]})"),
            share_of_attention(outside.loc[lengths], chosen),
            falling(curves[curves["length"].isin(lengths)], chosen),
            columns=3,
        )
        .add_params(*at, plays("at", 350))
        .resolve_scale(color="independent")
        .properties(
            title=alt.Title(
                dynamic_title("at", titles),
                subtitle=f"Left: the {HANDS} pairs of dimensions that RoPE turns fastest; a far key looks right where "
                "hands are back at the mark. Middle: attention of the letter task's heads to the last 17 tokens (the "
                "window, as long as inputs in training) and to those before",
            ),
            description="Three panels over one slider of length: a clock of the fastest planes, the attention "
            "of symbolic heads inside and before the window, and accuracy by length for both tasks. "
            f"{titles[start]}.",
        )
    )


def middle(curves: pd.DataFrame, task: str, length: int) -> float:
    """Return the median accuracy of a task at a length."""
    return float(curves[(curves["task"] == task) & (curves["length"] == length)]["median"].iloc[0])


def clock(hands: pd.DataFrame, farther: str) -> alt.LayerChart:
    """Return the hands of a clock, turned by their angle for each position that a key lies farther away."""
    scale = alt.Scale(domain=[-1.1, 1.1])
    place = {"x": alt.X("x:Q", axis=None, scale=scale), "y": alt.Y("y:Q", axis=None, scale=scale)}
    rim = pd.DataFrame({"turn": [2 * math.pi * index / 60 for index in range(61)]})
    circle = (
        alt.Chart(rim.assign(x=rim["turn"].map(math.sin), y=rim["turn"].map(math.cos)).round(4))
        .mark_line(color=NEUTRAL, strokeWidth=1.5)
        .encode(**place, order="turn:Q")
    )
    turned = (
        alt.Chart(hands.round(5))
        .transform_calculate(x=f"sin(datum.angle * {farther})", y=f"cos(datum.angle * {farther})", zero="0")
    )  # fmt: skip
    lines = turned.mark_rule(color=POSITIONAL, strokeWidth=3, opacity=0.9).encode(**place, x2="zero:Q", y2="zero:Q")
    tips = turned.mark_text(fontSize=11, dx=6, dy=-6).encode(**place, text="plane:O")
    top = (
        alt.Chart(pd.DataFrame({"x": [0], "y": [1]}))
        .mark_point(shape="triangle-down", size=90, color=INK)
        .encode(**place)
    )
    return (circle + lines + tips + top).properties(width=SIDE, height=SIDE, title="Positional: the clock comes round")


def share_of_attention(outside: pd.Series, chosen: str) -> alt.LayerChart:
    """Return how much attention symbolic heads leave in the window, a bar that shrinks with length."""
    rows = [
        {"length": int(length), "part": part, "share": round(value, 4)}
        for length, share in outside.items()
        for part, value in (("window", 1 - share), ("before", share))
    ]
    base = alt.Chart(pd.DataFrame(rows)).transform_filter(f"datum.length == {chosen}")
    return (
        base.mark_bar()
        .encode(
            x=alt.X("part:N", title=None, sort=["window", "before"]).axis(labelAngle=0),
            y=alt.Y("share:Q", title="Attention").scale(domain=[0, 1]).axis(format=".0%", values=[0, 0.5, 1]),
            color=alt.Color("part:N", legend=None).scale(domain=["window", "before"], range=[SYMBOLIC, NEUTRAL]),
            tooltip=["part:N", alt.Tooltip("share:Q", format=".0%")],
        )
        .properties(height=SIDE, title="Symbolic: outvoted little by little")
    )


def falling(curves: pd.DataFrame, chosen: str) -> alt.LayerChart:
    """Return accuracy by length of both tasks, with the chosen length marked."""
    data = curves[["task", "length", "median"]].round(4)
    base = alt.Chart(data).encode(
        x=alt.X("length:Q", title="Length (tokens, log scale)")
        .scale(type="log", nice=False)
        .axis(values=[17, 100, 1000, 5000], format=",d"),
        y=alt.Y("median:Q", title="Accuracy").scale(domain=[0, 1]).axis(format=".0%", values=[0, 0.5, 1]),
        color=alt.Color("task:N", title=None)
        .scale(domain=list(TASKS), range=list(CATEGORIES[:2]))
        .legend(orient="bottom"),
    )
    here = base.transform_filter(f"datum.length == {chosen}")
    rule = here.mark_rule(strokeDash=[4, 3]).encode(y=alt.value(0), y2=alt.value(SIDE), color=alt.value(NEUTRAL))
    return (rule + base.mark_line() + here.mark_point(filled=True, size=90, opacity=1)).properties(
        height=SIDE, title="Accuracy"
    )
