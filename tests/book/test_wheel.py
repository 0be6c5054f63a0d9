"""The wheel, installed where the checkout cannot be seen, is whole and works."""

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.book

ROOT = Path(__file__).resolve().parents[2]
USE = """
import importlib.resources, pathlib, sys
import torch
import possym
from possym import charts, scores
from possym.charts import renderer
import altair as alt, pandas as pd

home = pathlib.Path(possym.__file__).resolve().parent
assert home.is_relative_to(sys.prefix), home
relocated = torch.tensor([[0.0, 1.0], [0.0, 1.0]])  # the logit depends on the place alone
result = scores.swap_scores(relocated)
assert float(result.positional) > 0.99, result
charts.enable()
chart = alt.Chart(pd.DataFrame({"x": [1, 2]}), title="Two points").mark_point().encode(x="x:Q")
assert "possym-chart" in chart._repr_mimebundle_()["text/html"]
assert "vegaEmbed" in renderer.lab_scripts() and "possymCharts" in renderer.lab_scripts()
print(*sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()), sep="\\n")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A new virtual environment with the wheel; the dependencies are those of the running one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "possym", source / "possym", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", source)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv/bin/python"
    (wheel,) = (folder / "dist").glob("possym-*.whl")
    alone = ("--no-deps", "--no-index", "--ignore-installed")  # a checkout on the path would count as installed
    run(sys.executable, "-m", "pip", "--python", python, "install", *alone, wheel)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "venv/lib" / version / "site-packages"
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def run(*command, **options) -> str:
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_wheel_is_whole_and_works(installed, tmp_path):
    listed = run(installed, "-I", "-c", USE, cwd=tmp_path).splitlines()
    there = {name for name in listed if "__pycache__" not in name}
    here = {str(path.relative_to(ROOT / "possym")) for path in (ROOT / "possym").rglob("*") if path.is_file()}
    assert there == {name for name in here if "__pycache__" not in name}


def test_the_sdist_is_what_git_tracks_so_that_its_tests_run_unpacked(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("an unpacked sdist is not made again")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = {name for name in run(*listed, cwd=ROOT).splitlines() if (ROOT / name).exists()}
    for name in tracked:
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).symlink_to(ROOT / name)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, tmp_path / "tree")
    (packed,) = tmp_path.glob("possym-*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    made = {name for name in names if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    assert names - made == tracked
