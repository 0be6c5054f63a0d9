"""Results of studies, stored whole with what made them.

A study is a module with `NAME`, a `Config` and `run(config) -> Study`. `load_or_run` returns its stored
result or runs it. A stored result is a folder of Parquet tables and one safetensors file, listed with their
hashes in `manifest.json` beside configuration, commit, device, versions and time. The manifest is written
last and in one step, so a folder holds the old result or the new one, never half of each.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import filelock
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from possym import __version__
from possym.choices import COMPUTE, SEEDS
from possym.errors import ConfigError, InputError, ResultsError, need_room, require_type
from possym.results.scratch import scratch

LIBRARIES = ("torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "altair")


@dataclass
class Study:
    """The result of a study: tables, arrays, and the manifest that says how they were made."""

    tables: dict[str, pd.DataFrame]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Base of every study's configuration: a frozen dataclass whose presets are in `PRESETS`.

    Names and types are checked on construction. `device` says where to run and is no part of a result's
    identity; every other field is.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Config(ExperimentConfig):
    ...     steps: int = 100
    ...     PRESETS: ClassVar = {"smoke": {"steps": 2}, "paper": {}}
    >>> Config.preset_named("smoke").steps
    2
    >>> Config.preset_named("fast")
    Traceback (most recent call last):
    possym.errors.ConfigError: preset = 'fast': known presets are smoke, paper
    """

    preset: str = "smoke"
    device: str = "auto"
    seed: int = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        """Refuse values of the wrong type, unknown presets and unknown devices."""
        expected = get_type_hints(type(self))
        for entry in dataclasses.fields(self):
            value, kind = getattr(self, entry.name), expected[entry.name]
            if not _matches(value, kind):
                raise ConfigError(f"{entry.name} = {value!r}: expected {kind if get_origin(kind) else kind.__name__}")
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int) and entry.name != "seed":  # a count or a length: of what is held, or more
                    _need_room(entry.name, number)
        if self.preset not in self.PRESETS:
            raise ConfigError(f"preset = {self.preset!r}: known presets are {', '.join(self.PRESETS)}")
        known_device(self.device)
        if not 0 <= self.seed < SEEDS:
            raise ConfigError(f"seed = {self.seed}: give a whole number from 0 to below {SEEDS:,}")

    @classmethod
    def preset_named(cls, name: str, **overrides: Any) -> Self:
        """Return the configuration of a preset, some fields replaced.

        Raises:
            ConfigError: unknown preset or field, or a value of the wrong type; the known names are listed.
        """
        if not isinstance(name, str) or name not in cls.PRESETS:
            raise ConfigError(f"preset = {name!r}: known presets are {', '.join(cls.PRESETS)}")
        known = [entry.name for entry in dataclasses.fields(cls)]
        for key in overrides:
            if key not in known or key == "preset":
                raise ConfigError(f"unknown setting {key!r}: known settings are {', '.join(known[1:])}")
        return cls(preset=name, **{**cls.PRESETS[name], **overrides})

    def hash(self) -> str:
        """Return 16 hexadecimal digits that name this configuration, the device left out."""
        return config_hash(self)


def _need_room(name: str, count: int) -> None:
    try:
        need_room(count, **{name: count})
    except InputError as error:
        raise ConfigError(str(error)) from None


def _matches(value: Any, expected: Any) -> bool:
    if get_origin(expected) is tuple:
        (element, *_) = get_args(expected)
        return isinstance(value, tuple) and all(_matches(item, element) for item in value)
    if expected is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, expected)


def identity(config: Any) -> dict[str, Any]:
    """Return the fields that make a result what it is, as JSON values: all but the device."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise InputError(f"config is a {type(config).__name__}: give the study's Config, a dataclass instance")
    values = dataclasses.asdict(config)
    values.pop("device", None)
    return json.loads(json.dumps(values))


def config_hash(config: Any) -> str:
    """Return 16 hexadecimal digits that name a configuration, the device left out."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:16]


def results_root() -> Path:
    """Return where results live: `POSSYM_RESULTS`, else `results/` of the checkout or the working folder."""
    if named := os.environ.get("POSSYM_RESULTS"):
        return Path(named).absolute()
    checkout = Path(__file__).parents[2]
    return (checkout if (checkout / "pyproject.toml").exists() else Path.cwd()) / "results"


def cache_root() -> Path:
    """Return where converted and trained models are kept: ``POSSYM_CACHE``, else the platform's cache folder."""
    if named := os.environ.get("POSSYM_CACHE"):
        return Path(named).absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
    return Path(base) / "possym"


def result_folder(name: str, config: Any) -> Path:
    """Return the folder of a result: the preset's name, with the hash where settings differ from the preset."""
    require_type(name, str, "name")
    mine, presets = identity(config), getattr(type(config), "PRESETS", {})
    plain = config.preset not in presets or mine == identity(type(config).preset_named(config.preset))
    return results_root() / name / (config.preset if plain else f"{config.preset}-{config_hash(config)}")


