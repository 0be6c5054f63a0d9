"""Prompts as users bring them: what is read, refused with its number, warned of; what a profile keeps and knows."""

import copy
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import possym
from possym.capture.model_state import Parts
from possym.errors import InputError, PossymError, ResultsError
from possym.kv_cache import keep
from possym.profiling import Profile, scoring, shards
from possym.profiling.identity import (
    MARKS,
    config_hash,
    prefixed_modules,
    state_besides_parameters,
    tokenizer_identity,
    weights_hash,
)
from possym.profiling.prompts import read_prompts
from possym.profiling.report import is_profiled
from possym.profiling.shards import Shards

from ..capture import families
from .test_profiling import CHAT, tokenizer

IDS = [[1, 3, 6, 7, 10, 11, 6, 7, 13], [1, 4, 6, 8, 10], [1, 5, 6, 9, 10, 4]]
TABLES = ("heads", "frequencies", "prompts", "inputs")


def profile(prompts, model=None, **options):
    return possym.profile(model or families.build("llama"), prompts, progress=False, **options)


def test_whatever_yields_prompts_is_read_as_a_list():
    texts = ["Alice likes red .", "Bob likes blue ."]
    words = tokenizer()
    expected = [prompt.ids for prompt in read_prompts(texts, words)]
    for given in (iter(texts), (t for t in texts), pd.Series(texts, index=[7, 3]), dict.fromkeys(texts).keys()):
        assert [prompt.ids for prompt in read_prompts(given, words)] == expected
    for given in (pd.Series(IDS), (row for row in IDS), [pd.Series(row) for row in IDS]):
        assert [prompt.ids for prompt in read_prompts(given, None)] == IDS
    alone = words(texts[0])
    assert [prompt.ids for prompt in read_prompts(alone, words)] == expected[:1]
    with pytest.raises(InputError, match="one of its columns"):
        read_prompts(pd.DataFrame({"text": texts}), words)


def test_a_chat_that_ends_with_the_assistant_goes_on_with_its_turn():
    words = tokenizer()
    asked = [{"role": "user", "content": "Who likes red ?"}]
    begun = [*asked, {"role": "assistant", "content": "Alice likes"}]
    (open_, prefilled) = read_prompts([asked, begun], words)
    assert words.decode(open_.ids) == "<s> user Who likes red ? assistant"
    assert words.decode(prefilled.ids) == "<s> user Who likes red ? <s> assistant Alice likes"


def test_a_bare_tensor_with_padding_is_refused_and_the_mask_is_the_way():
    words = tokenizer()
    texts = ["Alice likes red . Who likes red ?", "Bob likes blue ."]
    batch = words(texts, padding=True, return_tensors="pt")
    with pytest.raises(InputError, match="prompt 1 begins with 4 padding tokens .*attention_mask"):
        profile(batch["input_ids"], tokenizer=words)
    with pytest.raises(InputError, match="prompt 1 ends with 4 padding tokens"):  # the model's own id does as well
        profile([IDS[0], [*IDS[1], 0, 0, 0, 0]])
    pd.testing.assert_frame_equal(profile(batch).heads, profile([IDS[0], IDS[1]]).heads)
    shared = tokenizer()
    shared.pad_token = shared.eos_token
    with pytest.warns(UserWarning, match="prompt 1 ends with 2 padding tokens"):
        profile([[1, 4, 6, 8, 10], [1, 4, 6, 2, 2]], tokenizer=shared)


def test_two_beginnings_are_warned_of():
    words = tokenizer()
    with pytest.warns(UserWarning, match="prompt 0 begins with two beginning-of-text"):
        profile("<s> Alice likes red .", tokenizer=words)


def test_prompts_longer_than_the_model_are_warned_of_or_refused():
    with pytest.warns(UserWarning, match="prompt 1 has 70 tokens: the model is made for 64"):
        profile([families.tokens(9)[0], families.tokens(70)[0]])
    with pytest.raises(InputError, match="prompt 0 has 70 tokens: the model has 64 positions"):
        profile(families.tokens(70), families.build("gptj"))


