import dataclasses
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch

from possym import InputError, results
from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.streams import generator
from possym.experiments import learning_dynamics as study
from possym.experiments import trained as ensembles
from possym.rope import rotate
from possym.tasks import Batch, LetterTask, NumberTask

from ..stores import interrupt, same_tables, smoke_run

torch.set_num_threads(1)  # on models this small, threads mostly wait for each other

SMALL = dict(
    width=16, training_sequences=120, validation_sequences=20, test_sequences=20, scored_sequences=6, steps=30, batch=4,
    warmup=3,
)  # fmt: skip
TINY = study.Config.preset_named("smoke", device="cpu", points=3, **SMALL)
ALONE = dataclasses.replace(TINY, other_rates=(), other_rules=())


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The smoke preset's result after fewer steps of smaller models, which learn nothing yet."""
    yield from smoke_run(study, tmp_path_factory, **SMALL)


def test_tables_hold_every_point_and_member_once(small):
    config, result = small
    tables = result.tables
    added = {"variants", "rate_accuracy", "rate_scores", "best"}
    added |= {f"rule_{table}" for table in ("accuracy", "scores", "heads", "best")}
    assert set(tables) == {"accuracy", "scores", "heads", "training", "timing"} | added
    keys = {
        "accuracy": ["task", "seed", "step", "split", "hops"],
        "scores": ["task", "seed", "step", "layer", "head"],
        "heads": ["task", "seed", "layer", "head", "gamma"],
        "training": ["task", "seed", "step"],
        "timing": ["task", "learning_rate", "phase"],
        "variants": ["task", "seed", "step", "layer", "head", "query", "temperature"],
        "rate_accuracy": ["task", "learning_rate", "seed", "step", "split", "hops"],
        "rate_scores": ["task", "learning_rate", "seed", "step", "layer", "head"],
        "best": ["task", "seed", "hops"],
    }
    keys |= {f"rule_{table}": keys[table] for table in ("accuracy", "scores", "heads", "best")}
    groups = 2 * config.members
    rows = {
        "accuracy": groups * (config.points + 1) * (1 + len(config.hops)),
        "scores": groups * config.points * config.layers * config.heads,
        "heads": groups * config.layers * config.heads * 2,
        "training": groups * config.steps // study.WINDOW,
        "timing": (2 * 2 + 1) * 4,
        "best": groups * (1 + len(config.hops)),
        "variants": groups * 3 * config.layers * config.heads * 3 * len(config.temperatures),
        "rate_accuracy": 2 * (config.points // 4 + 1) * (1 + len(config.hops)),
        "rate_scores": 2 * (config.points // 4) * config.layers * config.heads,
    }
    members = config.of_rule().members
    rows |= {f"rule_{table}": rows[table] * members // groups for table in ("accuracy", "scores", "heads", "best")}
    for name, table in tables.items():
        assert not table.duplicated(keys[name]).any() and len(table) == rows[name], name
        assert not table.isna().any(axis=None), name
    counts = tables["accuracy"].groupby("split")["count"].max()
    assert counts["validation"] == config.validation_sequences and counts["test"] == config.test_sequences
    assert result.manifest["seeds"] == config.seeds()


def test_the_whole_accuracy_is_the_mean_over_hops(small):
    accuracy = small[1].tables["accuracy"].set_index(["task", "seed", "split", "step", "hops"])[["accuracy", "loss"]]
    whole = accuracy.xs(0, level="hops")
    by_hops = accuracy.drop(0, level="hops").groupby(["task", "seed", "split", "step"]).mean()
    pd.testing.assert_frame_equal(whole.sort_index(), by_hops.sort_index(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("member", [0, 1])
def test_the_stored_models_are_those_that_were_tested(small, member):
    config, result = small
    for name, task in (("number", NumberTask()), ("letter", LetterTask())):
        model = study.trained_model(result, config, name, member)
        sizes = config.validation_sequences, config.test_sequences
        test = ensembles.held_out(name, config, torch.device("cpu"), *sizes)[1]
        test = Batch(*(field[member] for field in test))
        logits = model(test.tokens)[0]
        measured = {
            "accuracy": (logits.argmax(-1) == test.answer).float().mean().item(),
            "loss": torch.nn.functional.cross_entropy(logits, test.answer).item(),
        }
        table = result.tables["accuracy"]
        stored = table[
            (table["task"] == name) & (table["seed"] == member) & (table["split"] == "test") & (table["hops"] == 0)
        ]
        assert stored[[*measured]].iloc[0].to_dict() == pytest.approx(measured, abs=5e-4)
        assert (task.solve(test.tokens) == test.answer).all()


def test_the_best_weights_are_tested_where_validation_was_highest(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path))
    table = study.run(ALONE).tables["best"].set_index(["task", "seed", "hops"])
    for name in ALONE.tasks:
        model = ensembles.trained(name, ALONE, torch.device("cpu"), "best")
        sizes = ALONE.validation_sequences, ALONE.test_sequences
        test = ensembles.held_out(name, ALONE, torch.device("cpu"), *sizes)[1]
        right = model(test.tokens).argmax(-1) == test.answer
        for member, hops in ((0, 0), (1, 0), (1, 2)):
            chosen = right[member] if hops == 0 else right[member, test.hops[member] == hops]
            row = table.loc[name, member, hops]
            assert row["accuracy"] == pytest.approx(chosen.double().mean().item(), abs=1e-4)
            assert row["count"] == len(chosen) and row["step"] in ALONE.validation_steps()


def test_the_other_rule_is_another_task_of_the_same_seeds(small):
    config, result = small
    for table in ("accuracy", "scores", "heads", "best"):
        found = result.tables[f"rule_{table}"]
        assert set(found["task"]) == {"letter_any"} and set(found["seed"]) == set(config.of_rule().seeds())
        assert set(found) == set(result.tables[table])
    start = result.tables["rule_scores"].query("step == 0")
    published = result.tables["scores"].query("step == 0 and task == 'letter' and seed in @start.seed")
    assert (start["positional"].to_numpy() - published["positional"].to_numpy()).any()


def test_members_are_the_seeds_whatever_their_number(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    both = study.run(ALONE).tables["training"]
    second = study.run(dataclasses.replace(ALONE, members=1, seed=1)).tables["training"]
    both = both[both["seed"] == 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(both, second, atol=2e-5, rtol=0)


def test_an_interrupted_study_ends_with_the_same_result(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "whole"))
    whole = study.run(TINY)
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "stopped"))
    calls = itertools.count(1)
    interrupt(study, TINY, "score_heads", lambda *_: next(calls) == 5)  # in the second task
    resumed = study.run(TINY)
    same_tables(whole, resumed)
    for name, array in whole.arrays.items():
        assert torch.equal(array, resumed.arrays[name]), name


@pytest.mark.parametrize("temperature", [1e-4, 0.1])
def test_scores_are_those_of_permuting_the_keys(temperature):
    config = GPTJConfig(136, layers=2, heads=2, width=16, init_std=0.4)
    model = GPTJEnsemble(config, [0, 1])
    tokens = NumberTask().sample(5).tokens
    scores = study.score_heads(model, tokens, temperature)
    with torch.no_grad():
        queries, keys, _ = (each.double() for each in model.trace(tokens))
    places = torch.arange(17)
    turned = rotate(queries, 16, config.frequencies, "interleaved") / math.sqrt(config.head_width)

    def attention(contents):
        return (rotate(contents, places, config.frequencies, "interleaved") @ turned[..., None])[..., 0].softmax(-1)

    before = attention(keys)
    positional, symbolic, gaps = [], [], []
    for i in range(16):
        for j in range(i + 1, 16):
            order = torch.arange(17)
            order[i], order[j] = j, i
            after = attention(keys[..., order, :])
            v, w = (torch.stack([x[..., i], x[..., j]], -1) for x in (before, after))
            v, w = v / v.amax(-1, keepdim=True), w / w.amax(-1, keepdim=True)
            norm = v.norm(dim=-1) * w.norm(dim=-1)
            positional.append((v * w).sum(-1) / norm)
            symbolic.append((v * w.flip(-1)).sum(-1) / norm)
            gaps.append((before[..., i] - before[..., j]).abs())
    weight = (torch.stack(gaps, -1) / temperature).softmax(-1)
    each = {
        "positional": (weight * torch.stack(positional, -1)).sum(-1),
        "symbolic": (weight * torch.stack(symbolic, -1)).sum(-1),
        "entropy": -(before * before.log()).sum(-1),
    }
    tolerance = 1e-5 if temperature > 0.01 else 5e-4
    for name, value in each.items():  # (E, L, B, H)
        torch.testing.assert_close(scores[name].double(), value.mean(2), atol=tolerance, rtol=0, msg=name)
    for name in ("positional", "symbolic"):
        spread = each[name].std(2, correction=0)
        torch.testing.assert_close(scores[f"{name}_sd"].double(), spread, atol=tolerance, rtol=0)


def test_working_in_pieces_changes_nothing(monkeypatch):
    model = GPTJEnsemble(GPTJConfig(136, layers=2, width=16, init_std=0.4), [0, 1])
    batch = ensembles.stack([NumberTask().sample(11), NumberTask().sample(11, generator=generator(5, "data"))])

    def measure():
        scores = study.score_heads(model, batch.tokens[0], 1e-4)
        return scores | ensembles.accuracy_by_hops(model, batch, (1, 2, 3, 4))

    whole = measure()
    monkeypatch.setattr(ensembles, "MEMORY", 1_500_000)
    assert len(list(ensembles.memory_chunks(batch.tokens, 400_000))) == 4
    for name, value in measure().items():
        torch.testing.assert_close(value, whole[name], atol=1e-5, rtol=0, msg=name)


def test_accuracy_by_hops_counts_right_answers():
    class Oracle:
        """Right on the first member, right only on one hop on the second."""

        members, config = 2, GPTJConfig(136, layers=1, width=2)

        def __call__(self, tokens, dtype):
            right = torch.nn.functional.one_hot(NumberTask().solve(tokens.flatten(0, 1)), 136).view(2, -1, 136).float()
            right[1] *= (hops[1] == 1)[:, None]
            return right * 1000

    batch = ensembles.stack([ensembles.draw(NumberTask(), 40, (1, 2), generator(s, "data")) for s in (0, 1)])
    hops = batch.hops
    found = ensembles.accuracy_by_hops(Oracle(), batch, (1, 2))["accuracy"]
    expected = torch.tensor([[1, 1, 1], [0.5, 1, 0]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_draws_have_equal_shares_in_mixed_order():
    batch = ensembles.draw(LetterTask(), 10, (1, 3, 4), generator(0, "data"))
    assert batch.hops.bincount().tolist() == [0, 4, 0, 3, 3]
    assert batch.hops.tolist() != sorted(batch.hops.tolist())
    assert torch.equal(LetterTask().solve(batch.tokens), batch.answer)


def test_pure_heads_are_pure_from_a_step_to_the_end():
    histories = {  # (positional, symbolic) by step
        0: [(1, 1), (0.95, 0.05), (0.96, 0.04)],
        1: [(0.02, 0.97), (0.5, 0.5), (0.02, 0.99)],
        2: [(0.02, 0.97), (0.02, 0.97), (0.3, 0.6)],
        3: [(0.02, 0.97), (0.02, 0.97), (0.02, 0.97)],
    }
    rows = [
        {"task": "letter", "seed": 0, "layer": layer, "head": 0, "step": 10 * k, "positional": p, "symbolic": s}
        for layer, history in histories.items()
        for k, (p, s) in enumerate(history)
    ]
    found = study.pure_heads(pd.DataFrame(rows[::-1]), 0.1)
    assert found[["layer", "kind", "since"]].values.tolist() == [[0, 1, 10], [1, -1, 20], [2, 0, 20], [3, -1, 0]]
    strict = study.pure_heads(pd.DataFrame(rows), 0.045)
    assert strict["kind"].tolist() == [1, -1, 0, -1] and strict["since"].tolist()[0] == 20


def test_the_paper_preset_is_the_papers_setting():
    config = study.Config.preset_named("paper")
    assert (config.layers, config.heads, config.width, config.dropout) == (12, 1, 128, 0.1)
    assert config.steps * config.batch == config.training_sequences == 0.9 * 480_000
    assert config.validation_sequences + config.test_sequences == 0.1 * 480_000
    assert config.points >= 100 and config.scored_sequences == 1_000 and config.seeds() == list(range(32))


def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="letter"):
        study.trained_model(results.Study({}, {}), TINY, "letter")


def test_a_member_that_was_not_kept_is_refused(small):
    for member in [-1, 2]:
        with pytest.raises(InputError, match="member"):
            study.trained_model(small[1], small[0], "letter", member)


def test_scores_at_another_place_are_those_of_the_sequence_cut_there():
    config = GPTJConfig(136, layers=2, heads=2, width=16, init_std=0.4)
    model = GPTJEnsemble(config, [0, 1])
    batch = NumberTask().sample(6)
    temperatures = (1e-2, 0.1)
    found = study.score_variants(model, batch, temperatures)
    for t, temperature in enumerate(temperatures):
        sums = {query: [0.0, 0] for query in study.QUERIES}
        for place in range(2, 17):
            for index in range(6):
                scores = study.score_heads(model, batch.tokens[index : index + 1, : place + 1], temperature)
                both = torch.stack([scores["positional"], scores["symbolic"]])
                visited = [p for p in batch.path[index].tolist() if p >= 0]
                chosen = {"last": place == 16, "path": place in visited[:-1], "all": True}
                for query in study.QUERIES:
                    if chosen[query]:
                        sums[query][0] = sums[query][0] + both
                        sums[query][1] += 1
        for q, query in enumerate(study.QUERIES):
            expected = (sums[query][0] / sums[query][1]).double()
            ours = torch.stack([found["variant_positional"], found["variant_symbolic"]])[..., q, t]
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


def test_other_rates_are_trained_too_and_differ(small):
    config, result = small
    rates = result.tables["rate_accuracy"]
    assert set(rates["learning_rate"]) == set(config.other_rates) and set(rates["seed"]) == {0}
    assert set(result.tables["rate_scores"]["task"]) == set(config.tasks)
    own = result.tables["accuracy"].query("seed == 0")
    keys = ["task", "split", "step", "hops", "seed"]
    both = own.merge(rates, on=keys)
    start, end = both.query("step == 0"), both.query("step == @config.steps")
    assert np.allclose(start["loss_x"], start["loss_y"], atol=1e-4)
    assert not np.allclose(end["loss_x"], end["loss_y"], atol=1e-3)


def test_variants_are_scored_at_the_points_that_the_table_keeps_alone():
    config = dataclasses.replace(TINY, points=7)
    points = study.evaluation_steps(config.steps, config.points)
    model = GPTJEnsemble(config.model(136), config.seeds())
    evaluate = study.evaluation("number", config, config.seeds(), torch.device("cpu"))
    found = [evaluate(model, step) for step in points]
    scored = [bool(values["variant_symbolic"].isfinite().all()) for values in found]
    assert scored == [True, False, False, False, True, False, True]
    assert found[1]["variant_symbolic"].shape == found[0]["variant_symbolic"].shape
    stacked = {name: torch.stack([values[name] for values in found]) for name in study.VARIANTS}
    table = study.variant_table(stacked, points, config.seeds(), config.temperatures)
    assert table["step"].unique().tolist() == [points[0], points[4], points[6]] and not table.isna().any(axis=None)
    assert not config.at_rate(6e-3).temperatures
