"""Positional and symbolic heads of a real language model, and how much their scores owe to the way of scoring.

One model reads three kinds of prompt: bindings of names to attributes (statements are the blocks that change
places), repeated random tokens, and natural text that ships with Python. The query is the last token. The binding task
with ``reference`` pairs is the one on which the ways of scoring are varied; that with the fewest, which a small model
may solve, shows what an edited model can still do.

Heads are scored in two forms, see `FORMS`: with the absolute τ of the papers, and scale-free, with relative weights
(`possym.scores.swap_scores`). Models of random weights, see `possym.experiments.real_models.random_weights`, are
scored in the same way on the binding task with the most pairs.

Tables of the study (scores are positional and symbolic; prompts, layers and heads count from 0):
- ``prompts``: task, prompt, tokens, predicted, correct; predicted is a token id, correct NA for natural text
- ``heads``: task, blocks, form, prompt, layer, head, positional, symbolic, entropy (nats), variance, bound, and what
  `possym.profile` says of where the head attends
- ``frequencies``: task, blocks, form, layer, head, frequency_id, angle, and mean and ``_sd`` over prompts of
  positional, symbolic, logit_norm
- ``random``: weights, model, form, layer, head, and means over prompts of positional and symbolic
- ``random_planes``: the same by frequency_id, in the papers' form, with logit_norm
- ``sensitivity``: choice, value, layer, head, positional, symbolic, effective_swaps: means over the first prompts of
  the reference task, one choice changed at a time. ``choice`` "logits" holds A/(A + B) as symbolic and B/(A + B) as
  positional
- ``examples``: kind, layer, head, place, content, before, after: attention by statement on one prompt, before and
  after one permutation that puts statement ``content`` at ``place``
- ``planes``: kind, layer, head, frequency_id, role, place, token, x, y: queries and keys, before rotation, of two
  heads in the planes with the largest logits, on that prompt
- ``directions``: layer, head, frequency_id, key, query: resultant lengths of the directions of keys and of queries,
  before rotation, in every plane of every head, on that prompt; 1 is one direction
- ``known``: layer, head, previous_token, induction: see `possym.capture.known_heads`, on sequences of its own
- ``knob``: heads, band, draw, how, frequencies, norm_ratio, and what became of the model with those RoPE frequencies of
  those heads edited (see `possym.experiments.real_models.frequency_knob`): text_loss, repeat_loss (nats per token),
  repeat_accuracy, binding_accuracy, binding_log_probability (text and bindings where all heads are edited, else NaN),
  and the attention that the known heads are known by, previous_token and induction. The band "none" is the model as it
  is
- ``coverage``: see `possym.capture.Capture`

Source: 2511.11579, section 4.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from possym.capture import Capture, LayerInputs
from possym.capture.known_heads import repeated_tokens
from possym.errors import ConfigError
from possym.experiments.real_models.frequency_knob import Material, knob
from possym.experiments.real_models.random_weights import WEIGHTS, random_weights, sharpen
from possym.experiments.real_models.scoring_choices import sensitivity
from possym.models import hub, random_llama
from possym.profiling import profile
from possym.profiling.sensitivity import block_logits, rest_logits
from possym.results import ExperimentConfig, Study, atomic_write, checkpoint_folder
from possym.rope import pairs, rotate_by
from possym.tasks.binding import Binding, BindingTask
from possym.tasks.text import text_hash, text_tokens

NAME = "real_models"
RANDOM = "random-llama"
HEAD_KEYS = ["layer", "head"]
SCORES = ["positional", "symbolic"]
REPEATED, TEXT = "repeated tokens", "natural text"
FORMS = PAPERS, SCALE_FREE = "papers", "scale-free"
HELD = "tokens but the first"
# What is kept of a profile's table of heads, as far as the profile has it.
KEPT = (
    "prompt", *HEAD_KEYS, *SCORES, "entropy", "variance", "bound",
    "effective_swaps", "attention_moved", "attention_first", "attention_self", "distance",
)  # fmt: skip


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
    relative_temperature: float = 1.0
    temperatures: tuple[float, ...] = (1e-4, 1e-3, 1e-2, 0.1, 1.0)
    relative_temperatures: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    block_sizes: tuple[int, ...] = (1, 2, 8, 16, 32)
    sensitivity_prompts: int = 8
    permutations: int = 100
    query_places: int = 48
    band: int = 8
    band_draws: int = 100
    known_heads: int = 10
    random_models: int = 3

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
            "random_models": 2,
        },
        "paper": {},
    }

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit before a model is loaded."""
        super().__post_init__()
        if self.dtype not in hub.DTYPES:
            raise ConfigError(f"dtype = {self.dtype!r}: known dtypes are {', '.join(hub.DTYPES)}")
        self.ascending(8, "pairs")
        if len(self.prompts) != len(self.pairs):
            raise ConfigError(f"prompts = {self.prompts}: give one number for each of pairs = {self.pairs}")
        if self.reference not in self.pairs:
            raise ConfigError(f"reference = {self.reference}: give one of pairs = {self.pairs}")
        self.each_at_least(1, "prompts", "other_prompts", "sensitivity_prompts", "permutations", "query_places")
        self.each_at_least(1, "band", "known_heads", "random_models", "band_draws", "block_sizes")
        self.each_at_least(4, "text_length", "repeated_length")
        self.each_positive("temperature", "relative_temperature", "temperatures", "relative_temperatures")

    def form(self, name: str) -> dict[str, Any]:
        """Return how `possym.profile` scores in one of `FORMS`."""
        if name == PAPERS:
            return {"temperature": self.temperature, "relative": False}
        return {"temperature": self.relative_temperature, "relative": True}


