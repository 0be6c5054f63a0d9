"""Verdicts follow from what was measured, on tables made to have one."""

import itertools

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, NOT_SHOWN, UNTESTABLE
from possym.experiments.language_models import claims
from possym.profiling.statistics import Estimate
from possym.results import Study


@pytest.mark.parametrize(
    "low, high, sign, verdict",
    [
        (0.1, 0.2, 1, HOLDS),
        (-0.2, -0.1, 1, FAILS),
        (-0.1, 0.2, 1, NOT_SHOWN),
        (-0.2, -0.1, -1, HOLDS),
        (0.1, 0.2, -1, FAILS),
    ],
)
def test_a_difference_is_judged_by_its_interval(low, high, sign, verdict):
    assert claims.by_interval(Estimate((low + high) / 2, low, high), sign) == verdict


def scores(steps=(0, 10, 20), seeds=range(8), positional_from=10, symbolic_from=20):
    """Four heads of layer 0 turn positional, four of layer 1 symbolic, each a little apart from seed to seed."""
    main = {"encoding": "rope", "width": 512, "corpus": "source", "text": "held out", "weighting": "relative"}
    rows = []
    for seed, step, head in itertools.product(seeds, steps, range(8)):
        first, since = head < 4, positional_from if head < 4 else symbolic_from
        lead = (0.9 if first else -0.9) * (step >= since) + 0.01 * seed * first
        at = {**main, "seed": seed, "step": step, "layer": head // 4, "head": head % 4}
        level = 0.5 + 0.001 * head
        rows.append({**at, "positional": level + lead / 2, "symbolic": level - lead / 2})
    return pd.DataFrame(rows)


def jobs(table, induction_from=20):
    rows = table.assign(previous_token=(table["positional"] > 0.8) * 0.5, induction=0.0)
    rows.loc[(rows["positional"] < 0.2) & (rows["step"] >= induction_from), "induction"] = 0.6
    return rows[["encoding", "width", "corpus", "seed", "step", "layer", "head", "previous_token", "induction"]]


def study(**options):
    table = scores(**options)
    loss = table[["encoding", "width", "corpus", "seed", "step"]].drop_duplicates()
    return Study({"scores": table, "jobs": jobs(table), "loss": loss})


def verdicts(study):
    measures = (claims.both_kinds, claims.positional_first, claims.symbolic_with_induction, claims.trade)
    return [measure(study).verdict for measure in measures]


def test_a_course_as_asked_holds():
    assert verdicts(study()) == [HOLDS] * 4
    assert claims.job_score(study(), "previous_token", "positional").verdict == HOLDS
    assert claims.job_score(study(), "induction", "symbolic").verdict == HOLDS
    assert claims.early_positional(study()).verdict == HOLDS


def test_the_other_order_does_not():
    turned = study(positional_from=20, symbolic_from=10)
    assert claims.positional_first(turned).verdict == FAILS
    assert claims.both_kinds(study(positional_from=99)).verdict == FAILS


def test_two_seeds_answer_nothing():
    assert verdicts(study(seeds=range(2))) == [UNTESTABLE] * 4


def test_every_claim_is_named_once_and_says_its_criterion():
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS) == 18
    assert all(claim.criterion and claim.study == "language_models" for claim in claims.CLAIMS)
