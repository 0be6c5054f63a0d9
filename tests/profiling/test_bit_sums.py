"""Sums of bits, by one kernel where it runs, against numpy's reading of the same bytes."""

import numpy as np
import pytest
import torch

from possym.profiling import bit_sums as bits
from possym.profiling.bit_sums import MIXERS, bit_digests, bit_sums, digests


def drawn(shape, dtype):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return (made * 50).to(dtype)


# Rows of 4, 2 and 1 bytes; more rows and columns than one program reads; numbers that are no matrix.
TENSORS = [
    drawn((3, 4), torch.float32),
    drawn((300, 514), torch.bfloat16),
    drawn((5, 3), torch.bfloat16),
    drawn((2, 3, 5), torch.int8),
    drawn((7, 2), torch.float64),
    drawn((6,), torch.float32),
    drawn((4, 8), torch.bfloat16).T,
    drawn((1, 7), torch.float64).T,
    drawn((3, 6), torch.int16)[:, 1:5],
    torch.tensor(3.0),
    *(drawn((3, 4), torch.float32) + k for k in range(1, 6)),  # as many of a shape as are not widened at once
]


def signed(x, bits=64):
    return (x + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def factor(place, first, second):
    mixed = signed(place * first)
    return signed((mixed ^ (mixed >> 31)) * second) | 1


def by_numpy(x, factors=False):
    """Rows and columns summed as whole numbers of as many bytes as fit a row, rows with their factors."""
    matrix = x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)
    matrix = matrix.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()
    width = next(w for w in (4, 2, 1) if matrix.shape[1] % w == 0)
    numbers = np.ascontiguousarray(matrix).view(f"<i{width}").astype(np.int64)
    of_rows = [signed(factor(place, *MIXERS[0]), 32) if factors else 1 for place in range(1, len(numbers) + 1)]
    columns = (numbers * np.array(of_rows, np.int64)[:, None]).sum(0)
    return numbers.ravel() if numbers.shape[1] == 1 else np.concatenate([numbers.sum(1), columns])


@pytest.mark.parametrize("factors", [False, True])
def test_rows_and_columns_are_summed_exactly(device, monkeypatch, factors):
    expected = [by_numpy(x, factors) for x in TENSORS]
    for together in (bits.TOGETHER, 600):
        monkeypatch.setattr(bits, "TOGETHER", together)
        for ours, theirs in zip(bit_sums([x.to(device) for x in TENSORS], factors=factors), expected, strict=True):
            assert ours.dtype == torch.int64 and np.array_equal(ours.cpu().numpy(), theirs)


def test_the_kernel_makes_the_digests_of_the_sums(device):
    given = [x.to(device) for x in [*TENSORS, drawn((300,), torch.bfloat16)]]
    given.append(drawn((40,), torch.uint8).to(device)[1:].view(3, 13))
    given.append(drawn((41,), torch.uint8).to(device)[1:].view(5, 8))  # begins between two whole numbers of 32 bits
    assert torch.equal(bit_digests(given), digests(bit_sums(given, factors=True)))
    before = bit_digests(given)
    given[1] = given[1].clone()
    given[1][299, 513] += 50
    assert (bit_digests(given) != before).any(1).nonzero().tolist() == [[1]]


def test_digests_count_every_number_by_its_place_modulo_2_to_the_64(device):
    numbers = [[3, -5, 2**62], [7], [2**63 - 1, -(2**63), 0, 1]]
    expected = [
        [signed(sum(n * factor(place, *mixers) for place, n in enumerate(some, 1))) for mixers in MIXERS]
        for some in numbers
    ]
    given = [torch.tensor(some, device=device) for some in numbers]
    assert digests(given).tolist() == expected
    given[2][[0, 1]] = given[2][[1, 0]]
    changed = digests(given)
    assert changed[:2].tolist() == expected[:2] and all(
        a != b for a, b in zip(changed[2].tolist(), expected[2], strict=True)
    )


def test_digests_see_what_keeps_the_sums_of_rows_and_columns(device):
    one_hot = torch.eye(300, 514, dtype=torch.int32)
    swapped = one_hot.clone()
    swapped[[2, 299]] = one_hot[[299, 2]]
    moved = one_hot.clone()
    moved[2, 5] += 1
    moved[299, 513] += 1
    moved[2, 513] -= 1
    moved[299, 5] -= 1
    given = [x.to(device) for x in (one_hot, swapped, moved)]
    assert len({tuple(found) for found in bit_digests(given).tolist()}) == 3
