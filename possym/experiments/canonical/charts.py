"""Charts of the canonical sweep. Tables in are those of `possym.experiments.canonical`.

Lines are means over seeds, bands and bars 95 % intervals over seeds. On every axis of angles the fastest is first
and NoPE last.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from possym.charts import CATEGORIES, NEUTRAL, POSITIONAL, SYMBOLIC, alt, dynamic_title, slider_over
from possym.charts.typography import typeset
from possym.experiments.canonical import TASK_NAMES, TASKS, angle
from possym.experiments.canonical import summaries as sweep
from possym.experiments.canonical.one_angle_limits import smallest_turn

ANGLES = "Frequency ID (1 is the fastest)"
TASK_COLORS = dict(zip(TASKS, (CATEGORIES[0], CATEGORIES[1], CATEGORIES[2]), strict=True))
MAPS = {"one-angle": "learnt maps", "fixed-maps": "fixed maps"}
DASHES = ([1, 0], [6, 3], [2, 2])
SHADES = ("#7e57a8", "#5470b5", "#2a8e9e", "#22a884", "#7ad151", "#d2e21b")  # from few planes to many
SHAPE_COLORS = {"U": CATEGORIES[0], "inverse U": CATEGORIES[1], "flat": NEUTRAL}


def angle_name(frequency_id: int) -> str:
    """Return a frequency ID as an axis shows it.

    >>> angle_name(7), angle_name(0)
    ('7', 'NoPE')
    """
    return str(frequency_id) if frequency_id else "NoPE"


def named(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the table with tasks by name and columns ``head`` (the angle's name) and ``angle``, and all names.

    Names of angles run from fast to NoPE.
    """
    ids = sorted((int(i) for i in table["first_id"].unique()), key=sweep.slowness)
    if "task" in table:
        table = table.assign(task=table["task"].map(TASK_NAMES))
    return table.assign(
        head=[angle_name(i) for i in table["first_id"]], angle=[angle(int(i)) for i in table["first_id"]]
    ), [angle_name(i) for i in ids]


def planes_words(planes: int) -> str:
    """Return a number of planes in words.

    >>> planes_words(1), planes_words(16)
    ('one plane', '16 planes')
    """
    return "one plane" if planes == 1 else f"{planes} planes"


def menu(name: str, options: Sequence[str], label: str) -> alt.Parameter:
    """Return a menu that the reader picks one of ``options`` from, the last at first."""
    return alt.param(name=name, value=options[-1], bind=alt.binding_select(options=list(options), name=f"{label} "))


def legend() -> alt.Legend:
    """Return a legend without title in full strength, though bands behind the lines are pale."""
    return alt.Legend(title=None, symbolOpacity=1)


def percent(title: str = "Accuracy") -> alt.Axis:
    """Return an axis in per cent."""
    return alt.Axis(format="%", title=title)