class Task(NamedTuple):
    """Prompts of one kind: token ids (n, T), the ways to cut them into blocks by name, and answers (n,) or None."""

    tokens: Tensor
    blocks: dict[str, list[tuple[int, int]] | str]
    answers: Tensor | None


def run(config: Config) -> Study:
    """Profile the model, vary the way of scoring, edit frequencies; a run goes on after its last whole stage."""
    folder = checkpoint_folder(NAME, config)
    model, tokenizer = load(config, folder / "model")
    tasks, binding, labels = draw(config, model, tokenizer)
    tables = {}
    names = ("heads", "frequencies", "prompts", "coverage")
    tables |= staged(folder, names, lambda: profiles(config, model, tasks))
    heads, frequencies = of_reference(tables["heads"], config), of_reference(tables["frequencies"], config)
    chosen = choose(heads)
    strongest = strongest_planes(frequencies, chosen)
    tables |= staged(folder, ("random", "random_planes"), lambda: random_models(config, model, tasks))
    tables |= staged(folder, ("sensitivity",), lambda: {"sensitivity": sensitivity(config, model, binding)})
    names = ("examples", "planes", "directions")
    tables |= staged(folder, names, lambda: examples(config, model, tokenizer, binding, chosen, strongest))
    tables |= staged(folder, ("known", "knob"), lambda: knob(config, model, material(tasks, labels), frequencies))
    return Study(tables, {}, {"text": text_hash(), "accuracy": accuracy(tables["prompts"])})


def binding_name(pairs: int) -> str:
    """Return a binding task's name.

    >>> binding_name(64)
    'binding, 64 pairs'
    """
    return f"binding, {pairs} pairs"


def of_reference(table: pd.DataFrame, config: Config) -> pd.DataFrame:
    """Return the rows of the reference task in the papers' form, with statements as blocks."""
    wanted = {"task": binding_name(config.reference), "blocks": "statements", "form": PAPERS}
    return table[(table[list(wanted)] == list(wanted.values())).all(axis=1)]


def load(config: Config, folder: Path) -> hub.Loaded:
    """Return the model that the configuration names; a random one is written into ``folder`` first."""
    name = config.model
    if name == RANDOM:
        name = str(random_llama.save(folder, config.seed))
    return hub.load(name, device=config.device, dtype=config.dtype)


def draw(config: Config, model: Any, tokenizer: Any) -> tuple[dict[str, Task], Binding, Tensor]:
    """Return the tasks by name, the prompts of the reference task, and the sequences that label known heads."""
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
    cuts = {"tokens": "tokens", HELD: "tokens"}
    tasks[REPEATED] = Task(twice[:, :-1], cuts, twice[:, -1])
    text = text_tokens(tokenizer, config.other_prompts, config.text_length)
    tasks[TEXT] = Task(text, cuts, None)
    labels = repeated_tokens(config.other_prompts, config.repeated_length, vocabulary, generator)
    return tasks, reference, labels


