"""GPT-J's and Llama's ensembles: the same tests over both kinds of blocks, and at the end what only one of them has."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import GPTJForCausalLM, LlamaForCausalLM

from possym import ConfigError, InputError, ResultsError, UnsupportedModelError
from possym.ensembles.attention import causal_attention
from possym.ensembles.dropout import keep_mask
from possym.ensembles.ensemble import Lookup
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.rope import rotate
from possym.scores import relocated_logits

ONE_HEAD = {
    GPTJEnsemble: GPTJConfig(20, layers=3, width=16, init_std=0.3),
    LlamaEnsemble: LlamaConfig(20, layers=3, width=16, dropout=0.0, init_std=0.2),
}
TWO_HEADS = {
    GPTJEnsemble: GPTJConfig(20, layers=3, heads=2, width=32, rotary_dim=8, mlp_ratio=2, dropout=0.2, init_std=0.3),
    LlamaEnsemble: LlamaConfig(
        20, layers=3, heads=2, width=32, mlp_width=20, dropout=0.2, init_std=0.15, base=500.0
    ),
}  # fmt: skip
ROUNDING = {GPTJEnsemble: 2e-5, LlamaEnsemble: 2e-5}
KINDS = pytest.mark.parametrize("kind", [GPTJEnsemble, LlamaEnsemble])
CONFIGS = pytest.mark.parametrize(
    ("kind", "config"),
    [(kind, sizes[kind]) for kind in (GPTJEnsemble, LlamaEnsemble) for sizes in (ONE_HEAD, TWO_HEADS)],
    ids=["gptj, one head", "gptj, two heads, half rotary", "llama, one head", "llama, two heads"],
)
WHOLE = {"vocab_size": 20, "n_embd": 32, "n_layer": 2, "n_head": 2, "rotary_dim": 4, "activation_function": "gelu"}
GATED = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def random_tokens(*shape, seed=0):
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(seed))


def shaken(kind, config, seeds):
    """An ensemble whose gains and biases are no longer 1 and 0."""
    model, source = kind(config, seeds), torch.Generator().manual_seed(99)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("_gain", "_bias")):
                parameter += 0.3 * torch.randn(parameter.shape, generator=source)
    return model


def of_transformers(kind, **changes):
    """A model of transformers, started by itself."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if kind is GPTJEnsemble:
            return GPTJForCausalLM(transformers.GPTJConfig(**WHOLE | changes)).eval()
        return LlamaForCausalLM(transformers.LlamaConfig(**GATED | changes)).eval()


@CONFIGS
@pytest.mark.parametrize("member, length", [(0, 17), (1, 1), (1, 200)])
def test_every_member_in_transformers_gives_the_same_logits(kind, config, member, length):
    model, tokens = shaken(kind, config, [3, 4]), random_tokens(2, 5, length)
    with torch.no_grad():
        theirs = model.member_to_transformers(member)(tokens[member]).logits
        assert theirs.std() > 0.1
        ours = model(tokens, all_positions=True)[member]
        torch.testing.assert_close(ours, theirs, atol=ROUNDING[kind], rtol=0)
        torch.testing.assert_close(model(tokens)[member], theirs[:, -1], atol=ROUNDING[kind], rtol=0)


@CONFIGS
def test_export_and_import_keep_every_bit(kind, config):
    model = shaken(kind, config, [3, 4])
    back = kind.from_transformers(model.member_to_transformers(1))
    assert back.config == (config if kind is GPTJEnsemble else dataclasses.replace(config, mlp_width=config.hidden))
    for (name, ours), theirs in zip(model.named_parameters(), back.parameters(), strict=True):
        assert torch.equal(ours[1:], theirs), name


