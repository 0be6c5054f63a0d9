"""Charts of training: accuracy by hops, and what every head's scores do meanwhile.

Tables in are those of `possym.experiments.learning_dynamics`. Charts show the median over seeds and the range
between the smallest and the largest seed, unless a single seed is chosen.
"""

import pandas as pd

from possym.charts import (
    CATEGORIES,
    INK,
    LAYERS,
    NEUTRAL,
    POSITIONAL,
    SYMBOLIC,
    alt,
    dynamic_title,
    kind_color,
    paper_and_here,
    plays,
    slider_over,
)
from possym.experiments.learning_dynamics.summaries import (
    kinds,
    learnt_medians,
    learnt_steps,
    over_seeds,
    validation,
)
from possym.results.published import published

STEP = "Training step"
TASKS = ("number", "letter")
NEAR = 0.06  # scores of heads that share a label differ by at most so much


def accuracy_by_hops(accuracy: pd.DataFrame, task: str) -> alt.LayerChart:
    """Return accuracy over training, one line for each hop count; a menu picks the median or a single seed.

    Evaluations are thinned evenly to at most 50, first and last kept.

    Args:
        accuracy: columns task, seed, split, step, hops, accuracy; the validation split is shown.
        task: ``"number"`` or ``"letter"``.
    """
    every = validation(accuracy[accuracy["task"] == task])
    evaluations = sorted(every["step"].unique())
    drawn = thin(evaluations, 50)
    table = every[(every["hops"] > 0) & every["step"].isin(drawn)]
    summary = over_seeds(table, ["hops", "step"], "accuracy")
    seeds = sorted(table["seed"].unique())
    wide = table.pivot(index=["hops", "step"], columns="seed", values="accuracy")
    wide.columns = [f"seed{seed}" for seed in wide.columns]
    columns = ["median", "low", "high", *wide.columns]
    data = summary.merge(wide, on=["hops", "step"])
    packed = pack(data, ["hops"], ["step", *columns])
    packed["hops"] = [hop_words(hops) for hops in packed["hops"]]
    shown = choice_of_seeds(seeds, "median and range over seeds")
    order = packed["hops"].tolist()
    swatch = alt.Legend(symbolType="stroke", symbolOpacity=1)
    base = (
        alt.Chart(packed)
        .transform_flatten(["step", *columns])
        .transform_calculate(accuracy="datum[shown]")
        .encode(
            x=alt.X("step:Q", title=STEP),
            color=alt.Color("hops:N", title=None, sort=order, legend=swatch).scale(
                domain=order, range=list(CATEGORIES[: len(order)])
            ),
        )
    )
    band = base.mark_area(opacity=alt.expr("shown == 'median' ? 0.2 : 0")).encode(
        y=alt.Y("low:Q", title="Accuracy").scale(domain=[0, 1]), y2="high:Q"
    )
    line = base.mark_line().encode(
        y=alt.Y("accuracy:Q", title="Accuracy").axis(format="%"),
        strokeDash=alt.StrokeDash("hops:N", title=None, sort=order).scale(
            domain=order, range=[[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]][: len(order)]
        ),
        tooltip=["hops:N", alt.Tooltip("step:Q"), alt.Tooltip("accuracy:Q", format=".1%")],
    )
    titles = {"median": describe_learned(every, task)}
    titles |= {f"seed{seed}": describe_learned(every[every["seed"] == seed], task, f", seed {seed}") for seed in seeds}
    few = f"; {len(drawn)} of {len(evaluations)} evaluations drawn" if len(drawn) < len(evaluations) else ""
    return (
        (band + line)
        .add_params(shown)
        .properties(
            title=alt.Title(
                dynamic_title("shown", titles),
                subtitle=f"Validation accuracy by hop count; bands of the median span {len(seeds)} seeds{few}",
            ),
            description=f"Line chart, {task} task: accuracy over training steps, one line for each hop count, and a "
            f"menu of seeds. {titles['median']}.",
            height=280,
        )
    )


