"""Prompts as users give them, read into token ids, queries, blocks and held tokens, or refused by number.

- `read_prompts` takes strings, chats, token ids, tensors, a tokenizer's output, and anything that yields such.
- `read_queries`, `read_blocks`, `read_holds` and `read_answers` read what else is said of each prompt.
- `check_prompts` compares what was read with the model: its vocabulary, its length, its special tokens.
"""

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor, nn

from possym.capture.model_state import modules_of
from possym.errors import InputError, to_float, to_int
from possym.scores import check_blocks

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
Span = tuple[int, int]


@dataclass
class Prompt:
    """One prompt as token ids, with the positions of sentences where it came as text.

    ``may_be_padded`` says that it came as bare ids, with nothing that tells padding from content.
    """

    ids: list[int]
    sentences: list[Span] | None = None
    may_be_padded: bool = False


def read_prompts(prompts: Any, tokenizer: Any) -> list[Prompt]:
    """Return prompts as token ids.

    Raises:
        InputError: no prompts, or one that is neither text, chat nor at least three token ids.

    >>> [prompt.ids for prompt in read_prompts(([k, 5, 6] for k in range(2)), None)]
    [[0, 5, 6], [1, 5, 6]]
    """
    if tokenizer is not None and not callable(tokenizer):
        raise InputError(f"tokenizer is a {type(tokenizer).__name__}: give the model's transformers tokenizer")
    masked = False
    if isinstance(prompts, Mapping) and "input_ids" in prompts:
        masked = prompts.get("attention_mask") is not None
        given = unpad(prompts["input_ids"], prompts.get("attention_mask"))
    else:
        given = as_list(prompts)
    if not given:
        raise InputError("prompts: give one or more strings, chats, or sequences of token ids")
    found = [read_prompt(number, prompt, tokenizer) for number, prompt in enumerate(given)]
    for number, prompt in enumerate(found):
        prompt.may_be_padded &= not masked
        if len(prompt.ids) < 3:
            raise InputError(
                f"prompt {number} has {len(prompt.ids)} token{'s' * (len(prompt.ids) != 1)}: a swap needs two keys "
                "before the query, so give at least three"
            )
    return found


def as_list(prompts: Any) -> list:
    """Return what was given as a list of prompts: one alone, rows of a tensor, or anything that yields them."""
    if isinstance(prompts, pd.DataFrame):
        raise InputError("prompts is a table: give one of its columns, as in table['text']")
    if isinstance(prompts, (bytes, bytearray, memoryview)):
        raise InputError("prompts are bytes: give text, as in prompts.decode(), or a list of token ids")
    if isinstance(prompts, (set, frozenset)):
        raise InputError("prompts are a set, which has no order: give a list")
    if isinstance(prompts, (str, Mapping)) or (isinstance(prompts, Tensor) and prompts.ndim == 1):
        return [prompts] if isinstance(prompts, str | Tensor) else []
    if isinstance(prompts, (np.ndarray, pd.Series)):
        prompts = prompts.tolist()
    if isinstance(prompts, Tensor):
        return list(prompts) if prompts.ndim else []
    given = list(prompts) if isinstance(prompts, Iterable) else []
    rows = [part for part in given if isinstance(part, Mapping) and not {"role", "content"} & part.keys()]
    if rows:
        name = next(iter(rows[0]), "text")
        raise InputError(f"prompts are rows of a table: give one of its columns, as in (row[{name!r}] for row in rows)")
    alone = given and all(isinstance(part, Mapping) or to_int(part) is not None for part in given)
    return [given] if alone else given


def unpad(rows: Any, masks: Any) -> list[list]:
    """Return the rows of a tokenizer's output without what its mask leaves out."""
    rows, masks = (each.tolist() if isinstance(each, (Tensor, np.ndarray)) else each for each in (rows, masks))
    if rows and to_int(rows[0]) is not None:  # the output of one text
        rows, masks = [rows], None if masks is None else [masks]
    if masks is None:
        return list(rows)
    return [[t for t, keep in zip(row, mask, strict=True) if keep] for row, mask in zip(rows, masks, strict=True)]


