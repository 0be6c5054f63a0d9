"""``possym atlas``: a model's known heads."""

import argparse
from pathlib import Path

from possym.command.output import check_out, say, show_json
from possym.command.profile import load


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
