"""What charts and sentences of the chapter say is what the stored tables hold, counted again by hand."""

import numpy as np
import pandas as pd
import pytest

from possym.experiments import language_models as study
from possym.experiments import two_models
from possym.experiments.language_models import charts, summaries
from possym.results import load_or_run

from .test_claims import carried, jobs, read_far


@pytest.fixture(scope="module")
def tables():
    """The stored tables."""
    return load_or_run(study, study.Config.preset_named("paper")).tables


@pytest.fixture(scope="module")
def rope(tables):
    """Rows of the models with RoPE, base 10⁴."""
    return summaries.models_of(tables, "rope", 512, "source")


def leads(scores):
    rows = scores[(scores["text"] == "held out") & (scores["weighting"] == "relative")]
    return (
        (rows["positional"] - rows["symbolic"]).groupby([rows["seed"], rows["step"], rows["layer"], rows["head"]]).sum()
    )


def test_the_film_shows_each_head_with_the_job_it_has_then(rope):
    one = summaries.seed_of(rope, 0)
    chart = charts.film(one["scores"], one["jobs"], one["loss"])
    data = chart.hconcat[0].data
    assert len(data) == 26 * 64
    last = one["jobs"][one["jobs"]["step"] == 2500]
    copying = (last["induction"] >= 0.3).sum()
    before = ((last["previous_token"] >= 0.3) & (last["induction"] < 0.3)).sum()
    assert f"{before} previous-token and {copying} induction heads" in chart.title.text
    assert (data[data["at"] == 25]["job"] == "induction head").sum() == copying
    assert (data[data["at"] == 0]["job"] == "other").all()


def test_the_wave_is_the_greatest_median_of_positional_heads(rope):
    counts = (leads(rope["scores"]) >= 0.5).groupby(["seed", "step"]).sum().groupby("step").median()
    title = charts.kinds_in_training(rope["scores"], rope["jobs"]).title.text
    assert f"A wave of {counts.max():.0f} positional heads at update {counts.idxmax()}" in title
    assert f"{counts.iloc[-1]:.0f} at the end; symbolic heads come before induction heads" in title
    late = rope["scores"][rope["scores"]["step"].isin([0, 397, 2500])]  # symbolic heads come with induction heads
    early = rope["jobs"][rope["jobs"]["step"].isin([0, 397, 2500])]
    assert charts.kinds_in_training(late, early).title.text.endswith("at the end")


def test_the_words_on_the_wave_count_heads(rope):
    lead = leads(rope["scores"])
    crest = lead.xs(50, level="step") >= 0.5
    end = lead.xs(2500, level="step") >= 0.5
    said = summaries.wave_in_words(rope["scores"], rope["jobs"])
    assert f"At update 50 the wave is highest: {crest.sum()} of 512" in said
    assert f"At the end {(crest & end).sum()} of these heads are positional" in said
    turned = (crest & (lead.xs(2500, level="step") <= -0.5)).sum()
    assert f"{turned} are symbolic; {end.sum()} of all heads end positional" in said
    jobs = rope["jobs"].set_index(["seed", "step", "layer", "head"])["induction"] >= 0.3
    copying = jobs.xs(2500, level="step")
    assert not jobs.xs(250, level="step").any() and jobs.xs(315, level="step").any()
    symbolic = (lead.xs(250, level="step") <= -0.5)[copying].sum()
    assert f"Of the {copying.sum()} heads that end as induction heads, {symbolic} were clearly symbolic" in said


def test_loss_far_out_is_that_of_the_tables(tables):
    length = summaries.main_models(tables["length"])
    title = charts.loss_by_length(length, 512).title.text
    far = length[(length["position"] >= 2048) & (length["encoding"] == "rope")]
    means = far.groupby(["edit", "seed"])["loss"].mean().groupby("edit").median()
    assert f"from {means['none']:.2f} to {means['positional windowed']:.2f}" in title


def test_the_attention_shown_is_all_but_its_crumbs(rope):
    one = summaries.seed_of(rope, 0)
    heads = charts.with_jobs(summaries.at_end(summaries.held_out(one["scores"])), one["jobs"])
    tiles, squares = charts.attention_on_code(one["attention"], heads).hconcat
    assert len(tiles.data) == 64 and (squares.data["weight"] >= charts.SHOWN - 0.005).all()
    kept = squares.data.groupby(["name", "from"])["weight"].sum()
    assert len(kept) == 64 * 22 and kept.between(0.7, 1.02).all()


