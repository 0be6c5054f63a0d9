"""Models of random weights: of the same shape, not the same weights, and the given model stays as it is."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from possym.experiments.real_models.random_weights import WEIGHTS, random_weights, sharpen


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    sizes = dict(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True, initializer_range=0.02))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * number).mul_(torch.linspace(0.5, 2, parameter.numel()).view_as(parameter))
    return model


@pytest.mark.parametrize("weights", WEIGHTS)
def test_shapes_stay_weights_go_and_the_model_is_untouched(model, weights):
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    other = random_weights(model, weights, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not other.training and other.lm_head.weight is other.model.embed_tokens.weight
    for (name, mine), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        assert mine.ndim == 1 or not torch.equal(mine, theirs), name


def test_shuffled_weights_are_the_models_own_in_another_order(model):
    other = random_weights(model, "shuffled", 0)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(mine.flatten().sort().values, theirs.flatten().sort().values)
        if mine.ndim == 1:
            assert torch.equal(mine, theirs), name
        else:
            pair = torch.stack([mine.flatten(), theirs.flatten()])
            assert abs(pair.corrcoef()[0, 1]) < 0.2, name


def test_initial_weights_have_the_deviation_that_training_starts_from(model):
    other = random_weights(model, "initial", 0)
    for name, parameter in other.named_parameters():
        if parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
            assert abs(parameter.mean().item()) < 0.002, name


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_seed_decides(model, weights):
    first, again, second = (random_weights(model, weights, seed).lm_head.weight for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, second)


def test_sharpened_weights_make_logits_vary_as_wanted(model):
    import possym

    def variance(one):
        return float(possym.profile(one, torch.arange(3, 30), progress=False).heads["variance"].median())

    other = random_weights(model, "sharpened", 0)
    before = {name: parameter.clone() for name, parameter in other.named_parameters()}
    assert variance(other) < 0.01
    assert variance(sharpen(other, variance, 4.0)) == pytest.approx(4.0, rel=0.02)
    for name, parameter in other.named_parameters():
        ratio = (parameter / before[name]).detach()
        assert ratio.min().item() == pytest.approx(ratio.max().item(), rel=1e-4), name
        assert (ratio.mean() > 1.5) == (parameter.ndim > 1), name
