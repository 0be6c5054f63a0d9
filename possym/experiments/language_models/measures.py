"""What is measured of a language model along the way and at the end.

- `head_scores`: both scores of every head at several query positions, absolute and relative temperature;
- `plane_scores`: the same plane by plane;
- `attention_rows`: what every head attends to in one short text;
- `known_jobs`: attention to the token before, and induction attention on repeated random tokens;
- `losses`: loss by position; `recall`: whether a planted pair is told again, by its depth;
- `without_planes`, `windowed`: what is switched off after training, by plane and by head.

Sizes: B sequences, T tokens, L layers, H heads, D head width, F planes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from possym.ensembles.last_token import query_logits
from possym.experiments.language_models.model import LanguageModel
from possym.scores import effective_swaps, relocated_logits, swap_scores

WEIGHTINGS = {"absolute": {"temperature": 1e-4}, "relative": {"temperature": 0.1, "relative": True}}
AT_ONCE = 2**26  # entries of relocated logits held at once


def query_positions(length: int) -> list[int]:
    """Return four evenly spaced positions up to the last of ``length`` tokens.

    >>> query_positions(256)
    [63, 127, 191, 255]
    """
    return [length * part // 4 - 1 for part in range(1, 5)]


@torch.no_grad()
def head_scores(model: LanguageModel, tokens: Tensor, queries: Sequence[int]) -> pd.DataFrame:
    """Return the scores of every head, means over sequences and query positions.

    Args:
        tokens: (B, T) token ids.
        queries: positions of the queries; each moves all keys before it, its own stays.

    Returns:
        layer, head, weighting, positional, symbolic, their standard deviations over sequences and queries, entropy in
        nats, effective swaps, share of attention on the moved keys (``attention_moved``).
    """
    contents, keys = model.trace(tokens)
    rows = []
    for layer in range(len(contents)):
        found = {name: [] for name in WEIGHTINGS}
        for query in queries:
            logits, own = layer_logits(model, contents[layer], keys[layer], query)
            for name, weighting in WEIGHTINGS.items():
                scores = swap_scores(logits, extra_logits=own, **weighting)
                observed = logits.diagonal(dim1=-2, dim2=-1)
                swaps = effective_swaps(observed, extra_logits=own, **weighting)
                moved = torch.cat([observed, own], -1).softmax(-1)[..., :-1].sum(-1)
                found[name].append(torch.stack([*scores, swaps.to(moved), moved], -1))
        for name, parts in found.items():
            values = torch.cat(parts).double()  # (B × queries, H, 5)
            means, deviations = values.mean(0).cpu(), values.std(0).cpu()
            for head in range(means.shape[0]):
                rows.append((layer, head, name, *means[head].tolist(), *deviations[head, :2].tolist()))
    columns = ["positional", "symbolic", "entropy", "effective_swaps", "attention_moved"]
    spread = ["positional_sd", "symbolic_sd"]
    return pd.DataFrame(rows, columns=["layer", "head", "weighting", *columns, *spread])


def layer_logits(model: LanguageModel, queries: Tensor, keys: Tensor, position: int) -> tuple[Tensor, Tensor]:
    """Return relocated logits (B, H, position, position) and the query's own logit (B, H, 1) of one layer."""
    return query_logits(queries[:, :, position], keys[:, :, : position + 1], frequencies=model.angles, layout="half")


