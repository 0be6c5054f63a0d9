"""The plane explorer answers its controls with what possym.ensembles.planes and the model give."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.last_token import attention, last_token_logits
from possym.ensembles.planes import plane_contents, plane_weights
from possym.experiments.mechanism.explorer import plane_explorer
from possym.tasks import LetterTask

TASK = LetterTask()


@pytest.fixture
def explorer():
    model = GPTJEnsemble(GPTJConfig(vocabulary_size=128, layers=3, width=16, init_std=0.6), seeds=[0])
    return plane_explorer(model, TASK)


def typed(explorer):
    return torch.tensor([[TASK.vocabulary.index(token) for token in explorer.text.value.split()]])


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize(("layer", "plane"), [(1, 3), (2, 0)])
def test_it_follows_every_control(explorer, layer, plane, turned):
    explorer.layer.value, explorer.plane.value, explorer.turned.value = layer, plane, turned
    tokens, model = typed(explorer), explorer.model
    energy = plane_weights(model, tokens)["energy"][0, layer, 0]
    chosen = plane or int(energy.argmax()) + 1
    found = explorer.numbers
    assert found["frequency_id"] == chosen and found["share"] == pytest.approx(
        (energy[chosen - 1] / energy.sum()).item()
    )
    table = plane_contents(model, TASK, tokens[0], layer=layer, frequency_id=chosen)
    columns = ["turned_x", "turned_y"] if turned else ["x", "y"]
    for side, kind in (("queries", "query"), ("keys", "key")):
        assert found[side] == table.loc[table["kind"] == kind, columns].to_numpy().tolist()
    assert found["attention"] == attention(*last_token_logits(model, tokens))[0, layer, 0, 0].tolist()
    assert explorer.table.value.count("<circle") == 18 and explorer.table.value.count("<polygon") == 17
    assert f"frequency ID {chosen}," in explorer.status.value


def test_a_wrong_token_is_said_and_the_picture_goes(explorer):
    explorer.text.value = "a1 zz bc"
    assert 'role="alert"' in explorer.status.value and "&#x27;zz&#x27; is no token" in explorer.status.value
    assert explorer.table.value == ""
