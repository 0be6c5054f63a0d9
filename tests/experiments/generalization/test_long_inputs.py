"""Sweeps against the plain model and against heads read one by one."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.last_token import attention, last_token_logits, plane_table
from possym.experiments.generalization import long_inputs
from possym.experiments.generalization.long_inputs import (
    EXACT,
    HOPS,
    AttendedSteps,
    answer,
    answer_chunk,
    find_attended_steps,
    plane_norms,
    sample_members,
)
from possym.tasks import NumberTask

from .sequences import source


@pytest.fixture(scope="module")
def model():
    return GPTJEnsemble(GPTJConfig(136, layers=2, heads=2, width=16, init_std=0.6), [0, 1])


def own(model, batch):
    """The batch with one of the model's members' answers for right ones, so that accuracy is not 0."""
    with torch.no_grad():
        return batch._replace(answer=model(batch.tokens).argmax(-1)[:1].expand(model.members, -1))


def test_answers_count_the_models_right_answers(model, monkeypatch):
    whole = answer(model, NumberTask(), 40, 6, source())
    batch = sample_members(NumberTask(), 2, 6, 40, source())
    with torch.no_grad():
        right = model(batch.tokens).argmax(-1) == batch.answer
    assert torch.equal(whole.correct, right) and torch.equal(whole.hops, batch.hops) and whole.gap is None
    # One member and one sequence at a time, when no more fit.
    monkeypatch.setattr(long_inputs, "TOKENS", 1)
    attended = AttendedSteps(torch.ones(2, 2, 2, 4, dtype=torch.int64), torch.ones(2, 2, 2, 4))
    apart = answer(model, NumberTask(), 40, 3, source(), attended=attended)
    one = source()
    for e in range(2):
        for n in range(3):
            single = sample_members(NumberTask(), 1, 1, 40, one)
            correct, _, gap, outside = answer_chunk(
                model.member(e), single, AttendedSteps(*(x[:1] for x in attended)), EXACT
            )
            assert torch.equal(apart.correct[e, n], correct[0, 0])
            torch.testing.assert_close(apart.gap[e, ..., n], gap[0, ..., 0])
            torch.testing.assert_close(apart.outside[e, ..., n], outside[0, ..., 0])


def test_right_answers_are_told_from_wrong_ones(model):
    batch = own(model, sample_members(NumberTask(), 2, 20, 30, source()))
    correct, *_ = answer_chunk(model, batch, None, EXACT)
    assert correct[0].all() and not correct[1].all()


def test_leads_and_attended_steps_are_those_of_single_heads(model):
    batch = sample_members(NumberTask(), 2, 40, 24, source(2))
    attended = find_attended_steps(model, batch)
    _, _, gap, outside = answer_chunk(model, batch, attended, EXACT)
    for e in range(2):
        relocated, alone = last_token_logits(model.member(e), batch.tokens[e])  # (1, L, B, H, …)
        logits = torch.cat([relocated.diagonal(dim1=-2, dim2=-1), alone], -1)[0]
        weights = attention(relocated, alone)[0]  # (L, B, H, T)
        torch.testing.assert_close(outside[e], weights[..., :-17].sum(-1).transpose(1, 2), atol=1e-5, rtol=0)
        for layer in range(2):
            for head in range(2):
                shares = torch.zeros(4, 5)
                for h in HOPS:
                    rows = (batch.hops[e] == h).nonzero().flatten().tolist()
                    for k in range(h + 1):
                        shares[h - 1, k] = sum(weights[layer, b, head, batch.path[e, b, k]] for b in rows) / len(rows)
                torch.testing.assert_close(attended.weight[e, layer, head], shares.amax(-1), atol=1e-5, rtol=0)
                assert torch.equal(attended.step[e, layer, head], shares.argmax(-1))
                for b in range(40):
                    step = attended.step[e, layer, head, batch.hops[e, b] - 1]
                    right = batch.path[e, b, step]
                    others = logits[layer, b, head].clone()
                    others[right] = -torch.inf
                    lead = logits[layer, b, head, right] - others.max()
                    torch.testing.assert_close(gap[e, layer, head, b], lead, atol=1e-4, rtol=1e-4)


def test_plane_norms_are_those_of_planes_as_heads(model):
    tokens = NumberTask().sample(6).tokens
    norms = plane_norms(model, tokens)
    for e in range(2):
        table = plane_table(model, tokens, member=e, layer=1, head=1, temperature=0.1)
        torch.testing.assert_close(norms[e, 1, 1], torch.tensor(table["logit_norm"].to_numpy()), atol=1e-5, rtol=0)
