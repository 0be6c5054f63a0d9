import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig as TheirConfig
from transformers import LlamaForCausalLM

from possym import ConfigError, InputError, ResultsError, UnsupportedModelError
from possym.dropout import kept
from possym.models.ensemble import causal_attention
from possym.models.gptj import GPTJConfig, GPTJEnsemble
from possym.models.llama import LlamaConfig, LlamaEnsemble
from possym.rope import rotate
from possym.scores import relocated_logits

ONE_HEAD = LlamaConfig(20, layers=3, width=16, dropout=0.0, init_std=0.2)
TWO_HEADS = LlamaConfig(20, layers=3, heads=2, width=32, mlp_width=20, dropout=0.2, init_std=0.15, base=500.0)
CONFIGS = pytest.mark.parametrize("config", [ONE_HEAD, TWO_HEADS], ids=["one head", "two heads"])


def random_tokens(*shape, seed=0):
    return torch.randint(20, shape, generator=torch.Generator().manual_seed(seed))


def shaken(config, seeds):
    """An ensemble whose gains are no longer 1."""
    model, source = LlamaEnsemble(config, seeds), torch.Generator().manual_seed(99)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_gain"):
                parameter += 0.3 * torch.randn(parameter.shape, generator=source)
    return model


@CONFIGS
@pytest.mark.parametrize("length", [1, 17, 200])
def test_every_member_in_transformers_gives_the_same_logits(config, length):
    model, tokens = shaken(config, [3, 4]), random_tokens(2, 5, length)
    for member in range(2):
        with torch.no_grad():
            theirs = model.member_to_transformers(member)(tokens[member]).logits
            assert theirs.std() > 0.1
            torch.testing.assert_close(model(tokens, all_places=True)[member], theirs, atol=2e-5, rtol=0)
            torch.testing.assert_close(model(tokens)[member], theirs[:, -1], atol=2e-5, rtol=0)


@CONFIGS
def test_export_and_import_keep_every_bit(config):
    model = shaken(config, [3, 4])
    back = LlamaEnsemble.from_transformers(model.member_to_transformers(1))
    assert back.config == dataclasses.replace(config, mlp_width=config.hidden)
    for (name, ours), theirs in zip(model.named_parameters(), back.parameters(), strict=True):
        assert torch.equal(ours[1:], theirs), name


SIZES = {"vocab_size": 20, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def test_a_model_that_transformers_started_can_be_imported():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        theirs = LlamaForCausalLM(TheirConfig(**SIZES)).eval()
    tokens = random_tokens(3, 9)
    with torch.no_grad():
        ours = LlamaEnsemble.from_transformers(theirs)(tokens)[0]
        torch.testing.assert_close(ours, theirs(tokens).logits[:, -1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"num_key_value_heads": 1}, "fewer key heads"),
        ({"head_dim": 8}, "head_dim"),
        ({"attention_bias": True}, "biases"),
        ({"mlp_bias": True}, "biases"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "RoPE is scaled"),
        ({"tie_word_embeddings": True}, "tied"),
    ],
)
def test_import_refuses_what_it_would_get_wrong(changes, reason):
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(TheirConfig(**{**SIZES, **changes}))
    with pytest.raises(UnsupportedModelError, match=reason):
        LlamaEnsemble.from_transformers(model)


def test_import_refuses_other_models():
    with pytest.raises(UnsupportedModelError, match="Linear"):
        LlamaEnsemble.from_transformers(nn.Linear(2, 2))


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
        layout=model.layout,
    )
    ours = relocated.diagonal(dim1=-2, dim2=-1).softmax(-1)[1]
    torch.testing.assert_close(ours, attentions[..., -1, :], atol=1e-5, rtol=0)
    torch.testing.assert_close(trace.logits, model(tokens), atol=1e-5, rtol=0)


