"""The study on small models: what it stores against plain computations, and going on after an interruption."""

import copy
import dataclasses

import pandas as pd
import pytest
import torch

from possym import ConfigError
from possym.experiments import cache_plans as study
from possym.experiments import language_models
from possym.experiments.cache_plans import dissociation, summaries
from possym.experiments.cache_plans.subjects import language_subject, real_subject
from possym.kv_cache import CachePlan, applied
from possym.kv_cache.evaluation import position_losses
from possym.results import load_or_run

TINY = {"encodings": ("slow_half_still",), "shares": (0.5,), "evaluated": 4, "needles": 3, "copies": 2}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.fixture(scope="module")
def made(patch, tmp_path_factory):
    """The study, interrupted in its first subject when its plans were tried, and after it, and begun again twice."""
    patch.setenv("POSSYM_RESULTS", str(tmp_path_factory.mktemp("results")))
    short = language_models.Config.preset_named("smoke", steps=12)
    corpus = language_models.load_corpus("small", short)  # made once: it takes longest
    patch.setattr(language_models, "load_corpus", lambda name, config: corpus)
    patch.setattr(study.Config, "training", lambda config: short)
    config = study.Config.preset_named("smoke", **TINY)
    seen = []

    def stop(name, seed, *rest, real=study.subject_tables):
        if name == "slow_half_still" and not seen:
            seen.append(pd.read_parquet(study.checkpoint_folder(study.NAME, config) / "random-llama-0.timing.parquet"))
            raise KeyboardInterrupt
        return real(name, seed, *rest)

    with pytest.MonkeyPatch.context() as once:
        once.setattr(dissociation, "tables", None)
        with pytest.raises(TypeError):
            load_or_run(study, config, "auto")
    plans = pd.read_parquet(study.checkpoint_folder(study.NAME, config) / "random-llama-0-plans.timing.parquet")
    patch.setattr(study, "subject_tables", stop)
    with pytest.raises(KeyboardInterrupt):
        load_or_run(study, config, "auto")
    return load_or_run(study, config, "auto"), (plans, seen[0]), config


@pytest.fixture(scope="module")
def subject(made, tmp_path_factory):
    return real_subject("random-llama", made[2], CPU, tmp_path_factory.mktemp("model"))


def rows(made, table):
    return summaries.of_model(made[0].tables[table], "random-llama")


def test_what_was_measured_is_not_measured_again(made):
    found, (plans, before), _ = made
    assert before["what"].tolist() == ["making", "measuring", "measuring"]
    assert before["seconds"][1] == plans["seconds"].item()
    pd.testing.assert_frame_equal(rows(made, "timing")[before.columns].reset_index(drop=True), before)
    assert set(found.tables) == set(study.TABLES)
    assert all({*table["model"]} == {"random-llama", "slow_half_still"} for table in found.tables.values())


def test_losses_are_those_under_the_plan(made, subject):
    heads = rows(made, "heads").sort_values(["layer", "key_head"])
    order = (heads["symbolic"] - heads["positional"]).rank(method="first")
    windows = [[4 if rank <= len(heads) / 2 else None for rank in some] for _, some in order.groupby(heads["layer"])]
    with applied(subject.model, CachePlan(windows, sink=1)):
        expected = position_losses(subject.model, subject.evaluated)[:, 31:].mean(1)
    loss = rows(made, "loss").query("rule == 'positional'").sort_values("sequence")["loss"]
    assert loss.tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    plan = rows(made, "plans").query("rule == 'positional'").iloc[0]
    assert plan["tokens"] == CachePlan(windows, sink=1).tokens(64) == 4 * 64 + 4 * 5


def test_caches_hold_what_is_planned(made):
    held = made[0].tables["held"]
    assert (held["bytes"] == held["planned"]).all() and (held["off"] < 1e-5).all()
    assert (held.query("rule == 'none'")["bytes"] == held.query("rule == 'none'")["whole"]).all()
    assert (held.query("rule != 'none'")["bytes"] < 0.6 * held.query("rule != 'none'")["whole"]).all()


def test_matched_heads_are_others_of_the_same_layers():
    kinds = pd.DataFrame([(layer, head) for layer in range(4) for head in range(6)], columns=["layer", "head"])
    kinds = kinds.assign(positional=0.5, symbolic=kinds["head"] / 10, retrieval=(kinds["head"] == 5) / 1.0)
    kinds = kinds.assign(norm=[5.0, 1.0, 2.0, 3.0, 4.0, 2.2] * 4)
    found = dissociation.groups_of(kinds, 4)
    own = {(group, arm): {(r.layer, r.head) for r in some.itertuples()} for (group, arm), some in found.groupby(
        ["group", "arm"])}  # fmt: skip
    assert own["symbolic", "group"] == own["retrieval", "group"] == {(layer, 5) for layer in range(4)}
    assert own["retrieval", "matched"] == {(layer, 2) for layer in range(4)}  # the nearest norm to 2.2
    assert own["positional", "group"] == {(layer, 0) for layer in range(4)}
    assert own["positional", "matched"] == {(layer, 4) for layer in range(4)}


