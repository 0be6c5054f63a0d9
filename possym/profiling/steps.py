"""Many profiles of the same prompts in order, as of the checkpoints of a training: what has changed since the first.

`load_steps` reads a folder of them, `changes` makes the table; `possym.profiling.film` draws them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from possym.errors import InputError, require_type
from possym.profiling.compare import check_comparable, compare
from possym.profiling.profile import Profile, counted


def changes(profiles: Mapping[Any, Profile], *, level: float = 0.05, seed: int = 0) -> pd.DataFrame:
    """Compare every step with the first, see `possym.profiling.compare.compare`.

    Args:
        profiles: one profile per step, of the same prompts. Steps that are whole numbers are sorted; names, as of
            checkpoints, stay in order.
        level: below which p-value a head counts as changed, among all heads of one step.
        seed: of the draws.

    Returns:
        One row per step, the first with no change: ``step``; ``changed`` and ``new_kinds``, how many heads changed and
        how many are of another kind; of both scores the mean over heads, its change and the ends of the change's 95 %
        interval, which draws prompts and whole layers.

    Raises:
        InputError: fewer than two profiles, or such as cannot be compared with the first.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> from possym.profiling.profile import profile
    >>> found = profile(LlamaForCausalLM(config), [[3, 14, 15, 9, 2], [6, 5, 35, 8]], progress=False)
    >>> changes({0: found, 500: found})[["step", "changed", "positional_change"]].values.tolist()
    [[0.0, 0.0, 0.0], [500.0, 0.0, 0.0]]
    """
    rows: list[dict[str, Any]] = []
    first: Profile | None = None
    for step, each in in_order(profiles):
        first = first or each
        found = compare(first, each, level=level, seed=seed)
        row = dict(step=step, changed=int(found.heads.changed.sum()), new_kinds=len(found.new_kinds))
        for score, estimate in found.overall.items():
            row[score] = float(found.heads[f"{score}_after"].mean())
            row |= {f"{score}_change": estimate.value, f"{score}_low": estimate.low, f"{score}_high": estimate.high}
        rows.append(row)
    return pd.DataFrame(rows)


def load_steps(folder: str | os.PathLike) -> dict[str, Profile]:
    """Read the profiles in the subfolders of a folder, by their names; numbers in names count as numbers.

    Each is a folder that `Profile.save` wrote, or one with such a folder named ``profile`` in it.

    Raises:
        InputError: fewer than two profiles there.

    >>> load_steps("no such folder")
    Traceback (most recent call last):
    possym.errors.InputError: no such folder holds 0 profiles: give a folder with one a subfolder, two or more
    """
    places = sorted(Path(os.path.expanduser(folder)).glob("*/"), key=lambda place: by_number(place.name))
    found = {place.name: saved for place in places if (saved := saved_profile(place)) is not None}
    if len(found) < 2:
        raise InputError(
            f"{folder} holds {counted(len(found), 'profile')}: give a folder with one a subfolder, two or more"
        )
    return {name: Profile.load(place) for name, place in found.items()}


def saved_profile(folder: Path) -> Path | None:
    """Return where a folder holds a saved profile: itself, or in its subfolder ``profile``; None where it does not."""
    return next((place for place in (folder / "profile", folder) if (place / "profile.json").is_file()), None)


def by_number(name: str) -> list[Any]:
    """Return what names are sorted by, so that step 500 comes before step 1000.

    >>> sorted(["step-1000", "step-500", "base"], key=by_number)
    ['base', 'step-500', 'step-1000']
    """
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", name)]


def in_order(profiles: Mapping[Any, Profile]) -> list[tuple[Any, Profile]]:
    """Return steps with their profiles, or raise an InputError where these cannot be compared."""
    require_type(profiles, Mapping, "profiles")
    if len(profiles) < 2:
        raise InputError("profiles: give two or more, by step")
    steps = list(profiles)
    steps = sorted(steps) if all(isinstance(step, int) for step in steps) else steps
    for step in steps:
        require_type(profiles[step], Profile, f"the profile of step {step}")
        check_comparable(profiles[steps[0]], profiles[step])
    return [(step, profiles[step]) for step in steps]


def spelt(step: Any) -> str:
    """Return a step as a reader sees it.

    >>> spelt(1000), spelt("final")
    ('1,000', 'final')
    """
    return f"{step:,}" if isinstance(step, int) else str(step)
