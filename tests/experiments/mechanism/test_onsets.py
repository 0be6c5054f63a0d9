"""Onsets against a plain walk backwards through training."""

import numpy as np
import pandas as pd

from possym.experiments.mechanism.onsets import onsets


def test_onsets_are_where_a_walk_back_from_the_end_stops():
    random = np.random.default_rng(0)
    kinds = {1: (0.96, 0.03), -1: (0.04, 0.97), 0: (0.6, 0.6)}
    rows, expected = [], {}
    for seed in range(30):
        for layer in range(3):
            functions, kind = random.choice([-1, 0, 1], 6), random.choice([1, -1, 0], 6)
            keep = random.integers(1, 7)
            functions[-keep:], kind[-keep:] = functions[-1], kind[-1]
            steps = [0, 10, 30, 70, 150, 310]
            for step, function, sign in zip(steps, functions, kind, strict=True):
                rows.append(("letter", seed, layer, step, function, *kinds[sign]))
            found = []
            for values, none in ((functions, -1), (kind, 0)):
                first = len(steps) - 1
                while first > 0 and values[first - 1] == values[-1]:
                    first -= 1
                found.append(float("nan") if values[-1] == none else steps[first])
            expected[seed, layer] = (functions[-1], found[0], kind[-1], found[1])
    columns = ["task", "seed", "layer", "step", "function", "positional", "symbolic"]
    table = pd.DataFrame(rows, columns=columns).sample(frac=1, random_state=1)
    found = onsets(table).set_index(["seed", "layer"])
    assert len(found) == 90 and found["function_since"].isna().any() and (found["function_since"] == 0).any()
    for key, values in expected.items():
        row = found.loc[key, ["function", "function_since", "kind", "pure_since"]].astype(float).to_numpy()
        np.testing.assert_array_equal(row, np.array(values, float))


def test_gamma_decides_what_is_pure():
    table = pd.DataFrame(
        {"task": "letter", "seed": 0, "layer": 0, "step": [0, 1], "function": 0, "positional": [1.0, 0.08],
         "symbolic": [1.0, 0.95]}
    )  # fmt: skip
    assert onsets(table)["kind"].item() == -1 and onsets(table, gamma=0.05)["kind"].item() == 0
