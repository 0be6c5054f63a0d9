"""The workflow of the CUDA machine, its shell steps really run: on a book of one chapter, at the small preset."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from possym.claims.rows import CLAIMS

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/cuda.yml").read_text(encoding="utf-8"))
CHAPTER = """from possym import results
from possym.experiments import theory
config = theory.Config.preset_named(preset)
study = results.load_or_run(theory, config, compute)"""


def steps(key):
    return [step for step in WORKFLOW["jobs"]["rebuild"]["steps"] if key in step]


@pytest.fixture
def rebuild(book):
    """A checkout with one chapter and one stored result, and a function that runs the workflow's shell steps in it."""
    folder = book(theory=CHAPTER)
    (folder / "Makefile").write_text(f"include {ROOT / 'Makefile'}\n")
    shutil.copytree(ROOT / "results/theory", folder / "results/theory")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= {"GITHUB_STEP_SUMMARY": str(folder / "summary.md"), "VENV": sys.prefix, "PYTHONPATH": str(ROOT)}
    for name, value in WORKFLOW["jobs"]["rebuild"]["env"].items():
        environment[name] = value.replace("${{ github.workspace }}", str(folder))

    def run(name: str) -> subprocess.CompletedProcess:
        [step] = [step for step in steps("run") if step["name"].startswith(name)]
        command = step["run"].replace("PRESET=paper", "PRESET=smoke")
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
        return subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True)

    return folder, run


@pytest.mark.book
def test_the_steps_compute_anew_compare_and_leave_the_committed_results(rebuild):
    folder, run = rebuild
    committed = {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()}
    names = [step["name"] for step in steps("run")]
    assert names[0] == "Show the GPU"  # there may be none here
    for name in names[1:]:
        done = run(name)
        assert done.returncode == 0, done.stdout + done.stderr
    made = folder / "_build/results/theory/smoke/manifest.json"
    started = json.loads(made.read_text())["started"]
    assert (folder / "_build/html/index.html").exists()
    assert {path: path.read_bytes() for path in (folder / "results").rglob("*") if path.is_file()} == committed
    report = (folder / "_build/report.md").read_text()
    measured = sum(claim.study == "theory" for claim in CLAIMS)
    assert f"**0 of {measured} claims moved" in report and "| theory | smoke | only new |" in report
    assert "| theory | paper | the same files |" in report
    assert report in (folder / "summary.md").read_text()
    kept = steps("uses")[1]["with"]["path"].split()
    assert [path for path in kept if not (folder / path).exists()] in ([], ["_build/times.md"])

    for name in names[1:]:  # a second attempt
        assert run(name).returncode == 0
    assert json.loads(made.read_text())["started"] == started


@pytest.mark.book
def test_a_study_that_fails_still_leaves_a_report(rebuild):
    folder, run = rebuild
    chapter = folder / "chapters/theory.md"
    chapter.write_text(chapter.read_text().replace("compute)", "compute)\nraise SystemError('broken')"))
    assert run("Copy").returncode == 0
    assert run("Compute").returncode != 0
    assert run("Compare").returncode == 0
    assert "| theory | smoke | only new |" in (folder / "summary.md").read_text()


def test_a_copy_that_was_cut_off_is_made_again(rebuild):
    folder, run = rebuild
    (folder / "_build/copying/theory").mkdir(parents=True)
    assert run("Copy").returncode == 0
    assert (folder / "_build/results/theory/paper/manifest.json").exists()
    assert os.listdir(folder / "_build") == ["results"]


def test_only_the_publishing_job_may_write_and_only_pages():
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert "permissions" not in WORKFLOW["jobs"]["rebuild"]
    publish = WORKFLOW["jobs"]["publish"]
    assert publish["permissions"] == {"pages": "write", "id-token": "write"} and publish["needs"] == "rebuild"
    assert "github.ref_name == github.event.repository.default_branch" in publish["if"]
    used = [step.get("uses", "") for job in WORKFLOW["jobs"].values() for step in job["steps"]]
    actions = [name.split("@")[0] for name in used if name]
    assert actions[-2:] == ["actions/upload-pages-artifact", "actions/deploy-pages"]
