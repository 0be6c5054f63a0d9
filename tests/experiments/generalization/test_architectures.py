"""Llama's blocks and several heads a layer: sweeps against transformers, forecasts against long inputs that are run."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.experiments.generalization.forecasting import forecast, target_contents
from possym.experiments.generalization.long_inputs import (
    EXACT,
    HOPS,
    WINDOW,
    answer,
    answer_chunk,
    find_attended_steps,
    plane_norms,
    sample_members,
)
from possym.rope import planes, rotate
from possym.tasks import LetterTask, NumberTask

from .sequences import source

SIZES = {"layers": 3, "width": 16, "init_std": 0.7}
MODELS = {
    "gptj, one head": (GPTJEnsemble, GPTJConfig(136, **SIZES)),
    "gptj, two heads turned in part": (GPTJEnsemble, GPTJConfig(136, heads=2, rotary_dim=4, **SIZES)),
    "llama, one head": (LlamaEnsemble, LlamaConfig(136, **SIZES)),
    "llama, two heads": (LlamaEnsemble, LlamaConfig(136, heads=2, **SIZES)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    kind, config = MODELS[request.param]
    return kind(config, [0, 1, 2])


def theirs(model, member, tokens):
    """Logits of the last place (B, V) and attention of the last query (L, B, H, T), by transformers."""
    exported = model.member_to_transformers(member)
    exported.set_attn_implementation("eager")
    with torch.no_grad():
        found = exported(tokens, output_attentions=True)
    return found.logits[:, -1], torch.stack([weights[:, :, -1] for weights in found.attentions])


def test_a_sweep_finds_what_transformers_finds(model):
    batch = sample_members(NumberTask(), 3, 24, 60, source(2))
    attended = find_attended_steps(model, batch)
    for member in range(3):
        logits, weights = theirs(model, member, batch.tokens[member])
        own = batch._replace(answer=logits.argmax(-1).expand(3, -1))
        correct, _, gap, outside = answer_chunk(model, own, attended, EXACT)
        assert correct[member].all() and not correct.all()
        torch.testing.assert_close(outside[member].transpose(1, 2), weights[..., :-WINDOW].sum(-1), atol=5e-5, rtol=0)
        for b in range(24):
            hops = batch.hops[member, b]
            for layer, head in torch.cartesian_prod(torch.arange(3), torch.arange(model.config.heads)):
                right = batch.path[member, b, attended.step[member, layer, head, hops - 1]]
                others = weights[layer, b, head].log()
                lead = others[right].item()
                others[right] = -torch.inf
                assert gap[member, layer, head, b].item() == pytest.approx(lead - others.max().item(), abs=1e-3)


def test_where_heads_look_is_where_they_look_in_transformers(model):
    batch = sample_members(NumberTask(), 3, 40, WINDOW, source(3))
    found = find_attended_steps(model, batch)
    for member in range(3):
        _, weights = theirs(model, member, batch.tokens[member])
        path = batch.path[member]
        for h in HOPS:
            rows = batch.hops[member] == h
            places = path[rows, : h + 1].expand(*weights.shape[:3:2], -1, -1).transpose(1, 2)
            shares = weights[:, rows].gather(-1, places).mean(1)  # (L, H, h + 1)
            torch.testing.assert_close(found.weight[member, ..., h - 1], shares.amax(-1), atol=1e-5, rtol=0)
            assert torch.equal(found.step[member, ..., h - 1], shares.argmax(-1))


def test_a_plane_is_a_pair_of_the_models_own_layout(model):
    tokens, angles = NumberTask().sample(6, generator=source()).tokens, model.config.frequencies
    trace = model.trace(tokens)
    query = planes(rotate(trace.queries, WINDOW - 1, angles, model.layout), angles, model.layout)
    keys = planes(rotate(trace.keys, torch.arange(WINDOW), angles, model.layout), angles, model.layout)
    shares = (query.unsqueeze(-3) * keys[..., :-1, :, :]).sum(-1) * model.config.head_width**-0.5
    expected = shares.norm(dim=-2).mean(2)  # (E, L, H, F)
    torch.testing.assert_close(plane_norms(model, tokens)[..., : len(angles)], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("length", [18, 150])
def test_the_forecast_of_inputs_with_one_target_token_is_exact(model, length):
    """All targets the same token: every place before the window holds the contents of those in it, in every layer.

    So the forecast is to give the very answers of the long input, in a model of several layers too.
    """
    windows = sample_members(NumberTask(), 3, 40, WINDOW, source(1))
    windows.tokens[..., :8] = 5
    long = torch.cat([torch.full((3, 40, length - WINDOW), 5), windows.tokens], -1)
    with torch.no_grad():
        plain, right = (model(tokens).argmax(-1) for tokens in (windows.tokens, long))
    assert (plain != right).any(1).all() or length == 18
    contents = target_contents(model, OneTarget(), length, source(3))
    found = forecast(model, NumberTask(), length, windows._replace(answer=right), contents, source(2))
    assert found.tolist() == [1, 1, 1]


class OneTarget(NumberTask):
    """The number task with one target token alone."""

    def sample(self, n, **arguments):
        batch = super().sample(n, **arguments)
        batch.tokens[:, :8] = 5
        return batch


@pytest.mark.parametrize("hops", [1, 3])
def test_a_sweep_may_keep_to_one_number_of_hops(hops):
    model = LlamaEnsemble(LlamaConfig(128, layers=1, width=8), [0])
    assert answer(model, LetterTask(), 30, 20, source(), hops=hops).hops.unique().tolist() == [hops]
