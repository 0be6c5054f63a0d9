"""Tables of a made-up mechanism study, in the form that `possym.experiments.mechanism` stores, as the paper says."""

import pandas as pd

from possym.results import Study

LAYERS, SEEDS = 12, 4
WEIGHTINGS = ("norm", "energy", "variance", "effect")
TABLE1 = {
    "number": [1, 2, 2, 2, 10, 39, 38, 38, 38, 37, 37, 38],
    "letter": [18, 32, 42, 37, 40, 38, 41, 38, 41, 39, 38, 40],
}
PAPER_LIKE = {
    "labels": {task: [1] * 4 + [0] * 8 for task in TABLE1},
    "dominant": TABLE1,
    "kinds": {"number": ["positional"] * 4 + ["symbolic"] * 8, "letter": ["symbolic"] * 12},
}
SCORES = {"positional": (0.97, 0.02), "symbolic": (0.02, 0.97), "neither": (0.5, 0.5)}


def study(**changes) -> Study:
    """A study as the paper says, but for ``changes`` of `PAPER_LIKE`; values may be functions of the seed."""
    recipe = {**PAPER_LIKE, **changes}

    def of(value, seed):
        return value(seed) if callable(value) else value

    tables = {name: [] for name in ("labels", "frequencies", "training")}
    for task in TABLE1:
        for seed in range(SEEDS):
            labels, dominant, kinds = (of(recipe[name], seed)[task] for name in ("labels", "dominant", "kinds"))
            for layer in range(LAYERS):
                for without in (-1, 0):
                    power = labels[layer] if without < 0 else 0
                    tables["labels"].append((task, seed, without, layer, power, 0.99, power))
                for number, weighting in enumerate(WEIGHTINGS):
                    off = 0 if weighting == "energy" else 3 * number + 3
                    tables["frequencies"].append((task, seed, layer, 0, weighting, dominant[layer] + off, 1))
                for step in (0, 500, 1000):
                    scores = SCORES[kinds[layer]] if step == 1000 else (1.0, 1.0)
                    power = labels[layer] if step else -1
                    tables["training"].append((task, seed, step, layer, power, 0.9, *scores))
    columns = {
        "labels": ["task", "seed", "without", "layer", "function", "agreement", "last_function"],
        "frequencies": ["task", "seed", "layer", "head", "weighting", "dominant", "strongest"],
        "training": ["task", "seed", "step", "layer", "function", "agreement", "positional", "symbolic"],
    }
    frames = {name: pd.DataFrame(rows, columns=columns[name]) for name, rows in tables.items()}
    return Study(frames, {}, {"seeds": list(range(SEEDS)), "config": {"preset": "paper"}})
