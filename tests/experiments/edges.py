"""Numbers just on each side of thresholds that criteria of several studies share, with the verdict of each."""

import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN

# The interval of a correlation, and the lowest one of random weights.
TRADE = pytest.mark.parametrize(
    ("low", "high", "random", "verdict"),
    [
        (-0.9, -0.5, -0.4, HOLDS), (-0.9, -0.4, -0.4, NOT_SHOWN), (-0.9, -0.1, 0.5, HOLDS), (-0.9, 0.0, 0.5, NOT_SHOWN),
        (0.0, 0.4, 0.5, NOT_SHOWN), (0.01, 0.4, 0.5, FAILS),
    ],
)  # fmt: skip
# The intervals of two areas under the curve.
ON_THEIR_SIDE = pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        (((0.51, 0.9), (0.6, 0.9)), HOLDS), (((0.5, 0.9), (0.6, 0.9)), IN_PART), (((0.1, 0.49), (0.6, 0.9)), FAILS),
        (((0.1, 0.5), (0.6, 0.9)), IN_PART), (((0.5, 0.9), (0.1, 0.5)), NOT_SHOWN), (((0.1, 0.49),) * 2, FAILS),
        (((0.5, 0.9), (0.1, 0.49)), FAILS),
    ],
)  # fmt: skip
