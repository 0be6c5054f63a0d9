"""Charts of a head: its relocated logits, what a swap does to its attention, its scores by temperature and plane.

And of the study: how far each way of weighing swaps errs, and what a sink does to the scores.
"""

import json
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from possym.charts import CATEGORIES, INK, NEUTRAL, POSITIONAL, SYMBOLIC, alt, kind_color
from possym.ensembles.last_token import attention
from possym.scores import swap_scores

HEAT = alt.Scale(scheme="viridis")


def relocated_heatmap(heads: Mapping[str, Tensor], title: str) -> alt.FacetChart:
    """Return relocated logits as heat maps side by side: content down, position across, observed logits outlined.

    Args:
        heads: name → (N, N) relocated logits, all of one N.
        title: what the picture shows.
    """
    count = len(next(iter(heads.values())))
    names = [f"content {index}" for index in range(count)]
    rows = [
        {"head": head, "content": names[a], "place": b, "logit": round(relocated[a, b].item(), 3), "observed": a == b}
        for head, relocated in heads.items()
        for a in range(count)
        for b in range(count)
    ]
    base = alt.Chart().encode(
        x=alt.X("place:O", title="Position of the key").axis(labelAngle=0, labelOverlap=True),
        y=alt.Y("content:N", title=None, sort=names),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("logit:Q", title="Logit", scale=HEAT),
        tooltip=["head:N", "content:N", "place:O", alt.Tooltip("logit:Q", format=".2f")],
    )
    seen = base.transform_filter("datum.observed").mark_rect(fill=None, stroke="white", strokeWidth=2.5)
    layers = cells + seen
    if count <= 8:
        layers += base.mark_text(fontSize=10).encode(
            text=alt.Text("logit:Q", format=".1f"),
            color=alt.condition(
                f"datum.logit > {sum(row['logit'] for row in rows) / len(rows)}", alt.value("black"), alt.value("white")
            ),
        )
    return (
        layers.properties(height=24 * count)
        .facet(
            facet=alt.Facet("head:N", title=None, sort=list(heads)), columns=min(len(heads), 3), data=pd.DataFrame(rows)
        )
        .properties(
            title=alt.Title(title, subtitle="Rows: contents; columns: positions; outlined: the observed logits"),
            description=f"Heat maps of relocated logits of {', '.join(heads)}: contents in rows, positions in "
            f"columns.  {title}.",
        )
    )


def two_knobs() -> alt.LayerChart:
    """Return the relocated logits of a head with one RoPE plane, drawn in the page as two sliders move.

    Content a is the unit vector at angle a · spread, the query the unit vector at angle 0, at the position after the
    last key: M[a, b] = cos(a · spread − (keys − b) · angle). Below the picture stand its two deviations A and B.
    """
    keys = 6
    turn = alt.param(
        name="angle",
        value=0.4,
        bind=alt.binding_range(min=0, max=1, step=0.05, name="RoPE angle θ (rad per position) "),
    )
    differ = alt.param(
        name="spread",
        value=0.0,
        bind=alt.binding_range(min=0, max=1, step=0.05, name="Angle between contents (rad) "),
    )
    grid = pd.DataFrame([{"content": a, "place": b} for a in range(keys) for b in range(keys)])
    own_place = f"cos(datum.content * spread - ({keys} - datum.content) * angle)"
    own_content = f"cos(datum.place * spread - ({keys} - datum.place) * angle)"
    base = alt.Chart(grid).transform_calculate(logit=f"cos(datum.content * spread - ({keys} - datum.place) * angle)")
    cell = {
        "x": alt.X("place:O", title="Position of the key").axis(labelAngle=0, labelOverlap=True),
        "y": alt.Y("content:O", title="Content of the key"),
    }
    cells = base.mark_rect().encode(
        **cell, color=alt.Color("logit:Q", legend=None, scale=alt.Scale(scheme="viridis", domain=[-1, 1]))
    )
    seen = base.transform_filter("datum.content == datum.place").mark_rect(fill=None, stroke="white", strokeWidth=2.5)
    text = base.mark_text(fontSize=11).encode(
        **cell,
        text=alt.Text("logit:Q", format=".2f"),
        color=alt.condition("datum.logit > 0.2", alt.value("black"), alt.value("white")),
    )
    sums = (
        base.transform_calculate(
            positional=f"pow(datum.logit - {own_content}, 2)", symbolic=f"pow(datum.logit - {own_place}, 2)"
        )
        .transform_aggregate(positional="sum(positional)", symbolic="sum(symbolic)")
        .transform_calculate(
            words="'A = ' + format(datum.positional, '.2f') + ' (0: positional),  B = ' + "
            "format(datum.symbolic, '.2f') "
            "+ ' (0: symbolic)'"
        )
        .mark_text(align="left", fontSize=13, fontWeight="bold")
        .encode(x=alt.value(0), y=alt.value(-14), text="words:N")
    )
    return (
        (cells + seen.encode(**cell) + text + sums)
        .add_params(turn, differ)
        .properties(
            title=alt.Title(
                "The angle makes columns, the contents make rows",
                subtitle="Relocated logits of one RoPE plane; outlined: the observed logits",
            ),
            description="Interactive heat map of relocated logits, contents in rows and positions in columns, "
            "with a slider "
            "for the RoPE angle and one for the angle between contents. With equal contents every column is of one "
            "value, with angle zero every row is.",
            height=30 * keys,
        )
    )


