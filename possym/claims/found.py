"""What the book found, as the landing page shows it: five findings, each a small picture, a number and a link."""

import re
from collections.abc import Callable
from html import escape
from typing import NamedTuple

import pandas as pd

from possym.charts import ASKS, INK, KNOWN_HEADS, NEUTRAL, alt
from possym.charts.renderer import vl_convert
from possym.charts.typography import typeset, typeset_html
from possym.claims.rows import stored
from possym.experiments.canonical import summaries as canonical
from possym.experiments.canonical.claims import many
from possym.experiments.generalization.summaries import crossings
from possym.experiments.learning_dynamics import summaries as dynamics
from possym.experiments.learning_dynamics.charts import head_color, median_plane
from possym.experiments.real_models import summaries as real
from possym.results import Study

SIZE = {"width": 220, "height": 118}
TASKS = {"number": "number task", "letter": "letter task"}


class Finding(NamedTuple):
    """A finding: what it says, its number, what that counts, where to read on, a picture and that in words."""

    title: str
    number: str
    counts: str
    more: str
    picture: alt.TopLevelMixin
    alt: str


class Cards:
    """Findings as cards of a page; plain text elsewhere."""

    def __init__(self, found: list[Finding]) -> None:
        """Hold the findings."""
        self.found = found

    def __repr__(self) -> str:
        """Return the plain text."""
        return "\n".join(typeset(f"{card.title}: {card.number} {card.counts}") for card in self.found)

    def _repr_html_(self) -> str:
        cards = "".join(
            f'<li class="possym-card"><a href="{escape(card.more)}"><strong>{escape(card.title)}</strong></a>'
            f"{svg(card.picture, card.alt, number)}"
            f"<p><b>{escape(card.number)}</b> {escape(card.counts)}</p></li>"
            for number, card in enumerate(self.found)
        )
        return typeset_html(f'<ul class="possym-cards">{cards}</ul>')


def what_we_found() -> Cards:
    """Return the findings, drawn and counted from the stored results.

    Raises:
        ResultsError: a study is not stored; the message says what to run.
    """
    makers: dict[str, Callable[[Study], Finding]] = {
        "theory": exclusion,
        "canonical": angles,
        "learning_dynamics": training,
        "generalization": length,
        "real_models": language_model,
    }
    return Cards([make(stored(name)) for name, make in makers.items()])


def exclusion(study: Study) -> Finding:
    """Count the heads that pass the exclusion bound."""
    ratio = study.tables["tightness"]["ratio"]
    beyond = int((ratio > 1 + 1e-9).sum())
    counted = ratio.clip(upper=1).mul(25).astype(int).clip(upper=24).value_counts().rename_axis("bin").reset_index()
    counted["from"], counted["to"] = counted["bin"] / 25, (counted["bin"] + 1) / 25
    bars = alt.Chart(counted[["from", "to", "count"]]).mark_bar(color=NEUTRAL).encode(
        x=alt.X("from:Q", bin="binned", title="how much logits differ (bound: 1)")
        .scale(domain=[0, 1.15])
        .axis(values=[0, 1], format="d"),
        x2="to:Q", y=alt.Y("count:Q", axis=None),
    )  # fmt: skip
    wall = alt.Chart(pd.DataFrame({"x": [1]})).mark_rule(strokeWidth=2.5, opacity=1).encode(x="x:Q")
    return Finding(
        "No head does both",
        f"{beyond} of {len(ratio):,}",
        "heads tried contradict the theorem: a head that is nearly both kinds rates all words nearly alike. The proof "
        "takes three lines.",
        "chapters/02-exclusion-principle.md#figure-room-in-the-bound",
        bars + wall,
        f"Histogram of how much the logits of {len(ratio):,} heads vary, as a share of the bound: none is beyond 1.",
    )


