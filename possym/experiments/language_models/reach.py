"""Whether windows of the trained length say where a language model fails: the forecast of this study.

The same tokens, the last of every long window, are read with more and more text before them: their loss is what is to
be forecast. A forecast sees windows of the trained length alone. Two things change beyond it: keys stand at new angles,
and there are more of them.

- ``measured``: the text before them, up to `FACTOR` times the trained length
- ``relocated``: the trained length of it, and in every layer keys and values of other windows at the positions before
  it. More keys, at the angles they would have: the forecast, as chapter 10's, whose assumption it shares (contents
  beyond the window are those of short windows of other texts)
- ``more keys``: as many keys and values of other windows, at positions within the trained length: no angle is new. It
  is more than their number: up to eight tokens stand at every distance, the nearest too, where a text has one
- ``gap``: the older half of the window put back by a gap, its recent half in place: angles alone, as many keys as
  trained. To a model without positions it is no change at all

All ways predict the same tokens and agree at the trained length.

Sizes: B windows, T tokens, H heads, D head width.
"""

from collections.abc import Sequence

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from possym.experiments.language_models.model import LanguageModel, rotate_half

AT_ONCE = 4  # windows
FEWEST = 8  # windows: of the longest length, seven others stand before each
PARTS = (8, 9, 10, 12, 14, 16, 20, 24, 32, 48, 64)  # lengths, in eighths of the trained one


def lengths_of(trained: int) -> list[int]:
    """Return the lengths that are read and forecast, denser near the trained one.

    >>> lengths_of(512)[:4], lengths_of(512)[-1]
    ([512, 576, 640, 768], 4096)
    """
    return sorted({trained * part // 8 for part in PARTS})


@torch.no_grad()
def loss_by_reach(model: LanguageModel, long: Tensor, trained: int) -> pd.DataFrame:
    """Return the loss of the last quarter of the trained length in every way, by length.

    Args:
        long: (B, longest of `lengths_of` + 1) token ids, at least `FEWEST` windows.
        trained: tokens of a window in training.

    Returns:
        way, length, loss in nats per token.
    """
    rows, asked = [], max(1, trained // 4)
    own = long[:, -trained - 1 :]
    others = contents(model, own[:, :-1])
    for length in lengths_of(trained):
        gap = length - trained
        positions = torch.arange(trained, device=long.device)
        shifted = positions + gap * (positions >= trained // 2)
        losses = {
            "measured": last_losses(model, long[:, -length - 1 :], model.turns(length), asked),
            "relocated": losses_with_others(model, own, others, gap, asked),
            "more keys": losses_with_others(model, own, others, gap, asked, within=True),
            "gap": last_losses(model, own, tuple(part[shifted] for part in model.turns(length)), asked),
        }
        rows += [(way, length, loss) for way, loss in losses.items()]
    return pd.DataFrame(rows, columns=["way", "length", "loss"])


def last_losses(model: LanguageModel, tokens: Tensor, turns: tuple[Tensor, Tensor], asked: int) -> float:
    """Return the mean loss of the last ``asked`` tokens of windows (B, T + 1)."""
    total = 0.0
    for some in tokens.split(AT_ONCE):
        x = model.embedding(some[:, :-1])
        for block in model.blocks:
            x = block(x, turns)
        total += told(model, x, some, asked)
    return total / len(tokens)


def told(model: LanguageModel, x: Tensor, tokens: Tensor, asked: int) -> float:
    """Return the loss of the last ``asked`` tokens, the mean over them, the sum over windows."""
    logits = model.logits(x[:, -asked:]).float()
    return float(F.cross_entropy(logits.transpose(1, 2), tokens[:, -asked:], reduction="none").double().sum()) / asked


def contents(model: LanguageModel, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return keys before rotation and values of every layer, each (B, H, T, D), of windows (B, T)."""
    x, turns, found = model.embedding(tokens), model.turns(tokens.shape[1]), []
    for block in model.blocks:
        _, key, value = block.contents(x)
        found.append((key, value))
        x = block(x, turns)
    return found


def losses_with_others(
    model: LanguageModel,
    tokens: Tensor,
    others: list[tuple[Tensor, Tensor]],
    extra: int,
    asked: int,
    *,
    within: bool = False,
) -> float:
    """Return the mean loss of the last tokens of windows (B, T + 1) that also see ``extra`` keys of other windows.

    Args:
        others: `contents` of the same windows; each sees those after it in the batch, which hold other texts.
        within: put every other window at the positions of this one, not at those before it.
    """
    trained, total = tokens.shape[1] - 1, 0.0
    own = torch.arange(trained, device=tokens.device)
    before = torch.arange(-extra, 0, device=tokens.device)  # positions, the window's own first at 0
    places = before % trained if within else before
    # From the position on, an angle is a difference: all move up so that none is negative.
    shift = 0 if within else extra
    every = torch.cat([places, own]) + shift
    turns = tuple(part[every] for part in model.turns(trained + shift))
    ours = tuple(part[extra:] for part in turns)
    seen = torch.cat([places, own]) <= own[:, None]  # (T, extra + T)
    window, at = (-1 - before) // trained + 1, before % trained  # how many windows on, and which of its tokens
    for start in range(0, len(tokens), AT_ONCE):
        some = tokens[start : start + AT_ONCE]
        row = (start + torch.arange(len(some), device=tokens.device)[:, None] + window) % len(tokens)
        x = model.embedding(some[:, :-1])
        for block, (keys, values) in zip(model.blocks, others, strict=True):
            query, key, value = block.contents(x)
            key, value = (
                torch.cat([other[row, :, at].transpose(1, 2), mine], 2)  # (b, H, extra + T, D)
                for other, mine in ((keys, key), (values, value))
            )
            x = block.attend(x, rotate_half(query, ours), rotate_half(key, turns), value, seen)
        total += told(model, x, some, asked)
    return total / len(tokens)


def failing_length(lengths: Sequence[int], losses: Sequence[float], rise: float) -> float:
    """Return where the loss has first risen by ``rise`` over that at the first length, linear in log length.

    A loss that never rises so far fails nowhere: the longest length stands for it.

    >>> failing_length([512, 1024, 2048], [1.0, 1.2, 1.8], 0.5)
    1448.154687...
    >>> failing_length([512, 1024], [1.0, 1.2], 0.5)
    1024.0
    """
    last = 0.0
    for index in range(1, len(lengths)):
        here = losses[index] - losses[0]
        if here >= rise:
            done = (rise - last) / (here - last)
            return float(lengths[index - 1] * (lengths[index] / lengths[index - 1]) ** done)
        last = here
    return float(lengths[-1])
