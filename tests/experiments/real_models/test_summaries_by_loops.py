"""Summaries of a real model that only charts and the chapter read, against plain loops over small random tables."""

import cmath
import itertools
from statistics import mean, median, quantiles

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.errors import InputError
from possym.experiments.real_models import FORMS, HELD, PAPERS, summaries

HEADS = list(itertools.product(range(3), range(4)))
RANDOM = np.random.default_rng(0)


def rows_of(made, **asked):
    return [row for row in made.to_dict("records") if all(row[name] == value for name, value in asked.items())]


@pytest.fixture(scope="module")
def heads():
    rows = [
        (task, blocks, form, prompt, *head, *RANDOM.random(2))
        for task, blocks, form, prompt, head in itertools.product(
            ("a", "b"), ("tokens", "statements", HELD), FORMS, range(4), HEADS
        )
    ]
    columns = ["task", "blocks", "form", "prompt", "layer", "head", "positional", "symbolic"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0, ignore_index=True)


def leads(heads, prompts=range(4), **asked):
    rows = [row for row in rows_of(heads, form=PAPERS, **asked) if row["prompt"] in prompts]
    return [mean(r["symbolic"] - r["positional"] for r in rows if (r["layer"], r["head"]) == head) for head in HEADS]


def test_prompts_are_parted_by_answers_and_by_halves(heads):
    prompts = pd.DataFrame([(task, k, (k == 2) == (task == "a")) for task in "ab" for k in range(4)],
                           columns=["task", "prompt", "correct"])  # fmt: skip
    found = summaries.by_correctness(heads, prompts, "a", "tokens")
    for right, some in ((True, [2]), (False, [0, 1, 3])):
        own = found[right].set_index(["layer", "head"])["lead"].loc[HEADS]
        assert own.tolist() == pytest.approx(leads(heads, some, task="a", blocks="tokens"))
    assert summaries.by_correctness(heads, prompts.assign(correct=True), "b", "tokens").keys() == {True}
    even, odd = (leads(heads, some, task="b", blocks="statements") for some in ([0, 2], [1, 3]))
    assert summaries.split_half(heads, "b", "statements") == pytest.approx(stats.spearmanr(even, odd).statistic)


def test_tasks_are_compared_where_no_token_is_held(heads):
    found = summaries.over_tasks(heads)
    names = {
        f"{task}, by {cut}": leads(heads, task=task, blocks=cut) for task in "ab" for cut in ("tokens", "statements")
    }
    assert len(found) == 16 and set(found["first"]) == set(names)
    for row in found.itertuples():
        expected = stats.spearmanr(names[row.first], names[row.second]).statistic
        assert row.rank_correlation == pytest.approx(expected)
    with pytest.raises(InputError, match="task = 'c', blocks = 'tokens', form = 'papers': known are .*a by tokens by"):
        summaries.of_task(heads, "c", "tokens")


@pytest.fixture(scope="module")
def planes():
    rows = [(*head, k, 0.5**k, *RANDOM.random(2), (9 + k) * RANDOM.random()) for head in HEADS for k in range(1, 10)]
    columns = ["layer", "head", "frequency_id", "angle", "positional", "symbolic", "logit_norm"]
    return pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=0, ignore_index=True)


def test_frequencies_have_medians_and_quartiles(planes):
    found = summaries.frequency_pattern(planes)
    assert found["frequency_id"].tolist() == [*range(1, 10)]
    for row in found.to_dict("records"):
        own = rows_of(planes, frequency_id=row["frequency_id"])
        assert row["angle"] == own[0]["angle"]
        for name in ("positional", "symbolic", "logit_norm"):
            expected = quantiles([r[name] for r in own], n=4, method="inclusive")
            assert [row[f"{name}_low"], row[name], row[f"{name}_high"]] == pytest.approx(expected)


def test_thirds_of_the_planes_and_those_with_large_logits(planes):
    assert len(summaries.with_large_logits(planes)) == len(planes) / 4
    bounds = {"fast": (1, 3), "middle": (4, 6), "slow": (7, 9), "fastest": (1, 1)}
    for share in (1.0, 0.5):
        least = np.quantile(planes["logit_norm"], 1 - share)
        found = summaries.thirds(planes, share)
        assert found.keys() == bounds.keys()
        for name, (low, high) in bounds.items():
            own = [r for r in rows_of(planes) if low <= r["frequency_id"] <= high and r["logit_norm"] >= least]
            for score in ("positional", "symbolic"):
                assert found[name][score] == pytest.approx(median(r[score] for r in own))
    assert summaries.thirds(planes)["slow"].equals(summaries.thirds(planes, 1.0)["slow"])
    more = []
    for layer, head in HEADS:
        own = rows_of(planes, layer=layer, head=head)
        slow, fast = (
            mean(r["symbolic"] - r["positional"] for r in own if low <= r["frequency_id"] <= high)
            for low, high in (bounds["slow"], bounds["fast"])
        )
        more.append(slow > fast)
    assert summaries.slow_leads_more(planes) == pytest.approx(mean(more)) and 0 < mean(more) < 1


