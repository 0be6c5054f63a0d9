"""The command line: ``possym profile``, ``compare``, ``audit`` and ``studies``; ``python -m possym`` is the same.

What was asked for goes to standard output, with ``--json`` as one JSON document; progress and errors go to standard
error. The exit status is 0, or 1 where something failed or differs, or 2 for input that cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from possym.errors import ConfigError, InputError, PossymError

MODEL = "a folder, a .gguf file, a name such as SmolLM2-135M-Instruct, or a hub id"
PARTS = ("profile", "checkpoint")  # of the folder that `possym profile` writes


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for.

    Args:
        words: the arguments; those of the process without any.

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
            name, help=about, description=about, epilog=f"example:\n  {example}", formatter_class=form
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
    one.add_argument(
        "--prompts",
        required=True,
        metavar="FILE",
        help='a .txt file with a prompt on each line; a .jsonl file with a string or an object with "text" on each '
        "line; or - for the lines of standard input",
    )
    one.add_argument(
        "--out", required=True, metavar="FOLDER", help="where the profile and what is done so far are kept"
    )
    one.add_argument("--report", metavar="FILE", help="also write the profile as one HTML page for a colleague")
    one.add_argument("--layers", metavar="0,3", help="score these layers alone, counted from 0")
    one.add_argument(
        "--query",
        default="last",
        help="which token looks: last (standard), all, or positions such as 5,7 or --query=-2",
    )
    one.add_argument(
        "--hold", choices=["first"], help="keep the first token in place: many models rest attention there"
    )
    two = command(
        "compare",
        run_compare,
        "Say which heads differ between two profiles of the same prompts, and whether that is chance.",
        "possym compare found-base found-tuned --fail",
    )
    two.add_argument("a", metavar="A", help="the --out folder before, or a folder that Profile.save wrote")
    two.add_argument("b", metavar="B", help="the one after")
    two.add_argument("--fail", action="store_true", help="exit with 1 where a head changed (p < 0.05)")
    three = command(
        "audit",
        run_audit,
        "Measure how each layer rotates, and exit with 1 where it differs from the model's configuration.",
        "possym audit ./merged-checkpoint || echo 'do not trust it'",
    )
    three.add_argument("model", help=MODEL)
    commands.add_parser("studies", help="run one of the book's studies; possym studies --help says more")
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

    model, tokenizer = hub.load(asked.model)
    found = profile(
        model, texts, tokenizer=tokenizer, layers=layers, query=query, hold=asked.hold, checkpoint=out / PARTS[1]
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
    """Compare two saved profiles; return the exit status."""
    folders = [Path(name).expanduser() for name in (asked.a, asked.b)]
    folders = [inner if (inner := folder / PARTS[0]).is_dir() else folder for folder in folders]
    for folder in folders:
        if not (folder / "profile.json").is_file():
            raise InputError(f"{folder} holds no profile: give the --out folder of possym profile")

    from possym.profiling import Profile, compare

    found = compare(*map(Profile.load, folders))
    if asked.json:
        overall = {score: estimate._asdict() for score, estimate in found.overall.items()}
        show_json(dict(settings=found.settings, overall=overall, layers=found.layers, heads=found.heads))
    else:
        print(found)
    return int(asked.fail and bool(found.heads.changed.any()))


def run_audit(asked: argparse.Namespace) -> int:
    """Audit a model's rotation; return the exit status."""
    from possym.capture import rope_audit
    from possym.models import hub

    table = rope_audit(hub.load(asked.model).model)
    wrong = table.differs != ""
    if asked.json:
        show_json({"differs": bool(wrong.any()), "layers": table})
    else:
        print(table[["layer", "rotates", "share", "base", "scaling", "window", "differs"]].to_string(index=False))
        print(f"{wrong.sum()} of {len(table)} layers differ from the configuration")
    return int(wrong.any())


def read_texts(name: str) -> list[str]:
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


def parsed(name: str, number: int, line: str) -> str:
    """Return the prompt of one line of JSON."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise InputError(f"--prompts {name}, line {number} is no JSON: {error}") from error
    value = value.get("text") if isinstance(value, dict) else value
    if not isinstance(value, str):
        raise InputError(f'--prompts {name}, line {number}: give a string or an object with a string "text"')
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
