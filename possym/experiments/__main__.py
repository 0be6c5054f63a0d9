"""Run one study and store its result, or load it where it is stored.

python -m possym.experiments theory --preset smoke --compute always
python -m possym.experiments canonical --preset smoke --set deviation=1.0
python -m possym.experiments canonical --help         its settings
python -m possym.experiments --list                   what is stored or unfinished
python -m possym.experiments --clean                  delete smoke results, and locks that no run holds
"""

import argparse
import ast
import dataclasses
import pkgutil
import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

from possym import experiments
from possym.errors import ConfigError, InputError, PossymError
from possym.results import load_or_run, provenance_line, result_folder, results_root
from possym.results.runs import delete_small, listed


def studies() -> dict[str, ModuleType]:
    """Every study by name."""
    found = [entry.name for entry in pkgutil.iter_modules(experiments.__path__) if entry.name != "__main__"]
    modules = [import_module(f".{name}", experiments.__name__) for name in found]
    return {module.NAME: module for module in modules if hasattr(module, "NAME")}


def study_named(name: str) -> ModuleType | None:
    """Return the study of a name, None where there is none; the others are not imported, which would take a second."""
    if any(entry.name == name for entry in pkgutil.iter_modules(experiments.__path__)):
        module = import_module(f".{name}", experiments.__name__)
        return module if hasattr(module, "NAME") else None
    return None


def setting(text: str) -> tuple[str, Any]:
    """Name and value of ``name=value``; a value that is no Python literal is a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}: write name=value, such as --set seed=5")
    if name in ("device", "preset"):
        raise ConfigError(f"--set {text!r}: say --{name} {value}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def settings_of(study: ModuleType) -> str:
    """What a study is and what can be set: one line per setting, with its value in the presets paper and smoke."""
    paper, small = (study.Config.preset_named(preset) for preset in ("paper", "smoke"))
    lines = [study.__doc__.strip().splitlines()[0], "", "settings (--set name=value), at full size | smoke:"]
    for entry in dataclasses.fields(paper):
        if entry.name not in ("device", "preset"):
            full, less = (repr(getattr(config, entry.name)) for config in (paper, small))
            lines.append(f"  {entry.name} = {full}" + (f" | {less}" if less != full else ""))
    return "\n".join(lines)


class Help(argparse.Action):
    """``--help``: the options, then all studies, or the settings of the one that was named before it."""

    def __call__(self, parser: argparse.ArgumentParser, asked: argparse.Namespace, *_: Any) -> None:
        """Print and end."""
        known = studies()
        if asked.study in known:
            parser.epilog = settings_of(known[asked.study])
        else:
            width = max(map(len, known))
            lines = [f"  {name:{width}}  {study.__doc__.strip().splitlines()[0]}" for name, study in known.items()]
            parser.epilog = "\n".join(["studies (STUDY --help lists the settings of one):", *lines])
        parser.print_help()
        parser.exit()


def command_line(name: str) -> argparse.ArgumentParser:
    """Return what reads the command line of a command of that name."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=__doc__.splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    parser.add_argument("study", nargs="?", help="such as theory")
    parser.add_argument("-h", "--help", action=Help, nargs=0, help="this text, the studies, and a study's settings")
    parser.add_argument("--preset", default="paper", help="paper (standard) or smoke")
    parser.add_argument("--compute", default="auto", help="auto (standard: run what is not stored), always, stored")
    parser.add_argument("--device", default="auto", help="auto (standard: CUDA where there is one), cpu, cuda:0, ...")
    parser.add_argument(
        "--set", default=[], nargs="+", action="extend", metavar="name=value", help="settings other than the preset's"
    )
    store = parser.add_mutually_exclusive_group()
    store.add_argument("--list", action="store_true", help="list what is stored, unfinished or locked; of STUDY or all")
    store.add_argument(
        "--clean",
        action="store_true",
        help="delete stored and unfinished results of the preset smoke and locks that no run holds; of STUDY or all",
    )
    return parser


def main(words: list[str] | None = None, name: str = "python -m possym.experiments") -> int:
    """Run what the command line asks for.

    Args:
        words: the arguments; those of the process without any.
        name: the command's name, as its help shows it.

    Returns:
        The exit status: 0, or 1 where something failed, or 2 for what cannot be read.
    """
    parser = command_line(name)
    asked = parser.parse_args(words)
    try:
        study = None if asked.study is None else study_named(asked.study)
        if study is None and not (asked.study is None and (asked.list or asked.clean)):
            given = "no study is named" if asked.study is None else f"study = {asked.study!r}"
            raise ConfigError(f"{given}: known studies are {', '.join(studies())}")
        if asked.list:
            found = listed(results_root(), asked.study)
            print(
                results_root(), found.to_string(index=False, na_rep="") if len(found) else "nothing is stored", sep="\n"
            )
            return 0
        if asked.clean:
            gone = delete_small(results_root(), asked.study)
            print(*[f"deleted {name}" for name in gone] or ["nothing to delete"], sep="\n")
            return 0
        assert study is not None
        settings = list(map(setting, asked.set))
        if len(dict(settings)) < len(settings):
            raise ConfigError(f"--set {' '.join(asked.set)}: give each setting once")
        config = study.Config.preset_named(asked.preset, device=asked.device, **dict(settings))
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(f"Warning: {message}", file=sys.stderr)
            result = load_or_run(study, config, asked.compute)
    except PossymError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, (InputError, ConfigError)) else 1
    except KeyboardInterrupt:
        print("Stopped. The same command goes on from its last checkpoint.", file=sys.stderr)
        return 130
    made_by = provenance_line(result).replace("*", "").replace("`", "")
    print(f"{result_folder(study.NAME, config)}\n{study.NAME}: {made_by}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
