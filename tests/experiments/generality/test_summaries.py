"""Summaries of settings against counts made by hand and with plain loops."""

import numpy as np
import pandas as pd
import pytest

from possym import InputError
from possym.experiments.generality import summaries as settings

from .synthetic import GENERAL, PAIRS, study


@pytest.fixture(scope="module")
def random_tables():
    """A study with random scores and accuracies in shuffled rows, several heads a layer."""
    random = np.random.default_rng(0)
    made = study(seeds=2).tables
    for name, columns in (("accuracy", ["accuracy"]), ("scores", ["positional", "symbolic"])):
        for column in columns:
            made[name][column] = np.where(random.random(len(made[name])) < 0.3, 0.02, random.random(len(made[name])))
        made[name] = made[name].sample(frac=1, random_state=1)
    made["heads"]["kind"] = random.integers(-1, 2, len(made["heads"]))
    made["heads"]["layer"] //= 2
    return made


@pytest.mark.parametrize("gamma", [0.1, 0.05])
def test_ends_count_every_models_heads(random_tables, gamma):
    found = settings.final_purity(random_tables["accuracy"], random_tables["heads"], gamma)
    assert len(found) == 2 * len(PAIRS)
    for row in found.itertuples():
        where = f"setting == '{row.setting}' and task == '{row.task}' and seed == {row.seed}"
        mine = random_tables["heads"].query(f"{where} and gamma == {gamma}")
        assert row.heads == len(mine) == 4
        for kind, sign in (("positional", 1), ("symbolic", -1)):
            layers = [layer for layer, each in zip(mine["layer"], mine["kind"], strict=True) if each == sign]
            assert getattr(row, kind) == len(layers)
            depth = np.mean([(layer + 0.5) / 2 for layer in layers]) if layers else np.nan
            assert getattr(row, f"{kind}_depth") == pytest.approx(depth, nan_ok=True)
        test = random_tables["accuracy"].query(f"{where} and split == 'test' and hops == 0")["accuracy"]
        assert row.accuracy == test.item()


@pytest.mark.parametrize("gamma", [0.1, 0.3])
def test_the_course_counts_heads_that_are_pure_just_then(random_tables, gamma):
    found = settings.course(random_tables["accuracy"], random_tables["scores"], gamma)
    assert len(found) == 2 * len(PAIRS) * 7
    for row in found.iloc[::9].itertuples():
        where = f"setting == '{row.setting}' and task == '{row.task}' and seed == {row.seed} and step == {row.step}"
        heads = random_tables["scores"].query(where)
        counts = {"positional": 0, "symbolic": 0}
        for p, s in zip(heads["positional"], heads["symbolic"], strict=True):
            counts["positional"] += p >= 1 - gamma and s <= gamma
            counts["symbolic"] += s >= 1 - gamma and p <= gamma
        assert row.positional == counts["positional"] / 4 and row.symbolic == counts["symbolic"] / 4
        accuracy = random_tables["accuracy"].query(f"{where} and split == 'validation' and hops == 0")["accuracy"]
        assert row.accuracy == accuracy.item()


def test_before_is_the_last_evaluation_before_accuracy_first_reaches_one_half():
    table = pd.DataFrame(
        {
            "setting": "heads",
            "task": "letter",
            "seed": 0,
            "step": [300, 0, 100, 200],
            "accuracy": [0.9, 0.1, 0.5, 0.4],
            "positional": [0.25, 0.0, 0.5, 0.75],
            "symbolic": [0.5, 0.125, 0.0, 0.0],
        }
    )
    assert settings.before_and_after(table).values.tolist() == [["heads", "letter", 0, 0.125, 0.75, False]]
    better = table.assign(accuracy=[0.99, 0.1, 0.2, 0.3])
    assert settings.before_and_after(better)[["before", "after", "learnt"]].values.tolist() == [[0.75, 0.75, True]]


def test_what_is_gained_while_learning_is_set_beside_a_constant_drift():
    table = pd.DataFrame(
        {
            "setting": "heads",
            "task": "letter",
            "seed": 0,
            "step": [400, 0, 100, 300, 200],  # in any order
            "accuracy": [1.0, 0.1, 0.49, 0.99, 0.5],
            "positional": [0.5, 0.0, 0.25, 0.5, 0.25],
            "symbolic": [0.5, 0.125, 0.125, 0.25, 0.25],
        }
    )
    row = settings.gained_while_learning(table).iloc[0]
    # From step 100, the last below one half, to step 300, the first at 99 %: 0.75 less 0.375; half of 0.875 as drift.
    assert row[["gained", "drift", "rise"]].tolist() == [0.375, 0.4375, 0.875] and row["learnt"]
    later = settings.gained_while_learning(table.assign(step=table["step"] + 400)).iloc[0]  # not from step 0
    assert later[["gained", "drift", "rise"]].tolist() == [0.375, 0.4375, 0.875]
    back = table.assign(accuracy=[0.98, 0.1, 0.49, 0.99, 0.5])
    row = settings.gained_while_learning(back).iloc[0]
    assert not row["learnt"] and pd.isna(row["gained"]) and pd.isna(row["drift"]) and row["rise"] == 0.875
    with pytest.raises(InputError, match="heads letter 0: accuracy is never below 0.5"):
        settings.gained_while_learning(table.assign(accuracy=0.5))


def test_layers_are_counted_over_heads_and_seeds(random_tables):
    found = settings.by_layer(random_tables["heads"])
    assert len(found) == len(PAIRS) * 2 * 3
    names = {"positional": 1, "symbolic": -1, "neither": 0}
    for row in found.itertuples():
        mine = random_tables["heads"].query(
            f"setting == '{row.setting}' and task == '{row.task}' and layer == {row.layer} and gamma == 0.1"
        )
        assert len(mine) == 4 and row.share == (mine["kind"] == names[row.kind]).mean()
    assert found.groupby(["setting", "task", "layer"])["share"].sum().tolist() == pytest.approx([1.0] * 2 * len(PAIRS))


def test_models_of_different_depths_compare():
    kinds = GENERAL["kinds"] | {("layers", "number"): "PS"}
    tables = study(kinds=kinds).tables
    found = settings.final_purity(tables["accuracy"], tables["heads"]).query("setting == 'layers' and task == 'number'")
    assert set(found["positional_depth"]) == {0.25} and set(found["symbolic_depth"]) == {0.75}


def test_bad_input_is_refused(random_tables):
    accuracy, heads = random_tables["accuracy"], random_tables["heads"]
    with pytest.raises(InputError, match=r"gamma = 0\.2: the heads were judged at 0\.05, 0\.1"):
        settings.final_purity(accuracy, heads, 0.2)
