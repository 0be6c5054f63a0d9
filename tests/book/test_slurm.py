"""The book's jobs through Slurm: one that the test starts on this machine, with two GPUs that are not there."""

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from possym.sweeps import gallery

GROUP = pytest.mark.xdist_group("slurm")  # one cluster a machine
pytestmark = [pytest.mark.book, pytest.mark.slurm, GROUP]

ROOT = Path(__file__).resolve().parents[2]
HOST = socket.gethostname().split(".")[0]
SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES
"""
DEVICES = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"  # any two devices
DAEMONS = {
    "munged": [
        "--foreground", "--force", "--socket={folder}/munge.socket", "--key-file={folder}/munge.key",
        "--pid-file={folder}/munge.pid", "--log-file={folder}/munge.log", "--seed-file={folder}/munge.seed",
    ],
    "slurmctld": ["-D"],
    "slurmd": ["-D"],
}  # fmt: skip
TESTED = (22, 5)  # Debian's; of another Slurm it is not known whether it starts as it is started here
PROFILE = "slurm-init-seconds-before-status-checks: 1\n"
SRUN = """#!/bin/sh
SLURM_CONF={settings} exec {srun} "$@"
"""
NOTE = """import os
with open("{name}.ran", "a") as log:
    print(os.environ["SLURM_JOB_ID"], repr(os.environ.get("CUDA_VISIBLE_DEVICES")), file=log)
"""
WAIT = """import time
while not os.path.exists("go"):
    time.sleep(0.1)
