"""What is measured of key heads, against attention computed by the model itself and by hand; rules and plans of it."""

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import possym
from possym import InputError, rope
from possym.kv_cache import RULES, CachePlan, Heads, applied, keep, measure, try_each
from possym.kv_cache.evaluation import copying, needle, position_losses
from possym.kv_cache.files import cache_configuration
from possym.kv_cache.rules import agreement

from ..capture import families
from ..capture.test_capture import listen

SINK, WINDOW, QUERIES = 2, 6, 3


@pytest.fixture(scope="module")
def model():
    return families.build("llama")


@pytest.fixture(scope="module")
def tokens():
    return families.tokens(20, batch=2)


@pytest.fixture(scope="module")
def heads(model, tokens):
    found = measure(model, tokens, sink=SINK, window=WINDOW, queries=QUERIES, progress=False)
    # Of the study's own maker: a column that no pass over prompts gives.
    return Heads(found.table.assign(oracle=[4.0, 3.0, 2.0, 1.0]), found.limits, found.model, found.settings)


def test_attention_beyond_the_window_and_distance_are_those_of_the_models_own_attention(model, tokens, heads):
    weights = [call[1] for call in listen(model, tokens).values()]  # (2, 4, 20, 20), layer by layer
    positions = [8, 14, 19]
    for row in heads.table.itertuples():
        of = weights[row.layer][:, 2 * row.key_head : 2 * row.key_head + 2]
        dropped = [of[:, :, q, SINK : q - WINDOW + 1].sum(-1) for q in positions]
        assert row.beyond == pytest.approx(float(torch.stack(dropped).mean()), abs=1e-5)
        back = torch.stack([of[:, :, q, 1 : q + 1] @ (q - torch.arange(1.0, q + 1)) for q in positions]).mean()
        rest = torch.stack([of[:, :, q, 1:].sum(-1) for q in positions]).mean()
        assert row.distance == pytest.approx(float(back / rest), rel=1e-4)


def test_the_area_is_a_distance_under_mean_query_and_mean_key(model, tokens, heads):
    angles, count = rope.frequencies(8, 10000.0), tokens.shape[1]
    found, hooks = {}, []
    for number, layer in enumerate(model.model.layers):
        for name in ("q_proj", "k_proj"):
            keep_it = lambda _, args, output, key=(number, name): found.__setitem__(key, output.detach())  # noqa: E731
            hooks.append(getattr(layer.self_attn, name).register_forward_hook(keep_it))
    with torch.no_grad():
        model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    for row in heads.table.itertuples():
        query = found[row.layer, "q_proj"][:, [8, 14, 19]].mean((0, 1)).view(4, 8).double()
        key = found[row.layer, "k_proj"][:, SINK:].mean((0, 1)).view(2, 8).double()[row.key_head]
        areas = []
        for head in (2 * row.key_head, 2 * row.key_head + 1):
            turned = rope.rotate(query[head], float(count - 1), angles, "half")
            keys = torch.stack([rope.rotate(key, float(place), angles, "half") for place in range(count)])
            weights = (keys @ turned / 8**0.5).softmax(0)
            # Cumulated from the oldest on, the area is the mean distance, the query's own key counted as 1.
            areas.append(float(weights @ torch.arange(count, 0, -1).double()) / count)
        assert row.area == pytest.approx(np.mean(areas), abs=1e-5)


def test_a_profile_knows_the_same_but_for_what_a_window_drops(model, tokens, heads):
    scored = possym.profile(model, tokens, query=[[8, 14, 19]] * 2, hold="first", progress=False)
    found = Heads.of(scored)
    pd.testing.assert_frame_equal(found.table, heads.table[found.table.columns])
    assert keep(scored, 0.5, rule="positional").windows == keep(heads, 0.5, rule="positional").windows
    with pytest.raises(InputError, match="rule = 'beyond' reads 'beyond', which possym.kv_cache.measure finds"):
        keep(scored, rule="beyond")
    assert found.model == heads.model and keep(scored).rule == keep(heads).rule == "positional"


def test_prompts_of_one_length_are_read_in_one_pass(model, tokens, heads):
    passes = []  # the first measurement has compared what is read with a plain pass
    hook = model.register_forward_pre_hook(lambda *call: passes.append(call))
    measure(model, tokens, sink=SINK, window=WINDOW, queries=QUERIES, progress=False)
    hook.remove()
    assert len(passes) == 1


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_gives_a_share_of_heads_the_window_and_the_same_total(heads, rule):
    previous = set()
    for share in (0, 0.25, 0.5, 0.75, 1):
        plan = keep(heads, share, rule=rule, sink=SINK, window=WINDOW)
        assert plan.share == share and plan.rule == rule
        assert sum(window or 0 for _, _, window, _ in plan.entries()) == round(share * 4) * WINDOW
        chosen = {(layer, head) for layer, head, window, _ in plan.entries() if window is not None}
        assert previous <= chosen  # a head that forgets at a small share does at a larger one
        previous = chosen


