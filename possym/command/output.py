"""Where a command writes: standard output, a folder of results, a report."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from possym.errors import InputError, ResultsError


def say(*parts: Any, end: str = "\n") -> None:
    """Print to standard output, all of it now."""
    try:
        print(*parts, sep="\n", end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise ResultsError(f"standard output cannot be written: {error}") from error


def drop_output() -> None:
    """Let nothing more be written, so that Python does not try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document; tables are lists of rows, and what is missing is null."""
    document = {
        key: json.loads(value.to_json(orient="records", double_precision=10)) if hasattr(value, "to_json") else value
        for key, value in document.items()
    }
    if "overall" in document:  # NaN for a single prompt
        for estimate in document["overall"].values():
            estimate |= {key: None for key, value in estimate.items() if value != value}
    say(json.dumps(document, indent=1, allow_nan=False))


def check_out(name: str | None) -> None:
    """Raise an InputError where a folder of results is a file."""
    if name is not None and Path(name).expanduser().is_file():
        raise InputError(f"--out {name}: it is a file, give a folder")


def check_report(name: str | None) -> None:
    """Raise an error where a report cannot be written."""
    if name is None:
        return
    from possym.results import writing
    from possym.results.files import scratch

    path = Path(name).expanduser()
    if path.is_dir():
        raise InputError(f"--report {name}: it is a folder, give a file")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch(path.parent):
            pass
