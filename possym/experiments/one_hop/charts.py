"""Charts of one-hop prompts: accuracy by length beside the paper's table, what is said instead, the forced choice.

Tables are those of `possym.experiments.one_hop.protocol`.
"""

import pandas as pd

from possym.charts import ASKS, CATEGORIES, INK, NEUTRAL, alt, click_menu, paper_and_here
from possym.experiments.one_hop.protocol import GUESSING, HABITS, reach
from possym.profiling.charts import number

KIND_COLORS = {"number": ASKS["where"], "letter": ASKS["what"]}
HABIT_COLORS = dict(
    zip(HABITS, (CATEGORIES[0], CATEGORIES[2], CATEGORIES[3], CATEGORIES[1], CATEGORIES[5], NEUTRAL), strict=True)
)
PANELS = {
    "number": "Number: which item stands n positions back?",
    "letter": "Letter: which item begins with this letter?",
}


def length_axis(lengths) -> alt.X:
    """Return the axis of lengths, in log scale, with a tick at some of the lengths asked."""
    ticks = [length for length in (12, 16, 24, 32, 48, 100, 200, 300) if length in set(lengths)]
    return alt.X("length:Q", title="Items in the sequence (log scale)").scale(type="log", nice=False).axis(values=ticks)


def accuracy_by_length(table: pd.DataFrame) -> alt.HConcatChart:
    """Draw accuracy by length of several models, numbers and letters side by side; a menu picks out a model.

    Args:
        table: model, kind, length, mean, sd (over runs).
    """
    rows = table.assign(
        low=(table["mean"] - table["sd"]).clip(0), high=(table["mean"] + table["sd"]).clip(None, 1)
    )  # one sd is what the paper prints
    models = list(dict.fromkeys(rows["model"]))
    colors = [*CATEGORIES[:2], CATEGORIES[3], INK, *CATEGORIES[2:3], *CATEGORIES[4:]][: len(models)]
    color = alt.Color("model:N", title=None).scale(domain=models, range=colors).legend(columns=1)
    panels = []
    for kind, title in PANELS.items():
        data = rows[rows["kind"] == kind]
        base = alt.Chart(data).encode(
            x=length_axis(data["length"]),
            color=color,
            opacity=alt.condition("shown == 'all' || datum.model == shown", alt.value(1), alt.value(0.12)),
        )
        lines = base.mark_line(point=alt.OverlayMarkDef(size=40)).encode(
            y=alt.Y("mean:Q", title="Accuracy").scale(domain=[0, 1]),
            shape=alt.Shape("model:N", title=None).scale(domain=models),
            tooltip=["model:N", "kind:N", "length:Q", number("mean"), number("sd")],
        )
        spread = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q", title="Accuracy"), y2="high:Q")
        guess = (
            alt.Chart(pd.DataFrame({"guess": [GUESSING[kind]]}))
            .mark_rule(strokeDash=[4, 3])
            .encode(y=alt.Y("guess:Q", title="Accuracy"))
        )
        panels.append((guess + spread + lines).properties(width=260, height=260, title=alt.Title(title, fontSize=12)))
    found = reach(table)
    lost = found.pivot(index="model", columns="kind", values="lost").loc[models]
    words = "; ".join(
        f"{model}: numbers {'from ' + str(row['number']) if pd.notna(row['number']) else 'never'}, letters "
        f"{'from ' + str(row['letter']) if pd.notna(row['letter']) else 'never'}"
        for model, row in lost.iterrows()
    )
    last = int(table["length"].max())
    able = found.groupby("model")["reach"].max().loc[models] > 0
    sooner = able & (lost["number"].fillna(last + 1) < lost["letter"].fillna(last + 1))
    whose = "models numbers fall below one half" if able.all() else "models that reach one half, numbers fall below it"
    return (
        alt.hconcat(*panels)
        .add_params(*click_menu("shown", "model", ["all", *models], "all", "Model"))
        .properties(
            title=alt.Title(
                f"In {sooner.sum()} of {able.sum()} {whose} before letters do",
                subtitle="Mean over data sets, bars: one sd. Dashed: guessing. The menu picks out a model",
            ),
            description=f"Line charts of accuracy by length. Accuracy below one half: {words}.",
        )
    )


