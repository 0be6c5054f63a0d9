"""Charts of cache plans: what each rule costs by share, recall by dose, probes without heads, and a plan itself."""

import altair as alt
import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, POSITIONAL, SYMBOLIC
from possym.experiments.cache_plans import summaries
from possym.kv_cache import CachePlan
from possym.profiling.charts import number

RULE_NAMES = {
    "positional": "most positional",
    "kind_distance": "kind × distance",
    "fitted": "kind × distance, fitted windows",
    "combined": "kind and attention beyond",
    "beyond": "attention beyond the window",
    "area": "mean-key area",
    "entropy": "entropy",
    "random": "random",
    "oracle": "each head tried alone",
}
RULE_COLORS = dict(
    zip(
        RULE_NAMES,
        (POSITIONAL, "#3C9DD0", "#00486F", CATEGORIES[1], CATEGORIES[0], CATEGORIES[2], "#A6761D", NEUTRAL, INK),
        strict=True,
    )
)
MODEL_NAMES = {"rope": "Trained here, RoPE", "slow_half_still": "Trained here, p-RoPE"}
GROUP_COLORS = {"symbolic": SYMBOLIC, "retrieval": CATEGORIES[1], "positional": POSITIONAL}
PROBE_NAMES = {"look-up": "Look-up, recall of a needle", "counting": "Counting, nats for a line break where it is due"}


def model_name(model: str) -> str:
    """Return how charts call a model."""
    return MODEL_NAMES.get(model, model)


def cost_by_share(loss: pd.DataFrame, models: list[str] | None = None) -> alt.HConcatChart:
    """Draw the excess loss by the share of key heads windowed, a line a rule, a panel a model; the legend picks rules.

    Args:
        loss: the study's table of that name.
        models: which to draw, all by themselves.
    """
    table = summaries.curve(loss)
    models = list(dict.fromkeys(table["model"])) if models is None else models
    table = table.assign(name=table["rule"].map(RULE_NAMES))
    pick = alt.selection_point(fields=["name"], bind="legend")
    color = (
        alt.Color("name:N", title=None)
        .scale(domain=list(RULE_NAMES.values()), range=list(RULE_COLORS.values()))
        .legend(columns=3, orient="bottom", labelLimit=240)
    )
    panels = []
    for model in models:
        base = alt.Chart(table[table["model"] == model]).encode(
            x=alt.X("share:Q", title="Share of key heads with a window").axis(format="%").scale(domain=[0, 1]),
            color=color,
            opacity=alt.condition(pick, alt.value(1), alt.value(0.1)),
        )
        lines = base.mark_line(point=alt.OverlayMarkDef(size=30)).encode(
            y=alt.Y("value:Q", title="Loss added, nats a token"),
            strokeDash=alt.condition("datum.rule == 'oracle'", alt.value([5, 3]), alt.value([1, 0])),
            tooltip=[
                "name:N",
                number("share", ".0%"),
                number("value", ".3f"),
                number("low", ".3f"),
                number("high", ".3f"),
            ],
        )
        spread = base.mark_rule().encode(y=alt.Y("low:Q", title="Loss added, nats a token"), y2="high:Q")
        lines = lines if panels else lines.add_params(pick)  # one legend picks for all panels
        panels.append(
            (spread + lines).properties(width=260, height=260, title=alt.Title(model_name(model), fontSize=12))
        )
    best = {model: summaries.best_rule(loss, model, 0.5) for model in models}
    names = [f"{model_name(model)}: {RULE_NAMES[rule]}" for model, rule in best.items()]
    winners = list(dict.fromkeys(RULE_NAMES[rule] for rule in best.values()))
    title = f"With half of the heads windowed, the cheapest rule is {winners[0]}"
    if len(winners) > 1:
        title = "With half of the heads windowed, another rule is cheapest in each model"
    return alt.hconcat(*panels).properties(
        title=alt.Title(title, subtitle="Bars: 95 % intervals over seeds or sequences. Click a rule"),
        description=f"Line charts of the loss added by share of windowed heads. Cheapest at half: {'; '.join(names)}.",
    )