def test_kinds_by_encoding_sum_to_all_heads(tables):
    chart = charts.kinds_by_encoding(summaries.main_models(tables["scores"]))
    data = chart.data
    assert (data.groupby(["encoding", "seed"])["heads"].sum() == 64).all() and data["encoding"].nunique() == 5


def test_other_texts_and_models_are_named(tables, rope):
    chart = charts.kinds_elsewhere(rope["scores"], ["docstrings", "repeated tokens", "never read"])
    assert len(chart.hconcat) == 2 and "on docstrings, " in chart.title.text
    other = pd.DataFrame(
        [("B", 0, 0, 0.9, 0.1, 0.5, 0.0)],
        columns=["model", "layer", "head", "positional", "symbolic", "previous_token", "induction"],
    )
    panels = charts.jobs_in_plane(rope["scores"], rope["jobs"], other).hconcat
    assert [panel.title for panel in panels] == ["trained here", "B"] and len(panels[0].data) == 512
    assert panels[1].data["job"].tolist() == ["previous-token head"]
    assert len(summaries.model_table(tables)) == 8 and summaries.model_table(tables)["seeds"].sum() == 49
    assert "49 models" in summaries.cost_in_words(tables) and "49 models" in summaries.models_in_words(tables)


def test_real_heads_are_means_of_their_atlas():
    real = load_or_run(two_models, two_models.Config.preset_named("paper")).tables
    found = summaries.real_heads(real).set_index(["model", "layer", "head"])
    assert len(found) == 30 * 9 + 18 * 4 and not found.isna().any(axis=None)
    atlas = real["atlas"].query("definition == 'induction' and model == 'gemma-3-270m' and layer == 5 and head == 2")
    assert found.loc[("gemma-3-270m", 5, 2), "induction"] == pytest.approx(sum(atlas["value"]) / len(atlas))


def test_planes_and_recall_are_drawn_for_every_row(tables, rope):
    trend = charts.planes_by_frequency(rope["planes"]).layer[1].data
    assert trend["frequency_id"].tolist() == list(range(1, 33))
    recall = charts.recall_by_distance(summaries.main_models(tables["recall"])).data
    assert len(recall) == 5 * 17
    title = charts.recall_by_distance(summaries.main_models(tables["recall"])).title.text
    assert "12.7% of windows, best 32 tokens back" in title


def test_the_words_on_planes_count_heads(tables):
    main = {name: summaries.main_models(tables[name]) for name in ("scores", "planes")}
    key = ["seed", "layer", "head"]
    lead = leads(main["scores"].query("encoding == 'rope'")).xs(2500, level="step")
    norms = (
        main["planes"]
        .query("encoding == 'rope' and step == 2500")
        .pivot(index=key, columns="frequency_id", values="norm")
    )
    strongest = norms[lead.loc[norms.index] >= 0.5].idxmax(axis=1)
    most = strongest.value_counts()[:3]
    told = f"{', '.join(map(str, sorted(most.index)))} with RoPE ({most.sum()} of {len(strongest)} heads)"
    assert told in summaries.planes_in_words(main["scores"], main["planes"])


def test_losses_told_are_those_of_models_of_one_size(tables):
    ends = tables["loss"].query("step == 2500 and width == 512 and corpus == 'source'")["loss"]
    said = summaries.models_in_words(tables)
    assert f"the 40 models of 29 million parameters end at {ends.min():.2f} to {ends.max():.2f} nats" in said


