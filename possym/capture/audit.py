"""The measured rotation of each layer of a model, compared with the model's configuration.

- `rope_audit` measures in one forward pass and compares.
- `measured_rope` is what a layer did, `claimed_rope` what its configuration says.

If a loader drops ``rope_scaling``, rotates the wrong layers or forgets a window, the model still runs and writes; only
long prompts suffer. The audit compares with the configuration alone, so it cannot find a wrong configuration.
"""

import math
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from possym.capture.attention_call import AttentionCall
from possym.capture.capture import Capture
from possym.capture.probe import Layer
from possym.capture.rope_layout import plane_tables, table_angles
from possym.errors import InputError, to_int
from possym.rope import frequencies

LONGEST = 1025  # tokens of the pass unless told otherwise: a second or two for a small model on a CPU
SHORTEST = 64
COMPARED = ("rotates", "share", "base", "scaling", "slowest", "attention_factor", "window")
FLAGS, TEXTS = ("rotates",), ("scaling",)
ROTATING_WINDOWS = ("cohere2", "exaone4", "exaone_moe")  # families whose full layers do not rotate, by their code


def rope_audit(model: nn.Module, *, length: int | None = None) -> pd.DataFrame:
    """Measure the rotation and window of each layer of a model, and compare them with its configuration.

    Args:
        model: a causal transformers model with rotary attention, see `possym.capture.Capture`.
        length: tokens of the measuring pass. None: enough for the widest window and for scaling that depends on the
            length, from 64 to 1,025. Anything that starts beyond this length is not measured.

    Returns:
        One row per layer: ``layer``, ``attention`` (False for layers that mix tokens otherwise), ``differs`` (names of
        what differs, comma-separated; empty where all agrees), ``layout`` (``"half"`` or ``"interleaved"``, which
        configurations do not tell), and in pairs of columns, measured and claimed (``…_claimed``):

        - ``rotates``: whether queries and keys turn with the position;
        - ``share``: rotating dimensions of a head's, 0 to 1;
        - ``base``: the base whose powers the angles are, missing where they are no powers of one number;
        - ``scaling``: ``"default"``, ``"linear"``, the claimed type where all angles are those of the claim, or
          ``"unknown"``;
        - ``slowest``: angle of the slowest rotating plane, radians per position;
        - ``attention_factor``: by how much rotation lengthens queries and keys (YaRN, LongRoPE);
        - ``window``: the most keys that any query reads, missing where the whole pass is read.

        Values that the configuration does not state, or that were not measured, are missing and count as no difference.

    Raises:
        InputError: a length that is no whole number from 2.
        UnsupportedModelError: a model that `possym.capture.Capture` does not read; one in which no layer rotates, too.

    Source: RoPE types as in transformers' configurations; YaRN, arXiv 2309.00071; LongRoPE, arXiv 2402.13753.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> yarn = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=512)
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=50, hidden_size=64, intermediate_size=32, num_hidden_layers=1,
    ...                                      num_attention_heads=2, rope_parameters=yarn))
    >>> rope_audit(model)[["layer", "scaling", "scaling_claimed", "differs"]].values.tolist()
    [[0, 'yarn', 'yarn', '']]
    >>> _ = model.model.rotary_emb.inv_freq.copy_(1e4 ** -(torch.arange(16) / 16))  # as if YaRN had been dropped
    >>> rope_audit(model)[["layer", "scaling", "scaling_claimed", "differs"]].values.tolist()
    [[0, 'default', 'yarn', 'scaling, slowest']]
    """
    if length is not None and (to_int(length) is None or to_int(length) < 2):
        raise InputError(f"length = {length!r}: give a whole number of tokens from 2, or None")
    capture = Capture(model)
    config = model.config.get_text_config()
    numbers = range(len(capture.coverage))
    windows = [claimed_window(config, number) for number in numbers]
    length = pass_length(config, windows) if length is None else to_int(length)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    tokens = (torch.arange(length, device=capture.device) * 7919 + 11) % vocabulary
    measured: dict[int, tuple[dict, Tensor, int]] = {}

    def on_call(call: AttentionCall) -> None:
        if call.pass_index == 0:
            measured[call.layer] = measured_rope(call, capture.layers[call.layer])

    capture.forward(tokens[None], on_call, [length - 1])
    rows = []
    for number in numbers:
        if number not in measured:
            rows.append(dict(layer=number, attention=False, differs=""))
            continue
        found, angles, width = measured[number]
        claim, expected = claimed_rope(config, number, width, length)
        found |= fitted(angles, expected, claim)
        tolerance = table_error(model.dtype, length)
        wrong = differences(found, claim, angles, expected, tolerance, length)
        claims = {f"{name}_claimed": claim.get(name) for name in COMPARED}
        rows.append(dict(layer=number, attention=True, differs=", ".join(wrong), **found, **claims))
    pairs = [name for each in COMPARED for name in (each, f"{each}_claimed")]
    table = pd.DataFrame(rows).reindex(columns=["layer", "attention", "differs", "layout", *pairs])
    kinds = {name: "boolean" if each in FLAGS else "string" if each in TEXTS else "Float64" for each in COMPARED
             for name in (each, f"{each}_claimed")}  # fmt: skip
    kinds |= dict(window="Int64", window_claimed="Int64", layout="string")
    return table.astype(kinds)


