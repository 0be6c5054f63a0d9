"""Charts of a language model: what they say and draw is what their tables hold."""

import numpy as np
import pandas as pd
import pytest

from possym import results
from possym.charts import POSITIONAL, SYMBOLIC
from possym.errors import InputError
from possym.experiments import real_models
from possym.experiments.real_models import charts as real
from possym.experiments.real_models import summaries as readings

from ...charts.drawn import draw, texts, title_of

TASK = "binding, 8 pairs"


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(tmp_path_factory.mktemp("results")))
        config = real_models.Config.preset_named("smoke", device="cpu")
        return results.load_or_run(real_models, config, "always").tables


@pytest.fixture(scope="module")
def means(tables):
    return readings.mean_heads(tables["heads"], TASK, "statements")


@pytest.fixture(scope="module")
def frequencies(tables):
    return readings.of_task(tables["frequencies"], TASK, "statements")


def drawn(chart):
    """All rows that a chart's specification carries."""
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows]


def test_plane_holds_every_head_and_its_profile(means, frequencies):
    chart = real.plane_with_profile(means, frequencies)
    rows = drawn(chart)
    points = {row["name"]: row for row in rows if "lead" in row}
    profiles = {row["name"]: row for row in rows if "frequency_id" in row}
    assert len(points) == len(profiles) == len(means)
    one = frequencies[(frequencies.layer == 2) & (frequencies["head"] == 1)].sort_values("frequency_id")
    assert profiles["layer 2, head 1"]["symbolic"] == pytest.approx(one.symbolic.tolist(), abs=1e-3)
    assert profiles["layer 2, head 1"]["frequency_id"] == [1, 2, 3, 4]
    assert f"r = {np.corrcoef(means.positional, means.symbolic)[0, 1]:.2f}" in chart.title.subtitle


def test_the_menu_of_heads_starts_at_the_one_that_leads_and_its_panels_name_it(means, frequencies):
    chart = real.plane_with_profile(means, frequencies)
    (menu,) = [param for param in chart.to_dict()["params"] if "bind" in param]
    start = means.loc[means["lead"].idxmax()]
    assert menu["value"] == f"layer {start.layer:.0f}, head {start['head']:.0f}"
    assert menu["bind"]["options"] == [f"layer {row.layer}, head {row.head}" for row in means.itertuples()]
    for name in (menu["value"], "layer 2, head 1"):
        assert [text for text in texts(draw(chart, shown=name)) if text.startswith("layer ")] == [name]


def test_titles_follow_the_data(means, frequencies):
    opposed = means.assign(symbolic=1 - means.positional)
    assert real.plane_with_profile(opposed, frequencies).title.text == "Heads trade one score for the other"
    alike = means.assign(symbolic=means.positional)
    assert "do not clearly" in real.plane_with_profile(alike, frequencies).title.text


def test_every_head_has_its_lines(frequencies):
    chart = real.all_profiles(frequencies)
    assert len(drawn(chart)) == len(frequencies.groupby(["layer", "head"]))
    many = pd.concat([frequencies.assign(frequency_id=frequencies.frequency_id + 4 * k) for k in range(16)])
    assert {len(row["frequency_id"]) for row in drawn(real.all_profiles(many))} == {16}


@pytest.mark.parametrize("scope", ["all planes", "largest logits"])
def test_scores_by_frequency_are_medians_and_quartiles(tables, frequencies, scope):
    rows = drawn(real.scores_by_frequency(tables["frequencies"], TASK))
    (found,) = [
        row for row in rows
        if (row["score"], row["frequency_id"], row["scope"], row["cut"]) == ("symbolic", 1, scope, "statements")
    ]  # fmt: skip
    limit = np.percentile(frequencies.logit_norm, 75) if scope == "largest logits" else 0
    values = frequencies.loc[(frequencies.frequency_id == 1) & (frequencies.logit_norm >= limit), "symbolic"]
    assert 0 < len(values) < (len(frequencies) / 4 if limit else np.inf)
    expected = np.percentile(values, [25, 50, 75])
    assert [found["low"], found["value"], found["high"]] == pytest.approx(expected.tolist(), abs=1e-5)


