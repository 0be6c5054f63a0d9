"""Apply a plan to any model that possym reads: a mask for each head shows it only the tokens that it would keep."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from possym.capture.attention_call import AttentionCall
from possym.capture.hooks import attached
from possym.errors import InputError, require_type
from possym.kv_cache.plan import CachePlan


@contextmanager
def applied(model: nn.Module, plan: CachePlan, *, check: bool = True) -> Iterator[None]:
    """Run a model as if a plan had pruned its key–value cache; the model is restored on leaving.

    Inside, the model is in evaluation mode and is called as usual with whole prompts, without a cache of earlier tokens
    (``use_cache=False``) and without padding. No memory is saved: `possym.kv_cache.holding` does that.

    Args:
        model: a model that `possym.capture.Capture` reads.
        plan: a plan for that model.
        check: compare the plan with the model's shape and fingerprint first, which reads all weights once.

    Raises:
        InputError: a plan of another model, or a call with padding or with a cache of earlier tokens.
        UnsupportedModelError: a model that cannot be read.

    Source: the windows and sinks of DuoAttention, 2410.10819, section 2.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> tokens = torch.tensor([[3, 5, 7, 11], [3, 8, 7, 11]])
    >>> with torch.no_grad(), applied(model, CachePlan([[2, 2]], sink=1)):
    ...     first, second = model(tokens, use_cache=False).logits[:, -1]
    >>> torch.equal(first, second)  # the second token is neither the first nor among the latest two
    True
    """
    require_type(plan, CachePlan, "plan")
    if check:
        plan.check(model)

    def on_call(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor] | None:
        windows = plan.row(call.layer)
        if windows is None:
            return None
        if call.query.shape[2] != call.key.shape[2]:
            raise InputError("a plan needs the whole prompt at once: call the model with use_cache=False")
        return call.query, call.key, narrowed(call, windows, plan.sink)

    with attached(model, on_call):
        handle = model.register_forward_pre_hook(without_padding, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def without_padding(model: nn.Module, args: tuple, options: dict[str, Any]) -> None:
    """Refuse a call with padding, whose tokens a plan would take for the first ones."""
    mask = options.get("attention_mask", args[1] if len(args) > 1 else None)
    if isinstance(mask, Tensor) and mask.ndim == 2 and not mask.all():
        raise InputError("a batch with padding: give prompts of one length, without padding")


def narrowed(call: AttentionCall, windows: Sequence[int | None], sink: int) -> Tensor:
    """Return a layer's mask with every head's own window in it: (B or 1, H, T, T), boolean or added to the logits."""
    length, heads = call.query.shape[2], call.query.shape[1]
    hidden = ~kept(windows, sink, length, call.query.device).repeat_interleave(heads // len(windows), 0)
    if call.mask is None:
        future = torch.ones(length, length, dtype=torch.bool, device=hidden.device).triu(1)
        mask = call.query.new_zeros(1, 1, length, length).masked_fill(future, torch.finfo(call.query.dtype).min)
    else:
        mask = call.mask[..., :length, :length]
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, torch.finfo(mask.dtype).min)


def kept(windows: Sequence[int | None], sink: int, length: int, device: torch.device) -> Tensor:
    """Return which keys each key head keeps for each query, causality apart: (G, T, T) booleans, query by key.

    >>> kept([None, 2], 1, 4, torch.device("cpu"))[1].int().tolist()[3]
    [1, 0, 1, 1]
    """
    position = torch.arange(length, device=device)
    window = torch.tensor([length if each is None else each for each in windows], device=device)
    near = position[:, None] - position < window[:, None, None]
    return near | (position < sink)
