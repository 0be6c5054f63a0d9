"""Which length a model will fail at, and which layer fails first, told from inputs of training length alone.

A longer input holds extra target tokens before the window. What a head will see of them is known without running
them: their contents are like those of the target tokens inside the window, and rotation says what such a content's
logit is at any distance. So the forecast runs windows of training length, and in every layer lets each query also see
target contents of *other* windows, relocated to places spread over the extra length: a content a place, or where the
extra places are too many, a content for each stretch of them, weighted by its length. Where a layer's window queries
are drawn to them, their contents change, and later layers feel it.
Which layers do the harm is told by choosing which of them see the extra places, in the forecast as on real long
inputs: one layer alone (`exposed`), all but one (`shielded`), or the first few (`upto`).
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.errors import InputError, need_room, require_type
from possym.experiments.generalization.attending import (
    Before,
    all_frequencies,
    attention_beyond,
    run_before,
    side_by_side,
)
from possym.experiments.generalization.sweep import (
    TOKENS,
    WINDOW,
    Precision,
    check_batch,
    check_means,
    check_model,
    check_run,
    sample_members,
)
from possym.tasks import Batch, LetterTask, NumberTask
from possym.tasks.batch import check_count
from possym.tasks.multihop import TARGETS

RELOCATED = 1024
PIECE = 2**26


@torch.no_grad()
def forecast(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    batch: Batch,
    source: torch.Generator,
    *,
    exposed: Collection[int] | None = None,
    relocated: int = RELOCATED,
    precision: Precision | None = None,
) -> Tensor:
    """Return the accuracy (E,) that inputs of training length foretell for a length.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        length: places, from 17, that no input has to have.
        batch: windows of 17 places with a leading member axis, at least two a member.
        source: generator on the batch's device: which contents go where.
        exposed: layers that see the extra places; None is all.
        relocated: how many contents are relocated.
        precision: of the products with weights; None is `Precision.of` the device.

    Raises:
        InputError: arguments that do not fit each other.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> source = torch.Generator().manual_seed(0)
    >>> windows = sample_members(NumberTask(), 1, 40, 17, source)
    >>> forecast(model, NumberTask(), 100_000, windows, source).shape
    torch.Size([1])
    """
    check_model(model, task)
    check_count("length", length, WINDOW)
    relocated = check_count("relocated", relocated, 1)
    need_room(model.members * model.config.heads * WINDOW * relocated, relocated=relocated)
    layers = check_layers(model, exposed)
    check_batch(model, batch, 2)
    precision = check_means(model, source, precision)
    rows = max(2, PIECE // (model.members * model.config.heads * WINDOW * (WINDOW + relocated)))
    count = batch.tokens.shape[1]
    starts = list(range(0, count - 1, rows))
    correct = []
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        piece = Batch(*(field[:, start:stop] for field in batch))
        correct.append(forecast_piece(model, task, length, piece, source, layers, relocated, precision))
    return torch.cat(correct, 1).float().mean(1)


def forecast_piece(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    batch: Batch,
    source: torch.Generator,
    layers: Collection[int],
    relocated: int,
    precision: Precision,
) -> Tensor:
    """Return which windows (E, B) are answered right with relocated contents before them."""
    members, rows = batch.tokens.shape[:2]
    device = batch.tokens.device
    frequencies = all_frequencies(model.config)
    extra = length - WINDOW
    # The first place sees itself alone, as one token of a long input does; the others stand for the rest.
    origin = torch.randint(rows, (members, relocated), generator=source, device=device)
    target = torch.randint(1, TARGETS, (members, relocated), generator=source, device=device)
    # The extra places in equal strata, of one place each while there are enough contents for two in every stratum.
    strata = max(1, min(extra, relocated // 2))
    stratum = torch.arange(relocated, device=device) * strata // relocated
    offset = torch.rand(relocated, generator=source, device=device)
    places = -1 - ((stratum + offset) * (extra / strata)).floor()
    member = torch.arange(members, device=device)[:, None]
    fits = admitted(task, batch, batch.tokens[member, origin, target])  # (E, B, M)
    chosen = one_each(fits, stratum, strata, source)
    share = torch.where(chosen, (extra / chosen.sum(-1, keepdim=True)).log(), -math.inf)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        before = None
        if extra and layer in layers:
            moved = (each[member, origin, target].unsqueeze(1) for each in (key, value))
            before = Before(*moved, places, share)
        return attention_beyond(query, key, value, frequencies, before)

    logits = model(batch.tokens, dtype=precision.weights, attend=side_by_side(model, attend))
    return logits.argmax(-1) == batch.answer


def admitted(task: NumberTask | LetterTask, batch: Batch, tokens: Tensor) -> Tensor:
    """Return which tokens (E, M) could stand before which windows, (E, B, M).

    The number task lets any letter stand there. On the letter task no extra token may start with a letter that the
    window's path follows, nor, unless its rule is ``"any"``, with the query's first letter.

    >>> windows = sample_members(LetterTask(), 1, 4, 17, torch.Generator().manual_seed(0))
    >>> admitted(LetterTask(), windows, windows.answer)[0].diagonal().any()
    tensor(False)
    """
    if isinstance(task, NumberTask):
        return torch.ones(*batch.hops.shape, tokens.shape[-1], dtype=torch.bool, device=tokens.device)
    pairs, size = task.LETTERS**2, task.LETTERS
    path = batch.path[..., 1:] if task.off_path == "any" else batch.path
    taken = torch.where(path >= 0, batch.tokens.gather(-1, path.clamp(min=0)) % pairs // size, -1)  # (E, B, 4 or 5)
    first = tokens % pairs // size
    return (taken[..., None] != first[:, None, None]).all(2)


def one_each(fits: Tensor, stratum: Tensor, strata: int, source: torch.Generator) -> Tensor:
    """Return a choice (E, B, M) of one fitting content in each stratum (M,), at random for each window.

    >>> fits = torch.tensor([True, True, False, True])[None, None]
    >>> one_each(fits, torch.tensor([0, 0, 1, 1]), 2, torch.Generator().manual_seed(0))[0, 0, 2:]
    tensor([False,  True])
    """
    lot = torch.rand(fits.shape, generator=source, device=fits.device).masked_fill(~fits, -1.0)
    index = stratum.expand_as(lot)
    best = lot.new_zeros(*lot.shape[:-1], strata).scatter_reduce(-1, index, lot, "amax", include_self=True)
    return fits & (lot == best.gather(-1, index))


@torch.no_grad()
def measured_parts(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    count: int,
    source: torch.Generator,
    *,
    precision: Precision | None = None,
) -> dict[str, Tensor]:
    """Return what each layer does to accuracy on real long inputs, by `ways`: ``whole`` (E, 1), the others (E, L).

    Where a layer is left out, its window queries see the window alone, as at training length. What stands before the
    window is run once, as the long input would run it.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        length: places, from 18.
        count: sequences a member.
        source: generator on the model's device.
        precision: of the products; None is `Precision.of` the device.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> parts = measured_parts(model, NumberTask(), 30, 8, torch.Generator().manual_seed(0))
    >>> parts["exposed"].shape
    torch.Size([1, 2])
    """
    precision = check_run(model, task, length, count, source, precision, shortest=WINDOW + 1)
    asked = ways(model.config.layers)
    piece = max(1, TOKENS // 2 // (length * model.members))
    totals = {way: torch.zeros(model.members, len(sets), device=source.device) for way, sets in asked.items()}
    for start in range(0, count, piece):
        batch = sample_members(task, model.members, min(piece, count - start), length, source)
        contents = run_before(model, batch.tokens[..., :-WINDOW], precision.weights, precision.vectors)
        for way, sets in asked.items():
            for index, layers in enumerate(sets):
                totals[way][:, index] += answered_beyond(model, batch, contents, layers, precision).sum(1)
    return {way: total / count for way, total in totals.items()}


def ways(layers: int) -> dict[str, list[set[int]]]:
    """Return which layers see what stands before the window: all of them, one alone, all but one, the first few.

    >>> ways(2)
    {'whole': [{0, 1}], 'exposed': [{0}, {1}], 'shielded': [{1}, {0}], 'upto': [{0}, {0, 1}]}
    """
    every = set(range(layers))
    return {
        "whole": [every],
        "exposed": [{layer} for layer in range(layers)],
        "shielded": [every - {layer} for layer in range(layers)],
        "upto": [set(range(layer + 1)) for layer in range(layers)],
    }


def answered_beyond(
    model: Ensemble,
    batch: Batch,
    contents: list[tuple[Tensor, Tensor]],
    layers: Collection[int],
    precision: Precision,
) -> Tensor:
    """Return which sequences (E, B) are answered right when only ``layers`` see what stands before the window."""
    frequencies = all_frequencies(model.config)
    places = torch.arange(-contents[0][0].shape[2], 0, device=batch.tokens.device)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        before = Before(*contents[layer], places) if layer in layers else None
        return attention_beyond(query, key, value, frequencies, before)

    logits = model(batch.tokens[..., -WINDOW:], dtype=precision.weights, attend=side_by_side(model, attend))
    return logits.argmax(-1) == batch.answer


def check_layers(model: Ensemble, exposed: Collection[int] | None) -> Collection[int]:
    """Return the layers named, or all; raise an InputError for one that is not there."""
    require_type(exposed, (Collection, type(None)), "exposed")
    known = range(model.config.layers)
    if exposed is None:
        return known
    for layer in exposed:
        require_type(layer, int, "a layer of exposed")
        if layer not in known:
            raise InputError(f"layer {layer}: this model has layers 0 to {len(known) - 1}")
    return exposed
