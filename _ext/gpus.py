"""Which GPUs a build may use, and the handing out of each to one job at a time.

python _ext/gpus.py 1 0,1 _build/gpus python train.py

waits until one of the GPUs 0 and 1 is free and runs the command, which sees that one alone (CUDA_VISIBLE_DEVICES). A
GPU is held by a lock on a file, which the system releases when the command ends, however it ends.
"""

import fcntl
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

NAME = re.compile(r"\d+|(GPU|MIG)-.+")


def installed() -> list[str]:
    """The names of this machine's GPUs, as far as nvidia-smi knows."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True)
    return [] if said.returncode else said.stdout.splitlines()


def usable(wanted: int | None) -> list[str]:
    """The GPUs that a build may use, by their names in CUDA_VISIBLE_DEVICES: at most ``wanted`` of those visible.

    As for CUDA, the first name that is no GPU's, such as -1, ends the list. Where nvidia-smi knows no GPU, there are as
    many as wanted: those of a cluster's other machines.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = itertools.takewhile(NAME.fullmatch, map(str.strip, visible.split(",")))
        return [*dict.fromkeys(names)][:wanted]
    there = len(installed())
    return [str(number) for number in range(there if wanted is None else min(wanted, there or wanted))]


def lent(resources) -> list[str]:
    """The GPUs that a workflow may use, as its resource ``gpu`` says, which is set where it says nothing."""
    wanted = resources.get("gpu").value
    if wanted == 0:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    names = usable(wanted)
    if wanted is None:
        resources["gpu"] = len(names)
    return names


def hold(count: int, names: list[str], folder: Path) -> list[str]:
    """Wait until ``count`` of the named GPUs are free and hold them as long as this process lives."""
    folder.mkdir(parents=True, exist_ok=True)
    held = []
    while len(held) < count:
        for name in names:
            if name in held or len(held) == count:
                continue
            lock = os.open(folder / f"{name.replace('/', '-')}.lock", os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                os.set_inheritable(lock, True)  # held on by the command that takes this process's place
                held.append(name)
        if len(held) < count:
            time.sleep(0.2)
    return held


def main() -> None:
    """Hold, show, become the command."""
    count, names = int(sys.argv[1]), [name for name in sys.argv[2].split(",") if name]
    if count > len(names):
        sys.exit(f"this job wants {count} GPUs of {len(names)}: say how many there are with GPUS=")
    if names:  # else there is none to hide
        folder = Path(sys.argv[3], os.environ.get("SLURM_JOB_ID", ""))  # another of Slurm's jobs has other GPUs
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(hold(count, names, folder))
    os.execvp(sys.argv[4], sys.argv[4:])


if __name__ == "__main__":
    main()
