"""The order of the tests, and the devices that they run on."""

import pytest
import torch

from .browser import browser, visit  # noqa: F401


@pytest.fixture(params=["cpu"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    """Where a test computes. What has kernels goes through them on a GPU, on a CPU too under TRITON_INTERPRET=1."""
    return request.param


def pytest_collection_modifyitems(items):
    """The book's files come first: they take longest, and short ones at the end let all workers end together."""
    items.sort(key=lambda item: item.get_closest_marker("book") is None)
