"""A comparison names what moved and nothing else: each change to a copy of the stored results is found by its rule."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from possym import results
from possym.claims import CLAIMS, comparison
from possym.errors import InputError, ResultsError
from possym.experiments.claim import Measurement
from possym.profiling.statistics import Estimate
from possym.results import Study

ROOT = Path(__file__).resolve().parents[2]
STORE = ROOT / "results"
NAMES = ("real_models", "theory")
SMALL = ("length_elsewhere", "theory")  # for what is no matter of numbers: measured in a tenth of a second


@pytest.fixture
def copied(tmp_path):
    for name in NAMES:
        shutil.copytree(STORE / name, tmp_path / "new" / name)
    return tmp_path / "new"


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    folder = tmp_path_factory.mktemp("old")
    for name in NAMES:
        shutil.copytree(STORE / name, folder / name)
    return folder


@pytest.fixture
def small(tmp_path):
    """Two folders of the same small results."""
    for name in SMALL:
        for side in ("old", "new"):
            shutil.copytree(STORE / name, tmp_path / side / name)
    return tmp_path / "old", tmp_path / "new"


def altered(folder, change):
    """Change a stored result and store it again, its manifest with the hashes of the new files."""
    study = results.load(folder)
    change(study)
    results.save(folder, study)


def scaled(factor):
    def change(study):
        study.tables["heads"]["variance"] *= factor

    return change


def doubled(study):
    study.tables["tightness"]["ratio"] *= 2


def changes(found) -> dict[str, str]:
    return {row.id: row.change for row in found.claims.itertuples() if row.change != "same"}


def test_an_unaltered_copy_has_moved_nowhere(old, copied):
    found = comparison.compare(old, copied)
    assert changes(found) == {} and len(found.moved) == 0
    assert set(found.claims["id"]) == {claim.id for claim in CLAIMS if claim.study in NAMES}
    assert found.studies["change"].tolist() == ["the same files", "the same files"]
    stored = sum(len(results.load(STORE / name / "paper").tables) for name in NAMES)
    assert (found.tables["largest"] == 0).all() and found.tables["table"].ne("arrays").sum() == stored
    text = found.markdown()
    assert f"**0 of {len(found.claims)} claims moved" in text and text.count("\nNone.") == 2 and "<details>" not in text


@pytest.mark.parametrize(("factor", "change"), [(0.993, "inside"), (1.1, "outside"), (2.0, "verdict")])
def test_a_number_moves_within_its_interval_out_of_it_and_past_its_verdict(old, copied, factor, change):
    altered(copied / "real_models/paper", scaled(factor))
    found = comparison.compare(old, copied)
    assert changes(found) == {"real-exclusion": change}
    assert len(found.moved) == (change != "inside")
    row = found.tables.set_index("table").loc["heads"]
    assert row["column"] == "variance" and row["relative"] == pytest.approx(abs(factor - 1), rel=1e-4)
    assert found.studies["change"].tolist() == ["made anew", "the same files"]
    report = found.markdown()
    assert ("`real-exclusion`" in report.split("## Results")[0]) == (change != "inside")
    assert ("holds → does not hold" in report) == (change == "verdict")


def test_a_closed_form_that_reads_otherwise_has_moved(small):
    def change(study):
        audit = study.tables["audit"]
        audit.loc[audit["name"] == "p1_theorem_1", "counterexample"] += " and another"

    altered(small[1] / "theory/paper", change)
    assert changes(comparison.compare(*small)) == {"p1-theorem-1": "words"}


def test_what_cannot_be_measured_any_more_says_why(old, copied):
    shutil.rmtree(copied / "theory")
    altered(copied / "real_models/paper", lambda study: study.tables["heads"].pop("bound"))
    found = comparison.compare(old, copied)
    lost = found.lost.set_index("id")["now"]
    assert lost["p1-theorem-1"] == ""
    assert re.fullmatch(r"cannot be measured \(\w+Error: .*'bound'.*\)", lost["real-exclusion"])
    assert len(found.moved) == 0 and set(lost.index) >= {c.id for c in CLAIMS if c.study == "theory"}
    assert found.studies.set_index("study").loc["theory", "change"] == "only old"
    heads = found.tables.set_index("table").loc["heads"]
    assert pd.isna(heads["largest"]) and re.fullmatch(r"(\d+) × 16 → \1 × 15", heads["rows"])
    report = found.markdown()
    assert "| theory | no result named paper | `p1-theorem-1`" in report and "not comparable" in report
    new = comparison.compare(copied, old).claims.set_index("id")["change"]
    assert new["p1-theorem-1"] == new["real-exclusion"] == "new"


def test_a_damaged_result_is_a_row(old, copied):
    with next(copied.glob("theory/paper/audit*")).open("ab") as file:
        file.write(b" ")
    (copied / "real_models/paper/manifest.json").write_text('{"files": {}, "config": {}}')
    found = comparison.compare(old, copied)
    assert set(changes(found).values()) == {"lost"}
    studies = found.studies.set_index("study")
    assert studies["change"].tolist() == ["new cannot be read"] * 2
    assert "does not match the hash" in studies.loc["theory", "now"]
    assert "cannot be used" in studies.loc["real_models", "now"]


@pytest.mark.parametrize(("field", "value"), [("seconds", "x"), ("started", None), ("commit", 3)])
def test_a_manifest_with_a_wrong_type_is_a_row(small, field, value):
    path = small[1] / "theory/paper/manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    studies = comparison.compare(*small).studies.set_index("study")
    assert f"lacks {field}" in studies.loc["theory", "now"]


def test_other_settings_and_versions_are_told(small):
    old, new = small
    path = new / "theory/paper/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["config"]["seed"] = 100
    manifest["versions"]["torch"] = "9.0"
    manifest["files"]["audit.parquet"] = manifest["files"].pop(next(n for n in manifest["files"] if "audit" in n))
    next(new.glob("theory/paper/audit*")).rename(new / "theory/paper/audit.parquet")
    path.write_text(json.dumps(manifest))
    settings = comparison.compare(old, new).studies.set_index("study").loc["theory", "settings"]
    assert "seed: 0 → 100" in settings and "version of torch: " in settings and "→ 9.0" in settings


def test_arrays_that_differ_are_found(tmp_path):
    import torch

    manifest = results.load(STORE / "theory/paper").manifest
    for name, value in (("old", 2.0), ("new", 2.5)):
        arrays = {"same": torch.ones(3), "weights": torch.tensor([1.0, value])}
        results.save(tmp_path / name / "theory/paper", results.Study({}, arrays, dict(manifest)))
    found = comparison.compare(tmp_path / "old", tmp_path / "new").tables
    assert found[["table", "column", "largest", "relative"]].to_numpy().tolist() == [["arrays", "weights", 0.5, 0.25]]


def test_intervals_without_width_give_way_by_the_tolerance_and_no_more():
    point = Estimate(-200.0, -200.0, -200.0)
    assert [comparison.inside(point, value) for value in (-198.1, -201.9, -197.9, -202.1)] == [True, True, False, False]
    nan = float("nan")
    assert comparison.inside(Estimate(nan, 0, 1), nan) and not comparison.inside(Estimate(nan, 0, 1), 0.5)
    assert not comparison.inside(Estimate(0.5, 0, 1), nan)


def test_another_number_of_numbers_is_judged_by_its_words():
    one, two = (Measurement("a", "", "holds", (Estimate(1, 0, 2),) * count) for count in (1, 2))
    assert comparison.change_of_measurement(one, two) == "same"
    assert comparison.change_of_measurement(one, two._replace(measured="b")) == "words"


def test_folders_without_results_are_refused(old, tmp_path):
    with pytest.raises(ResultsError, match="holds no results: give a folder"):
        comparison.compare(old, tmp_path)
    (tmp_path / "file").touch()
    for given in (tmp_path / "nowhere", tmp_path / "file", ""):
        with pytest.raises(ResultsError, match="new = '.*' is no folder: give one with"):
            comparison.compare(old, given)
    with pytest.raises(InputError, match="old is of type int"):
        comparison.compare(3, old)


def test_the_command_ends_as_asked(small, capsys, monkeypatch):
    old, new = small
    altered(new / "theory/paper", doubled)
    both = ["--old", str(old), "--new", str(new)]
    assert comparison.main(both) == 0
    assert "`exclusion-tightness` | another verdict" in capsys.readouterr().out
    assert comparison.main([*both, "--fail"]) == 1
    assert comparison.main(["--old", str(old), "--new", str(old), "--fail"]) == 0
    shutil.rmtree(new / "theory")
    assert comparison.main(both) == 0 and comparison.main([*both, "--fail"]) == 1
    capsys.readouterr()
    monkeypatch.chdir(old)  # what an empty path must not mean
    for words, message in (
        (["--old", str(old / "nowhere"), "--new", str(old)], "nowhere' is no folder: give one"),
        (["--old", "", "--new", str(old)], "old = '' is no folder: give one"),
        (["--old", str(old), "--new", ""], "new = '' is no folder: give one"),
    ):
        assert comparison.main(words) == 2
        said = capsys.readouterr()
        assert said.out == "" and message in said.err


def test_the_command_compares_with_the_last_commit(tmp_path):
    """In a checkout of its own, so that the commit is known."""
    shutil.copytree(ROOT / "possym", tmp_path / "possym", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(STORE / "theory", tmp_path / "results/theory")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    environment.pop("POSSYM_RESULTS", None)

    def run(*command):
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    report = (sys.executable, "-m", "possym.claims.comparison", "--fail")
    refused = run(*report)
    assert refused.returncode == 2 and "name a folder with --old" in refused.stderr
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "results")):
        assert run(*git, *command).returncode == 0
    altered(tmp_path / "results/theory/paper", doubled)
    moved, number = run(*report), sum(claim.study == "theory" for claim in CLAIMS)
    assert moved.returncode == 1, moved.stderr
    assert "Old: the results of the last commit" in moved.stdout and f"**1 of {number} claims moved" in moved.stdout
    assert "`exclusion-tightness` | another verdict" in moved.stdout


def scores_study(**changes) -> Study:
    columns = {"layer": [0, 1], "score": [0.5, 0.25], "name": ["a", "b"], "sure": [True, False]}
    return Study({"scores": pd.DataFrame(columns | changes)})


def test_differences_are_the_largest_of_each_column():
    other = scores_study(score=[0.75, 0.3], name=["a", "c"], sure=[True, True])
    found = comparison.differences(scores_study(), other).set_index("column")["largest"]
    assert found.to_dict() == {"layer": 0.0, "score": 0.25, "name": 1.0, "sure": 1.0}
    assert (comparison.differences(scores_study(), scores_study())["largest"] == 0).all()


def test_a_number_that_is_missing_on_one_side_is_a_difference():
    nan = float("nan")
    gaps = [
        comparison.differences(scores_study(score=a), scores_study(score=b)).set_index("column")["largest"]["score"]
        for a, b in (([nan, 1.0], [nan, 1.0]), ([nan, 1.0], [0.0, 1.0]))
    ]
    assert gaps[0] == 0 and pd.isna(gaps[1])


def test_words_and_infinities_on_both_sides_are_no_difference():
    infinity = float("inf")
    for name, column in (("name", ["a", None]), ("sure", [True, None]), ("score", [infinity, 0.5])):
        found = comparison.differences(scores_study(**{name: column}), scores_study(**{name: column})).set_index(
            "column"
        )
        assert found.loc[name, "largest"] == 0, name
    assert found.loc["score", "size"] == 0.5
    assert comparison.differences(scores_study(), scores_study()).set_index("column")["size"].to_dict() == {
        "layer": 1.0, "score": 0.5, "name": 1.0, "sure": 1.0
    }  # fmt: skip


def test_results_that_cannot_be_compared_are_refused():
    with pytest.raises(InputError, match="give results of one study"):
        comparison.differences(scores_study(), Study({"other": pd.DataFrame()}))
    with pytest.raises(InputError, match=r"has 2 rows of .* and 1 of"):
        comparison.differences(scores_study(), Study({"scores": scores_study().tables["scores"].head(1)}))
    with pytest.raises(InputError, match="one is of type str"):
        comparison.differences("a", scores_study())
