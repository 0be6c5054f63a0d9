"""The settings of a training run: its length, its learning rate, and the steps at which it is evaluated."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from possym.errors import ConfigError, require_type


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training run: `steps` updates of `batch` sequences per member.

    Raises:
        ConfigError: a value of the wrong type or out of range.

    Source of the defaults: the code that the authors of 2605.31558 released; the paper does not state them.

    >>> TrainingConfig(steps=6750, batch=64).warmup
    750
    """

    steps: int
    batch: int
    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.95, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 1e-4
    clip: float = 1.0
    warmup: int = 750

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        for name, low in (("steps", 1), ("batch", 1), ("warmup", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigError(f"{name} = {value!r}: give a whole number from {low}")
        if self.warmup >= self.steps:
            raise ConfigError(f"warmup = {self.warmup} leaves nothing of {self.steps} steps: give fewer")
        for name, zero in (("learning_rate", False), ("epsilon", False), ("clip", False), ("weight_decay", True)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} = {value!r}: give a finite number from 0")
            if value == 0 and not zero:
                raise ConfigError(f"{name} = {value!r}: give a number above 0")
        pair = self.betas
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(b, float) and 0 <= b < 1 for b in pair):
            raise ConfigError(f"betas = {pair!r}: give a pair of numbers from 0 to below 1")


def learning_rates(config: TrainingConfig) -> Tensor:
    """Return the learning rate of every update (steps,): linear from 0 over the warm-up, then linear to 0.

    >>> learning_rates(TrainingConfig(steps=4, batch=1, learning_rate=1.0, warmup=2))
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    require_type(config, TrainingConfig, "config")
    step = torch.arange(config.steps, dtype=torch.float64)
    rising = step / max(config.warmup, 1)
    falling = (config.steps - step) / (config.steps - config.warmup)
    factor = torch.where(step < config.warmup, rising, falling)
    return (config.learning_rate * factor).float()
