"""Which length a model will fail at, and which layer fails first, forecast from inputs of training length alone.

A longer input holds extra target tokens before the window. What a head will see of them follows without running them:
rotation says what a content's logit is at any distance, and the contents are those of target tokens. So the forecast
runs windows of training length, and in every layer lets each query also see target contents of *other* windows,
relocated to positions spread over the extra length: a content per position, or where the extra positions are too many,
a content for each stretch of them, weighted by its length. Where a layer's window queries are drawn to them, their
contents change, and later layers feel it.

A target token's content depends on how many tokens stand before it, since it attends to them too. An extra token k
positions from the start has k tokens before it, not all of them. So contents are gathered from the start outwards
(`target_contents`): those of tokens with few others before them from plain windows, those of tokens with more from
windows that themselves see the contents gathered so far, relocated.

What is left to assume is that contents at different positions are independent, given how far from the start they are.
"""

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.experiments.generalization.attending import (
    Prefix,
    all_frequencies,
    attention_with_prefix,
    with_planes_interleaved,
)
from possym.experiments.generalization.long_inputs import WINDOW, Precision, sample_members
from possym.tasks import Batch, LetterTask, NumberTask
from possym.tasks.number_and_letter import TARGETS

RELOCATED = 2048  # contents that a window sees at most
STRATA = 512  # stretches of positions at most
CANDIDATES = 8  # contents per position at most, of which a window sees one that fits it
GATHERED = 64  # windows per member that contents are gathered from, for each number of tokens before them
CHUNK = 2**26


class TargetContents(NamedTuple):
    """Contents of target tokens by the number of tokens before them.

    ``before`` (G,) ascending: how many stand before the first of the 8 targets of each group's windows; ``tokens``
    (E, G, W, 8); ``keys`` and ``values``: of each layer, (E, G, W, 8, H, D) before rotation.
    """

    before: Tensor
    tokens: Tensor
    keys: list[Tensor]
    values: list[Tensor]


@torch.no_grad()
def target_contents(
    model: Ensemble,
    task: NumberTask | LetterTask,
    longest: int,
    source: torch.Generator,
    *,
    windows: int = GATHERED,
) -> TargetContents:
    """Return what `forecast` relocates for any length up to the longest, gathered from windows of training length.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        longest: tokens, from 17.
        source: generator on the model's device.
        windows: per member, for each number of tokens before them.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> target_contents(model, NumberTask(), 45, torch.Generator().manual_seed(0)).before
    tensor([ 0,  8, 16, 24])
    """
    precision = Precision.of(source.device)
    gathered = None
    for before in steps_outwards(longest - WINDOW):
        batch = sample_members(task, model.members, windows, WINDOW, source)
        contents: list[tuple[Tensor, Tensor]] = []
        prefix = relocated(gathered, task, batch, before, source)
        run_window(model, batch.tokens[..., :TARGETS], prefix, precision, contents)
        keys, values = zip(*contents, strict=True)
        group = TargetContents(
            torch.tensor([before], device=source.device),
            batch.tokens[:, None, :, :TARGETS],
            *([each.to(precision.vectors).unsqueeze(1) for each in layers] for layers in (keys, values)),
        )
        gathered = group if gathered is None else added(gathered, group)
    return gathered


def added(gathered: TargetContents, group: TargetContents) -> TargetContents:
    """Return contents with another group's behind them."""
    return TargetContents(
        torch.cat([gathered.before, group.before]),
        torch.cat([gathered.tokens, group.tokens], 1),
        *(
            [torch.cat(pair, 1) for pair in zip(mine, more, strict=True)]
            for mine, more in ((gathered.keys, group.keys), (gathered.values, group.values))
        ),
    )


