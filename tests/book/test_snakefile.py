"""The engine: one broken chapter does not stop the others, and finished work is not done twice."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .waiting import wait_for

pytestmark = pytest.mark.book

COUNT = "with open('{name}.ran', 'a') as log:\n    log.write('x')"


def test_a_broken_chapter_is_named_and_the_others_finish(book, make):
    dead = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    folder = book(first="6 * 7", broken="numbers = [1, 2]\nnumbers[7]", dead=dead, third="6 * 7  # hub.load()")
    result = make("smoke", "CORES=1", folder=folder)
    assert result.returncode != 0
    assert re.findall(r"Running chapters/(\w+)", result.stdout)[0] == "third"  # a model takes longest
    finished = {path.stem for path in (folder / "_build/smoke/chapters").glob("*.ipynb")}
    assert finished == {"first", "third"}
    failure = "chapters/broken.md failed in the cell that begins 'numbers = [1, 2] ...': IndexError: list index out of"
    assert f"Not everything was built.\n{failure}" in result.stdout
    assert "numbers[7]" in result.stdout
    assert "\nchapters/dead failed with exit status 1: nbclient.exceptions.DeadKernelError: Kernel" in result.stdout


def test_killed_and_started_again_and_changed_finished_chapters_are_not_redone(book, make, make_words):
    wait = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.1)"
    folder = book(quick=COUNT.format(name="quick"), slow=COUNT.format(name="slow") + "\n" + wait)
    running = subprocess.Popen(
        make_words("smoke", "CORES=2"), cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    finished = folder / "_build/smoke/chapters/quick.ipynb"
    wait_for(lambda: finished.exists() and (folder / "slow.ran").exists(), running)
    time.sleep(2)  # snakemake notes a finished job a moment after its file is there
    beside = make("smoke", "CORES=2", folder=folder)
    assert beside.returncode != 0 and "another make works in _build: wait until it has ended" in beside.stdout
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert unfinished(folder)
    (folder / "go").touch()

    result = make("smoke", "CORES=2", folder=folder)
    assert result.returncode == 0, result.stderr
    assert (folder / "_build/smoke/chapters/slow.ipynb").exists()
    assert (folder / "quick.ran").read_text() == "x"
    assert (folder / "slow.ran").read_text() == "xx"
    assert not unfinished(folder)

    chapter = folder / "chapters/slow.md"
    chapter.write_text(chapter.read_text() + "\nOne more sentence.\n")
    assert make("smoke", folder=folder).returncode == 0
    assert (folder / "quick.ran").read_text() == "x"
    assert (folder / "slow.ran").read_text() == "xxx"


def test_a_page_that_is_named_but_missing_is_reported(book, make):
    folder = book(one="1")
    (folder / "chapters/one.md").unlink()
    result = make("smoke", folder=folder)
    assert result.returncode != 0
    assert "_toc.yml names pages without a file: chapters/one" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["PRESET=large"], "preset is paper or smoke"),
        (["COMPUTE=never"], "compute is stored, auto or always"),
        (["CORES=0"], "CORES=0: give a number from 1, or all"),
        (["BUILD=index.md/_build"], "/index.md cannot be written to: work in a copy of the book, or say BUILD="),
        (["VENV=nowhere"], "VENV=nowhere: no Python environment is there"),
    ],
)
def test_settings_that_there_are_not_are_refused_before_anything_runs(book, make, words, message):
    folder = book(one=COUNT.format(name="one"))
    result = make("book", *words, folder=folder)
    assert result.returncode != 0
    assert message in result.stdout + result.stderr
    assert not (folder / "one.ran").exists()


def unfinished(folder: Path) -> list[Path]:
    return list(folder.glob("_build/smoke/chapters/.unfinished*"))
