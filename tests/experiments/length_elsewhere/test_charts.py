"""Charts of length in other settings show the numbers that they were given."""

import itertools

import pandas as pd

from possym.experiments.length_elsewhere import charts

from ...charts.drawn import draw, is_complete, marks, texts


def accuracy():
    rows = [
        (
            setting,
            task,
            seed,
            length,
            hops,
            1 - 0.1 * place * (1 + (setting == "llama")) - 0.1 * seed - 0.3 * (hops > 0),
        )
        for setting, task, seed in itertools.product(("llama", "paper"), ("letter", "number"), (0, 1, 2))
        for place, length in enumerate((17, 100, 1000))
        for hops in (0, 1)
    ]
    return pd.DataFrame(rows, columns=["setting", "task", "seed", "length", "hops", "accuracy"])


def points():
    return pd.DataFrame(
        [
            ("llama", "number", 0, 100.0, 50.0),
            ("llama", "letter", 1, 500.0, 500.0),
            ("paper", "letter", 0, 100.0, 400.0),
        ],
        columns=["setting", "task", "seed", "observed", "forecast"],
    )


def test_accuracy_shows_the_median_of_each_setting():
    chart = charts.accuracy_by_setting(accuracy())
    is_complete(chart)
    svg = draw(chart)
    drawn = {(m["label"], m["task"], m["length"]): (m["median"], m["low"], m["high"]) for m in marks(svg, "point")}
    assert len(drawn) == 12 and chart.to_dict()["spec"]["encoding"]["y"]["field"] == "median"
    assert drawn["Llama's blocks", "number", "1000"] == ("0.5", "0.4", "0.6")
    assert drawn["the paper's setting", "letter", "100"] == ("0.8", "0.7", "0.9")
    assert any("50% to 70% (number) and 50% to 70% (letter), by setting" in text for text in texts(svg))


def test_points_show_every_model_and_their_median_error():
    chart = charts.points_by_setting(points())
    is_complete(chart)
    svg = draw(chart)
    found = [(m["label"], m["task"], m["observed"], m["forecast"]) for m in marks(svg, "point") if "seed" in m]
    assert found == [
        ("Llama's blocks", "number", "100", "50"),
        ("Llama's blocks", "letter", "500", "500"),
        ("the paper's setting", "letter", "100", "400"),
    ]
    assert any("factor of 2.00" in text for text in texts(svg))


def test_a_setting_has_one_colour_whatever_else_is_shown():
    alone = charts.points_by_setting(points().query("setting == 'llama'"))
    (scale,) = (
        layer["encoding"]["color"]["scale"] for layer in alone.to_dict()["layer"] if "color" in layer["encoding"]
    )
    assert scale == {"domain": ["Llama's blocks"], "range": [charts.COLORS["Llama's blocks"]]}
    assert len(set(charts.COLORS.values())) == len(charts.COLORS)