def accuracy_by_angle(accuracy: pd.DataFrame) -> alt.LayerChart:
    """Return final accuracy by angle, a line for each task; menus pick the planes and the maps around the head."""
    table = accuracy[accuracy["piece"].isin(["one-angle", "fixed-maps"])]
    found = sweep.over_seeds(sweep.ends(table), ["task", "maps", "planes", "first_id"])
    found, order = named(found)
    found["count"] = [planes_words(p) for p in found["planes"]]
    found["maps"] = [f"{m} maps" for m in found["maps"]]
    counts = [planes_words(p) for p in sorted(found["planes"].unique())]
    chosen = menu("planes", counts, "Head with"), menu("maps", ["fixed maps", "learnt maps"], "and")
    base = (
        alt.Chart(found)
        .transform_filter("datum.count == planes && datum.maps == maps")
        .encode(
            x=alt.X("head:O", title=ANGLES, sort=order).axis(labelAngle=0, labelOverlap=True),
            color=alt.Color("task:N", legend=legend()).scale(
                domain=list(TASK_NAMES.values()), range=list(TASK_COLORS.values())
            ),
        )
    )
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", axis=percent()).scale(domain=[0, 1]),
        strokeDash=alt.StrokeDash("task:N", title=None).scale(domain=list(TASK_NAMES.values()), range=DASHES),
        tooltip=["task:N", "head:N", alt.Tooltip("angle:Q", format=".3g"), alt.Tooltip("mean:Q", format=".1%")],
    )
    titles = {
        f"{planes_words(planes)}, {MAPS[piece]}": learnt_title(part, int(planes), piece)
        for (planes, piece), part in table.groupby(["planes", "piece"])
    }
    return (
        (base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q"), y2="high:Q") + line)
        .add_params(*chosen)
        .properties(
            title=alt.Title(
                dynamic_title("planes + ', ' + maps", titles),
                subtitle="Accuracy at the end of training, mean and 95 % interval over seeds",
            ),
            description="Line chart with two menus: final accuracy of Index, Retrieval and Partial induction by the "
            f"frequency ID of the head's one angle. {'. '.join(titles.values())}.",
            height=300,
        )
    )


def learnt_title(accuracy: pd.DataFrame, planes: int, piece: str) -> str:
    """Return with which angles each task is learnt by heads of so many planes, in words."""
    learnt = [sweep.learnt_words(accuracy, task=task) for task in TASKS]
    words = "; ".join(f"{task} with {ids}" for task, ids in zip(TASK_NAMES.values(), learnt, strict=True))
    return f"Learnt to {sweep.LEARNT:.0%} with {planes_words(planes)} and {MAPS[piece]}: {words}"


def accuracy_by_position(by_place: pd.DataFrame, task: str, planes: int) -> alt.LayerChart:
    """Return accuracy by the answer's position for one angle, which a slider picks among the sweep's."""
    wanted = {"piece": "one-angle", "task": task, "planes": planes}
    table = sweep.heads(by_place, **wanted)
    found, order = named(sweep.over_seeds(table, ["first_id", "place"]))
    found["rank"] = [order.index(name) for name in found["head"]]
    tested = sweep.shapes(by_place, **wanted)
    tested["rank"] = range(len(tested))
    wrong = sweep.mismatched(by_place, **wanted)
    strongest = 0
    if len(wrong):
        first_id = int(wrong.loc[wrong["bend"].abs().idxmax(), "first_id"])
        strongest = order.index(angle_name(first_id))
    tested["words"] = [
        typeset(
            f"{'NoPE' if row.first_id == 0 else f'ID {row.first_id}'}: {row.shape}, bend {row.bend:+.2f}\n"
            f"({row.low:+.2f} to {row.high:+.2f}), p = {row.p_value:.3f}"
        )
        for row in tested.itertuples()
    ]
    base = (
        alt.Chart(found)
        .transform_filter("datum.rank == rank")
        .encode(x=alt.X("place:Q", title="Position of the answer"))
    )
    band = base.mark_area(opacity=0.2, color=TASK_COLORS[task]).encode(y=alt.Y("low:Q"), y2="high:Q")
    line = base.mark_line(point={"color": TASK_COLORS[task]}, color=TASK_COLORS[task]).encode(
        y=alt.Y("mean:Q", axis=percent()).scale(domain=[0, 1]), tooltip=["place:Q", alt.Tooltip("mean:Q", format=".1%")]
    )
    words = (
        alt.Chart(tested)
        .transform_filter("datum.rank == rank")
        .mark_text(align="left", lineBreak="\n")  # two lines, since one would be cut on a narrow page
        .encode(text="words:N", x=alt.value(0), y=alt.value(-26))
    )
    title = (
        f"{TASK_NAMES[task]}, {planes_words(planes)}: {shape_words(wrong, 'U')}, {shape_words(wrong, 'inverse U')} "
        f"of the {len(wrong)} mismatched angles"
    )
    return (
        (band + line + words)
        .add_params(*slider_over("rank", order, strongest, ANGLES.partition(" (")[0]))
        .properties(
            title=alt.Title(
                title, subtitle="The slider runs from the fastest angle to NoPE; mean and 95 % interval over seeds"
            ),
            description=f"Line chart with a slider: accuracy by the position of the answer. {title}.",
            height=240,
        )
    )


def shape_words(wrong: pd.DataFrame, shape: str) -> str:
    """Return how many of the tested curves have a shape, in words."""
    return f"{shape} at {int((wrong['shape'] == shape).sum())}"


def bend_by_angle(by_place: pd.DataFrame, planes: int) -> alt.FacetChart:
    """Return the bend of accuracy over the answer's position by angle, with its interval over seeds, for every task."""
    parts = []
    for task in TASKS:
        wanted = {"piece": "one-angle", "task": task, "planes": planes}
        wrong = set(sweep.mismatched(by_place, **wanted)["first_id"])
        found = sweep.shapes(by_place, **wanted).assign(task=task)
        parts.append(found.assign(mismatched=found["first_id"].isin(wrong)))
    found, order = named(pd.concat(parts, ignore_index=True))
    found["angle suits"] = np.where(found["mismatched"], "mismatched", "not tested")
    base = alt.Chart(found).encode(
        x=alt.X("head:O", title=ANGLES, sort=order).axis(labelAngle=0, labelOverlap=True),
        color=alt.Color("shape:N", title=None).scale(domain=list(SHAPE_COLORS), range=list(SHAPE_COLORS.values())),
    )
    rule = base.mark_rule(opacity=0.9).encode(y=alt.Y("low:Q", title="Bend"), y2="high:Q")
    point = base.mark_point(filled=True).encode(
        y="bend:Q",
        shape=alt.Shape("angle suits:N", title=None).scale(
            domain=["mismatched", "not tested"], range=["circle", "cross"]
        ),
        tooltip=[
            "task:N",
            "head:N",
            "shape:N",
            alt.Tooltip("bend:Q", format=".3f"),
            alt.Tooltip("p_value:Q", format=".3f"),
        ],
    )
    wrong = found[found["mismatched"]]
    counts = [
        f"{task} {shape_words(wrong[wrong['task'] == task], shape)} of {int((wrong['task'] == task).sum())}"
        for task, shape in zip(TASK_NAMES.values(), ("U", "inverse U", "inverse U"), strict=True)
    ]
    title = f"Mismatched angles, {planes_words(planes)}: {', '.join(counts)}"
    return (
        (rule + point)
        .properties(height=130, width=470)
        .facet(row=alt.Row("task:N", title=None, sort=list(TASK_NAMES.values())))
        .properties(
            title=alt.Title(title, subtitle="Bend of accuracy over the answer's place: up is U, down is inverse U"),
            description=f"Dot plots by task: bend of accuracy over the position of the answer, by angle. {title}.",
        )
    )


def scores_by_angle(scores: pd.DataFrame, planes: int, temperature: float) -> alt.FacetChart:
    """Return positional and symbolic score of the trained heads by angle, for every task."""
    table = sweep.heads(scores, piece="one-angle", planes=planes, temperature=temperature)
    long = table.melt(["task", "first_id", "seed"], ["positional", "symbolic"], "kind", "score")
    found, order = named(sweep.over_seeds(long, ["task", "kind", "first_id"], "score"))
    base = alt.Chart(found).encode(
        x=alt.X("head:O", title=ANGLES, sort=order).axis(labelAngle=0, labelOverlap=True),
        color=alt.Color("kind:N", legend=legend()).scale(
            domain=["positional", "symbolic"], range=[POSITIONAL, SYMBOLIC]
        ),
    )
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", title="Score").scale(domain=[0, 1]),
        strokeDash=alt.StrokeDash("kind:N", title=None).scale(domain=["positional", "symbolic"], range=DASHES[:2]),
        tooltip=["task:N", "kind:N", "head:N", alt.Tooltip("mean:Q", format=".3f")],
    )
    ahead = found.pivot_table(index=["task", "first_id"], columns="kind", values="mean", observed=True)
    symbolic = (ahead["symbolic"] > ahead["positional"] + 0.5).groupby("task", observed=True).sum()
    counts = ", ".join(f"{symbolic[task]} ({task})" for task in TASK_NAMES.values())
    title = f"Clearly symbolic at {counts} of {len(order)} angles"
    return (
        (base.mark_area(opacity=0.2).encode(y="low:Q", y2="high:Q") + line)
        .properties(height=130, width=470)
        .facet(row=alt.Row("task:N", title=None, sort=list(TASK_NAMES.values())))
        .properties(
            title=alt.Title(
                title,
                subtitle=f"Symbolic score more than 0.5 above positional; {planes_words(planes)}, τ = {temperature:g}",
            ),
            description=f"Line charts by task: positional and symbolic scores of the trained heads. {title}.",
        )
    )


