"""Scores of several queries, by a kernel where it runs, against moving keys and attending again."""

import gc
import itertools
import os
import weakref

import pytest
import torch

from possym.ensembles.query_scores import MOST, in_groups, in_one_kernel, numbers_of, query_scores, step_by_step
from possym.errors import InputError
from possym.kernels import triton_available
from possym.rope import frequencies

from .. import permutation

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("count", "asked", "width", "layout"),
    [(3, 1, 2, "half"), (7, 3, 8, "interleaved"), (6, 1, 36, "half"), (MOST + 1, 1, 4, "half")],
)
def test_scores_are_those_of_moving_the_keys(device, count, asked, width, layout):
    queries, keys, angles = drawn(2, asked, width, seed=1), drawn(2, count, width), frequencies(width, 100.0)
    given = (x.to(device) for x in (queries, keys))
    temperatures = (1e-2, 0.3)
    found = query_scores(*given, frequencies=angles, layout=layout, temperatures=temperatures)
    assert found.positional.shape == found.symbolic.shape == (2, 2, asked) and found.entropy.shape == (2, asked)
    heads = (0, 1) if count < MOST else (1,)
    for head, index, (t, temperature) in itertools.product(heads, range(asked), enumerate(temperatures)):
        place = count - asked + index
        query, contents = queries[head, index].double(), keys[head].double()
        own = float(query @ contents[place]) * width**-0.5
        expected = permutation.swap_scores(
            query, list(contents[:place]), place, range(place), angles, layout, width**-0.5, [own], None, temperature
        )
        ours = found.positional[t, head, index], found.symbolic[t, head, index], found.entropy[head, index]
        assert [float(x) for x in ours] == pytest.approx(expected[:3], abs=1e-5 if temperature < 0.1 else 1e-6)


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_the_kernel_agrees_with_the_steps(device, size):
    if not triton_available(torch.device(device)):
        pytest.skip("no kernels here")
    queries, keys = (x.to(device) for x in (size * drawn(2, 3, 32, seed=1), drawn(2, 17, 32)))
    angles = frequencies(32).to(device)
    ours, steps = (how(queries, keys, angles, "interleaved", (1e-4, 0.1, 1.0)) for how in (in_one_kernel, step_by_step))
    # A logit of 30 is rounded at 2e-6; at τ = 1e-4 attention that is rounded at 6e-8 changes a weight by 6e-4.
    for t, tolerance in enumerate((1e-3, 2e-6 * size, 1e-6 * size)):
        torch.testing.assert_close(ours.positional[t], steps.positional[t], rtol=0, atol=tolerance)
        torch.testing.assert_close(ours.symbolic[t], steps.symbolic[t], rtol=0, atol=tolerance)
    torch.testing.assert_close(ours.entropy, steps.entropy, rtol=0, atol=1e-6 * size)


def test_heads_are_read_where_they_lie(device):
    if not triton_available(torch.device(device)):
        pytest.skip("no kernels here")
    products = drawn(2, 2, 17, 3, 2, 32).to(device)  # groups, sequences, places, of which both are parts, heads
    keys, queries = products[..., 0, :, :].movedim(2, 3), products[..., -2:, 2, :, :].movedim(2, 3)
    assert in_groups(keys).data_ptr() == products.data_ptr() and in_groups(queries).stride() == (3264, 32, 192, 1)
    rest = frequencies(32).to(device), "interleaved", (0.1,)
    for ours, copied in zip(
        in_one_kernel(queries, keys, *rest), in_one_kernel(queries.contiguous(), keys.contiguous(), *rest), strict=True
    ):
        assert torch.equal(ours, copied)


def test_heads_may_lie_further_apart_than_32_bits_count(device):
    if not triton_available(torch.device(device)):
        pytest.skip("no kernels here")
    apart, (heads, places, width) = 2**30, (3, 5, 4)
    try:  # as much before the first head, where a distance that wraps leads; pages that no one touches take no memory
        room = torch.empty(2 * (heads - 1) * apart + places * width, device=device)
    except RuntimeError:
        pytest.skip("no room")
    keys = room.as_strided((heads, places, width), (apart, width, 1), (heads - 1) * apart)
    keys.copy_(drawn(heads, places, width))
    queries, rest = drawn(heads, 1, width).to(device), (frequencies(width).to(device), "interleaved", (0.1,))
    for ours, copied in zip(
        in_one_kernel(queries, keys, *rest), in_one_kernel(queries, keys.contiguous(), *rest), strict=True
    ):
        assert torch.equal(ours, copied)


class Away(torch.Tensor):
    """A tensor that says that it lies on a GPU and counts how often its numbers are read."""

    read = 0
    device = torch.device("cuda")

    def tolist(self):
        self.read += 1
        return super().tolist()


def test_a_device_is_asked_for_its_numbers_again_only_when_they_changed():
    away = torch.tensor([1.0, 0.5]).as_subclass(Away)
    assert [numbers_of(away) for _ in range(3)] == [(1.0, 0.5)] * 3 and away.read == 1
    away[1] = 0.25
    assert numbers_of(away) == numbers_of(away) == (1.0, 0.25) and away.read == 2
    away.data = torch.tensor([3.0, 2.0])
    assert numbers_of(away) == (3.0, 2.0)
    assert numbers_of(away.clone()) == (3.0, 2.0)
    left = weakref.ref(away)
    del away
    gc.collect()
    assert left() is None
    with torch.inference_mode():
        changing = torch.tensor([1.0]).as_subclass(Away)
        assert numbers_of(changing) == (1.0,)
        changing[0] = 2.0
    assert numbers_of(changing) == (2.0,)


def test_other_numbers_take_the_steps(device, monkeypatch):
    """Longer inputs, planes that stand still and float64 have no kernel."""
    monkeypatch.setattr("possym.ensembles.query_scores.in_one_kernel", None)
    keys, long = drawn(5, 8).to(device), drawn(MOST + 2, 4).to(device)
    for some, planes in ((keys.double(), 4), (keys, 3), (long, 2)):
        angles = frequencies(2 * planes)
        found = query_scores(some[-1:], some, frequencies=angles, layout="half", temperatures=[0.1])
        assert found.entropy.isfinite().all()
    if device == "cuda" or INTERPRETED:
        with pytest.raises(TypeError):
            query_scores(keys[-1:], keys, frequencies=frequencies(8), layout="half", temperatures=[0.1])


def test_logits_that_are_not_finite_are_refused(device):
    keys = drawn(5, 8).to(device)
    keys[1] = torch.nan
    with pytest.raises(InputError, match="not finite"):
        query_scores(keys[-1:], keys, frequencies=frequencies(8), layout="half", temperatures=[0.1])
