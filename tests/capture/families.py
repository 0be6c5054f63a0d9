"""Tiny random models of every family that `possym.capture` reads or refuses."""

import torch
import transformers
from transformers import AutoModelForCausalLM

LENGTH = 24
COMMON = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
EXPERTS = dict(num_local_experts=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16)
MLA = dict(
    kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, num_key_value_heads=4,
    first_k_dense_replace=2, n_routed_experts=2, n_shared_experts=1, n_group=1, topk_group=1,
)  # fmt: skip
OLD = dict(n_embd=32, n_layer=2, n_head=4, n_inner=32, n_positions=64, rotary_dim=4)


def rope(kind, **options):
    """A rope_parameters entry that is long enough for its scaling to act within LENGTH."""
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **options))


FAMILIES = {
    "llama": ("Llama", {}),
    "llama linear": ("Llama", rope("linear", factor=2.0)),
    "llama dynamic": ("Llama", rope("dynamic", factor=2.0) | dict(max_position_embeddings=16)),
    "llama yarn": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    "llama llama3": (
        "Llama",
        rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama longrope": (
        "Llama",
        rope(
            "longrope",
            factor=4.0,
            long_factor=[1.0, 1.5, 2.0, 4.0],
            short_factor=[1.0, 1.0, 1.1, 1.2],
            original_max_position_embeddings=16,
        ),
    ),
    "mistral": ("Mistral", dict(sliding_window=8)),
    "mixtral": ("Mixtral", EXPERTS),
    "qwen2": ("Qwen2", {}),
    "granite": ("Granite", dict(attention_multiplier=0.3)),
    "starcoder2": ("Starcoder2", dict(sliding_window=None)),
    "phimoe": ("Phimoe", EXPERTS),
    "seed_oss": ("SeedOss", {}),
    "qwen3": ("Qwen3", {}),
    "olmo": ("Olmo", {}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])),
    "apertus": ("Apertus", {}),
    "exaone4": ("Exaone4", dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])),
    "gemma": ("Gemma", {}),
    "gemma2": ("Gemma2", dict(query_pre_attn_scalar=8, sliding_window=8, attn_logit_softcapping=2.0)),
    "gemma3": (
        "Gemma3Text",
        dict(query_pre_attn_scalar=8, sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    ),
    "gemma3n": (
        "Gemma3nText",
        dict(
            num_hidden_layers=4,
            num_kv_shared_layers=2,
            layer_types=["sliding_attention", "full_attention"] * 2,
            sliding_window=8,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=64,
            altup_num_inputs=2,
            laurel_rank=4,
            activation_sparsity_pattern=[0.0] * 4,
            intermediate_size=[32] * 4,
        ),
    ),
    "gemma4": (
        "Gemma4Text",
        dict(
            num_hidden_layers=2,
            num_kv_shared_layers=0,
            layer_types=["sliding_attention", "full_attention"],
            sliding_window=8,
            global_head_dim=16,
            hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=64,
        ),
    ),
    "gpt_neox": ("GPTNeoX", dict(rotary_pct=0.5)),
    "phi": ("Phi", dict(partial_rotary_factor=0.5)),
    "phi3": ("Phi3", {}),
    "stablelm": ("StableLm", dict(partial_rotary_factor=0.5, qk_layernorm=True)),
    "nemotron": ("Nemotron", dict(partial_rotary_factor=0.5)),
    "persimmon": ("Persimmon", dict(partial_rotary_factor=0.5, qk_layernorm=True)),
    "glm4_moe": (
        "Glm4Moe",
        EXPERTS | dict(first_k_dense_replace=2, n_routed_experts=2, n_shared_experts=1, partial_rotary_factor=0.5),
    ),
    "cohere": ("Cohere", {}),
    "glm": ("Glm", dict(partial_rotary_factor=0.5)),
    "glm4": ("Glm4", dict(partial_rotary_factor=0.5)),
    "ernie4_5": ("Ernie4_5", {}),
    "helium": ("Helium", {}),
    "llama4": (
        "Llama4Text",
        EXPERTS
        | dict(
            intermediate_size_mlp=32, no_rope_layers=[1, 0], attention_chunk_size=16, moe_layers=[], use_qk_norm=True
        ),
    ),
    "smollm3": ("SmolLM3", dict(no_rope_layers=[1, 0])),
    "cohere2": ("Cohere2", dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])),
    "deepseek_v2": ("DeepseekV2", MLA | dict(head_dim=8)),
    "deepseek_v3": ("DeepseekV3", MLA | dict(head_dim=8)),
    "minicpm3": ("MiniCPM3", MLA | dict(head_dim=8)),
    "gpt_oss": ("GptOss", EXPERTS | dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"])),
    "hunyuan_v1_dense": ("HunYuanDenseV1", {}),
    "gptj": ("GPTJ", OLD),
    "codegen": ("CodeGen", OLD),
    "falcon": ("Falcon", dict(alibi=False)),
    "falcon many key heads": ("Falcon", dict(alibi=False, new_decoder_architecture=True, num_kv_heads=2)),
    "gpt_neox_japanese": ("GPTNeoXJapanese", dict(intermediate_multiple_size=1)),
    "qwen3_next": (
        "Qwen3Next",
        EXPERTS
        | dict(
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
            shared_expert_intermediate_size=16,
            partial_rotary_factor=0.5,
        ),
    ),
}


def build(family, *, seed=0, attention="eager", **options):
    """A tiny random model in which every parameter, gains and biases included, is far from its trivial value."""
    name, own = FAMILIES[family]
    settings = COMMON | own | options
    if family.startswith("falcon"):
        del settings["head_dim"]
    config = getattr(transformers, f"{name}Config")(**settings)
    return randomise(AutoModelForCausalLM.from_config(config, attn_implementation=attention), seed)


def randomise(model, seed):
    """Redraw all parameters: projections large enough for attention that is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            gain = parameter.ndim == 1 and "norm" in name and "bias" not in name
            parameter.copy_(1 + 0.3 * noise if gain else noise * (0.3 if parameter.ndim == 1 else 0.25))
    return model.eval()


def tokens(length=LENGTH, batch=1, seed=0):
    """Random token ids (batch, length), special tokens left out."""
    return torch.randint(3, 64, (batch, length), generator=torch.Generator().manual_seed(seed))