def split(fast, slow):
    """Planes of four heads: large logits with these (positional, symbolic) scores, small ones that score 1 on both."""
    rows = [
        (TASK, cut, "papers", 0, head, number, 0.5**number, *scores, norm)
        for cut in ("statements", "tokens")
        for head in range(4)
        for number in range(1, 10)
        for scores, norm in [((fast if number <= 3 else slow) if head == 0 else (1.0, 1.0), 9.0 if head == 0 else 1.0)]
    ]
    columns = ["task", "blocks", "form", "layer", "head", "frequency_id", "angle", "positional", "symbolic"]
    return pd.DataFrame(rows, columns=[*columns, "logit_norm"])


def test_frequency_title_speaks_of_planes_with_large_logits():
    chart = real.scores_by_frequency(split((1.0, 0.6), (0.5, 1.0)), TASK)
    said = "of the planes with the largest logits: fast ones positional, slow ones symbolic"
    for cut in ("statements", "tokens"):
        assert title_of(chart, cut=cut) == f"With {cut} moved, {said}"
        alike = f"With {cut} moved, of all planes: fast ones without a lead, slow ones without a lead"
        assert title_of(chart, cut=cut, scope="all planes") == alike
    title = title_of(real.scores_by_frequency(split((0.95, 1.0), (0.6, 0.55)), TASK))
    assert "fast ones without a lead, slow ones without a lead" in title


def test_slow_third_against_fast_third_within_a_head():
    planes = split((1.0, 0.6), (0.5, 1.0)).query("blocks == 'tokens'")
    assert readings.slow_leads_more(planes) == 0.25
    assert readings.slow_leads_more(planes[planes["head"] == 0]) == 1.0


def test_permuted_attention_says_what_stays_and_what_follows():
    places = np.arange(6)
    content = np.array([2, 0, 1, 5, 3, 4])
    before = np.array([0.1, 0.5, 0.2, 0.05, 0.1, 0.05]) / 2
    parts = [
        pd.DataFrame(dict(kind=kind, layer=0, head=0, place=places, content=content, before=before, after=after))
        for kind, after in (("uniform", before), ("positional", before), ("symbolic", before[content]))
    ]
    chart = real.attention_under_permutation(pd.concat(parts))
    panels = {panel.title.text: panel.title.subtitle for panel in chart.vconcat}
    assert list(panels) == [f"Most {kind}: layer 0, head 0" for kind in ("positional", "symbolic", "uniform")]
    moved = np.corrcoef(before, before[content])[0, 1]
    positional, symbolic, uniform = panels.values()
    assert positional[0] == f"After, r = 1.00 with positions, {moved:.2f} with contents"
    assert symbolic[0] == f"After, r = {moved:.2f} with positions, 1.00 with contents"
    assert uniform[1] == "50 % of its attention is on statements"
    for panel in chart.vconcat:
        assert panel.data.groupby("when")["attention"].sum().tolist() == pytest.approx([1, 1, 1])


def test_planes_are_scaled_by_role_and_counted():
    rows = [("positional", 0, 0, 1, role, 0, "a", x, y) for role, x, y in
            (("key", 3, 0), ("key", 6, 0), ("query", 0, 2), ("query", 0, -2))]  # fmt: skip
    planes = pd.DataFrame(rows, columns=["kind", "layer", "head", "frequency_id", "role", "place", "token", "x", "y"])
    chart = real.queries_and_keys(planes)
    assert [(row["x"], row["y"]) for row in drawn(chart)] == [(0.5, 0), (1, 0), (0, 1), (0, -1)]
    assert chart.title.text == "Keys gather in one direction more than queries in 1 of 1 planes"


