"""Captured queries and keys against the models' own attention, for every family."""

import copy
import gc
import inspect
import sys

import pandas as pd
import pytest
import torch
import transformers
from torch.profiler import profile
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from possym.capture import Capture
from possym.capture import capture as capture_module
from possym.errors import InputError, UnsupportedModelError
from possym.rope import frequencies, rotate
from possym.scores import relocated_logits

from . import families

POSITION = 20
WITHOUT_ROPE = {"llama4": [1], "smollm3": [1], "cohere2": [1], "exaone4": [1]}


def captured(model, tokens, query=-1):
    """All layers' inputs by number."""
    found = {}
    Capture(model).run(tokens, lambda inputs: found.update({inputs.layer: inputs}), query=query)
    return found


def listen(model, tokens):
    """Run the model plainly and return, by module, how each attention layer was called and its own weights."""
    calls = {}

    def hook(module, args, kwargs, output):
        if (
            isinstance(output, tuple)
            and len(output) > 1
            and isinstance(output[1], torch.Tensor)
            and output[1].ndim == 4
        ):
            names = list(inspect.signature(type(module).forward).parameters)[1:]
            calls[module] = dict(zip(names, args, strict=False)) | kwargs, output[1]

    handles = [
        m.register_forward_hook(hook, with_kwargs=True) for m in model.modules() if "Attention" in type(m).__name__
    ]
    with torch.no_grad():
        model(tokens, use_cache=False)
    for handle in handles:
        handle.remove()
    return calls


def attention_of(inputs, order=None):
    """The query's attention over moved keys, contents in `order` at the places in turn, and over its own key."""
    relocated = inputs.relocated_logits()
    count = relocated.shape[-1]
    order = torch.arange(count) if order is None else order
    logits = relocated[..., order, torch.arange(count)]
    return torch.cat([logits, inputs.extra_logits()], -1).softmax(-1)[..., : count + 1]


def weights_over(weights, inputs):
    """A module's own attention weights of the query over the moved keys and itself."""
    return weights[:, :, inputs.query_position, [*inputs.moved.tolist(), inputs.query_position]]


def moved_states(module, kwargs, order, calls, place):
    """The module's own weights after the hidden states of the keys change places, the query's kept."""
    whole = torch.cat([order, torch.arange(len(order), kwargs["hidden_states"].shape[1])])
    given = kwargs | dict(hidden_states=kwargs["hidden_states"][:, whole])
    if getattr(module, "is_kv_shared_layer", False):
        shared = copy.copy(kwargs["shared_kv_states"])
        for donor, (donor_kwargs, _) in calls.items():
            if getattr(donor, "store_full_length_kv", False):
                states = donor_kwargs["hidden_states"][:, whole]
                donor.forward(**donor_kwargs | dict(hidden_states=states, shared_kv_states=shared))
        given["shared_kv_states"] = shared
        given["hidden_states"] = kwargs["hidden_states"]
    with torch.no_grad():
        return module.forward(**given)[1]


@pytest.mark.parametrize("family", families.FAMILIES)
def test_every_family_agrees_with_its_own_attention(family):
    check_against_own_attention(family, families.build(family))


