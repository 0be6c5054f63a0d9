"""The models that are asked, each with the text it is asked on: half of it to choose heads by, half to judge them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from possym.errors import ConfigError
from possym.experiments import language_models
from possym.experiments.language_models import corpus as corpora
from possym.experiments.language_models.model import as_llama, load_model, save_model
from possym.experiments.language_models.training import windows
from possym.kv_cache.evaluation import position_losses
from possym.models import hub, random_llama
from possym.tasks.text import beginning_token, natural_text

if TYPE_CHECKING:
    from possym.experiments.cache_plans import Config

RANDOM = "random-llama"
LEAST_AT_ONCE, GIGABYTE = 8, 2**30


@dataclass(frozen=True)
class Subject:
    """A model of the Llama kind, sequences (B, T) to choose heads by, others to evaluate, a token that ends rows.

    ``separator`` is the line break, or the full stop of a tokenizer that has none; ``depths`` are those of its needles
    under doses and knock-outs; ``beginning`` is the token that the model always reads first, None for none.
    """

    name: str
    model: nn.Module
    chosen: Tensor
    evaluated: Tensor
    separator: int
    depths: tuple[float, ...]
    beginning: int | None = None

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return next(self.model.parameters()).device

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows."""
        return self.model.get_input_embeddings().weight.shape[0]

    def at_once(self, predicted: int = 1) -> int:
        """Return how many sequences are read at once, each with logits at so many positions.

        More than on the CPU on a GPU, where a call costs more than its numbers, up to a gigabyte of logits.
        """
        most = 32 if self.device.type == "cuda" else LEAST_AT_ONCE
        return max(LEAST_AT_ONCE, min(most, GIGABYTE // (4 * predicted * self.vocabulary)))

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.model.config.head_dim


def losses(subject: Subject, tokens: Tensor) -> Tensor:
    """Return the loss (B, T − 1) of every next token of a subject's sequences."""
    return position_losses(subject.model, tokens, at_once=subject.at_once(tokens.shape[1]))


def language_subject(name: str, seed: int, config: "Config", device: torch.device, folder: Path) -> Subject:
    """Return a language model of one encoding and seed, from the cache where the study that trains it left it."""
    training = config.training()
    entry = language_models.Run(name, training.width, training.corpus, seed)
    text = language_models.load_corpus(entry.corpus, training)
    file = (
        language_models.weights_file(entry, training)
        if training.corpus != "small"
        else folder / f"{name}-{seed}.weights"
    )
    if not file.is_file():
        model, _ = language_models.trained(entry, training, text, device, [training.steps], lambda model, step: None)
        save_model(model, file)
    model = as_llama(load_model(file)).to(device)  # as it is stored, whoever trained it
    model.set_attn_implementation("sdpa")
    chosen = windows(text.held_out, config.chosen, config.length, seed=21)
    evaluated = windows(text.held_out, config.evaluated, config.length, seed=22)
    ends = corpora.tokens_of(text.tokenizer, "\n")[0]
    return Subject(f"{name}-{seed}", model, chosen, evaluated, ends[-1], config.depths)


def real_subject(name: str, config: "Config", device: torch.device, folder: Path) -> Subject:
    """Return a real model, asked on the language reference that ships with Python, other topics for each half."""
    source = str(random_llama.save(folder / RANDOM)) if name == RANDOM else name
    model, tokenizer = hub.load(source, device=str(device), dtype="float32")
    parts: list[list[list[int]]] = [[], []]
    beginning = beginning_token(tokenizer)
    first = [] if beginning is None else [beginning]
    size = config.real_length - len(first)
    for number, topic in enumerate(natural_text().values()):
        ids = tokenizer(topic, add_special_tokens=False)["input_ids"]
        parts[number % 2] += [first + ids[at : at + size] for at in range(0, len(ids) - size + 1, size)]
    counts = config.chosen, config.evaluated
    if any(len(part) < 2 for part in parts):
        raise ConfigError(f"real_length = {config.real_length}: the text has no such sequences")
    chosen, evaluated = (torch.tensor(part[:count]) for part, count in zip(parts, counts, strict=True))
    ends = (
        tokenizer("\n", add_special_tokens=False)["input_ids"] or tokenizer(".", add_special_tokens=False)["input_ids"]
    )
    return Subject(name, model, chosen, evaluated, ends[-1], config.real_depths, beginning)
