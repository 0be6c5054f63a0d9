"""The effects of layers against whole inputs in which masks hide what stands before the window."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.experiments.generalization import layers as module
from possym.experiments.generalization.attending import run_prefix
from possym.experiments.generalization.layers import answers_with_prefix, exposed_layers, layer_effects
from possym.experiments.generalization.long_inputs import EXACT, WINDOW, sample_members
from possym.rope import rotate
from possym.tasks import NumberTask

from .sequences import self_taught, source


@pytest.mark.parametrize(("kind", "config"), [(GPTJEnsemble, GPTJConfig), (LlamaEnsemble, LlamaConfig)])
def test_effects_are_those_of_the_long_input_with_layers_masked(kind, config):
    """Every way against a whole forward that hides what stands before the window from chosen layers."""
    config = config(136, layers=3, heads=2, width=16, init_std=0.7)
    model = kind(config, [0, 1])
    batch = self_taught(model, sample_members(NumberTask(), 2, 30, 50, source()))
    start = 50 - WINDOW

    def masked(layers):
        def attend(layer, query, key, value):
            length, asked = key.shape[2], query.shape[2]
            positions = torch.arange(length)
            rotated = [
                rotate(x.transpose(2, 3), p, config.frequencies, model.layout)
                for x, p in ((query, positions[length - asked :]), (key, positions))
            ]
            seen = positions <= positions[length - asked :, None]
            if layer not in layers:
                seen &= (positions >= start) | (positions[length - asked :, None] < start)
            logits = (rotated[0] @ rotated[1].mT * 8**-0.5).masked_fill(~seen, -torch.inf)
            return (logits.softmax(-1) @ value.transpose(2, 3)).transpose(2, 3)

        with torch.no_grad():
            return model(batch.tokens, attend=attend).argmax(-1) == batch.answer

    with torch.no_grad():
        contents = run_prefix(model, batch.tokens[..., :-WINDOW], *EXACT)
        sets = [layers for each in exposed_layers(3).values() for layers in each]
        results = [answers_with_prefix(model, batch, contents, layers, EXACT) for layers in [*sets, set()]]
    for layers, result in zip([*sets, set()], results, strict=True):
        assert torch.equal(result, masked(layers))
    assert results[-1].all() and not results[0].all()


def test_effects_are_means_over_all_sequences(monkeypatch):
    model = GPTJEnsemble(GPTJConfig(136, layers=2, width=16, init_std=0.7), [0, 1])
    monkeypatch.setattr(module, "TOKENS", 2 * 40 * 2 * 3)  # three sequences a member at once
    found = layer_effects(model, Echo(), 40, 7, source())
    assert {way: tuple(x.shape) for way, x in found.items()} == {
        "whole": (2, 1), "exposed": (2, 2), "shielded": (2, 2), "upto": (2, 2)
    }  # fmt: skip
    torch.testing.assert_close(found["upto"][:, :1], found["exposed"][:, :1])
    torch.testing.assert_close(found["upto"][:, 1:], found["whole"])
    drawn, right = source(), torch.zeros(2)
    for size in (3, 3, 1):
        batch = sample_members(Echo(), 2, size, 40, drawn)
        with torch.no_grad():
            right += (model(batch.tokens).argmax(-1) == batch.answer).sum(1)
    assert right.sum() > 0
    torch.testing.assert_close(found["whole"][:, 0], right / 7)


class Echo(NumberTask):
    """The number task with a first member's answers to the windows for right ones."""

    def sample(self, n, **arguments):
        batch = super().sample(n, **arguments)
        model = GPTJEnsemble(GPTJConfig(136, layers=2, width=16, init_std=0.7), [0])
        with torch.no_grad():
            return batch._replace(answer=model(batch.tokens[:, -WINDOW:])[0].argmax(-1))