def check_against_own_attention(family, model, method="direct"):
    assert set(Capture(model).coverage.query("attention").method) == {method}
    tokens = families.tokens()
    calls = listen(model, tokens)
    assert calls
    layers = captured(model, tokens, POSITION)
    numbers = {getattr(module, "layer_idx", None): module for module in calls}
    assert set(numbers) == set(layers)
    order = torch.randperm(POSITION, generator=torch.Generator().manual_seed(1))
    for number, module in numbers.items():
        kwargs, weights = calls[module]
        inputs = layers[number]
        assert inputs.query_position == POSITION
        torch.testing.assert_close(attention_of(inputs), weights_over(weights, inputs), atol=1e-6, rtol=0)
        # A window hides contents as well as places: relocate within what the query sees, leave the rest.
        seen = inputs.moved
        whole = torch.arange(POSITION)
        inner = torch.randperm(len(seen), generator=torch.Generator().manual_seed(2))
        whole[seen] = seen[inner]
        if len(seen) == POSITION:
            whole, inner = order, order
        truth = weights_over(moved_states(module, kwargs, whole, calls, POSITION), inputs)
        torch.testing.assert_close(attention_of(inputs, inner), truth, atol=4e-6, rtol=0)
        own = weights_over(weights, inputs)
        assert (own.amax(-1) - own.amin(-1)).min() > 0.01
        if len(seen) > 2 and number not in WITHOUT_ROPE.get(family, []):
            moved = attention_of(inputs, inner)[..., :-1]
            assert (moved - attention_of(inputs)[..., :-1][..., inner]).abs().max() > 1e-4


@pytest.mark.parametrize("family", WITHOUT_ROPE)
def test_rows_of_layers_without_rotation_do_not_move(family):
    for number, inputs in captured(families.build(family), families.tokens()).items():
        relocated = inputs.relocated_logits()
        spread = (relocated - relocated[..., :1]).abs().max()
        assert (spread < 1e-6) == (number in WITHOUT_ROPE[family])


def test_a_rotation_that_no_planes_explain_is_asked_from_the_model_place_by_place():
    model = families.build("hunyuan_v1_dense")
    for layer in model.model.layers:
        layer.self_attn.key_layernorm = torch.nn.Linear(8, 8, bias=False)
    check_against_own_attention("hunyuan_v1_dense", families.randomise(model, 3), "replay")
    capture = Capture(model)
    assert set(capture.coverage.method) == {"replay"}
    with pytest.raises(UnsupportedModelError, match="no planes"):
        capture.run(families.tokens(), lambda inputs: inputs.relocated_logits(per_plane=slice(None)))


def test_coverage_names_what_each_layer_is():
    coverage = Capture(families.build("qwen3_next")).coverage
    assert coverage.attention.tolist() == [False, True]
    assert coverage.planes.tolist() == [0, 2]
    coverage = Capture(families.build("cohere2")).coverage
    assert coverage.rotates.tolist() == [True, False]
    assert coverage.window.tolist() == [8, pd.NA]
    coverage = Capture(families.build("gpt_oss")).coverage
    assert coverage.sinks.all() and (coverage.self_check < 1e-6).all()
    assert Capture(families.build("gemma2")).coverage.softcap.tolist() == [2.0, 2.0]
    assert Capture(families.build("gemma3n")).coverage.shares_keys.tolist() == [False, False, True, True]


WIDE = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
REFUSED = {
    "gpt2": ("GPT2", dict(n_embd=32, n_layer=1, n_head=4), "no layer rotates"),
    "bloom": ("Bloom", dict(hidden_size=32, n_layer=1, n_head=4), "no attention layer"),
    "falcon alibi": ("Falcon", WIDE | dict(alibi=True), "ALiBi"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_decoders_without_rotary_positions_are_refused(name):
    family, options, message = REFUSED[name]
    config = getattr(transformers, f"{family}Config")(vocab_size=64, **options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedModelError, match=message):
        Capture(model)


SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4)


@pytest.mark.parametrize(
    "config, message",
    [
        (transformers.BertConfig(**SMALL), "both directions"),
        (transformers.ModernBertConfig(**SMALL, **SPECIAL), "both directions"),
        (transformers.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1), "encoder and a decoder"),
    ],
)  # fmt: skip
def test_encoders_are_refused(config, message):
    with pytest.raises(UnsupportedModelError, match=message):
        Capture(transformers.AutoModel.from_config(config))


def test_models_without_weights_are_refused():
    with torch.device("meta"):
        model = families.build("llama")
    with pytest.raises(UnsupportedModelError, match="meta device"):
        Capture(model)


