"""What the tables of `possym.experiments.real_models` say of heads, frequencies, ways of scoring, and edits."""

import numpy as np
import pandas as pd

from possym.errors import InputError
from possym.profiling.statistics import Estimate, rank_difference, stability

HEAD = ["layer", "head"]
MEASURES = {
    "text_loss": "loss on text (nats a token)",
    "repeat_accuracy": "accuracy on the second saying",
    "binding_accuracy": "accuracy on bindings",
    "previous_token": "attention of previous-token heads",
    "induction": "attention of induction heads",
}


def of_task(table: pd.DataFrame, task: str, blocks: str) -> pd.DataFrame:
    """Return a task's rows with one kind of blocks.

    Raises:
        InputError: no such rows; the known ones are listed.
    """
    rows = table[(table["task"] == task) & (table["blocks"] == blocks)]
    if rows.empty:
        known = table[["task", "blocks"]].drop_duplicates().agg(" by ".join, axis=1)
        raise InputError(f"task = {task!r}, blocks = {blocks!r}: known are {'; '.join(known)}")
    return rows


def mean_heads(heads: pd.DataFrame, task: str, blocks: str) -> pd.DataFrame:
    """Return means over prompts, one row a layer and head, with ``lead``, symbolic less positional.

    >>> rows = pd.DataFrame({"task": "t", "blocks": "b", "prompt": [0, 1], "layer": 0, "head": 0,
    ...                      "positional": [0.2, 0.4], "symbolic": [0.9, 0.7], "entropy": 1.0, "variance": 1.0,
    ...                      "bound": 2.0})
    >>> mean_heads(rows, "t", "b")["lead"].round(2).tolist()
    [0.5]
    """
    columns = ["positional", "symbolic", "entropy", "variance", "bound"]
    table = of_task(heads, task, blocks).groupby(HEAD)[columns].mean().reset_index()
    return table.assign(lead=table["symbolic"] - table["positional"])


def by_correctness(heads: pd.DataFrame, prompts: pd.DataFrame, task: str, blocks: str) -> dict[bool, pd.DataFrame]:
    """Return `mean_heads` over the prompts answered rightly (True) and wrongly (False), as far as there are any."""
    answered = prompts[prompts["task"] == task].set_index("prompt")["correct"]
    rows = of_task(heads, task, blocks)
    parts = {right: rows[rows["prompt"].map(answered).eq(right).fillna(False).astype(bool)] for right in (True, False)}
    return {right: mean_heads(part, task, blocks) for right, part in parts.items() if not part.empty}


def split_half(heads: pd.DataFrame, task: str, blocks: str) -> float:
    """Return Spearman's rank correlation of heads' ``lead`` between the even and the odd prompts."""
    rows = of_task(heads, task, blocks)
    halves = {str(odd): mean_heads(part, task, blocks) for odd, part in rows.groupby(rows["prompt"] % 2)}
    if len(halves) < 2:
        raise InputError(f"task = {task!r} has one prompt: two halves need two")
    return float(stability(halves, "lead").set_index(["first", "second"])["rank_correlation"]["0", "1"])


