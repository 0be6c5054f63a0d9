"""Positional and symbolic heads of a real language model, and how much their scores owe to the way of scoring.

One model reads three kinds of prompt: bindings of names to attributes (statements are the blocks that change
places), repeated random tokens, and natural text that ships with Python. The query is the last token. The binding task
with ``reference`` pairs is the one on which the ways of scoring are varied; that with the fewest, which a small model
may solve, shows what an edited model can still do.

Tables of the study (scores are positional and symbolic; prompts, layers and heads count from 0):
- ``prompts``: task, prompt, tokens, predicted, correct; predicted is a token id, correct NA for natural text
- ``heads``: task, blocks, prompt, layer, head, positional, symbolic, entropy (nats), variance, bound
- ``frequencies``: task, blocks, layer, head, frequency_id, angle, and mean and ``_sd`` over prompts of positional,
  symbolic, logit_norm
- ``sensitivity``: choice, value, layer, head, positional, symbolic: means over the first prompts of the reference
  task, one choice changed at a time. ``choice`` "logits" holds A/(A + B) as symbolic and B/(A + B) as
  positional
- ``examples``: kind, layer, head, place, content, before, after: attention by statement on one prompt, before and
  after one permutation that puts statement ``content`` at ``place``
- ``planes``: kind, layer, head, frequency_id, role, place, token, x, y: queries and keys, before rotation, of two
  heads in the planes with the largest logits, on that prompt
- ``known``: layer, head, previous_token, induction: see `possym.capture.known_heads`
- ``knob``: heads, band, draw, how, frequencies, and what became of the model with those RoPE frequencies of those heads
  edited (see `possym.capture.edits`): text_loss, repeat_loss (nats a token), repeat_accuracy, binding_accuracy,
  binding_log_probability, and the attention that the known heads are known by, previous_token and induction. The band
  "none" is the model as it is
- ``coverage``: see `possym.capture.Capture`

Source: 2511.11579, section 4.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from possym.capture import Capture, LayerInputs
from possym.capture.attention_call import AttentionCall
from possym.capture.edits import ablate_frequencies, choose_heads, edited
from possym.capture.known_heads import known_heads, repeated_tokens
from possym.errors import ConfigError
from possym.models import hub, random_llama
from possym.profiling import profile
from possym.profiling.sensitivity import (
    block_logits,
    block_scores,
    logit_share,
    permutation_scores,
    rest_logits,
    subset_scores,
)
from possym.results import ExperimentConfig, Study, atomic_write, checkpoint_folder
from possym.rope import pairs, rotate_by
from possym.tasks.binding import Binding, BindingTask
from possym.tasks.text import text_hash, text_tokens

NAME = "real_models"
RANDOM = "random-llama"
HEAD_KEYS = ["layer", "head"]
SCORES = ["positional", "symbolic"]
REPEATED, TEXT = "repeated tokens", "natural text"
WAYS = ("silence", "unrotate")
ABILITIES = ("text_loss", "repeat_loss", "repeat_accuracy", "binding_accuracy", "binding_log_probability")


@dataclass(frozen=True, kw_only=True)
class Config(ExperimentConfig):
    """Settings of the study; ``prompts`` belongs to ``pairs``, one number each.

    ``model`` is a hub id, a folder, the default model's name, or ``"random-llama"``, a small Llama of random weights
    that is made on the spot.

    Raises:
        ConfigError: sizes that do not fit.

    >>> Config.preset_named("paper").pairs
    (8, 64, 256)
    """

    model: str = hub.DEFAULT
    dtype: str = "auto"
    pairs: tuple[int, ...] = (8, 64, 256)
    prompts: tuple[int, ...] = (64, 32, 16)
    reference: int = 64
    other_prompts: int = 16
    text_length: int = 256
    repeated_length: int = 64
    temperature: float = 0.1
    temperatures: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
    block_sizes: tuple[int, ...] = (1, 2, 8, 16, 32)
    sensitivity_prompts: int = 8
    permutations: int = 100
    query_places: int = 48
    band: int = 8
    band_draws: int = 8
    known_heads: int = 10

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "smoke": {
            "model": RANDOM,
            "pairs": (8, 16),
            "reference": 8,
            "prompts": (4, 3),
            "other_prompts": 3,
            "text_length": 32,
            "repeated_length": 12,
            "block_sizes": (1, 2, 8),
            "sensitivity_prompts": 2,
            "permutations": 10,
            "query_places": 6,
            "band": 1,
            "band_draws": 2,
            "known_heads": 3,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit before a model is loaded."""
        super().__post_init__()
        if self.dtype not in hub.DTYPES:
            raise ConfigError(f"dtype = {self.dtype!r}: known dtypes are {', '.join(hub.DTYPES)}")
        if not self.pairs or list(self.pairs) != sorted(set(self.pairs)) or self.pairs[0] < 8:
            raise ConfigError(f"pairs = {self.pairs}: give ascending numbers from 8")
        if len(self.prompts) != len(self.pairs):
            raise ConfigError(f"prompts = {self.prompts}: give one number for each of pairs = {self.pairs}")
        if self.reference not in self.pairs:
            raise ConfigError(f"reference = {self.reference}: give one of pairs = {self.pairs}")
        counts = ("other_prompts", "sensitivity_prompts", "permutations", "query_places", "band", "known_heads")
        for name, value in {"prompts": min(self.prompts), **{name: getattr(self, name) for name in counts}}.items():
            if value < 1:
                raise ConfigError(f"{name} = {value}: give whole numbers from 1")
        if self.band_draws < 2:
            raise ConfigError(f"band_draws = {self.band_draws}: give a whole number from 2")
        for name in ("text_length", "repeated_length"):
            if getattr(self, name) < 4:
                raise ConfigError(f"{name} = {getattr(self, name)}: give a whole number from 4")
        if not all(t > 0 for t in (self.temperature, *self.temperatures)):
            raise ConfigError(f"temperatures = {self.temperatures}: give positive numbers")
        if not all(size >= 1 for size in self.block_sizes):
            raise ConfigError(f"block_sizes = {self.block_sizes}: give numbers of tokens from 1")


