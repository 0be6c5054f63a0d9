"""A run that was interrupted ends where one that was not does."""

import pytest
import torch

from possym.experiments.language_models.model import Sizes
from possym.experiments.language_models.training import step_seed, train, windows

TOKENS = torch.randint(30, (2000,), generator=torch.Generator().manual_seed(0)).to(torch.int16)
SETTINGS = {
    "steps": 12, "batch": 4, "length": 16, "peak": 1e-2, "warm_up": 3, "points": [0, 5, 12], "seed": 3,
    "device": torch.device("cpu"),
}  # fmt: skip


class Stop(Exception):
    """What interrupts a run."""


def run(path, stop_at=None):
    seen = []

    def measure(model, step):
        if step == stop_at:
            raise Stop
        seen.append((step, float(next(model.parameters()).detach().sum())))

    model, losses = train(Sizes(30, 2, 2, 32), TOKENS, measure=measure, checkpoint=path, **SETTINGS)
    return model, losses, seen


def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path):
    whole, losses, seen = run(tmp_path / "whole")
    assert len(losses) == 12 and [step for step, _ in seen] == [0, 5, 12]
    with pytest.raises(Stop):
        run(tmp_path / "stopped", stop_at=12)
    again, all_losses, later = run(tmp_path / "stopped")
    assert all_losses == losses and later == seen[2:]
    for first, second in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(first, second)


def test_a_checkpoint_that_was_cut_short_is_as_none(tmp_path):
    _, losses, seen = run(tmp_path / "run")
    stored = tmp_path / "run.safetensors"
    stored.write_bytes(stored.read_bytes()[:1000])
    assert run(tmp_path / "run")[1:] == (losses, seen)


def test_windows_are_pieces_of_the_tokens():
    read = windows(TOKENS, 50, 10, seed=4)
    pieces = TOKENS.unfold(0, 10, 1).long()
    assert all((pieces == row).all(1).any() for row in read) and len(read.unique(dim=0)) > 40
    assert not torch.equal(read, windows(TOKENS, 50, 10, seed=step_seed(0, 1)))
