"""Change the code in many small ways, run each room's own tests on every one, and say which changes nobody noticed.

python tests/mutants.py                 every room (hours)
python tests/mutants.py scores          one room
python tests/mutants.py scores '*7'     a tenth of it: the mutants whose number ends in 7

The tool is mutmut; it works in a copy of the code, _build/mutants/<room>. ``mutmut show NAME`` there shows one change,
``mutmut browse`` all. Lines that only say what is wrong with an argument are left alone: their words have no tests.
Mutants of words, of devices and of ``strict=`` that nobody notices are counted apart.
mutmut forks after the imports, so that functions which a module makes while it is imported keep their unchanged code:
many that are missed in the room of claims are such.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STUDIES = "possym/experiments/*"
# A room: the files that are changed, and the tests that should notice.
ROOMS = {
    "scores": (["possym/scores.py"], ["tests/test_scores.py", "tests/test_kernels.py"]),
    "rope": (["possym/rope.py"], ["tests/test_rope.py"]),
    "tasks": (["possym/tasks/*.py"], ["tests/tasks"]),
    "theory": (["possym/theory/*.py"], ["tests/theory"]),
    "statistics": (["possym/profiling/statistics.py"], ["tests/profiling/test_statistics.py"]),
    "forecasting": ([f"{STUDIES}/forecasting.py"], ["tests/experiments/*/test_forecasting.py"]),
    "summaries": ([f"{STUDIES}/summaries.py"], ["tests/experiments/*/test_summaries.py"]),
    "claims": (
        ["possym/claims/*.py", f"{STUDIES}/claims.py", "possym/experiments/claim.py"],
        ["tests/claims", "tests/experiments/test_claim.py", "tests/experiments/*/test_claims.py"],
    ),
}
SETTINGS = """

[tool.mutmut]
source_paths = ["possym"]
only_mutate = {files}
also_copy = ["results", "benchmarks", "chapters", "_ext", "_toc.yml"]
pytest_add_cli_args = ["-p", "no:cacheprovider", "-p", "no:doctest", "-o", "addopts=--import-mode=importlib"]
pytest_add_cli_args_test_selection = {tests}
do_not_mutate_patterns = ['raise \\w+Error', '^\\s*f?"', 'require_type\\(', 'check_count\\(']
use_git_change_detection = false
"""
MUTMUT = str(Path(sys.executable).with_name("mutmut"))  # not -m: the unchanged code of its folder would come first
CAUGHT, MISSED = "caught", "missed"


def prepare(room: str) -> Path:
    """Copy what the room's tests need and write mutmut's settings; the folder."""
    folder = ROOT / "_build/mutants" / room
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("possym", "tests", "results", "benchmarks", "chapters", "_ext"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "_toc.yml", folder)
    files, patterns = ROOMS[room]
    tests = sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))
    settings = SETTINGS.format(files=json.dumps(files), tests=json.dumps(tests))
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + settings)
    return folder


def verdicts(folder: Path) -> dict[str, str]:
    """Whether each mutant that was run, and that some test reaches, was caught."""
    found = {}
    for path in folder.glob("mutants/possym/**/*.meta"):
        for name, code in json.loads(path.read_text())["exit_code_by_key"].items():
            if code is not None:  # 33: no test reaches it; 0: every test passed
                found[name] = MISSED if code in (0, 33) else CAUGHT
    return found


def main(words: list[str]) -> None:
    """Run the rooms that the command line names."""
    rooms = [words[0]] if words else list(ROOMS)
    patterns = [f"*__mutmut_{words[1]}"] if words[1:] else []
    for room in rooms:
        folder = prepare(room)
        environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
        command = [MUTMUT, "run", "--max-children", str(len(os.sched_getaffinity(0))), *patterns]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        found = verdicts(folder)
        if not found:
            raise SystemExit(f"{room}: mutmut ran nothing\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        missed = {name: change(folder, name) for name, verdict in found.items() if verdict == MISSED}
        words = [name for name, (old, new) in missed.items() if plain(old) == plain(new)]
        count = Counter(found.values())
        total = len(found) - len(words)
        share = f"{count[CAUGHT]} of {total} caught ({count[CAUGHT] / total:.0%})"
        print(f"{room}: {share}; {len(words)} more change words or devices")
        for name in sorted(missed.keys() - words):
            print(f"  {name}", *missed[name], sep="\n    ", flush=True)


def change(folder: Path, name: str) -> tuple[str, str]:
    """What a mutant takes away and what it puts there."""
    shown = subprocess.run([MUTMUT, "show", name], cwd=folder, capture_output=True, text=True).stdout.splitlines()
    return tuple("\n".join(line for line in shown if line[:1] == sign and line[:3] != 3 * sign) for sign in ("-", "+"))


def plain(text: str) -> str:
    """A change without capitals, devices and ``strict=``: what differs in nothing else is no change on a CPU."""
    text = re.sub(r"(,\s*|\()(device|strict)=[^,()]+", r"\1", text[1:].lower().replace("xx", ""))
    text = re.sub(r"\.to\((none|[\w.]*device)(, )?", ".to(", text)
    return re.sub(r"[,\s]+(?=\))", "", text)


if __name__ == "__main__":
    main(sys.argv[1:])