def over_tasks(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the rank correlation of heads' ``lead`` between every two tasks, see
    `possym.profiling.statistics.stability`."""
    kinds = heads[["task", "blocks"]].drop_duplicates().itertuples(index=False)
    return stability({f"{task}, by {cut}": mean_heads(heads, task, cut) for task, cut in kinds}, "lead")


def with_large_logits(planes: pd.DataFrame, share: float = 0.25) -> pd.DataFrame:
    """Return the ``share`` of the rows with the largest logit norms."""
    return planes[planes["logit_norm"] >= planes["logit_norm"].quantile(1 - share)]


def frequency_pattern(planes: pd.DataFrame) -> pd.DataFrame:
    """Return scores and logit norm by frequency ID over the planes of all heads: median and quartiles.

    Columns: frequency_id, angle, and for positional, symbolic and logit_norm the median, ``_low`` and ``_high``
    quartile.
    """
    groups = planes.groupby("frequency_id")
    table = groups[["angle"]].first()
    for name in ("positional", "symbolic", "logit_norm"):
        for suffix, share in (("", 0.5), ("_low", 0.25), ("_high", 0.75)):
            table[name + suffix] = groups[name].quantile(share)
    return table.reset_index()


def third(planes: pd.DataFrame) -> pd.Series:
    """Return "fast", "middle" or "slow" for every plane: frequency IDs cut in three."""
    ids = planes["frequency_id"].drop_duplicates()
    names = pd.qcut(ids, 3, labels=["fast", "middle", "slow"]).astype(str)
    return planes["frequency_id"].map(dict(zip(ids, names, strict=True)))


def thirds(planes: pd.DataFrame, share: float = 1.0) -> dict[str, pd.Series]:
    """Return median positional and symbolic score of planes that are fast, middle and slow, and of the very fastest.

    "fastest" is ID 1 alone. Medians are over the ``share`` of the planes with the largest logits: a plane with small
    logits scores high on both by itself.
    """
    scores = ["positional", "symbolic"]
    rows = with_large_logits(planes.assign(third=third(planes)), share)
    found = {name: part[scores].median() for name, part in rows.groupby("third")}
    return {"fastest": rows.loc[rows["frequency_id"] == 1, scores].median(), **found}


def slow_leads_more(planes: pd.DataFrame) -> float:
    """Return the share of heads whose slow third of planes is more symbolic than its fast third, by mean lead."""
    lead = (planes["symbolic"] - planes["positional"]).groupby([planes["layer"], planes["head"], third(planes)]).mean()
    wide = lead.unstack()
    return float((wide["slow"] > wide["fast"]).mean())


def gathered(planes: pd.DataFrame) -> pd.DataFrame:
    """Return the resultant length of the directions of queries and of keys in each plane; 1 is one direction.

    >>> points = pd.DataFrame({"kind": "a", "frequency_id": 1, "role": ["key", "key", "query", "query"],
    ...                        "x": [1, 2, 1, -1], "y": [0, 0, 0, 0]})
    >>> gathered(points).round(2).to_dict("records")
    [{'key': 1.0, 'query': 0.0}]
    """
    direction = np.exp(1j * np.arctan2(planes["y"], planes["x"]))
    keys = [planes["kind"], planes["frequency_id"], planes["role"]]
    return pd.Series(direction, index=planes.index).groupby(keys).mean().abs().unstack("role").rename_axis(columns=None)


def sensitivity_table(sensitivity: pd.DataFrame, width: str, temperature: str) -> pd.DataFrame:
    """Return what each changed choice does to the heads: one row a choice and value.

    Columns: choice, value, positional, symbolic (medians over heads), r (Pearson's, over heads), rank_correlation (of
    symbolic less positional, with the default choices: statements, all swaps, this ``temperature``).

    Args:
        sensitivity: the study's table.
        width: tokens of a statement, as the table writes it.
        temperature: the study's, as the table writes it.

    Raises:
        InputError: the default choice is not in the table.
    """
    table = sensitivity.assign(lead=sensitivity["symbolic"] - sensitivity["positional"])
    default = table[(table["choice"] == "swaps") & (table["value"] == "all")]
    if default.empty:
        raise InputError("sensitivity: no rows with choice 'swaps' and value 'all'")
    default = default.set_index(HEAD)["lead"]
    rows = []
    for (choice, value), part in table.groupby(["choice", "value"], sort=False):
        lead = part.set_index(HEAD)["lead"]
        rows.append(
            {
                "choice": choice,
                "value": value,
                "positional": part["positional"].median(),
                "symbolic": part["symbolic"].median(),
                "r": part["positional"].corr(part["symbolic"]),
                "rank_correlation": lead.corr(default, method="spearman"),
                "default": (choice, value)
                in {("temperature", temperature), ("block size", width), ("boundary", "0"), ("swaps", "all")},
            }
        )
    return pd.DataFrame(rows)


def with_known(summary: pd.DataFrame, known: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return heads with ``known``: "previous-token", "induction" or "other".

    A head is known by the ``count`` largest of its kind; one that would be both goes with the larger attention.
    """
    table = summary.merge(known, on=HEAD)
    names = {"previous_token": "previous-token", "induction": "induction"}
    best = table[list(names)].idxmax(axis=1)
    top = {name: table[name].rank(ascending=False, method="first") <= count for name in names}
    kinds = pd.Series("other", index=table.index)
    for name, label in names.items():
        other = next(n for n in names if n != name)
        kinds[top[name] & ((best == name) | ~top[other])] = label
    return table.assign(known=kinds)


def known_difference(table: pd.DataFrame, first: str = "previous-token", second: str = "induction") -> Estimate:
    """Return how far ``lead`` tells two kinds of known head apart: see
    `possym.profiling.statistics.rank_difference`."""
    rows = table[table["known"].isin([first, second])]
    return rank_difference(rows.assign(inside=rows["known"] == second), "lead", "inside")


def own_effects(knob: pd.DataFrame) -> pd.DataFrame:
    """Return what known heads lose when a band is silenced in them alone, two rows: previous-token and induction heads.

    Columns: heads, measure (the attention that these heads are known by), own (the band of their kind: positional or
    symbolic), own_change, other_change (of the measure, by their own and by the other band), random_change (mean over
    random bands), beaten (random bands that take less than their own band does), draws (random bands).
    """
    rows = []
    for measure, own, other in (("previous_token", "positional", "symbolic"), ("induction", "symbolic", "positional")):
        heads = f"{measure.replace('_', '-')} heads"
        effects = knob_effects(knob, heads)
        change = effects[effects["measure"] == measure].set_index("band")["change"]
        row = {"heads": heads, "measure": measure, "own": own, "own_change": change[own], "other_change": change[other]}
        random = change["random"]
        rows.append(
            row | {"random_change": random.mean(), "beaten": int((random > change[own]).sum()), "draws": len(random)}
        )
    return pd.DataFrame(rows)


def knob_effects(knob: pd.DataFrame, heads: str = "all", how: str = "silence") -> pd.DataFrame:
    """Return the change of every measure against the unedited model: band, draw, measure, value, base, change."""
    base = knob[knob["band"] == "none"].iloc[0]
    rows = knob[(knob["heads"] == heads) & (knob["how"] == how)]
    if rows.empty:
        raise InputError(f"heads = {heads!r}, how = {how!r}: no such edits in the table")
    long = rows.melt(["band", "draw", "frequencies"], list(MEASURES), "measure", "value")
    long["base"] = [base[name] for name in long["measure"]]
    return long.assign(change=long["value"] - long["base"])