@KINDS
def test_a_model_that_transformers_started_can_be_imported(kind):
    theirs, tokens = of_transformers(kind), random_tokens(3, 9)
    with torch.no_grad():
        ours = kind.from_transformers(theirs)(tokens)[0]
        torch.testing.assert_close(ours, theirs(tokens).logits[:, -1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        (GPTJEnsemble, {"activation_function": "gelu_new"}, "activation_function"),
        (GPTJEnsemble, {"attn_pdrop": 0.5}, "dropouts differ"),
        (GPTJEnsemble, {"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon"),
        (GPTJEnsemble, {"n_inner": 40}, "n_inner"),
        (LlamaEnsemble, {"hidden_act": "gelu"}, "hidden_act"),
        (LlamaEnsemble, {"num_key_value_heads": 1}, "fewer key heads"),
        (LlamaEnsemble, {"head_dim": 8}, "head_dim"),
        (LlamaEnsemble, {"attention_bias": True}, "biases"),
        (LlamaEnsemble, {"mlp_bias": True}, "biases"),
        (LlamaEnsemble, {"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        (LlamaEnsemble, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "is scaled"),
        (LlamaEnsemble, {"tie_word_embeddings": True}, "tied"),
    ],
)
def test_import_refuses_what_it_would_get_wrong(kind, changes, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        kind.from_transformers(of_transformers(kind, **changes))


@KINDS
def test_import_refuses_other_models(kind):
    with pytest.raises(UnsupportedModelError, match="Linear"):
        kind.from_transformers(nn.Linear(2, 2))


@CONFIGS
def test_traces_give_the_attention_of_transformers(kind, config):
    model, tokens = shaken(kind, config, [3, 4]), random_tokens(2, 5, 17)
    assert model.layout == {GPTJEnsemble: "interleaved", LlamaEnsemble: "half"}[kind]
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
        layout=model.layout,
    )
    ours = relocated.diagonal(dim1=-2, dim2=-1).softmax(-1)[1]
    torch.testing.assert_close(ours, attentions[..., -1, :], atol=1e-5, rtol=0)
    torch.testing.assert_close(trace.logits, model(tokens), atol=1e-5, rtol=0)


def attended(h, w, layer, config, layout, masks):
    """What one layer's attention adds for one sequence (T, C), place by place, head by head."""
    T, D = len(h), config.head_width
    query, key, value = (h @ w[name][layer] for name in ("query", "key", "value"))
    mixed = torch.zeros(T, config.width)
    for head in range(config.heads):
        own = slice(head * D, (head + 1) * D)
        q, k = (rotate(each[:, own], torch.arange(T), config.frequencies, layout) for each in (query, key))
        for i in range(T):
            weights = (k[: i + 1] @ q[i] / D**0.5).softmax(0) * masks["attention"][layer][head, i, : i + 1]
            mixed[i, own] = weights @ value[: i + 1, own]
    return (mixed @ w["attention_output"][layer]) * masks["attention_output"][layer]


def plain_gptj(config, w, tokens, masks):
    """GPT-J with one member's weights for one sequence (T,), with given dropout factors."""
    norm = lambda x, gain, bias: F.layer_norm(x, (config.width,), gain, bias)  # noqa: E731
    x = w["embedding"][tokens] * masks["embedding"]
    for layer in range(config.layers):
        h = norm(x, w["norm_gain"][layer], w["norm_bias"][layer])
        hidden = F.gelu(h @ w["mlp_in"][layer] + w["mlp_in_bias"][layer])
        processed = (hidden @ w["mlp_output"][layer] + w["mlp_output_bias"][layer]) * masks["mlp_output"][layer]
        x = x + attended(h, w, layer, config, "interleaved", masks) + processed
    return norm(x, w["final_norm_gain"], w["final_norm_bias"]) @ w["head"] + w["head_bias"]


def plain_llama(config, w, tokens, masks):
    """Llama with one member's weights for one sequence (T,), with given dropout factors."""
    norm = lambda x, gain: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain  # noqa: E731
    x = w["embedding"][tokens] * masks["embedding"]
    for layer in range(config.layers):
        x = x + attended(norm(x, w["attention_norm_gain"][layer]), w, layer, config, "half", masks)
        h = norm(x, w["mlp_norm_gain"][layer])
        hidden = F.silu(h @ w["mlp_gate"][layer]) * (h @ w["mlp_in"][layer])
        x = x + (hidden @ w["mlp_output"][layer]) * masks["mlp_output"][layer]
    return norm(x, w["final_norm_gain"]) @ w["head"]


@KINDS
@pytest.mark.parametrize("all_positions", [True, False])
def test_dropout_is_on_embedding_attention_and_both_outputs(kind, all_positions):
    plain = {GPTJEnsemble: plain_gptj, LlamaEnsemble: plain_llama}[kind]
    model, tokens = shaken(kind, TWO_HEADS[kind], [3, 4]), random_tokens(2, 5, 7)
    weights = {name: p[1] for name, p in model.named_parameters()}
    keys = torch.tensor([[1, 2], [-3, 4]], dtype=torch.int32)

    def factor(stream, *shape):
        return keep_mask(keys, stream, shape, 0.2)[1] / 0.8

    factors = {
        "embedding": factor(0, 5, 7, 32),
        "attention": torch.stack([factor(3 * layer + 1, 5, 2, 7, 7) for layer in range(3)]),
        "attention_output": torch.stack([factor(3 * layer + 2, 5, 7, 32) for layer in range(3)]),
        "mlp_output": torch.stack([factor(3 * layer + 3, 5, 7, 32) for layer in range(3)]),
    }
    with torch.no_grad():
        expected = []
        for b in range(5):
            masks = {name: each[b] if name == "embedding" else each[:, b] for name, each in factors.items()}
            expected.append(plain(model.config, weights, tokens[1, b], masks))
        expected = torch.stack(expected)
        ours = model(tokens, dropout_keys=keys, all_positions=all_positions)[1]
        assert (model(tokens)[1] - expected[:, -1]).abs().max() > 0.1
    torch.testing.assert_close(ours, expected if all_positions else expected[:, -1], atol=ROUNDING[kind], rtol=0)


@KINDS
def test_a_members_start_and_logits_do_not_depend_on_the_others(kind):
    many, alone, tokens = kind(TWO_HEADS[kind], [7, 3, 5]), kind(TWO_HEADS[kind], [3]), random_tokens(3, 4, 9)
    for (name, ours), theirs in zip(many.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours[1:2], theirs), name
    torch.testing.assert_close(many(tokens)[1:2], alone(tokens[1:2]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(many.member(1)(tokens[1]), alone(tokens[1]), atol=0, rtol=0)
    assert not torch.equal(many.embedding[0], many.embedding[1])


@KINDS
def test_starting_values_have_the_spread_asked_for_and_leave_the_global_generator_alone(kind):
    before = torch.random.get_rng_state()
    model = kind(kind.Config(136, layers=2), [0])
    model.member_to_transformers(0)
    assert torch.equal(before, torch.random.get_rng_state())
    assert model.mlp_in.std().item() == pytest.approx(0.02, rel=0.02)
    for name, parameter in model.named_parameters():
        if name.endswith(("_bias", "_gain")):
            assert (parameter == name.endswith("_gain")).all(), name


@KINDS
def test_shared_tokens_are_read_by_all_members(kind):
    model, tokens = kind(ONE_HEAD[kind], [0, 1]), random_tokens(4, 9)
    assert torch.equal(model(tokens), model(torch.stack([tokens, tokens])))


@CONFIGS
@pytest.mark.parametrize("all_positions", [True, False])
def test_attention_can_be_replaced_layer_by_layer(kind, config, all_positions):
    model, tokens = shaken(kind, config, [3, 4]), random_tokens(2, 5, 9)
    asked = []

    def uniform_in_the_second_layer(layer, query, key, value):
        asked.append(query.shape[2])
        if layer != 1:
            return causal_attention(query, key, value, frequencies=config.frequencies, layout=kind.layout)
        return value.cumsum(2)[:, :, -query.shape[2] :] / torch.arange(1, 10).view(-1, 1, 1)[-query.shape[2] :]

    ours = model(tokens, attend=uniform_in_the_second_layer, all_positions=all_positions)
    assert asked == [9, 9, 9 if all_positions else 1]
    without = model.from_weights(config, {n: p.clone() for n, p in model.named_parameters()})
    with torch.no_grad():
        without.key[:, 1] = 0  # all logits 0
        torch.testing.assert_close(ours, without(tokens, all_positions=all_positions), atol=1e-5, rtol=0)


@KINDS
def test_saved_weights_come_back_as_the_same_kind_of_model(kind, tmp_path):
    model, config = shaken(kind, TWO_HEADS[kind], [0, 1]), TWO_HEADS[kind]
    model.save(tmp_path / "whole.safetensors")
    model.save(tmp_path / "half.safetensors", torch.float16)
    back, half = (kind.load(tmp_path / f"{precision}.safetensors") for precision in ("whole", "half"))
    assert back.config == half.config == config
    for ours, whole, rounded in zip(model.parameters(), back.parameters(), half.parameters(), strict=True):
        assert torch.equal(ours, whole)
        assert torch.equal(ours.half().float(), rounded)
    other = {GPTJEnsemble: LlamaEnsemble, LlamaEnsemble: GPTJEnsemble}[kind]
    with pytest.raises(ResultsError, match=f"no {other.__name__}"):
        other.load(tmp_path / "whole.safetensors")


@KINDS
def test_a_damaged_file_is_refused(kind, tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(ResultsError, match="save"):
        kind.load(path)
    kind(ONE_HEAD[kind], [0]).save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ResultsError, match="save"):
        kind.load(path)


def test_impossible_sizes_are_refused():
    for kind, changes in [
        *(
            (kind, changes)
            for kind in (GPTJEnsemble, LlamaEnsemble)
            for changes in (
                {"layers": 0},
                {"layers": 2.0},
                {"layers": True},
                {"vocabulary_size": "many"},
                {"dropout": 1.0},
                {"dropout": math.nan},
                {"init_std": -1},
                {"heads": 3},
                {"heads": 16},
                {"base": 0.5},
            )
        ),
        (GPTJEnsemble, {"rotary_dim": 3}),
        (GPTJEnsemble, {"rotary_dim": 18}),
        (GPTJEnsemble, {"rotary_dim": "all"}),
        (LlamaEnsemble, {"mlp_width": 0}),
        (LlamaEnsemble, {"mlp_width": 2.5}),
    ]:
        with pytest.raises(ConfigError, match=next(iter(changes))):
            dataclasses.replace(ONE_HEAD[kind], **changes)


@KINDS
def test_impossible_seeds_are_refused(kind):
    for seeds in [[], [-1], [0.5], [True], ["0"]]:
        with pytest.raises(InputError, match="seeds"):
            kind(ONE_HEAD[kind], seeds)


@KINDS
def test_impossible_tokens_are_refused(kind):
    for tokens in [
        torch.zeros(3, 4, 5, dtype=torch.int64),
        torch.zeros(5, dtype=torch.int64),
        torch.zeros(4, 0, dtype=torch.int64),
        torch.zeros(4, 5),
        torch.full((4, 5), 20),
        torch.full((4, 5), -1),
        [[1, 2]],
    ]:
        with pytest.raises(InputError, match="token"):
            kind(ONE_HEAD[kind], [0, 1])(tokens)


@KINDS
def test_other_impossible_arguments_are_refused(kind):
    model = kind(TWO_HEADS[kind], [0, 1])
    with pytest.raises(InputError, match="member"):
        model.member(2)
    weights = dict(model.named_parameters())
    with pytest.raises(InputError, match="final_norm_gain"):
        kind.from_weights(TWO_HEADS[kind], {**weights, "final_norm_gain": torch.zeros(2, 3)})
    del weights["head"]
    with pytest.raises(InputError, match="expected"):
        kind.from_weights(TWO_HEADS[kind], weights)


def test_the_config_of_another_kind_of_model_is_refused():
    for kind, other in [(GPTJEnsemble, LlamaEnsemble), (LlamaEnsemble, GPTJEnsemble)]:
        given, wanted = other.Config.__name__, kind.Config.__name__
        with pytest.raises(InputError, match=f"config is a {given}: give a {wanted}"):
            kind(other.Config(10), [0])


def test_lookup_has_the_gradient_of_an_embedding():
    table = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    tokens = torch.tensor([[0, 4, 4, 1], [2, 2, 2, 0]])
    weight = torch.arange(24.0).view(2, 4, 3)
    (ours,) = torch.autograd.grad((Lookup.apply(table, tokens) * weight).sum(), table)
    rows = torch.stack([F.embedding(tokens[e], table[e]) for e in range(2)])
    (theirs,) = torch.autograd.grad((rows * weight).sum(), table)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("length", [100, 150, 3000])
def test_attention_is_that_of_float64_at_far_places_in_both_ways_of_computing_it(layout, length):
    source = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 1, length, 2, 8, generator=source) for _ in range(3))
    angles = GPTJConfig(5, width=8).frequencies
    places = torch.arange(length)[:, None]
    turned = [rotate(each.double(), places, angles, layout) for each in (query, key)]
    logits = torch.einsum("ebqhd,ebthd->ebhqt", turned[0][:, :, -3:], turned[1]) * 0.7
    logits = logits.masked_fill(torch.ones(length, length).triu(1).bool()[-3:], -math.inf)
    expected = torch.einsum("ebhqt,ebthd->ebqhd", logits.softmax(-1), value.double())
    ours = causal_attention(query, key, value, frequencies=angles, scale=0.7, layout=layout)
    torch.testing.assert_close(ours[:, :, -3:].double(), expected, atol=2e-5, rtol=0)
    last = causal_attention(query[:, :, -1:], key, value, frequencies=angles, scale=0.7, layout=layout)
    torch.testing.assert_close(last.double(), expected[:, :, -1:], atol=2e-5, rtol=0)


def test_gptj_alone_has_one_base_in_transformers():
    other_base = GPTJEnsemble(dataclasses.replace(ONE_HEAD[GPTJEnsemble], base=500.0), [0])
    with pytest.raises(UnsupportedModelError, match="base"):
        other_base.member_to_transformers(0)


def test_gptj_alone_has_a_bias_on_its_logits():
    config = ONE_HEAD[GPTJEnsemble]
    weights = dict(GPTJEnsemble(config, [0, 1]).named_parameters())
    with pytest.raises(InputError, match="head_bias"):
        GPTJEnsemble.from_weights(config, {**weights, "head_bias": torch.zeros(2, 3)})


def test_llamas_gated_mlp_holds_about_as_many_weights_as_gptjs():
    config = LlamaConfig(136)
    assert 3 * config.hidden == pytest.approx(2 * 4 * config.width, rel=0.01)
    assert LlamaEnsemble.shapes(config)["mlp_gate"] == (12, 128, 344)
