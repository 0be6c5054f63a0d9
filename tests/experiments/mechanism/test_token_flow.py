"""Attention against transformers' own, moved tokens against plain loops over strings, labels of attention by hand."""

import itertools

import pytest
import torch

from possym.ensembles.attention import causal_attention
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.experiments.mechanism import token_flow as mechanism
from possym.experiments.mechanism.token_flow import (
    NEVER,
    OTHER,
    attention_maps,
    attention_weights,
    functions,
    label,
    mix,
    token_states,
)
from possym.tasks import Batch, LetterTask, NumberTask

NUMBER, LETTER = NumberTask(), LetterTask()


def model_of(task, layers=3, heads=1, seeds=(0, 1), width=16):
    config = GPTJConfig(len(task.vocabulary), layers=layers, heads=heads, width=width, init_std=0.5)
    return GPTJEnsemble(config, list(seeds))


def batch_of(task, n=7, members=2):
    drawn = [task.sample(n, generator=torch.Generator().manual_seed(seed)) for seed in range(members)]
    return Batch(*(torch.stack(column) for column in zip(*drawn, strict=True)))


@pytest.mark.parametrize("asking", [5, 1])
def test_explicit_weights_mix_as_the_models_own_attention(asking):
    source = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 2, 8, generator=source) for n in (asking, 5, 5))
    angles = torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64)
    ours = mix(attention_weights(query, key, angles), value)
    torch.testing.assert_close(ours, causal_attention(query, key, value, frequencies=angles), atol=1e-5, rtol=0)


def test_attention_maps_are_those_of_transformers():
    model, tokens = model_of(NUMBER, heads=2), NUMBER.sample(4).tokens
    maps = attention_maps(model, tokens)
    for member in range(2):
        theirs = model.member_to_transformers(member)
        theirs.set_attn_implementation("eager")
        expected = torch.stack(theirs(tokens, output_attentions=True).attentions).mean(2)  # (L, B, T, T)
        torch.testing.assert_close(maps[member], expected, atol=2e-5, rtol=0)


def test_a_layer_taken_out_looks_at_itself_and_changes_what_follows():
    model, tokens = model_of(NUMBER), NUMBER.sample(4).tokens
    whole, without = attention_maps(model, tokens), attention_maps(model, tokens, 1)
    assert torch.equal(without[:, 1], torch.eye(17).expand_as(without[:, 1]))
    assert torch.equal(without[:, 0], whole[:, 0])
    assert (without[:, 2] - whole[:, 2]).abs().max() > 1e-3


def moved_by_hand(weights, tokens, stays):
    """States of one sequence by plain loops."""
    history = [list(tokens)]
    for layer in weights:
        held, after = history[-1], []
        for place, row in enumerate(layer.tolist()):
            share = {}
            for token, weight in zip(held, row, strict=True):
                share[token] = share.get(token, 0.0) + weight
            winner = max(share, key=share.get)
            after.append(held[place] if winner in stays else winner)
        history.append(after)
    return history


@pytest.mark.parametrize("task", [NUMBER, LETTER], ids=["number", "letter"])
def test_states_are_those_of_plain_loops(task):
    source = torch.Generator().manual_seed(1)
    tokens = task.sample(5, generator=source).tokens
    tokens = tokens[:, torch.randint(17, (17,), generator=source)]  # tokens that stand more than once
    weights = torch.randn(2, 3, 5, 17, 17, generator=source).mul(2).softmax(-1)
    found = token_states(weights, tokens, mechanism.moved_tokens(task, tokens.device))
    stays = {i for i, name in enumerate(task.vocabulary) if name.isdigit()}
    assert bool(stays) == (task is NUMBER)
    for member in range(2):
        for row in range(5):
            expected = moved_by_hand(weights[member, :, row], tokens[row].tolist(), stays)
            assert found[member, :, row].tolist() == expected


def step_by_hand(task, names):
    """Index or Retrieval on a list of strings."""
    after = []
    for place, name in enumerate(names):
        if task is NUMBER:
            goal = place - int(name) if name.isdigit() else -1
            after.append(names[goal] if goal >= 0 and not names[goal].isdigit() else name)
        else:
            found = {key for key in names[: place + 1] if name[1].isalpha() and key[0] == name[1]}
            after.append(found.pop() if len(found) == 1 else name)
    return after


