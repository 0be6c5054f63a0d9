"""Charts of the mechanism: what each layer does, when it learns to, and by which frequencies.

Tables in are those of `possym.experiments.mechanism`. Where single seeds are not shown, charts show the median over
seeds and the range between the smallest and the largest.
"""

import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, alt, dynamic_title, paper_and_here, tile_font
from possym.errors import InputError
from possym.experiments.learning_dynamics.charts import hop_words
from possym.experiments.learning_dynamics.summaries import over_seeds
from possym.experiments.mechanism.token_flow import OTHER, POWERS, SUPERSCRIPTS, function_name
from possym.results.published import published

LAYER = "Layer"
FUNCTIONS = range(OTHER, POWERS + 1)
PALETTE = ("#ffffff", NEUTRAL, CATEGORIES[0], CATEGORIES[2], CATEGORIES[1], CATEGORIES[3])  # other, Reflexive, F, F², …
SHORT = {"number": "I", "letter": "R"}


def function_color(task: str, **legend) -> alt.Color:
    """Return the colour encoding of a column ``name`` with the names of functions."""
    names = [function_name(task, power) for power in FUNCTIONS]
    return alt.Color("name:N", title=None, **legend).scale(domain=names, range=list(PALETTE))


def moved_tokens(table: pd.DataFrame, title: str) -> alt.LayerChart:
    """Return which token sits where after each layer, on one sequence a number of hops; a slider picks the number.

    Args:
        table: hops, layer (−1 is the input), place, token, path (whether the position is on the path), changed (whether
            the layer brought another token).
        title: what the picture shows.
    """
    hops = sorted(table["hops"].unique().tolist())
    data = table.assign(
        row=["input" if layer < 0 else f"after layer {layer}" for layer in table["layer"]],
        state=[
            "brought by this layer" if changed else "on the path" if path else "elsewhere"
            for path, changed in zip(table["path"], table["changed"], strict=True)
        ],
    )
    rows = data.sort_values("layer")["row"].unique().tolist()
    states = ["brought by this layer", "on the path", "elsewhere"]
    chosen = alt.param(
        name="hops",
        value=max(hops),
        bind=alt.binding_range(min=min(hops), max=max(hops), step=1, name="Number of hops "),
    )
    base = (
        alt.Chart(data[["hops", "row", "place", "token", "state", "path"]])
        .transform_filter("datum.hops == hops")
        .encode(
            x=alt.X("place:O", title="Position").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("row:N", title=None, sort=rows).axis(labelLimit=120),
        )
    )
    tiles = base.mark_rect(stroke=INK, strokeOpacity=0.15).encode(
        color=alt.Color("state:N", title=None, sort=states).scale(
            domain=states, range=[CATEGORIES[2], CATEGORIES[3], "transparent"]
        ),
        opacity=alt.condition("datum.path", alt.value(0.75), alt.value(0.35)),
        tooltip=["row:N", "place:O", "token:N", "state:N"],
    )
    names = base.mark_text(fontSize=tile_font(2), color=INK).encode(
        text="token:N", opacity=alt.condition("datum.path", alt.value(1), alt.value(0.7))
    )
    return (
        (tiles + names)
        .add_params(chosen)
        .properties(
            title=alt.Title(title, subtitle="Rows: input, then after each layer; strong colour: positions of the path"),
            description=f"Table of tokens by position and layer, those that a layer brought in colour. {title}.",
            height=22 * len(rows),
        )
    )


def labels_by_seed(labels: pd.DataFrame, task: str) -> alt.LayerChart:
    """Return the function of every layer of every seed, as a grid of coloured tiles.

    Args:
        labels: task, seed, without, layer, function, agreement; rows with ``without`` −1 are shown.
        task: ``"number"`` or ``"letter"``.
    """
    rows = labels[labels["task"] == task]
    rows = rows[rows["without"] == -1].copy()
    rows["name"] = [function_name(task, int(power)) for power in rows["function"]]
    rows["short"] = [short_name(task, int(power)) for power in rows["function"]]
    seeds = rows["seed"].nunique()
    usual = rows.groupby("layer")["function"].agg(lambda values: values.mode().iloc[0])
    share = float((rows["function"] == rows["layer"].map(usual)).mean())
    title = f"{task.capitalize()} task: {runs(task, usual.tolist())}"
    base = alt.Chart(rows[["seed", "layer", "name", "short", "agreement"]]).encode(
        x=alt.X("layer:O", title=LAYER).axis(labelAngle=0, labelOverlap=True), y=alt.Y("seed:O", title="Seed")
    )
    tiles = base.mark_rect(stroke=INK, strokeOpacity=0.15, opacity=0.85).encode(
        color=function_color(task), tooltip=["seed:O", "layer:O", "name:N", alt.Tooltip("agreement:Q", format=".1%")]
    )
    texts = base.mark_text(fontSize=tile_font(2), color="black").encode(text="short:N")
    return (tiles + texts).properties(
        title=alt.Title(
            title, subtitle=f"Commonest function by layer; {share:.0%} of the tiles of {seeds} seeds have it"
        ),
        description=f"Grid of tiles, seeds by layers, coloured by the layer's function. {title}.",
        height=max(16 * seeds, 60),
    )


