"""What the tables of `possym.experiments.real_models` say of heads, frequencies, ways of scoring, and edits.

Heads of one layer read the same input, so every interval comes from drawing whole layers, see `layer_interval`.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from possym.errors import InputError
from possym.experiments.real_models import FORMS, HELD, PAPERS
from possym.experiments.real_models.frequency_knob import ALL, KINDS, KNOWN_SETS, SETS
from possym.profiling.statistics import Estimate, area_under_curve, stability

HEAD = ["layer", "head"]
LARGE = 0.25  # the share of planes that counts as those with the largest logits
MEASURES = {
    "text_loss": "loss on text (nats per token)",
    "repeat_accuracy": "accuracy on the second saying",
    "binding_accuracy": "accuracy on bindings",
    "previous_token": "attention of previous-token heads",
    "induction": "attention of induction heads",
}


def of_task(table: pd.DataFrame, task: str, blocks: str, form: str = PAPERS) -> pd.DataFrame:
    """Return a task's rows with one kind of blocks, scored in one form.

    Raises:
        InputError: no such rows; the known ones are listed.
    """
    rows = table[(table["task"] == task) & (table["blocks"] == blocks) & (table["form"] == form)]
    if rows.empty:
        known = table[["task", "blocks", "form"]].drop_duplicates().agg(" by ".join, axis=1)
        raise InputError(f"task = {task!r}, blocks = {blocks!r}, form = {form!r}: known are {'; '.join(known)}")
    return rows


def mean_heads(heads: pd.DataFrame, task: str, blocks: str, form: str = PAPERS) -> pd.DataFrame:
    """Return means over prompts, one row per layer and head, with ``lead``, symbolic less positional.

    >>> rows = pd.DataFrame({"task": "t", "blocks": "b", "form": "papers", "prompt": [0, 1], "layer": 0, "head": 0,
    ...                      "positional": [0.2, 0.4], "symbolic": [0.9, 0.7]})
    >>> mean_heads(rows, "t", "b")["lead"].round(2).tolist()
    [0.5]
    """
    rows = of_task(heads, task, blocks, form)
    table = rows.drop(columns=["task", "blocks", "form", "prompt"]).groupby(HEAD).mean().reset_index()
    return table.assign(lead=lead(table))


def layer_interval(
    values: pd.Series, layers: pd.Series, statistic: Callable[[np.ndarray], float], draws: int = 1000
) -> Estimate:
    """Return a statistic of values and the 2.5 to 97.5 % range of it over draws of whole layers, with replacement.

    >>> layer_interval(pd.Series([1.0, 1.0, 1.0]), pd.Series([0, 1, 2]), np.median, draws=10)[:3]
    (1.0, 1.0, 1.0)
    """
    random = np.random.default_rng(0)
    values, (names, position) = values.to_numpy(float), np.unique(layers, return_inverse=True)
    groups = [values[position == number] for number in range(len(names))]
    drawn = random.integers(len(groups), size=(draws, len(groups)))
    spread = [statistic(np.concatenate([groups[number] for number in some])) for some in drawn]
    low, high = np.percentile(spread, [2.5, 97.5])
    return Estimate(float(statistic(values)), float(low), float(high))


def random_correlations(random: pd.DataFrame, form: str = PAPERS) -> pd.DataFrame:
    """Return Pearson's r of both scores over the heads of each model of random weights: weights, model, r."""
    groups = random[random["form"] == form].groupby(["weights", "model"])
    found = {key: part["positional"].corr(part["symbolic"]) for key, part in groups}
    return pd.Series(found, name="r").rename_axis(["weights", "model"]).reset_index()


def by_correctness(heads: pd.DataFrame, prompts: pd.DataFrame, task: str, blocks: str) -> dict[bool, pd.DataFrame]:
    """Return `mean_heads` over the prompts answered rightly (True) and wrongly (False), as far as there are any."""
    answered = prompts[prompts["task"] == task].set_index("prompt")["correct"]
    rows = of_task(heads, task, blocks)
    parts = {right: rows[rows["prompt"].map(answered).eq(right).fillna(False).astype(bool)] for right in (True, False)}
    return {right: mean_heads(part, task, blocks) for right, part in parts.items() if not part.empty}


