"""Charts of the exclusion principle: the plane between the kinds, tightness, and where scores and definition part."""

import pandas as pd
import torch

from possym.charts import CATEGORIES, NEUTRAL, POSITIONAL, SYMBOLIC, alt
from possym.scores import exclusion, swap_scores

LOGITS = (0.9, -1.1, 0.2, 1.4, -0.6, -0.8)
MIXES = [step / 20 for step in range(21)]


def slider(name: str, value: float, low: float, high: float, step: float, label: str) -> alt.Parameter:
    """Return an Altair parameter with a slider under the chart."""
    return alt.param(name=name, value=value, bind=alt.binding_range(min=low, max=high, step=step, name=f"{label} "))


def exclusion_plane() -> alt.HConcatChart:
    """Return the walk from a symbolic to a positional head, scored in the page as the sliders move.

    The head is M[a, b] = s·((1 − p)·λ_a + p·λ_b): its observed logits s·λ stay as p goes from 0 (symbolic) to 1
    (positional), and s = 0 makes it uniform.
    """
    count = len(LOGITS)
    variance = float(torch.tensor(LOGITS, dtype=torch.float64).var(correction=0))
    sliders = [
        slider("mix", 0.5, 0, 1, 0.05, "Mixture p: 0 symbolic, 1 positional"),
        slider("strength", 1.5, 0, 6, 0.1, "Strength s of the logits: 0 uniform"),
        slider("logtau", -1, -4, 1, 0.25, "Temperature of the scores, log₁₀ τ"),
    ]
    top = max(LOGITS)
    total = " + ".join(f"exp(strength * {value - top:.6g})" for value in LOGITS)
    pairs = [(LOGITS[i] - top, LOGITS[j] - top) for i in range(count) for j in range(i + 1, count)]
    firsts, seconds = ([round(value, 6) for value in side] for side in zip(*pairs, strict=True))
    moved = "exp(strength * ((1 - datum.p) * datum.{} + datum.p * datum.{}))"
    scored = (
        alt.Chart(alt.sequence(0, len(MIXES) * len(pairs), as_="k"))
        .transform_calculate(
            p=f"floor(datum.k / {len(pairs)}) / {len(MIXES) - 1}",
            first=f"{firsts}[datum.k % {len(pairs)}]",
            second=f"{seconds}[datum.k % {len(pairs)}]",
        )
        .transform_calculate(
            v="exp(strength * datum.first)",
            w="exp(strength * datum.second)",
            x=moved.format("second", "first"),
            y=moved.format("first", "second"),
        )
        .transform_calculate(
            norm="sqrt((pow(datum.v, 2) + pow(datum.w, 2)) * (pow(datum.x, 2) + pow(datum.y, 2)))",
            gap=f"abs(datum.v - datum.w) / ({total}) / pow(10, logtau)",
        )
        .transform_joinaggregate(largest="max(gap)", groupby=["p"])
        .transform_calculate(weight="exp(datum.gap - datum.largest)")
        .transform_calculate(
            same="datum.weight * (datum.v * datum.x + datum.w * datum.y) / datum.norm",
            crossed="datum.weight * (datum.v * datum.y + datum.w * datum.x) / datum.norm",
        )
        .transform_aggregate(same="sum(same)", crossed="sum(crossed)", weights="sum(weight)", groupby=["p"])
        .transform_calculate(positional="datum.same / datum.weights", symbolic="datum.crossed / datum.weights")
    )
    axes = {
        "x": alt.X("positional:Q", title="Positional score").scale(domain=[0, 1]),
        "y": alt.Y("symbolic:Q", title="Symbolic score").scale(domain=[0, 1]),
    }
    numbers = [alt.Tooltip(f"{name}:Q", format=".3f") for name in ("p", "positional", "symbolic")]
    walk = scored.mark_line(color=NEUTRAL, strokeWidth=1.5).encode(**axes, order="p:Q")
    steps = scored.mark_circle(size=45, opacity=1).encode(
        **axes, color=alt.Color("p:Q", legend=None).scale(range=[SYMBOLIC, POSITIONAL]), tooltip=numbers
    )
    here = scored.transform_filter("abs(datum.p - mix) < 0.01").mark_point(
        size=260, filled=False, stroke=CATEGORIES[0], strokeWidth=3
    )
    plane = (walk + steps + here.encode(**axes)).properties(
        width=260, height=260, title=alt.Title("Scores", subtitle="ring: the head at p")
    )

    curves = {
        "bound (A + B)/N²": f"2 * {variance:.6g} * strength * strength * (datum.p * datum.p + pow(1 - datum.p, 2))",
        "A/N²": f"2 * {variance:.6g} * strength * strength * pow(1 - datum.p, 2)",
        "B/N²": f"2 * {variance:.6g} * strength * strength * datum.p * datum.p",
        "variance": f"{variance:.6g} * strength * strength",
    }
    colors = [CATEGORIES[0], POSITIONAL, SYMBOLIC, NEUTRAL]
    quantities = (
        alt.Chart(pd.DataFrame({"p": MIXES}))
        .transform_calculate(**{f"q{index}": curve for index, curve in enumerate(curves.values())})
        .transform_fold([f"q{index}" for index in range(4)], as_=["key", "value"])
        .transform_calculate(quantity=f"{list(curves)}[toNumber(slice(datum.key, 1))]")
    )
    lines = quantities.mark_line().encode(
        x=alt.X("p:Q", title="Mixture p"),
        y=alt.Y("value:Q", title="Logits squared"),
        color=alt.Color("quantity:N", title=None)
        .scale(domain=list(curves), range=colors)
        .legend(orient="bottom", columns=2),
        strokeDash=alt.StrokeDash("quantity:N", legend=None).scale(
            domain=list(curves), range=[[1, 0], [1, 0], [1, 0], [6, 4]]
        ),
        tooltip=["quantity:N", alt.Tooltip("p:Q", format=".2f"), alt.Tooltip("value:Q", format=".3f")],
    )
    rule = quantities.transform_filter("datum.key == 'q0' && abs(datum.p - mix) < 0.01").mark_rule().encode(x="p:Q")
    shares = " + ".join(
        f"(exp(strength * {value - top:.6g}) / ({total})) * (strength * {value - top:.6g} - log({total}))"
        for value in LOGITS
    )
    entropy = (
        alt.Chart(pd.DataFrame({"p": [0]}))
        .transform_calculate(
            words=f"'entropy ' + format(-({shares}), '.2f') + ' of ' + format(log({count}), '.2f') + ' nats'"
        )
        .mark_text(align="left", fontWeight="bold")
        .encode(x=alt.value(0), y=alt.value(-8), text="words:N")
    )
    squares = (lines + rule + entropy).properties(width=260, height=260)
    return (
        alt.hconcat(plane, squares)
        .resolve_scale(color="independent")
        .add_params(*sliders)
        .properties(
            title=alt.Title(
                "Variance never climbs over the bound, and touches it half-way",
                subtitle="Six keys; the walk from a symbolic head (vermillion) to a positional one (blue)",
            ),
            description="Interactive: left, positional against symbolic score of a head that is mixed from a symbolic "
            "and a positional one; right, its deviations, the bound and the variance of its logits by mixture. "
            "Sliders set mixture, strength and temperature. At mixture one half bound and variance are equal.",
        )
    )