def measured_rope(call: AttentionCall, layer: Layer) -> tuple[dict, Tensor, int]:
    """Return what one layer does, the angles of its planes (F,), fastest first, and the width of its heads.

    The tables are those that `Capture` found to turn this layer's queries and keys.
    """
    count = call.key.shape[2]
    most = call.once("most keys", lambda: int(call.visible_to(range(count)).sum(1).max()), call.mask)
    found: dict = dict(rotates=True, share=None, layout=None, attention_factor=None)
    found["window"] = most if most < count else None
    layout = layer.rope_layout
    if layout is None:
        return found | dict(rotates=layer.method == "replay"), torch.empty(0), layer.width
    cos, sin = (table.double().cpu() for table in plane_tables(call.tables(), layout))
    angles = table_angles(cos, sin).abs().sort(descending=True).values
    planes, order = len(angles), layout.order
    neighbours = planes > 1 and abs(int(order[0] - order[planes])) == 1
    found["share"] = 2 * int((angles > 0).sum()) / layer.width
    found["layout"] = "interleaved" if neighbours else "half"
    found["attention_factor"] = float((cos.square() + sin.square()).mean().sqrt())
    return found, angles, layer.width


def fitted(angles: Tensor, expected: Tensor | None, claim: dict) -> dict:
    """Return base, scaling and slowest angle of measured angles: those of the claim where it explains them."""
    turning = angles[angles > 0]
    if not len(turning):
        return dict(base=None, scaling=None, slowest=None)
    found = dict(base=None, scaling="unknown", slowest=float(turning[-1]))
    if expected is not None and alike(angles, expected):
        return found | dict(base=claim["base"], scaling=claim["scaling"])
    steps = turning.log().diff()
    if not len(steps) or (steps - steps.mean()).abs().max() > 1e-3 or len(turning) < len(angles):
        return found
    found["base"] = float(torch.exp(-steps.mean() * len(angles)))
    found["scaling"] = "default" if abs(float(turning[0]) - 1) < 1e-3 else "linear"
    return found


def alike(angles: Tensor, expected: Tensor, error: float = 0.0) -> bool:
    """Return whether angles (F,) are the expected ones, to a thousandth of each and the error of the tables."""
    return len(angles) == len(expected) and torch.allclose(angles, expected, rtol=1e-3, atol=max(error, 1e-9))


def table_error(dtype: torch.dtype, length: int) -> float:
    """Return by how much an angle read off tables of a dtype may be wrong, in radians per position."""
    return 4 * torch.finfo(dtype).eps / (length - 1)


def differences(
    found: dict, claim: dict, angles: Tensor, expected: Tensor | None, error: float, length: int
) -> list[str]:
    """Return the names of what differs between a layer and its claim, in the order of `COMPARED`."""
    wrong = set()
    if claim["rotates"] is not None and found["rotates"] != claim["rotates"]:
        wrong.add("rotates")
    if len(angles) and expected is not None and not wrong:
        if found["share"] != claim["share"]:
            wrong.add("share")
        elif not alike(angles, expected, error):
            wrong |= {name for name in ("base", "scaling") if different(found[name], claim[name], 1e-3)}
            wrong.add("slowest") if different(found["slowest"], claim["slowest"], 1e-3) else None
            wrong = wrong or {"scaling"}
        else:  # what low precision hides is no difference
            found.update(base=claim["base"], scaling=claim["scaling"])
        if different(found["attention_factor"], claim["attention_factor"], 0.01):
            wrong.add("attention_factor")
    claimed = claim["window"]
    if claimed is None or claimed < length:
        if found["window"] != claimed:
            wrong.add("window")
    elif found["window"] is not None:
        wrong.add("window")
    return [name for name in COMPARED if name in wrong]


