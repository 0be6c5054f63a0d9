"""GPT-J's blocks in training, forward and back, by kernels and products alone: one node of the graph of gradients.

- A block is three products, the first with GELU (`possym.ensembles.gelu`), attention, and
  `possym.ensembles.residual.add_and_norm`; its gradient six products, one of them with GELU's, attention's, the sums of
  biases, and what leads to the block before. No compiler is needed, and no set-up.
- Gradients of weights are written where the gradient of all layers' weights has them, so that nothing is stacked.
- What the chain of blocks does not wait for is done beside it, on other streams of the GPU: gradients of weights, and
  attention beside the MLP.
- Where the last position alone is asked for, the last block is `possym.ensembles.last_block`.
- Of what lies between, products, GELU's values, normed rows and the attention's weights are kept for the gradient.

Sizes: E members, L layers, B sequences, T positions, C width, I of the MLP.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from possym.ensembles import biases, fused, gelu, last_block, residual
from possym.ensembles.branches import branch


class Options(NamedTuple):
    """What does not change, see `possym.ensembles.fused.mix`; with ``cut`` the last position alone is asked for."""

    heads: int
    dropped: float
    precision: str
    cut: bool


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
    """Return the residual stream after all blocks, (E, B, T, C), or (E, B, 1, C) of the last position alone."""

    @staticmethod
    def forward(
        ctx, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor | None, options: Options, *weights: Tensor
    ) -> Tensor:
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
        blocks = given.entry.shape[1]
        of_layer = [None] * blocks if keys is None else keys
        dtype, dropped = given.entry.dtype, options.dropped
        beside = branch(x.device, 0)
        for layer in range(blocks):
            entry, bias, attention, mlp, mlp_bias = here = [each[:, layer] for each in given]
            normed, scales = x.new_empty(x.shape, dtype=dtype), x.new_empty(E, B, T)
            total = stream if layer == 0 or stream is not x else torch.empty_like(x)
            before = None if layer == 0 else of_layer[layer - 1]
            residual.add_and_norm(
                stream, brought, total=total, normed=normed, scales=scales, keys=before, dropped=dropped
            )
            stream = total
            if options.cut and layer == blocks - 1:
                brought, read = last_block.forward(normed, here, (cos, sin), of_layer[layer], options.heads, dropped)
                kept += [normed, scales, *read]
                break
            product = x.new_empty(E, B, T, entry.shape[2], dtype=dtype)
            mixed, active = fused.outputs(product, cos, options.heads)
            chosen = fused.weights_of(product, options.heads)
            gelu.enter(normed, entry, bias, product, active, options.precision)
            attended = torch.empty_like(normed).flatten(1, 2)
            with beside.forked():
                fused.launch_mixing(
                    product, bias, cos, sin, of_layer[layer], options.heads, dropped, False, options.precision, mixed,
                    chosen,
                )  # fmt: skip
                torch.bmm(mixed.flatten(1, 2), attention, out=attended)
                mark = beside.asked()
            brought = attended, active.flatten(1, 2) @ mlp, mlp_bias
            beside.join(mark)
            kept += [normed, scales, product, chosen, mixed, active]
        last_of = T if options.cut else 1
        total = x.new_empty(E, B, T // last_of, C) if options.cut or stream is x else stream
        residual.add_and_norm(stream, brought, total=total, keys=of_layer[-1], dropped=dropped, last_of=last_of)
        ctx.options = options
        ctx.save_for_backward(cos, sin, keys, *weights, *kept)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, asked: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of ``x`` and the weights, block by block from the last."""
        cos, sin, keys, *saved = ctx.saved_tensors
        options, given = ctx.options, Weights(*saved[: len(Weights._fields)])
        kept = saved[len(given) :]
        heads, dropped, precision, cut = options
        blocks = given.entry.shape[1]
        of_layer = [None] * blocks if keys is None else keys
        slopes = Weights(*(torch.empty_like(each) for each in given))
        beside, behind = branch(asked.device, 0), branch(asked.device, 1)
        # What the branch behind reads is written anew two blocks later, when the chain has waited for it.
        rooms = [room(kept[:6]) for _ in range(min(blocks - cut, 2))]
        marks: list[torch.cuda.Event | None] = [None, None]
        slope, norm = asked.contiguous(), None
        if cut:
            normed, scales, *read = kept[6 * (blocks - 1) :]
            last, last_slopes = ([each[:, -1] for each in every] for every in (given, slopes))
            slope, above, _living = last_block.backward(
                slope, normed, read, last, last_slopes, (cos, sin), of_layer[-1], heads, dropped, precision
            )
            norm = above, normed, scales
        for layer in reversed(range(blocks - cut)):
            entry, bias, attention, mlp, _ = (each[:, layer] for each in given)
            normed, scales, product, chosen, mixed, active = kept[6 * layer : 6 * layer + 6]
            behind.join(marks[layer % 2])
            attended, processed, back, asked_mixed, *sums = rooms[layer % 2]
            total = slope if norm is None or layer < blocks - 2 or cut else torch.empty_like(slope)
            residual.gradient(
                slope, norm, (attended, processed, sums[2]), total=total, keys=of_layer[layer], dropped=dropped
            )
            slope = total
            attended, processed = attended.flatten(1, 2), processed.flatten(1, 2)
            with beside.forked():
                torch.bmm(attended, attention.mT, out=asked_mixed.flatten(1, 2))
                fused.launch_attention(
                    fused.backward_kernel, product, bias, cos, sin, heads, False, precision, chosen, asked_mixed, back,
                    sums[0],
                )  # fmt: skip
                mark = beside.asked()
            with behind.forked():
                torch.bmm(mixed.flatten(1, 2).mT, attended, out=slopes.attention[:, layer])
                torch.bmm(active.flatten(1, 2).mT, processed, out=slopes.mlp[:, layer])
            gelu.gradient(processed.view_as(normed), mlp, product, bias, back, sums[1], precision)
            beside.join(mark)
            rows = back.flatten(1, 2)
            with behind.forked():
                torch.bmm(normed.flatten(1, 2).mT, rows, out=slopes.entry[:, layer])
                biases.add_up(*sums, slopes.entry_bias[:, layer], slopes.mlp_bias[:, layer])
                marks[layer % 2] = behind.asked()
            norm = (rows @ entry.mT).view_as(normed), normed, scales
        total = torch.empty_like(slope)
        residual.gradient(slope, norm, None, total=total)
        behind.join(behind.asked())
        return total, None, None, None, None, *slopes


def room(kept: list[Tensor]) -> tuple[Tensor, ...]:
    """Return room for gradients within a block, and for sums over rows.

    The gradients are those of what attention and MLP bring, of the first product, and of what attention mixes; the sums
    are `possym.ensembles.biases.add_up`'s.
    """
    normed, _, product, _, mixed, active = kept
    E, B, _, C = mixed.shape
    sums = product.new_empty(E, B, 3 * C, dtype=torch.float32), gelu.sums_of(active), residual.sums_of(normed)
    likes = normed, normed, product, mixed
    return *(torch.empty_like(each) for each in likes), *sums
