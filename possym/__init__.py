"""Positional and symbolic attention heads in RoPE transformers.

``possym.profile`` scores the heads of a language model. ``possym.rope`` and ``possym.scores`` hold the metric,
``possym.theory`` the constructions of the papers, ``possym.tasks`` the data, ``possym.models`` and
``possym.training`` the ensembles, ``possym.experiments`` the studies that the book shows.
"""

from .errors import ConfigError, InputError, PossymError, ResultsError, UnsupportedModelError

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "InputError",
    "PossymError",
    "Profile",
    "ResultsError",
    "UnsupportedModelError",
    "profile",
]


def __getattr__(name: str):
    # Loaded on first use: torch and pandas take a second, and errors alone need neither.
    if name in ("Profile", "profile"):
        from . import profiling

        return getattr(profiling, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
