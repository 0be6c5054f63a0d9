"""Charts of the constructions' limits: discrepancies with their bounds, temperatures, shapes, the second angle."""

import pandas as pd

from possym.charts import CATEGORIES, NEUTRAL, POSITIONAL, SYMBOLIC, alt
from possym.experiments.theory.exclusion_charts import slider

LONGEST = 300
CURVES = ["smallest over inputs", "largest over inputs", "bound of theorem 3.2"]


def curve_color(names: list[str]) -> alt.Color:
    """Return the colour encoding of the exact curves and the bound."""
    colors = [*(CATEGORIES[0], CATEGORIES[3])[: len(names) - 1], NEUTRAL]
    return alt.Color("curve:N", title=None).scale(domain=names, range=colors)


def index_discrepancy() -> alt.LayerChart:
    """Return T_Index's exact discrepancy over all inputs with theorem 3.2's bound, computed in the page.

    With C(m) the largest cosine of kθ, 1 ≤ k ≤ m, the smallest discrepancy at n is 1 − C(n − 1) and the largest
    1 − C(⌊n/2⌋).
    """
    distances = (
        alt.Chart(alt.sequence(1, LONGEST, as_="m"))
        .transform_calculate(cosine="cos(datum.m * theta)")
        .transform_window(best="max(cosine)", frame=[None, 0], sort=[alt.SortField("m")])
    )
    smallest = distances.transform_calculate(length="datum.m + 1", gap="1 - datum.best", curve=f"'{CURVES[0]}'")
    largest = (
        distances.transform_calculate(even="2 * datum.m", odd="2 * datum.m + 1")
        .transform_fold(["even", "odd"], as_=["parity", "length"])
        .transform_calculate(gap="1 - datum.best", curve=f"'{CURVES[1]}'")
    )
    bound = distances.transform_calculate(
        length="datum.m + 1",
        gap="min(1 - cos(theta), 2 * PI * PI / pow(datum.m + 1, 2))",
        curve=f"'{CURVES[2]}'",
    )
    return discrepancy_layers(
        [smallest, largest, bound],
        "Index: the bound holds for the worst input; for others it breaks as inputs grow",
        "T_Index's discrepancy over all inputs of length n, exact, and min{1 − cos θ, 2π²/n²}",
        [slider("theta", 0.8, 0.01, 3.1, 0.01, "Angle θ (rad per position)")],
        100,
        "Interactive line chart on a logarithmic axis: smallest and largest discrepancy of T_Index by length, and the "
        "bound of theorem 3.2, which lies between them for long inputs.",
        log=True,
    )


def retrieval_discrepancy() -> alt.LayerChart:
    """Return T_Retrieval's exact margin over all inputs with theorem 3.2's bound, computed in the page.

    The margin at n is the smallest of cos(aθ) − W(b) over distances a ≠ b below n, W(b) the largest logit of a
    wrong letter at distance b.
    """
    nearest = "round(datum.m * theta * alphabet / (2 * PI))"
    off = f"(datum.m * theta - {nearest} * 2 * PI / alphabet)"
    distances = (
        alt.Chart(alt.sequence(0, LONGEST, as_="m"))
        .transform_calculate(
            right="cos(datum.m * theta)",
            wrong=f"cos({nearest} % alphabet == 0 ? 2 * PI / alphabet - abs({off}) : {off})",
        )
        .transform_window(low="min(right)", high="max(wrong)", frame=[None, 0], sort=[alt.SortField("m")])
        .transform_window(lowest="lag(low)", highest="lag(high)", sort=[alt.SortField("m")])
        .transform_filter("datum.m > 0")
        .transform_calculate(step="min(datum.right - datum.highest, datum.lowest - datum.wrong)")
        .transform_window(margin="min(step)", frame=[None, 0], sort=[alt.SortField("m")])
    )
    names = ["margin of the worst input", "", "bound of theorem 3.2"]
    margin = distances.transform_calculate(length="datum.m + 1", gap="datum.margin", curve=f"'{names[0]}'")
    bound = distances.transform_calculate(
        length="datum.m + 1",
        gap="1 - cos(2 * PI / alphabet - (datum.m + 1) * theta)",
        curve=f"'{names[2]}'",
    )
    return discrepancy_layers(
        [margin, bound],
        alt.expr(
            # cos(aθ) ≥ cos(ω − bθ) for all distances a ≠ b below n until their largest sum, 2n − 3, is beyond ω/θ
            "theta == 0 ? 'Retrieval: without an angle the head never errs' : 'Retrieval: the head errs from n = ' + "
            "format(floor((2 * PI / alphabet / theta + 3) / 2) + 1, ',') + ' on, while the bound ends at ' + "
            "format(2 * PI / alphabet / theta, ',.0f')"
        ),
        "T_Retrieval's smallest margin over all inputs of length n, exact, and 1 − cos(ω − nθ); below 0 it errs",
        [
            slider("theta", 0.0027, 0, 0.05, 0.0001, "Angle θ (rad per position)"),
            slider("alphabet", 8, 2, 26, 1, "Letters |ALPH|"),
        ],
        200,
        "Interactive line chart: margin of T_Retrieval's worst input by length, and the bound of theorem 3.2. With a "
        "slow angle the margin crosses zero near half of the length where the bound touches it.",
        log=False,
    )


