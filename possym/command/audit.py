"""``possym audit``: how a model rotates, against what its configuration says."""

import argparse
import itertools
from typing import TYPE_CHECKING

from possym.command.output import say, show_json
from possym.command.profile import load

if TYPE_CHECKING:
    import pandas as pd


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


def layers_in_words(table: "pd.DataFrame") -> str:
    """Return the table of `possym.rope_audit` as text, neighbouring layers that are alike in one line."""
    columns = ["rotates", "share", "base", "scaling", "window", "differs"]
    said = table[columns].astype(object).where(table[columns].notna(), "").values.tolist()
    rows = []
    for same, group in itertools.groupby(zip(table.layer, said, strict=True), key=lambda pair: pair[1]):
        layers = [layer for layer, _ in group]
        rows.append([str(layers[0]) if len(layers) == 1 else f"{layers[0]}–{layers[-1]}", *same])
    return type(table)(rows, columns=["layer", *columns]).to_string(index=False)
