"""Summaries and sentences of language models against plain loops over small random tables."""

import itertools
import math
import re
from statistics import mean, median

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from possym.experiments.language_models import summaries

from ...claims.stored_numbers import figures

ENCODINGS, SEEDS, STEPS, HEADS = (
    ("rope", "nope", "slow_half_still"),
    range(3),
    (0, 10, 20),
    [(0, 0), (0, 1), (1, 0), (1, 1)],
)
DISTANCES = (4, 16, 64, 128, 256)
MAIN = {"encoding": "rope", "width": 512, "corpus": "source"}
RANDOM = np.random.default_rng(0)


def table(columns, rows):
    made = pd.DataFrame(rows, columns=columns.split())
    return made.sample(frac=1, random_state=0, ignore_index=True)


def rows_of(made, **asked):
    """The rows that have these values, as dictionaries."""
    return [row for row in made.to_dict("records") if all(row[name] == value for name, value in asked.items())]


MODELS = [(name, 512, "source", seed) for name in ENCODINGS for seed in SEEDS] + [("rope", 256, "code", 0)]


@pytest.fixture(scope="module")
def tables():
    scores, planes = [], []
    for model, step, head in itertools.product(MODELS, STEPS, HEADS):
        for text, weighting in (("held out", "relative"), ("held out", "absolute"), ("random", "relative")):
            scores.append((*model, step, *head, text, weighting, *RANDOM.random(2).round(2), RANDOM.random()))
        planes += [(*model, step, *head, k, *RANDOM.random(3)) for k in range(1, 7)]
    at = "encoding width corpus seed"
    jobs = [(*m, step, *head, *(0.8 * RANDOM.random(2))) for m, step, head in itertools.product(MODELS, STEPS, HEADS)]
    without = []
    for model, distance in itertools.product(MODELS[:-1], DISTANCES):
        without.append((*model, -1, -1, "none", 0, distance, 3.0 + RANDOM.random(), 9.0))
        without += [(*model, *head, "head", 0, distance, 3.5 + RANDOM.random(), 9.0) for head in HEADS]
        groups = ("symbolic quarter", "positional quarter", "as many as symbolic")
        without += [(*model, -1, -1, g, k, distance, 4 + RANDOM.random(), 9.5) for g in groups for k in range(2)]
    reach = [
        (*model, way, length, 1 + 0.6 * place * RANDOM.random())
        for model, way in itertools.product(MODELS[:-1], ("measured", "relocated", "gap", "more keys"))
        for place, length in enumerate((512, 1024, 2048, 4096))
    ]
    return {
        "scores": table(f"{at} step layer head text weighting positional symbolic entropy", scores),
        "planes": table(f"{at} step layer head frequency_id norm positional symbolic", planes),
        "jobs": table(f"{at} step layer head previous_token induction", jobs),
        "without": table(f"{at} layer head group draw distance planted absent", without),
        "reach": table(f"{at} way length loss", reach),
        "loss": table(
            f"{at} step loss", [(*m, step, 5 * RANDOM.random()) for m, step in itertools.product(MODELS, STEPS)]
        ),
        "corpora": pd.DataFrame({"corpus": ["code", "source"], "unigram": [6.5, 7.25]}),
        "timing": pd.DataFrame(MODELS, columns=at.split()).assign(
            tokens=16_384_000, parameters=30_000_000, device="cpu", seconds=lambda t: 100.0 + t.index**2
        ),
    }


def last_leads(tables, **model):
    rows = rows_of(tables["scores"], step=20, text="held out", weighting="relative", **model)
    return {(row["layer"], row["head"]): row["positional"] - row["symbolic"] for row in rows}