def test_rules_take_the_heads_that_they_say():
    table = pd.DataFrame(
        {
            "layer": [0, 0, 1, 1],
            "key_head": [0, 1, 0, 1],
            "positional": [0.9, 0.8, 0.2, 0.1],
            "symbolic": [0.0, 0.1, 0.9, 0.9],
            "entropy": [3.0, 2.0, 1.0, 0.5],
            "distance": [50.0, 2.0, 1.0, 60.0],
            "beyond": [0.3, 0.2, 0.1, 0.0],
            "area": [0.4, 0.1, 0.3, 0.2],
            "oracle": [0.0, 0.1, 0.2, -0.1],
        }
    )
    heads = Heads(table, {0: None, 1: None}, {})
    first = {}
    for rule in RULES:
        rows = keep(heads, 0.25, rule=rule).table()
        first[rule] = int(rows.index[rows["window"].notna()][0])
    del first["random"]
    assert first == {
        "positional": 0, "kind_distance": 1, "fitted": 1, "beyond": 3, "combined": 0, "area": 1, "entropy": 3,
        "oracle": 3,
    }  # fmt: skip
    assert keep(heads, 0.5, rule="fitted", window=8).windows == ((None, 10), (6, None))


def test_whole_layers_forget_together_those_of_least_need(heads):
    table = heads.table.assign(beyond=[0.1, 0.5, 0.2, 0.3])
    plan = keep(Heads(table, heads.limits, heads.model), 0.5, rule="beyond", whole_layers=True, sink=0, window=6)
    assert plan.windows == ((None, None), (6, 6))
    assert cache_configuration(plan) == {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 6}


def test_rules_are_compared_with_trained_gates(heads):
    gates = heads.table["beyond"].rank().to_numpy().reshape(2, 2) / 4
    found = agreement(heads, gates).set_index("rule")["spearman"]
    assert found["beyond"] == pytest.approx(1) and set(found.index) == set(RULES) - {"random"}
    assert agreement(heads, 1 - gates).set_index("rule")["spearman"]["beyond"] == pytest.approx(-1)
    expected = stats.spearmanr(heads.table["area"], gates.ravel()).statistic
    assert found["area"] == pytest.approx(expected)


def test_the_oracle_is_what_each_head_costs_alone(model, tokens, heads):
    def loss():
        return float(position_losses(model, tokens)[:, SINK + WINDOW :].mean())

    found = try_each(model, heads, loss, sink=SINK, window=WINDOW, progress=False).table
    with applied(model, CachePlan([[None, WINDOW], [None, None]], sink=SINK)):
        alone = loss()
    assert found["oracle"][1] == pytest.approx(alone - loss(), abs=1e-6) and found["oracle"].abs().min() > 1e-6


def test_losses_are_the_models_own_and_by_position(model, tokens):
    found = position_losses(model, tokens, at_once=1)
    with torch.no_grad():
        assert float(found.mean()) == pytest.approx(float(model(tokens, labels=tokens).loss), rel=1e-5)
        logits = model(tokens[:1, :6]).logits[0, -1]
    assert float(found[0, 5]) == pytest.approx(float(F.cross_entropy(logits, tokens[0, 6])), rel=1e-4)