def tightness_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Return variance / bound by number of keys and kind of head, from the study's ``tightness`` table."""
    middle = (
        table.groupby(["head", "n"])["ratio"]
        .quantile([0.05, 0.5, 0.95])
        .unstack()
        .set_axis(["low", "ratio", "high"], axis=1)
        .reset_index()
    )
    heads = ["half and half", "three quarters positional", "positional", "symbolic", "random RoPE head"]
    color = alt.Color("head:N", title=None).scale(
        domain=heads, range=[CATEGORIES[0], CATEGORIES[1], POSITIONAL, SYMBOLIC, NEUTRAL]
    )
    base = alt.Chart(middle).encode(
        x=alt.X("n:O", title="Number of keys N").axis(labelAngle=0),
        xOffset=alt.XOffset("head:N", sort=heads),
        color=color,
    )
    ranges = base.mark_rule(strokeWidth=3).encode(y=alt.Y("low:Q", title="Variance / bound"), y2="high:Q")
    points = base.mark_point(size=70).encode(
        y=alt.Y("ratio:Q").scale(domain=[0, 1.05], nice=False),
        tooltip=["head:N", "n:O", *(alt.Tooltip(f"{name}:Q", format=".3f") for name in ("low", "ratio", "high"))],
    )
    return (ranges + points).properties(
        title=alt.Title(
            "Pure heads use half of the bound, an even mixture all of it",
            subtitle="Points: medians over heads; bars: 5th to 95th percentile",
        ),
        description="Ratio of variance to bound by number of keys: one for half-and-half mixtures, one half for pure "
        "heads, below one half for most random heads and falling with the number of keys.",
    )


