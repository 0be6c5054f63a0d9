"""Sweeps by the command that a user types: small chapters for the engine, and the example that the book shows."""

import html
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from possym import claims, sweeps
from possym.models import hub
from possym.sweeps import gallery
from tests.shallow import LAYERS

pytestmark = pytest.mark.book

ROOT = Path(__file__).resolve().parents[2]
COUNT = "with open(f'{n}.ran', 'a') as log:\n    log.write('x')\n"
CONTROLS = {f"_build/models/random-{size}-weights" for size in ("small", "large")}


@pytest.fixture
def one(book, monkeypatch):
    """A function that writes a book of one chapter, with a parameter n and this code, and its sweep over some n."""

    def write(code: str, values: list[int]) -> Path:
        folder = book(one=code)
        chapter = folder / "chapters/one.md"
        chapter.write_text(chapter.read_text().replace('preset = "paper"\n', 'preset = "paper"\nn = 0\n'))
        grid(folder, values)
        monkeypatch.chdir(folder)
        return folder

    return write


def grid(folder: Path, values: list[int], more: str = "") -> None:
    (folder / "mine.yaml").write_text(f"chapter: one\nparameters:\n  n: {values}\n{more}")


def points_of(folder: Path) -> set[int]:
    return set(gallery.Gallery("mine").table["n"])


def ran(folder: Path) -> dict[int, str]:
    return {int(path.stem): path.read_text() for path in folder.glob("*.ran")}


def test_a_failing_point_is_named_and_the_others_are_joined(one, make):
    folder = one("above = 1\nabove / n", [0, 1, 2])
    result = make("sweep", "SWEEP=mine.yaml", "CORES=2", folder=folder)
    assert result.returncode != 0
    said = "n=0: chapters/one.md failed in the cell that begins 'above = 1 ...': ZeroDivisionError: division by zero"
    assert f"Not every point was run.\n{said}" in result.stdout
    assert "above / n" in result.stdout
    assert points_of(folder) == {1, 2}
    assert said.partition(": ")[2] in html.unescape(gallery.Gallery("mine")._repr_html_())

    grid(folder, [1, 2])
    assert make("sweep", "SWEEP=mine.yaml", folder=folder).returncode == 0
    assert "failed in the cell" not in gallery.Gallery("mine")._repr_html_()


