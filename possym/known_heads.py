"""Heads whose job is known: previous-token heads and induction heads, by the usual test on repeated random tokens."""

import pandas as pd
import torch
from torch import Tensor, nn

from .capture import Call, Capture
from .errors import InputError
from .tasks.batch import check_count, check_generator


def repeated_tokens(n: int, length: int, vocabulary: int, generator: torch.Generator | None = None) -> Tensor:
    """Return ``n`` sequences (n, 2·length) of random token ids without repetition, each said twice.

    Raises:
        InputError: counts that do not fit, or a vocabulary smaller than ``length``.

    >>> repeated_tokens(1, 3, 10)[0].tolist()[:3] == repeated_tokens(1, 3, 10)[0].tolist()[3:]
    True
    """
    check_count("n", n, 1)
    check_count("length", length, 2)
    check_count("vocabulary", vocabulary, length)
    generator = check_generator(generator)
    rows = [torch.randperm(vocabulary, generator=generator)[:length] for _ in range(n)]
    return torch.stack(rows).repeat(1, 2)


def known_heads(model: nn.Module, tokens: Tensor) -> pd.DataFrame:
    """Return how much each head does what previous-token and induction heads do.

    Args:
        model: a model that `possym.capture.Capture` reads.
        tokens: (n, 2·length) sequences said twice, see `repeated_tokens`.

    Returns:
        DataFrame: layer, head, previous_token (mean attention to the place before), induction (mean attention, in the
        second saying, to the place after the token's first one).

    Raises:
        InputError: sequences that are not said twice.

    Source: Olsson et al. 2022, In-context learning and induction heads, section on prefix matching.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> known_heads(model, repeated_tokens(2, 5, 20)).shape
    (2, 4)
    """
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] % 2 or tokens.shape[1] < 4:
        raise InputError("tokens: give (n, 2·length) token ids, see repeated_tokens")
    half = tokens.shape[1] // 2
    if not torch.equal(tokens[:, :half], tokens[:, half:]):
        raise InputError("tokens: the second half of every sequence repeats the first")
    capture, rows = Capture(model), []

    def on_call(call: Call) -> None:
        weights = attention(call)
        places = torch.arange(1, 2 * half, device=weights.device)
        again = torch.arange(half, 2 * half, device=weights.device)
        previous = weights[:, :, places, places - 1].mean((0, 2))
        induction = weights[:, :, again, again - half + 1].mean((0, 2))
        for head, (a, b) in enumerate(zip(previous.tolist(), induction.tolist(), strict=True)):
            rows.append({"layer": call.layer, "head": head, "previous_token": a, "induction": b})

    capture.forward(tokens.to(capture.device), on_call, tokens.shape[1] - 1)
    return pd.DataFrame(rows)


def attention(call: Call) -> Tensor:
    """Return the attention of every query (B, H, T, T) at one layer, in float32."""
    query, key = call.query.float(), call.key.float()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    logits = query @ key.mT * call.scale
    if call.options.get("softcap") is not None:
        logits = call.options["softcap"] * torch.tanh(logits / call.options["softcap"])
    seen = torch.stack([call.visible(place) for place in range(query.shape[2])])
    logits = logits.masked_fill(~seen, -torch.inf)
    if call.options.get("s_aux") is not None:
        sinks = call.options["s_aux"].float()[:, None, None].expand(*logits.shape[:-1], 1)
        return torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
    return logits.softmax(-1)
