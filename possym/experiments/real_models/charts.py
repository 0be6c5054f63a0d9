"""Charts of a language model's heads: the plane with profiles, frequencies, permutations, planes, choices, the knob.

Tables are those of `possym.experiments.real_models` and `possym.experiments.real_models.summaries`.
"""

import pandas as pd

from possym.charts import (
    CATEGORIES,
    KINDS,
    KNOWN_HEADS,
    LAYERS,
    NEUTRAL,
    POSITIONAL,
    SYMBOLIC,
    alt,
    click_menu,
    dynamic_title,
)
from possym.charts.typography import typeset
from possym.experiments.real_models.summaries import (
    MEASURES,
    frequency_pattern,
    gathered,
    knob_effects,
    of_task,
    own_effects,
    thirds,
    with_large_logits,
)
from possym.profiling.charts import number

SCORE_COLORS = {"positional": POSITIONAL, "symbolic": SYMBOLIC}
BAND_COLORS = {
    "symbolic": SYMBOLIC,
    "matched symbolic": NEUTRAL,
    "positional": POSITIONAL,
    "matched positional": CATEGORIES[4],
}
FREQUENCY = "frequency ID (1 is the fastest)"
LEVEL = 0.05  # of a test


def score_color() -> alt.Color:
    """Return the colours of the two scores; the legend stays opaque where a pale band is drawn too."""
    scale = alt.Scale(domain=list(SCORE_COLORS), range=list(SCORE_COLORS.values()))
    return alt.Color("score:N", title=None, scale=scale).legend(symbolOpacity=1)


def across(title: str | None) -> alt.X:
    """Return the axis of frequencies."""
    return alt.X("frequency_id:Q", title=title).scale(nice=False, padding=8).axis(tickMinStep=1)


