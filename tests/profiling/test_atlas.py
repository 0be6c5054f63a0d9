"""The atlas against attention read in another way and loops over tokens; planted heads; what it refuses."""

import functools

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import possym
from possym.capture.known_heads import known_heads
from possym.errors import InputError, ResultsError
from possym.models import hub, random_llama
from possym.profiling import atlas_charts
from possym.profiling.atlas import Atlas, atlas, consistency, draw
from possym.profiling.known_kinds import DEFINITIONS, MATERIALS, RECENT, measured

from ..capture import families
from ..charts.drawn import draw as picture
from ..charts.drawn import is_complete, marks, texts

SIZES = dict(prompts=3, length=16)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return hub.load(str(random_llama.save(tmp_path_factory.mktemp("llama"))), device="cpu")


@pytest.fixture(scope="module")
def found(loaded):
    return atlas(*loaded, **SIZES)


def by_loops(name, weights, prompt):
    """What a definition measures of one head's attention (T, T), token by token."""
    tokens, count, needle = prompt.tokens.tolist(), len(prompt.tokens), prompt.needle
    most = weights.argmax(-1).tolist()
    if name == "retrieval":
        told = range(*needle.answer)
        hits = [needle.value[0] <= most[t - 1] < needle.value[1] and tokens[most[t - 1]] == tokens[t] for t in told]
        return np.mean(hits)
    if name == "query_focused":
        return np.mean([sum(weights[q, k] for k in range(*needle.statement)) for q in range(*needle.question)])
    values = []
    for query in range(1, count):
        earlier = [k for k in range(query) if tokens[k] == tokens[query]]
        if name == "previous_token":
            values.append(weights[query, query - 1])
        elif name == "previous_token_most":
            values.append(most[query] == query - 1)
        elif name == "sink":
            values.append(weights[query, 0])
        elif name == "distance":
            values.append(sum(weights[query, k] * (query - k) for k in range(query + 1)))
        elif name == "recent" and query >= RECENT:
            values.append(weights[query, query - RECENT + 1 : query + 1].sum())
        elif name == "duplicate_token" and earlier:
            values.append(sum(weights[query, k] for k in earlier))
        elif name.startswith("induction") and any(k + 1 < query for k in earlier):
            values.append(sum(weights[query, k + 1] for k in earlier if k + 1 < query))
    return np.mean(values)


def test_every_definition_is_what_loops_over_the_models_own_attention_say(loaded, found):
    model, tokenizer = loaded
    drawn_prompts = draw(tokenizer, len(tokenizer), **SIZES, generator=torch.Generator().manual_seed(0))
    model.set_attn_implementation("eager")
    heads = found.heads.set_index(["definition", "prompt", "layer", "head"])["value"]
    for name, definition in DEFINITIONS.items():
        prompt = drawn_prompts[definition.material][::2][1]
        with torch.no_grad():
            attentions = model(prompt.tokens[None], output_attentions=True).attentions
        for layer, head in ((0, 1), (3, 2)):
            value = by_loops(name, attentions[layer][0, head].double().numpy(), prompt)
            assert heads[name, 1, layer, head] == pytest.approx(value, abs=1e-5), name
    model.set_attn_implementation("sdpa")
    twice = torch.stack([prompt.tokens for prompt in drawn_prompts["repeated tokens"][::2]])
    known = known_heads(model, twice)
    mine = found.summary()
    for job in ("previous_token", "induction"):
        assert mine[job].tolist() == pytest.approx(known[job].tolist(), abs=1e-6)


def test_scores_are_the_profiles_on_other_prompts(loaded, found):
    model, tokenizer = loaded
    drawn_prompts = draw(tokenizer, len(tokenizer), **SIZES, generator=torch.Generator().manual_seed(0))
    prompts = drawn_prompts["needle"][1::2]
    mine = found.scores[found.scores.material == "needle"]
    rows = []
    for prompt in prompts:
        queries = list(range(prompt.needle.answer[0] - 1, prompt.needle.answer[1] - 1))
        rows.append(possym.profile(model, prompt.tokens, query=queries, hold="first", progress=False).heads)
    means = pd.concat(rows).groupby(["layer", "head"])[["positional", "symbolic"]].mean()
    for score in means:
        assert mine[score].tolist() == pytest.approx(means[score].tolist(), abs=1e-5)
    assert not {*map(tuple, (p.tokens.tolist() for p in prompts))} & {
        *map(tuple, (p.tokens.tolist() for p in drawn_prompts["needle"][::2]))
    }


