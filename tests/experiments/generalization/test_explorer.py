"""The explorer of lengths shows what the model does at the length that its slider says."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.last_token import attention, last_token_logits
from possym.experiments.generalization.explorer import COUNTED, length_explorer
from possym.experiments.generalization.long_inputs import sample_members
from possym.tasks import LetterTask


@pytest.fixture
def explorer():
    return length_explorer(GPTJEnsemble(GPTJConfig(128, layers=3, width=16, init_std=0.6), [5, 6]), LetterTask())


def test_it_shows_the_answer_and_the_attention_of_the_model(explorer):
    explorer.length.value = 80
    tokens = LetterTask().sample(1, hops=3, length=80, generator=torch.Generator().manual_seed(4)).tokens
    explorer.answer(tokens)
    with torch.no_grad():
        probabilities = explorer.model(tokens)[0, 0].softmax(-1)
    weights = attention(*last_token_logits(explorer.model, tokens))[0, :, 0, 0]
    found = explorer.numbers
    assert found["right"] == LetterTask().decode(LetterTask().solve(tokens))[0]
    assert found["answer"] == LetterTask().vocabulary[probabilities.argmax()]
    assert found["probability"] == pytest.approx(probabilities.max().item(), rel=1e-4)
    torch.testing.assert_close(torch.tensor(found["window"]), weights[:, -17:], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.tensor(found["outside"]), weights[:, :-17].sum(-1), atol=1e-5, rtol=0)
    assert "63 before" in explorer.table.value and explorer.table.value.count("<td") == 3 * 18
    assert ("wrong" in explorer.status.value) == (found["answer"] != found["right"])


def test_controls_draw_what_they_say(explorer):
    seen = [explorer.numbers["tokens"]]
    for control, value in ((explorer.hops, 4), (explorer.length, 500)):
        control.value = value
        seen.append(explorer.numbers["tokens"])
    explorer.draw.click()
    assert explorer.numbers["tokens"] not in seen and len(set(map(tuple, seen))) == 3
    assert "483 before" in explorer.table.value and sum(explorer.numbers["outside"]) > 0
    explorer.length.value = 17
    assert explorer.numbers["outside"] == [0, 0, 0]


def test_counting_counts_right_answers(explorer):
    state = explorer.source.get_state()
    explorer.count.click()
    source = torch.Generator()
    source.set_state(state)
    batch = sample_members(LetterTask(), 1, COUNTED, 17, source)
    with torch.no_grad():
        right = (explorer.model(batch.tokens).argmax(-1) == batch.answer).sum().item()
    assert explorer.numbers["correct"] == right and f"{right} of {COUNTED}" in explorer.accuracy.value


def test_what_does_not_fit_is_said(explorer):
    explorer.answer(torch.full((1, 17), 3))
    assert 'role="alert"' in explorer.status.value and explorer.table.value == "" and explorer.numbers == {}
