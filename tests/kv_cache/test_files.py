"""Plans as files: a round trip, read by numpy and json alone, and what is no plan or another model's is refused."""

import json

import numpy as np
import pytest
import torch
from transformers import DynamicCache, Qwen2Config

import possym
from possym import InputError
from possym.kv_cache import CachePlan, applied, keep
from possym.kv_cache.files import (
    cache_configuration,
    load_duo_attention,
    load_gates,
    load_plan,
    save_duo_attention,
    save_plan,
)

from ..capture import families

PLAN = CachePlan([[None, 3], [3, 3]], sink=1)


def logits(model, plan, tokens):
    with torch.no_grad(), applied(model, plan):
        return model(tokens, use_cache=False).logits


def test_a_plan_goes_out_comes_back_and_does_the_same(tmp_path):
    model, tokens = families.build("llama"), families.tokens(12)
    plan = keep(possym.profile(model, tokens, progress=False), 0.5, sink=1, window=3)
    back = load_plan(save_plan(plan, tmp_path / "plan.json"))
    assert back == plan and back.settings["share"] == 0.5
    said = json.loads((tmp_path / "plan.json").read_text())
    assert said["windows"] == [list(row) for row in plan.windows] and said["model"]["class"] == "LlamaForCausalLM"
    duo = load_duo_attention(save_duo_attention(plan, tmp_path / "duo"), model=model)
    assert duo.windows == plan.windows and duo.model == plan.model
    expected = logits(model, plan, tokens)
    assert torch.equal(logits(model, back, tokens), expected) and torch.equal(logits(model, duo, tokens), expected)


def test_duo_attentions_files_are_read_by_numpy_and_json_alone(tmp_path):
    folder = save_duo_attention(PLAN, tmp_path)
    assert np.loadtxt(folder / "full_attention_heads.tsv", delimiter="\t").tolist() == [[1, 0], [0, 0]]
    assert json.loads((folder / "config.json").read_text()) == {"sink_size": 1, "recent_size": 3}
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "full_attention_heads.tsv"]


def test_trained_gates_become_a_plan_by_threshold_or_share(tmp_path):
    (tmp_path / "full_attention_heads.tsv").write_text("0.91\t0.02\n1.0\t0.48\n0.0\t0.3\n")
    (tmp_path / "config.json").write_text('{"sink_size": 64, "recent_size": 256, "seed": 42}')
    gates, sink, window = load_gates(tmp_path)
    assert gates.shape == (3, 2) and (sink, window) == (64, 256)
    assert load_duo_attention(tmp_path).windows == ((None, 256), (None, 256), (256, 256))
    assert load_duo_attention(tmp_path, share=1 / 3).windows == ((None, 256), (None, None), (256, None))
    assert load_duo_attention(tmp_path, threshold=0).share == 0 and load_duo_attention(tmp_path).sink == 64


def test_transformers_configuration_of_whole_layers_attends_and_caches_as_the_plan():
    plan = CachePlan([[None, None], [4, 4]], sink=0)
    said = cache_configuration(plan)
    model, tokens = families.build("qwen2"), families.tokens(14)
    windowed = families.build("qwen2", use_sliding_window=True, max_window_layers=0, **said)
    assert isinstance(windowed.config, Qwen2Config)
    with torch.no_grad():
        torch.testing.assert_close(windowed(tokens, use_cache=False).logits, logits(model, plan, tokens))
    assert [layer.is_sliding for layer in DynamicCache(config=windowed.config).layers] == [False, True]


def test_gates_become_a_plan_that_knows_the_models_own_windows(tmp_path):
    model = families.build("gemma3")
    own = keep(possym.profile(model, families.tokens(12), progress=False), 0.5, sink=1, window=3)
    found = load_duo_attention(save_duo_attention(own, tmp_path), model=model)
    assert found.limits == own.limits == (8, None) and found.fraction(20) == own.fraction(20) < 1


def others():
    return families.build("llama", seed=1)


def changed(path, **values):
    said = json.loads(path.read_text()) | values
    path.write_text(json.dumps(said))
    return load_plan(path)


