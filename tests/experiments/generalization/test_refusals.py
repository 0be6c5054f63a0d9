"""What cannot be measured is refused in words, before any work."""

import pandas as pd
import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.errors import InputError
from possym.experiments.generalization import sweep
from possym.experiments.generalization.names import (
    Looks,
    crossing,
    crossings,
    failing_layers,
    forecast,
    looked_at,
    measured_parts,
    plane_norms,
    predictions,
    quality,
    repaired,
    sample_members,
    settings,
    wrong_keys,
)
from possym.tasks import NumberTask

TASK = NumberTask()
MODEL = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0, 1])


def source():
    return torch.Generator().manual_seed(0)


WINDOWS = sample_members(TASK, 2, 40, 17, source())
OTHER_MEMBERS = sample_members(TASK, 3, 8, 17, source())
LOOKS = looked_at(MODEL, WINDOWS)
BATCHES = {
    "none": None,
    "a tuple": tuple(WINDOWS),
    "no members": TASK.sample(8),
    "other members": OTHER_MEMBERS,
    "other fields": WINDOWS._replace(answer=WINDOWS.answer[:, :3]),
    "no tensor": WINDOWS._replace(answer=3),
    "elsewhere": WINDOWS._replace(path=WINDOWS.path.to("meta")),
}


def foretold(batch=WINDOWS, generator=None, **more):
    return forecast(MODEL, TASK, 40, batch, generator or source(), **more)


@pytest.mark.parametrize("measure", [sweep, repaired, measured_parts])
@pytest.mark.parametrize("wrong", [None, 0, torch.Generator])
def test_a_source_that_is_no_generator(measure, wrong):
    with pytest.raises(InputError, match="source"):
        measure(MODEL, TASK, 40, 8, wrong)
    with pytest.raises(InputError, match="source"):
        forecast(MODEL, TASK, 40, WINDOWS, wrong)


@pytest.mark.parametrize("measure", [sweep, repaired, measured_parts])
def test_a_model_on_another_device_than_the_source(measure):
    with pytest.raises(InputError, match="source is a generator on cpu, the model is on meta"):
        measure(GPTJEnsemble(MODEL.config, [0]).to("meta"), TASK, 40, 8, source())


@pytest.mark.parametrize("measure", [sweep, repaired, measured_parts])
@pytest.mark.parametrize("wrong", ["float16", torch.float16, (torch.float32, torch.float32)])
def test_a_precision_that_is_none(measure, wrong):
    with pytest.raises(InputError, match="precision"):
        measure(MODEL, TASK, 40, 8, source(), precision=wrong)
    with pytest.raises(InputError, match="precision"):
        foretold(precision=wrong)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(
    "measure", [foretold, lambda batch: wrong_keys(MODEL, batch, 0, 5), lambda batch: looked_at(MODEL, batch)]
)
def test_a_batch_that_is_not_the_models(measure, name):
    with pytest.raises(InputError, match="batch|tokens"):
        measure(BATCHES[name])


@pytest.mark.parametrize(
    "looks", ["x", tuple(LOOKS), Looks(LOOKS.step[:1], LOOKS.weight[:1]), Looks(LOOKS.weight, LOOKS.weight)]
)
def test_looks_of_another_model(looks):
    with pytest.raises(InputError, match="looks"):
        sweep(MODEL, TASK, 40, 8, source(), looks=looks)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: looked_at(None, WINDOWS),
        lambda: plane_norms(None, WINDOWS.tokens),
        lambda: settings("p-RoPE", None, 40),
        lambda: sample_members(None, 1, 8, 17, source()),
        lambda: sample_members(TASK, "1", 8, 17, source()),
        lambda: sample_members(TASK, 1.5, 8, 17, source()),
    ],
)
def test_other_arguments_of_the_wrong_kind(ask):
    with pytest.raises(InputError, match="give a"):
        ask()


@pytest.mark.parametrize(
    ("lengths", "accuracy", "level"),
    [
        ("ab", [1, 2], 0.9),
        (["x"], [1], 0.9),
        ([0, 10], [1, 0.5], 0.9),
        ([1, 2], [0.95, float("nan")], 0.9),
        ([1, float("nan")], [0.95, 0.5], 0.9),
        ([1, 2], [1, 0.5], "0.9"),
        ([1, 2], [1, 0.5], None),
        ([1, 2], [1, 0.5], 2),
        ([1, 2], [1, 0.5], float("nan")),
    ],
)
def test_a_curve_without_a_point(lengths, accuracy, level):
    with pytest.raises(InputError, match="give"):
        crossing(lengths, accuracy, level)


def test_tables_that_say_nothing():
    curve = pd.DataFrame({"seed": 0, "length": [10, 100], "accuracy": [1.0, 0.5], "way": "whole", "layer": -1})
    points = pd.DataFrame({"seed": [0, 1], "observed": [10.0, 20.0], "forecast": [10.0, 30.0]})
    features = pd.DataFrame({"a": [1.0, 2.0]}, index=[0, 1])
    guesses = pd.DataFrame({"way": "forecast", "predicted": [10.0, 100.0], "observed": [10.0, 30.0]})
    for ask in (
        *(lambda by=by: crossings(curve, by) for by in ([], "seed", None)),
        *(lambda by=by: failing_layers(curve, by) for by in ([], "seed", None)),
        lambda: failing_layers(curve, ["seed"]),
        lambda: predictions(points, features, 0),
        lambda: predictions(points, None, [0]),
        *(lambda draws=draws: quality(guesses, draws=draws) for draws in (0, -1, "a")),
        *(lambda seed=seed: quality(guesses, seed=seed) for seed in (-1, "x")),
    ):
        with pytest.raises(InputError, match="give"):
            ask()
