"""Where verdicts on language models change: how many seeds, which share of them, which correlation."""

import numpy as np
import pandas as pd
import pytest

from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN
from possym.experiments.language_models import claims
from possym.profiling.statistics import Estimate
from possym.results import Study

from ...claims.stored_numbers import figures
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


def models(count=4, encodings=("rope",)):
    rows = [(name, 512, "source", seed, step) for name in encodings for seed in range(count) for step in (0, 20)]
    return pd.DataFrame(rows, columns=["encoding", "width", "corpus", "seed", "step"])


NOTHING = Study({"jobs": pd.DataFrame(), "scores": pd.DataFrame()}, manifest={"config": {"length": 512}})


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.001, 0.5, HOLDS), (0.0, 0.5, NOT_SHOWN), (-0.5, 0.0, NOT_SHOWN), (-0.5, -0.001, FAILS)],
)
def test_a_difference_is_judged_by_which_side_its_interval_lies_on(low, high, verdict):
    for sign, ends in ((1, (low, high)), (-1, (-high, -low))):
        assert claims.by_interval(Estimate(0.0, *ends), sign) == verdict
    found = claims.difference("words", Estimate(0.25, low, high, 0.0123))
    assert found.measured == "words +0.250 (p = 0.012)" and found.interval == f"{low:.3f} to {high:.3f}"
    assert found.verdict == verdict


def test_seeds_are_counted_for_the_encoding_that_has_fewest():
    both = pd.concat([models(3), models(2, ("nope",))])
    assert claims.too_few(both) is None and claims.too_few(both, "rope") is None
    assert claims.too_few(both, "rope", "nope").measured == claims.too_few(models(2)).measured == "2 seeds so far"


@pytest.mark.parametrize(
    ("last", "first", "verdict"),
    [((3, 3), (2, 2), HOLDS), ((2, 3), (2, 2), IN_PART), ((3, 2), (2, 2), IN_PART), ((3, 0), (2, 2), FAILS)],
)
def test_every_seed_ends_with_more_heads_of_both_kinds_than_any_starts_with(last, first, verdict, monkeypatch):
    table = models()
    for kind, end, start in zip(("positional", "symbolic"), last, first, strict=True):
        table[kind] = np.where(table["step"] == 0, start * (table["seed"] == 1), end)
    monkeypatch.setattr(claims, "scores_of", lambda *_: None)
    monkeypatch.setattr(claims.summaries, "counts", lambda _: table)
    found = claims.both_kinds(NOTHING)
    assert found.verdict == verdict and found.measured.endswith(f"at the start at most {first[0]} and {first[1]}")


@pytest.mark.parametrize(
    ("ahead", "tied", "verdict"),
    [(7, 0, HOLDS), (6, 2, IN_PART), (5, 0, IN_PART), (4, 0, FAILS), (0, 8, FAILS)],
)
def test_positional_heads_are_strictly_first_in_seven_of_eight_seeds(ahead, tied, verdict, monkeypatch):
    onsets = [10.0] * ahead + [20.0] * tied + [30.0] * (8 - ahead - tied)
    kinds = pd.DataFrame({"seed": range(8), "positional": onsets, "symbolic": 20.0})
    monkeypatch.setattr(claims, "steps_of", lambda _: (kinds, None))
    found = claims.positional_first(NOTHING)
    assert found.verdict == verdict
    assert found.measured.startswith(
        f"positional first in {ahead} of 8 seeds, symbolic first in {8 - ahead - tied}; median"
    )


