"""The pass that is read is the model's own: its attention, its masks, its threads; and afterwards it is as it was."""

import functools
import signal
import sys
import threading
import weakref

import pandas as pd
import pytest
import torch
import transformers
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

import possym
from possym.capture import Capture
from possym.capture.edits import ablate_frequencies
from possym.capture.hooks import attached
from possym.capture.model_state import uninterrupted
from possym.errors import InputError, UnsupportedModelError

from . import families
from .test_capture import captured, listen, state

SPARSE = families.COMMON | families.MLA | families.EXPERTS | dict(index_topk=8, index_n_heads=2, index_head_dim=16)


def make(name, auto=AutoModelForCausalLM, attention="eager", **settings):
    config = getattr(transformers, f"{name}Config")(**families.COMMON | settings)
    return families.randomise(auto.from_config(config, attn_implementation=attention), 0)


def sparse(name, attention="eager"):
    return make(name, attention=attention, **SPARSE | dict(head_dim=8))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["DeepseekV32", "GlmMoeDsa"])
def test_sparse_attention_moves_the_keys_that_the_model_picks(name, attention):
    model, ids = sparse(name, attention), families.tokens(40)
    with torch.no_grad():
        plain = model(ids, use_cache=False, logits_to_keep=1).logits[:, 0]
    layers = {}
    logits = Capture(model).run(ids, lambda inputs: layers.update({inputs.layer: inputs}))
    assert torch.equal(logits, plain)
    weights = listen(sparse(name), ids)
    for module, (_, own) in weights.items():
        picked = own[0, 0, -1].nonzero().flatten()
        assert len(picked) == 8
        inputs = layers[module.layer_idx]
        assert [*inputs.moved.tolist(), *[39] * inputs.reads_itself] == picked.tolist()
        order = torch.arange(len(inputs.moved))
        logits = torch.cat([inputs.relocated_logits()[..., order, order], inputs.extra_logits()], -1)
        torch.testing.assert_close(logits.softmax(-1)[0], own[0, :, -1, picked], atol=1e-6, rtol=0)
    table = possym.profile(model, families.tokens(40, batch=3), progress=False).heads
    assert len(table) == 3 * 2 * 4 and table.moved.between(7, 8).all()
    assert ((table.attention_self == 0) == (table.moved == 8)).all() and (table.moved == 8).any()


def test_keys_shared_by_layers_are_read_at_any_query():
    shared = families.FAMILIES["gemma4"][1] | dict(
        num_hidden_layers=4, num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 2
    )
    model, ids = make("Gemma4Text", **shared), families.tokens()
    with torch.no_grad():
        plain = model(ids, use_cache=False).logits
    for query in (12, 23):
        logits = Capture(model).run(ids, lambda inputs: None, query=query)
        torch.testing.assert_close(logits, plain[:, query], atol=1e-6, rtol=1e-6)
    assert Capture(model).coverage.shares_keys.tolist() == [False, False, True, True]


def test_a_layer_that_runs_in_a_loop_has_a_row_for_every_pass():
    loops = dict(n_recurrent_loops=3, n_input_layers=1, n_recurrent_layers=1, n_output_layers=1, num_hidden_layers=3)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(transformers.DoryConfig(**families.COMMON | loops)).eval()
    ids = families.tokens(12)
    table = possym.profile(model, ids, progress=False).heads
    assert table.groupby(["layer", "pass"]).size().to_dict() == {
        (0, 0): 4, (1, 0): 4, (1, 1): 4, (1, 2): 4, (2, 0): 4,
    }  # fmt: skip
    looped = table[table.layer == 1].pivot(index="head", columns="pass", values="entropy")
    assert looped.nunique(axis=1).eq(3).all()


def thrice(module, query, key, value, mask, scaling=None, **options):
    return modeling_llama.eager_attention_forward(module, query, key, value, mask, scaling=3 * scaling, **options)


def thrice_by_hand(module, query, key, value, mask, scaling=None, **options):
    key, value = (modeling_llama.repeat_kv(x, module.num_key_value_groups) for x in (key, value))
    later = torch.ones(query.shape[2], key.shape[2]).triu(1).bool()
    weights = (query @ key.mT * scaling * 3).masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


def linear(module, query, key, value, mask, scaling=None, **options):
    key, value = (modeling_llama.repeat_kv(x, module.num_key_value_groups) for x in (key, value))
    weights = (query @ key.mT * scaling).relu().tril()
    return (weights @ value).transpose(1, 2), weights


@pytest.fixture
def register():
    names = []

    def add(function):
        AttentionInterface.register(function.__name__, function)
        names.append(function.__name__)

    yield add
    for name in names:
        del AttentionInterface._global_mapping[name]