def test_titles_say_no_more_than_the_tables(tables, rope):
    """The same tables with their findings undone: titles do not repeat them."""
    scores, job = rope["scores"].copy(), rope["jobs"]
    scores[["positional", "symbolic"]] = scores[["symbolic", "positional"]].to_numpy()
    other = pd.DataFrame(
        [("B", 0, 0, 0.9, 0.1, 0.5, 0.0), ("B", 0, 1, 0.1, 0.9, 0.0, 0.5)],
        columns=["model", "layer", "head", "positional", "symbolic", "previous_token", "induction"],
    )
    assert "opposite corners" in charts.jobs_in_plane(rope["scores"], job, other).title.text
    assert "opposite corners" not in charts.jobs_in_plane(scores, job, other).title.text
    length = summaries.main_models(tables["length"]).copy()
    length["edit"] = length["edit"].replace({"none": "positional windowed", "positional windowed": "none"})
    assert "far out rises from" in charts.loss_by_length(length, 512).title.text


def test_heads_that_carry_recall_are_counted_by_kind():
    made = carried((0.1, 0.5), (0.1, 0.5)).tables
    chart = charts.heads_that_carry_recall(made["without_heads"], made["scores"], jobs(made["scores"]))
    assert "16 of 32 heads carry at least 10% of recall: 16 clearly symbolic, 0 clearly positional" in chart.title.text
    right = chart.hconcat[1].data.set_index(["heads", "distance"])["median"]
    assert right["without the most symbolic quarter", 16] == pytest.approx(4.0 - 2.0, abs=0.02)
    assert right["without as many in its layers", 448] == pytest.approx(4.0 - 1.0, abs=0.02)
    assert right["all heads", 64] == pytest.approx(4.015, abs=0.01)


def test_forecasts_are_drawn_beside_what_was_measured():
    reach = read_far(forecast=2.0, seeds=range(1)).tables["reach"]
    reach = reach[reach["encoding"].isin(["rope", "nope"])]
    chart = charts.forecast_from_short_windows(reach, 512)
    assert len(chart.data) == 2 * 4 * 2 and set(chart.data["way"]) == {name for name, _ in charts.WAYS.values()}
    assert "within a factor of 2.00 for half of 2 models" in chart.title.text
    assert "1,200 and 600 with RoPE, base 10⁴; 1,800 and 900 with no positions" in chart.description


def test_the_words_on_carriers_count_heads(tables):
    rope = {
        name: tables[name].query("encoding == 'rope' and width == 512 and corpus == 'source'")
        for name in tables
        if "encoding" in tables[name]
    }
    key = ["seed", "layer", "head"]
    costs = rope["without_heads"].assign(gain=lambda t: t["absent"] - t["planted"])
    left = costs[costs["group"] == "head"].groupby(key)["gain"].sum()
    whole = costs[costs["group"] == "none"].groupby("seed")["gain"].sum()
    carry = 1 - left / whole.reindex(left.index, level="seed") >= 0.1
    last = rope["jobs"].query("step == 2500 and seed >= 4").set_index(key).loc[carry.index]
    before, copying = last["previous_token"] >= 0.3, last["induction"] >= 0.3
    said = summaries.carriers_in_words(rope["without_heads"], rope["scores"], rope["jobs"])
    assert f"Of {copying.sum()} induction heads {(copying & carry).sum()} carry recall" in said
    assert (
        f"of {before.sum()} previous-token heads {(before & carry).sum()}. These 8 are the sharpest previous-token"
        in said
    )
    assert f"at least {last['previous_token'][before & carry].min():.2f}" in said
    chart = charts.heads_that_carry_recall(rope["without_heads"], rope["scores"], rope["jobs"])
    assert chart.title.text.startswith(f"{carry.sum()} of 256 heads") and len(chart.hconcat[0].layer[1].data) == 256


def test_failing_lengths_are_where_the_loss_has_risen(tables):
    table = summaries.failing_table(tables["reach"])
    nope = tables["reach"].query("encoding == 'nope' and way == 'gap'")
    assert nope.groupby("seed")["loss"].agg(lambda loss: loss.max() - loss.min()).max() < 1e-4
    assert table.loc["no positions (NoPE)", "new angles alone"] == 4096 and table.shape == (5, 4)
    curve = (
        tables["reach"]
        .query("encoding == 'rope' and way == 'measured'")
        .pivot(index="length", columns="seed", values="loss")
    )
    found = [2 ** np.interp(curve[s].iloc[0] + 0.5, curve[s].to_numpy(), np.log2(curve.index)) for s in curve]
    assert table.loc["RoPE, base 10⁴", "measured"] == round(np.median(found))
