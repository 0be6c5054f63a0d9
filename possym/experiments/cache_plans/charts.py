"""Charts of cache plans: what each rule costs by share, recall by dose, probes without heads, and a plan itself."""

import numpy as np
import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, POSITIONAL, SYMBOLIC, alt, click_menu, slider_over
from possym.experiments.cache_plans import summaries
from possym.experiments.cache_plans.summaries import RULE_NAMES
from possym.kv_cache import RULES, CachePlan
from possym.profiling.charts import number

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


def cost_by_share(loss: pd.DataFrame) -> alt.HConcatChart:
    """Draw the excess loss by the share of key heads windowed, a line a rule, a panel a model; a menu picks a rule.

    Args:
        loss: the study's table of that name.
    """
    table = summaries.curve(loss)
    models = list(dict.fromkeys(table["model"]))
    table = table.assign(name=table["rule"].map(RULE_NAMES))
    panels = []
    for model in models:
        axis = {"title": None} if panels else {}  # the first panel says it for all
        base = alt.Chart(table[table["model"] == model]).encode(
            x=alt.X("share:Q", title="Share of key heads with a window").axis(format="%").scale(domain=[0, 1]),
            color=rule_color(),
            opacity=alt.condition("rule == 'all' || datum.name == rule", alt.value(1), alt.value(0.1)),
        )
        lines = base.mark_line(point=alt.OverlayMarkDef(size=30)).encode(
            y=alt.Y("value:Q", title="Loss added, nats a token").axis(**axis),
            strokeDash=alt.condition("datum.rule == 'oracle'", alt.value([5, 3]), alt.value([1, 0])),
            tooltip=[
                "name:N",
                number("share", ".0%"),
                number("value", ".3f"),
                number("low", ".3f"),
                number("high", ".3f"),
            ],
        )
        spread = base.mark_rule().encode(y=alt.Y("low:Q", title="Loss added, nats a token").axis(**axis), y2="high:Q")
        panels.append(
            (spread + lines).properties(width=185, height=220, title=alt.Title(model_name(model), fontSize=12))
        )
    best = {model: summaries.best_rule(loss, model, 0.5) for model in models}
    names = [f"{model_name(model)}: {RULE_NAMES[rule]}" for model, rule in best.items()]
    half = table[np.isclose(table["share"], 0.5)].pivot(index="model", columns="rule", values="value")
    ratio = (half["positional"] / half["random"]).max()
    title = (
        f"Windows on half of the heads, chosen by kind, cost at most {ratio:.0%} of what they cost by chance"
        if ratio <= 0.5
        else "Windows on half of the heads, chosen by kind, do not cost much less than by chance"
    )
    menu = click_menu("rule", "name", ["all", *RULE_NAMES.values()], "all", "Rule")
    return (
        alt.hconcat(*panels)
        .add_params(*menu)
        .properties(
            title=alt.Title(title, subtitle="Bars: 95 % intervals over seeds or sequences. The menu picks a rule"),
            description=f"Lines of the loss added by share of windowed heads. Cheapest at half: {'; '.join(names)}.",
        )
    )


def rule_color() -> alt.Color:
    """Return the colours of the rules, by their names in charts."""
    return (
        alt.Color("name:N", title=None)
        .scale(domain=list(RULE_NAMES.values()), range=list(RULE_COLORS.values()))
        .legend(columns=3, orient="bottom", labelLimit=240)
    )


def cost_by_position(positions: pd.DataFrame, model: str) -> alt.Chart:
    """Draw by position what windows on half of the key heads add to the loss of one model, a line a rule.

    Args:
        positions: the study's table of that name.
        model: of which model.
    """
    rows = summaries.of_model(positions, model)
    rows = rows.groupby(["rule", "share", "position"], as_index=False)["loss"].mean()
    intact = rows[rows["rule"] == "none"].set_index("position")["loss"]
    rows = rows[np.isclose(rows["share"], 0.5)]
    rows = rows.assign(name=rows["rule"].map(RULE_NAMES), added=rows["loss"] - rows["position"].map(intact))
    last = rows[rows["position"] == rows["position"].max()].set_index("name")["added"]
    return (
        alt.Chart(rows)
        .mark_line(point=alt.OverlayMarkDef(size=20))
        .encode(
            x=alt.X("position:Q", title="Position, tokens"),
            y=alt.Y("added:Q", title="Loss added, nats a token"),
            color=rule_color(),
            tooltip=["name:N", number("position", ".0f"), number("added", ".3f")],
        )
        .properties(
            width=420,
            title=alt.Title(
                f"At the end of the sequence, {last.idxmin()} costs least and {last.idxmax()} most",
                subtitle=f"{model_name(model)}, 50% of the key heads windowed",
            ),
            description=f"Lines of the loss added by position, from {last.min():.2f} to {last.max():.2f} at the end.",
        )
    )