def test_copying_asks_for_the_second_saying_but_its_first_token(model):
    found = copying(model, 3, 7, generator=torch.Generator().manual_seed(5), at_once=2)
    said = possym.capture.known_heads.repeated_tokens(3, 7, 64, torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits = model(said).logits
    right = torch.stack([logits[:, place - 1].argmax(-1) == said[:, place] for place in range(8, 14)])
    assert found["accuracy"].tolist() == pytest.approx(right.double().mean(0).tolist())
    lost = torch.stack([F.cross_entropy(logits[:, p - 1], said[:, p], reduction="none") for p in range(8, 14)])
    assert found["loss"].tolist() == pytest.approx(lost.mean(0).tolist(), rel=1e-4)


def test_a_needle_stands_where_it_is_said_to(model, tokens):
    found = needle(model, tokens, lengths=[9, 20], depths=[0.0, 0.5, 1.0], seed=3)
    assert found.groupby(["length", "depth"])["distance"].first().tolist() == [7, 5, 2, 18, 10, 2]
    pairs = torch.randint(64, (2, 2), generator=torch.Generator().manual_seed(3))
    row = found.query("length == 20 and depth == 0.5 and sequence == 1").iloc[0]
    asked = [*tokens[1, :9].tolist(), *pairs[1].tolist(), *tokens[1, 11:19].tolist(), int(pairs[1, 0])]
    with torch.no_grad():
        logits = model(torch.tensor([asked])).logits[0, -1]
    assert row["loss"] == pytest.approx(float(F.cross_entropy(logits, pairs[1, 1])), rel=1e-4)
    assert bool(row["right"]) == (int(logits.argmax()) == int(pairs[1, 1]))


def of_table(heads, rule="positional", limits=None, share=0.5, **columns):
    return keep(
        Heads(heads.table.assign(**columns), heads.limits if limits is None else limits, None), share, rule=rule
    )


def of_other_layers(model, tokens):
    return keep(possym.profile(model, tokens, layers=[1], progress=False))


REFUSED = [
    (lambda model, tokens, heads: keep(heads, rule="best"), "rule = 'best': known rules are positional, kind_distance"),
    (lambda model, tokens, heads: keep(heads, 1.5), "share = 1.5: give the share of key heads"),
    (lambda model, tokens, heads: keep(heads, window=0), "window = 0: give how many of the latest tokens are kept"),
    (lambda model, tokens, heads: keep(heads, rule=["area"]), r"rule = \['area'\]: known rules are positional"),
    (lambda model, tokens, heads: keep(heads, rule="random", seed=-1), "seed = -1: give a whole number from 0"),
    (lambda model, tokens, heads: of_table(heads, symbolic=np.nan), "nothing was measured of 4 of the 4 key heads"),
    (
        lambda model, tokens, heads: of_table(heads, symbolic="a"),
        "reads 'symbolic', which possym.kv_cache.measure",
    ),
    (lambda model, tokens, heads: of_table(heads, limits={0: None}), "limits lacks layer 1: give every layer's own"),
    (lambda model, tokens, heads: of_table(heads, key_head=0), "table: give one row per key head, layer by layer"),
    (lambda model, tokens, heads: of_table(heads, layer=[1, 1, 0, 0]), "table: give one row per key head, layer by"),
    (lambda model, tokens, heads: Heads(heads.table[["layer"]], {}, {}), "table has no column 'key_head'"),
    (lambda model, tokens, heads: Heads("heads", {}, {}), "table is of type str"),
    (lambda model, tokens, heads: keep(heads, sink=-1), "sink = -1: give how many first tokens are kept"),
    (lambda model, tokens, heads: keep(heads.table), "heads is of type DataFrame"),
    (
        lambda model, tokens, heads: agreement(heads, np.ones((2, 3))),
        r"gates \(2, 3\): the model has 2 layers of 2 key",
    ),
    (lambda model, tokens, heads: agreement(heads, [["a", "b"]] * 2), "gates: give finite numbers"),
    (lambda model, tokens, heads: try_each(model, heads, lambda: float("nan")), r"loss\(\) is nan: give a function"),
    (lambda model, tokens, heads: try_each(model, heads, 3.0), "loss: give a function without arguments"),
    (lambda model, tokens, heads: try_each(model, heads.table, lambda: 1.0), "heads is of type DataFrame"),
    (lambda model, tokens, heads: measure(model, []), "prompts: give one or more strings"),
    (lambda model, tokens, heads: of_other_layers(model, tokens), "a plan is of all layers"),
    (lambda model, tokens, heads: measure(model, tokens, window=0), "window = 0: give a whole number from 1"),
    (lambda model, tokens, heads: measure(model, tokens, window=16), "20 tokens, which a head with sink 4 and window"),
    (lambda model, tokens, heads: needle(model, tokens, lengths=[21]), "length 21: give lengths from 5 to the text's"),
    (lambda model, tokens, heads: needle(model, tokens, lengths=[9], depths=[2]), "depth 2: give depths from 0"),
    (lambda model, tokens, heads: needle(model, tokens, lengths=9), "lengths is of type int"),
    (lambda model, tokens, heads: needle(model, tokens, lengths=[9], seed="a"), "seed is of type str"),
    (lambda model, tokens, heads: position_losses(model, tokens[0]), r"tokens torch.int64 \(20,\): give token ids"),
    (lambda model, tokens, heads: position_losses(model, tokens > 3), r"tokens torch.bool \(2, 20\): give token ids"),
    (
        lambda model, tokens, heads: position_losses(model, tokens + 64),
        "tokens hold id .*: the model's vocabulary goes",
    ),
    (lambda model, tokens, heads: position_losses(model, tokens, at_once=0), "at_once = 0: give a whole number from 1"),
    (lambda model, tokens, heads: copying(model, 2, 5, at_once=0), "at_once = 0: give a whole number from 1"),
]


@pytest.mark.parametrize("attempt, message", REFUSED, ids=[message[:24] for _, message in REFUSED])
def test_what_cannot_be_measured_or_planned_is_refused(attempt, message, model, tokens, heads):
    with pytest.raises(InputError, match=message):
        attempt(model, tokens, heads)
