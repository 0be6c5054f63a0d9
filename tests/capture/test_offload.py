"""A model that accelerate has spread over GPUs, CPU memory and disk is read as one that is all in one place."""

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

import possym
from possym.capture import Capture
from possym.capture.edits import ablate_frequencies
from possym.capture.known_heads import known_heads, repeated_tokens
from possym.errors import UnsupportedModelError

PARTS = ["model.embed_tokens", *(f"model.layers.{n}" for n in range(3)), "model.norm", "model.rotary_emb", "lm_head"]
# Where the parts go, and where their weights are seen to lie; what is offloaded lies on the meta device.
MAPS = {
    "all on the CPU": ({"": "cpu"}, {"cpu"}),
    "one layer on disk": (dict.fromkeys(PARTS, "cpu") | {"model.layers.1": "disk"}, {"cpu", "meta"}),
    "embedding on disk": (
        dict.fromkeys(PARTS, "disk") | {"model.layers.2": "cpu", "model.rotary_emb": "cpu"},
        {"cpu", "meta"},
    ),
}
if torch.cuda.device_count() > 1:
    second = {"model.layers.1": 1, "model.layers.2": 1, "model.norm": 1}
    MAPS["two GPUs"] = (dict.fromkeys(PARTS, 0) | second, {"cuda:0", "cuda:1"})
    MAPS["two GPUs and the CPU"] = (
        dict.fromkeys(PARTS, 0) | second | {"model.layers.2": "cpu"},
        {"cuda:0", "cuda:1", "meta"},
    )
SIZES = dict(vocab_size=60, hidden_size=32, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8)  # fmt: skip
TOKENS = torch.arange(18).reshape(2, 9) * 7 % 57 + 3


@pytest.fixture(scope="module", params=[(LlamaConfig, LlamaForCausalLM), (Gemma2Config, Gemma2ForCausalLM)])
def folder(request, tmp_path_factory):
    """A folder with a small model."""
    config, kind = request.param
    folder = tmp_path_factory.mktemp("model")
    kind(config(**SIZES)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", MAPS)
def test_spread_model_gives_the_same_numbers(name, folder, tmp_path):
    parts, devices = MAPS[name]
    spread = AutoModelForCausalLM.from_pretrained(folder, device_map=parts, offload_folder=tmp_path).eval()
    assert {str(weight.device) for weight in spread.parameters()} == devices
    first = torch.device("cuda", 0) if "GPU" in name else torch.device("cpu")
    whole = AutoModelForCausalLM.from_pretrained(folder).to(first).eval()
    close = dict(rtol=1e-5, atol=1e-5) if "GPU" in name else dict(rtol=0, atol=0)

    ours, theirs = (possym.profile(m, TOKENS, per_frequency=True, progress=False) for m in (whole, spread))
    for table in ("heads", "frequencies", "coverage"):
        pd.testing.assert_frame_equal(getattr(theirs, table), getattr(ours, table), **close)
    known = [known_heads(m, repeated_tokens(2, 5, 60)) for m in (whole, spread)]
    pd.testing.assert_frame_equal(*known, **close)
    logits = []
    for each in (whole, spread):
        with torch.no_grad(), ablate_frequencies(each, [1]):
            logits.append(each(TOKENS.to(first)).logits)
    torch.testing.assert_close(*logits, **close)
    assert {str(weight.device) for weight in spread.parameters()} == devices


def test_weights_that_are_nowhere_are_refused():
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
    with pytest.raises(UnsupportedModelError, match="meta device"):
        Capture(model)
