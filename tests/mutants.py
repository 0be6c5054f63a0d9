"""Change the code in many small ways, run each room's own tests on every one, and say which changes nobody noticed.

python tests/mutants.py                 every room (hours)
python tests/mutants.py scores          one room
python tests/mutants.py scores '*7'     a tenth of it: the mutants whose number ends in 7
python tests/mutants.py claims 60 7     as many of the studies' claims or summaries (120 otherwise), drawn by this seed

The tool is mutmut; it works in a copy of the code, _build/mutants/<room>. ``mutmut show NAME`` there shows one change,
``mutmut browse`` all. Lines that only say what is wrong with an argument are left alone: their words have no tests.
Mutants of words, of devices and of ``strict=`` that nobody notices are counted apart, or not made.
mutmut cannot change what a module makes while it is imported, as the studies' claims and closures are. Their files are
written anew with one operator, comparison, number or flag changed, and their tests run in a process of their own.
"""

import ast
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
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
    "verdicts": (["possym/experiments/claim.py"], ["tests/experiments/test_claim.py"]),
}
# Rooms whose files are written anew, and the tests of their study, run until one fails: doctests, then the ledger's
# numbers of that study, then these.
REWRITTEN = {
    "summaries": ["test_summaries.py test_summaries_by_loops.py", "test_charts.py", "test_claims.py"],
    "claims": ["test_verdict_edges.py", "test_claims.py"],
}
STORED = "tests/claims/test_ledger.py::test_stored_results_give_the_verdicts_and_numbers_that_are_written_down"
DRAWN = 120
ENDLESS = 600  # seconds of CPU time, not of the clock: a busy machine stops no mutant
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.USub: ast.UAdd, ast.Invert: ast.UAdd,
}  # fmt: skip
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
PASSED, STOPPED = "passed", "stopped"


def copied(room: str) -> Path:
    """Copy what tests need; the folder."""
    folder = ROOT / "_build/mutants" / room
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("possym", "tests", "results", "benchmarks", "chapters", "_ext"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("_toc.yml", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def changes(text: str) -> list[tuple[str, str]]:
    """Every mutant of a source file: what is changed, in words, and the whole file."""
    tree, found = ast.parse(text), []
    nodes = [
        node
        for statement in tree.body
        for node in changeable(statement, (ast.Raise,) if hasattr(statement, "body") else (ast.Raise, ast.JoinedStr))
    ]  # what is written outside functions into f-strings are the words of criteria
    for node in nodes:
        before = ast.unparse(node)
        if isinstance(node, ast.Constant):
            more = node.value + max(1, node.value // 2)
            field, new = "value", not node.value if isinstance(node.value, bool) else more
        elif isinstance(node, ast.Compare):
            field, new = "ops", [OTHER[type(node.ops[0])](), *node.ops[1:]]
        else:
            field, new = "op", OTHER[type(node.op)]()
        old = getattr(node, field)
        setattr(node, field, new)
        found.append((f"{node.lineno}: {before}  ->  {ast.unparse(node)}", ast.unparse(tree)))
        setattr(node, field, old)
    return found


def changeable(node: ast.AST, kept: tuple[type, ...]):
    """The numbers, flags, comparisons and operators under a node, but for those of types and of some nodes."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, (bool, int, float)):
            yield node
    elif isinstance(node, ast.Compare) or type(getattr(node, "op", None)) in OTHER:
        yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, kept) and getattr(child, "arg", "") != "strict":
                yield from changeable(child, kept)


def rewrite(room: str, count: int, seed: int) -> None:
    """Draw mutants of a room's files at random, run each one's tests, and say which were missed or never end."""
    folder, drawn, passed, missed = copied(room), [], set(), 0
    for path in sorted(folder.glob(f"{STUDIES}/{room}.py")):
        drawn += [(path, *each) for each in changes(path.read_text(encoding="utf-8"))]
    random.Random(seed).shuffle(drawn)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for name in ("altair", "pandas", "pytest", "scipy.stats", "torch", "transformers"):  # once, not in every child
        importlib.import_module(name)
    for number, (path, words, text) in enumerate(drawn[:count], 1):
        original = path.read_text(encoding="utf-8")
        tests = Path("tests", *path.relative_to(folder).parent.parts[1:])
        stages = [[tests / name for name in names.split()] for names in REWRITTEN[room]]
        stages[0] = [path.relative_to(folder), f"{STORED}[{path.parent.name}]", *stages[0]]
        if not (tests / "test_claims.py").exists():
            stages.append([tests / "test_study.py"])
        for stage in stages:
            own = tuple(str(place) for place in stage if Path(str(place).partition("::")[0]).exists())
            if own and own not in passed and ended(own) != PASSED:
                raise SystemExit(f"{', '.join(own)}: some fail on unchanged code")
            passed.add(own)
            path.write_text(text, encoding="utf-8")
            ends = ended(own) if own else PASSED
            path.write_text(original, encoding="utf-8")
            if ends != PASSED:
                break
        missed += ends == PASSED
        if ends != CAUGHT:
            print(f"  {path.parent.name}/{path.name}:{words}{'' if ends == PASSED else ': never ends'}")
        caught = number - missed
        print(f"{room}: {caught} of {number} caught ({caught / number:.0%})", flush=True)


def ended(tests: tuple[str, ...]) -> str:
    """How tests of the working folder end, in a process of their own that stops at the first that fails."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (ENDLESS, ENDLESS + 10))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        options = ["-x", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib --doctest-modules"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that were imported before the fork
        os._exit(int(sys.modules["pytest"].main([*options, *tests])))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return STOPPED
    return PASSED if code == 0 else CAUGHT


def prepare(room: str) -> Path:
    """Copy what the room's tests need and write mutmut's settings; the folder."""
    folder = copied(room)
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
    rooms = [words[0]] if words else [*ROOMS, *REWRITTEN]
    patterns = [f"*__mutmut_{words[1]}"] if words[1:] else []
    for room in rooms:
        if room in REWRITTEN:
            rewrite(room, int(words[1]) if words[1:] else DRAWN, int(words[2]) if words[2:] else 0)
            continue
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
