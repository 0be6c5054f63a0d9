"""Members that train in groups, side by side: the numbers of one group, whatever is killed on the way."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from possym import results
from possym.ensembles.training import Trainer
from possym.errors import DeviceError, ResultsError
from possym.experiments import canonical, generality, learning_dynamics, mechanism
from possym.experiments import trained as ensembles

from ..results.test_devices import until

torch.set_num_threads(1)  # on models this small, threads mostly wait for each other

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
SMALL = dict(members=4, layers=1, width=8, dropout=0.1, training_sequences=64, steps=16, batch=4, warmup=2)
CONFIG = learning_dynamics.Config.preset_named("smoke", device="cpu", other_rates=(), **SMALL)
STUDIES = {
    learning_dynamics: dict(
        tasks=("letter",), validation_sequences=12, test_sequences=12, scored_sequences=6, points=3,
        variant_sequences=6, other_rates=(6e-3,), other_members=4,
    ),
    generality: dict(
        tasks=("letter",), settings=("llama",), validation_sequences=12, test_sequences=12, scored_sequences=6,
        points=3,
    ),
    mechanism: dict(
        tasks=("letter",), tracked=4, undropped=4, sequences=8, changed_sequences=8, chosen_sequences=8,
        tracked_sequences=8, rule_sequences=8, points=3,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "results"))


def files(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / f"{name}.safetensors").touch()
    return folder


@pytest.mark.parametrize(
    ("begun", "members", "count", "expected"),
    [
        ([], 32, 1, [(0, 32)]),
        ([], 32, 4, [(0, 8), (8, 16), (16, 24), (24, 32)]),
        ([], 3, 2, [(0, 2), (2, 3)]),
        ([], 2, 4, [(0, 1), (1, 2)]),
        ([], 8, 3, [(0, 3), (3, 6), (6, 8)]),
        (["0-15"], 32, 1, [(0, 16), (16, 32)]),
        (["0-3", "4-7"], 8, 1, [(0, 4), (4, 8)]),
        (["2-4"], 8, 2, [(0, 2), (2, 5), (5, 8)]),
        (["0-7"], 8, 2, [(0, 8)]),
        (["a-b", "1-2-3"], 4, 2, [(0, 2), (2, 4)]),  # files of others
    ],
)
def test_groups_that_were_begun_stay_and_the_rest_is_shared(tmp_path, begun, members, count, expected):
    folder = files(tmp_path / "begun", *begun)
    found = ensembles.groups(folder, members, count)
    assert [(group.start, group.stop) for group in found] == expected


@pytest.mark.parametrize("begun", [["0-3", "2-5"], ["6-9"]])
def test_groups_that_overlap_or_have_too_many_members_are_refused(tmp_path, begun):
    with pytest.raises(ResultsError, match="overlap"):
        ensembles.groups(files(tmp_path / "begun", *begun), 8, 2)


def weights(model):
    return {name: parameter.detach().cpu() for name, parameter in model.named_parameters()}


def compare(one, other, **tolerance):
    (model, training), (model_2, training_2) = one, other
    torch.testing.assert_close(weights(model), weights(model_2), **tolerance)
    torch.testing.assert_close(training.losses, training_2.losses, **tolerance)
    torch.testing.assert_close(training.evaluations, training_2.evaluations, **tolerance)
    assert tolerance["atol"] > 1e-3 or torch.equal(training.accuracies, training_2.accuracies)


def sizes(seeds, device):
    """Measure the members on the way by their weights, and leave a line a call where LOG says."""
    log = os.environ.get("LOG")

    def evaluate(model, step):
        if log:
            with open(log, "a") as file:
                file.write(f"{seeds[0]}\n")
        return {"size": model.query.square().sum((1, 2, 3)), "head": model.head[:, 0]}

    return evaluate


def train(folder, *devices, evaluation=sizes, config=CONFIG):
    return ensembles.train(
        "number", config, devices[0], folder, evaluation=evaluation, evaluate_at=[0, 4, 9, 16], devices=devices
    )


@pytest.mark.parametrize(
    ("devices", "members", "tolerance"),
    [
        ([CPU, CPU], 4, 0),
        # On a CPU a product of one matrix is another routine than one of several, and rounds in another way.
        ([CPU, CPU], 3, 1e-5),
        # On a GPU the routine may depend on how many there are; products are of bfloat16 there.
        *[([torch.device("cuda", 0), torch.device("cuda", 1)], 4, 3e-2)] * (torch.cuda.device_count() > 1),
    ],
    ids=str,
)
def test_two_devices_give_what_one_gives(tmp_path, devices, members, tolerance):
    config = learning_dynamics.Config.preset_named("smoke", **SMALL | dict(members=members, other_members=1))
    together = train(tmp_path / "one", devices[0], config=config)
    apart = train(tmp_path / "two", *devices, config=config)
    assert sorted(file.stem for file in (tmp_path / "two").iterdir()) == ["0-1", f"2-{members - 1}"]
    compare(together, apart, atol=tolerance, rtol=0)
    if devices[0] == CPU:
        assert torch.equal(together[1].losses[:, :2], apart[1].losses[:, :2])
    assert apart[1].seconds_training > 0


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.NAME)
def test_a_study_on_two_devices_is_the_study_on_one(tmp_path, monkeypatch, study):
    """To the last bit where every device has more than one model, as above."""
    config = study.Config.preset_named("smoke", device="cpu", **SMALL | STUDIES[study])
    one = results.load_or_run(study, config, "always")
    for name in ("CACHE", "RESULTS"):
        monkeypatch.setenv(f"POSSYM_{name}", str(tmp_path / f"two-{name}"))
    for module in (ensembles, study):
        monkeypatch.setattr(module, "devices_of", lambda device: [device, device])
    two = results.load_or_run(study, config, "always")
    assert (one.manifest["devices"], two.manifest["devices"]) == (1, 2)
    assert one.manifest["config_hash"] == two.manifest["config_hash"]
    assert one.tables.keys() == two.tables.keys()
    for name in one.tables.keys() - {"timing"}:
        pd.testing.assert_frame_equal(one.tables[name], two.tables[name], check_exact=True)
    assert all(torch.equal(array, two.arrays[name]) for name, array in one.arrays.items())
    assert "2 × " in results.provenance_line(two) and "×" not in results.provenance_line(one)


def test_pieces_of_the_canonical_study_are_shared(tmp_path, monkeypatch):
    config = canonical.Config.preset_named(
        "smoke", device="cpu", frequency_ids=(0, 8), few_ids=(0, 8), length=6, long_length=8, width=8, steps=4,
        batch=8, warmup=1, points=2, test_sequences=8, final_sequences=16, scored_sequences=2,
    )  # fmt: skip
    one = results.load_or_run(canonical, config, "always")
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path / "two"))
    monkeypatch.setattr(canonical, "devices_of", lambda device: [device, device])
    two = results.load_or_run(canonical, config, "always")
    assert (one.manifest["devices"], two.manifest["devices"]) == (1, 2)
    for name, table in one.tables.items():
        pd.testing.assert_frame_equal(table, two.tables[name], check_exact=True)
    assert all(torch.equal(array, two.arrays[name]) for name, array in one.arrays.items())


def killing(folder, victim, seeds, device):
    """Measure as `sizes` does; members 2 and 3 kill before their third evaluation, once the others are finished.

    A checkpoint is written after every update.
    """
    Trainer.__init__.__kwdefaults__["checkpoint_seconds"] = 0
    measure, calls = sizes(seeds, device), []

    def evaluate(model, step):
        calls.append(1)
        if seeds[0] == 2 and len(calls) == 3:
            until(lambda: ensembles.is_finished(folder / "0-1.safetensors"))
            os.kill({"worker": os.getpid, "run": os.getppid}[victim](), signal.SIGKILL)
            time.sleep(600)
        return measure(model, step)

    return evaluate


SCRIPT = """
from functools import partial
from pathlib import Path
from tests.experiments.test_groups import CPU, killing, train

