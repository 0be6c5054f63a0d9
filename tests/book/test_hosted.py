"""The notebook for a hosted service: from what lies beside it and a clean start, without a checkout."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import jupytext
import nbformat
import pytest

from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
[CHAPTER] = ROOT.glob("chapters/*-profile-your-own-model.md")
hosted_notebook = load_script("hosted_notebook")


@pytest.fixture
def notebook(tmp_path):
    """The notebook in a folder of its own, written by the command."""
    path = tmp_path / "own.ipynb"
    subprocess.run([sys.executable, ROOT / "_ext/hosted_notebook.py", CHAPTER, path], cwd=tmp_path, check=True)
    return path


@pytest.mark.book
def test_it_installs_possym_and_runs_where_there_is_no_checkout(notebook, tmp_path):
    """All packages but possym are there before, as on a service; what is missing could not be fetched."""
    run = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], **run)
    python = tmp_path / "venv/bin/python"
    there = tmp_path / "packages"
    there.mkdir()
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "possym" not in package.name and package.suffix != ".pth":
            (there / package.name).symlink_to(package)
    [packages] = (tmp_path / "venv/lib").glob("python*/site-packages")
    (packages / "there.pth").write_text(f"{there}\n")

    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "POSSYM_RESULTS"))}
    environment = kept | {"PATH": f"{python.parent}:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    environment["PIP_NO_BUILD_ISOLATION"] = "0"  # which means that there is none: setuptools could not be fetched
    command = [
        python,
        "-m",
        "papermill",
        "--no-progress-bar",
        "-k",
        "python3",
        "-p",
        "preset",
        "smoke",
        notebook,
        "done.ipynb",
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    cells = nbformat.read(tmp_path / "done.ipynb", 4).cells
    assert (packages / "possym/__init__.py").exists()
    shown = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    pages = ["".join(output.get("data", {}).get("text/html", "")) for output in shown]
    assert sum("possym-chart" in page for page in pages) >= 5
    assert not any("ERROR" in output.get("text", "") for output in shown)


def test_it_installs_extras_that_there_are_before_anything_is_imported(notebook):
    [install, *others] = [cell.source for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "code"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.search(r"}\[([\w,]+)\]", install)[1].split(",")) <= known.keys()
    code = [cell.source for cell in jupytext.read(CHAPTER).cells if cell.cell_type == "code"]
    assert others == code


def test_its_text_is_the_chapters_in_plain_markdown(notebook):
    text = "\n\n".join(cell.source for cell in nbformat.read(notebook, 4).cells if cell.cell_type == "markdown")
    assert not re.search(r"\{[a-z:]+\}`|```\{|^:class:|^\(.*\)=|<!--", text, re.MULTILINE)
    assert "> **Remember**\n>\n> One call and one prompt place every head." in text
    assert "as in *Learning dynamics*; they" in text and "papermill" not in text


@pytest.mark.parametrize("text", ["{eq}`one`", "```{note}\nWord\n```", "{cite}`one`"])
def test_what_has_no_plain_form_is_named(text):
    with pytest.raises(ValueError, match="has no plain form") as error:
        hosted_notebook.plain(f"Words, then\n\n{text}", CHAPTER)
    assert text.split("\n")[0] in str(error.value)
