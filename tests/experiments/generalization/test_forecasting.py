"""The forecast against long inputs that are really run, and the parts of layers against masks."""

import itertools

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.errors import InputError
from possym.experiments.generalization.attending import run_before
from possym.experiments.generalization.forecasting import admitted, answered_beyond, ways
from possym.experiments.generalization.names import forecast, measured_parts, sample_members
from possym.experiments.generalization.sweep import EXACT, WINDOW
from possym.rope import rotate
from possym.tasks import LetterTask, NumberTask


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def self_taught(model, batch):
    """The batch with the model's own answers to the windows for right ones: what more length changes is wrong."""
    with torch.no_grad():
        return batch._replace(answer=model(batch.tokens[..., -WINDOW:]).argmax(-1))


def test_the_forecast_is_what_long_inputs_do():
    """One layer, whose contents do not depend on the length: the forecast may then be off by chance alone."""
    model = GPTJEnsemble(GPTJConfig(136, layers=1, width=16, init_std=0.8), range(6))
    windows = self_taught(model, sample_members(NumberTask(), 6, 300, WINDOW, source(1)))
    found = forecast(model, NumberTask(), 200, windows, source(2))
    long = self_taught(model, sample_members(NumberTask(), 6, 300, 200, source(3)))
    with torch.no_grad():
        measured = (model(long.tokens).argmax(-1) == long.answer).float().mean(1)
    assert measured.min() < 0.6 and measured.max() - measured.min() > 0.1
    torch.testing.assert_close(found, measured, atol=0.12, rtol=0)
    assert (found - measured).abs().mean() < 0.05


def test_letters_that_the_path_follows_are_kept_out_of_the_forecast():
    model = GPTJEnsemble(GPTJConfig(128, layers=1, width=16, init_std=0.8), range(6))
    windows = self_taught(model, sample_members(LetterTask(), 6, 300, WINDOW, source(1)))
    found = forecast(model, LetterTask(), 200, windows, source(2))
    long = self_taught(model, sample_members(LetterTask(), 6, 300, 200, source(3)))
    with torch.no_grad():
        measured = (model(long.tokens).argmax(-1) == long.answer).float().mean(1)
    torch.testing.assert_close(found, measured, atol=0.12, rtol=0)
    assert (found - measured).abs().mean() < 0.05


def test_at_training_length_or_without_layers_nothing_changes():
    model = GPTJEnsemble(GPTJConfig(136, layers=2, width=16, init_std=0.8), [0, 1])
    windows = sample_members(NumberTask(), 2, 50, WINDOW, source())
    with torch.no_grad():
        windows = windows._replace(answer=model(windows.tokens).argmax(-1)[:1].expand(2, -1))
        right = (model(windows.tokens).argmax(-1) == windows.answer).float().mean(1)
    torch.testing.assert_close(forecast(model, NumberTask(), 17, windows, source()), right)
    torch.testing.assert_close(forecast(model, NumberTask(), 900, windows, source(), exposed=[]), right)
    assert (forecast(model, NumberTask(), 900, windows, source())[0] < 1).all()


def test_working_in_pieces_changes_only_which_contents_are_drawn(monkeypatch):
    model = GPTJEnsemble(GPTJConfig(136, layers=1, width=16, init_std=0.8), range(4))
    windows = self_taught(model, sample_members(NumberTask(), 4, 201, WINDOW, source(1)))
    whole = forecast(model, NumberTask(), 200, windows, source(2))
    module = __import__("possym.experiments.generalization.forecasting", fromlist=["PIECE"])
    monkeypatch.setattr(module, "PIECE", 4 * 17 * 1041 * 50)
    torch.testing.assert_close(forecast(model, NumberTask(), 200, windows, source(2)), whole, atol=0.1, rtol=0)


