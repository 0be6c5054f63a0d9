"""What the charts of chapter 08 draw is what the tables hold."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from possym.ensembles import planes
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.experiments.mechanism import charts
from possym.experiments.mechanism import intervention_charts as cause_charts
from possym.experiments.mechanism import token_flow as mechanism
from possym.experiments.mechanism.onsets import onsets
from possym.results.published import published
from possym.tasks import Batch, LetterTask

from ...charts.drawn import draw, is_complete, marks, texts, title_of
from .synthetic import study

TASK = LetterTask()


@pytest.fixture(scope="module")
def model():
    return GPTJEnsemble(GPTJConfig(128, layers=3, width=16, init_std=0.6), seeds=[0])


def one_of_each():
    drawn = [TASK.sample(1, hops=hops, generator=torch.Generator().manual_seed(hops)) for hops in (1, 2, 3, 4)]
    return Batch(*(torch.cat(column) for column in zip(*drawn, strict=True)))


@pytest.mark.parametrize("hops", [1, 4])
def test_moved_tokens_shows_every_state_of_the_chosen_sequence(model, hops):
    batch = one_of_each()
    table = mechanism.example_flow(model, TASK, batch)
    chart = charts.moved_tokens(table, "Tokens move to the last place")
    is_complete(chart)
    held = mechanism.token_states(mechanism.attention_maps(model, batch.tokens), batch.tokens)[0, :, hops - 1]
    svg = draw(chart, hops=hops)
    cells = {
        (mark["row"], int(mark["place"] if "place" in mark else mark["Position"])): mark
        for mark in marks(svg, "rect mark")
    }
    path = set(batch.path[hops - 1].tolist())
    for layer, place in itertools.product(range(4), range(17)):
        mark = cells["input" if layer == 0 else f"after layer {layer - 1}", place]
        assert mark["token"] == TASK.decode(held[layer, place])
        changed = layer > 0 and held[layer, place] != held[layer - 1, place]
        expected = "brought by this layer" if changed else "on the path" if place in path else "elsewhere"
        assert mark["state"] == expected


def test_labels_show_every_seed_and_name_the_commonest():
    made = study(labels=lambda seed: {"number": [1] * 12, "letter": [1, 2, 1, 0 if seed else -1] + [0] * 8})
    table = made.tables["labels"].sample(frac=1, random_state=0)
    chart = charts.labels_by_seed(table, "letter")
    is_complete(chart)
    assert chart.title.text == "Letter task: Retrieval, Retrieval², Retrieval, 9 × Reflexive"
    assert chart.title.subtitle == "Commonest function by layer; 99% of the tiles of 8 seeds have it"
    shown = {(int(m["seed"]), int(m["layer"])): m["name"] for m in marks(draw(chart), "rect mark")}
    expected = table[(table["task"] == "letter") & (table["without"] == -1)]
    assert len(shown) == 96
    for row in expected.itertuples():
        assert shown[row.seed, row.layer] == mechanism.function_name("letter", row.function)
    assert sorted(text for text in texts(draw(chart)) if text in ("R²", "?")) == ["?"] + ["R²"] * 8


def test_names_of_functions_are_short_and_runs_joined():
    assert [charts.short_name("number", power) for power in range(-1, 5)] == ["?", "·", "I", "I²", "I³", "I⁴"]
    assert charts.runs("number", [1, 1, 0, -1, 0]) == "2 × Index, Reflexive, other, Reflexive"


@pytest.fixture(scope="module")
def shares():
    """Random shares in the form of the tables ``left``, ``frequencies``, ``causes``, ``kept`` and ``rule``."""
    random = np.random.default_rng(0)

    def table(value, **axes):
        frame = pd.MultiIndex.from_product(axes.values(), names=axes.keys()).to_frame(index=False)
        return frame.assign(**{value: random.random(len(frame)).round(3)}).sample(frac=1, random_state=0)

    tasks, seeds = ["number", "letter"], range(5)
    changed = table("accuracy", task=tasks, seed=seeds, pair=list(cause_charts.CHANGES), layer=range(3), hops=[0, 1, 2])
    changed["change"], changed["places"] = zip(*changed.pop("pair"), strict=True)
    none = changed[changed["layer"] == 0].assign(change="none", layer=-1, accuracy=1.0)
    weightings = ["norm", "energy", "variance", "effect"]
    rule = table("share", seed=seeds, kind=list(cause_charts.KINDS), hops=[1, 2], answer=list(cause_charts.ANSWERS))
    rule["share"] /= rule.groupby(["seed", "kind", "hops"])["share"].transform("sum")
    return {
        "left": table("share", task=tasks, seed=seeds, layer=range(-1, 3), hops=[1, 2], left=range(6)),
        "frequencies": table("dominant", task=tasks, seed=seeds, layer=range(12), head=[0], weighting=weightings),
        "causes": pd.concat([changed, none]),
        "kept": table(
            "accuracy", task=tasks, seed=seeds, instead=["self", "uniform"], order=["greedy", "first", "last"],
            kept=range(4), hops=[0, 1],
        ),
        "rule": rule,
    }  # fmt: skip


def values(table, column, **where):
    for key, value in where.items():
        table = table[table[key] == value]
    return table[column].to_numpy()


@pytest.mark.parametrize("task", ["number", "letter"])
def test_arrivals_are_shares_with_no_hop_left(shares, task):
    chart = charts.arrivals(shares["left"], task)
    is_complete(chart)
    found = marks(draw(chart), "point")
    assert len(found) == 2 * 4
    for mark in found:
        layer, hops = int(mark["layer"].replace("−", "-")), int(mark["class"][0])
        expected = values(shares["left"], "share", task=task, layer=layer, hops=hops, left=0)
        assert float(mark["median"].rstrip("%")) == pytest.approx(100 * np.median(expected), abs=0.06)
        assert float(mark["low"].rstrip("%")) == pytest.approx(100 * expected.min(), abs=0.06)


def test_arrivals_name_the_layer_after_which_the_answer_is_there(shares):
    table = shares["left"].assign(share=0.0)
    table.loc[(table["left"] == 0) & (table["layer"] >= table["hops"]), "share"] = 1.0
    title = charts.arrivals(table, "letter").title.text
    assert title.endswith("last position after layer 1 for 1 hop, after layer 2 for 2 hops")
    assert charts.arrivals(table.assign(share=0.5), "letter").title.text.endswith("for no number of hops")


@pytest.mark.parametrize("weighting", ["energy", "effect"])
def test_dominant_frequencies_show_the_weighting_that_the_menu_picks(shares, weighting):
    chart = charts.dominant_frequencies(shares["frequencies"], "letter")
    is_complete(chart)
    drawn = marks(draw(chart, weighting=weighting), "point")
    theirs = {int(mark["layer"]): int(mark["theirs"]) for mark in drawn if "theirs" in mark}
    assert theirs == dict(enumerate(published("P2.table1.letter").value))
    found = [mark for mark in drawn if "median" in mark]
    assert len(found) == 12
    for mark in found:
        expected = values(
            shares["frequencies"], "dominant", task="letter", layer=int(mark["layer"]), weighting=weighting
        )
        assert float(mark["median"]) == pytest.approx(np.median(expected), abs=0.051)
        assert int(mark["paper"]) == published("P2.table1.letter").value[int(mark["layer"])]
    ends = {int(mark["layer"]): float(mark["median"]) for mark in found}
    said = f"weighted by {weighting}, is {ends[0]:.0f} in layer 0 and {ends[11]:.0f} in the last"
    assert title_of(chart, weighting=weighting).endswith(said)


def test_planes_are_shown_before_and_after_rotation(model):
    table = planes.strongest_planes(model, TASK, one_of_each().tokens)
    chart = charts.plane_by_layer(table, "Queries and keys in a plane")
    is_complete(chart)
    for turned, columns in (("contents, before rotation", ["x", "y"]), (None, ["turned_x", "turned_y"])):
        params = {"layer": 2, "sequence": 3} | ({"turned": turned} if turned else {})
        found = [mark for mark in marks(draw(chart, **params), "point") if mark["who"] == "key"]
        rows = table[(table["layer"] == 2) & (table["sequence"] == 3) & (table["kind"] == "key")]
        scale = (
            table[(table["layer"] == 2) & (table["kind"] == "key")][["x", "y", "turned_x", "turned_y"]]
            .abs()
            .max()
            .max()
        )
        assert len(found) == 17
        for mark in found:
            row = rows[rows["place"] == int(mark["place"])].iloc[0]
            spot = [float(mark[name].replace("−", "-")) for name in (
                "First dimension of the plane (longest = 1)", "Second dimension",
            )]  # fmt: skip
            assert spot == pytest.approx((row[columns] / scale).tolist(), abs=1e-3)
            assert mark["token"] == row["token"] and int(mark["frequency_id"]) == row["frequency_id"]
    strongest = planes.plane_weights(model, one_of_each().tokens)["energy"][0, :, 0].argmax(-1) + 1
    assert table.groupby("layer")["frequency_id"].unique().map(list).tolist() == [[int(k)] for k in strongest]


@pytest.mark.parametrize("task", ["number", "letter"])
def test_functions_over_training_show_the_commonest_and_how_common(task):
    made = study(labels=lambda seed: {name: [1 if seed else 0] * 4 + [0] * 8 for name in ("number", "letter")})
    chart = charts.functions_over_training(made.tables["training"], task)
    is_complete(chart)
    found = {(int(mark["layer"]), int(mark["step"])): mark for mark in marks(draw(chart), "rect mark")}
    name = {"number": "Index", "letter": "Retrieval"}[task]
    assert len(found) == 36 and found[0, 0]["name"] == "other"
    assert (found[0, 1000]["name"], found[0, 1000]["Share of seeds"]) == (name, "0.875")
    assert (found[11, 500]["name"], found[11, 500]["Share of seeds"]) == ("Reflexive", "1")
    assert chart.title.text == f"{task.capitalize()} task: layers end as 4 × {name}, 8 × Reflexive"


def test_onsets_are_counted_and_drawn():
    begun = onsets(study().tables["training"])
    chart = charts.onset_against_purity(begun)
    is_complete(chart)
    assert chart.title.text == "100% of layers have their function before they are pure, 0% at the same evaluation"
    found = marks(draw(chart), "point")
    assert len(found) == 2 * 8 * 12 and {mark["function_since"] for mark in found} == {"500"}


@pytest.mark.parametrize(("chosen", "hops"), [("all", 0), ("2 hops", 2)])
def test_causes_show_the_median_of_every_change(shares, chosen, hops):
    chart = cause_charts.causes(shares["causes"], "number")
    is_complete(chart)
    found = marks(draw(chart, chosen=chosen), "rect mark")
    assert len(found) == 7 * 3
    pairs = {name: pair for pair, name in cause_charts.CHANGES.items()}
    for mark in found:
        change, places = pairs[mark["what"]]
        layer = int(mark.get("layer", mark.get("Layer whose attention is changed")))
        where = dict(task="number", change=change, places=places, layer=layer, hops=hops)
        expected = values(shares["causes"], "accuracy", **where)
        shown = [float(mark[name].rstrip("%")) for name in ("median", "low", "high") if name in mark]
        assert shown[-2:] == pytest.approx([100 * expected.min(), 100 * expected.max()], abs=0.06)


def test_the_title_of_causes_names_the_worst_layer(shares):
    table = shares["causes"].assign(accuracy=1.0)
    table.loc[(table["change"] == "self") & (table["places"] == "all") & (table["layer"] == 1), "accuracy"] = 0.75
    chart = cause_charts.causes(table, "letter")
    assert "stays at 75.0 % or above" in title_of(chart)
    two = table.assign(accuracy=table["accuracy"].where(table["hops"] != 2, 1.0))
    assert title_of(cause_charts.causes(two, "letter"), chosen="2 hops") == (
        "Letter task, 2 hops: with a layer that moves nothing, median accuracy stays at 100.0 %"
    )


@pytest.mark.parametrize("instead", ["self", "uniform"])
def test_kept_layers_show_the_three_orders(shares, instead):
    chart = cause_charts.kept_layers(shares["kept"], "letter", instead)
    is_complete(chart)
    names = {"least needed first": "greedy", "from layer 0 up": "first", "from the top down": "last"}
    found = marks(draw(chart), "point")
    assert len(found) == 3 * 4
    for mark in found:
        order = names[mark.get("left out", mark.get("Layers left out"))]
        kept = int(mark.get("kept", mark.get("Layers that keep their attention")))
        where = dict(task="letter", instead=instead, order=order, kept=kept, hops=0)
        expected = values(shares["kept"], "accuracy", **where)
        assert float(mark["low"].rstrip("%")) == pytest.approx(100 * expected.min(), abs=0.06)
        assert float(mark["high"].rstrip("%")) == pytest.approx(100 * expected.max(), abs=0.06)


def test_the_title_of_kept_layers_counts_those_that_suffice(shares):
    table = shares["kept"].assign(accuracy=(shares["kept"]["kept"] >= 2).astype(float))
    assert "2 well-chosen layers suffice" in cause_charts.kept_layers(table, "number").title.text
    assert "no choice of layers suffices" in cause_charts.kept_layers(table.assign(accuracy=0.5), "number").title.text


@pytest.mark.parametrize(("chosen", "hops"), [("all", [1, 2]), ("2 hops", [2])])
def test_answers_are_means_over_seeds_and_hops(shares, chosen, hops):
    chart = cause_charts.rule_answers(shares["rule"])
    is_complete(chart)
    found = marks(draw(chart, chosen=chosen), "bar")
    assert len(found) == 6 * 4
    kinds = {words: kind for kind, words in cause_charts.KINDS.items()}
    answers = {words: answer for answer, words in cause_charts.ANSWERS.items()}
    for mark in found:
        kind, answer = kinds[mark["case"]], answers[mark["what"]]
        expected = np.mean([values(shares["rule"], "share", kind=kind, answer=answer, hops=h).mean() for h in hops])
        shown = mark.get("share", mark.get("Share of answers, mean over seeds"))
        assert float(shown.rstrip("%")) == pytest.approx(100 * expected, abs=0.6)
    path = np.mean([values(shares["rule"], "share", kind="disagree", answer="path", hops=h).mean() for h in hops])
    assert f"{100 * path:.1f} % of answers follow the path" in title_of(chart, chosen=chosen)
