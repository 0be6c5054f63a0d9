"""GPT-J's blocks by kernels, forward and back, against a computation place by place in float64."""

import pytest
import torch
import torch.nn.functional as F

from possym.ensembles import biases, fused
from possym.ensembles.attention import tables
from possym.ensembles.dropout import keep_mask, keys_by_step, keys_of_layers
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.streams import generator
from possym.ensembles.trunk import Options, Trunk
from possym.kernels import triton_available
from possym.rope import frequencies

from .test_fused import by_place


@pytest.mark.parametrize("dtype, dropped", [(torch.float32, 0.0), (torch.float32, 0.1), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "places, heads, width, inner, layers", [(17, 1, 128, 512, 2), (9, 2, 32, 200, 3), (5, 1, 32, 8, 1)]
)
def test_values_and_gradients(device, places, heads, width, inner, layers, cut, dtype, dropped):
    precision = fused.precision(torch.device(device), places, width, width // 2)
    if precision is None:
        assert not triton_available(torch.device(device))
        return
    E, L, B, C = 2, layers, 2, heads * width
    source = torch.Generator().manual_seed(places)
    shapes = [(C, 3 * C + inner), (3 * C + inner,), (C, C), (inner, C), (C,)]
    given = [torch.randn(E, B, places, C, generator=source).to(device)]
    for shape in shapes:
        given.append((torch.randn(E, L, *shape, generator=source) / shape[0] ** 0.5).to(device, dtype))
    keys = keys_by_step([generator(seed, "dropout") for seed in range(E)], 1)[0].to(device) if dropped else None
    keys = keys_of_layers(keys, L, 3) if dropped else None
    for each in given:
        each.requires_grad_()
    options = Options(heads, dropped, precision, cut)
    found = Trunk.apply(given[0], *tables(places, frequencies(width).to(device)), keys, options, *given[1:])

    x, *weights = exact = [each.detach().cpu().double().requires_grad_() for each in given]
    for layer in range(L):
        entry, bias, attention, mlp, mlp_bias = (weight[:, layer] for weight in weights)
        own = keys[layer].cpu() if dropped else None
        joint = torch.einsum("ebtc,eco->ebto", F.layer_norm(x, (C,)), entry) + bias[:, None, None]
        mixed = by_place(joint[..., : 3 * C], own, heads, width, "interleaved", dropped)
        brought = [torch.einsum("ebtc,eco->ebto", mixed, attention)]
        brought.append(torch.einsum("ebti,eic->ebtc", F.gelu(joint[..., 3 * C :]), mlp) + mlp_bias[:, None, None])
        if dropped:
            brought = [each * keep_mask(own, stream, (B, places, C), dropped) for stream, each in enumerate(brought, 2)]
        x = x + sum(brought)
    x = x[:, :, -1:] if cut else x
    asked = torch.randn(x.shape, generator=source)
    slopes = torch.autograd.grad(found, given, asked.to(found))
    exact_slopes = torch.autograd.grad(x, exact, asked.double())
    rounding = 4e-2 if cut else 2e-2  # fewer rows, whose errors come to nothing
    bound = rounding if dtype == torch.bfloat16 else 1e-5
    for ours, theirs in zip((found, *slopes), (x, *exact_slopes), strict=True):
        assert (ours.detach().cpu().double() - theirs.detach()).abs().max() < bound * theirs.detach().abs().max()


@pytest.mark.parametrize("all_positions, places", [(True, 6), (False, 6), (False, 1)])
def test_a_model_is_the_same_with_and_without_the_kernels(device, all_positions, places, monkeypatch):
    model = GPTJEnsemble(GPTJConfig(20, layers=2, width=64, heads=2, dropout=0.2, init_std=0.3), [0, 1]).to(device)
    tokens = torch.randint(20, (2, 4, places), generator=torch.Generator().manual_seed(0)).to(device)
    keys = keys_by_step([generator(seed, "dropout") for seed in (0, 1)], 1)[0].to(device)

    def run():
        logits = model(tokens, dropout_keys=keys, all_positions=all_positions)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    found = run()
    monkeypatch.setattr(fused, "precision", lambda *sizes: None)
    for ours, plain in zip(found, run(), strict=True):
        assert (ours - plain).abs().max() <= 1e-4 * plain.abs().max()


def test_gradients_may_be_taken_inside_autocast(device):
    if not triton_available(torch.device(device)):
        return
    model = GPTJEnsemble(GPTJConfig(20, layers=2, width=64, heads=2, init_std=0.3), [0, 1]).to(device)
    tokens = torch.randint(20, (2, 4, 6), generator=torch.Generator().manual_seed(0)).to(device)

    def slopes():
        loss = model(tokens).square().sum()
        with torch.autocast(device, dtype=torch.bfloat16, enabled=inside):
            return torch.autograd.grad(loss, list(model.parameters()))

    inside = False
    exact = slopes()
    inside = True
    for ours, plain in zip(slopes(), exact, strict=True):
        assert (ours - plain).abs().max() <= 5e-2 * plain.abs().max()


def test_sums_of_many_parts_are_added_up(device):
    if not triton_available(torch.device(device)):
        return
    source = torch.Generator().manual_seed(0)
    given = [
        torch.randn(3, parts, columns, generator=source).to(device) for parts, columns in ((40, 96), (17, 200), (5, 32))
    ]
    entry, output = torch.zeros(3, 2, 296, device=device), torch.zeros(3, 2, 32, device=device)
    biases.add_up(*given, entry[:, 1], output[:, 1])
    attention, hidden, last = (each.sum(1) for each in given)
    torch.testing.assert_close(entry[:, 1], torch.cat([attention, hidden], 1))
    torch.testing.assert_close(output[:, 1], last)
    assert not entry[:, 0].any() and not output[:, 0].any()
