"""Tables of a made-up mechanism study, in the form that `possym.experiments.mechanism` stores, as the paper says."""

import itertools

import pandas as pd

from possym.results import Study

LAYERS, SEEDS = 12, 8
WEIGHTINGS = ("norm", "energy", "variance", "effect")
TABLE1 = {
    "number": [1, 2, 2, 2, 10, 39, 38, 38, 38, 37, 37, 38],
    "letter": [18, 32, 42, 37, 40, 38, 41, 38, 41, 39, 38, 40],
}
PAPER_LIKE = {
    "labels": {task: [1] * 4 + [0] * 8 for task in TABLE1},
    "dominant": TABLE1,
    "kinds": {"number": ["positional"] * 4 + ["symbolic"] * 8, "letter": ["symbolic"] * 12},
    # What the book found beyond the papers: no layer is needed, two layers bring three hops, the path counts.
    "without": {task: [1.0] * 12 for task in TABLE1},
    "behind": [1, 3] + [4] * 10,
    "answers": {
        "disagree": {"path": 1.0, "rule": 0.0, "target": 0.0},
        "cut-disagree": {"path": 0.7, "rule": 0.15, "target": 0.15},
    },
}
SCORES = {"positional": (0.97, 0.02), "symbolic": (0.02, 0.97), "neither": (0.5, 0.5)}


def study(**changes) -> Study:
    """A study as the paper says, but for ``changes`` of `PAPER_LIKE`; values may be functions of the seed."""
    recipe = {**PAPER_LIKE, **changes}

    def of(value, seed):
        return value(seed) if callable(value) else value

    tables = {name: [] for name in ("labels", "frequencies", "training", "causes", "left", "rule")}
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
    for seed in range(SEEDS):
        for task, layer in itertools.product(TABLE1, range(LAYERS)):
            right = of(recipe["without"], seed)[task][layer]
            for change, hops in itertools.product(("self", "uniform", "exchanged"), (0, 4)):
                value = {"self": right, "uniform": right - 0.2, "exchanged": 0.1}[change] if hops == 0 else 0.1
                tables["causes"] += [
                    (task, seed, change, places, layer, hops, value)
                    for places in ("all", "last")
                    if places == "all" or change == "self"
                ]
                tables["causes"][-1] = (*tables["causes"][-1][:6], 0.1) if change == "self" else tables["causes"][-1]
        for layer, behind in enumerate([0, *of(recipe["behind"], seed)], start=-1):
            tables["left"] += [("letter", seed, layer, 4, 4 - behind, 0.9), ("letter", seed, layer, 4, 5, 0.1)]
            tables["left"].append(("letter", seed, layer, 1, 0, 1.0))
        for kind, answers in of(recipe["answers"], seed).items():
            tables["rule"] += [("letter", kind, hops, seed, *pair) for hops in (1, 4) for pair in answers.items()]
            tables["rule"] += [("letter", "drawn", 1, seed, "path", 0.0), ("letter", "drawn", 1, seed, "rule", 1.0)]
    columns = {
        "causes": ["task", "seed", "change", "places", "layer", "hops", "accuracy"],
        "left": ["task", "seed", "layer", "hops", "left", "share"],
        "rule": ["task", "kind", "hops", "seed", "answer", "share"],
        "labels": ["task", "seed", "without", "layer", "function", "agreement", "last_function"],
        "frequencies": ["task", "seed", "layer", "head", "weighting", "dominant", "strongest"],
        "training": ["task", "seed", "step", "layer", "function", "agreement", "positional", "symbolic"],
    }
    frames = {name: pd.DataFrame(rows, columns=columns[name]) for name, rows in tables.items()}
    return Study(frames, {}, {"seeds": list(range(SEEDS)), "config": {"preset": "paper"}})
