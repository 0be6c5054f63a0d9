"""A profile as one HTML file for a colleague: charts, coverage, settings, and an explanation of the scores.

Several profiles of the same prompts, as of checkpoints, become one file with a slider. `report.html` is the page and
`report.js` its script; neither loads anything else.
"""

import itertools
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from possym.capture import Capture, LayerInputs
from possym.errors import InputError, require_type
from possym.profiling.compare import compare
from possym.profiling.identity import config_hash, has_weights
from possym.profiling.profile import Profile, counted
from possym.profiling.steps import changes, in_order, spelt
from possym.results import atomic_write, writing

SHOWN = ("positional", "symbolic", "entropy", "purity", "attention_moved", "positional_sd", "symbolic_sd")
MOST_HEADS, MOST_PROMPTS, MOST_TOKENS = 12, 3, 64  # of the token view: a megabyte and a third at most
MOST_SPREAD = 40  # prompts whose scores are shown one by one
CITE = (
    "The possym authors. possym: positional and symbolic attention heads in RoPE transformers, version {version}, "
    "2026.",
    "Urrutia, Salas, Kozachinskiy, Buc Calderon, Pasten, Rojas. Decoupling Positional and Symbolic Attention Behavior "
    "in Transformers. arXiv:2511.11579, 2025.",
    "Urrutia, Alegría, Sanchez Macias, Salas, Calderon, Rojas. Positional versus Symbolic Attention Heads: Learning "
    "Dynamics, RoPE Geometry, and Length Generalization. arXiv:2605.31558, 2026.",
)


