"""Heads of known function: previous-token heads and induction heads, by the usual test on repeated random tokens."""

import pandas as pd
import torch
from torch import Tensor, nn

from possym.capture.attention_call import AttentionCall
from possym.capture.capture import Capture
from possym.errors import InputError
from possym.tasks.batch import check_count, check_generator


def repeated_tokens(
    n: int,
    length: int,
    vocabulary: int,
    generator: torch.Generator | None = None,
    *,
    beginning: int | None = None,
) -> Tensor:
    """Return ``n`` sequences (n, 2·length) of distinct random token ids, each sequence repeated once.

    Args:
        n: number of sequences.
        length: tokens before the repetition.
        vocabulary: ids are drawn below it.
        generator: a CPU generator; None is a fresh one seeded 0.
        beginning: id of the beginning-of-text token, for models that always read one first (Gemma, Llama); it then
            stands before the first copy, (n, 1 + 2·length), and nowhere else.

    Raises:
        InputError: counts that do not fit, or a vocabulary smaller than ``length``.

    >>> repeated_tokens(1, 3, 10)[0].tolist()[:3] == repeated_tokens(1, 3, 10)[0].tolist()[3:]
    True
    """
    n, length = check_count("n", n, 1), check_count("length", length, 2)
    vocabulary = check_count("vocabulary", vocabulary, length + (beginning is not None))
    generator = check_generator(generator)
    if beginning is None:
        rows = [torch.randperm(vocabulary, generator=generator)[:length] for _ in range(n)]
        return torch.stack(rows).repeat(1, 2)
    first = check_count("beginning", beginning, 0, vocabulary - 1)
    orders = [torch.randperm(vocabulary, generator=generator) for _ in range(n)]
    rows = torch.stack([order[order != first][:length] for order in orders])
    return torch.cat([rows.new_full((n, 1), first), rows, rows], 1)


def known_heads(model: nn.Module, tokens: Tensor) -> pd.DataFrame:
    """Return how strongly each head behaves as a previous-token and as an induction head.

    Args:
        model: a model that `possym.capture.Capture` reads.
        tokens: (n, 2·length) repeated sequences, see `repeated_tokens`; with odd width they begin with a
            beginning-of-text token, which is attended to but is never a query.

    Returns:
        DataFrame: layer, head, previous_token (mean attention to the token before), induction (mean attention, in the
            second copy, to the token after the first occurrence).

    Raises:
        InputError: sequences that are not repeated.

    Source: Olsson et al. 2022, In-context learning and induction heads, section on prefix matching.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=2))
    >>> known_heads(model, repeated_tokens(2, 5, 20)).shape
    (2, 4)
    """
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or tokens.shape[1] < 4:
        raise InputError("tokens: give (n, 2·length) token ids, see repeated_tokens")
    half, start = divmod(tokens.shape[1], 2)  # the first saying starts after a beginning-of-text token, if there is one
    if not torch.equal(tokens[:, start : start + half], tokens[:, start + half :]):
        raise InputError("tokens: every sequence is said twice, after at most one beginning-of-text token")
    capture, rows = Capture(model), []

    def on_call(call: AttentionCall) -> None:
        weights = call.attention()
        positions = torch.arange(start + 1, start + 2 * half, device=weights.device)
        again = torch.arange(start + half, start + 2 * half, device=weights.device)
        previous = weights[:, :, positions, positions - 1].mean((0, 2))
        induction = weights[:, :, again, again - half + 1].mean((0, 2))
        for head, (a, b) in enumerate(zip(previous.tolist(), induction.tolist(), strict=True)):
            rows.append({"layer": call.layer, "head": head, "previous_token": a, "induction": b})

    capture.forward(tokens.to(capture.device), on_call, [tokens.shape[1] - 1])
    return pd.DataFrame(rows)
