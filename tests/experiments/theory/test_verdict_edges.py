"""Where the verdict on the exclusion bound changes: one head beyond it, rounding aside."""

import pandas as pd

from possym.experiments.claim import FAILS, HOLDS
from possym.experiments.theory import claims
from possym.results import Study


def test_no_ratio_may_exceed_one_but_by_rounding():
    for ratio, verdict in ((1.0, HOLDS), (1 + 1e-9, HOLDS), (1 + 3e-9, FAILS), (1.5, FAILS)):
        rows = [("random RoPE head", 64, 0.5), ("positional", 2, 0.9), ("positional", 64, ratio)]
        table = pd.DataFrame(rows, columns=["head", "n", "ratio"])
        assert claims.tight(Study({"tightness": table})).verdict == verdict
