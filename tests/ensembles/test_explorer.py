"""Explorers answer their controls with the numbers that possym.scores and the model give."""

import pytest
import torch

from possym.charts.widgets import heat_table
from possym.ensembles.explorer import hop_explorer, swap_explorer
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.last_token import attention, last_token_logits, swapped_attention
from possym.errors import InputError
from possym.scores import swap_scores
from possym.tasks import LetterTask, NumberTask


@pytest.fixture(scope="module")
def model():
    return GPTJEnsemble(GPTJConfig(vocabulary_size=128, layers=3, width=16, init_std=0.6), seeds=[0])


@pytest.fixture
def swaps(model):
    return swap_explorer(model, LetterTask())


def typed(explorer):
    ids = [explorer.task.vocabulary.index(token) for token in explorer.text.value.split()]
    return torch.tensor([ids])


def test_swap_explorer_follows_every_control(model, swaps):
    swaps.layer.value, swaps.first.value, swaps.second.value, swaps.temperature.value = 1, 3, 12, 0.1
    relocated, own = (values[0, 1, 0, 0] for values in last_token_logits(model, typed(swaps)))
    head = swap_scores(relocated, extra_logits=own, temperature=0.1)
    assert swaps.numbers["before"] == attention(relocated, own).tolist()
    assert swaps.numbers["after"] == swapped_attention(relocated, own, 3, 12).tolist()
    assert swaps.numbers["head"] == (head.positional.item(), head.symbolic.item())
    v, w = (torch.tensor([swaps.numbers[when][place] for place in (3, 12)]) for when in ("before", "after"))
    cosine = lambda a, b: (a @ b / a.norm() / b.norm()).item()  # noqa: E731
    assert swaps.numbers["swap"] == pytest.approx((cosine(v, w), cosine(v.flip(0), w)), abs=1e-5)
    assert f"positional {head.positional.item():.3f}" in swaps.status.value
    before = dict(swaps.numbers)
    for control, value in ((swaps.layer, 2), (swaps.first, 4), (swaps.second, 11), (swaps.temperature, 1.0)):
        control.value = value
        assert swaps.numbers != before
        before = dict(swaps.numbers)


def test_swap_explorer_says_when_the_places_are_one(swaps):
    drawn = swaps.table.value
    swaps.second.value = swaps.first.value
    assert 'role="alert"' in swaps.status.value and "two different positions" in swaps.status.value
    assert swaps.table.value == ""  # what was drawn is no answer to what is asked now
    swaps.second.value = 1
    assert "alert" not in swaps.status.value and swaps.table.value == drawn


def test_hop_explorer_gives_the_models_answer_and_the_right_one(model):
    explorer = hop_explorer(model, LetterTask())
    explorer.hops.value = 3
    explorer.draw.click()
    tokens = typed(explorer)
    with torch.no_grad():
        probabilities = model(tokens)[0, 0].softmax(-1)
    assert explorer.numbers["right"] == explorer.task.decode(explorer.task.solve(tokens))[0]
    assert explorer.numbers["answer"] == explorer.task.vocabulary[probabilities.argmax()]
    assert explorer.numbers["probability"] == probabilities.max().item()
    assert explorer.numbers["attention"] == attention(*last_token_logits(model, tokens))[0, :, 0, 0].tolist()
    assert explorer.table.value.count("<tr>") == 3 and explorer.table.value.count("<td") == 3 * 17
    right = explorer.numbers["answer"] == explorer.numbers["right"]
    assert ("right." in explorer.status.value) == right and ("wrong" in explorer.status.value) != right


def test_drawing_gives_a_new_sequence_of_the_chosen_hops(model):
    explorer = hop_explorer(model, LetterTask())
    seen = {explorer.text.value}
    for hops in (1, 4):
        explorer.hops.value = hops
        explorer.draw.click()
        seen.add(explorer.text.value)
        assert explorer.numbers["tokens"] == explorer.text.value.split()
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("a1 b2 zz", "zz"), ("a1 b2", "at least three"), ("", "at least three"), ("ab ab ab", "first token|path|earlier")],
)
def test_wrong_sequences_go_to_the_status_line(model, text, complaint):
    explorer = hop_explorer(model, LetterTask())
    explorer.text.value = text
    assert 'role="alert"' in explorer.status.value
    assert any(word in explorer.status.value for word in complaint.split("|"))
    assert explorer.numbers == {} and explorer.table.value == ""


def test_short_sequences_that_lack_the_places_are_said(swaps):
    swaps.second.value = 12
    swaps.text.value = "c2 dh ac"
    assert "movable keys are at positions 0 to 1" in swaps.status.value


def test_a_model_of_another_task_is_refused(model):
    with pytest.raises(InputError, match="128 tokens, the task has 136"):
        swap_explorer(model, NumberTask())
    with pytest.raises(InputError, match="give a GPTJEnsemble"):
        hop_explorer(None, LetterTask())


def test_heat_table_states_what_it_shades():
    html = heat_table([("layer 0", ["<", "b"], [0.25, 0.75])])
    assert "&lt;<br><small>0.25</small>" in html and "rgba(0,158,115,0.750)" in html
