"""Natural text that needs no download: the language reference that ships with Python, English with code in it.

It is the standard library's ``pydoc_data.topics`` and differs a little between versions of Python, so a study states
its hash.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

from possym.errors import InputError, require_type
from possym.tasks.batch import check_count


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


def beginning_token(tokenizer: Any) -> int | None:
    """Return the id of the beginning-of-text token that a tokenizer puts before every text, None if it puts none.

    >>> from possym.models import hub
    >>> beginning_token(hub.load().tokenizer) is None
    True
    """
    first = tokenizer("a")["input_ids"][:1]
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos if bos is not None and first == [bos] else None


def text_tokens(tokenizer: Any, count: int, length: int) -> Tensor:
    """Return (count, length) token ids: the beginnings of the ``count`` longest topics.

    Raises:
        InputError: a topic is shorter than ``length`` tokens, or there are too few topics.

    >>> from possym.models import hub
    >>> text_tokens(hub.load().tokenizer, 2, 64).shape
    torch.Size([2, 64])
    """
    count, length = check_count("count", count, 1), check_count("length", length, 2)
    texts = list(natural_text().values())
    if count > len(texts):
        raise InputError(f"count = {count}: this Python ships {len(texts)} topics")
    rows = [tokenizer(text[: 12 * length])["input_ids"][:length] for text in texts[:count]]
    if short := [len(row) for row in rows if len(row) < length]:
        raise InputError(f"length = {length}: one of the {count} longest topics has only {min(short)} tokens")
    return torch.tensor(rows)


def byte_pieces(length: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Return (n, length) token ids, one a byte: all topics cut into pieces, in random order.

    Args:
        length: tokens of a piece.
        generator: a CPU generator; None is a fresh one seeded 0.

    Raises:
        InputError: a length that is no whole number from 2 to that of the text.

    >>> byte_pieces(64)[:8].shape
    torch.Size([8, 64])
    """
    check_count("length", length, 2)
    require_type(generator, (torch.Generator, type(None)), "generator")
    text = torch.tensor(list("\n".join(natural_text().values()).encode()))
    if length > len(text):
        raise InputError(f"length = {length}: the text of this Python has {len(text)} bytes")
    pieces = text[: len(text) // length * length].view(-1, length)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    return pieces[torch.randperm(len(pieces), generator=generator)]
