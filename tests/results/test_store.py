"""Stored studies: identity, provenance, tampering, killed runs, and what is refused."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pandas as pd
import pytest
import torch

from possym import results
from possym.errors import ConfigError, InputError, ResultsError
from possym.experiments import learning_dynamics


@dataclass(frozen=True, kw_only=True)
class Config(results.ExperimentConfig):
    steps: int = 10
    rate: float = 0.5
    tasks: tuple[str, ...] = ("number", "letter")

    PRESETS: ClassVar = {"smoke": {"steps": 2}, "paper": {}}


def experiment(value=1.0):
    calls = []

    def run(config):
        calls.append(config)
        table = pd.DataFrame({"step": range(config.steps), "value": [value * config.seed] * config.steps})
        return results.Study({"curve": table}, {"weights": torch.full((2, 3), value)}, {"seeds": [config.seed, 7]})

    return SimpleNamespace(NAME="toy", Config=Config, run=run, calls=calls)


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "store"))
    return tmp_path / "store"


def files(folder, suffix):
    return [path for path in folder.iterdir() if path.suffix == suffix]


def test_a_run_is_stored_and_loaded_again():
    toy, config = experiment(), Config.preset_named("smoke", seed=3)
    made = results.load_or_run(toy, config, "always")
    again = results.load_or_run(toy, config, "stored")
    assert len(toy.calls) == 1
    pd.testing.assert_frame_equal(made.tables["curve"], again.tables["curve"])
    assert torch.equal(made.arrays["weights"], again.arrays["weights"])
    assert again.manifest == json.loads(json.dumps(made.manifest))
    assert again.manifest["seeds"] == [3, 7] and again.manifest["config"]["seed"] == 3


def test_auto_runs_once_and_always_runs_again():
    toy, config = experiment(), Config.preset_named("smoke")
    for compute, calls in [("auto", 1), ("auto", 1), ("stored", 1), ("always", 2)]:
        results.load_or_run(toy, config, compute)
        assert len(toy.calls) == calls


def test_nothing_stored_is_refused_and_nothing_is_run():
    toy = experiment()
    with pytest.raises(ResultsError, match="no stored result in .*toy/smoke.*compute='always'"):
        results.load_or_run(toy, Config.preset_named("smoke"))
    assert not toy.calls


def test_other_settings_never_overwrite_a_preset():
    toy = experiment()
    plain, changed = Config.preset_named("smoke"), Config.preset_named("smoke", seed=5)
    results.load_or_run(toy, plain, "always")
    results.load_or_run(toy, changed, "always")
    assert results.load_or_run(toy, plain).manifest["config"]["seed"] == 0
    assert results.load_or_run(toy, changed).manifest["config"]["seed"] == 5


def test_device_is_no_part_of_a_results_identity():
    toy = experiment()
    results.load_or_run(toy, Config.preset_named("smoke", device="cpu"), "always")
    assert results.load_or_run(toy, Config.preset_named("smoke", device="cuda:0")).tables["curve"].shape == (2, 2)
    assert Config.preset_named("smoke", device="cpu").hash() == Config.preset_named("smoke").hash()
    assert Config.preset_named("smoke", seed=1).hash() != Config.preset_named("smoke").hash()


def test_another_configuration_is_refused_and_named(store):
    results.load_or_run(experiment(), Config.preset_named("smoke"), "always")
    with pytest.raises(ResultsError, match="steps: stored 2, asked 4"):
        results.load(store / "toy" / "smoke", Config.preset_named("smoke", steps=4))


@pytest.mark.parametrize(("suffix", "compute"), [(".parquet", "stored"), (".safetensors", "auto")])
def test_tampered_files_are_refused_and_named(store, suffix, compute):
    toy, config = experiment(), Config.preset_named("smoke")
    results.load_or_run(toy, config, "always")
    (path,) = files(store / "toy" / "smoke", suffix)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=f"{path.name} does not match the hash"):
        results.load_or_run(toy, config, compute)
    path.unlink()
    with pytest.raises(ResultsError, match=f"{path.name} is missing"):
        results.load_or_run(toy, config, compute)
    assert results.load_or_run(toy, config, "always").tables["curve"].shape == (2, 2)
    results.load_or_run(toy, config, "stored")


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"files": 3, "config": {}}', '{"files": {"a.parquet": 1}, "config": {}}']
)
def test_broken_manifests_are_refused(store, text):
    folder = store / "toy" / "smoke"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ResultsError, match=r"manifest\.json"):
        results.load(folder)


@pytest.mark.parametrize("key", ["config_hash", "config", "files", "sha256", "curve", "arrays"])
def test_a_manifest_that_lacks_something_is_refused(store, key):
    results.load_or_run(experiment(), config := Config.preset_named("smoke"), "always")
    manifest = store / "toy" / "smoke" / "manifest.json"
    content = json.loads(manifest.read_text())
    if key in content:
        del content[key]
    for name in list(content["files"] if "files" in content else {}):
        if key == "sha256":
            del content["files"][name]["sha256"]
        elif name.startswith(key):
            del content["files"][name]
    manifest.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match=key):
        results.load_or_run(experiment(), config, "stored")


def test_what_a_run_killed_before_it_tidied_up_left_does_not_matter(store):
    results.load_or_run(experiment(), config := Config.preset_named("smoke"), "always")
    (path,) = files(store / "toy" / "smoke", ".parquet")
    path.with_name("curve.01234567.parquet").write_bytes(b"older")
    assert results.load_or_run(experiment(), config, "stored").tables.keys() == {"curve"}


def test_a_store_in_the_home_folder_may_be_named_by_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POSSYM_RESULTS", "~/res")
    assert results.results_root() == tmp_path / "res"


def test_manifests_cannot_point_outside_their_folder(store):
    results.load_or_run(experiment(), Config.preset_named("smoke"), "always")
    manifest = store / "toy" / "smoke" / "manifest.json"
    content = json.loads(manifest.read_text())
    outside = store / "outside.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(outside)
    content["files"]["../../outside.parquet"] = {"sha256": results.sha256(outside), "bytes": 1}
    manifest.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match="outside.parquet"):
        results.load(manifest.parent)


def test_storing_again_leaves_no_stale_file(store):
    config = Config.preset_named("smoke", seed=1)
    for value in (1.0, 2.0):
        results.load_or_run(experiment(value), config, "always")
    folder = results.result_folder("toy", config)
    assert len(list(folder.iterdir())) == 3
    assert results.load(folder).arrays["weights"][0, 0] == 2


def test_a_failed_run_leaves_the_stored_result_as_it_was():
    toy, config = experiment(), Config.preset_named("smoke")
    results.load_or_run(toy, config, "always")

    def fail(config):
        (results.checkpoint_folder("toy", config) / "step").write_text("5")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        results.load_or_run(SimpleNamespace(NAME="toy", Config=Config, run=fail), config, "always")
    assert (results.checkpoint_folder("toy", config) / "step").read_text() == "5"
    assert results.load_or_run(toy, config).manifest["seeds"] == [0, 7]
    results.load_or_run(toy, config, "always")
    assert not any(results.checkpoint_folder("toy", config).iterdir())


def interrupted(config, when):
    """A study that keeps a checkpoint, waits a moment, and then ends as ``when`` says."""

    def run(config):
        (results.checkpoint_folder("toy", config) / "step").write_text("5")
        time.sleep(0.2)
        when()
        return results.Study({"curve": pd.DataFrame({"step": [1]})})

    return SimpleNamespace(NAME="toy", Config=Config, run=run)


def test_the_seconds_of_an_interrupted_study_are_those_of_all_its_runs(store):
    config = Config.preset_named("smoke")

    def stop():
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) as stopped:
            results.load_or_run(interrupted(config, stop), config, "always")
        assert stopped.value.__notes__ == ["toy: stopped; the same call goes on from its last checkpoint"]
    (notes,) = store.glob(".partial/*/.runs")
    runs = json.loads(notes.read_text())
    assert [run["seconds"] >= 0.2 for run in runs] == [True, True]
    killed = {"started": (notes.parent / "step").stat().st_mtime - 100, "seconds": None}  # at its checkpoint
    notes.write_text(json.dumps([*runs, killed]))
    manifest = results.load_or_run(interrupted(config, lambda: None), config, "always").manifest
    assert 100.6 <= manifest["seconds"] < 110 and manifest["runs"] == 4
    again = results.load_or_run(interrupted(config, lambda: None), config, "always").manifest
    assert again["seconds"] < 10 and "runs" not in again


def test_the_seconds_of_parts_made_elsewhere_count():
    config = Config.preset_named("smoke")
    for counted, stored in ((5000.0, 5000.0), (0.0, 0.2)):  # what is counted of no part is what the clock says
        study = results.Study({"timing": pd.DataFrame({"seconds": [counted]})}, manifest={"seconds": counted})
        toy = SimpleNamespace(NAME="toy", Config=Config, run=lambda _, study=study: time.sleep(0.2) or study)
        assert 0 <= results.load_or_run(toy, config, "always").manifest["seconds"] - stored < 1


def test_a_study_for_a_gpu_says_on_a_cpu_how_long_it_took_and_what_is_small():
    toy, config = experiment(), Config.preset_named("paper", device="cpu")
    with pytest.raises(ResultsError, match="or use compute='auto', or preset='smoke', which takes a minute at most"):
        results.load_or_run(toy, config)
    results.load_or_run(toy, config, "always")  # stored by a CPU: nothing to warn of
    manifest = results.result_folder("toy", config) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"device": "NVIDIA H200", "seconds": 4321.0}))
    with pytest.warns(UserWarning, match=r"'paper' took 4,321 s on NVIDIA H200; .* preset='smoke' takes a minute"):
        results.load_or_run(toy, config, "always")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"device": "NVIDIA H200", "seconds": 4321.0}))
    other = Config.preset_named("paper", device="cpu", seed=5)
    with pytest.raises(ResultsError, match=r"'always' \(the stored one took 4,321 s on NVIDIA H200\), or use"):
        results.load_or_run(toy, other)


def test_a_run_killed_while_it_stores_leaves_the_old_result_whole(store, tmp_path):
    config = Config.preset_named("smoke")
    results.load_or_run(experiment(), config, "always")
    script = tmp_path / "store_again.py"
    script.write_text(
        textwrap.dedent("""
        import json, os, sys, time
        from pathlib import Path
        import pandas as pd, torch
        from possym import results
        folder = Path(sys.argv[1])
        study = results.load(folder)
        study.tables["curve"]["value"] = 99.0
        real = os.replace
        def slow(source, target):
            if str(target).endswith("manifest.json"):
                Path(sys.argv[2]).write_text("here")
                time.sleep(60)
            real(source, target)
        os.replace = slow
        results.save(folder, study)
        """)
    )
    flag = tmp_path / "flag"
    process = subprocess.Popen([sys.executable, script, store / "toy" / "smoke", flag])
    deadline = time.monotonic() + 60
    while not flag.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert flag.exists()
    assert results.load_or_run(experiment(), config).tables["curve"]["value"].eq(0).all()


def test_provenance_says_what_made_a_number():
    study = results.load_or_run(experiment(), Config.preset_named("smoke"), "always")
    manifest = study.manifest
    folder = Path(results.__file__).parent
    head = (
        subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True).stdout.strip() or None
    )
    assert manifest["commit"] == head
    assert manifest["versions"]["torch"] == torch.__version__ and "python" in manifest["versions"]
    assert manifest["config_hash"] == Config.preset_named("smoke").hash()
    for name, entry in manifest["files"].items():
        path = results.results_root() / "toy" / "smoke" / name
        assert results.sha256(path) == entry["sha256"] and path.stat().st_size == entry["bytes"]
    line = results.provenance_line(study)
    for part in (
        "`smoke`",
        "seeds 0, 7",
        manifest["device"],
        (head or "unknown")[:10],  # an unpacked sdist has no git
        manifest["started"][:10],
        manifest["config_hash"],
    ):
        assert part in line


def test_runs_of_consecutive_seeds_read_as_a_range():
    study = results.load_or_run(experiment(), Config.preset_named("smoke"), "always")
    study.manifest["seeds"] = list(range(8))
    assert "seeds 0–7" in results.provenance_line(study)


def test_unknown_commits_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert results.environment("cpu")["commit"] is None
    monkeypatch.setenv("POSSYM_COMMIT", "abc-dirty")
    assert (results.environment("cpu")["commit"], results.environment("cpu")["dirty"]) == ("abc", True)


@pytest.mark.parametrize(
    "name, overrides, message",
    [
        ("fast", {}, "known presets are smoke, paper"),
        (["smoke"], {}, "known presets are smoke, paper"),
        ("smoke", {"stepz": 1}, "unknown setting 'stepz': known settings are device, seed, steps, rate, tasks"),
        ("smoke", {"steps": "10"}, "steps = '10': expected int"),
        ("smoke", {"steps": True}, "steps = True: expected int"),
        ("smoke", {"rate": float("nan")}, "rate = nan"),
        ("smoke", {"tasks": ["number"]}, "tasks"),
        ("smoke", {"tasks": (1,)}, "tasks"),
        ("smoke", {"seed": -1}, "seed = -1"),
        ("smoke", {"device": "mars"}, "device = 'mars': expected 'auto', 'cpu', 'cuda' or 'cuda:N'"),
    ],
)
def test_bad_configurations_are_refused(name, overrides, message):
    with pytest.raises((ConfigError, TypeError), match=message):
        Config.preset_named(name, **overrides)


def test_bad_arguments_are_refused():
    toy, config = experiment(), Config.preset_named("smoke")
    with pytest.raises(ConfigError, match="known values are stored, auto, always"):
        results.load_or_run(toy, config, "sometimes")
    with pytest.raises(InputError, match="dataclass instance"):
        results.load_or_run(toy, {"preset": "smoke"})
    with pytest.raises(InputError, match="dataclass instance"):
        results.load_or_run(toy, Config)
    with pytest.raises(InputError, match="NAME, Config and run"):
        results.load_or_run(os, config)
    with pytest.raises(InputError, match=r"learning_dynamics.Config"):
        results.load_or_run(learning_dynamics, config)
    with pytest.raises(InputError, match="study is of type dict"):
        results.provenance_line({})
    with pytest.raises(InputError, match="lacks .*commit"):
        results.provenance_line(results.Study({}))
    with pytest.raises(InputError, match="dataclass instance"):
        results.checkpoint_folder("toy", None)
    with pytest.raises(InputError, match="folder is of type int"):
        results.load(3)


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "cpu:3", 3])
def test_impossible_devices_are_refused(name):
    with pytest.raises(ConfigError, match="device = "):
        results.choose_device(name)


def test_a_store_that_cannot_be_written_is_found_before_the_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "file"))
    toy = experiment()
    with pytest.raises(ResultsError, match="cannot be written .*POSSYM_RESULTS"):
        results.load_or_run(toy, Config.preset_named("smoke"), "auto")
    assert not toy.calls


def test_a_full_disk_is_named_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_text("old")
    with pytest.raises(ResultsError, match="a.safetensors cannot be written .*No space left"):
        with results.atomic_write(path) as temporary:
            temporary.symlink_to("/dev/full")
            temporary.write_text("half")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_failed_writes_leave_nothing_behind(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError), results.atomic_write(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("compute, runs", [("always", 2), ("auto", 1)])
def test_two_runs_of_one_study_wait_for_each_other(tmp_path, compute, runs):
    """Both processes would write the same checkpoints; the lock lets one run after the other, auto only once."""
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent("""
        import sys, time
        from types import SimpleNamespace
        from tests.results.test_store import Config
        from possym import results
        import pandas as pd
        def run(config):
            flag = results.checkpoint_folder("toy", config) / "busy"
            assert not flag.exists()
            flag.write_text("")
            time.sleep(3)
            print("run", flush=True)
            flag.unlink()
            return results.Study({"curve": pd.DataFrame({"a": [1]})})
        results.load_or_run(SimpleNamespace(NAME="toy", run=run), Config.preset_named("smoke"), sys.argv[1])
        """)
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, script, compute]
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "".join(printed).count("run") == runs


def test_a_device_or_pipe_is_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ResultsError, match="no file but a device"), results.atomic_write(pipe) as path:
        path.write_text("new")
    assert pipe.is_fifo()