def swap_figure(relocated: Tensor, own: Tensor, tokens: Sequence[str], *, title: str) -> alt.LayerChart:
    """Return a head's attention before and after a swap of two tokens that the reader picks.

    Args:
        relocated: (N, N) relocated logits of the keys before the last position.
        own: (1,) logit of the last position's own key.
        tokens: the N + 1 tokens.
        title: what the picture shows.
    """
    pairs = swap_table(relocated, own)
    strongest = pairs.loc[pairs["weight"].idxmax()]
    labels = [f"{position}: {token}" for position, token in enumerate(tokens[:-1])]
    positions = list(range(len(labels)))
    first, second = (
        alt.param(
            name=name,
            value=int(strongest[column]),
            bind=alt.binding_select(options=positions, labels=labels, name=words),
        )
        for name, column, words in (("first", "i", "Swap token "), ("second", "j", "with token "))
    )
    # The page computes a swap from the relocated logits, the largest observed one subtracted.
    top = max(relocated.diagonal().max().item(), own.item())
    logits = alt.param(name="logits", value=[[round(value - top, 4) for value in row] for row in relocated.tolist()])
    names, own_logit, last = json.dumps(list(tokens)), own.item() - top, len(positions)
    content = "(datum.place == first ? second : datum.place == second ? first : datum.place)"
    rows = [{"place": position, "when": when} for position in range(last + 1) for when in ("before", "after")]
    bars = (
        alt.Chart(pd.DataFrame(rows))
        .transform_calculate(content=f"datum.when == 'after' ? {content} : datum.place")
        .transform_calculate(
            token=f"{names}[datum.content]",
            share=f"exp(datum.place == {last} ? {own_logit:.4f} : logits[min(datum.content, {last - 1})]"
            f"[min(datum.place, {last - 1})])",
        )
        .transform_joinaggregate(total="sum(share)", groupby=["when"])
        .transform_calculate(attention="datum.share / datum.total")
    )
    encoding = {
        "x": alt.X("place:O", title="Position of the key (the last is the query's own)").axis(
            labelAngle=0, labelOverlap=True
        ),
        "y": alt.Y("attention:Q", title="Attention").scale(domain=[0, 1]),
        "xOffset": alt.XOffset("when:N", sort=["before", "after"]).scale(domain=["before", "after"]),
    }
    drawn = bars.mark_bar().encode(
        **encoding,
        color=alt.Color("when:N", title=None)
        .scale(domain=["before", "after"], range=[NEUTRAL, CATEGORIES[0]])
        .legend(orient="bottom"),
        tooltip=["when:N", "place:O", "token:N", alt.Tooltip("attention:Q", format=".3f")],
    )
    # Swapped tokens are named on both bars, leaning away from each other; others once, in the middle of their two.
    half = "bandwidth('xOffset') / 2 - 1"
    swapped = "(first != second && (datum.place == first || datum.place == second))"
    names = [
        bars.transform_filter(f"datum.when == '{when}' && {swapped}")
        .mark_text(dy=-6, fontSize=11, align=side, dx=alt.expr(shift))
        .encode(**encoding, text="token:N")
        for when, side, shift in (("before", "right", half), ("after", "left", f"-({half})"))
    ]
    names.append(
        bars.transform_joinaggregate(top="max(attention)", groupby=["place"])
        .transform_filter(f"datum.when == 'before' && !{swapped}")
        .mark_text(dy=-6, fontSize=11)
        .encode(x=encoding["x"], y="top:Q", text="token:N")
    )
    v, w = ("logits[{0}][{0}]", "logits[{0}][{1}]")
    here, there = v.format("first"), v.format("second")
    arrived = w.format("second", "first"), w.format("first", "second")
    chosen = (
        alt.Chart(pairs[["i", "j", "weight"]])
        .transform_filter("datum.i == min(first, second) && datum.j == max(first, second)")
        .transform_calculate(v=f"max({here}, {there})", w=f"max({arrived[0]}, {arrived[1]})")
        .transform_calculate(
            a=f"exp({here} - datum.v)",
            b=f"exp({there} - datum.v)",
            c=f"exp({arrived[0]} - datum.w)",
            d=f"exp({arrived[1]} - datum.w)",
        )
        .transform_calculate(
            size="sqrt((datum.a * datum.a + datum.b * datum.b) * (datum.c * datum.c + datum.d * datum.d))"
        )
        .transform_calculate(
            words="first == second ? 'Choose two different positions' : "
            "'cos(v′, v) = ' + format((datum.a * datum.c + datum.b * datum.d) / datum.size, '.3f') + "
            "',\\nreversed ' + format((datum.a * datum.d + datum.b * datum.c) / datum.size, '.3f') + "
            "',  weight α ' + format(datum.weight, '.3f')"
        )
        .mark_text(align="left", fontSize=12, fontWeight="bold", lineBreak="\n")
        .encode(x=alt.value(6), y=alt.value(-36), text="words:N")  # above the names of the tallest bars
    )
    scores = swap_scores(relocated, extra_logits=own)
    overall = f"positional score {scores.positional.item():.2f}, symbolic score {scores.symbolic.item():.2f}"
    return (
        alt.layer(drawn, *names, chosen)
        .add_params(logits, first, second)
        .properties(
            title=alt.Title(title, subtitle=f"Over all {len(pairs)} swaps, τ = 0.0001: {overall}"),
            description="Bar chart of a head's attention by position, before and after a swap of two tokens "
            "chosen in two menus, "
            f"with the swap's two cosines and its weight. {title}. {overall}.",
            height=240,
        )
    )


