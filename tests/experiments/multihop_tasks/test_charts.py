"""The charts of the tasks draw the batch's own tokens, paths and counts."""

import itertools

import pandas as pd
import pytest
import torch

from possym.experiments.multihop_tasks import charts
from possym.tasks import Batch, LetterTask, NumberTask

from ...charts.drawn import draw, is_complete, marks, texts


def one_of_each(task):
    batches = [task.sample(1, hops=hops, generator=torch.Generator().manual_seed(hops)) for hops in (1, 2, 3, 4)]
    return Batch(*(torch.cat(column) for column in zip(*batches, strict=True)))


@pytest.mark.parametrize("task", [NumberTask(), LetterTask()], ids=["number", "letter"])
@pytest.mark.parametrize("hops", [1, 3, 4])
def test_the_path_drawn_is_the_batchs(task, hops):
    batch = one_of_each(task)
    chart = charts.hop_paths(task, batch, "A sequence and its path")
    is_complete(chart)
    svg = draw(chart, hops=hops)
    row = hops - 1
    names, path = task.decode(batch.tokens[row]), batch.path[row, : hops + 1].tolist()
    found = marks(svg, "(?:circle|square|diamond|triangle|point)")
    assert [mark["token"] for mark in found] == names
    roles = {int(mark["place"]): mark["role"] for mark in found}
    assert roles[16] == "query" and roles[path[-1]] == "answer"
    assert sum(role == "target" for role in roles.values()) == 7
    arcs = chart.layer[0].data.query("hops == @hops")
    assert arcs.groupby("jump")["place"].agg(["first", "last"]).to_numpy().tolist() == [
        [start, stop] for start, stop in itertools.pairwise(path)
    ]
    assert all(name in texts(svg) for name in names)


def test_balance_counts_the_answers_places():
    batch = LetterTask().sample(640)
    chart = charts.balance(batch)
    is_complete(chart)
    counts = chart.data.set_index(["hops", "place"])["sequences"]
    assert counts.sum() == 640 and len(counts) == 32
    for (hops, place), count in counts.items():
        assert count == sum(
            p[h] == place for h, p in zip(batch.hops.tolist(), batch.path.tolist(), strict=True) if h == hops
        )
    draw(chart)


def test_attention_squares_are_the_weights():
    weights = pd.DataFrame({"layer": [0, 0, 1, 1], "place": [0, 1, 0, 1], "attention": [0.25, 0.75, 0.995, 0.005]})
    chart = charts.attention_by_layer(weights, ["a1", "ab"], "Where the last token looks")
    is_complete(chart)
    found = {(m["layer"], m["place"]): float(m["attention"]) for m in marks(draw(chart), "(?:square|point)")}
    assert found == {("0", "0"): 0.25, ("0", "1"): 0.75, ("1", "0"): pytest.approx(0.995, abs=0.006)}
