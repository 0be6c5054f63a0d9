"""Charts of two models: their heads in the plane side by side, and layers that rotate with another base."""

import pandas as pd

from possym.charts import CATEGORIES, LAYERS, NEUTRAL, alt
from possym.charts.typography import typeset
from possym.experiments.two_models.bases import CONDITIONS
from possym.experiments.two_models.summaries import gap, gap_test, layer_leads, papers_form
from possym.profiling.charts import number
from possym.profiling.statistics import correlation

COLORS = {"full": CATEGORIES[2], "sliding": NEUTRAL}


def planes(tables: dict[str, pd.DataFrame]) -> alt.HConcatChart:
    """Draw the heads of each model in the plane of both scores, in the papers' form, statements as blocks."""
    panels, words, highs = [], [], []
    for model in tables["heads"]["model"].unique():
        heads = papers_form(tables["heads"], model).round(4)
        r = correlation(heads)
        highs.append(r.high)
        words.append(f"{model}: {len(heads)} heads, r = {r.value:.2f}")
        panels.append(
            alt.Chart(heads[["layer", "head", "positional", "symbolic"]])
            .mark_circle(size=45, opacity=0.7)
            .encode(
                x=alt.X("positional:Q", title="Positional score").scale(domain=[0, 1]),
                y=alt.Y("symbolic:Q", title="Symbolic score").scale(domain=[0, 1]),
                color=alt.Color("layer:Q", title="Layer").scale(scheme=LAYERS),
                tooltip=["layer:Q", "head:Q", number("positional"), number("symbolic")],
            )
            .properties(
                width=290,
                height=290,
                title=alt.Title(
                    model,
                    subtitle=typeset(f"r = {r.value:.2f}, 95 % interval {r.low:.2f} to {r.high:.2f}"),
                    fontSize=12,
                ),
            )
        )
    return (
        alt.hconcat(*panels)
        .resolve_scale(color="independent")
        .properties(
            title=alt.Title(
                "Heads trade one score for the other in each model"
                if max(highs) < 0
                else "Not in each model do heads clearly trade one score for the other",
                subtitle="Each dot a head, the mean over prompts; statements change places",
            ),
            description=f"Scatter plots of heads by positional and symbolic score. {'; '.join(words)}.",
        )
    )


def bases(tables: dict[str, pd.DataFrame], model: str) -> alt.VConcatChart:
    """Draw the mean lead of every layer under each condition of its base, full and sliding layers in colours."""
    parts = [layer_leads(tables, model, condition).assign(condition=condition) for condition in CONDITIONS]
    table = pd.concat(parts, ignore_index=True).round(4)
    own, swapped = (gap(part) for part in (parts[0], parts[-1]))
    test = gap_test(parts[0])
    title = typeset(f"Full layers lead by {own:+.2f} with their own bases, by {swapped:+.2f} with the bases swapped")
    panels = []
    for condition in CONDITIONS:
        rows = table[table["condition"] == condition]
        panels.append(
            alt.Chart(rows)
            .mark_bar(size=14)
            .encode(
                x=alt.X("layer:O", title="Layer" if condition == "swapped" else None).axis(
                    labelAngle=0, labelOverlap=True
                ),
                y=alt.Y("lead:Q", title="Lead").scale(domain=[-1, 1]),
                color=alt.Color("kind:N", title=None).scale(domain=list(COLORS), range=list(COLORS.values())),
                tooltip=["layer:O", "kind:N", number("lead"), number("positional"), number("symbolic")],
            )
            .properties(
                width=460,
                height=80,
                title=alt.Title(typeset(f"{heading(condition)}: gap {gap(rows):+.2f}"), fontSize=12),
            )
        )
    return alt.vconcat(*panels).properties(
        title=alt.Title(
            title,
            subtitle=f"Mean symbolic less positional score of a layer's heads; p = {test.p_value:.2g} with their own",
        ),
        description=f"Bar charts of the lead by layer under {len(CONDITIONS)} conditions. {title}.",
    )


def heading(condition: str) -> str:
    """Return the words over a condition's panel.

    >>> heading("swapped")
    'Bases swapped'
    """
    if condition in ("own", "swapped"):
        return {"own": "Own bases", "swapped": "Bases swapped"}[condition]
    return condition.capitalize()
