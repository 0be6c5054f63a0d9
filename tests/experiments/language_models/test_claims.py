"""Verdicts follow from what was measured, on tables made to have one."""

import itertools
import math

import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, NOT_SHOWN, UNTESTABLE
from possym.experiments.language_models import claims, summaries
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
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS) == 25
    assert all(claim.criterion and claim.study == "language_models" for claim in claims.CLAIMS)


MODEL = {"encoding": "rope", "width": 512, "corpus": "source"}
QUESTIONS = [claim for claim in claims.CLAIMS if claim.id.startswith(("born-recall", "born-forecast"))]
QUESTIONS += [claim for claim in claims.CLAIMS if claim.id in ("born-length-angles", "born-length-number")]


def carried(near, far, symbolic=2.0, seeds=range(4)):
    """Eight heads, four of them symbolic; each carries ``near`` and ``far`` nats by kind: (positional, symbolic)."""
    rows = []
    for seed, distance in itertools.product(seeds, (16, 64, 128, 256, 448)):
        at = {**MODEL, "seed": seed, "draw": 0, "distance": distance, "layer": -1, "head": -1, "absent": 12.0}
        own = near if distance <= 64 else far
        gain = 4.0 + 0.01 * seed
        rows.append({**at, "group": "none", "planted": 12.0 - gain})
        for head in range(8):
            lost = own[head >= 4] + 0.01 * seed
            rows.append({**at, "group": "head", "layer": head // 4, "head": head % 4, "planted": 12.0 - gain + lost})
        rows.append({**at, "group": "symbolic quarter", "planted": 12.0 - gain + symbolic + 0.01 * seed})
        rows.append({**at, "group": "positional quarter", "planted": 12.0 - gain + 1.5})
        rows += [{**at, "group": "as many as symbolic", "draw": k, "planted": 12.0 - gain + 1.0 + k} for k in (-1, 1)]
    return Study({"without_heads": pd.DataFrame(rows), "scores": scores(seeds=seeds)})


def test_symbolic_heads_that_carry_recall_are_told():
    assert claims.recall_symbolic(carried((0.1, 0.5), (0.1, 0.5))).verdict == HOLDS
    assert claims.recall_symbolic(carried((0.5, 0.1), (0.5, 0.1))).verdict == FAILS
    assert claims.recall_symbolic(carried((0.1, 0.1), (0.1, 0.1))).verdict == UNTESTABLE
    assert "AUC 1.00 for 16 of 32 heads" in claims.recall_symbolic(carried((0.1, 0.5), (0.1, 0.5))).measured


def test_a_quarter_is_compared_with_the_mean_of_random_draws():
    found = claims.recall_quarter(carried((0, 0), (0, 0), symbolic=2.0))
    assert found.verdict == HOLDS and found.estimates[0].value == pytest.approx(2.015 - 1.0)
    assert found.measured.startswith(
        "nats of recall lost: without the symbolic quarter 2.01, without the positional 1.50"
    )
    assert claims.recall_quarter(carried((0, 0), (0, 0), symbolic=0.5)).verdict == FAILS


def test_recall_turns_symbolic_where_the_far_pairs_are_carried_so():
    found = claims.recall_depth(carried((0.6, 0.1), (0.1, 0.5)))
    # Two heads make a quarter of eight: far 2 · (0.5 − 0.1) / 4.015, near 2 · (0.1 − 0.6) / 4.015.
    assert found.verdict == HOLDS and found.estimates[0].value == pytest.approx(1.8 / 4.015, rel=1e-3)
    assert claims.recall_depth(carried((0.1, 0.5), (0.5, 0.1))).verdict == FAILS


def recalled(near, middle, far):
    rows = itertools.product(range(4), enumerate((near, middle, far)))
    table = [{**MODEL, "encoding": "rope_million", "seed": s, "distance": 2 + d, "accuracy": a + 0.01 * s * d}
             for s, (d, a) in rows]  # fmt: skip
    return Study({"recall": pd.DataFrame(table)})


def test_a_recall_that_fades_is_not_lost_in_the_middle():
    assert claims.lost_in_the_middle(recalled(0.5, 0.2, 0.4)).verdict == HOLDS
    assert claims.lost_in_the_middle(recalled(0.5, 0.2, 0.1)).verdict == FAILS
    assert claims.lost_in_the_middle(recalled(0.5, 0.2, 0.185)).verdict == NOT_SHOWN


def read_far(forecast=1.0, gap=3.0, more=1.0, seeds=range(4)):
    """Five encodings whose loss rises by 0.5 at 1,024, 2,048 …; the forecast's length is so many times that."""
    rows = []
    for seed, (which, name) in itertools.product(seeds, enumerate(("rope", "nope", "a", "b", "c"))):
        at = {**MODEL, "seed": seed, "encoding": name}
        fails = 600.0 * 1.5**which * (1 + 0.03 * seed)
        for length in (512, 4096):
            far = length > 512
            for way, times in (("measured", 1.0), ("relocated", forecast * (1 + 0.01 * seed))):
                slope = 0.5 / math.log2(fails * times / 512)
                rows.append({**at, "way": way, "length": length, "loss": 1 + slope * math.log2(length / 512)})
            rows.append({**at, "way": "gap", "length": length, "loss": 1 + far * (gap + 0.1 * seed)})
            rows.append({**at, "way": "more keys", "length": length, "loss": 1 + far * (more - 0.1 * seed)})
    return Study({"reach": pd.DataFrame(rows)}, manifest={"config": {"length": 512}})


def test_a_forecast_has_to_beat_both_constants():
    found = claims.forecast_length(read_far())
    assert found.verdict == HOLDS and "(RoPE, base 10⁴; error 0.02)" in found.measured
    # Failing at once: off by log2 of 600 · 1.5ᵏ / 512, k = 0 … 4, hence by 1.40 on average with the first seed.
    assert found.estimates[0].value == pytest.approx(-1.40, abs=0.05)
    assert claims.forecast_length(read_far(forecast=3.0)).verdict in (FAILS, NOT_SHOWN)
    lengths = summaries.failing_lengths(read_far().tables["reach"])
    assert lengths.query("seed == 0 and encoding == 'a'")["measured"].item() == pytest.approx(600 * 1.5**2)


def test_angles_and_number_are_told_apart():
    assert claims.angles_or_number(read_far(gap=3.0, more=1.0)).verdict == HOLDS
    assert claims.angles_or_number(read_far(gap=1.0, more=3.0)).verdict == FAILS
    assert claims.number_without_positions(read_far(more=1.0)).verdict == HOLDS
    assert claims.number_without_positions(read_far(more=-1.0)).verdict == FAILS


def test_models_that_were_not_probed_answer_nothing():
    assert len(QUESTIONS) == 6
    for bare in (study(), Study({**carried((0, 0), (0, 0), seeds=range(2)).tables, **read_far(seeds=range(2)).tables})):
        assert {question.measure(bare).verdict for question in QUESTIONS} == {UNTESTABLE}
