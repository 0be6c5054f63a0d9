"""The families of transformers that `possym.capture` reads, as a test of all families found.

The run is ``python -m tests.capture.every_family`` in a checkout: it makes a tiny random model of every family that can
be made so, compares its heads with a brute force, and writes ``possym/data/models_read.json``.
"""

import json
from importlib.resources import files

import pandas as pd


def read_families() -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the findings of the stored run, one row per family, and the versions that it ran with.

    Returns:
        A DataFrame (family, model, status, difference, layers, rotating, method, reason) and a dictionary. ``status``
        is ``"right"``, ``"refused"`` or ``"not built"``; ``difference`` is the largest one of attention, 0 to 1,
        between possym and the brute force, over heads, layers and orders of keys; ``method`` says whether planes were
        found (``"direct"``) or the model was asked position by position (``"replay"``).

    >>> table, versions = read_families()
    >>> table.set_index("family").status["llama"], sorted(versions)
    ('right', ['python', 'torch', 'transformers'])
    """
    stored = json.loads(files("possym").joinpath("data/models_read.json").read_text(encoding="utf-8"))
    columns = ["family", "model", "status", "difference", "layers", "rotating", "method", "reason"]
    return pd.DataFrame(stored["families"], columns=columns), stored["versions"]
