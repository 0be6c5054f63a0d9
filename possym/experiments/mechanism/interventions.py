"""Causes: a model's attention replaced by another in some layers, and the accuracy that is left.

A *change* says what attention a position has instead of its own:
- ``uniform``: every key that it sees alike;
- ``self``: its own key alone, so that the layer moves nothing;
- ``next``: a position of the path looks at the path's next position, the answer's position at itself; other positions
  keep theirs;
- ``ahead``: as ``next``, but in layer ℓ the position that is ℓ + 1 steps ahead on the path, or the answer's;
- ``exchanged``: the attention that the same layer of the same model has on another sequence.

A change is made at all positions, at the last position alone, or at all others. Values, MLPs and all other layers stay
as they are. Layers with several heads are changed in all of them. Sizes: E members, L layers, B sequences, T positions.

Source of the ideal attention: 2605.31558, appendix F.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from possym.ensembles.attention import causal_attention
from possym.ensembles.gptj import GPTJEnsemble
from possym.experiments.mechanism.token_flow import attention_weights, mix
from possym.tasks import Batch

CHANGES = ("uniform", "self", "next", "ahead", "exchanged")
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def changed_weights(weights: Tensor, change: str, path: Tensor, hops: Tensor, layer: int) -> Tensor:
    """Return other attention (E, B, H, T, T) in place of a layer's own.

    Args:
        weights: (E, B, H, T, T), the layer's own.
        change: one of `CHANGES`.
        path: (E, B, steps) positions of the path, −1 after the answer's.
        hops: (E, B).
        layer: which it is, from 0.

    >>> own = torch.eye(3).expand(1, 1, 1, 3, 3)
    >>> changed_weights(own, "next", torch.tensor([[[2, 0, -1]]]), torch.tensor([[1]]), layer=0)[0, 0, 0]
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [1., 0., 0.]])
    """
    T = weights.shape[-1]
    if change == "exchanged":
        return weights.roll(1, 1)
    if change == "uniform":
        seen = torch.ones(T, T, device=weights.device).tril()
        return (seen / seen.sum(-1, keepdim=True)).expand(weights.shape)
    if change == "self":
        return torch.eye(T, device=weights.device).expand(weights.shape)
    ahead = 1 if change == "next" else layer + 1
    step = torch.arange(path.shape[-1], device=path.device)
    target = path.gather(-1, torch.minimum(step + ahead, hops[..., None]).expand(path.shape))  # (E, B, steps)
    hot = torch.nn.functional.one_hot(target, T).to(weights.dtype)  # (E, B, steps, T)
    walks = torch.nn.functional.one_hot(path.clamp(min=0), T).to(weights.dtype)
    walks = walks * (step <= hops[..., None])[..., None]  # (E, B, steps, T): which position each step stands at
    ideal = walks.mT @ hot  # (E, B, T, T)
    off_path = 1 - walks.sum(2)[..., None]
    return ideal[:, :, None] + off_path[:, :, None] * weights


def intervention(model: GPTJEnsemble, batch: Batch, layer: int, change: str, positions: str = "all") -> Attend:
    """Return the ``attend`` of `GPTJEnsemble` that changes one layer's attention.

    Args:
        model: the ensemble.
        batch: the sequences that the model is going to read, fields with a member axis (E, B, …).
        layer: which layer, from 0.
        change: one of `CHANGES`.
        positions: whose attention changes: ``"all"``, ``"last"`` or the ``"others"``.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> from possym.tasks import NumberTask
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> batch = Batch(*(column[None] for column in NumberTask().sample(4)))
    >>> model(batch.tokens, attend=intervention(model, batch, 0, "self")).shape
    torch.Size([1, 4, 136])
    """
    angles = model.config.frequencies

    def attend(number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if number != layer:
            return causal_attention(query, key, value, frequencies=angles)
        Q, T = query.shape[2], key.shape[2]
        own = attention_weights(query, key, angles)  # (E, B, H, Q, T)
        full = torch.nn.functional.pad(own, (0, 0, T - Q, 0))
        other = changed_weights(full, change, batch.path, batch.hops, layer)[..., T - Q :, :]
        last = torch.arange(T - Q, T, device=own.device)[:, None] == T - 1
        chosen = {"all": torch.ones_like(last), "last": last, "others": ~last}[positions]
        return mix(torch.where(chosen, other, own), value)

    return attend


def keep_layers(model: GPTJEnsemble, kept: Tensor, instead: str) -> Attend:
    """Return the ``attend`` under which only the layers in ``kept`` have their own attention.

    Args:
        model: E members with L layers.
        kept: (E, L) bool.
        instead: attention of the other layers, ``"uniform"`` or ``"self"``.
    """
    angles = model.config.frequencies

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        Q, T = query.shape[2], key.shape[2]
        own = causal_attention(query, key, value, frequencies=angles)
        if instead == "self":
            other = value[:, :, T - Q :]
        else:
            count = torch.arange(1, T + 1, device=value.device).view(-1, 1, 1)
            other = (value.cumsum(2) / count)[:, :, T - Q :]
        return torch.where(kept[:, layer].view(-1, 1, 1, 1, 1), own, other)

    return attend


def greedy_layer_ablation(
    model: GPTJEnsemble, measure: Callable[[Attend], Tensor], instead: str
) -> tuple[Tensor, Tensor]:
    """Return the order in which layers can be left out, the least needed first, for each member by itself.

    Greedy: of the layers that a member still has, the one without which it is most accurate goes next; of equally
    good ones the latest.

    Args:
        model: E members with L layers.
        measure: returns accuracies (E,) under an ``attend``.
        instead: attention of layers that are left out, as for `keep_layers`.

    Returns:
        order (E, L) int64 and accuracies (E, L) float64 on `measure` after each step.
    """
    E, L = model.members, model.config.layers
    device = next(model.parameters()).device
    kept = torch.ones(E, L, dtype=torch.bool, device=device)
    order, accuracies = [], []
    for remaining in range(L, 0, -1):
        layers = kept.nonzero()[:, 1].view(E, remaining)  # of each member, ascending
        found = []
        for column in layers.unbind(1):
            found.append(measure(keep_layers(model, kept.scatter(1, column[:, None], False), instead)).double())
        table = torch.stack(found, 1)  # (E, remaining)
        best = remaining - 1 - table.flip(1).argmax(1, keepdim=True)
        order.append(layers.gather(1, best))
        accuracies.append(table.gather(1, best))
        kept = kept.scatter(1, order[-1], False)
    return torch.cat(order, 1), torch.cat(accuracies, 1)
