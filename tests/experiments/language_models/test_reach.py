"""Forecasts by other windows' keys, against plain long windows and transformers' own Llama at given positions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from possym.experiments.language_models import reach
from possym.experiments.language_models.model import LanguageModel, Sizes, as_llama

from .test_model import model_of

TRAINED = 16


def one_layer(encoding="rope"):
    """A model whose keys and values depend on the token alone, so that any other window has those of the real text."""
    model = LanguageModel(Sizes(40, layers=1, heads=4, width=64, encoding=encoding), torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.blocks[0].queries_keys_values.weight.mul_(8)
        model.embedding.weight.mul_(10)
    return model


def continued():
    """Rows whose text before the last window is that of the rows after them in the batch, (8, 8 × 16 + 1)."""
    pieces = torch.randint(40, (8, TRAINED), generator=torch.Generator().manual_seed(5))
    rows = [torch.cat([pieces[(row + back) % 8] for back in range(7, -1, -1)]) for row in range(8)]
    return torch.stack([torch.cat([row, row[:1]]) for row in rows])  # what follows the last token, read by none


def losses(table, way):
    return table[table["way"] == way].set_index("length")["loss"]


def by_llama(llama, tokens, positions, mask, asked):
    """Mean loss of the last tokens of rows (B, T + 1), read by transformers at given positions."""
    with torch.no_grad():
        logits = llama(tokens[:, :-1], position_ids=positions.expand(len(tokens), -1), attention_mask=mask).logits
    return float(F.cross_entropy(logits[:, -asked:].transpose(1, 2), tokens[:, -asked:]))


def test_contents_that_do_not_depend_on_context_forecast_exactly():
    long = continued()
    table = reach.loss_by_reach(one_layer(), long, TRAINED)
    measured, forecast = losses(table, "measured"), losses(table, "relocated")
    assert forecast.to_numpy() == pytest.approx(measured.to_numpy(), abs=1e-4)
    assert measured.max() - measured.min() > 1e-2
    assert table["length"].unique().tolist() == reach.lengths_of(TRAINED) and measured.index[-1] == 128


@pytest.mark.parametrize("encoding", ["rope", "nope"])
def test_a_gap_is_that_of_transformers_position_ids(encoding):
    model = model_of(encoding)
    long = torch.randint(40, (8, 8 * TRAINED + 1), generator=torch.Generator().manual_seed(6))
    table = reach.loss_by_reach(model, long, TRAINED)
    llama, own = as_llama(model), long[:, -TRAINED - 1 :]
    found = losses(table, "gap")
    for length in (16, 20, 128):
        positions = torch.cat([torch.arange(8), torch.arange(8, 16) + length - 16])
        assert found[length] == pytest.approx(by_llama(llama, own, positions, None, 4), abs=1e-4)
        plain = by_llama(llama, long[:, -length - 1 :], torch.arange(length), None, 4)
        assert losses(table, "measured")[length] == pytest.approx(plain, abs=1e-4)
    assert (found.std() == 0) == (encoding == "nope")


def test_more_keys_stand_within_the_trained_length():
    model, long = one_layer(), continued()
    table = reach.loss_by_reach(model, long, TRAINED)
    llama = as_llama(model)
    for length in (20, 48, 128):
        extra = length - TRAINED
        own = long[:, -TRAINED - 1 :]
        inputs = own[:, :-1]
        before = torch.cat([inputs.roll(-k, 0) for k in range(7, 0, -1)], 1)[:, 7 * TRAINED - extra :]
        positions = torch.cat([torch.arange(7 * TRAINED) % TRAINED, torch.arange(TRAINED)])[-length:]
        mask = torch.full((length, length), -1e9).masked_fill(positions <= positions[:, None], 0.0)
        both = torch.cat([before, own], 1)
        expected = by_llama(llama, both, positions, mask.expand(8, 1, -1, -1), 4)
        assert losses(table, "more keys")[length] == pytest.approx(expected, abs=1e-4)


def test_the_failing_length_is_read_off_the_curve():
    lengths, rises = [512, 640, 1024, 4096], [0.0, 0.3, 0.9, 1.5]
    expected = 2 ** np.interp(0.5, rises, np.log2(lengths))
    assert reach.failing_length(lengths, [2 + rise for rise in rises], 0.5) == pytest.approx(expected)
    assert reach.failing_length(lengths, [2.0, 2.1, 2.2, 2.3], 0.5) == 4096
    assert reach.failing_length(lengths, [2.0, 2.6, 2.0, 2.0], 0.5) == pytest.approx(512 * 1.25 ** (5 / 6))
