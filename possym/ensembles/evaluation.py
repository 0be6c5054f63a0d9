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
from possym.kernels import takes_products


def blocks(
    x: Tensor,
    layers: list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]],
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
        layers: ``entry`` and ``output`` of each `possym.ensembles.gptj.block`.
        turns: cosines and sines, see `possym.ensembles.attention.tables`.
        heads: H.
        cut: compute the last position alone in the last block.
        watch: what keeps queries and keys.
        precision: see `possym.ensembles.attention.attention_of_block`.
    """
    C, dtype = x.shape[-1], layers[0][0][0].dtype
    split = dtype == torch.float32 and precision == "tf32x3" and takes_products(x.device)
    enter, times = (enter_float32, times_float32) if split else (enter_by_torch, project)
    normed = torch.empty_like(x, dtype=dtype)
    residual.add_and_norm(x, None, normed=normed)
    for layer, ((weight, bias), output) in enumerate(layers):
        last = cut and layer == len(layers) - 1
        entry = (weight[..., : 3 * C], bias[..., : 3 * C]) if last else (weight, bias)
        product, active = enter(normed, *entry)
        if watch:
            key, _value, query = product[..., : 3 * C].unflatten(-1, (3, heads, C // heads)).unbind(-3)
            key_bias, _, query_bias = bias[..., : 3 * C].unflatten(-1, (3, heads, C // heads)).unbind(-3)
            watch.keep(layer, query, key, query_bias, key_bias.unsqueeze(-2))
        mixed = torch.empty_like(normed)
        fused.launch_mixing(product, bias[:, 0], *turns, None, heads, 0.0, False, precision, mixed, None)
        if last:
            x, mixed, normed = (each[:, :, -1:] for each in (x, mixed, normed))
            hidden = project(normed, weight[..., 3 * C :], bias[..., 3 * C :])
            return x + project(mixed, output[0]) + project(F.gelu(hidden), *output[1:])
        brought = times(mixed, output[0]), times(active, output[1]), output[2].squeeze(1)
        residual.add_and_norm(x, brought, total=x, normed=normed)
    return x


def enter_by_torch(normed: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return a block's first product (E, B, T, 3C or 3C + I) without bias, and GELU of its last I columns with it."""
    product, first = project(normed, weight), 3 * normed.shape[-1]
    active = product.new_empty(*product.shape[:3], product.shape[3] - first)
    if active.numel():
        gelu.launch_gelu(product, bias[:, 0], first, active)
    return product, active


def enter_float32(normed: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `enter_by_torch` does, without the columns that GELU is taken of, as near to float64 as float32."""
    return float32_products.multiply(normed, float32_products.split(weight), bias[:, 0], 3 * normed.shape[-1])


def times_float32(x: Tensor, weight: Tensor) -> Tensor:
    """Return a product (E, B, T, C) as near to float64 as those of float32."""
    return float32_products.multiply(x, float32_products.split(weight))[0]
