"""Charts of length generalization: accuracy by length, the right key's lead, distractors and repairs.

Tables in are those of `possym.experiments.generalization` and of `possym.experiments.generalization.summaries`. Bands
show the
smallest and the largest seed, lines the median.
"""

import math

import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, SYMBOLIC, alt, dynamic_title, paper_and_here
from possym.experiments.generalization.summaries import attending_heads, kept_leads
from possym.experiments.learning_dynamics.summaries import over_seeds
from possym.results.published import published
from possym.theory import index_bound, retrieval_bound

TICKS = [17, 50, 100, 200, 500, 1000, 2000, 5000]
TASKS = ("number", "letter")
COLORS = (CATEGORIES[0], CATEGORIES[1])
LETTERS = 8
RULES = {"number": "number task", "letter_any": "letter task, any letter off the path", "letter": "letter task"}


def length_axis(title: str = "Length (tokens)", field: str = "length") -> alt.X:
    """Return a logarithmic axis of lengths."""
    return alt.X(f"{field}:Q", title=title).scale(type="log", nice=False).axis(values=TICKS, format=",d", grid=True)


def task_color() -> alt.Color:
    """Return the colour of each task."""
    return alt.Color("task:N", title=None).scale(domain=list(TASKS), range=list(COLORS))


def accuracy_by_length(accuracy: pd.DataFrame) -> alt.HConcatChart:
    """Return accuracy by length, the paper's readings and ours side by side; a menu picks our number of hops.

    Args:
        accuracy: models of one learning rate.
    """
    data = over_seeds(accuracy, ["task", "hops", "length"], "accuracy")
    data["which"] = ["all" if hops == 0 else str(int(hops)) for hops in data["hops"]]
    menu = alt.param(
        name="hops", value="all", bind=alt.binding_select(options=list(dict.fromkeys(data["which"])), name="Hops ")
    )
    shown = data[["task", "which", "length", "median", "low", "high"]].round(4)
    base = alt.Chart(shown).transform_filter("datum.which == hops").encode(x=length_axis(), color=task_color())
    height = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="Accuracy", scale=height), y2="high:Q")
    lines = base.mark_line(point={"size": 30}).encode(
        y=alt.Y("median:Q", title="Accuracy", scale=height),
        tooltip=["task:N", "length:Q", "median:Q", "low:Q", "high:Q"],
    )
    paper = [
        {"task": task, "length": point["length"], "accuracy": point["accuracy"], "source": "2605.31558, Fig. 5B"}
        for task in TASKS
        for point in published(f"P2.fig5b.{task}").value
    ]
    theirs = (
        alt.Chart(pd.DataFrame(paper))
        .mark_line(point={"size": 30})
        .encode(
            x=length_axis(),
            y=alt.Y("accuracy:Q", title="Accuracy").scale(domain=[0, 1]),
            color=task_color(),
            tooltip=["source:N", "task:N", "length:Q", "accuracy:Q"],
        )
    )
    far = data[data["length"] == data["length"].max()]
    titles = {}
    for which, rows in far.groupby("which"):
        found = rows.set_index("task")["median"]
        words = " and ".join(f"{found[task]:.0%} ({task})" for task in TASKS if task in found)
        over = "" if which == "all" else f" with {which} hop{'s' if which != '1' else ''}"
        titles[which] = f"At {far['length'].iloc[0]:,} tokens the median model is right on {words}{over}"
    return (
        paper_and_here(
            theirs.properties(width=280, height=280),
            (band + lines).properties(width=280, height=280),
            "Fig. 5B, hops mixed",
        )
        .add_params(menu)
        .properties(
            title=alt.Title(
                dynamic_title("hops", titles),
                subtitle=f"Here: median, smallest and largest of {int(data['seeds'].max())} seeds",
            ),
            description="Line charts of accuracy by input length on a logarithmic axis, a line per task: read off "
            "the paper's figure, and measured here with a band over seeds. A menu picks the number of hops.",
        )
    )


