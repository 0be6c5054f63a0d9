import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPTJConfig as TheirConfig
from transformers import GPTJForCausalLM

from possym import ConfigError, InputError, ResultsError, UnsupportedModelError
from possym.dropout import kept
from possym.models.ensemble import Lookup, causal_attention
from possym.models.gptj import GPTJConfig, GPTJEnsemble
from possym.rope import rotate
from possym.scores import relocated_logits

ONE_HEAD = GPTJConfig(20, layers=3, width=16, init_std=0.3)
TWO_HEADS = GPTJConfig(20, layers=3, heads=2, width=32, rotary_dim=8, mlp_ratio=2, dropout=0.2, init_std=0.3)
CONFIGS = pytest.mark.parametrize("config", [ONE_HEAD, TWO_HEADS], ids=["one head", "two heads, half rotary"])


def random_tokens(*shape, seed=0):
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(seed))


def shaken(config, seeds):
    """An ensemble whose gains and biases are no longer 1 and 0."""
    model, source = GPTJEnsemble(config, seeds), torch.Generator().manual_seed(99)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("_gain", "_bias")):
                parameter += 0.3 * torch.randn(parameter.shape, generator=source)
    return model


@CONFIGS
@pytest.mark.parametrize("length", [1, 17, 200])
def test_a_member_in_transformers_gives_the_same_logits(config, length):
    model, tokens = shaken(config, [3, 4]), random_tokens(2, 5, length)
    with torch.no_grad():
        theirs = model.member_to_transformers(1)(tokens[1]).logits
        assert theirs.std() > 0.1
        torch.testing.assert_close(model(tokens, all_places=True)[1], theirs, atol=1e-5, rtol=0)
        torch.testing.assert_close(model(tokens)[1], theirs[:, -1], atol=1e-5, rtol=0)


@CONFIGS
def test_export_and_import_keep_every_bit(config):
    model = shaken(config, [3, 4])
    back = GPTJEnsemble.from_transformers(model.member_to_transformers(1))
    assert back.config == config
    for (name, ours), theirs in zip(model.named_parameters(), back.parameters(), strict=True):
        assert torch.equal(ours[1:], theirs), name


def test_a_model_that_transformers_started_can_be_imported():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = GPTJForCausalLM(TheirConfig(vocab_size=20, n_embd=32, n_layer=2, n_head=2, rotary_dim=4)).eval()
    tokens = random_tokens(3, 9)
    with torch.no_grad():
        torch.testing.assert_close(
            GPTJEnsemble.from_transformers(theirs)(tokens)[0], theirs(tokens).logits[:, -1], atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation_function": "relu"}, "activation_function"),
        ({"attn_pdrop": 0.5}, "dropouts differ"),
        ({"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon"),
        ({"n_inner": 40}, "n_inner"),
    ],
)
def test_import_refuses_what_it_would_get_wrong(changes, reason):
    sizes = {"vocab_size": 20, "n_embd": 32, "n_layer": 1, "n_head": 1, "rotary_dim": 8, "n_positions": 32}
    with torch.random.fork_rng(devices=[]):
        model = GPTJForCausalLM(TheirConfig(**{**sizes, **changes}))
    with pytest.raises(UnsupportedModelError, match=reason):
        GPTJEnsemble.from_transformers(model)


def test_import_and_export_refuse_other_models():
    with pytest.raises(UnsupportedModelError, match="Linear"):
        GPTJEnsemble.from_transformers(nn.Linear(2, 2))
    other_base = GPTJEnsemble(dataclasses.replace(ONE_HEAD, base=500.0), [0])
    with pytest.raises(UnsupportedModelError, match="base"):
        other_base.member_to_transformers(0)


@CONFIGS
def test_traces_give_the_attention_of_transformers(config):
    model, tokens = shaken(config, [3, 4]), random_tokens(2, 5, 17)
    theirs = model.member_to_transformers(1)
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = torch.stack(theirs(tokens[1], output_attentions=True).attentions)  # (L, B, H, T, T)
        trace = model.trace(tokens)
    relocated = relocated_logits(
        trace.queries,
        trace.keys,
        query_position=16,
        positions=torch.arange(17),
        frequencies=config.frequencies,
        layout="interleaved",
    )
    ours = relocated.diagonal(dim1=-2, dim2=-1).softmax(-1)[1]
    torch.testing.assert_close(ours, attentions[..., -1, :], atol=1e-5, rtol=0)
    torch.testing.assert_close(trace.logits, model(tokens), atol=1e-5, rtol=0)


