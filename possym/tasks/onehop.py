"""One-hop prompts: the number and the letter task put to a language model in words.

A prompt is an instruction, three worked examples of 12 items and a sequence of items separated by spaces, all in one
text. In the *number* variant the last item is a whole number n and the answer stands n positions left of it; in the
*letter* variant the second character of the last item names the first character of the answer. One hop, no more.
"""

from string import ascii_lowercase as LETTERS
from string import digits as DIGITS
from typing import NamedTuple

import torch
from torch import Tensor

from possym.errors import InputError, require_type
from possym.tasks.batch import balanced, check_count, check_generator, uniform

KINDS = ("number", "letter")
LENGTHS = (12, 16, 24, 32, 48, 64, 80, 100, 150, 200, 300)
EXAMPLES = 3
EXAMPLE_LENGTH = 12
INSTRUCTIONS = {
    "number": "Below is a sequence of items with spaces between them. Each item is a letter, except for the last, "
    "which is a whole number. Starting from that number, move to the left by as many places as it says; the item right "
    "before the number is 1 place away. Reply with the item that you reach and with nothing else.",
    "letter": "Below is a sequence of items with spaces between them. Each item has two characters. Take the second "
    "character of the last item and look for the one item that has it as its first character. Reply with that item "
    "and with nothing else.",
}


class OneHop(NamedTuple):
    """Prompts of one data set: ``texts`` and ``answers`` (n strings each), ``items`` of the sequences (n lists), and
    ``places`` (n,) int64 of the answers in them, counted from 0.
    """

    texts: list[str]
    answers: list[str]
    items: list[list[str]]
    places: Tensor


class OneHopTask:
    """One-hop prompts of one kind, drawn and solved.

    Items of the number variant are the letters a–z, drawn alike and independently. Those of the letter variant are a
    letter and a digit; the letter asked for begins one item alone.

    Args:
        kind: ``"number"`` or ``"letter"``.

    Raises:
        InputError: another kind.

    Source: 2605.31558, Appendix H; the wording is this project's own.

    >>> prompts = OneHopTask("number").sample(1, length=12)
    >>> print(prompts.texts[0].rpartition("Sequence: ")[2], prompts.answers[0])
    g e z u j o t a p o b 8
    Answer: u
    """

    def __init__(self, kind: str):
        if not isinstance(kind, str) or kind not in KINDS:
            raise InputError(f"kind = {kind!r}: known kinds are {', '.join(KINDS)}")
        self.kind = kind

    def sample(self, n: int, *, length: int = 16, generator: torch.Generator | None = None) -> OneHop:
        """Draw a data set of ``n`` prompts whose sequences have ``length`` items, the last one counted.

        All prompts of a data set share their worked examples. The answer's position is balanced over the sequence.
        ``generator`` is a CPU generator; None is a fresh one seeded 0.

        Raises:
            InputError: ``n`` or ``length`` is not a whole number of at least 1 or 2, or ``generator`` is none.
        """
        n, length = check_count("n", n, 1), check_count("length", length, 2)
        generator = check_generator(generator)
        shown = self.sequences(EXAMPLES, EXAMPLE_LENGTH, generator)
        worked = "".join(f"{posed(items)} {items[position]}\n\n" for items, position in zip(*shown, strict=True))
        items, positions = self.sequences(n, length, generator)
        texts = [f"{INSTRUCTIONS[self.kind]}\n\n{worked}{posed(row)}" for row in items]
        answers = [row[position] for row, position in zip(items, positions, strict=True)]
        return OneHop(texts, answers, items, torch.tensor(positions))

    def sequences(self, n: int, length: int, generator: torch.Generator) -> tuple[list[list[str]], list[int]]:
        """Return ``n`` sequences and the positions of their answers."""
        positions = balanced(torch.zeros(n, dtype=torch.int64), 1, length - 1, generator)
        shape, count = (n, length), torch.tensor(len(LETTERS))
        if self.kind == "number":
            letters = uniform(count, shape, generator)
            rows = [[LETTERS[i] for i in row] for row in letters.tolist()]
            for row, position in zip(rows, positions.tolist(), strict=True):
                row[-1] = str(length - 1 - position)
            return rows, positions.tolist()
        asked = uniform(count, (n, 1), generator)
        others = (asked + 1 + uniform(count - 1, shape, generator)) % count  # any letter but the one asked for
        first = others.scatter(1, positions[:, None], asked).tolist()
        second = uniform(torch.tensor(len(DIGITS)), shape, generator).tolist()
        rows = [[LETTERS[a] + DIGITS[b] for a, b in zip(*row, strict=True)] for row in zip(first, second, strict=True)]
        for row, (letter,) in zip(rows, asked.tolist(), strict=True):
            row[-1] = row[-1][0] + LETTERS[letter]
        return rows, positions.tolist()

    def solve(self, text: str) -> str:
        """Return a prompt's answer, found from its text alone.

        Raises:
            InputError: not a prompt of this kind.

        >>> OneHopTask("letter").solve("Sequence: a1 b2 c3 db\\nAnswer:")
        'b2'
        """
        require_type(text, str, "text")
        items = text.rpartition("Sequence: ")[2].removesuffix("\nAnswer:").split()
        if self.kind == "number":
            if len(items) > 1 and items[-1].isdecimal() and 1 <= int(items[-1]) < len(items):
                return items[-1 - int(items[-1])]
        elif len(items) > 1 and len(items[-1]) == 2:
            found = [item for item in items[:-1] if item[0] == items[-1][1]]
            if len(found) == 1:
                return found[0]
        raise InputError(
            f"text ends with {text[-60:]!r}: give a prompt of the {self.kind} kind, as sample() draws them"
        )


def posed(items: list[str]) -> str:
    """Return a sequence as it stands in a prompt, up to where the answer belongs."""
    return f"Sequence: {' '.join(items)}\nAnswer:"
