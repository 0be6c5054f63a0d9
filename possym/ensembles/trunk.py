"""GPT-J's blocks in training, forward and back, by kernels and products alone: one node of the graph of gradients.

- A block is three products, attention, GELU and `possym.ensembles.residual.add_and_norm`; its gradient six products,
  two kernels and one that leads to the block before. No compiler is needed, and no set-up.
- Gradients of weights are written where the gradient of all layers' weights has them, so that nothing is stacked.
- Of what lies between, products, GELU's values, normed rows and the attention's weights are kept for the gradient.

Sizes: E members, L layers, B sequences, T positions, C width, I of the MLP.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from possym.ensembles import fused, residual


class Options(NamedTuple):
    """What does not change: whether the last block is left out, and see `possym.ensembles.fused.mix`."""

    cut: bool
    heads: int
    dropped: float
    precision: str


class Weights(NamedTuple):
    """Weights of all layers as the products read them.

    ``entry`` (E, L, C, 3C + I) and ``entry_bias`` (E, L, 3C + I) are of key, value, query and the MLP's first half,
    ``attention`` (E, L, C, C), ``mlp`` (E, L, I, C) and ``mlp_bias`` (E, L, C) of what follows.
    """

    entry: Tensor
    entry_bias: Tensor
    attention: Tensor
    mlp: Tensor
    mlp_bias: Tensor


class Trunk(torch.autograd.Function):
    """Return the residual stream after the blocks, and each weight of the last layer.

    A last block that is left out reads its weights from here, so that their gradients come back to where there is room.
    """

    @staticmethod
    def forward(
        ctx, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor | None, options: Options, *weights: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the blocks.

        Args:
            ctx: of autograd.
            x: (E, B, T, C) float32, before the blocks.
            cos, sin: (T, D/2) float32 of each position's angles.
            keys: (L, E, 2) int32 of the layers' dropout, None where nothing is dropped.
            options: see `Options`.
            weights: see `Weights`.
        """
        given, stream, brought, kept = Weights(*weights), x.contiguous(), None, []
        E, B, T, C = x.shape
        blocks = given.entry.shape[1] - options.cut
        of_layer = [None] * blocks if keys is None else keys
        dtype, dropped = given.entry.dtype, options.dropped
        for layer in range(blocks):
            entry, bias, attention, mlp, mlp_bias = (each[:, layer] for each in given)
            normed, scales = x.new_empty(x.shape, dtype=dtype), x.new_empty(E, B, T)
            total = stream if layer == 0 or stream is not x else torch.empty_like(x)
            before = None if layer == 0 else of_layer[layer - 1]
            residual.add_and_norm(
                stream, brought, total=total, normed=normed, scales=scales, keys=before, dropped=dropped
            )
            stream = total
            product = (normed.flatten(1, 2) @ entry).unflatten(1, (B, T))
            mixed, active, chosen = fused.outputs(product, cos, options.heads)
            fused.launch_mixing(
                product,
                bias,
                cos,
                sin,
                of_layer[layer],
                options.heads,
                dropped,
                False,
                options.precision,
                mixed,
                chosen,
            )
            fused.launch_gelu(fused.gelu_kernel, product, bias, 3 * C, active, active.shape[-1])
            attended, processed = mixed.flatten(1, 2) @ attention, active.flatten(1, 2) @ mlp
            brought = attended, processed, mlp_bias
            kept += [normed, scales, product, chosen, mixed, active]
        if blocks:
            total = torch.empty_like(x) if stream is x else stream
            residual.add_and_norm(stream, brought, total=total, keys=of_layer[blocks - 1], dropped=dropped)
            stream = total
        ctx.options = options
        ctx.save_for_backward(cos, sin, keys, *weights, *kept)
        return stream, *(each[:, -1] for each in given)

    @staticmethod
    @once_differentiable
    def backward(ctx, asked: Tensor, *asked_last: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of ``x`` and the weights, block by block from the last."""
        cos, sin, keys, *saved = ctx.saved_tensors
        options, given = ctx.options, Weights(*saved[: len(Weights._fields)])
        kept = saved[len(given) :]
        (cut, heads, dropped, precision), C = options, asked.shape[3]
        blocks = given.entry.shape[1] - cut
        of_layer = [None] * blocks if keys is None else keys
        slopes = Weights(*(torch.empty_like(each) for each in given))
        if cut:
            for slope, last in zip(slopes, asked_last, strict=True):
                slope[:, -1].copy_(last)
        slope, norm = asked.contiguous(), None
        for layer in reversed(range(blocks)):
            entry, bias, attention, mlp, _ = (each[:, layer] for each in given)
            entry_slope, bias_slope, attention_slope, mlp_slope, mlp_bias_slope = (each[:, layer] for each in slopes)
            normed, scales, product, chosen, mixed, active = kept[6 * layer : 6 * layer + 6]
            attended, processed = torch.empty_like(normed), torch.empty_like(normed)
            back, sums = fused.slopes(product, bias)
            brought = attended, processed, residual.sums_of(normed)
            total = slope if norm is None or layer < blocks - 2 else torch.empty_like(slope)
            residual.gradient(slope, norm, brought, total=total, keys=of_layer[layer], dropped=dropped)
            slope = total
            attended, processed = attended.flatten(1, 2), processed.flatten(1, 2)
            asked_mixed = (attended @ attention.mT).view_as(mixed)
            fused.launch_attention(
                fused.backward_kernel, product, bias, cos, sin, heads, False, precision, chosen, asked_mixed, back, sums
            )
            asked_active = (processed @ mlp.mT).view_as(active)
            fused.launch_gelu(
                fused.gelu_gradient_kernel, product, bias, 3 * C, asked_active, back[..., 3 * C :], sums[..., 3 * C :]
            )
            rows = back.flatten(1, 2)
            torch.bmm(mixed.flatten(1, 2).mT, attended, out=attention_slope)
            torch.bmm(active.flatten(1, 2).mT, processed, out=mlp_slope)
            torch.bmm(normed.flatten(1, 2).mT, rows, out=entry_slope)
            mlp_bias_slope.copy_(brought[2].sum(1))
            bias_slope.copy_(sums.sum(1))
            norm = (rows @ entry.mT).view_as(normed), normed, scales
        if norm is not None:
            total = torch.empty_like(slope)
            residual.gradient(slope, norm, None, total=total)
            slope = total
        return slope, None, None, None, None, *slopes
