"""Which heads of a language model carry recall: what the second token of a planted pair costs without them.

Several pairs of random tokens stand in one window, each at a distance from its end. Every first token is asked for its
second at the last position, each in a query of its own that sees the window and itself. So one reading answers for all
distances. The same tokens are asked of a window where they do not stand: what a pair saves against that is its recall.

- `planted`: such windows, and their queries;
- `without_heads`: heads that write nothing into the residual stream;
- `recall_without`: the losses of the model as it is, without each head, and without groups of heads.

Sizes: B windows, T tokens, K pairs, L layers, H heads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from possym.experiments.language_models.model import LanguageModel

AT_ONCE = 32  # windows
SHARE = 4  # a group has one of so many heads
DRAWS = 4


class Planted(NamedTuple):
    """Windows with pairs, then their queries: first tokens of own pairs, then those of another window's.

    ``tokens`` (B, T − 1 + 2K); ``positions`` of all; ``mask`` (T − 1 + 2K, T − 1 + 2K), what sees what; ``answers``
    (B, 2K), the second tokens.
    """

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    answers: Tensor


def distances_of(length: int) -> list[int]:
    """Return the distances, even ones, at which pairs stand in windows of ``length`` tokens.

    >>> distances_of(512)
    [16, 64, 128, 256, 448]
    """
    return sorted({max(2, 2 * (length * part // 64)) for part in (1, 4, 8, 16, 28)})


def planted(text: Tensor, distances: Sequence[int], vocabulary: int, seed: int) -> Planted:
    """Return windows (B, T), from two on, with a pair of random tokens at each distance, and their queries."""
    count, length = text.shape
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(vocabulary, (count, len(distances), 2), generator=generator).to(text.device)
    window = text[:, :-1].clone()
    for which, distance in enumerate(distances):
        window[:, length - 1 - distance : length + 1 - distance] = pairs[:, which]
    asked = torch.cat([pairs, pairs.roll(1, 0)], 1)  # (B, 2K, 2)
    queries, device = asked.shape[1], text.device
    positions = torch.cat([torch.arange(length - 1), torch.full((queries,), length - 1)]).to(device)
    seen = torch.ones(len(positions), len(positions), dtype=torch.bool, device=device).tril()
    seen[length - 1 :, length - 1 :] = torch.eye(queries, dtype=torch.bool, device=device)
    return Planted(torch.cat([window, asked[..., 0]], 1), positions, seen, asked[..., 1])


@contextmanager
def without_heads(model: LanguageModel, heads: Tensor) -> Iterator[None]:
    """Let chosen heads (L, H) write nothing inside the block; afterwards they write as before."""
    chosen = [(block.output.weight, row) for block, row in zip(model.blocks, heads, strict=True) if row.any()]
    before = [weight.detach().clone() for weight, _ in chosen]
    try:
        with torch.no_grad():
            for weight, row in chosen:
                weight.unflatten(1, (len(row), -1))[:, row] = 0
        yield
    finally:
        with torch.no_grad():
            for (weight, _), kept in zip(chosen, before, strict=True):
                weight.copy_(kept)


def groups_of(lead: Tensor, seed: int) -> list[tuple[str, int, Tensor]]:
    """Return groups of heads by ``lead`` (L, H), positional − symbolic: name, draw, and the heads (L, H) bool.

    The most symbolic quarter, the most positional quarter, and for each `DRAWS` groups of random heads with as many in
    every layer.
    """
    generator, found = torch.Generator().manual_seed(seed), []
    order = lead.flatten().argsort()
    count = max(1, len(order) // SHARE)
    for name, chosen in (("symbolic", order[:count]), ("positional", order[len(order) - count :])):
        heads = torch.zeros(len(order), dtype=torch.bool)
        heads[chosen] = True
        heads = heads.view(lead.shape)
        found.append((f"{name} quarter", 0, heads))
        for draw in range(DRAWS):
            drawn = torch.stack([row[torch.randperm(len(row), generator=generator)] for row in heads])
            found.append((f"as many as {name}", draw, drawn))
    return found


@torch.no_grad()
def recall_without(
    model: LanguageModel, text: Tensor, distances: Sequence[int], lead: Tensor, seed: int
) -> pd.DataFrame:
    """Return what pairs planted in windows (B, T) cost the model as it is, and without heads.

    Args:
        lead: (L, H) positional − symbolic of every head, by which groups are chosen.
        seed: of pairs and of random groups.

    Returns:
        group (``none``, ``head``, or a group of `groups_of`), draw, layer, head (−1 where no single head is meant),
        distance, planted and absent: the loss of a pair's second token in nats, where it stands in the window and
        where it does not.
    """
    told = planted(text, distances, model.sizes.vocabulary, seed)
    turns = tuple(part[told.positions] for part in model.turns(text.shape[1]))
    layers, heads = lead.shape
    nobody = torch.zeros(layers, heads, dtype=torch.bool)
    edits = [("none", 0, -1, -1, nobody)]
    for layer in range(layers):
        for head in range(heads):
            only = nobody.clone()
            only[layer, head] = True
            edits.append(("head", 0, layer, head, only))
    edits += [(name, draw, -1, -1, chosen) for name, draw, chosen in groups_of(lead, seed)]
    total = torch.zeros(len(edits), told.answers.shape[1], dtype=torch.float64)
    for tokens, answers in zip(told.tokens.split(AT_ONCE), told.answers.split(AT_ONCE), strict=True):
        entering = [model.embedding(tokens)]  # the residual stream before every block: what an edit leaves unchanged
        for block in model.blocks[:-1]:
            entering.append(block(entering[-1], turns, told.mask))
        for row, (*_, chosen) in enumerate(edits):
            first = int(chosen.any(1).long().argmax())  # of no head at all, 0
            x = entering[first]
            with without_heads(model, chosen):
                for block in model.blocks[first:]:
                    x = block(x, turns, told.mask)
            logits = model.logits(x[:, -answers.shape[1] :]).float()
            loss = F.cross_entropy(logits.transpose(1, 2), answers, reduction="none")
            total[row] += loss.double().sum(0).cpu()
    means = (total / len(text)).unflatten(1, (2, -1)).tolist()
    rows = [
        (*edit[:4], distance, *costs)
        for edit, mean in zip(edits, means, strict=True)
        for distance, *costs in zip(distances, *mean, strict=True)
    ]
    return pd.DataFrame(rows, columns=["group", "draw", "layer", "head", "distance", "planted", "absent"])