def material(tasks: dict[str, Task], labels: Tensor) -> Material:
    """Return what a model with edited frequencies reads."""
    repeated = tasks[REPEATED]
    binding = next(task for name, task in tasks.items() if name.startswith("binding"))
    twice, bindings = (torch.cat([task.tokens, task.answers[:, None]], 1) for task in (repeated, binding))
    return Material(tasks[TEXT].tokens, twice, labels, bindings)


def staged(
    folder: Path, names: tuple[str, ...], make: Callable[[], dict[str, pd.DataFrame]]
) -> dict[str, pd.DataFrame]:
    """Return the tables that ``make`` makes, from ``folder`` where an earlier run has left them all."""
    paths = {name: folder / f"{name}.parquet" for name in names}
    if not all(path.exists() for path in paths.values()):
        for name, table in make().items():
            with atomic_write(paths[name]) as path:
                shrunk(table).to_parquet(path, index=False)
    return {name: pd.read_parquet(path) for name, path in paths.items()}


def profiles(config: Config, model: Any, tasks: dict[str, Task]) -> dict[str, pd.DataFrame]:
    """Return the tables of all tasks in both forms; frequencies of the binding tasks alone.

    Where tokens change places in a binding task, the papers' form alone is taken. In the other tasks they do so once
    with the first token among them and once with it held in place.
    """
    heads, frequencies, prompts = [], [], []
    for name, task in tasks.items():
        is_binding = name.startswith("binding")
        for cut, blocks in task.blocks.items():
            for form in FORMS[:1] if is_binding and cut == "tokens" else FORMS:
                found = profile(
                    model,
                    task.tokens,
                    blocks=blocks,
                    hold="first" if cut == HELD else None,
                    per_frequency=is_binding,
                    answers=None if task.answers is None else task.answers.tolist(),
                    progress=False,
                    **config.form(form),
                )
                labels = {"task": name, "blocks": cut, "form": form}
                heads.append(shrunk(found.heads[[c for c in KEPT if c in found.heads]]).assign(**labels))
                if is_binding:
                    frequencies.append(shrunk(over_prompts(found.frequencies)).assign(**labels))
        prompts.append(found.prompts[["prompt", "tokens", "predicted", "correct"]].assign(task=name))
    return {
        "heads": pd.concat(heads, ignore_index=True),
        "frequencies": pd.concat(frequencies, ignore_index=True),
        "prompts": pd.concat(prompts, ignore_index=True),
        "coverage": found.coverage,
    }


def random_models(config: Config, model: Any, tasks: dict[str, Task]) -> dict[str, pd.DataFrame]:
    """Return the scores of models of random weights and of their planes, on the longest binding task by statements."""
    task = tasks[binding_name(max(config.pairs))]
    heads, planes = [], []

    def variance(one: Any) -> float:
        """Return the median variance of the heads' logits on the first prompt."""
        blocks = task.blocks["statements"]
        return float(profile(one, task.tokens[:1], blocks=blocks, progress=False).heads["variance"].median())

    wanted = variance(model)
    for weights, number in itertools.product(WEIGHTS, range(config.random_models)):
        other = random_weights(model, weights, config.seed + number)
        if weights == "sharpened":
            sharpen(other, variance, wanted)
        for form in FORMS:
            found = profile(
                other,
                task.tokens,
                blocks=task.blocks["statements"],
                per_frequency=form == PAPERS,
                progress=False,
                **config.form(form),
            )
            labels = {"weights": weights, "model": number, "form": form}
            heads.append(found.heads.groupby(HEAD_KEYS)[SCORES].mean().reset_index().assign(**labels))
            if form == PAPERS:
                means = found.frequencies.groupby([*HEAD_KEYS, "frequency_id"])[[*SCORES, "logit_norm"]].mean()
                planes.append(means.reset_index().assign(weights=weights, model=number))
    return {"random": pd.concat(heads, ignore_index=True), "random_planes": pd.concat(planes, ignore_index=True)}