def test_correlations_agreement_and_planes_are_scipys(tables):
    scores = tables["scores"]
    found = summaries.correlations(summaries.held_out(scores))
    assert len(found) == len(MODELS) * 3
    for row in found.iloc[::3].to_dict("records"):
        asked = {name: row[name] for name in (*summaries.KEYS, "step")}
        same = rows_of(scores, text="held out", weighting="relative", **asked)
        expected = stats.pearsonr([r["positional"] for r in same], [r["symbolic"] for r in same]).statistic
        assert row["r"] == pytest.approx(expected)
    for row in summaries.agreement(scores, "random").to_dict("records"):
        model = {name: row[name] for name in summaries.KEYS}
        held = last_leads(tables, **model)
        other = rows_of(scores, step=20, text="random", weighting="relative", **model)
        other = {(r["layer"], r["head"]): r["positional"] - r["symbolic"] for r in other}
        expected = stats.spearmanr([held[head] for head in HEADS], [other[head] for head in HEADS]).statistic
        assert row["agreement"] == pytest.approx(expected)
    for row in summaries.plane_trend(tables["planes"]).to_dict("records"):
        model, large = {name: row[name] for name in summaries.KEYS}, []
        for layer, head in HEADS:
            own = rows_of(tables["planes"], step=20, layer=layer, head=head, **model)
            large += [r for r in own if r["norm"] > median(each["norm"] for each in own)]
        leads = [r["positional"] - r["symbolic"] for r in large]
        assert row["trend"] == pytest.approx(stats.spearmanr([r["frequency_id"] for r in large], leads).statistic)


def test_recall_is_shared_out_over_heads(tables):
    lost = summaries.recall_lost(tables["without"])
    scores = summaries.held_out(tables["scores"])
    carriers = summaries.recall_carriers(lost, scores)
    shares = summaries.share_by_kind(lost, scores)
    turns = summaries.turn_symbolic(shares).set_index(summaries.KEYS)["turn"]
    quarters = summaries.quarter_lost(lost)
    assert len(carriers) == 9 * 4 and len(shares) == 9 * 5 and carriers["carrier"].nunique() == 2
    for name, seed in itertools.product(ENCODINGS[:2], SEEDS[:2]):
        model = {**MAIN, "encoding": name, "seed": seed}
        gain = {(r["group"], r["layer"], r["head"], r["draw"], r["distance"]): r["absent"] - r["planted"]
                for r in rows_of(tables["without"], **model)}  # fmt: skip
        saved = {d: gain["none", -1, -1, 0, d] for d in DISTANCES}
        taken = {(head, d): saved[d] - gain["head", *head, 0, d] for head in HEADS for d in DISTANCES}
        leads = last_leads(tables, **model)
        for row in rows_of(carriers, **model):
            head = row["layer"], row["head"]
            share = sum(taken[head, d] for d in DISTANCES) / sum(saved.values())
            assert row["share"] == pytest.approx(share) and row["lead"] == pytest.approx(leads[head])
            assert row["carrier"] == (share >= 0.1)
        order = sorted(HEADS, key=leads.get)  # four heads: the first is the most symbolic quarter
        more = {}
        for row in rows_of(shares, **model):
            d = row["distance"]
            assert row["saved"] == pytest.approx(saved[d])
            assert row["symbolic"] == pytest.approx(taken[order[0], d])
            assert row["positional"] == pytest.approx(taken[order[-1], d])
            more[d] = taken[order[0], d] - taken[order[-1], d]
        near, far = DISTANCES[:2], DISTANCES[-2:]
        near, far = (sum(more[d] for d in side) / sum(saved[d] for d in side) for side in (near, far))
        assert turns[name, 512, "source", seed] == pytest.approx(far - near)
        for row in rows_of(quarters, **model):
            values = [saved[d] - gain[row["group"], -1, -1, k, d] for d in DISTANCES for k in range(2)]
            assert row["lost"] == pytest.approx(mean(values))
    for saved in (-1.0, 0.0):
        assert summaries.recall_carriers(lost.assign(saved=saved), scores)["share"].isna().all()


