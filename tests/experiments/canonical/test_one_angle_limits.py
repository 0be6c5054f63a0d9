"""Margins against brute force over places and inputs, and the constructions run as heads."""

import math

import pytest
import torch

from possym.ensembles.toy import Member, ToyEnsemble
from possym.experiments.canonical.one_angle_limits import (
    index_margin,
    induction_logits,
    induction_margin,
    many_plane_induction,
    one_plane_induction,
)
from possym.rope import frequencies
from possym.tasks import PartialInductionTask


@pytest.mark.parametrize("length", [3, 8, 32, 128])
def test_index_margin_is_the_worst_gap_over_all_targets(length):
    for angle in [*frequencies(16).tolist(), 2 * math.pi / (length - 1), 3.0]:
        turns = torch.arange(1, length, dtype=torch.float64) * angle
        logits = torch.cos(turns[:, None] - turns)  # target by place
        logits_at_target = logits.diagonal()
        others = logits - 2 * torch.eye(length - 1)
        worst = float((logits_at_target - others.amax(1)).min())
        assert index_margin(angle, length) == pytest.approx(worst, abs=1e-12)


@pytest.mark.parametrize("length", [8, 32, 128])
def test_no_angle_beats_even_spacing(length):
    best = 1 - math.cos(2 * math.pi / (length - 1))
    assert index_margin(2 * math.pi / (length - 1), length) == pytest.approx(best)
    fine = torch.linspace(0.001, math.pi, 3000).tolist()
    assert max(index_margin(angle, length) for angle in fine) <= best + 1e-12
    assert index_margin(1.0, length) < best / 2


def brute_margin(planes, symbols, length):
    """The worst gap over all pairs: target at its distance, competitor farther if of the same symbol."""
    angle, table = induction_logits(planes, symbols, length)
    distance = torch.arange(1, length, dtype=torch.float64)
    logits = (table[..., None] * torch.exp(1j * angle * distance)).real
    worst = math.inf
    for asked in range(symbols):
        for near in range(length - 1):
            own = logits[asked, asked]
            rivals = [own[near + 1 :], logits[asked, torch.arange(symbols) != asked].flatten()]
            worst = min(worst, float(own[near] - torch.cat(rivals).max()))
    return worst


@pytest.mark.parametrize("planes", ["one", "many"])
@pytest.mark.parametrize(("symbols", "length"), [(2, 3), (2, 20), (5, 9), (8, 32), (8, 128)])
def test_induction_margin_is_the_worst_gap_and_positive(planes, symbols, length):
    margin = induction_margin(planes, symbols, length)
    assert margin == pytest.approx(brute_margin(planes, symbols, length), abs=1e-12)
    assert margin > 0


@pytest.mark.parametrize("planes", ["one", "many"])
def test_one_angle_solves_partial_induction(planes):
    """The constructions as toy heads: every test sequence right, at the length they are made for."""
    task, length = PartialInductionTask(symbols=4, attributes=3), 16
    pairs, vocabulary = 12, len(task.vocabulary)
    if planes == "one":
        angle, query_phase, key_phase = one_plane_induction(4, length)
        count, plane_of = 1, torch.zeros(4, dtype=torch.int64)
    else:
        angle, phase = many_plane_induction(4, length)
        count, plane_of = 4, torch.arange(4)
        query_phase, key_phase = torch.full((4,), phase), torch.zeros(4)
    gives = torch.full((vocabulary,), -1)
    gives[:pairs] = torch.arange(pairs) % 3
    model = ToyEnsemble(
        [Member((angle,), count, 0)], vocabulary, embedding="one-hot", values="fixed", outputs=3, answers=gives
    )
    strength = 20 / induction_margin(planes, 4, length)
    with torch.no_grad():
        model.query.zero_()
        model.key.zero_()
        for symbol in range(4):
            place = slice(2 * int(plane_of[symbol]), 2 * int(plane_of[symbol]) + 2)
            query, key = query_phase[symbol], key_phase[symbol]
            unit = torch.tensor([math.cos(query), math.sin(query)])
            model.query[0, pairs + symbol, 0, place] = strength * unit / model.scale[0]
            for attribute in range(3):
                model.key[0, symbol * 3 + attribute, 0, place] = torch.tensor([math.cos(key), math.sin(key)])
            # The query's own token is no key: it points away from its own query.
            model.key[0, pairs + symbol, 0, place] = -unit
    batch = task.sample(4000, length=length)
    assert (model(batch.tokens)[0].argmax(-1) == batch.answer - pairs - 4).all()