def short_name(task: str, power: int) -> str:
    """Return a function's name in one or two characters.

    >>> [short_name("letter", power) for power in (-1, 0, 1, 2)]
    ['?', '·', 'R', 'R²']
    """
    return {OTHER: "?", 0: "·"}.get(power, SHORT[task] + SUPERSCRIPTS[power])


def runs(task: str, functions: list[int]) -> str:
    """Return functions by layer in words, equal neighbours joined.

    >>> runs("letter", [1, 2, 1, 0, 0])
    'Retrieval, Retrieval², Retrieval, 2 × Reflexive'
    """
    found: list[list] = []
    for power in functions:
        if found and found[-1][0] == power:
            found[-1][1] += 1
        else:
            found.append([power, 1])
    return ", ".join(
        f"{count} × {function_name(task, k)}" if count > 1 else function_name(task, k) for k, count in found
    )


def arrivals(left: pd.DataFrame, task: str) -> alt.LayerChart:
    """Return the share of sequences whose last position holds the answer after each layer, by number of hops.

    Args:
        left: task, seed, layer (−1 before the first), hops, left, share.
        task: ``"number"`` or ``"letter"``.
    """
    rows = left[left["task"] == task]
    data = over_seeds(rows[rows["left"] == 0], ["hops", "layer"], "share")
    done = data[data["median"] >= 0.9].groupby("hops")["layer"].min()
    words = (
        ", ".join(f"after layer {layer} for {hop_words(hops)}" for hops, layer in done.items())
        or "for no number of hops"
    )
    order = [hop_words(hops) for hops in sorted(data["hops"].unique())]
    data["class"] = data["hops"].map(hop_words)
    colors = alt.Color("class:N", title=None, sort=order).scale(domain=order, range=list(CATEGORIES[: len(order)]))
    base = alt.Chart(data).encode(
        x=alt.X("layer:O", title="After layer (−1: input)").axis(
            format="d", formatType="number", labelAngle=0, labelOverlap=True
        ),
        color=colors,
    )
    band = base.mark_area(opacity=0.2).encode(
        y=alt.Y("low:Q", title="Share of sequences").scale(domain=[0, 1]), y2="high:Q"
    )
    line = base.mark_line(point=True).encode(
        y=alt.Y("median:Q", title="Share of sequences").axis(format="%"),
        strokeDash=alt.StrokeDash("class:N", title=None, sort=order).scale(
            domain=order, range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]][: len(order)]
        ),
        tooltip=["class:N", "layer:O", alt.Tooltip("median:Q", format=".1%"), alt.Tooltip("low:Q", format=".1%")],
    )
    title = f"{task.capitalize()} task: the answer reaches the last position {words}"
    return (line + band).properties(
        title=alt.Title(
            title, subtitle="State of the last position, median over seeds and range; 90 % counts as arrived"
        ),
        description=f"Line chart of the share of sequences whose last position holds the answer, by layer. {title}.",
        height=240,
    )


def functions_over_training(training: pd.DataFrame, task: str) -> alt.LayerChart:
    """Return every layer's commonest function over training, one strip a layer; opacity is the share of seeds.

    Args:
        training: task, seed, step, layer, function.
        task: ``"number"`` or ``"letter"``.
    """
    rows = training[training["task"] == task]
    groups = rows.groupby(["layer", "step"])["function"]
    data = groups.agg(function=lambda v: v.mode().iloc[0], share=lambda v: (v == v.mode().iloc[0]).mean()).reset_index()
    steps = sorted(data["step"].unique().tolist())
    data["evaluation"] = data["step"].map({step: index for index, step in enumerate(steps)})
    data["name"] = [function_name(task, int(power)) for power in data["function"]]
    data["short"] = [short_name(task, int(power)) for power in data["function"]]
    labels = ", ".join(f"{index}: '{step:,}'" for index, step in enumerate(steps))
    base = alt.Chart(data).encode(
        x=alt.X("evaluation:O", title="Training step (evaluations, denser early)").axis(
            labelExpr=f"({{{labels}}})[datum.value]", labelOverlap=True, labelSeparation=8, labelAngle=0, ticks=False
        ),
        y=alt.Y("layer:O", title=LAYER),
    )
    tiles = base.mark_rect().encode(
        color=function_color(task),
        opacity=alt.Opacity("share:Q", title="Share of seeds").scale(domain=[0, 1], range=[0.15, 1]).legend(None),
        tooltip=["layer:O", "step:Q", "name:N", alt.Tooltip("share:Q", format=".0%")],
    )
    texts = base.mark_text(fontSize=tile_font(2), color="black").encode(text="short:N")
    end = data[data["step"] == steps[-1]].sort_values("layer")["function"].astype(int).tolist()
    title = f"{task.capitalize()} task: layers end as {runs(task, end)}"
    return (tiles + texts).properties(
        title=alt.Title(title, subtitle=f"Commonest function of {rows['seed'].nunique()} seeds; fainter: fewer seeds"),
        description=f"Heat map of each layer's commonest function over training steps. {title}.",
        height=20 * data["layer"].nunique(),
    )