def write_report(
    profile: Profile | Mapping[Any, Profile],
    path: str | os.PathLike,
    *,
    model: nn.Module | None = None,
    tokenizer: Any = None,
    title: str | None = None,
) -> Path:
    """Write a profile as one self-contained HTML file, whole or not at all.

    Args:
        profile: what `possym.profile` returned; or several of the same prompts by step, as of checkpoints, two or more:
            a slider goes from step to step and shows which heads changed since the first.
        path: the file; one that is there is replaced.
        model: the profiled model, of several the last, for the token view: the attention of each token, and that of the
            last token after a swap of two others, for the 12 heads with the highest scores and 3 prompts of at most 64
            tokens.
        tokenizer: spells the tokens of the token view; ids are shown without one.
        title: the page's title; the model's name without one.

    Returns:
        The file's path.

    Raises:
        InputError: arguments of other types; ``model`` has other weights than the profiled one; profiles that cannot
            be compared.
        ResultsError: the file cannot be written.

    >>> import tempfile, possym
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> model = LlamaForCausalLM(config)
    >>> found = possym.profile(model, [[3, 14, 15, 9, 2]], progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(found, f"{folder}/report.html", model=model).name
    'report.html'
    """
    require_type(profile, (Profile, Mapping), "profile")
    steps = [(None, profile)] if isinstance(profile, Profile) else in_order(profile)
    require_type(path, (str, os.PathLike), "path")
    require_type(title, (str, type(None)), "title")
    require_type(model, (nn.Module, type(None)), "model")
    if tokenizer is not None and not hasattr(tokenizer, "convert_ids_to_tokens"):
        raise InputError(f"tokenizer is a {type(tokenizer).__name__}: give the model's tokenizer")
    if model is not None and not is_profiled(model, steps[-1][1].settings):
        raise InputError("model has other weights than the profiled one: give the model that the profile was made of")
    page, script = (
        files("possym.profiling").joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "js")
    )
    text = json.dumps(contents(steps, model, tokenizer, title), separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")  # in a prompt it would end the script that holds the data
    path = Path(os.path.expanduser(path))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as new:
        new.write_text(page.replace("POSSYM_SCRIPT", script).replace("POSSYM_DATA", text, 1), encoding="utf-8")
    return path


def is_profiled(model: nn.Module, settings: Mapping[str, Any]) -> bool:
    """Return whether a model is the one that a profile was made of, as far as can be told.

    A quantised one may pack its weights anew in its first pass, as bitsandbytes does on a CPU, so that of such a model
    the configuration counts alone.
    """
    if getattr(model, "is_quantized", False):
        return config_hash(model.config) == settings.get("config")
    return has_weights(model, settings.get("weights"))


def contents(
    steps: list[tuple[Any, Profile]], model: nn.Module | None, tokenizer: Any, title: str | None
) -> dict[str, Any]:
    """Return what the page shows, as JSON has it."""
    profile = steps[-1][1]
    summary = profile.summary()
    keys = [name for name in ("layer", "pass", "head") if name in summary]
    heads = [
        {name: int(row[name]) for name in keys} | {name: short(row[name]) for name in SHOWN}
        for row in summary.to_dict("records")
    ]
    strongest = summary[["positional", "symbolic"]].max(axis=1).where(summary.attention_moved >= 0.05, -1.0)
    order = strongest.sort_values(ascending=False, kind="stable").index.tolist()
    views, rows = ([], {}) if model is None else token_views(profile, model, tokenizer, summary, order[:MOST_HEADS])
    lengths = profile.prompts.tokens
    span = str(lengths.min()) if lengths.nunique() == 1 else f"{lengths.min()} to {lengths.max()}"
    settings = profile.settings
    about = f"of {settings['model']}" if len(steps) == 1 else f"from {spelt(steps[0][0])} to {spelt(steps[-1][0])}"
    return {
        "title": title or f"Attention heads {about}",
        "about": f"{counted(len(heads), 'head')} of {settings['model']}, means over "
        f"{counted(profile.prompts.prompt.nunique(), 'prompt')} of {span} tokens.",
        "heads": heads,
        "shown": SHOWN,
        "prompts": by_prompt(profile.heads, keys),
        "steps": step_by_step(steps),
        "changes": as_rows(changes(dict(steps))) if len(steps) > 1 else None,
        "first": order[0],
        "has_frequencies": len(profile.frequencies) > 0,
        "frequencies": by_frequency(profile.frequencies, summary, keys),
        "views": views,
        "rows": rows,
        "no_view": "Not in this file: write the report with model= and prompts of at most 64 tokens to see it here.",
        "coverage": alike_layers(profile.coverage),
        "settings": [[name, str(value)] for name, value in settings.items()],
        "cite": [line.format(version=settings.get("possym", "")) for line in CITE],
    }


def by_frequency(table: pd.DataFrame, summary: pd.DataFrame, keys: list[str]) -> list[dict | None]:
    """Return the mean scores by frequency ID of each head of a summary in thousandths, None for a head without."""
    if table.empty:
        return [None] * len(summary)
    means = table.groupby([*keys, "frequency_id"])[["positional", "symbolic"]].mean()
    groups = dict(iter(means.groupby(level=keys)))
    found = [groups.get(tuple(row)) for row in summary[keys].itertuples(index=False)]
    return [None if one is None else {score: thousandths(one[score]) for score in one.columns} for one in found]


def by_prompt(table: pd.DataFrame, keys: list[str]) -> dict[str, list]:
    """Return both scores of each head on each of the first prompts, means over queries, in thousandths."""
    some = table[table.prompt.isin(table.prompt.unique()[:MOST_SPREAD])]
    means = some.groupby([*keys, "prompt"])[["positional", "symbolic"]].mean()
    return {score: [thousandths(row) for row in means[score].unstack("prompt").to_numpy()] for score in means}


def step_by_step(steps: list[tuple[Any, Profile]]) -> list[dict[str, Any]]:
    """Return what each of several steps shows: its heads' values and which changed; nothing for a single profile."""
    found: list[dict[str, Any]] = []
    for step, each in steps if len(steps) > 1 else []:
        values = each.summary()[list(SHOWN)].to_numpy(dtype=float).tolist()
        changed = compare(steps[0][1], each).changed.index.tolist()
        told = f"{spelt(step)}: {counted(len(changed), 'head')} changed since {spelt(steps[0][0])} (p < 0.05)"
        told = told if found else f"{spelt(step)}, the first"
        found.append({"told": told, "changed": changed, "heads": [[short(value) for value in row] for row in values]})
    return found


def as_rows(table: pd.DataFrame) -> dict[str, list]:
    """Return a table as the page has it."""
    rows = [[in_words(value) for value in row] for row in table.itertuples(index=False)]
    return {"columns": list(table), "rows": rows}


def alike_layers(coverage: pd.DataFrame) -> dict[str, list]:
    """Return a coverage as the page has it, neighbouring layers that are read alike in one row.

    Of their self-checks it has the worst. Columns that hold nothing are left out.

    >>> table = pd.DataFrame({"layer": [0, 1, 2], "planes": [4, 4, 8], "self_check": [1e-6, 3e-6, 2e-6]})
    >>> alike_layers(table)["rows"]
    [['0–1', '4', '3e−06'], ['2', '8', '2e−06']]
    """
    there = coverage.dropna(axis=1, how="all")
    facts = as_rows(there.drop(columns=["layer", "self_check"], errors="ignore"))
    rows = []
    for said, group in itertools.groupby(range(len(there)), key=facts["rows"].__getitem__):
        some = there.iloc[list(group)]
        low, high = some.layer.iloc[0], some.layer.iloc[-1]
        worst = [in_words(some.self_check.max())] if "self_check" in there else []
        rows.append([str(low) if low == high else f"{low}–{high}", *said, *worst])
    return {"columns": ["layer", *facts["columns"], *(["self_check"] if "self_check" in there else [])], "rows": rows}


def token_views(
    profile: Profile, model: nn.Module, tokenizer: Any, summary: pd.DataFrame, chosen: list[int]
) -> tuple[list[dict], dict[str, dict]]:
    """Return some prompts, and of some heads the logit of every token at every position, by ``prompt:head``."""
    capture, views = Capture(model), []
    rows: dict[str, dict] = {}
    if "pass" in summary:  # a layer that runs several times has several logits
        return [], {}
    short = [ids for ids in profile.inputs[["prompt", "token_ids"]].itertuples(index=False) if 3 <= len(ids[1])]
    short = [one for one in short if len(one[1]) <= MOST_TOKENS][:MOST_PROMPTS]
    for view, (prompt, ids) in enumerate(short):
        spelt = [str(one) for one in (ids if tokenizer is None else tokenizer.convert_ids_to_tokens(ids))]
        if tokenizer is not None:
            spelt = [tokenizer.decode([one]) or raw for one, raw in zip(ids, spelt, strict=True)]

        def visit(inputs: LayerInputs, view: int = view, last: int = len(ids) - 1) -> None:
            for at in chosen:
                if summary.layer[at] != inputs.layer:
                    continue
                one = slice(int(summary["head"][at]), int(summary["head"][at]) + 1)
                relocated, extra = inputs.relocated_logits(one)[0, 0], inputs.extra_logits(one)[0, 0]
                row = rows.setdefault(f"{view}:{at}", {"attention": []})
                if inputs.query_position < last:
                    seen = torch.cat([inputs.moved, inputs.unmoved])
                    shares = torch.cat([relocated.diagonal(), extra]).softmax(-1)[: len(seen)]
                    whole = torch.zeros(inputs.query_position + 1).index_put_((seen.cpu(),), shares.float().cpu())
                    row["attention"].append(thousandths(whole))
                else:
                    moved, unmoved = inputs.moved.tolist(), inputs.unmoved.tolist()
                    row |= dict(relocated=rounded(relocated), extra=rounded(extra), moved=moved, unmoved=unmoved)

        layers = sorted(set(summary.layer[chosen].tolist()))
        capture.run(torch.tensor(ids), visit, query=range(1, len(ids)), layers=layers)
        views.append({"prompt": int(prompt), "tokens": spelt})
    return views, rows


def in_words(value: Any) -> str:
    """Return a cell of a table as a reader sees it.

    >>> in_words(float("nan")), in_words(-2.4e-7), in_words(12), in_words("direct")
    ('', '−2.4e−07', '12', 'direct')
    """
    if pd.isna(value):
        return ""
    return f"{value:.3g}".replace("-", "−") if isinstance(value, float) else str(value)


def rounded(logits: torch.Tensor) -> list:
    """Return logits to three digits after the point."""
    return [rounded(row) if row.ndim else round(row.item(), 3) for row in logits]


def thousandths(values: Any) -> list[int | None]:
    """Return scores or shares in whole thousandths, None for NaN.

    >>> thousandths([0.1234567, 1.0, float("nan")])
    [123, 1000, None]
    """
    return [None if pd.isna(value) else round(1000 * float(value)) for value in values]


def short(value: Any) -> float | None:
    """Return a number to five digits after the point, None for NaN.

    >>> short(0.1234567), short(float("nan"))
    (0.12346, None)
    """
    return None if pd.isna(value) else round(float(value), 5)
