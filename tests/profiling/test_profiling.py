"""Profiles against really swapping hidden states in the model, and everything a user may hand in or do with one."""

import gc
import itertools
import json
import math
import subprocess
import sys
import types
import weakref
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedTokenizerFast

import possym
from possym.capture import Capture
from possym.errors import InputError, ResultsError, UnsupportedModelError
from possym.profiling import Profile
from possym.profiling.identity import model_identity
from possym.profiling.prompts import sentence_spans
from possym.rope import frequencies
from possym.scores import exclusion, relocated_logits, swap_scores

from ..capture import families
from ..capture.test_capture import listen
from ..permutation import swapped_order

LENGTH = 9
ERRORS = ["positional_error", "symbolic_error"]
WORDS = "<pad> <s> </s> Alice Bob Carol likes red blue green . Who Which ? user assistant the a".split()
CHAT = (
    "{% for m in messages %}<s> {{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def tokenizer(bos=True, template=CHAT):
    """A word tokenizer that begins texts with <s>, as Llama's does."""
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos:
        core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left",
        chat_template=template,
    )  # fmt: skip


def profile(model, prompts, **options):
    return possym.profile(model, prompts, progress=False, **options)


def swap_for_real(module, kwargs, weights, blocks, temperature):
    """Scores of every head of a layer by swapping hidden states and letting the module attend again."""
    place = LENGTH - 1
    before = weights[0, :, place, :place]
    mean = [before[:, a:b].mean(1) for a, b in blocks]
    same, crossed, gaps = [], [], []
    for i, j in itertools.combinations(range(len(blocks)), 2):
        (a, b), (c, d) = blocks[i], blocks[j]
        order = [*swapped_order(list(range(place)), blocks[i], blocks[j]), place]
        with torch.no_grad():
            after = module.forward(**kwargs | dict(hidden_states=kwargs["hidden_states"][:, order]))[1]
        after = after[0, :, place, :place]
        old = torch.stack([mean[i], mean[j]])
        new = torch.stack([after[:, a : a + d - c].mean(1), after[:, d - (b - a) : d].mean(1)])
        same.append(torch.cosine_similarity(old, new, dim=0, eps=0))
        crossed.append(torch.cosine_similarity(old.flip(0), new, dim=0, eps=0))
        gaps.append((mean[i] - mean[j]).abs())
    alpha = (torch.stack(gaps) / temperature).softmax(0)
    return (alpha * torch.stack(same)).sum(0), (alpha * torch.stack(crossed)).sum(0)


@pytest.mark.parametrize(
    "family, blocks",
    [
        *(
            (name, "tokens")
            for name in ("llama yarn", "qwen3", "gpt_neox", "gemma2", "gpt_oss", "cohere", "gptj", "falcon")
        ),
        *itertools.product(["llama yarn", "gpt_oss"], [[(0, 2), (2, 4), (4, 8)], [(1, 2), (4, 7)]]),
    ],
)
def test_scores_are_those_of_swapping_hidden_states_in_the_model(family, blocks):
    model = families.build(family, sliding_window=64) if family in ("gemma2", "gpt_oss") else families.build(family)
    tokens = families.tokens(LENGTH)
    table = profile(model, tokens, blocks=blocks, temperature=0.1, relative=False).heads
    spans = [(t, t + 1) for t in range(LENGTH - 1)] if blocks == "tokens" else blocks
    for module, (kwargs, weights) in listen(model, tokens).items():
        positional, symbolic = swap_for_real(module, kwargs, weights, spans, 0.1)
        rows = table[table.layer == module.layer_idx]
        np.testing.assert_allclose(rows.positional, positional, atol=2e-5)
        np.testing.assert_allclose(rows.symbolic, symbolic, atol=2e-5)
        row = weights[0, :, LENGTH - 1]
        sink = (1 - row.sum(-1, keepdim=True)).clamp(min=0)
        everything = torch.cat([row, sink], -1) if family == "gpt_oss" else row
        np.testing.assert_allclose(rows.entropy, torch.special.entr(everything).sum(-1), atol=1e-4)


