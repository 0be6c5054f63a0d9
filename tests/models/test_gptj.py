import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPTJConfig as TheirConfig
from transformers import GPTJForCausalLM

from possym import ConfigError, InputError, ResultsError, UnsupportedModelError
from possym.models.gptj import GPTJConfig, GPTJEnsemble, Lookup, rotation
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
    keep = torch.rand(2, model.mask_size(5, 7), generator=torch.Generator().manual_seed(5)) > 0.2
    shapes = model.mask_shape(5, 7)
    pieces = keep[1].split([math.prod(shape) for shape in shapes.values()])
    factors = {name: piece.view(shape) / 0.8 for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
    with torch.no_grad():
        expected = torch.stack([
            plain_gptj(model, 1, tokens[1, b], {n: f[b] if n == "embedding" else f[:, b] for n, f in factors.items()})
            for b in range(5)
        ])  # fmt: skip
        ours = model(tokens, keep=keep, all_places=all_places)[1]
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


def test_rotation_keeps_precision_at_far_positions():
    turn = rotation(100_001, 8, 8, 10000.0, torch.device("cpu"))[100_000, 0]
    angles = [100_000 * 10000 ** (-k / 4) for k in range(4)]
    expected = torch.tensor([complex(math.cos(a), math.sin(a)) for a in angles], dtype=torch.complex64)
    torch.testing.assert_close(turn, expected, atol=1e-6, rtol=0)


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
    with pytest.raises(InputError, match="keep"):
        model(random_tokens(4, 5), keep=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(InputError, match="member"):
        model.member(2)
    weights = dict(model.named_parameters())
    with pytest.raises(InputError, match="head_bias"):
        GPTJEnsemble.from_weights(ONE_HEAD, {**weights, "head_bias": torch.zeros(2, 3)})
    del weights["head"]
    with pytest.raises(InputError, match="expected"):
        GPTJEnsemble.from_weights(ONE_HEAD, weights)
