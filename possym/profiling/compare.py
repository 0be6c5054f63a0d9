"""Two profiles of the same prompts side by side: which heads changed, by how much, and whether that is chance.

- `compare` pairs the heads of two profiles, such as a base model's and its tuned child's, prompt by prompt.
- `Comparison` holds the changes by head and by layer, prints and draws them.

Prompts are the units: intervals come from resampling whole prompts, p-values from flipping the signs of whole prompts.
The p-values are corrected for all heads together.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from possym.errors import InputError, require_type, to_int
from possym.profiling.profile import Profile, counted
from possym.profiling.prompts import check_number
from possym.profiling.scoring import purity_of
from possym.profiling.statistics import Estimate, prompt_draws, sign_flips

SCORES = ("positional", "symbolic")
KIND_NAMES = {1: "positional", -1: "symbolic", 0: "neither"}
ALIKE = ("temperature", "relative", "gamma", "layers")  # settings that scores depend on, beside the prompts
DRAWS = 2000
AT_ONCE = 512  # columns whose draws are held at once


@dataclass
class Comparison:
    """The changes from one profile to another.

    Attributes:
        heads: one row per layer (and pass) and head, or key head: of both scores the mean before and after over prompts
            and queries, the change, the ends of its 95 % interval (NaN for a single prompt) and its p-value; changed,
            whether one of both p-values is below the level, so that the head leans another way on average; largest, the
            largest change of either score on one prompt, which is 0 where the head did the same on each; kind_before
            and kind_after, the purity of the mean scores in words; kind_support, in which share of draws of prompts the
            two kinds differ.
        layers: one row per layer: of both scores the mean change over its heads, its interval and its p-value, which
            holds for all layers together.
        overall: of both scores the mean change over all heads, an interval that draws prompts and whole layers, and no
            p-value.
        settings: before and after (names of the models), prompts, by, level, tolerance, gamma.
    """

    heads: pd.DataFrame
    layers: pd.DataFrame
    overall: dict[str, Estimate]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def changed(self) -> pd.DataFrame:
        """The rows of `heads` that changed, the largest change of a mean score first."""
        rows = self.heads[self.heads.changed]
        order = rows[[f"{score}_change" for score in SCORES]].abs().max(axis=1).sort_values(ascending=False)
        return rows.loc[order.index]

    @property
    def new_kinds(self) -> pd.DataFrame:
        """The rows of `heads` whose kind is another than before, the best supported first."""
        rows = self.heads[self.heads.kind_before != self.heads.kind_after]
        return rows.sort_values("kind_support", ascending=False, kind="stable")

    def plane(self):
        """Draw each head that changed as an arrow from its scores before to those after (an Altair chart)."""
        from possym.profiling.compare_charts import arrows

        return arrows(self.heads, self.settings)

    def by_layer(self):
        """Draw the mean change of both scores by layer, with intervals (an Altair chart)."""
        from possym.profiling.compare_charts import changes_by_layer

        return changes_by_layer(self.layers, self.settings)

    def __repr__(self) -> str:
        """Return a few lines that say what was compared and what came out."""
        settings, by = self.settings, self.settings["by"].replace("_", " ")
        touched = int((self.heads.largest > 0).sum())
        means = ", ".join(
            f"{score} {found.value:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
            for score, found in self.overall.items()
        )
        least, few = least_p(settings["prompts"]), ""
        if least > settings["level"] and touched:
            prompts = counted(settings["prompts"], "prompt")
            few = f"\n  no p-value of {prompts} can be below {least:.2g}: more prompts tell changes from chance"
        return (
            f"{settings['before']} → {settings['after']}: {counted(settings['prompts'], 'prompt')}, "
            f"{counted(len(self.heads), by)}\n"
            f"  {counted(int(self.heads.changed.sum()), by)} changed (p < {settings['level']:g}, for all together), "
            f"{touched} {'differs' if touched == 1 else 'differ'} by {settings['tolerance']:g} or more on some prompt, "
            f"{len(self.new_kinds)} of another kind\n"
            f"  mean change: {means}{self.earliest()}{self.largest_change()}{few}"
        )

    def earliest(self) -> str:
        """Return which heads differ in the first layer where any does, as where weights were changed; else nothing."""
        rows = self.heads[self.heads.largest > 0]
        if rows.empty:
            return ""
        rows, by = rows[rows.layer == rows.layer.min()], self.settings["by"]
        numbers = rows[by].drop_duplicates().tolist()
        noun = f"{by.replace('_', ' ')}{'s' * (len(numbers) > 1)}"
        shown = ", ".join(map(str, numbers[:5])) + ", …" * (len(numbers) > 5)
        return f"\n  first to differ: layer {rows.layer.iloc[0]}, {noun} {shown}"

    def largest_change(self) -> str:
        """Return whose mean score changed most, of those beyond chance if there are any; nothing where none changed."""
        names = {f"{score}_change": score for score in SCORES}
        sizes = self.heads[list(names)].abs().rename(columns=names)
        certain = sizes.where(self.heads[[f"{score}_p" for score in SCORES]].to_numpy() < self.settings["level"])
        sizes = certain if certain.notna().any(axis=None) else sizes
        if not sizes.max(axis=None) > 0:
            return ""
        at, score = sizes.max(axis=1).idxmax(), sizes.max().idxmax()
        row, by = self.heads.loc[at], self.settings["by"]
        return (
            f"\n  largest change: layer {row.layer}, {by.replace('_', ' ')} {row[by]}, {score} "
            f"{row[f'{score}_before']:.3f} → {row[f'{score}_after']:.3f} (p = {row[f'{score}_p']:.2g})"
        )


def compare(
    a: Profile, b: Profile, *, by: str = "head", level: float = 0.05, tolerance: float = 1e-4, seed: int = 0
) -> Comparison:
    """Compare two profiles of the same prompts, head by head: two checkpoints, base and tuned, float and 4-bit.

    Each head has its own interval (whole prompts resampled 2,000 times); p-values are corrected for all heads and both
    scores together, see `possym.profiling.statistics.sign_flips`. With fewer than six prompts none can be below 0.05. A
    head with a score in only one profile, for instance because of another window, is left out.

    Args:
        a: the profile before.
        b: the profile after, of the same token ids, queries, blocks and held tokens, made with the same settings.
        by: ``"head"``, or ``"key_head"`` for the means over the query heads that share a key head.
        level: below which p-value a head counts as changed, between 0 and 1.
        tolerance: smaller changes on a prompt count as none; the default exceeds the rounding of float32 on another
            device.
        seed: of the draws.

    Returns:
        `Comparison`.

    Raises:
        InputError: profiles that differ in prompts, queries, settings or heads, with what differs; wrong options.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> from possym.profiling.profile import profile
    >>> found = profile(LlamaForCausalLM(config), [[3, 14, 15, 9, 2], [6, 5, 35, 8]], progress=False)
    >>> compare(found, found).heads.changed.sum()
    np.int64(0)
    """
    for name, value in dict(a=a, b=b).items():
        require_type(value, Profile, name)
    check_number("level", level, 0.0, 1.0)
    check_number("tolerance", tolerance, 0.0, 1.0)
    if to_int(seed) is None or seed < 0:
        raise InputError(f"seed = {seed!r}: give a whole number from 0")
    check_comparable(a, b)
    pairs = paired(a, b, by, tolerance)
    heads = head_table(pairs, a.settings["gamma"], level, seed)
    layers, overall = pooled(pairs, seed)
    settings = dict(
        before=a.settings["model"], after=b.settings["model"], prompts=len(pairs.counts), by=by, level=float(level),
        tolerance=float(tolerance), gamma=a.settings["gamma"],
    )  # fmt: skip
    return Comparison(heads, layers, overall, settings)


def check_comparable(a: Profile, b: Profile) -> None:
    """Raise an InputError unless two profiles are of the same prompts, queries and heads, scored alike."""
    if a.inputs.empty or b.inputs.empty:
        raise InputError("a profile that possym 0.1 saved does not keep its prompts: make it anew to compare it")
    if len(a.inputs) != len(b.inputs):
        raise InputError(f"a has {counted(len(a.inputs), 'prompt')} and b {len(b.inputs)}: profile the same prompts")
    names = dict(token_ids="token ids", spans="blocks", held="held tokens")
    for number, (ours, theirs) in enumerate(zip(a.inputs.to_dict("records"), b.inputs.to_dict("records"), strict=True)):
        if differing := [said for name, said in names.items() if ours[name] != theirs[name]]:
            what = " and other ".join(differing)
            raise InputError(
                f"prompt {number} has other {what} in a than in b ({different(ours, theirs)}): profile the same "
                "prompts in the same way, with token ids where tokenizers or templates differ"
            )
    if differing := [name for name in ALIKE if a.settings.get(name) != b.settings.get(name)]:
        said = ", ".join(f"{name}: {a.settings.get(name)!r} and {b.settings.get(name)!r}" for name in differing)
        raise InputError(f"a and b were made with different settings ({said}): make them alike")
    keys = key_columns(a, "head")
    if key_columns(b, "head") != keys or not a.heads[keys].equals(b.heads[keys]):
        asked = [set(map(tuple, each.prompts[["prompt", "query"]].to_numpy().tolist())) for each in (a, b)]
        if asked[0] != asked[1]:
            prompt, query = min(asked[0] ^ asked[1])
            raise InputError(f"query {query} of prompt {prompt} is in one profile alone: profile the same queries")
        shapes = [f"{each.heads.layer.nunique()} layers of {each.heads['head'].nunique()} heads" for each in (a, b)]
        raise InputError(f"a has {shapes[0]} and b {shapes[1]}: compare models of one shape")


def different(ours: dict, theirs: dict) -> str:
    """Return where the token ids of two prompts part, or that they do not."""
    first, second = ours["token_ids"], theirs["token_ids"]
    for at, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return f"token {at} is {one} and {other}"
    return f"{len(first)} and {len(second)} tokens" if len(first) != len(second) else "its token ids are the same"


def key_columns(found: Profile, by: str) -> list[str]:
    """Return the columns that tell the rows of a profile's heads apart."""
    return [name for name in ("prompt", "query", "layer", "pass", by) if name in found.heads or name == by]