def swapped_angles(swapped: pd.DataFrame, task: str, planes: int) -> alt.LayerChart:
    """Return accuracy with the angle replaced after training: trained angle by tested angle."""
    table = sweep.heads(swapped, task=task, planes=planes)
    found = sweep.over_seeds(table, ["first_id", "test_id"])
    found, order = named(found)
    found["tested"] = [angle_name(i) for i in found["test_id"]]
    own = found[found["first_id"] == found["test_id"]]["mean"].mean()
    others = found[found["first_id"] != found["test_id"]]["mean"].mean()
    title = f"{TASK_NAMES[task]}: {own:.0%} on average with the trained angle, {others:.0%} with another"
    base = alt.Chart(found).encode(
        x=alt.X("tested:O", title="Frequency ID at test time", sort=order).axis(labelAngle=0, labelOverlap=True),
        y=alt.Y("head:O", title="Frequency ID in training", sort=order),
    )
    return squares(base, title, f"{planes_words(planes)}; mean over seeds", 22 * len(order))


def squares(base: alt.Chart, title: str, subtitle: str, height: int) -> alt.LayerChart:
    """Return a heat map of ``mean``, accuracy, with the value written into each square."""
    color = alt.Color("mean:Q", title="Accuracy").scale(domain=[0, 1], scheme="viridis").legend(format="%")
    square = base.mark_rect().encode(color=color, tooltip=[alt.Tooltip("mean:Q", format=".1%", title="accuracy")])
    # The text stands on the square, so its colour follows the square and not the page.
    text = base.mark_text(fontSize=10).encode(
        text=alt.Text("mean:Q", format=".2f"),
        color=alt.when("datum.mean > 0.55").then(alt.value("#000000")).otherwise(alt.value("#ffffff")),
        # On a narrow page the numbers would run into each other; the tooltip still has them.
        opacity=alt.value(alt.expr("width < 400 ? 0 : 1")),
    )
    return (square + text).properties(
        title=alt.Title(title, subtitle=subtitle), description=f"Heat map. {title}. {subtitle}.", height=height
    )


