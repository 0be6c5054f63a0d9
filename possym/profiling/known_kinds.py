"""What the literature's kinds of heads are known by: each measure with its source.

Every definition names keys for each query that asks (`Definition.targets`); what is measured is the attention to them,
or how often the most attended key is one of them, or how far back a head attends.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from possym.tasks.needle import Needle

REPEATED, TEXT, NEEDLE = MATERIALS = ("repeated tokens", "natural text", "needle")
ATTENTION, MOST, DISTANCE = "attention", "most attended", "distance"
RECENT = 8  # tokens, the query's own counted in


class Prompt(NamedTuple):
    """One prompt: token ids (T,), the first position that is no beginning-of-text token, and a needle's parts."""

    tokens: Tensor
    start: int
    needle: Needle | None = None


class Definition(NamedTuple):
    """How one kind of head is known: ``label`` begins with the kind, ``words`` say what is measured.

    ``targets`` returns (T, T), which keys each query should attend to; queries without any do not ask. ``measure`` is
    the mean attention to them, the share of queries whose most attended key is one, or the mean distance attended, of
    which little is much.
    """

    label: str
    material: str
    source: str
    words: str
    targets: Callable[[Prompt], Tensor]
    measure: str = ATTENTION

    @property
    def sign(self) -> int:
        """1 where much of what is measured makes a head of this kind, −1 where little does."""
        return -1 if self.measure == DISTANCE else 1


def back(prompt: Prompt) -> tuple[Tensor, Tensor]:
    """Return how many tokens each key (T, T) lies before each query, and which queries come after the first token."""
    position = torch.arange(len(prompt.tokens))
    return position[:, None] - position, (position > prompt.start)[:, None]


def previous(prompt: Prompt) -> Tensor:
    """Return the token before."""
    distance, later = back(prompt)
    return (distance == 1) & later


def duplicates(prompt: Prompt) -> Tensor:
    """Return the earlier occurrences of the query's own token.

    >>> duplicates(Prompt(torch.tensor([5, 6, 5]), 0)).int().tolist()
    [[0, 0, 0], [0, 0, 0], [1, 0, 0]]
    """
    distance, _ = back(prompt)
    return (prompt.tokens[:, None] == prompt.tokens) & (distance > 0)


def followers(prompt: Prompt) -> Tensor:
    """Return the tokens that came after earlier occurrences of the query's own token, the query left out.

    >>> followers(Prompt(torch.tensor([5, 6, 5]), 0)).int().tolist()
    [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    """
    found = duplicates(prompt).roll(1, 1)  # no token is its own duplicate, so nothing comes round
    return found & (back(prompt)[0] > 0)


def first(prompt: Prompt) -> Tensor:
    """Return the first token, asked by all after it."""
    position = torch.arange(len(prompt.tokens))
    return (position == 0) & (position > 0)[:, None]


def recent(prompt: Prompt) -> Tensor:
    """Return the `RECENT` latest tokens, asked by queries that see more than those."""
    distance, _ = back(prompt)
    return (distance >= 0) & (distance < RECENT) & (torch.arange(len(distance)) >= RECENT)[:, None]


def everything(prompt: Prompt) -> Tensor:
    """Return all keys up to the query's, asked by all after the first."""
    distance, later = back(prompt)
    return (distance >= 0) & later


def part(prompt: Prompt, name: str) -> tuple[int, int]:
    """Return where a part of a needle prompt lies."""
    return getattr(prompt.needle, name)


def copied(prompt: Prompt) -> Tensor:
    """Return, for each query that a token of the answer is to follow, the same token in the needle."""
    found = torch.zeros(len(prompt.tokens), len(prompt.tokens), dtype=torch.bool)
    value, answer = part(prompt, "value"), part(prompt, "answer")
    queries, keys = torch.arange(answer[0] - 1, answer[1] - 1), torch.arange(*value)
    found[queries[:, None], keys] = prompt.tokens[queries + 1][:, None] == prompt.tokens[keys]
    return found


def asked_about(prompt: Prompt) -> Tensor:
    """Return the needle's statement, asked by the tokens of the question."""
    found = torch.zeros(len(prompt.tokens), len(prompt.tokens), dtype=torch.bool)
    found[slice(*part(prompt, "question")), slice(*part(prompt, "statement"))] = True
    return found


OLSSON, VOITA, WANG = "Olsson et al. 2022", "Voita et al. 2019", "Wang et al. 2023"
WU, ZHANG, GU = "Wu et al. 2025", "Zhang et al. 2025", "Gu et al. 2025"
XIAO, VIG = "Xiao et al. 2025", "Vig and Belinkov 2019"
DEFINITIONS = {
    "previous_token": Definition(
        "previous token", REPEATED, OLSSON, "mean attention to the token before, on random tokens", previous
    ),
    "previous_token_most": Definition(
        "previous token, most attended",
        TEXT,
        VOITA,
        "share of queries in text whose most attended key is the token before",
        previous,
        MOST,
    ),
    "duplicate_token": Definition(
        "duplicate token", REPEATED, WANG, "mean attention to an earlier occurrence of the query's token", duplicates
    ),
    "induction": Definition(
        "induction",
        REPEATED,
        OLSSON,
        "mean attention to the token after an earlier occurrence of the query's token",
        followers,
    ),
    "induction_text": Definition(
        "induction, in text", TEXT, OLSSON, "the same in text, where the query's token occurred before", followers
    ),
    "retrieval": Definition(
        "retrieval",
        NEEDLE,
        WU,
        "share of a needle's tokens that get the most attention just before they are repeated",
        copied,
        MOST,
    ),
    "query_focused": Definition(
        "query-focused retrieval", NEEDLE, ZHANG, "attention of a question's tokens to the needle", asked_about
    ),
    "sink": Definition("first-token sink", TEXT, GU, "mean attention to the first token of text", first),
    "recent": Definition(
        "local, recent tokens", TEXT, XIAO, f"mean attention to the {RECENT} latest tokens of text", recent
    ),
    "distance": Definition(
        "local, distance",
        TEXT,
        VIG,
        "mean distance attended in text, in tokens; local heads have small ones",
        everything,
        DISTANCE,
    ),
}


def measured(definition: Definition, weights: Tensor, targets: Tensor) -> Tensor:
    """Return what a definition measures (H,) of attention (H, T, T), NaN where no query asks.

    >>> weights = torch.tensor([[[1.0, 0.0], [0.9, 0.1]]])
    >>> prompt = Prompt(torch.tensor([3, 4]), 0)
    >>> [measured(DEFINITIONS[name], weights, DEFINITIONS[name].targets(prompt)).item() > 0.5
    ...  for name in ("previous_token", "previous_token_most", "distance")]
    [True, True, True]
    """
    asks = targets.any(-1)
    weights, targets = weights[:, asks], targets[asks]
    if definition.measure == MOST:
        hits = targets.expand(weights.shape).gather(-1, weights.argmax(-1, keepdim=True))
        return hits.float().mean((-2, -1))
    if definition.measure == DISTANCE:
        position = torch.arange(weights.shape[-1], device=weights.device)
        distance = torch.where(asks)[0][:, None] - position
        return (weights * distance).sum((-2, -1)) / weights.sum((-2, -1))
    return (weights * targets).sum(-1).mean(-1)
