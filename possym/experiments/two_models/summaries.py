"""What the tables of two models say: means over prompts, full against sliding layers, and what another base changes."""

import itertools

import numpy as np
import pandas as pd

from possym.errors import InputError
from possym.experiments.real_models import HELD, PAPERS, SCALE_FREE
from possym.experiments.two_models.bases import FULL
from possym.profiling.statistics import Estimate

HEAD = ["layer", "head"]
DRAWS = 10_000


def mean_heads(
    heads: pd.DataFrame, model: str, condition: str = "own", blocks: str = HELD, form: str = SCALE_FREE
) -> pd.DataFrame:
    """Return means over prompts, one row per layer and head, with ``lead``, symbolic less positional.

    Raises:
        InputError: no such rows.
    """
    wanted = {"model": model, "condition": condition, "blocks": blocks, "form": form}
    rows = heads[(heads[list(wanted)] == list(wanted.values())).all(axis=1)]
    if rows.empty:
        raise InputError(f"{wanted}: no such rows in the table")
    table = rows.drop(columns=[*wanted, "prompt"]).groupby(HEAD).mean().reset_index()
    return table.assign(lead=table["symbolic"] - table["positional"])


def layer_leads(
    tables: dict[str, pd.DataFrame], model: str, condition: str = "own", blocks: str = HELD
) -> pd.DataFrame:
    """Return layer, kind and a layer's mean lead, positional and symbolic score, in the scale-free form."""
    means = mean_heads(tables["heads"], model, condition, blocks).groupby("layer")[["lead", "positional", "symbolic"]]
    layers = tables["layers"]
    return means.mean().reset_index().merge(layers.loc[layers["model"] == model, ["layer", "kind"]], on="layer")


def gap(leads: pd.DataFrame) -> float:
    """Return the mean lead of full layers less that of sliding ones.

    >>> gap(pd.DataFrame({"lead": [0.9, 0.1, 0.3], "kind": ["full", "sliding", "sliding"]}))
    0.7
    """
    full = leads["kind"] == FULL
    return float(leads.loc[full, "lead"].mean() - leads.loc[~full, "lead"].mean())


def gap_test(leads: pd.DataFrame) -> Estimate:
    """Return `gap` with an interval and a p-value.

    The interval is the 2.5 to 97.5 % range over draws of whole layers, with replacement within each kind. The p-value
    is two-sided and exact: of all ways to call so many layers full, the share with a gap at least as far from zero.

    >>> table = pd.DataFrame({"lead": [0.9, 0.1, 0.3, 0.2], "kind": ["full", "sliding", "sliding", "sliding"]})
    >>> gap_test(table).p_value
    0.25
    """
    value, values, full = gap(leads), leads["lead"].to_numpy(float), (leads["kind"] == FULL).to_numpy()
    chosen = np.array(list(itertools.combinations(range(len(values)), int(full.sum()))))
    inside = values[chosen].sum(1)
    gaps = inside / full.sum() - (values.sum() - inside) / (~full).sum()
    p = float((np.abs(gaps) >= abs(value) - 1e-12).mean())
    drawn = drawn_gaps(values, full)
    return Estimate(value, *map(float, np.percentile(drawn, [2.5, 97.5])), p)


def drawn_gaps(values: np.ndarray, full: np.ndarray) -> np.ndarray:
    """Return gaps over draws of whole layers within each kind; the same layers are drawn for any values."""
    random = np.random.default_rng(0)
    means = []
    for kind in (full, ~full):
        rows = np.flatnonzero(kind)
        means.append(values[random.choice(rows, size=(DRAWS, len(rows)))].mean(1))
    return means[0] - means[1]


def gap_change(tables: dict[str, pd.DataFrame], model: str, condition: str) -> Estimate:
    """Return by how much the gap shrinks from the model's own bases to a condition, layers drawn as wholes."""
    own, other = (layer_leads(tables, model, name, HELD) for name in ("own", condition))
    change = (own["lead"] - other["lead"]).to_numpy(float)
    drawn = drawn_gaps(change, (own["kind"] == FULL).to_numpy())
    return Estimate(gap(own) - gap(other), *map(float, np.percentile(drawn, [2.5, 97.5])))


def by_condition(tables: dict[str, pd.DataFrame], model: str) -> pd.DataFrame:
    """Return one row per condition: mean scores of full and sliding layers, gap, accuracy and loss on text."""
    rows = []
    conditions = tables["conditions"]
    for _, one in conditions[conditions["model"] == model].iterrows():
        leads = layer_leads(tables, model, one["condition"], HELD)
        means = leads.groupby("kind")[["positional", "symbolic"]].mean()
        rows.append(
            {
                "condition": one["condition"],
                **{f"{kind}, {score}": means.loc[kind, score] for kind in means.index for score in means},
                "gap": gap(leads) if leads["kind"].nunique() > 1 else np.nan,
                "text_loss": one["text_loss"],
            }
        )
    return pd.DataFrame(rows)


def of_random(tables: dict[str, pd.DataFrame], model: str, blocks: str, form: str):
    """Return the rows of the models of random weights of one model's shape, grouped by random model."""
    random = tables["random"]
    rows = random[(random["model"] == model) & (random["blocks"] == blocks) & (random["form"] == form)]
    return rows.groupby(["weights", "number"])


def random_correlations(tables: dict[str, pd.DataFrame], model: str) -> pd.Series:
    """Return Pearson's r of both scores over the heads of each model of random weights, as `papers_form` has them."""
    groups = of_random(tables, model, "statements", PAPERS)
    return pd.Series({key: part["positional"].corr(part["symbolic"]) for key, part in groups})


def random_gaps(tables: dict[str, pd.DataFrame], model: str) -> pd.Series:
    """Return the gap between full and sliding layers of each model of random weights, each layer with its own base."""
    found, layers = {}, tables["layers"]
    kinds = layers.loc[layers["model"] == model, ["layer", "kind"]]
    for key, part in of_random(tables, model, HELD, SCALE_FREE):
        leads = (part["symbolic"] - part["positional"]).groupby(part["layer"]).mean().rename("lead").reset_index()
        found[key] = gap(leads.merge(kinds, on="layer"))
    return pd.Series(found)


def papers_form(heads: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return `mean_heads` as the papers' claims are judged: statements as blocks, the papers' form."""
    return mean_heads(heads, model, "own", "statements", PAPERS)
