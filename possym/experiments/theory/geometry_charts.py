"""Charts of RoPE's geometry: planes that turn, wavelengths and their scalings, logits of the constructed heads."""

import pandas as pd

from possym.charts import CATEGORIES, NEUTRAL, POSITIONAL, SYMBOLIC, alt, slider_label
from possym.experiments.theory.exclusion_charts import slider

SCALINGS = ("linear", "dynamic", "yarn", "llama3", "longrope (example)")
WIDTH = 128
SIDE = 108  # pixels of a plane that spans −1.2 to 1.2
RING = 3.141593 * (SIDE / 2.4) ** 2  # a point of radius 1, whose size is its area


def turning_planes() -> alt.FacetChart:
    """Return the planes of four frequency IDs with a key's vector turned to its position, which a slider sets."""
    frequency_ids, dim = (1, 18, 42, 64), WIDTH
    angles = [10000 ** (-2 * (k - 1) / dim) for k in frequency_ids]
    names = [f"ID {k}: {angle:.4f} rad" for k, angle in zip(frequency_ids, angles, strict=True)]
    table = pd.DataFrame({"plane": names, "angle": angles})
    axis = {"axis": None, "scale": alt.Scale(domain=[-1.2, 1.2])}
    turned = alt.Chart().transform_calculate(x="cos(place * datum.angle)", y="sin(place * datum.angle)", zero="0")
    circle = turned.mark_point(color=NEUTRAL, filled=False, size=RING, strokeWidth=1, opacity=1).encode(
        x=alt.X("zero:Q", **axis), y=alt.Y("zero:Q", **axis)
    )
    spoke = turned.mark_rule(color=POSITIONAL, strokeWidth=3, opacity=1).encode(
        x=alt.X("zero:Q", **axis), y=alt.Y("zero:Q", **axis), x2="x:Q", y2="y:Q"
    )
    tip = turned.mark_point(color=POSITIONAL, size=90).encode(x=alt.X("x:Q", **axis), y=alt.Y("y:Q", **axis))
    return (
        (circle + spoke + tip)
        .properties(width=SIDE, height=SIDE)
        .facet(alt.Facet("plane:N", title=None, sort=names), data=table, columns=4)
        .add_params(slider("place", 1, 0, 300, 1, "Position p of the key"))
        .properties(
            title=alt.Title(
                "Fast planes tell neighbours apart, slow planes hardly move from one position to the next",
                subtitle=f"One content at position p in four planes of a head of width {dim}",
            ),
            description="Four circles, one per RoPE plane, each with a hand at the angle that a vector has at position "
            "p; a "
            "slider moves p. The first plane turns by one radian per position, the last by almost nothing.",
        )
    )


def scaled_angle(dim: int = WIDTH) -> str:
    """Return the Vega expression of a plane's angle under the chosen scaling, from k (ID − 1) and the sliders.

    The formulas are those of transformers' ``ROPE_INIT_FUNCTIONS``; the parameters are base, factor, log_trained,
    length and scaling.
    """
    trained, base = "pow(2, logtrained)", "pow(10, logbase)"
    plain = f"pow({base}, -2 * datum.k / {dim})"
    stretch = f"(factor * max(pow(2, loglength) / {trained}, 1) - (factor - 1))"
    dynamic = f"pow({base} * pow({stretch}, {dim} / {dim - 2}), -2 * datum.k / {dim})"
    plane = f"({dim} * log({trained} / ({{}} * 2 * PI)) / (2 * log({base})))"
    first, last = f"max(floor({plane.format(32)}), 0)", f"min(ceil({plane.format(1)}), {dim - 1})"
    share = f"clamp((datum.k - {first}) / max({last} - {first}, 0.001), 0, 1)"
    yarn = f"{plain} * (1 - {share} + {share} / factor)"
    kept = f"clamp(({trained} * {plain} / (2 * PI) - 1) / 3, 0, 1)"
    llama3 = f"{plain} * ({kept} + (1 - {kept}) / factor)"
    longrope = f"{plain} / (1 + (factor - 1) * datum.k / {dim // 2 - 1})"
    named = dict(zip(SCALINGS, (f"{plain} / factor", dynamic, yarn, llama3, longrope), strict=True))
    expression = "0"
    for name, formula in named.items():
        expression = f"scaling == '{name}' ? {formula} : ({expression})"
    return f"datum.k < floor(proportion * {dim} / 2) ? ({expression}) : 0"