def plain_llama(model, member, tokens, masks):
    """Llama for one member and one sequence (T,), place by place, head by head, with given dropout factors."""
    config, w = model.config, {name: p[member] for name, p in model.named_parameters()}
    T, C, H, D = len(tokens), config.width, config.heads, config.head_width

    def norm(x, gain):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain

    x = w["embedding"][tokens] * masks["embedding"]
    for layer in range(config.layers):
        h = norm(x, w["attention_norm_gain"][layer])
        query, key, value = (h @ w[name][layer] for name in ("query", "key", "value"))
        mixed = torch.zeros(T, C)
        for head in range(H):
            own = slice(head * D, (head + 1) * D)
            places = torch.arange(T)
            q, k = (rotate(each[:, own], places, config.frequencies, "half") for each in (query, key))
            for i in range(T):
                weights = (k[: i + 1] @ q[i] / D**0.5).softmax(0) * masks["attention"][layer][head, i, : i + 1]
                mixed[i, own] = weights @ value[: i + 1, own]
        x = x + (mixed @ w["attention_output"][layer]) * masks["attention_output"][layer]
        h = norm(x, w["mlp_norm_gain"][layer])
        hidden = F.silu(h @ w["mlp_gate"][layer]) * (h @ w["mlp_in"][layer])
        x = x + (hidden @ w["mlp_output"][layer]) * masks["mlp_output"][layer]
    return norm(x, w["final_norm_gain"]) @ w["head"]


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
            plain_llama(model, 1, tokens[1, b], {n: f[b] if n == "embedding" else f[:, b] for n, f in factors.items()})
            for b in range(5)
        ])  # fmt: skip
        ours = model(tokens, dropout_keys=keys, all_places=all_places)[1]
        assert (model(tokens)[1] - expected[:, -1]).abs().max() > 0.1
    torch.testing.assert_close(ours, expected if all_places else expected[:, -1], atol=2e-5, rtol=0)


def test_a_members_start_and_logits_do_not_depend_on_the_others():
    many, alone, tokens = LlamaEnsemble(TWO_HEADS, [7, 3, 5]), LlamaEnsemble(TWO_HEADS, [3]), random_tokens(3, 4, 9)
    for (name, ours), theirs in zip(many.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours[1:2], theirs), name
    torch.testing.assert_close(many(tokens)[1:2], alone(tokens[1:2]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(many.member(1)(tokens[1]), alone(tokens[1]), atol=0, rtol=0)
    assert not torch.equal(many.embedding[0], many.embedding[1])


def test_attention_can_be_replaced_layer_by_layer():
    model, tokens = shaken(TWO_HEADS, [3, 4]), random_tokens(2, 5, 9)

    def uniform_in_the_second_layer(layer, query, key, value):
        if layer != 1:
            return causal_attention(query, key, value, frequencies=TWO_HEADS.frequencies, layout="half")
        return value.cumsum(2)[:, :, -query.shape[2] :] / torch.arange(1, 10).view(-1, 1, 1)[-query.shape[2] :]

    without = model.from_weights(TWO_HEADS, {n: p.clone() for n, p in model.named_parameters()})
    with torch.no_grad():
        without.key[:, 1] = 0  # all logits 0
        ours = model(tokens, attend=uniform_in_the_second_layer)
        torch.testing.assert_close(ours, without(tokens), atol=1e-5, rtol=0)


def test_saved_weights_come_back_as_the_same_kind_of_model(tmp_path):
    model = shaken(TWO_HEADS, [0, 1])
    model.save(tmp_path / "llama.safetensors")
    back = LlamaEnsemble.load(tmp_path / "llama.safetensors")
    assert back.config == TWO_HEADS
    for ours, theirs in zip(model.parameters(), back.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(ResultsError, match="no GPTJEnsemble"):
        GPTJEnsemble.load(tmp_path / "llama.safetensors")


def test_a_gated_mlp_holds_about_as_many_weights_as_gptjs():
    config = LlamaConfig(136)
    assert 3 * config.hidden == pytest.approx(2 * 4 * config.width, rel=0.01)
    assert LlamaEnsemble.shapes(config)["mlp_gate"] == (12, 128, 344)


@pytest.mark.parametrize("changes", [{"layers": 0}, {"mlp_width": 0}, {"mlp_width": 2.5}, {"heads": 3}, {"base": 0.5}])
def test_impossible_sizes_are_refused(changes):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        dataclasses.replace(ONE_HEAD, **changes)


def test_the_config_of_another_kind_of_model_is_refused():
    with pytest.raises(InputError, match="config is a GPTJConfig: give a LlamaConfig"):
        LlamaEnsemble(GPTJConfig(10), [0])