def checkpoints_by_length(checkpoints: pd.DataFrame) -> alt.LayerChart:
    """Return accuracy by length of the best and the last checkpoint, with the paper's readings; a menu picks the task.

    Args:
        checkpoints: task, checkpoint (best, last), seed, length, accuracy.
    """
    data = over_seeds(checkpoints, ["task", "checkpoint", "length"], "accuracy").round(4)
    data["which"] = data["task"].map(RULES)
    names = [name for name in RULES.values() if name in set(data["which"])]
    menu = alt.param(name="which", value=names[-1], bind=alt.binding_select(options=names, name="Task "))
    base = alt.Chart(data).transform_filter("datum.which == which")
    color = alt.Color("checkpoint:N", title="Checkpoint").scale(domain=["last", "best"], range=[INK, CATEGORIES[2]])
    scale = alt.Scale(domain=[0, 1])
    band = base.mark_area(opacity=0.2).encode(
        x=length_axis(), y=alt.Y("low:Q", title="Accuracy", scale=scale), y2="high:Q", color=color
    )
    lines = base.mark_line(point={"size": 30}).encode(
        x=length_axis(),
        y=alt.Y("median:Q", title="Accuracy", scale=scale),
        color=color,
        tooltip=["which:N", "checkpoint:N", "length:Q", "median:Q", "low:Q", "high:Q"],
    )
    paper = pd.DataFrame(
        [
            {"which": RULES[task], "length": point["length"], "accuracy": point["accuracy"]}
            for task in RULES
            for point in published(f"P2.fig5b.{task.removesuffix('_any')}").value
        ]
    )
    diamonds = (
        alt.Chart(paper)
        .transform_filter("datum.which == which")
        .mark_point(shape="diamond", filled=False, size=110, strokeWidth=2, color=NEUTRAL)
        .encode(x="length:Q", y="accuracy:Q", tooltip=["length:Q", "accuracy:Q"])
    )
    far = data[data["length"] == data["length"].max()]
    titles = {}
    for which, rows in far.groupby("which"):
        found = rows.set_index("checkpoint")["median"]
        words = f"the median best checkpoint is right on {found['best']:.0%}, the last one on {found['last']:.0%}"
        titles[which] = f"{which[0].upper()}{which[1:]}, {rows['length'].iloc[0]:,} tokens: {words}"
    return (
        (band + lines + diamonds)
        .add_params(menu)
        .properties(
            title=alt.Title(
                dynamic_title("which", titles),
                subtitle="Median, smallest and largest seed; diamonds: read off the paper's Fig. 5B",
            ),
            description="Line chart of accuracy by input length on a logarithmic axis, a line with a band for the best "
            "and for the last checkpoint, with the paper's readings as diamonds. A menu picks the task.",
            height=300,
        )
    )


def points_by_rate(points: pd.DataFrame) -> alt.LayerChart:
    """Return the 90 % point of every model, one row per task and learning rate.

    Args:
        points: task, learning_rate, seed, point, censored, as `possym.experiments.generalization.summaries.crossings`
        gives them.
    """
    data = points.copy()
    data["row"] = [f"{task}, rate {rate:g}" for task, rate in zip(data["task"], data["learning_rate"], strict=True)]
    data["reach"] = ["at least this" if censored else "falls here" for censored in data["censored"]]
    groups = data.groupby(["task", "learning_rate"])["point"]
    widest = (groups.max() / groups.min()).max()
    rows = alt.Y("row:N", title=None, sort=list(dict.fromkeys(data["row"])))
    dots = (
        alt.Chart(data)
        .mark_point(filled=True, size=60, opacity=0.6)
        .encode(
            x=length_axis("Length where accuracy falls below 90 % (tokens)", "point"),
            y=rows,
            color=task_color(),
            shape=alt.Shape("reach:N", title=None).scale(
                domain=["falls here", "at least this"], range=["circle", "triangle-right"]
            ),
            tooltip=["row:N", "seed:O", alt.Tooltip("point:Q", format=",.0f"), "reach:N"],
        )
    )
    median = (
        alt.Chart(data)
        .mark_tick(thickness=3, size=22, color=INK)
        .encode(x=alt.X("median(point):Q").scale(type="log", nice=False), y=rows)
    )
    return (dots + median).properties(
        title=alt.Title(
            f"Seeds of one setting differ by up to a factor of {widest:.1f} in the length they reach",
            subtitle="One mark per seed; bar: median",
        ),
        description="Dot plot of the length where accuracy falls below 90 percent, one dot per seed, a row for each "
        f"task and learning rate. The largest ratio between two seeds of a row is {widest:.1f}.",
        height=34 * data["row"].nunique(),
    )


