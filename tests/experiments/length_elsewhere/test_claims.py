"""The claim on length in other settings follows the study's table: changed tables change the verdict."""

import itertools

import pandas as pd
import pytest

from possym.experiments.length_elsewhere.claims import forecast_ranks, letter_goes_further
from possym.results import Study

SETTINGS = ("layers", "llama", "heads")


def study(home=1.0, **reach):
    """Three settings with two seeds; accuracy falls from 1 to 0 after the length of ``reach``, 50 or else 200.

    ``reach`` is by setting, task and seed, as in layers_letter_0; ``home`` is the accuracy at 17 tokens, by the same
    names, or one for all.
    """
    rows = []
    for setting, task, seed in itertools.product(SETTINGS, ("number", "letter"), (0, 1)):
        name = f"{setting}_{task}_{seed}"
        until = reach.get(name, 50 if task == "number" else 200)
        first = home.get(name, 1.0) if isinstance(home, dict) else home
        for length in (17, 50, 200, 1000):
            right = first if length == 17 else float(length <= until)
            rows += [(setting, task, seed, length, 0, right), (setting, task, seed, length, 1, 1.0)]
    table = pd.DataFrame(rows, columns=["setting", "task", "seed", "length", "hops", "accuracy"])
    return Study({"accuracy": table})


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "holds"),
        ({"llama_number_1": 1000}, "holds in part"),
        ({"llama_letter_0": 17}, "holds in part"),  # the median goes further, not the shortest
        ({f"{s}_letter_{seed}": 17 for s in SETTINGS[:2] for seed in (0, 1)}, "does not hold"),
        ({"llama_letter_0": 17, "llama_letter_1": 17}, "holds in part"),
        ({"home": 0.98}, "not testable here"),
        # Models that have not learnt their task do not count, however far they reach.
        ({"home": {"llama_number_1": 0.98}, "llama_number_1": 1000}, "holds"),
        ({"home": {f"{s}_number_{seed}": 0.98 for s in SETTINGS for seed in (0, 1)}}, "not testable here"),
    ],
)
def test_the_letter_task_must_go_further_in_every_setting(changes, verdict):
    assert letter_goes_further(study(**changes)).verdict == verdict


def test_what_is_said_is_what_was_counted():
    found = letter_goes_further(study(home={"heads_number_0": 0.5, "heads_number_1": 0.5}, llama_number_1=17))
    assert found.measured == (
        "every letter model gets further than every number model in 2 of 2 settings, the median letter model than "
        "the median number model in 2, 4.1 to 6.2 "
        "times as far"
    )
    assert found.interval.split("; ") == [
        "90 % points of the number and the letter task: fewer layers 57 (57 to 57) and 235 (235 to 235), 2 and 2 seeds",
        "Llama's blocks 38 (19 to 57) and 235 (235 to 235), 2 and 2 seeds",
        "more heads a layer left out: no model learns the number task",
    ]


@pytest.mark.parametrize(
    ("order", "verdict"),
    [
        ((0, 1, 2, 3, 4, 5), "holds"),
        ((1, 3, 0, 5, 2, 4), "holds in part"),
        ((3, 0, 5, 1, 4, 2), "not shown"),
        ((5, 4, 3, 2, 1, 0), "not shown"),
        ((0, 0, 0, 0, 0, 0), "not testable here"),
    ],
)
def test_the_forecast_must_rank_models_within_settings(order, verdict):
    """Settings far apart, so that all models together are well ranked whatever the order within."""
    tables = {"accuracy": [], "forecast": []}
    for place, setting in enumerate(SETTINGS):
        for seed, rank in enumerate(order):
            for name, point in (("accuracy", seed), ("forecast", rank)):
                until = 20 * 10**place + point
                tables[name] += [(setting, "letter", seed, n, 0, float(n <= until)) for n in (17, until, until + 1)]
    columns = ["setting", "task", "seed", "length", "hops", "accuracy"]
    found = forecast_ranks(Study({name: pd.DataFrame(rows, columns=columns) for name, rows in tables.items()}))
    assert found.verdict == verdict