def discrepancy_layers(
    layers: list[alt.Chart],
    title: str | alt.ExprRef,
    subtitle: str,
    params: list[alt.Parameter],
    length: int,
    description: str,
    log: bool,
) -> alt.LayerChart:
    """Return curves of a gap by length, up to a length that a slider sets."""
    names = CURVES if log else ["margin of the worst input", CURVES[2]]
    ticks = [10.0**power for power in range(-6, 1)] if log else alt.Undefined
    scale = alt.Scale(type="log", domain=[1e-6, 2], clamp=True) if log else alt.Scale()
    encoding = {
        "x": alt.X("length:Q", title="Length n (positions, the query's included)"),
        "y": alt.Y("gap:Q", title="Logit difference", scale=scale).axis(values=ticks),
        "color": curve_color(names),
        "tooltip": ["curve:N", "length:Q", alt.Tooltip("gap:Q", format=".5f")],
    }
    drawn = [
        layer.transform_filter("datum.length <= longest")
        .mark_line(strokeDash=[6, 4] if index == len(layers) - 1 else [1, 0])
        .encode(**encoding)
        for index, layer in enumerate(layers)
    ]
    if not log:
        drawn.append(alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule().encode(y="zero:Q"))
    return (
        alt.layer(*drawn)
        .add_params(*params, slider("longest", length, 10, LONGEST, 10, "Lengths up to"))
        .properties(title=alt.Title(title, subtitle=subtitle), description=description, height=280)
    )


def temperature_chart(index: pd.DataFrame, retrieval: pd.DataFrame) -> alt.LayerChart:
    """Return the β that a softmax needs by length: exact, measured and lemma F.1's, for the first θ of each table."""
    rows = []
    for name, table in (("Index", index), ("Retrieval", retrieval)):
        chosen = table[table["theta"] == table["theta"].iloc[0]]
        if name == "Retrieval":
            chosen = chosen[chosen["alphabet"] == chosen["alphabet"].iloc[0]]
        for column, source in (("beta", "exact"), ("beta_lemma", "ln(n − 1)/margin"), ("beta_measured", "measured")):
            part = chosen[["n", column]].rename(columns={column: "value"})
            rows.append(part.assign(head=name, source=source))
        if name == "Retrieval":
            part = chosen[["n", "integer_beta"]].rename(columns={"integer_beta": "value"})
            rows.append(part.assign(head="Retrieval of itself", source="exact"))
    table = pd.concat(rows)
    table = table[(table["value"] > 1e-3) & (table["value"] < 1e9) & ((table["n"] <= 30) | (table["n"] % 10 == 0))]
    heads = ["Index", "Retrieval", "Retrieval of itself"]
    base = alt.Chart(table).encode(
        x=alt.X("n:Q", title="Length n (positions)"),
        y=alt.Y("value:Q", title="Inverse temperature β")
        .scale(type="log")
        .axis(format="~e", values=[10**power for power in range(7)]),
        color=alt.Color("head:N", title=None)
        .scale(domain=heads, range=[POSITIONAL, SYMBOLIC, CATEGORIES[1]])
        .legend(columns=1),
        tooltip=["head:N", "source:N", "n:Q", alt.Tooltip("value:Q", format=",.3f")],
    )
    lines = base.transform_filter("datum.source != 'measured'").mark_line()
    points = base.transform_filter("datum.source == 'measured'").mark_point(size=28)
    dashes = (
        alt.StrokeDash("source:N", title=None)
        .scale(domain=["exact", "ln(n − 1)/margin"], range=[[1, 0], [5, 4]])
        .legend(columns=1)
    )
    return (lines.encode(strokeDash=dashes) + points).properties(
        title=alt.Title(
            "Index needs an ever sharper softmax, Retrieval hardly",
            subtitle="Smallest β that is right on every input; points: measured on running heads",
        ),
        height=300,
        description="Line chart on a logarithmic axis of the inverse temperature that each construction needs by "
        "length, with lemma F.1's sufficient value dashed and measured points on the exact lines.",
    )


