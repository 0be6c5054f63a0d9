"""The swap that a reader does by hand: a sentence, two heads, and where attention goes when words change places."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

import torch
from torch import Tensor

from possym.charts import NEUTRAL, POSITIONAL, SYMBOLIC
from possym.charts.typography import percent
from possym.ensembles.last_token import attention
from possym.errors import InputError
from possym.rope import frequencies
from possym.scores import check_relocated, relocated_logits, swap_scores

WORDS = ("Alice", "likes", "red", "Bob", "likes", "blue")
QUERY = "?"
OWN = 1.0  # logit of the query's own key
WANTED = {"Alice": 4.2, "Bob": 2.2, "blue": 0.8, "red": 0.5, "likes": 0.3}  # what the symbolic head's query asks for
SHARPNESS = 4.0
HINT = "Both heads look at Alice: at the word, or at its position? Drag <b>Alice</b> onto <b>Bob</b>."
PURE = 0.99


class ByHand:
    """Heads over one sentence as a page shows them, with words that can be dragged; plain text elsewhere.

    Args:
        heads: a name and, after a colon, what it does → (N, N) relocated logits; None is one head of each kind.
        words: the N words.
        own: logit of the query's own key.
        hint: what the reader is asked to do, HTML.

    Raises:
        InputError: no head, or logits that do not fit the words.

    >>> page = ByHand()
    >>> [[round(score, 2) for score in page.scores(name)] for name in page.heads]
    [[1.0, 0.04], [0.12, 1.0]]
    """

    def __init__(
        self,
        heads: Mapping[str, Tensor] | None = None,
        words: Sequence[str] = WORDS,
        own: float = OWN,
        hint: str = HINT,
    ) -> None:
        """Hold the heads."""
        self.words, self.own, self.hint = list(words), float(own), hint
        self.heads = two_heads() if heads is None else dict(heads)
        shapes = {tuple(check_relocated(relocated).shape) for relocated in self.heads.values()}
        if shapes != {(len(self.words), len(self.words))}:
            raise InputError(
                f"relocated logits of shapes {shapes} for {len(self.words)} words: give (N, N) for N words"
            )

    def scores(self, name: str) -> tuple[float, float]:
        """Return the positional and the symbolic score of a head over all swaps, weighed in proportion."""
        found = swap_scores(self.heads[name], extra_logits=torch.tensor([self.own]), temperature=1.0, relative=True)
        return found.positional.item(), found.symbolic.item()

    def seen(self, name: str) -> list[float]:
        """Return the attention that each position receives before any swap, the query's own last."""
        return attention(self.heads[name], torch.tensor([self.own])).tolist()

    def __repr__(self) -> str:
        """Return the plain text."""
        lines = ["Attention before any swap"]
        for name in self.heads:
            shares = zip([*self.words, QUERY], self.seen(name), strict=True)
            lines.append(f"{name}: {' '.join(f'{word} {percent(share)}' for word, share in shares)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        style, script = (
            (files(__package__) / f"swap_by_hand.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
        )
        heads = "".join(self.panel(name) for name in self.heads)
        return (
            f"<style>{style}</style>"
            f'<section class="possym-swap" style="--words:{len(self.words) + 1}"'
            f' aria-label="Swap two words and see where attention goes"><div class="swap-heads">{heads}</div>'
            f'<div class="swap-foot"><p role="status">{self.hint}</p>'
            '<button type="button" class="swap-again" hidden>Start again</button>'
            f"</div></section><script>{script}</script>"
        )

    def panel(self, name: str) -> str:
        """Return one head: one bar per position above the words, its scores below, and its logits for the script."""
        by_place, by_word = self.scores(name)
        bars = "".join(
            f'<div class="swap-bar" style="--at:{position};--share:{share:.3f}">'
            f"<span>{percent(share) if share >= 0.05 else ''}</span></div>"
            for position, share in enumerate(self.seen(name))
        )
        words = "".join(
            f'<button type="button" class="swap-word" style="--at:{position}" tabindex="{-1 if position else 0}"'
            f' aria-pressed="false">{escape(word)}</button>'
            for position, word in enumerate(self.words)
        )
        data = json.dumps([[round(value, 3) for value in row] for row in self.heads[name].tolist()])
        color = POSITIONAL if by_place >= PURE else SYMBOLIC if by_word >= PURE else NEUTRAL
        short, _, about = f"{name[0].upper()}{name[1:]}".partition(": ")
        query = f'<span class="swap-query" style="--at:{len(self.words)}">{QUERY}</span>'
        scores = f"positional score <b>{by_place:.2f}</b>, symbolic score <b>{by_word:.2f}</b>"
        return (
            f'<div class="swap-head" style="--kind:{color}" data-name="{escape(short)}" data-own="{self.own}"'
            f' data-logits="{data}"><p class="swap-name"><strong>{escape(short)}</strong> {escape(about)}</p>'
            f'<div class="swap-stage" role="group" aria-label="{escape(short)}: attention, and the words to swap">'
            f'{bars}{words}{query}</div><p class="swap-scores">{scores}</p></div>'
        )


def two_heads() -> dict[str, Tensor]:
    """Return the relocated logits of a head that looks at the first position, and of one that looks for Alice."""
    return {
        "A positional head: looks at the first position": positional_head(),
        "A symbolic head: looks for Alice": symbolic_head(),
    }


def positional_head() -> Tensor:
    """Return the relocated logits of a head with one content for all keys: it looks at the first position."""
    turn = frequencies(4, base=10.0)
    key = torch.tensor([1.0, 0.0, 1.0, 0.0])
    positions = torch.arange(len(WORDS))
    # A query turned back by its own position sees every key as if from the first position.
    angle = -len(WORDS) * turn
    query = torch.stack([angle.cos(), angle.sin()], -1).flatten().to(key.dtype)
    return relocated_logits(
        query, key.expand(len(WORDS), 4), query_position=len(WORDS), positions=positions, frequencies=turn,
        layout="interleaved", scale=SHARPNESS,
    )  # fmt: skip


def symbolic_head() -> Tensor:
    """Return the relocated logits of a head without rotation, with one dimension a word: it looks for Alice."""
    vocabulary = list(WANTED)
    keys = torch.stack([torch.eye(6)[vocabulary.index(word)] for word in WORDS])
    query = torch.tensor([*WANTED.values(), 0.0])
    positions = torch.arange(len(WORDS))
    return relocated_logits(
        query,
        keys,
        query_position=len(WORDS),
        positions=positions,
        frequencies=torch.zeros(3),
        layout="interleaved",
        scale=1.0,
    )
