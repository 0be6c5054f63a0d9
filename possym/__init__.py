"""Positional and symbolic attention heads in RoPE transformers.

``possym.profile`` scores the heads of a language model, ``possym.compare`` says what changed from one model to another,
``possym.atlas`` finds the heads of known kinds, ``possym.monitor`` scores while a model trains, ``possym.keep`` plans
which heads of its cache may forget. ``possym.rope`` and ``possym.scores`` hold the metric, ``possym.theory`` the
constructions of the papers, ``possym.tasks`` the data, ``possym.capture`` and ``possym.models`` read models,
``possym.kv_cache`` runs plans, ``possym.ensembles`` trains small ones, ``possym.experiments`` are the studies that the
book shows, ``possym.results`` keeps what they found and ``possym.claims`` judges it.

>>> import possym
>>> possym.rope.frequencies(4).tolist()
[1.0, 0.01]
"""

from importlib import import_module

from possym.errors import (
    ConfigError,
    DeviceError,
    EndpointError,
    InputError,
    MissingPackageError,
    PossymError,
    ResultsError,
    UnsupportedModelError,
)

__version__ = "0.2.0"
__released__ = "2026-11-28"
__all__ = [
    "Atlas",
    "ConfigError",
    "DeviceError",
    "EndpointError",
    "InputError",
    "MissingPackageError",
    "PossymError",
    "Profile",
    "ResultsError",
    "UnsupportedModelError",
    "atlas",
    "capture",
    "charts",
    "claims",
    "command",
    "compare",
    "costs",
    "ensembles",
    "errors",
    "experiments",
    "keep",
    "kernels",
    "kv_cache",
    "models",
    "monitor",
    "profile",
    "profiling",
    "results",
    "rope",
    "rope_audit",
    "scores",
    "scores_from",
    "sweeps",
    "tasks",
    "theory",
]
HOMES = {"keep": "kv_cache"}  # functions whose room few need: a chapter that plans imports the room too


def __getattr__(name: str):
    # Loaded on first use: torch and pandas take a second, and errors alone need neither.
    if name in ("Atlas", "Profile", "atlas", "compare", "profile", "scores_from"):
        return getattr(import_module("possym.profiling"), name)
    if name in HOMES:
        return getattr(import_module(f"possym.{HOMES[name]}"), name)
    if name == "rope_audit":
        return import_module("possym.capture").rope_audit
    if name in __all__:  # a room
        return import_module(f"possym.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
