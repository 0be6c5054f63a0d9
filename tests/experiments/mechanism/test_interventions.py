"""Changed attention against plain loops, and what a change must and must not touch."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.experiments.mechanism.interventions import (
    CHANGES,
    changed_weights,
    greedy_layer_ablation,
    intervention,
    keep_layers,
)
from possym.tasks import Batch, LetterTask

TASK = LetterTask()


def model_of(layers=3, heads=2, seeds=(0, 1)):
    return GPTJEnsemble(GPTJConfig(128, layers=layers, heads=heads, width=16, init_std=0.5), list(seeds))


@pytest.fixture
def batch():
    drawn = [TASK.sample(8, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    return Batch(*(torch.stack(column) for column in zip(*drawn, strict=True)))


def by_hand(own, change, path, layer):
    """Other attention of one sequence and head, (T, T), by loops."""
    T = len(own)
    rows = own.clone()
    for place in range(T):
        if change == "uniform":
            rows[place] = torch.tensor([1 / (place + 1) if key <= place else 0.0 for key in range(T)])
        elif change == "self":
            rows[place] = torch.tensor([float(key == place) for key in range(T)])
        elif place in path:
            ahead = path.index(place) + (1 if change == "next" else layer + 1)
            goal = path[min(ahead, len(path) - 1)]
            rows[place] = torch.tensor([float(key == goal) for key in range(T)])
    return rows


@pytest.mark.parametrize("change", ["uniform", "self", "next", "ahead"])
@pytest.mark.parametrize("layer", [0, 2])
def test_changed_weights_are_those_of_plain_loops(batch, change, layer):
    own = torch.randn(2, 8, 2, 17, 17, generator=torch.Generator().manual_seed(0)).softmax(-1)
    found = changed_weights(own, change, batch.path, batch.hops, layer)
    for member in range(2):
        for row in range(8):
            path = [place for place in batch.path[member, row].tolist() if place >= 0]
            for head in range(2):
                expected = by_hand(own[member, row, head], change, path, layer)
                torch.testing.assert_close(found[member, row, head], expected)


def test_exchanged_attention_is_another_sequences(batch):
    own = torch.randn(2, 8, 2, 17, 17, generator=torch.Generator().manual_seed(0))
    found = changed_weights(own, "exchanged", batch.path, batch.hops, 0)
    assert all(torch.equal(found[:, row], own[:, row - 1]) for row in range(8))


def answers(model, batch, attend=None):
    with torch.no_grad():
        return model(batch.tokens, attend=attend)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_change_reaches_the_answer_and_that_of_the_last_place_leaves_the_others(batch, layer):
    model = model_of()
    plain = answers(model, batch)
    for change in CHANGES:
        changed = answers(model, batch, intervention(model, batch, layer, change))
        assert (changed - plain).abs().max() > 1e-3, change
    last = answers(model, batch, intervention(model, batch, layer, "self", "last"))
    others = answers(model, batch, intervention(model, batch, layer, "self", "others"))
    assert (last - plain).abs().max() > 1e-3
    top = layer == model.config.layers - 1  # there, only the last place is left to be read
    assert torch.allclose(others, plain, atol=1e-5) == top
    with torch.no_grad():
        seen = [
            model(batch.tokens, all_positions=True, attend=intervention(model, batch, layer, "self", places))
            for places in ("last", "all")
        ]
        whole = model(batch.tokens, all_positions=True)
    torch.testing.assert_close(seen[0][:, :, :-1], whole[:, :, :-1], atol=1e-5, rtol=0)
    assert (seen[1][:, :, 1:-1] - whole[:, :, 1:-1]).abs().max() > 1e-3


def test_keeping_all_layers_changes_nothing_and_keeping_none_is_changing_each(batch):
    model = model_of()
    everything = torch.ones(2, 3, dtype=torch.bool)
    torch.testing.assert_close(
        answers(model, batch, keep_layers(model, everything, "uniform")), answers(model, batch), atol=1e-5, rtol=0
    )
    for instead in ("uniform", "self"):
        for layer in range(3):
            kept = everything.clone()
            kept[1, layer] = False  # of the second member alone
            found = answers(model, batch, keep_layers(model, kept, instead))
            alone = answers(model, batch, intervention(model, batch, layer, instead))
            torch.testing.assert_close(found[0], answers(model, batch)[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(found[1], alone[1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("instead", ["uniform", "self"])
def test_leaving_out_takes_the_least_needed_layer_of_each_member(batch, instead):
    model = model_of(layers=4)
    truth = answers(model, batch).argmax(-1)

    def score(member, attend):  # agreement with the whole model's answers, finely graded by probability
        probability = answers(model, batch, attend).softmax(-1).gather(-1, truth[..., None])
        return probability[member].mean().item()

    order, accuracy = greedy_layer_ablation(
        model, lambda attend: torch.tensor([score(member, attend) for member in range(2)]), instead
    )
    for member in range(2):
        left = [0, 1, 2, 3]
        for step in range(4):
            tried = {}
            for layer in left:
                kept = torch.zeros(2, 4, dtype=torch.bool)
                kept[member, [other for other in left if other != layer]] = True
                tried[layer] = score(member, keep_layers(model, kept, instead))
            assert accuracy[member, step].item() == pytest.approx(max(tried.values()), abs=1e-6)
            left.remove(max(tried, key=tried.get))
            assert sorted(set(range(4)) - set(order[member, : step + 1].tolist())) == left
    assert order.sort().values.tolist() == [[0, 1, 2, 3]] * 2


def test_of_equally_good_layers_the_latest_goes_first():
    model = model_of(layers=4)
    assert greedy_layer_ablation(model, lambda attend: torch.ones(2), "self")[0].tolist() == [[3, 2, 1, 0]] * 2