def plane_with_profile(summary: pd.DataFrame, frequencies: pd.DataFrame) -> alt.VConcatChart:
    """Draw heads in the plane of both scores; a menu, or a click on a head, shows its scores by frequency below.

    Args:
        summary: layer, head, positional, symbolic, entropy, lead; one row per head.
        frequencies: layer, head, frequency_id, positional, symbolic, logit_norm; one row per plane of a head.
    """
    table = named(summary)
    start = table.loc[table["lead"].idxmax(), "name"]
    names = table.sort_values(["layer", "head"])["name"].tolist()
    r = table["positional"].corr(table["symbolic"])
    points = (
        alt.Chart(table)
        .mark_circle()
        .encode(
            x=alt.X("positional:Q", title="Positional score").scale(domain=[0, 1]),
            y=alt.Y("symbolic:Q", title="Symbolic score").scale(domain=[0, 1]),
            color=alt.Color("layer:Q", title="Layer").scale(scheme=LAYERS),
            size=alt.condition("datum.name == shown", alt.value(220), alt.value(50)),
            opacity=alt.condition("datum.name == shown", alt.value(1), alt.value(0.65)),
            tooltip=["name:N", number("positional"), number("symbolic"), number("entropy", ".2f")],
        )
        .properties(height=300)
    )
    packed = pack_profiles(frequencies)
    base = (
        alt.Chart(packed)
        .transform_filter("datum.name == shown")
        .transform_flatten(["frequency_id", *SCORE_COLORS, "logit_norm"])
    )
    lines = (
        base.transform_fold(list(SCORE_COLORS), as_=["score", "value"])
        .mark_line(point=True)
        .encode(
            x=across(None),
            y=alt.Y("value:Q", title="Score").scale(domain=[0, 1]),
            color=score_color(),
            tooltip=["name:N", "frequency_id:Q", "score:N", number("value")],
        )
    )
    label = base.transform_aggregate(name="max(name)").mark_text(align="left", fontWeight="bold")
    profile = (lines + label.encode(x=alt.value(8), y=alt.value(138), text="name:N")).properties(height=150)
    norms = (
        base.mark_bar(color=NEUTRAL)
        .encode(
            x=across(FREQUENCY),
            y=alt.Y("logit_norm:Q", title="Norm of logits"),
            tooltip=["name:N", "frequency_id:Q", number("logit_norm", ".2f")],
        )
        .properties(height=80)
    )
    trade = "trade one score for the other" if r < -0.5 else "do not clearly trade one score for the other"
    return (
        alt.vconcat(points, profile, norms)
        .add_params(*click_menu("shown", "name", names, start, "Head"))
        .resolve_scale(color="independent")
        .properties(
            title=alt.Title(
                f"Heads {trade}",
                subtitle=f"{len(table)} heads, r = {r:.2f}; below, the frequencies of the head in the menu",
            ),
            description=f"Scatter plot of {len(table)} heads by positional and symbolic score, r = {r:.2f}; below, the "
            f"scores and logit norms of the chosen head by RoPE frequency, at first {start}.",
        )
    )


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with ``name``, the words for a layer and head."""
    pairs = zip(table["layer"], table["head"], strict=True)
    return table.assign(name=[f"layer {layer}, head {head}" for layer, head in pairs])


def pack_profiles(frequencies: pd.DataFrame) -> pd.DataFrame:
    """Return one row per head, with lists over frequencies, which the page unpacks."""
    columns = ["frequency_id", *SCORE_COLORS, "logit_norm"]
    ordered = named(frequencies).sort_values("frequency_id")[["name", "layer", "head", *columns]]
    ordered[columns[1:]] = ordered[columns[1:]].astype(float).round(3)
    return ordered.groupby(["name", "layer", "head"])[columns].agg(list).reset_index()


def all_profiles(frequencies: pd.DataFrame) -> alt.LayerChart:
    """Draw the scores by frequency of every head as small lines: layers down, heads across, fast to slow in each."""
    count = int(frequencies["frequency_id"].max())
    packed = pack_profiles(frequencies[(frequencies["frequency_id"] - 1) % max(1, count // 16) == 0])
    heads, layers = int(packed["head"].max()) + 1, int(packed["layer"].max()) + 1
    lines = (
        alt.Chart(packed)
        .transform_flatten(["frequency_id", *SCORE_COLORS])
        .transform_fold(list(SCORE_COLORS), as_=["score", "value"])
        .transform_calculate(
            x=f"datum.head - 0.4 + 0.8 * (datum.frequency_id - 1) / {max(1, count - 1)}",
            y="datum.layer + 0.4 - 0.8 * datum.value",
        )
        .mark_line(strokeWidth=1.2)
        .encode(
            x=alt.X("x:Q", title="Head (in each cell: fast to slow)")
            .scale(domain=[-0.5, heads - 0.5], nice=False)
            .axis(values=list(range(heads)), format="d"),
            y=alt.Y("y:Q", title="Layer (in each cell: score 0 to 1)")
            .scale(domain=[layers - 0.5, -0.5], nice=False)
            .axis(values=list(range(layers)), format="d", grid=False),
            color=score_color(),
            detail="name:N",
        )
    )
    symbolic = frequencies.groupby("frequency_id")["symbolic"].mean()
    quarter = max(1, count // 4)
    fast, slow = symbolic.iloc[:quarter].mean(), symbolic.iloc[-quarter:].mean()
    words = f"mean symbolic score {fast:.2f} over the fastest quarter of frequencies, {slow:.2f} over the slowest"
    return lines.properties(
        title=alt.Title("Every head by frequency", subtitle=words.capitalize()),
        description=f"Small line charts, one for each of {len(packed)} heads: both scores by RoPE frequency; {words}.",
        height=max(160, 24 * layers),
    )


def scores_by_frequency(frequencies: pd.DataFrame, task: str) -> alt.VConcatChart:
    """Draw both scores and the logit norm by frequency over heads: medians and quartiles.

    Two switches choose what changes places and whether all planes count or the quarter with the largest logits.
    """
    scopes = {"all planes": 1.0, "largest logits": 0.25}
    cuts = frequencies.loc[frequencies["task"] == task, "blocks"].unique().tolist()
    parts = []
    for cut in cuts:
        rows = of_task(frequencies, task, cut)
        for scope, share in scopes.items():
            table = frequency_pattern(with_large_logits(rows, share))
            for name in (*SCORE_COLORS, "logit_norm"):
                columns = {name: "value", f"{name}_low": "low", f"{name}_high": "high"}
                values = table.rename(columns=columns)[["frequency_id", "angle", "value", "low", "high"]]
                parts.append(values.assign(score=name, cut=cut, scope=scope))
    table = pd.concat(parts)
    switches = [
        alt.param(name="cut", value=cuts[0], bind=alt.binding_radio(options=cuts, name="What moves ")),
        alt.param(name="scope", value="largest logits", bind=alt.binding_radio(options=list(scopes), name="Planes ")),
    ]
    tooltip = ["frequency_id:Q", number("angle", ".3g"), number("value"), number("low"), number("high")]

    def panel(data: pd.DataFrame, y: alt.Y, color, x: str | None, height: int) -> alt.LayerChart:
        shown = alt.Chart(data).transform_filter("datum.cut == cut && datum.scope == scope")
        base = shown.encode(x=across(x), color=color)
        band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q"), y2="high:Q")
        return (band + base.mark_line(point=True).encode(y=y, tooltip=tooltip)).properties(height=height)

    is_norm = table["score"] == "logit_norm"
    above = panel(table[~is_norm], alt.Y("value:Q", title="Score").scale(domain=[0, 1]), score_color(), None, 190)
    norm = alt.Y("value:Q", title="Norm of logits").scale(type="symlog")
    below = panel(table[is_norm], norm, alt.value(NEUTRAL), FREQUENCY, 100)
    where = {"all planes": "of all planes", "largest logits": "of the planes with the largest logits"}
    titles = {
        f"{cut}, {scope}": f"With {cut} moved, {where[scope]}: "
        f"{thirds_in_words(of_task(frequencies, task, cut), share)}"
        for cut in cuts
        for scope, share in scopes.items()
    }
    return (
        alt.vconcat(above, below)
        .add_params(*switches)
        .properties(
            title=alt.Title(
                dynamic_title("cut + ', ' + scope", titles),
                subtitle="Median and quartiles over heads; below, the size of the logits",
            ),
            description="Line charts of both scores and the logit norm by RoPE frequency over heads. Medians in the "
            f"quarter of planes with the largest logits, {'; '.join(medians(frequencies, task, cut) for cut in cuts)}.",
        )
    )


def thirds_in_words(planes: pd.DataFrame, share: float) -> str:
    """Return which score leads by 0.1 in the fast and the slow third of a share of planes, largest logits."""
    found = thirds(planes, share)
    kinds = {}
    for name in ("fast", "slow"):
        if name in found:
            lead = found[name]["symbolic"] - found[name]["positional"]
            kinds[name] = "symbolic" if lead >= 0.1 else "positional" if lead <= -0.1 else "without a lead"
    return ", ".join(f"{name} ones {kind}" for name, kind in kinds.items())


def medians(frequencies: pd.DataFrame, task: str, cut: str) -> str:
    """Return the median scores of fast and slow planes with large logits, in words."""
    found = thirds(of_task(frequencies, task, cut), 0.25)
    return f"by {cut}: " + ", ".join(
        f"{name} positional {found[name]['positional']:.2f} and symbolic {found[name]['symbolic']:.2f}"
        for name in ("fast", "slow")
        if name in found
    )


def attention_under_permutation(examples: pd.DataFrame) -> alt.VConcatChart:
    """Draw three heads' attention by statement before and after a permutation, at the positions and with the contents.

    Attention is shown as a share of what the statements get together. Grey: before. Colour: after. A positional head's
    coloured line stays on the grey one, a symbolic head's lies on the dotted one.
    """
    panels, words = [], []
    for kind in ("positional", "symbolic", "uniform"):
        rows = examples[examples["kind"] == kind]
        total = float(rows["before"].sum())
        rows = rows.assign(before=rows["before"] / total, after=rows["after"] / rows["after"].sum())
        before = rows.set_index("place")["before"]
        moved = rows.assign(moved=[before[content] for content in rows["content"]])
        stays = moved["after"].corr(moved["before"])
        follows = moved["after"].corr(moved["moved"])
        layer, head = int(rows["layer"].iloc[0]), int(rows["head"].iloc[0])
        part = f"{100 * total:.2g} %"
        words.append(
            f"{kind}: correlation {stays:.2f} with the positions, {follows:.2f} with the contents, {part} of its "
            "attention on statements"
        )
        series = {"before": "before", "after": "after", "moved": "before, moved along"}
        long = moved.melt(["place"], list(series), "when", "attention")
        long["when"] = long["when"].map(series)
        color = {"before": NEUTRAL, "after": KINDS.get(kind, CATEGORIES[1]), series["moved"]: CATEGORIES[0]}
        panels.append(
            alt.Chart(long)
            .mark_line(point=alt.OverlayMarkDef(size=18), strokeWidth=1.5)
            .encode(
                x=alt.X("place:Q", title="Position of the statement").scale(nice=False, padding=8).axis(tickMinStep=1),
                y=alt.Y("attention:Q", title="Share"),
                color=alt.Color("when:N", title=None).scale(domain=list(color), range=list(color.values())),
                strokeDash=alt.StrokeDash("when:N", title=None).scale(
                    domain=list(color), range=[[1, 0], [1, 0], [2, 3]]
                ),
                tooltip=["place:Q", "when:N", number("attention", ".4f")],
            )
            .properties(
                height=110,
                title=alt.Title(
                    f"Most {kind}: layer {layer}, head {head}",
                    subtitle=[
                        typeset(f"After, r = {stays:.2f} with positions, {follows:.2f} with contents"),
                        f"{part} of its attention is on statements",
                    ],
                    fontSize=12,
                ),
            )
        )
    return (
        alt.vconcat(*panels)
        .resolve_scale(color="independent", strokeDash="independent")
        .properties(
            title=alt.Title(
                "Shuffled statements: what stays and what follows",
                subtitle="Attention of the last token, as a share of what all statements get",
            ),
            description=f"Line charts of attention by statement before and after a permutation. {'; '.join(words)}.",
        )
    )


def queries_and_keys(planes: pd.DataFrame) -> alt.Chart:
    """Draw queries and keys, before rotation, in the strongest planes of the positional and the symbolic head."""
    table = planes.copy()
    size = (table["x"] ** 2 + table["y"] ** 2) ** 0.5
    longest = size.groupby([table["kind"], table["frequency_id"], table["role"]]).transform("max")
    table["x"], table["y"] = (table["x"] / longest).round(3), (table["y"] / longest).round(3)
    pairs = zip(table["kind"], table["layer"], table["head"], table["frequency_id"], strict=True)
    table["plane"] = [
        f"{kind}: layer {layer}, head {head}, frequency ID {number}" for kind, layer, head, number in pairs
    ]
    options = table["plane"].unique().tolist()
    shown = alt.param(name="plane", value=options[0], bind=alt.binding_select(options=options, name="Plane "))
    directions = gathered(planes)
    more = directions["key"] > directions["query"]
    roles = {"key": CATEGORIES[3], "query": CATEGORIES[2]}
    return (
        alt.Chart(table[["plane", "role", "place", "token", "x", "y"]])
        .transform_filter("datum.plane == plane")
        .mark_point(filled=True, opacity=0.7, size=45)
        .encode(
            x=alt.X("x:Q", title="First dimension").scale(domain=[-1.05, 1.05]),
            y=alt.Y("y:Q", title="Second dimension").scale(domain=[-1.05, 1.05]),
            color=alt.Color("role:N", title=None).scale(domain=list(roles), range=list(roles.values())),
            shape=alt.Shape("role:N", title=None).scale(domain=list(roles), range=["circle", "diamond"]),
            tooltip=["role:N", "place:Q", "token:N", number("x", ".2f"), number("y", ".2f")],
        )
        .add_params(shown)
        .properties(
            width=340,
            height=340,
            title=alt.Title(
                f"Keys gather in one direction more than queries in {more.sum()} of {len(more)} planes",
                subtitle="Strongest planes of two heads, contents before rotation; the longest of each role is at 1",
            ),
            description="Scatter plot with a menu of planes: keys of all tokens of a prompt and queries at some of its "
            "positions, before rotation.",
        )
    )


def choices(table: pd.DataFrame) -> alt.Chart:
    """Draw what each changed choice does to the ranking of heads and to their median scores.

    Args:
        table: see `possym.experiments.real_models.summaries.sensitivity_table`.
    """
    names = {
        "rank_correlation": "rank correlation",
        **{name: name for name in SCORE_COLORS},
    }
    data = table.assign(row=table["choice"] + ": " + table["value"])
    long = data.drop(columns="value").melt(["row", "r", "default"], list(names), "measure", "value")
    long["measure"] = long["measure"].map(names)
    colors = [CATEGORIES[0], *SCORE_COLORS.values()]
    changed = data[~data["default"]]
    worst = changed.loc[changed["rank_correlation"].idxmin()]
    title = (
        f"Of these choices, {worst['row']} reorders the heads most (rank correlation {worst['rank_correlation']:.2f})"
    )
    return (
        alt.Chart(long)
        .mark_point(filled=True, size=60)
        .encode(
            x=alt.X("value:Q", title=None).scale(domain=[min(0, long["value"].min()), 1]),
            y=alt.Y("row:N", title=None, sort=data["row"].tolist()).axis(labelLimit=220, grid=True),
            color=alt.Color("measure:N", title=None).scale(domain=list(names.values()), range=colors).legend(columns=1),
            shape=alt.Shape("measure:N", title=None).scale(
                domain=list(names.values()), range=["diamond", "circle", "circle"]
            ),
            opacity=alt.condition("datum.default", alt.value(0.35), alt.value(1)),
            tooltip=["row:N", "measure:N", number("value"), number("r")],
        )
        .properties(
            height=19 * len(data),
            title=alt.Title(
                title,
                subtitle="Rank correlation of heads with the default, and median scores; one choice changed at a time. "
                "Pale: the default. Tooltips give r over heads",
            ),
            description=f"Dot plot by way of scoring: rank correlation with the default, and median scores. {title}.",
        )
    )


def agreement(between: pd.DataFrame) -> alt.Chart:
    """Draw the rank correlation of heads between every two tasks, apart by whether the same thing moves in both.

    Args:
        between: see `possym.experiments.real_models.summaries.over_tasks`; names end in "by" and what changes places.
    """
    first, second = (between[side].str.rsplit(", by ", n=1).str[-1] for side in ("first", "second"))
    names = {True: "the same moves", False: "another moves"}
    table = between.assign(moves=(first == second).map(names))[between["first"] != between["second"]]
    medians = table.groupby("moves")["rank_correlation"].median()
    alike, unlike = (medians[name] for name in names.values())
    title = f"Heads rank alike as long as the same thing moves: median {alike:.2f}, else {unlike:.2f}"
    if alike < unlike + 0.1:
        title = f"Ranks of heads agree no better when the same thing moves: median {alike:.2f}, else {unlike:.2f}"
    order = between["first"].unique().tolist()
    return (
        alt.Chart(table)
        .mark_point(filled=True, size=80, opacity=0.8)
        .encode(
            x=alt.X("rank_correlation:Q", title="Rank correlation").scale(
                domain=[min(0, table["rank_correlation"].min()), 1]
            ),
            y=alt.Y("first:N", title=None, sort=order).axis(
                labelLimit=220, grid=True, labelExpr="replace(datum.label, 'binding, ', '')"
            ),
            color=alt.Color("moves:N", title=None)
            .scale(domain=list(names.values()), range=[CATEGORIES[0], CATEGORIES[1]])
            .legend(columns=1),
            shape=alt.Shape("moves:N", title=None).scale(domain=list(names.values()), range=["circle", "diamond"]),
            tooltip=["first:N", "second:N", number("rank_correlation")],
        )
        .properties(
            height=30 * len(order),
            title=alt.Title(title, subtitle="Lead: symbolic minus positional score. Each dot is a pair of tasks"),
            description=f"Dot plot of rank correlations between {len(order)} tasks. {title}.",
        )
    )


def known_heads(table: pd.DataFrame) -> alt.Chart:
    """Draw heads in the plane of both scores, previous-token and induction heads marked.

    Args:
        table: see `possym.experiments.real_models.summaries.with_known`.
    """
    medians = table.groupby("known")[list(SCORE_COLORS)].median()
    words = "; ".join(
        f"{kind}: median positional {row['positional']:.2f}, symbolic {row['symbolic']:.2f}"
        for kind, row in medians.reindex([k for k in KNOWN_HEADS if k in medians.index]).iterrows()
    )
    order = alt.Chart(named(table).assign(front=table["known"] != "other").sort_values("front"))
    return (
        order.mark_point(filled=True)
        .encode(
            x=alt.X("positional:Q", title="Positional score").scale(domain=[0, 1]),
            y=alt.Y("symbolic:Q", title="Symbolic score").scale(domain=[0, 1]),
            color=alt.Color("known:N", title=None).scale(domain=list(KNOWN_HEADS), range=list(KNOWN_HEADS.values())),
            shape=alt.Shape("known:N", title=None).scale(
                domain=list(KNOWN_HEADS), range=["square", "diamond", "circle"]
            ),
            size=alt.condition("datum.front", alt.value(110), alt.value(30)),
            opacity=alt.condition("datum.front", alt.value(0.95), alt.value(0.35)),
            tooltip=["name:N", "known:N", number("previous_token", ".2f"), number("induction", ".2f"),
                     number("positional"), number("symbolic")],
        )
        .properties(
            height=340,
            title=alt.Title("Where heads of known function fall", subtitle=words[0].upper() + words[1:]),
            description=f"Scatter plot of heads by both scores, heads of known function marked. {words}.",
        )
    )  # fmt: skip


def knob(table: pd.DataFrame, heads: str = "all", how: str = "silence") -> alt.VConcatChart:
    """Draw what is left of each ability when a band of frequencies is edited, beside random sets matched in logits."""
    effects = knob_effects(table, heads, how)
    effects["kind"] = [band if band in BAND_COLORS else "by speed" for band in effects["band"]]
    bands = list(dict.fromkeys(effects["band"]))
    order = [*(band for band in BAND_COLORS if band in bands), *(band for band in bands if band not in BAND_COLORS)]
    colors = BAND_COLORS | {"by speed": CATEGORIES[3]}
    panels, words = [], []
    for measure, label in MEASURES.items():
        rows = effects[effects["measure"] == measure]
        base = float(rows["base"].iloc[0])
        value = rows.groupby("kind")["value"].mean()
        words.append(
            f"{label}: {base:.2f} unedited, "
            + ", ".join(f"{value[kind]:.2f} {kind}" for kind in BAND_COLORS if kind in value)
        )
        points = (
            alt.Chart(rows)
            .mark_point(filled=True, size=70, opacity=0.75)
            .encode(
                x=alt.X("value:Q", title=label).scale(zero=False),
                y=alt.Y("band:N", title=None, sort=order),
                color=alt.Color("kind:N", title=None, legend=None).scale(
                    domain=list(colors), range=list(colors.values())
                ),
                tooltip=["band:N", "frequencies:N", number("value"), number("base"), number("change", "+.3f")],
            )
        )
        line = alt.Chart(pd.DataFrame({"base": [base]})).mark_rule(strokeDash=[4, 3]).encode(x="base:Q")
        panels.append((line + points).properties(height=17 * len(order)))
    left = effects[effects["measure"] == "induction"].groupby("kind")["value"].mean()
    start = effects.loc[effects["measure"] == "induction", "base"].iloc[0]
    done = {"silence": "silenced", "unrotate": "not rotating"}[how]
    where = heads if heads != "all" else "all heads"
    matched = {name: left.get(f"matched {name}") for name in ("symbolic", "positional")}
    taken = " and ".join(
        f"{left[name]:.2f} with the {name} band {done}" + ("" if value is None else f" (matched sets: {value:.2f})")
        for name, value in matched.items()
    )
    return alt.vconcat(*panels).properties(
        title=alt.Title(
            f"Induction is {start:.2f} intact, {taken}",
            subtitle=f"Edited in {where}. Dashed: the unedited model; matched: random sets with logits as large",
        ),
        description=f"Dot plots of abilities by edited band. {'; '.join(words)}.",
    )


def knob_in_known_heads(table: pd.DataFrame) -> alt.VConcatChart:
    """Draw what the attention of known heads loses when a band is silenced in all heads or in known heads alone."""
    sets = {"all": "all heads", "previous-token heads": "previous-token", "induction heads": "induction"}
    effects = pd.concat([knob_effects(table, heads).assign(heads=name) for heads, name in sets.items()])
    effects = effects[effects["band"].isin(BAND_COLORS)]
    panels = []
    for measure in ("previous_token", "induction"):
        rows = effects[effects["measure"] == measure]
        points = (
            alt.Chart(rows)
            .mark_point(filled=True, size=80, opacity=0.75)
            .encode(
                x=alt.X("change:Q", title=["change of the", MEASURES[measure]]).scale(zero=True),
                y=alt.Y("heads:N", title=None, sort=list(sets.values())).axis(
                    grid=True, labelExpr="split(replace(datum.label, '-', '-|'), '|')"
                ),
                color=alt.Color("band:N", title="silenced band").scale(
                    domain=list(BAND_COLORS), range=list(BAND_COLORS.values())
                ),
                shape=alt.Shape("band:N", title="silenced band").scale(
                    domain=list(BAND_COLORS), range=["diamond", "circle", "square", "circle"]
                ),
                tooltip=[
                    "heads:N",
                    "band:N",
                    "frequencies:N",
                    number("value"),
                    number("base"),
                    number("change", "+.3f"),
                ],
            )
        )
        line = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule(strokeDash=[4, 3]).encode(x="zero:Q")
        panels.append((line + points).properties(height=36 * len(sets)))
    own = own_effects(table)
    words = "; ".join(
        f"in {row.heads} {row.own_change:+.2f} without the {row.own} band ({row.beyond} of {row.draws} matched sets "
        f"take as much), {row.other_change:+.2f} without the other"
        for row in own.itertuples()
    )
    beyond = own["p_value"] <= LEVEL
    title = (
        "Previous-token heads need the positional band, induction heads the symbolic one, more than matched sets"
        if beyond.all()
        else "Only " + ", ".join(own.loc[beyond, "heads"]) + " need their own band more than matched sets"
        if beyond.any()
        else "Neither kind of head needs its own band more than matched sets of frequencies"
    )
    return alt.vconcat(*panels).properties(
        title=alt.Title(title, subtitle=f"Rows: edited heads; colours: bands. Change of their attention: {words}"),
        description=f"Dot plots of the change of attention by edited heads and silenced band. {title}: {words}.",
    )