class Task(NamedTuple):
    """Prompts of one kind: token ids (n, T), the ways to cut them into blocks by name, and answers (n,) or None."""

    tokens: Tensor
    blocks: dict[str, list[tuple[int, int]] | str]
    answers: Tensor | None


def run(config: Config) -> Study:
    """Profile the model, vary the way of scoring, edit frequencies; a run goes on after its last whole stage."""
    folder = checkpoint_folder(NAME, config)
    model, tokenizer = load(config, folder / "model")
    tasks, binding = draw(config, model, tokenizer)
    tables = {}
    names = ("heads", "frequencies", "prompts", "coverage")
    tables |= staged(folder, names, lambda: profiles(config, model, tasks))
    heads, frequencies = of_reference(tables["heads"], config), of_reference(tables["frequencies"], config)
    chosen = choose(heads)
    strongest = strongest_planes(frequencies, chosen)
    tables |= staged(folder, ("sensitivity",), lambda: {"sensitivity": sensitivity(config, model, binding)})
    tables |= staged(
        folder, ("examples", "planes"), lambda: examples(config, model, tokenizer, binding, chosen, strongest)
    )
    tables |= staged(folder, ("known", "knob"), lambda: knob(config, model, tasks, frequencies))
    return Study(tables, {}, {"text": text_hash(), "accuracy": accuracy(tables["prompts"])})


def binding_name(pairs: int) -> str:
    """Return a binding task's name.

    >>> binding_name(64)
    'binding, 64 pairs'
    """
    return f"binding, {pairs} pairs"


