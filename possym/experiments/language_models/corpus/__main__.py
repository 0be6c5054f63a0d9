"""Make the corpora in a folder: ``python -m possym.experiments.language_models.corpus FOLDER``."""

import argparse
import sys
from pathlib import Path

from possym.errors import PossymError
from possym.experiments.language_models.corpus import KINDS, fetch, make, read_wheels, save
from possym.results import cache_root


def main(words: list[str] | None = None) -> int:
    """Make what the command line asks for; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m possym.experiments.language_models.corpus",
        description="Fetch pinned packages through pip, and make token arrays of their source and docstrings.",
    )
    where = f"where wheels and corpora go; the study reads {cache_root() / 'corpora'}"
    parser.add_argument("folder", type=Path, help=where.replace("%", "%%"))
    asked = parser.parse_args(words)
    try:
        wheels = fetch(asked.folder / "wheels")
        for kind in KINDS:
            corpus = make(read_wheels(wheels), kind)
            save(corpus, asked.folder / f"{kind}.safetensors")
            print(f"{kind}: {len(corpus.train):,} tokens, {len(corpus.held_out):,} held out, sha256 {corpus.sha256}")
    except PossymError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The same command goes on; wheels that are there are not fetched again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
