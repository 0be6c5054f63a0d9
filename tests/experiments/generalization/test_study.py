import json

import pandas as pd
import pytest
import torch

from possym.ensembles.last_token import plane_table
from possym.experiments import generalization as study
from possym.experiments import learning_dynamics
from possym.experiments import trained as ensembles
from possym.experiments.generalization.long_inputs import HOPS, answer, find_attended_steps, sample_members
from possym.experiments.learning_dynamics import score_heads

from ..stores import interrupt, same_tables, smoke_run

torch.set_num_threads(1)

TINY = study.Config.preset_named(
    "smoke", device="cpu", width=16, training_sequences=120, steps=30, batch=4, warmup=3, tasks=("letter",)
)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke preset's tables after fewer steps."""
    for config, result in smoke_run(study, tmp_path_factory, steps=100):
        yield config, result.tables


def test_tables_hold_every_model_and_length_once(smoke):
    config, tables = smoke
    models, others = 2 * config.members, 2 * config.other_members
    layers, coarse = config.layers, len(config.lengths)
    every = [{*config.lengths, *between} for between in (config.number_lengths, config.letter_lengths)]
    fine, short = sum(map(len, every)), sum(length <= config.other_longest for each in every for length in each)
    fine, short = config.members * fine, config.other_members * short
    model = ["task", "learning_rate", "seed"]
    sizes = {
        "accuracy": (["length", "hops"], 5 * (fine + short)),
        "heads": (["layer", "head"], layers * (models + others)),
        "looks": (["layer", "head", "hops"], 4 * layers * models),
        "leads": (["layer", "head", "hops", "length"], 4 * layers * models * coarse),
        "forecast": (["length"], fine + short),
        "alike": (["length"], fine),
        "parts": (["source", "way", "layer", "length"], models * len(config.part_lengths) * 2 * (1 + 3 * layers)),
        "repairs": (["repair", "heads", "length"], models * len(config.repair_lengths) * 16),
    }
    for name, (keys, size) in sizes.items():
        assert not tables[name].duplicated([*model, *keys]).any() and len(tables[name]) == size, name
        assert not tables[name].isna().any(axis=None), name
    checkpoints = tables["checkpoints"]
    assert not checkpoints.duplicated([*model, "checkpoint", "length"]).any()
    assert len(checkpoints) == 2 * (models + config.rule_members) * len(config.checkpoint_lengths)
    assert len(tables["precision"]) == 2 * len(config.compared_lengths)
    assert len(tables["timing"]) == 2 * (7 + 3)
    assert (tables["precision"]["same"] == 1).all()  # on the CPU both are float32
    for name in ("accuracy", "forecast", "alike", "parts", "repairs"):
        assert tables[name]["accuracy"].between(0, 1).all()


def test_accuracy_over_all_hops_is_the_mean_of_each(smoke):
    accuracy = smoke[1]["accuracy"].set_index(["task", "learning_rate", "seed", "length"]).sort_index()
    whole, parts = accuracy[accuracy["hops"] == 0], accuracy[accuracy["hops"] > 0]
    model = parts.index.names
    assert (parts.groupby(model)["count"].sum() == whole["count"]).all()
    fully = whole.index.get_level_values("length").isin(smoke[0].lengths)
    assert (whole["count"][fully] == smoke[0].sequences).all()
    assert (whole["count"][~fully] == smoke[0].sequences_between).all()
    means = (parts["accuracy"] * parts["count"]).groupby(model).sum() / parts.groupby(model)["count"].sum()
    whole = whole["accuracy"].astype(float).groupby(model).first()
    pd.testing.assert_series_equal(means, whole, atol=2e-5, check_names=False)


def test_what_is_measured_twice_agrees(smoke):
    """Layers up to the last are the whole model; exposure up to the first layer is the first alone."""
    config, tables = smoke
    parts = tables["parts"].set_index(["task", "seed", "source", "length", "way", "layer"])["accuracy"]
    parts = parts.xs("measured", level="source")
    upto, exposed = parts.xs("upto", level="way"), parts.xs("exposed", level="way")
    whole = parts.xs("whole", level="way").xs(-1, level="layer")
    pd.testing.assert_series_equal(upto.xs(config.layers - 1, level="layer"), whole)
    pd.testing.assert_series_equal(upto.xs(0, level="layer"), exposed.xs(0, level="layer"))


