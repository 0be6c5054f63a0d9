"""The command that runs one study."""

import json
import signal
import subprocess
import sys
import time

import pytest

from possym import results
from possym.experiments import theory
from possym.experiments.__main__ import main, studies, study_named


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    return tmp_path


SMALL = "--preset smoke --device cpu --set random_heads=2 sequences=2 longest=4 index_thetas=(0.5,)".split()


def test_every_study_is_known():
    assert {"canonical", "learning_dynamics", "theory"} <= studies().keys()
    assert all(callable(study.run) and study.Config.PRESETS for study in studies().values())
    assert all(study_named(name) is study for name, study in studies().items())
    assert study_named("trained") is None  # a module, and no study


def test_it_runs_stores_and_loads(store, capsys):
    assert main(["theory", *SMALL]) == 0
    folder, made_by = capsys.readouterr().out.splitlines()
    assert made_by.startswith("theory: Computed with preset smoke, seed 0, on CPU")
    config = theory.Config.preset_named("smoke", random_heads=2, sequences=2, longest=4, index_thetas=(0.5,))
    assert folder == str(results.result_folder("theory", config)) and folder.startswith(str(store))
    assert results.load_or_run(theory, config, "stored").tables["index"]["n"].max() == 4
    assert main(["theory", *SMALL, "--compute", "stored"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "ConfigError: no study is named: known studies are cache_plans, "),
        (["theori"], "ConfigError: study = 'theori': known studies are cache_plans, "),
        (["theory", "--compute", "sometimes"], "ConfigError: compute = 'sometimes': known values are stored, auto"),
        (["theory", "--set", "sequences"], "ConfigError: --set 'sequences': write name=value, such as --set seed=5"),
        (["theory", "--set", "heads=2"], "ConfigError: unknown setting 'heads': known settings are device, seed"),
        (["theory", "--set", "seed=1", "--set", "seed=2"], "ConfigError: --set seed=1 seed=2: give each setting once"),
        (["theory", "--set", "device=cpu"], "ConfigError: --set 'device=cpu': say --device cpu"),
        (["theory", "--compute", "stored"], "ResultsError: no stored result in "),
    ],
)
def test_what_it_cannot_do_is_said_in_a_line(words, message, capsys):
    assert main(words) == (2 if message.startswith("ConfigError") else 1)
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(message) and said.err.count("\n") == 1


@pytest.mark.parametrize("study", ["language_models", "theory"])
def test_an_unknown_device_is_refused_though_its_result_is_stored(study, monkeypatch, capsys):
    monkeypatch.setattr(results.store, "load", lambda *_: pytest.fail("the stored result was read"))
    monkeypatch.setattr(results.store, "checkpoint_folder", lambda *_: pytest.fail("a folder was made"))
    assert main([study, "--preset", "paper", "--device", "mars", "--compute", "stored"]) == 2
    said = "ConfigError: device = 'mars': expected 'auto', 'cpu', 'cuda' or 'cuda:N'\n"
    assert capsys.readouterr() == ("", said)


def test_a_device_of_another_machine_is_refused_before_a_run_begins(store, capsys):
    assert main(["theory", *SMALL, "--device", "cuda:99", "--compute", "always"]) == 2
    assert "CUDA devices; try 'auto'" in capsys.readouterr().err
    assert not list(store.iterdir())


def test_help_lists_the_studies_and_the_settings_of_one(capsys):
    for words, said in (
        (["--help"], [f"  {name} " for name in studies()]),
        (["theory", "--help"], ["  longest = 200 | 24\n", "  betas = (1.0, 5.0)\n", "  seed = 0\n"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
        out = capsys.readouterr().out
        assert [part for part in said if part not in out] == []


def test_what_is_stored_is_listed_and_what_is_small_deleted(store, capsys):
    for name in ("theory/smoke", "theory/paper", "canonical/smoke-0123"):
        (store / name).mkdir(parents=True)
        manifest = {"started": "2026-11-28T12:00:00", "seconds": 5.0, "device": "CPU"}
        (store / name / "manifest.json").write_text(json.dumps(manifest))
    for preset in ("smoke", "paper"):  # both unfinished
        (results.checkpoint_folder("theory", theory.Config.preset_named(preset)) / "step").write_text("5")
    for folder in list(store.glob(".partial/*-*")):
        folder.with_suffix(".lock").touch()
    (store / ".partial/theory-paper-0123.lock").touch()
    assert main(["theory", "--list"]) == 0 and main(["--list"]) == 0
    out = capsys.readouterr().out
    assert "None" not in out
    rows = [line.split() for line in out.split(str(store))[2].splitlines()[2:]]
    (paper,) = (path.name for path in store.glob(".partial/theory-paper-*") if path.is_dir())
    assert sorted(row[2] for row in rows) == ["lock", "stored", "stored", "stored", "unfinished", "unfinished"]
    with results.runs.lock_of(store / ".partial" / f"{paper}.lock"):
        assert main(["theory", "--list"]) == 0
        assert "running" in capsys.readouterr().out
    assert main(["theory", "--clean"]) == 0
    assert capsys.readouterr().out.count("deleted ") == 3
    left = {str(path.relative_to(store)) for path in [*store.glob("*/*")]}
    assert left == {"theory/paper", "canonical/smoke-0123", f".partial/{paper}", f".partial/{paper}.lock"}
    assert main(["--clean"]) == 0 and main(["--clean"]) == 0
    assert capsys.readouterr().out == "deleted canonical/smoke-0123\nnothing to delete\n"


def test_ctrl_c_says_how_to_go_on(store):
    words = ["theory", "--preset", "smoke", "--set", "random_heads=200000"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    command = [sys.executable, "-m", "possym.experiments", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, before)
        began = time.monotonic()
        while not list(store.glob(".partial/*/.runs")) and time.monotonic() < began + 120:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            said = process.communicate(timeout=60)[1]
        finally:
            process.kill()
    assert process.returncode == 130
    assert said.splitlines()[-1] == "Stopped. The same command goes on from its last checkpoint."