def test_retrieval_is_attention_to_the_needles_answer(made, subject):
    model = copy.deepcopy(subject.model)
    model.set_attn_implementation("eager")
    pairs = torch.randint(subject.vocabulary, (len(subject.chosen), 2), generator=torch.Generator().manual_seed(31))
    found = []
    for depth in (0.1, 0.3, 0.5, 0.7, 0.9):
        start, planted = 1 + round(depth * 60), subject.chosen.clone()
        planted[:, start : start + 2], planted[:, -1] = pairs, pairs[:, 0]
        with torch.no_grad():
            found.append([w[:, :, -1, start + 1].mean(0) for w in model(planted, output_attentions=True).attentions])
    expected = torch.stack([torch.cat(layers) for layers in found]).mean(0)
    kinds = rows(made, "kinds").sort_values(["layer", "head"])
    assert kinds["retrieval"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_head_knocked_out_is_one_whose_output_has_no_weights(subject):
    model, width = copy.deepcopy(subject.model), subject.head_width
    with torch.no_grad():
        for layer, heads in {0: [1, 3], 2: [0]}.items():
            for head in heads:
                model.model.layers[layer].self_attn.o_proj.weight[:, head * width : (head + 1) * width] = 0
        expected, whole = (each(subject.evaluated).logits for each in (model, subject.model))
        with dissociation.knocked_out(subject.model, {0: [1, 3], 2: [0]}):
            found = subject.model(subject.evaluated).logits
        torch.testing.assert_close(found, expected)
        assert not torch.allclose(found, whole, atol=1e-3)
        torch.testing.assert_close(subject.model(subject.evaluated).logits, whole)


@pytest.mark.parametrize("beginning", [None, 5])
def test_counting_is_how_much_likelier_a_line_break_is_where_it_is_due(subject, beginning):
    subject = dataclasses.replace(subject, beginning=beginning)
    found = dissociation.counting(subject, 2)
    expected = []
    for period in dissociation.PERIODS:
        tokens = dissociation.rows_of_random_tokens(2, period, subject.vocabulary, subject.separator, seed=34)
        with torch.no_grad():
            whole = tokens if beginning is None else torch.cat([torch.full((2, 1), beginning), tokens], 1)
            likely = subject.model(whole).logits[:, -tokens.shape[1] :].log_softmax(-1)[..., subject.separator]
        due, other = [], []
        for place in range(4 * (period + 1), tokens.shape[1] - 1):
            if int(tokens[0, place + 1]) == subject.separator:
                due.append(likely[:, place])
            elif int(tokens[0, place]) != subject.separator:
                other.append(likely[:, place])
        expected.append(torch.stack(due).mean(0) - torch.stack(other).mean(0))
        random = tokens[0][tokens[0] != subject.separator]
        assert len(random) == len(random.unique()) == 8 * period
    assert found.tolist() == pytest.approx(torch.stack(expected).mean(0).tolist(), abs=1e-5)


def test_a_gpu_reads_more_at_once_up_to_a_gigabyte_of_logits(subject, monkeypatch):
    assert {subject.at_once(), subject.at_once(10**6)} == {8}
    monkeypatch.setattr(type(subject), "device", torch.device("cuda"))
    per = 2**28 // subject.vocabulary
    assert [subject.at_once(per // count) for count in (1, 16, 40)] == [8, 16, 32] and subject.at_once() == 32


def test_doses_begin_with_the_intact_model_and_probes_too(made):
    depths = {"random-llama": {0.25, 0.5, 0.75}, "slow_half_still": {0.0, 0.5, 1.0}}
    for model, some in made[0].tables["dose"].query("dose == 0").groupby("model"):
        assert {*some["depth"]} == depths[model]
        assert (some.groupby(["depth", "sequence"])["loss"].nunique() == 1).all(), model
    dose = made[0].tables["dose"].query("dose > 0 and mode == 'silence' and planes == 'slowest'")
    assert dose.groupby(["model", "group", "arm"])["loss"].mean().nunique() > 6
    still = made[0].tables["dose"].query("model == 'slow_half_still' and planes == 'slowest'")
    # Planes that stand still say the same turned or not: half of the planes, the dose asked, change nothing there.
    turned = still.query("mode == 'unrotate'").pivot_table(
        index=["group", "depth", "sequence"], columns="dose", values="loss"
    )
    assert (turned[turned.columns[0]] - turned[turned.columns[-1]]).abs().max() < 1e-4


def test_a_language_model_is_read_from_the_cache(made, patch, tmp_path):
    config = made[2]
    patch.setenv("POSSYM_CACHE", str(tmp_path))
    first = language_subject("slow_half_still", 0, config, CPU, tmp_path)
    patch.setattr("possym.experiments.language_models.train", None)  # a second training would fail
    second = language_subject("slow_half_still", 0, config, CPU, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert torch.equal(first.evaluated, second.evaluated) and not torch.equal(first.evaluated[:4], first.chosen)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"encodings": ("alibi",)}, "encodings = .*: give one or more of rope, .*, each once"),
        ({"models": (), "encodings": ()}, "give at least one, none the name of the other"),
        ({"models": ("rope",)}, "give at least one, none the name of the other"),
        ({"language": "long"}, "presets are smoke, paper"),
        ({"shares": (0.5, 0.5)}, "shares = .* each once"),
        ({"shares": (0.5, 1.0)}, "give shares between 0 and 1"),
        ({"group": 0.0}, "group = 0.0: give shares between 0 and 1"),
        ({"doses": (0.0, 0.0)}, "doses = .* each once"),
        ({"sink": -1}, "sink = -1: give whole numbers from 0"),
        ({"needles": 0}, "needles = 0: give whole numbers from 1"),
        ({"doses": (0.5,)}, "the first 0"),
        ({"depths": (0.5, 1.5)}, "depths = .* from 0, the beginning, to 1"),
        ({"real_depths": ()}, "real_depths = .* each once"),
        ({"length": 1024}, "its models are trained at"),
        ({"evaluated": 1}, "evaluated = 1: give whole numbers from 2"),
    ],
)
def test_what_cannot_be_run_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        study.Config.preset_named("smoke", **settings)
