"""What the charts of training draw is what the tables hold, computed here with plain numpy."""

import re

import numpy as np
import pandas as pd
import pytest

from possym.charts import NEUTRAL, POSITIONAL, SYMBOLIC
from possym.experiments.learning_dynamics import charts as learning
from possym.experiments.learning_dynamics.summaries import pure_counts

from ...charts.drawn import draw, is_complete, marks, texts, title_of, unpacked, value_of
from .synthetic import PAPER_LIKE, STEPS, study


@pytest.fixture(scope="module")
def tables():
    """A study whose accuracies and scores are random, in shuffled rows."""
    random = np.random.default_rng(1)
    made = study(seeds=5).tables
    for table, columns in (("accuracy", ["accuracy"]), ("scores", ["positional", "symbolic", "entropy"])):
        for column in columns:
            made[table][column] = random.random(len(made[table])).round(3)
        made[table] = made[table].sample(frac=1, random_state=0)
    return made


def values(table, column, **where):
    rows = table
    for key, value in where.items():
        rows = rows[rows[key] == value]
    return rows.sort_values("seed")[column].to_numpy()


@pytest.mark.parametrize("task", ["number", "letter"])
def test_accuracy_shows_median_range_and_single_seeds(tables, task):
    chart = learning.accuracy_by_hops(tables["accuracy"], task)
    is_complete(chart)
    rows = unpacked(chart.data, ["step", "median", "low", "high", *(f"seed{seed}" for seed in range(5))])
    assert len(rows) == 4 * len(STEPS)
    for row in rows:
        found = values(
            tables["accuracy"], "accuracy", task=task, step=row["step"], hops=int(row["hops"][0]), split="validation"
        )
        assert [row["low"], row["median"], row["high"]] == pytest.approx(np.quantile(found, [0, 0.5, 1]), abs=1e-4)
        assert [row[f"seed{seed}"] for seed in range(5)] == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("shown", ["median", "seed3"])
def test_the_legend_shows_lines_whatever_the_menu_picks(tables, shown):
    svg = draw(learning.accuracy_by_hops(tables["accuracy"], "number"), shown=shown)
    symbols = re.findall(r'role-legend-symbol"[^>]*><path[^>]*>', svg)
    assert len(symbols) == 4 and all('opacity="1"' in symbol for symbol in symbols)


@pytest.mark.parametrize(("shown", "expected"), [("median", np.median), ("seed3", lambda found: found[3])])
def test_the_menu_picks_what_the_lines_show(tables, shown, expected):
    svg = draw(learning.accuracy_by_hops(tables["accuracy"], "number"), shown=shown)
    for mark in marks(svg, "area mark"):
        found = values(
            tables["accuracy"], "accuracy", task="number", step=0, hops=int(mark["hops"][0]), split="validation"
        )
        assert [float(mark["Accuracy"]), float(mark["high"])] == pytest.approx([found.min(), found.max()], abs=1e-3)
    for mark in marks(svg, "line mark"):
        found = values(
            tables["accuracy"], "accuracy", task="number", step=0, hops=int(mark["hops"][0]), split="validation"
        )
        assert float(mark["accuracy"].rstrip("%")) == pytest.approx(100 * expected(found), abs=0.06)


def test_titles_say_what_the_data_say():
    def words(accuracy, task):
        return learning.describe_learned(accuracy[accuracy["task"] == task], task)

    made = study().tables["accuracy"]
    assert words(made, "number") == (
        "Number task: 1 hop is first to reach 90 %, at median step 2,000; 4 hops are last, at 5,000"
    )
    assert words(made, "letter") == "Letter task: all hop counts reach 90 % at median step 3,000"
    tied = study(learnt=PAPER_LIKE["learnt"] | {("number", 3): 5000}).tables["accuracy"]
    assert words(tied, "number").endswith("; 3 and 4 hops are last, at 5,000")
    never = study(learnt=PAPER_LIKE["learnt"] | {("number", 4): 10**9}).tables["accuracy"]
    assert words(never, "number").endswith("at median step 2,000; with 4 hops most seeds never do")
    assert words(made[made["hops"].isin([0, 1])], "number") == "Number task: 1 hop reaches 90 % at median step 2,000"
    assert "no hop count" in words(made.assign(accuracy=0.1), "number")


