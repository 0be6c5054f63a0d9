"""Greedy answers of a local language model to a list of prompts."""

from typing import Any, NamedTuple

import torch

from possym.errors import InputError, UnsupportedModelError, require_type
from possym.results.progress import tqdm
from possym.tasks.batch import check_count


class Reply(NamedTuple):
    """A model's answer: its ``text``, and whether the model itself ``ended`` it.

    ``tokens`` counts what the model made, −1 where an endpoint does not say; ``first`` is the best of the offered
    beginnings, where a runner was given any (see `LocalRunner.answer`).
    """

    text: str
    tokens: int
    ended: bool
    first: str | None = None


class LocalRunner:
    """Greedy answers of a local Hugging Face model, many prompts at a time.

    Args:
        model: a causal language model of transformers.
        tokenizer: its tokenizer.
        chat: True puts each prompt into the tokenizer's chat template as the user's message; False lets the model go
            on with the prompt's own text and ends the answer with its line; None is True where there is a template.
        max_new_tokens: an answer is cut there.
        tokens_at_once: prompts of one batch hold at most so many tokens together, padding included; a longer prompt
            goes alone.

    Raises:
        InputError: an argument of the wrong type, or no template where one is asked for.
        UnsupportedModelError: the model cannot generate.

    >>> from possym.models import hub
    >>> runner = LocalRunner(*hub.load(device="cpu"), chat=False, max_new_tokens=1)
    >>> runner.answer(["One, two, three, four,"], progress=False)[0].text
    ' five'
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        chat: bool | None = None,
        max_new_tokens: int = 8,
        tokens_at_once: int = 16_384,
    ):
        check_count("max_new_tokens", max_new_tokens, 1)
        check_count("tokens_at_once", tokens_at_once, 1)
        require_type(chat, (bool, type(None)), "chat")
        if not hasattr(model, "generate") or not hasattr(model, "config"):
            raise UnsupportedModelError(f"model is a {type(model).__name__}: give a causal model of transformers")
        if getattr(model.config, "is_encoder_decoder", False):
            raise UnsupportedModelError(
                f"model is a {type(model).__name__}, an encoder with a decoder: give a causal one"
            )
        if not callable(tokenizer) or not hasattr(tokenizer, "decode"):
            raise InputError(f"tokenizer is a {type(tokenizer).__name__}: give the model's tokenizer")
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat and not has_template:
            raise InputError("chat = True, but this tokenizer has no chat template: give chat=False")
        self.model, self.tokenizer = model, tokenizer
        self.chat = has_template if chat is None else chat
        self.max_new_tokens, self.tokens_at_once = max_new_tokens, tokens_at_once

    def encode(self, text: str) -> list[int]:
        """Return the token ids that the model reads for a prompt."""
        if not self.chat:
            return self.tokenizer(text)["input_ids"]
        message = [{"role": "user", "content": text}]
        whole = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(whole, add_special_tokens=False)["input_ids"]

    def answer(self, texts: list[str], *, beginnings: list[str] | None = None, progress: bool = True) -> list[Reply]:
        """Return the answers to prompts, in their order.

        Args:
            texts: the prompts.
            beginnings: strings whose first tokens differ; ``first`` of a reply is the one that the model finds
                likeliest as its first token.
            progress: show a bar.

        Raises:
            InputError: no strings, an empty prompt or one too long for the model, or beginnings that share a token.
        """
        check_texts(texts)
        rows = [self.encode(text) for text in texts]
        limit = getattr(self.model.config, "max_position_embeddings", None)
        longest = max(map(len, rows))
        if limit and longest + self.max_new_tokens > limit:
            raise InputError(f"the longest prompt has {longest} tokens and this model reads {limit}: give shorter ones")
        known = self.model.get_input_embeddings().weight.shape[0]
        if (highest := max(map(max, rows))) >= known:
            raise InputError(
                f"the tokenizer gives token {highest}, the model knows {known}: give the model's tokenizer"
            )
        starts = self.starts(beginnings)
        replies: list[Reply | None] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        with tqdm(total=len(rows), desc="prompts", unit="prompt", disable=not progress) as bar:
            for batch in batches(order, [len(row) for row in rows], self.tokens_at_once):
                found = self.generate([rows[i] for i in batch], starts)
                for i, reply in zip(batch, found, strict=True):
                    replies[i] = reply
                bar.update(len(batch))
        return [reply for reply in replies if reply is not None]

    def starts(self, beginnings: list[str] | None) -> dict[int, str]:
        """Return the beginnings by their first token's id; in plain text, a space comes before an answer."""
        if beginnings is None:
            return {}
        check_texts(beginnings, "beginnings")
        space = "" if self.chat else " "
        ids = [self.tokenizer(space + text, add_special_tokens=False)["input_ids"][0] for text in beginnings]
        if len(set(ids)) < len(ids):
            raise InputError("beginnings: two of them start with the same token of this tokenizer")
        return dict(zip(ids, beginnings, strict=True))

    def generate(self, rows: list[list[int]], starts: dict[int, str]) -> list[Reply]:
        """Return the answers to one batch of token ids, padded on the left."""
        from transformers import GenerationConfig

        device = self.model.get_input_embeddings().weight.device
        ends = self.model.generation_config.eos_token_id
        ends = [ends] if isinstance(ends, int) else list(ends or [])
        padding = ends[0] if ends else 0
        width = max(map(len, rows))
        tokens = torch.tensor([[padding] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=ends or None,
            pad_token_id=padding,
            return_dict_in_generate=True,
            output_logits=bool(starts),
        )
        with torch.no_grad():
            out = self.model.generate(tokens, attention_mask=mask, generation_config=settings)
        firsts = [None] * len(rows)
        if starts:
            names = list(starts.values())
            firsts = [names[i] for i in out.logits[0][:, list(starts)].argmax(-1).tolist()]
        said = out.sequences[:, width:].tolist()
        return [self.reply(ids, ends, first) for ids, first in zip(said, firsts, strict=True)]

    def reply(self, ids: list[int], ends: list[int], first: str | None) -> Reply:
        """Return one answer from the generated token ids."""
        stop = next((place for place, token in enumerate(ids) if token in ends), None)
        text = self.tokenizer.decode(ids[:stop], skip_special_tokens=False)
        ended = stop is not None
        if not self.chat and "\n" in text:
            text, ended = text.partition("\n")[0], True
        return Reply(text, len(ids[:stop]), ended, first)


def check_texts(texts: Any, name: str = "texts") -> None:
    """Raise an InputError unless ``texts`` is a list of strings with something in each."""
    require_type(texts, list, name)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InputError(f"{name}: give a list of strings, none of them empty")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name}: {error.object[error.start]!r} is half a letter: give strings that UTF-8 holds"
        ) from None


def batches(order: list[int], lengths: list[int], tokens_at_once: int) -> list[list[int]]:
    """Cut ``order``, ascending in length, into batches that hold ``tokens_at_once`` tokens when padded.

    >>> batches([0, 1, 2], [2, 2, 9], 5)
    [[0, 1], [2]]
    """
    cut: list[list[int]] = []
    for i in order:
        if cut and (len(cut[-1]) + 1) * lengths[i] <= tokens_at_once:
            cut[-1].append(i)
        else:
            cut.append([i])
    return cut
