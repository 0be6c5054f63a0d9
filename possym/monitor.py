"""Score the heads of a model while a transformers Trainer trains it: the public name of `possym.profiling.monitor`."""

from possym.profiling.monitor import HeadScoreCallback

__all__ = ["HeadScoreCallback"]