REFUSED = {
    "no prompts": (dict(prompts=None), "one or more"),
    "two tokens": (dict(prompts=[[4, 5]]), "2 tokens: a swap needs"),
    "text without a tokenizer": (dict(prompts=["Alice likes red"], tokenizer=None), "give tokenizer"),
    "ids that are no whole numbers": (dict(prompts=[[1, 2, 3.5]]), "whole token ids"),
    "a batch of numbers": (dict(prompts=torch.rand(2, 5)), "whole token ids"),
    "query with one key": (dict(query=1), "two keys before it"),
    "queries for other prompts": (dict(query=[3, 4]), "one entry for each of the 3"),
    "temperature": (dict(temperature=0), "temperature = 0"),
    "gamma": (dict(gamma=0.5), "gamma = 0.5"),
    "blocks by name": (dict(blocks="words"), "'tokens', 'sentences'"),
    "sentences of ids": (dict(blocks="sentences"), "no text"),
    "one block": (dict(blocks=[(0, 2)]), "at least two blocks"),
    "blocks after the query": (dict(blocks=[(0, 2), (3, 5)]), "prompt 1, whose query is at 4"),
    "blocks for other prompts": (dict(blocks=[[(0, 2), (2, 4)]] * 2), "2 lists for 3 prompts"),
    "no blocks": (dict(blocks=5), "blocks = 5"),
    "answers for other prompts": (dict(answers=[5]), "one for each of the 3"),
    "answers without a tokenizer": (dict(answers=["red"] * 3, tokenizer=None), "a string and tokenizer"),
    "correct answers alone": (dict(only_correct=True), "needs answers"),
    "an id past the vocabulary": (dict(prompts=[*IDS, [1, 64, 3]]), r"prompt 3 holds token id 64.*from 0 to 63"),
    "a turn without content": (dict(prompts=[[{"role": "user"}]]), "prompt 0, turn 0.*'content'"),
    "a template that fails": (dict(prompts=[[{"role": "user", "content": "a"}]] * 2, template="{{ x() }}"), "prompt 0"),
    "bytes": (dict(prompts=b"Alice likes red"), r"bytes: give text.*decode"),
    "a set": (dict(prompts={9, 8, 70, 3}), "no order: give a list"),
    "query by name": (dict(query="last"), "'all'"),
    "no query": (dict(query=[[], 3, 4]), "prompt 0 is empty"),
    "queries with answers": (dict(query="all", answers=[1, 2, 3]), "one query for each prompt"),
    "hold by name": (dict(hold="last"), "'first'"),
    "hold past the end": (dict(hold=7), "prompt 1 has 5 tokens"),
    "hold no span": (dict(hold=[(3, 3)]), "within prompt 0"),
    "hold everything": (dict(hold=[(0, 4)]), "leaves prompt 1 fewer than two keys"),
    "layers that are not there": (dict(layers=[0, 2]), r"with attention, \[0, 1\]"),
    "no layers": (dict(layers=[]), "one or more"),
    "relative": (dict(relative=1), "relative = 1"),
    "checkpoint": (dict(checkpoint=3), "checkpoint is of type int"),
    "too few swaps": (dict(swaps=1), "swaps = 1: give a whole number from 2"),
    "swaps of blocks": (dict(swaps=9, blocks=[(0, 2), (2, 4)]), "leave blocks and per_frequency out"),
    "swaps of planes": (dict(swaps=9, per_frequency=True), "leave blocks and per_frequency out"),
    "swaps at another temperature": (dict(swaps=9, temperature=0.5), "temperature 1 alone, given 0.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_before_the_first_pass(name, monkeypatch):
    options, message = REFUSED[name]
    words = tokenizer(template=options.get("template", CHAT))
    options = {key: value for key, value in options.items() if key != "template"}
    options = dict(prompts=IDS, tokenizer=words) | options
    monkeypatch.setattr(scoring, "score_batch", None)  # a pass would end in a TypeError
    with pytest.raises(InputError, match=message):
        profile(options.pop("prompts"), **options)


def test_a_profile_knows_its_model_its_tokenizer_and_what_it_was_given(tmp_path):
    model, words = families.build("llama"), tokenizer()
    result = profile(IDS, model, tokenizer=words, blocks=[(0, 2), (2, 4)], hold=[0], query=[-1, -1, 4])
    settings = result.settings
    assert settings["weights"] == weights_hash(model) and settings["dtype"] == "float32"
    assert (settings["class"], settings["device"], settings["hold"]) == ("LlamaForCausalLM", "cpu", [0])
    assert settings["tokenizer"] == tokenizer_identity(words)["tokenizer"] is not None
    assert result.inputs.token_ids.tolist() == IDS
    assert result.inputs.spans.tolist() == [[[0, 2], [2, 4]]] * 3 and result.inputs.held.tolist() == [[0]] * 3
    again = Profile.load(result.save(tmp_path / "one"))
    assert again.settings == settings
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(again, name), getattr(result, name))
    other = tokenizer(template=CHAT + " ")
    assert tokenizer_identity(other)["tokenizer"] == settings["tokenizer"]
    assert tokenizer_identity(other)["template"] != settings["template"]
    with pytest.raises(InputError, match="different settings .*template"):
        Profile.concat([result, profile(IDS, model, tokenizer=other, blocks=[(0, 2), (2, 4)], hold=[0])])


def test_the_hash_of_weights_is_that_of_the_numbers_wherever_they_lie():
    model = families.build("llama")
    expected = weights_hash(model)
    twin = copy.deepcopy(model)
    assert weights_hash(twin) == weights_hash(torch.nn.DataParallel(twin)) == expected
    with torch.no_grad():
        twin.model.norm.weight[3] += 1e-3
    assert weights_hash(twin) != expected
    assert weights_hash(copy.deepcopy(model).bfloat16()) != expected
    with torch.inference_mode():
        born = families.build("llama")
    assert weights_hash(born) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory of a GPU")
def test_more_hashes_keep_no_more_memory_of_a_gpu():
    model = torch.nn.Linear(2**10, 2**14, device="cuda")
    first, before = weights_hash(model), torch.cuda.memory_reserved()
    assert {weights_hash(model) for _ in range(4)} == {first}
    assert torch.cuda.memory_reserved() == before


@pytest.mark.parametrize("mark", MARKS[1:])
def test_hashes_of_weights_that_were_made_before_still_tell_models_apart(tmp_path, mark):
    model, other = families.build("llama"), families.build("llama")
    with torch.no_grad():
        other.model.norm.weight[3] += 1e-3
    before = weights_hash(model, mark)
    assert len({weights_hash(model, mark)[2:] for mark in MARKS}) == len(MARKS)
    plan = keep(profile(IDS, model))
    plan = replace(plan, model=plan.model | {"weights": before})
    assert plan.check(model)
    with pytest.raises(InputError, match=r"another model \(weights differ"):
        plan.check(other)
    now, then = profile(IDS, model), profile(IDS, model)
    then.settings["weights"] = before
    assert is_profiled(model, then.settings) and not is_profiled(other, then.settings)
    with pytest.raises(InputError, match="saved by an early possym 0.2.*make it anew"):
        Profile.concat([now, then])
    Shards(tmp_path, {"weights": before})
    with pytest.raises(ResultsError, match="begun by an early possym 0.2.*give another folder"):
        Shards(tmp_path, {"weights": weights_hash(model)})


@pytest.mark.parametrize("hidden", [64, 576, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_hash_of_weights_sees_every_head(hidden, dtype):
    width, layer = 16, torch.nn.Linear(hidden, 64, bias=False, dtype=dtype)
    heads = {weights_hash(layer)}
    for start in (0, hidden // 2, hidden - width):
        for change in ("zero", "negate", "double"):
            twin = copy.deepcopy(layer)
            with torch.no_grad():
                part = twin.weight[:, start : start + width]
                part.mul_(dict(zero=0, negate=-1, double=2)[change])
            heads.add(weights_hash(twin))
    for rows in ((0, 16), (17, 18)):
        twin = copy.deepcopy(layer)
        with torch.no_grad():
            twin.weight[slice(*rows)] *= 2
        heads.add(weights_hash(twin))
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight[[1, 2]] = twin.weight[[2, 1]]
    heads.add(weights_hash(twin))
    assert len(heads) == 13
    shifted = torch.cat([torch.zeros(1, dtype=dtype), layer.weight.detach().flatten()])[1:].view_as(layer.weight)
    twin.weight.data = shifted  # elsewhere in memory
    assert weights_hash(twin) == weights_hash(layer)


class Packed(torch.nn.Module):
    """A module whose weights are no parameters, as quantised ones keep them."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "packed"] = (self.codes, None)


def test_the_hash_of_weights_sees_buffers_and_packed_weights():
    model = families.build("llama")
    expected = weights_hash(model)
    model.model.rotary_emb.inv_freq.mul_(0.5)
    assert weights_hash(model) != expected
    packed, hashes = Packed(), set()
    for packed.codes in (torch.tensor([[1, 2]]), torch.tensor([[1, 3]])):
        hashes.add(weights_hash(packed))
    assert len(hashes) == 2


class Extra(torch.nn.Linear):
    """A module whose state holds more than tensors of its own."""

    def get_extra_state(self):
        return torch.ones(2)


def shared_parts():
    norm = torch.nn.BatchNorm1d(3)
    norm.register_buffer("away", torch.ones(2), persistent=False)
    return torch.nn.Sequential(norm, torch.nn.Linear(3, 3, bias=False), torch.nn.Sequential(norm))


def hooked():
    model = shared_parts()
    model[1].register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update({prefix + "more": torch.ones(1)})
    )
    return model


@pytest.mark.parametrize("make", [shared_parts, hooked, lambda: Extra(2, 2), lambda: families.build("gemma2")])
def test_the_state_of_a_model_is_what_the_model_says(make):
    model = make()
    ours, theirs = state_besides_parameters(model, prefixed_modules(model), Parts(model)), model.state_dict()
    assert ours.keys() == theirs.keys() - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_config_that_changes_in_place_has_another_hash():
    config = families.build("gemma2").config
    hashes = [config_hash(config)]
    config._name_or_path, config.use_cache = "elsewhere", False
    assert config_hash(config) == hashes[0]
    for change in (
        lambda: config.rope_parameters.update(rope_theta=5.0),
        lambda: config.layer_types.reverse(),
        lambda: setattr(config, "sliding_window", 3),
        lambda: setattr(config, "own", SimpleNamespace(part=1)),
        lambda: setattr(config.own, "part", 2),
    ):
        change()
        hashes += [config_hash(config)]
        assert config_hash(copy.deepcopy(config)) == hashes[-1]
    assert len(set(hashes)) == 6


class Packing(torch.nn.Linear):
    """A layer that packs its weights in its first pass and spoils them when asked for its state, as bitsandbytes'."""

    def forward(self, x):
        if not hasattr(self.weight, "quant_state"):
            self.weight.quant_state = SimpleNamespace(packing_format_for_cpu=True, absmax=torch.ones(3))
        return super().forward(x)

    def _save_to_state_dict(self, *given):
        if hasattr(self.weight, "quant_state"):
            self.weight.data.mul_(2)
        super()._save_to_state_dict(*given)


def test_weights_that_are_packed_are_left_as_they_are():
    model = families.build("llama")
    old = model.model.layers[0].mlp.up_proj
    new = Packing(old.in_features, old.out_features, bias=False)
    new.weight.data = old.weight.data.clone()
    model.model.layers[0].mlp.up_proj = new
    hashes = [profile(IDS, model).settings["weights"] for _ in range(2)]
    assert torch.equal(new.weight, old.weight) and len(set(hashes)) == 1
    new.weight.data[0, 0] += 1
    hashes.append(weights_hash(model))
    new.weight.quant_state.absmax[1] = 2
    hashes.append(weights_hash(model))
    model.model.rotary_emb.register_buffer("own", torch.ones(2))
    hashes.append(weights_hash(model))
    assert len(set(hashes)) == 4


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox", "qwen3_next", "cohere2"])
def test_a_model_that_was_saved_is_the_same_model(family, tmp_path):
    model = families.build(family)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, attn_implementation="eager")
    again.config.use_cache, again.config.pad_token_id = False, 0
    assert config_hash(again.config) == config_hash(model.config) and weights_hash(again) == weights_hash(model)


def test_frequencies_that_follow_the_length_do_not_make_another_model():
    model = families.build(
        "llama", rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=1e4), max_position_embeddings=16
    )
    expected = weights_hash(model)
    model(families.tokens(40))
    assert weights_hash(model) == expected


def test_models_of_equal_weights_and_another_rotation_are_told_apart(tmp_path):
    model = families.build("llama")
    other = families.build("llama", rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e4))
    other.load_state_dict(model.state_dict())
    profile(IDS, model, checkpoint=tmp_path)
    with pytest.raises(ResultsError, match="begun with other config"):
        profile(IDS, other, checkpoint=tmp_path)


def test_a_profile_of_possym_0_1_is_read(tmp_path):
    result = profile(IDS, per_frequency=True)
    path = result.save(tmp_path / "old")
    old = ["prompt", "layer", "head", "positional", "symbolic", "entropy", "purity", "variance", "bound", "moved"]
    result.heads[old].to_parquet(path / "heads.parquet")
    result.frequencies.drop(columns="query").to_parquet(path / "frequencies.parquet")
    result.prompts.rename(columns={"query": "query_place"}).to_parquet(path / "prompts.parquet")
    (path / "inputs.parquet").unlink()
    kept = "model temperature blocks gamma per_frequency only_correct possym".split()
    text = scoring.pd.Series({key: result.settings[key] for key in kept}).to_json()
    (path / "profile.json").write_text(f'{{"format": 1, "settings": {text}}}')
    found = Profile.load(path)
    pd.testing.assert_frame_equal(found.heads[result.heads.columns][old], result.heads[old])
    assert found.heads["query"].tolist() == result.heads["query"].tolist()
    assert found.heads.attention_moved.isna().all() and found.inputs.empty
    assert repr(found) and len(found.summary()) == 8
    assert found.plane().to_dict() and found.heatmap().to_dict() and found.frequency_profile(0, 0).to_dict()
    with pytest.raises(InputError, match="possym 0.1"):
        Profile.concat([found, result])


class Stop(BaseException):
    """Something that stops a run from outside, as Ctrl-C does."""


def stop_after(count, monkeypatch):
    """Make the scoring of batches stop after some."""
    score, calls = scoring.score_batch, []

    def counted(*given):
        if len(calls) == count:
            raise Stop
        calls.append(given[1])
        return score(*given)

    monkeypatch.setattr(scoring, "score_batch", counted)
    return calls


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_an_interrupted_run_goes_on_and_ends_with_the_same_profile(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(shards, "SECONDS", seconds)
    monkeypatch.setattr(scoring, "TOKENS_AT_ONCE", 12)
    prompts = [*IDS, families.tokens(9, seed=4)[0].tolist(), families.tokens(5, seed=3)[0].tolist()]
    options = dict(blocks=[(0, 2), (2, 4)], per_frequency=True, query=[[5, -1], 4, 5, -1, 4])
    whole = profile(prompts, **options)
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(Stop) as caught:
            profile(prompts, checkpoint=folder, **options)
    assert caught.value.__notes__ == [f"3 of 5 prompts were scored before this; {folder} keeps them"]
    with monkeypatch.context() as patch:
        made = stop_after(99, patch)
        resumed = profile(prompts, checkpoint=folder, **options)
    assert 0 < len(made) < 5
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(resumed, name), getattr(whole, name))
    assert resumed.settings == whole.settings
    with monkeypatch.context() as patch:
        stop_after(0, patch)  # nothing is left to do
        pd.testing.assert_frame_equal(profile(prompts, checkpoint=folder, **options).heads, whole.heads)


@pytest.mark.parametrize("count, query", [(1, -1), (1, [5, 7]), (3, -1)])
def test_progress_goes_over_layers_within_a_prompt_that_takes_long(count, query, monkeypatch, capsys):
    monkeypatch.setattr(scoring, "PATIENCE", 0.0)
    monkeypatch.setattr("possym.capture.capture.TOGETHER", 0)  # as layers with large keys come
    told = []
    monkeypatch.setattr(scoring.tqdm, "update", lambda bar, n: told.append((bar.disable or bar.unit, n)))
    prompts = [families.tokens(9, seed=k)[0].tolist() for k in range(count)]
    possym.profile(families.build("llama", num_hidden_layers=4), prompts, query=query)
    assert told == ([("layer", 1)] * 4 if count == 1 else [("prompt", 3)])
    assert ("layer/s" if count == 1 else "layer 3 scored") in capsys.readouterr().err
    told.clear()
    possym.profile(families.build("llama"), prompts, query=query, progress=False, layers=[1])
    assert capsys.readouterr().err == "" and [name for name, _ in told] == [True]


def test_a_folder_of_another_run_is_refused(tmp_path):
    folder = tmp_path / "run"
    profile(IDS, checkpoint=folder)
    with pytest.raises(ResultsError, match="begun with other prompts"):
        profile(IDS[:2], checkpoint=folder)
    with pytest.raises(ResultsError, match="begun with other temperature"):
        profile(IDS, checkpoint=folder, temperature=0.3)
    with pytest.raises(ResultsError, match="begun with other weights"):
        profile(IDS, families.build("llama", seed=1), checkpoint=folder)
    (other := tmp_path / "thesis").mkdir()
    (other / "chapter.txt").write_text("years of work")
    with pytest.raises(ResultsError, match="no profile in the making"):
        profile(IDS, checkpoint=other)
    heads = next(path for path in folder.iterdir() if path.is_dir()) / "heads.parquet"
    table = scoring.pd.read_parquet(heads)
    table.assign(positional=0.5).to_parquet(heads)
    with pytest.raises(ResultsError, match="heads.parquet was changed.*delete it"):
        profile(IDS, checkpoint=folder)
    (heads.parent / "sha256.json").unlink()  # a part of an early possym
    assert (profile(IDS, checkpoint=folder).heads.positional == 0.5).all()
    heads.write_bytes(b"cut")
    with pytest.raises(ResultsError, match="delete it"):
        profile(IDS, checkpoint=folder)


def test_a_run_without_a_folder_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr(scoring, "TOKENS_AT_ONCE", 1)
    stop_after(1, monkeypatch)
    with pytest.raises(Stop) as caught:
        profile(IDS)
    assert caught.value.__notes__ == ["1 of 3 prompts were scored before this; give checkpoint='folder' to keep them"]


def test_a_full_disk_leaves_the_profile_that_was_there(tmp_path, monkeypatch):
    result = profile(IDS)
    path = result.save(tmp_path / "one")
    other = profile(IDS[:1])

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pd.DataFrame, "to_parquet", full)
        with pytest.raises(PossymError, match="No space left on device.*make room"):
            other.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["one"]
    pd.testing.assert_frame_equal(Profile.load(path).heads, result.heads)


def test_nothing_is_warned_of_where_nothing_is_wrong():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile(IDS, tokenizer=tokenizer())
        profile(np.array([row[:5] for row in IDS]), tokenizer=tokenizer())
        words = tokenizer()
        words.pad_token = words.bos_token  # every text begins with it once, which is no padding
        profile([row[:5] for row in IDS], tokenizer=words)
