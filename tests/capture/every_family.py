"""Every family of the installed transformers that can be built tiny, against a brute force that knows nothing of RoPE.

- `model_types()` names the families, `build(model_type)` makes a tiny random model of one.
- `check(model)` compares `possym.capture` with whole forward passes of the model in which one attention module gets
  its tokens in another order, the query kept: so key contents change places before they are rotated.
- ``python -m tests.capture.every_family`` does it for all and writes what the page *Which models are read* shows.
"""

import argparse
import functools
import inspect
import json
import platform
import signal
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from possym.capture import Capture
from possym.errors import PossymError

from .families import randomise, tokens

TABLE = Path(__file__).parents[2] / "possym" / "data" / "models_read.json"
LENGTH, QUERY = 24, 20
RIGHT = 1e-5
LARGEST = 20_000_000
LAYERS = 2
MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM")
AUTO = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM")


# What a tiny model has instead of its default, wherever its config has a field of the name.
TINY = dict(
    vocab_size=64, vocab_size_per_layer_input=64, unpadded_vocab_size=64, text_vocab_size=64, hidden_size=32,
    n_embd=32, d_model=32, dim=32, emb_dim=32, embed_dim=32, embedding_size=32, model_dim=32,
    word_embed_proj_dim=32, hidden_size_global=32, projection_dim=32, out_hidden_size=32, output_dim=32,
    encoder_hidden_size=32, text_hidden_size=32, decoder_hidden_size=32, attention_hidden_size=32,
    input_size=32, projector_hidden_size=32, projection_hidden_dim=32, hidden_dim=32, image_text_hidden_size=32,
    downsample_hidden_size=32, patch_embed_hidden_size=32, vision_output_dim=32, adapter_out_dim=32,
    conv_output_size=32, intermediate_size=32, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    n_inner=32, d_ff=32, ffn_dim=32, ffn_hidden_size=32, expert_ffn_hidden_size=16, dim_ff=32, dff=32,
    mlp_dim=32, encoder_ffn_dim=32, decoder_ffn_dim=32, shared_intermediate_size=16,
    moe_shared_expert_intermediate_size=16, feedforward_proj_dim=32, shared_experts_intermediate_size=16,
    intermediate_size_mlp=32, dense_intermediate_size=32, adapter_in_dim=32, num_hidden_layers=LAYERS,
    n_layer=LAYERS, n_layers=LAYERS, num_layers=LAYERS, layers=LAYERS, depth=LAYERS, encoder_layers=LAYERS,
    decoder_layers=LAYERS, num_blocks=LAYERS, num_decoder_layers=LAYERS, num_encoder_layers=LAYERS,
    num_attention_heads=4, n_head=4, n_heads=4, num_heads=4, attention_heads=4, encoder_attention_heads=4,
    decoder_attention_heads=4, num_key_value_heads=2, num_kv_heads=2, head_dim=8, attention_head_dim=8,
    kv_channels=8, swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=8, global_head_dim=16,
    rotary_dim=4, dim_head=8, v_head_dim=8, qk_nope_head_dim=8, qk_rope_head_dim=8, qk_head_dim=16,
    kv_lora_rank=16, q_lora_rank=16, o_lora_rank=8, o_groups=2, index_head_dim=16, index_topk=12,
    index_n_heads=2, num_experts=4, num_local_experts=4, n_routed_experts=4, moe_num_experts=4,
    num_experts_per_tok=2, moe_topk=2, moe_k=2, n_shared_experts=1, n_group=1, topk_group=1,
    first_k_dense_replace=1, zero_expert_num=1, num_expert_group=1, linear_key_head_dim=8,
    linear_value_head_dim=8, linear_num_value_heads=2, linear_num_key_heads=2, linear_head_dim=8,
    linear_num_heads=4, mamba_d_state=8, mamba_n_heads=4, mamba_d_head=16, mamba_num_heads=4, mamba_head_dim=16,
    mamba_n_groups=1, n_groups=1, mamba_chunk_size=8, chunk_size=8, state_size=8, ssm_state_size=8,
    time_step_rank=4, mamba_dt_rank=4, lru_width=32, conv_kernel=4, num_hash_layers=0,
    max_position_embeddings=64, n_positions=64, max_source_positions=64, max_sequence_length=64, max_seq_len=64,
    sliding_window=16, sliding_window_size=16, attention_window_size=16, attention_chunk_size=16,
    hidden_size_per_layer_input=8, num_kv_shared_layers=0, laurel_rank=4, altup_num_inputs=2, d_rel=4,
    loop_gate_rank=4, hc_lowrank=8, gated_norm_rank=4, query_pre_attn_scalar=8, max_window_layers=LAYERS,
    num_nextn_predict_layers=0, image_size=32, patch_size=8, num_channels=3, num_mel_bins=16,
    num_position_embeddings=16, num_query_tokens=4, codebook_size=16, codebook_dim=8, base_channels=32,
    num_filters=8, mm_tokens_per_image=4, num_image_tokens=4, vocab_offset=64, num_codebooks=2,
    audio_vocab_size=16, n_ctx=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, image_token_id=60,
    video_token_id=61, audio_token_id=62, image_token_index=60, video_token_index=61, audio_token_index=62,
    vision_start_token_id=58, vision_end_token_id=59, image_start_token_id=58, image_end_token_id=59,
    video_start_token_id=56, video_end_token_id=57, audio_start_token_id=54, audio_end_token_id=55,
)  # fmt: skip
# Where that does not make a model: further settings of some families, those of a config's part in a dictionary.
SECTIONS = dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 1, 1])
WITH_SECTIONS = "glm46v glm4v glm_ocr glmga paddleocr_vl qwen2_5_vl qwen2_vl qwen2_5_omni_thinker".split()
OWN: dict[str, dict] = {name: dict(text_config=dict(rope_parameters=SECTIONS)) for name in WITH_SECTIONS} | {
    "bamba": dict(attn_layer_indices=[1], attn_rotary_emb=4),
    "cohere_compass_text": dict(layer_types=["sliding_attention", "full_attention"]),
    "deepseek_v2": dict(num_experts_per_tok=2),
    "dots1": dict(n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16),
    "falcon_h1": dict(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16),
    "granitemoehybrid": dict(layer_types=["linear_attention", "full_attention"], position_embedding_type="rope"),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1),
    "kimi_linear": dict(num_experts_per_token=2, num_experts_per_tok=2),
    "lfm2_moe": dict(layer_types=["conv", "full_attention"], num_dense_layers=1),
    "nemotron": dict(num_key_value_heads=2),
    "zamba": dict(layers_block_type=["linear_attention", "hybrid"]),
    "zamba2": dict(layers_block_type=["linear_attention", "hybrid"], use_mem_rope=True, num_mem_blocks=1),
    "zaya": dict(num_experts_per_tok=1),
    "glm4v_moe": dict(text_config=dict(rope_parameters=SECTIONS | dict(mrope_section=[1, 1, 0]))),
}


