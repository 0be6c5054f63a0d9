"""Where verdicts on language models change: how many seeds, which share of them, which correlation."""

import numpy as np
import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART
from possym.experiments.language_models import claims
from possym.results import Study

from .test_claims import carried, jobs, scores, verdicts


def of_scores(table):
    loss = table[["encoding", "width", "corpus", "seed", "step"]].drop_duplicates()
    return Study({"scores": table, "jobs": jobs(table), "loss": loss})


def test_three_seeds_are_enough():
    assert verdicts(of_scores(scores(seeds=range(3)))) == [HOLDS] * 4


@pytest.mark.parametrize(("earlier", "verdict"), [(7, HOLDS), (6, IN_PART), (5, IN_PART), (4, FAILS)])
def test_the_order_of_kinds_is_judged_by_the_share_of_seeds(earlier, verdict):
    first = scores(seeds=range(earlier))
    last = scores(seeds=range(earlier, 8), positional_from=20, symbolic_from=10)
    found = claims.positional_first(of_scores(pd.concat([first, last], ignore_index=True)))
    assert found.verdict == verdict
    assert found.measured.startswith(f"positional first in {earlier} of 8 seeds, symbolic first in {8 - earlier}; ")


@pytest.mark.parametrize(("r", "verdict"), [(-0.6, HOLDS), (-0.3, IN_PART), (0.3, FAILS)])
def test_other_sizes_are_judged_by_their_correlation(r, verdict):
    table = scores(steps=(0,), seeds=range(3))
    x, y = np.tile([1.0, -1.0], 4), np.repeat([1.0, -1.0], 4)  # uncorrelated
    table["positional"] = np.tile(0.5 + 0.1 * x, 3)
    table["symbolic"] = np.tile(0.5 + 0.1 * (r * x + (1 - r**2) ** 0.5 * y), 3)
    found = claims.same_at_other_sizes(of_scores(table.assign(width=256)))
    assert found.verdict == verdict and found.measured.startswith(f"median r = {r:.2f} at width 256 on source")


def test_symbolic_heads_that_carry_recall_correlate_with_what_is_lost():
    said = claims.recall_symbolic(carried((0.1, 0.5), (0.1, 0.5))).measured
    assert float(said.partition("over all heads ")[2].split()[0]) > 0.5


def test_an_edit_helps_where_the_loss_far_away_is_lower():
    model = {"encoding": "rope", "width": 512, "corpus": "source", "length": 2048}
    rows = [
        {
            **model,
            "seed": seed,
            "edit": edit,
            "block": block,
            "position": 2048,
            "loss": loss + 0.01 * seed * (edit == "a"),
        }
        for seed in range(4)
        for edit, loss in (("a", 2.0), ("b", 3.0))
        for block in range(2)
    ]
    made = Study({"length": pd.DataFrame(rows)}, manifest={"config": {"length": 512}})
    assert claims.far_by_edit(made, "a", "b").verdict == HOLDS
    assert claims.far_by_edit(made, "b", "a").verdict == FAILS
