"""Checking this book's numbers: what is stored and what it took, one study against another, stored heads scored again.

- `stored` lists every stored result with device, time and hash;
- `whole_build` says what one command that computed everything anew took, job by job;
- `differences` sets two results of a study side by side;
- `rescored` scores the heads of a stored model anew, on sequences that no stored number has seen.
"""

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import torch

from possym.errors import InputError, ResultsError, require_type
from possym.experiments import learning_dynamics
from possym.results import Study, load, results_root


def stored() -> pd.DataFrame:
    """Return every stored result, its files checked against their hashes, one row each.

    Returns:
        DataFrame with columns study, result (the name of its folder), device, seconds, seeds (how many), megabytes,
        date, commit, configuration (its hash).

    Raises:
        ResultsError: nothing is stored, or a file is missing or altered.

    >>> stored().loc[0, ["study", "result"]].tolist()
    ['canonical', 'paper']
    """
    rows = []
    for path in sorted(results_root().glob("*/*/manifest.json")):
        manifest = load(path.parent).manifest
        rows.append(
            {
                "study": manifest["experiment"],
                "result": path.parent.name,
                "device": manifest["device"],
                "seconds": manifest["seconds"],
                "seeds": len(manifest["seeds"]),
                "megabytes": sum(entry["bytes"] for entry in manifest["files"].values()) / 1e6,
                "date": manifest["started"][:10],
                "commit": (manifest["commit"] or "unknown")[:10],
                "configuration": manifest["config_hash"],
            }
        )
    if not rows:
        raise ResultsError(f"nothing is stored in {results_root()}: run a study, or set POSSYM_RESULTS to a store")
    return pd.DataFrame(rows)


def whole_build() -> tuple[dict[str, Any], pd.DataFrame]:
    """Return what computing the whole book anew took when it was last done by one command.

    Returns:
        Facts (command, device, how many devices and cores, date, commit, torch, seconds from start to end), and a
        DataFrame with one row a job: kind (study, chapter, page, site), name, seconds, gigabytes (of memory).

    >>> facts, jobs = whole_build()
    >>> facts["command"], jobs["kind"].unique().tolist()
    ('make book PRESET=paper COMPUTE=always', ['study', 'chapter', 'page', 'site'])
    """
    facts = json.loads(files("possym").joinpath("data/cuda_build.json").read_text(encoding="utf-8"))
    jobs = pd.DataFrame(facts.pop("jobs"))
    return facts, jobs


def differences(one: Study, other: Study) -> pd.DataFrame:
    """Return how two results of one study differ, a row for each column of each table.

    Args:
        one: a result.
        other: another of the same study; the same configuration on another machine, or another seed.

    Returns:
        DataFrame with columns table, column, rows, largest (absolute difference of numbers; for words and truth values,
        1 if any entry differs, else 0; NaN where one entry is missing and the other is not), size (largest absolute
        value in ``one``, 1 for words).

    Raises:
        InputError: tables, columns or numbers of rows that do not match.

    >>> one, other = (Study({"scores": pd.DataFrame({"layer": [0, 1], "score": [0.5, x]})}) for x in (0.25, 0.75))
    >>> differences(one, other)["largest"].tolist()
    [0.0, 0.5]
    """
    require_type(one, Study, "one")
    require_type(other, Study, "other")
    if one.tables.keys() != other.tables.keys():
        raise InputError(f"tables {', '.join(one.tables)} and {', '.join(other.tables)}: give results of one study")
    rows = []
    for name, table in one.tables.items():
        second = other.tables[name]
        if list(table) != list(second) or len(table) != len(second):
            raise InputError(
                f"table {name!r} has {len(table)} rows of {', '.join(table)} and {len(second)} of {', '.join(second)}: "
                "give results with the same sizes"
            )
        for column in table:
            a, b = table[column].to_numpy(), second[column].to_numpy()
            if np.issubdtype(a.dtype, np.number) and np.issubdtype(b.dtype, np.number):
                a, b = a.astype(float), b.astype(float)
                same = (a == b) | (np.isnan(a) & np.isnan(b))
                gap = np.abs(np.subtract(a, b, out=np.zeros_like(a), where=~same))
                size = np.abs(a[np.isfinite(a)]).max(initial=0.0)
            else:
                pairs = zip(table[column], second[column], strict=True)
                gap = np.array([str(x) != str(y) for x, y in pairs], float)
                size = 1.0
            rows.append([name, column, len(table), float(gap.max(initial=0.0)), float(size)])
    return pd.DataFrame(rows, columns=["table", "column", "rows", "largest", "size"])


def rescored(
    study: Study, config: learning_dynamics.Config, task: str, *, sequences: int = 500, seed: int = 1
) -> pd.DataFrame:
    """Return the stored scores of the first model of a task beside scores that its stored weights give now.

    Args:
        study: a result of `possym.experiments.learning_dynamics`.
        config: its configuration.
        task: ``"number"`` or ``"letter"``.
        sequences: how many new sequences to score on.
        seed: of the new sequences.

    Returns:
        DataFrame, one row a layer and score: layer, score, stored, again, apart (their distance in standard errors, of
        both means together, from the stored standard deviation over sequences; scores that do not vary are taken to
        be known to 0.001).

    Raises:
        InputError: the study holds no such model, or sequences or seed is no whole number.
    """
    require_type(sequences, int, "sequences")
    require_type(seed, int, "seed")
    model = learning_dynamics.trained_model(study, config, task)
    draw = torch.Generator().manual_seed(seed)
    tokens = learning_dynamics.draw(learning_dynamics.TASKS[task](), sequences, config.hops, draw).tokens
    again = learning_dynamics.score_heads(model, tokens, config.temperature)
    table = study.tables["scores"]
    last = table[(table["task"] == task) & (table["seed"] == config.seed) & (table["step"] == table["step"].max())]
    rows = []
    for name in ("positional", "symbolic"):
        found = again[name][0].flatten().tolist()
        for row, value in zip(last.to_dict("records"), found, strict=True):
            error = row[f"{name}_sd"] * (1 / config.scored_sequences + 1 / sequences) ** 0.5
            apart = abs(value - row[name]) / max(error, 1e-3)
            rows.append([row["layer"], name, row[name], value, apart])
    return pd.DataFrame(rows, columns=["layer", "score", "stored", "again", "apart"])
