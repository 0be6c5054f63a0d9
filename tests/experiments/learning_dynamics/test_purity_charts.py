"""What the charts of purity draw is what plain loops over the tables count."""

import numpy as np
import pandas as pd
import pytest

from possym.experiments.learning_dynamics import purity_charts as purity
from possym.experiments.learning_dynamics import summaries as dynamics

from ...charts.drawn import draw, is_complete, marks
from .synthetic import study


@pytest.fixture(scope="module")
def made():
    """A study in which later seeds learn later; the two tasks end with accuracy 1 and their best step at 1."""
    learnt = lambda seed: {(task, hops): 500 * (seed + hops) for task in ("number", "letter") for hops in (1, 2, 3, 4)}  # noqa: E731
    best = lambda seed: {"number": 6750, "letter": 6750}  # noqa: E731
    return study(seeds=5, learnt=learnt, best=best).tables


@pytest.fixture(scope="module")
def variants():
    random = np.random.default_rng(0)
    axes = [("number", "letter"), range(3), (0, 9), range(4), ("last", "path", "all"), (1e-4, 0.1)]
    names = ["task", "seed", "step", "layer", "query", "temperature"]
    table = pd.MultiIndex.from_product(axes, names=names).to_frame(index=False)
    ends = np.array([(0.98, 0.01), (0.93, 0.07), (0.02, 0.99), (0.5, 0.5)])
    table[["positional", "symbolic"]] = ends[random.integers(4, size=len(table))]
    return table


def test_marks_are_the_two_steps_of_each_seed(made):
    chart = purity.learning_against_purity(made["accuracy"], made["heads"])
    is_complete(chart)
    drawn = {(m["task"], m["seed"]): (m["learnt"], m["step"]) for m in marks(draw(chart), "point")}
    assert len(drawn) == 10
    for (task, seed), (learnt, step) in drawn.items():
        rows = [
            r for r in made["accuracy"].itertuples() if (r.task, r.seed, r.split) == (task, int(seed), "validation")
        ]
        good = {r.step for r in rows if r.hops == 0 and r.accuracy >= 0.99}
        first = min(s for s in good if all(t in good for t in {r.step for r in rows} if t >= s))
        pure = sorted(
            r.since
            for r in made["heads"].itertuples()
            if (r.task, r.seed, r.gamma) == (task, int(seed), 0.1) and r.kind
        )
        assert (int(learnt.replace(",", "")), int(step.replace(",", ""))) == (first, pure[(len(pure) + 1) // 2 - 1])
    none = purity.learning_against_purity(made["accuracy"], made["heads"].query("gamma != 0.1"))
    assert "graphics-symbol" in draw(none) and none.title.text.startswith("No model has both")


def test_counts_are_those_of_every_reading(variants):
    counts = dynamics.reading_counts(variants, (0.1, 0.05))
    assert len(counts) == 2 * 3 * 3 * 2 * 2 * 2
    for row in counts.sample(30, random_state=0).itertuples():
        heads = [
            r
            for r in variants.itertuples()
            if (r.task, r.seed, r.step, r.query, r.temperature) == (row.task, row.seed, 9, row.query, row.temperature)
        ]
        high, low = ("positional", "symbolic") if row.kind == "positional" else ("symbolic", "positional")
        pure = [r for r in heads if getattr(r, high) >= 1 - row.gamma and getattr(r, low) <= row.gamma]
        assert row.heads == len(pure)
    chart = purity.counts_by_reading(counts)
    is_complete(chart)
    drawn = marks(draw(chart), "point")
    assert len(drawn) == 6 * 4 * 2
    for mark in drawn[:12]:
        wanted = {"kind": mark["kind"]} | dict(zip(("task", "query"), mark["row"].split(", "), strict=True))
        wanted |= {
            name: float(part.split(" = ")[1])
            for name, part in zip(("temperature", "gamma"), mark["reading"].split(", "), strict=True)
        }
        rows = counts
        for column, value in wanted.items():
            rows = rows[rows[column] == value]
        expected = rows["heads"].mean()
        assert float(mark["mean"]) == pytest.approx(expected, abs=0.06)


def test_rates_show_each_models_end(made):
    accuracy = pd.concat([made["accuracy"].assign(learning_rate=rate) for rate in (1e-4, 1e-3)])
    scores = pd.concat([made["scores"].assign(learning_rate=rate) for rate in (1e-4, 1e-3)])
    worse = (accuracy["learning_rate"] == 1e-3) & (accuracy["split"] == "test") & (accuracy["hops"] == 0)
    accuracy.loc[worse, "accuracy"] = 0.7
    summary = dynamics.rate_summary(accuracy, scores)
    assert len(summary) == 2 * 2 * 5
    assert summary.groupby("learning_rate")["accuracy"].unique().map(list).to_dict() == {1e-4: [1.0], 1e-3: [0.7]}
    counts = {
        task: set(map(tuple, rows[["positional", "symbolic", "pure"]].values)) for task, rows in summary.groupby("task")
    }
    assert counts == {"number": {(4, 8, 12)}, "letter": {(0, 11, 11)}}
    chart = purity.rates(summary)
    is_complete(chart)
    drawn = marks(draw(chart), "point")
    assert sorted((m["task"], m["rate"], m["pure"]) for m in drawn) == sorted(
        (task, rate, heads)
        for task, heads in (("number", "12"), ("letter", "11"))
        for rate in ("0.0001", "0.001")
        for _ in range(5)
    )