def angle_pairs(accuracy: pd.DataFrame, planes: int) -> alt.LayerChart:
    """Return Partial induction with two angles: final accuracy for every pair."""
    found = sweep.over_seeds(
        sweep.ends(sweep.heads(accuracy, piece="two-angles", planes=planes)), ["first_id", "second_id"]
    )
    mirrored = found[found["first_id"] != found["second_id"]].rename(
        columns={"first_id": "second_id", "second_id": "first_id"}
    )
    both, order = named(pd.concat([found, mirrored], ignore_index=True))
    both["other"] = [angle_name(i) for i in both["second_id"]]
    learnt = int((found["mean"] >= sweep.LEARNT).sum())
    title = (
        f"Partial induction, {planes_words(planes)} per angle: {learnt} of {len(found)} pairs learn it to "
        f"{sweep.LEARNT:.0%}, the best to {found['mean'].max():.1%}"
    )
    base = alt.Chart(both).encode(
        x=alt.X("other:O", title="Frequency ID of one angle", sort=order).axis(labelAngle=0, labelOverlap=True),
        y=alt.Y("head:O", title="Frequency ID of the other", sort=order),
    )
    return squares(base, title, "Mean over seeds; the diagonal has one angle and twice the planes", 22 * len(order))


def accuracy_by_planes(accuracy: pd.DataFrame, task: str) -> alt.LayerChart:
    """Return final accuracy by angle, a line for each number of planes."""
    found, order = named(
        sweep.over_seeds(sweep.ends(sweep.heads(accuracy, piece="planes", task=task)), ["planes", "first_id"])
    )
    counts = sorted(int(p) for p in found["planes"].unique())
    best = found.groupby("planes")["mean"].max()
    title = f"{TASK_NAMES[task]} with one angle: best {best[counts[0]]:.1%} with {planes_words(counts[0])}, "
    title += f"{best[counts[-1]]:.1%} with {planes_words(counts[-1])}"
    found["size"] = [planes_words(p) for p in found["planes"]]
    names = [planes_words(p) for p in counts]
    base = alt.Chart(found).encode(
        x=alt.X("head:O", title=ANGLES, sort=order).axis(labelAngle=0, labelOverlap=True),
        color=alt.Color("size:N", legend=legend()).scale(domain=names, range=list(SHADES[: len(names)])),
        detail="size:N",
    )
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", axis=percent()).scale(domain=[0, 1]),
        tooltip=["size:N", "head:N", alt.Tooltip("mean:Q", format=".1%")],
    )
    return (base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q") + line).properties(
        title=alt.Title(title, subtitle=f"Among {len(order)} angles; mean and 95 % interval over seeds"),
        description=f"Line chart: accuracy by angle and number of planes. {title}.",
        height=280,
    )


