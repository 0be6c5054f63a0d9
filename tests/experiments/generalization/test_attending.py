"""Attention at any length, beyond a window and with repairs, against the model's own and against plain sums."""

import math

import pytest
import torch

from possym.ensembles.attention import causal_attention
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.experiments.generalization.attending import (
    Prefix,
    all_frequencies,
    attention,
    attention_with_prefix,
    run_prefix,
)
from possym.experiments.generalization.long_inputs import EXACT, WINDOW, sample_members
from possym.experiments.generalization.repairs import REPAIRS, repaired
from possym.rope import frequencies, rotate
from possym.tasks import NumberTask

from .sequences import source

CONFIG = GPTJConfig(136, layers=3, heads=2, width=16, init_std=0.5)


def contents(*shape):
    return [torch.randn(*shape, generator=source(seed)) for seed in (1, 2, 3)]


def by_sums(query, key, value, angles, factor):
    """Causal attention of one head, a query at a time, in float64."""
    (Q, D), T = query.shape, len(key)
    out = []
    for i in range(Q):
        place = T - Q + i
        turned = rotate(query[i].double(), place, angles, "interleaved")
        keys = rotate(key[: place + 1].double(), torch.arange(place + 1), angles, "interleaved")
        weights = (factor * (keys @ turned) / math.sqrt(D)).softmax(-1)
        out.append(weights @ value[: place + 1].double())
    return torch.stack(out)


@pytest.mark.parametrize("asked", [7, 1])
def test_heads_may_turn_by_their_own_angles(asked):
    query, key, value = contents(2, 3, 7, 2, 8)
    query = query[:, :, -asked:]
    angles = torch.rand(2, 2, 4, generator=source(), dtype=torch.float64)
    factor = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
    found = attention(query, key, value, angles, torch.float32, factor)
    for e in range(2):
        for b in range(3):
            for h in range(2):
                one = by_sums(
                    query[e, b, :, h], key[e, b, :, h], value[e, b, :, h], angles[e, h], factor[e, h].double()
                )
                torch.testing.assert_close(found[e, b, :, h].double(), one, atol=1e-5, rtol=0)


def test_long_attention_is_the_models_own():
    query, key, value = contents(2, 2, 300, 2, 8)
    angles = frequencies(8)
    found = attention(query, key, value, angles, torch.float32)
    torch.testing.assert_close(found, causal_attention(query, key, value, frequencies=angles), atol=1e-5, rtol=0)


@pytest.mark.parametrize("asked", [5, 1])
def test_a_window_with_what_stands_before_it_reads_what_the_whole_does(asked):
    query, key, value = contents(2, 3, 12, 2, 8)
    angles = frequencies(8)
    whole = causal_attention(query, key, value, frequencies=angles)[:, :, -asked:]
    before = Prefix(key[:, :, :7], value[:, :, :7], torch.arange(-7, 0))
    window = (query[:, :, -asked:], key[:, :, 7:], value[:, :, 7:])
    torch.testing.assert_close(attention_with_prefix(*window, angles, before), whole, atol=1e-5, rtol=0)
    alone = causal_attention(*window, frequencies=angles)
    torch.testing.assert_close(attention_with_prefix(*window, angles, None), alone, atol=1e-5, rtol=0)


