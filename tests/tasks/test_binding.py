"""Binding prompts: blocks, balance, answers, for a real tokenizer."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import possym
from possym.errors import InputError
from possym.models import hub
from possym.tasks.binding import ATTRIBUTES, NAMES, BindingTask


@pytest.fixture(scope="module")
def words():
    return hub.load(device="cpu").tokenizer


@pytest.mark.parametrize("pairs", [2, 16, 256])
def test_blocks_are_the_statements(words, pairs):
    batch = BindingTask(words, pairs).sample(6)
    assert batch.tokens.shape[0] == len(batch.texts) == 6 and len(batch.blocks) == pairs
    for row, text, answer, asked in zip(
        batch.tokens.tolist(), batch.texts, batch.answer.tolist(), batch.asked.tolist(), strict=True
    ):
        assert words.decode(row) == text
        statements = [words.decode(row[start:stop]) for start, stop in batch.blocks]
        said = [statement.removesuffix(".").split(" likes ") for statement in statements]
        assert len({name for name, _ in said}) == len({what for _, what in said}) == pairs
        name, attribute = said[asked]
        assert text.endswith(f"What does{name} like?\nAnswer:{name} likes")
        assert words.decode(answer) == f" {attribute}"
        assert text.startswith("Here is what everyone likes." + statements[0])
        assert {name.strip() for name, _ in said} <= set(NAMES) and {what for _, what in said} <= set(ATTRIBUTES)


def test_the_solver_agrees_and_sees_changes(words):
    task = BindingTask(words, 16)
    batch = task.sample(40)
    assert torch.equal(task.solve(batch.tokens), batch.answer)
    swapped = batch.tokens.clone()
    start = batch.blocks[3][0]
    other = batch.blocks[7][0]
    swapped[:, [start + 2, other + 2]] = swapped[:, [other + 2, start + 2]]
    changed = (task.solve(swapped) != batch.answer).nonzero().flatten().tolist()
    assert changed == [n for n, asked in enumerate(batch.asked.tolist()) if asked in (3, 7)] and changed


def test_every_statement_is_asked_about_equally_often(words):
    counts = BindingTask(words, 8).sample(20).asked.bincount(minlength=8)
    assert counts.min() == 2 and counts.max() == 3
    assert BindingTask(words, 8).sample(8).asked.tolist() != list(range(8))


def test_draws_follow_the_generator_alone(words):
    task = BindingTask(words, 4)
    torch.manual_seed(1)
    first = task.sample(3)
    torch.manual_seed(2)
    assert first.texts == task.sample(3).texts
    assert first.texts != task.sample(3, generator=torch.Generator().manual_seed(1)).texts


def test_the_model_answers_small_prompts_better_than_chance():
    model, words = hub.load(device="cpu")
    batch = BindingTask(words, 3).sample(24)
    result = possym.profile(model, batch.tokens, blocks=batch.blocks, answers=batch.answer, progress=False)
    assert (result.prompts.blocks == 3).all() and (result.heads.moved == batch.tokens.shape[1] - 1).all()
    assert result.prompts.correct.mean() > 0.34


def test_tokenizers_that_cannot_do_it_are_refused(words):
    with pytest.raises(InputError, match="only 290 of the known attributes"):
        BindingTask(words, 300)
    letters = Tokenizer(models.WordLevel({c: i for i, c in enumerate("abcdefgh .")}, unk_token="."))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    with pytest.raises(InputError, match="only 0 of the known names"):
        BindingTask(PreTrainedTokenizerFast(tokenizer_object=letters), 2)


def test_bad_numbers_of_pairs_are_refused(words):
    for pairs in [1, 2.0, True, "many"]:
        with pytest.raises(InputError, match="pairs"):
            BindingTask(words, pairs)


def test_bad_draws_are_refused(words):
    for n, generator, message in [(0, None, "n ="), (1.5, None, "n ="), (2, 3, "generator")]:
        with pytest.raises(InputError, match=message):
            BindingTask(words, 2).sample(n, generator=generator)


def test_other_tokens_are_refused_by_the_solver(words):
    task = BindingTask(words, 4)
    batch = task.sample(2)
    unnamed = batch.tokens.clone()
    unnamed[1, -2] = next(k for k in range(len(words)) if k not in unnamed[1])
    for tokens in (batch.tokens.float(), batch.tokens[0], batch.tokens.roll(1, 1), unnamed):
        with pytest.raises(InputError, match="tokens"):
            task.solve(tokens)