def steps_to_learn(accuracy: pd.DataFrame) -> alt.LayerChart:
    """Return the step at which each hop count reaches 90 %: one mark per seed, and the paper's readings."""
    learnt = learnt_steps(accuracy, 0.9)
    learnt["hops"] = [hop_words(hops) for hops in learnt["hops"]]
    learnt["source"] = "a seed here"
    letter = published("P2.fig2.letter.learnt_step").value
    readings = [("number", hop_words(1), published("P2.fig2.number.one_hop_step").value)]
    readings += [("letter", hops, letter) for hops in sorted(learnt.loc[learnt["task"] == "letter", "hops"].unique())]
    paper = pd.DataFrame(readings, columns=["task", "hops", "step"]).assign(source="the paper (plot)")
    data = pd.concat([learnt, paper[paper["task"].isin(learnt["task"])]], ignore_index=True)
    missing = int(data["step"].isna().sum())
    data["row"] = data["task"] + ", " + data["hops"]
    data["who"] = ["the paper" if pd.isna(seed) else f"seed {seed:.0f}" for seed in data["seed"]]
    rows = [f"{task}, {hops}" for task in TASKS for hops in sorted(data["hops"].unique())]
    sources = ["a seed here", "the paper (plot)"]
    title = "When each hop count first reaches 90% accuracy"
    left_out = f"; {missing} never do and are left out" if missing else ""
    return (
        alt.Chart(data.dropna(subset=["step"]).drop(columns="seed"))
        .mark_point(filled=True, size=70, opacity=0.75)
        .encode(
            x=alt.X("step:Q", title=STEP).scale(zero=True),
            y=alt.Y("row:N", title=None, sort=rows).scale(domain=[row for row in rows if row in set(data["row"])]),
            shape=alt.Shape("source:N", title=None).scale(domain=sources, range=["circle", "diamond"]),
            color=alt.Color("source:N", title=None).scale(domain=sources, range=[CATEGORIES[0], NEUTRAL]),
            tooltip=["task:N", "hops:N", "who:N", alt.Tooltip("step:Q", format=",")],
        )
        .properties(
            title=alt.Title(title, subtitle=f"One mark per seed{left_out}"),
            description=f"Dot plot: {title.lower()}, by task and hop count, one dot for each seed, with the "
            "paper's steps "
            "as diamonds.",
            height=26 * data["row"].nunique(),
        )
    )


def head_color(positional: float, symbolic: float) -> str:
    """Return the colour of a place in the plane of scores, as #rrggbb.

    Blue is positional alone, vermillion symbolic alone, grey both (nearly uniform attention), white neither.

    >>> head_color(1, 0), head_color(0, 1), head_color(1, 1), head_color(0, 0)
    ('#006ba8', '#e06608', '#7f7f7f', '#ffffff')
    """
    corners = {
        POSITIONAL: positional * (1 - symbolic),
        SYMBOLIC: symbolic * (1 - positional),
        NEUTRAL: positional * symbolic,
        "#ffffff": (1 - positional) * (1 - symbolic),
    }
    mixed = [sum(int(color[i : i + 2], 16) * part for color, part in corners.items()) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(min(max(channel, 0), 255)):02x}" for channel in mixed)


def head_color_expression(positional: str, symbolic: str) -> str:
    """Return the Vega expression of `head_color` for two scores that are Vega expressions.

    >>> head_color_expression("datum.p", "datum.s")[:40]
    "'rgb(' + round(0*(datum.p)*(1-(datum.s))"
    """
    p, s = f"({positional})", f"({symbolic})"
    shares = {POSITIONAL: f"{p}*(1-{s})", SYMBOLIC: f"{s}*(1-{p})", NEUTRAL: f"{p}*{s}", "#ffffff": f"(1-{p})*(1-{s})"}
    mixed = ("+".join(f"{int(color[i : i + 2], 16)}*{part}" for color, part in shares.items()) for i in (1, 3, 5))
    return "'rgb(' + " + " + ',' + ".join(f"round({channel})" for channel in mixed) + " + ')'"


def choice_of_seeds(seeds: list[int], median: str = "median over seeds") -> alt.Parameter:
    """Return the menu ``shown``: ``median``, in the words given, or one of the columns ``seed0``, ``seed1`` and so on.

    >>> choice_of_seeds([4]).param.bind.options
    ['median', 'seed4']
    """
    options = ["median", *(f"seed{seed}" for seed in seeds)]
    labels = [median, *(f"seed {seed}" for seed in seeds)]
    return alt.param(
        name="shown", value="median", bind=alt.binding_select(options=options, labels=labels, name="Show ")
    )


