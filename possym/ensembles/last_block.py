"""GPT-J's last block in training where the last position alone is asked for; the others are `possym.ensembles.trunk`'s.

Keys and values are computed at all positions; query, MLP and what the block brings at the last.

Sizes: E members, B sequences, T positions, C width, I of the MLP.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles import biases, gelu, last_query, residual
from possym.ensembles.branches import branch


def forward(
    normed: Tensor,
    weights: Sequence[Tensor],
    turns: tuple[Tensor, Tensor],
    keys: Tensor | None,
    heads: int,
    dropped: float,
) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor]]:
    """Return what attention and MLP bring to the last position, with the MLP's bias, and what the gradient reads.

    Args:
        normed: (E, B, T, C) rows that the block reads.
        weights: of the block, see `possym.ensembles.trunk.Weights`.
        turns: cosines and sines, see `possym.ensembles.attention.tables`.
        keys: (E, 2) int32 of the block's dropout, None where nothing is dropped.
        heads: H.
        dropped: probability of dropping a value.
    """
    entry, bias, attention, mlp, mlp_bias = weights
    E, B, T, C = normed.shape
    product, mixed = normed.new_empty(E, B, T, 2 * C), normed.new_empty(E, B, 1, C)
    hidden, active = (normed.new_empty(E, B, 1, width) for width in (C + mlp.shape[1], mlp.shape[1]))
    chosen, processed = normed.new_empty(E, B, heads, T, dtype=torch.float32), torch.empty_like(mixed)
    beside = branch(normed.device, 0)
    with beside.forked():
        torch.bmm(normed[:, :, -1], entry[..., 2 * C :], out=hidden.flatten(1, 2))
        queried = beside.asked()
        gelu.launch_gelu(hidden, bias[:, 2 * C :], C, active)
        torch.bmm(active.flatten(1, 2), mlp, out=processed.flatten(1, 2))
        mark = beside.asked()
    torch.bmm(normed.flatten(1, 2), entry[..., : 2 * C], out=product.flatten(1, 2))
    beside.join(queried)
    last_query.mix(product, hidden, bias, *turns, keys, heads, dropped, mixed, chosen)
    attended = mixed.flatten(1, 2) @ attention
    beside.join(mark)
    return (attended, processed, mlp_bias), [product, hidden, chosen, mixed, active]


def backward(
    asked: Tensor,
    normed: Tensor,
    kept: Sequence[Tensor],
    weights: Sequence[Tensor],
    slopes: Sequence[Tensor],
    turns: tuple[Tensor, Tensor],
    keys: Tensor | None,
    heads: int,
    dropped: float,
    precision: str,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Write gradients of the weights to ``slopes``, and return that of the residual stream and that of ``normed``.

    Returned too is what must live until branch 1 has been joined.

    Args:
        asked: gradient of the residual stream after the block at the last position, (E, B, 1, C).
        normed, weights, turns, keys, heads, dropped: as `forward` had them.
        kept: what `forward` returned.
        slopes: of the shapes of ``weights``.
        precision: see `possym.ensembles.fused.precision`.
    """
    entry, bias, attention, mlp, _ = weights
    product, hidden, chosen, mixed, active = kept
    E, B, T, C = normed.shape
    attended, processed, asked_mixed, back, back_hidden = room = [
        torch.empty_like(each) for each in (mixed, mixed, mixed, product, hidden)
    ]
    sums = asked.new_empty(E, B, 3 * C), gelu.sums_of(active), residual.sums_of(mixed)
    residual.gradient(asked, None, (attended, processed, sums[2]), keys=keys, dropped=dropped, last_of=T)
    attended, processed = attended.flatten(1, 2), processed.flatten(1, 2)
    beside, behind = branch(asked.device, 0), branch(asked.device, 1)
    with beside.forked():
        torch.bmm(attended, attention.mT, out=asked_mixed.flatten(1, 2))
        last_query.gradient(product, hidden, bias, *turns, heads, chosen, asked_mixed, back, back_hidden, sums[0])
        mark = beside.asked()
    with behind.forked():
        stream = F.pad(asked, (0, 0, T - 1, 0))
        padded = behind.asked()
        torch.bmm(mixed.flatten(1, 2).mT, attended, out=slopes[2])
        torch.bmm(active.flatten(1, 2).mT, processed, out=slopes[3])
    gelu.gradient(processed.view_as(mixed), mlp, hidden, bias[:, 2 * C :], back_hidden, sums[1], precision)
    beside.join(mark)
    rows, last_rows = back.flatten(1, 2), back_hidden.flatten(1, 2)
    with behind.forked():
        torch.bmm(normed.flatten(1, 2).mT, rows, out=slopes[0][..., : 2 * C])
        torch.bmm(normed[:, :, -1].mT, last_rows, out=slopes[0][..., 2 * C :])
        biases.add_up(*sums, slopes[1], slopes[4])
    above = torch.empty_like(normed)
    torch.bmm(rows, entry[..., : 2 * C].mT, out=above.flatten(1, 2))  # in this dtype inside `torch.autocast` too
    above[:, :, -1].baddbmm_(last_rows, entry[..., 2 * C :].mT)
    behind.join(padded)
    return stream, above, [*room, *sums]