def test_choices_name_the_one_that_reorders_most(tables):
    table = readings.sensitivity_table(tables["sensitivity"], "4", "0.1")
    assert table.loc[table.default, "rank_correlation"].tolist() == pytest.approx([1.0] * 4, abs=1e-6)
    lead = tables["sensitivity"].assign(lead=lambda t: t.symbolic - t.positional)
    wide = lead.pivot(index=["layer", "head"], columns=["choice", "value"], values="lead")
    expected = wide["block size", "1"].corr(wide["swaps", "all"], method="spearman")
    mine = table[(table.choice == "block size") & (table.value == "1")].iloc[0]
    assert mine.rank_correlation == pytest.approx(expected)
    counts = tables["sensitivity"].query("choice == 'temperature' and value == '0.0001'")["effective_swaps"]
    mine = table[(table.choice == "temperature") & (table.value == "0.0001")].iloc[0]
    assert (mine.effective_swaps, mine.median_swaps) == (pytest.approx(counts.mean()), pytest.approx(counts.median()))
    worst = table[~table.default].sort_values("rank_correlation").iloc[0]
    assert f"{worst.choice}: {worst.value} reorders" in real.choices(table).title.text
    assert len(drawn(real.choices(table))) == 3 * len(table)


def test_agreement_between_tasks_parts_what_moves():
    names = ["a, by tokens", "b, by tokens", "a, by statements"]
    values = [[1.0, 0.9, 0.2], [0.9, 1.0, 0.3], [0.2, 0.3, 1.0]]
    table = pd.DataFrame(values, names, names).rename_axis(index="first", columns="second").stack()
    chart = real.agreement(table.rename("rank_correlation").reset_index())
    assert "as long as the same thing moves: median 0.90, else 0.25" in chart.title.text
    table[:] = 0.5
    assert "agree no better" in real.agreement(table.rename("rank_correlation").reset_index()).title.text


def test_known_heads_are_the_largest_and_never_twice():
    summary = pd.DataFrame(dict(layer=0, head=range(5), positional=0.5, symbolic=0.5, entropy=1.0, lead=0.0))
    known = pd.DataFrame(
        dict(layer=0, head=range(5), previous_token=[0.9, 0.8, 0.1, 0, 0], induction=[0.75, 0.1, 0.7, 0.1, 0])
    )
    table = readings.with_known(summary, known, 2)
    assert table.known.tolist() == ["previous-token", "previous-token", "induction", "other", "other"]
    marks = {row["name"]: row["front"] for row in drawn(real.known_heads(table))}
    assert [marks[f"layer 0, head {k}"] for k in range(5)] == [True, True, True, False, False]


def test_knob_compares_with_the_model_as_it_is(tables):
    knob = tables["knob"]
    effects = readings.knob_effects(knob)
    base = knob[knob.band == "none"].iloc[0]
    row = effects[(effects.band == "positional") & (effects.measure == "induction")].iloc[0]
    edited = knob[(knob.band == "positional") & (knob.heads == "all") & (knob.how == "silence")].iloc[0]
    assert row.change == pytest.approx(edited.induction - base.induction)
    chart = real.knob(knob)
    matched = effects[(effects.band == "matched positional") & (effects.measure == "induction")]["value"].mean()
    assert f"Induction is {base.induction:.2f} intact, " in chart.title.text
    said = f"{edited.induction:.2f} with the positional band silenced (matched sets: {matched:.2f})"
    assert said in chart.title.text
    for band in ("matched symbolic", "matched positional"):
        assert len([row for row in drawn(chart) if row.get("band") == band]) == 2 * len(readings.MEASURES)
    stopped = real.knob(knob, how="unrotate")
    assert "band not rotating" in stopped.title.text and "matched sets" not in stopped.title.text
    with pytest.raises(InputError, match="no such edits"):
        real.knob(knob, heads="none of them")


def test_each_kind_of_known_head_and_its_band(tables):
    own = readings.own_effects(tables["knob"]).set_index("measure")
    rows = tables["knob"].query("heads == 'induction heads' and how == 'silence'").set_index("band")["induction"]
    base = tables["knob"].query("band == 'none'")["induction"].iloc[0]
    matched = rows["matched symbolic"]
    assert own.loc["induction", "own"] == "symbolic"
    assert own.loc["induction", "own_change"] == pytest.approx(rows["symbolic"] - base)
    assert own.loc["induction", "other_change"] == pytest.approx(rows["positional"] - base)
    assert own.loc["induction", "matched_change"] == pytest.approx(matched.mean() - base)
    assert own.loc["induction", "beyond"] == (matched <= rows["symbolic"]).sum()
    assert own.loc["induction", "p_value"] == pytest.approx(((matched <= rows["symbolic"]).sum() + 1) / 3)
    assert own["draws"].tolist() == [2, 2]
    assert (own["norm_low"] <= own["norm_high"]).all()


