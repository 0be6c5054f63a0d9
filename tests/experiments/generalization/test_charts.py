"""Charts of length generalization show the numbers that they were given."""

import itertools
import math

import pandas as pd
import pytest

from possym.experiments.generalization import charts, forecast_charts
from possym.experiments.generalization.claims import leads_fall
from possym.results import Study
from possym.theory import index_bound, retrieval_bound

from ...charts.drawn import draw, is_complete, marks, texts, title_of, titles_at_every_setting

LENGTHS = (17, 100, 1000)
BOUND = "bound, scaled"


def accuracy():
    rows = [
        (task, seed, length, hops, 1 - 0.2 * place - 0.1 * seed - 0.05 * (task == "number") - 0.01 * hops)
        for task in ("number", "letter")
        for seed in (0, 1, 2)
        for place, length in enumerate(LENGTHS)
        for hops in range(5)
    ]
    return pd.DataFrame(rows, columns=["task", "seed", "length", "hops", "accuracy"]).assign(learning_rate=1e-4)


def forecast():
    table = accuracy().query("hops == 0").drop(columns="hops")
    return table.assign(accuracy=table["accuracy"] - 0.03)


def parts():
    rows = [
        ("number", seed, source, way, layer, length, 0.5 + 0.1 * layer + 0.05 * seed + (source == "forecast") * 0.01)
        for seed, source, length in itertools.product((0, 1, 2), ("measured", "forecast"), (35, 70, 140))
        for way, layers in (("whole", [-1]), ("exposed", [0, 1]), ("shielded", [0, 1]), ("upto", [0, 1]))
        for layer in layers
    ]
    return pd.DataFrame(rows, columns=["task", "seed", "source", "way", "layer", "length", "accuracy"])


def repairs():
    rows = [
        (task, seed, repair, heads, length, 0.2 + 0.1 * seed + 0.3 * (repair == "p-RoPE") * (heads == "symbolic"))
        for task, seed, length in itertools.product(("number", "letter"), (0, 1, 2), (17, 100))
        for repair, heads in [("none", "none"), *itertools.product(("p-RoPE", "log length"), ("all", "symbolic"))]
    ]
    return pd.DataFrame(rows, columns=["task", "seed", "repair", "heads", "length", "accuracy"])


def points():
    return pd.DataFrame(
        [("number", 1e-4, 0, 50.0, False), ("number", 1e-4, 1, 150.0, False), ("letter", 1e-3, 0, 1000.0, True)],
        columns=["task", "learning_rate", "seed", "point", "censored"],
    )


def leads():
    """Heads whose lead falls from 10 to 5 to 1 (number), or stays (letter); a second layer that looks nowhere."""
    rows, looks, heads = [], [], []
    for task, layer in itertools.product(("number", "letter"), (0, 1)):
        key = (task, 0, layer, 0)
        looks.append((*key, 1, 1, 0.9 if layer == 0 else 0.1))
        heads.append((*key, 0.8 if task == "number" else 0.0027))
        for length, lead in zip(LENGTHS, (10.0, 5.0, 1.0) if task == "number" else (10.0, 10.0, 10.0), strict=True):
            rows.append((*key, 1, length, lead - 1, lead, lead + 2))
    head = ["task", "seed", "layer", "head"]
    return (
        pd.DataFrame(rows, columns=[*head, "hops", "length", "least", "median", "most"]),
        pd.DataFrame(looks, columns=[*head, "hops", "step", "weight"]),
        pd.DataFrame(heads, columns=[*head, "angle"]),
    )


