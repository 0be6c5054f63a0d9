"""A plan at work: what a head forgot changes nothing, and the rest of its attention is renormalised."""

import inspect

import pytest
import torch

from possym.errors import InputError, UnsupportedModelError
from possym.kv_cache import CachePlan, applied, holding

from ..capture import families
from ..capture.test_capture import listen

LENGTH = 14
# One of each way: interface, softcap and windows, rotated suffix, sinks, partial, SDPA, a method of its own.
FAMILIES = ["llama", "gemma2", "deepseek_v3", "gpt_oss", "gpt_neox", "gptj", "falcon", "gpt_neox_japanese"]


def shape(model):
    from possym.capture import Capture

    return {number: layer.key_heads for number, layer in Capture(model).layers.items()}


def logits(model, tokens):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


NO_SDPA = ("gemma2", "gpt_oss", "gpt_neox_japanese")


@pytest.mark.parametrize(
    "family, attention", [(f, a) for f in FAMILIES for a in ("eager", "sdpa") if a == "eager" or f not in NO_SDPA]
)
def test_what_is_forgotten_changes_nothing_and_what_is_kept_does(family, attention):
    model = families.build(family, attention=attention)
    heads, tokens = shape(model), families.tokens(LENGTH)
    plan = CachePlan([[2] * count for count in heads.values()], sink=1)
    forgotten, kept = tokens.clone(), tokens.clone()
    forgotten[0, 1 : LENGTH - 1 - len(heads)] = 3  # through the layers, the last query reads back one token in each
    kept[0, LENGTH - 1 - len(heads)] = 3
    plain = logits(model, tokens)
    with applied(model, plan):
        whole, same, other = (logits(model, each) for each in (tokens, forgotten, kept))
    torch.testing.assert_close(whole[:, -1], same[:, -1], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(whole[:, -1], other[:, -1], atol=1e-4)
    assert not torch.allclose(plain[:, -1], whole[:, -1], atol=1e-4)
    torch.testing.assert_close(logits(model, tokens), plain)
    with applied(model, CachePlan([[None] * count for count in heads.values()])):
        torch.testing.assert_close(logits(model, tokens), plain, atol=1e-6, rtol=1e-5)


def test_each_head_keeps_its_own_window_and_the_attention_is_renormalised():
    model, tokens = families.build("llama"), families.tokens(LENGTH)
    plain = next(iter(listen(model, tokens).values()))[1]  # (1, H, T, T) of layer 0
    with applied(model, CachePlan([[3, None], [None, 2]], sink=2)):
        found = next(iter(listen(model, tokens).values()))[1]
    for query in range(LENGTH):
        for head in range(4):
            seen = [key for key in range(query + 1) if head >= 2 or key < 2 or key > query - 3]
            weights = torch.zeros(LENGTH)
            weights[seen] = plain[0, head, query, seen] / plain[0, head, query, seen].sum()
            torch.testing.assert_close(found[0, head, query], weights, atol=1e-6, rtol=1e-5)


HELD = ["llama", "mistral", "qwen2", "qwen3", "olmo2", "gemma", "starcoder2"]


def named(cache):
    """A cache under whichever name this transformers has for it."""
    forward = families.transformers.LlamaForCausalLM.forward
    return {"cache" if "cache" in inspect.signature(forward).parameters else "past_key_values": cache}


def call(model, tokens, cache, **options):
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=True, **named(cache), **options).logits


@pytest.mark.parametrize("family", HELD)
def test_a_cache_that_holds_less_gives_what_the_mask_gives(family):
    model = families.build(family, attention="sdpa", **(dict(sliding_window=None) if family == "mistral" else {}))
    heads, tokens = shape(model), families.tokens(LENGTH, batch=2)
    plan = CachePlan([[3, *[None, 5, 1][: count - 1]] for count in heads.values()], sink=2)
    plain = logits(model, tokens)
    with applied(model, plan):
        expected = logits(model, tokens)
    with holding(model, plan) as cache:
        pieces = tokens.split([9, 3, 1, 1], 1)
        found = torch.cat([call(model, piece, cache) for piece in pieces], 1)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    assert cache.get_seq_length() == LENGTH
    numbers = {x.shape[-1] for layer in cache.layers for group in layer.groups for x in (group.keys, group.values)}
    if len(numbers) == 1:
        assert cache.bytes == 2 * 2 * plan.tokens(LENGTH) * 4 * numbers.pop()
    torch.testing.assert_close(logits(model, tokens), plain)


def test_it_holds_the_bytes_that_transformers_own_cache_does_where_nothing_is_forgotten():
    from transformers import DynamicCache

    model, tokens = families.build("llama", attention="sdpa"), families.tokens(LENGTH)
    own = DynamicCache(config=model.config)
    expected = call(model, tokens, own)
    with holding(model, CachePlan([[None, None]] * 2)) as cache:
        torch.testing.assert_close(call(model, tokens, cache), expected, atol=2e-5, rtol=1e-4)
    assert cache.bytes == sum(x.nbytes for layer in own.layers for x in (layer.keys, layer.values))