def leads_by_length(leads: pd.DataFrame, looks: pd.DataFrame, heads: pd.DataFrame) -> alt.LayerChart:
    """Return the right key's lead by length beside theorem 3.2's bound; a menu picks task and layer.

    Leads are those of heads that look somewhere at training length
    (`possym.experiments.generalization.summaries.attending_heads`): the median over
    sequences, its median over seeds and hops, and the band from the least to the greatest lead of any sequence, each a
    median over seeds too. The bound is that of the layer's median dominant angle, for Index on the number task and for
    Retrieval with eight letters on the letter task, scaled to meet the median lead at training length: the theorem's
    vectors have length one, trained ones do not. It is drawn while it says something, see `bound`. The menu starts at
    the task and layer that lose most logits.
    """
    seen = attending_heads(leads, looks)
    if seen.empty:
        words = "No head puts half of its attention on one step of the path"
        return alt.layer(
            alt.Chart(pd.DataFrame({"words": [words]})).mark_text().encode(text="words:N"),
            title=alt.Title(words, subtitle="so there is no right key to follow"),
            description=f"No chart: {words[0].lower()}{words[1:]}, so there is no right key to follow.",
        )
    data = seen.groupby(["task", "layer", "length"])[["least", "median", "most"]].median().reset_index()
    angles = heads.groupby(["task", "layer"])["angle"].median()
    bounds = [bound(row.task, row.length, angles[row.task, row.layer]) for row in data.itertuples()]
    data["bound"] = bounds
    first = data.groupby(["task", "layer"])[["median", "bound"]].transform("first")
    data["bound"] *= first["median"] / first["bound"]
    data = data.round(4)
    data["head"] = [f"{row.task}, layer {row.layer}" for row in data.itertuples()]
    change = data["median"] - first["median"]
    known = data.sort_values(["task", "layer"])["head"].unique().tolist()
    start = data.loc[change[data["length"] == data["length"].max()].idxmin(), "head"]
    head = alt.param(name="head", value=start, bind=alt.binding_select(options=known, name="Task and layer "))
    base = alt.Chart(data).transform_filter("datum.head == head")
    axis = alt.Y("median:Q", title="Lead of the right key (logits)")
    band = base.mark_area(opacity=0.2, color=CATEGORIES[3]).encode(x=length_axis(), y="least:Q", y2="most:Q")
    names = ["median lead", "bound, scaled"]
    color = alt.Color("curve:N", title=None).scale(domain=names, range=[CATEGORIES[3], NEUTRAL])
    middle = (
        base.transform_calculate(curve=f"'{names[0]}'")
        .mark_line(point={"size": 35})
        .encode(x="length:Q", y=axis, color=color, tooltip=["layer:O", "length:Q", "least:Q", "median:Q", "most:Q"])
    )
    theory = (
        base.transform_filter("isValid(datum.bound)")
        .transform_calculate(curve=f"'{names[1]}'")
        .mark_line(strokeDash=[6, 4])
        .encode(x="length:Q", y="bound:Q", color=color)
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule().encode(y="zero:Q")
    kept = kept_leads(seen).median()
    words = " and ".join(f"{kept[task]:.0%} ({task})" for task in TASKS if task in kept)
    falls = f"At {data['length'].max():,} tokens the median seed's lead is {words} of that at {data['length'].min()}"
    return (
        (band + middle + theory + zero)
        .add_params(head)
        .properties(
            title=alt.Title(
                falls, subtitle="Band: from the smallest to the largest lead of any sequence; below 0 a wrong key leads"
            ),
            description="Line chart of the right key's lead in logits by length, for the task and layer that a menu "
            f"picks, with theorem 3.2's bound scaled to meet it at the shortest length. {falls}.",
            height=300,
        )
    )


def bound(task: str, length: int, angle: float) -> float:
    """Return theorem 3.2's bound for a task's basic function: Index for number, Retrieval for letter.

    That of Retrieval, 1 − cos(ω − nθ), says nothing once nθ is beyond ω, the angle between two letters: NaN.

    >>> round(bound("number", 17, 0.866), 4), round(bound("letter", 17, 0.0027), 4), bound("letter", 300, 0.0027)
    (0.0683, 0.2612, nan)
    """
    if task == "number":
        return index_bound(int(length), angle)
    return retrieval_bound(int(length), angle, LETTERS) if length * angle <= 2 * math.pi / LETTERS else math.nan


def distractor_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Return how far a wrong key's logit stays below the right one's as the wrong key moves away.

    Args:
        table: head (a name), farther (positions), gap (logits).
    """
    names = list(dict.fromkeys(table["head"]))
    far = table[table["farther"] > 17].reset_index(drop=True)
    nearest = far.loc[far.groupby("head", sort=False)["gap"].idxmax()]
    words = "; ".join(f"{row.head}: {row.gap:.1f} at {row.farther} positions" for row in nearest.itertuples())
    lines = (
        alt.Chart(table.round(3))
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X("farther:Q", title="Positions beyond the right key"),
            y=alt.Y("gap:Q", title="Wrong key minus right key (logits)"),
            color=alt.Color("head:N", title=None).scale(domain=names, range=list(COLORS[: len(names)])),
            tooltip=["head:N", "farther:Q", "gap:Q"],
        )
    )
    zero = alt.Chart(pd.DataFrame({"zero": [0]})).mark_rule().encode(y="zero:Q")
    return (lines + zero).properties(
        title=alt.Title(
            "Where a far key looks like the right one", subtitle=f"Nearest miss beyond 17 positions, {words}"
        ),
        description=f"Line chart of a wrong key's mean logit minus the right key's, by distance. Nearest: {words}.",
        height=280,
    )


def repairs_chart(repairs: pd.DataFrame) -> alt.FacetChart:
    """Return accuracy with each repair, by heads repaired and task; a menu picks the length."""
    data = over_seeds(repairs, ["task", "repair", "heads", "length"], "accuracy").round(4)
    lengths = sorted(data["length"].unique().tolist())
    data["plain"] = data.merge(
        data[data["repair"] == "none"][["task", "length", "median"]], on=["task", "length"], suffixes=("", "_plain")
    )["median_plain"]
    names = {"all": "all heads", "symbolic": "symbolic heads", "others": "other heads"}
    data = data[data["repair"] != "none"].assign(which=lambda t: t["heads"].map(names))
    titles = {length: helps_most(data[data["length"] == length], int(length)) for length in lengths}
    at = alt.param(name="at", value=lengths[-1], bind=alt.binding_select(options=lengths, name="Length "))
    base = alt.Chart(data).transform_filter("datum.length == at")
    rows = alt.Y("repair:N", title=None)
    offset = alt.YOffset("which:N", sort=list(names.values()))
    color = alt.Color("which:N", title=None).scale(
        domain=list(names.values()), range=[CATEGORIES[2], SYMBOLIC, NEUTRAL]
    )
    x = alt.X("median:Q", title="Accuracy").scale(domain=[0, 1])
    spread = base.mark_rule(strokeWidth=4, opacity=0.3).encode(
        y=rows, yOffset=offset, x=alt.X("low:Q", title="Accuracy"), x2="high:Q", color=color
    )
    dots = base.mark_point(filled=True, size=55).encode(
        y=rows, yOffset=offset, x=x, color=color,
        tooltip=["task:N", "repair:N", "which:N", "median:Q", "low:Q", "high:Q", "plain:Q"],
    )  # fmt: skip
    plain = base.mark_rule(strokeDash=[5, 4]).encode(x="min(plain):Q")
    return (
        alt.layer(spread, dots, plain)
        .properties(height=200)
        .facet(row=alt.Row("task:N", title=None, sort=list(TASKS)))
        .add_params(at)
        .properties(
            title=alt.Title(
                dynamic_title("at", titles), subtitle="Median, smallest and largest seed; dashed: the unrepaired model"
            ),
            description="Dot plots of accuracy with each repair at test time, by the heads repaired; a menu of "
            f"lengths. {titles[lengths[-1]]}.",
        )
    )


def helps_most(repairs: pd.DataFrame, length: int) -> str:
    """Return which repair lifts the median model of each task most at a length, in words.

    Args:
        repairs: task, repair, which, median, plain; rows of that length.
    """
    found: dict[str, list[str]] = {}
    for task in [task for task in TASKS if task in set(repairs["task"])]:
        rows = repairs[repairs["task"] == task]
        best = rows.loc[rows["median"].idxmax()]
        lifted = best["median"] > best["plain"]
        what = f"{best['repair']} of {best['which']} helps most" if lifted else "nothing helps"
        change = f"{best['plain']:.0%} → {best['median']:.0%}" if lifted else f"{best['plain']:.0%}"
        found.setdefault(what, []).append(f"{task} {change}")
    return f"At {length:,} tokens " + "; ".join(f"{what} ({', '.join(said)})" for what, said in found.items())
