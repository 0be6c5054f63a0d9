"""Which weights of swaps tell a head's kind, whatever else it attends to and however many keys there are.

Heads are made of known kind: of the attention on the keys that move, a share is given by position and the rest by
content, e^M[a, b] = share · P[b] + (1 − share) · C[a], where P and C are distributions that put `FOCUS` on a few keys
and spread the rest unevenly over all. Purely positional heads have share 1, purely symbolic ones 0, and a nearly
uniform head, whose logits are noise of 0.001, is both. A sink beside the keys, which never moves, takes a share of all
attention. The truth is positional = share and symbolic = 1 − share; for uniform heads both are 1.

Three ways to weigh a swap by the difference δ of the two attentions before it, largest difference Δ:
- ``absolute``: α ∝ exp(δ / τ), as the papers do;
- ``relative``: α ∝ exp(δ / τΔ);
- ``proportional``: α ∝ (δ / Δ)^(1/τ).

Criteria, fixed before the study ran:
1. A weighting *withstands sinks* if no head's score moves by more than `STEADY` as the sink grows from none to the
   heaviest.
2. The error of a cell (kind, number of keys, sink) is the larger difference of the two scores, mean over heads, from
   the truth. A weighting is judged by its largest error over all cells.
3. The default of `possym.profile` is the weighting with the smallest largest error among those that withstand sinks;
   of those within `CLOSE` of it, the one with the smallest mean error.

Table ``cells``: weighting, temperature, kind, share (of positional attention), keys, sink (its share of all attention),
heads, positional, symbolic, error, effective (exp of the entropy of α), moved (largest change of a score of a head
from the same head without sink), named (share of heads that `possym.scores.purity` names rightly: the pure ones pure,
the others neither).
"""

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from possym.errors import ConfigError
from possym.results import ExperimentConfig, Study, choose_device
from possym.scores import purity

