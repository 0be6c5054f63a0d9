import json

import pandas as pd
import pytest
import torch

from possym import InputError, results
from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.llama import LlamaEnsemble
from possym.ensembles.streams import generator
from possym.experiments import generality
from possym.experiments import generalization as papers_study
from possym.experiments import length_elsewhere as study
from possym.experiments import trained as ensembles
from possym.experiments.generality.summaries import LEARNT
from possym.experiments.generalization import judging, summaries
from possym.experiments.generalization.forecasting import forecast, target_contents
from possym.experiments.generalization.long_inputs import sample_members
from possym.experiments.learning_dynamics import score_heads
from possym.experiments.length_elsewhere import charts
from possym.experiments.length_elsewhere.claims import letter_goes_further
from possym.tasks import Batch

from ..stores import interrupt, smoke_run

torch.set_num_threads(1)  # on models this small, threads mostly wait for each other

TINY = {"device": "cpu", "width": 16, "training_sequences": 64, "steps": 16, "batch": 4, "warmup": 2}
MODEL = ["setting", "task", "seed"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    yield from smoke_run(study, tmp_path_factory)


def test_tables_hold_every_model_and_length_once(smoke):
    config, result = smoke
    models = 2 * config.members * len(config.settings)
    lengths = len(config.lengths)
    heads = (
        2 * config.members * sum(config.of(setting).layers * config.of(setting).heads for setting in config.settings)
    )
    learnt = summaries.learnt(result.tables["accuracy"], study.KIND)["learnt"].sum()
    sizes = {
        "accuracy": ([*MODEL, "length", "hops"], models * lengths * (1 + len(config.hops))),
        "forecast": ([*MODEL, "length"], learnt * lengths),
        "heads": ([*MODEL, "layer", "head"], heads),
        "timing": (["setting", "task", "stage"], 2 * 2 * len(config.settings)),
    }
    assert result.tables.keys() == sizes.keys()
    for name, (keys, size) in sizes.items():
        table = result.tables[name].drop(columns="gib", errors="ignore")
        assert not table.duplicated(keys).any() and len(table) == size, name
        assert not table.isna().any(axis=None), name
    counts = result.tables["accuracy"].query("hops == 0").groupby("length")["count"].unique().explode()
    assert counts.to_dict() == {17: config.test_sequences, 50: config.sequences, 200: config.sequences}
    assert result.manifest["seeds"] == config.seeds()


def test_models_that_do_not_learn_are_measured_but_get_no_forecast(smoke):
    _, result = smoke
    home = result.tables["accuracy"].query("hops == 0 and length == 17").set_index(MODEL)["accuracy"]
    predicted = result.tables["forecast"].set_index(MODEL).index.unique()
    assert 0 < len(predicted) < len(home), "the smoke preset is to have both"
    assert set(predicted) == set(home.index[home >= LEARNT])
    points = judging.predicted_points(result.tables["accuracy"], result.tables["forecast"], study.KIND)
    assert set(points.set_index(MODEL).index) == set(predicted)


def test_what_is_measured_is_what_each_settings_own_models_do(smoke):
    """Every setting's members taken from the cache: their answers and the scores of their heads."""
    config, result = smoke
    kinds = {"heads": (GPTJEnsemble, 2), "llama": (LlamaEnsemble, 1), "every-place": (GPTJEnsemble, 1)}
    task, (hops,) = ensembles.task_named("number"), config.hops
    for setting in config.settings:
        model = ensembles.trained("number", config.of(setting), CPU)
        assert (type(model), model.config.heads) == kinds[setting]
        mine = {n: t[(t["setting"] == setting) & (t["task"] == "number")] for n, t in result.tables.items()}
        source = generator(config.seed, "held-out")
        for length in config.lengths:
            count = config.test_sequences if length == 17 else config.sequences
            batch = sample_members(task, config.members, count, length, source, hops)
            with torch.no_grad():
                right = (model(batch.tokens).argmax(-1) == batch.answer).double().mean(1)
            found = mine["accuracy"].query("length == @length and hops == @hops")["accuracy"]
            assert found.tolist() == pytest.approx(right.tolist(), abs=1e-5)
        source = generator(config.seed, "held-out")
        scored = ensembles.draw(task, config.scored_sequences, config.hops, source).tokens
        scores = score_heads(model, scored, config.temperature)
        for name in ("positional", "symbolic"):
            found = torch.tensor(mine["heads"][name].to_numpy())
            torch.testing.assert_close(found, scores[name].flatten(), atol=2e-5, rtol=0)


def test_the_forecast_is_that_of_the_members_that_learn_with_their_own_windows(smoke):
    """Beside a trained member one that has learnt nothing: the trained one gets its forecast as if it were alone."""
    config, task = smoke[0].of("every-place"), ensembles.task_named("number")
    model = ensembles.trained("number", config, CPU)
    fresh = GPTJEnsemble(model.config, [7])
    weights = {name: torch.cat([new, model.get_parameter(name)[1:]]).detach() for name, new in fresh.named_parameters()}
    found = study.evaluation("number", config, GPTJEnsemble.from_weights(model.config, weights), CPU)["forecast"]
    source = generator(config.seed, "held-out")
    ensembles.draw(task, config.scored_sequences, config.hops, source)
    windows = sample_members(task, config.members, config.windows, 17, source, config.hops[0])
    own = Batch(*(field[1:] for field in windows))
    contents = target_contents(model.member(1), task, config.lengths[-1], source)
    alone = [forecast(model.member(1), task, n, own, contents, source).item() for n in config.lengths]
    assert found[["seed", "length"]].values.tolist() == [[1, length] for length in config.lengths]
    assert found["accuracy"].tolist() == pytest.approx(alone, abs=1e-5)
    assert alone[-1] < alone[0]


def test_the_models_are_those_of_the_study_of_settings():
    """The paper presets train the same members, so either study finds the other's in the cache."""
    mine, theirs = (module.Config.preset_named("paper") for module in (study, generality))
    places = {}
    for setting in mine.settings:
        for task in mine.tasks:
            places[setting, task] = ensembles.cache_path(task, mine.of(setting), CPU)
            assert places[setting, task] == ensembles.cache_path(task, theirs.of(setting), CPU)
    assert len(set(places.values())) == 8


def test_charts_and_the_claim_read_the_study(smoke):
    _, result = smoke
    points = judging.predicted_points(result.tables["accuracy"], result.tables["forecast"], study.KIND)
    quality = judging.forecast_quality(points, result.tables["heads"], study.KIND, draws=20)
    pairs = points.groupby(list(study.KIND)).size()
    assert set(quality.set_index(list(study.KIND)).index) == set(pairs.index[pairs > 1])
    for chart in (charts.accuracy_by_setting(result.tables["accuracy"]), charts.points_by_setting(points)):
        assert "tokens" in str(chart.to_dict())
    assert letter_goes_further(result).verdict in ("holds", "holds in part")


def test_an_interrupted_study_ends_with_the_same_result(tmp_path, monkeypatch):
    config = study.Config.preset_named("smoke", settings=("llama", "heads"), tasks=("letter",), **TINY)
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "whole"))
    whole = study.run(config)
    assert whole.tables["forecast"].empty  # sixteen steps teach nothing
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "stopped"))
    interrupt(study, config, "evaluation", lambda name, changed, *_: changed.settings == ("heads",))  # the second
    done = study.checkpoint_folder(study.NAME, config) / "llama-letter.json"
    done.write_text(json.dumps(json.loads(done.read_text()) | {"seconds": 12345.0}))  # a mark that comes back
    resumed = study.run(config)
    assert resumed.tables["timing"]["seconds"].eq(12345).tolist() == [False, True, False, False]
    for name in ("accuracy", "forecast", "heads"):
        pd.testing.assert_frame_equal(whole.tables[name], resumed.tables[name], check_exact=True)