def test_text_is_generated_with_it_beams_too():
    model, tokens = families.build("llama", attention="sdpa"), families.tokens(LENGTH)
    plan = CachePlan([[3, None], [2, 4]], sink=1)
    options = dict(max_new_tokens=5, do_sample=False, use_cache=True)
    expected = tokens
    with applied(model, plan):
        for _ in range(5):
            expected = torch.cat([expected, logits(model, expected)[:, -1].argmax(-1, keepdim=True)], 1)
    with holding(model, plan) as cache:
        assert torch.equal(model.generate(tokens, **named(cache), **options), expected)
    with holding(model, plan) as cache:
        assert model.generate(tokens, **named(cache), num_beams=2, **options).shape == expected.shape


@pytest.mark.parametrize("key_heads, dtype", [(1, "float32"), (4, "float32"), (2, "bfloat16"), (2, "float16")])
def test_any_number_of_key_heads_and_any_dtype_is_held(key_heads, dtype):
    kind = getattr(torch, dtype)
    model = families.build("llama", attention="sdpa", num_key_value_heads=key_heads).to(kind)
    plan, tokens = CachePlan([[3, *[None] * (key_heads - 1)]] * 2, sink=2), families.tokens(LENGTH, batch=2)
    with applied(model, plan):
        expected = logits(model, tokens).float()
    with holding(model, plan) as cache:
        found = torch.cat([call(model, piece, cache) for piece in tokens.split([9, 5], 1)], 1).float()
    assert (found - expected).abs().max() < max(2e-5, 4 * torch.finfo(kind).eps) * expected.abs().max()
    assert cache.bytes == 2 * 2 * plan.tokens(LENGTH) * 8 * kind.itemsize


def mask_with_a_hole(length=LENGTH):
    mask = torch.ones(1, length, dtype=torch.long)
    mask[0, 0] = 0
    return mask


def padded(model):
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache, attention_mask=mask_with_a_hole())


def padded_later(model):
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache)
        call(model, families.tokens(1), cache, attention_mask=mask_with_a_hole(LENGTH + 1))


def padded_under_the_mask(model):
    with applied(model, CachePlan([[None, 2]] * 2)):
        model(input_ids=families.tokens(LENGTH), attention_mask=mask_with_a_hole(), use_cache=False)


def in_another_batch(model):
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH, batch=2), cache)
        call(model, families.tokens(1), cache)


def after_leaving(model):
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache)
    call(model, families.tokens(1), cache)


def cropped(model):
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache)
        cache.crop(3)


def nested(outer, inner):
    def attempt(model):
        with outer(model, CachePlan([[None, 2]] * 2)), inner(model, CachePlan([[2, None]] * 2)):
            pass

    return attempt


def compressed(model):
    model = families.build("deepseek_v3", attention="sdpa")
    with holding(model, CachePlan([[2] * 4] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache)


def without_the_cache(model):
    with holding(model, CachePlan([[None, 2]] * 2)):
        model(input_ids=families.tokens(LENGTH), use_cache=False)


def asked_for_weights(model):
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache, output_attentions=True)


def set_to_give_weights(model):
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache)


def test_a_call_that_asks_for_no_weights_counts_before_the_configuration():
    model, plan = families.build("llama"), CachePlan([[None, 2]] * 2)
    tokens = families.tokens(LENGTH)
    with holding(model, plan) as cache:
        expected = call(model, tokens, cache)
    model.set_attn_implementation("eager")
    model.config.output_attentions = True
    with holding(model, plan) as cache:
        assert torch.equal(call(model, tokens, cache, output_attentions=False), expected)


def with_earlier_tokens(model):
    with applied(model, CachePlan([[None, 2]] * 2)):
        state = model(input_ids=families.tokens(LENGTH), use_cache=True)
        call(model, families.tokens(1), getattr(state, "cache", None) or state.past_key_values)


REFUSED = [
    (lambda model: applied(model, CachePlan([[2, 2]])).__enter__(), InputError, "the plan has 1 layers of 2 key heads"),
    (lambda model: applied(model, "plan").__enter__(), InputError, "plan is of type str"),
    (with_earlier_tokens, InputError, "whole prompt at once"),
    (without_the_cache, InputError, "call it with the cache"),
    (asked_for_weights, InputError, "gives no attention weights"),
    (set_to_give_weights, InputError, "gives no attention weights"),
    (padded, InputError, "without padding"),
    (padded_later, InputError, "without padding"),
    (padded_under_the_mask, InputError, "without padding"),
    (in_another_batch, InputError, "the cache holds a batch of 2, this call has 1"),
    (after_leaving, InputError, "a plan's cache works within `holding` alone"),
    (cropped, InputError, "cannot be cropped"),
    (nested(holding, holding), InputError, "held by a plan's cache already"),
    (nested(holding, applied), InputError, "or leave `holding`"),
    (nested(applied, holding), InputError, "being read already"),
    (compressed, UnsupportedModelError, "does not cache the keys that it attends with"),
    (
        lambda model: holding(families.build("gemma3"), CachePlan([[2, 2]] * 2)).__enter__(),
        UnsupportedModelError,
        "has sliding windows, which this cache does not hold",
    ),
]


@pytest.mark.parametrize("attempt, error, message", REFUSED)
def test_what_cannot_be_applied_or_held_is_refused(attempt, error, message):
    with pytest.raises(error, match=message):
        attempt(families.build("llama", attention="sdpa"))
