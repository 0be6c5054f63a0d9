# What the workflows of the book and of sweeps share: code, build folder and GPUs, and how their jobs run and fail.
import os
import sys
from pathlib import Path

import filelock

CODE = Path(workflow.basedir)
sys.path[:0] = [str(CODE / "_ext"), str(CODE)]
import dependencies
import gpus

os.environ["PYTHONPATH"] = os.pathsep.join([str(CODE), *filter(None, [os.environ.get("PYTHONPATH")])])  # this possym, no other
PYTHON = sys.executable
BUILD = Path(str(config.get("build") or "_build"))
GPUS = gpus.lent(workflow.global_resources)
GPU_NAMES = ",".join(GPUS)
LOCKS = []  # held as long as this process lives

for wanted in (Path.cwd(), BUILD.absolute()):  # Snakemake notes in the one what it has done in the other
    there = next(folder for folder in (wanted, *wanted.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise WorkflowError(f"{there} cannot be written to: work in a copy of the book, or say BUILD=/elsewhere/_build")


def job(name, script):
    """The command that runs a script on the GPUs of its job, and shows all it said if it fails."""
    return (
        f"echo 'Running {name}' >&2;"
        " if OMP_NUM_THREADS={threads} {PYTHON:q} {CODE:q}/_ext/gpus.py {resources.gpu} '{GPU_NAMES}' {BUILD:q}/gpus"
        f" {{PYTHON:q}} {script} > {{log:q}} 2>&1; then tail -n 1 {{log:q}} >&2;"
        " else status=$?; grep -q ' failed in the cell ' {log:q} ||"
        f' echo "{name} failed with exit status $status: $(tail -n 1 {{log:q}})" >> {{log:q}}; cat {{log:q}} >&2; exit 1; fi'
    )


def failures(log, *signs):
    """The lines of a job's log that say why it failed."""
    signs = (" failed in the cell that begins ", " failed with exit status ", *signs)
    return [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if any(sign in line for sign in signs)]


def alone(folder):
    """Refuse to run beside another that works in a folder. Snakemake's own lock would outlive a run that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        raise WorkflowError(f"another make works in {folder}: wait until it has ended, or say BUILD=/elsewhere/_build")
    LOCKS.append(lock)


def without_rate_limit():
    """Take Snakemake's limit on jobs a second away where they run on this machine.

    For its sake all inputs of all waiting jobs are looked at each second, with every job more often, and the end waits.
    """
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None