def test_the_title_of_accuracy_counts_every_evaluation_though_few_are_drawn():
    made = study()
    steps = range(0, 7000, 10)
    made.tables["accuracy"] = pd.DataFrame(
        [
            ("number", step, seed, "validation", hops, float(step >= 1010 * (hops + seed)))
            for step in steps
            for seed in range(3)
            for hops in range(1, 5)
        ],
        columns=["task", "step", "seed", "split", "hops", "accuracy"],
    )
    chart = learning.accuracy_by_hops(made.tables["accuracy"], "number")
    said = "1 hop is first to reach 90 %, at {}step 2,020; 4 hops are last, at 5,050"
    assert title_of(chart) == f"Number task: {said.format('median ')}"
    assert title_of(chart, shown="seed1") == f"Number task, seed 1: {said.format('')}"
    earlier = "1 hop is first to reach 90 %, at step 1,010; 4 hops are last, at 4,040"
    assert title_of(chart, shown="seed0") == f"Number task, seed 0: {earlier}"
    assert chart.to_dict()["title"]["subtitle"].endswith("; 50 of 700 evaluations drawn")


def test_steps_to_learn_marks_every_seed_and_the_papers_steps():
    learnt = PAPER_LIKE["learnt"]
    made = study(seeds=3, learnt=lambda seed: learnt | {("number", 2): 3000 + 250 * seed, ("letter", 4): 10**9})
    chart = learning.steps_to_learn(made.tables["accuracy"])
    is_complete(chart)
    found = marks(draw(chart), "point")
    seeds = sorted(int(mark["step"].replace(",", "")) for mark in found if mark["row"] == "number, 2 hops")
    assert seeds == [3000, 3250, 3500]
    paper = {mark["row"]: mark["step"] for mark in found if "paper" in mark["source"]}
    assert paper["number, 1 hop"] == "2,000" and paper["letter, 3 hops"] == "3,000"
    assert "3 never do" in str(chart.to_dict()["title"])
    assert len([mark for mark in found if mark["row"] == "letter, 4 hops"]) == 1


def test_head_color_mixes_the_books_colours():
    corners = [learning.head_color(p, s) for p, s in ((1, 0), (0, 1), (1, 1), (0, 0))]
    assert corners == [color.lower() for color in (POSITIONAL, SYMBOLIC, NEUTRAL, "#ffffff")]
    middle = [round(sum(int(color[i : i + 2], 16) for color in corners) / 4) for i in (1, 3, 5)]
    assert learning.head_color(0.5, 0.5) == "#{:02x}{:02x}{:02x}".format(*middle)


def in_bytes(color):
    """The channels of a colour as Vega or as the library writes it."""
    if color.startswith("rgb("):
        return [int(channel) for channel in color[4:-1].split(",")]
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


@pytest.mark.parametrize("shown", ["median", "seed3"])
def test_strips_show_the_scores_of_all_seeds_or_of_one(tables, shown):
    chart = learning.kinds_over_training(tables["scores"], "number", columns=10)
    is_complete(chart)
    found = marks(draw(chart, shown=shown), "rect mark")
    assert len(found) == 12 * 10
    steps = sorted({int(mark["step"]) for mark in found})
    assert (len(steps), steps[0], steps[-1]) == (10, STEPS[0], STEPS[-1])
    for mark in found[::7]:
        where = dict(task="number", layer=int(mark["layer"]), step=int(mark["step"]))
        where |= {} if shown == "median" else {"seed": 3}
        pair = [np.median(values(tables["scores"], kind, **where)) for kind in ("positional", "symbolic")]
        assert [float(mark["positional"]), float(mark["symbolic"])] == pytest.approx(pair, abs=0.006)
        assert in_bytes(mark["color"]) == pytest.approx(in_bytes(learning.head_color(*pair)), abs=2)


def test_strips_name_the_pure_heads():
    kinds = PAPER_LIKE["kinds"]
    other = kinds | {"number": ["positional"] * 2 + ["symbolic"] * 10}
    chart = learning.kinds_over_training(
        study(kinds=lambda seed: other if seed == 0 else kinds).tables["scores"], "number"
    )
    for shown, count, words in (("median", 4, "by the median over seeds"), ("seed0", 2, "in seed 0")):
        found = [text for text in texts(draw(chart, shown=shown)) if text in "PS"]
        assert found == ["P"] * count + ["S"] * (12 - count)
        assert title_of(chart, shown=shown) == (
            f"Number task: {count} layers end positional, {12 - count} symbolic, {words}"
        )


