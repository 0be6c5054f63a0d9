"""Checking this book's numbers: what is stored and what it took, and stored heads scored again.

- `stored` lists every stored result with device, time and hash;
- `whole_build` says what one command that computed everything anew took, job by job;
- `rescored` scores the heads of a stored model anew, on sequences that no stored number has seen.
"""

import json
from importlib.resources import files
from typing import Any

import pandas as pd
import torch

from possym.errors import ResultsError, require_type
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
    ['cache_plans', 'paper']
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
        DataFrame with one row per job: kind (study, chapter, page, site), name, seconds, gigabytes (of memory).

    >>> facts, jobs = whole_build()
    >>> facts["command"], jobs["kind"].unique().tolist()
    ('make book PRESET=paper COMPUTE=always', ['study', 'chapter', 'page', 'site'])
    """
    facts = json.loads(files("possym").joinpath("data/cuda_build.json").read_text(encoding="utf-8"))
    jobs = pd.DataFrame(facts.pop("jobs"))
    return facts, jobs


def rescored(study: Study, config: learning_dynamics.Config, task: str, *, sequences: int = 500) -> pd.DataFrame:
    """Return the stored scores of the first model of a task beside scores that its stored weights give now.

    Args:
        study: a result of `possym.experiments.learning_dynamics`.
        config: its configuration.
        task: ``"number"`` or ``"letter"``.
        sequences: how many new sequences to score on.

    Returns:
        DataFrame, one row per layer and score: layer, score, stored, again, apart (their distance in standard errors,
        of both means together, from the stored standard deviation over sequences; scores that do not vary are taken to
        be known to 0.001).

    Raises:
        InputError: the study holds no such model, or sequences is no whole number.
    """
    require_type(sequences, int, "sequences")
    model = learning_dynamics.trained_model(study, config, task)
    draw = torch.Generator().manual_seed(1)
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
