"""What a head would think of a wrong key, place by place, as the key moves away: from inputs of training length."""

import torch
from torch import Tensor

from possym.ensembles.ensemble import Ensemble
from possym.errors import need_room, require_type
from possym.experiments.generalization.attending import all_frequencies, last_contents, turned_pair
from possym.experiments.generalization.sweep import WINDOW, check_batch, last_logits
from possym.tasks import Batch
from possym.tasks.batch import check_count
from possym.tasks.multihop import TARGETS


@torch.no_grad()
def wrong_keys(model: Ensemble, batch: Batch, layer: int, reach: int) -> Tensor:
    """Return the logit of a wrong key less the right one's, by how many places the wrong key is farther away.

    The query is the last place's, the right key the first step of its path. Wrong keys are the window's other target
    tokens, their contents relocated; the mean over them and over the windows.

    Args:
        model: the ensemble.
        batch: windows of 17 places with a leading member axis.
        layer: which layer.
        reach: the most places farther.

    Returns:
        (E, H, reach + 1), entry 0 for a wrong content at the right key's place.

    Raises:
        InputError: no such layer, or windows of another length.

    >>> from possym.experiments.generalization.names import sample_members
    >>> from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
    >>> from possym.tasks import NumberTask
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> wrong_keys(model, sample_members(NumberTask(), 1, 4, 17, torch.Generator()), layer=1, reach=50).shape
    torch.Size([1, 1, 51])
    """
    require_type(model, Ensemble, "model")
    check_count("layer", layer, 0, model.config.layers - 1)
    reach = check_count("reach", reach, 0)
    check_batch(model, batch, 1)
    need_room(batch.tokens[..., 0].numel() * reach * model.config.head_width, reach=reach)
    query, key = last_contents(model, batch.tokens)[layer]
    frequencies = all_frequencies(model.config).to(key.device)
    step = batch.path[..., 1]  # (E, B)
    right = last_logits(*turned_pair(query, key, frequencies))  # (E, B, H, T)
    right = right.gather(-1, step[..., None, None].expand(-1, -1, right.shape[2], -1))  # (E, B, H, 1)
    # kᵀR^m q is Re Σ k̄ q e^{img}: linear in the key, so the mean over contents comes first.
    wrong = torch.arange(TARGETS, device=key.device) != step[..., None]  # (E, B, 8)
    mean = (key[:, :, :TARGETS] * wrong[..., None, None]).sum(2) / wrong.sum(-1)[..., None, None]
    key, query = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) for x in (mean, query.squeeze(2)))
    farther = torch.arange(reach + 1, device=key.device)
    places = (WINDOW - 1 - step)[..., None] + farther  # (E, B, O)
    angles = places[..., None].double() * frequencies
    turns = torch.polar(torch.ones_like(angles), angles).to(key.dtype)  # (E, B, O, F)
    logits = torch.einsum("ebhf,ebof->ebho", key.conj() * query, turns).real * model.config.head_width**-0.5
    return (logits - right).mean(1)
