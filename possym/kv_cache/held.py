"""A smaller key–value cache: full heads keep all tokens, others the first tokens and their window.

`holding` gives a model of the Llama kind such a cache and an attention that reads it, one call for all heads of one
window. Tokens that a head forgets are freed as soon as the query has read them.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from possym.capture import Capture
from possym.capture.model_state import all_configs, modules_of
from possym.errors import InputError, UnsupportedModelError, needed, require_type
from possym.kv_cache.plan import CachePlan

with needed("possym.kv_cache.holding needs", "models"):
    from transformers import Cache
    from transformers.cache_utils import CacheLayerMixin
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

NAME = "possym_held"
_caches: dict[nn.Module, "PlannedCache"] = {}  # of the models that are held now, by attention module


@dataclass
class Group:
    """Key heads of one layer that keep the same tokens: keys and values (B, g, n, D) and their positions (n,)."""

    heads: Tensor
    window: int | None
    keys: Tensor | None = None
    values: Tensor | None = None
    positions: Tensor | None = None

    def extended(self, key: Tensor, value: Tensor, seen: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what is held and the new tokens' keys and values after it, and the positions of all."""
        new = torch.arange(seen, seen + key.shape[2], device=key.device)
        key, value = key[:, self.heads], value[:, self.heads]
        if self.keys is None:
            return key, value, new
        parts = (self.keys, key), (self.values, value), (self.positions, new)
        keys, values, positions = (torch.cat(both, -2 if both[0].ndim == 4 else 0) for both in parts)
        return keys, values, positions

    def keep(self, keys: Tensor, values: Tensor, positions: Tensor, sink: int, seen: int) -> None:
        """Hold what a later query may still read, after ``seen`` tokens."""
        if self.window is not None and len(positions) > sink + self.window:
            kept = (positions < sink) | (positions >= seen - self.window)
            keys, values, positions = keys[:, :, kept], values[:, :, kept], positions[kept]  # copies: views keep all
        self.keys, self.values, self.positions = keys, values, positions


