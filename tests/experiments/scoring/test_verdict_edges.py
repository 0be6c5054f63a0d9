"""Where verdicts on heads and their scores change, just on each side of every threshold."""

from types import SimpleNamespace

import pytest
import torch

from possym.experiments.claim import FAILS, HOLDS
from possym.experiments.scoring import claims


def test_random_heads_have_logits_of_the_size_asked_for():
    """Standard normal, as products of 128 pairs over the root of 128 are."""
    usual = claims.random_logits()
    assert usual.shape == (1000, 16, 16) and usual.std().item() == pytest.approx(1.0, rel=0.02)
    assert claims.random_logits(size=1e-3).std().item() == pytest.approx(1e-3, rel=0.02)


def test_deviations_are_compared_as_a_ratio_below_rounding(monkeypatch):
    for small, verdict in ((0.9e-20, HOLDS), (1e-20, FAILS), (1e-10, FAILS)):
        for ratio, other in ((1.0, 1.0), (1e-30, 1e-30), (1e30, 1e30)):
            for measure, names in ((claims.one_content, "ps"), (claims.no_rotation, "sp")):
                first, second = ({"p": "positional", "s": "symbolic"}[name] for name in names)
                values = {f"{first}_deviation": small * ratio, f"{second}_deviation": other}
                found = SimpleNamespace(**{k: torch.tensor([v], dtype=torch.float64) for k, v in values.items()})
                monkeypatch.setattr(claims, "exclusion", lambda _, found=found: found)
                assert measure(torch.zeros(1)).verdict == verdict, (small, ratio, names)


def test_a_pure_head_scores_one_at_both_temperatures(monkeypatch):
    asked = []
    for off, verdict in ((0.9e-9, HOLDS), (1e-9, FAILS), (1e-3, FAILS)):
        found = SimpleNamespace(positional=torch.tensor([1.0, 1 - off], dtype=torch.float64))
        monkeypatch.setattr(claims, "swap_scores", lambda _, temperature, f=found: asked.append(temperature) or f)
        assert claims.own_score("positional", torch.zeros(1)).verdict == verdict
    assert asked == [1e-4, 0.1] * 3


@pytest.mark.parametrize(("lowest", "verdict"), [(0.9995, HOLDS), (0.999, FAILS), (0.9, FAILS)])
def test_uniform_heads_score_one_on_both(lowest, verdict, monkeypatch):
    for name in ("positional", "symbolic"):
        values = {"positional": 1.0, "symbolic": 1.0, name: lowest}
        found = SimpleNamespace(**{k: torch.tensor([1.0, v], dtype=torch.float64) for k, v in values.items()})
        monkeypatch.setattr(claims, "swap_scores", lambda _, f=found: f)
        assert claims.uniform_scores(torch.zeros(1)).verdict == verdict
