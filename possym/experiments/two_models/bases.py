"""A model whose layers of two kinds rotate with two bases, and the same model with the bases changed.

Gemma 3 attends in full in every sixth layer, with base 10⁶, and through a window in the others, with base 10⁴. Which of
the two makes a layer what it is can be asked of the trained model: give one kind the other's base, and score again.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
from torch import nn

from possym.capture import Capture
from possym.errors import UnsupportedModelError

FULL, SLIDING = KINDS = ("full", "sliding")
# Whose base each kind of layer rotates with.
CONDITIONS = {
    "own": {FULL: FULL, SLIDING: SLIDING},
    "full with the other base": {FULL: SLIDING, SLIDING: SLIDING},
    "sliding with the other base": {FULL: FULL, SLIDING: FULL},
    "swapped": {FULL: SLIDING, SLIDING: FULL},
}


def layer_kinds(model: nn.Module) -> pd.DataFrame:
    """Return layer, kind ("full", or "sliding" where a window hides keys) and window of a model's layers."""
    coverage = Capture(model).coverage
    kinds = coverage["window"].isna().map({True: FULL, False: SLIDING})
    return pd.DataFrame({"layer": coverage["layer"], "kind": kinds, "window": coverage["window"]})


def has_two_bases(model: nn.Module) -> bool:
    """Return whether a model keeps one table of frequencies for each kind of layer, as Gemma 3 does."""
    return len(tables(model)) == len(KINDS)


def tables(model: nn.Module) -> dict:
    """Return the angles of each kind of layer, as the model holds them."""
    rotary = getattr(getattr(model, "model", None), "rotary_emb", None)
    found = {kind: getattr(rotary, f"{kind}_attention_inv_freq", None) for kind in KINDS}
    return {kind: angles for kind, angles in found.items() if angles is not None}


@contextmanager
def with_bases(model: nn.Module, condition: str) -> Iterator[None]:
    """Let layers rotate as one of `CONDITIONS` says inside the block; afterwards they rotate as before.

    Raises:
        UnsupportedModelError: a model without two tables of frequencies.
    """
    angles = tables(model)
    if len(angles) < len(KINDS):
        raise UnsupportedModelError(f"{type(model).__name__} has no two tables of frequencies, as Gemma 3 has")
    before = {kind: table.clone() for kind, table in angles.items()}
    try:
        for kind, whose in CONDITIONS[condition].items():
            angles[kind].copy_(before[whose])
        yield
    finally:
        for kind, table in before.items():
            angles[kind].copy_(table)