def borders(accuracy: pd.DataFrame, planes: int) -> alt.FacetChart:
    """Return final accuracy by angle at both lengths, for every task, over angles that both lengths have."""
    table = accuracy[(accuracy["planes"] == planes) & accuracy["piece"].isin(["one-angle", "long"])]
    both = set(table.loc[table["piece"] == "long", "first_id"])
    found = sweep.over_seeds(sweep.ends(table[table["first_id"].isin(both)]), ["task", "length", "first_id"])
    found, order = named(found)
    lengths = sorted(int(n) for n in found["length"].unique())
    found["tokens"] = [f"{n} tokens" for n in found["length"]]
    names = [f"{n} tokens" for n in lengths]
    base = alt.Chart(found).encode(
        x=alt.X("head:O", title=ANGLES, sort=order).axis(labelAngle=0, labelOverlap=True),
        color=alt.Color("tokens:N", legend=legend(), sort=names).scale(
            domain=names, range=[CATEGORIES[3], CATEGORIES[4]]
        ),
    )
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", axis=percent()).scale(domain=[0, 1]),
        strokeDash=alt.StrokeDash("tokens:N", title=None, sort=names).scale(domain=names, range=DASHES[:2]),
        tooltip=["task:N", "tokens:N", "head:N", alt.Tooltip("mean:Q", format=".1%")],
    )
    at = [(n, half_way(found[found["length"] == n])) for n in lengths]
    title = "; ".join(
        f"at {n} tokens Index works up to ID {slow} and Retrieval from ID {fast} on" for n, (slow, fast) in at
    )
    title = f"{title[0].upper()}{title[1:]} ({planes_words(planes)})"
    return (
        (base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q") + line)
        .properties(height=130, width=470)
        .facet(row=alt.Row("task:N", title=None, sort=list(TASK_NAMES.values())))
        .properties(
            title=alt.Title(
                title,
                subtitle="Among the angles tried at both lengths; counted where accuracy is half-way from the worst "
                "angle's to the best one's",
            ),
            description=f"Line charts by task: accuracy by angle at two lengths. {title}.",
        )
    )


def half_way(found: pd.DataFrame) -> tuple[str, str]:
    """Return the slowest angle of Index and the fastest of Retrieval with accuracy half-way from worst to best."""
    ids = {}
    for task in TASKS[:2]:
        table = found[found["task"] == TASK_NAMES[task]]
        level = (table["mean"].min() + table["mean"].max()) / 2
        ids[task] = sorted((int(i) for i in table.loc[table["mean"] >= level, "first_id"]), key=sweep.slowness)
    return angle_name(ids["index"][-1]), angle_name(ids["retrieval"][0])


def accuracy_over_training(accuracy: pd.DataFrame, task: str, planes: int) -> alt.Chart:
    """Return accuracy by training step and angle as a heat map."""
    found, order = named(
        sweep.over_seeds(sweep.heads(accuracy, piece="one-angle", task=task, planes=planes), ["step", "first_id"])
    )
    first = found[found["mean"] >= sweep.LEARNT]["step"].min()
    title = f"{TASK_NAMES[task]}: " + (
        f"first learnt to {sweep.LEARNT:.0%} by step {first:,.0f}" if first == first else f"never at {sweep.LEARNT:.0%}"
    )
    return (
        alt.Chart(found)
        .mark_rect()
        .encode(
            x=alt.X("step:O", title="Training step").axis(labelAngle=-45, format=",d", labelOverlap=True),
            y=alt.Y("head:O", title="Frequency ID", sort=order).axis(labelOverlap=True),
            color=alt.Color("mean:Q", title="Accuracy").scale(domain=[0, 1], scheme="viridis").legend(format="%"),
            tooltip=["head:N", "step:Q", alt.Tooltip("mean:Q", format=".1%")],
        )
        .properties(
            title=alt.Title(title, subtitle=f"{planes_words(planes)}; mean over seeds"),
            description=f"Heat map: accuracy by angle and training step. {title}.",
            height=300,
        )
    )


def index_and_spacing(accuracy: pd.DataFrame, planes: int) -> alt.LayerChart:
    """Return Index's accuracy with learnt and fixed maps beside how far apart its positions stand, by angle."""
    table = sweep.heads(accuracy[accuracy["piece"].isin(MAPS)], task="index", planes=planes)
    length = int(table["length"].iloc[0])
    found, order = named(sweep.over_seeds(sweep.ends(table[table["first_id"] > 0]), ["piece", "first_id"]))
    found["line"] = [f"accuracy, {MAPS[piece]}" for piece in found["piece"]]
    spacing = found.drop_duplicates("first_id").assign(line="closest two positions ÷ even spacing")
    spacing["mean"] = [smallest_turn(a, length) / (2 * np.pi / (length - 1)) for a in spacing["angle"]]
    names = [*(f"accuracy, {words}" for words in MAPS.values()), "closest two positions ÷ even spacing"]
    widest = spacing.loc[spacing["mean"].idxmax()]
    there = found[found["head"] == widest["head"]].set_index("piece")["mean"]
    title = (
        f"Positions stand farthest apart at ID {widest['head']}; heads with learnt maps reach "
        f"{there['one-angle']:.1%} there, with fixed maps {there['fixed-maps']:.1%}"
    )
    below = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=320)
    return (
        alt.Chart(pd.concat([found, spacing]))
        .mark_line(point=True)
        .encode(
            x=alt.X("head:O", title=ANGLES, sort=order).axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("mean:Q", axis=percent("Share")).scale(domain=[0, 1]),
            color=alt.Color("line:N", legend=below).scale(
                domain=names, range=[TASK_COLORS["index"], CATEGORIES[3], NEUTRAL]
            ),
            strokeDash=alt.StrokeDash("line:N", legend=below).scale(domain=names, range=DASHES),
            tooltip=["line:N", "head:N", alt.Tooltip("angle:Q", format=".3g"), alt.Tooltip("mean:Q", format=".1%")],
        )
        .properties(
            title=alt.Title(title, subtitle=f"{length} tokens, {planes_words(planes)}; mean over seeds"),
            description=f"Line chart by frequency ID. {title}.",
            height=280,
        )
    )


