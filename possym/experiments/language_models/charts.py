"""Charts of the language models: heads in training, by job, by encoding, and what their kinds do beyond the length.

Tables in are those of `possym.experiments.language_models`; scores are taken by relative temperature on held-out
windows. Lines are medians over seeds, bands the range between the smallest and the largest.
"""

from collections.abc import Sequence

import pandas as pd

from possym.charts import (
    CATEGORIES,
    INK,
    KINDS,
    KNOWN_HEADS,
    NEUTRAL,
    POSITIONAL,
    SYMBOLIC,
    alt,
    click_menu,
    kind_color,
    plays,
    slider_over,
)
from possym.experiments.language_models import summaries
from possym.experiments.language_models.summaries import ENCODING_NAMES
from possym.experiments.learning_dynamics.summaries import over_seeds
from possym.profiling.charts import heads_in_plane, number, plane_axes

JOBS = {f"{name} head": KNOWN_HEADS[name] for name in ("induction", "previous-token")} | {"other": NEUTRAL}
EDITS = {
    "none": "no window",
    "symbolic windowed": "most symbolic quarter",
    "random windowed": "random quarter",
    "positional windowed": "most positional quarter",
}
WITHOUT = {
    "none": ("all heads", INK, [1, 0]),
    "symbolic quarter": ("without the most symbolic quarter", SYMBOLIC, [1, 0]),
    "as many as symbolic": ("without as many in its layers", SYMBOLIC, [4, 4]),
    "positional quarter": ("without the most positional quarter", POSITIONAL, [1, 0]),
    "as many as positional": ("without as many in these layers", POSITIONAL, [4, 4]),
}
WAYS = {
    "measured": ("measured", INK),
    "relocated": ("forecast", CATEGORIES[2]),
    "gap": ("new angles alone", POSITIONAL),
    "more keys": ("more keys alone", SYMBOLIC),
}
UPDATES = "Updates"
SHOWN = 0.02  # attention below which a square is left out


def jobs_of(heads: pd.DataFrame) -> pd.Series:
    """Return the job of each row of a table with previous_token and induction, as `JOBS` names them."""
    job = pd.Series("other", index=heads.index)
    job[heads["previous_token"] >= summaries.JOB] = "previous-token head"
    job[heads["induction"] >= summaries.JOB] = "induction head"
    return job


