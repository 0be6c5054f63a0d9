"""Each GPU is handed to one job at a time; the list of GPUs is pretended, the locks and processes are real."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAY = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)"
STAY = f"{SAY}; import time; time.sleep(600)"


@pytest.fixture
def start(tmp_path):
    """A function that starts a job on so many of the named GPUs; all are ended after the test."""
    jobs = []

    def call(count: int, names: str, code: str) -> subprocess.Popen:
        hand_out = [sys.executable, ROOT / "_ext/gpus.py", str(count), names, tmp_path / "locks"]
        environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        jobs.append(subprocess.Popen([*hand_out, sys.executable, "-c", code], env=environment, **pipes))
        return jobs[-1]

    yield call
    for job in jobs:
        job.kill()
        job.communicate()


def test_a_gpu_is_free_again_when_its_job_was_killed(start):
    first, second = (start(1, "0,1", STAY) for _ in range(2))
    names = first.stdout.readline(), second.stdout.readline()
    assert sorted(names) == ["0\n", "1\n"]
    third = start(1, "0,1", SAY)
    time.sleep(2)
    assert third.poll() is None
    os.kill(second.pid, signal.SIGKILL)
    assert third.communicate(timeout=60)[0] == names[1]
    assert first.poll() is None


def test_a_job_sees_as_many_as_it_holds(start):
    assert start(2, "a,b,c", SAY).communicate(timeout=60)[0] == "a,b\n"
    assert start(0, "a,b", SAY).communicate(timeout=60)[0] == "\n"
    assert start(1, "MIG-GPU-1/2/0", SAY).communicate(timeout=60)[0] == "MIG-GPU-1/2/0\n"
    assert start(0, "", SAY).communicate(timeout=60)[0] == "None\n"


def test_more_than_there_are_is_an_error(start):
    job = start(2, "0", SAY)
    assert job.communicate(timeout=60) == ("", "this job wants 2 GPUs of 1: say how many there are with GPUS=\n")
    assert job.returncode == 1


@pytest.mark.parametrize(
    ("visible", "wanted", "usable"),
    [
        (None, None, "0 1 2 3"),
        (None, 2, "0 1"),
        (None, 8, "0 1 2 3"),
        (None, 0, ""),
        ("", 2, ""),
        ("3, 5", None, "3 5"),
        ("3,5", 1, "3"),
        ("3,5", 4, "3 5"),
        ("2,2,3", None, "2 3"),
        ("1,-1,2", None, "1"),
        ("NoDevFiles", None, ""),
        ("GPU-8932f937,GPU-0a1b", 1, "GPU-8932f937"),
        ("MIG-5bb7,MIG-GPU-1/2/0", None, "MIG-5bb7 MIG-GPU-1/2/0"),
    ],
)
def test_usable_gpus_of_four(visible, wanted, usable, tmp_path):
    assert said_usable(wanted, visible, tmp_path, "printf 'NVIDIA H200\\n%.0s' 1 2 3 4") == usable


def test_a_driver_that_fails_has_no_gpus(tmp_path):
    assert said_usable(None, None, tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9") == ""
    assert said_usable(2, None, tmp_path, "exit 9") == "0 1"  # those of other machines


def said_usable(wanted: int | None, visible: str | None, folder: Path, driver: str) -> str:
    """What is usable where nvidia-smi is this script."""
    (folder / "nvidia-smi").write_text(f"#!/bin/bash\n{driver}\n")
    (folder / "nvidia-smi").chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    code = f"import gpus; print(*gpus.usable({wanted}))"
    said = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT / "_ext", env=environment, text=True)
    return said.removesuffix("\n")
