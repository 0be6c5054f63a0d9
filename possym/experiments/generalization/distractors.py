"""The logit that a head gives a distractor, position by position, as its key moves away: from training length alone."""

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.experiments.generalization.attending import all_frequencies, last_contents, rotate_pair
from possym.experiments.generalization.long_inputs import WINDOW, last_logits
from possym.tasks import Batch
from possym.tasks.number_and_letter import TARGETS


@torch.no_grad()
def distractor_logits(model: Ensemble, batch: Batch, layer: int, reach: int) -> Tensor:
    """Return a distractor's logit less the right key's, by how many positions it is farther away than the right key.

    The query is the last position's, the right key the first step of its path. Distractors are the window's other
    target tokens, their contents relocated; the mean over them and over the windows.

    Args:
        model: the ensemble.
        batch: windows of 17 tokens with a leading member axis.
        layer: which layer.
        reach: the most positions farther.

    Returns:
        (E, H, reach + 1), entry 0 for a distractor at the right key's position.

    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> from possym.experiments.generalization.long_inputs import sample_members
    >>> from possym.tasks import NumberTask
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> windows = sample_members(NumberTask(), 1, 4, 17, torch.Generator())
    >>> distractor_logits(model, windows, layer=1, reach=50).shape
    torch.Size([1, 1, 51])
    """
    query, key = last_contents(model, batch.tokens)[layer]
    frequencies = all_frequencies(model.config).to(key.device)
    step = batch.path[..., 1]  # (E, B)
    right = last_logits(*rotate_pair(query, key, frequencies))  # (E, B, H, T)
    right = right.gather(-1, step[..., None, None].expand(-1, -1, right.shape[2], -1))  # (E, B, H, 1)
    # kᵀR^m q is Re Σ k̄ q e^{img}: linear in the key, so the mean over contents comes first.
    others = torch.arange(TARGETS, device=key.device) != step[..., None]  # (E, B, 8)
    mean = (key[:, :, :TARGETS] * others[..., None, None]).sum(2) / others.sum(-1)[..., None, None]
    key, query = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (mean, query.squeeze(2)))
    farther = torch.arange(reach + 1, device=key.device)
    distances = (WINDOW - 1 - step)[..., None] + farther  # (E, B, O)
    angles = distances[..., None].double() * frequencies
    rotations = torch.polar(torch.ones_like(angles), angles).to(key.dtype)  # (E, B, O, F)
    logits = torch.einsum("ebhf,ebof->ebho", key.conj() * query, rotations).real * model.config.head_width**-0.5
    return (logits - right).mean(1)