def wavelengths() -> alt.LayerChart:
    """Return each plane's wavelength against the input's length, with and without a scaling, as sliders move."""
    dim = WIDTH
    params = [
        alt.param(name="scaling", value="linear", bind=alt.binding_select(options=list(SCALINGS), name="Scaling ")),
        slider("logbase", 4, 2, 7, 0.1, "Base"),
        slider_label("logbase", "format(pow(10, logbase), ',.3~r')"),
        slider("factor", 8, 1, 32, 1, "Scaling factor"),
        slider("logtrained", 12, 8, 17, 1, "Length in training"),
        slider_label("logtrained", "format(pow(2, logtrained), ',')"),
        slider("loglength", 14, 8, 20, 1, "Length of the input"),
        slider_label("loglength", "format(pow(2, loglength), ',')"),
        slider("proportion", 1, 0, 1, 0.05, "Share of planes that turn"),
    ]
    base = (
        alt.Chart(alt.sequence(0, dim // 2, as_="k"))
        .transform_calculate(
            id="datum.k + 1", angle=scaled_angle(dim), plain=f"2 * PI * pow(10, 2 * logbase * datum.k / {dim})"
        )
        .transform_calculate(
            wavelength="datum.angle > 0 ? 2 * PI / datum.angle : 1e9",
            kind="datum.angle == 0 ? 'does not turn' : datum.angle * pow(2, loglength) < 2 * PI ? "
            "'less than one turn in the input' : 'at least one turn'",
        )
    )
    names = ["at least one turn", "less than one turn in the input", "does not turn"]
    points = base.mark_point(size=45).encode(
        x=alt.X("id:Q", title="Frequency ID (1 is the fastest)").scale(domain=[0, dim // 2 + 1], nice=False),
        y=alt.Y("wavelength:Q", title="Wavelength (positions)")
        .scale(type="log", domain=[1, 1e9])
        .axis(format="~e", values=[10**power for power in range(10)]),
        color=alt.Color("kind:N", title=None)
        .scale(domain=names, range=[POSITIONAL, SYMBOLIC, NEUTRAL])
        .legend(orient="bottom"),
        tooltip=["id:Q", alt.Tooltip("angle:Q", format=".3e"), alt.Tooltip("wavelength:Q", format=",.0f")],
    )
    unscaled = base.mark_point(size=16, color=NEUTRAL, opacity=0.6).encode(
        x="id:Q", y="plain:Q", tooltip=["id:Q", alt.Tooltip("plain:Q", title="wavelength unscaled", format=",.0f")]
    )
    counts = (
        base.transform_calculate(
            before="datum.plain <= pow(2, loglength)", after="datum.wavelength <= pow(2, loglength)"
        )
        .transform_aggregate(before="sum(before)", after="sum(after)")
        .transform_calculate(words="datum.after + ' planes make a full turn,\\n' + datum.before + ' without scaling'")
        .mark_text(align="left", fontWeight="bold", lineBreak="\n")
        .encode(x=alt.value(0), y=alt.value(-22), text="words:N")
    )
    one = alt.Chart(pd.DataFrame({"zero": [0]}))
    trained = (
        one.transform_calculate(y="pow(2, logtrained)").mark_rule(color=NEUTRAL, strokeDash=[4, 4]).encode(y="y:Q")
    )
    length = (
        one.transform_calculate(y="pow(2, loglength)").mark_rule(color=CATEGORIES[0], strokeWidth=2).encode(y="y:Q")
    )
    return (
        (unscaled + points + trained + length + counts)
        .add_params(*params)
        .properties(
            title=alt.Title(
                "Scaling slows planes, so that fewer of them make a full turn within the input",
                subtitle=f"Width {dim}; small, grey: without scaling; green: length of the input; dashed: in training",
            ),
            height=320,
            description="Interactive scatter plot of wavelength by frequency ID on a logarithmic axis, with and "
            "without scaling, with rules at the input's length and the training length, a menu of scalings and sliders "
            "for base, factor and lengths.",
        )
    )


def index_logits() -> alt.LayerChart:
    """Return T_Index's logits by distance, in the page as sliders move angle, length and the integer asked for."""
    base = (
        alt.Chart(alt.sequence(0, 101, as_="d"))
        .transform_filter("datum.d < n")
        .transform_calculate(
            logit="cos((datum.d - min(sigma, n - 1)) * theta)",
            key="datum.d == min(sigma, n - 1) ? 'asked for' : 'other'",
        )
    )
    color = (
        alt.Color("key:N", title=None)
        .scale(domain=["asked for", "other"], range=[CATEGORIES[0], POSITIONAL])
        .legend(orient="bottom")
    )
    x = alt.X("d:Q", title="Distance of the key (positions back)").axis(tickMinStep=1)
    y = alt.Y("logit:Q", title="Logit").scale(domain=[-1, 1.05], nice=False)
    stems = base.mark_rule(opacity=0.7).encode(x=x, y=y, y2=alt.datum(0), color=color)
    points = base.mark_point(size=50).encode(
        x=x, y=y, color=color, tooltip=["d:Q", "key:N", alt.Tooltip("logit:Q", format=".5f")]
    )
    rival = (
        base.transform_filter("datum.key == 'other'")
        .transform_aggregate(best="max(logit)")
        .transform_calculate(words="'best rival ' + format(1 - datum.best, '.5f') + ' below the key asked for'")
        .mark_text(align="left", fontWeight="bold")
        .encode(x=alt.value(0), y=alt.value(-8), text="words:N")
    )
    return (
        (stems + points + rival)
        .add_params(
            slider("theta", 0.8, 0.05, 3.1, 0.01, "Angle θ (rad per position)"),
            slider("n", 30, 2, 100, 1, "Length n"),
            slider("sigma", 10, 0, 99, 1, "Integer σ asked for"),
            alt.param(name="sigma_most", expr="n - 1"),
        )
        .properties(
            title=alt.Title(
                "One key stands alone at the top, and rivals come close as n grows",
                subtitle="T_Index: logit cos((d − σ)θ) of the key d positions back",
            ),
            height=240,
            description="Interactive stem plot of T_Index's logits by distance. The key asked for has logit one; "
            "sliders set angle, length and the integer.",
        )
    )


def retrieval_logits(theta: float = 0.0027, alphabet: int = 8, length: int = 100) -> alt.LayerChart:
    """Return T_Retrieval's logits of the sought letter and of its nearest rivals by distance, as sliders move."""
    names = ["the sought letter", "one letter before", "two before", "one after"]
    base = (
        alt.Chart(alt.sequence(0, 404, as_="k"))
        .transform_calculate(d="4 * floor(datum.k / 4)", delta="datum.k % 4 - 2")
        .transform_filter("datum.d < n")
        .transform_calculate(
            logit="cos(datum.delta * 2 * PI / alphabet + datum.d * theta)",
            letter="datum.delta == 0 ? 'the sought letter' : datum.delta == -1 ? 'one letter before' : "
            "datum.delta == 1 ? 'one after' : 'two before'",
        )
    )
    lines = base.mark_line().encode(
        x=alt.X("d:Q", title="Distance of the key (positions back)"),
        y=alt.Y("logit:Q", title="Logit").scale(domain=[-1, 1.05], nice=False),
        color=alt.Color("letter:N", title="First letter of the key is")
        .scale(domain=names, range=[CATEGORIES[0], SYMBOLIC, CATEGORIES[1], NEUTRAL])
        .legend(columns=2),
    )
    crossing = (
        alt.Chart(pd.DataFrame({"zero": [0]}))
        .transform_calculate(crossing="PI / alphabet / theta", d="min(datum.crossing, n)")
        .mark_rule(strokeDash=[4, 4])
        # Hidden and not filtered out: an axis cannot be fitted to a rule that has no rows.
        .encode(x="d:Q", opacity=alt.condition("datum.crossing < n", alt.value(0.6), alt.value(0)))
    )
    return (
        (lines + crossing)
        .add_params(
            slider("theta", theta, 0.0001, 0.05, 0.0001, "Angle θ (rad per position)"),
            slider("alphabet", alphabet, 4, 26, 1, "Letters |ALPH|"),  # with fewer, two of the lines are of one letter
            slider("n", length, 10, 400, 10, "Length n"),
        )
        .properties(
            title=alt.Title(
                "Distance turns one letter into the next",
                subtitle="T_Retrieval's logits; dashed: where the letter before overtakes the sought one, dθ = ω/2",
            ),
            height=260,
            description="Interactive line chart of T_Retrieval's logits by distance, for keys with the sought first "
            "letter and the letters beside it. The curves of the sought letter and of the one before cross.",
        )
    )