def test_a_users_own_attention_is_read_as_it_is(register):
    register(thrice_by_hand)
    model, ids = families.build("llama"), families.tokens()
    plain = captured(model, ids)
    model.set_attn_implementation("thrice_by_hand")
    for layer, inputs in captured(model, ids).items():
        assert inputs.scale == pytest.approx(3 * plain[layer].scale, rel=1e-5)
    torch.testing.assert_close(captured(model, ids)[0].relocated_logits(), 3 * plain[0].relocated_logits())
    assert ALL_ATTENTION_FUNCTIONS["thrice_by_hand"] is thrice_by_hand


def test_a_number_that_a_users_own_attention_multiplies_by_is_read_as_it_is_now(register):
    def warmed(module, *given, scaling=None, **options):
        return thrice_by_hand(module, *given, scaling=scaling * module.heat, **options)

    register(warmed)
    model, ids = families.build("llama"), families.tokens()
    for layer in model.model.layers:
        layer.self_attn.heat = torch.nn.Parameter(torch.tensor(0.5))
    model.set_attn_implementation("warmed")
    cold = captured(model, ids)
    for layer in model.model.layers:
        layer.self_attn.heat.data.fill_(1.0)  # unseen by its version, as an optimiser may do
    for layer, inputs in captured(model, ids).items():
        assert inputs.scale == pytest.approx(2 * cold[layer].scale, rel=1e-5)


@pytest.mark.parametrize("function, reason", [(linear, "no softmax"), (thrice, "later tokens")])
def test_an_attention_that_is_another_is_refused_with_its_reason(register, function, reason):
    register(function)  # without a mask function of this name transformers gives it no mask
    model = families.build("llama")
    model.set_attn_implementation(function.__name__)
    with pytest.raises(UnsupportedModelError, match=f"layer 0.*{function.__name__}.*{reason}"):
        Capture(model)


def longer(module, query, key, value, mask, scaling=None, **options):
    scaling = scaling / 2 if query.shape[2] > 16 else scaling
    return thrice_by_hand(module, query, key, value, mask, scaling=scaling / 3, **options)


def longer_above(module, query, key, value, mask, scaling=None, **options):
    function = longer if module.layer_idx == 1 else thrice_by_hand
    return function(module, query, key, value, mask, scaling=scaling / (1 if function is longer else 3), **options)


def sharpened(family, **options):
    """A model in bfloat16 whose largest logits are 20 and more, where that rounds them by an eighth."""
    model = families.build(family, **options)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 32
    return model.bfloat16()


@pytest.mark.parametrize(
    "family, options, largest", [("gemma2", dict(attn_logit_softcapping=50.0), 40), ("llama", {}, 100)]
)
def test_large_logits_in_half_precision_are_read(family, options, largest):
    """Eager attention rounds them, for Gemma 2 the only one there is."""
    model, ids = sharpened(family, **options), families.tokens(40)
    for inputs in captured(model, ids).values():
        assert inputs.relocated_logits().abs().max() > largest
    capture = Capture(model)
    assert all(layer.factor == 1 and layer.method == "direct" for layer in capture.layers.values())
    table = possym.profile(model, ids, progress=False).heads
    assert table[["positional", "symbolic"]].notna().all().all()


@pytest.mark.parametrize("function, reason", [(linear, "no softmax"), (thrice, "later tokens")])
def test_an_attention_that_is_another_is_refused_in_half_precision_too(register, function, reason):
    register(function)
    model = sharpened("llama")
    model.set_attn_implementation(function.__name__)
    with pytest.raises(UnsupportedModelError, match=f"{function.__name__}.*{reason}"):
        Capture(model)


def test_a_layer_is_compared_when_it_is_first_read(register):
    register(longer_above)
    model, ids = families.build("llama"), families.tokens()
    model.set_attn_implementation("longer_above")
    capture = Capture(model)
    capture.run(ids, lambda inputs: None, layers=[0])
    for _ in range(2):
        with pytest.raises(UnsupportedModelError, match="layer 1: on .* tokens its attention function"):
            capture.run(ids, lambda inputs: None, layers=[1])


def test_an_attention_that_changes_with_the_length_is_refused(register):
    register(longer)
    model, ids = families.build("llama"), families.tokens()
    model.set_attn_implementation("longer")
    capture = Capture(model)
    capture.run(ids[:, :14], lambda inputs: None)
    with pytest.raises(UnsupportedModelError, match=r"layer 0: on \d+ tokens .*'longer'"):
        capture.run(ids, lambda inputs: None)