def swap_table(relocated: Tensor, own: Tensor, temperature: float = 1e-4) -> pd.DataFrame:
    """Return every swap's positions i < j, its two cosines and its weight in the scores.

    A swap's cosines are the scores of a head that has these two keys alone.

    >>> swap_table(torch.tensor([[0.0, 1.0], [0.0, 1.0]]), torch.zeros(1)).round(3).values.tolist()
    [[0.0, 1.0, 1.0, 0.648, 1.0]]
    """
    count = len(relocated)
    first, second = torch.triu_indices(count, count, 1)
    both = torch.stack([first, second], -1)
    scores = swap_scores(relocated[both[:, :, None], both[:, None, :]])
    seen = attention(relocated, own)
    weight = ((seen[first] - seen[second]).abs() / temperature).softmax(0)
    columns = {"positional": scores.positional, "symbolic": scores.symbolic, "weight": weight}
    return pd.DataFrame(
        {
            "i": first.numpy(),
            "j": second.numpy(),
            **{name: value.double().numpy().round(5) for name, value in columns.items()},
        }
    )


def temperature_curve(heads: Mapping[str, tuple[Tensor, Tensor]], temperatures: Sequence[float]) -> alt.LayerChart:
    """Return both scores by temperature, mean over the sequences of each head, one panel per head.

    Args:
        heads: name → (relocated logits (..., N, N), own logit (..., 1)).
        temperatures: values of τ.
    """
    rows = [
        {"head": head, "temperature": float(tau), "kind": kind, "score": round(getattr(scores, kind).mean().item(), 4)}
        for head, (relocated, own) in heads.items()
        for tau in temperatures
        for scores in [swap_scores(relocated, extra_logits=own, temperature=float(tau))]
        for kind in ("positional", "symbolic")
    ]
    data = pd.DataFrame(rows)
    moved = data.groupby(["head", "kind"])["score"].agg(lambda score: score.max() - score.min()).max()
    used = pd.DataFrame({"temperature": [1e-4, 0.1]})
    lines = (
        alt.Chart()
        .mark_line(point=True)
        .encode(
            x=alt.X("temperature:Q", title="Temperature τ (log scale)")
            .scale(type="log")
            .axis(format="~e", tickCount=6),
            y=alt.Y("score:Q", title="Score").scale(domain=[0, 1]),
            color=kind_color().scale(domain=["positional", "symbolic"], range=[POSITIONAL, SYMBOLIC]),
            strokeDash=alt.StrokeDash("kind:N", title=None).scale(
                domain=["positional", "symbolic"], range=[[1, 0], [5, 3]]
            ),
            tooltip=["head:N", "kind:N", "temperature:Q", alt.Tooltip("score:Q", format=".3f")],
        )
    )
    marks = alt.Chart(used).mark_rule(strokeDash=[2, 4], color=INK).encode(x="temperature:Q")
    return (
        alt.layer(lines, marks, data=data)
        .properties(height=200)
        .facet(facet=alt.Facet("head:N", title=None, sort=list(heads)), columns=2)
        .properties(
            title=alt.Title(
                f"The temperature alone moves a score by up to {moved:.2f}",
                subtitle="Same heads, same sequences; dotted: τ = 1e-4 (2605.31558) and 0.1 (a public "
                "re-implementation)",
            ),
            description=f"Line charts of positional and symbolic score by temperature for {', '.join(heads)}. "
            "Scores move by "
            f"up to {moved:.2f}.",
        )
    )


