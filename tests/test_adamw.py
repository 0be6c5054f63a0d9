"""Clipping and AdamW by kernels against torch's, on a GPU or in Triton's interpreter (TRITON_INTERPRET=1)."""

import os
from contextlib import nullcontext

import pytest
import torch

from possym import adamw
from possym.models.gptj import GPTJConfig, GPTJEnsemble
from possym.training import TokenTable, Trainer, TrainingConfig

INTERPRETED = adamw.triton is not None and os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["cpu"] * INTERPRETED + ["cuda"] * torch.cuda.is_available()
DEVICES = pytest.mark.parametrize("device", DEVICES or [pytest.param("", marks=pytest.mark.skip("no GPU"))])
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


@DEVICES
def test_norms_are_those_of_all_gradients_of_a_member(device):
    given = gradients(0, device)
    together = torch.cat([each.double().flatten(1) for each in given], 1)
    torch.testing.assert_close(adamw.norms(given).double(), together.norm(dim=1), rtol=1e-6, atol=0)


@DEVICES
def test_steps_are_those_of_torch(device):
    source = torch.Generator().manual_seed(9)
    ours = [torch.randn(shape, generator=source).to(device) for shape in SHAPES]
    theirs = [each.double() for each in ours]
    zeros = torch.zeros_like
    states = [{"step": torch.zeros((), device=device), "exp_avg": zeros(p), "exp_avg_sq": zeros(p)} for p in ours]
    optimizer = torch.optim.AdamW(theirs, betas=(0.95, 0.999), eps=1e-3, weight_decay=0.1)
    factor = torch.tensor([1.0, 0.5, 0.01], device=device)
    for step, rate in enumerate((0.0, 1e-2, 3e-2, 2e-2)):
        given = gradients(step, device)
        optimizer.param_groups[0]["lr"] = rate
        for parameter, gradient in zip(theirs, given, strict=True):
            parameter.grad = gradient.double() * factor.view(-1, *[1] * (gradient.ndim - 1))
        optimizer.step()
        adamw.update(ours, states, given, factor, torch.tensor(rate, device=device), (0.95, 0.999), 1e-3, 0.1)
    for parameter, state, exact in zip(ours, states, theirs, strict=True):
        expected = optimizer.state[exact]
        assert state["step"] == expected["step"]
        for found, wanted in (
            (parameter, exact),
            (state["exp_avg"], expected["exp_avg"]),
            (state["exp_avg_sq"], expected["exp_avg_sq"]),
        ):
            torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=1e-7)


@DEVICES
def test_a_training_is_the_same_with_and_without_the_kernels_and_goes_on_from_either(device, tmp_path, monkeypatch):
    tokens = torch.randint(9, (2, 24, 5), generator=torch.Generator().manual_seed(0)).to(device)
    plan = TrainingConfig(6, 4, learning_rate=1e-2, epsilon=1e-3, clip=0.1, warmup=2)
    used = []

    def train(kernels, file, until=6):
        monkeypatch.setattr(adamw, "suits", lambda gradients: used.append(kernels) or kernels)
        model = GPTJEnsemble(GPTJConfig(9, layers=2, width=8, dropout=0.0, init_std=0.5), [0, 1]).to(device)

        def evaluate(model, step):
            if step == until < 6:
                raise KeyboardInterrupt
            return {"step": torch.tensor(step)}

        table = TokenTable(tokens, tokens[..., 0], 4)
        options = {"evaluate": evaluate, "evaluate_at": [4], "checkpoint": tmp_path / file, "checkpoint_seconds": 0.0}
        with pytest.raises(KeyboardInterrupt) if until < 6 else nullcontext():
            Trainer(model, table, plan, [0, 1], **options).run()
        return [parameter.detach() for parameter in model.parameters()]

    expected = train(False, "torch")
    assert used and not any(used)
    train(True, "both", until=4)
    assert all(used[-4:])
    for found in (train(True, "kernels"), train(False, "both")):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-4)