@pytest.mark.parametrize("relative", [False, True])
def test_frequencies_are_heads_of_two_dimensions(relative):
    model = families.build("llama")
    tokens = families.tokens(LENGTH)
    result = profile(model, tokens, per_frequency=True, temperature=0.1, relative=relative)
    layers = []
    Capture(model).run(tokens, layers.append)
    for inputs in layers:
        for head, plane in itertools.product(range(4), range(4)):
            pair = [plane, plane + 4]
            query = torch.stack([inputs.query[0, head, d] for d in pair])
            angle = frequencies(8)[plane]
            place = inputs.query_position
            turn = lambda v, p: torch.stack(  # noqa: E731
                [v[0] * math.cos(p) - v[1] * math.sin(p), v[0] * math.sin(p) + v[1] * math.cos(p)]
            )
            content = turn(query, -place * angle)
            keys = inputs.keys[0, head // 2, :, pair]
            where = dict(query_position=place, frequencies=angle[None], layout="half", scale=inputs.scale)
            moved = relocated_logits(content, keys[:place], positions=torch.arange(place), **where)
            own = relocated_logits(content, keys[place:], positions=torch.tensor([place]), **where)[0]
            expected = swap_scores(moved, extra_logits=own, temperature=0.1, relative=relative)
            row = result.head_frequencies(inputs.layer, head).set_index("frequency_id").loc[plane + 1]
            assert row.angle == pytest.approx(angle.item(), rel=1e-6)
            assert row.logit_norm == pytest.approx(moved.diagonal().norm().item(), rel=1e-4)
            got = (row.positional, row.symbolic, row.entropy)
            assert got == pytest.approx([x.item() for x in expected], abs=1e-4)
            bound = exclusion(inputs.relocated_logits(slice(head, head + 1))[0, 0])
            line = result.heads[(result.heads.layer == inputs.layer) & (result.heads["head"] == head)].iloc[0]
            assert (line.variance, line.bound) == pytest.approx((bound.variance.item(), bound.bound.item()), rel=1e-4)


def test_every_form_of_a_prompt_gives_the_same_scores():
    model, words = families.build("llama"), tokenizer()
    texts = ["Alice likes red . Who likes red ?", "Bob likes blue ."]
    ids = [[1, 3, 6, 7, 10, 11, 6, 7, 13], [1, 4, 6, 8, 10]]
    assert words(texts)["input_ids"] == ids
    expected = profile(model, ids).heads
    padded = words(texts, padding=True, return_tensors="pt")
    assert padded["input_ids"][1, 0] == 0
    tensors, arrays = [torch.tensor(row) for row in ids], words(texts, padding=True, return_tensors="np")
    rows = [row.numpy() for row in tensors]
    for prompts in (texts, tuple(texts), np.array(texts), tensors, rows, padded, arrays, words(texts)):
        pd.testing.assert_frame_equal(profile(model, prompts, tokenizer=words).heads, expected)
    alone = expected[expected.prompt == 0]
    one = torch.tensor(ids[0])
    for prompts in (texts[0], ids[0], one, one[None], one.numpy(), one[None].numpy()):
        pd.testing.assert_frame_equal(profile(model, prompts, tokenizer=words).heads, alone)


def test_a_chat_gets_its_special_tokens_once():
    model, words = families.build("llama"), tokenizer()
    chat = [{"role": "user", "content": "Who likes red ?"}]
    ids = [1, 14, 11, 6, 7, 13, 15]
    result = profile(model, chat, tokenizer=words)
    assert result.prompts.tokens.tolist() == [len(ids)]
    pd.testing.assert_frame_equal(result.heads, profile(model, ids).heads)
    pd.testing.assert_frame_equal(profile(model, [chat], tokenizer=words).heads, result.heads)


def test_prompts_of_mixed_lengths_and_queries_equal_each_alone():
    model = families.build("mistral")
    prompts = [families.tokens(n, seed=s)[0] for n, s in ((9, 0), (12, 1), (9, 2), (9, 3))]
    places = [-1, 7, 5, -1]
    together = profile(model, prompts, query=places, per_frequency=True)
    assert together.prompts["query"].tolist() == [8, 7, 5, 8]
    for number, (prompt, place) in enumerate(zip(prompts, places, strict=True)):
        alone = profile(model, prompt, query=place, per_frequency=True)
        for name in ("heads", "frequencies"):
            table = getattr(together, name)
            rows = table[table.prompt == number].drop(columns="prompt").reset_index(drop=True)
            pd.testing.assert_frame_equal(rows, getattr(alone, name).drop(columns="prompt"), atol=1e-5)


def test_a_query_in_the_middle_sees_what_comes_before_alone():
    model = families.build("llama")
    tokens = families.tokens(12)
    cut = profile(model, tokens[:, :8]).heads
    pd.testing.assert_frame_equal(profile(model, tokens, query=7).heads, cut, atol=1e-5)
    assert (cut.moved == 7).all()


def test_keys_outside_a_window_take_no_part():
    model = families.build("mistral")
    tokens = families.tokens(20)
    table = profile(model, tokens).heads
    assert (table.moved == 7).all() and table.positional.notna().all()
    changed = tokens.clone()
    changed[:, 0] = 9
    first = table.layer == 0
    pd.testing.assert_frame_equal(profile(model, changed).heads[first], table[first], atol=1e-6)
    spans = [(0, 4), (10, 13), (13, 15), (15, 17), (17, 19)]
    blocks = profile(model, tokens, blocks=spans).heads
    pd.testing.assert_frame_equal(blocks, profile(model, tokens, blocks=spans[2:]).heads, atol=1e-6)
    lost = profile(model, tokens, blocks=[(0, 4), (4, 8), (13, 15)]).heads
    assert lost[["positional", "symbolic", "entropy"]].isna().all(axis=None) and (lost.purity == 0).all()


def test_blocks_can_differ_by_prompt():
    model = families.build("llama")
    tokens = families.tokens(9, batch=2)
    lists = [[(0, 4), (4, 8)], [(0, 2), (2, 8)]]
    table = profile(model, tokens, blocks=lists)
    assert table.prompts.blocks.tolist() == [2, 2]
    for number, spans in enumerate(lists):
        alone = profile(model, tokens[number], blocks=spans).heads
        rows = table.heads[table.heads.prompt == number].assign(prompt=0).reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, alone, atol=1e-6)