def errors_and_short_keys(accuracy: pd.DataFrame, key: Tensor, ids: list[int], symbols: int) -> alt.LayerChart:
    """Return the error of one-plane Index heads by their share of symbols with a short key, one dot per head and seed.

    Args:
        accuracy: the sweep's table.
        key: (seeds, heads, V, 2) contents of the keys, the first ``symbols`` tokens the symbols.
        ids: frequency IDs of the heads.
        symbols: number of symbols.
    """
    short = sweep.short_keys(key, symbols)
    final = sweep.ends(sweep.heads(accuracy, piece="one-angle", task="index", planes=1))
    final = final[final["first_id"].isin(ids)].copy()
    first = int(final["seed"].min())
    final["short"] = [float(short[int(row.seed) - first, ids.index(int(row.first_id))]) for row in final.itertuples()]
    final["error"], final["head"] = 1 - final["accuracy"], [f"ID {i}" for i in final["first_id"]]
    names = [f"ID {i}" for i in ids]
    correlation = final[["short", "error"]].corr().iloc[0, 1]
    title = f"Index heads fail on the symbols whose key is short: correlation {correlation:.2f}"
    top = float(final[["short", "error"]].max().max()) * 1.05
    line = (
        alt.Chart(pd.DataFrame({"x": [0.0, top]})).mark_line(color=NEUTRAL, strokeDash=[4, 4]).encode(x="x:Q", y="x:Q")
    )
    points = (
        alt.Chart(final)
        .mark_point(filled=True, size=60, opacity=0.8)
        .encode(
            x=alt.X("short:Q", title="Symbols with a short key", axis=percent("Symbols with a short key")),
            y=alt.Y("error:Q", axis=percent("Wrong answers")),
            color=alt.Color("head:N", title=None, sort=names).scale(domain=names, range=list(CATEGORIES[: len(names)])),
            shape=alt.Shape("head:N", title=None, sort=names).scale(domain=names),
            tooltip=["head:N", "seed:Q", alt.Tooltip("short:Q", format=".1%"), alt.Tooltip("error:Q", format=".1%")],
        )
    )
    return (line + points).properties(
        title=alt.Title(
            title, subtitle="Short: under half the median symbol's; one dot per head and seed; dashed: error = share"
        ),
        description=f"Scatter plot of wrong answers by the share of symbols with a short key. {title}.",
        height=280,
    )