def model_types() -> list[str]:
    """Names of all families that transformers can make a language model of, decoders first."""
    names = [name for kind in MAPPINGS for name in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")]
    return list(dict.fromkeys(names))


def tiny_settings(kind: type, own: dict, default=None) -> dict:
    """The keyword arguments that make a config of a class tiny; ``own`` goes over all."""
    default = kind() if default is None else default
    settings = {}
    for name, value in vars(default).items():
        if name in own or name.startswith("_"):
            continue
        if name in TINY and isinstance(value, int) and not isinstance(value, bool):
            settings[name] = TINY[name]
        elif name in TINY and isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
            settings[name] = type(value)([TINY[name]] * min(len(value), LAYERS))
        elif name in ("layer_types", "layers_block_type", "block_types") and value:
            attention = [x for x in dict.fromkeys(value) if "attention" in str(x) and "linear" not in str(x)]
            rest = [x for x in dict.fromkeys(value) if x not in attention]
            settings[name] = (
                (rest[:1] + attention + attention + rest * 2)[:LAYERS] if attention else list(value[:LAYERS])
            )
        elif isinstance(value, (list, tuple)) and len(value) > LAYERS and ("layer" in name or "mlp" in name):
            settings[name] = value[:LAYERS]
    if "kv_lora_rank" in settings and "num_key_value_heads" in settings:
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    if "head_dim" in TINY and vars(default).get("head_dim", 0) is None:
        settings["head_dim"] = TINY["head_dim"]
    for field in ("rope_parameters", "rope_scaling"):
        rope = getattr(default, field, None)
        if isinstance(rope, dict) and "mrope_section" in rope:
            width = vars(default).get("head_dim") or default.hidden_size // default.num_attention_heads
            count = sum(rope["mrope_section"]) * 32 // width  # planes of a head of 32 dimensions
            small = [count - 2 * (count // 3), count // 3, count // 3]
            settings |= {field: rope | dict(mrope_section=small), "head_dim": 32, "hidden_size": 128}
            settings |= {"qk_rope_head_dim": 32} if "qk_rope_head_dim" in settings else {}
    for name, part in kind.sub_configs.items():
        if name in own and not isinstance(own[name], dict):
            continue
        given = getattr(default, name, None)
        part = type(given) if hasattr(given, "sub_configs") else part
        if hasattr(part, "sub_configs") and part.__name__ not in ("AutoConfig", "PreTrainedConfig"):
            settings[name] = tiny_settings(part, own.get(name, {}), given) | own.get(name, {})
            if getattr(given, "model_type", ""):
                settings[name]["model_type"] = given.model_type
    return settings | {name: value for name, value in own.items() if name not in settings}


def tiny_config(model_type: str):
    """A tiny config of a family."""
    kind = configuration_auto.CONFIG_MAPPING[model_type]
    own = OWN.get(model_type, {})
    return kind(**tiny_settings(kind, own))


def build(model_type: str, seed: int = 0):
    """A tiny random model of a family, whose attention returns its weights."""
    config = tiny_config(model_type)
    auto = next(
        getattr(transformers, name)
        for kind, name in zip(MAPPINGS, AUTO, strict=True)
        if model_type in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    )
    with torch.device("meta"):
        size = sum(p.numel() for p in auto.from_config(config).parameters())
    if size > LARGEST:
        raise MemoryError(f"{size:,} parameters with these settings")
    return randomise(auto.from_config(config, attn_implementation="eager"), seed)


def run(model, ids):
    """Run a model on token ids, without a cache where it takes one."""
    accepted = inspect.signature(model.forward).parameters
    return model(input_ids=ids, **({"use_cache": False} if "use_cache" in accepted or "kwargs" in accepted else {}))


class Pass:
    """One whole forward pass: the weights of every attention that ran, in order; one module may get its tokens moved.

    ``move`` is the number of an attention in the order of the pass, ``order`` (QUERY,) the tokens it gets there.
    ``put_back`` are that module's outputs of an earlier pass, so that layers above see no difference. ``at_rotation``
    moves the keys where they are rotated instead, for modules that mix tokens into their keys before.
    """

    def __init__(self, model, ids, move=None, order=None, put_back=None, at_rotation=False):
        self.move, self.put_back, self.at_rotation = move, put_back, at_rotation
        self.order = torch.arange(ids.shape[1])
        if order is not None:
            self.order = torch.cat([order, torch.arange(len(order), ids.shape[1])])
        self.inverse = self.order.argsort()
        self.modules, self.weights, self.outputs, self.moving, self.started = [], [], [], False, 0
        hooks = []
        for module in model.modules():
            if hasattr(type(module), "forward") and self.is_attention(module):
                hooks.append(module.register_forward_pre_hook(self.before, with_kwargs=True))
                hooks.append(module.register_forward_hook(self.after))
            elif type(module).__name__.endswith("Indexer"):  # picks keys by themselves, wherever their content is put
                hooks.append(module.register_forward_pre_hook(self.unmoved, with_kwargs=True))
        files = {sys.modules[type(m).__module__] for m in model.modules() if at_rotation and self.is_attention(m)}
        rotations = [(file, file.apply_rotary_pos_emb) for file in files]
        for file, rotation in rotations:
            file.apply_rotary_pos_emb = functools.partial(self.rotated, rotation)
        try:
            with torch.no_grad():
                self.logits = getattr(run(model, ids), "logits", None)
        finally:
            for hook in hooks:
                hook.remove()
            for file, rotation in rotations:
                file.apply_rotary_pos_emb = rotation

    def rotated(self, rotation, query, key, *args, **kwargs):
        return rotation(query, key[:, :, self.order] if self.moving else key, *args, **kwargs)

    @staticmethod
    def is_attention(module):
        name = type(module).__name__
        return ("Attention" in name or name.endswith("MLA")) and "Attention" not in "".join(
            type(child).__name__ for child in module.children()
        )

    @staticmethod
    def permuted(module, args, kwargs, order, names=("hidden_states", "x", "hidden")):
        """A call of a module with some of its inputs (B, T, D) in another order."""
        given = list(inspect.signature(type(module).forward).parameters)[1:]
        args = [x[:, order] if name in names else x for name, x in zip(given, args, strict=False)]
        return tuple(args), {name: x[:, order] if name in names else x for name, x in kwargs.items()}

    def before(self, module, args, kwargs):
        self.moving = self.started == self.move
        self.started += 1
        move = self.moving and not self.at_rotation
        return self.permuted(module, args, kwargs, self.order) if move else None

    def unmoved(self, module, args, kwargs):
        if self.moving:
            return self.permuted(module, args, kwargs, self.inverse, ("hidden_states", "q_resid"))
        return None

    def after(self, module, args, output):
        number, self.moving = len(self.outputs), False
        self.modules.append(module)
        self.outputs.append(output)
        parts = output if isinstance(output, tuple) else ()
        found = [x for x in parts if isinstance(x, torch.Tensor) and x.shape[-2:] == (LENGTH, LENGTH) and x.ndim == 4]
        self.weights.append(found[0][0, :, QUERY].double() if found else None)
        if number == self.move and self.put_back is not None:
            return self.put_back[number]
        return None


def attention_of(inputs, order):
    """The query's attention by possym over moved keys, contents in ``order``, and its own key where it is seen."""
    relocated = inputs.relocated_logits()
    logits = relocated[..., order, torch.arange(len(order))]
    weights = torch.cat([logits, inputs.extra_logits()], -1).softmax(-1)
    return weights[0, :, : len(order) + inputs.reads_itself].double()


def check(model) -> dict:
    """Compare every layer of a model with the brute force; a row of the page."""
    ids = tokens(LENGTH)
    plain = Pass(model, ids)
    if plain.logits is not None and not plain.logits.isfinite().all():
        return dict(status="not built", reason="its random weights overflow")
    found = []
    try:
        capture = Capture(model)
        logits = capture.run(ids, found.append, query=QUERY)
    except PossymError as error:
        return dict(status="refused", reason=str(error))
    if logits is not None and plain.logits.ndim == 3:
        found_logits = (logits - plain.logits[:, QUERY]).abs().max().item() / plain.logits.abs().max().item()
    else:
        found_logits = 0.0
    ran = [number for number, weights in enumerate(plain.weights) if weights is not None]
    if len(ran) != len(found):
        return dict(status="not compared", reason=f"{len(found)} layers read, {len(ran)} of them give their weights")
    worst, least = found_logits, 0.0
    generator = torch.Generator().manual_seed(1)
    for number, inputs in zip(ran, found, strict=True):
        keys = [*inputs.moved.tolist(), *[QUERY] * inputs.reads_itself]
        count = len(inputs.moved)
        hidden = plain.weights[number].clone()
        hidden[:, keys] = 0
        worst = max(worst, hidden.abs().max().item())  # what possym does not move, the model does not read
        inner = torch.randperm(count, generator=generator)
        whole = torch.arange(QUERY)
        whole[inputs.moved] = inputs.moved[inner]
        mixes = any(isinstance(part, torch.nn.Conv1d) for part in plain.modules[number].modules())
        moved = Pass(model, ids, number, whole, at_rotation=mixes).weights[number]
        if torch.equal(moved, plain.weights[number]) and count > 1:  # keys of another layer
            for donor in range(number - 1, -1, -1):
                moved = Pass(model, ids, donor, whole, plain.outputs).weights[number]
                if not torch.equal(moved, plain.weights[number]):
                    break
        for order, truth in ((torch.arange(count), plain.weights[number]), (inner, moved)):
            ours, theirs = attention_of(inputs, order), truth[:, keys]
            if inputs.sinks is not None and (theirs.sum(-1) - 1).abs().max() < 1e-6:
                ours = ours / ours.sum(-1, keepdim=True)  # GraniteSWA gives its weights before the sink takes its share
            worst = max(worst, (ours - theirs).abs().max().item())
        least = max(least, (moved - plain.weights[number]).abs().max().item())
    coverage = capture.coverage
    row = dict(
        difference=worst, layers=len(found), rotating=int(coverage.rotates.sum()),
        method="/".join(sorted(set(coverage.method[coverage.attention]))),
    )  # fmt: skip
    if least < 1e-3:
        return row | dict(status="not compared", reason="moving the keys changes next to nothing in this tiny model")
    return row | dict(status="right" if worst <= RIGHT else "wrong", reason="")


def try_family(model_type: str, seconds: int = 60) -> dict:
    """A row of the page for one family: built, read and compared, or why not."""

    def late(*_):
        raise TimeoutError(f"longer than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        try:
            model = build(model_type)
            with torch.no_grad():
                run(model, tokens(LENGTH))
        except Exception as error:  # whatever transformers says of these settings
            return dict(family=model_type, status="not built", reason=f"{type(error).__name__}: {first_line(error)}")
        name = type(model).__name__
        try:
            return dict(family=model_type, model=name) | check(model)
        except Exception as error:
            return dict(family=model_type, model=name, status="error", reason=f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)


def first_line(error: Exception) -> str:
    """An error's message in one line, cut."""
    return " ".join(str(error).split())[:160]


def main(arguments: list[str] | None = None) -> None:
    """Try all families, or those named, and write the table of the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--out", type=Path, default=TABLE)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows = []
    for name in given.families or model_types():
        rows.append(try_family(name))
        print(*rows[-1].values(), flush=True)
    if not given.families:
        versions = dict(transformers=version("transformers"), torch=torch.__version__, python=platform.python_version())
        lines = ",\n".join(json.dumps(row) for row in rows)
        given.out.write_text(f'{{"versions": {json.dumps(versions)},\n"families": [\n{lines}\n]}}\n')
    if any(row["status"] in ("wrong", "error") for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
