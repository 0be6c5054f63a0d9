"""What a plan costs: the loss by position, the copying of repeated tokens, and the recall of a needle.

Each function calls the model; inside `possym.kv_cache.applied` it measures the model under a plan. Rows are kept by
sequence, for intervals over sequences and paired comparisons of plans.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from possym.capture.known_heads import repeated_tokens
from possym.errors import InputError, UnsupportedModelError, require_type, to_float, to_int

LENGTH_FOR_A_NEEDLE = 5


@torch.no_grad()
def position_losses(model: nn.Module, tokens: Tensor, *, at_once: int = 8) -> Tensor:
    """Return the loss (B, T − 1) of every next token of token ids (B, T), in nats, in float32 on the CPU.

    Raises:
        InputError: tokens of another shape.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> position_losses(model, torch.arange(12).view(2, 6)).shape
    torch.Size([2, 5])
    """
    rows: list[Tensor] = []
    for some in check_tokens(model, tokens, 2).to(embedding(model).device).split(check_count(at_once, "at_once")):
        logits = model(input_ids=some, use_cache=False).logits[:, :-1].float()
        rows.append(F.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").cpu())
    return torch.cat(rows)


def copying(
    model: nn.Module,
    count: int,
    length: int,
    *,
    beginning: int | None = None,
    generator: torch.Generator | None = None,
    at_once: int = 8,
) -> pd.DataFrame:
    """Return how well a model repeats ``length`` random tokens: sequence, accuracy, loss (nats per token).

    The first token of the repetition does not count: nothing announces that the sequence begins again.

    Args:
        count, length, beginning, generator: as `possym.capture.known_heads.repeated_tokens` takes them.

    Source: the test of induction of Olsson et al. 2022.
    """
    vocabulary, at_once = embedding(model).shape[0], check_count(at_once, "at_once")
    tokens = repeated_tokens(count, length, vocabulary, generator, beginning=beginning).to(embedding(model).device)
    rows: list[tuple[float, float]] = []
    with torch.no_grad():
        for some in tokens.split(at_once):
            logits = model(input_ids=some, use_cache=False).logits[:, -length:-1].float()
            right = (logits.argmax(-1) == some[:, 1 - length :]).double().mean(1)
            loss = F.cross_entropy(logits.transpose(1, 2), some[:, 1 - length :], reduction="none").double().mean(1)
            rows += zip(right.tolist(), loss.tolist(), strict=True)
    return pd.DataFrame(rows, columns=["accuracy", "loss"]).rename_axis("sequence").reset_index()


def needle(
    model: nn.Module,
    text: Tensor,
    *,
    lengths: Sequence[int],
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    seed: int = 0,
    at_once: int = 8,
) -> pd.DataFrame:
    """Plant a pair of random tokens in text and ask, with its first at the end, for its second.

    Args:
        text: (B, T) token ids; of each row the first ``lengths`` tokens are used, whose first stays.
        lengths: tokens of the prompts, from 5.
        depths: where the pair stands, 0 at the beginning, 1 right before the end.
        seed: of the pairs, which are the same at all lengths and depths.

    Returns:
        DataFrame: length, depth, distance (tokens back from the query to the pair's first), sequence, right (whether
        the second is likeliest), loss of the second in nats.

    Raises:
        InputError: lengths or depths that do not fit.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> needle(model, torch.arange(12)[None], lengths=[12], depths=[0, 1])[["depth", "distance"]].values.tolist()
    [[0.0, 10.0], [1.0, 2.0]]
    """
    text = check_tokens(model, text, LENGTH_FOR_A_NEEDLE)
    most, at_once, seed = text.shape[1], check_count(at_once, "at_once"), require_type(seed, int, "seed")
    require_type(lengths, Iterable, "lengths")
    require_type(depths, Iterable, "depths")
    for length in lengths:
        if (number := to_int(length)) is None or not LENGTH_FOR_A_NEEDLE <= number <= most:
            raise InputError(f"length {length!r}: give lengths from {LENGTH_FOR_A_NEEDLE} to the text's {most} tokens")
    for depth in depths:
        if (share := to_float(depth)) is None or not 0 <= share <= 1:
            raise InputError(f"depth {depth!r}: give depths from 0, the beginning, to 1, right before the end")
    vocabulary = embedding(model).shape[0]
    pairs = torch.randint(vocabulary, (len(text), 2), generator=torch.Generator().manual_seed(seed))
    rows = []
    for length in lengths:
        for depth in depths:
            start = 1 + round(depth * (length - 4))
            planted = text[:, :length].clone()
            planted[:, start : start + 2] = pairs.to(text.device)
            planted[:, -1] = pairs[:, 0].to(text.device)
            logits = last_logits(model, planted, at_once)
            right = logits.argmax(-1) == pairs[:, 1]
            loss = F.cross_entropy(logits, pairs[:, 1], reduction="none")
            at = length, float(depth), length - 1 - start
            rows += [(*at, n, *each) for n, each in enumerate(zip(right.tolist(), loss.tolist(), strict=True))]
    return pd.DataFrame(rows, columns=["length", "depth", "distance", "sequence", "right", "loss"])


@torch.no_grad()
def last_logits(model: nn.Module, tokens: Tensor, at_once: int = 8) -> Tensor:
    """Return the logits (B, V) after the last token, in float32 on the CPU."""
    parts = [
        model(input_ids=some, use_cache=False, logits_to_keep=1).logits[:, -1].float().cpu()
        for some in tokens.to(embedding(model).device).split(at_once)
    ]
    return torch.cat(parts)


def check_tokens(model: nn.Module, tokens: Any, least: int) -> Tensor:
    """Return token ids as int64, or raise an InputError unless they are (B, T), long enough and known to the model."""
    require_type(tokens, Tensor, "tokens")
    whole = not tokens.is_floating_point() and not tokens.is_complex() and tokens.dtype != torch.bool
    if tokens.ndim != 2 or not whole or not len(tokens) or tokens.shape[1] < least:
        raise InputError(f"tokens {tokens.dtype} {tuple(tokens.shape)}: give token ids (B, T), T at least {least}")
    low, high, most = int(tokens.min()), int(tokens.max()), embedding(model).shape[0]
    if low < 0 or high >= most:
        raise InputError(f"tokens hold id {low if low < 0 else high}: the model's vocabulary goes from 0 to {most - 1}")
    return tokens.long()


def check_count(value: Any, name: str) -> int:
    """Return a whole number from 1, or raise an InputError."""
    if (number := to_int(value)) is None or number < 1:
        raise InputError(f"{name} = {value!r}: give a whole number from 1")
    return number


def embedding(model: Any) -> Tensor:
    """Return a model's input embedding (V, width), which lies where it wants its token ids."""
    if not hasattr(model, "get_input_embeddings"):
        raise UnsupportedModelError(f"model is a {type(model).__name__}: give a transformers model")
    return model.get_input_embeddings().weight
