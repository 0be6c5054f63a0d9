"""What the benchmarks share: timing and a report with provenance."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from possym.results import atomic_write, environment


def parser(description: str, output: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--device", default="auto", help="auto, cpu or cuda")
    options.add_argument("--tiny", action="store_true", help="small sizes, to try the script on a CPU")
    default = Path(__file__).parent / "measured" / output
    options.add_argument("--output", type=file_to_write, default=default, help="JSON to write")
    return options


def file_to_write(text: str) -> Path:
    """Return the path of a report, or refuse it before anything is measured."""
    path = Path(text).absolute()
    folder = next(parent for parent in path.parents if parent.exists())
    if not text or path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: give the path of a JSON file")
    return path


def positive(text: str) -> int:
    """Return a whole number from 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1")
    return int(text)


def median_ms(function: Callable[[], object], device: torch.device, repeats: int = 5, uncounted: int = 1) -> float:
    """Return the median milliseconds of a call over repeats, after some that are not counted."""
    times = []
    for _ in range(repeats + uncounted):
        synchronize(device)
        start = time.perf_counter()
        function()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[uncounted:])


def count_launches(function: Callable[[], object], device: torch.device) -> int:
    """Return how many kernels a call launches on a GPU; on a CPU, how many operations that are no views it does."""
    if device.type == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
            function()
            synchronize(device)
        return sum(event.count for event in profiled.key_averages() if "LaunchKernel" in event.key)
    with Operations() as counted:
        function()
    return counted.count


class Operations(TorchDispatchMode):
    """Counts the operations done while it is on, views left out."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aliases = (returned.alias_info for returned in function._schema.returns)
        self.count += not any(alias is not None and not alias.is_write for alias in aliases)
        return function(*args, **(kwargs or {}))


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def report(rows: list[dict], path: Path, device: torch.device, **facts: object) -> None:
    """Print the rows as a table and write them to ``path`` with device, versions, commit and date."""
    print(pd.DataFrame(rows).to_string(index=False))
    for name, value in facts.items():
        print(f"{name}: {value}")
    write(rows, path, device, **facts)


def write(rows: list[dict], path: Path, device: torch.device, **facts: object) -> None:
    """Write rows to ``path`` with device, versions, commit and date: after each row, a stop loses none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.now(UTC).isoformat(timespec="seconds")
    record = {"date": date, **environment(str(device)), **facts, "host": processor(), "rows": rows}
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")


def processor() -> str:
    """Return the name of the processor and how many cores this program may use."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(os.sched_getaffinity(0))} cores"