@pytest.mark.parametrize("model", ["gpt2", torch.nn.Linear(2, 2)])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(UnsupportedModelError, match="give a transformers model"):
        Capture(model)


@pytest.mark.parametrize(
    "tokens, query, message",
    [
        ([1, 2, 3], -1, "tokens"),
        (torch.tensor([1.0, 2.0]), -1, "tokens"),
        (torch.tensor([1, 2, 64]), -1, "vocabulary"),
        (torch.tensor([1, -2, 6]), -1, "vocabulary"),
        (torch.empty(0, dtype=torch.long), -1, "vocabulary"),
        (torch.tensor([1, 2, 3]), 3, "query"),
        (torch.tensor([1, 2, 3]), True, "query"),
    ],
)
def test_bad_tokens_and_queries_are_refused(tokens, query, message):
    with pytest.raises(InputError, match=message):
        Capture(families.build("llama")).run(tokens, lambda inputs: None, query=query)


def state(model):
    """All that a capture could leave behind."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return dict(
        implementations=[
            m.config._attn_implementation for m in model.modules() if hasattr(getattr(m, "config", None), "sub_configs")
        ],
        registered=(dict(ALL_ATTENTION_FUNCTIONS), dict(ALL_MASK_ATTENTION_FUNCTIONS)),
        eager=[getattr(sys.modules[type(m).__module__], "eager_attention_forward", None) for m in model.modules()],
        hooks=[(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()],
        training=[m.training for m in model.modules()],
        attributes=[sorted(vars(m)) for m in model.modules()],
        buffers=[(name, id(b), b.tolist()) for name, b in model.named_buffers() if b.numel() < 100],
        lengths=[getattr(m, "max_seq_len_cached", None) for m in model.modules()],
    )


@pytest.mark.parametrize("family", ["llama", "llama dynamic", "llama longrope", "falcon", "gptj", "gpt_neox_japanese"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_found(family, fails):
    model = families.build(family, attention="sdpa" if family.startswith("llama") else "eager")
    model.train()
    next(iter(model.children())).eval()
    before = state(model)

    def visit(inputs):
        assert hasattr(ALL_ATTENTION_FUNCTIONS["sdpa"], "possym_original") or not family.startswith("llama")
        assert not any(m.training for m in model.modules())
        if fails:
            raise RuntimeError("the visitor fails")

    capture = Capture(model)
    if fails:
        with pytest.raises(RuntimeError, match="the visitor fails"):
            capture.run(families.tokens(), visit)
    else:
        capture.run(families.tokens(), visit)
    assert state(model) == before
    assert not any(p.grad_fn for p in model.parameters())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt_neox", "falcon"])
def test_outputs_are_those_of_the_model_left_alone(family, attention):
    model = families.build(family, attention=attention)
    tokens = families.tokens(batch=2)
    with torch.no_grad():
        plain = model(tokens, use_cache=False).logits
    for place in (POSITION, families.LENGTH - 1):
        logits = Capture(model).run(tokens, lambda inputs: None, query=place)
        torch.testing.assert_close(logits, plain[:, place], atol=1e-6, rtol=1e-6)


ATTENTION = ("bmm", "softmax", "tanh", "attention", "where", "masked_fill", "triu", "tril")


@pytest.mark.parametrize(
    "family, attention",
    [("llama", "eager"), ("llama", "sdpa"), ("gemma2", "eager"), ("gemma3", "sdpa"), ("gpt_oss", "eager")],
)
def test_attention_is_computed_as_by_the_model_left_alone(family, attention):
    model, tokens = families.build(family, attention=attention), families.tokens()
    capture = Capture(model)
    capture.run(tokens, lambda inputs: None)  # the first run of a shape is compared with the model left alone
    with profile() as captured:
        capture.run(tokens, lambda inputs: None)
    with torch.no_grad(), profile() as plain:
        model(tokens, use_cache=False, logits_to_keep=1)
    ours, theirs = (
        {row.key: row.count for row in each.key_averages() if any(name in row.key for name in ATTENTION)}
        for each in (captured, plain)
    )
    assert ours == theirs and theirs


def test_a_softcap_counts_where_it_is_applied(monkeypatch):
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def ignoring(*given, **options):
        return sdpa(*given, **options | dict(softcap=None))

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", ignoring)
    model, tokens = families.build("gemma2"), families.tokens()
    capped = captured(model, tokens)
    model.config._attn_implementation_internal = "sdpa"
    free = captured(model, tokens)
    assert [each.softcap for each in capped.values()] == [2.0, 2.0]
    assert [each.softcap for each in free.values()] == [None, None]
    assert free[0].relocated_logits().abs().max() > 2 >= capped[0].relocated_logits().abs().max()
    with torch.no_grad():
        plain = model(tokens, use_cache=False).logits[:, -1]
    torch.testing.assert_close(Capture(model).run(tokens, lambda inputs: None), plain, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("own", ["flash_attention_2", "flex_attention"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_other_kinds_of_attention_give_way(family, own):
    model, tokens = families.build(family), families.tokens()
    expected = captured(model, tokens)
    model.config._attn_implementation_internal = own
    for number, inputs in captured(model, tokens).items():
        assert inputs.softcap == expected[number].softcap
        torch.testing.assert_close(inputs.relocated_logits(), expected[number].relocated_logits(), atol=1e-5, rtol=1e-5)
    assert model.config._attn_implementation == own


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "hunyuan_v1_dense"])
def test_layers_that_come_together_are_those_that_come_one_by_one(family, monkeypatch):
    model, tokens = families.build(family, num_hidden_layers=5, layer_types=None), families.tokens(batch=2)
    alone = captured(model, tokens)
    for number, layer in enumerate(model.model.layers):
        layer.register_forward_hook(
            lambda *_, passed=number + 1: waiting.append(passed - sum(len(inputs.layers) for inputs in found))
        )
    for numbers, most in ((2**24, 5), (int(2.5 * alone[0].keys.numel()), 1), (1, 0)):
        monkeypatch.setattr(capture_module, "TOGETHER", numbers)
        found, waiting = [], []
        Capture(model).run(tokens, found.append, together=True)
        assert max(waiting) == most
        assert sorted(layer for inputs in found for layer in inputs.layers) == list(range(5))
        if family == "llama":
            assert max(len(inputs.layers) for inputs in found) == {2**24: 5, 1: 1}.get(numbers, 2)
        for inputs in found:
            for logits, extra, layer in zip(
                inputs.relocated_logits().split(2), inputs.extra_logits().split(2), inputs.layers, strict=True
            ):
                torch.testing.assert_close(logits, alone[layer].relocated_logits(), atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(extra, alone[layer].extra_logits(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window, groups", [(9, [[0, 1, 2, 3]]), (8, [[0, 2], [1, 3]])])
def test_layers_whose_masks_show_the_same_keys_come_together(window, groups):
    kinds = ["sliding_attention", "full_attention"] * 2
    model = families.build("gemma2", num_hidden_layers=4, layer_types=kinds, sliding_window=window)
    found = []
    Capture(model).run(families.tokens(9), found.append, query=[4, -1], together=True)
    assert [(inputs.layers, inputs.query_position) for inputs in found] == [(g, at) for g in groups for at in (4, 8)]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "falcon"])
def test_later_tokens_never_reach_the_query(family):
    model = families.build(family, attention="sdpa" if family in ("llama", "falcon") else "eager")
    tokens = families.tokens()
    changed = tokens.clone()
    changed[:, POSITION + 1 :] = 5
    capture = Capture(model)
    first, second = (capture.run(t, lambda inputs: None, query=POSITION) for t in (tokens, changed))
    torch.testing.assert_close(first, second, atol=1e-6, rtol=0)


class Wrapped(torch.nn.Module):
    """A model within another module that hands on token ids alone, so that the model keeps a cache."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    @property
    def config(self):
        return self.inner.config

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()

    def forward(self, input_ids):
        return self.inner(input_ids)


