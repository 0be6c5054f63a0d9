"""Plans as files for other programs: complete JSON, DuoAttention's two files, a configuration of transformers.

DuoAttention's folder holds ``full_attention_heads.tsv``, one row per layer and one column per key head, numbers from 0
to 1 with 1 for a head that keeps all, and ``config.json`` with ``sink_size`` and ``recent_size``. Its published folders
hold trained gates between 0 and 1; `load_duo_attention` turns them into a plan by a threshold or by a share.
"""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from possym import __version__
from possym.capture import Capture
from possym.errors import InputError, require_type, to_float, to_int
from possym.kv_cache.plan import CachePlan, model_fingerprint
from possym.results import atomic_write, writing

FORMAT = 1
HEADS, CONFIG = "full_attention_heads.tsv", "config.json"


def save_plan(plan: CachePlan, path: str | os.PathLike) -> Path:
    """Write a plan as JSON, whole or not at all.

    >>> import tempfile
    >>> plan = CachePlan([[None, 128]], sink=4, rule="positional")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_plan(save_plan(plan, f"{folder}/plan.json")) == plan
    True
    """
    require_type(plan, CachePlan, "plan")
    path = path_of(path)
    said = {
        "format": FORMAT,
        "possym": __version__,
        "rule": plan.rule,
        "sink": plan.sink,
        "layers": list(plan.layers),
        "windows": [list(row) for row in plan.windows],
        "limits": list(plan.limits),
        "model": plan.model,
        "settings": plan.settings,
    }
    with atomic_write(path) as part:
        Path(part).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return path


def load_plan(path: str | os.PathLike) -> CachePlan:
    """Read a plan that `save_plan` wrote.

    Raises:
        InputError: no such file, or no plan in it.
    """
    path = path_of(path)
    said = read_json(path)
    if said.get("format") != FORMAT:
        raise InputError(f"{path}: format {said.get('format')!r}; this possym reads plans of format {FORMAT}")
    names = ("windows", "sink", "layers", "limits", "model", "rule", "settings")
    if missing := [name for name in names if name not in said]:
        raise InputError(f"{path}: no whole plan, {missing[0]!r} is missing")
    return CachePlan(**{name: said[name] for name in names})


def save_duo_attention(plan: CachePlan, folder: str | os.PathLike) -> Path:
    """Write a plan as DuoAttention's two files into a folder, which is made if missing.

    Raises:
        InputError: a plan that these files cannot express: several windows, no window at all, or layers without
            attention or with other numbers of key heads.

    Source: 2410.10819 and its released patterns.
    """
    require_type(plan, CachePlan, "plan")
    windows = sorted({window for _, _, window, _ in plan.entries() if window is not None})
    if len(windows) != 1:
        raise InputError(
            f"this plan has {len(windows)} windows; DuoAttention's files hold one for all heads: make the plan with "
            "another rule than 'fitted' and a share above 0, or write it with save_plan"
        )
    if list(plan.layers) != [*range(len(plan.layers))] or len({len(row) for row in plan.windows}) > 1:
        raise InputError("DuoAttention's files hold all layers, with as many key heads in each: write with save_plan")
    folder = path_of(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / CONFIG) as part:
        said = {"sink_size": plan.sink, "recent_size": windows[0]}
        Path(part).write_text(json.dumps(said) + "\n", encoding="utf-8")
    full = np.array([[float(window is None) for window in row] for row in plan.windows])
    with atomic_write(folder / HEADS) as part:
        np.savetxt(part, full, fmt="%g", delimiter="\t")
    return folder


def load_gates(folder: str | os.PathLike) -> tuple[np.ndarray, int, int]:
    """Return DuoAttention's gates (layers, key heads) from 0 to 1, sink and window of one of its folders.

    Raises:
        InputError: files that are missing or hold something else.
    """
    folder = path_of(folder)
    said = read_json(folder / CONFIG)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty file, which is refused below
            gates = np.loadtxt(folder / HEADS, delimiter="\t", ndmin=2, dtype=float)
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / HEADS}: give one row per layer, numbers set apart by tabs ({error})") from None
    if not gates.size or not ((gates >= 0) & (gates <= 1)).all():
        raise InputError(f"{folder / HEADS} holds numbers outside 0 to 1: give a gate for each key head")
    if missing := [name for name in ("sink_size", "recent_size") if name not in said]:
        raise InputError(f"{folder / CONFIG} lacks {missing[0]!r}: DuoAttention's has sink_size and recent_size")
    sink, window = to_int(said["sink_size"]), to_int(said["recent_size"])
    if sink is None or window is None or sink < 0 or window < 1:
        raise InputError(
            f"{folder / CONFIG}: sink_size = {said['sink_size']!r}, recent_size = {said['recent_size']!r}; give whole "
            "numbers, from 0 and from 1"
        )
    return gates, sink, window


