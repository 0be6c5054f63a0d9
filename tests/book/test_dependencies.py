"""What a chapter depends on is found in its source: modules, data, results."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(ROOT.glob("chapters/*.md"))


@pytest.fixture
def chapter(tmp_path):
    """A function that writes a chapter of one cell."""

    def write(code: str) -> Path:
        header = "---\nkernelspec: {display_name: Python 3, language: python, name: python3}\n---\n"
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.md"
        path.write_text(f"{header}\n```{{code-cell}} ipython3\n{code}\n```\n")
        return path

    return write


@pytest.fixture
def code(tmp_path):
    """A library with every way to import that possym has."""
    sources = {
        "__init__": "from .errors import Problem\n__version__ = '1'\n"
        "def __getattr__(name):\n    from . import late\n    return import_module('.later', __name__)",
        "errors": "class Problem(Exception): ...",
        "late": "",
        "later": "",
        "near": "from . import __version__\ndef call():\n    from .charts.dots import draw",
        "broken": "def",
        "far": "from possym.near import call",
        "charts/__init__": "STYLE = files('possym.charts') / 'style.css'",
        "charts/dots": "import math\nfrom ..errors import Problem\nopen('data/values.json')",
    }
    for name, text in sources.items():
        path = tmp_path / "code/possym" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "code/possym/charts/style.css").touch()
    (tmp_path / "code/possym/data").mkdir()
    (tmp_path / "code/possym/data/values.json").touch()
    return tmp_path / "code"


BASE = {"__init__.py", "errors.py"}
CHARTS = {"charts/__init__.py", "charts/dots.py", "charts/style.css", "data/values.json"}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({"possym.errors"}, BASE),
        ({"possym.errors.Problem", "possym.__version__", "possym.__file__"}, BASE),
        ({"possym.near"}, BASE | {"near.py"} | CHARTS),
        ({"possym.far.call"}, BASE | {"far.py", "near.py"} | CHARTS),
        ({"possym.profile"}, BASE | {"late.py", "later.py"}),  # nothing of that name: what __getattr__ imports
        ({"possym.broken"}, BASE | {"broken.py"}),
        ({"possym.charts"}, BASE | {"charts/__init__.py", "charts/style.css"}),
        (set(), set()),
    ],
)
def test_imports_are_followed(dependencies, code, names, found):
    files = dependencies.files(code, names)
    assert {path.relative_to(code / "possym").as_posix() for path in files} == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from possym import far", BASE | {"far.py", "near.py"} | CHARTS),
        ("import possym\npossym.profile()", BASE | {"late.py", "later.py"}),
        ("import possym", BASE),
        ("import math", set()),
    ],
)
def test_files_of_a_chapter(dependencies, code, chapter, source, found):
    files = dependencies.chapter_files(code, chapter(source))
    assert {path.relative_to(code / "possym").as_posix() for path in files} == found


def test_a_cell_that_is_no_python_may_use_all(dependencies, code, chapter):
    found = dependencies.chapter_files(code, chapter("%run something\nfrom possym import errors"))
    assert found == {path for path in (code / "possym").rglob("*") if path.is_file()}


def test_stored_measurements_are_found(dependencies, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = dependencies.chapter_files(ROOT, Path("chapters/03-scoring-a-head.md"))
    assert Path("benchmarks/measured/scores.json") in found


@pytest.mark.parametrize("path", [*CHAPTERS, *(ROOT / f"{name}.md" for name in ("index", "ledger", "sweeps"))])
def test_cells_are_those_that_jupytext_reads(dependencies, path):
    read = [cell.source.strip("\n") for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    assert [*dependencies.cells(path)] == read


# What is imported from elsewhere is loaded once; each chapter has a process that begins with it and without possym.
LOAD = """
import json, os, sys
import altair, ipywidgets, pandas, scipy.ndimage, scipy.stats, torch

