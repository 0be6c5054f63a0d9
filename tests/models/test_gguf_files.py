"""GGUF files, written here key by key, load as the models they were written from, their rotation included."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import possym
from possym.errors import InputError
from possym.models import hub

BASE, WIDTH, HEADS, KEY_HEADS = 5e5, 32, 4, 2
WORDS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab"]
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def build(rope):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=WIDTH * HEADS, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, head_dim=WIDTH, max_position_embeddings=131072,
        rope_parameters=dict(rope_theta=BASE) | rope, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for layer in model.model.layers:  # what 8 bits round is rounded beforehand
        weight = layer.mlp.up_proj.weight.data
        weight.copy_(torch.from_numpy(quants.dequantize(*eight_bits(weight))))
    return model


def eight_bits(weight):
    kind = GGMLQuantizationType.Q8_0
    return quants.quantize(weight.numpy().astype(np.float32), kind), kind


def interleaved(weight, heads):
    """Rows as llama.cpp has them: it pairs neighbouring dimensions where transformers pairs halves."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def write(model, path, said, factors):
    config, writer = model.config, GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(BASE)
    writer.add_rope_dimension_count(WIDTH)
    for key, value in said.items():
        {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)](
            f"llama.rope.scaling.{key}", value
        )
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([1] * len(WORDS))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    weights = {"token_embd": model.model.embed_tokens, "output_norm": model.model.norm, "output": model.lm_head}
    for number, layer in enumerate(model.model.layers):
        weights |= {f"blk.{number}.{theirs}": layer.get_submodule(ours) for ours, theirs in NAMES.items()}
    for name, module in weights.items():
        weight = module.weight.data
        if name.endswith(("attn_q", "attn_k")):
            weight = interleaved(weight, HEADS if name.endswith("q") else KEY_HEADS)
        if name.endswith("ffn_up"):
            array, kind = eight_bits(weight)
            writer.add_tensor(f"{name}.weight", array, raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", weight.contiguous().numpy())
    for name, values in factors.items():
        writer.add_tensor(name, values.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def divisors(rope):
    """By what transformers divides the angles of Llama 3."""
    config = build(dict()).config
    plain = BASE ** -(torch.arange(WIDTH // 2) / (WIDTH // 2))
    config.rope_parameters = dict(rope_theta=BASE) | rope
    return plain / ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]


LLAMA3 = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)
LONG, SHORT = torch.linspace(1, 40, WIDTH // 2), torch.linspace(1, 2, WIDTH // 2)
CASES = {
    "plain": ({}, {}, {}),
    "linear": (dict(rope_type="linear", factor=4.0), dict(type="linear", factor=4.0), {}),
    "yarn": (
        dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768),
        dict(type="yarn", factor=4.0, original_context_length=32768),
        {},
    ),
    "llama3": (LLAMA3, {}, {"rope_freqs.weight": divisors(LLAMA3)}),
    "longrope": (
        dict(
            rope_type="longrope", original_max_position_embeddings=16, long_factor=LONG.tolist(),
            short_factor=SHORT.tolist(),
        ),
        dict(original_context_length=16),
        {"rope_factors_long.weight": LONG, "rope_factors_short.weight": SHORT},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_file_is_the_model_it_was_written_from(name, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    rope, said, factors = CASES[name]
    model = build(rope)
    write(model, tmp_path / f"my-{name}.gguf", said, factors)
    for again in (False, True):
        loaded = hub.load(str(tmp_path / f"my-{name}.gguf"), device="cpu")
        if not again:
            (folder,) = (tmp_path / "cache").iterdir()
            before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert folder.name.startswith(f"my-{name}-")
    assert before == {file: file.stat().st_mtime_ns for file in folder.iterdir()}  # it was converted once
    ids = torch.arange(3, 28)[None]
    with torch.no_grad():
        assert torch.allclose(loaded.model(ids).logits, model(ids).logits, atol=1e-5)
    audit = possym.rope_audit(loaded.model)
    assert audit.scaling.tolist() == [rope.get("rope_type", "default")] * 2 and (audit.differs == "").all()
    assert loaded.tokenizer.convert_tokens_to_ids("c") == WORDS.index("c")
    assert possym.profile(loaded.model, ids, progress=False).settings["model"] == folder.name


@pytest.mark.parametrize(
    "said, factors, what",
    [
        (dict(type="su"), {}, r"\(su\)"),
        (dict(type="yarn"), {}, r"\(yarn\)"),
        ({}, {"rope_freqs.weight": LONG}, r"\(rope_freqs.weight\)"),
    ],
)
def test_a_scaling_that_is_not_read_is_warned_of(said, factors, what, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    write(build({}), tmp_path / "odd.gguf", said, factors)
    for _ in range(2):  # when it is converted, and when it is there
        with pytest.warns(UserWarning, match=rf"odd.gguf scales its rotation {what} in a way that is not read"):
            hub.load(str(tmp_path / "odd.gguf"), device="cpu")


@pytest.mark.parametrize("count", [0, -1000])
def test_a_file_that_is_cut_off_is_refused(count, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    write(build({}), tmp_path / "whole.gguf", {}, {})
    (tmp_path / "CUT.GGUF").write_bytes((tmp_path / "whole.gguf").read_bytes()[:count])
    with pytest.raises(InputError, match=r"CUT.GGUF' could not be loaded: \w+.* be cut off"):
        hub.load(str(tmp_path / "CUT.GGUF"), device="cpu")
    assert not list((tmp_path / "cache").iterdir())