def different(one: Any, other: Any, tolerance: float) -> bool:
    """Return whether two values differ; None, which is not known, differs from nothing.

    >>> different(1.0, 1.1, 0.2), different("yarn", "default", 0.2), different(None, 3, 0.2)
    (False, True, False)
    """
    if one is None or other is None:
        return False
    return one != other if isinstance(one, str) else not math.isclose(one, other, rel_tol=tolerance)


def claimed_rope(config: Any, layer: int, width: int, length: int) -> tuple[dict, Tensor | None]:
    """Return what a configuration says of one layer, and its angles (F,), fastest first; None for what it leaves out.

    Args:
        config: of the text model.
        layer: its number, from 0.
        width: dimensions of a head, of which a share rotates.
        length: tokens of the pass, on which some scaling depends.
    """
    claim = dict.fromkeys(COMPARED)
    claim |= dict(window=claimed_window(config, layer), rotates=claimed_rotation(config, layer))
    kind, parameters = rope_parameters(config, layer)
    base = (parameters or {}).get("rope_theta")
    if claim["rotates"] is False or base is None:
        return claim, None
    scaling = parameters.get("rope_type", "default")
    claim |= dict(base=float(base), scaling=scaling)
    if scaling == "default":
        angles, factor = frequencies(rotating_width(config, layer, width, parameters), base), 1.0
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        if scaling not in ROPE_INIT_FUNCTIONS:
            return claim, None
        angles, factor = ROPE_INIT_FUNCTIONS[scaling](config, "cpu", seq_len=length, layer_type=kind)
    angles = angles.double().sort(descending=True).values
    turning = angles[angles > 0]
    claim |= dict(
        share=2 * len(turning) / width, slowest=float(turning[-1]), attention_factor=float(factor), rotates=True
    )
    return claim, angles


def rope_parameters(config: Any, layer: int) -> tuple[str | None, dict | None]:
    """Return a layer's kind, where the configuration has parameters for each kind, and its RoPE parameters."""
    parameters = getattr(config, "rope_parameters", None)
    kinds = getattr(config, "layer_types", None) or []
    kind = kinds[layer] if layer < len(kinds) else None
    if parameters and kind in parameters:
        return kind, parameters[kind]
    return None, parameters or None


def rotating_width(config: Any, layer: int, width: int, parameters: dict) -> int:
    """Return how many dimensions of a head rotate without scaling, as a configuration names them."""
    for name in ("rotary_dim", "qk_rope_head_dim"):
        if (count := getattr(config, name, None)) is not None:
            return int(count)
    return int(width * parameters.get("partial_rotary_factor", 1.0))


def claimed_rotation(config: Any, layer: int) -> bool | None:
    """Return whether a configuration says that a layer rotates; None where it says nothing."""
    rotating = getattr(config, "no_rope_layers", None)  # despite its name, 1 where a layer rotates
    if rotating:
        return bool(rotating[layer])
    if config.model_type in ROTATING_WINDOWS and getattr(config, "sliding_window", None) is not None:
        return claimed_window(config, layer) is not None
    return True if getattr(config, "rope_parameters", None) else None


def claimed_window(config: Any, layer: int) -> int | None:
    """Return how many keys a query of a layer may read by its configuration, its own among them; None for all."""
    kinds = getattr(config, "layer_types", None) or []
    kind = kinds[layer] if layer < len(kinds) else None
    if kind == "chunked_attention":
        return getattr(config, "attention_chunk_size", None)
    window = getattr(config, "sliding_window", None)
    if kind is not None:
        return window if kind == "sliding_attention" else None
    return window if getattr(config, "use_sliding_window", True) else None


def pass_length(config: Any, windows: list[int | None]) -> int:
    """Return how many tokens show the widest window and scaling that begins at a length, up to `LONGEST`."""
    starts = [SHORTEST - 1, *(window for window in windows if window is not None)]
    for number in range(len(windows)):
        parameters = rope_parameters(config, number)[1] or {}
        if parameters.get("rope_type") in ("longrope", "dynamic"):
            starts.append(parameters.get("original_max_position_embeddings") or config.max_position_embeddings)
    length = max(start for start in starts if start < LONGEST) + 1
    # GPT-J and its like keep a table of their positions, and have none beyond it.
    return min(length, config.max_position_embeddings) if hasattr(config, "rotary_dim") else length
