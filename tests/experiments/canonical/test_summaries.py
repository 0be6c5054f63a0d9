"""Summaries of the sweep on tables whose answer is known."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from possym.errors import InputError
from possym.experiments.canonical import summaries as sweep


def table(accuracy):
    """Final accuracy by frequency ID, four seeds with a little spread, and an earlier step at zero."""
    rows = []
    for frequency_id, mean in accuracy.items():
        for seed, off in enumerate((-0.02, 0.02, -0.01, 0.01)):
            rows += [(frequency_id, seed, 0, 0.0), (frequency_id, seed, 50, mean + off)]
    return pd.DataFrame(rows, columns=["first_id", "seed", "step", "accuracy"]).assign(task="index", planes=1)


def places(bends, means):
    rows = []
    place = np.arange(11)
    for frequency_id, bend in bends.items():
        for seed in range(8):
            curve = means[frequency_id] + (bend + 0.01 * (seed - 3.5)) * (((place - 5) / 5) ** 2 - 0.4)
            rows += [(frequency_id, seed, p, a) for p, a in zip(place, curve, strict=True)]
    return pd.DataFrame(rows, columns=["first_id", "seed", "place", "accuracy"])


def test_interval_over_seeds_is_the_t_interval():
    found = sweep.by_angle(table({3: 0.5}), task="index").iloc[0]
    values = 0.5 + np.array([-0.02, 0.02, -0.01, 0.01])
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((0.5, interval.low, interval.high))


def test_learnt_ids_run_from_fast_to_nope():
    accuracy = table({0: 0.95, 1: 0.95, 2: 0.85, 30: 0.9})
    assert sweep.learnt_ids(accuracy, planes=1) == [1, 30, 0]


def test_learnt_angles_in_words_are_runs_of_neighbours():
    assert sweep.learnt_words(table({0: 0.95, 1: 0.95, 2: 0.85, 28: 0.9, 30: 0.9})) == "IDs 1, 28 to NoPE"
    assert sweep.learnt_words(table({0: 0.95, 1: 0.3})) == "NoPE"
    assert sweep.learnt_words(table({0: 0.3, 1: 0.95})) == "ID 1"
    assert sweep.learnt_words(table({0: 0.3, 1: 0.3})) == "none of the angles"


def test_short_keys_are_counted_against_the_median_symbol():
    key = torch.tensor([[[3.0, 4.0], [0.0, 5.0], [2.4, 0.0], [2.6, 0.0], [5.0, 0.0], [0.0, 0.1]]])
    assert sweep.short_keys(key, 5).tolist() == pytest.approx([0.2])
    assert sweep.short_keys(key.expand(2, 3, 1, 6, 2), 6).shape == (2, 3, 1)


def test_mismatched_angles_are_those_on_the_wrong_side_and_in_between():
    means = {1: 0.6, 5: 0.9, 9: 0.5, 20: 0.15, 0: 0.1}
    by_place = places({1: -0.3, 5: 0.0, 9: 0.3, 20: 0.3, 0: 0.0}, means)
    found = sweep.mismatched(by_place.assign(task="index"), task="index")
    assert found["first_id"].tolist() == [9, 20] and set(found["shape"]) == {"U"}
    found = sweep.mismatched(by_place.assign(task="retrieval"), task="retrieval")
    assert found["first_id"].tolist() == [1] and set(found["shape"]) == {"inverse U"}


def test_unknown_rows_are_refused():
    with pytest.raises(InputError, match="planes = 7: no such rows; there are 1"):
        sweep.learnt_ids(table({1: 0.5}), planes=7)
    with pytest.raises(InputError, match="'width' is no column"):
        sweep.learnt_ids(table({1: 0.5}), width=7)


def test_gathering_of_the_construction_and_of_its_mirror_image():
    """T_Index gathers keys and turned queries; with the opposite turn the queries no longer meet."""
    angle, symbols, distances = 0.2, 4, 31
    phase = -angle * torch.arange(1, distances + 1)
    query = torch.zeros(2, 1, symbols + distances, 2)
    query[0, 0, symbols:] = torch.stack([phase.cos(), phase.sin()], -1)
    query[1, 0, symbols:] = torch.stack([phase.cos(), -phase.sin()], -1)
    key = torch.zeros_like(query)
    key[:, :, :symbols, 0] = 2.0
    found = sweep.gathering(query, key, [angle], symbols)
    assert found["keys"].tolist() == pytest.approx([1, 1])
    spread = abs(sum(np.exp(1j * phase.numpy().astype(float)))) / distances
    assert found["queries"].tolist() == pytest.approx([spread, spread], abs=1e-6)
    assert found["construction"].tolist() == pytest.approx([spread, spread], abs=1e-6)
    assert found["turned"][0] == pytest.approx(1) and found["turned"][1] < 0.2


def test_a_key_of_half_the_median_length_is_not_short():
    lengths = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.49, 9.0])  # the last token is a query
    key = torch.stack([lengths, torch.zeros(6)], -1)[None, None]
    assert sweep.short_keys(key, 5).item() == pytest.approx(0.2)


def test_two_seeds_have_students_interval_of_one_degree_of_freedom_and_one_seed_has_none():
    made = pd.DataFrame({"first_id": [1, 1, 2], "accuracy": [0.5, 0.51, 0.4]})
    found = sweep.over_seeds(made, ["first_id"])
    half = 12.7062 * 0.005
    assert found[["low", "high"]].values.tolist() == [pytest.approx([0.505 - half, 0.505 + half], abs=1e-5), [0.4, 0.4]]