def plane_profile(planes: pd.DataFrame, title: str) -> alt.VConcatChart:
    """Return scores and logit norm of every RoPE plane of a head by frequency ID.

    Args:
        planes: columns frequency_id, positional, symbolic, logit_norm.
        title: what the picture shows.
    """
    long = planes.melt(["frequency_id"], ["positional", "symbolic"], "kind", "score").round(4)
    axis = alt.X("frequency_id:Q", title="Frequency ID (1 is the fastest)").scale(nice=False)
    above = (
        alt.Chart(long)
        .mark_line(point={"size": 25})
        .encode(
            x=axis,
            y=alt.Y("score:Q", title="Score").scale(domain=[0, 1]),
            color=kind_color().scale(domain=["positional", "symbolic"], range=[POSITIONAL, SYMBOLIC]),
            strokeDash=alt.StrokeDash("kind:N", title=None).scale(
                domain=["positional", "symbolic"], range=[[1, 0], [5, 3]]
            ),
            tooltip=["frequency_id:Q", "kind:N", alt.Tooltip("score:Q", format=".3f")],
        )
        .properties(height=170)
    )
    below = (
        alt.Chart(planes[["frequency_id", "logit_norm"]].round(4))
        .mark_bar(color=NEUTRAL)
        .encode(
            x=axis,
            y=alt.Y("logit_norm:Q", title="Norm of logits"),
            tooltip=["frequency_id:Q", alt.Tooltip("logit_norm:Q", format=".3f")],
        )
        .properties(height=90)
    )
    strongest = int(planes.loc[planes["logit_norm"].idxmax(), "frequency_id"])
    return alt.vconcat(above, below).properties(
        title=alt.Title(title, subtitle="Above: scores of each plane taken as a head; below: size of its logits"),
        description=f"Line and bar chart by frequency ID. {title}. The plane with the largest logits is "
        f"number {strongest}.",
    )


WORDS = {"absolute": "exp(δ / τ)", "relative": "exp(δ / τΔ)", "proportional": "δ^(1/τ)"}