def planted(noise=0.0, heads=40, prompts=6):
    """An atlas whose head k does k parts of a job: retrieval as induction does, previous tokens the other way round."""
    random, rows = np.random.default_rng(0), []
    for name in DEFINITIONS:
        for head in range(heads):
            value = heads - head if name in ("previous_token", "distance") else head
            for prompt in range(prompts):
                rows.append((name, prompt, head // 4, head % 4, value + noise * random.normal()))
    table = pd.DataFrame(rows, columns=["definition", "prompt", "layer", "head", "value"])
    scores = pd.DataFrame([(head // 4, head % 4) for head in range(heads)], columns=["layer", "head"])
    scores["symbolic"] = np.arange(heads) / heads
    scores["positional"], scores["attention_moved"] = 1 - scores["symbolic"], 1.0
    return Atlas(table, pd.concat([scores.assign(material=material) for material in MATERIALS]))


def test_planted_heads_agree_are_stable_and_lie_where_they_were_put():
    one = planted()
    agreement = one.agreement(8).set_index(["first", "second"])
    assert agreement.loc[("induction", "retrieval")].tolist() == pytest.approx([1, 1, 0.2])
    assert agreement.loc[("induction", "previous_token")].tolist() == pytest.approx([-1, 0, 0.2])
    assert agreement.loc[("induction", "distance")].tolist() == pytest.approx([1, 1, 0.2])  # near is much
    places = one.places(count=8, draws=200).set_index("definition")
    assert places.loc["induction", "symbolic_lead"] == 1 and places.loc["previous_token", "symbolic_lead"] == 0
    assert list(one.known("induction", 2)) == [(9, 3), (9, 2)]
    assert (one.stability(8)[["icc", "split_half", "overlap"]] == 1).all(axis=None)
    random = planted(noise=1e4).stability(8).set_index("definition")
    assert random["low"].max() < 0.2 and random["split_half"].abs().max() < 0.6
    some = planted(noise=10.0).stability(8)
    assert (some["low"] < some["icc"]).all() and (some["icc"] < some["high"]).all()


def test_icc_is_the_ratio_of_variances_of_an_additive_model():
    random = np.random.default_rng(1)
    values = random.normal(size=(4000, 1)) * 2 + random.normal(size=(1, 3)) * 5 + random.normal(size=(4000, 3))
    icc, low, high = consistency(values)
    assert low < 0.8 < high and high - low < 0.03
    centred = values - values.mean(0)
    covariance = np.cov(centred.T)  # its off-diagonal is the variance between heads
    between = (covariance.sum() - np.trace(covariance)) / 6
    assert icc == pytest.approx(between / (np.trace(covariance) / 3), abs=1e-3)


def test_charts_mark_the_known_heads_and_say_what_they_show():
    one = planted()
    chart = one.plane(8)
    assert "Heads that copy lie above" in chart.title.text
    svg = picture(chart, shown="retrieval")
    shown = {(int(row["layer"]), int(row["head"])) for row in marks(svg, "circle") if row["known"] == "true"}
    assert shown == set(one.known("retrieval", 8)) and len(marks(svg, "circle")) == 40
    both = atlas_charts.definitions_agree({"A": one, "B": one}, 8)
    assert both.title.text == "Both definitions of retrieval heads share: A 8 of 8, B 8 of 8"
    assert texts(picture(both)).count("8") >= 2 * 56
    is_complete(chart)
    is_complete(both)


@pytest.mark.parametrize(
    "call", [
        lambda one, loaded: atlas(*loaded, prompts=0),
        lambda one, loaded: atlas(*loaded, length=10_000),
        lambda one, loaded: one.known("no such"),
        lambda one, loaded: atlas(families.build("llama", vocab_size=300), loaded[1], **SIZES),  # another's tokenizer
        lambda one, loaded: one.known("sink", 40),
        lambda one, loaded: one.places("no such"),
        lambda one, loaded: planted(prompts=1).stability(),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(loaded, call):
    with pytest.raises(InputError):
        call(planted(), loaded)


def test_a_head_that_copies_half_of_the_needle_retrieves_half(loaded):
    prompts = draw(loaded[1], len(loaded[1]), **SIZES, generator=torch.Generator().manual_seed(0))["needle"]
    needle, definition = prompts[0].needle, DEFINITIONS["retrieval"]
    count, steps = len(needle.tokens), needle.answer[1] - needle.answer[0]
    for right in range(steps + 1):
        weights = torch.full((count, count), 1 / count)
        for step in range(steps):
            weights[needle.answer[0] - 1 + step, needle.value[0] + step + (step >= right)] = 1.0  # else one too far
        value = measured(definition, weights[None], definition.targets(prompts[0])).item()
        assert value == pytest.approx(right / steps) == by_loops("retrieval", weights, prompts[0])


@pytest.fixture(scope="module")
def small(loaded):
    """An atlas of a model of one layer, by its number of heads."""

    @functools.cache
    def make(heads):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(loaded[1]), hidden_size=8 * heads, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=heads, num_key_value_heads=1,
        )  # fmt: skip
        return atlas(LlamaForCausalLM(config).eval(), loaded[1], prompts=2, length=12)

    return make


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_a_model_of_few_heads_has_an_atlas(small, heads):
    one = small(heads)
    assert len(one.summary()) == heads and one.first() == 1
    agreement, stability, places = one.agreement(), one.stability(), one.places(draws=20)
    assert len(agreement) == len(DEFINITIONS) ** 2 and (agreement["by_chance"] == 1 / heads).all()
    assert stability["icc"].notna().all() == places["symbolic_lead"].notna().all() == (heads > 1)
    assert "; nan" not in repr(one) and repr(one).count("\n") == len(DEFINITIONS)
    chart = one.plane()
    assert "the head that" in chart.title.subtitle and "nan" not in chart.description
    is_complete(chart)


def test_a_saved_atlas_is_the_one_that_was_made(loaded, found, tmp_path):
    found.save(tmp_path / "atlas")
    same = Atlas.load(found.save(tmp_path / "atlas"))  # over the first
    pd.testing.assert_frame_equal(same.heads, found.heads)
    pd.testing.assert_frame_equal(same.scores, found.scores)
    assert same.settings == found.settings and {"model", "weights", "tokenizer"} <= found.settings.keys()
    assert repr(same) == repr(found) and repr(found).startswith(f"Atlas of {found.settings['model']}: 16 heads")
    table = tmp_path / "atlas" / "heads.parquet"
    table.write_bytes(table.read_bytes() + b"0")
    for path, error in ((tmp_path / "atlas", "was changed"), (tmp_path / "none", "holds no whole atlas")):
        with pytest.raises(ResultsError, match=error):
            Atlas.load(path)
    with pytest.raises(InputError, match="not a saved atlas"):
        found.save(tmp_path)