def weight_by_position() -> alt.LayerChart:
    """Return w_max(j) of both constructions, computed in the page as sliders move nθ, n and β."""
    pairs = (
        alt.Chart(alt.sequence(0, 1024, as_="k"))
        .transform_calculate(i="floor(datum.k / 32)", j="datum.k % 32", theta="turns * 2 * PI / n")
        .transform_filter("datum.i < n && datum.j < n")
        .transform_calculate(term="exp(beta * (cos((datum.i - datum.j) * datum.theta) - 1))")
        .transform_aggregate(total="sum(term)", theta="min(theta)", groupby=["j"])
    )
    positional = pairs.transform_calculate(weight="1 / datum.total", head="'positional'")
    logit = "beta * cos((datum.j - (n - 1) / 2) * datum.theta)"
    symbolic = pairs.transform_calculate(weight=f"exp(max({logit}, 0)) / (exp({logit}) + n - 1)", head="'symbolic'")
    encoding = {
        "x": alt.X("j:Q", title="Position j of the answer"),
        "y": alt.Y("weight:Q", title="Largest weight").scale(zero=False),
        "color": alt.Color("head:N", title=None).scale(domain=["positional", "symbolic"], range=[POSITIONAL, SYMBOLIC]),
        "tooltip": ["head:N", "j:Q", alt.Tooltip("weight:Q", format=".4f")],
    }
    return (
        alt.layer(*(part.mark_line(point={"size": 40}).encode(**encoding) for part in (positional, symbolic)))
        .add_params(
            slider("turns", 0.6, 0.05, 3, 0.05, "nθ in turns (of 2π)"),
            slider("n", 16, 3, 32, 1, "Number of keys n"),
            slider("beta", 2.0, 0.5, 8, 0.5, "Inverse temperature β"),
        )
        .properties(
            title=alt.Title(
                "A U for the positional head, an inverse U for the symbolic one, while nθ is small",
                subtitle="Largest weight by the answer's position",
            ),
            height=260,
            description="Interactive line chart of the largest attention weight by the answer's position for the "
            "positional and the symbolic construction; sliders set nθ, n and β. Past one full turn the U turns over.",
        )
    )


def shape_map(table: pd.DataFrame) -> alt.FacetChart:
    """Return where each shape of w_max(j) occurs, from the study's ``shapes`` table."""
    rows = shape_runs(table)
    rows["head"] = rows["construction"] + ", β = " + rows["beta"].map("{:g}".format)
    names = ["U", "flat", "mixed", "inverse U"]
    return (
        alt.Chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("start:Q", title="nθ in turns (of 2π)").scale(domain=[0, 3]),
            x2="stop:Q",
            y=alt.Y("n:O", title="n"),
            color=alt.Color("shape:N", title=None).scale(
                domain=names, range=[POSITIONAL, CATEGORIES[5], NEUTRAL, SYMBOLIC]
            ),
            tooltip=["n:O", "shape:N", *(alt.Tooltip(f"{end}:Q", format=".2f") for end in ("start", "stop"))],
        )
        .properties(width=250, height=80)
        .facet(alt.Facet("head:N", title=None), columns=2)
        .properties(
            title=alt.Title(
                "The positional U ends at one full turn, whatever n and β are",
                subtitle="Shape of w_max(j) over the answer's position",
            ),
            description="Strips by nθ in turns: for the positional head U below one turn, inverse U up to about four "
            "thirds, then mixed; for the symbolic head inverse U while the answer's logit stays positive.",
        )
    )


