"""Two small Llamas of random weights with the tokenizer of SmolLM2, saved to disk: controls for a sweep over models.

Nothing has trained them. They differ in the spread of their weights alone: with the usual small ones attention is all
but uniform, with large ones it is sharp, and at random.
"""

from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from possym.models import hub

FOLDER = Path("_build/models")
SPREADS = {"random-small-weights": 0.02, "random-large-weights": 0.3}

tokenizer = AutoTokenizer.from_pretrained(hub.default_folder())
for name, spread in SPREADS.items():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=spread,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(FOLDER / name)
    tokenizer.save_pretrained(FOLDER / name)
    print(FOLDER / name)
