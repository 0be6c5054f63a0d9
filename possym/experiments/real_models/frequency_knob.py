"""What a model can still do with bands of its RoPE frequencies taken away.

A band is silenced or stopped (`possym.capture.edits`) in all heads, or silenced in known heads alone. Beside the bands
that score most symbolic and most positional stand random sets of frequencies whose logits, in the heads that are
edited, are of the same size: how many planes it takes to reach that size is left free.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from possym.capture import Capture
from possym.capture.attention_call import AttentionCall
from possym.capture.edits import choose_heads, edited
from possym.capture.hooks import attached
from possym.capture.known_heads import known_heads
from possym.results import ExperimentConfig
from possym.results.progress import tqdm

KINDS = ("previous_token", "induction")
SETS = {"all": ("symbolic", "positional"), "previous-token heads": ("positional",), "induction heads": ("symbolic",)}
ALL, *KNOWN_SETS = SETS  # what is edited, and the bands that have matched sets there
MODES = ("silence", "unrotate")
TOLERANCE = 0.05  # by which the logits of a matched band may differ in size
ABILITIES = ("text_loss", "repeat_loss", "repeat_accuracy", "binding_accuracy", "binding_log_probability", *KINDS)


class Material(NamedTuple):
    """What the edited model reads, all token ids.

    Attributes:
        text: (n, T) natural text.
        twice: (n, 2L) random tokens said twice.
        labels: (m, 2L) other random tokens said twice, by which known heads are known.
        bindings: (n, T) prompts of the binding task with their answers as last tokens.
    """

    text: Tensor
    twice: Tensor
    labels: Tensor
    bindings: Tensor


class Band(NamedTuple):
    """Frequencies to edit: what they are called, which draw, their IDs, and their logits' size over the band's own."""

    name: str
    draw: int
    ids: list[int]
    norm_ratio: float = 1.0


def knob(
    config: ExperimentConfig, model: Any, material: Material, frequencies: pd.DataFrame
) -> dict[str, pd.DataFrame]:
    """Return the known heads, and what the model can do with bands of frequencies edited."""
    known = known_heads(model, material.labels)
    top = {kind: known.nlargest(config.known_heads, kind) for kind in KINDS}
    sets: dict[str, dict[int, list[int]] | None] = {ALL: None}
    for name, rows in zip(KNOWN_SETS, top.values(), strict=True):
        sets[name] = rows.groupby("layer")["head"].apply(list).to_dict()
    todo = [
        (name, mode, band)
        for name, heads in sets.items()
        for mode in (MODES if heads is None else MODES[:1])
        for band in bands(config, frequencies, heads, SETS[name] if mode == "silence" else ())
    ]
    rows = [(ALL, "none", 0, "none", "", 1.0, *abilities(model, material, top))]
    for name, mode, band in tqdm(todo, desc="frequency knob", unit="edit"):
        found = abilities(model, material, top, sets[name], band.ids, mode, all_texts=name == ALL)
        rows.append((name, band.name, band.draw, mode, " ".join(map(str, band.ids)), band.norm_ratio, *found))
    columns = ["heads", "band", "draw", "how", "frequencies", "norm_ratio", *ABILITIES]
    return {"known": known, "knob": pd.DataFrame(rows, columns=columns)}


def bands(
    config: ExperimentConfig, frequencies: pd.DataFrame, heads: dict[int, list[int]] | None, matched: Sequence[str]
) -> list[Band]:
    """Return what is edited in some heads: bands by score, by speed in all heads, and random ones.

    Which frequencies score symbolic or positional is the mean over all heads of symbolic less positional. Each of the
    ``matched`` ones of these two bands has its own ``config.band_draws`` random sets, named after it.
    """
    lead = (frequencies["symbolic"] - frequencies["positional"]).groupby(frequencies["frequency_id"]).mean()
    size = min(config.band, len(lead) - 1)
    chosen = {"symbolic": lead.nlargest(size), "positional": lead.nsmallest(size)}
    found = [Band(name, 0, sorted(int(k) for k in rows.index)) for name, rows in chosen.items()]
    if heads is None:
        for start in range(0, len(lead) - size + 1, size):
            ids = [int(k) for k in lead.index[start : start + size]]
            found.append(Band(f"IDs {ids[0]} to {ids[-1]}", 0, ids))
    norms = logit_norms(frequencies, heads)
    for band in [band for band in found if band.name in matched]:
        generator = torch.Generator().manual_seed(config.seed)
        found += matched_bands(norms, band, config.band_draws, generator)
    return found


def logit_norms(frequencies: pd.DataFrame, heads: dict[int, list[int]] | None) -> pd.Series:
    """Return the sum over some heads, or all, of their planes' logit norms, by frequency ID."""
    if heads is not None:
        pairs = {(layer, head) for layer, some in heads.items() for head in some}
        inside = [pair in pairs for pair in zip(frequencies["layer"], frequencies["head"], strict=True)]
        frequencies = frequencies[inside]
    return frequencies.groupby("frequency_id")["logit_norm"].sum()