def shape_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Return stretches of nθ with one shape: construction, n, beta, shape, start and stop in turns.

    >>> import pandas as pd
    >>> rows = [("positional", 8, turns, 1.0, name) for turns, name in ((0.5, "U"), (1.5, "U"), (2.5, "mixed"))]
    >>> shape_runs(pd.DataFrame(rows, columns=["construction", "n", "turns", "beta", "shape"]))[["start", "stop"]]
       start  stop
    0    0.0   2.0
    1    2.0   3.0
    """
    curve = ["construction", "n", "beta"]
    step = 3 / table.groupby(curve).size().iloc[0]
    table = table.sort_values([*curve, "turns"])
    changed = (table[[*curve, "shape"]] != table[[*curve, "shape"]].shift()).any(axis=1)
    runs = table.groupby(changed.cumsum()).agg({**dict.fromkeys([*curve, "shape"], "first"), "turns": ["min", "max"]})
    runs.columns = [*curve, "shape", "start", "stop"]
    runs["start"], runs["stop"] = runs["start"] - step / 2, runs["stop"] + step / 2
    return runs.reset_index(drop=True)


def two_angle_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Return the two-angle head's accuracy on every input of Partial induction by θ₂, from ``two_angle``."""
    lines = (
        alt.Chart(table[["n", "theta", "accuracy"]])
        .mark_line()
        .encode(
            x=alt.X("theta:Q", title="Second angle θ₂ (rad per position)"),
            y=alt.Y("accuracy:Q", title="Right answers, all inputs").scale(zero=False),
            color=alt.Color("n:N", title="Keys n").scale(range=list(CATEGORIES[:4])),
            tooltip=["n:N", alt.Tooltip("theta:Q", format=".3f"), alt.Tooltip("accuracy:Q", format=".3f")],
        )
    )
    limits = (
        alt.Chart(table.drop_duplicates("n")[["n", "limit"]])
        .mark_rule(strokeDash=[4, 4], opacity=1)
        .encode(x="limit:Q", color=alt.Color("n:N").scale(range=list(CATEGORIES[:4])))
    )
    return (lines + limits).properties(
        title=alt.Title(
            "'Not too large' means below 2π/(2n − 1)",
            subtitle="Two-angle head on every input of Partial induction; dashed: the limit",
        ),
        height=240,
        description="Line chart of accuracy by second angle for two to five keys: one up to the dashed limit of each "
        "number of keys, lower beyond.",
    )


def pair_chart(heads: list[list[dict[str, str | float]]]) -> alt.FacetChart:
    """Return the margins of `possym.theory.statements_p1.pair_margins`, a slider picking one of several draws."""
    table = pd.concat([pd.DataFrame(rows).assign(draw=number) for number, rows in enumerate(heads, 1)])
    table["panel"] = table["task"] + ": " + table["head"]
    table["answer"] = ["right" if margin > 0 else "wrong" for margin in table["margin"]]
    return (
        alt.Chart(table)
        .mark_bar(size=22)
        .encode(
            x=alt.X("margin:Q", title="Lead of the right answer").scale(domain=[-1, 1]),
            y=alt.Y("input:N", title=None),
            color=alt.Color("answer:N", title=None).scale(
                domain=["right", "wrong"], range=[CATEGORIES[0], CATEGORIES[1]]
            ),
            facet=alt.Facet("panel:N", title=None, columns=3, sort=list(dict.fromkeys(table["panel"]))),
            tooltip=["panel:N", "input:N", "answer:N", alt.Tooltip("margin:Q", format=".3f")],
        )
        .transform_filter("datum.draw == draw")
        .resolve_scale(y="independent")
        .add_params(slider("draw", 2, 1, len(heads), 1, "Draw of the random heads"))
        .properties(
            title=alt.Title(
                "What the wrong kind of head gains on one input it loses on the other",
                subtitle="Two inputs per task; above: random heads of the wrong kind, below: the head built for the "
                "task",
            ),
            height=70,
            description="Six small bar charts of the right answer's lead on two inputs: for random heads of the wrong "
            "kind one lead is the negative of the other, for the three constructed heads both are positive. A slider "
            "draws other random heads.",
        )
    )
