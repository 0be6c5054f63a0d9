"""Colours that meet in charts are told apart without colour, and by readers who see fewer colours."""

from itertools import combinations

import numpy as np
import pytest

from possym.charts import CATEGORIES, POSITIONAL, SYMBOLIC

PAPER, DARK_PAGE = "#ffffff", "#16181c"
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as such an eye sees it.
EYES = {
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light: np.ndarray) -> np.ndarray:
    x, y, z = np.cbrt(TO_XYZ @ light / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    dark, bright = sorted(TO_XYZ[1] @ linear(colour) for colour in (one, other))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("page", [PAPER, DARK_PAGE])
def test_main_colours_stand_out_from_either_page(page):
    assert min(contrast(colour, page) for colour in (POSITIONAL, SYMBOLIC, *CATEGORIES[:5])) >= 3


@pytest.mark.parametrize("pair", [(POSITIONAL, SYMBOLIC), CATEGORIES[:2]])
def test_pairs_that_meet_most_differ_in_grey(pair):
    lightness = [lab(linear(colour))[0] for colour in pair]
    assert abs(lightness[0] - lightness[1]) >= 12


@pytest.mark.parametrize("eye", EYES)
def test_colours_differ_for_readers_who_see_fewer(eye):
    seen = {
        colour: lab(np.clip(EYES[eye] @ linear(colour), 0, 1))
        for colour in dict.fromkeys((POSITIONAL, SYMBOLIC, *CATEGORIES))
    }
    near = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in combinations(seen, 2)}
    assert min(near.values()) >= 10
    assert near[POSITIONAL, SYMBOLIC] >= 50