def angles(study: Study) -> Finding:
    """Count the trained one-angle heads whose kind is the one that theory names."""
    accuracy, scores = study.tables["accuracy"], study.tables["scores"]
    right, all_learnt, curves = 0, 0, []
    for task, kind, other in (("index", "positional", "symbolic"), ("retrieval", "symbolic", "positional")):
        wanted = {"piece": "one-angle", "task": task, "planes": many(study)}
        table = canonical.heads(scores, **wanted)
        table = table[table["first_id"].isin(canonical.learnt_ids(accuracy, **wanted))]
        means = table[table["temperature"] == table["temperature"].min()].groupby("first_id")[[kind, other]].mean()
        right += int(((means[kind] >= 0.9) & (means[other] <= 0.1)).sum())
        all_learnt += len(means)
        fixed = canonical.by_angle(accuracy, **(wanted | {"piece": "fixed-maps"}))
        turning = fixed[fixed["first_id"] > 0]
        curves.append(turning.assign(task={"index": "count positions", "retrieval": "find contents"}[task]))
    table = pd.concat(curves)[["task", "first_id", "mean"]]
    lines = alt.Chart(table).mark_line(strokeWidth=2.5).encode(
        x=alt.X("first_id:Q", title="fast ← frequency ID → slow").scale(nice=False).axis(values=[]),
        y=alt.Y("mean:Q", title="accuracy").scale(domain=[0, 1]).axis(values=[0, 1], format=".0%"),
        color=task_color(table["task"].unique().tolist()),
    )  # fmt: skip
    return Finding(
        "Fast angles count, slow ones find",
        f"{right} of {all_learnt}",
        "RoPE angles that let a head learn its task give it the predicted kind: positional for counting, symbolic for "
        "finding.",
        "chapters/05-canonical-tasks.md#figure-accuracy-by-angle",
        lines,
        "Accuracy by frequency: counting positions works at fast frequencies, finding contents at slow ones.",
    )


