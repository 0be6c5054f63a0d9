"""The command line: ``possym profile``, ``compare``, ``atlas``, ``audit``, ``studies``; so is ``python -m possym``.

Results go to standard output, with ``--json`` as one JSON document; progress and errors go to standard error. The exit
status is 0, 1 if something failed or differs, or 2 if the input cannot be read.
"""

import argparse
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from possym import __version__
from possym.errors import ConfigError, InputError, PossymError, ResultsError

if TYPE_CHECKING:
    import pandas as pd

    from possym.profiling.profile import Profile
    from possym.profiling.prompt_files import PromptFile

MODEL = "a folder, a .gguf file, a name such as SmolLM2-135M-Instruct, or a hub id"
STATUS = "exit status: 0, or 1 where something failed or differs, or 2 for input that cannot be read"
PARTS = ("profile", "checkpoint")  # of the folder that `possym profile` writes
STOPPED, PIPE_CLOSED = 130, 141  # what shells call a process that Ctrl-C, or a reader that has enough, ends


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for.

    Args:
        words: the arguments; None for those of the process.

    Returns:
        The exit status.

    >>> main(["compare", "no such folder", "nor this"])
    2
    """
    words = list(sys.argv[1:] if words is None else words)
    asked = None
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without UTF-8 shows what it cannot spell as its number
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            if words[:1] == ["studies"]:
                from possym.experiments.__main__ import main as run_study

                return run_study(words[1:], "possym studies")
            if not words:
                parser().print_help(sys.stderr)
                return 2
            asked = parser().parse_args(words)
            return asked.run(asked)
        finally:
            say(end="")  # what argparse and studies printed may lie there yet
    except PossymError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, (InputError, ConfigError)) else 1
    except BrokenPipeError:  # as of | head
        drop_output()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        out = getattr(asked, "out", None) if getattr(asked, "prompts", None) else None
        place = out and (Path(out) / PARTS[1] if hasattr(asked, "model") else out)
        kept = f"goes on from {place}." if place else "begins anew."
        print(f"Stopped. The same command {kept}", file=sys.stderr)
        return STOPPED


def say(*parts: Any, end: str = "\n") -> None:
    """Print to standard output, all of it now."""
    try:
        print(*parts, sep="\n", end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise ResultsError(f"standard output cannot be written: {error}") from error


def drop_output() -> None:
    """Let nothing more be written, so that Python does not try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    top = argparse.ArgumentParser(
        prog="possym", description="Which attention heads attend by position, which by content."
    )
    top.add_argument("--version", action="version", version=f"possym {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, about: str, example: str) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        made = commands.add_parser(
            name, help=about, description=about, epilog=f"example:\n  {example}\n\n{STATUS}", formatter_class=form
        )
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        return made

    one = command(
        "profile",
        run_profile,
        "Score every attention head of a model on your prompts. Interrupted, the same command goes on.",
        "possym profile SmolLM2-135M-Instruct --prompts prompts.txt --out found --report report.html --hold first",
    )
    one.add_argument("model", help=MODEL)
    add_scoring(one, "", required=True)
    one.add_argument("--report", metavar="FILE", help="also write the profile as one HTML page for a colleague")
    two = command(
        "compare",
        run_compare,
        "Say which heads differ between models, or profiles, on the same prompts, and whether that is chance.",
        "possym compare ./base ./tuned --prompts prompts.txt --hold first --report film.html\n"
        "  possym compare found-base found-tuned --fail\n  possym compare checkpoints --report film.html",
    )
    two.add_argument(
        "inputs",
        nargs="+",
        metavar="A",
        help="two --out folders of possym profile, before and after; with --prompts two models; or several, or one "
        "folder that holds them, such as the checkpoints of a training: each is compared with the first",
    )
    add_scoring(two, "profile models on these: ", required=False)
    two.add_argument(
        "--report", metavar="FILE", help="also write one HTML page in which a slider goes from one to next"
    )
    two.add_argument("--fail", action="store_true", help="exit with 1 where a head changed (p < 0.05)")
    three = command(
        "audit",
        run_audit,
        "Measure how each layer rotates, and exit with 1 where it differs from the model's configuration.",
        "possym audit ./merged-checkpoint || echo 'do not trust it'",
    )
    four = command(
        "atlas",
        run_atlas,
        "Find the heads that the literature has named (previous token, induction, retrieval, sink, …), and where they "
        "lie. The prompts are drawn for it.",
        "possym atlas SmolLM2-135M-Instruct --out found",
    )
    for each in (three, four):
        each.add_argument("model", help=MODEL)
        add_running(each)
    four.add_argument("--out", metavar="FOLDER", help="keep the atlas there, for possym.Atlas.load")
    four.add_argument(
        "--count", type=int, default=16, metavar="16", help="prompts of each kind to know heads by, and as many others"
    )
    four.add_argument("--seed", type=int, default=0, metavar="0", help="of the draws")
    commands.add_parser("studies", help="Run one of the book's studies; possym studies --help says more.")
    return top