class PlannedLayer(CacheLayerMixin):
    """One layer's cache; `attend` reads it, so `update` only notes what came."""

    is_sliding = False
    is_croppable = False

    def __init__(self, windows: tuple[int | None, ...], sink: int) -> None:
        super().__init__()
        self.windows, self.sink, self.seen = windows, sink, 0
        self.groups: list[Group] = []
        self.new: Tensor | None = None
        self.read = False  # whether a model attends by it now, so only within `holding`

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Sort the key heads by window, on the device of the first keys."""
        kinds = dict.fromkeys(self.windows)
        heads = {kind: [head for head, own in enumerate(self.windows) if own == kind] for kind in kinds}
        self.groups = [Group(torch.tensor(heads[kind], device=key_states.device), kind) for kind in kinds]
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Note the new tokens' keys and return them as they are."""
        if not self.read:
            raise InputError("a plan's cache works within `holding` alone: call the model there")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.new = key_states
        return key_states, value_states

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Return what queries (B, H, T, D) read, (B, H, T, D), and keep of the new tokens what the plan keeps."""
        queries = query.unflatten(1, (len(self.windows), -1))  # (B, G, H / G, T, D)
        at = torch.arange(self.seen, self.seen + query.shape[2], device=query.device)[:, None]
        found = query.new_empty(*queries.shape[:-1], value.shape[-1])
        if self.seen and len(query) != len(self.groups[0].keys):
            raise InputError(
                f"the cache holds a batch of {len(self.groups[0].keys)}, this call has {len(query)}: call its reset() "
                "before other prompts"
            )
        for group in self.groups:
            keys, values, positions = group.extended(key, value, self.seen)
            seen = positions <= at
            if group.window is not None:
                seen &= (at - positions < group.window) | (positions < self.sink)
            mixed = F.scaled_dot_product_attention(
                queries[:, group.heads].flatten(1, 2), keys, values, attn_mask=seen, scale=scale, enable_gqa=True
            )
            found[:, group.heads] = mixed.unflatten(1, (len(group.heads), -1))
            group.keep(keys, values, positions, self.sink, self.seen + query.shape[2])
        self.seen, self.new = self.seen + query.shape[2], None
        return found.flatten(1, 2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many keys a mask would have, and from which position: those of all tokens."""
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        """Return how many tokens were read, held or not."""
        return self.seen

    def get_max_length(self) -> int:
        """Return −1: there is no most."""
        return -1

    get_max_cache_shape = get_max_length  # what transformers called it before

    def crop(self, max_length: int) -> None:
        """Refuse to go back: what was let go of does not return."""
        raise InputError("a plan's cache cannot be cropped, as it has let go of earlier tokens: call its reset()")

    def reset(self) -> None:
        """Forget everything."""
        self.groups, self.seen, self.is_initialized = [], 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the beams that go on."""
        for group in self.groups:
            group.keys, group.values = (x.index_select(0, beam_idx.to(x.device)) for x in (group.keys, group.values))


class PlannedCache(Cache):
    """A transformers cache that keeps what a plan says; made by `holding`."""

    def __init__(self, plan: CachePlan) -> None:
        super().__init__(layers=[PlannedLayer(row, plan.sink) for row in plan.windows])

    @property
    def bytes(self) -> int:
        """Bytes of memory that keys and values take."""
        held = [x for layer in self.layers for group in layer.groups for x in (group.keys, group.values)]
        return sum(x.untyped_storage().nbytes() for x in held if x is not None)

    def given_to(self, model: nn.Module) -> dict[str, Any]:
        """Return the arguments that give a model this cache, by the name that the installed transformers has for it.

        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        ...                                      num_attention_heads=2))
        >>> PlannedCache(CachePlan([[None, 4]])).given_to(model)["use_cache"]
        True
        """
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        return {name: self, "use_cache": True}


@contextmanager
def holding(model: nn.Module, plan: CachePlan) -> Iterator[PlannedCache]:
    """Give a model a cache that holds only what a plan keeps; the model is restored on leaving.

    Inside, call the model, or its ``generate``, with ``**cache.given_to(model)``. Prompts may come in
    pieces, and in batches of one length, without padding.

    Args:
        model: a model that attends in full in every layer, without softcap or sinks of its own (Llama, Mistral without
            window, Qwen 2 and 3, OLMo, SmolLM2, …).
        plan: a plan for it.

    Raises:
        InputError: a plan of another model, a batch with padding, a call without the cache, or one that asks for
            attention weights.
        UnsupportedModelError: a model that attends in another way; `possym.kv_cache.applied` may read it.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2, bos_token_id=None, eos_token_id=None)).eval()
    >>> plan = CachePlan([[None, 4]], sink=1)
    >>> with holding(model, plan) as cache:
    ...     _ = model(torch.arange(16)[None], **cache.given_to(model))
    >>> cache.bytes == 2 * plan.tokens(16) * 4 * 4  # keys and values of 4 dimensions in float32
    True
    """
    require_type(plan, CachePlan, "plan")
    if isinstance(model, nn.Module) and any(module in _caches for module in model.modules()):
        raise InputError("this model is held by a plan's cache already: leave that `holding` first")
    plan.check(model)
    layers, name = Capture(model).layers, type(model).__name__
    count = getattr(model.config.get_text_config(), "num_hidden_layers", len(layers))
    odd = {
        "layers without attention": [*layers] != [*range(count)],
        "sliding windows": any(layer.window is not None for layer in layers.values()),
        "a softcap": any(layer.softcap is not None for layer in layers.values()),
        "sinks of its own": any(layer.sinks for layer in layers.values()),
        "keys shared between layers": any(layer.shares_keys for layer in layers.values()),
    }
    if found := [what for what, there in odd.items() if there]:
        raise UnsupportedModelError(
            f"{name} has {', '.join(found)}, which this cache does not hold. possym.kv_cache.applied shows what the "
            "plan would do to it"
        )
    modules = modules_of(model)
    attention = {m.layer_idx: m for m in modules if "Attention" in type(m).__name__ and hasattr(m, "layer_idx")}
    if [*attention] != [*range(count)]:
        raise UnsupportedModelError(f"{name}: its attention layers are not numbered")
    configs = list(all_configs(modules).values())
    before = [config._attn_implementation for config in configs]
    cache = PlannedCache(plan)
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, AttentionMaskInterface._global_mapping["sdpa"])
    try:
        _caches.update(dict.fromkeys(attention.values(), cache))
        for layer in cache.layers:
            layer.read = True
        for config in configs:
            config._attn_implementation_internal = NAME
        yield cache
    finally:
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation_internal = own
        for layer in cache.layers:
            layer.read = False
        for module in attention.values():
            _caches.pop(module, None)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Stand in for a model's attention: read the module's cache. Its own mask says only whether there is padding."""
    wanted = options.get("output_attentions")  # a call's own word counts before the configuration's
    if getattr(module.config, "output_attentions", False) if wanted is None else wanted:
        raise InputError(
            "output_attentions=True: a cache that lets go of tokens gives no attention weights. Call the model with "
            "attn_implementation='eager' within possym.kv_cache.applied, which shows it the same tokens"
        )
    layer = _caches[module].layers[module.layer_idx]
    if layer.new is None:
        raise InputError(
            "this model attends by a plan's cache: call it with the cache that `holding` gives, or leave `holding`"
        )
    if layer.new is not key:
        raise UnsupportedModelError(
            f"{type(module).__name__} does not cache the keys that it attends with, so a plan cannot let go of them"
        )
    if attention_mask is not None and module.layer_idx == 0 and not attention_mask[..., -1, :].all():
        raise InputError("a batch with padding: give prompts of one length, without padding")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return layer.attend(query, key, value, scale).transpose(1, 2).contiguous(), None
