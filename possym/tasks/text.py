"""Text for language models that needs no download: natural text that ships with Python, and repeated random tokens.

The natural text is the language reference in the standard library's ``pydoc_data.topics``: English with code in it.
It differs a little between versions of Python, so a study states its hash.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .batch import check_count, check_generator


def natural_text() -> dict[str, str]:
    """Return the topics of Python's own reference, the longest first.

    >>> "Python" in next(iter(natural_text().values()))
    True
    """
    from pydoc_data.topics import topics

    return {name: topics[name] for name in sorted(topics, key=lambda name: (-len(topics[name]), name))}


def text_hash() -> str:
    """Return 16 hexadecimal digits that name this Python's text.

    >>> len(text_hash())
    16
    """
    return hashlib.sha256("\n".join(natural_text().values()).encode()).hexdigest()[:16]


def text_tokens(tokenizer: Any, count: int, length: int) -> Tensor:
    """Return (count, length) token ids: the beginnings of the ``count`` longest topics.

    Raises:
        InputError: a topic is shorter than ``length`` tokens, or there are too few topics.

    >>> from possym.models import hub
    >>> text_tokens(hub.load().tokenizer, 2, 64).shape
    torch.Size([2, 64])
    """
    check_count("count", count, 1)
    check_count("length", length, 2)
    texts = list(natural_text().values())
    if count > len(texts):
        raise InputError(f"count = {count}: this Python ships {len(texts)} topics")
    rows = [tokenizer(text[: 12 * length])["input_ids"][:length] for text in texts[:count]]
    if short := [len(row) for row in rows if len(row) < length]:
        raise InputError(f"length = {length}: one of the {count} longest topics has only {min(short)} tokens")
    return torch.tensor(rows)


def repeated_tokens(tokenizer: Any, count: int, length: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Return (count, s + 2·length) ids: random tokens, then the same again.

    s is the number of tokens that the tokenizer puts before every text. Special tokens are not drawn, and no token
    twice in a row of ``length``. ``generator`` is a CPU generator; None is a fresh one seeded 0.

    Raises:
        InputError: sizes or ``generator`` do not fit.

    >>> from possym.models import hub
    >>> tokens = repeated_tokens(hub.load().tokenizer, 2, 5)
    >>> tokens.shape, (tokens[:, :5] == tokens[:, 5:]).all().item()
    (torch.Size([2, 10]), True)
    """
    check_count("count", count, 1)
    check_count("length", length, 2)
    generator = check_generator(generator)
    plain = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    if length > len(plain):
        raise InputError(f"length = {length}: this tokenizer has {len(plain)} tokens that are not special")
    drawn = torch.stack([plain[torch.randperm(len(plain), generator=generator)[:length]] for _ in range(count)])
    start = torch.tensor(tokenizer("")["input_ids"], dtype=torch.int64).expand(count, -1)
    return torch.cat([start, drawn, drawn], 1)