def weighting_chart(errors: pd.DataFrame) -> alt.LayerChart:
    """Return the worst and the mean error of every way of weighing swaps.

    Args:
        errors: `possym.experiments.scoring.summaries.weighting_errors`.
    """
    data = errors[["weighting", "temperature", "worst", "mean"]].round(4)
    names = [f"{WORDS[w]}, τ = {t:g}" for w, t in zip(data["weighting"], data["temperature"], strict=True)]
    data = data.assign(name=names, form=[WORDS[weighting] for weighting in data["weighting"]])
    least = data.loc[data["worst"].idxmin()]
    color = alt.Color("form:N", title="Weight of a swap").scale(domain=list(WORDS.values()), range=CATEGORIES[:3])
    row = alt.Y("name:N", title=None, sort=names).axis(labelLimit=200)
    tooltip = ["name:N", alt.Tooltip("worst:Q", format=".3f"), alt.Tooltip("mean:Q", format=".3f")]
    base = alt.Chart(data).encode(y=row, color=color.legend(orient="bottom"), tooltip=tooltip)
    range_of = base.mark_rule(strokeWidth=2, opacity=0.5).encode(x="mean:Q", x2="worst:Q")
    worst = base.mark_point(size=70, filled=True).encode(
        x=alt.X("worst:Q", title="Error of a score").scale(domainMin=0)
    )
    mean = base.mark_tick(thickness=2, size=14).encode(x="mean:Q")
    return (range_of + worst + mean).properties(
        title=alt.Title(
            f"Smallest worst-case error: {least['worst']:.2f}, with {least['name']}",
            subtitle="Dot: largest error over kinds, numbers of keys and sinks; tick: mean; δ: difference, Δ: largest",
        ),
        description="Dot plot of the largest and mean error of the scores of heads of known kind, one row per way of "
        f"weighing swaps. The smallest largest error is {least['worst']:.2f}, of {least['name']}.",
        height=22 * len(names),
    )


def sink_chart(cells: pd.DataFrame, chosen: tuple[str, float]) -> alt.FacetChart:
    """Return the symbolic score of purely positional heads as a sink takes more and more of their attention.

    Args:
        cells: the study's table.
        chosen: weighting and temperature that are drawn beside the papers' absolute temperatures.
    """
    pairs = list(dict.fromkeys([("absolute", 1e-4), ("absolute", 0.1), chosen]))
    shown = cells[cells["kind"].eq("positional") & cells["keys"].isin({cells["keys"].min(), cells["keys"].max()})]
    data = pd.concat(
        shown[shown["weighting"].eq(weighting) & shown["temperature"].eq(temperature)].assign(
            name=f"{WORDS[weighting]}, τ = {temperature:g}"
        )
        for weighting, temperature in pairs
    )[["name", "keys", "sink", "symbolic", "effective"]].round(4)
    names = list(dict.fromkeys(data["name"]))
    data["panel"] = [f"{keys:,} keys" for keys in data["keys"]]
    risen = data[data["name"] != names[-1]].groupby("name")["symbolic"].max().max()
    kept = data[data["name"] == names[-1]]["symbolic"].max()
    lines = (
        alt.Chart()
        .mark_line(point=True)
        .encode(
            x=alt.X("sink:O", title="Share on the sink").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("symbolic:Q", title="Symbolic score (0 is right)").scale(domain=[0, 1]),
            color=alt.Color("name:N", title="Weight of a swap", sort=names)
            .scale(domain=names, range=[CATEGORIES[0], CATEGORIES[0], CATEGORIES[2]][: len(names)])
            .legend(orient="bottom"),
            strokeDash=alt.StrokeDash("name:N", title="Weight of a swap", sort=names)
            .scale(domain=names, range=[[2, 2], [5, 3], [1, 0]][: len(names)])
            .legend(orient="bottom"),
            tooltip=["name:N", "keys:Q", "sink:O", alt.Tooltip("symbolic:Q", format=".3f"), "effective:Q"],
        )
        .properties(height=200)
    )
    panels = [f"{keys:,} keys" for keys in sorted(data["keys"].unique())]
    return lines.facet(facet=alt.Facet("panel:N", title=None, sort=panels), columns=2, data=data).properties(
        title=alt.Title(
            f"Behind a sink, positional heads score up to {risen:.2f} symbolic; with weights in proportion, {kept:.2f}",
            subtitle="Purely positional heads, mean of their symbolic scores",
        ),
        description="Line charts of the symbolic score of purely positional heads by the share of attention on a sink. "
        f"Absolute weights rise to {risen:.2f}, the chosen ones stay at or below {kept:.2f}.",
    )
