"""A needle stands where its spans say, in any tokenizer's tokens, and each statement is asked about equally often."""

import re
from collections import Counter

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from possym.errors import InputError
from possym.models import hub, random_llama
from possym.tasks.needle import NeedleTask
from possym.tasks.text import beginning_token


@pytest.fixture(scope="module", params=["SmolLM2", "words", "beginning", "bytes"])
def tokenizer(request, tmp_path_factory):
    if request.param == "SmolLM2":
        return hub.load(device="cpu").tokenizer
    if request.param == "bytes":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
        core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        return PreTrainedTokenizerFast(tokenizer_object=core)
    folder = random_llama.save(tmp_path_factory.mktemp("llama"))
    found = hub.load(str(folder), device="cpu").tokenizer
    if request.param == "beginning":
        found.add_special_tokens({"bos_token": "<begin>"})
        found.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<begin> $A", special_tokens=[("<begin>", found.bos_token_id)]
        )
    return found


def test_parts_of_a_prompt_are_where_it_says(tokenizer):
    needles = NeedleTask(tokenizer, statements=3, words=2, gap=10).sample(6, generator=torch.Generator().manual_seed(4))
    places = Counter()
    for needle in needles:
        tokens = needle.tokens.tolist()
        value, answer = tokens[slice(*needle.value)], tokens[slice(*needle.answer)]
        assert value == answer and len(tokens) == needle.answer[1] and len(value) >= 2
        assert needle.statement[0] < needle.value[0] < needle.value[1] < needle.statement[1] <= needle.question[0]
        said = tokenizer.decode(tokens)
        (name,) = re.findall(r"(?:secret|<unknown>) of (\w+) is", tokenizer.decode(tokens[slice(*needle.statement)]))
        assert name in tokenizer.decode(tokens[slice(*needle.question)])
        told = re.findall(r"(?:secret|<unknown>) of (\w+) is (\w+ \w+)", said)
        assert len(told) == 4 and told[-1][0] == name  # found by reading alone
        assert [secret for who, secret in told[:-1] if who == name] == [told[-1][1]]
        places[[who for who, _ in told].index(name)] += 1
        begins = beginning_token(tokenizer)
        assert tokens.count(begins) == (begins is not None) and (begins is None or tokens[0] == begins)
    assert places == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("given", [dict(statements=0), dict(words=0), dict(gap=0), dict(statements=4, words=500)])
def test_numbers_that_do_not_fit_are_refused(given):
    with pytest.raises(InputError):
        NeedleTask(hub.load(device="cpu").tokenizer, **given)