class Pairs(NamedTuple):
    """What each prompt adds: columns are heads, all for the positional score, then all for the symbolic one."""

    index: pd.DataFrame  # layer (and pass) and head, one row per column of one score
    before: np.ndarray  # (P, 2 C) sums over queries
    after: np.ndarray
    change: np.ndarray  # the same, changes within the tolerance are 0
    counts: np.ndarray


def paired(a: Profile, b: Profile, by: str, tolerance: float) -> Pairs:
    """Return both profiles' sums over the queries of each prompt, where both have a score."""
    keys = [name for name in key_columns(a, by) if name not in ("prompt", "query")]
    rows = a.rows_by(by).merge(b.rows_by(by), on=["prompt", "query", *keys], suffixes=("_before", "_after"))
    rows = rows.dropna(subset=[f"{score}_{when}" for score in SCORES for when in ("before", "after")])
    if rows.empty:
        raise InputError("no query of these profiles has two keys or blocks to swap in both: nothing can be compared")
    sums = {}
    for when in ("before", "after"):
        for score in SCORES:
            sums[when, score] = rows.pivot_table(f"{score}_{when}", "prompt", keys, "sum", fill_value=0.0)
    counts = rows.pivot_table("positional_before", "prompt", keys, "count", fill_value=0).to_numpy(float)
    index = sums["before", "positional"].columns.to_frame(index=False)
    before, after = (np.hstack([sums[when, score].to_numpy() for score in SCORES]) for when in ("before", "after"))
    counts = np.hstack([counts, counts])
    change = after - before
    change[np.abs(change) < tolerance * counts] = 0.0
    return Pairs(index, before, after, change, counts)


