"""Charts of the multi-hop tasks: a sequence with its path, and how sampling is balanced."""

import itertools

import pandas as pd

from possym.charts import CATEGORIES, INK, NEUTRAL, alt
from possym.tasks import Batch
from possym.tasks.batch import Task

ROLES = ("target", "pre-target", "query", "answer")


def hop_paths(task: Task, batch: Batch, title: str) -> alt.LayerChart:
    """Return one sequence for each number of hops, with its path as arcs; a slider picks the number.

    Args:
        task: names the tokens.
        batch: one sequence for each number of hops that the slider offers, all of one length.
        title: what the picture shows.
    """
    hops = batch.hops.tolist()
    tokens, arcs = [], []
    for row, count in enumerate(hops):
        names = task.decode(batch.tokens[row])
        path = [place for place in batch.path[row].tolist() if place >= 0]
        last = len(names) - 1
        for place, name in enumerate(names):
            role = "query" if place == last else "answer" if place == path[-1] else ROLES[place >= last - 8]
            visited = path.index(place) if place in path else None
            tokens.append({"hops": count, "place": place, "token": name, "role": role, "visited": visited is not None})
        for number, (start, stop) in enumerate(itertools.pairwise(path), 1):
            height = (start - stop) / last
            for step in range(13):
                part = step / 12
                arcs.append(
                    {"hops": count, "jump": number, "step": step, "place": start + (stop - start) * part,
                     "height": round(4 * part * (1 - part) * (0.3 + 0.7 * height), 4)}
                )  # fmt: skip
    chosen = alt.param(
        name="hops",
        value=max(hops),
        bind=alt.binding_range(min=min(hops), max=max(hops), step=1, name="Number of hops "),
    )
    shown = "datum.hops == hops"
    x = (
        alt.X("place:Q", title="Position")
        .scale(domain=[-0.6, len(names) - 0.4], nice=False)
        .axis(values=list(range(len(names))))
    )
    y = alt.Y("height:Q", axis=None).scale(domain=[-0.25, 1.05])
    lines = (
        alt.Chart(pd.DataFrame(arcs))
        .transform_filter(shown)
        .mark_line(color=INK)
        .encode(x=x, y=y, detail="jump:N", order="step:Q")
    )
    base = alt.Chart(pd.DataFrame(tokens)).transform_filter(shown).encode(x=x, y=alt.value(200))
    colors = alt.Color("role:N", title=None, sort=list(ROLES)).scale(
        domain=list(ROLES), range=[NEUTRAL, CATEGORIES[3], CATEGORIES[2], CATEGORIES[0]]
    )
    shapes = alt.Shape("role:N", title=None, sort=list(ROLES)).scale(
        domain=list(ROLES), range=["circle", "square", "triangle-up", "diamond"]
    )
    marks = base.mark_point(filled=True, size=70).encode(
        color=colors, shape=shapes, y=alt.value(178), tooltip=["place:Q", "token:N", "role:N"]
    )
    text = base.mark_text(fontSize=12, color=INK).encode(
        text="token:N", opacity=alt.condition("datum.visited", alt.value(1), alt.value(0.7))
    )
    return (
        (lines + marks + text)
        .add_params(chosen)
        .properties(
            title=alt.Title(title, subtitle="Arcs: the jumps from the query, at the right, to the answer"),
            description=f"A sequence of {len(names)} tokens in a row with arcs for the jumps that lead from "
            "the query to the "
            f"answer, and a slider for the number of hops. {title}.",
            height=210,
        )
    )


def balance(batch: Batch) -> alt.FacetChart:
    """Return how often the answer stands at each position, by number of hops."""
    place = batch.path.gather(1, batch.hops[:, None])[:, 0]
    counts = (
        pd.DataFrame({"hops": batch.hops.numpy(), "place": place.numpy()}).value_counts().reset_index(name="sequences")
    )
    counts["class"] = [f"{hops} hop{'s' if hops > 1 else ''}" for hops in counts["hops"]]
    low, high = counts["sequences"].min(), counts["sequences"].max()
    times = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    title = f"Every position holds the answer {times} times for each hop count"
    return (
        alt.Chart(counts)
        .mark_bar(color=CATEGORIES[0])
        .encode(
            x=alt.X("place:O", title="Position of the answer").axis(labelAngle=0, labelOverlap=True),
            y=alt.Y("sequences:Q", title="Sequences"),
            facet=alt.Facet("class:N", title=None, columns=4),
            tooltip=["class:N", "place:O", "sequences:Q"],
        )
        .properties(
            title=alt.Title(title, subtitle=f"{len(place):,} sequences drawn"),
            description="Bar charts of the number of sequences by the answer's position, one panel for each hop "
            f"count. {title}.",
            height=120,
        )
    )


def attention_by_layer(weights: pd.DataFrame, tokens: list[str], title: str) -> alt.LayerChart:
    """Return the attention of the last position in every layer, as bars of area: one row per layer, one column per key.

    Args:
        weights: columns layer, place, attention.
        tokens: the tokens, in order.
        title: what the picture shows.
    """
    labels = ", ".join(f"{place}: '{token}'" for place, token in enumerate(tokens))
    data = weights.round(4)
    return (
        alt.Chart(data[data["attention"] >= 0.01])
        .mark_square(color=CATEGORIES[0], opacity=0.9)
        .encode(
            x=alt.X("place:O", title="Key")
            .scale(domain=list(range(len(tokens))))
            .axis(labelExpr=f"({{{labels}}})[datum.value]", labelAngle=0, labelOverlap=False),
            y=alt.Y("layer:O", title="Layer").scale(domain=sorted(data["layer"].unique().tolist())),
            size=alt.Size("attention:Q", title="Attention")
            .scale(domain=[0, 1], range=[0, 420])
            .legend(values=[0.1, 0.5, 1]),
            tooltip=["layer:O", "place:O", alt.Tooltip("attention:Q", format=".2f")],
        )
        .properties(
            title=alt.Title(title, subtitle="Query: the last token; the area of a square is its share of attention"),
            description=f"Grid of squares: attention of the last token to every token, by layer. {title}.",
            height=24 * data["layer"].nunique(),
        )
    )
