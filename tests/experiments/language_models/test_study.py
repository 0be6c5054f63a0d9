"""The study runs, learns, and goes on where it was interrupted."""

import re
import shutil

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer

from possym import ConfigError
from possym.experiments import language_models as study
from possym.experiments.language_models import corpus
from possym.experiments.language_models.model import load_model
from possym.results import load_or_run

TINY = {"steps": 40, "points": 3, "encodings": ("rope", "nope"), "scored": 2, "evaluated": 8}
LEARNING = TINY | {"steps": 80}  # at 40 the loss has only come to where counting tokens is


@pytest.fixture(scope="module")
def small():
    """A corpus made once for this file."""
    return study.load_corpus("small", study.Config.preset_named("smoke"))


def run(monkeypatch, small, path):
    monkeypatch.setenv("POSSYM_RESULTS", str(path))
    monkeypatch.setenv("POSSYM_CACHE", str(path.with_name("cache")))
    monkeypatch.setattr(study, "load_corpus", lambda name, config: small)
    return load_or_run(study, study.Config.preset_named("smoke", **LEARNING), "auto")


def test_models_learn_and_a_stored_model_is_not_trained_again(monkeypatch, small, tmp_path):
    folder = study.checkpoint_folder  # the folder is deleted when the study is stored
    kept = tmp_path / "kept"

    def stop(entry, config, texts, device, partial, real=study.trained_tables):
        if entry.encoding == "nope" and not kept.exists():
            shutil.copytree(partial, kept)
            raise KeyboardInterrupt
        return real(entry, config, texts, device, partial)

    monkeypatch.setattr(study, "trained_tables", stop)
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, small, tmp_path / "results")
    assert folder and (kept / "rope-64-small-0.finished").exists()
    first = pd.read_parquet(kept / "rope-64-small-0.timing.parquet")["seconds"].item()
    found = run(monkeypatch, small, tmp_path / "results")
    assert found.tables["timing"].set_index("encoding")["seconds"]["rope"] == first
    unigram = found.tables["corpora"]["unigram"].item()
    ends = found.tables["loss"].query("step == 80").set_index("encoding")["loss"]
    assert (ends < unigram).all() and unigram == pytest.approx(5.3, abs=0.2)
    scores = found.tables["scores"].query("encoding == 'nope'")
    assert scores["symbolic"].min() > 1 - 1e-5
    assert found.tables["length"].groupby("encoding")["edit"].nunique().tolist() == [6, 6]
    assert found.tables["training"]["step"].tolist() == [25, 50, 75] * 2
    assert set(found.tables["scores"]["text"]) == {"held out", "repeated tokens", study.BINDING}
    assert found.tables["without_heads"].groupby("encoding").size().tolist() == [5 * (1 + 8 + 2 * 5)] * 2
    assert found.tables["reach"].groupby("encoding")["way"].nunique().tolist() == [4, 4]
    attention = found.tables["attention"]
    assert attention.groupby(["encoding", "layer", "head", "position"])["weight"].sum().to_numpy() == pytest.approx(1)
    line = attention.drop_duplicates("key_position").sort_values("key_position")["token"]
    assert "".join(line) == corpus.END + study.LINE
    ids, _ = corpus.tokens_of(small.tokenizer, study.LINE)
    model = load_model(
        study.weights_file(study.Run("rope", 64, "small", 0), study.Config.preset_named("smoke", **LEARNING))
    )
    queries, keys = model.trace(torch.tensor([ids]))
    own = attention.query("encoding == 'rope' and layer == 1 and head == 2 and position == 9")
    expected = model.attention(queries[1], keys[1])[0, 2, 9, :10]
    assert own["weight"].to_numpy() == pytest.approx(expected.numpy(), abs=2e-3)  # weights are kept as float16


def test_models_of_the_probed_seeds_alone_are_asked_more():
    config = study.Config.preset_named("paper", seeds=8, few_seeds=3)
    asked = [entry for entry in config.runs() if config.probes(entry)]
    assert len(asked) == 20 and {(entry.width, entry.corpus) for entry in asked} == {(512, "source")}
    assert {entry.seed for entry in asked} == {4, 5, 6, 7}
    later = study.Config.preset_named("smoke", seed=3)  # probed are counted from the first seed: it has its tables
    assert all(map(later.probes, later.runs()))


def test_binding_prompts_end_with_a_question_on_what_they_say(small):
    rows = study.binding_prompts(small.tokenizer, 5, 48, seed=0)
    assert rows.shape == (5, 48) and len({tuple(row) for row in rows.tolist()}) == 5
    words = Tokenizer.from_str(small.tokenizer)
    text = words.decode(study.binding_prompts(small.tokenizer, 1, 300, seed=1)[0].tolist())
    name = re.search(r"Question: What does (\w+) like\?\nAnswer: (\w+) likes$", text)
    assert name[1] == name[2] and f" {name[1]} likes " in text.split("Question")[0]


