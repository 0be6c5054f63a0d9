"""Columns, held tokens, queries and layers of a profile against whole passes of the model, computed another way."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

import possym
from possym.capture import Capture
from possym.errors import InputError
from possym.profiling.prompts import Prompt, read_holds
from possym.scores import swap_scores

from ..capture import families
from .test_profiling import tokenizer

LENGTH = 10
FAMILIES = ["llama", "gemma2", "gpt_oss", "falcon"]


def profile(model, prompts, **options):
    return possym.profile(model, prompts, progress=False, **options)


def attention_of(model, tokens):
    """The model's own attention (layers, B, H, T, T) of an eager pass."""
    with torch.no_grad():
        return torch.stack(model(tokens, output_attentions=True, use_cache=False).attentions).double()


def by_moving_contents(model, tokens, query, held, blocks, temperature, relative):
    """Scores of every layer and head from the matrix of all keys' logits, the held ones taken out of it by hand.

    The logits of the keys come from relocating every key that the query sees; the weights are those of a loop over
    pairs.
    """
    found, seen = [], []
    Capture(model).run(tokens, seen.append, query=query)
    for inputs in sorted(seen, key=lambda inputs: inputs.layer):
        positions = inputs.moved.tolist()
        stay = [k for k, position in enumerate(positions) if position in held]
        move = [k for k, position in enumerate(positions) if position not in held]
        whole = inputs.relocated_logits()[0].double()
        extra = torch.cat([inputs.extra_logits()[0].double(), whole.diagonal(dim1=1, dim2=2)[:, stay]], -1)
        part = whole[:, move][:, :, move]
        spans = None
        if blocks is not None:
            moved = [[move.index(positions.index(k)) for k in range(*span) if k not in held] for span in blocks]
            spans = [(keys[0], keys[-1] + 1) for keys in moved if keys]
        scores = swap_scores(part, extra_logits=extra, blocks=spans, temperature=temperature, relative=relative)
        everything = torch.cat([part.diagonal(dim1=1, dim2=2), extra], -1).softmax(-1)[:, : len(move)]
        attended = everything
        if spans is not None:
            attended = torch.stack([everything[:, a:b].mean(-1) for a, b in spans], -1)
        gaps = torch.stack([(attended[:, i] - attended[:, j]).abs() for i, j in pairs(attended.shape[-1])], -1)
        alpha = gaps ** (1 / temperature) if relative else (gaps / temperature).softmax(-1)
        alpha = alpha / alpha.sum(-1, keepdim=True)
        found.append(torch.stack([*scores, torch.special.entr(alpha).sum(-1).exp()], -1))
    return torch.stack(found)


def replayed():
    """A model whose rotation no planes explain, so that the model itself is asked for every key at every position."""
    model = families.build("hunyuan_v1_dense")
    for layer in model.model.layers:
        layer.self_attn.key_layernorm = torch.nn.Linear(8, 8, bias=False)
    return families.randomise(model, 3)


def pairs(count):
    return list(itertools.combinations(range(count), 2))


def column(table, name):
    """A column of one prompt's heads as (layers, heads)."""
    return torch.tensor(table[name].to_numpy()).reshape(table.layer.nunique(), -1)


@pytest.mark.parametrize("family", [*FAMILIES, "replayed"])
@pytest.mark.parametrize("held, blocks", [((), None), ((0, 3), None), ((3,), [(2, 4), (5, 6), (6, 8)])], ids=str)
def test_shares_and_distance_are_those_of_the_models_own_attention(family, held, blocks):
    model = replayed() if family == "replayed" else families.build(family)
    tokens, query = families.tokens(LENGTH), 8
    table = profile(model, tokens, query=query, hold=list(held) or None, blocks=blocks or "tokens").heads
    row = attention_of(model, tokens)[:, 0, :, query]
    seen = row > 0
    moved = [key for key in range(query) if key not in held]
    swapped = moved if blocks is None else [key for span in blocks for key in range(*span) if key not in held]
    assert column(table, "attention_moved") == pytest.approx(row[..., swapped].sum(-1), abs=1e-5)
    assert column(table, "attention_first") == pytest.approx(row[..., 0], abs=1e-5)
    assert column(table, "attention_self") == pytest.approx(row[..., query], abs=1e-5)
    back = torch.arange(query, query - LENGTH, -1)
    assert column(table, "distance") == pytest.approx((row * back).sum(-1) / row.sum(-1), abs=1e-3)
    assert (column(table, "moved") == seen[..., moved].sum(-1)).all()


