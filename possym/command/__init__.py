"""The command line: ``possym profile``, ``compare``, ``atlas``, ``audit``, ``studies``; so is ``python -m possym``.

Results go to standard output, with ``--json`` as one JSON document; progress and errors go to standard error. The exit
status is 0, 1 if something failed or differs, or 2 if the input cannot be read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from possym import __version__
from possym.command.atlas import run_atlas
from possym.command.audit import run_audit
from possym.command.compare import run_compare
from possym.command.options import MODEL, add_running, add_scoring
from possym.command.output import drop_output, say
from possym.command.profile import PARTS, run_profile
from possym.errors import ConfigError, InputError, PossymError

STATUS = "exit status: 0, or 1 where something failed or differs, or 2 for input that cannot be read"
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
