"""The order of the tests, how many run at once, and the devices that they run on."""

import gc
import os

import pytest
import torch

from .browser import browser, visit  # noqa: F401
from .shallow import shallow  # noqa: F401

LONGEST = ["test_chapters.py", "test_site.py"]  # minutes; the others of the book take less, and then come:
STARTING = ["test_groups.py", "test_monitor.py", "test_devices.py", "test_command.py"]  # a process after the other


@pytest.fixture(params=["cpu"] + ["cuda"] * torch.cuda.is_available())
def device(request):
    """Where a test computes. What has kernels goes through them on a GPU, on a CPU too under TRITON_INTERPRET=1."""
    return request.param


def pytest_collection_modifyitems(items):
    """The longest files come first, the book's and those that start processes: all workers end together."""

    def rank(item):
        if item.path.name in LONGEST:
            return LONGEST.index(item.path.name) - len(LONGEST)
        return 0 if item.get_closest_marker("book") else 1 if item.path.name in STARTING else 2

    items.sort(key=rank)


def pytest_collection_finish():
    """What is imported by now stays to the end: the garbage collector need not go through it again and again."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Two more than cores: what runs pages, kernels and builds waits for other processes nearly half of its time."""
    return (os.cpu_count() or 1) + 2