@pytest.mark.parametrize(("task", "evaluation"), [("number", 5), ("letter", 20)])
def test_the_plane_shows_every_head_at_the_chosen_moment(tables, task, evaluation):
    chart = learning.heads_in_plane(tables["scores"])
    is_complete(chart)
    svg = draw(chart, task=task, evaluation=evaluation)
    dots = [mark for mark in marks(svg, "point") if "entropy" in mark]
    assert [int(dot["layer"]) for dot in dots] == list(range(12))
    for dot in dots:
        where = dict(task=task, layer=int(dot["layer"]), step=STEPS[evaluation])
        assert dot["step"] == str(STEPS[evaluation])
        for kind in ("positional", "symbolic", "entropy"):
            assert float(dot[kind]) == pytest.approx(np.median(values(tables["scores"], kind, **where)), abs=0.006)
    assert f"step {STEPS[evaluation]:,}" in texts(svg)
    assert value_of(chart, "evaluation_said", evaluation=evaluation) == f"{STEPS[evaluation]:,}"
    left = sum(min(float(dot["positional"]), float(dot["symbolic"])) < 0.9 for dot in dots)
    said = f"{task.capitalize()} task, step {STEPS[evaluation]:,}: {left} of 12 heads have left the corner"
    assert title_of(chart, task=task, evaluation=evaluation).startswith(said)


@pytest.mark.parametrize(("symbolic", "left"), [(0.5, 12), (0.95, 0)])
def test_a_head_leaves_the_corner_with_one_score(tables, symbolic, left):
    scores = tables["scores"].assign(positional=0.95, symbolic=symbolic)
    assert f": {left} of 12 heads have left" in title_of(learning.heads_in_plane(scores))


@pytest.mark.parametrize("shown", ["median", "seed2"])
def test_entropy_lines_are_medians_or_those_of_a_seed(tables, shown):
    chart = learning.entropy_by_layer(tables["scores"], "letter", columns=10)
    is_complete(chart)
    rows = unpacked(chart.data, ["step", "low", "high", shown])
    assert len(rows) == 12 * 10
    ends = {step: [] for step in (STEPS[0], STEPS[-1])}
    for row in rows:
        found = values(tables["scores"], "entropy", task="letter", layer=row["layer"], step=row["step"])
        drawn = np.median(found) if shown == "median" else found[2]
        assert [row["low"], row[shown], row["high"]] == pytest.approx([found.min(), drawn, found.max()], abs=0.006)
        ends.get(row["step"], []).append(drawn)
    first, last = (np.mean(values) for values in ends.values())
    whose = "" if shown == "median" else " of seed 2"
    assert title_of(chart, shown=shown) == f"Letter task: mean entropy{whose} goes from {first:.2f} to {last:.2f} nats"
    assert f"{last:.2f} nats" not in title_of(chart, shown="seed4")
    scores = tables["scores"]
    same = learning.entropy_by_layer(scores if shown == "median" else scores[scores["seed"] == 2], "letter", columns=10)
    assert lines_of(draw(chart, shown=shown)) == lines_of(draw(same)) != lines_of(draw(chart, shown="seed4"))


def lines_of(svg):
    """The paths of an SVG's lines."""
    found = re.findall(r'aria-roledescription="line mark"[^>]*? d="([^"]*)"', svg)
    assert len(found) == 12
    return found


def test_counts_stand_beside_the_papers():
    kinds = PAPER_LIKE["kinds"]
    other = kinds | {"number": ["positional"] * 2 + ["symbolic"] * 10}
    heads = study(seeds=4, kinds=lambda seed: other if seed == 0 else kinds).tables["heads"]
    chart = learning.pure_head_counts(pure_counts(heads))
    is_complete(chart)
    svg = draw(chart)
    points = marks(svg, "point")
    means = {mark["row"]: mark for mark in points if "mean" in mark}
    row = means["number, γ = 0.1, positional"]
    assert (float(row["mean"]), row["low"], row["high"], row["paper"]) == (3.5, "2", "4", "4")
    assert means["letter, γ = 0.05, symbolic"]["paper"] == "none"
    theirs = {mark["row"]: mark["paper"] for mark in points if "mean" not in mark}
    assert theirs == {
        "number, γ = 0.1, positional": "4", "number, γ = 0.1, symbolic": "8",
        "number, γ = 0.05, positional": "2", "number, γ = 0.05, symbolic": "7",
        "letter, γ = 0.1, positional": "0", "letter, γ = 0.1, symbolic": "11",
    }  # fmt: skip