def read_prompt(number: int, prompt: Any, tokenizer: Any) -> Prompt:
    """Return one prompt as token ids, or raise an InputError."""
    chat = isinstance(prompt, (list, tuple)) and prompt and all(isinstance(turn, Mapping) for turn in prompt)
    if isinstance(prompt, str) or chat:
        if tokenizer is None:
            raise InputError(f"prompt {number} is {'a chat' if chat else 'text'}: give tokenizer, or token ids")
        # A template writes the special tokens itself, so tokenizing must not add them again.
        text, special = (render_chat(number, list(prompt), tokenizer), False) if chat else (prompt, True)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"prompt {number} holds half a character at {error.start} ({text[error.start]!r}), as text that was "
                "not read as UTF-8 does: read it anew"
            ) from None
        if not getattr(tokenizer, "is_fast", False):
            return Prompt(list(tokenizer(text, add_special_tokens=special)["input_ids"]))
        encoded = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        return Prompt(list(encoded["input_ids"]), sentence_spans(text, encoded["offset_mapping"]))
    ids = prompt.tolist() if isinstance(prompt, (Tensor, np.ndarray, pd.Series)) else prompt
    found: list[Any] = list(ids) if isinstance(ids, (list, tuple)) else [None]
    if set(map(type, found)) != {int} or min(found) < 0 or max(found) >= 2**63:
        found = [to_int(token) for token in found]
    if None in found:
        raise InputError(f"prompt {number} is {prompt!r:.80}: give a string, a chat, or whole token ids")
    return Prompt(found, may_be_padded=True)