def training(study: Study) -> Finding:
    """Count the purely positional heads that training leaves, on the number task and on the letter task."""
    counts = dynamics.pure_counts(study.tables["heads"]).query("gamma == 0.1").groupby(["task", "kind"])["heads"].mean()
    plane = median_plane(study.tables["scores"])
    steps = sorted(plane["step"].unique())
    plane = plane[plane["step"].isin(steps[:: max(1, len(steps) // 30)] + steps[-1:])].round(3)
    last = plane[plane["step"] == steps[-1]]
    place = {
        "x": alt.X("positional:Q", title="positional").scale(domain=[0, 1]).axis(values=[]),
        "y": alt.Y("symbolic:Q", title="symbolic").scale(domain=[0, 1]).axis(values=[]),
    }
    trails = alt.Chart(plane).mark_line(color=NEUTRAL, strokeWidth=0.8, opacity=0.35).encode(
        **place, detail=["task:N", "layer:N"], order="step:Q"
    )  # fmt: skip
    colors = [head_color(p, s) for p, s in zip(last["positional"], last["symbolic"], strict=True)]
    dots = alt.Chart(last.assign(color=colors)).mark_point(filled=True, size=45, opacity=0.9).encode(
        **place, color=alt.Color("color:N", scale=None)
    )  # fmt: skip
    number, letter = (counts[task] for task in ("number", "letter"))
    return Finding(
        "Training grows the heads a task needs",
        f"{number['positional']:.1f} against {letter['positional']:.1f}",
        "of 12 heads, on average, end purely positional: number task against letter task. "
        f"Purely symbolic are {number['symbolic']:.1f} against {letter['symbolic']:.1f}.",
        "chapters/07-learning-dynamics.md#figure-heads-in-the-plane",
        trails + dots,
        "Paths of heads in the plane of both scores, from the corner where both are high to the two pure corners.",
    )


def length(study: Study) -> Finding:
    """Compare the lengths at which the median model of each task falls below 90 %."""
    rate = study.manifest["config"]["learning_rate"]
    accuracy = study.tables["accuracy"]
    accuracy = accuracy[(accuracy["learning_rate"] == rate) & (accuracy["hops"] == 0)]
    median = crossings(accuracy, ["task", "seed"]).groupby("task")["point"].median()
    curves = accuracy.groupby(["task", "length"], as_index=False)["accuracy"].median()
    curves["task"] = curves["task"].map(TASKS)
    lines = alt.Chart(curves).mark_line(strokeWidth=2.5).encode(
        x=alt.X("length:Q", title="tokens (log scale)")
        .scale(type="log", nice=False)
        .axis(values=[17, 100, 1000, 5000], format=",d"),
        y=alt.Y("accuracy:Q", title="accuracy").scale(domain=[0, 1]).axis(values=[0, 1], format=".0%"),
        color=task_color(list(TASKS.values())),
    )  # fmt: skip
    return Finding(
        "The number task drops early, the letter task slides",
        f"{median['number']:.0f} against {median['letter']:.0f}",
        "tokens until accuracy drops below 90%: number task against letter task. A forecast of this "
        "length from short inputs holds in part for the number task, not for the letter task.",
        "chapters/10-length-generalization.md#figure-accuracy-by-length",
        lines,
        "Accuracy by length of input: the number task falls early and far, the letter task later.",
    )


def language_model(study: Study) -> Finding:
    """Tell how often a previous-token head leads toward positional, and an induction head toward symbolic."""
    config, tables = study.manifest["config"], study.tables
    table = real.with_known(
        real.mean_heads(tables["heads"], "repeated tokens", "tokens"), tables["known"], config["known_heads"]
    )
    area = {kind: real.known_against_others(table, kind, draws=1).value for kind in ("previous-token", "induction")}
    shown = table.assign(front=table["known"] != "other").sort_values("front")[
        ["positional", "symbolic", "known", "front"]
    ]
    dots = alt.Chart(shown.round(3)).mark_point(filled=True).encode(
        x=alt.X("positional:Q", title="positional").scale(domain=[0, 1]).axis(values=[]),
        y=alt.Y("symbolic:Q", title="symbolic").scale(domain=[0, 1]).axis(values=[]),
        color=alt.Color("known:N", title=None).scale(domain=list(KNOWN_HEADS), range=list(KNOWN_HEADS.values())).legend(
            values=["previous-token", "induction"], **LEGEND
        ),
        size=alt.condition("datum.front", alt.value(60), alt.value(12)),
        opacity=alt.condition("datum.front", alt.value(0.95), alt.value(0.4)),
    )  # fmt: skip
    return Finding(
        "A small language model has both kinds",
        f"{area['previous-token']:.0%} and {area['induction']:.0%}",
        "of comparisons with another head go as predicted: a head that looks one token back is the more positional, a "
        "head that copies (induction head) the more symbolic.",
        "chapters/13-profiling-real-models.md#figure-known-heads",
        dots,
        "Heads of a language model by both scores: previous-token heads lie low right, induction heads high left.",
    )


LEGEND = {"orient": "top", "padding": 0, "offset": 8, "symbolSize": 60, "labelFontSize": 11, "columnPadding": 8}


def task_color(names: list[str]) -> alt.Color:
    """Return the colours of a task that asks for a position and one that asks for a content."""
    return alt.Color("task:N", title=None).scale(domain=names, range=list(ASKS.values())).legend(**LEGEND)


def svg(picture: alt.TopLevelMixin, words: str, number: int) -> str:
    """Return a small chart as SVG in the page, in the colour of its text, with ids of its own."""
    with alt.theme.enable("possym"):
        spec = picture.properties(**SIZE).configure(aria=False).to_dict()
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=alt.SCHEMA_VERSION.rpartition(".")[0])
    drawn = drawn.replace("clip", f"card{number}-clip").replace(INK, "currentColor")
    drawn = re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", drawn)  # the picture is one image, whose parts say nothing
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)