def test_sentences_become_blocks():
    model, words = families.build("llama"), tokenizer()
    text = "Alice likes red . Bob likes blue .\nCarol likes green . Who likes red ? Bob"
    sentences = [(1, 5), (5, 9), (9, 13), (13, 17)]
    expected = profile(model, words(text)["input_ids"], blocks=sentences)
    result = profile(model, text, tokenizer=words, blocks="sentences")
    pd.testing.assert_frame_equal(result.heads, expected.heads)
    assert result.prompts.blocks.tolist() == [4]


def test_a_token_that_begins_with_a_space_belongs_to_its_word():
    text = "A b. C d."
    offsets = [(0, 0), (0, 1), (1, 3), (3, 4), (4, 6), (6, 8), (8, 9)]
    assert sentence_spans(text, offsets) == [(1, 4), (4, 7)]


def test_answers_are_checked_and_wrong_prompts_left_out():
    model, words = families.build("llama"), tokenizer()
    prompts = families.tokens(9, batch=4)
    with torch.no_grad():
        told = model(prompts).logits[:, -1].argmax(-1).tolist()
    told[2] = (told[2] + 1) % 64
    result = profile(model, prompts, answers=told)
    assert result.prompts.correct.tolist() == [True, True, False, True]
    assert "3 answered correctly" in repr(result)
    kept = profile(model, prompts, answers=told, only_correct=True)
    assert kept.prompts.prompt.tolist() == sorted(kept.heads.prompt.unique()) == [0, 1, 3]
    with pytest.raises(InputError, match="none of the prompts"):
        profile(model, prompts[:1], answers=[(told[0] + 1) % 64], only_correct=True)
    text = profile(model, "Alice likes red", tokenizer=words, answers=["red blue"])
    assert text.prompts.correct.tolist() == [text.prompts.predicted[0] == 7]


