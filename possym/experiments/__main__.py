"""Run one study and store its result, or load it where it is stored.

python -m possym.experiments theory --preset smoke --compute always
python -m possym.experiments canonical --preset smoke --set deviation=1.0
"""

import argparse
import ast
import pkgutil
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from possym import experiments
from possym.errors import ConfigError, PossymError
from possym.results import load_or_run, provenance_line, result_folder


def studies() -> dict[str, ModuleType]:
    """Every study by name."""
    found = [entry.name for entry in pkgutil.iter_modules(experiments.__path__) if entry.name != "__main__"]
    modules = [import_module(f".{name}", experiments.__name__) for name in found]
    return {module.NAME: module for module in modules if hasattr(module, "NAME")}


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


def main(words: list[str] | None = None) -> int:
    """Run what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m possym.experiments", description=__doc__.splitlines()[0])
    parser.add_argument("study", help="such as theory")
    parser.add_argument("--preset", default="paper", help="paper (standard) or smoke")
    parser.add_argument("--compute", default="auto", help="auto (standard: run what is not stored), always, stored")
    parser.add_argument("--device", default="auto", help="auto (standard: CUDA where there is one), cpu, cuda:0, ...")
    parser.add_argument(
        "--set", default=[], nargs="+", action="extend", metavar="name=value", help="settings other than the preset's"
    )
    asked = parser.parse_args(words)
    try:
        known = studies()
        if asked.study not in known:
            raise ConfigError(f"study = {asked.study!r}: known studies are {', '.join(known)}")
        study = known[asked.study]
        settings = list(map(setting, asked.set))
        if len(dict(settings)) < len(settings):
            raise ConfigError(f"--set {' '.join(asked.set)}: give each setting once")
        config = study.Config.preset_named(asked.preset, device=asked.device, **dict(settings))
        result = load_or_run(study, config, asked.compute)
    except PossymError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    made_by = provenance_line(result).replace("*", "").replace("`", "")
    print(f"{result_folder(study.NAME, config)}\n{study.NAME}: {made_by}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
