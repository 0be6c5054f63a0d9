"""Cliff against slope: the chart holds the study's own medians, and its clock turns by the angles of RoPE."""

import math
import re

import pandas as pd
import pytest

from possym.experiments.generalization.cliff_chart import HANDS, cliff_and_slope

LENGTHS = (17, 100, 1000)


@pytest.fixture(scope="module")
def spec():
    accuracy = pd.DataFrame(
        [
            {"task": task, "seed": seed, "length": length, "hops": hops, "accuracy": value + 0.01 * seed}
            for task, falls in (("number", (0.9, 0.5, 0.1)), ("letter", (0.9, 0.8, 0.4)))
            for length, value in zip(LENGTHS, falls, strict=True)
            for seed in (0, 1, 2)
            for hops in (0, 1)
        ]
    )
    head = {"learning_rate": 1e-4, "layer": 3, "head": 0, "hops": 1}
    looks = pd.DataFrame([{"task": task, "seed": 0, **head, "step": 1, "weight": 0.9} for task in ("number", "letter")])
    leads = pd.DataFrame(
        [
            {
                "task": task,
                "seed": 0,
                **head,
                "length": length,
                "least": 1.0,
                "median": 2.0,
                "most": 3.0,
                "outside": out,
            }
            for task in ("number", "letter")
            for length, out in zip(LENGTHS, (0.0, 0.25, 0.75), strict=True)
        ]
    )
    return cliff_and_slope(accuracy, leads, looks, 128).to_dict()


def test_titles_say_the_median_accuracy_of_every_length(spec):
    said = spec["title"]["text"]["expr"]
    for length, number, letter in ((17, 91, 91), (100, 51, 81), (1000, 11, 41)):
        assert re.search(
            rf"Right answers at {length:,} tokens: {number}\s% on the number task, {letter}\s% on the letter task", said
        )


def test_bars_share_the_attention_and_curves_are_medians(spec):
    rows = [row for data in spec["datasets"].values() for row in data]
    shares = {(row["length"], row["part"]): row["share"] for row in rows if "share" in row}
    assert shares[100, "before"] == 0.25 and shares[100, "window"] == 0.75 and shares[1000, "before"] == 0.75
    medians = {(row["task"], row["length"]): row["median"] for row in rows if "median" in row}
    assert medians["letter", 1000] == 0.41


def test_the_hands_are_the_fastest_planes(spec):
    rows = [row for data in spec["datasets"].values() for row in data]
    angles = {row["plane"]: row["angle"] for row in rows if "plane" in row}
    assert angles == {k: pytest.approx(10000 ** (-2 * (k - 1) / 128), abs=1e-5) for k in range(1, HANDS + 1)}
    assert math.isclose(angles[1], 1)
