"""How many tests the ledger makes, and what is left of them once their number is counted."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from possym.claims.rows import given, measure, whole
from possym.experiments.claim import CONFIDENCE, UNTESTABLE
from possym.profiling.statistics import holm
from possym.results import Study


def p_values(studies: Mapping[str, Study] | None = None) -> pd.DataFrame:
    """Return every row of the ledger that is judged by a p-value or a share's interval, with its p-value corrected.

    A share of seeds or of models is tested against one half, two-sided, by the binomial; a claim that measures several
    counts with the largest of their p-values.

    Args:
        studies: as for `possym.claims.ledger`.

    Returns:
        DataFrame indexed by the claim's id: claim, verdict, p_value, corrected (by Holm's method over all rows, so that
        the chance of one false finding among all is at most the level); from the smallest p-value up.

    >>> p_values()["corrected"].between(0, 1).all()
    np.True_
    """
    known = given(studies)
    rows = {}
    for claim in whole(known):
        if claim.interval_kind != CONFIDENCE:
            continue
        found = measure(claim, known)
        tested = [estimate.p_value for estimate in found.estimates]
        if found.verdict != UNTESTABLE and tested and not np.isnan(tested).any():
            rows[claim.id] = [claim.statement, found.verdict, max(tested)]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["claim", "verdict", "p_value"]).sort_values("p_value")
    return table.rename_axis("id").assign(corrected=holm(table["p_value"].to_numpy()))