def test_summary_is_mean_and_spread_over_prompts():
    result = profile(families.build("llama"), families.tokens(9, batch=5))
    table = result.summary()
    cube = result.heads.positional.to_numpy().reshape(5, 2, 4)
    np.testing.assert_allclose(table.positional, cube.mean(0).ravel())
    np.testing.assert_allclose(table.positional_sd, cube.std(0, ddof=1).ravel())
    assert list(zip(table.layer, table["head"], strict=True)) == list(itertools.product(range(2), range(4)))
    assert result.correlation() == pytest.approx(np.corrcoef(table.positional, table.symbolic)[0, 1])


def test_purity_follows_the_means():
    result = profile(families.build("cohere2"), families.tokens(9), temperature=1e-4, relative=False, gamma=0.2)
    table = result.heads
    assert (table.purity == -1).equals((table.symbolic >= 0.8) & (table.positional <= 0.2))
    assert (result.summary().purity == table.purity).all()


def test_save_and_load_return_the_same_profile(tmp_path):
    result = profile(families.build("qwen3_next"), families.tokens(9, batch=2), per_frequency=True, answers=[5, 6])
    folder = result.save(tmp_path / "deep" / "one")
    again = Profile.load(folder)
    for name in ("heads", "frequencies", "prompts", "coverage"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(result, name))
    assert again.settings == result.settings and repr(again) == repr(result)
    plain = profile(families.build("llama"), families.tokens(9))
    plain.save(folder)
    pd.testing.assert_frame_equal(Profile.load(folder).heads, plain.heads)
    assert [p.name for p in folder.parent.iterdir()] == ["one"]
    assert not (folder / "before").exists()


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = profile(families.build("llama"), families.tokens(9), checkpoint="~/run")
    assert result.save("~/one") == tmp_path / "one" and (tmp_path / "run" / "run.json").exists()
    assert Profile.load("~/one").settings == result.settings and not (tmp_path / "~").exists()


def test_what_is_no_whole_profile_is_refused(tmp_path):
    result = profile(families.build("llama"), families.tokens(9))
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not a saved profile"):
        result.save(other)
    assert (other / "thesis.txt").read_text() == "years of work"
    for folder in (tmp_path / "none", other):
        with pytest.raises(ResultsError, match="no whole profile"):
            Profile.load(folder)
    folder = result.save(tmp_path / "one")
    (folder / "heads.parquet").write_bytes(b"broken")
    with pytest.raises(ResultsError, match="no whole profile"):
        Profile.load(folder)
    result.save(folder)
    pd.read_parquet(folder / "heads.parquet").iloc[:5].to_parquet(folder / "heads.parquet")
    with pytest.raises(ResultsError, match="no whole profile .*heads.parquet was changed"):
        Profile.load(folder)
    result.save(folder)
    manifest = json.loads((folder / "profile.json").read_text())
    assert manifest.pop("sha256").keys() == {path.name for path in folder.glob("*.parquet")}
    (folder / "profile.json").write_text(json.dumps(manifest))  # as an early possym saved it
    pd.testing.assert_frame_equal(Profile.load(folder).heads, result.heads)
    (folder / "profile.json").write_text(json.dumps({"format": 3}))
    with pytest.raises(ResultsError, match="format 3"):
        Profile.load(folder)


def test_concatenation_equals_profiling_together():
    model = families.build("llama")
    prompts = families.tokens(9, batch=3)
    parts = [profile(model, prompts[:2]), profile(model, prompts[2:])]
    joined, together = Profile.concat(parts), profile(model, prompts)
    for name in ("heads", "frequencies", "prompts", "coverage"):
        pd.testing.assert_frame_equal(getattr(joined, name), getattr(together, name), atol=1e-5)
    with pytest.raises(InputError, match="different settings \\(temperature"):
        Profile.concat([parts[0], profile(model, prompts, temperature=0.2)])
    with pytest.raises(InputError, match="one or more"):
        Profile.concat([])
    pd.testing.assert_frame_equal(Profile.concat(parts[0]).heads, parts[0].heads)