@pytest.mark.parametrize("family", [*FAMILIES, "replayed"])
@pytest.mark.parametrize(
    "held, blocks, temperature, relative",
    [
        ((), None, 0.05, False),
        ((2, 3, 4), None, 1.0, True),
        ((0, 5), [(0, 3), (3, 6), (6, 9)], 0.5, True),
        ((0,), [(0, 3), (3, 6), (6, 9)], 0.05, False),
    ],
    ids=str,
)
def test_held_tokens_are_attended_and_never_moved(family, held, blocks, temperature, relative):
    options = dict(sliding_window=64) if family in ("gemma2", "gpt_oss") else {}
    model = replayed() if family == "replayed" else families.build(family, **options)
    tokens = families.tokens(LENGTH)
    expected = by_moving_contents(model, tokens, LENGTH - 1, held, blocks, temperature, relative)
    table = profile(
        model, tokens, hold=list(held) or None, blocks=blocks or "tokens", temperature=temperature, relative=relative
    ).heads
    names = ("positional", "symbolic", "entropy", "effective_swaps")
    found = torch.stack([column(table, name) for name in names], -1)
    assert found.numpy() == pytest.approx(expected.numpy(), abs=2e-4, rel=2e-3)


@pytest.mark.parametrize("blocks", [None, [(0, 3), (4, 6), (6, 9)]], ids=str)
def test_planes_hold_tokens_too(blocks):
    model, tokens, held = families.build("llama"), families.tokens(LENGTH), [1, 7]
    table = profile(model, tokens, hold=held, blocks=blocks or "tokens", per_frequency=True).frequencies
    seen = []
    Capture(model).run(tokens, seen.append)
    for inputs in seen:
        whole = inputs.relocated_logits(per_plane=slice(None))[0].double()
        own = inputs.unmoved_logits(per_plane=slice(None))[0].double()
        move = [k for k in range(LENGTH - 1) if k not in held]
        extra = torch.cat([own, whole.diagonal(dim1=-2, dim2=-1)[..., held]], -1)
        part = whole[..., move, :][..., move]
        spans = blocks and [(0, 2), (3, 5), (5, 7)]  # tokens 1 and 7 are taken out
        expected = swap_scores(part, extra_logits=extra, blocks=spans, temperature=1.0, relative=True)
        rows = table[table.layer == inputs.layer]
        for name in ("positional", "symbolic", "entropy"):
            found = rows[name].to_numpy().reshape(whole.shape[:2])
            assert found == pytest.approx(getattr(expected, name).numpy(), abs=2e-4)


def test_a_held_first_token_keeps_its_attention_and_leaves_the_swaps():
    model = families.build("llama")
    free, held = (profile(model, families.tokens(LENGTH), hold=hold).heads for hold in (None, "first"))
    assert (held.moved == free.moved - 1).all()
    assert held.attention_first.to_numpy() == pytest.approx(free.attention_first.to_numpy(), abs=1e-6)
    assert held.entropy.to_numpy() == pytest.approx(free.entropy.to_numpy(), abs=1e-5)
    assert (held.positional - free.positional).abs().max() > 0.01