def functions_by_hand(task, history, batch):
    """What `functions` returns for one member, from states (L + 1, B, T), by loops over strings."""
    layers, rows = len(history) - 1, len(batch.hops)
    path, last, places = torch.zeros(layers, 5), torch.zeros(layers, 5), 0
    left, advance = torch.zeros(layers + 1, 4, 6), torch.zeros(layers, 5)
    for row in range(rows):
        hops, answer = batch.hops[row].item(), task.decode(batch.answer[row])
        walk = batch.path[row, :hops].tolist()
        places += hops
        remaining = []
        for layer in range(layers + 1):
            powers = [task.decode(history[layer][row])]
            for _ in range(4):
                powers.append(step_by_hand(task, powers[-1]))
            arrives = [power[-1] == answer for power in powers]
            remaining.append(arrives.index(True) if True in arrives else NEVER)
            left[layer, hops - 1, remaining[-1]] += 1
            if layer < layers:
                after = task.decode(history[layer + 1][row])
                for k, power in enumerate(powers):
                    last[layer, k] += power[-1] == after[-1]
                    path[layer, k] += sum(power[place] == after[place] for place in walk)
        for layer in range(layers):
            gone = remaining[layer] - remaining[layer + 1]
            if 0 < remaining[layer] < NEVER and gone >= 0:
                advance[layer, gone] += 1
    left = left / left.sum(-1, keepdim=True)
    return {"path": path / places, "last": last / rows, "left": left, "advance": advance / rows}


@pytest.mark.parametrize("task", [NUMBER, LETTER], ids=["number", "letter"])
def test_functions_are_those_of_plain_loops(task, monkeypatch):
    """On attention that follows the path most of the time, so that every count is met."""
    batch = batch_of(task, n=24)
    source = torch.Generator().manual_seed(2)
    next_place = torch.zeros(2, 24, 17, dtype=torch.int64) + torch.arange(17)
    for member in range(2):
        for row in range(24):
            walk = [place for place in batch.path[member, row].tolist() if place >= 0]
            for place, goal in itertools.pairwise(walk):
                next_place[member, row, place] = goal
    maps = torch.rand(2, 3, 24, 17, 17, generator=source).tril() + 1e-3
    noisy = torch.rand(2, 3, 24, 17, 1, generator=source) < 0.2
    hot = torch.nn.functional.one_hot(next_place, 17)[:, None].float()
    maps = torch.where(noisy, maps, hot) / torch.where(noisy, maps, hot).sum(-1, keepdim=True)
    monkeypatch.setattr(mechanism, "MEMORY", 1_000_000)  # several pieces
    starts = []

    def attention(model, tokens, without=None):
        start = sum(starts)
        starts.append(tokens.shape[1])
        return maps[:, :, start : start + tokens.shape[1]]

    monkeypatch.setattr(mechanism, "attention_maps", attention)
    found = functions(model_of(task), task, batch)
    assert len(starts) > 1 and sum(starts) == 24
    history = token_states(maps, batch.tokens, mechanism.moved_tokens(task, batch.tokens.device))
    for member in range(2):
        own = Batch(*(column[member] for column in batch))
        expected = functions_by_hand(task, history[member], own)
        assert len(set(expected["left"].flatten().tolist())) > 5 and expected["advance"][:, 1].min() > 0
        for name, values in expected.items():
            torch.testing.assert_close(found[name][member].float(), values, msg=name)


def looking(batch, goals):
    """Attention maps (1, L, B, T, T) in which, in each layer, a step's place looks at that of a later step."""
    maps = torch.eye(17).repeat(1, len(goals), len(batch.hops[0]), 1, 1)
    for layer, goal in enumerate(goals):
        for row, (path, hops) in enumerate(zip(batch.path[0].tolist(), batch.hops[0].tolist(), strict=True)):
            for step in range(hops):
                target = path[min(goal(step), hops)]
                maps[0, layer, row, path[step]] = torch.eye(17)[target]
    return maps


@pytest.mark.parametrize(
    ("task", "goals", "expected"),
    [
        (NUMBER, [lambda step: step + 1] * 4 + [lambda step: step], [1, 1, 1, 1, 0]),
        (LETTER, [lambda step: step + 1] * 4 + [lambda step: step], [1, 1, 1, 1, 0]),
        # Two ahead in the second layer reads what the first has brought there: three hops after two layers.
        (LETTER, [lambda step: step + 1, lambda step: step + 2, lambda step: step + 4], [1, 2, 1]),
        (LETTER, [lambda step: step, lambda step: step, lambda step: 4], [0, 0, 4]),
    ],
)
def test_attention_by_hand_gets_the_labels_that_it_was_made_for(task, goals, expected, monkeypatch):
    drawn = [task.sample(25, hops=hops, generator=torch.Generator().manual_seed(hops)) for hops in (1, 2, 3, 4)]
    batch = Batch(*(torch.cat(column)[None] for column in zip(*drawn, strict=True)))
    monkeypatch.setattr(mechanism, "attention_maps", lambda *_: looking(batch, goals))
    found = functions(model_of(task, seeds=[0]), task, batch)
    assert label(found["path"])[0].tolist() == expected
    assert (found["left"][0, -1, :, 0] == 1).all()


def test_labels_take_the_smallest_power_near_the_best_and_nothing_weak():
    rates = torch.tensor([[0.5, 0.79, 0.7, 0.1, 0.1], [0.5, 0.81, 0.7, 0.1, 0.1], [0.985, 0.99, 0.99, 0.99, 0.99]])
    assert label(rates).tolist() == [OTHER, 1, 0]
    assert label(torch.tensor([0.97, 0.99, 0.99, 0.99, 0.99])).item() == 1