@pytest.mark.parametrize(("near", "verdict"), [(8, HOLDS), (6, HOLDS), (5, IN_PART), (4, FAILS)])
def test_onsets_are_one_evaluation_apart_in_six_of_eight_seeds(near, verdict, monkeypatch):
    at = models(8)[::2].drop(columns="step").reset_index(drop=True)
    kinds = at.assign(positional=0.0, symbolic=[100.0] * near + [400.0] * (8 - near))
    jobs = at.assign(induction=[200.0, 50.0] * (near // 2) + [200.0] * (near % 2) + [100.0] * (8 - near))
    monkeypatch.setattr(claims, "steps_of", lambda _: (kinds, jobs))
    loss = pd.DataFrame({"step": [0, 50, 100, 200, 400]})
    found = claims.symbolic_with_induction(Study({"loss": loss}))
    assert found.verdict == verdict and figures(found.measured)[:2] == [str(near), "8"]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.76, 0.9, HOLDS), (0.75, 0.9, IN_PART), (0.51, 0.9, IN_PART), (0.5, 0.9, NOT_SHOWN), (0.1, 0.5, NOT_SHOWN),
     (0.1, 0.49, FAILS)],
)  # fmt: skip
def test_an_area_under_the_curve_lies_above_three_quarters(low, high, verdict, monkeypatch):
    heads = models().assign(induction=[0.3, 0.29] * 4, carrier=True, lead=[0.25, 0.5] * 4, share=[0.5, 0.25] * 4)
    seen = []

    def area(table, label, value):
        seen.append((int(table[label].sum()), value, table[value].iloc[0] if value in table else None))
        return Estimate((low + high) / 2, low, high, 0.5)

    monkeypatch.setattr(claims.summaries, "clustered_auc", area)
    monkeypatch.setattr(claims, "scores_of", lambda *_: heads)
    monkeypatch.setattr(claims.summaries, "at_end", lambda table: table)
    monkeypatch.setattr(claims.summaries, "with_jobs", lambda scores, jobs: scores.copy())
    assert claims.job_score(NOTHING, "induction", "score").verdict == verdict
    monkeypatch.setattr(claims.summaries, "recall_lost", lambda _: None)
    monkeypatch.setattr(claims.summaries, "recall_carriers", lambda *_: heads)
    assert claims.recall_symbolic(Study({"without_heads": models()})).verdict == verdict
    assert seen == [(4, "score", None), (8, "symbolic", -0.25)]


@pytest.mark.parametrize(
    ("last", "first", "verdict"),
    [((-0.5, -0.5, -0.5), -0.4, HOLDS), ((-0.9, -0.49, -0.49), -0.4, IN_PART), ((-0.9, -0.5, -0.4), -0.4, IN_PART),
     ((-0.9, -0.5, 0.0), -0.1, FAILS), ((-0.4, -0.4, -0.001), -0.5, IN_PART)],
)  # fmt: skip
def test_correlations_end_at_minus_one_half_and_below_every_start(last, first, verdict, monkeypatch):
    table = models(3)
    table["r"] = [r for seed, end in enumerate(last) for r in (first if seed == 2 else 0.9, end)]
    monkeypatch.setattr(claims, "scores_of", lambda *_: None)
    monkeypatch.setattr(claims.summaries, "correlations", lambda _: table)
    assert claims.trade(NOTHING).verdict == verdict


@pytest.mark.parametrize(
    ("trends", "verdict"),
    [
        ((-0.9, -0.5, -0.3), HOLDS),
        ((-0.9, -0.5, -0.29), IN_PART),
        ((-0.9, -0.001, -0.5), IN_PART),
        ((-1, -1, 0), FAILS),
    ],
)
def test_slower_planes_are_more_symbolic_in_every_seed(trends, verdict, monkeypatch):
    monkeypatch.setattr(
        claims.summaries, "plane_trend",
        lambda planes: pd.DataFrame({"trend": trends if planes["step"].max() else [0.25] * 3}),
    )  # fmt: skip
    found = claims.fast_planes(Study({"planes": models(3)}))
    assert found.verdict == verdict and "before the first update 0.25 (0.25 to 0.25)" in found.measured


@pytest.mark.parametrize(
    ("heads", "verdict"),
    [(((0.3, 0.999),) * 3, HOLDS), (((0.3, 0.999), (0.29, 0.999), (0.3, 0.998)), IN_PART),
     (((0.29, 1.0), (0.3, 0.998), (0.3, 0.998)), FAILS)],
)  # fmt: skip
def test_nope_heads_look_one_back_and_score_symbolic(heads, verdict, monkeypatch):
    table = models(3, ("nope",))[1::2].assign(previous_token=[h[0] for h in heads], symbolic=[h[1] for h in heads])
    monkeypatch.setattr(claims, "scores_of", lambda _, encoding: table if encoding == "nope" else None)
    monkeypatch.setattr(claims.summaries, "at_end", lambda table: table)
    monkeypatch.setattr(claims.summaries, "with_jobs", lambda scores, jobs: scores)
    assert claims.nope_previous_token(NOTHING).verdict == verdict


