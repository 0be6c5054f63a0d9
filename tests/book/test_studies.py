"""The engine on studies: each runs once, what changed runs again, what is finished stays."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from .waiting import wait_for

pytestmark = pytest.mark.book

STUDY = '''"""A study of two numbers, each with its checkpoint; it notes that it ran and waits if told to."""

import os
import time
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from ..results import ExperimentConfig, Study, checkpoint_folder

NAME = "tiny"


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    factor: int = 2
    PRESETS: ClassVar = {"smoke": {}, "paper": {"factor": 3}}


def run(config):
    folder = checkpoint_folder(NAME, config)
    for number in (1, 2):
        piece = folder / str(number)
        if not piece.exists():
            while number == 2 and os.path.exists("wait"):
                time.sleep(0.1)
            with open("studies.ran", "a") as log:
                log.write(f"{config.factor}:{number} ")
            piece.write_text(str(config.factor * number))
    return Study({"numbers": pd.DataFrame({"value": [int((folder / name).read_text()) for name in "12"]})})
'''
COUNT = "with open('{name}.ran', 'a') as log:\n    log.write('x')\n"
SHOW = """from possym import results
from possym.experiments import tiny
config = tiny.Config.preset_named(preset{settings})
study = results.load_or_run(tiny, config, compute)
study.tables['numbers']"""


def shows(name: str, settings: str = "") -> str:
    return COUNT.format(name=name) + SHOW.format(settings=settings)


def run_tiny(folder: Path, *words: str, **environment: str) -> None:
    """Run the study of a book by hand."""
    command = [sys.executable, "-m", "possym.experiments", "tiny", "--preset", "smoke", *words]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(folder), **environment}, check=True)


def ran(folder: Path) -> dict[str, str]:
    """What ran, from the notes that each run leaves: chapters one letter, studies one word a run."""
    return {path.stem: " ".join(sorted(path.read_text().split())) for path in folder.glob("*.ran")}


def change(path: Path) -> None:
    with path.open("a") as file:
        file.write("\n# changed\n")


def test_a_study_runs_once_and_what_changed_runs_again(own_book, make):
    folder = own_book(
        STUDY, one=shows("one"), two=shows("two", ", factor=7"),
        other=COUNT.format(name="other") + "import possym.command.options",
    )  # fmt: skip

    def again(*words: str, **expected: str) -> None:
        result = make("smoke", *words, folder=folder, code=folder)
        assert result.returncode == 0, result.stdout + result.stderr
        assert ran(folder) == expected

    again(studies="2:1 2:2 7:1 7:2", one="x", two="x", other="x")
    change(folder / "possym/capture/edits.py")  # nobody uses it
    again("GPUS=2", studies="2:1 2:2 7:1 7:2", one="x", two="x", other="x")
    change(folder / "possym/command/options.py")
    again(studies="2:1 2:2 7:1 7:2", one="x", two="x", other="xx")
    change(folder / "possym/experiments/tiny.py")
    again(studies="2:1 2:1 2:2 2:2 7:1 7:1 7:2 7:2", one="xx", two="xx", other="xx")
    run_tiny(folder, "--compute", "always")  # another stored result
    again(studies="2:1 2:1 2:1 2:2 2:2 2:2 7:1 7:1 7:2 7:2", one="xxx", two="xx", other="xx")


def test_the_book_computed_anew_then_built_from_what_is_stored(own_book, make):
    folder = own_book(STUDY, one=shows("one"))

    def book(*words: str) -> str:
        result = make("book", "PRESET=smoke", *words, folder=folder, code=folder)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    missing = make("book", "PRESET=smoke", folder=folder, code=folder)
    assert missing.returncode != 0 and "ResultsError: no stored result in " in missing.stdout
    (folder / "one.ran").unlink()
    said = book("COMPUTE=auto")
    assert ran(folder) == {"studies": "2:1 2:2", "one": "x"}
    table = (folder / "_build/times.md").read_text()
    assert table in said
    lines = [[entry.strip() for entry in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert [line[:2] for line in lines[2:]] == [
        ["study", "smoke/tiny"], ["chapter", "chapters/one"], ["site", ""], ["sum", ""]
    ]  # fmt: skip
    seconds = [int(line[2]) for line in lines[2:]]
    assert abs(sum(seconds[:-1]) - seconds[-1]) <= 2 and min(seconds) > 0
    assert lines[2][4].startswith("CPU")
    change(folder / "possym/experiments/tiny.py")
    book("COMPUTE=auto")  # the chapter imports the study's module; its result is stored
    assert ran(folder) == {"studies": "2:1 2:2", "one": "xx"}
    (folder / "results/tiny/smoke/manifest.json").touch()  # newer than every module, and yet not of this build
    book("COMPUTE=always")
    assert ran(folder) == {"studies": "2:1 2:1 2:2 2:2", "one": "xxx"}
    for words in (["COMPUTE=always"], ["COMPUTE=auto"], []):
        assert "This table is in" not in book(*words)
        assert ran(folder) == {"studies": "2:1 2:1 2:2 2:2", "one": "xxx"}
    (stored,) = (folder / "results/tiny/smoke").glob("*.parquet")
    with stored.open("ab") as file:
        file.write(b"x")
    altered = make("book", "PRESET=smoke", folder=folder, code=folder)
    assert altered.returncode != 0 and f"{stored.name} does not match the hash" in altered.stdout


def test_the_longest_study_of_those_stored_starts_first(own_book, make):
    names = ("tiny", "brief", "long", "middle")
    folder = own_book(STUDY, all="\n".join(SHOW.format(settings="").replace("tiny", name) for name in names))
    for name, seconds in zip(names, (None, 0.5, 300, 20.25), strict=True):
        study = STUDY.replace('NAME = "tiny"', f'NAME = "{name}"')
        (folder / f"possym/experiments/{name}.py").write_text(study)
        stored = folder / f"results/{name}/smoke/manifest.json"
        stored.parent.mkdir(parents=True)
        stored.write_text(f'{{"seconds": {seconds}}}' if seconds else "[]")  # what is no manifest says nothing
    result = make("smoke", "CORES=1", folder=folder, code=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.findall(r"Running the study (\w+)", result.stdout) == ["long", "middle", "brief", "tiny"]


def test_killed_in_a_study_and_started_again_it_goes_on(own_book, make, make_words, tmp_path_factory):
    folder = own_book(STUDY, one=shows("one"), quick=COUNT.format(name="quick"))
    (folder / "wait").touch()
    running = subprocess.Popen(
        make_words("smoke", "CORES=2", code=folder), cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    quick = folder / "_build/benchmarks/smoke/chapters/quick.tsv"
    wait_for(lambda: quick.exists() and ran(folder).get("studies") == "2:1", running)
    time.sleep(2)  # snakemake notes a finished job a moment after its file is there
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    (folder / "wait").unlink()

    result = make("smoke", folder=folder, code=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ran(folder) == {"studies": "2:1 2:2", "one": "x", "quick": "x"}
    straight = tmp_path_factory.mktemp("straight")
    run_tiny(folder, POSSYM_RESULTS=str(straight))
    stores = (folder / "results", straight)
    tables = [pd.read_parquet(next(store.glob("tiny/smoke/numbers.*.parquet"))) for store in stores]
    pd.testing.assert_frame_equal(*tables)


def test_a_study_that_fails_is_named_and_keeps_its_old_result(own_book, make):
    folder = own_book(STUDY, one=shows("one"), other=COUNT.format(name="other"))
    run_tiny(folder)
    stored = {path.name: path.read_bytes() for path in (folder / "results/tiny/smoke").iterdir()}
    study = folder / "possym/experiments/tiny.py"
    study.write_text(study.read_text().replace("    folder = ", "    1 / 0\n    folder = "))
    result = make("smoke", folder=folder, code=folder)
    assert result.returncode != 0
    assert ran(folder) == {"studies": "2:1 2:2", "other": "x"}
    assert "Not everything was built.\nthe study tiny failed with exit status 1: ZeroDivisionError" in result.stdout
    assert {path.name: path.read_bytes() for path in (folder / "results/tiny/smoke").iterdir()} == stored

    study.write_text(study.read_text().replace("    1 / 0\n", ""))
    assert make("smoke", folder=folder, code=folder).returncode == 0
    assert ran(folder) == {"studies": "2:1 2:1 2:2 2:2", "one": "x", "other": "x"}


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU here")
def test_everything_at_the_papers_size_is_refused_without_cuda_unless_told(own_book, make):
    folder = own_book(STUDY, one=shows("one"))
    refused = make("book", "COMPUTE=always", folder=folder, code=folder)
    assert refused.returncode != 0 and ran(folder) == {}
    assert "nvidia-smi finds none here: say GPUS=0 to compute on the CPU" in refused.stdout
    result = make("book", "COMPUTE=always", "GPUS=0", folder=folder, code=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ran(folder) == {"studies": "3:1 3:2", "one": "x"}


def test_two_gpus_are_handed_to_one_job_each_and_a_third_waits(book, make):
    code = """device = "auto"
import os, time
name = os.environ["CUDA_VISIBLE_DEVICES"]
note = lambda what: open("gpus", "a").write(f"{what} {name}\\n")
note("from")
time.sleep(8)
note("to")"""
    folder = book(one=code, two=code, three=code)
    result = make("smoke", "CORES=3", "GPUS=2", folder=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    notes = [line.split() for line in (folder / "gpus").read_text().splitlines()]
    held, most = set(), 0
    for what, name in notes:
        assert (name in held) == (what == "to") and name in ("0", "1")
        held ^= {name}
        most = max(most, len(held))
    assert len(notes) == 6 and most == 2