def with_jobs(scores: pd.DataFrame, jobs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of scores with a column ``job``: that of the head at the same update."""
    heads = scores.merge(jobs, on=[*summaries.KEYS, "step", "layer", "head"])
    return heads.assign(job=jobs_of(heads))


def job_color() -> alt.Color:
    """Return the colour encoding of jobs."""
    return alt.Color("job:N", title=None).scale(domain=list(JOBS), range=list(JOBS.values()))


def updates() -> alt.X:
    """Return the axis of updates, logarithmic from the first evaluation after the start."""
    return alt.X("step:Q", title=UPDATES).scale(type="log", nice=False).axis(values=[10, 100, 1000, 2500])


def film(scores: pd.DataFrame, jobs: pd.DataFrame, loss: pd.DataFrame) -> alt.HConcatChart:
    """Draw the heads of one model in the plane of scores beside its loss; one slider goes through its training.

    Args:
        scores, jobs, loss: rows of one model, see `possym.experiments.language_models`.
    """
    heads = with_jobs(summaries.held_out(scores), jobs)
    steps = sorted(heads["step"].unique().tolist())
    heads["at"] = heads["step"].map({step: k for k, step in enumerate(steps)})
    ends = summaries.at_end(heads)["job"].value_counts()
    curve = loss.assign(
        at=loss["step"].map({step: k for k, step in enumerate(steps)}), drawn=loss["step"].clip(lower=5)
    )
    slider, words = slider_over("at", [f"{step:,}" for step in steps], len(steps) - 1, UPDATES)
    columns = ["at", "layer", "head", "positional", "symbolic", "job", "previous_token", "induction"]
    tooltip = ["layer:O", "head:O", *map(number, columns[3:5]), "job:N", *map(number, columns[6:])]
    plane = heads_in_plane(heads[columns].round(3), tooltip).encode(color=job_color(), opacity=alt.value(0.8))
    base = alt.Chart(curve[["at", "drawn", "loss", "step"]].round(3)).encode(
        x=alt.X("drawn:Q", title=f"{UPDATES} (the start at the left edge)").scale(type="log", nice=False),
        y=alt.Y("loss:Q", title="Held-out loss, nats per token").scale(domain=[0, 10]),
    )
    here = base.transform_filter("datum.at == at")
    point = here.mark_point(size=90, color=SYMBOLIC).encode(tooltip=["step:Q", number("loss")])
    rule = alt.Chart(curve[["at", "drawn"]]).transform_filter("datum.at == at").mark_rule(strokeDash=[4, 4])
    line = base.mark_line(color=INK) + rule.encode(x="drawn:Q") + point
    counted = f"{ends.get('previous-token head', 0)} previous-token and {ends.get('induction head', 0)} induction heads"
    title = f"The {len(summaries.at_end(heads))} heads of a language model part as it learns: {counted} at the end"
    return (
        alt.hconcat(plane.transform_filter("datum.at == at"), line.properties(width=300, height=380))
        .add_params(slider, words, plays("at", 250))
        .properties(
            title=alt.Title(
                title, subtitle="One mark per head, at the update of the slider; the job is the head's at that update"
            ),
            description="Plane of positional (across) and symbolic score (up), one mark per head, beside the held-out "
            f"loss by update. {title}.",
        )
    )


def kinds_in_training(scores: pd.DataFrame, jobs: pd.DataFrame) -> alt.VConcatChart:
    """Draw how many heads of a kind, and of a job, models of one encoding have after each update."""
    kinds = summaries.counts(summaries.held_out(scores))
    doing = summaries.job_counts(jobs)
    panels = []
    for table, names in (
        (kinds, {"positional": "clearly positional", "symbolic": "clearly symbolic"}),
        (doing, {"previous_token": "previous-token head", "induction": "induction head"}),
    ):
        long = table[table["step"] > 0].melt([*summaries.KEYS, "step"], list(names), "kind", "heads")
        rows = over_seeds(long.assign(kind=long["kind"].map(names)), ["kind", "step"], "heads")
        colors = (POSITIONAL, SYMBOLIC) if table is kinds else (JOBS["previous-token head"], JOBS["induction head"])
        color = alt.Color("kind:N", title=None).scale(domain=list(names.values()), range=list(colors))
        color = color.legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3)
        base = alt.Chart(rows).encode(x=updates(), color=color)
        band = base.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", title="Heads"), y2="high:Q")
        line = base.mark_line().encode(y="median:Q", tooltip=["kind:N", "step:Q", "median:Q", "low:Q", "high:Q"])
        panels.append((band + line).properties(width=520, height=150))
    first = kinds.groupby("step")["positional"].median()
    last = int(first.iloc[-1])
    title = f"A wave of {first.max():.0f} positional heads at update {first.idxmax()}, {last} at the end"
    came = summaries.onsets(kinds, ["symbolic"]).merge(summaries.onsets(doing, ["induction"]), on=summaries.KEYS)
    if (came["symbolic"] < came["induction"]).all():
        title += "; symbolic heads come before induction heads"
    return (
        alt.vconcat(*panels)
        .resolve_scale(color="independent")
        .properties(
            title=alt.Title(title, subtitle=f"Lines: medians of {kinds['seed'].nunique()} seeds; bands: their range"),
            description=f"Two line charts over updates: heads by kind, and heads by job. {title}.",
        )
    )


def jobs_in_plane(scores: pd.DataFrame, jobs: pd.DataFrame, others: pd.DataFrame) -> alt.HConcatChart:
    """Draw the heads of all seeds in the plane of scores by their job, beside those of models that others trained.

    Args:
        scores, jobs: rows of one encoding.
        others: model, layer, head, positional, symbolic, previous_token, induction.
    """
    others = others.assign(job=jobs_of(others))
    ours = with_jobs(summaries.at_end(summaries.held_out(scores)), jobs).assign(model="trained here")
    columns = ["model", "layer", "head", "positional", "symbolic", "job"]
    order = ["trained here", *others["model"].unique()]
    both = pd.concat([ours[["seed", *columns]], others[columns]])
    panels = []
    for name in order:
        table = both[both["model"] == name].dropna(axis=1).round(3)
        told = ["layer:O", "head:O", number("positional"), number("symbolic"), "job:N"]
        marks = alt.Chart(table, width=230, height=230, title=name).mark_circle(size=40)
        panels.append(marks.encode(**plane_axes(), color=job_color(), opacity=alt.value(0.7), tooltip=told))
    found = ours.groupby("job")[["positional", "symbolic"]].median()
    found = found[found.index != "other"]
    corners = [f"{job}s {row.positional:.2f} and {row.symbolic:.2f}" for job, row in found.iterrows()]
    title = f"Where previous-token and induction heads lie: trained here, and in {' and '.join(order[1:])}"
    lead = (both["positional"] - both["symbolic"]).groupby([both["model"], both["job"]]).median().unstack()
    if (lead.reindex(columns=[*JOBS][:2]).mul([-1, 1]) > summaries.MARGIN / 2).all(axis=None):
        title = f"Known heads lie in opposite corners, in models trained here as in {' and '.join(order[1:])}"
    return alt.hconcat(*panels).properties(
        title=alt.Title(title, subtitle=f"Median positional and symbolic scores, trained here: {'; '.join(corners)}"),
        description=f"Planes of both scores, one mark per head, coloured by job. {title}.",
    )


def kinds_by_encoding(scores: pd.DataFrame) -> alt.LayerChart:
    """Draw how many heads of each kind models end with, by encoding, one mark per seed."""
    last = summaries.at_end(summaries.held_out(scores))
    heads = len(last[["layer", "head"]].drop_duplicates())
    counts = summaries.counts(last)
    counts["neither"] = heads - counts["positional"] - counts["symbolic"]
    rows = counts.melt([*summaries.KEYS, "step"], list(KINDS), "kind", "heads")
    rows["encoding"] = rows["encoding"].map(ENCODING_NAMES)
    names = list(ENCODING_NAMES.values())
    base = alt.Chart(rows[["encoding", "seed", "kind", "heads"]]).encode(
        y=alt.Y("encoding:N", title=None, sort=names).axis(labelLimit=170),
        yOffset=alt.YOffset("kind:N", sort=list(KINDS)),
        color=kind_color().legend(symbolOpacity=1),
    )
    bars = base.mark_bar(opacity=0.35).encode(x=alt.X("median(heads):Q", title=f"Heads of {heads}"))
    dots = base.mark_point(filled=True, size=35).encode(
        x="heads:Q", tooltip=["encoding:N", "seed:O", "kind:N", "heads:Q"]
    )
    medians = rows.groupby(["encoding", "kind"])["heads"].median()
    told = [f"{medians[name, 'symbolic']:.0f} with {name}" for name in names if (name, "symbolic") in medians]
    title = f"Symbolic heads: {', '.join(told)}"
    if {"fast_half_still", "slow_half_still"} <= set(counts["encoding"]):
        fast, slow = (medians[ENCODING_NAMES[name], "symbolic"] for name in ("fast_half_still", "slow_half_still"))
        title = f"Fast planes stopped: {fast:.0f} symbolic heads; slow planes stopped: {slow:.0f}"
        if "rope" in set(counts["encoding"]):
            title += f"; all turning: {medians[ENCODING_NAMES['rope'], 'symbolic']:.0f}"
    return (bars + dots).properties(
        title=alt.Title(
            title, subtitle="Bars: medians over seeds; marks: seeds; NoPE heads are symbolic by definition"
        ),
        description=f"Bars: heads by encoding and kind. {title}.",
        height=260,
    )


def loss_by_length(length: pd.DataFrame, trained: int) -> alt.FacetChart:
    """Draw the held-out loss by position up to 8 times the trained length, by encoding and by which heads are windowed.

    Args:
        length: encoding, width, corpus, seed, edit, position, loss.
        trained: tokens of a training window.
    """
    rows = length[length["edit"].isin(list(EDITS))]
    far = summaries.far_loss(rows, trained).groupby(["encoding", "edit"])["loss"].median()["rope"]
    rows = over_seeds(rows, ["encoding", "edit", "position"], "loss")
    rows["times"] = (rows["position"] + 1) / trained
    rows = rows.assign(encoding=rows["encoding"].map(ENCODING_NAMES), edit=rows["edit"].map(EDITS))
    colors = [INK, SYMBOLIC, NEUTRAL, POSITIONAL]
    color = alt.Color("edit:N", title="Window on").scale(domain=list(EDITS.values()), range=colors)
    times = alt.X("times:Q", title="Position, in trained lengths").scale(domain=[0, 8])
    change = "falls" if far["positional windowed"] < far["none"] else "rises"
    title = (
        f"Window the most positional quarter of the heads, and RoPE's loss far out {change} from {far['none']:.2f} to "
        f"{far['positional windowed']:.2f}"
    )
    return losses_by_encoding(rows, "edit", times, color, height=190).properties(
        title=alt.Title(
            title,
            subtitle=[
                "Window: the first token and the latest ones, as many as the trained length. Far out: from 4 times",
                f"the trained length; a window on the most symbolic quarter leaves {far['symbolic windowed']:.2f}",
            ],
        ),
        description=f"Line charts of loss by position, one panel per encoding, one line per edit. {title}.",
    )


def planes_by_frequency(planes: pd.DataFrame) -> alt.LayerChart:
    """Draw the median lead of planes with large logits by frequency ID, over seeds of one encoding."""
    last = summaries.at_end(planes).assign(lead=lambda table: table["positional"] - table["symbolic"])
    large = last[last["norm"] > last.groupby(summaries.HEAD)["norm"].transform("median")]
    rows = over_seeds(
        large.groupby(["seed", "frequency_id"], as_index=False)["lead"].median(), ["frequency_id"], "lead"
    )
    zero = alt.Chart(pd.DataFrame({"lead": [0]})).mark_rule(strokeDash=[4, 4]).encode(y="lead:Q")
    base = alt.Chart(rows).encode(x=alt.X("frequency_id:Q", title="Frequency ID (fastest first)"))
    band = base.mark_area(opacity=0.2, color=POSITIONAL).encode(
        y=alt.Y("low:Q", title="Positional − symbolic").scale(domain=[-1, 1]), y2="high:Q"
    )
    line = base.mark_line(color=POSITIONAL).encode(y="median:Q", tooltip=["frequency_id:O", number("median", ".2f")])
    crossing = rows.loc[rows["median"] < 0, "frequency_id"].min()
    title = f"The first plane that is more symbolic than positional is that of frequency ID {crossing:.0f}"
    return (zero + band + line).properties(
        title=alt.Title(title, subtitle="Medians over heads, of planes whose logits are large; band: range over seeds"),
        description=f"Line chart of positional − symbolic by frequency ID. {title}.",
        height=230,
    )


def recall_by_distance(recall: pd.DataFrame) -> alt.LayerChart:
    """Draw how often a pair of random tokens is told again, by how far back it stands, one line per encoding."""
    rows = over_seeds(recall, ["encoding", "distance"], "accuracy")
    rows["encoding"] = rows["encoding"].map(ENCODING_NAMES)
    color = alt.Color("encoding:N", title=None).scale(
        domain=list(ENCODING_NAMES.values()), range=[INK, *CATEGORIES[:4]]
    )
    best = rows.loc[rows["median"].idxmax()]
    title = f"A pair is recalled in at most {best['median']:.1%} of windows, best {best['distance']:.0f} tokens back"
    return (
        alt.Chart(rows)
        .mark_line(point={"size": 25})
        .encode(
            x=alt.X("distance:Q", title="Tokens back"),
            y=alt.Y("median:Q", title="Recall").axis(format="%"),
            color=color.legend(columns=2),
            tooltip=["encoding:N", "distance:Q", alt.Tooltip("median:Q", format=".1%")],
        )
        .properties(
            title=alt.Title(title, subtitle="Medians over seeds; the pair's second token has to be the likeliest"),
            description=f"Line chart of recall by distance. {title}.",
            height=230,
        )
    )


def heads_that_carry_recall(without: pd.DataFrame, scores: pd.DataFrame, jobs: pd.DataFrame) -> alt.HConcatChart:
    """Draw what share of recall single heads carry, by kind, beside the recall left without groups, by distance.

    Args:
        without: rows of one encoding of the table ``without_heads``.
        scores, jobs: rows of the same models.
    """
    lost = summaries.recall_lost(without)
    heads = summaries.with_jobs(summaries.recall_carriers(lost, summaries.held_out(scores)), jobs)
    heads["job"] = jobs_of(heads)
    carriers = heads[heads["carrier"]]
    level = alt.Chart(pd.DataFrame({"share": [summaries.CARRIES]})).mark_rule(strokeDash=[4, 4]).encode(y="share:Q")
    marks = (
        alt.Chart(heads[["seed", "layer", "head", "lead", "share", "job"]].round(3))
        .mark_circle(size=40, opacity=0.7)
        .encode(
            x=alt.X("lead:Q", title="Positional − symbolic").scale(domain=[-1, 1]),
            y=alt.Y("share:Q", title="Share of recall that it carries").axis(format="%"),
            color=job_color().legend(orient="bottom", columns=1),
            tooltip=["seed:O", "layer:O", "head:O", number("lead"), alt.Tooltip("share:Q", format=".0%"), "job:N"],
        )
    )
    none = without[without["group"] == "none"]
    left = lost.assign(left=lost["saved"] - lost["lost"])
    left = pd.concat([left, none.assign(left=none["absent"] - none["planted"])])
    left = left[left["group"].isin(list(WITHOUT))].groupby(["seed", "group", "distance"], as_index=False)["left"].mean()
    rows = over_seeds(left, ["group", "distance"], "left")
    rows["heads"] = [WITHOUT[group][0] for group in rows["group"]]
    names, colors, dashes = (list(values) for values in zip(*WITHOUT.values(), strict=True))
    base = alt.Chart(rows[["heads", "distance", "median", "low", "high"]].round(3)).encode(
        x=alt.X("distance:Q", title="Tokens back")
        .scale(type="log", base=2, nice=False)
        .axis(values=sorted(rows["distance"].unique().tolist())),
        color=alt.Color("heads:N", title=None)
        .scale(domain=names, range=colors)
        .legend(orient="bottom", columns=1, labelLimit=260, symbolType="stroke"),
    )
    line = base.mark_line().encode(
        y=alt.Y("median:Q", title="What a pair saves, nats"),
        strokeDash=alt.StrokeDash("heads:N", title=None)
        .scale(domain=names, range=dashes)
        .legend(orient="bottom", columns=1, labelLimit=260, symbolType="stroke"),
        tooltip=["heads:N", "distance:Q", *(number(name, ".2f") for name in ("median", "low", "high"))],
    )
    symbolic, positional = (int((sign * carriers["lead"] >= summaries.MARGIN).sum()) for sign in (-1, 1))
    title = (
        f"{len(carriers)} of {len(heads)} heads carry at least {summaries.CARRIES:.0%} of recall: {symbolic} clearly "
        f"symbolic, {positional} clearly positional"
    )
    medians = rows.set_index(["heads", "distance"])["median"].groupby(level=0).mean()
    said = ", ".join(f"{medians[name]:.2f} {name}" for name in names if name in medians)
    return (
        alt.hconcat((level + marks).properties(width=280, height=260), line.properties(width=280, height=260))
        .resolve_scale(color="independent", strokeDash="independent")
        .properties(
            title=alt.Title(
                title, subtitle="Left: one mark per head of all seeds, zeroed alone; right: medians over seeds"
            ),
            description="Scatter plot of heads' shares of recall by kind, beside lines of what a planted pair saves by "
            f"distance. {title}. Nats saved on average: {said}.",
        )
    )


def losses_by_encoding(rows: pd.DataFrame, by: str, times: alt.X, color: alt.Color, height: int) -> alt.FacetChart:
    """Draw medians of the loss as lines and ranges over seeds as bands, one panel per encoding, one line per ``by``."""
    base = alt.Chart(rows[["encoding", by, "times", "median", "low", "high"]].round(3)).encode(
        x=times, color=color.legend(symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3)
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title="Loss, nats per token"), y2="high:Q")
    line = base.mark_line().encode(
        y="median:Q", tooltip=["encoding:N", f"{by}:N", *(number(name, ".2f") for name in ("times", "median"))]
    )
    panel = alt.Facet("encoding:N", title=None, sort=list(ENCODING_NAMES.values()))
    return (band + line).properties(width=210, height=height).facet(panel, columns=3)


def forecast_from_short_windows(reach: pd.DataFrame, trained: int) -> alt.FacetChart:
    """Draw the loss of the same tokens by length, measured, forecast and by its two causes, one panel per encoding.

    Args:
        reach: rows of the table of this name.
        trained: tokens of a training window.
    """
    rows = over_seeds(reach, ["encoding", "way", "length"], "loss")
    rows["times"] = rows["length"] / trained
    rows = rows.assign(encoding=rows["encoding"].map(ENCODING_NAMES), way=[WAYS[way][0] for way in rows["way"]])
    names, colors = (list(values) for values in zip(*WAYS.values(), strict=True))
    color = alt.Color("way:N", title=None).scale(domain=names, range=colors)
    times = alt.X("times:Q", title="Length, in trained lengths").axis(values=[1, 2, 4, 8])
    times = times.scale(type="log", base=2, domain=[1, 8], nice=False)
    lengths = summaries.failing_lengths(reach)
    medians = lengths.groupby("encoding")[["relocated", summaries.TOLD]].median()
    told = [
        f"{medians.loc[key, 'relocated']:,.0f} and {medians.loc[key, summaries.TOLD]:,.0f} with {name}"
        for key, name in ENCODING_NAMES.items()
        if key in medians.index
    ]
    errors = summaries.forecast_errors(lengths, trained)["forecast"]
    title = (
        f"From windows of {trained} tokens, the length at which a model fails is forecast within a factor of "
        f"{2 ** errors.median():.2f} for half of {len(errors)} models"
    )
    return (
        losses_by_encoding(rows, "way", times, color, height=170)
        .resolve_scale(y="independent")
        .properties(
            title=alt.Title(
                title,
                subtitle=[
                    f"A model fails where its loss has risen by {summaries.RISE} nats",
                    "Bands: range over seeds",
                ],
            ),
            description=f"Line charts of loss by length, one panel per encoding, one line per way. {title}. Forecast "
            f"and measured failing lengths, medians: {'; '.join(told)}.",
        )
    )


def attention_on_code(attention: pd.DataFrame, heads: pd.DataFrame) -> alt.HConcatChart:
    """Draw the heads of one model as tiles, and what the chosen one attends to in a line of code; a click chooses.

    Args:
        attention: rows of one model.
        heads: layer, head, positional, symbolic, job of its heads at the end.
    """
    tokens = attention.drop_duplicates("key_position").sort_values("key_position")["token"]
    words = [f"{position} {token.strip(' ') or '␣'}".replace("\n", "⏎") for position, token in enumerate(tokens)]
    heads = heads.assign(name=[f"{row.layer}.{row.head}" for row in heads.itertuples()])
    heads["lead"] = heads["positional"] - heads["symbolic"]
    strongest = heads[heads["job"] == "induction head"].sort_values("symbolic")
    start = (strongest if len(strongest) else heads)["name"].iloc[-1]
    tiles = (
        alt.Chart(heads[["layer", "head", "name", "lead", "positional", "symbolic", "job"]].round(3))
        .mark_rect(cursor="pointer")
        .encode(
            x=alt.X("head:O", title="Head").axis(labelAngle=0),
            y=alt.Y("layer:O", title="Layer"),
            color=alt.Color("lead:Q", title="positional − symbolic").scale(
                domain=[-1, 0, 1], range=[SYMBOLIC, "#efefef", POSITIONAL]
            ),
            stroke=alt.condition("datum.name == shown", alt.value(INK), alt.value(None)),
            strokeWidth=alt.value(2.5),
            tooltip=["name:N", number("positional"), number("symbolic"), "job:N"],
        )
        .properties(width=200, height=200)
    )
    seen = attention[attention["weight"] >= SHOWN].copy()
    seen["name"] = seen["layer"].astype(int).astype(str) + "." + seen["head"].astype(int).astype(str)
    seen["from"] = [words[int(position)] for position in seen["position"]]
    seen["to"] = [words[int(position)] for position in seen["key_position"]]
    squares = (
        alt.Chart(seen[["name", "from", "to", "weight"]].round(2))
        .transform_filter("datum.name == shown")
        .mark_rect()
        .encode(
            x=alt.X("to:N", title="attends to", sort=words).scale(domain=words).axis(labelAngle=-90, labelLimit=90),
            y=alt.Y("from:N", title="token", sort=words).scale(domain=words),
            color=alt.Color("weight:Q", title="attention").scale(domain=[0, 1], scheme="greys"),
            tooltip=["from:N", "to:N", "weight:Q"],
        )
        .properties(width=430, height=430)
    )
    title = f"Head by head: what each of {len(heads)} heads of one model attends to in a function of three lines"
    return (
        alt.hconcat(tiles, squares)
        .add_params(*click_menu("shown", "name", heads["name"].tolist(), start, "Head"))
        .resolve_scale(color="independent")
        .properties(
            title=alt.Title(title, subtitle="Click a tile on the left; the number before a token is its position"),
            description=f"Tiles of heads by layer coloured by kind, beside the attention of the chosen one. {title}.",
        )
    )


def kinds_elsewhere(scores: pd.DataFrame, texts: Sequence[str]) -> alt.HConcatChart:
    """Draw each head's lead on other texts against that on held-out windows, one mark per head, one panel per text."""
    rows = summaries.at_end(scores[scores["weighting"] == "relative"])
    rows = rows.assign(lead=rows["positional"] - rows["symbolic"])
    wide = rows.pivot_table(index=summaries.HEAD, columns="text", values="lead").reset_index()
    line = alt.Chart(pd.DataFrame({"at": [-1, 1]})).mark_line(color=INK, strokeDash=[4, 4], opacity=0.5)
    panels, told = [], []
    for text in (name for name in texts if name in wide):
        own = summaries.agreement(scores, text)["agreement"]
        told.append(f"{own.median():.2f} on {text}")
        table = wide[["seed", "layer", "head", "held out", text]].rename(columns={"held out": "here", text: "there"})
        marks = alt.Chart(table.dropna().round(3)).mark_circle(size=40, opacity=0.7, color=CATEGORIES[0])
        marks = marks.encode(
            x=alt.X("here:Q", title="On held-out source"),
            y=alt.Y("there:Q", title=f"On {text}"),
            tooltip=["seed:O", "layer:O", "head:O", "here:Q", "there:Q"],
        )
        panels.append((line.encode(x="at:Q", y="at:Q") + marks).properties(width=190, height=190))
    title = f"Heads' kinds on other texts: rank correlation {', '.join(told)}"
    return alt.hconcat(*panels).properties(
        title=alt.Title(title, subtitle="Positional − symbolic, one mark per head of all seeds; dashed: equal"),
        description=f"Scatter plots of positional − symbolic, other texts against held-out source. {title}.",
    )
