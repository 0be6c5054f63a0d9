"""Scores of your own queries and keys: arrays from vLLM, llama.cpp, JAX, TransformerLens or any other program.

`scores_from` scores one layer and one query as `possym.profile` does, without a model or transformers.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from possym import rope
from possym.capture import LayerInputs
from possym.errors import InputError, require_type, to_float, to_int
from possym.profiling.scoring import purity_of, visible_blocks
from possym.scores import DEFAULT_RELATIVE, DEFAULT_TEMPERATURE, check_blocks


def scores_from(
    queries: Any,
    keys: Any,
    *,
    rotated: bool,
    base: float | None = None,
    frequencies: Any = None,
    layout: str = "half",
    query_position: int = -1,
    visible: Any = None,
    blocks: str | Sequence[tuple[int, int]] | None = None,
    hold: str | int | Sequence[int] = (),
    scale: float | None = None,
    softcap: float | None = None,
    attention_factor: float = 1.0,
    temperature: float = DEFAULT_TEMPERATURE,
    relative: bool = DEFAULT_RELATIVE,
    gamma: float = 0.1,
) -> pd.DataFrame:
    """Score the heads of one layer from its queries and keys, numpy or torch arrays, at one query.

    Positions count from 0, and key p is that of token p. Keys after the query take no part. Apply everything that the
    model does before the rotation (projection, bias, norm) first.

    Args:
        queries: (H, D) the query of each head at ``query_position``, or (H, T, D) all queries.
        keys: (G, T, D) keys of each key head; H is a multiple of G, and query head h reads key head h·G/H.
        rotated: whether both are taken after the rotation (as in a KV cache) or before it.
        base: the RoPE base, where all D dimensions rotate without scaling.
        frequencies: (F,) angles in radians per position instead, where fewer dimensions rotate or angles are scaled;
            the first 2F dimensions rotate. ``[]`` where none does.
        layout: ``"half"`` pairs dimensions k and k+F (Llama, Qwen, Gemma in transformers), ``"interleaved"`` 2k and
            2k+1 (GPT-J, and Llama in llama.cpp).
        query_position: the token that asks; negative counts from the end.
        visible: (T,) booleans, which keys the mask shows to the query; None for all up to the query.
        blocks: None or ``"tokens"`` to swap single tokens, else (start, stop) positions of blocks to swap.
        hold: positions of tokens that stay in place, one alone, or ``"first"`` for the first.
        scale: factor of the logits; None is 1/√D.
        softcap: c of c·tanh(logit/c), as in Gemma 2.
        attention_factor: by how much the rotation lengthens queries and keys (YaRN, LongRoPE).
        temperature, relative, gamma: as in `possym.profile`.

    Returns:
        One row per head: ``head`` and the columns of `possym.profile`'s table ``heads`` from ``positional`` on. Its
        logits are computed in float64.

    Raises:
        InputError: shapes that do not fit, numbers that are not finite, neither or both of ``base`` and
            ``frequencies``, or fewer than two keys or blocks to swap.

    Source: 2511.11579, section 3; 2605.31558, appendix D.

    >>> generator = np.random.default_rng(0)
    >>> queries, keys = generator.normal(size=(4, 8)), generator.normal(size=(2, 12, 8))
    >>> table = scores_from(queries, keys, rotated=False, base=10000.0, hold=[0])
    >>> table[["head", "positional", "symbolic", "moved"]].round(3)
       head  positional  symbolic  moved
    0     0       0.576     0.995     10
    1     1       0.534     0.920     10
    2     2       0.634     0.978     10
    3     3       0.633     0.972     10
    """
    query, content, position = read_arrays(queries, keys, query_position)
    count, width = content.shape[1:]
    angles = read_angles(base, frequencies, width)
    if not isinstance(layout, str) or layout not in rope.LAYOUTS:
        raise InputError(f"layout = {layout!r}: known layouts are {', '.join(rope.LAYOUTS)}")
    for name, flag in dict(rotated=rotated, relative=relative).items():
        require_type(flag, bool, name)
    scale = positive(width**-0.5 if scale is None else scale, "scale")
    softcap = None if softcap is None else positive(softcap, "softcap")
    attention_factor = positive(attention_factor, "attention_factor")
    temperature, gamma = positive(temperature, "temperature"), positive(gamma, "gamma")
    seen = read_visible(visible, count)
    planes, places = len(angles), torch.arange(count, dtype=torch.float64)
    lengthen = torch.ones(width, dtype=torch.float64)
    lengthen[: 2 * planes] = attention_factor
    if rotated:
        content = rope.rotate(content, -places, angles, layout) / lengthen
    else:
        query = rope.rotate(query, float(position), angles, layout) * lengthen
    order = half_order(planes, width, layout)
    turns = places[:, None] * angles
    inputs = LayerInputs(
        layers=[0],
        query=query[None, :, order],
        keys=content[None, :, :, order],
        cos=turns.cos() * attention_factor,
        sin=turns.sin() * attention_factor,
        query_position=position,
        moved=seen[:position].nonzero().flatten(),
        scale=scale,
        softcap=softcap,
        reads_itself=bool(seen[position]),
    ).hold(read_hold(hold, count))
    spans = None
    if not (blocks is None or (isinstance(blocks, str) and blocks == "tokens")):
        if isinstance(blocks, str) or not isinstance(blocks, Iterable):
            raise InputError(
                f"blocks = {blocks!r}: give None or 'tokens' for single tokens, or (start, stop) positions"
            )
        blocks = list(blocks)
        check_blocks(blocks, position)
        spans = visible_blocks(blocks, inputs)
    if len(inputs.moved if spans is None else spans) < 2:
        what = "keys" if spans is None else "blocks"
        raise InputError(f"the query at {position} sees fewer than two {what} before itself that may change places")
    found, _ = inputs.scores(spans, temperature, relative)
    columns = {name: values[0].numpy() for name, values in found._asdict().items()}
    if not found.entropy.isfinite().all():
        raise InputError("queries and keys are so large that their logits overflow: give them as the model has them")
    table = pd.DataFrame({"head": range(inputs.heads), **columns, "moved": len(inputs.moved)})
    purity = purity_of(table.positional, table.symbolic, gamma)
    table.insert(table.columns.get_loc("entropy") + 1, "purity", purity)
    return table


def read_arrays(queries: Any, keys: Any, query_position: Any) -> tuple[Tensor, Tensor, int]:
    """Return one query (H, D), keys (G, T, D), both in float64 on the CPU, and the query's position."""
    query, content = as_doubles(queries, "queries"), as_doubles(keys, "keys")
    shapes = f"queries {tuple(query.shape)} and keys {tuple(content.shape)}"
    if query.ndim not in (2, 3) or content.ndim != 3 or not query.numel() or not content.numel():
        raise InputError(f"{shapes}: give queries (H, D) or (H, T, D), and keys (G, T, D)")
    count = content.shape[1]
    if query.shape[-1] != content.shape[-1] or (query.ndim == 3 and query.shape[1] != count):
        raise InputError(f"{shapes} do not fit: both have D dimensions, and queries of all tokens are T, as the keys")
    if query.shape[0] % content.shape[0]:
        raise InputError(f"{shapes}: the number of query heads must be a multiple of that of key heads")
    position = read_position(query_position, count, "query_position")
    return query if query.ndim == 2 else query[:, position], content, position


