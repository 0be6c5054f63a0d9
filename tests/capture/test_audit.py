"""The audit agrees with correct models of all kinds, and names what a careless loader does to them."""

import copy
import math

import pandas as pd
import pytest
import torch

import possym
from possym.errors import InputError

from . import families

AGREE = (
    "llama", "llama linear", "llama dynamic", "llama yarn", "llama llama3", "llama longrope", "qwen2", "qwen3",
    "mistral", "gemma", "gemma3", "gemma4", "phi", "gpt_neox", "gptj", "smollm3", "cohere2", "llama4", "deepseek_v3",
)  # fmt: skip


@pytest.mark.parametrize("family", AGREE)
def test_a_correct_model_shows_no_difference(family):
    table = possym.rope_audit(families.build(family))
    assert table.differs.tolist() == [""] * len(table)
    assert table.attention.all()
    if family not in ("gptj",):  # whose configuration does not say how it rotates
        assert table.rotates_claimed.notna().all()


def test_what_is_measured_is_what_the_model_was_made_with():
    gemma = possym.rope_audit(families.build("gemma3"))
    assert gemma.base.round(-1).tolist() == [10_000, 1_000_000] == gemma.base_claimed.tolist()
    assert gemma.window[0] == 8 and pd.isna(gemma.window[1])
    assert possym.rope_audit(families.build("phi")).share.tolist() == [0.5, 0.5]
    assert possym.rope_audit(families.build("gpt_neox")).layout.tolist() == ["half"] * 2
    assert possym.rope_audit(families.build("gptj")).layout.tolist() == ["interleaved"] * 2
    yarn = possym.rope_audit(families.build("llama yarn"))
    assert yarn.attention_factor.tolist() == pytest.approx([1 + 0.1 * math.log(4)] * 2)
    longrope = possym.rope_audit(families.build("llama longrope"))
    # 64 tokens are more than the 16 that it was trained on: the long factor, 4 for the slowest plane.
    assert longrope.slowest.tolist() == pytest.approx([1e-3 / 4] * 2)
    short = possym.rope_audit(families.build("llama longrope"), length=16)
    assert short.slowest.tolist() == pytest.approx([1e-3 / 1.2] * 2)
    assert (short.differs == "").all()


def test_low_precision_is_no_difference():
    for family in ("llama yarn", "gemma3"):
        table = possym.rope_audit(families.build(family).to(torch.bfloat16))
        assert (table.differs == "").all(), table.T


def broken(family, change, **options):
    model = families.build(family, **options)
    change(model)
    return possym.rope_audit(model).differs.tolist()


def turn(model, layers):
    for number, layer in enumerate(model.model.layers):
        layer.self_attn.use_rope = int(number in layers)


def plain(model):
    """What a loader does that drops rope_scaling."""
    rotary = model.model.rotary_emb
    rotary.rope_type = "default"
    rotary.inv_freq = rotary.original_inv_freq = 1e4 ** (-torch.arange(0, 8, 2) / 8)
    rotary.attention_scaling = 1.0


def test_layers_that_do_not_rotate_as_claimed():
    claimed = dict(num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0])
    assert broken("smollm3", lambda model: None, **claimed) == [""] * 4
    # 75 % of the layers unrotated instead of 25 %: the list read the wrong way round.
    assert broken("smollm3", lambda model: turn(model, {3}), **claimed) == ["rotates"] * 4
    assert broken("smollm3", lambda model: turn(model, {0, 1, 3}), **claimed) == ["", "", "rotates", "rotates"]


@pytest.mark.parametrize("kind, factor", [("yarn", True), ("longrope", True), ("llama3", False), ("linear", False)])
def test_scaling_that_a_loader_dropped(kind, factor):
    found = broken(f"llama {kind}", plain)
    assert found == ["scaling, slowest" + factor * ", attention_factor"] * 2
    model = families.build(f"llama {kind}")
    plain(model)
    table = possym.rope_audit(model)
    assert table.scaling.tolist() == ["default"] * 2 and table.scaling_claimed.tolist() == [kind] * 2


def test_an_attention_factor_alone():
    def forget(model):
        model.model.rotary_emb.attention_scaling = 1.0

    assert broken("llama yarn", forget) == ["attention_factor"] * 2


def test_another_base_on_one_kind_of_layers():
    def same_base(model):
        rotary = model.model.rotary_emb
        rotary.full_attention_inv_freq = rotary.sliding_attention_inv_freq

    assert broken("gemma3", same_base) == ["", "base, slowest"]


def test_another_share_and_another_window():
    def whole(model):
        model.config.rope_parameters["partial_rotary_factor"] = 1.0

    def wider(model):
        model.config = copy.deepcopy(model.config)  # the model's parts keep the one that they were made with
        model.config.sliding_window = 9

    assert broken("phi", whole) == ["share"] * 2
    assert broken("mistral", wider) == ["window"] * 2
    assert broken("mistral", wider, sliding_window=None) == ["window"] * 2
    table = possym.rope_audit(families.build("mistral"), length=7)  # a window wider than the pass is not seen
    assert table.window.isna().all() and (table.differs == "").all()


@pytest.mark.parametrize("length", [1, 2.5])
def test_a_length_that_is_none_is_refused(length):
    with pytest.raises(InputError, match="length"):
        possym.rope_audit(families.build("llama"), length=length)
