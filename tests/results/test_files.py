"""Files in the making: their folder goes with its process, and one of a living process stays."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from possym.results import files
from possym.results.files import atomic_write

STAY = """import sys, time
from possym.results.files import scratch
with scratch(sys.argv[1]) as folder:
    (folder / "half").touch()
    print("here", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def start(tmp_path):
    """A function that starts a process which makes a file in ``tmp_path``; all are ended after the test."""
    processes = []

    def call() -> subprocess.Popen:
        command = [sys.executable, "-c", STAY, tmp_path]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout.readline() == "here\n"
        return processes[-1]

    yield call
    for process in processes:
        process.kill()
        process.communicate()


def halves(place):
    return len(list(place.glob(".*/half")))


def test_what_a_killed_process_left_goes_and_what_a_living_one_makes_stays(start, tmp_path):
    killed, living = start(), start()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert halves(tmp_path) == 2
    with atomic_write(tmp_path / "a.txt") as path:
        path.write_text("whole")
        assert halves(tmp_path) == 1
    assert living.poll() is None
    living.kill()
    living.wait()
    with files.scratch(tmp_path):
        assert halves(tmp_path) == 0
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_another_machine_makes_stays(start, tmp_path):
    killed = start()
    killed.kill()
    killed.wait()
    for path in tmp_path.iterdir():
        path.rename(path.with_name(path.name.replace(files.PREFIX, files.PREFIX[:-1] + "-2,")))
    with files.scratch(tmp_path):
        pass
    assert halves(tmp_path) == 1


def test_many_at_once_leave_each_other_alone(tmp_path):
    def write(number):
        for _ in range(50):
            with atomic_write(tmp_path / f"{number}") as path:
                path.write_text(f"{number}")

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(4)))
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2", "3"]