def steps_outwards(extra: int) -> list[int]:
    """Return how many tokens stand before each group's windows, so that some content has any number up to ``extra``.

    A window's eight targets have eight numbers in a row; from 64 on, steps of an eighth leave gaps between them.

    >>> steps_outwards(90)
    [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 81, 91]
    """
    steps = [0]
    while steps[-1] + TARGETS < extra:
        steps.append(steps[-1] + max(TARGETS, steps[-1] // 8))
    return steps


@torch.no_grad()
def forecast(
    model: Ensemble,
    task: NumberTask | LetterTask,
    length: int,
    batch: Batch,
    contents: TargetContents,
    source: torch.Generator,
    *,
    exposed: Collection[int] | None = None,
    alike: bool = False,
) -> Tensor:
    """Return the accuracy (E,) that inputs of training length forecast for a length.

    Args:
        model: the ensemble.
        task: the task that it was trained on.
        length: tokens, from 17, that no input has to have.
        batch: windows of 17 tokens with a leading member axis.
        contents: what `target_contents` gathers for this length or a greater one.
        source: generator on the batch's device: which contents go where.
        exposed: layers that see the extra positions; None is all.
        alike: take every extra token for one with the whole extra length before it, as the window's targets have.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> source = torch.Generator().manual_seed(0)
    >>> windows = sample_members(NumberTask(), 1, 40, 17, source)
    >>> contents = target_contents(model, NumberTask(), 1000, source)
    >>> forecast(model, NumberTask(), 1000, windows, contents, source).shape
    torch.Size([1])
    """
    precision = Precision.of(source.device)
    extra = length - WINDOW
    columns = WINDOW + len(strata_of(extra, source.device)[0])
    rows = max(1, CHUNK // (model.members * model.config.heads * WINDOW * columns))
    correct = []
    for start in range(0, batch.tokens.shape[1], rows):
        chunk = Batch(*(field[:, start : start + rows] for field in batch))
        prefix = relocated(contents, task, chunk, extra, source, alike)
        seen = prefix if exposed is None else lambda layer, all_of=prefix: all_of(layer) if layer in exposed else None
        logits = run_window(model, chunk.tokens, seen, precision)
        correct.append(logits.argmax(-1) == chunk.answer)
    return torch.cat(correct, 1).float().mean(1)


def run_window(
    model: Ensemble,
    tokens: Tensor,
    prefix: Callable[[int], Prefix | None],
    precision: Precision,
    contents: list[tuple[Tensor, Tensor]] | None = None,
) -> Tensor:
    """Return the logits of windows (E, B, T) with a prefix in every layer; ``contents`` gets their keys and values."""
    frequencies = all_frequencies(model.config)

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if contents is not None:
            contents.append((key, value))
        return attention_with_prefix(query, key, value, frequencies, prefix(layer))

    return model(tokens, dtype=precision.weights, attend=with_planes_interleaved(model, attend))


def relocated(
    contents: TargetContents | None,
    task: NumberTask | LetterTask,
    batch: Batch,
    extra: int,
    source: torch.Generator,
    alike: bool = False,
) -> Callable[[int], Prefix | None]:
    """Return the prefix, by layer, of so many extra positions before windows: drawn contents, one per stratum."""
    if not extra:
        return lambda layer: None
    members, device = batch.tokens.shape[0], source.device
    stratum, strata = strata_of(extra, device)
    offset = torch.rand(len(stratum), generator=source, device=device, dtype=torch.float64)
    positions = (-1 - ((stratum + offset) * (extra / strata)).floor()).clamp(min=-extra).long()
    before = torch.full_like(positions, extra) if alike else extra + positions
    group, target = by_tokens_before(contents.before, before, source)
    window = torch.randint(contents.tokens.shape[2], (members, len(stratum)), generator=source, device=device)
    chosen = (torch.arange(members, device=device)[:, None], group, window, target)  # each (E or 1, M)
    fits = admissible(task, batch, contents.tokens[chosen])  # (E, B, M)
    seen = choose_one_per_stratum(fits, stratum, strata, source)
    # Where no content fits a stratum, the others stand for it too.
    log_weight = torch.where(seen, (extra / seen.sum(-1, keepdim=True)).log(), -math.inf)

    def prefix(layer: int) -> Prefix:
        key, value = (each[layer][chosen].unsqueeze(1) for each in (contents.keys, contents.values))
        return Prefix(key, value, positions, log_weight)

    return prefix


def strata_of(extra: int, device: torch.device) -> tuple[Tensor, int]:
    """Return the stratum (M,) of every content that is relocated, and how many equal strata the positions have.

    A stratum is one position while there are no more than `STRATA`.

    >>> strata_of(3, torch.device("cpu"))[0].bincount()
    tensor([8, 8, 8])
    """
    strata = max(1, min(extra, STRATA))
    each = min(CANDIDATES, RELOCATED // strata)
    return torch.arange(strata, device=device).repeat_interleave(each), strata


def by_tokens_before(before: Tensor, count: Tensor, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the group (M,) and the target (M,) of contents that have so many tokens (M,) before them.

    Between two groups' targets, either group is drawn, the nearer one more often, and any of its targets.

    >>> source = torch.Generator().manual_seed(0)
    >>> by_tokens_before(torch.tensor([0, 8, 16]), torch.tensor([0, 7, 8, 23]), source)
    (tensor([0, 0, 1, 2]), tensor([0, 7, 0, 7]))
    """
    group = torch.searchsorted(before, count, right=True) - 1
    further = (group + 1).clamp(max=len(before) - 1)
    past = count - before[group]
    target = torch.randint(TARGETS, count.shape, generator=source, device=count.device)
    # The mean of a group's targets has (TARGETS − 1) / 2 more before it than the first one.
    nearer = (past - (TARGETS - 1) / 2) / (before[further] - before[group]).clamp(min=1)
    drawn = torch.rand(count.shape, generator=source, device=count.device)
    between = past >= TARGETS
    return torch.where(between & (drawn < nearer), further, group), torch.where(between, target, past)


def admissible(task: NumberTask | LetterTask, batch: Batch, tokens: Tensor) -> Tensor:
    """Return which target tokens (E, M) could stand before which windows, (E, B, M).

    The number task lets any letter stand there. On the letter task no extra token may start with a letter that the
    window's path follows, nor, unless its rule is ``"any"``, with the query's first letter.

    >>> windows = sample_members(LetterTask(), 1, 4, 17, torch.Generator().manual_seed(0))
    >>> admissible(LetterTask(), windows, windows.answer)[0].diagonal().any()
    tensor(False)
    """
    if isinstance(task, NumberTask):
        return torch.ones(*batch.hops.shape, tokens.shape[-1], dtype=torch.bool, device=tokens.device)
    pairs, size = task.LETTERS**2, task.LETTERS
    path = batch.path[..., 1:] if task.off_path == "any" else batch.path
    taken = torch.where(path >= 0, batch.tokens.gather(-1, path.clamp(min=0)) % pairs // size, -1)  # (E, B, 4 or 5)
    first = tokens % pairs // size
    return (taken[..., None] != first[:, None, None]).all(2)


def choose_one_per_stratum(fits: Tensor, stratum: Tensor, strata: int, source: torch.Generator) -> Tensor:
    """Return a choice (E, B, M) of one fitting content in each stratum (M,), at random per window.

    >>> fits = torch.tensor([True, True, False, True])[None, None]
    >>> choose_one_per_stratum(fits, torch.tensor([0, 0, 1, 1]), 2, torch.Generator().manual_seed(0))[0, 0, 2:]
    tensor([False,  True])
    """
    lot = torch.rand(fits.shape, generator=source, device=fits.device).masked_fill(~fits, -1.0)
    index = stratum.expand_as(lot)
    best = lot.new_zeros(*lot.shape[:-1], strata).scatter_reduce(-1, index, lot, "amax", include_self=True)
    return fits & (lot == best.gather(-1, index))