def trained_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Return variance against bound of trained heads, from `possym.experiments.theory.trained_tightness`."""
    low, high = table["variance"].min() / 1.5, table["bound"].max() * 1.5
    line = (
        alt.Chart(pd.DataFrame({"bound": [low, high], "variance": [low, high]}))
        .mark_line(color=NEUTRAL, strokeDash=[5, 4])
        .encode(x="bound:Q", y="variance:Q")
    )
    points = (
        alt.Chart(table)
        .mark_point(size=80)
        .encode(
            x=alt.X("bound:Q", title="Bound (A + B)/N²").scale(type="log", domain=[low, high], nice=False),
            y=alt.Y("variance:Q", title="Variance of the logits").scale(type="log", domain=[low, high], nice=False),
            color=alt.Color("leaning:Q", title="A / (A + B)")
            .scale(range=[POSITIONAL, NEUTRAL, SYMBOLIC], domain=[0, 0.5, 1])
            .legend(gradientLength=140),
            shape=alt.Shape("task:N", title="Task"),
            tooltip=[
                "task:N",
                "layer:O",
                *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ("variance", "bound", "ratio", "leaning")),
            ],
        )
    )
    return (line + points).properties(
        title=alt.Title(
            "Trained heads stay under the bound",
            subtitle="Each point: one head, means over sequences; dashed: variance = bound",
        ),
        height=320,
        description="Scatter plot on logarithmic axes: variance of a trained head's logits against its bound, all "
        "points under the diagonal.",
    )


def example_chart(table: pd.DataFrame) -> alt.FacetChart:
    """Return the two smallest examples as heat maps, from the study's ``disagreement`` table."""
    names = {"unseen deviation": "score 1, yet not positional", "contradiction": "score and definition disagree"}
    rows = table.assign(
        example=table["example"].map(names),
        content="content " + table["a"].astype(str),
        observed=table["a"] == table["b"],
    )
    base = alt.Chart().encode(
        x=alt.X("b:O", title="Position of the key").axis(labelAngle=0), y=alt.Y("content:O", title=None)
    )
    cells = base.mark_rect().encode(color=alt.Color("logit:Q", title="Logit").scale(scheme="viridis"))
    seen = base.transform_filter("datum.observed").mark_rect(fill=None, stroke="white", strokeWidth=3)
    text = base.mark_text(fontSize=14).encode(
        text="logit:Q", color=alt.condition("datum.logit > 1", alt.value("black"), alt.value("white"))
    )
    return (
        (cells + seen + text)
        .properties(width=180, height=180)
        .facet(alt.Facet("example:N", title=None, sort=list(names.values())), data=rows)
        .resolve_scale(x="independent", y="independent")
        .properties(
            title=alt.Title(
                "Two keys hide a deviation, three keys turn the order around",
                subtitle="Relocated logits; outlined: the observed logits",
            ),
            description="Two heat maps of relocated logits, a head of two keys and a head of three keys, with the "
            "values written in the cells.",
        )
    )


def temperature_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Return both scores of the three-key example by temperature: log_tau, kind, score.

    >>> from possym.experiments.theory import disagreement_table
    >>> temperature_curves(disagreement_table()).columns.tolist()
    ['log_tau', 'kind', 'score']
    """
    entries = table[table["example"] == "contradiction"].pivot(index="a", columns="b", values="logit")
    head = torch.tensor(entries.to_numpy())
    rows = []
    for step in range(41):
        log_tau = -4 + step / 8
        scores = swap_scores(head, temperature=10.0**log_tau)
        rows += [
            {"log_tau": log_tau, "kind": kind, "score": getattr(scores, kind).item()}
            for kind in ("positional", "symbolic")
        ]
    return pd.DataFrame(rows)


def temperature_chart(table: pd.DataFrame) -> alt.Chart:
    """Return the scores of the three-key example by temperature, from the study's ``disagreement`` table."""
    entries = table[table["example"] == "contradiction"].pivot(index="a", columns="b", values="logit")
    deviations = exclusion(torch.tensor(entries.to_numpy()))
    return (
        alt.Chart(temperature_curves(table))
        .mark_line()
        .encode(
            x=alt.X("log_tau:Q", title="log₁₀ of the temperature τ"),
            y=alt.Y("score:Q", title="Score").scale(domain=[0, 1]),
            color=alt.Color("kind:N", title=None).scale(
                domain=["positional", "symbolic"], range=[POSITIONAL, SYMBOLIC]
            ),
            tooltip=["kind:N", alt.Tooltip("log_tau:Q", format=".2f"), alt.Tooltip("score:Q", format=".3f")],
        )
        .properties(
            title=alt.Title(
                "The order of the scores depends on the temperature",
                subtitle=f"The three-key head, A = {deviations.positional_deviation:.0f} and "
                f"B = {deviations.symbolic_deviation:.0f} at every temperature",
            ),
            description="Positional and symbolic score of the three-key example by temperature: the positional score "
            "is higher at low temperatures, the symbolic one at high temperatures.",
            height=220,
        )
    )