folder = Path({folder!r})
train(folder, CPU, CPU, evaluation=partial(killing, folder, {victim!r}))
"""


@pytest.fixture(scope="module", params=["worker", "run"])
def killed(request, tmp_path_factory):
    """The folder of a run on two devices one of whose processes, or itself, was killed in the second group."""
    here = tmp_path_factory.mktemp("killed")
    folder, script = here / "groups", here / "script.py"
    script.write_text(SCRIPT.format(folder=str(folder), victim=request.param))
    environment = {"PYTHONPATH": str(ROOT)} | {f"POSSYM_{name}": str(here / name) for name in ("CACHE", "RESULTS")}
    done = subprocess.run([sys.executable, script], env=os.environ | environment, capture_output=True, text=True)
    if request.param == "run":
        assert done.returncode == -signal.SIGKILL
    else:
        assert done.returncode == 1 and f"{DeviceError.__name__}: the work on cpu broke off" in done.stderr
    assert sorted(file.name for file in folder.iterdir()) == ["0-1.safetensors", "2-3.safetensors"]
    return folder


@pytest.mark.parametrize("devices", [1, 3])
def test_a_killed_run_goes_on_with_another_number_of_devices(tmp_path, monkeypatch, killed, devices):
    folder, log = shutil.copytree(killed, tmp_path / "groups"), tmp_path / "log"
    finished = (folder / "0-1.safetensors").stat().st_mtime_ns
    monkeypatch.setenv("LOG", str(log))
    resumed = train(folder, *[CPU] * devices)
    assert log.read_text().split() == ["2", "2"]  # the first group measures no more, the second twice of four times
    assert (folder / "0-1.safetensors").stat().st_mtime_ns == finished
    monkeypatch.delenv("LOG")
    compare(resumed, train(tmp_path / "straight", CPU), atol=0, rtol=0)
