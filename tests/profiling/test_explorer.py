"""The explorer's numbers against the model's own attention and a profile made apart; what it says of wrong input."""

import pytest
import torch

import possym
from possym.charts.typography import percent
from possym.errors import InputError, UnsupportedModelError
from possym.models import hub, random_llama
from possym.profiling.explorer import ProfileExplorer

PROMPT = "Alice likes red. Bob likes tea. What does Bob like?"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return hub.load(str(random_llama.save(tmp_path_factory.mktemp("llama"))), device="cpu")


def test_it_shows_the_models_attention_and_scores(loaded):
    model, tokenizer = loaded
    explorer = ProfileExplorer(model, tokenizer, PROMPT)
    explorer.layer.value, explorer.head.value = 2, 3
    tokens = tokenizer(PROMPT, return_tensors="pt").input_ids
    eager = type(model).from_pretrained(model.config.name_or_path, attn_implementation="eager")
    with torch.no_grad():
        output = eager(tokens, output_attentions=True)
    assert torch.allclose(torch.tensor(explorer.numbers["attention"]), output.attentions[2][0, 3, -1], atol=1e-5)
    assert explorer.numbers["answer"] == tokenizer.decode(output.logits[0, -1].argmax())
    apart = possym.profile(model, tokens, hold="first", per_frequency=True, progress=False)
    row = apart.heads.query("layer == 2 and head == 3").iloc[0]
    assert f"positional {row.positional:.3f}, symbolic {row.symbolic:.3f}" in explorer.status.value
    assert f"{percent(row.attention_moved)} of its attention on what moves" in explorer.status.value
    assert explorer.numbers["frequencies"].equals(apart.head_frequencies(2, 3))
    assert explorer.picture.value.count("<circle") == len(apart.heads)
    assert explorer.picture.value.count("<polyline") == 2


def test_another_prompt_is_read_at_once(loaded):
    explorer = ProfileExplorer(*loaded, PROMPT)
    explorer.prompt.value = "Alice likes red. Bob likes red."
    assert explorer.numbers["tokens"] == ["Alice", "likes", "red", ".", "Bob", "likes", "red", "."]
    assert len(explorer.numbers["attention"]) == 8


def test_wrong_input_is_said_and_the_picture_goes_until_there_is_another(loaded):
    explorer = ProfileExplorer(*loaded, PROMPT)
    drawn = explorer.picture.value
    explorer.prompt.value = "red"
    assert 'role="alert"' in explorer.status.value and "at least three" in explorer.status.value
    explorer.prompt.value = "red " * 300
    assert "300 tokens: give at most 256" in explorer.status.value
    explorer.head.value = 1
    assert explorer.picture.value == "" and explorer.numbers == {} and "300 tokens" in explorer.status.value
    explorer.head.value = 0
    explorer.prompt.value = PROMPT
    assert explorer.picture.value == drawn


def test_tokens_cannot_break_the_page(loaded):
    explorer = ProfileExplorer(*loaded, PROMPT)
    explorer.tokenizer = Shouting(loaded.tokenizer)
    explorer.prompt.value = "Alice likes tea."
    assert "<script>" not in explorer.picture.value
    assert "&lt;script&gt;" in explorer.picture.value


class Shouting:
    """A tokenizer whose tokens are markup."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, text):
        return self.tokenizer(text)

    def convert_ids_to_tokens(self, ids):
        return ["<script>"] * len(ids)

    def decode(self, ids):
        return self.tokenizer.decode(ids)


def test_what_is_no_model_or_tokenizer_is_refused(loaded):
    with pytest.raises(InputError, match="tokenizer is a NoneType"):
        ProfileExplorer(loaded.model, None)
    with pytest.raises(UnsupportedModelError):
        ProfileExplorer(torch.nn.Linear(2, 2), loaded.tokenizer)
