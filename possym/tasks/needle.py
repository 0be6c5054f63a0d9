"""A needle in a haystack: one statement among others in natural text, a question about it, and its words repeated.

"… The secret of Alice is tea gold music. … Question: What is the secret of Alice? Answer: The secret of Alice is"
is answered by " tea gold music". The other statements name other secrets, so that the right one has to be found.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from possym.tasks.batch import check_count, check_generator
from possym.tasks.binding import ATTRIBUTES, NAMES
from possym.tasks.text import beginning_token, natural_text


class Needle(NamedTuple):
    """One prompt, its answer told at the end, and where its parts lie: (start, stop) spans.

    ``statement`` is the needle, ``value`` the secret in it, ``question`` the question, ``answer`` the secret told
    again, token by token the same as ``value``; tokens ends with it.
    """

    tokens: Tensor
    statement: tuple[int, int]
    value: tuple[int, int]
    question: tuple[int, int]
    answer: tuple[int, int]


class NeedleTask:
    """Needle prompts in one tokenizer's tokens, any tokenizer's; prompts differ in length.

    Args:
        tokenizer: a transformers tokenizer.
        statements: number of statements in the haystack, the needle among them.
        words: number of words of a secret.
        gap: tokens of natural text before each statement and after the last.

    Raises:
        InputError: numbers that do not fit.

    Source: after 2404.15574, section 2, whose needle is one sentence and whose haystack is essays.

    >>> from possym.models import hub
    >>> tokenizer = hub.load().tokenizer
    >>> (needle,) = NeedleTask(tokenizer, gap=4).sample(1)
    >>> tokenizer.decode(needle.tokens[slice(*needle.value)]) == tokenizer.decode(needle.tokens[slice(*needle.answer)])
    True
    """

    def __init__(self, tokenizer: Any, statements: int = 4, words: int = 3, gap: int = 24):
        self.tokenizer = tokenizer
        self.statements = check_count("statements", statements, 1, len(NAMES))
        self.words = check_count("words", words, 1, len(ATTRIBUTES) // self.statements)
        self.gap = check_count("gap", gap, 1)

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> list[Needle]:
        """Draw ``n`` prompts; the needle is each statement equally often, as far as ``n`` allows.

        ``generator`` is a CPU generator; None is a fresh one seeded 0.

        Raises:
            InputError: ``n`` or ``generator`` do not fit.
        """
        n, generator = check_count("n", n, 1), check_generator(generator)
        rounds = [torch.randperm(self.statements, generator=generator) for _ in range(-(-n // self.statements))]
        return [self.draw(asked, generator) for asked in torch.cat(rounds)[:n].tolist()]

    def draw(self, asked: int, generator: torch.Generator) -> Needle:
        """Draw one prompt that asks about statement number ``asked``."""
        names = [NAMES[i] for i in torch.randperm(len(NAMES), generator=generator)[: self.statements].tolist()]
        drawn = torch.randperm(len(ATTRIBUTES), generator=generator)[: self.statements * self.words].tolist()
        secrets = [
            "".join(f" {ATTRIBUTES[i]}" for i in drawn[k :: self.statements][: self.words])
            for k in range(self.statements)
        ]
        beginning = beginning_token(self.tokenizer)
        tokens, spans = [] if beginning is None else [beginning], {}

        def add(text: str, name: str = "") -> None:
            """Append a text, and note its span."""
            start = len(tokens)
            tokens.extend(self.encode(text))
            spans[name] = (start, len(tokens))

        for number, (name, secret) in enumerate(zip(names, secrets, strict=True)):
            tokens += self.haystack(generator)
            here = number == asked
            start = len(tokens)
            add(f" The secret of {name} is")
            add(secret, "value" if here else "")
            add(".")
            if here:
                spans["statement"] = (start, len(tokens))
        tokens += self.haystack(generator)
        add(f"\nQuestion: What is the secret of {names[asked]}?", "question")
        add(f"\nAnswer: The secret of {names[asked]} is")
        add(secrets[asked], "answer")
        parts = {name: spans[name] for name in ("statement", "value", "question", "answer")}
        return Needle(torch.tensor(tokens), **parts)

    def encode(self, text: str) -> list[int]:
        """Return a text's tokens, none added before or after."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def haystack(self, generator: torch.Generator) -> list[int]:
        """Return ``gap`` tokens from somewhere in Python's own reference, fewer at the end of a topic."""
        topics = list(natural_text().values())[:16]  # the longest
        text = topics[int(torch.randint(len(topics), (), generator=generator))]
        start = int(torch.randint(len(text) // 2, (), generator=generator))
        return self.encode(text[start : start + 12 * self.gap])[: self.gap]