def add_running(made: argparse.ArgumentParser) -> None:
    """Add the options that say how a model is run."""
    made.add_argument("--device", default="auto", help="auto (standard: a GPU where there is one), cpu, cuda:1, …")
    made.add_argument("--dtype", default="auto", help="auto (standard: float32 on a CPU), float32, bfloat16 or float16")
    made.add_argument("--quiet", action="store_true", help="show no progress")


def add_scoring(made: argparse.ArgumentParser, about: str, required: bool) -> None:
    """Add the options that say how models are profiled."""
    made.add_argument(
        "--prompts",
        required=required,
        metavar="FILE",
        help=f"{about}a .txt file with a prompt on each line; a .jsonl file with a string or a list of token ids on "
        'each line, or an object with "text", "input_ids" or a chat in "messages"; or - for lines of standard input',
    )
    made.add_argument(
        "--out",
        required=required,
        metavar="FOLDER",
        help=f"where {'the profile' if required else 'profiles'} and what is done so far are kept",
    )
    add_running(made)
    made.add_argument("--layers", metavar="0,3", help="score these layers alone, counted from 0")
    made.add_argument(
        "--query",
        default="last",
        help="which token looks: last (standard), all, or positions such as 5,7 or --query=-2",
    )
    made.add_argument(
        "--blocks", choices=["tokens", "sentences"], default="tokens", help="what changes places (standard: tokens)"
    )
    made.add_argument("--frequencies", action="store_true", help="score every RoPE frequency of every head too")
    made.add_argument(
        "--hold", choices=["first"], help="keep the first token in place: many models rest attention there"
    )


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


def check_out(name: str | None) -> None:
    """Raise an InputError where a folder of results is a file."""
    if name is not None and Path(name).expanduser().is_file():
        raise InputError(f"--out {name}: it is a file, give a folder")


def check_report(name: str | None) -> None:
    """Raise an error where a report cannot be written."""
    if name is None:
        return
    from possym.results import writing
    from possym.results.files import scratch

    path = Path(name).expanduser()
    if path.is_dir():
        raise InputError(f"--report {name}: it is a folder, give a file")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch(path.parent):
            pass


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


def run_compare(asked: argparse.Namespace) -> int:
    """Compare two profiles or models, or many with the first of them; return the exit status."""
    from possym.profiling import compare
    from possym.profiling.steps import changes

    if asked.prompts is None:
        check_report(asked.report)
        profiles, last = saved_profiles(asked), {}
    else:
        profiles, last = profiled_models(asked)
    if len(asked.inputs) == 2:
        names = list(profiles)
        found = compare(*profiles.values())
        if found.settings["before"] == found.settings["after"]:
            found.settings |= dict(before=names[0], after=names[1])
        document: dict[str, Any] = dict(settings=found.settings, layers=found.layers, heads=found.heads)
        document["overall"] = {score: estimate._asdict() for score, estimate in found.overall.items()}
        changed, shown = bool(found.heads.changed.any()), str(found)
    else:
        table = changes(profiles)
        document, changed = {"steps": table}, bool(table.changed.any())
        shown = steps_in_words(table)
    if asked.report:
        from possym.profiling.report import write_report

        document["report"] = str(write_report(profiles, asked.report, **last))
        shown += f"\nreport: {document['report']}"
    show_json(document) if asked.json else say(shown)
    return int(asked.fail and changed)


def saved_profiles(asked: argparse.Namespace) -> dict[str, "Profile"]:
    """Return the profiles in the folders that were given, by their names."""
    from possym.profiling import Profile
    from possym.profiling.steps import load_steps, saved_profile

    add_scoring(standard := argparse.ArgumentParser(), "", required=False)
    alone = [name for name, value in vars(standard.parse_args([])).items() if getattr(asked, name) != value]
    if alone := [name for name in alone if name != "quiet"]:
        raise InputError(f"--{alone[0]} says how models are profiled: give --prompts too, and models")
    if len(asked.inputs) == 1:
        return load_steps(asked.inputs[0])
    places = [saved_profile(Path(name).expanduser()) for name in asked.inputs]
    if None in places:
        name = asked.inputs[places.index(None)]
        raise InputError(f"{name} holds no profile: give the --out folder of possym profile, or --prompts and models")
    return {name: Profile.load(place) for name, place in zip(unlike(asked.inputs), places, strict=True) if place}


