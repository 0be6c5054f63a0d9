"""Natural text is Python's own, in the tokenizer's tokens, and refuses what it does not have."""

import pydoc_data.topics

import pytest

from possym.errors import InputError
from possym.models import hub
from possym.tasks.text import natural_text, text_tokens


def test_rows_are_the_beginnings_of_the_longest_topics():
    tokenizer = hub.load(device="cpu").tokenizer
    tokens = text_tokens(tokenizer, 3, 40)
    longest = sorted(pydoc_data.topics.topics.values(), key=len, reverse=True)
    for row, text in zip(tokens, longest, strict=False):
        assert text.startswith(tokenizer.decode(row)[:-3])
    assert set(natural_text()) == set(pydoc_data.topics.topics)
    with pytest.raises(InputError, match="this Python ships"):
        text_tokens(tokenizer, 10_000, 8)
    with pytest.raises(InputError, match="has only"):
        text_tokens(tokenizer, len(longest), 4000)
    with pytest.raises(InputError):
        text_tokens(tokenizer, 1, True)
