"""How the tests of tasks draw, and when they call counts as expected."""

import torch


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def within(counts, expected, sigmas=5.5):
    """Whether counts lie within `sigmas` standard deviations of their expectation."""
    counts, expected = torch.as_tensor(counts).double(), torch.as_tensor(expected).double()
    return bool(((counts - expected).abs() <= sigmas * expected.sqrt()).all())
