"""Stored results of studies, complete and with their provenance.

A study is a module with `NAME`, a `Config` and `run(config) -> Study`. `load_or_run` returns its stored
result or runs it. A stored result is a folder of Parquet tables and one safetensors file, listed with their
hashes in `manifest.json` beside configuration, commit, device, versions and time.
"""

from possym.results.config import ExperimentConfig, config_hash, identity
from possym.results.devices import choose_device
from possym.results.files import atomic_write, cache_root, sha256, writing
from possym.results.provenance import environment
from possym.results.store import (
    Study,
    checkpoint_folder,
    load,
    load_or_run,
    provenance_line,
    result_folder,
    results_root,
    save,
)

__all__ = [
    "ExperimentConfig",
    "Study",
    "atomic_write",
    "cache_root",
    "checkpoint_folder",
    "choose_device",
    "config_hash",
    "environment",
    "identity",
    "load",
    "load_or_run",
    "provenance_line",
    "result_folder",
    "results_root",
    "save",
    "sha256",
    "writing",
]
