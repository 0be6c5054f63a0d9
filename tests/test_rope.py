"""Rotation against complex multiplication and against transformers' own rotary code."""

import math

import pytest
import torch

from possym.errors import InputError
from possym.rope import frequencies, planes, rotate, rotate_by


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_frequencies_are_the_papers():
    angles = frequencies(128)
    assert angles.dtype == torch.float64 and angles.shape == (64,)
    for identifier, angle in [(1, 1.0), (2, 0.8660), (18, 0.0866), (42, 0.0027)]:
        assert angles[identifier - 1].item() == pytest.approx(angle, abs=5e-5)
    assert torch.equal(angles, torch.tensor([10000.0 ** (-2 * k / 128) for k in range(64)], dtype=torch.float64))


def test_frequencies_at_the_ends_of_what_is_allowed():
    assert frequencies(4, 0.25).tolist() == [1.0, 2.0]
    assert len(frequencies(2**20)) == 2**19
    with pytest.raises(InputError, match="to 1048576"):
        frequencies(2**20 + 2)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("rotating", [2, 6, 8])
def test_rotation_is_complex_multiplication(layout, rotating):
    x = torch.randn(3, 5, 8, generator=generator(), dtype=torch.float64)
    positions = torch.tensor([0, 1, 7, 1000, 123456])
    angles = frequencies(rotating, base=500.0)
    got = rotate(x, positions, angles, layout)
    half = rotating // 2
    pairs = [(2 * k, 2 * k + 1) if layout == "interleaved" else (k, k + half) for k in range(half)]
    for sample in range(3):
        for place, position in enumerate(positions.tolist()):
            for (a, b), angle in zip(pairs, angles.tolist(), strict=True):
                rotated = complex(x[sample, place, a], x[sample, place, b]) * complex(
                    math.cos(position * angle), math.sin(position * angle)
                )
                assert got[sample, place, a].item() == pytest.approx(rotated.real, abs=1e-10)
                assert got[sample, place, b].item() == pytest.approx(rotated.imag, abs=1e-10)
    assert torch.equal(got[..., rotating:], x[..., rotating:])


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_rotation_agrees_with_transformers(layout):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama

    x = torch.randn(1, 9, 2, 16, generator=generator())
    phase = torch.arange(9)[:, None] * frequencies(16)
    got = rotate(x, torch.arange(9)[:, None], frequencies(16), layout)
    if layout == "interleaved":
        expected = gptj(x, phase.sin()[None].float(), phase.cos()[None].float())
    else:
        cos, sin = (torch.cat([f, f], -1)[None].float() for f in (phase.cos(), phase.sin()))
        expected = llama(x.transpose(1, 2), x.transpose(1, 2), cos, sin)[0].transpose(1, 2)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("rotating", [2, 6])
def test_numbers_that_do_not_lie_in_pairs_turn_as_their_copies_do(layout, rotating):
    odd, even = torch.randn(4, 15, generator=generator()), torch.randn(4, 16, generator=generator())
    angle = frequencies(rotating).float()
    for x in (odd[:, 1:7], odd[:, 2:8], odd.mT[:6].mT, odd[::2, :6], even[:, 2:8], even[:, 3:9]):
        rotated = rotate_by(x, angle.cos(), angle.sin(), layout)
        torch.testing.assert_close(rotated, rotate_by(x.clone(), angle.cos(), angle.sin(), layout))
        in_half = rotate_by(x.bfloat16(), angle.cos().bfloat16(), angle.sin().bfloat16(), layout)
        torch.testing.assert_close(in_half.float(), rotated, atol=0.05, rtol=0)


def test_far_positions_keep_their_precision():
    x = torch.randn(8, generator=generator())
    far = rotate(x, 10_000_000, frequencies(8), "half")
    exact = rotate(x.double(), 10_000_000, frequencies(8), "half")
    assert (far - exact).abs().max() < 1e-6
    coarse = frequencies(8).float()
    torch.testing.assert_close(
        rotate(x.half(), 10_000_000, coarse, "half"), rotate(x.half(), 1e7, coarse.double(), "half")
    )
    assert rotate(x.half(), 1, coarse, "half").dtype == torch.float32


def test_planes_follow_the_layout():
    x = torch.arange(6.0)
    assert planes(x, frequencies(4), "interleaved").tolist() == [[0, 1], [2, 3]]
    assert planes(x, frequencies(4), "half").tolist() == [[0, 2], [1, 3]]
    with pytest.raises(InputError, match="^x is of type str"):
        planes("x", frequencies(4), "half")


@pytest.mark.parametrize("dim", [0, 3, 2.0])
def test_impossible_dimensions_are_refused(dim):
    with pytest.raises(InputError, match="even whole number from 2"):
        frequencies(dim)


@pytest.mark.parametrize("base", [0, math.inf, "10000"])
def test_impossible_bases_are_refused(base):
    with pytest.raises(InputError, match="positive finite number"):
        frequencies(4, base)


@pytest.mark.parametrize(
    "x, positions, angles, layout, message",
    [
        (torch.ones(4), 1, frequencies(4), "split", "known layouts are interleaved, half"),
        (torch.ones(4), 1, frequencies(6), "half", "at most half as many"),
        (torch.ones(4), 1, 1.0, "half", "got float, expected .* one angle a plane"),
        (torch.ones(4), 1, torch.ones(2, 2), "half", "got \\(2, 2\\), expected .* one angle a plane"),
        (torch.ones(4), 1, torch.ones(2) > 0, "half", "frequencies is torch.bool"),
        (torch.ones(4).to_sparse(), 1, frequencies(4), "half", "x is .*, dense"),
        (torch.ones(4), 1, torch.tensor([1.0, math.nan]), "half", "finite"),
        ([1.0, 2.0], 1, frequencies(2), "half", "torch.Tensor"),
        (torch.ones(4, dtype=torch.complex64), 1, frequencies(4), "half", "x is torch.complex64"),
        (torch.ones(3, 4), torch.arange(2), frequencies(4), "half", "broadcast"),
        (torch.ones(3, 4), math.nan, frequencies(4), "half", "positions"),
        (torch.ones(3, 4), torch.arange(3) > 1, frequencies(4), "half", "positions"),
        (torch.ones(3, 4), torch.arange(3) + 1j, frequencies(4), "half", "positions"),
    ],
)
def test_bad_rotations_are_refused(x, positions, angles, layout, message):
    with pytest.raises(InputError, match=message):
        rotate(x, positions, angles, layout)