def onset_against_purity(onsets: pd.DataFrame) -> alt.LayerChart:
    """Return when each layer took up its final function against when its head became pure, one mark per seed and layer.

    Args:
        onsets: of `possym.experiments.mechanism.onsets.onsets`.
    """
    rows = onsets.dropna(subset=["function_since", "pure_since"]).copy()
    if rows.empty:
        raise InputError("no layer has both a function and a kind at the end: nothing to compare")
    rows["name"] = [function_name(task, int(k)) for task, k in zip(rows["task"], rows["function"], strict=True)]
    first = float((rows["function_since"] < rows["pure_since"]).mean())
    tied = float((rows["function_since"] == rows["pure_since"]).mean())
    top = int(max(rows["function_since"].max(), rows["pure_since"].max()))
    names = sorted(rows["name"].unique())
    title = f"{first:.0%} of layers have their function before they are pure, {tied:.0%} at the same evaluation"
    dots = (
        alt.Chart(rows[["task", "seed", "layer", "name", "function_since", "pure_since"]])
        .mark_point(filled=True, opacity=0.6, size=55)
        .encode(
            x=alt.X("function_since:Q", title="Step since which the layer has its function").scale(domain=[0, top]),
            y=alt.Y("pure_since:Q", title="Step since which its head is pure").scale(domain=[0, top]),
            color=alt.Color("name:N", title=None).scale(domain=names, range=list(CATEGORIES[: len(names)])),
            shape=alt.Shape("task:N", title="Task"),
            tooltip=["task:N", "seed:O", "layer:O", "name:N", "function_since:Q", "pure_since:Q"],
        )
    )
    ends = pd.DataFrame({"function_since": [0, top], "pure_since": [0, top]})
    line = (
        alt.Chart(ends)
        .mark_line(color=INK, strokeDash=[4, 4], strokeWidth=1)
        .encode(x="function_since:Q", y="pure_since:Q")
    )
    return (dots + line).properties(
        title=alt.Title(title, subtitle="Above the dashed line: function first, purity (γ = 0.1) later"),
        description=f"Scatter plot of the step of function against the step of purity. {title}.",
        height=340,
    )


def dominant_frequencies(frequencies: pd.DataFrame, task: str) -> alt.HConcatChart:
    """Return the dominant frequency ID of each layer beside the paper's; a menu picks the weighting.

    Args:
        frequencies: task, seed, layer, head, weighting, dominant.
        task: ``"number"`` or ``"letter"``.
    """
    rows = frequencies[frequencies["task"] == task]
    data = over_seeds(rows, ["weighting", "layer"], "dominant")
    weightings = rows["weighting"].unique().tolist()
    paper = published(f"P2.table1.{task}").value
    data["paper"] = [paper[layer] if layer < len(paper) else None for layer in data["layer"]]
    chosen = alt.param(
        name="weighting", value="energy", bind=alt.binding_select(options=weightings, name="Weighted by ")
    )
    top = max(float(data["high"].max()), max(paper)) + 2
    base = (
        alt.Chart(data)
        .transform_filter("datum.weighting == weighting")
        .encode(x=alt.X("layer:O", title=LAYER).axis(labelAngle=0, labelOverlap=True))
    )
    identity = alt.Y("low:Q", title="Dominant frequency ID (1 is the fastest)").scale(domain=[0, top], nice=False)
    spread = base.mark_rule(strokeWidth=6, opacity=0.35, color=CATEGORIES[0]).encode(y=identity, y2="high:Q")
    median = base.mark_point(filled=True, size=70, color=CATEGORIES[0]).encode(
        y="median:Q", tooltip=["layer:O", alt.Tooltip("median:Q", format=".1f"), "low:Q", "high:Q", "paper:Q"]
    )
    readings = pd.DataFrame({"layer": range(len(paper)), "theirs": paper})
    theirs = (
        alt.Chart(readings[readings["layer"] <= data["layer"].max()])
        .mark_point(filled=True, size=70, color=INK)
        .encode(
            x=alt.X("layer:O", title=LAYER).axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("theirs:Q", title="Dominant frequency ID (1 is the fastest)").scale(domain=[0, top], nice=False),
            tooltip=["layer:O", "theirs:Q"],
        )
    )
    titles = {}
    for weighting, part in data.sort_values("layer").groupby("weighting"):
        ends = f"{part['median'].iloc[0]:.0f} in layer 0 and {part['median'].iloc[-1]:.0f} in the last"
        titles[weighting] = f"{task.capitalize()} task: the dominant ID, weighted by {weighting}, is {ends}"
    return (
        paper_and_here(
            theirs.properties(width=280, height=240), (spread + median).properties(width=280, height=240), "Table 1"
        )
        .add_params(chosen)
        .properties(
            title=alt.Title(
                dynamic_title("weighting", titles),
                subtitle=f"Here: dot and bar are median and range over {int(data['seeds'].max())} seeds",
            ),
            description="Dot plots of the dominant frequency ID by layer, the paper's and ours, and a menu of our "
            f"weightings. {titles['energy']}.",
        )
    )