@pytest.mark.parametrize("part, what", [("model", "hidden states"), ("whole", "logits")])
def test_a_model_that_answers_otherwise_while_it_is_read_is_refused(part, what):
    model, ids = families.build("llama"), families.tokens()
    capture = Capture(model.model if part == "model" else model)

    def change(module, args, output):
        read = hasattr(ALL_ATTENTION_FUNCTIONS["sdpa"], "possym_original")
        return (output[0] + read, *output[1:])

    model.model.layers[1].self_attn.register_forward_hook(change)
    with pytest.raises(UnsupportedModelError, match=rf"other {what} .* They part at .*layers\.1\.self_attn"):
        capture.run(ids, lambda inputs: None)


def test_threads_take_turns_and_the_model_is_as_it_was():
    model, ids = families.build("llama"), families.tokens(batch=2)
    expected = possym.profile(model, ids, progress=False).heads
    before, results = state(model), []

    def work(base):
        part = model.model if base else model
        results.append(possym.profile(part, ids, progress=False).heads)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(6)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(switch)
    assert len(results) == 6
    for table in results:
        pd.testing.assert_frame_equal(table, expected)
    assert state(model) == before


def test_what_another_thread_runs_meanwhile_is_its_own():
    model, ids = families.build("llama"), families.tokens()
    with torch.no_grad():
        plain = model(ids).logits
    calls, found = [], []
    with attached(model, lambda call: calls.append(call.layer)):
        with torch.no_grad():
            thread = threading.Thread(target=lambda: found.append(model(families.tokens()).logits.detach()))
            thread.start()
            thread.join(60)
    assert calls == [] and torch.equal(found[0], plain)


@pytest.mark.parametrize("what", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_after_an_interruption_the_model_is_as_it_was(what):
    model = families.build("llama dynamic", attention="sdpa").train()
    before = state(model)

    def visit(inputs):
        raise what

    with pytest.raises(what):
        Capture(model).run(families.tokens(), visit)
    assert state(model) == before
    assert not model.model.layers[0].self_attn._forward_pre_hooks


def test_ctrl_c_waits_until_the_model_is_put_back():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    reached = []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)
    assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_model_is_not_read_while_its_frequencies_are_ablated():
    model = families.build("llama")
    with ablate_frequencies(model, [1]), pytest.raises(InputError, match="being read already"):
        Capture(model).run(families.tokens(), lambda inputs: None)
    Capture(model).run(families.tokens(), lambda inputs: None)


def test_a_reward_model_has_scores_and_answers_nothing():
    model = make("Llama", AutoModelForSequenceClassification, pad_token_id=None)
    ids = families.tokens(batch=2)
    profile = possym.profile(model, ids, progress=False)
    below = possym.profile(model.model, ids, progress=False)
    pd.testing.assert_frame_equal(profile.heads, below.heads)
    assert profile.prompts.predicted.isna().all()


@pytest.mark.parametrize("made, read", [(True, False), (False, True), (True, True)])
def test_inference_mode_changes_nothing(made, read):
    expected = captured(families.build("llama dynamic"), families.tokens())
    with torch.inference_mode(made):
        model = families.build("llama dynamic")
    with torch.inference_mode(read):
        found = captured(model, families.tokens())
    for layer, inputs in found.items():
        torch.testing.assert_close(inputs.relocated_logits(), expected[layer].relocated_logits())


@pytest.mark.parametrize("family", ["llama dynamic", "gemma2", "gpt_oss", "falcon"])
def test_what_a_pass_hands_on_may_be_differentiated(family):
    model, found = families.build(family), []
    logits = Capture(model).run(families.tokens(), found.append, query=[3, 5])
    given = [x for inputs in found for x in vars(inputs).values() if isinstance(x, torch.Tensor)]
    assert len(given) > 6 and not any(x.is_inference() or x.requires_grad for x in (logits, *given))


@pytest.fixture
def modes(monkeypatch):
    """Whether each pass of a Llama so far was in inference mode, the newest last."""
    found, own = [], modeling_llama.LlamaForCausalLM.forward

    @functools.wraps(own)
    def noting(*args, **given):
        found.append(torch.is_inference_mode_enabled())
        return own(*args, **given)

    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "forward", noting)
    return found


def read(capture, times=1):
    for _ in range(times):
        capture.read(families.tokens(), lambda inputs: None, [5], None, True)


def test_a_pass_is_in_inference_mode_unless_a_hook_may_keep_what_it_is_given(modes):
    model, outputs = families.build("llama"), []
    capture = Capture(model)
    modes.clear()
    read(capture, times=2)
    with model.model.norm.register_forward_hook(lambda module, args, output: outputs.append(output)):
        read(capture)
    with torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: outputs.append(output)):
        read(capture)
    # The first pass of a shape and the one it is compared with, the second, and those with a hook.
    assert modes == [False, False, True, False, False]
    assert not any(x.is_inference() for x in outputs if isinstance(x, torch.Tensor))


