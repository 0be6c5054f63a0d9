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


def padded(model):
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[0, 0] = 0
    with holding(model, CachePlan([[None, 2]] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache, attention_mask=mask)


def compressed(model):
    model = families.build("deepseek_v3", attention="sdpa")
    with holding(model, CachePlan([[2] * 4] * 2)) as cache:
        call(model, families.tokens(LENGTH), cache)


def without_the_cache(model):
    with holding(model, CachePlan([[None, 2]] * 2)):
        model(input_ids=families.tokens(LENGTH), use_cache=False)


def with_earlier_tokens(model):
    with applied(model, CachePlan([[None, 2]] * 2)):
        state = model(input_ids=families.tokens(LENGTH), use_cache=True)
        call(model, families.tokens(1), getattr(state, "cache", None) or state.past_key_values)


REFUSED = [
    (lambda model: applied(model, CachePlan([[2, 2]])).__enter__(), InputError, "the plan has 1 layers of 2 key heads"),
    (lambda model: applied(model, "plan").__enter__(), InputError, "plan is of type str"),
    (with_earlier_tokens, InputError, "whole prompt at once"),
    (without_the_cache, InputError, "call it with the cache"),
    (padded, InputError, "without padding"),
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
