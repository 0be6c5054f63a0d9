"""Bands of frequencies: by score, by speed, and random ones of the same size, against sums by hand."""

import itertools

import pandas as pd
import torch

from possym.experiments.real_models import Config
from possym.experiments.real_models.frequency_knob import TOLERANCE, Band, bands, logit_norms, matched_bands


def frequencies(norms):
    """Two heads whose planes score the more symbolic the slower they are; the second has the larger logits."""
    rows = [
        (0, head, number + 1, 0.5, 0.4 + 0.1 * number, (head + 1) * norm)
        for head in (0, 1)
        for number, norm in enumerate(norms)
    ]
    columns = ["layer", "head", "frequency_id", "positional", "symbolic", "logit_norm"]
    return pd.DataFrame(rows, columns=columns)


NORMS = [3.0, 1.0, 2.0, 1.5, 1.2, 0.7, 2.2, 4.0, 0.9, 1.1, 2.6, 3.3]


def config(**changes):
    return Config.preset_named("smoke", band=2, band_draws=30, **changes)


def test_bands_are_by_score_and_by_speed_with_matched_ones_named_after_them():
    found = bands(config(), frequencies(NORMS), None, ("symbolic", "positional"))
    assert found[0] == Band("symbolic", 0, [11, 12]) and found[1] == Band("positional", 0, [1, 2])
    assert [(band.name, band.ids) for band in found[2:8]] == [
        (f"IDs {k} to {k + 1}", [k, k + 1]) for k in range(1, 12, 2)
    ]
    names = ["matched symbolic"] * 30 + ["matched positional"] * 30
    assert [band.name for band in found[8:]] == names
    assert [band.draw for band in found[8:]] == [*range(30), *range(30)]
    few = bands(config(), frequencies(NORMS), {0: [1]}, ("positional",))
    assert [band.name for band in few] == ["symbolic", "positional", *["matched positional"] * 30]
    assert len(bands(config(), frequencies(NORMS), None, ())) == 8


def test_matched_sets_add_up_to_the_band_and_none_is_the_band():
    table = frequencies(NORMS)
    for heads, factor in ((None, 3), ({0: [1]}, 2), ({0: [0]}, 1)):
        norms = logit_norms(table, heads)
        assert norms.tolist() == [factor * norm for norm in NORMS]
        for band in (Band("symbolic", 0, [11, 12]), Band("positional", 0, [1, 2])):
            found = matched_bands(norms, band, 30, torch.Generator().manual_seed(0))
            target = norms[band.ids].sum()
            ratios = [norms[one.ids].sum() / target for one in found]
            assert max(abs(one.norm_ratio - ratio) for one, ratio in zip(found, ratios, strict=True)) < 1e-12
            assert max(abs(ratio - 1) for ratio in ratios) <= TOLERANCE + 1e-9
            assert len({tuple(one.ids) for one in found}) == 30 and band.ids not in [one.ids for one in found]
            assert len({len(one.ids) for one in found}) > 1  # how many planes it takes is free


def test_where_too_few_match_the_nearest_are_taken():
    norms = pd.Series([1.0, 1.0, 1.0, 10.0], index=[1, 2, 3, 4])
    found = matched_bands(norms, Band("large", 0, [4]), 3, torch.Generator().manual_seed(0))
    every = [ids for size in (1, 2, 3) for ids in itertools.combinations([1, 2, 3, 4], size) if ids != (4,)]
    nearest = sorted(abs(norms[list(ids)].sum() / 10 - 1) for ids in every)[:3]
    assert sorted(abs(one.norm_ratio - 1) for one in found) == nearest


def test_same_seed_same_bands():
    first, second = (bands(config(), frequencies(NORMS), None, ("symbolic", "positional")) for _ in range(2))
    assert first == second != bands(config(seed=1), frequencies(NORMS), None, ("symbolic", "positional"))