def test_killed_and_started_again_what_is_finished_is_not_redone(one, make, make_words):
    wait = "import os, time\nopen('made')\nwhile n == 2 and not os.path.exists('go'):\n    time.sleep(0.1)\nn * n"
    folder = one(COUNT + wait, [1, 2])
    (folder / "prepare.py").write_text("open('made', 'a').write('x')")
    grid(folder, [1, 2], "prepare: prepare.py\n")
    running = subprocess.Popen(
        make_words("sweep", "SWEEP=mine.yaml", "CORES=2"), cwd=folder, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for _ in range(1800):
        if (folder / "_build/sweeps/mine/n=1.ipynb").exists() and (folder / "2.ran").exists():
            break
        assert running.poll() is None, "make ended early"
        time.sleep(0.1)
    time.sleep(2)  # snakemake notes a finished job a moment after its file is there
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    (folder / "go").touch()
    assert not gallery.stored()

    result = make("sweep", "SWEEP=mine.yaml", folder=folder)
    assert result.returncode == 0, result.stdout
    assert ran(folder) == {1: "x", 2: "xx"}
    assert (folder / "made").read_text() == "x"
    assert points_of(folder) == {1, 2}
    shown = {}
    for point in ("n=1", "n=2"):
        notebook = nbformat.read(folder / f"sweeps/mine/{point}.ipynb", as_version=4)
        shown[point] = notebook.cells[-1].outputs[0].data["text/plain"]
    assert shown == {"n=1": "1", "n=2": "4"}


def test_a_changed_file_runs_new_points_alone_and_another_of_its_name_is_refused(one, make):
    folder = one(COUNT, [1, 2])
    assert make("sweep", "SWEEP=mine.yaml", folder=folder).returncode == 0
    grid(folder, [3, 2], "about: Other points.\nresources: {memory: 1GB}\n")
    assert make("sweep", "SWEEP=mine.yaml", folder=folder).returncode == 0
    assert ran(folder) == {1: "x", 2: "x", 3: "x"}
    assert points_of(folder) == {2, 3}
    assert {path.stem for path in (folder / "sweeps/mine").glob("*.ipynb")} == {"n=2", "n=3"}
    assert "Other points." in gallery.Gallery("mine")._repr_html_()

    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/mine.yaml").write_text("chapter: one\nparameters: {n: [4]}\n")
    result = make("sweep", "SWEEP=elsewhere/mine.yaml", folder=folder)
    assert result.returncode != 0
    assert "elsewhere/mine.yaml: sweeps/mine is the gallery of mine.yaml: give the file another name" in result.stdout
    assert 4 not in ran(folder) and points_of(folder) == {2, 3}


def test_only_modules_that_the_chapter_imports_run_its_points_again(own_book, make):
    folder = own_book("", one="import possym.command.options\n" + COUNT.replace("{n}", "{preset}"))
    (folder / "mine.yaml").write_text("chapter: one\nparameters: {preset: [smoke]}\n")
    for changed, expected in ((None, "x"), ("capture/edits", "x"), ("command/options", "xx")):
        if changed:
            with (folder / f"possym/{changed}.py").open("a") as file:
                file.write("\n# changed\n")
        result = make("sweep", "SWEEP=mine.yaml", folder=folder, code=folder)
        assert result.returncode == 0, result.stdout + result.stderr
        assert (folder / "smoke.ran").read_text() == expected


def test_a_bad_file_is_refused_before_anything_runs(one, make):
    folder = one(COUNT, [1, 2])
    (folder / "mine.yaml").write_text("chapter: one\nparameters:\n  n: [1, two]\n")
    result = make("sweep", "SWEEP=mine.yaml", folder=folder)
    assert result.returncode != 0
    assert "mine.yaml: n has 'two', of type str: give values of type int" in result.stdout
    assert not ran(folder) and not (folder / "_build").exists()
    result = make("sweep", folder=folder)
    assert result.returncode != 0
    assert "Say which sweep: make sweep SWEEP=" in result.stderr


def test_parameters_on_the_command_line_have_their_types(one):
    folder = one("print(repr((n, compute, preset)))", [1])
    words = ["-p", "n", "0.5", "-p", "compute", "'1'", "-p", "preset", "[1, true]"]
    command = [sys.executable, str(ROOT / "_ext/execute_chapter.py"), "chapters/one.md", "one.ipynb", *words]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    printed = nbformat.read(folder / "one.ipynb", as_version=4).cells[-1].outputs[0].text
    assert printed == "(0.5, '1', [1, True])\n"


@pytest.mark.parametrize("cell, known", [("1", "preset, n, compute"), (None, "none")])
def test_a_parameter_that_the_chapter_does_not_have_is_refused(one, cell, known):
    folder = one("print(n)", [1])
    if cell is None:
        page = folder / "chapters/one.md"
        page.write_text(page.read_text().replace("[parameters]", "[other]"))
    command = [sys.executable, str(ROOT / "_ext/execute_chapter.py"), "chapters/one.md", "one.ipynb", "-p", "sede", "3"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 1 and not (folder / "one.ipynb").exists()
    assert f"chapters/one.md: unknown parameter sede: known are {known}" in result.stderr


@pytest.fixture(scope="module")
def example(make, shallow, tmp_path_factory) -> Path:
    """The example, run anew by its command in a folder of its own; its trained model has fewer layers there."""
    folder = tmp_path_factory.mktemp("example")
    (folder / "sweeps").mkdir()
    (folder / "chapters").mkdir()
    shutil.copy(ROOT / "chapters/13-profiling-real-models.md", folder / "chapters")
    for path in ROOT.glob("sweeps/*.*"):
        shutil.copy(path, folder / "sweeps")
    environment = {"POSSYM_RESULTS": str(folder / "results"), "POSSYM_CACHE": str(shallow)}
    result = make("sweep", "SWEEP=sweeps/small-models.yaml", "CORES=2", folder=folder, **environment)
    assert result.returncode == 0, result.stdout
    return folder


def test_the_example_runs_and_joins_its_models(example, monkeypatch):
    monkeypatch.chdir(example)
    points = sweeps.read("sweeps/small-models.yaml").points
    table = gallery.Gallery("small-models").table
    assert set(table["model"]) == {"SmolLM2-135M-Instruct"} | CONTROLS
    assert table["point"].unique().tolist() == [*points]
    here = [claim.id for claim in claims.CLAIMS if claim.chapter == "13-profiling-real-models"]
    assert table["id"].tolist() == here * len(points)
    assert set(table["study_preset"].dropna()) == {"smoke"} and table["study_device"].notna().sum() >= 3
    for point, parameters in points.items():
        notebook = nbformat.read(f"sweeps/small-models/{point}.ipynb", as_version=4)
        injected = [cell.source for cell in notebook.cells if "injected-parameters" in cell.metadata.get("tags", [])]
        assert all(f"{name} = {value!r}".replace("'", '"') in injected[0] for name, value in parameters.items())
        assert 'compute = "auto"' in injected[0]
        assert Path(f"sweeps/small-models/{point}.svg").stat().st_size > 10_000


def test_the_heads_of_the_example_are_joined_from_its_studies(example, monkeypatch):
    monkeypatch.chdir(example)
    monkeypatch.setenv("POSSYM_RESULTS", str(example / "results"))
    heads = gallery.join("small-models", "heads")
    count = heads.drop_duplicates(["model", "layer", "head"]).groupby("model").size().to_dict()
    # The chapter's second study has models of its own, the same at every point.
    others = {"random-llama": 16, "random-gemma": 24}
    assert count == {hub.DEFAULT: 9 * LAYERS} | dict.fromkeys(CONTROLS, 24) | others
    small = heads[heads["model"] == "_build/models/random-small-weights"]
    assert small[["positional", "symbolic"]].to_numpy().min() > 0.95


def test_the_book_shows_the_example_as_its_command_leaves_it(example, monkeypatch):
    """The stored gallery has every point of the committed file, and nothing else."""
    fresh, stored = example / "sweeps/small-models", ROOT / "sweeps/small-models"
    kinds = {".ipynb", ".svg", ".json"}
    names = [{path.name for path in folder.iterdir() if path.suffix in kinds} for folder in (fresh, stored)]
    assert names[0] == names[1]
    monkeypatch.chdir(ROOT)
    shown = gallery.Gallery("small-models")
    assert shown.manifest["config"]["points"] == sweeps.read("sweeps/small-models.yaml").points
    assert shown.manifest["failed"] == {}


def test_the_page_of_sweeps_links_to_what_is_there(site):
    page = (site / "sweeps.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'(?:href|src)="(sweeps/[^"]+)"', page))
    assert len([link for link in linked if link.endswith(".ipynb")]) == 3
    assert len([link for link in linked if link.endswith(".svg")]) == 3
    assert len([link for link in linked if link.endswith(".parquet")]) == 1
    assert [link for link in linked if not (site / link).is_file()] == []