def test_accuracy_shows_medians_and_the_papers_readings():
    chart = charts.accuracy_by_length(accuracy())
    is_complete(chart)
    svg = draw(chart)
    drawn = [mark for mark in marks(svg, "point") if "source" in mark]
    assert len(drawn) == 10
    assert {(m["task"], m["length"], m["accuracy"]) for m in drawn} >= {
        ("number", "300", "0.47"),
        ("letter", "2000", "0.74"),
    }
    medians = {(m["task"], m["length"]): m["median"] for m in marks(svg, "point") if "median" in m}
    assert medians["number", "100"] == "0.65" and medians["letter", "1000"] == "0.5"
    assert title_of(chart) == "At 1,000 tokens the median model is right on 45 % (number) and 50 % (letter)"
    assert title_of(chart, hops="1").endswith("right on 44 % (number) and 49 % (letter) with 1 hop")
    four = [mark for mark in marks(draw(chart, hops="4"), "point") if "source" not in mark]
    assert {(m["task"], m["length"]): m["median"] for m in four}["number", "100"] == "0.61"


def test_points_say_where_they_are_limits():
    chart = charts.points_by_rate(points())
    is_complete(chart)
    svg = draw(chart)
    drawn = marks(svg, "point")
    assert [(m["row"], m["reach"]) for m in drawn] == [
        ("number, rate 0.0001", "falls here"),
        ("number, rate 0.0001", "falls here"),
        ("letter, rate 0.001", "at least this"),
    ]
    assert any("factor of 3.0" in text for text in texts(svg))


def test_leads_have_the_bound_beside_them():
    chart = charts.leads_by_length(*leads())
    is_complete(chart)
    data = pd.concat([pd.DataFrame(rows) for rows in chart.to_dict()["datasets"].values()])
    data = data.dropna(subset=["median"])
    assert set(data["layer"]) == {0}  # layer 1 looks nowhere
    rows = data.set_index(["task", "length"])
    for task, function in (
        ("number", lambda n: min(1 - math.cos(0.8), 2 * math.pi**2 / n**2)),
        ("letter", lambda n: 1 - math.cos(math.pi / 4 - n * 0.0027)),
    ):
        says = [length for length in LENGTHS if task == "number" or length * 0.0027 <= math.pi / 4]
        for length in says:
            assert rows.loc[(task, length), "bound"] == pytest.approx(10 * function(length) / function(17), abs=1e-3)
        lines = [mark for mark in marks(draw(chart, head=f"{task}, layer 0"), "line mark") if mark["curve"] == BOUND]
        assert len(lines) == 1 and rows.loc[task, "bound"].notna().sum() == len(says)
    assert len(says) == 2  # of three lengths
    svg = draw(chart)  # starts where most is lost
    assert [m["median"] for m in marks(svg, "point")] == ["10", "5", "1"]
    assert any("lead is 10% (number) and 100% (letter)" in text for text in texts(svg))
    blind = leads()[1].assign(weight=0.2)
    said = texts(draw(charts.leads_by_length(leads()[0], blind, leads()[2])))
    assert any("No head puts half of its attention" in text for text in said)


def test_the_chart_of_leads_and_the_claim_count_seeds_alike():
    rows, looks, heads = leads()
    # Two layers of three seeds: the median layer keeps 30 %, the median seed 40 %.
    parts = {0: (0.0, 0.8), 1: (0.2, 0.2), 2: (0.6, 0.4)}
    longest, number = rows["length"] == max(LENGTHS), rows["task"] == "number"
    seeds = []
    for seed, shares in parts.items():
        own = rows.assign(seed=seed)
        for layer, share in enumerate(shares):
            own.loc[longest & number & (own["layer"] == layer), "median"] = 10 * share
        seeds.append(own)
    rows = pd.concat(seeds, ignore_index=True)
    looks = pd.concat([looks.assign(seed=seed, weight=0.9) for seed in parts], ignore_index=True)
    found = leads_fall(Study({"leads": rows, "looks": looks}))
    said = charts.leads_by_length(rows, looks, heads).to_dict()["title"]["text"]
    assert "the median seed's lead is 40% (number) and 100% (letter) of" in found.measured
    assert "the median seed's lead is 40% (number) and 100% (letter) of" in said


def test_the_bound_is_that_of_the_tasks_function():
    assert charts.bound("number", 40, 0.8) == index_bound(40, 0.8)
    assert charts.bound("letter", 40, 0.01) == retrieval_bound(40, 0.01, 8)


