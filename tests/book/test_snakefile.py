"""The engine: one broken chapter does not stop the others, and finished work is not done twice."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.book

COUNT = "with open('{name}.ran', 'a') as log:\n    log.write('x')"


def test_a_broken_chapter_is_named_and_the_others_finish(book, make):
    folder = book(first="6 * 7", broken="numbers = [1, 2]\nnumbers[7]", third="6 * 7")
    result = make("smoke", "CORES=1", folder=folder)
    assert result.returncode != 0
    finished = {path.stem for path in (folder / "_build/smoke/chapters").glob("*.ipynb")}
    assert finished == {"first", "third"}
    failure = "chapters/broken.md failed in the cell that begins 'numbers = [1, 2] ...': IndexError: list index out of"
    assert f"Not everything was built.\n{failure}" in result.stdout
    assert "numbers[7]" in result.stdout


def test_killed_and_started_again_finished_chapters_are_not_redone(book, make, make_words):
    wait = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.1)"
    folder = book(quick=COUNT.format(name="quick"), slow=COUNT.format(name="slow") + "\n" + wait)
    running = subprocess.Popen(
        make_words("smoke", "CORES=2"), cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    finished = folder / "_build/smoke/chapters/quick.ipynb"
    _wait_for(lambda: finished.exists() and (folder / "slow.ran").exists(), running)
    time.sleep(2)  # snakemake notes a finished job a moment after its file is there
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    (folder / "go").touch()

    result = make("smoke", "CORES=2", folder=folder)
    assert result.returncode == 0, result.stderr
    assert (folder / "_build/smoke/chapters/slow.ipynb").exists()
    assert (folder / "quick.ran").read_text() == "x"
    assert (folder / "slow.ran").read_text() == "xx"

    again = make("smoke", folder=folder)
    assert again.returncode == 0
    assert (folder / "slow.ran").read_text() == "xx"


def test_a_changed_chapter_alone_is_run_again(book, make):
    folder = book(one=COUNT.format(name="one"), two=COUNT.format(name="two"))
    assert make("smoke", folder=folder).returncode == 0
    chapter = Path(folder, "chapters/two.md")
    chapter.write_text(chapter.read_text() + "\nOne more sentence.\n")
    assert make("smoke", folder=folder).returncode == 0
    assert (folder / "one.ran").read_text() == "x"
    assert (folder / "two.ran").read_text() == "xx"


def test_a_page_that_is_named_but_missing_is_reported(book, make):
    folder = book(one="1")
    (folder / "chapters/one.md").unlink()
    result = make("smoke", folder=folder)
    assert result.returncode != 0
    assert "_toc.yml names pages without a file: chapters/one" in result.stdout + result.stderr


def _wait_for(condition, process, seconds=120):
    for _ in range(seconds * 10):
        if condition():
            return
        assert process.poll() is None, "make ended early"
        time.sleep(0.1)
    pytest.fail("the first chapter did not finish")