def shrunk(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with its numbers in 32 bits."""
    kinds = {"float64": "float32", "int64": "int32"}
    return table.astype({c: kinds[str(kind)] for c, kind in table.dtypes.items() if str(kind) in kinds})


def over_prompts(frequencies: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation over prompts of every head's planes."""
    groups = frequencies.groupby([*HEAD_KEYS, "frequency_id"])
    measured = groups[[*SCORES, "logit_norm"]]
    parts = [groups["angle"].first(), measured.mean(), measured.std().add_suffix("_sd")]
    return pd.concat(parts, axis=1).reset_index()


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


def examples(
    config: Config, model: Any, tokenizer: Any, binding: Binding, chosen: dict, strongest: dict
) -> dict[str, pd.DataFrame]:
    """Return attention by statement before and after a permutation, and queries and keys in planes, on prompt 0.

    `possym.rope.pairs` of what `LayerInputs` holds are planes; their directions are gathered in every head.
    """
    tokens, blocks = binding.tokens[0], binding.blocks
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(config.seed))
    names = tokenizer.convert_ids_to_tokens(tokens.tolist())
    attention, points = [], []
    gathered: dict[int, Tensor] = {}
    aimed: dict[int, list[Tensor]] = {}

    def last(inputs: LayerInputs) -> None:
        directions = unit(pairs(inputs.keys[0], len(inputs.angles), "half")).mean(1).norm(dim=-1)
        gathered[inputs.layer] = directions.repeat_interleave(inputs.heads // inputs.keys.shape[1], 0).cpu()
        for kind, (layer, head) in chosen.items():
            if layer == inputs.layer:
                some = slice(head, head + 1)
                before, after = permuted_attention(inputs, some, blocks, order)
                rows = enumerate(zip(order.tolist(), before.tolist(), after.tolist(), strict=True))
                attention.extend((kind, layer, head, position, *values) for position, values in rows)
                if kind in strongest:
                    key_head = head // (inputs.heads // inputs.keys.shape[1])
                    planes = pairs(inputs.keys[0, key_head], len(inputs.angles), "half")
                    collect(kind, "key", planes, range(len(names)))

    def collect(kind: str, role: str, planes: Tensor, positions: Any) -> None:
        layer, head = chosen[kind]
        for number in strongest[kind]:
            for position, (x, y) in zip(positions, planes[:, number - 1].tolist(), strict=True):
                points.append((kind, layer, head, number, role, position, names[position], x, y))

    def other(inputs: LayerInputs) -> None:
        planes = pairs(query_content(inputs)[0], len(inputs.angles), "half")
        aimed.setdefault(inputs.layer, []).append(unit(planes).cpu())
        for kind in strongest:
            if chosen[kind][0] == inputs.layer:
                collect(kind, "query", planes[None, chosen[kind][1]], [inputs.query_position])

    capture = Capture(model)
    capture.run(tokens, last)
    for position in torch.linspace(2, len(tokens) - 1, config.query_places).long().unique().tolist():
        capture.run(tokens, other, query=position)
    columns = ["kind", *HEAD_KEYS]
    directions = [
        (layer, head, plane + 1, keys[head, plane].item(), queries[head, plane].item())
        for layer, keys in gathered.items()
        for queries in [torch.stack(aimed[layer]).mean(0).norm(dim=-1)]
        for head in range(keys.shape[0])
        for plane in range(keys.shape[1])
    ]
    return {
        "examples": pd.DataFrame(attention, columns=[*columns, "place", "content", "before", "after"]),
        "planes": pd.DataFrame(points, columns=[*columns, "frequency_id", "role", "place", "token", "x", "y"]),
        "directions": pd.DataFrame(directions, columns=[*HEAD_KEYS, "frequency_id", "key", "query"]),
    }


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (…, 2) of length 1 in their directions.

    >>> unit(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    return torch.nn.functional.normalize(vectors.double(), dim=-1).to(vectors)


def permuted_attention(inputs: LayerInputs, head: slice, blocks: list, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return one head's attention by block, (m,) each, before and after block ``order[b]`` came to position b."""
    relocated, own = inputs.relocated_logits(head)[0, 0], inputs.extra_logits(head)[0, 0]
    logits, extra = block_logits(relocated, blocks), rest_logits(relocated, own, blocks)
    count = len(blocks)
    order = order.to(logits.device)
    positions = torch.arange(count, device=logits.device)
    return tuple(torch.cat([logits[which, positions], extra]).softmax(-1)[:count].cpu() for which in (positions, order))


def query_content(inputs: LayerInputs) -> Tensor:
    """Return the query (B, H, D) before rotation, in the order of `LayerInputs`."""
    cos, sin = (table[inputs.query_position] for table in (inputs.cos, inputs.sin))
    square = cos.square() + sin.square()
    return rotate_by(inputs.query, cos / square, -sin / square, "half")