@pytest.mark.parametrize("rule", LetterTask.OFF_PATH)
def test_tokens_are_admitted_where_the_task_could_have_put_them(rule):
    task = LetterTask(rule)
    windows = sample_members(task, 1, 12, WINDOW, source())
    starts = [name[0] for name in task.decode(windows.tokens[0, :, -1])]
    tokens = torch.arange(64)[None]
    found = admitted(task, windows, tokens)[0]
    for row, token in itertools.product(range(12), range(64)):
        longer = torch.cat([torch.tensor([token]), windows.tokens[0, row]])[None]
        try:
            could = bool(task.solve(longer) == windows.answer[0, row])
        except InputError:
            could = False
        assert bool(found[row, token]) == (could and (rule == "any" or task.vocabulary[token][0] != starts[row]))
    assert admitted(NumberTask(), sample_members(NumberTask(), 1, 3, 17, source()), tokens).all()


@pytest.mark.parametrize(("kind", "config"), [(GPTJEnsemble, GPTJConfig), (LlamaEnsemble, LlamaConfig)])
def test_parts_are_the_long_input_with_layers_masked(kind, config):
    """Every way against a whole forward that hides what stands before the window from chosen layers."""
    config = config(136, layers=3, heads=2, width=16, init_std=0.7)
    model = kind(config, [0, 1])
    batch = self_taught(model, sample_members(NumberTask(), 2, 30, 50, source()))
    start = 50 - WINDOW

    def masked(layers):
        def attend(layer, query, key, value):
            length, asked = key.shape[2], query.shape[2]
            places = torch.arange(length)
            turned = [
                rotate(x.transpose(2, 3), p, config.frequencies, model.layout)
                for x, p in ((query, places[length - asked :]), (key, places))
            ]
            seen = places <= places[length - asked :, None]
            if layer not in layers:
                seen &= (places >= start) | (places[length - asked :, None] < start)
            logits = (turned[0] @ turned[1].mT * 8**-0.5).masked_fill(~seen, -torch.inf)
            return (logits.softmax(-1) @ value.transpose(2, 3)).transpose(2, 3)

        with torch.no_grad():
            return model(batch.tokens, attend=attend).argmax(-1) == batch.answer

    with torch.no_grad():
        contents = run_before(model, batch.tokens[..., :-WINDOW], *EXACT)
        sets = [layers for each in ways(3).values() for layers in each]
        results = [answered_beyond(model, batch, contents, layers, EXACT) for layers in [*sets, set()]]
    for layers, result in zip([*sets, set()], results, strict=True):
        assert torch.equal(result, masked(layers))
    assert results[-1].all() and not results[0].all()


def test_measured_parts_are_means_over_all_sequences(monkeypatch):
    model = GPTJEnsemble(GPTJConfig(136, layers=2, width=16, init_std=0.7), [0, 1])
    module = __import__("possym.experiments.generalization.forecasting", fromlist=["TOKENS"])
    monkeypatch.setattr(module, "TOKENS", 2 * 40 * 2 * 3)  # three sequences a member at once
    found = measured_parts(model, Echo(), 40, 7, source())
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


def test_what_does_not_fit_is_refused():
    model = GPTJEnsemble(GPTJConfig(136, layers=2, width=16), [0])
    windows = sample_members(NumberTask(), 1, 4, WINDOW, source())
    longer = sample_members(NumberTask(), 1, 4, 20, source())
    for batch, changes, complaint in (
        (windows, {"exposed": [2]}, "layers 0 to 1"),
        (windows, {"exposed": 1}, "exposed is of type int"),
        (windows, {"exposed": ["1"]}, "a layer of exposed"),
        (windows, {"relocated": 0}, "relocated = 0"),
        (longer, {}, "B at least 2"),
    ):
        with pytest.raises(ValueError, match=complaint):
            forecast(model, NumberTask(), 40, batch, source(), **changes)
    with pytest.raises(ValueError, match="length = 16"):
        forecast(model, NumberTask(), 16, windows, source())
    with pytest.raises(ValueError, match="length = 17"):
        measured_parts(model, NumberTask(), 17, 4, source())
