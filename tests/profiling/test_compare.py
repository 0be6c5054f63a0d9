"""Comparisons of two profiles: a planted change is found where it is, nothing where nothing changed."""

import copy
import math

import numpy as np
import pandas as pd
import pytest
import torch

import possym
from possym.errors import InputError
from possym.profiling.film import film
from possym.profiling.steps import changes, load_steps

from ..capture import families

PROMPTS = torch.randint(3, 64, (24, 12), generator=torch.Generator().manual_seed(0)).tolist()


def profile(model, prompts=PROMPTS, **options):
    return possym.profile(model, prompts, progress=False, **options)


def build():
    """A Llama of four layers of four heads, whose tokens have much in common: heads look at positions first."""
    model = families.build("llama", num_hidden_layers=4).eval()
    weight = model.model.embed_tokens.weight.data
    weight += 3 * weight.std() * torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(1))
    return model


def rotated(model, layer, head, angle):
    """A copy of a model, the rows of one head's W_Q turned by an angle within each of its RoPE planes."""
    model = copy.deepcopy(model)
    attention = model.model.layers[layer].self_attn
    width = attention.head_dim
    rows = attention.q_proj.weight.data[head * width : (head + 1) * width]
    x, y = rows[: width // 2].clone(), rows[width // 2 :].clone()
    rows[: width // 2] = math.cos(angle) * x - math.sin(angle) * y
    rows[width // 2 :] = math.sin(angle) * x + math.cos(angle) * y
    return model


def rounded(model):
    """A copy of a model with every weight matrix rounded to 4 bits a row."""
    model = copy.deepcopy(model)
    for weight in model.parameters():
        if weight.ndim == 2:
            step = weight.data.abs().amax(1, keepdim=True) / 7
            weight.data = (weight.data / step).round() * step
    return model


@pytest.fixture(scope="module")
def model():
    return build()


@pytest.fixture(scope="module")
def before(model):
    return profile(model)


@pytest.fixture(scope="module")
def planted(model, before):
    return possym.compare(before, profile(rotated(model, 1, 2, 0.1)))


def test_a_planted_change_is_found_in_its_head_and_elsewhere_in_later_layers_alone(planted):
    touched = planted.heads[planted.heads.largest > 0]
    assert touched[touched.layer <= 1][["layer", "head"]].to_numpy().tolist() == [[1, 2]]
    assert planted.heads.set_index(["layer", "head"]).loc[(1, 2), "changed"]
    assert [planted.changed.layer.iloc[0], planted.changed["head"].iloc[0]] == [1, 2]
    assert (planted.layers[planted.layers.layer < 1].positional_change == 0).all()
    assert "largest change: layer 1, head 2, " in repr(planted)
    assert "first to differ: layer 1, head 2\n" in repr(planted)


@pytest.mark.parametrize("other", ["the same", "a rounding of 4 bits and itself"])
def test_nothing_is_found_where_nothing_changed(other, model, before):
    pair = before, profile(copy.deepcopy(model))
    if other != "the same":
        pair = (profile(rounded(model)),) * 2
    found = possym.compare(*pair)
    assert not found.heads.changed.any() and not found.heads.largest.any() and found.new_kinds.empty
    assert (found.heads[["positional_p", "symbolic_p"]] == 1).all(axis=None)
    assert "0 heads changed" in repr(found)
    assert "largest change" not in repr(found) and "first to differ" not in repr(found)


def test_rounding_to_4_bits_changes_heads_and_the_two_directions_mirror_each_other(model, before):
    after = profile(rounded(model))
    there, back = possym.compare(before, after), possym.compare(after, before)
    assert (there.heads.largest > 0).mean() > 0.9
    np.testing.assert_allclose(there.heads.positional_change, -back.heads.positional_change, atol=1e-12)
    np.testing.assert_allclose(there.heads.positional_low, -back.heads.positional_high, atol=1e-9)
    assert there.heads.positional_p.equals(back.heads.positional_p)


@pytest.mark.parametrize("by", ["head", "key_head"])
def test_means_and_kinds_are_those_of_the_summaries(by, model, before):
    after = profile(rounded(model))
    found = possym.compare(before, after, by=by, tolerance=1e-9).heads
    first, second = before.summary(by=by), after.summary(by=by)
    assert found[["layer", by]].equals(first[["layer", by]])
    for score in ("positional", "symbolic"):
        np.testing.assert_allclose(found[f"{score}_before"], first[score], atol=1e-12)
        np.testing.assert_allclose(found[f"{score}_change"], second[score] - first[score], atol=1e-8)
        assert (found[f"{score}_low"] <= found[f"{score}_change"]).all()
        assert (found[f"{score}_change"] <= found[f"{score}_high"]).all()
    words = {1: "positional", -1: "symbolic", 0: "neither"}
    assert found.kind_before.tolist() == [words[k] for k in first.purity]
    assert found.kind_after.tolist() == [words[k] for k in second.purity]


def test_layers_are_means_over_their_heads(planted):
    means = planted.heads.groupby("layer")[["positional_change", "symbolic_change"]].mean()
    np.testing.assert_allclose(planted.layers.positional_change, means.positional_change, atol=1e-12)
    np.testing.assert_allclose(planted.layers.symbolic_change, means.symbolic_change, atol=1e-12)
    assert planted.overall["symbolic"].value == pytest.approx(means.symbolic_change.mean())
    assert planted.overall["symbolic"].low <= planted.overall["symbolic"].value <= planted.overall["symbolic"].high


def test_the_queries_of_a_prompt_stay_together(model):
    """Twice the queries are no more prompts: those of one prompt are drawn, and flipped, as one."""
    one = profile(model, PROMPTS[:6], query=[[7, 11]] * 6)
    two = profile(rounded(model), PROMPTS[:6], query=[[7, 11]] * 6)
    found = possym.compare(one, two)
    assert found.settings["prompts"] == 6
    row = found.heads.iloc[5]
    change = (two.heads.positional - one.heads.positional)[
        (one.heads.layer == row.layer) & (one.heads["head"] == row["head"])
    ]
    assert row.positional_change == pytest.approx(change.mean(), abs=1e-6)
    assert min(found.heads.positional_p.min(), found.heads.symbolic_p.min()) >= 2**-5


def test_few_prompts_are_said_to_tell_nothing_from_chance(model):
    pair = profile(model, PROMPTS[:1]), profile(rounded(model), PROMPTS[:1])
    found = possym.compare(*pair)
    assert not found.heads.changed.any() and found.heads.positional_low.isna().all()
    assert "no p-value of 1 prompt can be below 1: more prompts" in repr(found)
    sizes = found.heads[["positional_change", "symbolic_change"]].abs().max(axis=1)
    row = found.heads.loc[sizes.idxmax()]
    assert f"largest change: layer {row.layer}, head {row['head']}, " in repr(found)


def test_what_differs_is_said(model, before):
    other = [list(prompt) for prompt in PROMPTS]
    other[3][4] = 5 if other[3][4] != 5 else 6
    deeper = families.build("llama", num_hidden_layers=2)
    cases = [
        (profile(model, PROMPTS[:7]), "a has 24 prompts and b 7: profile the same prompts"),
        (profile(model, other), r"prompt 3 has other token ids in a than in b \(token 4 is \d+ and \d+\)"),
        (profile(model, hold="first"), "prompt 0 has other held tokens in a than in b"),
        (profile(model, blocks=[(0, 3), (4, 6)]), "prompt 0 has other blocks in a than in b"),
        (profile(model, query=9), "query 9 of prompt 0 is in one profile alone"),
        (profile(model, temperature=0.5), r"different settings \(temperature: .* and 0.5\)"),
        (profile(model, layers=[1]), r"different settings \(layers: None and \[1\]\)"),
        (profile(deeper), "a has 4 layers of 4 heads and b 2 layers of 4 heads: compare models of one shape"),
        (3, r"b is of type int \(3\): give a possym.Profile"),
    ]
    for after, message in cases:
        with pytest.raises(InputError, match=message):
            possym.compare(before, after)
    for options, message in [
        (dict(by="layer"), "by = 'layer': give 'head' or 'key_head'"),
        (dict(level=2), "level = 2: give a number between 0 and 1"),
        (dict(seed=-1), "seed = -1: give a whole number"),
    ]:
        with pytest.raises(InputError, match=message):
            possym.compare(before, before, **options)


def test_charts_say_what_changed(planted, before, model):
    drawn = planted.plane().to_dict()
    shafts = [layer for layer in drawn["layer"] if layer["mark"]["type"] == "rule"]
    rows = pd.DataFrame(drawn["datasets"][shafts[0]["data"]["name"]])
    assert len(rows) == planted.heads.changed.sum()
    row = rows[(rows.layer == 1) & (rows["head"] == 2)].iloc[0]
    run, rise = row.positional_after - row.positional_before, row.symbolic_after - row.symbolic_before
    assert row.angle == pytest.approx(math.degrees(math.atan2(run, rise)), abs=2)
    assert row.towards == ("symbolic" if rise >= run else "positional")
    assert drawn["title"]["text"].startswith(f"{len(rows)} of 16 heads changed")
    assert "The largest change is" in planted.by_layer().to_dict()["title"]["text"]
    moving = film({0: before, 1000: profile(rounded(model)), 200: before}).to_dict()
    rows = pd.DataFrame(next(iter(moving["datasets"].values())))
    assert rows.groupby("at").step.first().tolist() == ["0", "200", "1,000"] and len(rows) == 3 * 16
    with pytest.raises(InputError, match="a has 24 prompts and b 7"):
        film({0: before, 1: profile(model, PROMPTS[:7])})


def test_a_folder_of_checkpoints_becomes_a_table_in_order_of_their_steps(model, before, planted, tmp_path):
    after = profile(rotated(model, 1, 2, 0.1))
    for name, each in {"step-1000": after, "step-200": before, "step-30": before}.items():
        each.save(tmp_path / name / "profile" if name == "step-200" else tmp_path / name)
    (tmp_path / "notes").mkdir()
    steps = load_steps(tmp_path)
    assert list(steps) == ["step-30", "step-200", "step-1000"]
    table = changes(steps).set_index("step")
    assert table.changed.tolist() == [0, 0, planted.heads.changed.sum()]
    assert table.new_kinds.tolist() == [0, 0, len(planted.new_kinds)]
    for score in ("positional", "symbolic"):
        assert table.loc["step-1000", [f"{score}_{name}" for name in ("change", "low", "high")]].tolist() == (
            pytest.approx([getattr(planted.overall[score], name) for name in ("value", "low", "high")])
        )
        assert table[score].iloc[-1] == pytest.approx(after.summary()[score].mean())
    with pytest.raises(InputError, match="holds 0 profiles"):
        load_steps(tmp_path / "notes")