def with_config_as_property(model):
    """Move every config out of its module's attributes, behind a property of its class."""
    for module in model.modules():
        if config := vars(module).pop("config", None):
            body = {"config": property(lambda self, config=config: config), "__module__": type(module).__module__}
            module.__class__ = type(type(module).__name__, (type(module),), body)
    return model


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize(
    "dress", [Wrapped, with_config_as_property, lambda model: torch.compile(model, backend="eager")],
    ids=["wrapped", "property", "compiled"],
)  # fmt: skip
def test_a_model_in_another_dress_is_read_as_it_is_without(dress):
    tokens = families.tokens()
    expected = captured(families.build("llama"), tokens)
    dressed = dress(families.build("llama"))
    if isinstance(dressed, torch._dynamo.OptimizedModule):
        dressed(tokens)
    found = captured(dressed, tokens)
    assert found.keys() == expected.keys()
    for layer, inputs in found.items():
        torch.testing.assert_close(inputs.relocated_logits(), expected[layer].relocated_logits(), atol=1e-5, rtol=1e-5)


def test_the_models_own_implementation_does_not_matter():
    tokens = families.tokens()
    eager, sdpa = (captured(families.build("qwen2", attention=a), tokens) for a in ("eager", "sdpa"))
    for layer in eager:
        torch.testing.assert_close(
            eager[layer].relocated_logits(), sdpa[layer].relocated_logits(), atol=1e-5, rtol=1e-5
        )