def copying_by_share(copying: pd.DataFrame, model: str) -> alt.LayerChart:
    """Draw how much of what is said twice a model still copies, by the share of key heads windowed, a line a rule.

    Args:
        copying: the study's table of that name.
        model: of which model.
    """
    rows = summaries.of_model(copying, model)
    found = summaries.estimates(rows, ["rule", "share"], "accuracy")
    intact = found.loc[found["rule"] == "none", "value"].iloc[0]
    table = found[found["rule"] != "none"].assign(name=lambda table: table["rule"].map(RULE_NAMES))
    base = alt.Chart(table).encode(
        x=alt.X("share:Q", title="Share of key heads with a window").axis(format="%").scale(domain=[0, 1]),
        color=rule_color(),
    )
    lines = base.mark_line(point=alt.OverlayMarkDef(size=30)).encode(
        y=alt.Y("value:Q", title="Random tokens copied").axis(format="%"),
        tooltip=[
            "name:N",
            number("share", ".0%"),
            number("value", ".1%"),
            number("low", ".1%"),
            number("high", ".1%"),
        ],
    )
    spread = base.mark_rule().encode(y=alt.Y("low:Q", title="Random tokens copied"), y2="high:Q")
    whole = (
        alt.Chart(pd.DataFrame({"intact": [intact]}))
        .mark_rule(color=INK, strokeDash=[4, 4])
        .encode(y=alt.Y("intact:Q", title="Random tokens copied"), tooltip=[number("intact", ".1%")])
    )
    half = table[np.isclose(table["share"], 0.5)].set_index("name")["value"]
    ranked = half.drop(RULE_NAMES["oracle"]).sort_values()
    return (whole + spread + lines).properties(
        width=420,
        height=240,
        title=alt.Title(
            f"With half of the heads windowed, {ranked.index[-1]} copies {ranked.iloc[-1]:.0%}, intact {intact:.0%}",
            subtitle=f"{model_name(model)}. Dashed: intact. Bars: 95 % intervals",
        ),
        description=f"Lines of the random tokens copied, intact {intact:.0%}. With half of the heads windowed: "
        f"{', '.join(f'{name} {value:.0%}' for name, value in half.items())}.",
    )


