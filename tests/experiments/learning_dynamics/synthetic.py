"""Tables of a made-up training study, in the form that `possym.experiments.learning_dynamics` stores."""

import numpy as np
import pandas as pd

from possym.experiments.learning_dynamics import pure_heads
from possym.results import Study

STEPS = [0, *range(250, 6751, 250)]
PAPER_LIKE = {
    "learnt": {("number", hops): 1000 + 1000 * hops for hops in (1, 2, 3, 4)}
    | {("letter", hops): 3000 for hops in (1, 2, 3, 4)},
    "best": {"number": 4750, "letter": 3500},
    "kinds": {"number": ["positional"] * 4 + ["symbolic"] * 8, "letter": ["symbolic"] * 11 + ["neither"]},
    "final": {"number": 1.0, "letter": 1.0},
    "start": 1.0,
    "turns": 2000,
}


def study(seeds: int = 4, **changes) -> Study:
    """A study as the paper says, but for ``changes`` of `PAPER_LIKE`; values may be functions of the seed."""
    recipe = {**PAPER_LIKE, **changes}

    def of(value, seed):
        return value(seed) if callable(value) else value

    accuracy, scores = [], []
    for task in ("number", "letter"):
        for seed in range(seeds):
            learnt, best = of(recipe["learnt"], seed), of(recipe["best"], seed)[task]
            final = of(recipe["final"], seed)[task]
            for step in STEPS:
                by_hops = [0.95 if step >= learnt[task, hops] else 0.1 for hops in (1, 2, 3, 4)]
                overall = 1.0 if step == best else float(np.mean(by_hops)) * 0.99
                accuracy += [(task, step, seed, "validation", h, a) for h, a in enumerate([overall, *by_hops])]
            accuracy += [(task, STEPS[-1], seed, "test", hops, final) for hops in range(5)]
            kinds = of(recipe["kinds"], seed)[task]
            turns = recipe["turns"]
            for layer, kind in enumerate(kinds):
                turned = turns + 250 * layer
                end = {"positional": (0.98, 0.02), "symbolic": (0.02, 0.98), "neither": (0.6, 0.4)}[kind]
                for step in STEPS:
                    pair = end if step >= turned else (recipe["start"], recipe["start"])
                    entropy = np.log(17) if step < turned else 1.0
                    scores.append((task, step, seed, layer, 0, *pair, entropy))
    accuracy = pd.DataFrame(accuracy, columns=["task", "step", "seed", "split", "hops", "accuracy"])
    scores = pd.DataFrame(
        scores, columns=["task", "step", "seed", "layer", "head", "positional", "symbolic", "entropy"]
    )
    heads = pd.concat([pure_heads(scores, gamma) for gamma in (0.1, 0.05)], ignore_index=True)
    manifest = {"config": {"preset": "paper"}}
    return Study({"accuracy": accuracy, "scores": scores, "heads": heads}, {}, manifest)
