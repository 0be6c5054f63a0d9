"""A language model of Llama blocks whose RoPE planes turn at any angles, or not at all.

- `ENCODINGS`: the angles of every position encoding of the study;
- `LanguageModel`: the model; `trace` gives queries and keys before rotation, `attention` the weights;
- `save_model`, `load_model`: its weights as float16 in one safetensors file;
- `as_llama`: the same model as a `transformers.LlamaForCausalLM`.

Sizes: B sequences, T tokens, L layers, H heads, D head width, F = D/2 planes, V vocabulary.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from possym.errors import ResultsError, needed
from possym.results import atomic_write
from possym.rope import frequencies

EPSILON = 1e-6


def half_still(angles: Tensor, fast: bool) -> Tensor:
    """Return the angles with the faster or the slower half of the planes at 0.

    >>> half_still(torch.tensor([1.0, 0.1, 0.01, 0.001]), fast=False).tolist()
    [1.0, 0.10000000149011612, 0.0, 0.0]
    """
    planes = torch.arange(len(angles))
    first = planes < len(angles) // 2
    return angles * (~first if fast else first)


ENCODINGS: dict[str, Callable[[int], Tensor]] = {
    "rope": lambda width: frequencies(width, 10_000.0),
    "rope_million": lambda width: frequencies(width, 1_000_000.0),
    "slow_half_still": lambda width: half_still(frequencies(width, 10_000.0), fast=False),
    "fast_half_still": lambda width: half_still(frequencies(width, 10_000.0), fast=True),
    "nope": lambda width: torch.zeros(width // 2, dtype=torch.float64),
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; ``width`` is that of the residual stream, ``hidden`` that of the MLP."""

    vocabulary: int
    layers: int = 8
    heads: int = 8
    width: int = 512
    encoding: str = "rope"

    @property
    def head_width(self) -> int:
        """D, the width of one head."""
        return self.width // self.heads

    @property
    def hidden(self) -> int:
        """Width of the gated MLP: 8/3 of the residual stream's, a multiple of 32."""
        return 32 * round(self.width * 8 / 3 / 32)