@pytest.mark.parametrize(
    "change, what",
    [
        (dict(num_attention_heads=8, num_key_value_heads=2, head_dim=4), "weights"),
        (dict(rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e4)), "config"),
        (dict(seed=1), "weights"),
        (dict(dtype=torch.bfloat16), "dtype"),
    ],
    ids=str,
)
def test_profiles_of_models_of_one_name_are_not_joined(change, what):
    dtype, seed = change.pop("dtype", torch.float32), change.pop("seed", 0)
    torch.manual_seed(0)
    ours = families.build("llama")
    torch.manual_seed(seed)
    theirs = families.build("llama", **change).to(dtype)
    if what == "weights" and not change:  # one number of one matrix is enough
        theirs.load_state_dict(ours.state_dict())
        with torch.no_grad():
            theirs.model.layers[1].mlp.down_proj.weight.view(-1)[7] += 1e-3
    prompts = families.tokens(9)
    first, second = profile(ours, prompts), profile(theirs, prompts)
    assert first.settings["model"] == second.settings["model"]
    with pytest.raises(InputError, match=f"different models \\(.*{what}.* differ"):
        Profile.concat([first, second])


def test_repr_says_what_came_out():
    result = profile(families.build("cohere2"), [families.tokens(9)[0], families.tokens(12)[0]])
    text = repr(result)
    assert "2 prompts of 9 to 12 tokens" in text
    assert "8 heads in 2 layers, 1 of 2 layers rotate" in text
    counts = result.summary().purity.value_counts()
    assert f"purely symbolic {counts.get(-1, 0)}" in text
    assert f"r = {result.correlation():.2f}" in text


def test_chats_need_a_template_and_answers_a_head():
    words = tokenizer(template=None)
    with pytest.raises(InputError, match="no chat template"):
        profile(families.build("llama"), [{"role": "user", "content": "a"}], tokenizer=words)
    with pytest.raises(InputError, match="no language head"):
        profile(families.build("llama").model, families.tokens(9), answers=[3])
    with pytest.raises(UnsupportedModelError, match="transformers model"):
        profile(None, families.tokens(9))


