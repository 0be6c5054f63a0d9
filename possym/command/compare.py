"""``possym compare``: profiles, or models, with the first of them."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from possym.command.options import add_scoring
from possym.command.output import check_report, say, show_json
from possym.command.profile import profiled, read_prompts_and_places
from possym.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from possym.profiling.profile import Profile


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


def steps_in_words(table: "pd.DataFrame") -> str:
    """Return the table of `possym.profiling.steps.changes` as text."""
    shown = table[["step", "changed", "new_kinds"]].copy()
    for score in ("positional", "symbolic"):
        columns = table[[score, *(f"{score}_{name}" for name in ("change", "low", "high"))]]
        shown[score] = ["{:.3f}, {:+.3f} ({:+.3f} to {:+.3f})".format(*row) for row in columns.itertuples(index=False)]
    notes = "changed, new_kinds: heads; scores: mean over heads, its change since the first step with its 95 % interval"
    return f"{shown.to_string(index=False)}\n{notes}"