def test_or_an_attention_function_or_a_forward_of_others_may(register, modes, monkeypatch):
    outputs = []

    def keeping(module, query, key, value, mask, scaling=None, **options):
        outputs.append(query)
        return thrice_by_hand(module, query, key, value, mask, scaling=scaling, **options)

    @functools.wraps(modeling_llama.eager_attention_forward)
    def wrapping(module, query, *others, **options):
        outputs.append(query)
        return modeling_llama.eager_attention_forward(module, query, *others, **options)

    wrapping.__name__ = "wrapping"
    for function in (keeping, wrapping):
        register(function)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "wrapping", eager_mask)
    attending, hiding, replaced = (families.build("llama") for _ in range(3))
    attending.set_attn_implementation("keeping")
    hiding.set_attn_implementation("wrapping")
    norm = replaced.model.norm
    norm.forward = lambda hidden: outputs.append(hidden) or type(norm).forward(norm, hidden)
    for model in (attending, hiding, replaced):
        outputs.clear()
        read(Capture(model), times=2)
        assert modes[-1] is False
        assert outputs and not any(x.is_inference() for x in outputs)
    read(Capture(families.build("llama")), times=2)
    assert modes[-1] is True


class LastTables(torch.nn.Module):
    """Keeps cosines and sines of the last prompt's length, out of sight of who looks for buffers."""

    def __init__(self, own):
        super().__init__()
        self.own, self.kept = own, None

    def forward(self, x, position_ids):
        if self.kept is None or self.kept[0].shape[1] != position_ids.shape[1]:
            self.kept = self.own(x, position_ids)
        return self.kept


def test_a_model_that_keeps_tables_of_its_last_prompt_trains_after_profiles():
    model = make("Llama")
    model.model.rotary_emb = LastTables(model.model.rotary_emb)
    for count in (20, 12, 20):
        possym.profile(model, families.tokens(count), progress=False)
    model(families.tokens(20), labels=families.tokens(20)).loss.backward()


def test_a_model_that_was_trained_in_mixed_precision_is_read_in_that_of_its_weights(tmp_path):
    """What accelerate prepared turns autocast on in its own forward, for good."""
    model, fresh, ids = families.build("llama"), families.build("llama"), families.tokens()
    how = dict(max_steps=1, bf16=True, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True)
    data = [{"input_ids": row, "labels": row} for row in families.tokens(8, batch=8)]
    trainer = Trainer(model, TrainingArguments(str(tmp_path), **how), train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    fresh.load_state_dict(model.state_dict())
    forward = vars(model)["forward"]
    found, expected = (possym.profile(each, ids, progress=False).heads for each in (model, fresh))
    pd.testing.assert_frame_equal(found, expected)
    assert vars(model)["forward"] is forward
    assert not model(ids).logits.equal(fresh(ids).logits)


def test_a_capture_that_is_kept_keeps_no_weights():
    model = make("Llama")
    kept = Capture(model)
    before = weakref.ref(model.lm_head.weight)
    model.load_state_dict({name: weight.clone() for name, weight in model.state_dict().items()}, assign=True)
    assert before() is None and kept.layers


class LongestTables(torch.nn.Module):
    """Keeps cosines and sines as long as the longest prompt so far needs them, as models of their own code do."""

    def __init__(self, own):
        super().__init__()
        self.own, self.kept = own, torch.empty(2, 1, 0, 8)

    def forward(self, x, position_ids):
        count = position_ids.shape[1]
        if count > self.kept.shape[2]:
            self.kept = torch.stack(self.own(x, torch.arange(count)[None]))
        return tuple(self.kept[:, :, :count])


def test_a_model_that_keeps_tables_of_its_longest_prompt_trains_after_a_profile():
    model = make("Llama")
    model.model.rotary_emb = LongestTables(model.model.rotary_emb)
    for count in (4, 20, 20, 30, 12):
        ids = families.tokens(count)
        possym.profile(model, ids, progress=False)
        model(ids, labels=ids).loss.backward()


COMPRESSED = dict(q_lora_rank=16, o_lora_rank=8, o_groups=2, num_key_value_heads=1)
REFUSED = {
    "DeepseekV4": (
        families.EXPERTS
        | COMPRESSED
        | dict(layer_types=["heavily_compressed_attention", "compressed_sparse_attention"]),
        r"12 queries read \d+ keys",
    ),
    "OpenAIGPT": (dict(n_embd=32, n_layer=1, n_head=4), "no attention layer could be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_the_true_reason(name):
    settings, reason = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=reason):
        Capture(make(name, **settings))


def test_a_model_of_images_is_refused():
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32)
    with pytest.raises(UnsupportedModelError, match="reads pixel_values, not token ids"):
        Capture(transformers.ViTModel(config))