def test_directions_are_averaged_on_the_circle():
    rows = [(kind, k, role, *RANDOM.normal(size=2)) for kind in "ab" for k in (1, 2) for role in ("key", "query")
            for _ in range(5)]  # fmt: skip
    points = pd.DataFrame(rows, columns=["kind", "frequency_id", "role", "x", "y"])
    found = summaries.gathered(points)
    for (kind, k), role in itertools.product(itertools.product("ab", (1, 2)), ("key", "query")):
        own = [complex(r["x"], r["y"]) for r in rows_of(points, kind=kind, frequency_id=k, role=role)]
        assert found.loc[(kind, k), role] == pytest.approx(abs(sum(z / abs(z) for z in own)) / 5)
        assert cmath.isfinite(found.loc[(kind, k), role])


def test_every_changed_choice_is_compared_with_the_default():
    choices = [("temperature", "0.1"), ("temperature", "0.01"), ("block size", "3"), ("block size", "5"),
               ("boundary", "0"), ("boundary", "1"), ("swaps", "all"), ("swaps", "10")]  # fmt: skip
    rows = [(*choice, *head, *RANDOM.random(2), 100 * RANDOM.random() if choice[0] == "temperature" else np.nan)
            for choice in choices for head in HEADS]  # fmt: skip
    columns = ["choice", "value", "layer", "head", "positional", "symbolic", "effective_swaps"]
    table = pd.DataFrame(rows, columns=columns)
    found = summaries.sensitivity_table(table, "3", "0.1")
    assert list(found[["choice", "value"]].itertuples(index=False, name=None)) == choices
    assert found["default"].tolist() == [True, False] * 4
    usual = [r["symbolic"] - r["positional"] for r in rows_of(table, choice="swaps", value="all")]
    for row in found.to_dict("records"):
        own = rows_of(table, choice=row["choice"], value=row["value"])
        p, s, swaps = ([r[name] for r in own] for name in ("positional", "symbolic", "effective_swaps"))
        assert (row["positional"], row["symbolic"]) == pytest.approx((median(p), median(s)))
        assert row["r"] == pytest.approx(stats.pearsonr(p, s).statistic)
        assert (row["effective_swaps"], row["median_swaps"]) == pytest.approx((mean(swaps), median(swaps)), nan_ok=True)
        lead = [b - a for a, b in zip(p, s, strict=True)]
        assert row["rank_correlation"] == pytest.approx(stats.spearmanr(lead, usual).statistic)


@pytest.fixture(scope="module")
def knob():
    edits = [("all", band, 0, how) for band in ("symbolic", "positional") for how in ("silence", "unrotate")]
    for own, band, other in (("previous-token heads", "positional", "symbolic"),
                             ("induction heads", "symbolic", "positional")):  # fmt: skip
        edits += [(own, name, 0, "silence") for name in (band, other)]
        edits += [(own, f"matched {band}", draw, "silence") for draw in range(7)]
        edits += [(own, band, 0, "unrotate")]
    columns = ["heads", "band", "draw", "how", "frequencies", "norm_ratio", *summaries.MEASURES]
    rows = [("all", "none", 0, "none", "", 1.0, *[0.9] * 5)]
    rows += [(*edit, "1 2", 1 + 0.1 * RANDOM.random(), *RANDOM.random(5).round(1)) for edit in edits]
    return pd.DataFrame(rows, columns=columns)


def test_edits_are_compared_with_the_unedited_model(knob):
    for heads, how in (("all", "silence"), ("all", "unrotate"), ("induction heads", "silence")):
        found = summaries.knob_effects(knob, heads, how)
        rows = rows_of(knob, heads=heads, how=how)
        assert len(found) == 5 * len(rows)
        for row in found.to_dict("records"):
            (own,) = (r for r in rows if (r["band"], r["draw"]) == (row["band"], row["draw"]))
            value = own[row["measure"]]
            assert (row["value"], row["base"], row["change"]) == (value, 0.9, pytest.approx(value - 0.9))
    assert summaries.knob_effects(knob).equals(summaries.knob_effects(knob, "all", "silence"))
    with pytest.raises(InputError, match="heads = 'some', how = 'silence': no such edits"):
        summaries.knob_effects(knob, "some")


def test_known_heads_lose_their_attention_beside_matched_sets(knob):
    found = summaries.own_effects(knob).set_index("heads")
    beyond = []
    for heads, measure, own, other in (("previous-token heads", "previous_token", "positional", "symbolic"),
                                       ("induction heads", "induction", "symbolic", "positional")):  # fmt: skip
        row = found.loc[heads]
        assert (row["measure"], row["own"], row["draws"]) == (measure, own, 7)
        change = {band: [r[measure] - 0.9 for r in rows_of(knob, heads=heads, band=band, how="silence")]
                  for band in (own, other, f"matched {own}")}  # fmt: skip
        sets = change[f"matched {own}"]
        assert row["own_change"] == pytest.approx(change[own][0]) and row["other_change"] == pytest.approx(
            change[other][0]
        )
        assert row["matched_change"] == pytest.approx(mean(sets))
        beyond.append(sum(each <= change[own][0] for each in sets))
        assert row["beyond"] == beyond[-1] and row["p_value"] == (beyond[-1] + 1) / 8
        norms = [r["norm_ratio"] for r in rows_of(knob, heads=heads, band=f"matched {own}")]
        assert (row["norm_low"], row["norm_high"]) == (min(norms), max(norms))
    tied = knob.assign(induction=0.5, previous_token=0.5)
    assert summaries.own_effects(tied)["beyond"].tolist() == [7, 7] and sum(beyond) < 14
