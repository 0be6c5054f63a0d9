"""Training of an ensemble on 1, 2 and 4 devices: strong scaling (as many members) and weak (as many a device).

The paper's step: 64 sequences of 17 tokens, 12 layers, width 128, dropout 0.1. Rows take turns, and each is the
median of its runs:

- *whole*: seconds of the whole call, with the start of the processes, the data, the compilation and the joining;
- *ms*: milliseconds a step of the slowest device, without these;
- *efficiency*: of the steps; strong, the time on one device over the time on n and over n; weak, over the time on n.
"""

import dataclasses
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from common import parser, positive, report

from possym.experiments.learning_dynamics import Config
from possym.experiments.trained import train
from possym.results import choose_device
from possym.results.devices import devices_of


def measure(config: Config, devices: list[torch.device]) -> tuple[float, float]:
    """Return the seconds of a whole training and the milliseconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POSSYM_CACHE"] = folder  # trained members are kept there
        start = time.perf_counter()
        _, training = train("number", config, devices[0], Path(folder) / "checkpoints", devices=devices)
        whole = time.perf_counter() - start
    return whole, 1e3 * training.seconds_training / config.steps


def summary(runs: dict[tuple[str, int, int], list[tuple[float, float]]]) -> list[dict]:
    """Return a row for each scaling, number of devices and number of members, from its runs."""
    rows = []
    for (scaling, count, members), measured in runs.items():
        whole, ms = map(statistics.median, zip(*measured, strict=True))
        row = {"scaling": scaling, "devices": count, "members": members, "runs": len(measured)}
        rows.append(row | {"whole": whole, "ms": ms, "ms_per_model": ms / members})
        first = next(row for row in rows if row["scaling"] == scaling)
        rows[-1]["efficiency"] = first["ms"] / ms / (count if scaling == "strong" else 1)
        rows[-1]["whole_efficiency"] = first["whole"] / whole / (count if scaling == "strong" else 1)
    return rows


def main() -> None:
    """Run the benchmark."""
    began = time.perf_counter()
    options = parser(__doc__.split("\n")[0], "scaling.json")
    options.add_argument("--repeats", type=positive, default=3, help="runs of each row")
    options.add_argument("--seconds", type=positive, help="repeat only what will have ended by then")
    chosen = options.parse_args()
    device = choose_device(chosen.device)
    visible = [device] * 2 if device.type == "cpu" else devices_of(device)
    steps = 20 if chosen.tiny else 1_000
    settings = dict(layers=2, width=32) if chosen.tiny else {}
    plan = Config(
        preset="paper", steps=steps, warmup=10, points=2, training_sequences=64 * steps, other_members=1, **settings
    )
    strong, a_device = (4, 2) if chosen.tiny else (32, 8)
    counts = [count for count in (1, 2, 4) if count <= len(visible)]
    runs = {("strong", count, strong): [] for count in counts} | {("weak", n, a_device * n): [] for n in counts}
    for _ in range(chosen.repeats):
        start = time.perf_counter()
        for (scaling, count, members), measured in runs.items():
            measured.append(measure(dataclasses.replace(plan, members=members), visible[:count]))
            seconds, ms = measured[-1]
            print(f"{scaling}, {count} devices, {members} members: {seconds:.1f} s, {ms:.2f} ms a step", flush=True)
        facts = {"steps": steps, "layers": plan.layers, "width": plan.width}
        report(summary(runs), chosen.output, device, **facts)
        now = time.perf_counter()
        if chosen.seconds and 2 * now - start - began > chosen.seconds:
            break


if __name__ == "__main__":
    main()