def load_duo_attention(
    folder: str | os.PathLike,
    *,
    threshold: float = 0.5,
    share: float | None = None,
    model: nn.Module | None = None,
) -> CachePlan:
    """Return the plan in DuoAttention's two files.

    Args:
        folder: with ``full_attention_heads.tsv`` and ``config.json``.
        threshold: heads whose gate is below get the window.
        share: the share of the key heads with the least gates gets it instead, whatever the threshold.
        model: the model that the plan is for: its shape is compared, and its fingerprint is kept with the plan.

    Raises:
        InputError: files, threshold or share that do not fit, or a model of another shape.

    >>> import tempfile
    >>> plan = CachePlan([[None, 128], [128, 128]], sink=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_duo_attention(save_duo_attention(plan, folder)).windows
    ((None, 128), (128, 128))
    """
    gates, sink, window = load_gates(folder)
    given = threshold if share is None else share
    if (number := to_float(given)) is None or not 0 <= number <= 1:
        raise InputError(f"{'threshold' if share is None else 'share'} = {given!r}: give a number from 0 to 1")
    short = gates < number
    if share is not None:
        short = np.zeros(gates.size, dtype=bool)
        short[np.argsort(gates, axis=None, kind="stable")[: round(number * gates.size)]] = True
        short = short.reshape(gates.shape)
    how = {"threshold": number} if share is None else {"share": number}
    windows = [[window if forgets else None for forgets in row] for row in short.tolist()]
    plan = CachePlan(windows, sink=sink, rule="gates", settings=how)
    if model is None:
        return plan
    plan.check(model)
    limits = [layer.window for layer in Capture(model).layers.values()]
    return CachePlan(windows, sink=sink, limits=limits, rule="gates", settings=how, model=model_fingerprint(model))


def cache_configuration(plan: CachePlan) -> dict[str, Any]:
    """Return a plan as ``layer_types`` and ``sliding_window`` of a transformers configuration.

    transformers gives whole layers a window, without a sink, so this expresses only plans of that form. Families whose
    configuration has both names (Qwen 2 and 3, Gemma, OLMo 3, …) attend so, and `transformers.DynamicCache` of such a
    configuration holds no more.

    Raises:
        InputError: a plan with a sink, several windows, layers whose heads differ, have windows of their own, or have
            no attention.

    >>> cache_configuration(CachePlan([[None, None], [64, 64]], sink=0))
    {'layer_types': ['full_attention', 'sliding_attention'], 'sliding_window': 64}
    """
    require_type(plan, CachePlan, "plan")
    windows = {window for _, _, window, _ in plan.entries() if window is not None}
    mixed = [layer for layer, row in zip(plan.layers, plan.windows, strict=True) if len(set(row)) > 1]
    if any(plan.limits):
        raise InputError(
            "the model has windows of its own, which a configuration with this plan's would replace: use applied, or "
            "save_plan"
        )
    if plan.sink or len(windows) != 1 or mixed or list(plan.layers) != [*range(len(plan.layers))]:
        raise InputError(
            "transformers gives a window to whole layers, one for all of them, and no sink: this plan has "
            f"sink {plan.sink}, {len(windows)} windows and {len(mixed)} layers whose heads differ. Use holding, or "
            "save_plan"
        )
    kinds = ["full_attention" if row[0] is None else "sliding_attention" for row in plan.windows]
    return {"layer_types": kinds, "sliding_window": windows.pop()}


def path_of(path: str | os.PathLike) -> Path:
    """Return a path with ``~`` written out."""
    require_type(path, (str, os.PathLike), "path")
    return Path(os.path.expanduser(path))


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or raise an InputError."""
    try:
        said = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: give a JSON file ({error})") from None
    if not isinstance(said, dict):
        raise InputError(f"{path} holds no object: give a JSON file with names and values")
    return said