def table_3_and_here(paper: pd.DataFrame, here: pd.DataFrame) -> alt.HConcatChart:
    """Draw the paper's Table 3 and the accuracy of models asked here side by side, coloured by the kind of prompt.

    Args:
        paper, here: model, kind, length, mean, sd (over runs).
    """
    names = dict(zip(PANELS, ("number prompts", "letter prompts"), strict=True))
    color = alt.Color("asks:N", title=None).scale(domain=list(names.values()), range=list(KIND_COLORS.values()))

    def panel(table: pd.DataFrame) -> alt.Chart:
        data = table[["model", "kind", "length", "mean", "sd"]].assign(asks=table["kind"].map(names))
        return (
            alt.Chart(data)
            .mark_line(point=alt.OverlayMarkDef(size=40))
            .encode(
                x=length_axis(paper["length"]),
                y=alt.Y("mean:Q", title="Accuracy").scale(domain=[0, 1]).axis(format=".0%"),
                color=color,
                detail="model:N",
                tooltip=["model:N", "asks:N", "length:Q", number("mean"), number("sd")],
            )
            .properties(width=260, height=260)
        )

    means = {
        f"{whose}, {kind}": table.loc[table["kind"] == kind, "mean"].mean()
        for whose, table in (("paper", paper), ("here", here))
        for kind in PANELS
    }
    lost = reach(paper).pivot(index="model", columns="kind", values="lost")
    sooner = (lost["number"].fillna(10**9) < lost["letter"].fillna(10**9)).sum()
    return paper_and_here(panel(paper), panel(here), "Table 3").properties(
        title=alt.Title(
            f"In the paper, numbers fall below one half before letters do in {sooner} of {len(lost)} models",
            subtitle=f"A line is a model and a kind of prompt. Here: {'; '.join(dict.fromkeys(here['model']))}",
        ),
        description="Two panels of accuracy by length, the paper's models and ours. Mean accuracy: "
        + "; ".join(f"{name} {mean:.0%}" for name, mean in means.items())
        + ".",
    )


def habits(table: pd.DataFrame) -> alt.HConcatChart:
    """Draw what a model's replies are, by length, numbers and letters side by side.

    Args:
        table: `possym.experiments.one_hop.protocol.habits`.
    """
    long = table.melt(["kind", "length"], list(HABITS), "habit", "share")
    long["order"] = long["habit"].map({name: place for place, name in enumerate(HABITS)})
    panels = [
        alt.Chart(long[long["kind"] == kind])
        .mark_bar()
        .encode(
            x=alt.X("length:O", title="Items in the sequence").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("share:Q", title="Share of replies", stack="zero").scale(domain=[0, 1]).axis(format="%"),
            color=alt.Color("habit:N", title=None, sort=list(HABITS))
            .scale(domain=list(HABITS), range=list(HABIT_COLORS.values()))
            .legend(columns=3),
            order=alt.Order("order:Q"),
            tooltip=["kind:N", "length:Q", "habit:N", number("share", ".1%")],
        )
        .properties(width=260, height=220, title=alt.Title(title, fontSize=12))
        for kind, title in PANELS.items()
    ]
    means = table.groupby("kind")[list(HABITS)].mean()
    most = {kind: (means.loc[kind].idxmax(), means.loc[kind].max()) for kind in PANELS}
    words = ", ".join(f"{kind}: “{name}” {share:.0%}" for kind, (name, share) in most.items())
    return alt.hconcat(*panels).properties(
        title=alt.Title(f"The commonest kind of reply, {words}", subtitle="Every reply counts once"),
        description=f"Stacked bars of replies by length. The commonest: {words}.",
    )


def forced_choice(table: pd.DataFrame) -> alt.HConcatChart:
    """Draw how often the likeliest letter is the answer's first, by length and form of the prompt.

    Args:
        table: form, kind, length, mean, low, high: `possym.experiments.one_hop.protocol.accuracy` of the forced
        choice, with the form.
    """
    forms = list(dict.fromkeys(table["form"]))
    top = max(0.2, float(table["high"].max()) * 1.05)
    guess = alt.Chart(pd.DataFrame({"guess": [GUESSING["number"]]})).mark_rule(strokeDash=[4, 3]).encode(
        y=alt.Y("guess:Q", title="Share right")
    )  # fmt: skip
    panels = []
    for form in forms:
        data = table[table["form"] == form]
        base = alt.Chart(data).encode(
            x=length_axis(data["length"]),
            color=alt.Color("kind:N", title=None)
            .scale(domain=list(KIND_COLORS), range=list(KIND_COLORS.values()))
            .legend(symbolOpacity=1),
        )
        band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="Share right"), y2="high:Q")
        line = base.mark_line(point=alt.OverlayMarkDef(size=40)).encode(
            y=alt.Y("mean:Q", title="Share right").scale(domain=[0, top]),
            shape=alt.Shape("kind:N", title=None).scale(domain=list(KIND_COLORS), range=["circle", "diamond"]),
            tooltip=["form:N", "kind:N", "length:Q", number("mean"), number("low"), number("high"), "prompts:Q"],
        )
        title = {"chat": "As the user's message", "plain": "As plain text to go on with"}.get(form, form)
        panels.append((guess + band + line).properties(width=260, height=220, title=alt.Title(title, fontSize=12)))
    first = table["length"].min()
    start = table[table["length"] == first].set_index(["form", "kind"])["mean"]
    words = "; ".join(
        f"{form}: letters {start[form, 'letter']:.0%}, numbers {start[form, 'number']:.0%}" for form in forms
    )
    return alt.hconcat(*panels).properties(
        title=alt.Title(
            f"Likeliest first letter right, {first} items: {words}",
            subtitle="Of 26 letters; dashed: guessing. Bands: 95 % Wilson intervals",
        ),
        description=f"Line charts of the forced choice by length. With {first} items, {words}.",
    )
