"""The public face: what can be reached after ``import possym``, at which price, and at which version."""

import ast
import json
import re
import shutil
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


def test_version_date_and_addresses_of_a_release_are_written_from_one_place(tmp_path):
    names = ("CITATION.cff", ".zenodo.json", "README.md", "pyproject.toml", "possym/__init__.py")
    (tmp_path / "possym").mkdir()
    for name in names:
        shutil.copy(ROOT / name, tmp_path / name)
    command = [sys.executable, ROOT / "_ext/release.py"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert [name for name in names if (tmp_path / name).read_bytes() != (ROOT / name).read_bytes()] == []
    init = tmp_path / "possym/__init__.py"
    init.write_text(init.read_text().replace(possym.__version__, "9.1").replace(possym.__released__, "2031-02-03"))
    subprocess.run([*command, "https://forge.example/team/possym", "v9.1"], cwd=tmp_path, check=True)
    record = json.loads((tmp_path / ".zenodo.json").read_text())
    assert (record["version"], record["publication_date"]) == ("9.1", "2031-02-03")
    assert "version: 9.1\ndate-released: 2031-02-03\n" in (tmp_path / "CITATION.cff").read_text()
    links = re.findall(r"\]\(([^)]+)\)", (tmp_path / "README.md").read_text())
    assert len(links) > 5 and all(link.startswith("https://") for link in links)
    found = [link.split("/v9.1/")[1] for link in links if "/v9.1/" in link]
    assert found and all((ROOT / name.split("#")[0]).exists() for name in found)
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == "https://forge.example/team/possym" and len(urls) == 5


def test_the_version_is_said_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "possym.__version__"}
    cited, record = yaml.safe_load((ROOT / "CITATION.cff").read_text()), json.loads((ROOT / ".zenodo.json").read_text())
    assert cited["version"] == record["version"] == possym.__version__
    assert str(cited["date-released"]) == record["publication_date"] == possym.__released__
    assert f"## {possym.__version__}" in (ROOT / "CHANGELOG.md").read_text()