@torch.no_grad()
def plane_scores(model: LanguageModel, tokens: Tensor, position: int) -> pd.DataFrame:
    """Return layer, head, frequency_id, positional, symbolic, norm of every plane: means over sequences (B, T).

    A plane is a head of its own with the whole head's scale, its query at ``position``; ``norm`` is the L2 norm of its
    observed logits over the moved keys. Planes that stand still have an angle of 0 and scores all the same.

    Source: 2511.11579, section 3.
    """
    contents, keys = model.trace(tokens)
    rows = []
    for layer in range(len(contents)):
        parts = []
        planes = len(model.angles)
        step = max(1, AT_ONCE // (contents.shape[2] * planes * position**2))
        for start in range(0, len(tokens), step):
            some = slice(start, start + step)
            logits = relocated_logits(
                contents[layer, some, :, position],
                keys[layer, some, :, :position],
                query_position=position,
                positions=torch.arange(position),
                frequencies=model.angles,
                layout="half",
                per_plane=True,
            )
            scores = swap_scores(logits, **WEIGHTINGS["relative"])
            norms = logits.diagonal(dim1=-2, dim2=-1).norm(dim=-1)
            parts.append(torch.stack([scores.positional, scores.symbolic, norms], -1))
        means = torch.cat(parts).double().mean(0).cpu()  # (H, F, 3)
        for head in range(means.shape[0]):
            rows += [(layer, head, plane + 1, *means[head, plane].tolist()) for plane in range(planes)]
    return pd.DataFrame(rows, columns=["layer", "head", "frequency_id", "positional", "symbolic", "norm"])


@torch.no_grad()
def known_jobs(model: LanguageModel, text: Tensor, said_twice: Tensor) -> pd.DataFrame:
    """Return layer, head, previous_token (on text), previous_token_random and induction (on repeated random tokens).

    ``previous_token`` is the mean attention to the token before; ``induction`` the mean attention, in the second
    saying, to the position after the token's first one. Source: Olsson et al. 2022.
    """
    half = said_twice.shape[1] // 2
    before = {"previous_token": text, "previous_token_random": said_twice}
    found = {}
    for name, tokens in before.items():
        queries, keys = model.trace(tokens)
        for layer in range(len(queries)):
            weights = model.attention(queries[layer], keys[layer]).mean(0)  # (H, T, T)
            found.setdefault(name, []).append(weights.diagonal(-1, -2, -1).mean(-1))
            if name == "previous_token_random":
                found.setdefault("induction", []).append(weights.diagonal(1 - half, -2, -1)[..., 1:].mean(-1))
    values = {name: torch.stack(parts).cpu() for name, parts in found.items()}
    layers, heads = values["induction"].shape
    return pd.DataFrame(
        {
            "layer": [layer for layer in range(layers) for _ in range(heads)],
            "head": list(range(heads)) * layers,
            **{name: value.flatten().double().tolist() for name, value in values.items()},
        }
    )


@torch.no_grad()
def attention_rows(model: LanguageModel, ids: Sequence[int], words: Sequence[str]) -> pd.DataFrame:
    """Return the attention of every head from every position to itself and those before; of no ids, no rows.

    Returns:
        position, key_position, layer, head, weight, and the token at ``key_position``.
    """
    columns = ["position", "key_position", "layer", "head", "weight", "token"]
    if not ids:
        return pd.DataFrame({name: pd.Series(dtype="object" if name == "token" else "float") for name in columns})
    contents, keys = model.trace(torch.tensor([ids], device=model.angles.device))
    later, earlier = torch.tril_indices(len(ids), len(ids))
    parts = []
    for layer in range(len(contents)):
        weights = model.attention(contents[layer], keys[layer])[0].cpu()  # (H, T, T)
        for head, rows in enumerate(weights):
            values = [later, earlier, layer, head, rows[later, earlier].double()]
            parts.append(pd.DataFrame(dict(zip(columns, values, strict=False))))
    found = pd.concat(parts, ignore_index=True)
    return found.assign(token=found["key_position"].map(dict(enumerate(words))))


@torch.no_grad()
def losses(model: LanguageModel, tokens: Tensor, masks: Tensor | None = None, at_once: int = 16) -> Tensor:
    """Return the loss (T − 1,) of every next token by position, in nats, the mean over sequences (B, T)."""
    turns, total = model.turns(tokens.shape[1] - 1), 0
    for some in tokens.split(at_once):
        logits = model(some[:, :-1], turns, masks).float()
        total = total + F.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").sum(0)
    return total / len(tokens)


@torch.no_grad()
def recall(model: LanguageModel, text: Tensor, distances: Sequence[int], seed: int) -> pd.DataFrame:
    """Return how well a pair of random tokens planted in text is told again, by how far back it stands (from 2 on).

    The last token of every window (B, T) becomes the pair's first, so that the pair's second is to come next.

    Returns:
        distance, accuracy (share of windows where the second is likeliest), loss of the second in nats.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(model.sizes.vocabulary, (len(text), 2), generator=generator).to(text.device)
    rows, turns = [], model.turns(text.shape[1])
    for distance in distances:
        planted = text.clone()
        planted[:, -1] = pairs[:, 0]
        planted[:, -1 - distance : 1 - distance] = pairs
        logits = torch.cat([model(some, turns)[:, -1].float() for some in planted.split(16)])
        right = (logits.argmax(-1) == pairs[:, 1]).double().mean()
        rows.append((distance, float(right), float(F.cross_entropy(logits, pairs[:, 1]))))
    return pd.DataFrame(rows, columns=["distance", "accuracy", "loss"])


@contextmanager
def without_planes(model: LanguageModel, planes: Sequence[int]) -> Iterator[None]:
    """Let some planes, counted from 0, stand still inside the block; afterwards they turn as before."""
    before = model.angles.clone()
    try:
        model.angles[list(planes)] = 0
        yield
    finally:
        model.angles.copy_(before)


def windowed(heads: Tensor, length: int, window: int, sink: int) -> Tensor:
    """Return masks (L, H, T, T): chosen heads see the ``window`` latest tokens and the first ``sink``, others all.

    Args:
        heads: (L, H) bool, the heads to window.
    """
    position = torch.arange(length, device=heads.device)
    distance = position[:, None] - position
    near = (distance >= 0) & ((distance < window) | (position < sink))
    seen = torch.where(heads[..., None, None], near, distance >= 0)
    return torch.zeros(seen.shape, device=heads.device).masked_fill(~seen, -torch.inf)