def head_table(pairs: Pairs, gamma: float, level: float, seed: int) -> pd.DataFrame:
    """Return `Comparison.heads`."""
    total, half = pairs.counts.sum(0), pairs.counts.shape[1] // 2
    before, after, change = (each.sum(0) / total for each in (pairs.before, pairs.after, pairs.change))
    low, high = interval(pairs.change, pairs.counts, seed)
    p_values = sign_flips(pairs.change, seed=seed)
    table = pairs.index.copy()
    for k, score in enumerate(SCORES):
        part = slice(k * half, (k + 1) * half)
        for name, values in dict(before=before, after=after, change=change, low=low, high=high, p=p_values).items():
            table[f"{score}_{name}"] = values[part]
    sizes = np.divide(np.abs(pairs.change), pairs.counts, out=np.zeros_like(pairs.change), where=pairs.counts > 0)
    table["largest"] = sizes.max(0).reshape(2, half).max(0)
    table["changed"] = (table[["positional_p", "symbolic_p"]] < level).any(axis=1)
    kinds = {}
    for when, mean in dict(before=before, after=after).items():
        kinds[when] = purity_of(mean[:half], mean[half:], gamma)
        table[f"kind_{when}"] = [KIND_NAMES[int(kind)] for kind in kinds[when]]
    table["kind_support"] = kind_support(pairs, gamma, seed)
    return table


