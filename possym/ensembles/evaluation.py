"""GPT-J's blocks in evaluation, by kernels and products alone, without dropout and gradients.

Products of float32 go to tensor cores as `possym.ensembles.float32_products` where all of float32 is asked for.

Sizes: E members, B sequences, T positions, C width, H heads, I of the MLP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles import float32_products, fused, gelu, residual
from possym.ensembles.attention import Watch
from possym.ensembles.ensemble import project
from possym.ensembles.trunk import Weights
from possym.kernels import takes_products


def blocks(
    x: Tensor,
    weights: Weights,
    turns: tuple[Tensor, Tensor],
    *,
    heads: int,
    cut: bool,
    watch: Watch | None,
    precision: str,
) -> Tensor:
    """Return the residual stream after all blocks; ``x`` is overwritten.

    Args:
        x: (E, B, T, C), before them.
        weights: of all layers.
        turns: cosines and sines, see `possym.ensembles.attention.tables`.
        heads: H.
        cut: compute the last position alone in the last block.
        watch: what keeps queries and keys; where it wants nothing else, the last block may be left out.
        precision: see `possym.ensembles.attention.attention_of_block`.
    """
    C, layers = x.shape[-1], weights.entry.shape[1]
    fits = weights.entry.dtype == torch.float32 and C <= float32_products.WIDTH
    if fits and precision == "tf32x3" and takes_products(x.device):
        return blocks_of_float32(x, weights, turns, heads, cut, watch, precision)
    normed = torch.empty_like(x, dtype=weights.entry.dtype)
    residual.add_and_norm(x, None, normed=normed)
    for layer in range(layers):
        entry, bias, attention, mlp, mlp_bias = (each[:, layer] for each in weights)
        last = cut and layer == layers - 1
        product = project(normed, entry[..., : 3 * C] if last else entry)
        if watch:
            key, _value, query = product[..., : 3 * C].unflatten(-1, (3, heads, C // heads)).unbind(-3)
            key_bias, _, query_bias = bias[:, None, : 3 * C].unflatten(-1, (3, heads, C // heads)).unbind(-3)
            watch.keep(layer, query, key, query_bias, key_bias.unsqueeze(-2))
        mixed = torch.empty_like(normed)
        fused.launch_mixing(product, bias, *turns, None, heads, 0.0, False, precision, mixed, None)
        if last:
            x, mixed, normed = (each[:, :, -1:] for each in (x, mixed, normed))
            hidden = project(normed, entry[..., 3 * C :], bias[:, None, 3 * C :])
            return x + project(mixed, attention) + project(F.gelu(hidden), mlp, mlp_bias.unsqueeze(-2))
        active = product.new_empty(*product.shape[:3], product.shape[3] - 3 * C)
        gelu.launch_gelu(product, bias, 3 * C, active)
        brought = project(mixed, attention), project(active, mlp), mlp_bias
        residual.add_and_norm(x, brought, total=x, normed=normed)
    return x


def blocks_of_float32(
    x: Tensor,
    weights: Weights,
    turns: tuple[Tensor, Tensor],
    heads: int,
    cut: bool,
    watch: Watch | None,
    precision: str,
) -> Tensor:
    """Return what `blocks` does, with products of float32 on tensor cores."""
    E, B, T, C = x.shape
    entries, outputs, seconds = map(float32_products.split, (weights.entry, weights.attention, weights.mlp))
    reaches = float32_products.reaches(entries, weights.entry_bias[..., 3 * C :])
    # Where queries and keys are kept, they stay where they are written.
    products = x.new_empty(len(entries) if watch else 1, E, B, T, 3 * C)
    if watch:
        key, _value, query = products.unflatten(-1, (3, heads, C // heads)).unbind(-3)
        watch.queries, watch.keys = query[:, :, :, -1].transpose(0, 1), key.movedim(3, 4).transpose(0, 1)
    mixed = torch.empty_like(x)
    for layer, (entry, output, second) in enumerate(zip(entries, outputs, seconds, strict=True)):
        product, bias = products[layer if watch else 0], weights.entry_bias[:, layer]
        float32_products.enter(x, entry, bias, product)
        last = layer == len(entries) - 1
        if last and watch and watch.alone:
            break
        fused.launch_mixing(product, None, *turns, None, heads, 0.0, False, precision, mixed, None)
        if last and cut:
            x, mixed = (each[:, :, -1:].contiguous() for each in (x, mixed))
        float32_products.leave(x, mixed, reaches[layer], output, entry, bias, second, weights.mlp_bias[:, layer])
    return x
