"""Edited frequencies against logits put together plane by plane, and known heads against the models' own attention."""

import numpy as np
import pytest
import torch

from possym.capture import Capture
from possym.capture.edits import ablate_frequencies
from possym.capture.known_heads import known_heads, repeated_tokens
from possym.errors import InputError, UnsupportedModelError
from possym.models import hub

from . import families
from .test_capture import listen, state

LENGTH = 12
FAMILIES = [
    "llama yarn",
    "gpt_neox",
    "gemma2",
    "gpt_oss",
    "hunyuan_v1_dense",
    "deepseek_v3",
    "gptj",
    "gpt_neox_japanese",
]


def first_layer(model, tokens):
    found = []
    Capture(model).run(tokens, found.append)
    return found[0]


def share(inputs, plane, how):
    """One plane's share (H, N + 1) of the logits of moved keys and the query's own, as it is or unrotated."""
    moved = inputs.relocated_logits(per_plane=slice(plane, plane + 1)).diagonal(dim1=-2, dim2=-1)[0, :, 0]
    own = inputs.unmoved_logits(per_plane=slice(plane, plane + 1))[0, :, 0]
    if how == "as it is":
        return torch.cat([moved, own], -1)
    # Unrotated: turn the query back to its content and multiply, key by key.
    count, place = len(inputs.angles), inputs.query_position
    q = torch.stack([inputs.query[0, :, plane], inputs.query[0, :, plane + count]], -1)
    cos, sin = inputs.cos[place, plane], inputs.sin[place, plane]
    scale = cos**2 + sin**2
    q = torch.stack([q[:, 0] * cos + q[:, 1] * sin, q[:, 1] * cos - q[:, 0] * sin], -1) / scale
    keys = inputs.keys[0][:, :, [plane, plane + count]].repeat_interleave(inputs.heads // inputs.keys.shape[1], 0)
    return (keys[:, [*inputs.moved.tolist(), place]] @ q.unsqueeze(-1)).squeeze(-1) * inputs.scale


# Where a gain follows the rotation (hunyuan), unrotated planes are covered by the order test below.
CASES = [(f, how) for f in FAMILIES for how in ("silence", "unrotate") if (f, how) != ("hunyuan_v1_dense", "unrotate")]


@pytest.mark.parametrize("family, how", CASES)
def test_edited_heads_attend_by_the_planes_that_are_left(family, how):
    model = families.build(family, **(dict(attn_logit_softcapping=20.0) if family == "gemma2" else {}))
    tokens = families.tokens(LENGTH)
    inputs = first_layer(model, tokens)
    before = listen(model, tokens)
    with ablate_frequencies(model, [2, 1], heads={0: [1, 2]}, mode=how):
        after = listen(model, tokens)
    module = next(m for m in before if m.layer_idx == 0)
    keys = [*inputs.moved.tolist(), inputs.query_position]
    logits = [inputs.relocated_logits().diagonal(dim1=-2, dim2=-1)[0], inputs.unmoved_logits()[0]]
    logits = torch.cat(logits, -1)
    cap = inputs.softcap
    logits = logits if cap is None else cap * torch.atanh(logits / cap)
    for plane in (0, 1):
        change = -share(inputs, plane, "as it is")
        if how == "unrotate":
            change = change + share(inputs, plane, how)
        logits[1:3] += change[1:3]
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    if inputs.sinks is not None:
        logits = torch.cat([logits, inputs.sinks[:, None]], -1)
    expected = logits.softmax(-1)[:, : len(keys)]
    torch.testing.assert_close(after[module][1][0, :, -1, keys], expected, atol=1e-5, rtol=0)
    gap = (after[module][1] - before[module][1]).abs().amax((0, 2, 3))
    assert gap[1:3].min() > 1e-4 and gap[[0, 3]].max() == 0


@pytest.mark.parametrize("family", [*FAMILIES, "falcon", "cohere"])
def test_a_layer_that_never_turns_does_not_see_order(family):
    more = dict(layer_types=["full_attention"]) if family in ("gemma2", "gpt_oss") else {}
    model = families.build(family, num_hidden_layers=1, **more)
    tokens = families.tokens(LENGTH)
    moved = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    count = len(first_layer(model, tokens).angles)
    with torch.no_grad():
        plain = [model(t, use_cache=False).logits[:, -1] for t in (tokens, moved)]
        with ablate_frequencies(model, range(1, count + 1), mode="unrotate"):
            edited = [model(t, use_cache=False).logits[:, -1] for t in (tokens, moved)]
    assert (plain[0] - plain[1]).abs().max() > 1e-3
    torch.testing.assert_close(*edited, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["llama", "falcon", "gptj"])
def test_the_model_is_left_as_found_even_after_an_exception(family):
    model = families.build(family).train()
    before = state(model)
    with pytest.raises(RuntimeError, match="inside"), ablate_frequencies(model, [1]):
        model(families.tokens(), use_cache=False)
        raise RuntimeError("inside")
    assert state(model) == before


def test_gradients_flow_through_an_edited_model():
    model = families.build("llama")
    with ablate_frequencies(model, [1, 3], mode="unrotate"):
        model(families.tokens(), use_cache=False).logits.sum().backward()
    assert model.model.layers[0].self_attn.k_proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(frequencies=[0]), "from 1, the fastest, to 4"),
        (dict(frequencies=[5]), "from 1, the fastest, to 4"),
        (dict(frequencies=[]), "frequency IDs"),
        (dict(frequencies=[True]), "frequency IDs"),
        (dict(mode="remove"), "known modes"),
        (dict(heads={5: [0]}), "layer 5 has no attention"),
        (dict(heads={0: [4]}), "heads from 0 to 3"),
        (dict(heads={0: 1}), "heads from 0 to 3"),
        (dict(heads=[0]), "heads"),
    ],
)
def test_bad_edits_are_refused(options, message):
    arguments = dict(frequencies=[1]) | options
    with pytest.raises(InputError, match=message), ablate_frequencies(families.build("llama"), **arguments):
        pass


