"""``possym profile``: a model on prompts."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from possym.command.output import check_out, check_report, say, show_json
from possym.errors import InputError

if TYPE_CHECKING:
    from possym.profiling.profile import Profile
    from possym.profiling.prompt_files import PromptFile

PARTS = ("profile", "checkpoint")  # of the folder that `possym profile` writes


def run_profile(asked: argparse.Namespace) -> int:
    """Profile a model on prompts, save the profile, write the report; return the exit status."""
    file = read_prompts_and_places(asked)
    from possym.profiling.report import write_report

    found, model, tokenizer = profiled(asked, asked.model, file, Path(asked.out).expanduser())
    said = {"profile": str(Path(asked.out).expanduser() / PARTS[0])}
    if asked.report:
        said["report"] = str(write_report(found, asked.report, model=model, tokenizer=tokenizer))
    if asked.json:
        show_json(said | {"settings": found.settings, "heads": found.summary()})
    else:
        say(found, *(f"{name}: {path}" for name, path in said.items()))
    return 0


def read_prompts_and_places(asked: argparse.Namespace) -> "PromptFile":
    """Return the prompts; raise an error where results cannot be written, before any work is done."""
    from possym.profiling.prompt_files import read_prompt_file

    check_out(asked.out)
    check_report(asked.report)
    return read_prompt_file(asked.prompts)


def profiled(asked: argparse.Namespace, name: str, file: "PromptFile", out: Path | None) -> tuple["Profile", Any, Any]:
    """Return the profile of a model on the prompts of a file, saved in a folder, with the model and its tokenizer."""
    layers = None if asked.layers is None else numbers("--layers", asked.layers)
    query: Any = {"last": -1, "all": "all"}.get(asked.query)
    if query is None:
        positions = numbers("--query", asked.query)
        query = [positions] * len(file.prompts) if len(file.prompts) > 1 else positions

    from possym.profiling import profile

    model, tokenizer = load(asked, name)
    try:
        found = profile(
            model,
            file.prompts,
            tokenizer=tokenizer,
            layers=layers,
            query=query,
            hold=asked.hold,
            blocks=asked.blocks,
            per_frequency=asked.frequencies,
            checkpoint=None if out is None else out / PARTS[1],
            progress=not asked.quiet,
        )
    except InputError as error:
        raise InputError(file.at_line(str(error))) from error
    if out is not None:
        found.save(out / PARTS[0])
    return found, model, tokenizer


def load(asked: argparse.Namespace, name: str, with_tokenizer: bool = True) -> Any:
    """Return a model and its tokenizer as asked for."""
    from possym.models import hub

    if asked.quiet:
        from transformers.utils import logging

        logging.disable_progress_bar()
    return hub.load(name, device=asked.device, dtype=asked.dtype, with_tokenizer=with_tokenizer)


def numbers(option: str, text: str) -> list[int]:
    """Return the whole numbers of a list with commas.

    >>> numbers("--layers", "0,3")
    [0, 3]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text}: give whole numbers with commas between, such as 0,3") from None