def fails(lengths, losses):
    """Where the loss has risen by 0.5, on a fine grid of log length."""
    grid = np.linspace(math.log(lengths[0]), math.log(lengths[-1]), 400_001)
    above = np.interp(grid, np.log(lengths), losses) >= losses[0] + 0.5
    return math.exp(grid[above.argmax()]) if above.any() else lengths[-1]


def test_failing_lengths_and_forecasts_are_told_in_powers_of_two(tables):
    lengths = summaries.failing_lengths(tables["reach"])
    errors = summaries.forecast_errors(lengths, 512)
    rises = summaries.rises(tables["reach"])
    known = {}
    for row in lengths.to_dict("records"):
        model = {name: row[name] for name in summaries.KEYS}
        (rise,) = rows_of(rises, **model)
        for way in ("measured", "relocated", "gap", "more keys"):
            curve = sorted((r["length"], r["loss"]) for r in rows_of(tables["reach"], way=way, **model))
            assert row[way] == pytest.approx(fails(*zip(*curve, strict=True)), rel=1e-4)
            assert rise[way] == pytest.approx(curve[-1][1] - curve[0][1])
            known[row["encoding"], row["seed"], way] = math.log2(row[way])
    for row in errors.to_dict("records"):
        name, seed = row["encoding"], row["seed"]
        told = known[name, seed, "measured"]
        others = mean(known[other, seed, "measured"] for other in ENCODINGS if other != name)
        assert row["forecast"] == pytest.approx(abs(known[name, seed, "relocated"] - told))
        assert row["at once"] == pytest.approx(abs(9 - told)) and row["others"] == pytest.approx(abs(others - told))
    shown = summaries.failing_table(tables["reach"])
    ways = {"measured": "measured", "forecast": "relocated", "new angles alone": "gap", "more keys alone": "more keys"}
    for (name, column), way in itertools.product(itertools.product(ENCODINGS, ways), ways.values()):
        if ways[column] == way:
            expected = median(2 ** known[name, seed, way] for seed in SEEDS)
            assert shown.loc[summaries.ENCODING_NAMES[name], column] == round(expected)


def test_models_are_told_in_words(tables):
    ends = [row["loss"] for row in rows_of(tables["loss"], step=20, width=512, corpus="source")]
    told = ["10", "3", "3", "1", "16", "9", "30", f"{min(ends):.2f}", f"{max(ends):.2f}", "7.25"]
    assert figures(summaries.models_in_words(tables)) == told
    shown = summaries.model_table(tables)
    kinds = [
        ("nope", 512, "source"),
        ("rope", 256, "code"),
        ("rope", 512, "source"),
        ("slow_half_still", 512, "source"),
    ]
    assert len(shown) == len(kinds)
    for (name, width, corpus), (label, row) in zip(kinds, shown.iterrows(), strict=True):
        assert label == f"{summaries.ENCODING_NAMES[name]}; {width}; {corpus}"
        seeds = [model[3] for model in MODELS if model[:3] == (name, width, corpus)]
        models = [dict(encoding=name, width=width, corpus=corpus, seed=seed) for seed in seeds]
        leads = [[*last_leads(tables, **model).values()] for model in models]
        doing = [rows_of(tables["jobs"], step=20, **model) for model in models]
        expected = {
            "positional": [sum(lead >= 0.5 for lead in each) for each in leads],
            "symbolic": [sum(lead <= -0.5 for lead in each) for each in leads],
            "previous token": [sum(head["previous_token"] >= 0.3 for head in each) for each in doing],
            "induction": [sum(head["induction"] >= 0.3 for head in each) for each in doing],
        }
        assert {column: row[column] for column in expected} == {c: int(median(v)) for c, v in expected.items()}
        loss = median(rows_of(tables["loss"], step=20, **model)[0]["loss"] for model in models)
        assert row["loss"] == round(loss, 2) and row["seeds"] == len(seeds)


