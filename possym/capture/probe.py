"""Finding out, by asking the model itself, how each attention layer rotates its queries and keys.

- `probe_layer` compares what a layer attends with and what it would attend with unrotated, finds the dimensions that
  pair up, and checks its reading against the layer's own rotation at other positions.
- `fingerprint` says when a model must be asked again, `coverage` tells what was found, one row per layer.
"""

import contextlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from possym.capture.attention_call import AttentionCall
from possym.capture.model_state import Parts, attention_functions
from possym.capture.rope_layout import (
    RopeLayout,
    detect_gain,
    detect_rope_layout,
    distance,
    plane_tables,
    same_layout,
    unrotate,
)
from possym.errors import UnsupportedModelError
from possym.rope import rotate_by

PROBE_LENGTH = 12
HALF = (torch.bfloat16, torch.float16)
PLAIN = {bool, int, float, str}  # kinds of attributes by which a user switches a layer's rotation on or off


@dataclass
class Layer:
    """What the probe found out about one attention layer."""

    layer: int
    heads: int
    key_heads: int
    width: int
    rope_layout: RopeLayout | None
    method: str
    self_check: float
    window: int | None = None
    shares_keys: bool = False
    sinks: bool = False
    softcap: float | None = None
    factor: float = 1.0


def probe_layer(call: AttentionCall, layers: dict[int, Layer], model_name: str) -> None:
    """Add to ``layers`` how one layer rotates, checked against its own rotation at other positions."""
    name = f"{model_name}, layer {call.layer}"
    if call.pass_index and call.layer in layers:
        return  # the same weights once more, in a loop
    if call.key.shape[2] != call.query.shape[2]:
        raise UnsupportedModelError(
            f"{name}: {call.query.shape[2]} queries read {call.key.shape[2]} keys, so keys are more, or less, than the "
            "tokens (compressed, or of another pass). possym moves the keys of tokens"
        )
    check_length(call, PROBE_LENGTH, model_name)
    visible = call.visible(PROBE_LENGTH // 2)
    if visible[PROBE_LENGTH // 2 + 1 :].any():
        raise UnsupportedModelError(
            f"{name}: attention reads in both directions, as an encoder does. Give a causal language model"
        )
    # All the comparing is done on the CPU, where an answer costs no waiting.
    query, key = call.query[0].float().cpu(), call.key[0].float().cpu()
    plain = call.replay(None)
    found = Layer(
        layer=call.layer,
        heads=call.query.shape[1],
        key_heads=call.key.shape[1],
        width=call.key.shape[-1],
        rope_layout=None,
        method="direct",
        self_check=0.0,
        window=call.options.get("sliding_window"),
        sinks=call.options.get("s_aux") is not None,
        softcap=call.options.get("softcap"),
        factor=attention_factor(call, name),
    )
    layers[call.layer] = found
    if plain is None:
        return
    tolerance = 1e-5 if call.key.dtype in (torch.float32, torch.float64) else 0.03
    plain_query, plain_key = (x[0].float().cpu() for x in plain)
    query_turns, key_turns = distance(plain_query, query) > 1e-6, distance(plain_key, key) > 1e-6
    if not query_turns and not key_turns:
        return
    found.shares_keys = not key_turns
    tables = tuple(table.cpu() for table in call.tables())
    gains = [gain.cpu() for gain in call.gains()]
    layout = detect_rope_layout(plain_query, query, tables, gains, tolerance)
    if layout is not None and not found.shares_keys:
        key_weight = detect_gain(plain_key, key, tables, layout, gains, tolerance)
        layout = None if key_weight is False else replace(layout, key_weight=key_weight)
    if layout is not None:
        found.rope_layout = layout
        found.self_check = check(call, found, query, key, tables)
        if found.self_check <= tolerance:
            found.rope_layout = share_layout(layout, layers, call.key.device)
            return
    if found.shares_keys:
        raise UnsupportedModelError(f"{name}: takes its keys from another layer and rotates in no known way")
    found.rope_layout, found.method = None, "replay"


def check_length(call: AttentionCall, tokens: int, model_name: str) -> None:
    """Raise an UnsupportedModelError if a layer attends from more, or fewer, positions than there are tokens."""
    count = call.query.shape[2]
    if count != tokens:
        raise UnsupportedModelError(
            f"{model_name}, layer {call.layer}: {count} queries for {tokens} tokens, so the model adds tokens of its "
            "own (soft prompts, prompt tuning), or leaves some out, and positions are not those of the tokens. Give "
            "the model inside, without its prompt, and write what it should read into the prompts"
        )


def attention_factor(call: AttentionCall, name: str) -> float:
    """Return what the model's own function multiplies the logits by, beyond the scale that it is given: mostly 1.

    Raises:
        UnsupportedModelError: its attention is no softmax of these logits under this mask.
    """
    own = call.own_attention()
    if own is None or not own.isfinite().all():  # what overflows is said, with its layer, when prompts are run
        return 1.0
    tolerance = tolerance_of(call)
    ours = call.attention()
    if own.shape == ours.shape and (ours - own).abs().max() <= tolerance:
        return 1.0
    if call.query.dtype in HALF:
        with contextlib.suppress(RuntimeError, UnsupportedModelError):  # a function of others may take no float32
            return attention_factor(in_float32(call), name)
    if own.shape == ours.shape and call.options.get("softcap") is None and call.options.get("s_aux") is None:
        # A user's own function may scale anew. Softmax gives logits but for a constant per query, so differences of
        # log attention over those of ours, in the place where they are largest, are the factor.
        ends = ours.masked_fill(ours == 0, torch.nan).log(), own.clamp(min=1e-30).log()
        last = [x[0, 0, -1] for x in ends]
        low, high = last[0].nan_to_num(torch.inf).argmin(), last[0].nan_to_num(-torch.inf).argmax()
        factor = float((last[1][high] - last[1][low]) / (last[0][high] - last[0][low]))
        again = replace(call, scale=call.scale * factor).attention()
        if (again - own).abs().max() <= tolerance:
            return factor
    reads_on = own.triu(1).abs().max() > tolerance if own.shape == ours.shape else False
    reason = (
        "it reads later tokens" if reads_on else "it is no softmax of scaled logits under the mask that it is given"
    )
    raise UnsupportedModelError(
        f"{name}: possym does not know its attention function ({call.module.config._attn_implementation!r}): {reason}. "
        "Load the model with attn_implementation='sdpa' or 'eager'"
    )


def check_attention(call: AttentionCall, factor: float, positions: Sequence[int], model_name: str) -> None:
    """Raise an UnsupportedModelError if the layer attends from ``positions`` in another way than the probe found.

    Every head attends over values of its own, so that a difference in one head or at one key shows.
    """
    if call.again is None:
        return
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(call.key.shape[1:], generator=generator).to(call.key).expand_as(call.key).contiguous()
    own = call.again(call.query, call.key, values)[0].transpose(1, 2)[:, :, list(positions)].float()
    if not own.isfinite().all():  # said, with its layer, after the pass
        return
    weights = replace(call, scale=call.scale * factor).attention(positions)
    ours = weights @ values.float().repeat_interleave(weights.shape[1] // values.shape[1], 1)
    if own.shape == ours.shape and distance(ours, own) <= tolerance_of(call):
        return
    if call.query.dtype in HALF:
        with contextlib.suppress(RuntimeError, UnsupportedModelError):
            return check_attention(in_float32(call), factor, positions, model_name)
    raise UnsupportedModelError(
        f"{model_name}, layer {call.layer}: on {call.key.shape[2]} tokens its attention function "
        f"({call.module.config._attn_implementation!r}) attends otherwise than on the {PROBE_LENGTH} that it was "
        "asked with. Load the model with attn_implementation='sdpa' or 'eager'"
    )


def tolerance_of(call: AttentionCall) -> float:
    """Return how far attention may be off in the precision of a call."""
    return 0.03 if call.query.dtype in HALF else 1e-4


def in_float32(call: AttentionCall) -> AttentionCall:
    """Return a call in half precision as one in float32.

    In half precision a large logit is rounded so coarsely that attention says little of the function: it is off by
    several per cent from a logit of 20 on, in the eager attention that Gemma 2 always has.
    """
    mask, again = call.mask, call.again
    if isinstance(mask, Tensor) and mask.is_floating_point():
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        mask = mask.float().masked_fill(hidden, torch.finfo(torch.float32).min)

    def as_before(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return again(query, key, value.float(), mask)

    return replace(call, query=call.query.float(), key=call.key.float(), mask=mask, again=again and as_before)


def share_layout(layout: RopeLayout, layers: dict[int, Layer], device: torch.device) -> RopeLayout:
    """Return ``layout`` on a device, as the one object of all layers that turn alike and have no gains."""
    parts = {name: x.to(device) for name, x in vars(layout).items() if isinstance(x, Tensor)}
    layout = replace(layout, **parts)
    for other in (layer.rope_layout for layer in layers.values()):
        if other is not None and other.order.device == device and same_layout(layout, other):
            return other
    return layout


def check(call: AttentionCall, found: Layer, query: Tensor, key: Tensor, tables: tuple[Tensor, Tensor]) -> float:
    """Return how far our relocation is from the module's own, relative to the largest entry."""
    worst = 0.0
    for position in (0, PROBE_LENGTH // 2, PROBE_LENGTH - 1):
        truth_query, truth_key = (x[0].float().cpu() for x in call.replay(position))
        cos, sin = (table[position] for table in plane_tables(tables, found.rope_layout))
        compared = [(query, truth_query, found.rope_layout.query_weight)]
        if not found.shares_keys:
            compared.append((key, truth_key, found.rope_layout.key_weight))
        for captured, truth, weight in compared:
            content = unrotate(captured, tables, found.rope_layout, weight)
            ours = rotate_by(content, cos, sin, "half")
            truth = truth[..., found.rope_layout.order]
            ours = ours if weight is None else ours * weight[found.rope_layout.order]
            worst = max(worst, distance(ours, truth))
    return worst


def fingerprint(parts: Parts) -> tuple:
    """Return what changes when a model's parts, their attention and its plain attributes, parameters or buffers change.

    Vectors and single numbers, such as gains and frequencies that a probe copies, count with their values: an optimiser
    may change them unseen. Versions of buffers do not count: to put dynamic frequencies back moves them.
    """
    parameters = parts.parameters
    vectors: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for p in [p for p in (*parameters, *parts.buffers) if p.ndim < 2 and not p.is_meta]:
        vectors.setdefault((p.device, p.dtype), []).append(p.reshape(-1))
    with torch.no_grad():
        bits = [torch.cat(some).view(torch.uint8) for some in vectors.values()]
    copies = [x.to("cpu", non_blocking=x.is_cuda) for x in bits]  # on their way while the rest is asked
    # Asked in C, one question after the other, which takes half the time.
    marks = (
        *(list(map(ask, parameters)) for ask in (Tensor.data_ptr, operator.attrgetter("dtype", "device"))),
        [
            0 if inferred else p._version
            for p, inferred in zip(parameters, map(Tensor.is_inference, parameters), strict=True)
        ],
    )
    switches = tuple(
        value
        for module in parts.attention
        for value in (vars(module) | dict(training=None)).values()  # to run in training mode or not switches nothing
        if type(value) in PLAIN
    )
    functions = tuple((name, id(function)) for name, function in attention_functions(parts))
    for device in {x.device for x in bits if x.is_cuda}:
        torch.cuda.current_stream(device).synchronize()
    values = tuple(copy.numpy().tobytes() for copy in copies)
    return marks, values, tuple(map(id, parts.modules)), functions, switches


def coverage(layers: list[Layer | None]) -> pd.DataFrame:
    """Return one row per layer: what it is, how its rotation was read, and how far the self-check was off."""
    rows = [
        dict(layer=number, attention=False, rotates=False, planes=0, method="none")
        if found is None
        else dict(
            layer=number,
            attention=True,
            rotates=found.rope_layout is not None or found.method == "replay",
            planes=0 if found.rope_layout is None else len(found.rope_layout.columns),
            method=found.method,
            heads=found.heads,
            key_heads=found.key_heads,
            width=found.width,
            window=found.window,
            softcap=found.softcap,
            sinks=found.sinks,
            shares_keys=found.shares_keys,
            self_check=found.self_check,
        )
        for number, found in enumerate(layers)
    ]
    kinds = dict.fromkeys(("heads", "key_heads", "width", "window"), "Int64")
    kinds |= dict.fromkeys(("sinks", "shares_keys"), "boolean") | dict.fromkeys(("softcap", "self_check"), "float64")
    table = pd.DataFrame(rows)
    return table.reindex(columns=[*table.columns, *(k for k in kinds if k not in table.columns)]).astype(kinds)
