"""Sequences a second that each task draws: `python benchmarks/tasks.py [--device cuda] [--count 1000000]`."""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from common import file_to_write, positive

from possym import tasks
from possym.results import atomic_write, choose_device, environment

REPEATS = 7


def seconds_a_draw(task, count: int, length: int, device: torch.device) -> float:
    """Return the median time of drawing ``count`` sequences, after a warm-up that is not counted."""
    generator = torch.Generator(device).manual_seed(0)
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        batch = task.sample(count, length=length, generator=generator)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    assert torch.equal(task.solve(batch.tokens), batch.answer)
    return statistics.median(times[1:])


def main() -> None:
    """Measure, print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--count", type=positive, default=1_000_000)
    parser.add_argument("--output", type=file_to_write, default=Path(__file__).parent / "measured" / "tasks.json")
    options = parser.parse_args()
    device = choose_device(options.device)
    rows = []
    for name in ("NumberTask", "LetterTask", "IndexTask", "RetrievalTask", "PartialInductionTask"):
        for length in (17 if name in ("NumberTask", "LetterTask") else 32, 128):
            seconds = seconds_a_draw(getattr(tasks, name)(), options.count, length, device)
            rows.append({"task": name, "length": length, "sequences_per_second": round(options.count / seconds)})
            print(f"{name:22} length {length:4}: {rows[-1]['sequences_per_second']:>12,} a second", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"count": options.count, "repeats": REPEATS, "rows": rows, **environment(options.device)}
    with atomic_write(options.output) as path:
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