NAME = "scoring"
FOCUS = 0.9  # of the attention that positions or contents give, on one key or on four
STEADY, CLOSE = 0.01, 0.01
KINDS = {
    "positional": 1.0,
    "three quarters positional": 0.75,
    "half and half": 0.5,
    "three quarters symbolic": 0.25,
    "symbolic": 0.0,
    "uniform": None,
}


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study.

    Raises:
        ConfigError: fewer than eight keys, sinks that do not begin with none, or temperatures that are not positive.

    >>> Config.preset_named("paper").keys[-1]
    4096
    """

    keys: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    sinks: tuple[float, ...] = (0.0, 0.5, 0.9, 0.99, 0.999)
    absolute: tuple[float, ...] = (1e-4, 0.1)
    relative: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01)
    proportional: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25)
    heads: int = 8

    PRESETS: ClassVar = {"smoke": {"keys": (16, 64), "heads": 2}, "paper": {}}

    def __post_init__(self) -> None:
        """Refuse sizes that leave nothing to compare."""
        super().__post_init__()
        if not self.keys or min(self.keys) < 8 or self.heads < 1:
            raise ConfigError(f"keys = {self.keys}, heads = {self.heads}: give at least one head of 8 keys or more")
        if self.sinks[:1] != (0.0,) or max(self.sinks) >= 1:
            raise ConfigError(f"sinks = {self.sinks}: begin with 0 and stay below 1")
        if not self.weightings() or min(temperature for _, temperature in self.weightings()) <= 0:
            raise ConfigError("give at least one temperature, and only positive ones")

    def weightings(self) -> list[tuple[str, float]]:
        """Return every way of weighing swaps with its temperature."""
        names = ("absolute", "relative", "proportional")
        return [(name, temperature) for name in names for temperature in getattr(self, name)]


def run(config: Config) -> Study:
    """Score heads of every kind behind every sink with every weighting.

    >>> len(run(Config.preset_named("smoke", keys=(8,), heads=1)).tables["cells"])
    330
    """
    device = choose_device(config.device)
    generator = torch.Generator().manual_seed(config.seed)
    rows = []
    for keys in config.keys:
        for kind, share in KINDS.items():
            truth = (1.0, 1.0) if share is None else (share, 1 - share)
            # (heads, weightings, sinks) each
            positional, symbolic, effective = torch.stack(
                [
                    score_by_weighting(make_head(share, keys, 1 + 3 * (head % 2), generator).to(device), config)
                    for head in range(config.heads)
                ],
                1,
            ).cpu()
            moved = torch.stack([positional - positional[..., :1], symbolic - symbolic[..., :1]]).abs().amax((0, 1))
            wanted = {1.0: 1, 0.0: -1}.get(share, 0)
            named = (purity(positional, symbolic) == wanted).double().mean(0)
            positional, symbolic, effective = (x.mean(0) for x in (positional, symbolic, effective))
            error = torch.maximum((positional - truth[0]).abs(), (symbolic - truth[1]).abs())
            rows += [
                {
                    "weighting": weighting,
                    "temperature": temperature,
                    "kind": kind,
                    "share": share,
                    "keys": keys,
                    "sink": sink,
                    "heads": config.heads,
                    "positional": positional[w, s].item(),
                    "symbolic": symbolic[w, s].item(),
                    "error": error[w, s].item(),
                    "effective": effective[w, s].item(),
                    "moved": moved[w, s].item(),
                    "named": named[w, s].item(),
                }
                for w, (weighting, temperature) in enumerate(config.weightings())
                for s, sink in enumerate(config.sinks)
            ]
    return Study({"cells": pd.DataFrame(rows).astype({"share": "float64"})})


def make_head(share: float | None, keys: int, attended: int, generator: torch.Generator) -> Tensor:
    """Return the relocated logits (keys, keys) of a head that attends by position to ``share``, the rest by content.

    Args:
        share: from 0 to 1; None for a nearly uniform head.
        keys: their number.
        attended: on how many keys `FOCUS` lies, of positions and of contents.
        generator: draws which, and how the rest is spread.

    >>> head = make_head(1.0, 16, 1, torch.Generator().manual_seed(0))
    >>> round(head.diagonal().softmax(0).max().item(), 1), bool((head == head[0]).all())
    (0.9, True)
    """
    if share is None:
        return 1e-3 * torch.randn(keys, keys, generator=generator)

    def attention() -> Tensor:
        spread = torch.randn(keys, generator=generator, dtype=torch.float64).softmax(0) * (1 - FOCUS)
        spread[torch.randperm(keys, generator=generator)[:attended]] += FOCUS / attended
        return spread

    by_position, by_content = attention(), attention()
    return (share * by_position + (1 - share) * by_content[:, None]).log().float()


def score_by_weighting(relocated: Tensor, config: Config) -> Tensor:
    """Return positional score, symbolic score and effective swaps of a head, each (weightings, sinks), float64.

    Both cosines of a swap come from the angles of v and v′, a second way beside `possym.scores`; they are the same for
    all weights.
    """
    keys = len(relocated)
    logits = relocated.diagonal()
    attention = logits.double().softmax(0)
    largest = (attention.max() - attention.min()).item()
    sums = torch.zeros(4, len(config.weightings()), len(config.sinks), dtype=torch.float64)
    rows = max(1, 2**20 // keys)
    for start in range(0, keys - 1, rows):
        here = torch.arange(start, min(start + rows, keys), device=relocated.device)[:, None]
        after = torch.arange(start, keys, device=relocated.device)[None, :]
        swap = after > here
        before = (logits[after] - logits[here])[swap].exp().atan()
        behind = (relocated[here, after] - relocated[after, here])[swap].exp().atan()
        straight, crossed = (behind - before).cos(), (behind + before).sin()
        gap = ((attention[here] - attention[after]).abs()[swap] / largest).float()
        for w, (weighting, temperature) in enumerate(config.weightings()):
            for s, sink in enumerate(config.sinks):
                if weighting != "absolute" and s:  # they do not look at what is not moved
                    sums[:, w, s] = sums[:, w, 0]
                    continue
                if weighting == "proportional":
                    logs = gap.clamp(min=1e-30).log() / temperature
                else:
                    scale = largest * (1 - sink) if weighting == "absolute" else 1.0
                    logs = (gap - 1) * (scale / temperature)
                weight = logs.exp()
                found = weight.sum(), weight @ straight, weight @ crossed, weight @ logs
                sums[:, w, s] += torch.stack(found).double().cpu()
    total, straight, crossed, logs = sums
    return torch.stack([straight / total, crossed / total, (total.log() - logs / total).exp()])