def render_chat(number: int, chat: list, tokenizer: Any) -> str:
    """Return a chat as the text that the model would be asked with.

    After a user's turn stands the beginning of the assistant's. A chat that ends with an assistant's turn goes on with
    that very turn, as transformers' own pipelines do, so its last word is the last token.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(f"prompt {number} is a chat, but the tokenizer has no chat template: give strings")
    for place, turn in enumerate(chat):
        if turn.get("role") is None or (turn.get("content") is None and not turn.get("tool_calls")):
            raise InputError(f"prompt {number}, turn {place} is {turn!r:.60}: give it a 'role' and a 'content'")
    begun = chat[-1]["role"] == "assistant"
    try:
        return tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=not begun, continue_final_message=begun
        )
    except Exception as error:  # templates raise what they like: jinja's errors, KeyError, ValueError …
        raise InputError(f"prompt {number}: the tokenizer's chat template refuses this chat ({error})") from error


def sentence_spans(text: str, offsets: Sequence[Span]) -> list[Span]:
    """Return the (start, stop) token span of every sentence; a token belongs where its last character does."""
    ends = [match.end() for match in SENTENCE_END.finditer(text)] + [len(text)]
    sentence, owner = 0, []
    for start, stop in offsets:
        while stop > ends[sentence] and sentence < len(ends) - 1:
            sentence += 1
        owner.append(sentence if stop > start else None)
    spans: dict = {}
    for token, number in enumerate(owner):
        if number is not None:
            first, _ = spans.get(number, (token, token))
            spans[number] = (first, token + 1)
    return list(spans.values())


def check_prompts(
    prompts: list[Prompt], model: nn.Module, tokenizer: Any = None, modules: list[nn.Module] | None = None
) -> None:
    """Compare prompts with the model before it sees the first of them.

    ``modules`` are `modules_of` the model, where they are known.

    Raises:
        InputError: ids outside the vocabulary, positions that the model has no rotation for, or padding among the ids.

    Warns:
        UserWarning: a prompt longer than the model was made for, two beginning-of-text tokens, or what may be padding.
    """
    config = model.config.get_text_config()
    special = tokenizer if tokenizer is not None else config
    begin, end, pad = (getattr(special, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
    ends = end if isinstance(end, (list, tuple)) else [end]
    vocabulary = model.get_input_embeddings().weight.shape[0]
    longest = getattr(config, "max_position_embeddings", None)
    # To ask a module for what it has not is slow.
    name = "embed_positions"
    modules = modules_of(model) if modules is None else modules
    places = [place for m in map(vars, modules) for place in (m, m["_buffers"], m["_parameters"])]
    tables = [place[name] for place in places if name in place]
    last = min((len(table) for table in tables if isinstance(table, Tensor) and table.ndim == 2), default=None)
    is_batch = len(prompts) > 1 and len({len(prompt.ids) for prompt in prompts}) == 1
    for number, prompt in enumerate(prompts):
        ids, length = prompt.ids, len(prompt.ids)
        if min(ids) < 0 or max(ids) >= vocabulary:
            wrong = [token for token in ids if not 0 <= token < vocabulary]
            raise InputError(
                f"prompt {number} holds token id {wrong[0]}: the model's vocabulary goes from 0 to {vocabulary - 1}"
            )
        if last is not None and length > last:
            raise InputError(f"prompt {number} has {length} tokens: the model has {last} positions, so shorten it")
        if prompt.may_be_padded and pad is not None:
            check_padding(number, ids, pad, begin, pad in (begin, *ends), few=not is_batch)
        if begin is not None and begin != pad and ids[:2] == [begin, begin]:
            warn(
                f"prompt {number} begins with two beginning-of-text tokens (id {begin}): text that holds one already, "
                "as a rendered chat does, gets another from the tokenizer. Give the chat itself, or token ids"
            )
    if longest is not None:
        long = [number for number, prompt in enumerate(prompts) if len(prompt.ids) > longest]
        if long:
            warn(
                f"prompt {long[0]} has {len(prompts[long[0]].ids)} tokens"
                + f", and {len(long) - 1} more are too long" * (len(long) > 1)
                + f": the model is made for {longest} (max_position_embeddings), beyond which it was not trained"
            )


def check_padding(number: int, ids: list[int], pad: int, begin: int | None, shared: bool, few: bool) -> None:
    """Refuse ids that begin or end with padding; warn where its token is ``shared`` with another meaning.

    A single one counts in a batch of one length alone: elsewhere nothing asked for padding (``few``).
    """
    left = next((k for k, token in enumerate(ids) if token != pad), len(ids))
    right = next((k for k, token in enumerate(reversed(ids)) if token != pad), len(ids))
    left -= pad == begin and left > 0  # a text may begin with it once
    if max(left, right) <= few:
        return
    message = (
        f"prompt {number} {'begins' if left else 'ends'} with {left or right} padding token"
        f"{'s' * ((left or right) != 1)} (id {pad}), which would be scored as content: give the tokenizer's whole "
        "output, input_ids with attention_mask, or ids without padding"
    )
    if shared:
        return warn(message)
    raise InputError(message)


def warn(message: str) -> None:
    """Warn the caller of the library."""
    warnings.warn(message, UserWarning, stacklevel=4)


def read_queries(query: Any, prompts: list[Prompt]) -> list[list[int]]:
    """Return the positions of the queries of every prompt, counted from 0.

    Args:
        query: one position for all prompts; ``"all"``; or a list. That of a single prompt has its queries, that of
            several has an entry for each, a position or a list of them. Negative positions count from the end.
        prompts: what was read.

    Raises:
        InputError: positions that are not there, or with fewer than two keys before them.

    >>> prompts = [Prompt([1, 2, 3, 4]), Prompt([1, 2, 3])]
    >>> read_queries(-1, prompts), read_queries("all", prompts), read_queries([[2, 3], -1], prompts)
    ([[3], [2]], [[2, 3], [2]], [[2, 3], [2]])
    """
    if isinstance(query, str):
        if query != "all":
            raise InputError(f"query = {query!r:.80}: give positions, or 'all'")
        return [list(range(2, len(prompt.ids))) for prompt in prompts]
    given = query.tolist() if isinstance(query, (Tensor, np.ndarray)) else query
    given = list(given) if isinstance(given, (list, tuple, range)) else given
    if to_int(given) is not None:
        given = [given] * len(prompts)
    elif len(prompts) == 1 and isinstance(given, list) and given and all(to_int(each) is not None for each in given):
        given = [given]
    if not isinstance(given, list) or len(given) != len(prompts):
        raise InputError(
            f"query = {query!r:.80}: give one position, 'all', or a list with one entry for each of the "
            f"{len(prompts)} prompts, itself a position or a list of them"
        )
    found = []
    for number, (each, prompt) in enumerate(zip(given, prompts, strict=True)):
        length, positions = len(prompt.ids), set()
        for position in each if isinstance(each, (list, tuple, range)) else [each]:
            at = to_int(position)
            if at is None or not -length <= at < length or at % length < 2:
                raise InputError(
                    f"query = {position!r} in prompt {number} of {length} tokens: give a position with at least two "
                    "keys before it"
                )
            positions.add(at % length)
        if not positions:
            raise InputError(f"query of prompt {number} is empty: give at least one position")
        found.append(sorted(positions))
    return found


def read_holds(hold: Any, prompts: list[Prompt]) -> list[tuple[int, ...]]:
    """Return the positions of every prompt that stay where they are, ascending.

    Args:
        hold: None; ``"first"``; a position; or a list of positions and of (start, stop) spans. Negative ones count
            from the end.
        prompts: what was read.

    Raises:
        InputError: positions that are not there.

    >>> prompts = [Prompt([1, 2, 3, 4, 5])]
    >>> read_holds("first", prompts), read_holds([0, (-3, -1)], prompts)
    ([(0,)], [(0, 2, 3)])
    """
    if hold is None:
        return [()] * len(prompts)
    if isinstance(hold, str) and hold != "first":
        raise InputError(f"hold = {hold!r:.80}: give 'first', positions, or (start, stop) spans")
    given = [0] if isinstance(hold, str) else [hold] if to_int(hold) is not None else hold
    given = given.tolist() if isinstance(given, (Tensor, np.ndarray)) else given
    if not isinstance(given, (list, tuple, range)):
        raise InputError(f"hold = {hold!r:.80}: give 'first', positions, or (start, stop) spans")
    found = []
    for number, prompt in enumerate(prompts):
        length, positions = len(prompt.ids), set()
        for part in given:
            at = to_int(part)
            if at is not None:
                if not -length <= at < length:
                    raise InputError(f"hold = {part!r}: prompt {number} has {length} tokens")
                positions.add(at % length)
                continue
            ends = [to_int(end) for end in part] if isinstance(part, (list, tuple)) else []
            if len(ends) != 2 or None in ends or not range(*slice(*ends).indices(length)):
                raise InputError(f"hold = {part!r:.80}: give positions or (start, stop) spans within prompt {number}")
            positions.update(range(*slice(*ends).indices(length)))
        found.append(tuple(sorted(positions)))
    return found


def read_blocks(blocks: Any, prompts: list[Prompt], queries: list[list[int]]) -> list[list[Span] | None]:
    """Return every prompt's blocks, None for single tokens; they end before the prompt's last query.

    Raises:
        InputError: blocks that are not there, overlap, or are fewer than two.
    """
    if isinstance(blocks, str):
        if blocks == "tokens":
            return [None] * len(prompts)
        if blocks != "sentences":
            raise InputError(f"blocks = {blocks!r}: give 'tokens', 'sentences', or lists of (start, stop)")
        for number, prompt in enumerate(prompts):
            if prompt.sentences is None:
                raise InputError(
                    f"blocks='sentences': prompt {number} is no text with a fast tokenizer: give (start, stop)"
                )
        lists = [[s for s in prompt.sentences if s[1] <= at[-1]] for prompt, at in zip(prompts, queries, strict=True)]
    else:
        try:
            nested = [[len(tuple(part)) for part in entry] for entry in blocks if to_int(entry[0]) is None]
        except (TypeError, IndexError, KeyError):
            raise InputError(
                f"blocks = {blocks!r:.80}: give (start, stop) pairs, for all prompts or for each"
            ) from None
        lists = list(blocks) if nested else [blocks] * len(prompts)
        if len(lists) != len(prompts):
            raise InputError(f"blocks: {len(lists)} lists for {len(prompts)} prompts, give one for each")
    found = []
    for number, (spans, at) in enumerate(zip(lists, queries, strict=True)):
        try:
            check_blocks(spans, at[-1])
        except InputError as error:
            raise InputError(f"prompt {number}, whose query is at {at[-1]}: {error}") from None
        found.append([(int(a), int(b)) for a, b in spans])
    return found


def check_holds(
    holds: list[tuple[int, ...]], blocks: list[list[Span] | None], queries: list[list[int]], hold: Any
) -> None:
    """Raise an InputError where what is held leaves fewer than two keys or blocks to move before the last query."""
    for number, (held, spans, at) in enumerate(zip(holds, blocks, queries, strict=True)):
        held = {key for key in held if key < at[-1]}
        free = sum(not held.issuperset(range(*span)) for span in spans) if spans else at[-1] - len(held)
        if free < 2:
            raise InputError(
                f"hold = {hold!r:.60} leaves prompt {number} fewer than two {'blocks' if spans else 'keys'} to move "
                f"before the query at {at[-1]}: hold fewer tokens"
            )


def read_layers(layers: Any, there: Sequence[int]) -> list[int] | None:
    """Return the numbers of the layers to score, None for all.

    Raises:
        InputError: layers without attention, or none.
    """
    if layers is None:
        return None
    given = layers.tolist() if isinstance(layers, (Tensor, np.ndarray)) else layers
    given = [given] if to_int(given) is not None else given
    found = [to_int(layer) for layer in given] if isinstance(given, (list, tuple, range, set)) else []
    if not found or any(layer not in there for layer in found):
        raise InputError(f"layers = {layers!r:.80}: give one or more of the layers with attention, {list(there)}")
    return sorted(set(found))


def read_answers(answers: Any, tokenizer: Any, count: int) -> list[int] | None:
    """Return the token ids that should follow, or raise an InputError."""
    if answers is None:
        return None
    given = answers.tolist() if isinstance(answers, (Tensor, np.ndarray, pd.Series)) else answers
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != count:
        raise InputError(f"answers = {answers!r:.80}: give one for each of the {count} prompts")
    wanted = []
    for number, answer in enumerate(given):
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
