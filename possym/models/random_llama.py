"""A small Llama, or Gemma 3, of random weights with a word tokenizer, in a folder that `possym.models.hub` can load.

The model knows nothing, but it takes every step that a trained model takes, in a second and without a network.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import torch

from possym.errors import needed
from possym.tasks.binding import ATTRIBUTES, INTRODUCTION, NAMES, QUESTION, STATEMENT
from possym.tasks.text import natural_text

WORDS = 400
SIZES: dict[str, Any] = dict(
    hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=2048, initializer_range=0.3,
)  # fmt: skip

GEMMA_SIZES: dict[str, Any] = SIZES | dict(
    num_hidden_layers=6, num_key_value_heads=1, head_dim=8, sliding_window=512, pad_token_id=None,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    rope_parameters={
        kind: {"rope_type": "default", "rope_theta": base}
        for kind, base in (("sliding_attention", 1e4), ("full_attention", 1e6))
    },
)  # fmt: skip


def save(folder: Path, seed: int = 0, *, gemma: bool = False) -> Path:
    """Write the model and its tokenizer into ``folder`` and return it; the same seed gives the same weights.

    With ``gemma`` it is a Gemma 3, whose every third layer attends in full and rotates with another base.

    >>> import tempfile
    >>> from possym.models import hub
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model, tokenizer = hub.load(str(save(Path(folder))), device="cpu")
    >>> tokenizer.convert_ids_to_tokens(tokenizer(" Alice likes red.")["input_ids"])
    ['Alice', 'likes', 'red', '.']
    """
    with needed("a random model needs", "models"):
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import (
            Gemma3ForCausalLM,
            Gemma3TextConfig,
            LlamaConfig,
            LlamaForCausalLM,
            PreTrainedTokenizerFast,
        )

    split = pre_tokenizers.Whitespace()
    frame = split.pre_tokenize_str(INTRODUCTION + STATEMENT + QUESTION)
    counts = Counter(word for word, _ in split.pre_tokenize_str("\n".join(natural_text().values())))
    common = [word for word, _ in counts.most_common(WORDS)]
    words = dict.fromkeys(["<unknown>", *(word for word, _ in frame), *NAMES, *ATTRIBUTES, *common])
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unknown>"))
    core.pre_tokenizer = split
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes: dict[str, Any] = dict(vocab_size=len(words), bos_token_id=None, eos_token_id=None)
        model: Any = (
            Gemma3ForCausalLM(Gemma3TextConfig(**sizes, **GEMMA_SIZES))
            if gemma
            else LlamaForCausalLM(LlamaConfig(**sizes, **SIZES))
        )
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unknown>").save_pretrained(folder)
    return folder