def papers(seeds=(0, 1, 2), learnt=(True, False, True)):
    """A study of the paper's setting: two learning rates, lengths beyond those of the smoke preset."""
    model = [(rate, seed) for rate in (1e-4, 1e-3) for seed in seeds]
    curves = [
        ("letter", rate, seed, length, float(learnt[seed - seeds[0]] or length > 17))
        for rate, seed in model
        for length in (17, 50, 5000)
    ]
    forecast = pd.DataFrame(curves, columns=["task", "learning_rate", "seed", "length", "accuracy"])
    heads = pd.DataFrame(model, columns=["learning_rate", "seed"])
    tables = {
        "accuracy": forecast.assign(hops=0, count=9),
        "forecast": forecast,
        "heads": heads.assign(task="letter", layer=0, head=0, positional=1.0, symbolic=0.0, kind=1, angle=0.1),
    }
    return results.Study(tables, {}, {"config": {"learning_rate": 1e-4}})


def test_the_baseline_is_the_papers_setting_with_the_same_seeds_and_lengths(smoke):
    _, result = smoke
    joined = study.with_baseline(result, papers())
    expected = {"accuracy": [(0, 17), (0, 50), (1, 17), (1, 50)], "forecast": [(0, 17), (0, 50)]}
    for name, table in joined.items():
        ours, first = result.tables[name], table[table["setting"] == "paper"]
        assert list(table) == list(ours)
        pd.testing.assert_frame_equal(table[len(first) :].reset_index(drop=True), ours, check_dtype=False)
        if name == "heads":
            assert first["seed"].tolist() == [0, 1]
        else:
            assert list(first[["seed", "length"]].itertuples(index=False, name=None)) == expected[name]
    with pytest.raises(InputError, match="none of the seeds 0, 1"):
        study.with_baseline(result, papers(seeds=(5, 6, 7)))


def test_the_papers_own_study_has_all_lengths_of_this_one():
    lengths = study.Config.preset_named("paper").lengths
    theirs = papers_study.Config.preset_named("paper")
    assert set(lengths) <= {*theirs.lengths, *theirs.number_lengths, *theirs.letter_lengths}
    assert (lengths[0], lengths[-1]) == (17, 1000)
