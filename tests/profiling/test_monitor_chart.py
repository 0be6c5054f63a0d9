"""The chart of a monitored run draws what the table holds."""

import re

import numpy as np
import pandas as pd
import pytest

from possym.charts import POSITIONAL, SYMBOLIC
from possym.errors import InputError
from possym.profiling.monitor_chart import heads_over_training

from ..charts.drawn import draw, is_complete, marks, texts


def table(layers=3, heads=2, steps=(0, 5, 40)):
    random = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([steps, range(layers), range(heads)], names=["step", "layer", "head"])
    scores = random.random((len(index), 2)).round(3)
    frame = pd.DataFrame(scores, index=index, columns=["positional", "symbolic"]).reset_index()
    return frame.sample(frac=1, random_state=1)


def test_every_score_of_every_head_is_drawn():
    frame, chart = table(), heads_over_training(table())
    is_complete(chart)
    svg = draw(chart)
    drawn = {
        (int(m["layer"]), int(m["head"]), int(m["Training step"]), m["kind"]): float(m["Score"])
        for m in marks(svg, "point")
    }
    truth = {
        (row.layer, row.head, row.step, kind): getattr(row, kind)
        for row in frame.itertuples()
        for kind in ("positional", "symbolic")
    }
    assert drawn == pytest.approx(truth, abs=1e-3)
    assert len(marks(svg, "line mark")) >= 2 * 6
    assert POSITIONAL in svg
    assert SYMBOLIC in svg
    assert [text for text in texts(svg) if text.startswith("layer")] == ["layer 0", "layer 1", "layer 2"]


def test_the_menu_picks_out_one_head():
    chart = heads_over_training(table())
    assert svg_of_heads(draw(chart)) == 12
    assert svg_of_heads(draw(chart, shown="layer 1, head 0")) == 2
    assert {"name": "shown_click", "value": "name"} in chart.to_dict()["params"]


def svg_of_heads(svg):
    """How many lines are drawn in full strength."""
    return len(re.findall(r'aria-roledescription="line mark"[^>]*opacity="0.8"', svg))


def test_the_title_gives_the_means_at_the_end():
    frame = table()
    last = frame[frame.step == 40]
    said = f"positional {last.positional.mean():.2f}, symbolic {last.symbolic.mean():.2f}"
    spec = heads_over_training(frame).to_dict()
    assert spec["title"]["text"] == f"Means over heads at step 40: {said}"
    assert said in spec["description"]


def test_more_than_ten_layers_stay_in_order():
    svg = draw(heads_over_training(table(layers=12, heads=1, steps=(0, 1))))
    named = [text for text in texts(svg) if text.startswith("layer")]
    assert named == [f"layer {k}" for k in range(12)]


@pytest.mark.parametrize("given", [None, table().drop(columns="head"), table().iloc[:0]])
def test_what_is_no_table_is_refused(given):
    with pytest.raises(InputError, match="table"):
        heads_over_training(given)