def test_runs_come_seed_by_seed():
    runs = study.Config.preset_named("paper").runs()
    assert len(runs) == len(set(runs)) == 8 * 5 + 3 * 3
    assert [entry.seed for entry in runs[:5]] == [0] * 5 and len({entry.encoding for entry in runs[:5]}) == 5


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"encodings": ("alibi",)}, "known encodings are rope"),
        ({"corpus": "poems"}, "known corpora are source, docstrings, small"),
        ({"width": 100}, "width = 100: give a multiple of twice the heads, 16"),
        ({"scored_length": 1000}, "scored_length = 1000: give an even number from 12 to length, 512"),
        ({"scored_length": 101}, "scored_length = 101: give an even number"),
        ({"encodings": ()}, r"encodings = \(\): give at least one of rope"),
        ({"heads": 0}, "heads = 0: give at least 1"),
        ({"warm_up": -1}, "warm_up = -1: give at least 0"),
        ({"points": 1}, "points = 1: give at least 2"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0: give a number above 0"),
        ({"vocabulary": 40_000}, "vocabulary = 40000: tokens are kept as int16, give at most 32768"),
    ],
)
def test_what_cannot_be_trained_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        study.Config.preset_named("paper", **settings)


def test_models_named_twice_are_trained_once():
    twice = study.Config.preset_named("smoke", encodings=("rope", "rope"), other_widths=(64, 64))
    assert twice.runs() == [study.Run("rope", 64, "small", 0)]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"vocabulary": 300}, "vocabulary = 300: corpus small has 512 tokens"),
        ({"length": 20_000}, r"length = 20000: windows of 8 times .* give at most \d+"),
    ],
)
def test_a_corpus_that_does_not_fit_is_refused_before_training(small, settings, message):
    with pytest.raises(ConfigError, match=message):
        study.fits("small", small, study.Config.preset_named("smoke", **settings))
    study.fits("small", small, study.Config.preset_named("smoke"))


def test_weights_of_other_settings_are_another_file():
    entry, paper = study.Run("rope", 512, "source", 0), study.Config.preset_named("paper")
    assert study.weights_file(entry, paper) == study.weights_file(entry)
    assert study.weights_file(entry, study.Config.preset_named("paper", seeds=5)) == study.weights_file(entry)
    others = [study.Config.preset_named("paper", **{name: 10}) for name in ("steps", "batch", "warm_up")]
    assert len({study.weights_file(entry, config) for config in (paper, *others)}) == 4


@pytest.mark.parametrize("lost", ["rope-64-small-0.along.scores.parquet", "rope-64-small-0.recall.parquet"])
def test_what_a_stopped_run_left_is_made_again_where_it_is_broken(monkeypatch, small, tmp_path, lost):
    config = study.Config.preset_named("smoke", **TINY | {"encodings": ("rope",), "length": 16, "scored_length": 12})
    entry, texts = config.runs()[0], {"small": small}
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))

    def tables():
        return study.trained_tables(entry, config, texts, torch.device("cpu"), tmp_path)

    with monkeypatch.context() as patch:
        if "along" in lost:  # stopped between the end of training and the last measures
            patch.setattr(study.Observer, "at_the_end", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                tables()
        else:
            tables()
    assert (tmp_path / lost).exists()
    (tmp_path / lost).write_bytes(b"PAR1")
    found = tables()
    assert found["loss"]["step"].tolist() == [0, 10, 40] and len(found["recall"])
    assert found["training"]["step"].tolist() == [25]


def test_what_was_measured_after_the_checkpoint_is_not_counted_twice(monkeypatch, small, tmp_path):
    """A run stopped between two checkpoints, the first of which comes after the measures at the start."""
    config = study.Config.preset_named("smoke", **TINY | {"encodings": ("rope",), "length": 16, "scored_length": 12})
    entry, texts = config.runs()[0], {"small": small}
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("possym.experiments.language_models.training.store", stop)
        with pytest.raises(KeyboardInterrupt):
            study.trained_tables(entry, config, texts, torch.device("cpu"), tmp_path)
    assert set(pd.read_parquet(tmp_path / "rope-64-small-0.along.loss.parquet")["step"]) == {0, 10}
    found = study.trained_tables(entry, config, texts, torch.device("cpu"), tmp_path)
    assert found["loss"]["step"].tolist() == [0, 10, 40] and found["training"]["step"].tolist() == [25]
    assert not found["scores"].duplicated(["step", "text", "layer", "head", "weighting"]).any()
    assert found["recall"]["distance"].min() == 2


def test_a_corpus_that_was_not_made_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path))
    with pytest.raises(study.corpora.ResultsError, match=r"language_models\.corpus"):
        study.load_corpus("source", study.Config.preset_named("paper"))
    assert corpus.VOCABULARY == 8192
