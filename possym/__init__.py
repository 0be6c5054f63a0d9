"""Positional and symbolic attention heads in RoPE transformers.

``possym.profile`` scores the heads of a language model, ``possym.profiling.monitor`` while it trains. ``possym.rope``
and
``possym.scores`` hold the metric, ``possym.theory`` the constructions of the papers, ``possym.tasks`` the data,
``possym.models`` and ``possym.ensembles.training`` the ensembles, ``possym.experiments`` the studies that the book
shows.
"""

from importlib import import_module

from possym.errors import (
    ConfigError,
    DeviceError,
    EndpointError,
    InputError,
    PossymError,
    ResultsError,
    UnsupportedModelError,
)

__version__ = "0.1.0"
__all__ = [
    "ConfigError",
    "DeviceError",
    "EndpointError",
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
        from possym import profiling

        return getattr(profiling, name)
    if name == "monitor":
        return import_module(".profiling.monitor", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
