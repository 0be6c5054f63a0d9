"""The attention of a block, by kernels where they run, against turning, weighing and mixing place by place."""

import cmath
import math

import pytest
import torch

from possym.ensembles import fused
from possym.ensembles.attention import attention_of_block, tables
from possym.ensembles.dropout import keep_mask, keys_by_step
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.ensembles.streams import generator
from possym.kernels import triton_available
from possym.rope import frequencies


def drawn(members, count, places, heads, width, dtype, device):
    """A product (E, B, T, 3C + 8) whose first columns are keys, values and queries, and dropout keys."""
    source = torch.Generator().manual_seed(places + heads)
    product = torch.randn(members, count, places, 3 * heads * width + 8, generator=source).to(device, dtype)
    return product, keys_by_step([generator(seed, "dropout") for seed in range(members)], 1)[0].to(device)


def attended(joint, keys, heads, width, layout, dropped):
    angles = frequencies(width).to(joint.device)
    precision = fused.precision(joint.device, joint.shape[2], width, len(angles))
    assert (precision is None) == (not triton_available(joint.device))
    query = joint[..., 2 * heads * width :]
    return attention_of_block(
        joint,
        query,
        tables(joint.shape[2], angles),
        heads=heads,
        layout=layout,
        dropped=dropped,
        keys=keys,
        attend=None,
        precision=precision,
    )


def by_place(joint, keys, heads, width, layout, dropped):
    """The same in float64: planes as complex numbers, one head and one place at a time."""
    E, B, T, _ = joint.shape
    key, value, query = joint.unflatten(-1, (3, heads, width)).unbind(-3)
    stays = (
        keep_mask(keys, 1, (B, heads, T, T), dropped) if dropped else torch.ones(E, B, heads, T, T, dtype=torch.bool)
    )

    def turned(x, place):
        halves = x.unflatten(-1, (2, -1)).mT if layout == "half" else x.unflatten(-1, (-1, 2))
        factor = [cmath.exp(1j * (place * 1e4 ** (-2 * k / width) % (2 * math.pi))) for k in range(width // 2)]
        return torch.view_as_complex(halves.contiguous()) * torch.tensor(factor, dtype=torch.complex128)

    places = []
    for i in range(T):
        asked = turned(query[:, :, i], i)
        logits = [(asked * turned(key[:, :, j], j).conj()).real.sum(-1) / width**0.5 for j in range(i + 1)]
        weights = torch.stack(logits).softmax(0)
        places.append(sum(weights[j, ..., None] * stays[..., i, j, None] * value[:, :, j] for j in range(i + 1)))
    return torch.stack(places, 2).flatten(-2)


@pytest.mark.parametrize("places, heads, width", [(17, 1, 128), (2, 2, 32), (16, 4, 32), (33, 2, 64)])
@pytest.mark.parametrize(
    "dtype, layout, dropped",
    [
        (torch.float32, "interleaved", 0.0),
        (torch.float32, "interleaved", 0.1),
        (torch.float32, "half", 0.5),
        (torch.bfloat16, "interleaved", 0.1),
    ],
)
def test_values_and_gradients(device, places, heads, width, dtype, layout, dropped):
    product, keys = drawn(3, 2, places, heads, width, dtype, device)
    keys = keys if dropped else None
    product.requires_grad_()
    found = attended(product[..., : 3 * heads * width], keys, heads, width, layout, dropped)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (slope,) = torch.autograd.grad(found, product, weight.to(found))
    exact = product.detach().cpu().double().requires_grad_()
    keys = keys.cpu() if dropped else None
    expected = by_place(exact[..., : 3 * heads * width], keys, heads, width, layout, dropped)
    (exact_slope,) = torch.autograd.grad(expected, exact, weight.double())
    bound = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for ours, theirs in ((found, expected), (slope, exact_slope)):
        assert (ours.detach().cpu().double() - theirs.detach()).abs().max() < bound * theirs.detach().abs().max()


def test_the_masks_are_those_of_dropout(device):
    E, B, T, H, D = 2, 3, 17, 2, 32
    product, keys = drawn(E, B, T, H, D, torch.float32, device)
    joint = product[..., : 3 * H * D].clone()
    unit = torch.nn.functional.pad(torch.eye(T, device=device), (0, D - T))
    joint[..., H * D : 2 * H * D] = unit.repeat(1, H)  # values that show their weight
    weights = attended(joint, keys, H, D, "interleaved", 0.4).unflatten(-1, (H, D))[..., :T].transpose(2, 3)
    seen = torch.ones(T, T, dtype=torch.bool, device=device).tril()
    assert torch.equal(weights > 0, keep_mask(keys, 1, (B, H, T, T), 0.4) & seen)


@pytest.mark.parametrize("kind", [(GPTJConfig, GPTJEnsemble), (LlamaConfig, LlamaEnsemble)])
def test_a_model_that_drops_and_learns_is_the_same_with_and_without_the_kernel(device, kind, monkeypatch):
    make, ensemble = kind
    model = ensemble(make(20, layers=3, width=64, heads=2, dropout=0.2, init_std=0.3), [0, 1]).to(device)
    tokens = torch.randint(20, (2, 4, 9), generator=torch.Generator().manual_seed(0)).to(device)
    keys = keys_by_step([generator(seed, "dropout") for seed in (0, 1)], 1)[0].to(device)

    def run():
        logits = model(tokens, dropout_keys=keys)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]

    found = run()
    monkeypatch.setattr(fused, "precision", lambda *sizes: None)
    for ours, plain in zip(found, run(), strict=True):
        assert (ours - plain).abs().max() <= 1e-4 * plain.abs().max()


@pytest.mark.parametrize("places, width, planes", [(65, 128, 64), (17, 16, 8), (17, 96, 48), (17, 128, 32)])
def test_sizes_that_the_kernel_does_not_take(places, width, planes, monkeypatch):
    monkeypatch.setattr(fused, "triton_available", lambda device: True)
    assert fused.precision(torch.device("cuda"), 17, 128, 64) == "tf32x3"
    assert fused.precision(torch.device("cuda"), places, width, planes) is None


@pytest.mark.parametrize("all_positions", [False, True])
def test_an_evaluation_is_the_same_with_and_without_the_kernels(device, all_positions, monkeypatch):
    config = GPTJConfig(20, layers=3, width=96, heads=3, dropout=0.2, init_std=0.3)
    model = GPTJEnsemble(config, [0, 1]).to(device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_bias"):
                parameter.normal_(generator=torch.Generator(device).manual_seed(1))
    tokens = torch.randint(20, (2, 3, 9), generator=torch.Generator().manual_seed(0)).to(device)

    @torch.no_grad()
    def run():
        return [model(tokens, all_positions=all_positions), *model.trace(tokens), *model.queries_and_keys(tokens)]

    found = run()
    monkeypatch.setattr(fused, "precision", lambda *sizes: None)
    for ours, plain in zip(found, run(), strict=True):
        assert ours.shape == plain.shape and ours.dtype == plain.dtype
        assert (ours - plain).abs().max() <= 1e-4 * plain.abs().max()