"""


@dataclass
class Slurm:
    """A controller and a node, and the words and variables with which make and Slurm's commands reach them."""

    folder: Path
    user: str = field(default_factory=getpass.getuser)

    @property
    def profile(self) -> str:
        return f"PROFILE={ROOT / 'profiles/slurm'} {self.folder}"

    @property
    def variables(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def write_settings(self) -> None:
        for name in ("state", "spool", "bin"):
            (self.folder / name).mkdir()
        settings = SETTINGS.format(host=HOST, user=self.user, folder=self.folder, ports=free_ports(2))
        (self.folder / "slurm.conf").write_text(settings)
        (self.folder / "gres.conf").write_text(DEVICES)
        if version() >= (
            23,
            11,
        ):  # else slurmd starts control groups, which nothing here uses and which takes systemd and root
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        (self.folder / "munge.key").touch(0o600)
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "config.yaml").write_text(PROFILE)
        srun = self.folder / "bin/srun"  # the executor's job steps drop SLURM_CONF
        srun.write_text(SRUN.format(settings=self.folder / "slurm.conf", srun=shutil.which("srun")))
        srun.chmod(0o755)

    def ask(self, *words: str) -> str:
        done = subprocess.run(words, env=os.environ | self.variables, capture_output=True, text=True)
        return done.stdout

    def queue(self) -> str:
        return self.ask("squeue", "--noheader")

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of a job."""
        return dict(word.split("=", 1) for word in self.ask("scontrol", "show", "job", number).split() if "=" in word)


@pytest.fixture(scope="module")
def slurm():
    """A Slurm of one node that lives as long as these tests."""
    programs = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in DAEMONS}
    if None in programs.values():
        missing = "These tests run a real Slurm: apt-get install slurm-wlm"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        slurm = Slurm(Path(folder))
        slurm.write_settings()
        said = Path(folder) / "said"
        with said.open("w") as log, contextlib.ExitStack() as stack:
            for name, program in programs.items():
                process = subprocess.Popen(
                    [program, *(word.format(folder=folder) for word in DAEMONS[name])],
                    env=os.environ | slurm.variables, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
                stack.callback(process.wait)
                stack.callback(process.terminate)
            if not comes(lambda: "idle" in slurm.ask("sinfo", "--noheader", "--format=%T"), 30):
                end = pytest.fail if version() == TESTED else pytest.skip
                end(f"Slurm {version()} brings up no node here:\n{said.read_text()}")
            yield slurm
            slurm.ask("scancel", f"--user={slurm.user}")
            wait_for(lambda: not slurm.queue(), 60, slurm.queue)


def test_chapters_are_jobs_of_slurm_and_a_broken_one_is_named(book, make, slurm):
    gpu, no_gpu = ('device = "auto"\n' + NOTE.format(name="gpu"), NOTE.format(name="no_gpu"))
    folder = book(gpu=gpu, no_gpu=no_gpu, broken="numbers = [1, 2]\nnumbers[7]")
    result = make("smoke", slurm.profile, folder=folder, **slurm.variables)
    assert result.returncode != 0
    visible = {}
    for name in ("gpu", "no_gpu"):
        number, visible[name] = (folder / f"{name}.ran").read_text().split()
        job = slurm.job(number)
        assert job["JobState"] == "COMPLETED" and job["TimeLimit"] == "02:00:00"
        assert ("gpu:1" in job.get("TresPerJob", "")) == (name == "gpu")
    assert visible["gpu"] in ("'0'", "'1'") and visible["no_gpu"] not in ("'0'", "'1'")
    assert {path.stem for path in (folder / "_build/smoke/chapters").glob("*.ipynb")} == {"gpu", "no_gpu"}
    failure = "chapters/broken.md failed in the cell that begins 'numbers = [1, 2] ...': IndexError: list index out of"
    assert f"Not everything was built.\n{failure}" in result.stdout
    assert "numbers[7]" in result.stdout


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_ended_and_started_again_finished_chapters_are_not_redone(book, make, make_words, slurm, end):
    folder = book(quick=NOTE.format(name="quick"), slow=NOTE.format(name="slow") + WAIT)
    running = subprocess.Popen(
        make_words("smoke", slurm.profile), cwd=folder, env=os.environ | slurm.variables, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    finished = folder / ".snakemake/metadata"
    try:  # Slurm is asked what is finished less and less often, on a busy machine after 105 and then 156 s
        wait_for(lambda: len(list(finished.glob("*"))) == 1, 300, lambda: "the quick chapter did not finish")
    finally:
        os.killpg(running.pid, end)
        running.wait()
    if end == signal.SIGKILL:  # nobody was left to take the job back
        assert slurm.queue()
        slurm.ask("scancel", f"--user={slurm.user}")
    wait_for(lambda: not slurm.queue(), 60, slurm.queue)
    (folder / "go").touch()

    result = make("smoke", slurm.profile, folder=folder, **slurm.variables)
    assert result.returncode == 0, result.stdout
    assert len((folder / "quick.ran").read_text().splitlines()) == 1
    assert len((folder / "slow.ran").read_text().splitlines()) == 2
    assert (folder / "_build/smoke/chapters/slow.ipynb").exists()


def test_points_of_a_sweep_are_jobs_of_slurm_and_are_joined(book, make, slurm, monkeypatch):
    folder = book(one=NOTE.format(name="{n}").replace('open("', 'open(f"') + "1 / n")
    chapter = folder / "chapters/one.md"
    chapter.write_text(chapter.read_text().replace('preset = "paper"\n', 'preset = "paper"\nn = 0\n'))
    (folder / "prepare.py").write_text("open('made', 'a').write('x')")
    (folder / "mine.yaml").write_text(
        "chapter: one\nparameters: {n: [0, 1]}\nprepare: prepare.py\nresources: {cores: 2, gpus: 1, memory: 800MB}\n"
    )
    result = make("sweep", "SWEEP=mine.yaml", slurm.profile, folder=folder, **slurm.variables)
    assert result.returncode != 0
    said = "n=0: chapters/one.md failed in the cell that begins 'import os ...': ZeroDivisionError: division by zero"
    assert f"Not every point was run.\n{said}" in result.stdout
    monkeypatch.chdir(folder)
    assert set(gallery.Gallery("mine").table["n"]) == {1}
    for name in "01":
        number, visible = (folder / f"{name}.ran").read_text().split()
        job = slurm.job(number)
        assert job["NumCPUs"] == "2" and job["MinMemoryNode"] == "800M" and "gpu:1" in job["TresPerJob"]
        assert visible in ("'0'", "'1'")
    assert (folder / "made").read_text() == "x"


def free_ports(count: int) -> list[int]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


@cache
def version() -> tuple[int, ...]:
    program = shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin")
    said = subprocess.run([program, "-V"], capture_output=True, text=True).stdout
    return tuple(map(int, re.search(r"(\d+)\.(\d+)", said).groups()))


def comes(condition, seconds: int) -> bool:
    """Whether a condition holds within some seconds."""
    for _ in range(seconds * 10):
        if condition():
            return True
        time.sleep(0.1)
    return False


def wait_for(condition, seconds: int, otherwise) -> None:
    if not comes(condition, seconds):
        pytest.fail(otherwise())
