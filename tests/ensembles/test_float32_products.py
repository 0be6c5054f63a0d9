"""A block's products of float32 on tensor cores against float64, beside those of float32 units."""

import pytest
import torch
import torch.nn.functional as F

from possym.ensembles.float32_products import enter, leave, reaches, split
from possym.kernels import takes_products, triton_available

# Members, sequences, places, width and the MLP's width: one tile and several, columns that are whole tiles and not.
SIZES = pytest.mark.parametrize("E, B, T, C, inner", [(2, 9, 17, 128, 512), (1, 5, 17, 64, 100), (3, 1, 1, 40, 52)])


@pytest.fixture
def drawn(device):
    """A function that draws normal numbers on a device on which products run."""
    device, source = torch.device(device), torch.Generator().manual_seed(0)
    if not (triton_available(device) and takes_products(device)):
        pytest.skip("no kernels here")
    return lambda *shape, size=1.0: (size * torch.randn(shape, generator=source)).to(device)


def stream(drawn, *shape):
    """Rows of very different sizes, away from 0."""
    return (drawn(*shape) + 1) * drawn(*shape[:-1], 1, size=8).exp2()


def compare(found, formula, *given):
    """Compare with a formula in float64: off by no more than it is in float32, or little of a row's largest."""
    exact, plain = formula(*(x.double() for x in given)), formula(*given)
    size = exact.abs().amax(-1, keepdim=True)
    ours, theirs = ((each - exact).abs().div(size).max() for each in (found, plain))
    assert ours <= max(1e-6, theirs)


def times(x, weight):
    return torch.einsum("ebtk,ekn->ebtn", x, weight)


def entering(x, weight, bias):
    return times(F.layer_norm(x, x.shape[-1:]), weight) + bias[:, None, None]


@SIZES
def test_what_enters_a_block(drawn, E, B, T, C, inner):
    x = stream(drawn, E, B, T, C)
    weight, bias = (drawn(E, 2, *shape, 3 * C + inner, size=0.3) for shape in ((C,), ()))
    product = torch.empty_like(x).repeat(1, 1, 1, 3)
    enter(x, split(weight)[1], bias[:, 1], product)
    compare(product, entering, x, weight[:, 1, :, : 3 * C], bias[:, 1, : 3 * C])


@SIZES
def test_what_leaves_a_block(drawn, E, B, T, C, inner):
    x, mixed = stream(drawn, E, B, T, C), stream(drawn, E, B, T, C)
    output, first, second = (drawn(E, 2, *shape, size=0.3) for shape in ((C, C), (C, 3 * C + inner), (inner, C)))
    bias, second_bias = drawn(E, 2, 3 * C + inner), drawn(E, 2, C)
    bias[..., 0], bias[..., -1] = 1e9, -1e9  # of a key, which the MLP does not read, and of a value whose GELU is 0

    def formula(x, mixed, output, first, bias, second, second_bias):
        active = F.gelu(entering(x, first, bias))
        return x + times(mixed, output) + times(active, second) + second_bias[:, None, None]

    found, (_, reach) = x.clone(), reaches(split(first), bias[..., 3 * C :])
    assert (F.gelu(entering(x, first[:, 1], bias[:, 1]))[..., 3 * C :].abs().amax((1, 2, 3)) <= reach).all()
    leave(found, mixed, reach, split(output)[1], split(first)[1], bias[:, 1], split(second)[1], second_bias[:, 1])
    mlp = first[:, 1, :, 3 * C :], bias[:, 1, 3 * C :], second[:, 1], second_bias[:, 1]
    compare(found, formula, x, mixed, output[:, 1], *mlp)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, by which Triton interprets kernels
def test_zeros_stay_zeros_and_what_is_not_finite_stays_so(drawn):
    x, weight = drawn(1, 1, 5, 64), drawn(1, 1, 64, 224)
    x[0, 0, 1] = 0.0
    x[0, 0, 2, 3], x[0, 0, 3, 3] = float("inf"), float("nan")
    product, none = torch.empty_like(x).repeat(1, 1, 1, 3), weight.new_zeros(1, 224)
    enter(x, *split(weight), none, product)
    output, second, reach = weight[..., :64], weight[..., :32, :64], none[:, 0] + 9
    leave(x, x.clone(), reach, *split(output), *split(weight), none, *split(second), none)
    for found in (product, x):
        assert found[0, 0, 1].eq(0).all()
        assert found[0, 0, [2, 3]].isnan().all() and found[0, 0, [0, 4]].isfinite().all()
