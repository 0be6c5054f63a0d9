"""Prompts as users give them, read into token ids, positions of queries, blocks and answers, or refused by number."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from possym.errors import InputError, to_float, to_int
from possym.scores import check_blocks

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


@dataclass
class Prompt:
    """One prompt as token ids, with the places of sentences where it came as text."""

    ids: list[int]
    sentences: list[tuple[int, int]] | None = None


def read_prompts(prompts: Any, tokenizer: Any) -> list[Prompt]:
    """Return prompts as token ids, or raise an InputError."""
    if tokenizer is not None and not callable(tokenizer):
        raise InputError(f"tokenizer is a {type(tokenizer).__name__}: give the model's transformers tokenizer")
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, Mapping) and "input_ids" in prompts:
        rows, masks = prompts["input_ids"], prompts.get("attention_mask")
        rows, masks = (each.tolist() if isinstance(each, (Tensor, np.ndarray)) else each for each in (rows, masks))
        rows = list(rows)
        masks = [[1] * len(row) for row in rows] if masks is None else masks
        prompts = [
            [t for t, keep in zip(row, mask, strict=True) if keep] for row, mask in zip(rows, masks, strict=True)
        ]
    elif isinstance(prompts, str) or (isinstance(prompts, Tensor) and prompts.ndim == 1):
        prompts = [prompts]
    elif (
        isinstance(prompts, (list, tuple))
        and prompts
        and all(isinstance(p, Mapping) or to_int(p) is not None for p in prompts)
    ):
        prompts = [prompts]
    if not isinstance(prompts, (list, tuple, Tensor)) or not len(prompts):
        raise InputError("prompts: give one or more strings, chats, or sequences of token ids")
    texts = [read_prompt(number, prompt, tokenizer) for number, prompt in enumerate(prompts)]
    for number, text in enumerate(texts):
        if len(text.ids) < 3:
            raise InputError(
                f"prompt {number} has {len(text.ids)} token{'s' * (len(text.ids) != 1)}: a swap needs two keys before "
                "the query, so give at least three"
            )
    return texts


def read_prompt(number: int, prompt: Any, tokenizer: Any) -> Prompt:
    """Return one prompt as token ids, or raise an InputError."""
    chat = isinstance(prompt, (list, tuple)) and prompt and all(isinstance(turn, Mapping) for turn in prompt)
    if isinstance(prompt, str) or chat:
        if tokenizer is None:
            raise InputError(f"prompt {number} is {'a chat' if chat else 'text'}: give tokenizer, or token ids")
        text, special = prompt, True
        if chat:
            if getattr(tokenizer, "chat_template", None) is None:
                raise InputError(f"prompt {number} is a chat, but the tokenizer has no chat template: give strings")
            # The template writes the special tokens itself, so tokenizing must not add them again.
            text = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
            special = False
        if not tokenizer.is_fast:
            return Prompt(list(tokenizer(text, add_special_tokens=special)["input_ids"]))
        encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        return Prompt(list(encoded["input_ids"]), sentence_spans(text, encoded["offset_mapping"]))
    ids = prompt.tolist() if isinstance(prompt, (Tensor, np.ndarray)) else prompt
    found = list(ids) if isinstance(ids, (list, tuple)) else [None]
    if not all(type(token) is int and 0 <= token < 2**63 for token in found):
        found = [to_int(token) for token in found]
    if None in found:
        raise InputError(f"prompt {number} is {prompt!r:.80}: give a string, a chat, or whole token ids")
    return Prompt(found)


def sentence_spans(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the (start, stop) token span of every sentence; a token belongs where its last character does."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)] + [len(text)]
    sentence, owner = 0, []
    for start, stop in offsets:
        while stop > ends[sentence] and sentence < len(ends) - 1:
            sentence += 1
        owner.append(sentence if stop > start else None)
    spans = {}
    for token, number in enumerate(owner):
        if number is not None:
            first, _ = spans.get(number, (token, token))
            spans[number] = (first, token + 1)
    return list(spans.values())


def read_queries(query: int | Sequence[int], texts: list[Prompt]) -> list[int]:
    """Return the query's place in every prompt, counted from 0, or raise an InputError."""
    queries = [query] * len(texts) if to_int(query) is not None else query
    if not isinstance(queries, (list, tuple)) or len(queries) != len(texts):
        raise InputError(f"query = {query!r:.80}: give one place, or one for each of the {len(texts)} prompts")
    places = []
    for number, (place, text) in enumerate(zip(queries, texts, strict=True)):
        length = len(text.ids)
        at = to_int(place)
        if at is None or not -length <= at < length or at % length < 2:
            raise InputError(
                f"query = {place!r} in prompt {number} of {length} tokens: give a place with at least two keys "
                "before it"
            )
        places.append(at % length)
    return places


def read_blocks(blocks: Any, texts: list[Prompt], places: list[int]) -> list[list[tuple[int, int]] | None]:
    """Return every prompt's blocks, None for single tokens, or raise an InputError."""
    if isinstance(blocks, str):
        if blocks == "tokens":
            return [None] * len(texts)
        if blocks != "sentences":
            raise InputError(f"blocks = {blocks!r}: give 'tokens', 'sentences', or lists of (start, stop)")
        for number, text in enumerate(texts):
            if text.sentences is None:
                raise InputError(
                    f"blocks='sentences': prompt {number} is no text with a fast tokenizer: give (start, stop)"
                )
        lists = [[s for s in text.sentences if s[1] <= at] for text, at in zip(texts, places, strict=True)]
    else:
        try:
            nested = [[len(tuple(part)) for part in entry] for entry in blocks if to_int(entry[0]) is None]
        except (TypeError, IndexError, KeyError):
            raise InputError(
                f"blocks = {blocks!r:.80}: give (start, stop) pairs, for all prompts or for each"
            ) from None
        lists = list(blocks) if nested else [blocks] * len(texts)
        if len(lists) != len(texts):
            raise InputError(f"blocks: {len(lists)} lists for {len(texts)} prompts, give one for each")
    result = []
    for number, (spans, place) in enumerate(zip(lists, places, strict=True)):
        try:
            check_blocks(spans, place)
        except InputError as error:
            raise InputError(f"prompt {number}, whose query is at {place}: {error}") from None
        result.append([(int(a), int(b)) for a, b in spans])
    return result


def read_answers(answers: Sequence[str | int] | None, tokenizer: Any, count: int) -> list[int] | None:
    """Return the token ids that should follow, or raise an InputError."""
    if answers is None:
        return None
    if isinstance(answers, str) or not isinstance(answers, (Sequence, Tensor)) or len(answers) != count:
        raise InputError(f"answers = {answers!r:.80}: give one for each of the {count} prompts")
    wanted = []
    for number, answer in enumerate(answers.tolist() if isinstance(answers, Tensor) else answers):
        if isinstance(answer, str) and tokenizer is not None:
            ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
            if not ids:
                raise InputError(f"answer {number} is empty: give the token that should follow")
            answer = ids[0]
        if to_int(answer) is None:
            raise InputError(f"answer {number} = {answer!r}: give a token id, or a string and tokenizer")
        wanted.append(to_int(answer))
    return wanted


def check_number(name: str, value: float, low: float, high: float) -> None:
    """Raise an InputError unless ``value`` is a number strictly between ``low`` and ``high``."""
    found = to_float(value)
    if found is None or not low < found < high:
        raise InputError(f"{name} = {value!r}: give a number between {low:g} and {high:g}")