def test_a_weight_of_three_counts_a_key_three_times():
    query, key, value = contents(1, 2, 4, 1, 8)
    far, worth, _ = contents(1, 1, 2, 1, 8)
    angles = frequencies(8)
    places = torch.tensor([-9, -2])
    weight = torch.tensor([[3.0, 0.0], [1.0, 2.0]]).log()[None]
    found = attention_with_prefix(query, key, value, angles, Prefix(far, worth, places, weight))
    for row, copies in enumerate(([0, 0, 0], [0, 1, 1])):
        repeated = Prefix(far[:, :, copies], worth[:, :, copies], places[copies])
        one = attention_with_prefix(query[:, [row]], key[:, [row]], value[:, [row]], angles, repeated)
        torch.testing.assert_close(found[:, [row]], one, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rotary_dim", [None, 4])
def test_a_model_fed_piece_by_piece_is_the_model(rotary_dim):
    """Contents before the window, run by themselves, then the window beyond them: the whole input's answer."""
    config = GPTJConfig(136, layers=3, heads=2, width=16, rotary_dim=rotary_dim, init_std=0.5)
    model = GPTJEnsemble(config, [0, 1])
    tokens = sample_members(NumberTask(), 2, 4, 40, source()).tokens
    angles, places = all_frequencies(config), torch.arange(-23, 0)
    with torch.no_grad():
        before = run_prefix(model, tokens[..., :-WINDOW], *EXACT)
        pieced = model(
            tokens[..., -WINDOW:],
            attend=lambda layer, q, k, v: attention_with_prefix(q, k, v, angles, Prefix(*before[layer], places)),
        )
        torch.testing.assert_close(pieced, model(tokens), atol=1e-4, rtol=1e-4)


def test_repairs_change_angles_and_scale_as_they_say():
    config = GPTJConfig(136)
    usual, n = config.frequencies, 170
    angles, factor = REPAIRS["larger base"](config, n)
    assert factor == 1 and angles[0] == usual[0] and angles[-1] * n == pytest.approx(usual[-1] * WINDOW)
    ratio = angles[1:] / angles[:-1]
    torch.testing.assert_close(ratio, ratio[0].expand(63))
    angles, factor = REPAIRS["interpolation"](config, n)
    torch.testing.assert_close(angles * 10, usual)
    angles, factor = REPAIRS["p-RoPE"](config, n)
    assert torch.equal(angles[:48], usual[:48]) and not angles[48:].any()
    assert not REPAIRS["no rotation"](config, n)[0].any()
    angles, factor = REPAIRS["log length"](config, 17**2)
    assert torch.equal(angles, usual) and factor == pytest.approx(2)
    for name in REPAIRS:
        angles, factor = REPAIRS[name](config, WINDOW)
        if name not in ("no rotation", "p-RoPE"):  # the others leave the training length alone
            torch.testing.assert_close(angles, usual)
            assert factor == 1


def answers(model, tokens, **changes):
    angles = model.config.frequencies if "frequencies" not in changes else changes["frequencies"]

    def attend(layer, q, k, v):
        return causal_attention(q, k, v, frequencies=angles, scale=changes.get("scale"), layout=model.layout)

    with torch.no_grad():
        return model(tokens, attend=attend).argmax(-1)


@pytest.mark.parametrize(
    ("kind", "config"),
    [(GPTJEnsemble, CONFIG), (LlamaEnsemble, LlamaConfig(136, layers=3, heads=2, width=16, init_std=0.5))],
    ids=["gptj", "llama"],
)
def test_repaired_models_are_models_with_other_angles(kind, config):
    """Answers that the repaired model gives are taken for right ones, so that accuracy counts agreement."""
    model = kind(config, [0, 1])
    length, count = 60, 12
    batch = sample_members(NumberTask(), 2, count, length, source())
    none = torch.zeros(2, 3, 2, dtype=torch.bool)
    plain = answers(model, batch.tokens)
    changed = {
        "no rotation": answers(model, batch.tokens, frequencies=torch.zeros(4)),
        "interpolation": answers(model, batch.tokens, frequencies=CONFIG.frequencies * WINDOW / length),
        "log length": answers(model, batch.tokens, scale=math.log(length) / math.log(WINDOW) * 8**-0.5),
    }
    for name, answer in changed.items():
        assert (answer != plain).any()
        class_of = Fixed(answer)
        assert repaired(model, class_of, length, count, source(), repair=name).tolist() == [1, 1]
        share = (answer == plain).float().mean(1)
        torch.testing.assert_close(repaired(model, class_of, length, count, source(), repair=name, heads=none), share)
        torch.testing.assert_close(repaired(model, class_of, length, count, source()), share)


class Fixed(NumberTask):
    """The number task with other answers, (E, B)."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def sample(self, n, **arguments):
        return super().sample(n, **arguments)._replace(answer=self.answer.flatten())
