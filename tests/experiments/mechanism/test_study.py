"""The study's tables, checked against the models that they were measured on."""

import dataclasses

import pandas as pd
import pytest
import torch

from possym.ensembles.planes import dominant_frequency, plane_weights
from possym.ensembles.streams import generator
from possym.experiments import mechanism as study
from possym.experiments import trained as ensembles
from possym.experiments.mechanism import token_flow as mechanism
from possym.experiments.mechanism.interventions import intervention
from possym.experiments.mechanism.token_flow import functions, label
from possym.results.evaluation_steps import evaluation_steps
from possym.tasks import Batch, LetterTask
from possym.tasks.counterfactual import conflicts

torch.set_num_threads(1)  # on models this small, threads mostly wait for each other

TINY = study.Config.preset_named(
    "smoke",
    device="cpu",
    layers=3,
    width=16,
    training_sequences=400,
    steps=40,
    batch=10,
    warmup=4,
    points=3,
    sequences=30,
    changed_sequences=24,
    chosen_sequences=12,
    rule_sequences=9,
    tracked_sequences=12,
    dropout=0.1,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The tiny study's result, and its trained models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(tmp_path_factory.mktemp("results")))
        patch.setenv("POSSYM_CACHE", str(tmp_path_factory.mktemp("cache")))
        found = study.run(TINY)
        device = torch.device("cpu")
        models = {name: ensembles.trained(name, TINY, device) for name in TINY.tasks}
        plain = dataclasses.replace(TINY, dropout=0.0)
        undropped = {name: ensembles.trained(name, plain, device) for name in TINY.tasks}
        yield found, models, undropped


def sets(name):
    return ensembles.held_out(name, TINY, torch.device("cpu"), 30, 24, 12)


def rows(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    return table


def test_tables_hold_every_case_once(made):
    tables = made[0].tables
    keys = {
        "agreement": (["task", "seed", "layer", "where", "power"], 2 * 2 * 3 * 2 * 5),
        "labels": (["task", "seed", "without", "layer"], 2 * 2 * 4 * 3),
        "left": (["task", "seed", "layer", "hops", "left"], 2 * 2 * 4 * 2 * 6),
        "advance": (["task", "seed", "layer", "advance"], 2 * 2 * 3 * 5),
        "frequencies": (["task", "seed", "layer", "head", "weighting"], 2 * 2 * 3 * 4),
        "planes": (["task", "layer", "head", "weighting", "frequency_id"], 2 * 3 * 4 * 8),
        "causes": (["task", "seed", "change", "places", "layer", "hops"], 2 * 2 * (1 + 7 * 3) * 3),
        "kept": (["task", "seed", "instead", "order", "kept", "hops"], 2 * 2 * 2 * 3 * 4 * 3),
        "left_out": (["task", "seed", "instead", "step"], 2 * 2 * 2 * 3),
        "rule": (["seed", "kind", "hops", "answer"], 2 * 6 * 2 * 4),
        "training": (["task", "seed", "step", "layer"], 2 * 2 * 3 * 3),
        "progress": (["task", "seed", "step", "hops"], 2 * 2 * 3 * 3),
        "undropped_labels": (["task", "seed", "without", "layer"], 2 * 2 * 4 * 3),
        "undropped_accuracy": (["task", "seed", "without", "hops"], 2 * 2 * 4 * 3),
        "timing": (["task", "phase"], 8 + 9),
    }
    assert set(tables) == set(keys)
    for name, (columns, count) in keys.items():
        assert not tables[name].duplicated(columns).any() and len(tables[name]) == count, name
        assert not tables[name].isna().any(axis=None), name
    assert made[0].manifest["seeds"] == [0, 1]


@pytest.mark.parametrize("name", ["number", "letter"])
def test_flow_is_that_of_the_trained_models(made, name):
    tables, models, undropped = made[0].tables, made[1], made[2]
    whole, part, _ = sets(name)
    task = ensembles.task_named(name)
    found = functions(models[name], task, whole)
    for seed in (0, 1):
        for where in ("path", "last"):
            shares = rows(tables["agreement"], task=name, seed=seed, where=where).sort_values(["layer", "power"])
            assert shares["share"].tolist() == pytest.approx(found[where][seed].flatten().tolist(), abs=1e-5)
        stored = rows(tables["left"], task=name, seed=seed).sort_values(["layer", "hops", "left"])["share"]
        assert stored.tolist() == pytest.approx(found["left"][seed, :, :2].flatten().tolist(), abs=1e-5)
        for table, model in (("labels", models[name]), ("undropped_labels", undropped[name])):
            expected = label(functions(model, task, part, 1)["path"])[seed].tolist()
            labels = rows(tables[table], task=name, seed=seed, without=1).sort_values("layer")
            assert labels["function"].tolist() == expected and expected[1] == 0
    start = rows(tables["left"], layer=-1)
    assert (start.loc[start["left"] == start["hops"], "share"] == 1).all()


@pytest.mark.parametrize("name", ["number", "letter"])
def test_accuracies_are_those_of_the_changed_models(made, name):
    tables, model = made[0].tables, made[1][name]
    _, batch, _ = sets(name)

    def accuracy(seed, hops, attend):
        with torch.no_grad():
            right = (model(batch.tokens, attend=attend).argmax(-1) == batch.answer)[seed]
        return right[batch.hops[seed] == hops].float().mean().item()

    causes = rows(tables["causes"], task=name)
    for seed, hops in ((0, 1), (1, 2)):
        for change, places, layer in (("exchanged", "all", 0), ("self", "others", 1), ("ahead", "all", 2)):
            cell = rows(causes, change=change, places=places, layer=layer, seed=seed, hops=hops)["accuracy"].item()
            changed = accuracy(seed, hops, intervention(model, batch, layer, change, places))
            assert cell == pytest.approx(changed, abs=1e-5)
        none = rows(causes, change="none", seed=seed, hops=hops)["accuracy"].item()
        assert none == pytest.approx(accuracy(seed, hops, None), abs=1e-5)
        kept = rows(tables["kept"], task=name, seed=seed, hops=hops)
        assert rows(kept, kept=3)["accuracy"].tolist() == [pytest.approx(none)] * 6
        for instead in ("self", "uniform"):
            for order, layer in (("first", 0), ("last", 2)):
                one = rows(kept, kept=2, instead=instead, order=order)["accuracy"].item()
                cause = rows(causes, change=instead, places="all", layer=layer, seed=seed, hops=hops)
                assert one == cause["accuracy"].item()
    order = rows(tables["left_out"], task=name, seed=0, instead="self").sort_values("step")["layer"]
    assert sorted(order) == [0, 1, 2]


def test_planes_are_weighed_on_the_trained_models(made):
    tables, models = made[0].tables, made[1]
    for name in TINY.tasks:
        source = generator(0, "held-out")
        tokens = ensembles.draw(ensembles.task_named(name), 40, TINY.hops, source).tokens
        weights = plane_weights(models[name], tokens)["variance"]
        stored = rows(tables["frequencies"], task=name, weighting="variance", seed=1).sort_values("layer")
        assert stored["dominant"].tolist() == pytest.approx(dominant_frequency(weights)[1, :, 0].tolist(), rel=1e-4)
        assert stored["strongest"].tolist() == (weights[1, :, 0].argmax(-1) + 1).tolist()
    total = tables["planes"].groupby(["task", "layer", "head", "weighting"])["share"].sum()
    assert total.to_numpy() == pytest.approx(1, abs=1e-3)


def test_answers_to_counterfactual_sequences_are_told_apart(made):
    """A model that always names the rule's target, or the path's, is found out."""

    class Fixed:
        """Answers with given tokens."""

        def __init__(self, model, answers):
            self.members, self.config, self.answers = model.members, model.config, answers
            self.parameters = model.parameters

        def __call__(self, tokens):
            return torch.nn.functional.one_hot(self.answers(tokens), 128).float()

    model, task = made[1]["letter"], LetterTask()
    source = generator(0, "held-out")
    known = {}
    for kind in study.KINDS:
        for hops in TINY.hops:
            batch, rule = conflicts(9, kind, hops=hops, generator=source)
            named = batch.tokens.gather(1, rule.clamp(min=0)[:, None])[:, 0]
            known |= {
                tuple(row.tolist()): (answer.item(), token.item())
                for row, answer, token in zip(batch.tokens, batch.answer, named, strict=True)
            }
            if kind in ("drawn", "decoys"):
                assert torch.equal(task.solve(batch.tokens), batch.answer)

    def pick(which):
        return lambda tokens: torch.tensor([[known[tuple(row)][which] for row in rows] for rows in tokens.tolist()])

    shares = study.try_rule(Fixed(model, pick(0)), TINY)["rule"]
    assert (rows(shares, answer="path")["share"] == 1).all()
    shares = study.try_rule(Fixed(model, pick(1)), TINY)["rule"].groupby(["kind", "answer"])["share"].mean()
    for kind in ("decoys", "disagree", "cut-disagree"):
        assert shares[kind, "rule"] == 1
    assert shares["drawn", "path"] == 1 and shares["cut", "path"] == 1
    shares = study.try_rule(Fixed(model, lambda tokens: tokens[..., -1]), TINY)["rule"]
    assert (rows(shares, answer="other")["share"] == 1).all()
    stored = made[0].tables["rule"].groupby(["seed", "kind", "hops"])["share"].sum()
    assert stored.to_numpy() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("name", ["number", "letter"])
def test_the_last_point_of_training_is_the_trained_model(made, name):
    tables, model = made[0].tables, made[1][name]
    (batch,) = ensembles.held_out(name, TINY, torch.device("cpu"), 12)
    points = evaluation_steps(40, 3)
    training, progress = (rows(tables[table], task=name) for table in ("training", "progress"))
    assert sorted(training["step"].unique()) == sorted(progress["step"].unique()) == points
    found = label(functions(model, ensembles.task_named(name), batch)["path"])
    end = rows(training, step=40).sort_values(["seed", "layer"])
    assert end["function"].tolist() == found.flatten().tolist()
    with torch.no_grad():
        right = (model(batch.tokens).argmax(-1) == batch.answer).float().mean(1)
    stored = rows(progress, step=40, hops=0).sort_values("seed")["accuracy"].tolist()
    assert stored == pytest.approx(right.tolist(), abs=1e-5)


def test_the_memory_that_a_piece_may_take_changes_nothing(made, monkeypatch):
    model = made[1]["letter"]
    _, batch, _ = sets("letter")
    whole = {**study.change_attention(model, TINY, batch), **study.weigh_planes("letter", model, TINY)}
    monkeypatch.setattr(ensembles, "MEMORY", 600_000)
    monkeypatch.setattr(mechanism, "MEMORY", 600_000)
    assert len(list(study.parts(model, batch))) > 3
    # Another sequence's attention depends on who is in the piece, all else on the sequence alone.
    pieces = {**study.change_attention(model, TINY, batch), **study.weigh_planes("letter", model, TINY)}
    for name, table in whole.items():
        same = table["change"] != "exchanged" if name == "causes" else slice(None)
        pd.testing.assert_frame_equal(table[same], pieces[name][same], atol=2e-3, rtol=0)


def test_batches_keep_their_fields(made):
    _, batch, _ = sets("number")
    joined = [torch.cat(columns, 1) for columns in zip(*study.parts(made[1]["number"], batch), strict=True)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(joined, Batch(*batch), strict=True))
