"""Queries and keys taken out of a model by hand score as `possym.profile` scores the model."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as turn_gptj
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as turn_llama

import possym
from possym import rope
from possym.errors import InputError
from possym.models import hub

from ..capture import families

LENGTH = 20
COLUMNS = ["positional", "symbolic", "entropy", "variance", "bound", "attention_moved", "attention_first", "distance"]


def states(model, layer):
    """The hidden states that a layer's attention reads (T, E), its module, and the tokens."""
    ids = families.tokens(LENGTH)
    blocks = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    norm = blocks[layer].ln_1 if hasattr(model, "transformer") else blocks[layer].input_layernorm
    attention = blocks[layer].attn if hasattr(model, "transformer") else blocks[layer].self_attn
    kept = []
    hook = norm.register_forward_hook(lambda module, args, output: kept.append(output[0]))
    with torch.no_grad():
        model(ids)
    hook.remove()
    return kept[0], attention, ids[0]


def by_head(projected):
    return projected.unflatten(-1, (-1, 8)).transpose(0, 1)  # (H, T, D)


def llama(layer):
    """Queries and keys of a Llama layer before and after transformers' own rotation."""
    model = families.build("llama")
    hidden, attention, ids = states(model, layer)
    with torch.no_grad():
        before = by_head(attention.q_proj(hidden)), by_head(attention.k_proj(hidden))
        cos, sin = model.model.rotary_emb(hidden[None], torch.arange(LENGTH)[None])
        after = [x[0] for x in turn_llama(before[0][None], before[1][None], cos, sin)]
    return model, ids, before, after, dict(base=10000.0, layout="half")


def gptj(layer):
    """The same of GPT-J, of whose 8 dimensions 4 rotate, in neighbouring pairs."""
    model = families.build("gptj")
    hidden, attention, ids = states(model, layer)
    with torch.no_grad():
        before = by_head(attention.q_proj(hidden)), by_head(attention.k_proj(hidden))
        sin, cos = model.transformer.rotary_emb.embed_positions[:LENGTH][None].chunk(2, -1)
        after = []
        for x in before:
            turned = turn_gptj(x.transpose(0, 1)[None, ..., :4], sin, cos)[0].transpose(0, 1)
            after.append(torch.cat([turned, x[..., 4:]], -1))
    return model, ids, before, after, dict(frequencies=[1.0, 0.01], layout="interleaved")


@pytest.mark.parametrize("family", [llama, gptj])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("options", [{}, dict(blocks=[(1, 5), (5, 9), (12, 15)]), dict(hold=[0], query_position=13)])
def test_scores_are_those_of_the_profile(family, rotated, options):
    model, ids, before, after, how = family(1)
    queries, keys = after if rotated else before
    found = possym.scores_from(queries, keys, rotated=rotated, **how, **options)
    theirs = {dict(query_position="query").get(name, name): value for name, value in options.items()}
    heads = possym.profile(model, [ids.tolist()], **theirs).heads
    expected = heads[heads.layer == 1].reset_index(drop=True)
    assert found["head"].tolist() == expected["head"].tolist()
    np.testing.assert_allclose(found[COLUMNS], expected[COLUMNS], atol=1e-6, rtol=2e-6)
    assert found[["purity", "moved"]].equals(expected[["purity", "moved"]])
    assert set(found) == set(expected) - {"prompt", "query", "layer"}


def test_a_mask_a_softcap_and_a_scale_of_ones_own():
    model = families.build("gemma2")
    hidden, attention, ids = states(model, 0)
    with torch.no_grad():
        queries, keys = by_head(attention.q_proj(hidden)), by_head(attention.k_proj(hidden))
    found = possym.scores_from(
        queries[:, -1].numpy(), keys.numpy(), rotated=False, base=10000, softcap=2.0, scale=8**-0.5,
        visible=np.arange(LENGTH) > LENGTH - 9,
    )  # fmt: skip
    expected = possym.profile(model, [ids.tolist()]).heads.query("layer == 0")
    np.testing.assert_allclose(found[COLUMNS], expected[COLUMNS], atol=1e-6, rtol=2e-6)