def checkpoint_folder(name: str, config: Any) -> Path:
    """Return the folder where a run of this study keeps its checkpoints; made if missing."""
    require_type(name, str, "name")
    digest = config_hash(config)
    folder = results_root() / ".partial" / f"{name}-{config.preset}-{digest}"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def load_or_run(experiment: ModuleType, config: Any, compute: str = "stored") -> Study:
    """Return a study's result from the store, or run it and store it.

    Args:
        experiment: a module of `possym.experiments`.
        config: its `Config`.
        compute: ``"stored"`` loads and never runs, ``"auto"`` runs what is not stored, ``"always"`` runs.
            An interrupted run goes on from its checkpoints.

    Raises:
        ConfigError: unknown ``compute``, or a device to run on that this machine has not.
        InputError: not a study, or a configuration of another study.
        ResultsError: nothing stored, files that do not match their hashes, another configuration, or a store that
            cannot be written; the last is found out before the run as far as it can be.
    """
    if not isinstance(compute, str) or compute not in COMPUTE:
        raise ConfigError(f"compute = {compute!r}: known values are {', '.join(COMPUTE)}")
    if not callable(getattr(experiment, "run", None)) or not isinstance(getattr(experiment, "NAME", None), str):
        raise InputError(f"experiment = {experiment!r}: give a study, a module with NAME, Config and run")
    identity(config)
    if not isinstance(config, expected := getattr(experiment, "Config", object)):
        raise InputError(f"config is a {type(config).__name__}: give the study's own, {expected.__module__}.Config")
    folder = result_folder(experiment.NAME, config)
    if compute == "stored" or (compute == "auto" and (folder / "manifest.json").exists()):
        return load(folder, config)
    choose_device(getattr(config, "device", "auto"))
    checkpoints = checkpoint_folder(experiment.NAME, config)
    lock = checkpoints.with_suffix(".lock")
    with writing(lock):
        lock.touch()
    with filelock.FileLock(lock):
        if compute == "auto" and (folder / "manifest.json").exists():  # another process has run it meanwhile
            return load(folder, config)
        checkpoints.mkdir(exist_ok=True)
        started, clock = datetime.now(UTC), time.perf_counter()
        study = experiment.run(config)
        study.manifest = {
            "experiment": experiment.NAME,
            "config": identity(config),
            "config_hash": config_hash(config),
            "seeds": [getattr(config, "seed", 0)],
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - clock, 2),
            **environment(getattr(config, "device", "auto")),
            **study.manifest,
        }
        save(folder, study)
        shutil.rmtree(checkpoints)
    return study


def save(folder: Path, study: Study) -> None:
    """Store a study in a folder: every file whole, the manifest last; what was there before is replaced."""
    require_type(folder, (str, Path), "folder")
    require_type(study, Study, "study")
    for name, table in study.tables.items():
        require_type(table, pd.DataFrame, f"table {name!r}")
    for name, array in study.arrays.items():
        require_type(array, Tensor, f"array {name!r}")
    folder = Path(folder)
    with writing(folder):
        _save(folder, study)


def _save(folder: Path, study: Study) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    with scratch(folder) as new:
        pieces = []
        for name, table in study.tables.items():
            piece = new / f"{name}.parquet"
            table.to_parquet(piece, index=False, compression="zstd")
            pieces.append(piece)
        if study.arrays:
            piece = new / "arrays.safetensors"
            save_file({name: array.detach().cpu().contiguous() for name, array in study.arrays.items()}, piece)
            pieces.append(piece)
        for piece in pieces:
            digest = sha256(piece)
            target = folder / f"{piece.stem}.{digest[:8]}{piece.suffix}"
            files[target.name] = {"sha256": digest, "bytes": piece.stat().st_size}
            os.replace(piece, target)
    study.manifest["files"] = files
    with atomic_write(folder / "manifest.json") as path:
        path.write_text(json.dumps(study.manifest, indent=1) + "\n")
    for stale in folder.iterdir():
        if stale.suffix in (".parquet", ".safetensors") and stale.name not in files:
            stale.unlink()


