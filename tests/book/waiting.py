"""Waiting for what a process that runs beside the test brings about."""

import subprocess
import time
from collections.abc import Callable

import pytest


def wait_for(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Return once a condition holds; fail where the process ends before, or after four minutes."""
    for _ in range(2400):
        if condition():
            return
        assert process.poll() is None, "make ended early"
        time.sleep(0.1)
    pytest.fail("nothing happened")