@pytest.mark.parametrize(
    ("near", "far", "verdict"),
    [((0.01, 0.5), (0.01, 0.5), HOLDS), ((0.0, 0.5), (0.01, 0.5), NOT_SHOWN), ((0.01, 0.5), (-0.5, 0.0), NOT_SHOWN),
     ((0.01, 0.5), (-0.5, -0.01), FAILS), ((-0.5, -0.01), (0.01, 0.5), FAILS)],
)  # fmt: skip
def test_the_middle_is_worse_than_both_sides(near, far, verdict, monkeypatch):
    given = {"near": near, "far": far}
    monkeypatch.setattr(claims.summaries, "recall_less_middle", lambda _: {"near": "near", "far": "far"})
    monkeypatch.setattr(claims.summaries, "over_seeds", lambda side: Estimate(0.1, *given[side], 0.5))
    assert claims.lost_in_the_middle(Study({"recall": models(3, ("rope_million",))})).verdict == verdict


@pytest.mark.parametrize(("lowest", "verdict"), [(0.8, HOLDS), (0.79, IN_PART), (0.5, IN_PART), (0.49, FAILS)])
def test_heads_keep_their_order_on_another_text(lowest, verdict, monkeypatch):
    rows = pd.DataFrame({"agreement": [0.9, lowest, 0.9]})
    monkeypatch.setattr(claims.summaries, "agreement", lambda _, text: rows if text == "code" else None)
    made = Study({"scores": models(3).assign(text="code")})
    assert claims.same_kind_elsewhere(made, "code").verdict == verdict


BETTER, ZERO, SOME, WORSE = (-0.5, -0.01), (-0.5, 0.0), (0.0, 0.5), (0.01, 0.5)


@pytest.mark.parametrize(
    ("at_once", "others", "verdict"),
    [(BETTER, BETTER, HOLDS), (BETTER, ZERO, IN_PART), (BETTER, SOME, IN_PART), (BETTER, WORSE, FAILS),
     (ZERO, ZERO, NOT_SHOWN), (ZERO, WORSE, FAILS), (SOME, SOME, NOT_SHOWN)],
)  # fmt: skip
def test_the_forecast_beats_both_constants(at_once, others, verdict, monkeypatch):
    errors = models(3)[::2].assign(**{"forecast": 0.0, "at once": -1.0, "others": -2.0})
    monkeypatch.setattr(
        claims.summaries, "failing_lengths", lambda _: models(3).assign(relocated=600.0, measured=700.0)
    )
    monkeypatch.setattr(
        claims.summaries, "forecast_errors", lambda lengths, trained: errors if trained == 512 else None
    )
    given = {1.0: at_once, 2.0: others}
    monkeypatch.setattr(claims.summaries, "over_seeds", lambda less: Estimate(-0.1, *given[less.iloc[0]]))
    made = Study({"reach": models(3)}, manifest=NOTHING.manifest)
    assert claims.forecast_length(made).verdict == verdict


@pytest.mark.parametrize(
    ("others", "verdict"),
    [((-0.5, -0.5), HOLDS), ((-0.5, -0.49), IN_PART), ((-0.01, -0.9), IN_PART), ((0.0, -0.9), FAILS)],
)
def test_every_other_size_and_corpus_is_judged(others, verdict, monkeypatch):
    wide, code = (models(3).assign(**{name: value}) for name, value in (("width", 256), ("corpus", "code")))
    table = pd.concat([models(3).assign(r=0.9), wide.assign(r=others[0]), code.assign(r=others[1])])
    table.loc[table["step"] == 0, "r"] = 0.125
    monkeypatch.setattr(claims.summaries, "held_out", lambda scores: scores)
    monkeypatch.setattr(claims.summaries, "correlations", lambda _: table)
    found = claims.same_at_other_sizes(Study({"scores": table}))
    assert found.verdict == verdict and found.measured.endswith("; before the first update 0.12")