def test_the_forecast_stands_beside_the_measurement():
    chart = forecast_charts.forecast_curves(accuracy(), forecast())
    is_complete(chart)
    svg = draw(chart)
    drawn = {(m["task"], m["source"], m["length"]): m["median"] for m in marks(svg, "point")}
    assert drawn["letter", "measured", "100"] == "0.7" and drawn["letter", "forecast", "100"] == "0.67"
    assert any("within 0.03" in text for text in texts(svg))


def test_ratios_by_level_name_the_worst_median():
    table = pd.DataFrame(
        [
            ("number", 3, 3, 0.8, 0.5, 1.0, 0.9),
            ("number", 3, 2, 1.1, 1.0, 1.2, 0.7),
            ("letter", 3, 3, 1.05, 1.0, 1.1, 0.9),
            ("letter", 3, 0, float("nan"), float("nan"), float("nan"), 0.7),
        ],
        columns=["task", "models", "fall", "median", "low", "high", "level"],
    )
    chart = forecast_charts.ratios_by_level_chart(table, 1.1)
    is_complete(chart)
    svg = draw(chart)
    assert [(m["row"], m["median"]) for m in marks(svg, "point")] == [
        ("number, 90\N{NO-BREAK SPACE}%", "0.8"),
        ("number, 70\N{NO-BREAK SPACE}%", "1.1"),
        ("letter, 90\N{NO-BREAK SPACE}%", "1.05"),
    ]
    assert any("×1.25 (number) and ×1.05 (letter)" in text for text in texts(svg))


def test_checkpoints_stand_side_by_side():
    rows = [
        (task, checkpoint, seed, length, 0.9 - 0.1 * place - (0.2 if checkpoint == "best" else 0) - 0.05 * seed)
        for task, checkpoint, seed in itertools.product(charts.RULES, ("last", "best"), (0, 1, 2))
        for place, length in enumerate(LENGTHS)
    ]
    chart = charts.checkpoints_by_length(
        pd.DataFrame(rows, columns=["task", "checkpoint", "seed", "length", "accuracy"])
    )
    is_complete(chart)
    drawn = marks(draw(chart), "point")
    assert {m["which"] for m in drawn if "which" in m} == {"letter task"}
    medians = {(m["checkpoint"], m["length"]): m["median"] for m in drawn if "checkpoint" in m}
    assert len(medians) == 6 and medians["best", "100"] == "0.55" and medians["last", "1000"] == "0.65"
    said = "Letter task, 1,000 tokens: the median best checkpoint is right on 45 %, the last one on 65 %"
    assert title_of(chart) == said and title_of(chart, which="number task").startswith("Number task")


def test_forecast_points_name_their_error():
    table = pd.DataFrame(
        [("number", 1e-4, 0, 100.0, 50.0), ("number", 1e-4, 1, 100.0, 100.0), ("letter", 1e-3, 0, 500.0, 2000.0)],
        columns=["task", "learning_rate", "seed", "observed", "forecast"],
    )
    chart = forecast_charts.forecast_points(table)
    is_complete(chart)
    svg = draw(chart)
    assert [(m["observed"], m["forecast"]) for m in marks(svg, "point")] == [
        ("100", "50"),
        ("100", "100"),
        ("500", "2,000"),
    ]
    assert any("factor of 2.00" in text for text in texts(svg))


def test_quality_shows_errors_and_names_the_best():
    rows = [
        (task, way, measure, value, value - 0.02, value + 0.02)
        for task in ("number", "letter")
        for way, value in (("forecast", 0.1 if task == "number" else 0.3), ("one number", 0.2))
        for measure in ("error", "rank")
    ]
    table = pd.DataFrame(rows, columns=["task", "way", "measure", "value", "low", "high"])
    chart = forecast_charts.quality_chart(table)
    is_complete(chart)
    svg = draw(chart)
    assert [(m["row"], m["value"]) for m in marks(svg, "point")] == [
        ("number: forecast", "0.100"), ("number: one number", "0.200"),
        ("letter: forecast", "0.300"), ("letter: one number", "0.200"),
    ]  # fmt: skip
    assert any("forecast (number), one number (letter)" in text for text in texts(svg))