def test_heads_and_leads_are_those_of_the_trained_models(smoke):
    config, tables = smoke
    task = study.TASKS["number"]()
    model = ensembles.trained("number", config, torch.device("cpu"))
    drawn = study.generator(config.seed, "held-out")
    scored = task.sample(config.scored_sequences, generator=drawn).tokens
    scores = score_heads(model, scored, config.temperature)
    heads = tables["heads"].query("task == 'number' and learning_rate == @config.learning_rate")
    for name in ("positional", "symbolic"):
        torch.testing.assert_close(
            torch.tensor(heads[name].to_numpy()).float(), scores[name].flatten(), atol=2e-5, rtol=0
        )
    planes = plane_table(model, scored[:64], member=1, layer=1, temperature=0.1)
    mean = (planes["frequency_id"] * planes["logit_norm"]).sum() / planes["logit_norm"].sum()
    head = heads.query("seed == 1 and layer == 1").iloc[0]
    assert head["frequency_id"] == pytest.approx(mean, abs=1e-3)
    assert head["angle"] == pytest.approx(planes["angle"].iloc[round(head["frequency_id"]) - 1])
    source = study.generator(config.seed, "held-out")
    attended = find_attended_steps(model, sample_members(task, config.members, config.scored_sequences, 17, source))
    found = answer(model, task, 17, config.sequences, source, attended=attended)
    leads = tables["leads"].query("task == 'number' and length == 17").set_index(["seed", "layer", "hops"])
    for seed in range(config.members):
        for layer in range(config.layers):
            for hops in HOPS:
                gaps = found.gap[seed, layer, 0][found.hops[seed] == hops]
                row = leads.loc[(seed, layer, hops)]
                expected = (gaps.min().item(), gaps.median().item(), gaps.max().item())
                assert tuple(row[["least", "median", "most"]]) == pytest.approx(expected, abs=2e-5)


def test_both_checkpoints_of_every_rule_answer_the_same_sequences(smoke):
    config, table = smoke[0], smoke[1]["checkpoints"]
    for name in ("number", "letter", "letter_any"):
        own = config.of_rule(name)
        assert own.members == (config.rule_members if name == "letter_any" else config.members)
        for checkpoint in ("last", "best"):
            model = ensembles.trained(name, own, torch.device("cpu"), checkpoint)
            source = study.generator(config.seed, "held-out")
            rows = table.query("task == @name and checkpoint == @checkpoint")
            for length in config.checkpoint_lengths:
                batch = sample_members(study.TASKS[name](), own.members, config.checkpoint_sequences, length, source)
                with torch.no_grad():
                    right = (model(batch.tokens).argmax(-1) == batch.answer).float().mean(1)
                assert rows[rows["length"] == length]["accuracy"].tolist() == pytest.approx(right.tolist(), abs=1e-5)


def test_no_repair_is_the_model_itself_and_a_repair_of_no_head_too(smoke):
    tables = smoke[1]
    repairs = tables["repairs"].set_index(["task", "seed", "length", "repair", "heads"])["accuracy"].sort_index()
    none = repairs.xs("none", level="repair").droplevel("heads")
    at_home = repairs.xs(17, level="length")
    for repair in ("larger base", "interpolation", "log length"):  # they leave the training length alone
        found = at_home.xs(repair, level="repair").xs("all", level="heads")
        pd.testing.assert_series_equal(found, none.xs(17, level="length"), check_names=False)
    symbolic = tables["heads"].query("kind == -1").groupby(["task", "learning_rate", "seed"]).size()
    for (task, seed), rows in repairs.groupby(["task", "seed"]):
        if (task, smoke[0].learning_rate, seed) not in symbolic.index:
            found = rows.xs("symbolic", level="heads")
            expected = none.loc[task, seed].reindex(found.index.get_level_values("length"))
            assert (found.to_numpy() == expected.to_numpy()).all()


def test_an_interrupted_study_ends_with_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "whole"))
    whole = study.run(TINY)
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "stopped"))
    interrupt(study, TINY, "measure_repairs", lambda group: True)
    done = sorted(path.name for path in study.checkpoint_folder(study.NAME, TINY).glob("*.json"))
    assert done == [f"letter-0.003-{stage}.json" for stage in ("forecast", "parts", "swept")]
    # What is kept is taken, not measured again: a mark in it comes back.
    kept = study.checkpoint_folder(study.NAME, TINY) / "letter-0.003-swept.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"seconds": 12345.0}))
    resumed = study.run(TINY)
    assert (resumed.tables["timing"]["seconds"] == 12345).sum() == 1
    same_tables(whole, resumed)


def test_the_paper_preset_is_what_the_chapter_says():
    config = study.Config.preset_named("paper")
    assert len(config.lengths) >= 12 and (config.lengths[0], config.lengths[-1]) == (17, 5000)
    assert config.sequences >= 1000 and config.members == 32 and config.learning_rate == 1e-4
    device, other = torch.device("cpu"), learning_dynamics.Config.preset_named("paper", members=32)
    assert ensembles.cache_path("letter", config, device) == ensembles.cache_path("letter", other, device)
    assert config.at_rate(1e-3).members == config.other_members and config.at_rate(1e-3).learning_rate == 1e-3