def profiled_models(asked: argparse.Namespace) -> tuple[dict[str, "Profile"], dict[str, Any]]:
    """Return the profiles of the models that were given, by their names, and the last model with its tokenizer."""
    from possym.profiling.compare import check_comparable
    from possym.profiling.steps import by_number

    file, models = read_prompts_and_places(asked), asked.inputs
    if len(models) == 1:
        folders = [path.parent for path in Path(models[0]).expanduser().glob("*/config.json")]
        models = [str(folder) for folder in sorted(folders, key=lambda folder: by_number(folder.name))]
        if len(models) < 2:
            raise InputError(f"{asked.inputs[0]}: give two models or more, or a folder that holds them")
    profiles: dict[str, Profile] = {}
    for label, name in zip(unlike(models), models, strict=True):
        model = tokenizer = None  # so that one alone is held
        if not asked.quiet:
            print(f"{label} ({len(profiles) + 1} of {len(models)})", file=sys.stderr)
        out = None if asked.out is None else Path(asked.out).expanduser() / re.sub(r"[^\w.()-]+", "-", label).strip("-")
        profiles[label], model, tokenizer = profiled(asked, name, file, out)
        check_comparable(next(iter(profiles.values())), profiles[label])
    return profiles, dict(model=model, tokenizer=tokenizer)


def unlike(names: Sequence[str]) -> list[str]:
    """Return names with a number where they are not the first of their kind.

    >>> unlike(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [
        name if name not in names[:at] else f"{name} ({names[: at + 1].count(name)})" for at, name in enumerate(names)
    ]


def run_atlas(asked: argparse.Namespace) -> int:
    """Find a model's known heads; return the exit status."""
    from possym.profiling import atlas
    from possym.results import writing

    check_out(asked.out)
    if asked.out is not None:
        with writing(out := Path(asked.out).expanduser()):  # before minutes of work
            out.mkdir(parents=True, exist_ok=True)
    found = atlas(*load(asked, asked.model), prompts=asked.count, seed=asked.seed)
    said = {} if asked.out is None else {"atlas": str(found.save(Path(asked.out).expanduser() / "atlas"))}
    if asked.json:
        tables = dict(heads=found.summary(), places=found.places(), agreement=found.agreement())
        show_json(said | {"settings": found.settings} | tables)
    else:
        say(found, *(f"{name}: {path}" for name, path in said.items()))
    return 0


def run_audit(asked: argparse.Namespace) -> int:
    """Audit a model's rotation; return the exit status."""
    from possym.capture import rope_audit
    from possym.profiling.profile import counted

    table = rope_audit(load(asked, asked.model, with_tokenizer=False).model)
    wrong = table.differs != ""
    if asked.json:
        show_json({"differs": bool(wrong.any()), "layers": table})
    else:
        said = "differs" if len(table) == 1 else "differ"
        say(layers_in_words(table), f"{wrong.sum()} of {counted(len(table), 'layer')} {said} from the configuration")
    return int(wrong.any())


def steps_in_words(table: "pd.DataFrame") -> str:
    """Return the table of `possym.profiling.steps.changes` as text."""
    shown = table[["step", "changed", "new_kinds"]].copy()
    for score in ("positional", "symbolic"):
        columns = table[[score, *(f"{score}_{name}" for name in ("change", "low", "high"))]]
        shown[score] = ["{:.3f}, {:+.3f} ({:+.3f} to {:+.3f})".format(*row) for row in columns.itertuples(index=False)]
    notes = "changed, new_kinds: heads; scores: mean over heads, its change since the first step with its 95 % interval"
    return f"{shown.to_string(index=False)}\n{notes}"


def layers_in_words(table: "pd.DataFrame") -> str:
    """Return the table of `possym.rope_audit` as text, neighbouring layers that are alike in one line."""
    columns = ["rotates", "share", "base", "scaling", "window", "differs"]
    said = table[columns].astype(object).where(table[columns].notna(), "").values.tolist()
    rows = []
    for same, group in itertools.groupby(zip(table.layer, said, strict=True), key=lambda pair: pair[1]):
        layers = [layer for layer, _ in group]
        rows.append([str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}", *same])
    return type(table)(rows, columns=["layer", *columns]).to_string(index=False)


def numbers(option: str, text: str) -> list[int]:
    """Return the whole numbers of a list with commas.

    >>> numbers("--layers", "0,3")
    [0, 3]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text}: give whole numbers with commas between, such as 0,3") from None


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document; tables are lists of rows, and what is missing is null."""
    document = {
        key: json.loads(value.to_json(orient="records", double_precision=10)) if hasattr(value, "to_json") else value
        for key, value in document.items()
    }
    if "overall" in document:  # NaN for a single prompt
        for estimate in document["overall"].values():
            estimate |= {key: None for key, value in estimate.items() if value != value}
    say(json.dumps(document, indent=1, allow_nan=False))
