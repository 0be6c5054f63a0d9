"""Layouts that are made here entry by entry, found again; and the tables that they are read from."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from possym.capture.rope_layout import (
    RopeLayout,
    detect_gain,
    detect_rope_layout,
    distance,
    distance_by_plane,
    fastest_first,
    plane_tables,
    same_layout,
    table_angles,
    unrotate,
)

T, D, H = 9, 12, 3
ANGLES = [0.3, 1.1, 0.05]  # not in the order of speed


def example(pairing="half", start=0, sign=1, table="once", scale=1.0, gain=None, angles=ANGLES, seed=0):
    """Contents (H, T, D), the same rotated pair by pair, tables (T, W), and the pairs as (first, second, angle)."""
    count = len(angles)
    plain = torch.randn(H, T, D, generator=torch.Generator().manual_seed(seed))
    if pairing == "half":
        dims = [(start + k, start + k + count) for k in range(count)]
    else:
        dims = [(start + 2 * k, start + 2 * k + 1) for k in range(count)]
    rotated = plain.clone()
    for (a, b), angle in zip(dims, angles, strict=True):
        for t in range(T):
            c, s = scale * math.cos(t * angle), scale * sign * math.sin(t * angle)
            x, y = plain[:, t, a], plain[:, t, b]
            rotated[:, t, a], rotated[:, t, b] = c * x - s * y, s * x + c * y
    if gain is not None:
        rotated = rotated * gain
    steps = torch.outer(torch.arange(T, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))
    wide = dict(once=steps, twice=torch.cat([steps, steps], -1), each=steps.repeat_interleave(2, -1))[table]
    tables = (scale * wide.cos()).float(), (scale * wide.sin()).float()
    return plain, rotated, tables, [(*pair, angle) for pair, angle in zip(dims, angles, strict=True)]


CASES = [
    case
    for case in itertools.product(("half", "interleaved"), (0, D - 6), (1, -1), ("once", "twice", "each"))
    # Tables with every column twice in a row are those of neighbours, where they can be told from others.
    if case[3] != "each" or case[0] == "interleaved"
]


@pytest.mark.parametrize("pairing, start, sign, table", CASES)
def test_a_layout_is_found_and_taken_off_again(pairing, start, sign, table):
    plain, rotated, tables, pairs = example(pairing, start, sign, table)
    found = detect_rope_layout(plain, rotated, tables, [], 1e-5)
    fastest = sorted(pairs, key=lambda pair: -pair[2])
    rest = [d for d in range(D) if d not in {d for pair in pairs for d in pair[:2]}]
    assert found.order.tolist() == [a for a, _, _ in fastest] + [b for _, b, _ in fastest] + rest
    assert found.sign == sign and found.query_weight is None and found.key_weight is None
    cos, sin = plane_tables(tables, found)
    expected = torch.tensor([sign * angle for _, _, angle in fastest])
    torch.testing.assert_close(table_angles(cos, sin), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(unrotate(rotated, tables, found, None), plain[..., found.order], atol=1e-5, rtol=0)


def test_all_dimensions_may_rotate():
    angles = [1.0, 0.4, 0.2, 0.1, 0.05, 0.01]
    plain, rotated, tables, _ = example(angles=angles, table="twice")
    assert detect_rope_layout(plain, rotated, tables, [], 1e-5).order.tolist() == list(range(D))


@pytest.mark.parametrize("scale", [1.0, 1.7])
def test_a_gain_after_the_rotation_and_a_scale_of_the_tables_are_taken_off_too(scale):
    gain = torch.linspace(0.5, 2.0, D)
    plain, rotated, tables, _ = example(scale=scale, gain=gain)
    rotated = example(scale=scale)[1] * gain
    # The module rotates its normed content: what it would attend with, unrotated, has the gain already.
    content = plain * gain
    found = detect_rope_layout(content, rotated, tables, [gain + 1, gain], 1e-5)
    assert torch.equal(found.query_weight, gain)
    back = unrotate(rotated, tables, found, gain)
    torch.testing.assert_close(back, plain[..., found.order], atol=1e-5, rtol=1e-5)
    assert detect_gain(content, rotated, tables, found, [], 1e-5) is False
    assert detect_gain(plain, example(scale=scale)[1], tables, found, [gain], 1e-5) is None


def test_what_no_layout_explains_is_none():
    plain, rotated, tables, _ = example()
    assert detect_rope_layout(plain, rotated + 0.01, tables, [], 1e-5) is None
    wide = tuple(torch.cat([x] * 5, -1) for x in tables)  # 15 columns for 12 dimensions
    assert detect_rope_layout(plain, rotated, wide, [], 1e-5) is None


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_dimension_that_outweighs_all_others_hides_no_wrong_pairing(pairing):
    """In half precision 3 % of the largest entry is let through; the last dimension is in the slowest plane of both."""
    angles = [1.0, 0.4, 0.2, 0.1, 0.05, 0.0001]
    plain, rotated, tables, _ = example(pairing, angles=angles)
    plain, rotated = (x * torch.tensor([1.0] * (D - 1) + [300.0]) for x in (plain, rotated))  # it hardly turns
    found = detect_rope_layout(plain.bfloat16().float(), rotated.bfloat16().float(), tables, [], 0.03)
    expected = range(D) if pairing == "half" else [*range(0, D, 2), *range(1, D, 2)]
    assert found.order.tolist() == list(expected)


def test_a_layout_is_as_near_as_the_tolerance_says():
    plain, rotated, tables, _ = example()
    found = detect_rope_layout(plain, rotated, tables, [], 1e-5)
    off = distance_by_plane(detect_off(plain, rotated, tables, found), rotated[..., found.order], len(ANGLES))
    assert off > 0
    assert detect_gain(plain, rotated, tables, found, [], off) is None
    assert detect_gain(plain, rotated, tables, found, [], off * 0.999) is False


def detect_off(plain, rotated, tables, layout):
    """Contents rotated by the layout itself, in its order: rounded otherwise than entry by entry."""
    from possym.rope import rotate_by

    return rotate_by(plain[..., layout.order], *plane_tables(tables, layout), "half")


def test_two_layouts_are_the_same_only_in_all_parts_and_without_gains():
    layout = RopeLayout(torch.arange(4), torch.arange(2), 1, None, None)
    assert same_layout(layout, replace(layout, order=torch.arange(4)))
    others = [
        dict(order=torch.tensor([1, 0, 2, 3])),
        dict(columns=torch.tensor([1, 0])),
        dict(sign=-1),
        dict(query_weight=torch.ones(4)),
        dict(key_weight=torch.ones(4)),
    ]
    for other in others:
        assert not same_layout(layout, replace(layout, **other))
        assert not same_layout(replace(layout, **other), layout)


def test_distance_is_relative_to_the_largest_entry():
    assert distance(torch.tensor([1.0, 2.0, -4.5]), torch.tensor([1.0, 2.5, -4.0])) == pytest.approx(0.125)
    assert distance(torch.zeros(3), torch.zeros(3)) == 0
    assert distance(torch.tensor([1e-30]), torch.zeros(1)) == pytest.approx(1)


def test_planes_are_sorted_by_speed_and_equal_ones_keep_their_order():
    angles = torch.tensor([0.1, -0.8, 0.1, 0.4])
    steps = torch.outer(torch.arange(5.0), angles)
    layout = RopeLayout(torch.arange(10), torch.arange(4), 1, None, None)
    found = fastest_first(layout, (steps.cos(), steps.sin()))
    assert found.columns.tolist() == [1, 3, 0, 2]
    assert found.order.tolist() == [1, 3, 0, 2, 5, 7, 4, 6, 8, 9]


@pytest.mark.parametrize("length", [2, 3, 50, 4000])
def test_angles_are_read_to_the_precision_of_the_last_position(length):
    angles = torch.tensor([3.0, 1.0, -2.5, 0.25, 1e-3, -1e-5, 0.0], dtype=torch.float64)
    steps = torch.outer(torch.arange(length, dtype=torch.float64), angles)
    found = table_angles(steps.cos().float(), steps.sin().float())
    assert found.dtype == torch.float32
    # The last position's angle is rounded to 1e-7, and divided by how far it is.
    torch.testing.assert_close(found.double(), angles, atol=2e-7 / (length - 1), rtol=1.2e-7)


def test_a_single_position_has_no_angles():
    found = table_angles(torch.ones(1, 3), torch.zeros(1, 3))
    assert found.tolist() == [0, 0, 0]


def test_distance_by_plane_is_that_of_the_worst_plane_or_of_the_rest():
    truth = torch.tensor([[100.0, 2.0, 50.0, -4.0, 0.5]])  # planes (100, 50) and (2, -4), and 0.5 beside them
    for at, expected in ((0, 1 / 100), (1, 1 / 4), (2, 1 / 100), (3, 1 / 4), (4, 1 / 0.5)):
        ours = truth.clone()
        ours[0, at] += 1
        assert distance_by_plane(ours, truth, 2) == pytest.approx(expected)
    empty = torch.tensor([[100.0, 0.0, 50.0, 0.0]])
    off = empty + torch.tensor([[0.0, 0.001, 0.0, 0.0]])
    assert distance_by_plane(off, empty, 2) == pytest.approx(0.1)
