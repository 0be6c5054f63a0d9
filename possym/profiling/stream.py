"""Profile endless prompts, such as a streamed data set or a generator, in the memory of a few of them.

- `profile_stream` draws prompts as it needs them and hands over a `Profile` of every few.
- `summarize_stream` sums such profiles up and keeps none.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import pandas as pd
from torch import nn

from possym.errors import InputError, require_type, to_int
from possym.profiling.profile import MEANS, Profile, profile
from possym.profiling.scoring import purity_of

SPREADS = ("positional", "symbolic", "entropy")


def profile_stream(
    model: nn.Module, prompts: Iterable[Any], *, at_once: int = 256, **options: Any
) -> Iterator[Profile]:
    """Profile prompts as they come: one profile of every ``at_once`` prompts, the last one of the rest.

    Nothing is drawn from ``prompts`` before it is needed, and no profile is kept. Prompts count from 0 in each.

    Args:
        model: as in `possym.profile`.
        prompts: yields prompts, each as `possym.profile` takes them.
        at_once: how many prompts are held at once.
        options: of `possym.profile`, alike for all prompts: neither ``answers`` nor ``checkpoint``.

    Raises:
        InputError: what is no number from 1, other options, and what `possym.profile` refuses.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> prompts = ([k % 40, 14, 15, 9, 2] for k in range(10))
    >>> parts = profile_stream(LlamaForCausalLM(config), prompts, at_once=4, progress=False)
    >>> [len(part.prompts) for part in parts]
    [4, 4, 2]
    """
    require_type(prompts, Iterable, "prompts")
    if isinstance(prompts, (str, Mapping)):
        raise InputError(f"prompts is one {type(prompts).__name__}: give what yields prompts, as a list or a generator")
    if (to_int(at_once) or 0) < 1:
        raise InputError(f"at_once = {at_once!r}: give a whole number from 1")
    if wrong := {"answers", "checkpoint"} & options.keys():
        raise InputError(f"{min(wrong)} is for prompts whose number is known: profile them with possym.profile")
    drawn = iter(prompts)
    chunks = iter(lambda: list(islice(drawn, to_int(at_once))), [])
    return (profile(model, chunk, **options) for chunk in chunks)


def summarize_stream(profiles: Iterable[Profile]) -> pd.DataFrame:
    """Return the summary over many profiles of one model, as `Profile.summary` gives it, keeping none of them.

    Args:
        profiles: such as `profile_stream` yields.

    Raises:
        InputError: no profiles, or such of other heads or settings than the first.
    """
    sums = squares = counts = None
    first: dict[str, Any] = {}
    for each in profiles:
        require_type(each, Profile, "a profile")
        settings = {key: value for key, value in each.settings.items() if key != "device"}
        keys = [name for name in ("layer", "pass", "head") if name in each.heads]
        groups = each.heads.groupby(keys)[list(MEANS)]
        total, count = groups.sum(), groups.count()
        square = (
            each.heads.assign(**{name: each.heads[name] ** 2 for name in SPREADS}).groupby(keys)[list(SPREADS)].sum()
        )
        if sums is None:
            sums, squares, counts, first = total, square, count, settings
            continue
        if settings != first or not total.index.equals(sums.index):
            raise InputError("profiles are of other models or were made with other settings: sum up those of one model")
        sums, squares, counts = sums + total, squares + square, counts + count
    if sums is None or squares is None or counts is None:
        raise InputError("profiles: give one or more")
    found = sums / counts
    for name in SPREADS:
        count = counts[name]
        left = (squares[name] - count * found[name] ** 2).clip(lower=0)
        found[f"{name}_sd"] = (left / (count - 1)).where(count > 1) ** 0.5
    found["purity"] = purity_of(found.positional, found.symbolic, first["gamma"])
    scores = ["positional", "symbolic"]
    return found.reset_index()[[*keys, *(name for name in found if name not in scores), *scores]]
