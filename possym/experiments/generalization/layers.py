"""Which layers of a model fail at length: real long inputs, of which only some layers see what precedes the window.

Layers are exposed to the extra tokens one alone (`exposed`), all but one (`shielded`), or the first few (`upto`). The
forecast is asked about the same sets of layers (`possym.experiments.generalization.forecasting.forecast`).
"""

from collections.abc import Collection

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.experiments.generalization.attending import (
    Prefix,
    all_frequencies,
    attention_with_prefix,
    run_prefix,
    with_planes_interleaved,
)
from possym.experiments.generalization.long_inputs import TOKENS, WINDOW, Precision, sample_members
from possym.tasks import Batch, LetterTask, NumberTask


@torch.no_grad()
def layer_effects(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    count: int,
    source: torch.Generator,
) -> dict[str, Tensor]:
    """Return accuracy on real long inputs by `exposed_layers`: ``whole`` (E, 1), the others (E, L).

    Where a layer is left out, its window queries see the window alone, as at training length. What stands before the
    window is run once, as the long input would run it.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        length: tokens, from 18.
        count: sequences per member.
        source: generator on the model's device.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> layer_effects(model, NumberTask(), 30, 8, torch.Generator().manual_seed(0))["exposed"].shape
    torch.Size([1, 2])
    """
    precision = Precision.of(source.device)
    asked = exposed_layers(model.config.layers)
    chunk = max(1, TOKENS // 2 // (length * model.members))
    totals = {way: torch.zeros(model.members, len(sets), device=source.device) for way, sets in asked.items()}
    for start in range(0, count, chunk):
        batch = sample_members(task, model.members, min(chunk, count - start), length, source)
        contents = run_prefix(model, batch.tokens[..., :-WINDOW], precision.weights, precision.vectors)
        for way, sets in asked.items():
            for index, layers in enumerate(sets):
                totals[way][:, index] += answers_with_prefix(model, batch, contents, layers, precision).sum(1)
    return {way: total / count for way, total in totals.items()}


def exposed_layers(layers: int) -> dict[str, list[set[int]]]:
    """Return which layers see what stands before the window: all of them, one alone, all but one, the first few.

    >>> exposed_layers(2)
    {'whole': [{0, 1}], 'exposed': [{0}, {1}], 'shielded': [{1}, {0}], 'upto': [{0}, {0, 1}]}
    """
    every = set(range(layers))
    return {
        "whole": [every],
        "exposed": [{layer} for layer in range(layers)],
        "shielded": [every - {layer} for layer in range(layers)],
        "upto": [set(range(layer + 1)) for layer in range(layers)],
    }


def answers_with_prefix(
    model: Ensemble,
    batch: Batch,
    contents: list[tuple[Tensor, Tensor]],
    layers: Collection[int],
    precision: Precision,
) -> Tensor:
    """Return which sequences (E, B) are answered right when only ``layers`` see what stands before the window."""
    frequencies = all_frequencies(model.config)
    positions = torch.arange(-contents[0][0].shape[2], 0, device=batch.tokens.device)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        prefix = Prefix(*contents[layer], positions) if layer in layers else None
        return attention_with_prefix(query, key, value, frequencies, prefix)

    window = batch.tokens[..., -WINDOW:]
    logits = model(window, dtype=precision.weights, attend=with_planes_interleaved(model, attend))
    return logits.argmax(-1) == batch.answer