def plain_gptj(model, member, tokens, masks):
    """GPT-J for one member and one sequence (T,), place by place, head by head, with given dropout factors."""
    config, w = model.config, {name: p[member] for name, p in model.named_parameters()}
    T, C, H, D = len(tokens), config.width, config.heads, config.head_width
    norm = lambda x, gain, bias: F.layer_norm(x, (C,), gain, bias)  # noqa: E731
    x = w["embedding"][tokens] * masks["embedding"]
    for layer in range(config.layers):
        h = norm(x, w["norm_gain"][layer], w["norm_bias"][layer])
        query, key, value = (h @ w[name][layer] for name in ("query", "key", "value"))
        mixed = torch.zeros(T, C)
        for head in range(H):
            own = slice(head * D, (head + 1) * D)
            places = torch.arange(T)
            q, k = (rotate(each[:, own], places, config.frequencies, "interleaved") for each in (query, key))
            for i in range(T):
                weights = (k[: i + 1] @ q[i] / D**0.5).softmax(0) * masks["attention"][layer][head, i, : i + 1]
                mixed[i, own] = weights @ value[: i + 1, own]
        attended = (mixed @ w["attention_output"][layer]) * masks["attention_output"][layer]
        hidden = F.gelu(h @ w["mlp_in"][layer] + w["mlp_in_bias"][layer], approximate="tanh")
        processed = (hidden @ w["mlp_output"][layer] + w["mlp_output_bias"][layer]) * masks["mlp_output"][layer]
        x = x + attended + processed
    return norm(x, w["final_norm_gain"], w["final_norm_bias"]) @ w["head"] + w["head_bias"]


@pytest.mark.parametrize("all_places", [True, False])
def test_dropout_is_on_embedding_attention_and_both_outputs(all_places):
    model, tokens = shaken(TWO_HEADS, [3, 4]), random_tokens(2, 5, 7)
    keys = torch.tensor([[1, 2], [-3, 4]], dtype=torch.int32)

    def factor(stream, *shape):
        return kept(keys, stream, shape, 0.2)[1] / 0.8

    factors = {
        "embedding": factor(0, 5, 7, 32),
        "attention": torch.stack([factor(3 * layer + 1, 5, 2, 7, 7) for layer in range(3)]),
        "attention_output": torch.stack([factor(3 * layer + 2, 5, 7, 32) for layer in range(3)]),
        "mlp_output": torch.stack([factor(3 * layer + 3, 5, 7, 32) for layer in range(3)]),
    }
    with torch.no_grad():
        expected = torch.stack([
            plain_gptj(model, 1, tokens[1, b], {n: f[b] if n == "embedding" else f[:, b] for n, f in factors.items()})
            for b in range(5)
        ])  # fmt: skip
        ours = model(tokens, dropout_keys=keys, all_places=all_places)[1]
        assert (model(tokens)[1] - expected[:, -1]).abs().max() > 0.1
    torch.testing.assert_close(ours, expected if all_places else expected[:, -1], atol=1e-5, rtol=0)


def test_a_members_start_and_logits_do_not_depend_on_the_others():
    many, alone, tokens = GPTJEnsemble(TWO_HEADS, [7, 3, 5]), GPTJEnsemble(TWO_HEADS, [3]), random_tokens(3, 4, 9)
    for (name, ours), theirs in zip(many.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours[1:2], theirs), name
    torch.testing.assert_close(many(tokens)[1:2], alone(tokens[1:2]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(many.member(1)(tokens[1]), alone(tokens[1]), atol=0, rtol=0)
    assert not torch.equal(many.embedding[0], many.embedding[1])


def test_starting_values_have_the_spread_asked_for_and_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    model = GPTJEnsemble(GPTJConfig(136, layers=2), [0])
    model.member_to_transformers(0)
    assert torch.equal(before, torch.random.get_rng_state())
    assert model.mlp_in.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.mlp_in_bias.abs().max() == 0 and model.norm_gain.min() == 1


def test_shared_tokens_are_read_by_all_members():
    model, tokens = GPTJEnsemble(ONE_HEAD, [0, 1]), random_tokens(4, 9)
    assert torch.equal(model(tokens), model(torch.stack([tokens, tokens])))


def test_lookup_has_the_gradient_of_an_embedding():
    table = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.tensor([[0, 4, 4, 1], [2, 2, 2, 0]])
    weight = torch.arange(24.0).view(2, 4, 3)
    (ours,) = torch.autograd.grad((Lookup.apply(table, tokens) * weight).sum(), table)
    rows = torch.stack([F.embedding(tokens[e], table[e]) for e in range(2)])
    (theirs,) = torch.autograd.grad((rows * weight).sum(), table)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("length", [100, 150, 3000])
def test_attention_is_that_of_float64_at_far_places_in_both_ways_of_computing_it(length):
    source = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 1, length, 2, 8, generator=source) for _ in range(3))
    angles = GPTJConfig(5, width=8).frequencies
    places = torch.arange(length)[:, None]
    turned = [rotate(each.double(), places, angles, "interleaved") for each in (query, key)]
    logits = torch.einsum("ebqhd,ebthd->ebhqt", turned[0][:, :, -3:], turned[1]) * 0.7
    logits = logits.masked_fill(torch.ones(length, length).triu(1).bool()[-3:], -math.inf)
    expected = torch.einsum("ebhqt,ebthd->ebqhd", logits.softmax(-1), value.double())
    ours = causal_attention(query, key, value, frequencies=angles, scale=0.7)
    torch.testing.assert_close(ours[:, :, -3:].double(), expected, atol=2e-5, rtol=0)
    last = causal_attention(query[:, :, -1:], key, value, frequencies=angles, scale=0.7)
    torch.testing.assert_close(last.double(), expected[:, :, -1:], atol=2e-5, rtol=0)


