"""Clipping and AdamW, by kernels where they run, against torch's in float64."""

from contextlib import nullcontext

import pytest
import torch

from possym.ensembles import adamw, squares
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.schedule import TrainingConfig
from possym.ensembles.token_table import TokenTable
from possym.ensembles.training import Trainer

SHAPES = [(3, 2, 5, 24), (3, 2, 5, 40), (3, 2, 40), (3, 8), (3, 50, 70)]


def gradients(step, device):
    """Slices of a wider tensor in rows, places of a wider one, in order, turned around, and the same for all rows."""
    source = torch.Generator().manual_seed(step)
    wide = torch.randn(3, 2, 5, 64, generator=source).to(device)
    every = torch.randn(3, 70, generator=source).to(device)
    return [
        wide[..., :24],
        wide[..., 24:],
        torch.randn(3, 2, 64, generator=source).to(device)[..., 24:],
        torch.randn(8, 3, generator=source).to(device).mT,
        every[:, None].expand(3, 50, 70),
    ]


def test_norms_are_those_of_all_gradients_of_a_member(device):
    given = gradients(0, device)
    together = torch.cat([each.double().flatten(1) for each in given], 1)
    torch.testing.assert_close(adamw.norms(given).double(), together.norm(dim=1), rtol=1e-6, atol=0)


def test_norms_take_sums_of_squares_that_were_left_with_a_gradient_until_it_changes(device):
    given = gradients(0, device)
    expected = adamw.norms(given)
    squares.leave(given[0], torch.full((3, 2), 1e6, device=device))
    if adamw.supported(given):
        with_them = (expected**2 - given[0].square().flatten(1).sum(1) + 2e6).sqrt()
        torch.testing.assert_close(adamw.norms(given), with_them)
    given[0].mul_(1)
    torch.testing.assert_close(adamw.norms(given), expected)


def test_steps_are_those_of_torch(device):
    source = torch.Generator().manual_seed(9)
    ours = [torch.randn(shape, generator=source).to(device) for shape in SHAPES]
    theirs = [each.double() for each in ours]
    options = {"betas": (0.95, 0.999), "eps": 1e-3, "weight_decay": 0.1}
    optimizer = adamw.AdamW(ours, **options)
    exact = torch.optim.AdamW(theirs, **options)
    for step, (rate, limit) in enumerate([(0.0, 100.0), (1e-2, 65.0), (3e-2, 0.65), (2e-2, 32.0)]):
        given = gradients(step, device)
        factor = adamw.clip_factor(given, limit)
        optimizer.rate.fill_(rate)
        exact.param_groups[0]["lr"] = rate
        for parameter, gradient in zip(theirs, given, strict=True):
            parameter.grad = gradient.double() * factor.view(-1, *[1] * (gradient.ndim - 1))
        exact.step()
        adamw.update(optimizer, given, limit)
    for parameter, state, true in zip(ours, optimizer.state, theirs, strict=True):
        expected = exact.state[true]
        assert state["step"] == expected["step"]
        moments = [(state[name], expected[name]) for name in ("exp_avg", "exp_avg_sq")]
        for found, wanted in ((parameter, true), *moments):
            torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=1e-7)


def test_a_training_is_the_same_with_and_without_the_kernels_and_goes_on_from_either(device, tmp_path, monkeypatch):
    tokens = torch.randint(9, (2, 24, 5), generator=torch.Generator().manual_seed(0)).to(device)
    plan = TrainingConfig(6, 4, learning_rate=1e-2, epsilon=1e-3, clip=0.1, warmup=2)

    def train(kernels, file, until=6):
        if not kernels:
            monkeypatch.setattr(adamw, "supported", lambda gradients: False)
        model = GPTJEnsemble(GPTJConfig(9, layers=2, width=8, dropout=0.0, init_std=0.5), [0, 1]).to(device)

        def evaluate(model, step):
            if step == until < 6:
                raise KeyboardInterrupt
            return {"step": torch.tensor(step)}

        table = TokenTable(tokens, tokens[..., 0], 4)
        options = {"evaluate": evaluate, "evaluate_at": [4], "checkpoint": tmp_path / file, "checkpoint_seconds": 0.0}
        with pytest.raises(KeyboardInterrupt) if until < 6 else nullcontext():
            Trainer(model, table, plan, [0, 1], **options).run()
        monkeypatch.undo()
        return [parameter.detach() for parameter in model.parameters()]

    expected = train(False, "torch")
    train(True, "both", until=4)
    for found in (train(True, "kernels"), train(False, "both")):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4)