def test_costs_are_told_beside_the_cards_floor_where_it_is_the_same_card(tables):
    assert summaries.cost_in_words(tables) == (
        "10 models on cpu, several at once on one device: 116 s each (median, width 512), evaluations included."
    )
    same = {"timing": tables["timing"].assign(device="NVIDIA H200")}
    said = summaries.cost_in_words(same)
    # 500 updates of 32,768 tokens at 42.4 a second; 6 · 30 million · 16,384,000 operations at 717.4 · 10¹² a second.
    assert f" makes 42.4 updates a second, {500 / 42.4:.0f} s without" in said
    assert f"would take {6 * 30e6 * 16_384_000 / 717.4e12:.0f} s at the card's measured 717 TFLOP/s (host: " in said


def wave(**ends):
    """Scores and jobs of one encoding: heads clearly positional at update 10, and what they end as."""
    scores, jobs = [], []
    for seed, (number, end) in itertools.product(range(2), enumerate(ends.values())):
        for step, lead in ((0, 0.0), (10, end[0]), (20, end[1])):
            at = {**MAIN, "seed": seed, "step": step, "layer": number, "head": 0}
            entropy = {0: 3.0, 10: 1.0 + number, 20: 9.0}[step]
            both = dict(positional=0.5 + lead / 2, symbolic=0.5 - lead / 2, entropy=entropy)
            scores.append({**at, "text": "held out", "weighting": "relative", **both})
            jobs.append({**at, "previous_token": 0.0, "induction": end[2] * (step == 20)})
    return pd.DataFrame(scores), pd.DataFrame(jobs)


def test_the_first_wave_is_told_with_what_becomes_of_it():
    said = summaries.wave_in_words(
        *wave(stays=(0.5, 0.5, 0.0), turns=(0.5, -0.5, 0.3), fades=(0.5, 0.49, 0.29), late=(0.49, 0.5, 0.3),
              early=(-0.5, -0.49, 0.3), last=(-0.49, -0.49, 0.3))
    )  # fmt: skip
    # the wave's update, its heads of all, their entropy and that at the start, ...
    assert figures(said) == ["10", "6", "12", "2.00", "3.00", "2", "2", "4", "8", "2", "10"]
    doing = wave(all=(-0.5, 0.5, 0.3))
    doing[1]["induction"] = 0.3  # from the start on: there was no update before
    assert "10: 2 of" not in (told := summaries.wave_in_words(*doing)) and figures(told)[-1] == "0"
    assert summaries.wave_in_words(*wave(none=(0.49, 0.4, 0.0))) == "No head is clearly positional at any update."


def carried(*heads):
    """Heads of two seeds: attention to the token before, induction, and the share of recall that each carries."""
    without, scores, jobs = [], [], []
    for seed in range(2):
        at = {**MAIN, "seed": seed}
        without.append({**at, "group": "none", "layer": -1, "head": -1, "distance": 4, "planted": 5.0, "absent": 9.0})
        for number, (before, induction, share) in enumerate(heads):
            own = {**at, "layer": 0, "head": number}
            without.append({**own, "group": "head", "distance": 4, "planted": 5.0 + 4 * share, "absent": 9.0})
            scores.append(
                {**own, "step": 9, "text": "held out", "weighting": "relative", "positional": 1.0, "symbolic": 0.0}
            )
            jobs.append({**own, "step": 9, "previous_token": before + 0.01 * seed, "induction": induction})
    return pd.DataFrame(without), pd.DataFrame(scores), pd.DataFrame(jobs)