def knob_of(previous_token, induction):
    """Known heads that lose this much attention without their own band, and 0.1 without any of 40 matched sets."""
    rows = [("all", "none", 0, 0.7, 0.7)]
    for heads, lost, own, other in (
        ("previous-token heads", previous_token, "positional", "symbolic"),
        ("induction heads", induction, "symbolic", "positional"),
        ("all", 0.3, "symbolic", "positional"),
    ):
        rows += [(heads, band, 0, 0.7 - lost, 0.7 - lost) for band in (own, other)]
        rows += [(heads, f"matched {band}", draw, 0.6, 0.6) for band in (own, other) for draw in range(40)]
    table = pd.DataFrame(rows, columns=["heads", "band", "draw", "previous_token", "induction"])
    rest = dict(text_loss=3.0, repeat_accuracy=0.5, binding_accuracy=0.1, norm_ratio=1.0, frequencies="1")
    return table.assign(how=["none", *["silence"] * (len(table) - 1)], **rest)


@pytest.mark.parametrize(
    ("lost", "title"),
    [
        ((0.5, 0.5), "Previous-token heads need the positional band, induction heads the symbolic one, more than"),
        ((0.5, 0.05), "Only previous-token heads need their own band more than matched sets"),
        ((0.05, 0.5), "Only induction heads need their own band more than matched sets"),
        ((0.1, 0.1), "Neither kind of head needs its own band more than matched sets"),
    ],
)
def test_title_of_known_heads_follows_the_matched_sets(lost, title):
    chart = real.knob_in_known_heads(knob_of(*lost))
    assert chart.title.text.startswith(title)
    assert f"{-lost[0]:+.2f} without the positional band" in chart.title.subtitle


def test_readings_of_prompts(tables):
    heads, prompts = tables["heads"], tables["prompts"].copy()
    prompts.loc[(prompts.task == TASK) & (prompts.prompt == 0), "correct"] = True
    parts = readings.by_correctness(heads, prompts, TASK, "statements")
    rows = readings.of_task(heads, TASK, "statements")
    expected = rows[rows.prompt == 0].sort_values(["layer", "head"])
    assert parts[True].positional.tolist() == pytest.approx(expected.positional.tolist())
    wrong = rows[rows.prompt != 0].groupby(["layer", "head"]).positional.mean()
    assert parts[False].positional.tolist() == pytest.approx(wrong.tolist())
    lead = (rows.symbolic - rows.positional).groupby([rows.layer, rows["head"], rows.prompt % 2]).mean().unstack()
    assert readings.split_half(heads, TASK, "statements") == pytest.approx(lead[0].corr(lead[1], method="spearman"))
    with pytest.raises(InputError, match="known are binding, 8 pairs by statements"):
        readings.of_task(heads, "nothing", "tokens")


def test_thirds_are_medians_over_planes(tables):
    rows = readings.of_task(tables["frequencies"], TASK, "statements")
    rows = pd.concat(
        [rows.assign(frequency_id=rows.frequency_id + 4 * k, symbolic=rows.symbolic / (k + 1)) for k in range(3)]
    )
    found = readings.thirds(rows)
    for name, (first, last) in {"fast": (1, 4), "middle": (5, 8), "slow": (9, 12), "fastest": (1, 1)}.items():
        expected = np.median(rows.loc[rows.frequency_id.between(first, last), "symbolic"])
        assert found[name]["symbolic"] == pytest.approx(expected)


def test_the_two_scores_keep_their_colours():
    scale = real.score_color().to_dict()["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == {"positional": POSITIONAL, "symbolic": SYMBOLIC}
