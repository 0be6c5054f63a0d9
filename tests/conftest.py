"""The order of the tests, how many run at once, and the devices that they run on."""

import os

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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One more than cores: tests of pages, kernels and builds wait for other processes for a third of their time."""
    return (os.cpu_count() or 1) + 1