def as_doubles(array: Any, name: str) -> Tensor:
    """Return an array as finite float64 on the CPU; what numpy reads will do, as JAX's arrays of any dtype."""
    try:
        if isinstance(array, Tensor):
            if array.is_complex():
                raise TypeError("its numbers are complex")
            found = array.detach().to("cpu", torch.float64)
        else:
            whole = np.asarray(array)
            if np.iscomplexobj(whole):
                raise TypeError("its numbers are complex")
            found = torch.from_numpy(np.array(whole, dtype=np.float64))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is of type {type(array).__name__}: give an array of numbers ({error})") from None
    if not found.isfinite().all():
        raise InputError(f"{name} holds numbers that are not finite")
    return found


def read_angles(base: Any, frequencies: Any, width: int) -> Tensor:
    """Return the angles of the planes (F,)."""
    if (base is None) == (frequencies is None):
        raise InputError("give either base, where all dimensions rotate, or frequencies: [] where none does")
    if frequencies is None:
        return rope.frequencies(width, base)
    angles = as_doubles(frequencies, "frequencies")
    rope.check_planes(width, angles, "half")
    return angles


def read_visible(visible: Any, count: int) -> Tensor:
    """Return which keys the mask shows (T,)."""
    if visible is None:
        return torch.ones(count, dtype=torch.bool)
    seen = torch.as_tensor(np.asarray(visible.cpu() if isinstance(visible, Tensor) else visible))
    if seen.dtype != torch.bool or seen.shape != (count,):
        raise InputError(f"visible is {seen.dtype} of shape {tuple(seen.shape)}: give {count} booleans, one a key")
    return seen


def read_hold(hold: Any, count: int) -> list[int]:
    """Return the positions that stay in place.

    >>> read_hold("first", 5), read_hold(-1, 5), read_hold([0, 3], 5)
    ([0], [4], [0, 3])
    """
    given = [0] if isinstance(hold, str) and hold == "first" else [hold] if to_int(hold) is not None else hold
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(f"hold = {hold!r:.80}: give 'first', a position or positions")
    return [read_position(each, count, "hold") for each in given]


def positive(value: Any, name: str) -> float:
    """Return a positive finite number, or raise an InputError."""
    number = to_float(value)
    if number is None or not 0 < number < math.inf:
        raise InputError(f"{name} = {value!r}: give a positive number")
    return number


def read_position(position: Any, count: int, name: str) -> int:
    """Return a position among the tokens, counted from the start."""
    number = to_int(position)
    if number is None or not -count <= number < count:
        raise InputError(f"{name} = {position!r}: give positions among the {count} tokens (negative from the end)")
    return number % count


def half_order(planes: int, width: int, layout: str) -> Tensor:
    """Return the dimensions (D,) in the order that the half layout has.

    >>> half_order(2, 5, "interleaved").tolist(), half_order(2, 5, "half").tolist()
    ([0, 2, 1, 3, 4], [0, 1, 2, 3, 4])
    """
    order = torch.arange(width)
    if layout == "interleaved":
        order[: 2 * planes] = order[: 2 * planes].view(planes, 2).T.flatten()
    return order
