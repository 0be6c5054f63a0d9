"""What is stored is told as its manifests tell it; studies that differ and models with other weights are found out."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from possym import results
from possym.claims import reproduction
from possym.errors import InputError, ResultsError
from possym.experiments import learning_dynamics
from possym.results import Study

STORE = Path(__file__).resolve().parents[2] / "results"
CONFIG = learning_dynamics.Config.preset_named("paper")


@pytest.fixture(scope="module")
def study() -> Study:
    return results.load_or_run(learning_dynamics, CONFIG, "stored")


def test_stored_tells_what_the_manifests_say():
    table = reproduction.stored().set_index(["study", "result"])
    manifests = [json.loads(path.read_text()) for path in STORE.glob("*/*/manifest.json")]
    assert len(table) == len(manifests)
    assert table["seconds"].sum() == pytest.approx(sum(manifest["seconds"] for manifest in manifests))
    row, folder = table.loc[("theory", "paper")], STORE / "theory/paper"
    assert row["megabytes"] == pytest.approx(sum(p.stat().st_size for p in folder.glob("*.parquet")) / 1e6)
    assert (row["seeds"], row["date"]) == (1, json.loads((folder / "manifest.json").read_text())["started"][:10])


def test_an_altered_file_and_an_empty_store_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    with pytest.raises(ResultsError, match="nothing is stored"):
        reproduction.stored()
    shutil.copytree(STORE / "theory", tmp_path / "theory")
    assert len(reproduction.stored()) == 1
    with next(tmp_path.glob("theory/paper/audit*")).open("ab") as file:
        file.write(b" ")
    with pytest.raises(ResultsError, match="does not match the hash"):
        reproduction.stored()


def test_stored_models_have_the_stored_scores(study):
    found = reproduction.rescored(study, CONFIG, "letter", sequences=100)
    assert len(found) == 2 * CONFIG.layers
    assert (found["apart"] <= 3).mean() > 0.9
    last = study.tables["scores"].query("task == 'letter' and seed == 0 and step == step.max()")
    stored = found[found["score"] == "symbolic"]["stored"]
    assert stored.tolist() == last.sort_values("layer")["symbolic"].tolist()


def test_other_weights_are_found_out(study):
    draw = torch.Generator().manual_seed(0)
    noisy = {k: w + 0.1 * torch.randn(w.shape, generator=draw) for k, w in study.arrays.items()}
    found = reproduction.rescored(Study(study.tables, noisy, study.manifest), CONFIG, "letter", sequences=100)
    assert (found["apart"] <= 3).mean() < 0.5


def test_rescored_refuses_what_it_cannot_use(study):
    with pytest.raises(InputError, match="sequences is of type float"):
        reproduction.rescored(study, CONFIG, "letter", sequences=1e3)
    with pytest.raises(InputError, match="this study holds"):
        reproduction.rescored(study, CONFIG, "word")


def test_the_whole_build_is_what_the_workflow_wrote():
    facts, jobs = reproduction.whole_build()
    text = (STORE.parent / facts["source"]).read_text(encoding="utf-8")
    assert all(str(facts[name]) in " ".join(text.split()) for name in ("command", "device", "commit", "torch"))
    assert f"**{facts['seconds']} s**" in text
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    written = {
        (kind, name.removeprefix("paper/").removeprefix("chapters/")): (int(seconds), float(memory))
        for kind, name, seconds, memory, _ in (row for row in rows if len(row) == 5)
        if kind in ("study", "chapter", "page", "site")
    }
    assert written == {(job.kind, job.name): (job.seconds, job.gigabytes) for job in jobs.itertuples(index=False)}
    assert len(written) == len(jobs) > 20
