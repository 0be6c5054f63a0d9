"""A norm's gain and bias in weights, by kernels where they run, against products in float64."""

import pytest
import torch

from possym.ensembles import folding, squares
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width, columns", [(64, (64, 64, 64, 256)), (24, (24, 100, 8))])
def test_values_and_gradients(device, dtype, width, columns):
    source = torch.Generator().manual_seed(width)
    shapes = [(2, 3, width)] * 2 + [(2, 3, width, count) for count in columns]
    given = [torch.randn(shape, generator=source).to(device).requires_grad_() for shape in shapes]
    found = folding.folded(*given[:2], dtype, *given[2:])
    gain, bias, *weights = exact = [each.detach().double().requires_grad_() for each in given]
    side_by_side = torch.cat(weights, -1)
    expected = side_by_side * gain[..., None], torch.einsum("elc,elcn->eln", bias, side_by_side)
    assert found[0].dtype == dtype and found[1].dtype == torch.float32
    asked = [torch.randn(each.shape, generator=source).to(each) for each in found]
    slopes = torch.autograd.grad(found, given, asked)
    exact_slopes = torch.autograd.grad(expected, exact, [each.double() for each in asked])
    last_bit = 2**-7 if dtype == torch.bfloat16 else 0  # the interpreter cuts where a GPU rounds
    torch.testing.assert_close(found[0].float(), expected[0].float(), rtol=last_bit, atol=0)
    for ours, theirs in zip((found[1], *slopes), (expected[1], *exact_slopes), strict=True):
        assert (ours.double() - theirs).abs().max() <= 1e-6 * theirs.abs().max()
    if folding.supported(given[0]):
        for slope in slopes[2:]:
            torch.testing.assert_close(squares.left(slope).sum(1), slope.square().flatten(1).sum(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scaling(device, dtype):
    source = torch.Generator().manual_seed(0)
    weight, asked = (torch.randn(2, 3, 24, 70, generator=source).to(device) for _ in range(2))
    weight.requires_grad_()
    asked = asked.to(dtype)
    found = folding.scaled(weight, 1.1, dtype)
    (slope,) = torch.autograd.grad(found, weight, asked.mT.contiguous().mT)
    assert found.dtype == dtype and slope.dtype == torch.float32
    last_bit = 2**-7 if dtype == torch.bfloat16 else 2**-23
    torch.testing.assert_close(found.double(), 1.1 * weight.double(), rtol=last_bit, atol=0)
    torch.testing.assert_close(slope.double(), 1.1 * asked.double(), rtol=last_bit, atol=0)
    if folding.supported(weight):
        torch.testing.assert_close(squares.left(slope).sum(1), slope.square().flatten(1).sum(1))
        again = folding.scaled(weight, 1.1, dtype)
        (slope,) = torch.autograd.grad(again, weight, asked.requires_grad_(), create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            slope.sum().backward()


def test_a_model_is_the_same_with_and_without_the_kernels(device, monkeypatch):
    model = GPTJEnsemble(GPTJConfig(20, layers=3, width=24, heads=2, init_std=0.3), [0, 1]).to(device)
    tokens = torch.randint(20, (2, 4, 9), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        model.norm_bias.copy_(model.norm_gain.cumsum(-1) / 24)
        model.norm_gain.copy_(2 - model.norm_bias)

    def run():
        logits = model(tokens)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    found = run()
    monkeypatch.setattr(folding, "supported", lambda x: False)
    for ours, plain in zip(found, run(), strict=True):
        assert (ours - plain).abs().max() <= 1e-4 * plain.abs().max()
