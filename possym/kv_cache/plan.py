"""A plan for the key–value cache: for each key head of each layer, everything or the first tokens and a window."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import nn

from possym.capture import Capture
from possym.errors import InputError, require_type, to_int
from possym.profiling.identity import config_hash, has_weights, model_name, weights_hash

IDENTITY = ("class", "config", "weights", "dtype")
LISTS = (list, tuple, range)


@dataclass(frozen=True)
class CachePlan:
    """How many tokens every key head of a model keeps.

    Args:
        windows: for each layer, for each key head, how many of the latest tokens it keeps; None for all.
        sink: how many of the first tokens a head with a window keeps besides.
        layers: the layers' numbers, from 0; None for 0, 1, ….
        limits: for each layer, the window that the model itself sets on all its heads, None for none.
        model: the fingerprint of the model that the plan was made for, see `model_fingerprint`; None fits any of the
            same shape.
        rule: how the heads were chosen.
        settings: whatever else made the plan, as JSON has it (a tuple becomes a list).

    Raises:
        InputError: no layers, a window below 1, a negative sink, lists that do not fit.

    >>> plan = CachePlan([[None, 2], [2, 2]], sink=1)
    >>> plan.share, plan.tokens(10), plan.fraction(10)
    (0.75, 19, 0.475)
    """

    windows: Any
    sink: int = 4
    layers: Any = None
    limits: Any = None
    model: dict[str, str] | None = None
    rule: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every entry and keep lists as tuples."""
        rows = self.windows if isinstance(self.windows, (list, tuple)) else []
        if not rows or not all(isinstance(row, (list, tuple)) and row for row in rows):
            raise InputError("windows: give for each layer a list with an entry for each key head, and at least one")
        wrong = [entry for row in rows for entry in row if entry is not None and (to_int(entry) or 0) < 1]
        if wrong:
            raise InputError(f"windows hold {wrong[0]!r}: give tokens from 1, or None for a head that keeps all")
        if (sink := to_int(self.sink)) is None or sink < 0:
            raise InputError(f"sink = {self.sink!r}: give how many first tokens are kept, from 0")
        layers = range(len(rows)) if self.layers is None else self.layers
        numbers: Any = [to_int(number) for number in layers] if isinstance(layers, LISTS) else [None]
        if None in numbers or numbers != sorted(set(numbers)) or len(numbers) != len(rows) or numbers[0] < 0:
            raise InputError(f"layers = {self.layers!r}: give {len(rows)} ascending numbers from 0, one a row")
        limits: Any = [None] * len(rows) if self.limits is None else self.limits
        if (
            not isinstance(limits, LISTS)
            or len(limits) != len(rows)
            or any(each is not None and (to_int(each) or 0) < 1 for each in limits)
        ):
            raise InputError(f"limits = {self.limits!r}: give {len(rows)} windows, or None, one a row of windows")
        require_type(self.model, (dict, type(None)), "model")
        require_type(self.rule, str, "rule")
        require_type(self.settings, dict, "settings")
        checked = {
            "windows": tuple(tuple(None if each is None else to_int(each) for each in row) for row in rows),
            "sink": sink,
            "layers": tuple(numbers),
            "limits": tuple(None if each is None else to_int(each) for each in limits),
            "model": as_json(self.model, "model"),
            "settings": as_json(self.settings, "settings"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def entries(self) -> Iterator[tuple[int, int, int | None, int | None]]:
        """Yield layer, key head, window, and the model's own window of that layer."""
        for layer, row, limit in zip(self.layers, self.windows, self.limits, strict=True):
            for head, window in enumerate(row):
                yield layer, head, window, limit

    def row(self, layer: int) -> tuple[int | None, ...] | None:
        """Return the windows of one layer's key heads, None where the plan leaves the layer alone."""
        found = dict(zip(self.layers, self.windows, strict=True)).get(layer)
        return found if found is not None and any(window is not None for window in found) else None

    @property
    def heads(self) -> int:
        """Number of key heads."""
        return sum(map(len, self.windows))

    @property
    def share(self) -> float:
        """Share of the key heads that have a window."""
        return sum(window is not None for _, _, window, _ in self.entries()) / self.heads

    def tokens(self, length: int) -> int:
        """Return how many keys are held after ``length`` tokens, over all key heads; there are as many values."""
        if (to_int(length) or 0) < 1:
            raise InputError(f"length = {length!r}: give how many tokens were read, from 1")
        return sum(
            min(length, limit or length, length if window is None else window + self.sink)
            for _, _, window, limit in self.entries()
        )

    def fraction(self, length: int) -> float:
        """Return the share of the model's own cache that is held after ``length`` tokens."""
        return self.tokens(length) / sum(min(length, limit or length) for *_, limit in self.entries())

    def table(self) -> pd.DataFrame:
        """Return one row per key head: layer, key_head, window (missing where all is kept)."""
        rows = [(layer, head, window) for layer, head, window, _ in self.entries()]
        return pd.DataFrame(rows, columns=["layer", "key_head", "window"]).astype({"window": "Int64"})

    def check(self, model: nn.Module) -> dict[int, int]:
        """Return layer → key heads of a model that the plan fits.

        Raises:
            InputError: a model of another shape, or another than that of the plan's fingerprint. Where only the dtype
                differs, weights cannot be compared, and class and configuration decide.
            UnsupportedModelError: a model that possym does not read.
        """
        key_heads = {number: layer.key_heads for number, layer in Capture(model).layers.items()}
        ours = {layer: len(row) for layer, row in zip(self.layers, self.windows, strict=True)}
        if ours != key_heads:
            raise InputError(
                f"the plan has {shape_words(ours)}, the model {shape_words(key_heads)}: make a plan for this model"
            )
        if self.model is None:
            return key_heads
        found = model_fingerprint(model)
        names = [name for name in IDENTITY if self.model.get(name) != found[name]]
        if "dtype" in names:
            names = [name for name in names if name in ("class", "config")]
        if names == ["weights"] and has_weights(model, self.model["weights"]):  # by a hash of an earlier kind
            return key_heads
        if names:
            raise InputError(
                f"the plan was made for another model ({', '.join(names)} differ: {self.model.get('model', '?')} and "
                f"{found['model']}): make a plan for this model"
            )
        return key_heads


def as_json(value: Any, name: str) -> Any:
    """Return a value as JSON gives it back, or raise an InputError.

    >>> as_json({"sizes": (4, 128)}, "settings")
    {'sizes': [4, 128]}
    """
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} are no JSON ({error}): give strings, finite numbers, lists and dicts") from None


def shape_words(key_heads: dict[int, int]) -> str:
    """Return layers and key heads in words.

    >>> shape_words({0: 2, 1: 2}), shape_words({0: 2, 3: 1})
    ('2 layers of 2 key heads', '2 layers of 1, 2 key heads')
    """
    return f"{len(key_heads)} layers of {', '.join(map(str, sorted({*key_heads.values()})))} key heads"


def model_fingerprint(model: nn.Module) -> dict[str, str]:
    """Return a model's name, class, dtype, and hashes of its config and weights."""
    dtype = str(getattr(model, "dtype", None) or next(model.parameters()).dtype)
    return {
        "model": model_name(model),
        "class": type(model).__name__,
        "config": config_hash(model.config),
        "weights": weights_hash(model),
        "dtype": dtype.removeprefix("torch."),
    }