def plane_by_layer(table: pd.DataFrame, title: str) -> alt.LayerChart:
    """Return queries and keys in a plane of each layer, for several sequences; sliders pick layer and sequence.

    Args:
        table: layer, sequence (from 1), place, token, kind, x, y, turned_x, turned_y, frequency_id, asks (whether this
            is the last position's query).
        title: what the picture shows.
    """
    columns = ["x", "y", "turned_x", "turned_y"]
    reach = table.groupby(["layer", "kind"])[columns].transform(lambda values: values.abs().max())
    scale = reach.max(axis=1).where(reach.max(axis=1) > 0, 1.0)
    data = table.assign(**{column: (table[column] / scale).round(4) for column in columns})
    data["who"] = ["last query" if asks else kind for asks, kind in zip(data["asks"], data["kind"], strict=True)]
    params = [
        slider("layer", int(table["layer"].max()), "Layer "),
        alt.param(
            name="sequence",
            value=1,
            bind=alt.binding_range(min=1, max=int(table["sequence"].max()), step=1, name="Sequence "),
        ),
        alt.param(
            name="turned",
            value="as the head sees them, turned",
            bind=alt.binding_radio(
                options=["as the head sees them, turned", "contents, before rotation"], name="Show "
            ),
        ),
    ]
    who = ["key", "query", "last query"]
    axis = {"scale": alt.Scale(domain=[-1.1, 1.1])}
    base = (
        alt.Chart(data[["layer", "sequence", "place", "token", "who", "frequency_id", *columns]])
        .transform_filter("datum.layer == layer && datum.sequence == sequence")
        .transform_calculate(
            across="turned == 'contents, before rotation' ? datum.x : datum.turned_x",
            up="turned == 'contents, before rotation' ? datum.y : datum.turned_y",
        )
        .encode(
            x=alt.X("across:Q", title="First dimension of the plane (longest = 1)", **axis),
            y=alt.Y("up:Q", title="Second dimension", **axis),
        )
    )
    dots = base.mark_point(filled=True, opacity=0.8).encode(
        color=alt.Color("who:N", title=None, sort=who).scale(
            domain=who, range=[CATEGORIES[1], CATEGORIES[3], CATEGORIES[0]]
        ),
        shape=alt.Shape("who:N", title=None, sort=who).scale(domain=who, range=["triangle-up", "circle", "diamond"]),
        size=alt.condition("datum.who == 'last query'", alt.value(220), alt.value(60)),
        tooltip=["token:N", "place:Q", "who:N", "frequency_id:Q"],
    )
    names = base.transform_filter("datum.who != 'query'").mark_text(fontSize=10, dx=10, dy=-6).encode(text="token:N")
    plane = (
        base.transform_aggregate(frequency_id="max(frequency_id)")
        .transform_calculate(label="'plane of frequency ID ' + datum.frequency_id")
        .mark_text(align="left", fontSize=12)
        .encode(x=alt.datum(-1.05), y=alt.datum(1.03), text="label:N")
    )
    return (
        (dots + names + plane)
        .add_params(*params)
        .properties(
            title=alt.Title(title, subtitle="Queries and keys scaled apart, each by its longest in that layer"),
            description=f"Scatter plot of queries and keys in a RoPE plane; sliders for layer and sequence. {title}.",
            height=380,
        )
    )


def slider(name: str, top: int, words: str) -> alt.Parameter:
    """Return a slider over whole numbers from 0 to ``top``."""
    return alt.param(name=name, value=0, bind=alt.binding_range(min=0, max=top, step=1, name=words))