def wide_seeds(table: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return layer, step and choice (``median``, ``seed0`` …) with ``columns`` over seeds and of each seed."""
    single = table.assign(choice=[f"seed{seed}" for seed in table["seed"]])
    median = table.groupby(["layer", "step"], as_index=False)[columns].median().assign(choice="median")
    return pd.concat([median, single[["layer", "step", "choice", *columns]]], ignore_index=True)


def kinds_over_training(scores: pd.DataFrame, task: str, columns: int = 40) -> alt.LayerChart:
    """Return every layer's kind over training as one strip a layer, coloured by `head_color` of its scores.

    A menu picks the median over seeds or a single seed. Evaluations are thinned evenly to at most ``columns``, first
    and last kept. The letter at the right end names heads whose scores end at 0.9 and 0.1 or purer: P positional, S
    symbolic.
    """
    table = scores[scores["task"] == task]
    steps = thin(sorted(table["step"].unique()), columns)
    plane = wide_seeds(table[table["step"].isin(steps)], ["positional", "symbolic"])
    plane["evaluation"] = plane["step"].map({step: index for index, step in enumerate(steps)})
    last = plane[plane["step"] == steps[-1]].copy()
    last["letter"] = pd.Series(kinds(last, 0.1), last.index).map({1: "P", -1: "S", 0: ""})
    titles = {}
    for choice, letters in last.groupby("choice")["letter"]:
        whose = "by the median over seeds" if choice == "median" else f"in seed {choice.removeprefix('seed')}"
        titles[choice] = (
            f"{task.capitalize()} task: {(letters == 'P').sum()} layers end positional, "
            f"{(letters == 'S').sum()} symbolic, {whose}"
        )
    # Both scores in hundredths as one number: a tenth of what colours would weigh in the page.
    plane["scores"] = 101 * (100 * plane["positional"]).round().astype(int) + (100 * plane["symbolic"]).round().astype(
        int
    )
    wide = plane.pivot(index=["layer", "step", "evaluation"], columns="choice", values="scores").reset_index()
    arrays = ["evaluation", "step", *titles]
    labels = ", ".join(f"{index}: '{step:,}'" for index, step in enumerate(steps))
    layers = alt.Y("layer:O", title="Layer")
    strips = (
        alt.Chart(pack(wide, ["layer"], arrays))
        .transform_flatten(arrays)
        .transform_calculate(positional="floor(datum[shown] / 101) / 100", symbolic="datum[shown] % 101 / 100")
        .transform_calculate(color=head_color_expression("datum.positional", "datum.symbolic"))
        .mark_rect()
        .encode(
            x=alt.X("evaluation:O", title=f"{STEP} (evaluations, denser early)").axis(
                labelExpr=f"({{{labels}}})[datum.value]",
                labelOverlap=True,
                labelSeparation=8,
                labelAngle=0,
                ticks=False,
            ),
            y=layers,
            color=alt.Color("color:N", scale=None),
            tooltip=[
                "layer:O",
                "step:Q",
                alt.Tooltip("positional:Q", format=".2f"),
                alt.Tooltip("symbolic:Q", format=".2f"),
            ],
        )
    )
    ends = (
        alt.Chart(last.pivot(index=["layer", "evaluation"], columns="choice", values="letter").reset_index())
        .transform_calculate(letter="datum[shown]")
        .mark_text(fontWeight="bold", color="white", align="center")
        .encode(x="evaluation:O", y=layers, text="letter:N")
    )
    seeds = sorted(table["seed"].unique())
    return (
        (strips + ends)
        .add_params(choice_of_seeds(seeds))
        .properties(
            title=alt.Title(
                dynamic_title("shown", titles),
                subtitle="Blue positional, vermillion symbolic, grey both (near uniform), white neither; P, S: "
                "pure at γ = 0.1",
            ),
            description=f"Heat map, {task} task: the kind of every layer's head over training, and a menu of seeds. "
            f"{titles['median']}.",
            height=20 * table["layer"].nunique(),
        )
    )


def labels_of_neighbours(plane: pd.DataFrame) -> pd.Series:
    """Return one label for each group of heads that lie together at a step: their layers; "" for the group's others.

    Args:
        plane: task, step, layer, positional, symbolic.

    >>> heads = {"task": "letter", "step": 0, "layer": [0, 1, 2, 5], "positional": [0, 0, 0, 1], "symbolic": 0.5}
    >>> labels_of_neighbours(pd.DataFrame(heads)).tolist()
    ['0–2', '', '', '5']
    """
    labels = pd.Series("", index=plane.index)
    for _, heads in plane.groupby(["task", "step"]):
        left = heads.sort_values("layer")
        while len(left):
            first = left.iloc[0]
            apart = (
                (left[["positional", "symbolic"]] - first[["positional", "symbolic"]].astype(float)).pow(2).sum(axis=1)
            )
            labels[left.index[0]] = runs(left["layer"][apart <= NEAR**2].tolist())
            left = left[apart > NEAR**2]
    return labels


def runs(numbers: list[int]) -> str:
    """Return ascending whole numbers in words, runs as a range.

    >>> runs([0, 2, 3, 4, 7])
    '0, 2–4, 7'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def heads_in_plane(scores: pd.DataFrame, columns: int = 45) -> alt.LayerChart:
    """Return the heads in the plane of their two scores, median over seeds; a slider scrubs through training.

    A menu picks the task. The size of a mark is the entropy of the head's attention in nats. The shaded corners
    are where a head is pure at γ = 0.1.
    """
    tasks = [task for task in TASKS if task in set(scores["task"])]
    entropy = over_seeds(scores, ["task", "layer", "step"], "entropy")
    plane = median_plane(scores).merge(
        entropy.rename(columns={"median": "entropy"})[["task", "layer", "step", "entropy"]],
        on=["task", "layer", "step"],
    )
    steps = thin(sorted(plane["step"].unique()), columns)
    plane = plane[plane["step"].isin(steps)].copy()
    plane["evaluation"] = plane["step"].map({step: index for index, step in enumerate(steps)})
    plane["color"] = [head_color(p, s) for p, s in zip(plane["positional"], plane["symbolic"], strict=True)]
    plane["layers"] = labels_of_neighbours(plane)
    arrays = ["evaluation", "step", "positional", "symbolic", "entropy", "color", "layers"]
    packed = pack(plane, ["task", "layer"], arrays)
    at = slider_over("evaluation", [f"{step:,}" for step in steps], len(steps) - 1, STEP)
    task = alt.param(name="task", value=tasks[0], bind=alt.binding_radio(options=tasks, name="Task "))
    gamma = 0.1
    plane["left"] = plane[["positional", "symbolic"]].min(axis=1) < 1 - gamma
    titles = {
        f"{name}, {number}": f"{name.capitalize()} task, step {steps[number]:,}: {heads['left'].sum()} of {len(heads)} "
        "heads have left the corner where both scores are high"
        for (name, number), heads in plane.groupby(["task", "evaluation"])
    }
    corners = pd.DataFrame(
        [
            {"x": 1 - gamma, "x2": 1, "y": 0, "y2": gamma, "kind": "positional"},
            {"x": 0, "x2": gamma, "y": 1 - gamma, "y2": 1, "kind": "symbolic"},
        ]
    )
    corner = (
        alt.Chart(corners)
        .mark_rect(opacity=0.25)
        .encode(
            x=alt.X("x:Q", title="Positional score").scale(domain=[0, 1]),
            x2="x2:Q",
            y=alt.Y("y:Q", title="Symbolic score").scale(domain=[0, 1]),
            y2="y2:Q",
            color=kind_color().legend(None),
        )
    )
    base = alt.Chart(packed).transform_filter("datum.task == task").transform_flatten(arrays)
    place = {"x": "positional:Q", "y": "symbolic:Q"}
    trail = (
        base.transform_filter("datum.evaluation <= evaluation")
        .mark_line(color=NEUTRAL, strokeWidth=1, opacity=0.35)
        .encode(**place, detail="layer:N", order="evaluation:Q")
    )
    now = base.transform_filter("datum.evaluation == evaluation")
    dots = now.mark_point(filled=True, opacity=0.85, stroke=INK, strokeWidth=1).encode(
        **place,
        fill=alt.Fill("color:N", scale=None),
        size=alt.Size("entropy:Q", title="Entropy of attention (nats)")
        .scale(domain=[0, round(float(plane["entropy"].max()), 1)], range=[50, 400])
        .legend(tickCount=3, orient="bottom"),
        tooltip=["layer:O", "step:Q", *(alt.Tooltip(f"{name}:Q", format=".2f") for name in arrays[2:5])],
    )
    right = "datum.positional > 0.5"  # labels lean into the plane, so that none is cut at its edge
    names = now.mark_text(
        fontSize=11,
        fontWeight="bold",
        dy=-13,
        dx=alt.expr(f"{right} ? -8 : 8"),
        align=alt.expr(f"{right} ? 'right' : 'left'"),
    ).encode(**place, text="layers:N")
    clock = (
        now.transform_aggregate(step="max(step)")
        .mark_text(align="left", fontSize=13)
        .encode(x=alt.datum(0.02), y=alt.datum(0.04), text=alt.Text("label:N"))
        .transform_calculate(label="'step ' + format(datum.step, ',')")
    )
    return (
        (corner + trail + dots + names + clock)
        .add_params(*at, task, plays("evaluation"))
        .properties(
            title=alt.Title(
                dynamic_title("task + ', ' + evaluation", titles),
                subtitle="Number: layer; median over seeds; “left”: a score below 0.9; shaded corners: pure at γ = 0.1",
            ),
            description="Scatter plot with a slider over training: each layer's head by positional score (across) and "
            "symbolic score (up), with its path so far. The corners of pure heads are shaded.",
            height=420,
        )
    )


def entropy_by_layer(scores: pd.DataFrame, task: str, columns: int = 40) -> alt.Chart:
    """Return the attention entropy of every layer over training, in nats: median over seeds, or a single seed.

    A menu picks which; tooltips have the range over seeds too. Evaluations are thinned evenly to at most ``columns``.
    """
    table = scores[scores["task"] == task]
    steps = sorted(table["step"].unique())
    table = table[table["step"].isin(thin(steps, columns))]
    every = wide_seeds(table, ["entropy"])
    titles = {}
    for choice, rows in every.groupby("choice"):
        first, last = (rows.loc[rows["step"] == edge(rows["step"]), "entropy"].mean() for edge in (min, max))
        of = "" if choice == "median" else f" of seed {choice.removeprefix('seed')}"
        titles[choice] = f"{task.capitalize()} task: mean entropy{of} goes from {first:.2f} to {last:.2f} nats"
    wide = every.pivot(index=["layer", "step"], columns="choice", values="entropy").round(2).reset_index()
    spread = table.groupby(["layer", "step"], as_index=False)["entropy"].agg(low="min", high="max").round(2)
    arrays = ["step", "low", "high", *titles]
    return (
        alt.Chart(pack(wide.merge(spread, on=["layer", "step"]), ["layer"], arrays))
        .transform_flatten(arrays)
        .transform_calculate(entropy="datum[shown]")
        .mark_line(strokeWidth=1.75)
        .encode(
            x=alt.X("step:Q", title=STEP),
            y=alt.Y("entropy:Q", title="Entropy (nats)").scale(zero=True),
            color=alt.Color("layer:O", title="Layer").scale(scheme=LAYERS),
            tooltip=[
                "layer:O",
                "step:Q",
                alt.Tooltip("entropy:Q", format=".2f"),
                alt.Tooltip("low:Q", format=".2f", title="lowest seed"),
                alt.Tooltip("high:Q", format=".2f", title="highest seed"),
            ],
        )
        .add_params(choice_of_seeds(sorted(table["seed"].unique())))
        .properties(
            title=alt.Title(
                dynamic_title("shown", titles),
                subtitle="One line per layer; uniform attention over n keys has ln n",
            ),
            description=f"Line chart, {task} task: attention entropy over training, one line for each layer; a menu "
            f"of seeds. {titles['median']}.",
            height=240,
        )
    )


def pure_head_counts(counts: pd.DataFrame) -> alt.HConcatChart:
    """Return how many heads end pure, by task, γ and kind: mean, range over seeds, and the paper's reading.

    Args:
        counts: of `possym.experiments.learning_dynamics.summaries.pure_counts`.
    """
    data = over_seeds(counts, ["task", "gamma", "kind"], "heads")
    paper = []
    for row in data.itertuples():
        figure = "fig7" if row.gamma == 0.05 and row.task == "number" else "fig2"
        known = row.gamma == 0.1 or figure == "fig7"
        paper.append(published(f"P2.{figure}.{row.task}.pure_{row.kind}").value if known else None)
    data["paper"] = paper
    data["reading"] = ["none" if value is None else str(value) for value in paper]
    data["row"] = [f"{row.task}, γ = {row.gamma:g}, {row.kind}" for row in data.itertuples()]
    order = [
        f"{task}, γ = {gamma:g}, {kind}"
        for task in TASKS
        for gamma in sorted(data["gamma"].unique(), reverse=True)
        for kind in ("positional", "symbolic")
    ]
    rows = alt.Y("row:N", title=None, sort=order)
    base = alt.Chart(data).encode(y=rows.axis(labels=False))
    kinds = kind_color()
    spread = base.mark_rule(strokeWidth=6, opacity=0.35).encode(
        x=alt.X("low:Q", title="Pure heads at the end of training").scale(zero=True), x2="high:Q", color=kinds
    )
    mean = base.mark_point(filled=True, size=90).encode(
        x="mean:Q",
        color=kinds,
        tooltip=[
            "row:N",
            alt.Tooltip("mean:Q", format=".1f"),
            "low:Q",
            "high:Q",
            alt.Tooltip("reading:N", title="paper"),
        ],
    )
    theirs = (
        alt.Chart(data)
        .mark_point(filled=True, size=90)
        .encode(
            y=rows.axis(labelLimit=260),
            x=alt.X("paper:Q", title="Pure heads at the end of training").scale(zero=True),
            color=kinds,
            tooltip=["row:N", "paper:Q"],
        )
    )
    means = "; ".join(f"{row.row} {row.mean:.1f}" for row in data.itertuples())
    height = 26 * len(data)
    return paper_and_here(
        theirs.properties(width=230, height=height),
        (spread + mean).properties(width=230, height=height),
        "Fig. 2 and 7",
    ).properties(
        title=alt.Title(
            "The number of heads that end pure, in the paper and here",
            subtitle=f"Here: dot is the mean of {int(data['seeds'].max())} seeds; bar: smallest to largest seed",
        ),
        description=f"Dot plots of pure heads by task, γ and kind, the paper's and ours. Means here: {means}.",
    )


def median_plane(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the median over seeds of both scores (task, layer, step, positional, symbolic)."""
    by = ["task", "layer", "step"]
    return scores.groupby(by, as_index=False)[["positional", "symbolic"]].median()


def describe_learned(accuracy: pd.DataFrame, task: str, seed: str = "") -> str:
    """Return which hop counts a task learns first and last, in words, from every evaluation.

    Args:
        accuracy: of all seeds, or of one alone, which ``seed`` then names.
        task: ``"number"`` or ``"letter"``.
        seed: what follows the task's name.
    """
    steps = learnt_medians(accuracy).set_index("hops")["median"]
    name, step = f"{task.capitalize()} task{seed}", "step" if seed else "median step"
    learnt, never = steps.dropna(), steps.index[steps.isna()].tolist()
    if learnt.empty:
        return f"{name}: no hop count reaches 90 %" + ("" if seed else " in most seeds")
    first, last = learnt.min(), learnt.max()
    if not never and first == last:
        every = "all hop counts reach" if len(steps) > 1 else f"{hop_words(steps.index[0])} reaches"
        return f"{name}: {every} 90 % at {step} {first:,.0f}"
    said = f"{name}: {hops_at(learnt, first)} first to reach 90 %, at {step} {first:,.0f}"
    if never:
        return f"{said}; with {hop_list(never)} {'it never does' if seed else 'most seeds never do'}"
    return f"{said}; {hops_at(learnt, last)} last, at {last:,.0f}"


def hops_at(steps: pd.Series, step: float) -> str:
    """Return the hop counts of a step as a subject with its verb.

    >>> hops_at(pd.Series({1: 50.0, 2: 50.0, 3: 70.0}), 50), hops_at(pd.Series({1: 50.0}), 50)
    ('1 and 2 hops are', '1 hop is')
    """
    hops = steps.index[steps == step].tolist()
    return f"{hop_list(hops)} {'is' if hops == [1] else 'are'}"


def hop_list(hops: list[int]) -> str:
    """Return hop counts in words.

    >>> hop_list([1]), hop_list([1, 2, 3])
    ('1 hop', '1, 2 and 3 hops')
    """
    *others, last = hops
    return f"{', '.join(map(str, others))} and {hop_words(last)}" if others else hop_words(last)


def hop_words(hops: float) -> str:
    """Return 1 → "1 hop", 2 → "2 hops"."""
    return f"{int(hops)} hop{'s' if hops != 1 else ''}"


def pack(data: pd.DataFrame, by: list[str], columns: list[str]) -> pd.DataFrame:
    """Return one row for each group of ``by`` with lists in ``columns``: what `transform_flatten` unpacks in the page.

    >>> pack(pd.DataFrame({"layer": [0, 0], "step": [0, 5]}), ["layer"], ["step"])["step"].tolist()
    [[0, 5]]
    """
    ordered = data.sort_values([*by, "step"]).round(4)
    return ordered.groupby(by)[columns].agg(lambda values: values.tolist()).reset_index()


def thin(steps: list[int], most: int) -> list[int]:
    """Return at most ``most`` of ``steps``, evenly, first and last kept.

    >>> thin([0, 10, 20, 30, 40], 3)
    [0, 20, 40]
    """
    if len(steps) <= most:
        return steps
    return [steps[round(index * (len(steps) - 1) / (most - 1))] for index in range(most)]
