"""What executed notebooks hand over, joined and shown."""

import base64
import json
from dataclasses import replace

import pandas as pd
import pytest

from possym import claims, results, sweeps
from possym.claims.table import TABULAR
from possym.errors import ConfigError, InputError, ResultsError
from possym.experiments import theory
from possym.sweeps import gallery

CLAIMS = "01-positional-and-symbolic"
CHART = '<figure class="possym-chart"><img class="possym-still" alt="a" src="data:image/svg+xml;base64,{}"></figure>'


def notebook_of(data, chart="<svg/>"):
    bundle = data._repr_mimebundle_()
    still = CHART.format(base64.b64encode(chart.encode()).decode())
    shown = {"text/html": [still], "text/plain": ["a <chart>"]}
    outputs = [{"output_type": "display_data", "data": data} for data in (shown, bundle)]
    return {"cells": [{"cell_type": "markdown"}, {"cell_type": "code", "outputs": outputs}]}


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A function that gives a sweep of so many points and the folder of their notebooks, of a chapter with claims."""
    monkeypatch.chdir(tmp_path)
    table = claims.what_holds(CLAIMS)

    def make(count):
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        points = {f"seed={seed}": {"seed": seed, "preset": "smoke"} for seed in range(count)}
        for point in points:
            (folder / f"{point}.ipynb").write_text(json.dumps(notebook_of(table)))
            (folder / f"{point}.tsv").write_text("s\tmax_rss\n2.5\tNA\n")
        return sweeps.Sweep(
            name="mine", file=gallery.Path("mine.yaml"), chapter=gallery.Path(f"chapters/{CLAIMS}.md"), points=points,
            about="A <try>.", prepare=None, resources={},
        ), folder  # fmt: skip

    return make


def test_a_notebook_keeps_what_holds_as_data_with_what_made_it():
    config = theory.Config.preset_named("paper")
    study = results.load_or_run(theory, config, "stored")
    table = claims.what_holds("04-rope-geometry", {"theory": study})
    found = gallery.handed_over(json.loads(json.dumps(notebook_of(table))))
    ledger = claims.ledger("04-rope-geometry", {"theory": study})
    assert found["id"].tolist() == ledger.index.tolist()
    for column in ("claim", "measured", "interval", "verdict", "paper_value"):
        assert found[column].tolist() == ledger[column].tolist()
    made = found[found["study_experiment"] == "theory"]
    assert len(made) > 0
    for name in ("config_hash", "device", "seconds", "commit"):
        assert set(made[f"study_{name}"]) == {study.manifest[name]}
    assert set(made["study_preset"]) == {"paper"}


def test_tables_without_data_hand_over_nothing():
    plain = claims.summary()
    assert TABULAR not in plain._repr_mimebundle_()
    assert gallery.handed_over(notebook_of(plain)).shape == (1, 0)


def test_points_are_joined_with_their_parameters_pictures_and_notebooks(sweep):
    made, folder = sweep(2)
    gallery.store(made, folder)
    study = results.load(gallery.FOLDER / "mine", required=results.store.COMMON)
    table = study.tables[gallery.TABLE]
    holds = claims.ledger(CLAIMS)
    assert len(table) == 2 * len(holds)
    assert table.groupby("point")["seed"].unique().map(list).to_dict() == {"seed=0": [0], "seed=1": [1]}
    assert table["verdict"].tolist() == 2 * holds["verdict"].tolist()
    assert set(table["seconds"]) == {2.5} and table["megabytes"].isna().all()
    assert (gallery.FOLDER / "mine/seed=1.svg").read_text() == "<svg/>"
    assert (gallery.FOLDER / "mine/seed=1.ipynb").read_bytes() == (folder / "seed=1.ipynb").read_bytes()
    assert study.manifest["failed"] == {}
    assert gallery.stored() == ["mine"]


def test_values_of_every_kind_become_columns(sweep):
    made, folder = sweep(2)
    values = {"pairs": [[8], [8, 64]], "mixed": ["x", 3], "maps": [{}, {"a": None}], "rate": [1, 0.25]}
    for number, point in enumerate(made.points.values()):
        point |= {name: each[number] for name, each in values.items()}
    gallery.store(made, folder)
    table = gallery.Gallery("mine").table.drop_duplicates("point")
    found = {name: table[name].tolist() for name in values}
    assert found == {
        "pairs": ["[8]", "[8, 64]"], "mixed": ['"x"', "3"], "maps": ["{}", '{"a": null}'], "rate": [1, 0.25],
    }  # fmt: skip


def test_a_smaller_sweep_leaves_nothing_of_the_larger(sweep):
    gallery.store(*sweep(3))
    gallery.store(*sweep(2))
    assert {path.stem for path in (gallery.FOLDER / "mine").glob("seed*")} == {"seed=0", "seed=1"}
    assert len(list((gallery.FOLDER / "mine").glob("*.parquet"))) == 1


def test_a_gallery_is_not_taken_by_another_file_of_the_same_name(sweep, tmp_path):
    made, folder = sweep(2)
    gallery.store(made, folder)
    sweeps.check_name(replace(made, file=tmp_path / "mine.yaml"))  # the same file, by another path
    stored = (gallery.FOLDER / "mine/manifest.json").read_bytes()
    other = replace(made, file=tmp_path / "elsewhere/mine.yaml")
    for refuse in (sweeps.check_name, lambda sweep: gallery.store(sweep, folder)):
        with pytest.raises(ConfigError, match=r"elsewhere/mine.yaml: sweeps/mine is the gallery of mine.yaml: give"):
            refuse(other)
    assert (gallery.FOLDER / "mine/manifest.json").read_bytes() == stored
    (gallery.FOLDER / "mine/manifest.json").write_text("{")
    with pytest.raises(ConfigError, match=r"manifest.json cannot be read .* or delete sweeps/mine"):
        sweeps.check_name(made)


def test_what_failed_is_shown_beside_what_finished(sweep):
    made, folder = sweep(2)
    (folder / "seed=1.ipynb").unlink()
    gallery.store(made, folder, {"seed=1": "a <cell> failed"})
    page = gallery.Gallery("mine")._repr_html_()
    assert "1 of 2 points" in page and "seed=1: a &lt;cell&gt; failed" in page
    assert "A &lt;try&gt;." in page
    (folder / "seed=0.ipynb").unlink()
    with pytest.raises(InputError, match="holds no notebook of mine"):
        gallery.store(made, folder)


def test_a_page_names_points_by_what_differs_and_links_their_notebooks(sweep):
    gallery.store(*sweep(2))
    shown = gallery.Gallery("mine")
    assert shown.labels() == {"seed=0": "seed = 0", "seed=1": "seed = 1"}
    page = shown._repr_html_()
    assert 'href="sweeps/mine/seed=1.ipynb" download>seed = 1</a>' in page
    assert '<img src="sweeps/mine/seed=1.svg" alt="a &lt;chart&gt;"' in page
    assert list(shown.claims().frame) == ["Claim", "seed = 0", "seed = 1"]


def test_many_points_are_counted(sweep):
    gallery.store(*sweep(7))
    frame = gallery.Gallery("mine").claims().frame
    assert (frame["● holds"] == 7 * (claims.ledger(CLAIMS)["verdict"] == "holds").to_numpy()).all()
    assert (frame.iloc[:, 1:].sum(axis=1) == 7).all()


def test_claims_that_no_point_can_test_are_not_shown(sweep):
    made, folder = sweep(2)
    table = claims.what_holds(CLAIMS)
    table.data.loc[0, "verdict"] = "not testable here"
    for point in made.points:
        (folder / f"{point}.ipynb").write_text(json.dumps(notebook_of(table)))
    gallery.store(made, folder)
    assert gallery.Gallery("mine").claims().frame["Claim"].tolist() == table.data["claim"].tolist()[1:]


def test_other_tables_of_the_studies_are_joined_on_demand(sweep, tmp_path, monkeypatch):
    made, folder = sweep(2)
    stored = results.load_or_run(theory, theory.Config.preset_named("paper"), "stored")
    name, first = next(iter(stored.tables.items()))
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "results"))
    for seed, point in enumerate(made.points):
        study = results.Study(dict(stored.tables), {}, {**stored.manifest, "config_hash": f"{seed}"})
        results.save(tmp_path / f"results/theory/smoke-{seed}", study)
        table = claims.what_holds("04-rope-geometry", {"theory": study})
        (folder / f"{point}.ipynb").write_text(json.dumps(notebook_of(table)))
    gallery.store(made, folder)
    joined = gallery.join("mine", name)
    assert joined.groupby("point").size().to_dict() == {"seed=0": len(first), "seed=1": len(first)}
    pd.testing.assert_frame_equal(joined[joined["point"] == "seed=1"][first.columns].reset_index(drop=True), first)
    with pytest.raises(InputError, match=f"table = 'none': the studies of mine have .*{name}"):
        gallery.join("mine", "none")
    (tmp_path / "results/theory/smoke-1/manifest.json").unlink()
    with pytest.raises(ResultsError, match="theory has no result 1"):
        gallery.join("mine", name)