def starts_compared(accuracy: pd.DataFrame, wide: pd.DataFrame, planes: int, names: tuple[str, str]) -> alt.FacetChart:
    """Return final accuracy by angle of two runs with learnt maps, named ``names``, for every task."""
    parts = []
    for table, run in zip((accuracy, wide), names, strict=True):
        final = sweep.ends(sweep.heads(table, piece="one-angle", planes=planes))
        parts.append(sweep.over_seeds(final, ["task", "first_id"]).assign(run=run))
    found, order = named(pd.concat(parts, ignore_index=True))
    nope = found[(found["task"] == TASK_NAMES["retrieval"]) & (found["first_id"] == 0)].set_index("run")["mean"]
    title = (
        f"Retrieval without angle: {nope[names[0]]:.0%} from the {names[0]}, {nope[names[1]]:.0%} from the {names[1]}"
    )
    base = alt.Chart(found).encode(
        x=alt.X("head:O", title=ANGLES, sort=order).axis(labelAngle=0, labelOverlap=True),
        color=alt.Color("run:N", legend=legend(), sort=list(names)).scale(
            domain=list(names), range=[CATEGORIES[3], CATEGORIES[4]]
        ),
    )
    line = base.mark_line(point=True).encode(
        y=alt.Y("mean:Q", axis=percent()).scale(domain=[0, 1]),
        strokeDash=alt.StrokeDash("run:N", title=None, sort=list(names)).scale(domain=list(names), range=DASHES[:2]),
        tooltip=["task:N", "run:N", "head:N", alt.Tooltip("mean:Q", format=".1%")],
    )
    return (
        (base.mark_area(opacity=0.15).encode(y="low:Q", y2="high:Q") + line)
        .properties(height=130, width=470)
        .facet(row=alt.Row("task:N", title=None, sort=list(TASK_NAMES.values())))
        .properties(
            title=alt.Title(title, subtitle=f"{planes_words(planes)}, learnt maps; mean and 95 % interval over seeds"),
            description=f"Line charts by task: accuracy by angle of two runs. {title}.",
        )
    )