def test_parts_follow_their_menus():
    chart = forecast_charts.parts_by_layer(parts())
    is_complete(chart)
    assert [m["median"] for m in marks(draw(chart), "point")] == ["0.55", "0.65"]
    assert title_of(chart) == "Number task, 70 tokens: shielding layer 1 returns most, 45 % → 65 %"
    assert title_of(chart, way="exposed", at=35) == "Number task, 35 tokens: layer 0 alone does most harm, down to 55 %"
    assert title_of(chart, way="upto", source="forecast") == (
        "Number task, 70 tokens, forecast: below 90 % once layers up to 0 see the extra tokens"
    )
    assert len(set(titles_at_every_setting(chart).values())) == 2 * 3 * 3  # sources, lengths, ways
    held = parts().assign(accuracy=0.95)
    assert title_of(forecast_charts.parts_by_layer(held)).endswith("shielding one layer returns nothing to 95 %")
    assert title_of(forecast_charts.parts_by_layer(held), way="upto").endswith(
        "90 % or more however many layers see the extra tokens"
    )
    assert [m["median"] for m in marks(draw(chart, source="forecast", way="upto"), "point")] == ["0.56", "0.66"]
    assert [m["Accuracy"] for m in marks(draw(chart), "rule mark") if "Layer" not in m] == ["0.45"]


def test_failing_layers_are_counted():
    table = pd.DataFrame(
        [
            ("number", 0, "measured", 1),
            ("number", 1, "measured", 1),
            ("number", 2, "measured", 2),
            ("number", 0, "forecast", 1),
            ("letter", 0, "measured", 0),
        ],
        columns=["task", "seed", "source", "cause"],
    )
    chart = forecast_charts.failing_chart(table)
    is_complete(chart)
    svg = draw(chart)
    bars = {(m["task"], m["source"], m["cause"]): m["models"] for m in marks(svg, "bar")}
    assert bars["number", "measured", "1"] == "2" and bars["number", "forecast", "1"] == "1"
    words = "layer 1 in 2 of 3 (number) and layer 0 in 1 of 1 (letter)"
    assert any(words in text for text in texts(svg))


def test_repairs_follow_the_length_and_name_the_best():
    chart = charts.repairs_chart(repairs())
    is_complete(chart)
    svg = draw(chart, at=17)
    drawn = {(m["task"], m["repair"], m["which"]): m["median"] for m in marks(svg, "point")}
    assert len(drawn) == 8 and drawn["letter", "p-RoPE", "symbolic heads"] == "0.6"
    assert drawn["letter", "log length", "symbolic heads"] == "0.3"
    helps = "p-RoPE of symbolic heads helps most (number 30 % → 60 %, letter 30 % → 60 %)"
    assert title_of(chart) == f"At 100 tokens {helps}" and title_of(chart, at=17) == f"At 17 tokens {helps}"
    same = repairs().assign(accuracy=0.5)
    assert title_of(charts.repairs_chart(same)) == "At 100 tokens nothing helps (number 50 %, letter 50 %)"


def test_wrong_keys_name_the_nearest_miss():
    table = pd.DataFrame(
        [(head, far, -5.0 + (far == 44) * peak) for head, peak in (("a", 4.0), ("b", 1.0)) for far in range(0, 60)],
        columns=["head", "farther", "gap"],
    )
    chart = charts.distractor_chart(pd.concat([rows.reset_index(drop=True) for _, rows in table.groupby("head")]))
    is_complete(chart)
    svg = draw(chart)
    assert any("a: -1.0 at 44 positions; b: -4.0 at 44 positions" in text for text in texts(svg))
