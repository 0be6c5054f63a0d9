"""Products of float32 on tensor cores against float64, beside those of float32 units."""

import pytest
import torch
import torch.nn.functional as F

from possym.ensembles.float32_products import multiply, split
from possym.kernels import takes_products, triton_available


def drawn(shape, columns, device):
    """Rows (E, B, T, K) of very different sizes, a weight (E, K, N) and a bias (E, N)."""
    source = torch.Generator().manual_seed(sum(shape) + columns)
    sizes = torch.rand(*shape[:3], 1, generator=source).mul(60).sub(30).exp2()
    x = torch.randn(shape, generator=source) * sizes
    weight = torch.randn(shape[0], shape[3], columns, generator=source) * 0.02
    return x.to(device), weight.to(device), torch.randn(shape[0], columns, generator=source).to(device)


@pytest.fixture
def multiplying(device):
    """A device on which products run."""
    device = torch.device(device)
    if not (triton_available(device) and takes_products(device)):
        pytest.skip("no kernels here")
    return device


# Rows within one tile and over several, terms added at once and by and by, columns that are no whole vector.
@pytest.mark.parametrize(
    "shape, columns", [((2, 3, 17, 128), 384), ((1, 5, 17, 512), 128), ((2, 2, 3, 40), 52), ((3, 1, 1, 300), 7)]
)
def test_products_are_as_near_to_float64_as_those_of_float32(multiplying, shape, columns):
    x, weight, _ = drawn(shape, columns, multiplying)
    found, active = multiply(x, split(weight))
    exact = torch.einsum("ebtk,ekn->ebtn", x.double(), weight.double())
    size = torch.einsum("ebtk,ekn->ebtn", x.double().abs(), weight.double().abs())
    assert active.numel() == 0
    assert ((found - exact) / size).abs().max() <= 5e-7


@pytest.mark.parametrize("first", [384, 40])
def test_columns_behind_the_first_are_gelu_with_the_bias(multiplying, first):
    x, weight, bias = drawn((2, 3, 17, 128), 512, multiplying)
    x /= x.norm(dim=-1, keepdim=True) / 8
    found, active = multiply(x, split(weight), bias, first)
    exact = torch.einsum("ebtk,ekn->ebtn", x.double(), weight.double())
    assert (found - exact[..., :first]).abs().max() <= 1e-6
    expected = F.gelu(exact[..., first:] + bias[:, None, None, first:].double())
    assert active.shape == expected.shape and (active - expected).abs().max() <= 2e-6


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, by which Triton interprets kernels
def test_zeros_stay_zeros_and_what_is_not_finite_stays_so(multiplying):
    x, weight, _ = drawn((1, 1, 5, 64), 32, multiplying)
    x[0, 0, 1] = 0.0
    x[0, 0, 2, 3], x[0, 0, 3, 3] = float("inf"), float("nan")
    found, _ = multiply(x, split(weight))
    assert found[0, 0, 1].eq(0).all()
    assert not found[0, 0, [2, 3]].isfinite().any() and found[0, 0, [0, 4]].isfinite().all()