def matched_bands(norms: pd.Series, band: Band, draws: int, generator: torch.Generator) -> list[Band]:
    """Return random sets of frequencies with logits of a band's size.

    Frequencies are taken in random order until their norms come nearest to the sum of the band's. Sets within
    `TOLERANCE` are kept as they come, each once; the nearest others make up the number where there are too few.

    >>> norms = pd.Series([1.0, 2.0, 3.0, 6.0], index=[1, 2, 3, 4])
    >>> {tuple(one.ids) for one in matched_bands(norms, Band("a", 0, [4]), 1, torch.Generator().manual_seed(0))}
    {(1, 2, 3)}
    """
    target = norms[band.ids].sum()
    found: dict[tuple[int, ...], float] = {}
    for _ in range(50 * draws):
        order = norms.index[torch.randperm(len(norms), generator=generator).tolist()]
        total = norms[order].cumsum().iloc[:-1]  # a set of all frequencies is no band
        count = int((total - target).abs().argmin()) + 1
        ids = tuple(sorted(int(k) for k in order[:count]))
        if list(ids) != band.ids:
            found.setdefault(ids, float(total.iloc[count - 1] / target))
        if sum(abs(ratio - 1) <= TOLERANCE for ratio in found.values()) >= draws:
            break
    nearest = sorted(found.items(), key=lambda item: max(abs(item[1] - 1), TOLERANCE))[:draws]
    return [Band(f"matched {band.name}", draw, list(ids), ratio) for draw, (ids, ratio) in enumerate(nearest)]


def abilities(
    model: Any,
    material: Material,
    top: dict[str, pd.DataFrame],
    heads: dict[int, list[int]] | None = None,
    ids: list[int] | None = None,
    mode: str = MODES[0],
    *,
    all_texts: bool = True,
) -> tuple[float, ...]:
    """Return the numbers named in `ABILITIES`, with the frequencies ``ids`` of some heads, or all, edited.

    Without ``all_texts`` the model reads repeated tokens alone, and the numbers of other texts are NaN.

    The last two are the attention of the known heads to the position before, and to the position after the first
    saying, on sequences other than those that they are known by.
    """
    capture, half = Capture(model), material.twice.shape[1] // 2
    chosen = choose_heads(heads, capture.layers) if ids else {}
    wanted = {kind: list(zip(rows["layer"], rows["head"], strict=True)) for kind, rows in top.items()}
    layers = {layer for pairs in wanted.values() for layer, _ in pairs}
    attended, watched = dict.fromkeys(wanted, 0.0), False

    def on_call(call: AttentionCall) -> tuple[Tensor, Tensor] | None:
        edit = None
        if call.layer in chosen:
            edit = edited(call, capture.layers[call.layer], chosen[call.layer], ids, mode)
        if watched and call.layer in layers:
            weights = (call if edit is None else replace(call, query=edit[0], key=edit[1])).attention()
            ends = torch.arange(1, 2 * half), torch.arange(half, 2 * half)
            aims = {"previous_token": (ends[0], ends[0] - 1), "induction": (ends[1], ends[1] - half + 1)}
            for kind, (queries, keys) in aims.items():
                for head in (head for layer, head in wanted[kind] if layer == call.layer):
                    share = len(call.query) / len(material.twice) / len(wanted[kind])
                    attended[kind] += weights[:, head, queries, keys].mean().item() * share
        return edit

    with attached(model, on_call):
        text = answers = answered = torch.full((1, 1), torch.nan)
        if all_texts:
            text, _ = next_tokens(capture, material.text, material.text.shape[1] - 1)
            answers, answered = next_tokens(capture, material.bindings, 1)
        watched = True
        losses, right = next_tokens(capture, material.twice, half - 1)
    return (
        text.mean().item(),
        losses.mean().item(),
        right.double().mean().item(),
        answered.double().mean().item(),
        -answers.mean().item(),
        *(attended[kind] for kind in KINDS),
    )


def next_tokens(capture: Capture, tokens: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the loss (n, count) of each of the last tokens, in nats, and whether it was the model's first choice."""
    losses, right, length = [], [], tokens.shape[1]
    for some in tokens.split(max(1, 4096 // length)):
        some = some.to(capture.device)
        with torch.no_grad():
            output, _ = capture.call_model(some, range(length - 1 - count, length - 1))
        logits, wanted = output.float(), some[:, -count:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        losses.append(loss.view_as(wanted).cpu())
        right.append((logits.argmax(-1) == wanted).cpu())
    return torch.cat(losses), torch.cat(right)
