"""The local runner against one prompt at a time, one token at a time."""

import pytest
import torch

from possym.errors import InputError, UnsupportedModelError
from possym.models import hub
from possym.models.runners import LocalRunner, batches

TEXTS = [
    "One, two, three,",
    "Alice likes red. Bob likes blue. What does Alice like? Alice likes",
    "Say yes.",
    "The capital of France is a city called",
]
LETTERS = list("abcdefghijklmnopqrstuvwxyz")


@pytest.fixture(scope="module")
def loaded():
    return hub.load(device="cpu")


def alone(loaded, ids, count):
    """Greedy tokens, the whole prompt read anew for each, and the logits of the first."""
    ids, made, first = list(ids), [], None
    for _ in range(count):
        with torch.no_grad():
            logits = loaded.model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        first = logits if first is None else first
        made.append(int(logits.argmax()))
        if made[-1] == loaded.model.generation_config.eos_token_id:
            break
        ids.append(made[-1])
    return made, first


@pytest.mark.parametrize("chat", [True, False])
def test_batched_answers_are_those_of_each_prompt_alone(loaded, chat):
    runner = LocalRunner(*loaded, chat=chat, max_new_tokens=4, tokens_at_once=80)
    replies = runner.answer(TEXTS, beginnings=LETTERS, progress=False)
    tokenizer = loaded.tokenizer
    for text, reply in zip(TEXTS, replies, strict=True):
        if chat:
            ids = tokenizer(
                f"<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            )["input_ids"]
        else:
            ids = tokenizer(text)["input_ids"]
        made, logits = alone(loaded, ids, 4)
        end = loaded.model.generation_config.eos_token_id
        words = tokenizer.decode([token for token in made if token != end])
        ended = end in made or (not chat and "\n" in words)
        assert (reply.text, reply.ended) == (words if chat else words.split("\n")[0], ended)
        starts = [tokenizer(letter if chat else f" {letter}")["input_ids"][0] for letter in LETTERS]
        assert reply.first == LETTERS[int(logits[starts].argmax())]


def test_sampling_that_a_checkpoint_asks_for_is_not_done(loaded):
    runner = LocalRunner(*loaded, chat=False, max_new_tokens=6)
    before = runner.answer(TEXTS[:1], progress=False)
    kept = loaded.model.generation_config
    loaded.model.generation_config = type(kept)(
        **kept.to_diff_dict() | {"do_sample": True, "temperature": 9.0, "top_k": 1000}
    )
    try:
        assert runner.answer(TEXTS[:1], progress=False) == before
    finally:
        loaded.model.generation_config = kept


def test_batches_hold_what_they_may_and_every_prompt_once():
    lengths = [5, 3, 9, 4, 30]
    order = sorted(range(5), key=lengths.__getitem__)
    cut = batches(order, lengths, 12)
    assert sorted(i for batch in cut for i in batch) == list(range(5))
    assert all(len(batch) * max(lengths[i] for i in batch) <= 12 or len(batch) == 1 for batch in cut)
    assert len(cut) == 4  # 3 + 4, then each alone


def test_what_cannot_be_asked_is_refused(loaded):
    runner = LocalRunner(*loaded)
    assert runner.chat
    for texts in ([], [""], "text", [1]):
        with pytest.raises(InputError, match="texts"):
            runner.answer(texts)
    with pytest.raises(InputError, match="this model reads 8192"):
        runner.answer(["a " * 9000])
    with pytest.raises(InputError, match="start with the same token"):
        runner.answer(["a"], beginnings=["c2", "c3"])
    with pytest.raises(UnsupportedModelError, match="give a causal model"):
        LocalRunner(torch.nn.Linear(1, 1), loaded.tokenizer)
    for changes, message in (
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"tokens_at_once": True}, "tokens_at_once = True"),
        ({"chat": "yes"}, "chat is of type str"),
    ):
        with pytest.raises(InputError, match=message):
            LocalRunner(*loaded, **changes)
    with pytest.raises(InputError, match="tokenizer is a int"):
        LocalRunner(loaded.model, 3)


def test_models_and_texts_that_cannot_answer_are_refused_before_a_run(loaded):
    from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

    model, tokenizer = loaded
    t5 = T5ForConditionalGeneration(T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=9))
    with pytest.raises(UnsupportedModelError, match="causal"):
        LocalRunner(t5, tokenizer)
    with pytest.raises(InputError, match="give the model's tokenizer"):
        LocalRunner(model, len)
    small = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, bos_token_id=0, eos_token_id=0)
    with pytest.raises(InputError, match="the model knows 9"):
        LocalRunner(GPT2LMHeadModel(small), tokenizer, chat=False).answer(["hello"], progress=False)
    with pytest.raises(InputError, match="half a letter"):
        LocalRunner(model, tokenizer, chat=False).answer(["\ud800"], progress=False)