@CONFIGS
@pytest.mark.parametrize("all_places", [True, False])
def test_attention_can_be_replaced_layer_by_layer(config, all_places):
    model, tokens = shaken(config, [3, 4]), random_tokens(2, 5, 9)
    asked = []

    def uniform_in_the_second_layer(layer, query, key, value):
        asked.append(query.shape[2])
        if layer != 1:
            return causal_attention(query, key, value, frequencies=config.frequencies)
        return value.cumsum(2)[:, :, -query.shape[2] :] / torch.arange(1, 10).view(-1, 1, 1)[-query.shape[2] :]

    ours = model(tokens, attend=uniform_in_the_second_layer, all_places=all_places)
    assert asked == [9, 9, 9 if all_places else 1]
    without = model.from_weights(config, {n: p.clone() for n, p in model.named_parameters()})
    with torch.no_grad():
        without.key[:, 1] = 0  # all logits 0
        torch.testing.assert_close(ours, without(tokens, all_places=all_places), atol=1e-5, rtol=0)


def test_saved_weights_come_back(tmp_path):
    model = shaken(TWO_HEADS, [0, 1])
    model.save(tmp_path / "whole.safetensors")
    model.save(tmp_path / "half.safetensors", torch.float16)
    back, half = (GPTJEnsemble.load(tmp_path / f"{kind}.safetensors") for kind in ("whole", "half"))
    assert back.config == half.config == TWO_HEADS
    for ours, whole, rounded in zip(model.parameters(), back.parameters(), half.parameters(), strict=True):
        assert torch.equal(ours, whole)
        assert torch.equal(ours.half().float(), rounded)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(ResultsError, match="save"):
        GPTJEnsemble.load(path)
    GPTJEnsemble(ONE_HEAD, [0]).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ResultsError, match="save"):
        GPTJEnsemble.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 0},
        {"layers": 2.0},
        {"layers": True},
        {"vocabulary_size": "many"},
        {"dropout": 1.0},
        {"dropout": math.nan},
        {"init_std": -1},
        {"heads": 3},
        {"heads": 16},
        {"rotary_dim": 3},
        {"rotary_dim": 18},
        {"rotary_dim": "all"},
        {"base": 0.5},
    ],
)
def test_impossible_sizes_are_refused(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        dataclasses.replace(ONE_HEAD, **changes)


@pytest.mark.parametrize("seeds", [[], [-1], [0.5], [True], ["0"]])
def test_impossible_seeds_are_refused(seeds):
    with pytest.raises(InputError, match="seeds"):
        GPTJEnsemble(ONE_HEAD, seeds)


@pytest.mark.parametrize(
    "tokens",
    [
        torch.zeros(3, 4, 5, dtype=torch.int64),
        torch.zeros(5, dtype=torch.int64),
        torch.zeros(4, 0, dtype=torch.int64),
        torch.zeros(4, 5),
        torch.full((4, 5), 20),
        torch.full((4, 5), -1),
        [[1, 2]],
    ],
)
def test_impossible_tokens_are_refused(tokens):
    with pytest.raises(InputError, match="token"):
        GPTJEnsemble(ONE_HEAD, [0, 1])(tokens)


def test_other_impossible_arguments_are_refused():
    model = GPTJEnsemble(ONE_HEAD, [0, 1])
    for keys in (torch.ones(3, 2, dtype=torch.int32), torch.ones(2, 2), torch.ones(2, 3, dtype=torch.int32)):
        with pytest.raises(InputError, match="dropout_keys"):
            model(random_tokens(4, 5), dropout_keys=keys)
    with pytest.raises(InputError, match="attend"):
        model(random_tokens(4, 5), attend="uniform")
    with pytest.raises(InputError, match="attend"):
        keys = torch.ones(2, 2, dtype=torch.int32)
        model(random_tokens(4, 5), dropout_keys=keys, attend=lambda *a: a[3])
    with pytest.raises(InputError, match="member"):
        model.member(2)
    weights = dict(model.named_parameters())
    with pytest.raises(InputError, match="head_bias"):
        GPTJEnsemble.from_weights(ONE_HEAD, {**weights, "head_bias": torch.zeros(2, 3)})
    del weights["head"]
    with pytest.raises(InputError, match="expected"):
        GPTJEnsemble.from_weights(ONE_HEAD, weights)
