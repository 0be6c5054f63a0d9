"""The rooms of the library: what may import what, and that CONTRIBUTING.md says and draws what is there."""

import re
import subprocess
import sys
from pathlib import Path

from tests.scripts import load_script

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_room_imports_only_from_those_below_it():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_imports_the_builds_scripts():
    names = "|".join(path.stem for path in (ROOT / "_ext").glob("*.py"))
    for path in (ROOT / "possym").rglob("*.py"):
        assert not re.search(rf"^\s*(import|from) (_ext|{names})\b", path.read_text(encoding="utf-8"), re.MULTILINE), (
            path
        )


def test_the_picture_of_the_rooms_is_that_of_the_imports():
    rooms = load_script("rooms")
    assert rooms.BLOCK.search(GUIDE)[0] == rooms.picture(), "python _ext/rooms.py CONTRIBUTING.md"
    found = rooms.imports()
    assert found["scores"] == {"errors", "kernels", "rope"} and "rope" in rooms.reach(found, "profiling")


def test_the_guide_has_a_line_for_every_room():
    rooms = re.findall(r"`(\w+)(?:/|\.py)`", GUIDE.split("|---|---|")[1].split("\n\n")[0])
    there = {path.stem for path in (ROOT / "possym").glob("[a-z]*") if path.suffix in (".py", "")} - {"data"}
    assert {*rooms} - {"claim", "trained", "monitor"} == there - {"monitor"}


def test_the_files_that_the_guide_names_are_there():
    for name in re.findall(r"`((?:possym|tests|_ext|chapters|benchmarks)/[\w./]*)`", GUIDE):
        assert (ROOT / name).exists(), name
