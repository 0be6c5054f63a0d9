"""What the charts of a head draw, also where the page itself computes, against possym.scores and real swaps."""

import itertools
import re

import pandas as pd
import pytest
import torch

from possym.ensembles.last_token import attention, swapped_attention
from possym.experiments import scoring
from possym.experiments.scoring import charts, summaries
from possym.scores import exclusion, relocated_logits, swap_scores

from ...charts.drawn import draw, is_complete, marks, texts


@pytest.fixture(scope="module")
def head():
    generator = torch.Generator().manual_seed(3)
    return 2 * torch.randn(6, 6, generator=generator), torch.randn(1, generator=generator)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


TOKENS = ["a", "b", "c", "d", "e", "f", "?"]


@pytest.mark.parametrize(("first", "second"), [(0, 3), (5, 2), (1, 4)])
def test_the_page_swaps_as_the_model_would(head, first, second):
    chart = charts.swap_figure(*head, TOKENS, title="A head that was drawn at random")
    is_complete(chart)
    svg = draw(chart, first=first, second=second)
    bars = marks(svg, "bar")
    shown = {when: [number(bar["attention"]) for bar in bars if bar["when"] == when] for when in ("before", "after")}
    assert shown["before"] == pytest.approx(attention(*head).tolist(), abs=6e-4)
    after = swapped_attention(*head, first, second)
    assert shown["after"] == pytest.approx(after.tolist(), abs=6e-4)
    moved = {int(bar["place"]): bar["token"] for bar in bars if bar["when"] == "after"}
    assert (moved[first], moved[second], moved[6]) == (TOKENS[second], TOKENS[first], "?")

    pair = torch.tensor([first, second])
    v, w = attention(*head)[pair], after[pair]
    cosines = [(w @ u / w.norm() / u.norm()).item() for u in (v, v.flip(0))]
    words = next(text for text in texts(svg) if text.startswith("cos"))
    found = [number(part) for part in re.findall(r"[−\d]*\d\.\d+", words)]
    assert found[:2] == pytest.approx(cosines, abs=6e-4)
    seen = attention(*head)
    pairs = list(itertools.combinations(range(6), 2))
    weight = (torch.tensor([abs(seen[i] - seen[j]) for i, j in pairs]) / 1e-4).softmax(0)
    assert found[2] == pytest.approx(weight[pairs.index((min(first, second), max(first, second)))].item(), abs=6e-4)


def test_the_swap_figure_starts_at_the_heaviest_swap_and_states_the_scores(head):
    spec = charts.swap_figure(*head, TOKENS, title="A head that was drawn at random").to_dict()
    start = {param["name"]: param["value"] for param in spec["params"]}
    seen = attention(*head)
    heaviest = max(itertools.combinations(range(6), 2), key=lambda pair: abs(seen[pair[0]] - seen[pair[1]]))
    assert (start["first"], start["second"]) == heaviest
    scores = swap_scores(head[0], extra_logits=head[1])
    assert (
        f"positional score {scores.positional:.2f}, symbolic score {scores.symbolic:.2f}" in spec["title"]["subtitle"]
    )


def test_large_logits_do_not_break_the_swap_figure(head):
    svg = draw(charts.swap_figure(300 * head[0], head[1], TOKENS, title="A head with very large logits"))
    total = sum(number(bar["attention"]) for bar in marks(svg, "bar") if bar["when"] == "before")
    assert total == pytest.approx(1, abs=0.005)


def test_swap_table_sums_to_the_scores(head):
    table = charts.swap_table(*head, temperature=0.1)
    scores = swap_scores(head[0], extra_logits=head[1], temperature=0.1)
    for kind in ("positional", "symbolic"):
        assert (table["weight"] * table[kind]).sum() == pytest.approx(getattr(scores, kind).item(), abs=1e-4)


@pytest.mark.parametrize(("angle", "spread"), [(0.4, 0.0), (0.0, 0.7), (0.55, 0.3)])
def test_the_two_knobs_draw_relocated_logits(angle, spread):
    chart = charts.two_knobs()
    is_complete(chart)
    svg = draw(chart, angle=angle, spread=spread)
    turns = torch.arange(6, dtype=torch.float64) * spread
    keys = torch.stack([turns.cos(), turns.sin()], -1)
    M = relocated_logits(
        torch.tensor([1.0, 0.0], dtype=torch.float64), keys, query_position=6, positions=torch.arange(6),
        frequencies=torch.tensor([angle], dtype=torch.float64), layout="interleaved", scale=1.0,
    )  # fmt: skip
    cells = {}
    for mark in (mark for mark in marks(svg, "rect mark") if "logit" in mark):
        cells[int(mark["Content of the key"]), int(mark["Position of the key"])] = number(mark["logit"])
    assert len(cells) == 36
    for (a, b), logit in cells.items():
        assert logit == pytest.approx(M[a, b].item(), abs=1e-6)
    words = next(text for text in texts(svg) if text.startswith("A = "))
    deviations = [number(part) for part in re.findall(r"= ([−\d.]+)", words)]
    assert deviations == pytest.approx([value.item() for value in exclusion(M)[1:3]], abs=0.006)


