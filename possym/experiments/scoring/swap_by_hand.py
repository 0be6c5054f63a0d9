"""The swap that a reader does by hand: a sentence, two heads, and where attention goes when words change places."""

import json
from html import escape
from importlib.resources import files

import torch
from torch import Tensor

from possym.charts import POSITIONAL, SYMBOLIC
from possym.ensembles.last_token import attention
from possym.rope import frequencies
from possym.scores import relocated_logits, swap_scores

WORDS = ("Alice", "likes", "red", "Bob", "likes", "blue")
QUERY = "?"
OWN = 1.0  # logit of the query's own key
WANTED = {"Alice": 4.2, "Bob": 2.2, "blue": 0.8, "red": 0.5, "likes": 0.3}  # what the symbolic head's query asks for
SHARPNESS = 4.0
ABOUT = {"positional": "looks at the first place", "symbolic": "looks for Alice"}


class ByHand:
    """Two heads over one sentence as a page shows them, with words that can be dragged; plain text elsewhere.

    ``heads`` are the relocated logits (N, N) of a positional and of a symbolic head, by kind.

    >>> page = ByHand()
    >>> {kind: [round(score, 2) for score in page.scores(kind)] for kind in page.heads}
    {'positional': [1.0, 0.04], 'symbolic': [0.12, 1.0]}
    """

    def __init__(self) -> None:
        """Build the two heads."""
        self.heads = {"positional": positional_head(), "symbolic": symbolic_head()}

    def scores(self, kind: str) -> tuple[float, float]:
        """Return the positional and the symbolic score of a head over all swaps, weighed in proportion."""
        found = swap_scores(self.heads[kind], extra_logits=torch.tensor([OWN]), temperature=1.0, relative=True)
        return found.positional.item(), found.symbolic.item()

    def __repr__(self) -> str:
        """Return the plain text."""
        lines = [
            f"{kind} head: "
            + " ".join(f"{word} {share:.0%}" for word, share in zip([*WORDS, QUERY], seen(relocated), strict=True))
            for kind, relocated in self.heads.items()
        ]
        return "\n".join(["Attention before any swap", *lines])

    def _repr_html_(self) -> str:
        style, script = (
            (files(__package__) / f"swap_by_hand.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
        )
        heads = "".join(self.panel(kind) for kind in self.heads)
        return (
            f"<style>{style}</style>"
            '<section class="possym-swap" aria-label="Swap two words and see where attention goes">'
            f'<div class="swap-heads">{heads}</div>'
            '<div class="swap-foot"><p role="status">Both heads look at Alice. At her, or at her place? '
            'Drag <b>Alice</b> onto <b>Bob</b>.</p><button type="button" class="swap-again" hidden>Start again</button>'
            f"</div></section><script>{script}</script>"
        )

    def panel(self, kind: str) -> str:
        """Return one head: a bar a place above the words, its scores below, and its logits for the script."""
        relocated, (by_place, by_word) = self.heads[kind], self.scores(kind)
        shares = seen(relocated)
        bars = "".join(
            f'<div class="swap-bar" style="--at:{place};--share:{share:.3f}"><span>{percent(share)}</span></div>'
            for place, share in enumerate(shares)
        )
        words = "".join(
            f'<button type="button" class="swap-word" style="--at:{place}" tabindex="{-1 if place else 0}"'
            f' aria-pressed="false">{escape(word)}</button>'
            for place, word in enumerate(WORDS)
        )
        data = json.dumps([[round(value, 3) for value in row] for row in relocated.tolist()])
        color = {"positional": POSITIONAL, "symbolic": SYMBOLIC}[kind]
        query = f'<span class="swap-query" style="--at:{len(WORDS)}">{QUERY}</span>'
        scores = f"positional score <b>{by_place:.2f}</b>, symbolic score <b>{by_word:.2f}</b>"
        return (
            f'<div class="swap-head swap-{kind}" style="--kind:{color}" data-kind="{kind}" data-own="{OWN}"'
            f' data-logits="{data}"><p class="swap-name"><strong>A {kind} head</strong> {ABOUT[kind]}</p>'
            f'<div class="swap-stage" role="group" aria-label="Attention of a {kind} head, and the words to swap">'
            f'{bars}{words}{query}</div><p class="swap-scores">{scores}</p></div>'
        )


def percent(share: float) -> str:
    """Return a share as a percentage, nothing where nobody could see its bar."""
    return f"{share:.0%}".replace("%", "\N{NO-BREAK SPACE}%") if share >= 0.05 else ""


def positional_head() -> Tensor:
    """Return the relocated logits of a head with one content for all keys: it looks at the first place."""
    turn = frequencies(4, base=10.0)
    key = torch.tensor([1.0, 0.0, 1.0, 0.0])
    places = torch.arange(len(WORDS))
    # A query turned back by its own place sees every key as if from the first place.
    angle = -len(WORDS) * turn
    query = torch.stack([angle.cos(), angle.sin()], -1).flatten().to(key.dtype)
    return relocated_logits(
        query, key.expand(len(WORDS), 4), query_position=len(WORDS), positions=places, frequencies=turn,
        layout="interleaved", scale=SHARPNESS,
    )  # fmt: skip


def symbolic_head() -> Tensor:
    """Return the relocated logits of a head without rotation, with one dimension a word: it looks for Alice."""
    vocabulary = list(WANTED)
    keys = torch.stack([torch.eye(6)[vocabulary.index(word)] for word in WORDS])
    query = torch.tensor([*WANTED.values(), 0.0])
    places = torch.arange(len(WORDS))
    return relocated_logits(
        query,
        keys,
        query_position=len(WORDS),
        positions=places,
        frequencies=torch.zeros(3),
        layout="interleaved",
        scale=1.0,
    )


def seen(relocated: Tensor) -> list[float]:
    """Return the attention that each place receives before any swap, the query's own last."""
    return attention(relocated, torch.tensor([OWN])).tolist()
