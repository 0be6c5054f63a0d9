"""What single kinds of heads are for: their slowest planes silenced by dose, or the heads knocked out.

- groups of query heads: the most symbolic, the most positional, and those of retrieval, which attend to a needle's
  answer; each with a ``matched`` arm, other heads of the same layers with the nearest norms of logits;
- `dose_table`: recall of needles with the slowest planes of a group silenced (or no longer turned), and with as many
  planes drawn at random;
- `knock_out_table`: probes without a group's output. ``look-up`` is recall (1 or 0 of each needle) and its loss
  (``look-up loss``); ``counting`` is by how many nats a line break is likelier where a row is due to end than where it
  is not, in rows of as many random tokens; ``text`` the loss on text.

Source: 2606.21249 for retrieval heads and doses; counting against look-up is ours.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from possym.capture import Capture
from possym.capture.attention_call import AttentionCall
from possym.capture.edits import ablate_frequencies
from possym.experiments.cache_plans.subjects import Subject, losses
from possym.kv_cache.evaluation import needle
from possym.profiling import profile
from possym.results.progress import tqdm

if TYPE_CHECKING:
    from possym.experiments.cache_plans import Config

HEAD = ["layer", "head"]
GROUPS = ("symbolic", "retrieval", "positional")
PERIODS = (4, 6, 9)
ROWS = 8
Heads = Mapping[int, Sequence[int]]


def tables(subject: Subject, config: "Config") -> dict[str, pd.DataFrame]:
    """Return the tables kinds, groups, dose and knock_out of one subject."""
    kinds = kinds_of_heads(subject)
    groups = groups_of(kinds, max(1, round(config.group * len(kinds))))
    return {
        "kinds": kinds,
        "groups": groups,
        "dose": dose_table(subject, groups, config),
        "knock_out": knock_out_table(subject, groups, config),
    }


def kinds_of_heads(subject: Subject) -> pd.DataFrame:
    """Return layer, head, positional, symbolic, retrieval, norm of every query head, on the chosen sequences.

    ``retrieval`` is the attention from a needle's question to its answer, over needles at all depths; ``norm`` the
    root mean square deviation of the logits of a query on text.
    """
    count = subject.chosen.shape[1]
    found = profile(
        subject.model,
        subject.chosen,
        query=[[count // 2, count - 1]] * len(subject.chosen),
        hold="first",
        progress=False,
    )
    table = found.heads.groupby(HEAD, as_index=False)[["positional", "symbolic", "variance"]].mean()
    table["norm"] = table.pop("variance") ** 0.5
    depths = (0.1, 0.3, 0.5, 0.7, 0.9)
    capture, rows = Capture(subject.model), {}
    generator = torch.Generator().manual_seed(31)
    pairs = torch.randint(subject.vocabulary, (len(subject.chosen), 2), generator=generator)
    for depth in depths:
        start = 1 + round(depth * (count - 4))
        planted = subject.chosen.clone()
        planted[:, start : start + 2], planted[:, -1] = pairs, pairs[:, 0]

        def on_call(call: AttentionCall, answer: int = start + 1) -> None:
            found = call.attention([count - 1])[:, :, 0, answer].mean(0)
            rows.setdefault(call.layer, []).append(found.cpu())

        for some in planted.split(8):
            capture.forward(some.to(capture.device), on_call, [count - 1])
    attended = torch.cat([torch.stack(rows[layer]).mean(0) for layer in sorted(rows)])
    return table.assign(retrieval=attended.double().tolist())


def groups_of(kinds: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return group, arm, layer, head: ``count`` heads of each group, and for each a matched one of none.

    A matched head is of the same layer where one is left, else of the nearest layer, and there the one whose norm is
    nearest; it is neither in the group nor among the retrieval heads.
    """
    lead = kinds["symbolic"] - kinds["positional"]
    by = {"symbolic": lead, "retrieval": kinds["retrieval"], "positional": -lead}
    tops = {name: values.sort_values(ascending=False, kind="stable").index[:count] for name, values in by.items()}
    rows = []
    for name in GROUPS:
        free = kinds.drop(index=tops[name].union(tops["retrieval"]))
        rows += [(name, "group", *kinds.loc[number, HEAD]) for number in tops[name]]
        for number in tops[name]:
            own = kinds.loc[number]
            far = (free["layer"] - own["layer"]).abs() * 1e6 + (free["norm"] - own["norm"]).abs()
            if not len(far):
                break
            rows.append((name, "matched", *free.loc[far.idxmin(), HEAD]))
            free = free.drop(index=far.idxmin())
    found = pd.DataFrame(rows, columns=["group", "arm", *HEAD])
    return found.astype({"layer": "int64", "head": "int64"})


def heads_of(groups: pd.DataFrame, group: str, arm: str) -> dict[int, list[int]]:
    """Return layer → heads of one group's arm."""
    rows = groups[(groups["group"] == group) & (groups["arm"] == arm)]
    return {int(layer): some["head"].tolist() for layer, some in rows.groupby("layer")}


