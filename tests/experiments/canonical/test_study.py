"""The sweep: its pieces, its measures against plain loops, what it learns, and its resuming."""

import subprocess
import sys
import time

import pandas as pd
import pytest
import torch

from possym import results
from possym.ensembles.schedule import TrainingConfig
from possym.ensembles.training import Trainer
from possym.experiments import canonical
from possym.experiments.canonical import Config, Piece, Sequences

TINY = {
    "frequency_ids": (0, 8),
    "few_ids": (0, 8),
    "plane_counts": (1, 2),
    "many_planes": 2,
    "length": 6,
    "long_length": 8,
    "steps": 12,
    "warmup": 2,
    "batch": 8,
    "points": 3,
    "width": 4,
    "test_sequences": 16,
    "final_sequences": 64,
    "scored_sequences": 2,
}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))


def tiny(**changes):
    return Config.preset_named("smoke", device="cpu", **TINY | changes)


def test_paper_preset_covers_the_sweep():
    config = Config.preset_named("paper")
    heads = {}
    for piece in canonical.pieces(config):
        heads.setdefault(piece.name, []).append((piece.task, piece.length, len(piece.heads) * config.seeds))
    assert config.seeds == 8 and len(config.frequency_ids) == 33 and len(config.few_ids) == 12
    assert heads["one-angle"] == [(task, 32, 33 * 2 * 8) for task in canonical.TASKS]
    assert heads["fixed-maps"] == heads["one-angle"]
    assert heads["long"] == [(task, 128, 12 * 2 * 8) for task in canonical.TASKS]
    assert heads["two-angles"] == [("partial-induction", 32, 12 * 13 // 2 * 2 * 8)]
    assert heads["planes"] == [(task, 32, 12 * 5 * 8) for task in canonical.TASKS[1:]]


@pytest.mark.parametrize("name", canonical.TASKS)
def test_attended_tokens_give_the_answer(name):
    task = canonical.make_task(name, 10)
    batch = task.sample(200, length=10)
    first, gives = canonical.answer_tokens(task)
    attended = batch.tokens[torch.arange(200), batch.path[:, 1]]
    assert torch.equal(gives[attended] + first, batch.answer)
    assert set(gives[batch.tokens[:, -1]].tolist()) == {-1}


@pytest.mark.parametrize("name", canonical.TASKS)
def test_measures_match_plain_loops(name):
    config = tiny()
    piece = Piece("one-angle", name, 6, "learnt", (((0,), 1), ((8,), 2)))
    model = canonical.make_model(piece, config)
    test = Sequences(piece, config, "held-out", 64, CPU)
    found = canonical.measure(model, test, config)
    swapped = canonical.swap_angles(model, test, config)
    attention = model.attention(test.tokens[:, :2].long())
    entropy = -(attention * attention.log()).sum(-1).mean(1)
    torch.testing.assert_close(found["entropy"], entropy, atol=1e-5, rtol=1e-4)
    task = canonical.make_task(name, 6)
    first, _ = canonical.answer_tokens(task)
    for member, recipe in enumerate(model.recipes):
        rows = test.tokens[recipe.seed].long()
        answers = task.solve(rows) - first
        for place in range(5):
            right = [
                int(model(rows[i : i + 1])[member, 0].argmax() == answers[i])
                for i in range(64)
                if test.places[recipe.seed, i] == place
            ]
            assert float(found["by_place"][member, place]) == pytest.approx(sum(right) / len(right), abs=1e-6)
        own = (0, 8).index(0 if recipe.angles == (0.0,) else 8)
        right = model(rows[:16])[member].argmax(-1) == answers[:16]
        assert float(swapped[member, own]) == pytest.approx(float(right.float().mean()), abs=1e-6)


def test_scores_of_pure_heads():
    """NoPE follows the content whatever the weights; a head whose keys are all alike follows the place."""
    config = tiny(deviation=1.0)
    piece = Piece("one-angle", "index", 6, "learnt", (((0,), 1), ((1,), 1)))
    model = canonical.make_model(piece, config)
    with torch.no_grad():
        model.key[1::2] = 0
        model.embedding[1::2, :, 0] = 1
        model.key[1::2, 0, 0, 0] = 5
    scores = canonical.measure(model, Sequences(piece, config, "held-out", 64, CPU), config)
    torch.testing.assert_close(scores["symbolic"][0::2], torch.ones(2, 2))
    torch.testing.assert_close(scores["positional"][1::2], torch.ones(2, 2))
    assert (scores["positional"][0::2] < 0.999).all() and (scores["symbolic"][1::2] < 0.999).all()


def accuracy_after(steps, rate, task, maps, *heads):
    """Train heads at length 12 and return each one's accuracy, the mean of two seeds."""
    config = tiny(length=12, width=32, steps=steps, batch=64, final_sequences=1024)
    piece = Piece("x", task, 12, maps, heads)
    model = canonical.make_model(piece, config)
    training = TrainingConfig(steps, 64, rate, betas=(0.9, 0.99), weight_decay=0.0, warmup=50)
    source = Sequences(piece, config, "data", steps * 64, CPU)
    Trainer(model, source, training, [m.seed for m in model.recipes]).run()
    held_out = Sequences(piece, config, "held-out", 1024, CPU)
    return held_out.correct(model, 1024).float().mean(1).unflatten(0, (2, -1)).mean(0).tolist()


def test_one_angle_with_many_planes_learns_partial_induction():
    heads = ((10,), 8), ((10,), 1), ((0,), 8), ((3,), 8)
    many, one, without_angle, too_fast = accuracy_after(500, 2e-2, "partial-induction", "fixed", *heads)
    assert many > 0.93
    assert max(one, without_angle, too_fast) < 0.85


def test_index_wants_a_fast_angle_and_retrieval_none():
    fast, without_angle = accuracy_after(300, 1e-2, "index", "learnt", ((5,), 1), ((0,), 1))
    assert fast > 0.9 and without_angle < 0.3
    fast, without_angle = accuracy_after(300, 2e-2, "retrieval", "fixed", ((5,), 8), ((0,), 8))
    assert without_angle > 0.95 and fast < 0.85


def test_killed_run_ends_as_a_straight_one(tmp_path, monkeypatch):
    straight = results.load_or_run(canonical, tiny(), "always")
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "killed"))
    folder = results.checkpoint_folder(canonical.NAME, tiny())
    code = (
        "from possym import results; from possym.experiments import canonical;"
        f"results.load_or_run(canonical, canonical.Config.preset_named('smoke', device='cpu', **{TINY!r}), 'always')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while not (folder / "01-finished.safetensors").exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (folder / "11-finished.safetensors").exists()
    written = (folder / "00-finished.safetensors").stat().st_mtime_ns
    untouched = []
    original = canonical.tabulate

    def look(piece, config, found):
        untouched.append((folder / "00-finished.safetensors").stat().st_mtime_ns == written)
        return original(piece, config, found)

    monkeypatch.setattr(canonical, "tabulate", look)
    resumed = results.load_or_run(canonical, tiny(), "always")
    assert all(untouched) and not folder.exists()
    for name, table in straight.tables.items():
        pd.testing.assert_frame_equal(resumed.tables[name], table)
    for name, array in straight.arrays.items():
        assert torch.equal(resumed.arrays[name], array)
    for task in canonical.TASKS:
        for side in ("query", "key"):
            assert torch.equal(straight.arrays[f"{task}/{side}"][:, -1], straight.arrays[f"{task}/final_{side}"][0])
