"""E Llama models as one module, with the interface and the axes of `possym.ensembles.gptj`.

What it does:
- the Llama block: attention, then a gated MLP (SiLU), each on an RMSNorm of its own, no biases, final RMSNorm, untied
  output;
- RoPE on the whole head width in the half layout, dimensions k and k + D/2 a pair;
- in training, dropout where GPT-J has it: on the embedding, the attention weights and both blocks' outputs;
- one member to and from `transformers.LlamaForCausalLM`.

Sizes: E members, B sequences, T positions, C width, H heads, D = C/H head width, L layers, M MLP width, V vocabulary.
As for GPT-J, the norms' gains are multiplied into the weights that read them, and dropout's factor into the weights
that follow the dropped values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles.attention import attention_of_block
from possym.ensembles.dropout import keep_mask
from possym.ensembles.ensemble import Ensemble, Sizes, need_size, project
from possym.ensembles.exchange import check_importable, check_kind, exported, read_from
from possym.errors import needed

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

EPSILON = 1e-6


@dataclass(frozen=True)
class LlamaConfig(Sizes):
    """Sizes of a Llama model with as many key as query heads.

    ``mlp_width=None`` is 8/3 of the width, up to a multiple of 8, so that the three matrices of a gated MLP hold
    about as many weights as the two of a plain one that is four times as wide as the model.

    Raises:
        ConfigError: a value of the wrong type or out of range.

    Source of the defaults: 2605.31558, appendix C.2, and Llama's blocks.

    >>> LlamaConfig(vocabulary_size=136).hidden
    344
    """

    mlp_width: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        super().__post_init__()
        if self.mlp_width is not None:
            need_size("mlp_width", self.mlp_width)

    @property
    def hidden(self) -> int:
        """M, the width of the MLP."""
        return self.mlp_width or -(-self.width // 3) * 8


def block(
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    turns: tuple[Tensor, Tensor],
    *,
    heads: int,
    cut: bool,
    dropped: float,
    keys: Tensor | None,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    precision: str | None,
) -> Tensor:
    """Return the residual stream (E, B, Q, C) after one block: attention, then the gated MLP.

    Args:
        x: (E, B, T, C), before it.
        weights: of key, value and query (E, C, 3C), of attention's output, of gate and input (E, C, 2M), and of the
            MLP's output.
        turns: cosines and sines, see `possym.ensembles.attention.tables`.
        heads: H.
        cut: compute the last position alone, Q = 1; else Q = T.
        dropped: probability of dropping a value; ``keys`` (E, 2) are this layer's, None where it is 0.
        attend: in place of `causal_attention`.
        precision: see `possym.ensembles.attention.attention_of_block`.
    """
    entry, attention_output, gated, mlp_output = weights
    _, B, T, C = x.shape
    normed = F.rms_norm(x, (C,), eps=EPSILON).to(entry.dtype)
    if cut:
        joint = project(normed, entry[..., : 2 * C])
        query = project(normed[:, :, -1:], entry[..., 2 * C :])
        x = x[:, :, -1:]
    else:
        joint = project(normed, entry)
        query = joint[..., 2 * C :]
    mixed = attention_of_block(
        joint,
        query,
        turns,
        heads=heads,
        layout="half",
        dropped=dropped,
        keys=keys,
        attend=attend,
        precision=precision,
    )
    attended = project(mixed, attention_output)
    if dropped:
        attended = attended * keep_mask(keys, 2, (B, T, C), dropped)[:, :, -query.shape[2] :]
    x = x + attended
    gate, hidden = project(F.rms_norm(x, (C,), eps=EPSILON).to(normed.dtype), gated).chunk(2, -1)
    processed = project(F.silu(gate) * hidden, mlp_output)
    if dropped:
        processed = processed * keep_mask(keys, 3, (B, T, C), dropped)[:, :, -query.shape[2] :]
    return x + processed


class LlamaEnsemble(Ensemble):
    """E Llama models of one size, each started from its own seed.

    Axes of parameters, `forward`, `trace` and the rest are those of `possym.ensembles.ensemble.Ensemble`.

    Args:
        config: sizes.
        seeds: one whole number from 0 to below 2³² a member.

    Raises:
        InputError: seeds that are no whole numbers from 0, or none.

    >>> model = LlamaEnsemble(LlamaConfig(vocabulary_size=10, layers=2, width=8), seeds=[0, 1])
    >>> model(torch.zeros(2, 3, 5, dtype=torch.int64)).shape
    torch.Size([2, 3, 10])
    """

    Config = LlamaConfig
    layout = "half"
    block = staticmethod(block)

    @staticmethod
    def shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one member's parameters by name, the layer axis first within blocks."""
        V, L, C, M = config.vocabulary_size, config.layers, config.width, config.hidden
        return {
            "embedding": (V, C),
            "attention_norm_gain": (L, C),
            "query": (L, C, C),
            "key": (L, C, C),
            "value": (L, C, C),
            "attention_output": (L, C, C),
            "mlp_norm_gain": (L, C),
            "mlp_gate": (L, C, M),
            "mlp_in": (L, C, M),
            "mlp_output": (L, M, C),
            "final_norm_gain": (C,),
            "head": (C, V),
        }

    def stacked(self, dtype: torch.dtype, grown: float) -> Sequence[Tensor]:
        """Return the weights of all layers as products in ``dtype`` read them, with dropout's factor ``grown``."""
        entry = torch.cat([self.key, self.value, self.query], -1) * self.attention_norm_gain.unsqueeze(-1)
        gated = torch.cat([self.mlp_gate, self.mlp_in], -1) * self.mlp_norm_gain.unsqueeze(-1)
        return [each.to(dtype) for each in (entry, self.attention_output * grown**2, gated, self.mlp_output * grown)]

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (E, B, Q, V) of a residual stream (E, B, Q, C)."""
        normed = F.rms_norm(x, x.shape[-1:], eps=EPSILON) * self.final_norm_gain[:, None, None]
        return project(normed, self.head)

    def member_to_transformers(self, index: int) -> "LlamaForCausalLM":
        """Return one member as a `transformers.LlamaForCausalLM` in evaluation mode, on the CPU.

        Transformers' Llama drops attention weights alone; our dropout becomes its ``attention_dropout``.

        Raises:
            InputError: no such member.
        """
        with needed("a model of transformers needs", "models"):
            from transformers import LlamaConfig as TheirConfig
            from transformers import LlamaForCausalLM

        ours = self.config
        member = self.member(index)
        theirs = TheirConfig(
            vocab_size=ours.vocabulary_size,
            hidden_size=ours.width,
            intermediate_size=ours.hidden,
            num_hidden_layers=ours.layers,
            num_attention_heads=ours.heads,
            rms_norm_eps=EPSILON,
            rope_parameters={"rope_type": "default", "rope_theta": ours.base},
            attention_dropout=ours.dropout,
            initializer_range=ours.init_std,
            tie_word_embeddings=False,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
        return exported(LlamaForCausalLM, theirs, transformers_tensors, member)

    @classmethod
    def from_transformers(cls, model: "LlamaForCausalLM") -> Self:
        """Return a `transformers.LlamaForCausalLM` as an ensemble of one.

        Raises:
            UnsupportedModelError: another kind of model, another activation, fewer key heads than query heads, heads
                of another width than their share, biases, scaled RoPE, an RMSNorm epsilon other than 1e-6, or an
                output tied to the embedding.
        """
        from transformers import LlamaForCausalLM

        check_kind(model, LlamaForCausalLM)
        theirs = model.config
        rope = theirs.rope_parameters
        reasons = [
            (theirs.hidden_act != "silu", "its hidden_act is not silu"),
            (theirs.num_key_value_heads != theirs.num_attention_heads, "it has fewer key heads than query heads"),
            (theirs.head_dim * theirs.num_attention_heads != theirs.hidden_size, "head_dim is no share of hidden_size"),
            (theirs.attention_bias or theirs.mlp_bias, "it has biases"),
            (rope["rope_type"] != "default", "its RoPE is scaled"),
            (theirs.rms_norm_eps != EPSILON, f"rms_norm_eps is not {EPSILON:g}"),
            (model.lm_head.weight is model.model.embed_tokens.weight, "its output is tied to its embedding"),
        ]
        check_importable("Llama", reasons)
        config = LlamaConfig(
            vocabulary_size=theirs.vocab_size,
            layers=theirs.num_hidden_layers,
            heads=theirs.num_attention_heads,
            width=theirs.hidden_size,
            dropout=theirs.attention_dropout,
            init_std=theirs.initializer_range,
            base=rope["rope_theta"],
            mlp_width=theirs.intermediate_size,
        )
        return cls.from_weights(config, read_from(transformers_tensors(model), cls.shapes(config)))


def transformers_tensors(model: "LlamaForCausalLM") -> Iterator[tuple[tuple[str, int | None], Tensor]]:
    """Yield ((our name, layer or None), transformers' parameter) for every parameter of a Llama."""
    body = model.model
    yield ("embedding", None), body.embed_tokens.weight
    for layer, block in enumerate(body.layers):
        yield ("attention_norm_gain", layer), block.input_layernorm.weight
        yield ("query", layer), block.self_attn.q_proj.weight
        yield ("key", layer), block.self_attn.k_proj.weight
        yield ("value", layer), block.self_attn.v_proj.weight
        yield ("attention_output", layer), block.self_attn.o_proj.weight
        yield ("mlp_norm_gain", layer), block.post_attention_layernorm.weight
        yield ("mlp_gate", layer), block.mlp.gate_proj.weight
        yield ("mlp_in", layer), block.mlp.up_proj.weight
        yield ("mlp_output", layer), block.mlp.down_proj.weight
    yield ("final_norm_gain", None), body.norm.weight
    yield ("head", None), model.lm_head.weight
