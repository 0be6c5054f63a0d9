"""E GPT-J models as one module, with an explicit model axis on every parameter.

What it does:
- the GPT-J block: attention and MLP in parallel on one LayerNorm, no biases in the attention, biases in the
  MLP, exact GELU, final LayerNorm, untied output with bias;
- interleaved RoPE from angles in float64, so positions are not limited by the training length;
- one batched product per kind of weight serves all members, and parameters are stacked over layers too, so a
  forward, a backward, a clip or an optimiser step costs few kernels;
- logits, softmax and the residual stream in float32, the large products in the dtype asked for;
- dropout masks hashed from a member's key of the step (`possym.ensembles.dropout`), so the same for it whatever E is;
- queries and keys before rotation of every layer in one forward (`GPTJEnsemble.trace`);
- the attention of any layer replaced by a function of its queries, keys and values (``attend``);
- one member to and from `transformers.GPTJForCausalLM`.

Sizes: E members, B sequences, T positions, C width, H heads, D = C/H head width, L layers, V vocabulary.
Two rewritings keep the step short and change no result: LayerNorm's gain and bias are multiplied into the
weights that read it, and dropout's factor 1/(1 − p) into the weights that follow the dropped values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles import folding
from possym.ensembles.attention import Attend, Watch, attention_of_block
from possym.ensembles.dropout import keep_mask
from possym.ensembles.ensemble import Ensemble, Sizes, need_size, project
from possym.ensembles.evaluation import blocks
from possym.ensembles.exchange import check_importable, check_kind, exported, read_from
from possym.ensembles.trunk import Options, Trunk, Weights
from possym.errors import ConfigError, UnsupportedModelError, needed
from possym.rope import frequencies

if TYPE_CHECKING:
    from transformers import GPTJForCausalLM


@dataclass(frozen=True)
class GPTJConfig(Sizes):
    """Sizes of a GPT-J model. ``rotary_dim=None`` turns the whole head width.

    Raises:
        ConfigError: a value of the wrong type or out of range.

    Source of the defaults: 2605.31558, appendix C.2, and GPT-J; its GELU is exact here, as in the code that the paper's
    authors released.

    >>> GPTJConfig(vocabulary_size=136).head_width
    128
    """

    rotary_dim: int | None = None
    mlp_ratio: int = 4

    def __post_init__(self) -> None:
        """Refuse what cannot be a model."""
        super().__post_init__()
        need_size("mlp_ratio", self.mlp_ratio)
        turned = self.rotary_dim
        if turned is not None and (isinstance(turned, bool) or not isinstance(turned, int)):
            raise ConfigError(f"rotary_dim = {turned!r}: give an even whole number, or None for the head width")
        if turned is not None and (turned < 2 or turned % 2 or turned > self.head_width):
            raise ConfigError(f"rotary_dim = {turned}: give an even number from 2 to the head width {self.head_width}")

    @property
    def frequencies(self) -> Tensor:
        """(F,) float64 angles of the RoPE planes in radians per position, fastest first."""
        return frequencies(self.rotary_dim or self.head_width, self.base)


def block(
    x: Tensor,
    weights: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
    turns: tuple[Tensor, Tensor],
    *,
    heads: int,
    cut: bool,
    dropped: float,
    keys: Tensor | None,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
    precision: str | None,
) -> Tensor:
    """Return the residual stream (E, B, Q, C) after one block: attention and MLP beside each other.

    Args:
        x: (E, B, T, C), before it.
        weights: ``entry``, weight (E, C, 3C + inner) and bias of key, value, query and the MLP's first half, and
            ``output``, weight of attention's output, weight and bias of the MLP's second half.
        turns: cosines and sines, see `possym.ensembles.attention.tables`.
        heads: H.
        cut: compute the last position alone, Q = 1; else Q = T.
        dropped: probability of dropping a value; ``keys`` (E, 2) are this layer's, None where it is 0.
        attend: in place of `causal_attention`.
        precision: see `possym.ensembles.attention.attention_of_block`.
    """
    entry, output = weights
    _, B, T, C = x.shape
    normed = F.layer_norm(x, (C,)).to(entry[0].dtype)
    if cut:
        joint = project(normed, *(part[..., : 2 * C] for part in entry))
        asked = project(normed[:, :, -1:], *(part[..., 2 * C :] for part in entry))
        query, hidden = asked.split([C, asked.shape[-1] - C], -1)
        x = x[:, :, -1:]
    else:
        product = project(normed, *entry)
        joint, hidden = product.split([3 * C, product.shape[-1] - 3 * C], -1)
        query = joint[..., 2 * C :]
    mixed = attention_of_block(
        joint,
        query,
        turns,
        heads=heads,
        layout="interleaved",
        dropped=dropped,
        keys=keys,
        attend=attend,
        precision=precision,
    )
    attended = project(mixed, output[0])
    processed = project(F.gelu(hidden), output[1], output[2])
    if dropped:
        attended = attended * keep_mask(keys, 2, (B, T, C), dropped)[:, :, -x.shape[2] :]
        processed = processed * keep_mask(keys, 3, (B, T, C), dropped)[:, :, -x.shape[2] :]
    return x + attended + processed


class GPTJEnsemble(Ensemble):
    """E GPT-J models of one size, each started from its own seed.

    Axes of parameters, `forward`, `trace` and the rest are those of `possym.ensembles.ensemble.Ensemble`.

    Args:
        config: sizes.
        seeds: one whole number from 0 to below 2³² a member (torch's CPU generator tells no more apart).

    Raises:
        InputError: seeds that are no whole numbers from 0, or none.

    Source: 2605.31558, appendix C.2.

    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=10, layers=2, width=8), seeds=[0, 1])
    >>> model(torch.zeros(2, 3, 5, dtype=torch.int64)).shape
    torch.Size([2, 3, 10])
    """

    Config = GPTJConfig
    layout = "interleaved"
    block = staticmethod(block)

    @staticmethod
    def shapes(config: GPTJConfig) -> dict[str, tuple[int, ...]]:
        """Return the shapes of one member's parameters by name."""
        return parameter_shapes(config)

    def stacked(self, dtype: torch.dtype, grown: float) -> Weights:
        """Return the weights of all layers as products in ``dtype`` read them, with dropout's factor ``grown``."""
        # In an order that lets the last layer split off what all positions need.
        ordered = self.key, self.value, self.query, self.mlp_in
        entry, moved = folding.folded(self.norm_gain, self.norm_bias, dtype, *ordered)
        return Weights(
            entry,
            (moved + F.pad(self.mlp_in_bias, (3 * self.config.width, 0))).to(dtype),
            folding.scaled(self.attention_output, grown**2, dtype),
            folding.scaled(self.mlp_output, grown, dtype),
            (self.mlp_output_bias * grown).to(dtype),
        )

    @staticmethod
    def of_block(entry: Tensor, entry_bias: Tensor, attention: Tensor, mlp: Tensor, mlp_bias: Tensor) -> tuple:
        """Return ``entry`` and ``output`` of a `block`, each bias (E, 1, …)."""
        return (entry, entry_bias.unsqueeze(-2)), (attention, mlp, mlp_bias.unsqueeze(-2))

    def learnt(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        turns: tuple[Tensor, Tensor],
        keys: Tensor | None,
        cut: bool,
        precision: str,
    ) -> Tensor:
        """Return the residual stream after all blocks, by kernels."""
        dropped = self.config.dropout if keys is not None else 0.0
        options = Options(self.config.heads, dropped, precision, cut)
        return Trunk.apply(x, *turns, keys, options, *weights)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits (E, B, Q, V) of a residual stream (E, B, Q, C)."""
        normed = F.layer_norm(x, x.shape[-1:]) * self.final_norm_gain[:, None, None]
        return project(normed + self.final_norm_bias[:, None, None], self.head, self.head_bias.unsqueeze(-2))

    def evaluated(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        turns: tuple[Tensor, Tensor],
        cut: bool,
        attend: Attend | None,
        precision: str,
    ) -> Tensor | None:
        """Return the residual stream after all blocks by kernels, unless attention is replaced."""
        if attend is not None and not isinstance(attend, Watch):
            return None
        return blocks(x, Weights(*weights), turns, heads=self.config.heads, cut=cut, watch=attend, precision=precision)

    def member_to_transformers(self, index: int) -> "GPTJForCausalLM":
        """Return one member as a `transformers.GPTJForCausalLM` in evaluation mode, on the CPU.

        Args:
            index: which member.

        Raises:
            InputError: no such member.
            UnsupportedModelError: transformers' GPT-J has RoPE base 10000 alone.
        """
        with needed("a model of transformers needs", "models"):
            from transformers import GPTJConfig as TheirConfig
            from transformers import GPTJForCausalLM

        ours = self.config
        member = self.member(index)
        if ours.base != 10000:
            raise UnsupportedModelError(f"RoPE base {ours.base}: transformers' GPT-J knows base 10000 alone")
        theirs = TheirConfig(
            vocab_size=ours.vocabulary_size,
            n_positions=2048,  # transformers tabulates angles
            n_embd=ours.width,
            n_layer=ours.layers,
            n_head=ours.heads,
            n_inner=ours.mlp_ratio * ours.width,
            rotary_dim=ours.rotary_dim or ours.head_width,
            activation_function="gelu",
            resid_pdrop=ours.dropout,
            embd_pdrop=ours.dropout,
            attn_pdrop=ours.dropout,
            initializer_range=ours.init_std,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
        )
        return exported(GPTJForCausalLM, theirs, transformers_tensors, member)

    @classmethod
    def from_transformers(cls, model: "GPTJForCausalLM") -> Self:
        """Return a `transformers.GPTJForCausalLM` as an ensemble of one.

        Raises:
            UnsupportedModelError: another kind of model, another activation, unequal dropouts, a LayerNorm
                epsilon other than 1e-5, or a width that is no multiple of the MLP's.
        """
        from transformers import GPTJForCausalLM

        check_kind(model, GPTJForCausalLM)
        theirs = model.config
        dropouts = {theirs.resid_pdrop, theirs.embd_pdrop, theirs.attn_pdrop}
        inner = theirs.n_inner or 4 * theirs.n_embd
        reasons = [
            (theirs.activation_function != "gelu", "its activation_function is not gelu"),
            (len(dropouts) > 1, "its dropouts differ"),
            (theirs.layer_norm_epsilon != 1e-5, "layer_norm_epsilon is not 1e-5"),
            (inner % theirs.n_embd != 0, "n_inner is no multiple of n_embd"),
            (model.lm_head.weight is model.transformer.wte.weight, "its output is tied to its embedding"),
        ]
        check_importable("GPT-J", reasons)
        width = theirs.n_embd // theirs.n_head
        config = GPTJConfig(
            vocabulary_size=theirs.vocab_size,
            layers=theirs.n_layer,
            heads=theirs.n_head,
            width=theirs.n_embd,
            rotary_dim=None if theirs.rotary_dim == width else theirs.rotary_dim,
            mlp_ratio=inner // theirs.n_embd,
            dropout=dropouts.pop(),
            init_std=theirs.initializer_range,
        )
        return cls.from_weights(config, read_from(transformers_tensors(model), cls.shapes(config)))


def parameter_shapes(config: GPTJConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one member's parameters by name, the layer axis first within blocks.

    >>> parameter_shapes(GPTJConfig(vocabulary_size=136))["mlp_in"]
    (12, 128, 512)
    """
    V, L, C = config.vocabulary_size, config.layers, config.width
    inner = config.mlp_ratio * C
    return {
        "embedding": (V, C),
        "norm_gain": (L, C),
        "norm_bias": (L, C),
        "query": (L, C, C),
        "key": (L, C, C),
        "value": (L, C, C),
        "attention_output": (L, C, C),
        "mlp_in": (L, C, inner),
        "mlp_in_bias": (L, inner),
        "mlp_output": (L, inner, C),
        "mlp_output_bias": (L, C),
        "final_norm_gain": (C,),
        "final_norm_bias": (C,),
        "head": (C, V),
        "head_bias": (V,),
    }


def transformers_tensors(model: "GPTJForCausalLM") -> Iterator[tuple[tuple[str, int | None], Tensor]]:
    """Yield ((our name, layer or None), transformers' parameter) for every parameter of a GPT-J."""
    body = model.transformer
    yield ("embedding", None), body.wte.weight
    for layer, block in enumerate(body.h):
        yield ("norm_gain", layer), block.ln_1.weight
        yield ("norm_bias", layer), block.ln_1.bias
        yield ("query", layer), block.attn.q_proj.weight
        yield ("key", layer), block.attn.k_proj.weight
        yield ("value", layer), block.attn.v_proj.weight
        yield ("attention_output", layer), block.attn.out_proj.weight
        yield ("mlp_in", layer), block.mlp.fc_in.weight
        yield ("mlp_in_bias", layer), block.mlp.fc_in.bias
        yield ("mlp_output", layer), block.mlp.fc_out.weight
        yield ("mlp_output_bias", layer), block.mlp.fc_out.bias
    yield ("final_norm_gain", None), body.ln_f.weight
    yield ("final_norm_bias", None), body.ln_f.bias
    yield ("head", None), model.lm_head.weight
    yield ("head_bias", None), model.lm_head.bias
