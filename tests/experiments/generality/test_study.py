import dataclasses
import itertools

import pandas as pd
import pytest
import torch

from possym import ConfigError, InputError, results
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.experiments import generality as study
from possym.experiments import learning_dynamics
from possym.experiments import trained as ensembles
from possym.rope import rotate
from possym.tasks import NumberTask

from ..stores import interrupt, smoke_run

torch.set_num_threads(1)  # on models this small, threads mostly wait for each other

TINY = {
    "device": "cpu",
    "width": 16,
    "training_sequences": 64,
    "validation_sequences": 12,
    "test_sequences": 12,
    "scored_sequences": 4,
    "steps": 16,
    "batch": 4,
    "warmup": 2,
    "points": 3,
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """The smoke preset's result after fewer steps, stored and loaded again, and the trainings that made it."""
    made = {}

    def watched(name, config, *rest, **options):
        (setting,) = config.settings
        result = ensembles.train(name, config, *rest, **options)
        made[setting, name] = (config, result[0])
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "train", watched)
        for config, result in smoke_run(study, tmp_path_factory, steps=20):
            yield config, result, made


def test_each_setting_trains_what_it_says_on_the_tasks_it_is_about(smoke):
    config, _, made = smoke
    pairs = [(setting, task) for setting in study.SETTINGS[:-1] for task in ("number", "letter")] + [("mixed", "mixed")]
    assert list(made) == pairs
    changes = {
        "heads": {"heads": config.more_heads},
        "layers": {"layers": config.fewer_layers},
        "llama": {"architecture": "llama"},
        "every-place": {"supervise": "every"},
        "shares": {"hop_shares": config.skewed},
        "mixed": {"tasks": ("mixed",)},
    }
    for (setting, task), (given, model) in made.items():
        expected = {**dataclasses.asdict(config), "settings": (setting,), **changes[setting]}
        assert dataclasses.asdict(given) == expected
        assert isinstance(model, LlamaEnsemble if setting == "llama" else GPTJEnsemble)
        sizes = model.config
        assert sizes.layers == (config.fewer_layers if setting == "layers" else config.layers)
        assert sizes.heads == (config.more_heads if setting == "heads" else config.heads)
        assert sizes.vocabulary_size == {"number": 136, "letter": 128, "mixed": 256}[task]


def test_tables_hold_every_point_and_member_once(smoke):
    config, result, made = smoke
    tables = result.tables
    keys = {
        "accuracy": ["setting", "task", "seed", "step", "split", "hops"],
        "scores": ["setting", "task", "seed", "step", "layer", "head"],
        "heads": ["setting", "task", "seed", "layer", "head", "gamma"],
        "timing": ["setting", "task", "phase"],
    }
    heads = config.members * sum(model.config.layers * model.config.heads for _, model in made.values())
    rows = {
        "accuracy": len(made) * config.members * (config.points + 1) * (1 + len(config.hops)),
        "scores": heads * config.points,
        "heads": heads * 2,
        "timing": len(made) * 3,
    }
    assert set(tables) == set(keys)
    for name, table in tables.items():
        assert not table.duplicated(keys[name]).any() and len(table) == rows[name], name
        assert not table.isna().any(axis=None), name
    assert result.manifest["seeds"] == config.seeds()


def test_the_accuracy_is_that_of_the_trained_models_at_the_last_place(smoke):
    config, result, made = smoke
    for (setting, task), (given, model) in made.items():
        counts = config.validation_sequences, config.test_sequences
        _, test = ensembles.held_out(task, given, torch.device("cpu"), *counts)
        with torch.no_grad():
            logits = model(test.tokens)
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), test.answer.flatten(), reduction="none")
        measured = {
            "accuracy": (logits.argmax(-1) == test.answer).float().mean(1),
            "loss": losses.view_as(test.answer).mean(1),
        }
        table = result.tables["accuracy"].query("split == 'test' and hops == 0")
        table = table[(table["setting"] == setting) & (table["task"] == task)]
        for name, tolerance in {"accuracy": 1e-5, "loss": 2e-5}.items():
            stored = table.sort_values("seed")[name].tolist()
            assert stored == pytest.approx(measured[name].tolist(), abs=tolerance)


def test_pure_heads_are_those_of_the_scores(smoke):
    _, result, _ = smoke
    scores = result.tables["scores"]
    for setting, rows in scores.groupby("setting"):
        for gamma in learning_dynamics.GAMMAS:
            expected = learning_dynamics.pure_heads(rows, gamma)
            found = result.tables["heads"]
            found = found[(found["setting"] == setting) & (found["gamma"] == gamma)]
            key = ["task", "seed", "layer", "head"]
            pd.testing.assert_frame_equal(
                found.sort_values(key, ignore_index=True)[list(expected)],
                expected.sort_values(key, ignore_index=True),
                check_dtype=False,
            )