def recall_by_dose(dose: pd.DataFrame, model: str) -> alt.HConcatChart:
    """Draw the recall of needles by the number of planes silenced: the slowest of each group, and as many elsewhere.

    Args:
        dose: the study's table of that name.
        model: of which model.
    """
    table = summaries.dose_curve(dose)
    table = table[(table["model"] == model) & (table["mode"] == "silence")]
    words = {
        ("group", "slowest"): "its own heads, slowest planes",
        ("matched", "slowest"): "matched heads, slowest planes",
        ("group", "random"): "its own heads, random planes",
    }
    table = table.assign(where=[words[key] for key in zip(table["arm"], table["planes"], strict=True)])
    panels = []
    for group in GROUP_COLORS:
        base = alt.Chart(table[table["group"] == group]).encode(
            x=alt.X("dose:Q", title="Planes silenced"),
            strokeDash=alt.StrokeDash("where:N", title=None)
            .scale(domain=list(words.values()), range=[[1, 0], [5, 3], [2, 2]])
            .legend(columns=1, orient="bottom", labelLimit=240, symbolType="stroke", symbolSize=300),
        )
        lines = base.mark_line(point=alt.OverlayMarkDef(color=GROUP_COLORS[group]), color=GROUP_COLORS[group]).encode(
            y=alt.Y("value:Q", title="Recall of needles").scale(domain=[0, 1]).axis(format="%"),
            tooltip=[
                "group:N",
                "where:N",
                "dose:Q",
                number("value", ".1%"),
                number("low", ".1%"),
                number("high", ".1%"),
            ],
        )
        spread = base.mark_rule(color=GROUP_COLORS[group]).encode(
            y=alt.Y("low:Q", title="Recall of needles"), y2="high:Q"
        )
        panels.append(
            (spread + lines).properties(width=200, height=220, title=alt.Title(f"In {group} heads", fontSize=12))
        )
    own = table[(table["arm"] == "group") & (table["planes"] == "slowest")]
    ends = own.sort_values("dose").groupby("group")["value"].agg(["first", "last"])
    most = (ends["first"] - ends["last"]).idxmax()
    said = ", ".join(
        f"{group} {ends.loc[group, 'first']:.0%} to {ends.loc[group, 'last']:.0%}" for group in GROUP_COLORS
    )
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            f"Silencing the slowest planes costs most recall in {most} heads",
            subtitle=f"{model_name(model)}. Bars: 95 % intervals",
        ),
        description=f"Line charts of recall by the number of planes silenced, from none to all: {said}.",
    )


def probes_without_heads(knock_out: pd.DataFrame, model: str) -> alt.HConcatChart:
    """Draw what the look-up and the counting probe give intact and without each group of heads and its matched heads.

    Args:
        knock_out: the study's table of that name.
        model: of which model.
    """
    rows = []
    table = summaries.of_model(knock_out, model)
    for (probe, group, arm), some in table[table["probe"].isin(PROBE_NAMES)].groupby(["probe", "group", "arm"]):
        found = summaries.estimate(summaries.units(some, "value"))
        name = "intact" if group == "none" else f"without {group}" if arm == "group" else f"matched to {group}"
        rows.append((probe, group, name, found.value, found.low, found.high))
    table = pd.DataFrame(rows, columns=["probe", "group", "name", "value", "low", "high"])
    order = ["intact", *(f"{how} {group}" for group in GROUP_COLORS for how in ("without", "matched to"))]
    colors = (
        alt.Color("group:N").scale(domain=["none", *GROUP_COLORS], range=[INK, *GROUP_COLORS.values()]).legend(None)
    )
    panels = []
    for probe, title in PROBE_NAMES.items():
        base = alt.Chart(table[table["probe"] == probe]).encode(y=alt.Y("name:N", title=None, sort=order), color=colors)
        dots = base.mark_point(filled=True, size=60).encode(
            x=alt.X("value:Q", title=title),
            tooltip=["name:N", number("value", ".2f"), number("low", ".2f"), number("high", ".2f")],
        )
        panels.append((base.mark_rule().encode(x="low:Q", x2="high:Q") + dots).properties(width=230, height=170))
    without = table[table["name"].str.startswith("without")]
    worst = {probe: some.set_index("group")["value"].idxmin() for probe, some in without.groupby("probe")}
    said = [f"{row.probe} {row.name} {row.value:.2f}" for row in table.itertuples(index=False)]
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            f"Look-up suffers most without {worst['look-up']} heads, counting without {worst['counting']} ones",
            subtitle=f"{model_name(model)}. Bars: 95 % intervals; matched heads are others of the same layers",
        ),
        description=f"Dots of two probes: {'; '.join(said)}.",
    )


def plan_grid(plan: CachePlan) -> alt.Chart:
    """Draw a plan: every key head by layer, filled where it keeps everything, else with its window."""
    table = plan.table().assign(kept=lambda rows: rows["window"].isna())
    table = table.assign(
        what=["keeps all" if kept else "window" for kept in table["kept"]],
        window=[
            "all" if kept else f"{window} tokens" for kept, window in zip(table["kept"], table["window"], strict=True)
        ],
    )
    return (
        alt.Chart(table)
        .mark_rect(stroke=INK, strokeOpacity=0.15)
        .encode(
            x=alt.X("layer:O", title="Layer").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("key_head:O", title="Key head"),
            color=alt.Color("what:N", title=None).scale(domain=["keeps all", "window"], range=[SYMBOLIC, "#D9E6EE"]),
            tooltip=["layer:O", "key_head:O", "what:N", "window:N"],
        )
        .properties(
            height={"step": 22},
            title=alt.Title(
                f"{1 - plan.share:.0%} of the key heads keep everything",
                subtitle=f"The others keep the first {plan.sink} tokens and a window",
            ),
            description=f"A grid of {plan.heads} key heads: {plan.share:.0%} have a window.",
        )
    )
