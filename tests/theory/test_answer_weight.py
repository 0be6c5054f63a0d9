"""The answer's weight by its place, from closed formulas and from running heads."""

import math

import pytest
import torch

from possym.errors import InputError
from possym.theory import h_pos, positional_slope, positional_weight, shape, simplified_symbolic, symbolic_weight


@pytest.mark.parametrize("length", [3, 6])
@pytest.mark.parametrize("theta, beta", [(0.1, 4.0), (1.5, 1.0)])
def test_weights_are_those_of_the_heads(length, theta, beta):
    positional, symbolic = positional_weight(length, theta, beta), symbolic_weight(length, theta, beta)
    pos, sym = h_pos(2, length, theta), simplified_symbolic(2, 2, length, theta)
    for place in range(length):
        keys = [0] * length
        asked = pos.relocated(torch.tensor([*keys, 2 + place])).diagonal()
        assert positional[place].item() == pytest.approx((beta * asked).softmax(-1)[place].item())
        keys = [3] * length
        keys[place] = 0
        found = (beta * sym.relocated(torch.tensor([*keys, 4])).diagonal()).softmax(-1)
        assert symbolic[place].item() == pytest.approx(found.max().item())


def test_slope_is_the_difference():
    for length in (2, 5, 12, 31):
        for turns in (0.2, 0.8, 1.0, 1.4, 2.6):
            theta = turns * 2 * math.pi / length
            for beta in (0.5, 6.0):
                steps = positional_weight(length, theta, beta).diff()
                signs = torch.where(steps.abs() < 1e-12, 0.0, steps.sign())
                assert torch.equal(signs, positional_slope(length, theta)), (length, turns, beta)


def test_shape_names():
    names = {
        "U": [[3.0, 1.0, 2.0], [3.0, 1.0, 1.0, 3.0]],
        "inverse U": [[1.0, 2.0, 1.0], [1.0, 2.0, 2.5, 0.0]],
        "flat": [[1.0, 1.0, 1.0]],
        "mixed": [[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 1.0, 2.0, 1.0]],
    }
    for name, curves in names.items():
        for curve in curves:
            assert shape(torch.tensor(curve)) == name
    with pytest.raises(InputError, match="three positions"):
        shape(torch.tensor([1.0, 2.0]))


def test_positional_shape_changes_at_a_full_turn():
    found = [shape(positional_weight(16, turns * 2 * math.pi / 16)) for turns in (0.3, 0.99, 1.0, 1.01, 1.5)]
    assert found == ["U", "U", "flat", "inverse U", "mixed"]


@pytest.mark.parametrize("beta", [0.0, "1"])
def test_bad_temperature_is_refused(beta):
    with pytest.raises(InputError, match="positive finite"):
        positional_weight(4, 0.1, beta)


def test_two_keys_are_enough_and_the_standard_temperature_is_one():
    for weight in (positional_weight, symbolic_weight):
        assert torch.equal(weight(3, 0.4), weight(3, 0.4, 1.0)) and len(weight(2, 0.4)) == 2
        with pytest.raises(InputError, match="length = 1"):
            weight(1, 0.4)
    assert positional_slope(2, 0.4).tolist() == [0.0]
    # By hand: e / (e + e^cos 0.4), and the middle of two positions is half a position away from each.
    assert positional_weight(2, 0.4)[0].item() == pytest.approx(math.e / (math.e + math.exp(math.cos(0.4))))
    logit = math.cos(0.2)
    assert symbolic_weight(2, 0.4)[0].item() == pytest.approx(math.exp(logit) / (math.exp(logit) + 1))