@pytest.mark.parametrize("model", [GPTJEnsemble, LlamaEnsemble])
def test_scores_follow_the_layout_of_the_model(model):
    sizes = (GPTJConfig if model is GPTJEnsemble else LlamaConfig)(136, layers=2, heads=2, width=16, init_std=0.4)
    ensemble, tokens = model(sizes, [0, 1]), NumberTask().sample(3).tokens
    found = learning_dynamics.score_heads(ensemble, tokens, 0.1)
    with torch.no_grad():
        queries, keys, _ = (each.double() for each in ensemble.trace(tokens))
    layout = {GPTJEnsemble: "interleaved", LlamaEnsemble: "half"}[model]
    turned = rotate(queries, 16, sizes.frequencies, layout) / sizes.head_width**0.5

    def attention(contents):
        return (rotate(contents, torch.arange(17), sizes.frequencies, layout) @ turned[..., None])[..., 0].softmax(-1)

    before, terms, gaps = attention(keys), [], []
    for i in range(16):
        for j in range(i + 1, 16):
            order = torch.arange(17)
            order[i], order[j] = j, i
            after = attention(keys[..., order, :])
            v, w = (torch.stack([x[..., i], x[..., j]], -1) for x in (before, after))
            terms.append(torch.nn.functional.cosine_similarity(v, w, -1))
            gaps.append((before[..., i] - before[..., j]).abs())
    positional = ((torch.stack(gaps, -1) / 0.1).softmax(-1) * torch.stack(terms, -1)).sum(-1).mean(2)
    torch.testing.assert_close(found["positional"].double(), positional, atol=1e-5, rtol=0)


def test_an_interrupted_study_ends_with_the_same_result(tmp_path, monkeypatch):
    config = study.Config.preset_named("smoke", settings=("every-place", "mixed"), **TINY)
    for name in ("RESULTS", "CACHE"):
        monkeypatch.setenv(f"POSSYM_{name}", str(tmp_path / f"whole-{name}"))
    whole = study.run(config)
    for name in ("RESULTS", "CACHE"):
        monkeypatch.setenv(f"POSSYM_{name}", str(tmp_path / f"stopped-{name}"))
    calls = itertools.count(1)
    interrupt(study, config, "score_heads", lambda *_: next(calls) == 5)  # in the second run
    resumed = study.run(config)
    for name in ("accuracy", "scores", "heads"):
        pd.testing.assert_frame_equal(whole.tables[name], resumed.tables[name], check_exact=True)


def test_the_baseline_is_the_other_studys_models_with_the_same_seeds(smoke):
    _, result, _ = smoke
    seeds = {"task": "number", "seed": range(4), "more": 1}
    head = {"layer": 0, "head": 0}
    scored = {name: 0.5 for name in ("positional", "symbolic", "positional_sd", "symbolic_sd", "entropy")}
    dynamics = {
        "accuracy": {"step": 0, "split": "test", "hops": 0, "accuracy": 0.5, "loss": 1.0, "count": 9},
        "scores": {"step": 0, **head, **scored},
        "heads": {**head, "gamma": 0.1, "kind": 1, "since": 0},
    }
    dynamics = {name: pd.DataFrame(seeds | columns) for name, columns in dynamics.items()}
    joined = study.with_baseline(result, results.Study(dynamics))
    for name, table in joined.items():
        ours = result.tables[name]
        assert list(table) == list(ours)
        assert (table["setting"][:2] == "paper").all() and table["seed"][:2].tolist() == [0, 1]
        pd.testing.assert_frame_equal(table[2:].reset_index(drop=True), ours, check_dtype=False)
    later = {name: table.assign(seed=table["seed"] + 10) for name, table in dynamics.items()}
    with pytest.raises(InputError, match="none of the seeds 0, 1"):
        study.with_baseline(result, results.Study(later))


def test_the_paper_preset_changes_one_thing_of_the_papers_setting_at_a_time():
    config = study.Config.preset_named("paper")
    papers = learning_dynamics.Config.preset_named("paper")
    for field in dataclasses.fields(ensembles.EnsembleConfig):
        if field.name not in ("preset", "members"):
            assert getattr(config, field.name) == getattr(papers, field.name), field.name
    assert config.members == 8 and config.seeds() == papers.seeds()[:8] and config.points >= 20
    assert config.temperature == papers.temperature
    assert config.of("heads").heads == 4 and config.of("layers").layers == 6
    assert config.of("shares").hop_shares == (0.1, 0.2, 0.3, 0.4) and config.of("mixed").tasks == ("mixed",)


def test_settings_that_cannot_be_trained_are_refused_before_anything_runs():
    for changes, named in [
        ({"more_heads": 3}, "heads"),
        ({"fewer_layers": 0}, "layers"),
        ({"skewed": (1.0,)}, "shares"),
    ]:
        with pytest.raises(ConfigError, match=named):
            study.Config.preset_named("smoke", **changes)


def test_unknown_settings_are_refused():
    with pytest.raises(InputError, match="setting = 'width': known settings are heads, layers"):
        study.Config.preset_named("smoke").of("width")