def of_reference(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Return the rows of the reference task with statements as blocks."""
    return table[(table["task"] == binding_name(config.reference)) & (table["blocks"] == "statements")]


def load(config: Config, folder: Path) -> hub.Loaded:
    """Return the model that the configuration names; a random one is written into ``folder`` first."""
    name = config.model
    if name == RANDOM:
        name = str(random_llama.save(folder, config.seed))
    return hub.load(name, device=config.device, dtype=config.dtype)


def draw(config: Config, model: Any, tokenizer: Any) -> tuple[dict[str, Task], Binding]:
    """Return the tasks by name, and the prompts of the reference task."""
    generator = torch.Generator().manual_seed(config.seed)
    tasks, reference = {}, None
    for count, prompts in zip(config.pairs, config.prompts, strict=True):
        batch = BindingTask(tokenizer, count).sample(prompts, generator=generator)
        cuts = {"statements": batch.blocks, "tokens": "tokens"}
        tasks[binding_name(count)] = Task(batch.tokens, cuts, batch.answer)
        reference = batch if count == config.reference else reference
    vocabulary = model.get_input_embeddings().weight.shape[0]
    twice = repeated_tokens(config.other_prompts, config.repeated_length, vocabulary, generator)
    # The last token is left out: it is the answer, seen once before.
    tasks[REPEATED] = Task(twice[:, :-1], {"tokens": "tokens"}, twice[:, -1])
    text = text_tokens(tokenizer, config.other_prompts, config.text_length)
    tasks[TEXT] = Task(text, {"tokens": "tokens"}, None)
    return tasks, reference


def staged(
    folder: Path, names: tuple[str, ...], make: Callable[[], dict[str, pd.DataFrame]]
) -> dict[str, pd.DataFrame]:
    """Return the tables that ``make`` makes, from ``folder`` where an earlier run has left them all."""
    paths = {name: folder / f"{name}.parquet" for name in names}
    if not all(path.exists() for path in paths.values()):
        for name, table in make().items():
            with atomic_write(paths[name]) as path:
                table.to_parquet(path, index=False)
    return {name: pd.read_parquet(path) for name, path in paths.items()}


def profiles(config: Config, model: Any, tasks: dict[str, Task]) -> dict[str, pd.DataFrame]:
    """Return the tables of all tasks; frequencies of the binding tasks alone."""
    heads, frequencies, prompts = [], [], []
    for name, task in tasks.items():
        for cut, blocks in task.blocks.items():
            found = profile(
                model,
                task.tokens,
                blocks=blocks,
                temperature=config.temperature,
                relative=False,  # the papers' own, by which their claims are judged
                per_frequency=name.startswith("binding"),
                answers=None if task.answers is None else task.answers.tolist(),
            )
            kept = found.heads.drop(columns=["query", "purity", "moved"])
            heads.append(shrunk(kept).assign(task=name, blocks=cut))
            if not found.frequencies.empty:
                frequencies.append(over_prompts(found.frequencies).assign(task=name, blocks=cut))
        prompts.append(found.prompts[["prompt", "tokens", "predicted", "correct"]].assign(task=name))
    return {
        "heads": pd.concat(heads, ignore_index=True),
        "frequencies": pd.concat(frequencies, ignore_index=True),
        "prompts": pd.concat(prompts, ignore_index=True),
        "coverage": found.coverage,
    }


def shrunk(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its numbers in 32 bits."""
    kinds = {"float64": "float32", "int64": "int32"}
    return table.astype({c: kinds[str(kind)] for c, kind in table.dtypes.items() if str(kind) in kinds})


def over_prompts(frequencies: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over prompts of every head's planes."""
    groups = frequencies.groupby([*HEAD_KEYS, "frequency_id"])
    measured = groups[[*SCORES, "logit_norm"]]
    parts = [groups["angle"].first(), measured.mean(), measured.std().add_suffix("_sd")]
    return shrunk(pd.concat(parts, axis=1).reset_index())


def accuracy(prompts: pd.DataFrame) -> dict[str, float]:
    """Return the share of prompts answered correctly, by task."""
    known = prompts.dropna(subset=["correct"])
    return known.groupby("task", sort=False)["correct"].mean().astype(float).round(4).to_dict()


def choose(heads: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Return the most positional, the most symbolic and the most uniform head (both scores high)."""
    rows = heads.groupby(HEAD_KEYS)[SCORES].mean()
    lead = rows["positional"] - rows["symbolic"]
    return {"positional": lead.idxmax(), "symbolic": lead.idxmin(), "uniform": rows.min(axis=1).idxmax()}


def strongest_planes(frequencies: pd.DataFrame, chosen: dict[str, tuple[int, int]], count: int = 3) -> dict:
    """Return, for the positional and the symbolic head, the IDs of the planes with the largest logits."""
    rows = frequencies.set_index(HEAD_KEYS)
    return {
        kind: rows.loc[[chosen[kind]]].nlargest(count, "logit_norm")["frequency_id"].tolist()
        for kind in ("positional", "symbolic")
    }


def sensitivity(config: Config, model: Any, binding: Binding) -> pd.DataFrame:
    """Return every head's scores under one changed choice at a time, means over prompts."""
    sums: dict[tuple[str, str], dict[int, Tensor | int]] = {}
    count = len(binding.tokens[: config.sensitivity_prompts])
    capture = Capture(model)
    generator = torch.Generator().manual_seed(config.seed)
    orders = torch.stack([torch.randperm(len(binding.blocks), generator=generator) for _ in range(config.permutations)])
    for prompt in range(count):

        def visit(inputs: LayerInputs, asked: int = int(binding.asked[prompt])) -> None:
            relocated, own = inputs.relocated_logits()[0], inputs.extra_logits()[0]
            for choice, scores in variants(config, relocated, own, binding.blocks, asked, orders):
                layers = sums.setdefault(choice, {})
                layers[inputs.layer] = layers.get(inputs.layer, 0) + torch.stack(scores, -1).cpu() / count

        capture.run(binding.tokens[prompt], visit)
    rows = [
        (*choice, layer, head, *scores)
        for choice, layers in sums.items()
        for layer, values in layers.items()
        for head, scores in enumerate(values.tolist())
    ]
    return shrunk(pd.DataFrame(rows, columns=["choice", "value", *HEAD_KEYS, *SCORES]))


def variants(config: Config, relocated: Tensor, own: Tensor, blocks: list, asked: int, orders: Tensor):
    """Yield ((choice, value), (positional, symbolic)) of relocated logits (…, N, N) for every way of scoring."""
    tau, (start, stop) = config.temperature, (blocks[0][0], blocks[-1][1])
    width = blocks[0][1] - blocks[0][0]
    logits, extra = block_logits(relocated, blocks), rest_logits(relocated, own, blocks)
    for temperature in config.temperatures:
        yield ("temperature", f"{temperature:g}"), block_scores(relocated, own, blocks, temperature)[:2]
    for size in sorted({*config.block_sizes, width}):
        if (stop - start) // size >= 2:
            cut = [(at, at + size) for at in range(start, stop - size + 1, size)]
            yield ("block size", f"{size}"), block_scores(relocated, own, cut, tau)[:2]
    for shift in range(width):
        moved = [(a + shift, b + shift) for a, b in blocks if b + shift <= stop]
        yield ("boundary", f"{shift}"), block_scores(relocated, own, moved, tau)[:2]
    everything = [(at, at + width) for at in range(0, relocated.shape[-1] - width + 1, width)]
    yield ("boundary", "from the first token"), block_scores(relocated, own, everything, tau)[:2]
    for name, pairs_ in swap_sets(len(blocks), asked).items():
        yield ("swaps", name), subset_scores(logits, extra, pairs_, tau * width)
    yield ("swaps", "whole permutations"), permutation_scores(logits, orders)
    share = logit_share(logits)
    yield ("logits", "blocks"), (1 - share, share)
    share = logit_share(relocated)
    yield ("logits", "tokens"), (1 - share, share)


def swap_sets(count: int, asked: int) -> dict[str, Tensor]:
    """Return sets of swaps of ``count`` blocks by name; ``asked`` is the block that the question is about."""
    every = torch.triu_indices(count, count, 1).T
    distance = every[:, 1] - every[:, 0]
    mine = (every == asked).any(1)
    tenth = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[: max(1, len(every) // 10)]
    return {
        "all": every,
        "a random tenth": every[tenth],
        "neighbours": every[distance == 1],
        "at least half apart": every[distance >= count // 2],
        "with the asked": every[mine],
        "without the asked": every[~mine],
    }


def examples(
    config: Config, model: Any, tokenizer: Any, binding: Binding, chosen: dict, strongest: dict
) -> dict[str, pd.DataFrame]:
    """Return attention by statement before and after a permutation, and queries and keys in planes, on prompt 0."""
    tokens, blocks = binding.tokens[0], binding.blocks
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(config.seed))
    names = tokenizer.convert_ids_to_tokens(tokens.tolist())
    attention, points = [], []

    def last(inputs: LayerInputs) -> None:
        for kind, (layer, head) in chosen.items():
            if layer == inputs.layer:
                some = slice(head, head + 1)
                before, after = permuted_attention(inputs, some, blocks, order)
                rows = enumerate(zip(order.tolist(), before.tolist(), after.tolist(), strict=True))
                attention.extend((kind, layer, head, place, *values) for place, values in rows)
                if kind in strongest:
                    key_head = head // (inputs.heads // inputs.keys.shape[1])
                    planes = pairs(inputs.keys[0, key_head], len(inputs.angles), "half")
                    collect(kind, "key", planes, range(len(names)))

    def collect(kind: str, role: str, planes: Tensor, places: Any) -> None:
        layer, head = chosen[kind]
        for number in strongest[kind]:
            for place, (x, y) in zip(places, planes[:, number - 1].tolist(), strict=True):
                points.append((kind, layer, head, number, role, place, names[place], x, y))

    def other(inputs: LayerInputs) -> None:
        for kind in strongest:
            if chosen[kind][0] == inputs.layer:
                content = query_content(inputs)[0, chosen[kind][1]]
                collect(kind, "query", pairs(content, len(inputs.angles), "half")[None], [inputs.query_position])

    capture = Capture(model)
    capture.run(tokens, last)
    for place in torch.linspace(2, len(tokens) - 1, config.query_places).long().unique().tolist():
        capture.run(tokens, other, query=place)
    columns = ["kind", *HEAD_KEYS]
    return {
        "examples": shrunk(pd.DataFrame(attention, columns=[*columns, "place", "content", "before", "after"])),
        "planes": shrunk(pd.DataFrame(points, columns=[*columns, "frequency_id", "role", "place", "token", "x", "y"])),
    }


def permuted_attention(inputs: LayerInputs, head: slice, blocks: list, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return one head's attention by block, (m,) each, before and after block ``order[b]`` came to place b."""
    relocated, own = inputs.relocated_logits(head)[0, 0], inputs.extra_logits(head)[0, 0]
    logits, extra = block_logits(relocated, blocks), rest_logits(relocated, own, blocks)
    count = len(blocks)
    order = order.to(logits.device)
    places = torch.arange(count, device=logits.device)
    return tuple(torch.cat([logits[which, places], extra]).softmax(-1)[:count].cpu() for which in (places, order))


def query_content(inputs: LayerInputs) -> Tensor:
    """Return the query (B, H, D) before rotation, in the order of `LayerInputs`."""
    cos, sin = (table[inputs.query_position] for table in (inputs.cos, inputs.sin))
    square = cos.square() + sin.square()
    return rotate_by(inputs.query, cos / square, -sin / square, "half")


def bands(config: Config, frequencies: pd.DataFrame) -> list[tuple[str, int, list[int]]]:
    """Return (name, draw, frequency IDs) of what is edited: by score, by speed, and random ones of the same size.

    Which frequencies score symbolic or positional is the mean over all heads of symbolic less positional.
    """
    lead = (frequencies["symbolic"] - frequencies["positional"]).groupby(frequencies["frequency_id"]).mean()
    size = min(config.band, len(lead) - 1)
    generator = torch.Generator().manual_seed(config.seed)
    found = [("symbolic", 0, lead.nlargest(size)), ("positional", 0, lead.nsmallest(size))]
    for start in range(0, len(lead) - size + 1, size):
        found.append((f"IDs {start + 1} to {start + size}", 0, lead.iloc[start : start + size]))
    for number in range(config.band_draws):
        found.append(("random", number, lead.iloc[torch.randperm(len(lead), generator=generator)[:size].tolist()]))
    return [(name, number, sorted(int(k) for k in rows.index)) for name, number, rows in found]


def knob(config: Config, model: Any, tasks: dict[str, Task], frequencies: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the known heads, and what the model can do with bands of frequencies edited."""
    twice = torch.cat([tasks[REPEATED].tokens, tasks[REPEATED].answers[:, None]], 1)
    known = known_heads(model, twice)
    top = {name: known.nlargest(config.known_heads, name) for name in ("previous_token", "induction")}
    sets = {"all": None}
    for name, rows in top.items():
        sets[f"{name.replace('_', '-')} heads"] = rows.groupby("layer")["head"].apply(list).to_dict()
    rows = [("all", "none", 0, "none", "", *abilities(model, tasks, twice), *known_attention(model, twice, top))]
    todo = [
        (name, heads, *band, how)
        for name, heads in sets.items()
        for band in bands(config, frequencies)
        if heads is None or not band[0].startswith("IDs")
        for how in WAYS
    ]
    for name, heads, band, number, ids, how in tqdm(todo, desc="frequency knob", unit="edit"):
        with ablate_frequencies(model, ids, heads=heads, mode=how):
            able = abilities(model, tasks, twice)
        seen = known_attention(model, twice, top, (heads, ids, how))
        rows.append((name, band, number, how, " ".join(map(str, ids)), *able, *seen))
    columns = ["heads", "band", "draw", "how", "frequencies", *ABILITIES, "previous_token", "induction"]
    return {"known": shrunk(known), "knob": shrunk(pd.DataFrame(rows, columns=columns))}


def abilities(model: Any, tasks: dict[str, Task], twice: Tensor) -> tuple[float, ...]:
    """Return the numbers named in ``ABILITIES``: loss on text, on the second saying of tokens, answers to bindings."""
    text, _ = next_token(model, tasks[TEXT].tokens)
    half = twice.shape[1] // 2
    losses, right = next_token(model, twice)
    binding = next(task for name, task in tasks.items() if name.startswith("binding"))
    answers, answered = next_token(model, torch.cat([binding.tokens, binding.answers[:, None]], 1))
    return (
        text.mean().item(),
        losses[:, half:].mean().item(),
        right[:, half:].double().mean().item(),
        answered[:, -1].double().mean().item(),
        -answers[:, -1].mean().item(),
    )


def next_token(model: Any, tokens: Tensor, at_once: int = 4096) -> tuple[Tensor, Tensor]:
    """Return the loss (n, T − 1) of every next token, in nats, and whether it was the model's first choice."""
    losses, right = [], []
    for some in tokens.split(max(1, at_once // tokens.shape[1])):
        some = some.to(model.get_input_embeddings().weight.device)
        with torch.no_grad():
            logits = model(some, use_cache=False).logits[:, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits.mT, some[:, 1:], reduction="none").cpu())
        right.append((logits.argmax(-1) == some[:, 1:]).cpu())
    return torch.cat(losses), torch.cat(right)


def known_attention(
    model: Any, twice: Tensor, top: dict[str, pd.DataFrame], edit: tuple | None = None
) -> tuple[float, float]:
    """Return the mean attention of the known heads to the place before and to the place after the first saying.

    ``edit`` is (heads, frequency IDs, way), as `possym.capture.edits.ablate_frequencies` takes them.
    """
    capture, half = Capture(model), twice.shape[1] // 2
    chosen = {} if edit is None else choose_heads(edit[0], capture.layers)
    wanted = {name: set(zip(rows["layer"], rows["head"], strict=True)) for name, rows in top.items()}
    sums = dict.fromkeys(wanted, 0.0)

    def on_call(call: AttentionCall) -> tuple[Tensor, Tensor] | None:
        changed = None
        if call.layer in chosen:
            changed = edited(call, capture.layers[call.layer], chosen[call.layer], *edit[1:])
        weights = (call if changed is None else replace(call, query=changed[0], key=changed[1])).attention()
        ends = torch.arange(1, 2 * half, device=weights.device), torch.arange(half, 2 * half, device=weights.device)
        aims = {"previous_token": (ends[0], ends[0] - 1), "induction": (ends[1], ends[1] - half + 1)}
        for name, (queries, keys) in aims.items():
            for head in (head for layer, head in wanted[name] if layer == call.layer):
                sums[name] += weights[:, head, queries, keys].mean().item() / len(wanted[name])
        return changed

    capture.forward(twice.to(capture.device), on_call, [twice.shape[1] - 1])
    return sums["previous_token"], sums["induction"]
