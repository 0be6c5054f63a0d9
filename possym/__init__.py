"""Positional and symbolic attention heads in RoPE transformers.

``possym.rope`` and ``possym.scores`` hold the metric, ``possym.theory`` the constructions of the papers,
``possym.tasks`` the data, ``possym.models`` and ``possym.training`` the ensembles, ``possym.experiments``
the studies that the book shows.
"""

from .errors import ConfigError, InputError, PossymError, ResultsError, UnsupportedModelError

__version__ = "0.1.0"
__all__ = ["ConfigError", "InputError", "PossymError", "ResultsError", "UnsupportedModelError"]
