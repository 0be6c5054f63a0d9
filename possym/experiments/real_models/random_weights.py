"""Models of random weights with the shape of a given one: what scores say of a model that has learnt nothing.

``"initial"`` weights are those that training would start from. They are small, and attention is nearly uniform.
``"shuffled"`` weights are the model's own, the entries of each matrix in random order: the size of trained weights
without what was learnt. ``"sharpened"`` weights are initial ones times the factor that makes the logits of heads vary
as much as the model's do: the only ones under which heads are as sharp.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn

WEIGHTS = ("initial", "shuffled", "sharpened")
STEPS = 8  # toward the model's variance; their variance grows with the fourth power of the weights


def random_weights(model: nn.Module, weights: str, seed: int) -> nn.Module:
    """Return a model like the given one, of its kind, size, dtype and device, with random weights.

    Sharpened ones are still to be scaled, by `sharpen`.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> other = random_weights(model, "shuffled", 0)
    >>> [torch.equal(x.flatten().sort().values, y.flatten().sort().values)
    ...  for x, y in ((model.lm_head.weight, other.lm_head.weight),)]
    [True]
    """
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(seed)
        if weights != "shuffled":
            with device:
                fresh = type(model)(copy.deepcopy(model.config))
            return fresh.to(next(model.parameters()).dtype).eval()
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            if parameter.ndim > 1:  # the gains of norms stay in place
                order = torch.randperm(parameter.numel(), device=device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))
        return other.eval()


def sharpen(model: nn.Module, variance: Callable[[nn.Module], float], wanted: float) -> nn.Module:
    """Scale all matrices of a model, in place, until its heads' logits vary as wanted, and return it."""
    for _ in range(STEPS):
        factor = (wanted / variance(model)) ** 0.25
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(factor)
    return model