def test_carriers_are_told_by_their_jobs():
    heads = [
        (0.9, 0.0, 0.125),
        (0.8, 0.0, 0.125),
        (0.5, 0.0, 0.0),
        (0.3, 0.0, 0.0625),
        (0.0, 0.3, 0.5),
        (0.0, 0.29, 0.5),
    ]
    first = ["2", "2", "8", "4"]
    told = figures(summaries.carriers_in_words(*carried(*heads)))
    assert told[:4] == first and told[-3:] == ["2", "0.80", "0.51"]
    mixed = [*heads[:2], (0.8, 0.0, 0.0), *heads[3:]]
    assert figures(summaries.carriers_in_words(*carried(*mixed))) == first
    without, scores, jobs = carried(*heads)
    none = (without["seed"] == 1) & (without["head"] == 1)
    without.loc[none, "planted"] = 5.0
    jobs.loc[(jobs["seed"] == 1) & (jobs["head"] == 1), "previous_token"] = 0.6
    told = figures(summaries.carriers_in_words(without, scores, jobs))
    assert told[3] == "3" and told[-4:] == ["1", "2", "0.80", "0.60"]


def test_positional_heads_lean_on_planes_that_are_counted(tables):
    strongest = summaries.strongest_planes(tables["scores"], tables["planes"])
    told = summaries.planes_in_words(tables["scores"], tables["planes"])
    parts = {
        name: figures(part) for part in told.split(";") for name in ("RoPE", "the slow half stopped") if name in part
    }
    count = 0
    for encoding, name in {"rope": "RoPE", "slow_half_still": "the slow half stopped"}.items():
        ids = []
        for model in (m for m in MODELS if m[0] == encoding):
            model = dict(zip(summaries.KEYS, model, strict=True))
            for (layer, head), lead in last_leads(tables, **model).items():
                if lead >= 0.5:
                    own = rows_of(tables["planes"], step=20, layer=layer, head=head, **model)
                    ids.append(max(own, key=lambda row: row["norm"])["frequency_id"])
        count += len(ids)
        assert sorted(strongest.loc[strongest["encoding"] == encoding, "frequency_id"]) == sorted(ids)
        if ids:
            *most, there, total = map(int, re.sub(r"(?<=\d),(?=\d)", " ", " ".join(parts[name])).split())
            assert most == sorted(most) and len(most) == min(3, len(set(ids))) and total == len(ids)
            assert there == sum(k in most for k in ids) == sum(sorted(map(ids.count, {*ids}))[-3:])
    assert count and len(strongest[strongest["encoding"] != "nope"]) == count
    none = tables["scores"].assign(positional=0.0)
    assert summaries.planes_in_words(none, tables["planes"]) == "No head is clearly positional at the end."


def test_tables_are_cut_to_one_kind_of_models_and_one_seed(tables):
    found = summaries.models_of(tables, "rope", 256, "code")
    assert "corpora" not in found and found.keys() == tables.keys() - {"corpora"}
    assert all(
        len(found[name]) == len(rows_of(tables[name], encoding="rope", width=256, corpus="code")) for name in found
    )
    one = summaries.seed_of(summaries.models_of(tables, "nope", 512, "source"), 1)
    assert all(len(one[name]) == len(rows_of(tables[name], encoding="nope", seed=1)) for name in one)
    assert len(one["scores"]) == 3 * 4 * 3


def test_heads_of_real_models_have_scores_on_text_and_mean_attention():
    keys = [("m", layer, head) for layer, head in HEADS]
    text = table("model layer head material positional symbolic",
                 [(*key, words, *RANDOM.random(2)) for key in keys for words in ("natural text", "other")])  # fmt: skip
    atlas = table("model layer head definition prompts value",
                  [(*key, name, prompts, RANDOM.random()) for key in keys for prompts in range(3)
                   for name in ("previous_token", "induction", "recent")])  # fmt: skip
    found = summaries.real_heads({"atlas_scores": text, "atlas": atlas})
    assert len(found) == 4 and "recent" not in found
    for row in found.to_dict("records"):
        at = {name: row[name] for name in ("model", "layer", "head")}
        (own,) = rows_of(text, material="natural text", **at)
        assert (row["positional"], row["symbolic"]) == (own["positional"], own["symbolic"])
        for name in ("previous_token", "induction"):
            assert row[name] == pytest.approx(mean(r["value"] for r in rows_of(atlas, definition=name, **at)))