def recall(subject: Subject, config: "Config") -> pd.DataFrame:
    """Return depth, sequence, right, loss of needles in the evaluated text, at half its length."""
    length = subject.evaluated.shape[1] // 2
    text = subject.evaluated.repeat(-(-config.needles // len(subject.evaluated)), 1)[: config.needles]
    found = needle(subject.model, text, lengths=(length,), depths=subject.depths, seed=32, at_once=subject.at_once())
    return found[["depth", "sequence", "right", "loss"]]


def dose_table(subject: Subject, groups: pd.DataFrame, config: "Config") -> pd.DataFrame:
    """Return the recall of needles under every dose; dose counts planes."""
    planes = {number: len(layer.rope_layout.columns) for number, layer in Capture(subject.model).layers.items()}
    count = min(planes.values())
    doses = sorted({round(share * count) for share in config.doses})
    arms = [(group, arm, "slowest", "silence") for group in GROUPS for arm in ("group", "matched")]
    arms += [("retrieval", "group", "random", "silence"), ("symbolic", "group", "random", "silence")]
    arms += [(group, "group", "slowest", "unrotate") for group in GROUPS]
    intact, found = recall(subject, config), []
    generator = torch.Generator().manual_seed(33)
    order = torch.randperm(count, generator=generator).add(1).tolist()
    for group, arm, which, mode in tqdm(arms, desc=f"doses of {subject.name}", unit="arm", leave=False):
        heads = heads_of(groups, group, arm)
        for dose in doses:
            ids = order[:dose] if which == "random" else list(range(count - dose + 1, count + 1))
            rows = intact
            if ids and heads:
                with ablate_frequencies(subject.model, ids, heads=heads, mode=mode):
                    rows = recall(subject, config)
            found.append(rows.assign(group=group, arm=arm, planes=which, mode=mode, dose=dose))
    table = pd.concat(found, ignore_index=True)
    return table[["group", "arm", "planes", "mode", "dose", "depth", "sequence", "right", "loss"]]


@contextmanager
def knocked_out(model: nn.Module, heads: Heads) -> Iterator[None]:
    """Run a model of the Llama kind without the output of some query heads, layer → heads; afterwards it is whole."""
    modules = {m.layer_idx: m for m in model.modules() if hasattr(m, "o_proj") and hasattr(m, "layer_idx")}

    def silence(layer: int):
        columns = torch.tensor(list(heads[layer]))
        width = modules[layer].head_dim

        def hook(module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
            mixed = args[0].unflatten(-1, (-1, width)).clone()
            mixed[..., columns.to(mixed.device), :] = 0
            return (mixed.flatten(-2),)

        return hook

    handles = [modules[layer].o_proj.register_forward_pre_hook(silence(layer)) for layer in heads]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def rows_of_random_tokens(count: int, period: int, vocabulary: int, separator: int, seed: int) -> Tensor:
    """Return (count, ROWS · (period + 1)) token ids: rows of ``period`` random tokens, none twice, then the separator.

    >>> rows_of_random_tokens(1, 2, 50, 7, seed=0)[0].view(ROWS, 3)[:, 2].unique().tolist()
    [7]
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        order = torch.randperm(vocabulary, generator=generator)
        tokens = order[order != separator][: ROWS * period].view(ROWS, period)
        found.append(torch.cat([tokens, torch.full((ROWS, 1), separator)], 1).flatten())
    return torch.stack(found)


@torch.no_grad()
def counting(subject: Subject, count: int) -> Tensor:
    """Return (count,) by how many nats the separator is likelier where a row is due to end than elsewhere.

    Means over the last half of the rows, then over `PERIODS`: only how many tokens have passed tells where it is due.
    """
    found = []
    for period in PERIODS:
        rows = []
        tokens = rows_of_random_tokens(count, period, subject.vocabulary, subject.separator, seed=34)
        first = tokens[:, :0] if subject.beginning is None else torch.full_like(tokens[:, :1], subject.beginning)
        for some in torch.cat([first, tokens], 1).to(subject.device).split(16):
            logits = subject.model(input_ids=some, use_cache=False).logits[:, first.shape[1] :].float()
            likely = logits.log_softmax(-1)[..., subject.separator].unflatten(1, (ROWS, period + 1))[:, ROWS // 2 :]
            # What follows token k of a row is the separator for the last of the random tokens alone.
            rows.append((likely[..., period - 1] - likely[..., : period - 1].mean(-1)).mean(1).cpu())
        found.append(torch.cat(rows))
    return torch.stack(found).mean(0)


def probes(subject: Subject, config: "Config") -> pd.DataFrame:
    """Return probe, sequence, value of every probe."""
    found = recall(subject, config)
    parts = {
        "look-up": found.groupby("sequence")["right"].mean().tolist(),
        "look-up loss": found.groupby("sequence")["loss"].mean().tolist(),
        "counting": counting(subject, config.counted).tolist(),
        "text": losses(subject, subject.evaluated).mean(1).tolist(),
    }
    rows = [(name, n, float(value)) for name, values in parts.items() for n, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["probe", "sequence", "value"])


def knock_out_table(subject: Subject, groups: pd.DataFrame, config: "Config") -> pd.DataFrame:
    """Return every probe of the intact model (group and arm "none") and without each group's arm."""
    found = [probes(subject, config).assign(group="none", arm="none")]
    for group in GROUPS:
        for arm in ("group", "matched"):
            with knocked_out(subject.model, heads_of(groups, group, arm)):
                found.append(probes(subject, config).assign(group=group, arm=arm))
    table = pd.concat(found, ignore_index=True)
    return table[["group", "arm", "probe", "sequence", "value"]].replace({"value": {np.inf: np.nan}})
