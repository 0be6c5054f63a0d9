"""The command line: ``possym profile``, ``compare``, ``audit`` and ``studies``; ``python -m possym`` is the same.

Results go to standard output, with ``--json`` as one JSON document; progress and errors go to standard error. The exit
status is 0, 1 if something failed or differs, or 2 if the input cannot be read.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from possym.errors import ConfigError, InputError, PossymError

if TYPE_CHECKING:
    import pandas as pd

MODEL = "a folder, a .gguf file, a name such as SmolLM2-135M-Instruct, or a hub id"
STATUS = "exit status: 0, or 1 where something failed or differs, or 2 for input that cannot be read"
PARTS = ("profile", "checkpoint")  # of the folder that `possym profile` writes


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
    try:
        if words[:1] == ["studies"]:
            from possym.experiments.__main__ import main as run_study

            return run_study(words[1:])
        asked = parser().parse_args(words)
        return asked.run(asked)
    except PossymError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, (InputError, ConfigError)) else 1
    except KeyboardInterrupt:
        kept = f"goes on from {Path(asked.out) / PARTS[1]}." if hasattr(asked, "out") else "begins anew."
        print(f"Stopped. The same command {kept}", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    top = argparse.ArgumentParser(
        prog="possym", description="Which attention heads attend by position, which by content."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, about: str, example: str) -> argparse.ArgumentParser:
        form = argparse.RawDescriptionHelpFormatter
        made = commands.add_parser(
            name, help=about, description=about, epilog=f"example:\n  {example}\n\n{STATUS}", formatter_class=form
        )
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        return made

    def add_model(made: argparse.ArgumentParser) -> None:
        made.add_argument("model", help=MODEL)
        made.add_argument("--device", default="auto", help="auto (standard: a GPU where there is one), cpu, cuda:1, …")
        made.add_argument(
            "--dtype", default="auto", help="auto (standard: float32 on a CPU), float32, bfloat16 or float16"
        )

    one = command(
        "profile",
        run_profile,
        "Score every attention head of a model on your prompts. Interrupted, the same command goes on.",
        "possym profile SmolLM2-135M-Instruct --prompts prompts.txt --out found --report report.html --hold first",
    )
    add_model(one)
    one.add_argument(
        "--prompts",
        required=True,
        metavar="FILE",
        help="a .txt file with a prompt on each line; a .jsonl file with a string on each line, or an object with "
        '"text" or with a chat in "messages"; or - for the lines of standard input',
    )
    one.add_argument(
        "--out", required=True, metavar="FOLDER", help="where the profile and what is done so far are kept"
    )
    one.add_argument("--report", metavar="FILE", help="also write the profile as one HTML page for a colleague")
    one.add_argument("--quiet", action="store_true", help="show no progress")
    one.add_argument("--layers", metavar="0,3", help="score these layers alone, counted from 0")
    one.add_argument(
        "--query",
        default="last",
        help="which token looks: last (standard), all, or positions such as 5,7 or --query=-2",
    )
    one.add_argument(
        "--blocks", choices=["tokens", "sentences"], default="tokens", help="what changes places (standard: tokens)"
    )
    one.add_argument("--frequencies", action="store_true", help="score every RoPE frequency of every head too")
    one.add_argument(
        "--hold", choices=["first"], help="keep the first token in place: many models rest attention there"
    )
    two = command(
        "compare",
        run_compare,
        "Say which heads differ between profiles of the same prompts, and whether that is chance.",
        "possym compare found-base found-tuned --fail\n  possym compare checkpoints --report film.html",
    )
    two.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="two --out folders, before and after; or several, or one that holds them, such as those of the "
        "checkpoints of a training: each is compared with the first",
    )
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
    add_model(three)
    commands.add_parser("studies", help="Run one of the book's studies; possym studies --help says more.")
    return top


def run_profile(asked: argparse.Namespace) -> int:
    """Profile a model on prompts, save the profile, write the report; return the exit status."""
    texts, out = read_texts(asked.prompts), Path(asked.out).expanduser()
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {asked.out}: it is a file, give a folder")
    layers = None if asked.layers is None else numbers("--layers", asked.layers)
    query: Any = {"last": -1, "all": "all"}.get(asked.query)
    if query is None:
        query = [numbers("--query", asked.query)] * len(texts) if len(texts) > 1 else numbers("--query", asked.query)

    from possym.models import hub
    from possym.profiling import profile
    from possym.profiling.report import write_report

    model, tokenizer = hub.load(asked.model, device=asked.device, dtype=asked.dtype)
    found = profile(
        model,
        texts,
        tokenizer=tokenizer,
        layers=layers,
        query=query,
        hold=asked.hold,
        blocks=asked.blocks,
        per_frequency=asked.frequencies,
        checkpoint=out / PARTS[1],
        progress=not asked.quiet,
    )
    said = {"profile": str(found.save(out / PARTS[0]))}
    if asked.report:
        said["report"] = str(write_report(found, asked.report, model=model, tokenizer=tokenizer))
    if asked.json:
        show_json(said | {"settings": found.settings, "heads": found.summary()})
    else:
        print(found, *(f"{name}: {path}" for name, path in said.items()), sep="\n")
    return 0


def run_compare(asked: argparse.Namespace) -> int:
    """Compare two saved profiles, or many with the first of them; return the exit status."""
    from possym.profiling import Profile, compare
    from possym.profiling.steps import changes, load_steps, saved_profile

    if len(asked.folders) == 1:
        profiles = load_steps(asked.folders[0])
    else:
        places = {name: saved_profile(Path(name).expanduser()) for name in asked.folders}
        if missing := [name for name, place in places.items() if place is None]:
            raise InputError(f"{missing[0]} holds no profile: give the --out folder of possym profile")
        profiles = {name: Profile.load(place) for name, place in places.items() if place is not None}
    if len(asked.folders) == 2:
        found = compare(*[profiles[name] for name in asked.folders])
        document: dict[str, Any] = dict(settings=found.settings, layers=found.layers, heads=found.heads)
        document["overall"] = {score: estimate._asdict() for score, estimate in found.overall.items()}
        changed, shown = bool(found.heads.changed.any()), str(found)
    else:
        table = changes(profiles)
        document, changed = {"steps": table}, bool(table.changed.any())
        shown = steps_in_words(table)
    if asked.report:
        from possym.profiling.report import write_report

        document["report"] = str(write_report(profiles, asked.report))
        shown += f"\nreport: {document['report']}"
    show_json(document) if asked.json else print(shown)
    return int(asked.fail and changed)


def run_audit(asked: argparse.Namespace) -> int:
    """Audit a model's rotation; return the exit status."""
    from possym.capture import rope_audit
    from possym.models import hub

    table = rope_audit(hub.load(asked.model, device=asked.device, dtype=asked.dtype).model)
    wrong = table.differs != ""
    if asked.json:
        show_json({"differs": bool(wrong.any()), "layers": table})
    else:
        print(layers_in_words(table))
        print(f"{wrong.sum()} of {len(table)} layers differ from the configuration")
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


def read_texts(name: str) -> list[str | list]:
    """Return the prompts of a .txt or .jsonl file, or of standard input.

    Raises:
        InputError: a file that cannot be read or has no prompts.
    """
    if name != "-" and not name.endswith((".txt", ".jsonl")):
        raise InputError(f"--prompts {name}: give a .txt or .jsonl file, or - for standard input")
    try:
        text = sys.stdin.read() if name == "-" else Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompts {name} cannot be read: {error}") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = [parsed(name, *line) if name.endswith(".jsonl") else line[1].rstrip("\r") for line in lines]
    if not found:
        raise InputError(f"--prompts {name} holds no prompts: give one on each line")
    return found


def parsed(name: str, number: int, line: str) -> str | list:
    """Return the prompt of one line of JSON, a text or a chat."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InputError(f"--prompts {name}, line {number} is no JSON: {error}") from error
    if isinstance(value, dict):
        value = value.get("text", value.get("messages"))
    if not isinstance(value, str) and not (value and isinstance(value, list) and isinstance(value[0], dict)):
        raise InputError(
            f'--prompts {name}, line {number}: give a string, or an object with a string "text" or a chat "messages"'
        )
    return value


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
    print(json.dumps(document, indent=1, allow_nan=False))
