"""Bends against least squares, and the test's error rates against drawn curves."""

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from possym.experiments.canonical.u_shape_test import bends, u_shape_test


def test_bend_is_the_least_squares_coefficient():
    curves = torch.rand(6, 31, generator=torch.Generator().manual_seed(0))
    expected = np.polyfit(np.linspace(-1, 1, 31), curves.double().numpy().T, 2)[0]
    np.testing.assert_allclose(bends(curves).numpy(), expected, atol=1e-6)


def test_interval_and_p_value_match_other_computations():
    curves = torch.rand(7, 12, generator=torch.Generator().manual_seed(1)) + torch.linspace(-1, 1, 12) ** 2 * 0.2
    found, bend = u_shape_test(curves), bends(curves).double().numpy()
    interval = stats.ttest_1samp(bend, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-6)
    flips = [abs(np.dot(signs, bend)) for signs in itertools.product([1, -1], repeat=7)]
    assert found.p_value == pytest.approx(np.mean([f >= abs(bend.sum()) - 1e-12 for f in flips]))
    assert found.bend == pytest.approx(bend.mean(), abs=1e-6)


def test_shapes_are_named_right_and_noise_seldom_is():
    generator = torch.Generator().manual_seed(2)
    place = torch.linspace(-1, 1, 31)
    noise = 0.05 * torch.randn(200, 8, 31, generator=generator)
    assert {u_shape_test(0.5 + 0.2 * place**2 + n).shape for n in noise} == {"U"}
    assert {u_shape_test(0.5 - 0.2 * place**2 + 0.3 * place + n).shape for n in noise} == {"inverse U"}
    named = sum(u_shape_test(0.5 + 0.3 * place + n).shape != "flat" for n in noise)
    assert named <= 20  # 5 % of 200 is 10; more than 20 happens once in a thousand
