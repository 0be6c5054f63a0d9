"""Natural text is Python's own, in the tokenizer's tokens, and refuses what it does not have."""

import pydoc_data.topics

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

from possym.errors import InputError
from possym.models import hub
from possym.tasks.text import beginning_token, byte_pieces, natural_text, text_tokens


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


@pytest.mark.parametrize("template, bos, expected", [("<s> $A", "<s>", 0), ("$A", "<s>", None), ("<s> $A", None, None)])
def test_a_beginning_token_is_one_that_is_there_and_stands_first(template, bos, expected):
    core = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "b": 2}, unk_token="b"))
    core.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0)])
    assert beginning_token(PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos)) == expected


def test_byte_pieces_are_the_whole_text_in_random_order():
    text = "\n".join(natural_text().values()).encode()
    truth = sorted(text[start : start + 50] for start in range(0, len(text) - 49, 50))
    pieces = [bytes(row) for row in byte_pieces(50).tolist()]
    assert sorted(pieces) == truth
    assert pieces != truth
    other = byte_pieces(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(byte_pieces(50), byte_pieces(50))
    assert not torch.equal(byte_pieces(50), other)


def test_pieces_that_cannot_be_cut_are_refused():
    for given in [dict(length=1), dict(length="64"), dict(length=10**8), dict(length=8, generator=0)]:
        with pytest.raises(InputError):
            byte_pieces(**given)
