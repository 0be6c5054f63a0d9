"""GGUF files, each converted once to a folder of safetensors, with the rotation that the file specifies.

transformers reads weights, tokenizer and most of the configuration out of a GGUF file, but of its rotation the base
alone (5.24, most families): `scaled_rotation` reads the rest, else long prompts would be scored with wrong angles.
"""

import importlib.util
import json
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from possym.errors import ResultsError, UnsupportedModelError, install_command
from possym.results import cache_root, sha256
from possym.results.files import scratch, writing

FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
LLAMA3 = dict(low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)  # of every release


def need_gguf() -> None:
    """Raise an UnsupportedModelError unless what reads GGUF is installed."""
    for needed in ("gguf", "accelerate"):
        if importlib.util.find_spec(needed) is None:
            raise UnsupportedModelError(f"reading GGUF needs {needed}: {install_command('models')}")


def converted_folder(name: str, digest: str, gguf: Callable[[Path], Path]) -> Path:
    """Return the folder that holds a GGUF model as safetensors, converting it the first time.

    Args:
        name: the model's.
        digest: sha256 of its GGUF file.
        gguf: returns that file, its hash checked; it may write into the folder that it is given.
    """
    folder = cache_root() / f"{name}-{digest[:12]}"
    stamp = folder / "possym.json"
    with writing(folder):  # a folder that may not be entered
        there = stamp.exists()
    if not there:
        with ExitStack() as stack:
            with writing(folder):
                folder.parent.mkdir(parents=True, exist_ok=True)
                place = stack.enter_context(scratch(folder.parent))
            convert(gguf(place), folder)
    said = json.loads(stamp.read_text())
    for file, digest in said["sha256"].items():
        if not (folder / file).exists() or sha256(folder / file) != digest:
            raise ResultsError(f"{folder / file} is missing or was changed: delete {folder} to convert it again")
    if said.get("warning"):
        warnings.warn(said["warning"], UserWarning, stacklevel=3)
    return folder


def convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF model and its tokenizer as float32 safetensors into ``folder``, whole or not at all."""
    need_gguf()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # transformers refuses to save what it read from GGUF, so the weights go into a model of plain float32.
    vars(model.config).pop("quantization_config", None)
    warning = scale_rotation(model.config.get_text_config(), gguf)
    plain = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with scratch(folder.parent) as place:
            (partial := place / "partial").mkdir()
            plain.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
            digests = {file.name: sha256(file) for file in sorted(partial.iterdir())}
            said = {"gguf": sha256(gguf), "sha256": digests, "warning": warning}
            (partial / "possym.json").write_text(json.dumps(said, indent=1))
            try:
                os.replace(partial, folder)
            except OSError:
                if not (folder / "possym.json").exists():  # else another process was faster, with the same result
                    raise


def scale_rotation(config: Any, gguf: Path) -> str | None:
    """Give a configuration that was read from a GGUF file the scaling of its rotation, or return what is left out."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    begin = f"{reader.fields['general.architecture'].contents()}.rope.scaling."
    said = {key.removeprefix(begin): field.contents() for key, field in reader.fields.items() if key.startswith(begin)}
    factors = {t.name: torch.from_numpy(t.data.copy()).double() for t in reader.tensors if t.name.startswith("rope_f")}
    if said.get("type") in (None, "none") and not factors:
        return None
    parameters = dict(config.rope_parameters or {})
    whole = parameters.get("full_attention", parameters)  # windows are too short to be scaled
    if whole.get("rope_type", "default") != "default":  # transformers has read it
        return None
    scaling = scaled_rotation(said, factors, whole["rope_theta"])
    if scaling is None:
        return (
            f"{gguf.name} scales its rotation ({said.get('type', FREQUENCIES)}) in a way that is not read: positions "
            "turn as without scaling, and long prompts are not scored as the model would see them"
        )
    whole = whole | scaling
    config.rope_parameters = parameters | {"full_attention": whole} if "full_attention" in parameters else whole
    return None


def scaled_rotation(said: Mapping[str, Any], factors: Mapping[str, torch.Tensor], base: float) -> dict | None:
    """Return what transformers calls the scaling that a GGUF file asks for, None where it has no name.

    Args:
        said: the file's keys ``rope.scaling.*``, such as type, factor and original_context_length.
        factors: its tensors of factors by which angles are divided, by name.
        base: of the rotation.

    >>> scaled_rotation({"type": "linear", "factor": 4.0}, {}, 1e4)
    {'rope_type': 'linear', 'factor': 4.0}
    """
    kind, before = said.get("type"), said.get("original_context_length")
    if LONG in factors and SHORT in factors and before:
        long, short = (factors[name].tolist() for name in (LONG, SHORT))
        found = dict(rope_type="longrope", long_factor=long, short_factor=short)
        return found | dict(original_max_position_embeddings=int(before))
    if FREQUENCIES in factors:
        return llama3_rotation(factors[FREQUENCIES], base)
    if kind == "linear" and "factor" in said:
        return dict(rope_type="linear", factor=float(said["factor"]))
    if kind == "yarn" and "factor" in said and before:
        return dict(rope_type="yarn", factor=float(said["factor"]), original_max_position_embeddings=int(before))
    return None


def llama3_rotation(factors: torch.Tensor, base: float) -> dict | None:
    """Return the scaling of Llama 3 that divides angles (F,) by these factors, None where it does not."""
    angles = base ** -(torch.arange(len(factors), dtype=torch.float64) / len(factors))
    turns = LLAMA3["original_max_position_embeddings"] * angles / (2 * torch.pi)
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    share = ((turns - low) / (high - low)).clamp(0, 1)
    expected = 1 / ((1 - share) / factors.max() + share)
    if not torch.allclose(factors, expected, rtol=1e-3):
        return None
    return dict(rope_type="llama3", factor=float(factors.max()), **LLAMA3)
