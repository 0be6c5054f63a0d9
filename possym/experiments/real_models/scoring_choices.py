"""Every head's scores under one changed choice at a time: temperature, blocks, which swaps, swaps or logits."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from possym.capture import Capture, LayerInputs
from possym.profiling.sensitivity import (
    block_logits,
    block_scores,
    logit_share,
    permutation_scores,
    rest_logits,
    subset_scores,
)
from possym.results import ExperimentConfig
from possym.scores import effective_swaps, swap_scores
from possym.tasks.binding import Binding

COLUMNS = ["positional", "symbolic", "effective_swaps"]


def sensitivity(config: ExperimentConfig, model: Any, binding: Binding) -> pd.DataFrame:
    """Return every head's scores under one changed choice at a time, means over prompts.

    ``effective_swaps`` is there where the choice is a temperature, and NaN elsewhere.
    """
    sums: dict[tuple[str, str], dict[int, Tensor | int]] = {}
    count = len(binding.tokens[: config.sensitivity_prompts])
    capture = Capture(model)
    generator = torch.Generator().manual_seed(config.seed)
    orders = torch.stack([torch.randperm(len(binding.blocks), generator=generator) for _ in range(config.permutations)])
    for prompt in range(count):

        def visit(inputs: LayerInputs, asked: int = int(binding.asked[prompt])) -> None:
            relocated, own = inputs.relocated_logits()[0], inputs.extra_logits()[0]
            for choice, scores in variants(config, relocated, own, binding.blocks, asked, orders):
                layers = sums.setdefault(choice, {})
                found = torch.full((*scores[0].shape, len(COLUMNS)), torch.nan, dtype=torch.float64)
                for column, values in enumerate(scores):
                    found[..., column] = values.cpu()
                layers[inputs.layer] = layers.get(inputs.layer, 0) + found / count

        capture.run(binding.tokens[prompt], visit)
    rows = [
        (*choice, layer, head, *scores)
        for choice, layers in sums.items()
        for layer, values in layers.items()
        for head, scores in enumerate(values.tolist())
    ]
    return pd.DataFrame(rows, columns=["choice", "value", "layer", "head", *COLUMNS])


def variants(
    config: ExperimentConfig, relocated: Tensor, own: Tensor, blocks: list, asked: int, orders: Tensor
) -> Iterator[tuple[tuple[str, str], tuple[Tensor, ...]]]:
    """Yield ((choice, value), (positional, symbolic)) of relocated logits (…, N, N) for every way of scoring.

    Temperatures, absolute and relative, come with the effective number of swaps as a third number.
    """
    tau, (start, stop) = config.temperature, (blocks[0][0], blocks[-1][1])
    width = blocks[0][1] - blocks[0][0]
    logits, extra = block_logits(relocated, blocks), rest_logits(relocated, own, blocks)
    observed = relocated.diagonal(dim1=-2, dim2=-1)
    for temperature in config.temperatures:
        count = effective_swaps(observed, extra_logits=own, blocks=blocks, temperature=temperature)
        yield (
            ("temperature", f"{temperature:g}"),
            (*block_scores(relocated, own, blocks, temperature)[:2], count),
        )
    for temperature in config.relative_temperatures:
        given = dict(temperature=temperature, relative=True)
        count = effective_swaps(observed, extra_logits=own, blocks=blocks, **given)
        yield (
            ("relative temperature", f"{temperature:g}"),
            (*swap_scores(logits, extra_logits=extra, **given)[:2], count),
        )
    for size in sorted({*config.block_sizes, width}):
        if (stop - start) // size >= 2:
            cut = [(at, at + size) for at in range(start, stop - size + 1, size)]
            yield ("block size", f"{size}"), block_scores(relocated, own, cut, tau)[:2]
    for shift in range(width):
        moved = [(a + shift, b + shift) for a, b in blocks if b + shift <= stop]
        yield ("boundary", f"{shift}"), block_scores(relocated, own, moved, tau)[:2]
    everything = [(at, at + width) for at in range(0, relocated.shape[-1] - width + 1, width)]
    yield ("boundary", "from the first token"), block_scores(relocated, own, everything, tau)[:2]
    for name, some in swap_sets(len(blocks), asked).items():
        yield ("swaps", name), subset_scores(logits, extra, some, tau * width)
    yield ("swaps", "whole permutations"), permutation_scores(logits, orders)
    share = logit_share(logits)
    yield ("logits", "blocks"), (1 - share, share)
    share = logit_share(relocated)
    yield ("logits", "tokens"), (1 - share, share)


def swap_sets(count: int, asked: int) -> dict[str, Tensor]:
    """Return sets of swaps of ``count`` blocks by name; ``asked`` is the block that the question is about."""
    every = torch.triu_indices(count, count, 1).T
    distance = every[:, 1] - every[:, 0]
    mine = (every == asked).any(1)
    tenth = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[: max(1, len(every) // 10)]
    return {
        "all": every,
        "a random tenth": every[tenth],
        "neighbours": every[distance == 1],
        "at least half apart": every[distance >= count // 2],
        "with the asked": every[mine],
        "without the asked": every[~mine],
    }
