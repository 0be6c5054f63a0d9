"""The public face: what can be reached after ``import possym``, at which price, and at which version."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import possym

ROOT = Path(possym.__file__).parents[1]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_every_public_name_is_there_after_a_bare_import():
    found = run("import possym\nfor name in possym.__all__:\n    print(name, getattr(possym, name).__name__)")
    names = [line.split()[0] for line in found.splitlines()]
    assert names == possym.__all__ == sorted(set(names))
    assert set(names) <= set(dir(possym))


def test_importing_possym_loads_neither_torch_nor_pandas():
    assert run("import sys, possym; print({'torch', 'pandas', 'possym.results'} & {*sys.modules})") == "set()\n"


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="module 'possym' has no attribute 'scorse'"):
        possym.scorse  # noqa: B018


def test_every_room_is_public_and_lies_in_the_package():
    rooms = {path.stem if path.suffix else path.name for path in (ROOT / "possym").glob("[a-z]*")} - {"data", "py"}
    functions = {"atlas", "compare", "keep", "profile", "rope_audit", "scores_from"}
    modules = {name for name in possym.__all__ if name.islower()} - functions
    assert modules == rooms - {"py.typed"}


def test_at_most_eight_modules_lie_at_the_root():
    assert len(list((ROOT / "possym").glob("[a-z]*.py"))) <= 8


def test_what_a_module_calls_public_it_lists_once():
    for path in (ROOT / "possym").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                assert len(names) == len(set(names)), path


def test_the_version_is_said_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "possym.__version__"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == possym.__version__
    assert f"## {possym.__version__}" in (ROOT / "CHANGELOG.md").read_text()