@pytest.mark.parametrize("family", ["llama", "mistral", "falcon"])
def test_all_queries_of_a_prompt_equal_each_query_alone(family):
    model, tokens = families.build(family), families.tokens(LENGTH, batch=2)
    options = dict(per_frequency=family != "falcon", hold="first")
    every = profile(model, tokens, query="all", **options)
    assert sorted(every.heads["query"].unique()) == list(range(2, LENGTH))
    for query in (2, 5, LENGTH - 1):
        if query == 2:  # one key is held, one is left: nothing to swap
            rows = every.heads[every.heads["query"] == query]
            assert rows.positional.isna().all() and rows.symbolic.isna().all() and (rows.moved == 1).all()
            continue
        alone = profile(model, tokens, query=query, **options)
        for name in ("heads", "frequencies", "prompts"):
            table = getattr(every, name)
            rows = table[table["query"] == query].reset_index(drop=True)
            pd.testing.assert_frame_equal(rows, getattr(alone, name), atol=1e-5)
    assert len(every.prompts) == 2 * (LENGTH - 2) and "16 queries" in repr(every)


def test_queries_are_one_list_for_one_prompt_and_a_list_of_lists_for_several():
    model, tokens = families.build("llama"), families.tokens(LENGTH, batch=2)
    one = profile(model, tokens[0], query=[-1, 4])
    assert one.prompts["query"].tolist() == [4, LENGTH - 1]
    both = profile(model, tokens, query=[[4, -1], 7])
    assert both.prompts[["prompt", "query"]].to_numpy().tolist() == [[0, 4], [0, LENGTH - 1], [1, 7]]
    rows = both.heads[both.heads.prompt == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(rows, one.heads, atol=1e-5)


def test_blocks_end_before_each_query():
    model, tokens = families.build("llama"), families.tokens(LENGTH)
    spans = [(0, 2), (2, 4), (4, 6), (6, 9)]
    both = profile(model, tokens, query=[6, 9], blocks=spans)
    assert both.prompts.blocks.tolist() == [3, 4]
    early = both.heads[both.heads["query"] == 6].reset_index(drop=True)
    pd.testing.assert_frame_equal(early, profile(model, tokens, query=6, blocks=spans[:3]).heads, atol=1e-5)


def test_layers_can_be_chosen():
    model, tokens = families.build("llama", num_hidden_layers=3), families.tokens(LENGTH)
    every, some = profile(model, tokens), profile(model, tokens, layers=[2, 0], per_frequency=True)
    chosen = every.heads[every.heads.layer != 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(some.heads, chosen, atol=1e-6)
    assert some.frequencies.layer.unique().tolist() == [0, 2] and len(some.coverage) == 3
    assert some.settings["layers"] == [0, 2]


def test_a_head_of_keys_is_the_mean_of_its_query_heads():
    result = profile(families.build("llama"), families.tokens(LENGTH, batch=3))
    table = result.summary(by="key_head")
    cube = result.heads.symbolic.to_numpy().reshape(3, 2, 2, 2).mean(-1)
    assert table.symbolic.to_numpy() == pytest.approx(cube.mean(0).ravel())
    assert table.symbolic_sd.to_numpy() == pytest.approx(cube.std(0, ddof=1).ravel())
    assert table.key_head.tolist() == [0, 1, 0, 1]
    with pytest.raises(InputError, match="'head' or 'key_head'"):
        result.summary(by="layer")


def test_holds_are_read_as_python_reads_positions_and_slices():
    prompt = [Prompt(list(range(3, 13)))]
    for hold, expected in (
        ("first", [0]), (-1, [9]), ([1, -2], [1, 8]), ([(2, 5)], [2, 3, 4]), ([(-3, -1), 0], [0, 7, 8]),
        (np.array([4, 4]), [4]), (range(2), [0, 1]), (None, []),
    ):  # fmt: skip
        assert read_holds(hold, prompt) == [tuple(expected)], hold


def test_a_prediction_is_missing_where_logits_are_no_numbers():
    model, tokens = families.build("llama"), families.tokens(LENGTH)
    with torch.no_grad():
        model.lm_head.weight[5] = torch.nan
    result = profile(model, tokens, answers=[3])
    assert result.prompts.predicted.isna().all() and result.prompts.correct.isna().all()


def test_another_default_device_changes_nothing():
    model, tokens = families.build("llama"), families.tokens(LENGTH)
    expected = profile(model, tokens, blocks=[(0, 3), (3, 6)], hold="first", per_frequency=True)
    with torch.device("meta"):
        found = profile(model, tokens, blocks=[(0, 3), (3, 6)], hold="first", per_frequency=True)
    pd.testing.assert_frame_equal(found.heads, expected.heads)


def test_charts_fade_heads_that_hardly_attend_to_what_moves():
    result = profile(families.build("llama"), families.tokens(LENGTH, batch=2))
    assert "faint" not in result.plane().to_dict()["title"]["subtitle"]
    result.heads.loc[result.heads["head"] == 1, "attention_moved"] = 0.01
    plane, heat = result.plane().to_dict(), result.heatmap().to_dict()
    assert "2 faint: below 5 % of attention on what is moved" in plane["title"]["subtitle"]
    assert any("2 faint" in line for line in heat["title"]["subtitle"])
    shown = plane["encoding"]["opacity"]["condition"]
    assert shown["field"] == heat["hconcat"][0]["encoding"]["opacity"]["field"] == "attention_moved"
    assert shown["scale"]["domain"] == [0, 0.05] and shown["scale"]["clamp"]
    rows = next(iter(plane["datasets"].values()))
    assert [row["attention_moved"] for row in rows] == pytest.approx(result.summary().attention_moved.tolist())


def test_one_head_is_spoken_of_as_one():
    model = families.build("llama", num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1)
    one = profile(model, families.tokens(LENGTH), per_frequency=True)
    text = repr(one)
    assert "1 head in 1 layer, 1 of 1 layer rotates" in text and "nan" not in text
    assert "nan" not in str(one.plane().to_dict()["title"])
    axis = one.frequency_profile(0, 0).to_dict()["vconcat"][0]["layer"][0]["encoding"]["x"]["axis"]
    assert axis["format"] == "d" and axis["tickMinStep"] == 1


def test_a_printed_summary_shows_both_scores_in_a_narrow_terminal():
    summary = profile(families.build("llama"), families.tokens(LENGTH)).summary()
    with pd.option_context("display.width", 80, "display.max_columns", 0):
        text = str(summary)
    assert "positional" in text and "symbolic" in text and "layer" in text


def test_layers_without_frequencies_say_why():
    found = profile(replayed(), families.tokens(LENGTH), per_frequency=True)
    with pytest.raises(InputError, match="turns no pairs of dimensions"):
        found.frequency_profile(0, 0)
    still = profile(families.build("smollm3"), families.tokens(LENGTH), per_frequency=True)
    layer = int(still.coverage.layer[~still.coverage.rotates].iloc[0])
    with pytest.raises(InputError, match=f"layer {layer} does not rotate"):
        still.frequency_profile(layer, 0)


def test_a_held_token_stays_behind_when_its_sentence_moves():
    words = tokenizer(bos=False)
    text = "Alice likes red . Bob likes blue .\nCarol likes green . Who likes red ? Bob"
    model = families.build("llama")
    found = profile(model, text, tokenizer=words, blocks="sentences", hold="first")
    spans = [(1, 4), (4, 8), (8, 12), (12, 16)]
    expected = profile(model, words(text)["input_ids"], blocks=spans, hold=np.array([0]))
    pd.testing.assert_frame_equal(found.heads, expected.heads)
    assert found.settings["hold"] == "first" and expected.settings["hold"] == [0]


def test_a_tokenizer_need_only_be_callable():
    def read(text, add_special_tokens):
        return {"input_ids": [1, 3, 6, 7, 10]}

    model, words = families.build("llama"), tokenizer()
    plain = profile(model, "Alice likes red .", tokenizer=read)
    pd.testing.assert_frame_equal(plain.heads, profile(model, "Alice likes red .", tokenizer=words).heads)