def load(folder: Path, config: Any = None) -> Study:
    """Load a stored study, its files checked against their hashes and its configuration against ``config``.

    Raises:
        ResultsError: nothing there, a file missing or altered, or another configuration; the message says which.
    """
    require_type(folder, (str, Path), "folder")
    folder = Path(folder)
    rerun = "run the study again with compute='always'"
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        listed, stored = dict(manifest["files"]), dict(manifest["config"])
    except FileNotFoundError:
        raise ResultsError(f"no stored result in {folder}: {rerun}, or use compute='auto'") from None
    except (ValueError, KeyError, TypeError, UnicodeDecodeError, OSError) as error:
        raise ResultsError(f"{folder / 'manifest.json'} cannot be read ({error}): {rerun}") from None
    if config is not None:
        wanted = identity(config)
        differing = [key for key in sorted(wanted.keys() | stored.keys()) if wanted.get(key) != stored.get(key)]
        if differing:
            pairs = "; ".join(f"{key}: stored {stored.get(key)!r}, asked {wanted.get(key)!r}" for key in differing)
            raise ResultsError(f"the result in {folder} was made with another configuration ({pairs}): {rerun}")
    tables, arrays = {}, {}
    for name, entry in listed.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ResultsError(f"{path} is missing, though manifest.json lists it: restore it, or {rerun}")
        if sha256(path) != entry["sha256"]:
            raise ResultsError(f"{path} does not match the hash in manifest.json: restore it, or {rerun}")
        try:
            if path.suffix == ".parquet":
                tables[name.split(".")[0]] = pd.read_parquet(path)
            else:
                arrays.update(load_file(path))
        except (OSError, ValueError, SafetensorError) as error:
            raise ResultsError(f"{path} cannot be read ({error}): restore it, or {rerun}") from None
    return Study(tables, arrays, manifest)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says when it cannot write into a ResultsError that names the place and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ResultsError(
            f"{path} cannot be written ({error}): make room, or choose a folder where you may write (POSSYM_RESULTS "
            "names that of results); an interrupted run goes on from its last checkpoint"
        ) from error


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` if the block succeeds and vanishes if not, however that ends.

    Raises:
        ResultsError: the file cannot be written, such as for want of room, or is no file but a device or folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a.txt") as path:
    ...         _ = path.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    with writing(path):
        if path.exists() and not path.is_file():
            raise ResultsError(f"{path} cannot be written: it is no file but a device, pipe or folder, give a file")
    with writing(path), scratch(path.parent) as folder:
        yield folder / path.name
        os.replace(folder / path.name, path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of that name; ``"auto"`` is CUDA where there is one, else the CPU.

    Raises:
        ConfigError: unknown device, or CUDA where there is none.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    named = known_device(name)
    if named is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if named.type == "cuda" and (named.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device = {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; try 'auto'")
    return named


def known_device(name: str) -> torch.device | None:
    """Return the device of that name, here or on another machine, None for ``"auto"``; refuse any other name."""
    if name == "auto":
        return None
    try:
        device = torch.device(name) if isinstance(name, str) else None
    except (RuntimeError, TypeError):
        device = None
    # A number past 127 wraps around in torch: 'cuda:256' would be the first device.
    if device is None or str(device) != name or (device.type != "cuda" and name != "cpu"):
        raise ConfigError(f"device = {name!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'")
    return device


def environment(device: str = "auto") -> dict[str, Any]:
    """Return what a number's provenance needs: device, versions, commit, and whether the tree was changed.

    Where the checkout has no git, `POSSYM_COMMIT` may name the commit, with ``-dirty`` appended if the tree
    had changes.
    """
    chosen = choose_device(device)
    versions = {"possym": __version__, "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            versions[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    commit, dirty = _commit()
    return {
        "device": torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else _processor(),
        "versions": versions,
        "commit": commit,
        "dirty": dirty,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"CPU, {os.cpu_count()} cores ({model})"


def _commit() -> tuple[str | None, bool | None]:
    folder = Path(__file__).parent

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    # A copy sent to another machine may sit on an older history, so what its sender says goes before git.
    if named := os.environ.get("POSSYM_COMMIT"):
        return named.removesuffix("-dirty"), named.endswith("-dirty")
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def provenance_line(study: Study) -> str:
    """Return one line of Markdown that says what made a study: preset, seeds, device, date, commit, versions."""
    require_type(study, Study, "study")
    manifest = study.manifest
    if missing := {"seeds", "commit", "dirty", "versions", "config", "device", "seconds", "started"} - manifest.keys():
        raise InputError(f"the study's manifest lacks {', '.join(sorted(missing))}: give one that load_or_run returned")
    seeds = manifest["seeds"]
    consecutive = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    words = f"{seeds[0]}–{seeds[-1]}" if consecutive else ", ".join(map(str, seeds))
    named = "seeds" if len(seeds) > 1 else "seed"
    commit = (manifest["commit"] or "unknown")[:10] + (" with changes" if manifest["dirty"] else "")
    versions = ", ".join(f"{name} {manifest['versions'][name]}" for name in ("possym", "torch", "python"))
    several = f"{manifest['devices']} × " if manifest.get("devices", 1) > 1 else ""
    return (
        f"*Computed with preset `{manifest['config']['preset']}`, {named} {words}, on {several}{manifest['device']} in "
        f"{manifest['seconds']:.0f} s on {manifest['started'][:10]}; commit `{commit}`, {versions}; configuration "
        f"`{manifest['config_hash']}`.*"
    )
