"""A study's result: run once, stored as tables, arrays and a manifest in a folder, and loaded again.

The manifest is written last and in one step, so a folder holds the old result or the new one, never half of each.
"""

import json
import os
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import filelock
import pandas as pd
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from possym.errors import ConfigError, InputError, ResultsError, require_type
from possym.results.config import COMPUTE, config_hash, identity
from possym.results.devices import choose_device
from possym.results.files import atomic_write, scratch, sha256, writing
from possym.results.provenance import environment
from possym.results.runs import Clock, stored_time

DATA = (".parquet", ".safetensors")
COMMON = ("config", "versions", "commit", "dirty", "files")
MANIFEST = ("experiment", "config_hash", "seeds", "started", "seconds", "device", *COMMON)  # what every study has


@dataclass
class Study:
    """The result of a study: tables, arrays, and the manifest that says how they were made."""

    tables: dict[str, pd.DataFrame]
    arrays: dict[str, Tensor] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)


def results_root() -> Path:
    """Return where results live: `POSSYM_RESULTS`, else `results/` of the checkout or the working folder."""
    if named := os.environ.get("POSSYM_RESULTS"):
        return Path(named).expanduser().absolute()
    checkout = Path(__file__).parents[2]
    return (checkout if (checkout / "pyproject.toml").exists() else Path.cwd()) / "results"


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
        compute: ``"stored"`` loads and never runs, ``"auto"`` runs what is not stored, ``"always"`` runs. An
            interrupted run resumes from its checkpoints; the stored seconds are those of all runs, or those that the
            study counted of its parts, if more: parts may come from another machine.

    Warns:
        UserWarning: the paper preset is about to run on a CPU, though the stored result took a GPU; it says how long.

    Raises:
        ConfigError: unknown ``compute``, or a device that this machine does not have.
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
    on_cpu = choose_device(getattr(config, "device", "auto")).type == "cpu"
    full = getattr(config, "preset", None) == "paper"
    if on_cpu and full and (took := stored_time(results_root() / experiment.NAME / "paper")):
        seconds, device = took
        if not device.startswith("CPU"):
            warnings.warn(
                f"{experiment.NAME}: preset='paper' took {seconds:,.0f} s on {device}; on this CPU it may take hours. "
                "preset='smoke' takes a minute at most. Interrupted, the same call goes on from its last checkpoint",
                stacklevel=2,
            )
    checkpoints = checkpoint_folder(experiment.NAME, config)
    lock = checkpoints.with_suffix(".lock")
    with writing(lock):
        lock.touch()
    with filelock.FileLock(lock):
        if compute == "auto" and (folder / "manifest.json").exists():  # another process has run it meanwhile
            return load(folder, config)
        checkpoints.mkdir(exist_ok=True)
        clock = Clock(checkpoints)
        try:
            study = experiment.run(config)
        except BaseException as error:
            clock.stop()
            if isinstance(error, KeyboardInterrupt):
                error.add_note(f"{experiment.NAME}: stopped; the same call goes on from its last checkpoint")
            raise
        study.manifest = {
            "experiment": experiment.NAME,
            "config": identity(config),
            "config_hash": config_hash(config),
            "seeds": [getattr(config, "seed", 0)],
            "started": datetime.fromtimestamp(clock.began, UTC).isoformat(timespec="seconds"),
            "seconds": round(max(clock.seconds(), study.manifest.pop("seconds", 0.0)), 2),
            **({"runs": clock.runs} if clock.runs > 1 else {}),
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
            # The bytes of floats by significance, not value by value, take a third less room.
            split = {column: "BYTE_STREAM_SPLIT" for column in table.select_dtypes(["float32", "float64"])}
            whole = [column for column in table if column not in split]
            table.to_parquet(piece, index=False, compression="zstd", use_dictionary=whole, column_encoding=split)
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
        if stale.suffix in DATA and stale.name not in files:
            stale.unlink()


def load(folder: Path, config: Any = None, required: Sequence[str] = MANIFEST) -> Study:
    """Load a stored study, its files checked against their hashes and its configuration against ``config``.

    A manifest that lacks a ``required`` entry is refused.

    Raises:
        ResultsError: nothing there, a file missing or altered, or another configuration; the message says which.
    """
    require_type(folder, (str, Path), "folder")
    folder = Path(folder)
    rerun = "run the study again with compute='always'"
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if missing := [key for key in required if key not in manifest]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        stored = dict(manifest["config"])
        listed = {name: str(entry["sha256"]) for name, entry in manifest["files"].items()}
        if not listed:
            raise ValueError("it lists no file")
    except FileNotFoundError:
        took = stored_time(folder.parent / "paper")
        hours = f" (the stored one took {took[0]:,.0f} s on {took[1]})" if took else ""
        small = ", or preset='smoke', which takes a minute at most" if folder.name.startswith("paper") else ""
        raise ResultsError(f"no stored result in {folder}: {rerun}{hours}, or use compute='auto'{small}") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        reason = f"an entry of files lacks {error}" if isinstance(error, KeyError) else error
        raise ResultsError(f"{folder / 'manifest.json'} cannot be used ({reason}): restore it, or {rerun}") from None
    names = {name.split(".")[0] for name in listed}
    for path in sorted(folder.iterdir()):  # an older file of a listed name is what a run killed while storing left
        if path.suffix in DATA and path.name.split(".")[0] not in names:
            raise ResultsError(f"{path} is not in manifest.json: restore that file, delete this one, or {rerun}")
    if config is not None:
        wanted = identity(config)
        differing = [key for key in sorted(wanted.keys() | stored.keys()) if wanted.get(key) != stored.get(key)]
        if differing:
            pairs = "; ".join(f"{key}: stored {stored.get(key)!r}, asked {wanted.get(key)!r}" for key in differing)
            raise ResultsError(f"the result in {folder} was made with another configuration ({pairs}): {rerun}")
    tables, arrays = {}, {}
    for name, digest in listed.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ResultsError(f"{path} is missing, though manifest.json lists it: restore it, or {rerun}")
        if sha256(path) != digest:
            raise ResultsError(f"{path} does not match the hash in manifest.json: restore it, or {rerun}")
        try:
            if path.suffix == ".parquet":
                tables[name.split(".")[0]] = pd.read_parquet(path)
            else:
                arrays.update(load_file(path))
        except (OSError, ValueError, SafetensorError) as error:
            raise ResultsError(f"{path} cannot be read ({error}): restore it, or {rerun}") from None
    return Study(tables, arrays, manifest)


def provenance_line(study: Study) -> str:
    """Return one line of Markdown that says what made a study: preset, seeds, device, date, commit, versions."""
    require_type(study, Study, "study")
    manifest = study.manifest
    if missing := [key for key in MANIFEST if key not in manifest]:
        raise InputError(f"the study's manifest lacks {', '.join(missing)}: give one that load_or_run returned")
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