def test_query_token_keys_of_a_batch_equal_those_of_single_prompts():
    model = families.build("mixtral")
    tokens = families.tokens(batch=3)
    together = captured(model, tokens)
    for row in range(3):
        for layer, inputs in captured(model, tokens[row]).items():
            torch.testing.assert_close(
                together[layer].relocated_logits()[row], inputs.relocated_logits()[0], atol=1e-5, rtol=1e-5
            )


@pytest.mark.parametrize("base", [10000.0, 1000000.0])
def test_angles_come_from_the_models_base(base):
    model = families.build("llama", rope_parameters=dict(rope_type="default", rope_theta=base))
    for inputs in captured(model, families.tokens()).values():
        torch.testing.assert_close(inputs.angles.double(), frequencies(8, base), atol=0, rtol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "cohere", "deepseek_v3", "hunyuan_v1_dense", "gptj"])
def test_tables_agree_with_the_closed_form_from_angles(family):
    for inputs in captured(families.build(family), families.tokens()).values():
        scale = inputs.cos.square().add(inputs.sin.square()).sqrt()
        assert (scale - 1).abs().max() < 1e-6
        contents = rotate(inputs.query, -inputs.query_position, inputs.angles, "half")
        keys = inputs.keys[:, torch.arange(inputs.heads) // (inputs.heads // inputs.keys.shape[1])][:, :, inputs.moved]
        expected = relocated_logits(
            contents, keys, query_position=inputs.query_position, positions=inputs.moved,
            frequencies=inputs.angles, layout="half", scale=inputs.scale,
        )  # fmt: skip
        torch.testing.assert_close(inputs.relocated_logits(), expected, atol=2e-5, rtol=1e-5)


def test_planes_add_up_to_the_head():
    for inputs in captured(families.build("llama yarn"), families.tokens()).values():
        whole = inputs.relocated_logits(slice(1, 3))
        shares = inputs.relocated_logits(slice(1, 3), per_plane=slice(None))
        torch.testing.assert_close(shares.sum(-3), whole, atol=1e-5, rtol=1e-5)
        own = inputs.unmoved_logits(slice(1, 3), per_plane=slice(None)).sum(-2)
        torch.testing.assert_close(own, inputs.unmoved_logits(slice(1, 3)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama dynamic", "llama longrope"])
def test_a_long_prompt_does_not_change_what_a_shorter_one_gives(family):
    model = families.build(family)
    capture = Capture(model)
    found = []
    for length in (18, 40, 18, 10, 18):
        rows = []
        capture.run(families.tokens(length), lambda inputs, rows=rows: rows.append(inputs))
        found.append(rows)
    for again in (2, 4):
        for first, later in zip(found[0], found[again], strict=True):
            assert torch.equal(first.cos, later.cos) and torch.equal(first.keys, later.keys)
    assert not torch.allclose(found[0][0].angles, found[3][0].angles, rtol=1e-3)


def test_bfloat16_keeps_far_places_apart_and_agrees_with_float32():
    model = families.build("llama", max_position_embeddings=512)
    tokens = families.tokens(400)
    half = copy.deepcopy(model).to(torch.bfloat16)
    exact = captured(model, tokens)[0]
    for inputs in captured(half, tokens).values():
        assert inputs.query.dtype == inputs.keys.dtype == inputs.relocated_logits().dtype == torch.float32
        steps = (inputs.cos[1:, 0] - inputs.cos[:-1, 0]).abs()
        assert steps[256:].min() > 0 or steps[256:].median() > 0.1
        assert inputs.in_bfloat16 and torch.equal(inputs.shortened(inputs.positions).float(), inputs.positions)
    assert not exact.in_bfloat16
    rough = captured(half, tokens)[0].relocated_logits()
    assert exact.relocated_logits().abs().max() > 1
    assert (rough - exact.relocated_logits()).abs().max() < 0.1
    torch.testing.assert_close(exact.angles.double(), frequencies(8), atol=0, rtol=1e-6)


def test_sliding_windows_hide_keys_from_the_query():
    inputs = captured(families.build("mistral"), families.tokens())[0]
    assert inputs.moved.tolist() == list(range(families.LENGTH - 8, families.LENGTH - 1))


def test_weights_that_overflow_are_reported_with_their_layer():
    model = families.build("llama")
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight[0, 0] = torch.nan
    capture = Capture(families.build("llama"))
    capture.model = model
    with pytest.raises(InputError, match="layer 1: queries or keys are not finite"):
        capture.run(families.tokens(), lambda inputs: None)


def test_memory_does_not_grow_with_prompts():
    capture = Capture(families.build("llama"))

    def alive():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())

    capture.run(families.tokens(), lambda inputs: None)
    before = alive()
    for seed in range(5):
        capture.run(families.tokens(seed=seed), lambda inputs: inputs.relocated_logits())
    assert alive() == before


@pytest.mark.parametrize("family", ["gemma3n", "llama", "falcon"])
def test_asking_the_model_again_changes_nothing_and_layers_are_let_go(family):
    model = families.build(family, attention="sdpa")
    tokens = families.tokens()
    with torch.no_grad():
        plain = model(tokens, use_cache=False).logits[:, -1]

    def on_call(call):
        call.replay(3)
        assert len(call.session.inputs) == 1

    logits = Capture(model).forward(tokens, on_call, [families.LENGTH - 1])
    torch.testing.assert_close(logits[:, 0], plain, atol=1e-6, rtol=1e-6)


def test_a_model_is_asked_again_only_when_it_changed():
    model = families.build("llama")
    first = Capture(model)
    assert all(Capture(model).layers[k] is layer for k, layer in first.layers.items())
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(2)
    changed = Capture(model)
    assert changed.layers[0] is not first.layers[0]
    model.model.layers[1].self_attn = families.build("llama", seed=1).model.layers[1].self_attn
    assert Capture(model).layers[0] is not changed.layers[0]
    replaced = Capture(model)
    assert Capture(model.double()).layers[0] is not replaced.layers[0]
    gone = len(capture_module._probed)
    del first, changed, replaced, model
    gc.collect()
    assert len(capture_module._probed) == gone - 1


def test_a_layer_whose_rotation_is_switched_on_is_asked_again():
    model = families.build("smollm3")
    kept = Capture(model)
    assert kept.coverage.rotates.tolist() == [True, False]
    model.model.layers[1].self_attn.use_rope = 1
    kept.run(families.tokens(9), lambda inputs: None)
    assert kept.coverage.rotates.tolist() == Capture(model).coverage.rotates.tolist() == [True, True]


@pytest.mark.parametrize("family, what", [("llama", "inv_freq"), ("hunyuan_v1_dense", "layernorm")])
def test_a_capture_kept_while_the_model_changes_reads_the_model_as_it_is_now(family, what):
    """Speeds of frequencies, and gains after the rotation, are what the probe copied."""
    model, tokens = families.build(family).bfloat16(), families.tokens(9)
    kept = Capture(model)
    kept.run(tokens, lambda inputs: None)
    asked = kept.layers
    kept.run(tokens, lambda inputs: None)
    assert kept.layers is asked  # what did not change is not asked again
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        if what in name and x.ndim == 1:
            x.data.copy_(x.data.flip(0) * torch.linspace(0.5, 1.5, len(x)))
    ours, fresh = [], []
    kept.run(tokens, lambda inputs: ours.append(inputs.relocated_logits()))
    capture_module._probed.clear()
    again = Capture(model)
    again.run(tokens, lambda inputs: fresh.append(inputs.relocated_logits()))
    assert all(torch.equal(one, other) for one, other in zip(ours, fresh, strict=True))
    for one, other in zip(kept.layers.values(), again.layers.values(), strict=True):
        assert torch.equal(one.rope_layout.order, other.rope_layout.order)


def test_layers_that_turn_alike_share_one_rotation_and_others_do_not():
    alike = Capture(families.build("llama")).layers
    assert alike[0].rope_layout is alike[1].rope_layout
    apart = Capture(families.build("hunyuan_v1_dense")).layers
    assert apart[0].rope_layout is not apart[1].rope_layout


class SoftPrompt(torch.nn.Module):
    """A model with places of its own before the tokens, as prompt tuning puts there."""

    def __init__(self, model, count):
        super().__init__()
        self.model, self.config = model, model.config
        self.soft = torch.nn.Parameter(torch.randn(count, model.config.hidden_size))

    def get_input_embeddings(self):
        return self.model.get_input_embeddings()

    def forward(self, input_ids=None, **options):
        embedded = self.get_input_embeddings()(input_ids)
        both = torch.cat([self.soft.expand(len(embedded), -1, -1), embedded], 1)
        return self.model(inputs_embeds=both, **options)


def test_a_model_that_adds_tokens_of_its_own_is_refused():
    model = SoftPrompt(families.build("llama"), 5).eval()
    with pytest.raises(UnsupportedModelError, match="17 queries for 12 tokens.*soft prompts.*the model inside"):
        Capture(model)
    model.soft.data = model.soft.data[:0]
    capture = Capture(model)
    model.soft.data = torch.randn(2, model.config.hidden_size)
    with pytest.raises(UnsupportedModelError, match="14 queries for 12 tokens"):
        capture.run(families.tokens(9), lambda inputs: None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_changes_nothing(dtype):
    tokens = families.tokens(9)

    def read():
        found = []
        capture = Capture(families.build("llama"))
        logits = capture.run(
            tokens, lambda inputs: found.extend([inputs.relocated_logits(), *inputs.scores(None, 0.1, True)[0]])
        )
        return [logits, *found]

    expected = read()
    with torch.autocast("cpu", dtype=dtype):
        found = read()
        assert torch.is_autocast_enabled("cpu")
    assert all(
        ours.dtype == theirs.dtype and torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True)
    )
