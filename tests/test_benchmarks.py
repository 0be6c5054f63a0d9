"""What a benchmark cannot do is refused before it measures for minutes."""

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem != "common")


@pytest.fixture
def refused(monkeypatch, capsys):
    """Call a benchmark with words that it refuses; what it says."""

    def call(script: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *words])
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
        assert ended.value.code == 2
        return capsys.readouterr().err

    return call


@pytest.mark.parametrize("script", SCRIPTS)
def test_reports_that_cannot_be_written_are_refused(script, refused, tmp_path):
    (tmp_path / "file").touch()
    site = ["site"] if script == "pages" else []
    for path in ("", str(tmp_path), str(tmp_path / "file/report.json")):
        assert f"--output: {path!r} cannot be written: give the path of a JSON file" in refused(
            script, *site, "--output", path
        )


@pytest.mark.parametrize(
    ("script", "flag", "given"),
    [
        ("pages", "repeats", "0"),
        ("scaling", "seconds", "few"),
        ("tasks", "count", "0"),
        ("theory_devices", "sequences", "0"),
    ],
)
def test_numbers_are_from_one(script, flag, given, refused):
    site = ["site"] if script == "pages" else []
    assert f"{given!r}: give a whole number from 1" in refused(script, *site, f"--{flag}={given}")


def test_a_folder_without_pages_is_refused(refused, tmp_path):
    assert "is no built site: give a folder such as _build/html" in refused("pages", str(tmp_path))