def recall_by_depth(needle: pd.DataFrame, model: str) -> alt.HConcatChart:
    """Draw the recall of needles by their depth, a panel a length, a line a rule and one for the intact model.

    Args:
        needle: the study's table of that name.
        model: of which model.
    """
    rows = summaries.of_model(needle, model)
    rows = rows[(rows["rule"] == "none") | np.isclose(rows["share"], 0.5)]
    rows = rows.assign(right=rows["right"].astype(float), name=rows["rule"].map(RULE_NAMES).fillna("intact"))
    rows = rows.groupby(["length", "depth", "distance", "name"], as_index=False)["right"].mean()
    names = [*RULE_NAMES.values(), "intact"]
    panels = []
    for length, some in rows.groupby("length"):
        lines = (
            alt.Chart(some)
            .mark_line(point=alt.OverlayMarkDef(size=30))
            .encode(
                x=alt.X("depth:Q", title="Depth of the needle: 0 at the beginning").scale(domain=[0, 1]),
                y=alt.Y("right:Q", title="Recall").axis(format="%"),
                color=alt.Color("name:N", title=None)
                .scale(domain=names, range=[*RULE_COLORS.values(), CATEGORIES[3]])
                .legend(columns=3, orient="bottom", labelLimit=240),
                tooltip=["name:N", "depth:Q", "distance:Q", number("right", ".0%")],
            )
        )
        panels.append(lines.properties(width=260, height=240, title=alt.Title(f"{length} tokens", fontSize=12)))
    means = rows.groupby("name")["right"].mean()
    rules = means.drop("intact").sort_values()
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            f"Needles survive best with {rules.index[-1]}: {rules.iloc[-1]:.0%} of them, {means['intact']:.0%} intact",
            subtitle=f"{model_name(model)}, 50% of the key heads windowed",
        ),
        description=f"Line charts of recall by depth; means from {rules.iloc[0]:.0%} to {rules.iloc[-1]:.0%}.",
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
            y=alt.Y("value:Q", title="Recall of needles").axis(format="%"),
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
    fastest = own[own["dose"] > 0].groupby("group")["value"].mean().idxmin()
    least = table.loc[table["dose"] > 0, "dose"].min()
    at = table[(table["group"] == fastest) & (table["planes"] == "slowest") & (table["dose"] == least)]
    left = at.set_index("arm")["value"]
    said = ", ".join(
        f"{group} {ends.loc[group, 'first']:.0%} to {ends.loc[group, 'last']:.0%}" for group in GROUP_COLORS
    )
    return (
        alt.hconcat(*panels)
        .resolve_scale(y="shared")
        .properties(
            title=alt.Title(
                f"With the {least} slowest planes silent in {fastest} heads recall is {left['group']:.0%}, "
                f"in matched heads {left['matched']:.0%}, intact {ends.loc[fastest, 'first']:.0%}",
                subtitle=f"{model_name(model)}. Bars: 95 % intervals",
            ),
            description=f"Line charts of recall by the number of planes silenced, from none to all: {said}.",
        )
    )


def probes_without_heads(knock_out: pd.DataFrame, model: str) -> alt.HConcatChart:
    """Draw what the look-up and the counting probe give intact and without each group of heads and its matched heads.

    Args:
        knock_out: the study's table of that name.
        model: of which model.
    """
    table = summaries.of_model(knock_out, model)
    table = summaries.estimates(table[table["probe"].isin(PROBE_NAMES)], ["probe", "group", "arm"], "value")
    table["name"] = [
        "intact" if group == "none" else f"without {group}" if arm == "group" else f"matched to {group}"
        for group, arm in zip(table["group"], table["arm"], strict=True)
    ]
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
        panels.append((base.mark_rule().encode(x="low:Q", x2="high:Q") + dots).properties(width=205, height=170))
    without = table[table["name"].str.startswith("without")]
    worst = {probe: some.set_index("group")["value"].idxmin() for probe, some in without.groupby("probe")}
    looked = without.loc[without["probe"] == "look-up", "value"]
    title = f"Look-up suffers most without {worst['look-up']} heads, counting without {worst['counting']} ones"
    if looked.max() == 0:
        told = f"counting suffers most without {worst['counting']} heads"
        title = f"Leave out any one kind, and nothing is looked up; {told}"
    said = [f"{row.probe} {row.name} {row.value:.2f}" for row in table.itertuples(index=False)]
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            title,
            subtitle=f"{model_name(model)}. Bars: 95 % intervals; matched heads are others of the same or next layers",
        ),
        description=f"Dots of two probes: {'; '.join(said)}.",
    )