def test_a_model_that_overflows_is_named_with_its_layer():
    model = families.build("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[9] = torch.inf
    with pytest.raises(InputError, match="layer 0: queries or keys are not finite"):
        profile(model, [[4, 9, 5, 6]])


def test_the_library_imports_without_torch_until_it_is_needed():
    code = "import sys, possym; assert 'torch' not in sys.modules; possym.profile; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert possym.profile is sys.modules["possym.profiling"].profile
    with pytest.raises(AttributeError, match="profyle"):
        possym.profyle  # noqa: B018


class Operations(TorchDispatchMode):
    """What PyTorch is asked to compute, views left out: on a GPU about what is launched."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names[str(function)] += not function.is_view
        return function(*args, **(kwargs or {}))


class Answers(TorchFunctionMode):
    """How often Python waits for a number that a device has computed."""

    WAITING = ("cpu", "numpy", "tolist", "item", "nonzero", "__bool__", "__int__", "__float__", "__index__")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in self.WAITING
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox"])
def test_a_layer_costs_one_operation_and_no_waiting_for_it(family):
    operations, answers = [], []
    for layers in (3, 6, 9):
        model = families.build(family, num_hidden_layers=layers, layer_types=None)
        tokens = families.tokens(12)
        profile(model, tokens)  # the model is asked how it rotates, once
        with Operations() as profiled, Answers() as asked:
            profile(model, tokens)
        with torch.no_grad(), Operations() as plain, Answers() as asked_alone:
            model(tokens, use_cache=False, logits_to_keep=1)
            model_identity(model)  # every weight is read, once a profile and not once a prompt
        operations.append(profiled.names.total() - plain.names.total())
        answers.append(asked.count - asked_alone.count)
    assert operations[2] - operations[1] <= 3, operations
    assert operations[2] < 550 and answers[2] == answers[1] < 30, (operations, answers)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_drawn_swaps_estimate_the_scores_of_all(family, tmp_path):
    model, tokens = families.build(family), families.tokens(40, batch=2)
    exact, few, more = (profile(model, tokens, swaps=n, query=[5, 39], hold="first") for n in (None, 500, 8_000))
    assert [*few.heads.drop(columns=ERRORS)] == [*exact.heads] and "swaps" not in exact.settings
    for score, error in zip(("positional", "symbolic"), ERRORS, strict=True):
        away = (few.heads[score] - exact.heads[score]).abs() / few.heads[error].clip(lower=1e-6)
        assert (away < 5).all() and away.max() > 0.5
        assert (more.heads[error] / few.heads[error].clip(lower=1e-9)).median() == pytest.approx(0.25, rel=0.1)
    for name in ("entropy", "variance", "attention_moved", "distance", "moved"):
        np.testing.assert_allclose(few.heads[name], exact.heads[name], rtol=1e-5)
    np.testing.assert_allclose(more.heads.effective_swaps, exact.heads.effective_swaps, rtol=0.1)
    again = profile(model, tokens, swaps=500, query=[5, 39], hold="first")
    pd.testing.assert_frame_equal(again.heads, few.heads)
    kept = Profile.load(few.save(tmp_path / "few"))
    assert kept.settings["swaps"] == 500 and kept.heads[ERRORS].equals(few.heads[ERRORS])
    with pytest.raises(InputError, match="swaps: 500 and None"):
        Profile.concat([few, exact])


MEMORY = """
import pathlib, re, torch, possym
from transformers import LlamaConfig, LlamaForCausalLM
torch.set_num_threads(1)
def peak():  # of this program alone: ru_maxrss starts with that of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
config = LlamaConfig(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                     max_position_embeddings=8192)
model, tokens = LlamaForCausalLM(config), torch.arange(8192) % 8
with torch.no_grad():
    model(tokens[None], use_cache=False)
before = peak()
possym.profile(model, tokens, progress=False)
print((peak() - before) / 2**20)
"""


def test_a_prompt_of_8192_tokens_needs_less_than_the_relocated_logits_of_one_head():
    done = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True)
    assert 0 < float(done.stdout) < 8192**2 * 4 / 2**30


def test_charts_show_the_tables_and_state_what_they_show():
    result = profile(families.build("llama"), families.tokens(9, batch=3), per_frequency=True)
    table = result.summary()
    plane = result.plane().to_dict()
    rows = next(iter(plane["datasets"].values()))
    menu, click = plane["params"]
    assert menu["bind"]["options"] == ["all", 0, 1] and menu["value"] == "all" and click["value"] == "layer"
    assert [row["positional"] for row in rows] == table.positional.tolist()
    assert f"r = {result.correlation():.2f}" in plane["title"]["subtitle"] and "8" in plane["description"]
    heat = result.heatmap().to_dict()
    early, late = (table[table.layer == layer].positional.median() for layer in (0, 1))
    assert f"positional {early:.2f}, then {late:.2f}" in heat["description"]
    assert [panel["encoding"]["color"]["field"] for panel in heat["hconcat"]] == ["positional", "symbolic"]
    rows = result.head_frequencies(1, 2)
    chart = result.frequency_profile(1, 2).to_dict()
    drawn = [row for data in chart["datasets"].values() for row in data if row["score"] == "symbolic"]
    np.testing.assert_allclose([row["mean"] for row in drawn], rows.groupby("frequency_id").symbolic.mean())
    np.testing.assert_allclose([row["max"] for row in drawn], rows.groupby("frequency_id").symbolic.max())
    assert "Layer 1, head 2" in chart["title"]["text"]


def test_frequencies_of_no_head_are_refused():
    result = profile(families.build("llama"), families.tokens(9), per_frequency=True)
    with pytest.raises(InputError, match="layer 2, head 0: layers of this profile are \\[0, 1\\]"):
        result.frequency_profile(2, 0)
    with pytest.raises(InputError, match="per_frequency=True"):
        profile(families.build("llama"), families.tokens(9)).frequency_profile(0, 0)


class Twice(torch.nn.Module):
    """What a user may put before a layer's weight."""

    def forward(self, weight):
        return 2 * weight


def give_it_a_forward(model):
    own = model.forward
    model.forward = types.MethodType(lambda self, **given: own(**given), model)


@pytest.mark.parametrize(
    "change",
    [
        give_it_a_forward,
        lambda model: torch.nn.utils.parametrize.register_parametrization(model.lm_head, "weight", Twice()),
    ],
)
def test_nothing_keeps_a_model_that_has_been_profiled(change):
    model = families.build("llama")
    change(model)
    profile(model, families.tokens(9))
    left = [weakref.ref(model), weakref.ref(model.lm_head)]
    del model
    gc.collect()
    assert [reference() for reference in left] == [None, None]