def test_layers_without_planes_are_refused():
    with pytest.raises(UnsupportedModelError, match="layer 1 does not rotate"):
        with ablate_frequencies(families.build("smollm3"), [1], heads={1: [0]}):
            pass


def test_unrotating_refuses_a_cache():
    model = families.build("llama")
    with ablate_frequencies(model, [1], mode="unrotate"), pytest.raises(InputError, match="use_cache=False"):
        model.generate(families.tokens(), max_new_tokens=2, do_sample=False)


@pytest.mark.parametrize("beginning", [None, np.int64(5)])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "mistral"])
def test_known_heads_are_averages_of_the_models_own_attention(family, beginning):
    """A beginning-of-text token shifts all places by one; it is attended to, but its own attention does not count."""
    model = families.build(family)
    tokens = repeated_tokens(3, 8, 64, beginning=beginning)
    start = tokens.shape[1] - 16
    assert (tokens[:, :start] == 5).all() and start == (beginning is not None)
    assert start == 0 or not (tokens[:, start:] == 5).any()
    table = known_heads(model, tokens)
    for module, (_, weights) in listen(model, tokens).items():
        rows = table[table.layer == module.layer_idx]
        for head in range(4):
            w = weights[:, head]
            previous = np.mean([[w[b, i, i - 1] for i in range(start + 1, start + 16)] for b in range(3)])
            induction = np.mean([[w[b, i, i - 7] for i in range(start + 8, start + 16)] for b in range(3)])
            row = rows[rows["head"] == head].iloc[0]
            assert (row.previous_token, row.induction) == pytest.approx((previous, induction), abs=1e-5)


def test_a_real_model_has_both_kinds_and_they_are_different_heads():
    model, _ = hub.load(device="cpu")
    table = known_heads(model, repeated_tokens(4, 24, 40_000))
    assert table.previous_token.max() > 0.5 and table.induction.max() > 0.5
    assert table.loc[table.induction.idxmax()].previous_token < 0.2
    assert table.loc[table.induction.idxmax()].layer > table.loc[table.previous_token.idxmax()].layer


def test_bad_sequences_are_refused():
    model = families.build("llama")
    for tokens in (torch.arange(8), torch.arange(8)[None], torch.arange(5)[None], [[1, 2, 1, 2]]):
        with pytest.raises(InputError, match="tokens"):
            known_heads(model, tokens)
    for arguments in ((0, 4, 9), (1, 1, 9), (1, 10, 9)):
        with pytest.raises(InputError, match="give a whole number"):
            repeated_tokens(*arguments)
    for vocabulary, beginning in ((9, 9), (9, -1), (4, 0), (9, "<s>")):
        with pytest.raises(InputError, match="give a whole number"):
            repeated_tokens(1, 4, vocabulary, beginning=beginning)
