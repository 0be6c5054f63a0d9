"""The frequency knob in a real model: stop or silence chosen RoPE frequencies of chosen heads.

Only the logits change. A silenced plane adds nothing to them; an unrotated plane adds the product of query and key
without rotation, whatever the distance (p-RoPE, 2410.06205, at inference).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from possym.capture.attention_call import AttentionCall
from possym.capture.capture import Capture
from possym.capture.hooks import attached
from possym.capture.probe import Layer
from possym.capture.rope_layout import unrotate
from possym.errors import InputError, UnsupportedModelError, to_int

MODES = ("unrotate", "silence")


@contextmanager
def ablate_frequencies(
    model: nn.Module,
    frequencies: Sequence[int],
    *,
    heads: Mapping[int, Sequence[int]] | None = None,
    mode: str = "silence",
) -> Iterator[None]:
    """Run a model with chosen frequencies of chosen heads edited; the model is restored on leaving.

    Inside, the model is in evaluation mode and is called as usual, without a key-value cache of earlier tokens.

    Args:
        model: a model that `possym.capture.Capture` reads, with rotation in planes.
        frequencies: frequency IDs, from 1, the fastest. Layers with fewer planes leave out what they do not have.
        heads: layer → heads, both from 0; None is every head of every layer that rotates.
        mode: ``"silence"`` takes the planes' share out of the logits, ``"unrotate"`` keeps it but stops the rotation.

    Raises:
        InputError: unknown frequencies, layers, heads or mode.
        UnsupportedModelError: a model that cannot be read, or a chosen layer without planes.

    Source: the question of 2511.11579, section 5, asked by intervention.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> tokens = torch.tensor([[3, 5, 7, 11], [7, 3, 5, 11]])
    >>> with torch.no_grad(), ablate_frequencies(model, [1, 2], mode="unrotate"):
    ...     first, second = model(tokens, use_cache=False).logits[:, -1]
    >>> torch.allclose(first, second, atol=1e-6)
    True
    """
    if mode not in MODES:
        raise InputError(f"mode = {mode!r}: known modes are {', '.join(MODES)}")
    layers = Capture(model).layers
    chosen = choose_heads(heads, layers)
    most = max(len(layers[number].rope_layout.columns) for number in chosen)
    ids = list(frequencies) if isinstance(frequencies, (Sequence, range)) else [frequencies]
    ids = [to_int(k) for k in ids]
    if not ids or not all(k is not None and 1 <= k <= most for k in ids):
        raise InputError(f"frequencies = {frequencies!r}: give frequency IDs from 1, the fastest, to {most}")

    def on_call(call: AttentionCall) -> tuple[Tensor, Tensor] | None:
        if call.layer in chosen:
            return edited(call, layers[call.layer], chosen[call.layer], sorted(set(ids)), mode)
        return None

    with attached(model, on_call):
        yield


def choose_heads(heads: Mapping[int, Sequence[int]] | None, layers: dict[int, Layer]) -> dict[int, list[int]]:
    """Return layer → heads, checked; all that rotate for None."""
    if heads is None:
        chosen = {number: list(range(found.heads)) for number, found in layers.items() if found.rope_layout is not None}
        if not chosen:
            raise UnsupportedModelError("no layer of this model rotates pairs of dimensions, so it has no frequencies")
        return chosen
    if not isinstance(heads, Mapping) or not heads:
        raise InputError(f"heads = {heads!r}: give {{layer: [heads]}}, or None for all")
    for number, some in heads.items():
        if number not in layers:
            raise InputError(f"heads: layer {number!r} has no attention; layers are {sorted(layers)}")
        if layers[number].rope_layout is None:
            raise UnsupportedModelError(f"heads: layer {number} does not rotate pairs of dimensions")
        count = layers[number].heads
        found = [to_int(h) for h in some] if isinstance(some, (Sequence, range)) else [None]
        if not all(h is not None and 0 <= h < count for h in found):
            raise InputError(f"heads of layer {number} = {some!r}: give a list of heads from 0 to {count - 1}")
    return {number: [to_int(h) for h in some] for number, some in heads.items()}


def edited(call: AttentionCall, layer: Layer, heads: list[int], ids: list[int], mode: str) -> tuple[Tensor, Tensor]:
    """Return the query and key to attend with.

    The planes' dimensions of the chosen queries become zero. Unrotated planes come back as further dimensions, zero in
    the queries of other heads: so heads that share keys can be edited apart.
    """
    layout = layer.rope_layout
    count = len(layout.columns)
    planes = torch.tensor([k - 1 for k in ids if k <= count], device=call.query.device, dtype=torch.long)
    both = torch.cat([planes, planes + count])
    mask = torch.ones(layer.heads, 1, layer.width, device=call.query.device, dtype=torch.bool)
    some = torch.tensor(heads, device=call.query.device)
    mask[some[:, None], 0, layout.order[both]] = False
    query = call.query * mask
    if mode == "silence":
        return query, call.key
    if call.query.shape[2] != call.key.shape[2]:
        raise InputError("unrotating needs the whole prompt at once: call the model with use_cache=False")
    more = []
    for x, weight in ((call.query, layout.query_weight), (call.key, layout.key_weight)):
        content = unrotate(x.float(), call.tables(), layout, weight)[..., both]
        more.append(content if weight is None else content * weight[layout.order[both]])
    others = torch.ones(layer.heads, dtype=torch.bool, device=some.device)
    others[some] = False
    more[0][:, others] = 0
    return torch.cat([query, more[0].to(query)], -1), torch.cat([call.key, more[1].to(call.key)], -1)