def rules_by_hand(heads: pd.DataFrame, loss: pd.DataFrame, model: str) -> alt.HConcatChart:
    """Draw which key heads a rule gives a window, and beside it what every rule costs; a menu and a slider choose.

    Args:
        heads, loss: the study's tables of these names; heads are those of the model's first seed.
        model: of which model.
    """
    rows = of_first_seed(heads, model)
    parts = [
        rows.assign(rule=rule, name=name, rank=RULES[rule](rows, 0).rank(method="first") - 1)
        for rule, name in RULE_NAMES.items()
    ]
    order = pd.concat(parts)[["name", "layer", "key_head", "positional", "symbolic", "distance", "rank"]].round(3)
    costs = summaries.curve(loss)
    costs = costs[costs["model"] == model].assign(name=lambda table: table["rule"].map(RULE_NAMES))
    shares = sorted(costs["share"].unique())
    slider = slider_over(
        "at", [f"{share:.0%}" for share in shares], shares.index(min(shares, key=lambda s: abs(s - 0.5))), "Windowed"
    )
    menu = alt.param(
        name="rule",
        value=RULE_NAMES["kind_distance"],
        bind=alt.binding_select(options=list(RULE_NAMES.values()), name="Rule "),
    )
    counts = [round(share * len(rows)) for share in shares]
    grid = (
        alt.Chart(order)
        .transform_filter("datum.name == rule")
        .transform_calculate(what=f"datum.rank < {counts}[at] ? 'window' : 'keeps all'")
        .mark_rect(stroke=INK, strokeOpacity=0.15)
        .encode(
            x=alt.X("layer:O", title="Layer").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("key_head:O", title="Key head"),
            color=what_is_kept(),
            tooltip=[
                "layer:O",
                "key_head:O",
                "what:N",
                number("positional"),
                number("symbolic"),
                number("distance", ".0f"),
            ],
        )
        .properties(width=270, height=220)
    )
    base = (
        alt.Chart(costs.assign(at=costs["share"].map(shares.index)).round(4))
        .transform_filter("datum.at == at")
        .encode(y=alt.Y("name:N", title=None, sort=list(RULE_NAMES.values())).axis(labelLimit=220))
    )
    bars = base.mark_bar().encode(
        x=alt.X("value:Q", title="Loss added, nats a token"),
        color=alt.Color("name:N")
        .scale(domain=list(RULE_NAMES.values()), range=list(RULE_COLORS.values()))
        .legend(None),
        opacity=alt.condition("datum.name == rule", alt.value(1), alt.value(0.45)),
        tooltip=["name:N", number("value", ".3f"), number("low", ".3f"), number("high", ".3f")],
    )
    spread = base.mark_rule(color=INK).encode(x=alt.X("low:Q", title="Loss added, nats a token"), x2="high:Q")
    half = costs[np.isclose(costs["share"], 0.5)].set_index("name")["value"]
    said = ", ".join(f"{name} {value:.2f}" for name, value in half.items())
    return (
        alt.hconcat(grid, (bars + spread).properties(width=190, height=220))
        .resolve_scale(color="independent")
        .add_params(menu, *slider)
        .properties(
            title=alt.Title(
                "Choose a rule and how many heads it gives a window",
                subtitle=f"{model_name(model)}. Left: heads of one seed; right: the cost of every rule, 95 % intervals",
            ),
            description=f"A grid of {len(rows)} key heads, and bars of the loss that every rule adds, with a menu of "
            f"rules and a slider. With half of the heads windowed: {said}.",
        )
    )


def what_is_kept() -> alt.Color:
    """Return the colours of heads that keep all and of those with a window."""
    return alt.Color("what:N", title=None).scale(domain=["keeps all", "window"], range=[SYMBOLIC, "#D9E6EE"])


def of_first_seed(table: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return the rows of a model's first seed."""
    rows = summaries.of_model(table, model)
    return rows[rows["seed"] == rows["seed"].min()]


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
            color=what_is_kept(),
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


def bargain_table(loss: pd.DataFrame, plans: pd.DataFrame) -> pd.DataFrame:
    """Return what windows save and cost at some shares, as readers see it; see `summaries.bargain`."""
    table = summaries.bargain(loss, plans)
    shown = {
        "model": table["model"].map(model_name),
        "heads with a window": table["share"].map("{:.0%}".format),
        "cache left": table["cache"].map("{:.0%}".format),
    }
    costs = {
        RULE_NAMES[rule]: table[rule].map("{:+.3f}".format) for rule in ("positional", "beyond", "random", "oracle")
    }
    return pd.DataFrame(shown | costs).set_index("model")


def winners_table(loss: pd.DataFrame) -> pd.DataFrame:
    """Return per model the rule that costs least at some shares, the oracle apart, with the loss that it adds."""
    table = summaries.curve(loss)
    table = table[table["rule"] != "oracle"]
    rows = {}
    for (model, share), some in table.groupby(["model", "share"], sort=False):
        if np.isclose(share, summaries.SHOWN).any():
            best = some.loc[some["value"].idxmin()]
            rows.setdefault(model_name(model), {})[f"{share:.0%} windowed"] = (
                f"{RULE_NAMES[best['rule']]}, {best['value']:+.3f}"
            )
    return pd.DataFrame(rows).T.rename_axis("model")