def plane_in_training(query: Tensor, key: Tensor, ids: list[int], steps: list[int], symbols: int) -> alt.Chart:
    """Return the plane of heads that learn Index: queries and keys, with a slider through training.

    Args:
        query, key: (heads, steps, V, 2) contents; the first ``symbols`` tokens are keys, the rest queries.
        ids: frequency IDs of the heads.
        steps: the training steps.
        symbols: number of symbols.
    """
    rows = []
    for head, frequency_id in enumerate(ids):
        for point, step in enumerate(steps):
            for side, table in (("key", key[head, point, :symbols]), ("query", query[head, point, symbols:])):
                scale = float(table.norm(dim=-1).max()) or 1.0
                for number, (x, y) in enumerate((table / scale).tolist()):
                    label = f"distance {number + 1}" if side == "query" else f"symbol {number + 1}"
                    rows.append((angle_name(frequency_id), point, step, side, label, x, y))
    found = pd.DataFrame(rows, columns=["head", "point", "step", "side", "token", "x", "y"])
    titles = {}
    for point, step in enumerate(steps):
        lengths = sweep.gathering(query[None, :, point], key[None, :, point], [angle(i) for i in ids], symbols)
        for frequency_id, row in zip(ids, lengths.itertuples(), strict=True):
            titles[f"{angle_name(frequency_id)}, {point}"] = (
                f"Index at ID {angle_name(frequency_id)}, step {step:,}, first seed: resultant of the keys "
                f"{row.keys:.2f}, of the queries {row.queries:.2f}, of the queries turned by their distance "
                f"{row.turned:.2f}"
            )
    slider = slider_over("point", [f"{step:,}" for step in steps], len(steps) - 1, "Training step")
    pick = menu("angle", [angle_name(i) for i in ids], "Frequency ID")
    chart = alt.Chart(found).transform_filter("datum.point == point && datum.head == angle")
    axis = alt.Axis(labels=False, ticks=False, title=None, grid=True)
    scale = alt.Scale(domain=[-1.05, 1.05])
    return (
        chart.mark_point(filled=True, opacity=0.8)
        .encode(
            x=alt.X("x:Q", axis=axis, scale=scale),
            y=alt.Y("y:Q", axis=axis, scale=scale),
            color=alt.Color("side:N", title=None).scale(domain=["query", "key"], range=[CATEGORIES[0], CATEGORIES[1]]),
            shape=alt.Shape("side:N", title=None).scale(domain=["query", "key"], range=["circle", "triangle-up"]),
            tooltip=["token:N", "step:Q"],
        )
        .add_params(*slider, pick)
        .properties(
            title=alt.Title(
                dynamic_title("angle + ', ' + point", titles),
                subtitle="1 is one direction, 0 all directions. Drawn: contents before rotation, longest at 1",
            ),
            description="Scatter plot of a head's plane with a slider through training: keys of the symbols and "
            "queries of the index tokens.",
            width=310,
            height=310,
        )
    )