def test_heat_maps_hold_the_logits_and_outline_the_observed(head):
    heads = {"one": head[0], "two": head[0].T.contiguous()}
    chart = charts.relocated_heatmap(heads, "Two random heads side by side")
    is_complete(chart)
    rows = chart.data
    assert len(rows) == 72
    for row in rows.itertuples():
        content = int(row.content.removeprefix("content "))
        assert row.logit == pytest.approx(heads[row.head][content, row.place].item(), abs=1e-3)
        assert row.observed == (content == row.place)
    drawn = marks(draw(chart), "rect mark")
    assert len(drawn) == 72 + 12


def test_temperature_curve_holds_mean_scores(head):
    many = torch.stack([head[0], head[0].flip(0)]), torch.stack([head[1], head[1]])
    chart = charts.temperature_curve({"a head": many}, [1e-4, 0.1])
    is_complete(chart)
    for row in chart.data.itertuples():
        scores = swap_scores(many[0], extra_logits=many[1], temperature=row.temperature)
        assert row.score == pytest.approx(getattr(scores, row.kind).mean().item(), abs=1e-4)
    moved = max(abs(g["score"].iloc[0] - g["score"].iloc[1]) for _, g in chart.data.groupby("kind"))
    assert f"by up to {moved:.2f}" in chart.to_dict()["title"]["text"]
    draw(chart)


def test_plane_profile_draws_every_plane():
    import pandas as pd

    table = pd.DataFrame(
        {
            "frequency_id": [1, 2, 3],
            "positional": [0.9, 0.5, 0.1],
            "symbolic": [0.2, 0.5, 0.8],
            "logit_norm": [1.0, 3.0, 2.0],
        }
    )
    chart = charts.plane_profile(table, "A head of three planes")
    is_complete(chart)
    svg = draw(chart)
    bars = {mark["Frequency ID (1 is the fastest)"]: number(mark["logit_norm"]) for mark in marks(svg, "bar")}
    assert bars == {"1": 1.0, "2": 3.0, "3": 2.0}
    points = {(mark["kind"], mark["frequency_id"]): number(mark["score"]) for mark in marks(svg, "(?:point|circle)")}
    assert points["positional", "1"] == 0.9 and points["symbolic", "3"] == 0.8
    assert "largest logits is number 2" in chart.to_dict()["description"]


@pytest.fixture(scope="module")
def cells():
    settings = scoring.Config.preset_named("smoke", keys=(8, 16), heads=1, device="cpu")
    return scoring.run(settings).tables["cells"]


def test_the_chart_of_weightings_shows_every_error_and_names_the_least(cells):
    errors = summaries.weighting_errors(cells)
    chart = charts.weighting_chart(errors)
    is_complete(chart)
    points = [mark for mark in marks(draw(chart), "point") if "worst" in mark]
    assert sorted(number(mark["worst"]) for mark in points) == pytest.approx(sorted(errors["worst"]), abs=6e-4)
    assert f"error: {errors['worst'].min():.2f}, with" in chart.to_dict()["title"]["text"]


def test_the_chart_of_sinks_shows_the_other_score_of_positional_heads(cells):
    chart = charts.sink_chart(cells, ("proportional", 1.0))
    is_complete(chart)
    own = cells[cells["kind"].eq("positional")].set_index(["weighting", "temperature"])
    expected = pd.concat([own.loc[("absolute", 1e-4)], own.loc[("absolute", 0.1)], own.loc[("proportional", 1.0)]])
    points = [number(mark["symbolic"]) for mark in marks(draw(chart), "point")]
    assert sorted(points) == pytest.approx(sorted(expected["symbolic"]), abs=6e-4)
    title = chart.to_dict()["title"]["text"]
    absolute = own.loc["absolute"]["symbolic"].max()
    assert f"up to {absolute:.2f} symbolic; with weights in proportion, " in title
    assert title.endswith(f"{own.loc[('proportional', 1.0)]['symbolic'].max():.2f}")