def duo(folder, rows="1\t0\n0\t0\n", config='{"sink_size": 1, "recent_size": 3}', **options):
    (folder / "full_attention_heads.tsv").write_text(rows)
    (folder / "config.json").write_text(config)
    return load_duo_attention(folder, **options)


def plan_of(model):
    return keep(possym.profile(model, families.tokens(12), progress=False))


def apply(model, plan):
    with applied(model, plan):
        pass


REFUSED = [
    ("window 0", lambda folder: CachePlan([[0, 1]]), "windows hold 0: give tokens from 1, or None"),
    ("no layers", lambda folder: CachePlan([]), "windows: give for each layer a list"),
    ("layers that do not fit", lambda folder: CachePlan([[1]], layers=[0, 1]), "give 1 ascending numbers from 0"),
    ("limits that do not fit", lambda folder: CachePlan([[1]], limits=[0]), "limits = .0.: give 1 windows, or None"),
    ("another shape", lambda folder: apply(others(), CachePlan([[1, 1, 1]] * 2)), "plan has 2 layers of 3 key heads"),
    ("another model", lambda folder: apply(others(), plan_of(families.build("llama"))), r"\(weights differ: Llama"),
    ("another config", lambda folder: apply(families.build("llama linear"), plan_of(others())), r"\(config, weights"),
    ("layers of a wrong type", lambda folder: CachePlan([[1]], layers=0), "layers = 0: give 1 ascending numbers"),
    ("limits of a wrong type", lambda folder: CachePlan([[1]], limits=3), "limits = 3: give 1 windows, or None"),
    ("a rule of a wrong type", lambda folder: CachePlan([[1]], rule=None), "rule is of type NoneType"),
    ("settings of a wrong type", lambda folder: CachePlan([[1]], settings=[1]), "settings is of type list"),
    ("settings that are no JSON", lambda folder: CachePlan([[1]], settings={"a": {1}}), "settings are no JSON"),
    ("a length of 0", lambda folder: PLAN.fraction(0), "length = 0: give how many tokens were read, from 1"),
    ("no file", lambda folder: load_plan(folder / "none.json"), "give a JSON file"),
    ("another format", lambda folder: changed(save_plan(PLAN, folder / "p"), format=2), "reads plans of format 1"),
    ("window 0 in a file", lambda folder: changed(save_plan(PLAN, folder / "p"), windows=[[0]]), "windows hold 0"),
    ("gates beyond 1", lambda folder: duo(folder, "1\t7\n"), "numbers outside 0 to 1"),
    ("gates of another model", lambda folder: duo(folder, "1\n", model=others()), "the plan has 1 layers of 1 key"),
    ("words for gates", lambda folder: duo(folder, "full\n"), "give one row per layer, numbers set apart by tabs"),
    ("no gates", lambda folder: duo(folder, "\n"), "holds numbers outside 0 to 1"),
    (
        "recent size null",
        lambda folder: duo(folder, config='{"sink_size": 1, "recent_size": null}'),
        "_size = None; give",
    ),
    ("limits", lambda folder: cache_configuration(CachePlan([[4]], sink=0, limits=[8])), "windows of its own, which"),
    ("no window", lambda folder: duo(folder, config='{"sink_size": 1}'), "lacks 'recent_size'"),
    ("recent size 0", lambda folder: duo(folder, config='{"sink_size": 1, "recent_size": 0}'), "recent_size = 0; give"),
    ("a threshold of 2", lambda folder: duo(folder, threshold=2), "threshold = 2: give a number from 0 to 1"),
    ("two windows", lambda folder: save_duo_attention(CachePlan([[1, 2]]), folder), "this plan has 2 windows"),
    ("a sink", lambda folder: cache_configuration(PLAN), "this plan has sink 1, 1 windows and 1 layers whose heads"),
]


@pytest.mark.parametrize("attempt, message", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_no_plan_or_another_models_is_refused(attempt, message, tmp_path):
    with pytest.raises(InputError, match=message):
        attempt(tmp_path)


def test_a_plan_fits_its_model_in_another_dtype():
    model = families.build("llama")
    plan = plan_of(model)
    apply(model.to(torch.bfloat16), plan)