def pure_heads(heads: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return how many heads are pure on a task, by form of the score, with the first token moved and held.

    Columns: positional, symbolic; rows: (form, blocks). Pure is one mean score at least 0.9 and the other at
    most 0.1.
    """
    found = {}
    for form in FORMS:
        for blocks in ("tokens", HELD):
            means = mean_heads(heads, task, blocks, form)[["positional", "symbolic"]]
            high, low = means >= 0.9, means <= 0.1
            found[form, blocks] = {
                "positional": int((high["positional"] & low["symbolic"]).sum()),
                "symbolic": int((high["symbolic"] & low["positional"]).sum()),
            }
    return pd.DataFrame(found).T.rename_axis(["form", "what changes places"])


def split_half(heads: pd.DataFrame, task: str, blocks: str) -> float:
    """Return Spearman's rank correlation of heads' ``lead`` between the even and the odd prompts."""
    rows = of_task(heads, task, blocks)
    halves = {str(odd): mean_heads(part, task, blocks) for odd, part in rows.groupby(rows["prompt"] % 2)}
    return float(stability(halves, "lead").set_index(["first", "second"])["rank_correlation"]["0", "1"])


def over_tasks(heads: pd.DataFrame) -> pd.DataFrame:
    """Return the rank correlation of heads' ``lead`` between every two tasks, no token held.

    See `possym.profiling.statistics.stability`.
    """
    kinds = heads.loc[heads["blocks"] != HELD, ["task", "blocks"]].drop_duplicates().itertuples(index=False)
    return stability({f"{task}, by {cut}": mean_heads(heads, task, cut) for task, cut in kinds}, "lead")


def with_large_logits(planes: pd.DataFrame, share: float = LARGE) -> pd.DataFrame:
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


def large_of_third(planes: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the planes of one third of the frequencies whose logits are in the largest quarter of that third."""
    return with_large_logits(planes[third(planes) == name])


def symbolic_lead(planes: pd.DataFrame) -> Estimate:
    """Return the median over planes of symbolic less positional, and its interval over draws of layers."""
    return layer_interval(lead(planes), planes["layer"], np.median)


def random_leads(planes: pd.DataFrame, name: str) -> pd.Series:
    """Return what `symbolic_lead` measures in one third of the frequencies, for each model of random weights."""
    models = planes.groupby(["weights", "model"])
    return pd.Series({key: lead(large_of_third(part, name)).median() for key, part in models})


def lead(planes: pd.DataFrame) -> pd.Series:
    """Return symbolic less positional."""
    return planes["symbolic"] - planes["positional"]


def slow_leads_more(planes: pd.DataFrame) -> float:
    """Return the share of heads whose slow third of planes is more symbolic than its fast third, by mean lead."""
    wide = lead(planes).groupby([planes["layer"], planes["head"], third(planes)]).mean().unstack()
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


def heads_whose_keys_gather(directions: pd.DataFrame, planes: pd.DataFrame) -> pd.DataFrame:
    """Return per head the mean resultant length of keys and of queries over the three planes with the largest logits.

    Args:
        directions: the study's table: layer, head, frequency_id, key, query.
        planes: layer, head, frequency_id, logit_norm, one row per plane.

    Returns:
        layer, head, key, query, more: whether keys gather more than queries do.
    """
    table = directions.merge(planes[[*HEAD, "frequency_id", "logit_norm"]], on=[*HEAD, "frequency_id"])
    place = table.groupby(HEAD)["logit_norm"].rank(ascending=False, method="first")
    means = table[place <= 3].groupby(HEAD)[["key", "query"]].mean().reset_index()
    return means.assign(more=means["key"] > means["query"])


def sensitivity_table(sensitivity: pd.DataFrame, width: str, temperature: str) -> pd.DataFrame:
    """Return what each changed choice does to the heads: one row per choice and value.

    Columns: choice, value, positional, symbolic (medians over heads), r (Pearson's, over heads), effective_swaps (mean
    over heads) and median_swaps, both NaN unless the choice is a temperature, and rank_correlation (of symbolic less
    positional, with the default choices: statements, all swaps, this ``temperature``).

    Args:
        sensitivity: the study's table.
        width: tokens of a statement, as the table writes it.
        temperature: the study's, as the table writes it.
    """
    table = sensitivity.assign(lead=lead(sensitivity))
    default = table[(table["choice"] == "swaps") & (table["value"] == "all")]
    default = default.set_index(HEAD)["lead"]
    rows = []
    for (choice, value), part in table.groupby(["choice", "value"], sort=False):
        by_head = part.set_index(HEAD)["lead"]
        rows.append(
            {
                "choice": choice,
                "value": value,
                "positional": part["positional"].median(),
                "symbolic": part["symbolic"].median(),
                "r": part["positional"].corr(part["symbolic"]),
                "effective_swaps": part["effective_swaps"].mean(),
                "median_swaps": part["effective_swaps"].median(),
                "rank_correlation": by_head.corr(default, method="spearman"),
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


def known_against_others(table: pd.DataFrame, kind: str, draws: int = 10_000) -> Estimate:
    """Return how likely a known head leads toward its own side more than another head does, any other head.

    That is the area under the curve, 0.5 by chance: induction heads should lead toward symbolic, previous-token heads
    toward positional. Its interval comes from drawing whole layers.

    Args:
        table: as `with_known` returns it.
        kind: "induction" or "previous-token".
        draws: of layers.

    >>> table = pd.DataFrame({"layer": [0, 0, 1, 1], "lead": [0.9, 0.1, 0.2, 0.8],
    ...                       "known": ["induction", "other", "other", "induction"]})
    >>> known_against_others(table, "induction", draws=100)[:3]
    (1.0, 1.0, 1.0)
    """
    sign = 1 if kind == "induction" else -1
    return area_under_curve(sign * table["lead"], table["known"] == kind, table["layer"], draws)


def own_effects(knob: pd.DataFrame) -> pd.DataFrame:
    """Return what known heads lose when a band is silenced in them alone, two rows: previous-token and induction heads.

    Columns: heads, measure (the attention that these heads are known by), own (the band of their kind: positional or
    symbolic), own_change, other_change (of the measure, by their own and by the other band), and of the random sets of
    frequencies whose logits are as large as the own band's: matched_change (their mean), draws (how many), beyond (how
    many take as much as the own band or more), p_value ((beyond + 1)/(draws + 1)), norm_low, norm_high (the range of
    their size over the band's).
    """
    rows = []
    for measure, heads in zip(KINDS, KNOWN_SETS, strict=True):
        (own,) = SETS[heads]
        (other,) = {*SETS[ALL]} - {own}
        effects = knob_effects(knob, heads)
        effects = effects[effects["measure"] == measure]
        change = effects.set_index("band")["change"]
        matched = effects[effects["band"] == f"matched {own}"]
        beyond = int((matched["change"] <= change[own]).sum())
        rows.append(
            {
                "heads": heads,
                "measure": measure,
                "own": own,
                "own_change": change[own],
                "other_change": change[other],
                "matched_change": matched["change"].mean(),
                "draws": len(matched),
                "beyond": beyond,
                "p_value": (beyond + 1) / (len(matched) + 1),
                "norm_low": matched["norm_ratio"].min(),
                "norm_high": matched["norm_ratio"].max(),
            }
        )
    return pd.DataFrame(rows)


def knob_effects(knob: pd.DataFrame, heads: str = "all", how: str = "silence") -> pd.DataFrame:
    """Return the change of every measure against the unedited model.

    Columns: band, draw, frequencies, norm_ratio, measure, value, base, change.
    """
    base = knob[knob["band"] == "none"].iloc[0]
    rows = knob[(knob["heads"] == heads) & (knob["how"] == how)]
    if rows.empty:
        raise InputError(f"heads = {heads!r}, how = {how!r}: no such edits in the table")
    long = rows.melt(["band", "draw", "frequencies", "norm_ratio"], list(MEASURES), "measure", "value")
    long["base"] = [base[name] for name in long["measure"]]
    return long.assign(change=long["value"] - long["base"])