def test_the_factor_of_yarn_lengthens_queries_and_keys():
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(4, 8, generator=generator), torch.randn(2, 9, 8, generator=generator)
    options = dict(rotated=False, base=1e4)
    long = possym.scores_from(queries, keys, attention_factor=1.2, **options)
    pd.testing.assert_frame_equal(long, possym.scores_from(1.2 * queries, 1.2 * keys, **options))
    from possym import rope

    turned = [1.2 * rope.rotate(x.double(), at, rope.frequencies(8), "half") for x, at in
              ((queries, 8), (keys, torch.arange(9)))]  # fmt: skip
    after = possym.scores_from(*turned, rotated=True, base=1e4, attention_factor=1.2)
    pd.testing.assert_frame_equal(long, after)


def test_arrays_of_a_real_model_score_as_its_profile():
    """SmolLM2's queries as its layer makes them, and its keys as its cache keeps them, rotated."""
    model, words = hub.load(device="cpu")
    ids = words("Alice likes red. Bob likes blue. What does Bob like? Bob likes", return_tensors="pt").input_ids
    attention, kept = model.model.layers[17].self_attn, {}
    for name in ("q_proj", "k_proj"):
        module = getattr(attention, name)
        module.register_forward_hook(lambda _, given, output, name=name: kept.update({name: output[0]}))
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    base, width = model.config.rope_parameters["rope_theta"], attention.head_dim
    queries, keys = (kept[name].unflatten(-1, (-1, width)).transpose(0, 1) for name in ("q_proj", "k_proj"))
    table = possym.scores_from(queries.numpy(), keys.numpy(), rotated=False, base=base, hold=[0])
    expected = possym.profile(model, ids, hold="first", layers=[17], progress=False).heads
    np.testing.assert_allclose(table[COLUMNS], expected[COLUMNS], atol=2e-5, rtol=2e-5)
    turned = rope.rotate(queries[:, -1], ids.shape[1] - 1, rope.frequencies(width, base), "half")
    again = possym.scores_from(turned, cache.layers[17].keys[0], rotated=True, base=base, hold=[0])
    np.testing.assert_allclose(again[COLUMNS], expected[COLUMNS], atol=2e-5, rtol=2e-5)


Q, K = np.ones((4, 8)), np.ones((2, 9, 8))


@pytest.mark.parametrize(
    "arrays, options, message",
    [
        ((Q, K[0]), {}, r"queries \(4, 8\) and keys \(9, 8\)"),
        ((Q[:, :6], K), {}, "do not fit"),
        ((np.ones((4, 7, 8)), K), {}, "do not fit"),
        ((Q[:3], K), {}, "multiple"),
        ((Q * np.nan, K), {}, "not finite"),
        ((Q, K), dict(frequencies=[1.0]), "either base"),
        ((Q, K), dict(base=None, frequencies=[1.0] * 5), "at most half"),
        ((Q, K), dict(layout="quarter"), "known layouts"),
        ((Q, K), dict(rotated="yes"), "rotated"),
        ((Q, K), dict(query_position=9), "among the 9 tokens"),
        ((Q, K), dict(query_position=1), "fewer than two keys"),
        ((Q + 1j, K), {}, "complex"),
        ((torch.tensor(Q) + 1j, K), {}, "complex"),
        ((Q * 1e200, K * 1e200), {}, "logits overflow"),
        ((Q, K), dict(hold=[20]), "hold"),
        ((Q, K), dict(hold="last"), "hold = 'last': give 'first'"),
        ((Q, K), dict(hold=None), "hold = None"),
        ((Q, K), dict(blocks="sentences"), "blocks = 'sentences'"),
        ((Q, K), dict(blocks=3), "blocks = 3"),
        ((Q, K), dict(visible=[1] * 9), "booleans"),
        ((Q, K), dict(scale=0), "scale"),
        ((Q, K), dict(temperature="hot"), "temperature"),
        ((Q, K), dict(blocks=[(0, 3)]), "block"),
    ],
)
def test_what_does_not_fit_is_refused(arrays, options, message):
    with pytest.raises(InputError, match=message):
        possym.scores_from(*arrays, **dict(rotated=False, base=1e4) | options)


def test_hold_and_blocks_are_said_as_to_profile():
    score = functools.partial(possym.scores_from, Q, K, rotated=False, base=1e4)
    wanted = score(hold=[0])
    for hold in ("first", 0, np.int64(0), range(1)):
        pd.testing.assert_frame_equal(score(hold=hold, blocks="tokens"), wanted)
