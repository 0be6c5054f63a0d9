"""One attention layer at the moment it attends: what it attends with, and the questions that it can be asked.

- `AttentionCall.visible` tells which keys a query reads, `AttentionCall.tables` by which cosines and sines they turned.
- `AttentionCall.replay` asks the module for its queries and keys again with every token at one position, or none
  rotated. `AttentionCall.own_attention` asks the attention function itself for its weights.

One convention bites: transformers hands its attention function queries and keys *after* rotation, never the cosines.
Those are read where the attention module receives or makes them, in the same pass, because some models change them
with the length.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from possym.capture.model_state import recorded
from possym.errors import InputError, UnsupportedModelError


class Replayed(Exception):
    """Carries a replay's queries and keys out of the attention module."""


@dataclass
class AttentionCall:
    """One attention layer at the moment it attends: queries and keys after rotation, and how it was called."""

    session: Any  # the `possym.capture.hooks.HookSession` of the pass, which makes these
    module: nn.Module
    layer: int  # its number, from 0
    pass_index: int  # how often it has attended before in this forward pass: 0 but for layers that run in a loop
    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float
    causal: bool
    options: dict
    again: Callable[..., Any] | None = None  # attends anew, of query, key and value, and of another mask if given

    def visible(self, position: int) -> Tensor:
        """Return which keys (T,) the query at ``position`` sees, on the CPU."""
        return self.visible_to([position])[0]

    def visible_to(self, positions: Sequence[int]) -> Tensor:
        """Return which keys (Q, T) the queries at some positions see, on the CPU: a device is waited for once."""
        count = self.key.shape[2]
        if self.mask is None:
            last = torch.tensor(positions, device="cpu")[:, None] if self.causal else count
            return (torch.arange(count, device="cpu") <= last).expand(len(positions), -1)
        if not isinstance(self.mask, Tensor) or self.mask.ndim < 2 or self.mask.shape[-2] <= max(positions):
            raise UnsupportedModelError(
                f"layer {self.layer}: its attention function takes a mask that is no matrix, so possym does not see "
                "which keys it reads. Load the model with attn_implementation='sdpa' or 'eager'"
            )
        first, rows = positions[0], self.mask[..., :count]
        if list(positions) == [*range(first, first + len(positions))]:
            rows = rows.narrow(-2, first, len(positions))
        else:
            rows = rows.index_select(-2, on_device(positions, rows.device))
        rows = rows.cpu()
        if rows.dtype == torch.bool:
            seen = rows
        else:
            seen = rows > torch.finfo(rows.dtype).min / 2
            if (rows[seen] != 0).any():
                raise UnsupportedModelError(
                    f"layer {self.layer} adds a bias that depends on positions (ALiBi or relative positions). possym "
                    "reads models with rotary position embedding (RoPE) alone"
                )
        heads = seen.reshape(-1, seen.shape[-3] if seen.ndim > 3 else 1, len(positions), count)
        if (heads != heads[:, :1]).any():
            raise UnsupportedModelError(
                f"layer {self.layer}: each head reads keys of its own choice (sparse attention per head). possym moves "
                "the same keys in all heads of a layer"
            )
        if (heads != heads[:1]).any():
            raise InputError(
                f"layer {self.layer}: the mask differs within the batch. Give prompts without padding, and one by one "
                "to a model that picks the keys to read (sparse attention)"
            )
        return heads[0, 0].clone()

    def once(self, what: object, make: Callable[[], object], *sources: object) -> Any:
        """Return ``make()``, made once for all layers that got the same ``sources``: each may wait for the device."""
        memory, key = self.session.memory, (what, self.key.device, *map(id, sources))
        if key not in memory:
            if len(memory) >= 48:
                memory.clear()
            with recorded():
                memory[key] = make(), sources  # kept, so that no other object gets one's id
        return memory[key][0]

    @property
    def embeddings(self) -> Any:
        """The tables that the module received or made for itself: a tensor or a pair, None where it has none."""
        given = self.session.inputs[self.module].get("position_embeddings")
        if given is None:
            return self.session.inner_tables.get(self.module)
        if isinstance(given, dict):  # one pair for each kind of layer, of which the module picks its own
            kinds = [kind for kind in vars(self.module).values() if isinstance(kind, str) and kind in given]
            return given[kinds[0]] if kinds else None
        return given

    @property
    def tables_from(self) -> object:
        """What the tables are read from, alive as long as they are: a table of the module's, else the module."""
        embeddings = self.embeddings
        return self.module if embeddings is None else embeddings

    def tables(self) -> tuple[Tensor, Tensor]:
        """Return cosines and sines as the module received them, each (T, W), in float32."""
        return self.once("tables", self.read_tables, self.tables_from)

    def read_tables(self) -> tuple[Tensor, Tensor]:
        """Do what `tables` says."""
        embeddings = self.embeddings
        if embeddings is None:
            sines = self.module.embed_positions[self.session.inputs[self.module]["position_ids"][0]]
            sin, cos = sines.chunk(2, -1)
        elif isinstance(embeddings, Tensor):
            cos, sin = embeddings.real, embeddings.imag
        else:
            first, second = embeddings
            # Some families pass (sin, cos): at the first position every sine is zero.
            cos, sin = (second, first) if is_sine(first) else (first, second)
        cos, sin = (x.reshape(-1, *x.shape[-2:])[0].to(self.key.device).float() for x in (cos, sin))
        return cos, sin

    def gains(self) -> list[Tensor]:
        """Return the module's parameters that could be a gain over a head's dimensions, (D,) each."""
        parameters = [p.detach().float() for p in self.module.parameters() if p.shape == self.key.shape[-1:]]
        return [*parameters, *(1 + p for p in parameters)]

    def replay(self, position: int | None) -> tuple[Tensor, Tensor] | None:
        """Ask the module for its queries and keys with every token at ``position``; None asks for no rotation at all.

        Returns None where the module is told no positions, so that nothing can rotate.
        """
        from transformers import Cache

        given = {k: copy.copy(v) if hasattr(v, "keys") else v for k, v in self.session.inputs[self.module].items()}
        # A cache would keep the keys of every replay.
        given |= {name: None for name, value in given.items() if isinstance(value, Cache)}
        session = self.session
        embeddings = given.get("position_embeddings")
        if isinstance(embeddings, dict):
            given["position_embeddings"] = {kind: moved_tables(x, position) for kind, x in embeddings.items()}
        elif embeddings is not None:
            given["position_embeddings"] = moved_tables(embeddings, position)
        elif self.module in session.inner_tables:
            pass  # the module makes its tables anew, and is given others
        elif hasattr(self.module, "embed_positions") and given.get("position_ids") is not None:
            given["position_ids"] = torch.full_like(given["position_ids"], position or 0)
        else:
            return None
        session.replaying, session.current, before = (position,), self.module, session.current
        try:
            self.module.forward(**given)
        except Replayed as replayed:
            return replayed.args
        finally:
            session.replaying, session.current = None, before
        raise UnsupportedModelError(f"layer {self.layer}: asked again, the module attended in another way")

    def attention(self, positions: Sequence[int] | None = None) -> Tensor:
        """Return the attention of queries (B, H, Q, T), None for all, that logits, mask and sinks give, in float32."""
        positions = list(range(self.query.shape[2]) if positions is None else positions)
        query, key = self.query[:, :, positions].float(), self.key.float()
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        logits = query @ key.mT * self.scale
        if self.options.get("softcap") is not None:
            logits = self.options["softcap"] * torch.tanh(logits / self.options["softcap"])
        seen = self.visible_to(positions).to(logits.device)
        logits = logits.masked_fill(~seen, -torch.inf)
        if self.options.get("s_aux") is not None:
            sinks = self.options["s_aux"].float()[:, None, None].expand(*logits.shape[:-1], 1)
            return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        return logits.softmax(-1)

    def own_attention(self) -> Tensor | None:
        """Return the attention (B, H, T, T) that the model's own function computes, read off by attending over rows
        of the identity; None where the module calls no function that can be asked."""
        if self.again is None:
            return None
        count = self.key.shape[2]
        rows = torch.eye(count, dtype=self.query.dtype, device=self.key.device)
        output = self.again(self.query, self.key, rows.expand(*self.key.shape[:2], count, count))[0]
        return output.transpose(1, 2).float()


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return whole numbers on a device, which is not waited for."""
    return torch.tensor(numbers, dtype=torch.long, device="cpu").to(device, non_blocking=True)


def is_sine(table: Tensor) -> bool:
    """Return whether a table that starts at position 0 holds sines."""
    return bool((table.select(-2, 0) == 0).all())


def moved_tables(embeddings: Any, position: int | None) -> Any:
    """Return tables with one position's rotation everywhere, or no rotation; complex ones or a pair."""
    if isinstance(embeddings, Tensor):
        return moved_table(embeddings, position, 1)
    return tuple(moved_table(x, position, 0 if is_sine(x) else 1) for x in embeddings)


def moved_table(table: Tensor, position: int | None, plain: int) -> Tensor:
    """Return a table with one position's row everywhere, or ``plain`` everywhere."""
    if position is None:
        return torch.full_like(table, plain)
    return table.narrow(-2, position, 1).expand_as(table).contiguous()