def kind_support(pairs: Pairs, gamma: float, seed: int) -> np.ndarray:
    """Return for each head in which share of draws of prompts it is of another kind after than before."""
    half = pairs.counts.shape[1] // 2
    found = []
    for start in range(0, half, AT_ONCE):
        kinds = []
        for sums in (pairs.before, pairs.after):
            means = []
            for part in (
                slice(start, min(half, start + AT_ONCE)),
                slice(half + start, half + min(half, start + AT_ONCE)),
            ):
                means.append(prompt_draws(sums[:, part], pairs.counts[:, part], DRAWS, seed).ravel())
            kinds.append(purity_of(means[0], means[1], gamma).reshape(DRAWS, -1))
        found.append((kinds[0] != kinds[1]).mean(0))
    return np.concatenate(found)


def interval(sums: np.ndarray, counts: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of the 95 % interval of every column's mean; NaN for a single prompt."""
    if len(sums) < 2:
        return np.full(sums.shape[1], np.nan), np.full(sums.shape[1], np.nan)
    ends = []
    for start in range(0, sums.shape[1], AT_ONCE):
        part = slice(start, start + AT_ONCE)
        ends.append(np.nanpercentile(prompt_draws(sums[:, part], counts[:, part], DRAWS, seed), [2.5, 97.5], axis=0))
    low, high = np.concatenate(ends, axis=1)
    return low, high


def pooled(pairs: Pairs, seed: int) -> tuple[pd.DataFrame, dict[str, Estimate]]:
    """Return `Comparison.layers` and `Comparison.overall`."""
    numbers, place = np.unique(pairs.index.layer, return_inverse=True)
    half = len(place)
    member = np.zeros((half, len(numbers)))
    member[np.arange(half), place] = 1.0
    sums, counts = (
        np.hstack([each[:, :half] @ member, each[:, half:] @ member]) for each in (pairs.change, pairs.counts)
    )
    low, high = interval(sums, counts, seed)
    p_values, change = sign_flips(sums, seed=seed), sums.sum(0) / counts.sum(0)
    table, overall, layers = pd.DataFrame({"layer": numbers}), {}, len(numbers)
    for k, score in enumerate(SCORES):
        part = slice(k * layers, (k + 1) * layers)
        for name, values in dict(change=change, low=low, high=high, p=p_values).items():
            table[f"{score}_{name}"] = values[part]
        overall[score] = over_both(sums[:, part], counts[:, part], seed)
    return table, overall


def over_both(sums: np.ndarray, counts: np.ndarray, seed: int) -> Estimate:
    """Return the mean over prompts and layers (P, L), its interval from draws of prompts and of whole layers."""
    random = np.random.default_rng(seed)
    prompts, layers = sums.shape
    by_prompt, by_layer = (
        random.multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(float) for n in (prompts, layers)
    )
    total, held = (((by_prompt @ each) * by_layer).sum(1) for each in (sums, counts))
    low, high = np.nanpercentile(np.divide(total, held, out=np.full(DRAWS, np.nan), where=held > 0), [2.5, 97.5])
    return Estimate(float(sums.sum() / counts.sum()), float(low), float(high))


def least_p(prompts: int) -> float:
    """Return the smallest p-value that so many prompts can give.

    >>> least_p(5), least_p(6)
    (0.0625, 0.03125)
    """
    return 2.0 ** (1 - prompts)