for lines in json.load(sys.stdin):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    exec(lines)
    files = [module.__file__ for name, module in sys.modules.items() if name.startswith("possym")]
    print(json.dumps(files), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def loaded(dependencies):
    """The files of possym that Python has loaded after the import statements of each chapter."""
    chapters = []
    for path in CHAPTERS:
        body = ast.parse("\n".join(dependencies.cells(path))).body
        chapters.append("\n".join(ast.unparse(node) for node in body if isinstance(node, ast.Import | ast.ImportFrom)))
    command = [sys.executable, "-c", LOAD]
    said = subprocess.check_output(command, input=json.dumps(chapters), cwd=ROOT, text=True).splitlines()
    return {path: set(map(Path, json.loads(line))) for path, line in zip(CHAPTERS, said, strict=True)}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_is_found_is_what_python_imports(dependencies, path, loaded):
    """A chapter's modules, against those that Python has loaded after its import statements."""
    found = {file for file in dependencies.chapter_files(ROOT, path) if file.suffix == ".py"}
    assert ROOT / "possym/errors.py" in loaded[path] <= found
    # Beyond them are only modules that a function imports when it is called.
    text = "\n".join(file.read_text() for file in found)
    assert all(re.search(rf"^ +(from|import) .*\b{file.stem}\b", text, re.MULTILINE) for file in found - loaded[path])


SHOW = """
from possym import results
from possym.experiments import canonical
from possym.experiments import theory as study
config = study.Config.preset_named(preset, device=device, seed=seed)
made = results.load_or_run(study, config, compute)
if preset == "paper":
    first = results.load(results.results_root() / canonical.NAME / "first-run")
else:
    other = canonical.Config.preset_named(preset, device="cpu", seed=seed, deviation=1.0, **more)
    first = results.load_or_run(canonical, other, compute)
"""


def test_results_of_a_chapter(dependencies, chapter):
    path = chapter(SHOW)
    assert dependencies.shown(path, "paper") == {("theory", "paper", ()), ("canonical", "first-run", ())}
    assert dependencies.shown(path, "smoke") == {("theory", "smoke", ()), ("canonical", "smoke", ("deviation=1.0",))}
    assert dependencies.shown(chapter("x ="), "paper") == set()
    plain = "from possym.experiments import theory\nresults.load_or_run(theory, c)\nresults.load_or_run(mine, c)"
    assert dependencies.shown(chapter(plain), "smoke") == {("theory", "smoke", ())}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_load_is_overlooked(dependencies, path):
    source = "\n".join(cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code")
    found = dependencies.shown(path, "paper") | dependencies.shown(path, "smoke")
    asked = {re.search(r"(\w+), (\w+), ", call).groups() for call in re.findall(r"load_or_run\(([^)]*)\)", source)}
    assert len({(study, settings) for study, name, settings in found if name in ("paper", "smoke")}) == len(asked)
    assert len([name for _, name, _ in found if name not in ("paper", "smoke")]) == source.count("results.load(")


def test_files_of_a_stored_result_that_are_gone_or_younger_than_its_manifest_are_noted(dependencies, tmp_path):
    manifest, data, note = tmp_path / "manifest.json", tmp_path / "a.parquet", tmp_path / "notes/a"
    data.touch()
    manifest.write_text('{"files": {"a.parquet": {}}}')
    os.utime(manifest, (2e9, 2e9))
    dependencies.note_changes(manifest, note)
    assert note.read_text() == ""
    os.utime(data, (2e9 + 1, 2e9 + 1))
    dependencies.note_changes(manifest, note)
    assert note.read_text() == "a.parquet 2000000001.0"
    data.unlink()
    assert dependencies.changed(manifest) == ["a.parquet None"]
    manifest.write_text("[]")
    assert dependencies.changed(manifest) == []


def test_parameters(dependencies, chapter):
    assert dependencies.has_parameter(chapter('device = "auto"'), "device")
    assert not dependencies.has_parameter(chapter("print(device)"), "device")
