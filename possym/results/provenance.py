"""What made a number: machine, versions and commit, noted when a study is stored and said in one line on its page."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from possym import __version__
from possym.results.devices import choose_device

LIBRARIES = ("torch", "numpy", "pandas", "pyarrow", "safetensors", "transformers", "altair")


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
