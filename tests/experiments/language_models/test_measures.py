"""What is measured, against models whose answers are known and against loops."""

import pytest
import torch
import torch.nn.functional as F

from possym.capture.known_heads import repeated_tokens
from possym.experiments.language_models import measures

from .test_model import model_of

TOKENS = torch.randint(40, (6, 24), generator=torch.Generator().manual_seed(5))


def attention_by_loop(model, tokens, layer, head):
    """Weights (T, T) of one head, one logit at a time."""
    queries, keys = model.trace(tokens[None])
    width, rows = model.sizes.head_width, torch.zeros(len(tokens), len(tokens))
    for i in range(len(tokens)):
        logits = []
        for j in range(i + 1):
            q, k = queries[layer, 0, head, i].double(), keys[layer, 0, head, j].double()
            q, k = torch.complex(*q.chunk(2)), torch.complex(*k.chunk(2))
            logits.append((k.conj() * q * torch.exp(1j * (i - j) * model.angles)).real.sum() / width**0.5)
        rows[i, : i + 1] = torch.stack(logits).softmax(0)
    return rows


def test_attention_and_jobs_are_those_of_a_loop():
    model = model_of("rope")
    said_twice = repeated_tokens(1, 6, 40)
    weights = attention_by_loop(model, said_twice[0], layer=1, head=2)
    jobs = measures.known_jobs(model, said_twice, said_twice).query("layer == 1 and head == 2").iloc[0]
    assert jobs["previous_token"] == pytest.approx(sum(float(weights[i, i - 1]) for i in range(1, 12)) / 11, abs=1e-5)


def test_induction_attention_is_read_after_the_first_saying():
    model = model_of("rope")
    said_twice = repeated_tokens(3, 6, 40)
    queries, keys = model.trace(said_twice)
    weights = model.attention(queries[0], keys[0])  # (B, H, T, T)
    jobs = measures.known_jobs(model, said_twice, said_twice).query("layer == 0")
    for head in range(4):
        expected = [float(weights[b, head, i, i - 5]) for b in range(3) for i in range(6, 12)]
        assert jobs["induction"].iloc[head] == pytest.approx(sum(expected) / len(expected), abs=1e-6)


def test_losses_are_by_position():
    model = model_of("rope")
    with torch.no_grad():
        logits = model(TOKENS[:, :-1], model.turns(23))
    expected = [float(F.cross_entropy(logits[:, i], TOKENS[:, i + 1])) for i in range(23)]
    assert measures.losses(model, TOKENS, at_once=4).tolist() == pytest.approx(expected, abs=1e-5)


def test_a_window_hides_what_lies_further_back_from_the_chosen_heads_alone():
    heads = torch.tensor([[True, False, False, True], [False, False, True, False]])
    masks = measures.windowed(heads, 10, window=3, sink=1)
    for layer, head, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(10), torch.arange(10)):
        seen = j <= i and (not heads[layer, head] or i - j < 3 or j == 0)
        assert (masks[layer, head, i, j] == 0) == seen
    model = model_of("rope")
    none = measures.windowed(torch.zeros(2, 4, dtype=torch.bool), 23, window=3, sink=1)
    torch.testing.assert_close(measures.losses(model, TOKENS, none), measures.losses(model, TOKENS))
    some = measures.windowed(heads, 23, window=3, sink=1)
    assert (measures.losses(model, TOKENS, some) - measures.losses(model, TOKENS)).abs().max() > 1e-3


def test_planes_that_were_stopped_turn_again():
    model = model_of("rope")
    before, loss = model.angles.clone(), measures.losses(model, TOKENS)
    with measures.without_planes(model, [0, 1]):
        assert model.angles[:2].tolist() == [0, 0] and torch.equal(model.angles[2:], before[2:])
        assert (measures.losses(model, TOKENS) - loss).abs().max() > 1e-3
    assert torch.equal(model.angles, before)


def test_a_planted_pair_stands_at_its_distance(monkeypatch):
    model, read = model_of("rope"), []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda tokens, turns: (read.append(tokens), forward(tokens, turns))[1])
    table = measures.recall(model, TOKENS, [2, 9], seed=0)
    for tokens, distance in zip(read, [2, 9], strict=True):
        first = tokens.shape[1] - 1 - distance
        assert (tokens[:, first] == tokens[:, -1]).all()
        assert (tokens[:, 1:first] == TOKENS[:, 1:first]).all()
    assert table["distance"].tolist() == [2, 9] and table["accuracy"].between(0, 1).all()


def test_planes_add_up_to_the_head():
    model = model_of("rope")
    table = measures.plane_scores(model, TOKENS, 23)
    assert len(table) == 2 * 4 * 8 and table[["positional", "symbolic"]].to_numpy().max() <= 1 + 1e-6
    still = measures.plane_scores(model_of("nope"), TOKENS, 23)
    assert still["symbolic"].to_numpy() == pytest.approx(1, abs=1e-6)