class Block(nn.Module):
    """One Llama block: attention, then a gated MLP, each on a normalised residual stream."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.attention_norm = nn.RMSNorm(sizes.width, eps=EPSILON)
        self.queries_keys_values = nn.Linear(sizes.width, 3 * sizes.width, bias=False)
        self.output = nn.Linear(sizes.width, sizes.width, bias=False)
        self.mlp_norm = nn.RMSNorm(sizes.width, eps=EPSILON)
        self.gate_up = nn.Linear(sizes.width, 2 * sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def contents(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before rotation, each (B, H, T, D)."""
        split = self.queries_keys_values(self.attention_norm(x)).chunk(3, -1)
        return tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in split)

    def mlp(self, x: Tensor) -> Tensor:
        """Return what the MLP adds to the residual stream, (B, T, width)."""
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return self.down(F.silu(gate) * up)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        """Return the residual stream after the block; ``mask`` (H, T, T) adds to the logits in place of causality."""
        query, key, value = self.contents(x)
        return self.attend(x, rotate_half(query, turns), rotate_half(key, turns), value, mask)

    def attend(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the residual stream x after rotated queries have read the values of keys, and the MLP has followed."""
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(x)


def rotate_half(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Return x (..., T, D) rotated in planes (k, k + F) by turns, cosines and sines (T, D/2) in float32."""
    cosine, sine = turns
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(x)


class LanguageModel(nn.Module):
    """A causal language model of Llama blocks, seeded; input and output embeddings are one matrix."""

    def __init__(self, sizes: Sizes, generator: torch.Generator) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, eps=EPSILON)
        self.register_buffer("angles", ENCODINGS[sizes.encoding](sizes.head_width), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                last = name.endswith(("output.weight", "down.weight"))
                scale = 0.02 / (2 * sizes.layers) ** 0.5 if last else 0.02
                with torch.no_grad():
                    weight.copy_(torch.randn(weight.shape, generator=generator) * scale)

    def turns(self, length: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (T, F) of every position's angles, worked out in float64."""
        angles = torch.arange(length, device=self.angles.device)[:, None] * self.angles
        return angles.cos().float(), angles.sin().float()

    def forward(self, tokens: Tensor, turns: tuple[Tensor, Tensor], masks: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) of every next token; ``masks`` (L, H, T, T) add to the attention's logits."""
        x = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, turns, None if masks is None else masks[layer])
        return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (B, T, V) that the residual stream after the last block gives."""
        return F.linear(self.norm(x), self.embedding.weight)

    @torch.no_grad()
    def trace(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys before rotation of every layer, each (L, B, H, T, D) in float32."""
        x, turns, found = self.embedding(tokens), self.turns(tokens.shape[1]), []
        for block in self.blocks:
            query, key, _ = block.contents(x)
            found.append((query.float(), key.float()))
            x = block(x, turns)
        return tuple(map(torch.stack, zip(*found, strict=True)))

    def attention(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the attention weights (..., T, T) of queries and keys as `trace` gives them."""
        turns, length = self.turns(queries.shape[-2]), queries.shape[-2]
        logits = rotate_half(queries, turns) @ rotate_half(keys, turns).mT * self.sizes.head_width**-0.5
        later = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu(1)
        return logits.masked_fill(later, -torch.inf).softmax(-1)


def save_model(model: LanguageModel, path: Path) -> None:
    """Store a model's sizes, and its weights as float16, whole or not at all."""
    weights = {name: weight.detach().half().cpu().contiguous() for name, weight in model.named_parameters()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as part:
        save_file(weights, part, {"sizes": json.dumps(asdict(model.sizes))})


def load_model(path: Path) -> LanguageModel:
    """Read a model that `save_model` stored; its weights as float32 on the CPU.

    Raises:
        ResultsError: no such file, or no model in it; the message says how to make it.
    """
    advice = "run the study language_models on this machine to make them"
    if not path.is_file():
        raise ResultsError(f"no weights in {path}: {advice}")
    try:
        with safe_open(path, framework="pt") as stored:
            model = LanguageModel(Sizes(**json.loads((stored.metadata() or {})["sizes"])), torch.Generator())
            model.load_state_dict({name: stored.get_tensor(name).float() for name in stored.keys()})
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ResultsError(f"{path} holds no weights of this study ({error}): delete it, and {advice}") from error
    return model


def as_llama(model: LanguageModel) -> nn.Module:
    """Return the same model as a `transformers.LlamaForCausalLM` in float32, its planes turning as they did.

    Code that reads Llama models reads it too: `possym.profile`, `possym.capture.Capture`. What is saved keeps the
    weights, not the angles, where the encoding is none that transformers can name.
    """
    with needed("a model of transformers needs", "models"):
        from transformers import LlamaConfig, LlamaForCausalLM

    sizes = model.sizes
    config = LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.width,
        intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        rms_norm_eps=EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6 if sizes.encoding == "rope_million" else 1e4},
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    llama = LlamaForCausalLM(config).eval()
    weights = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    for layer, block in enumerate(model.blocks):
        query, key, value = block.queries_keys_values.weight.chunk(3)
        gate, up = block.gate_up.weight.chunk(2)
        weights |= {
            f"model.layers.{layer}.{name}.weight": weight
            for name, weight in {
                "self_attn.q_proj": query,
                "self_attn.k_proj": key,
                "self_attn.v_proj": value,
                "self_attn.o_proj": block.output.weight,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": block.down.weight,
                "input_layernorm": block.attention_norm.weight,
                "post_attention_layernorm": block.mlp_norm.weight,
            }.items()
        }
    weights["lm_head.weight"] = model.embedding.weight
    llama.load_state_dict({name: weight.detach().float().cpu() for name, weight in weights.items()})
    llama.model.rotary_emb.inv_freq.copy_(model.angles.float())
    return llama
