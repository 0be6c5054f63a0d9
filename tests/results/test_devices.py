"""Jobs side by side in processes of their own: all done once, and none left over when one fails or the caller dies."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from possym.errors import DeviceError, InputError
from possym.results.devices import devices_of, side_by_side

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
PATIENCE = 120  # seconds until a test gives up
# No guard for __main__: a caller's script must not run once more in each process.
SCRIPT = """
import signal
from functools import partial
from pathlib import Path

import torch

from possym.results.devices import side_by_side
from tests.results.test_devices import wait_for_ever

signal.signal(signal.SIGINT, signal.{handler})
side_by_side(partial(wait_for_ever, Path({folder!r})), [0, 1], [torch.device("cpu")] * 2)
"""


def until(true):
    """Wait until ``true()``."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def note(folder, job, device):
    """Write down who does a job; the number appears together with the file."""
    (folder / f"{job}.new").write_text(f"{os.getpid()} {device}")
    (folder / f"{job}.new").rename(folder / f"{job}.job")


def doers(folder):
    """Return the process of each job."""
    return {int(file.stem): int(file.read_text().split()[0]) for file in folder.glob("*.job")}


def runs(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def last_for_the_first(folder, job, device):
    """Do a job; the first waits until the others are done."""
    if job == 0:
        until(lambda: len(doers(folder)) == 3)
    note(folder, job, device)


def wait_for_ever(folder, job, device):
    note(folder, job, device)
    time.sleep(PATIENCE)


def fail(folder, how, job, device):
    """The second job fails once the first has begun."""
    if job == 0:
        wait_for_ever(folder, job, device)
    until(lambda: 0 in doers(folder))
    if isinstance(how, signal.Signals):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), how)
        time.sleep(PATIENCE)
    raise ValueError(how)


def test_which_devices_there_are():
    assert devices_of(CPU) == [CPU]
    assert devices_of(torch.device("cuda:1")) == [torch.device("cuda:1")]
    assert devices_of(torch.device("cuda")) == [torch.device("cuda", n) for n in range(torch.cuda.device_count())]


def test_no_device_and_a_device_by_name_are_refused():
    with pytest.raises(InputError, match="devices = .*give at least one"):
        side_by_side(print, [1], [])
    with pytest.raises(InputError, match="device"):
        devices_of("cpu")


@pytest.mark.parametrize(("jobs", "devices"), [([1, 2], [CPU]), ([1], [CPU, CPU]), ([], [CPU, CPU])])
def test_one_device_or_one_job_takes_no_process(jobs, devices):
    done = []
    side_by_side(lambda job, device: done.append((job, device, os.getpid())), jobs, devices)
    assert done == [(job, CPU, os.getpid()) for job in jobs]


def test_every_job_is_done_once_by_whoever_is_free(tmp_path):
    side_by_side(partial(last_for_the_first, tmp_path), range(4), [CPU, torch.device("cpu", 1)])
    found = {int(file.stem): file.read_text().split() for file in tmp_path.glob("*.job")}
    assert found.keys() == {0, 1, 2, 3}
    assert found[1] == found[2] == found[3] != found[0]
    assert {device for _, device in found.values()} == {"cpu", "cpu:1"}
    assert str(os.getpid()) not in {pid for pid, _ in found.values()}


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no such number\n  nor that", r"broke off \(ValueError: no such number\n  nor that\)"),
        (signal.SIGKILL, "broke off .*SIGKILL"),
        (signal.SIGINT, "broke off .*exit code 130"),
    ],
    ids=["exception", "killed", "interrupted"],
)
def test_one_that_fails_ends_the_others_and_says_why(tmp_path, how, said):
    with pytest.raises(DeviceError, match=rf"^the work on cpu\S* {said}"):
        side_by_side(partial(fail, tmp_path, how), [0, 1], [CPU, torch.device("cpu", 1)])
    assert not runs(doers(tmp_path)[0])


@pytest.mark.parametrize(
    ("how", "handler"),
    [
        (signal.SIGKILL, "SIG_IGN"),  # as shells set it for what they start in the background
        (signal.SIGINT, "default_int_handler"),
        (signal.SIGTERM, "default_int_handler"),
    ],
)
def test_processes_end_with_the_one_that_started_them(tmp_path, how, handler):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(folder=str(tmp_path), handler=handler))
    caller = subprocess.Popen([sys.executable, script], env=os.environ | {"PYTHONPATH": str(ROOT)})
    until(lambda: len(doers(tmp_path)) == 2 or caller.poll() is not None)
    pids = set(doers(tmp_path).values())
    assert len(pids) == 2 and all(map(runs, pids))
    caller.send_signal(how)
    assert caller.wait(PATIENCE) != 0
    until(lambda: not any(map(runs, pids)))


@pytest.fixture
def interruptible():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_processes_and_not_the_one_that_goes_on(tmp_path, interruptible):
    def interrupt():
        until(lambda: len(doers(tmp_path)) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        side_by_side(partial(wait_for_ever, tmp_path), [0, 1], [CPU, CPU])
    thread.join()
    assert not any(map(runs, doers(tmp_path).values()))
