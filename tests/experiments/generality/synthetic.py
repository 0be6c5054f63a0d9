"""Tables of a made-up study of settings, in the form that `possym.experiments.generality` stores."""

import pandas as pd

from possym.experiments.generality import SETTINGS
from possym.experiments.learning_dynamics import pure_heads
from possym.results import Study

STEPS = [0, 1000, 2000, 3000, 4000, 5000, 6000]
PAIRS = [(setting, task) for setting in SETTINGS[:-1] for task in ("number", "letter")] + [("mixed", "mixed")]
ENDS = {"P": (0.98, 0.02), "S": (0.02, 0.98), "N": (0.6, 0.4)}
GENERAL = {
    "kinds": {pair: "SSSS" if pair[1] == "letter" else "PPSN" for pair in PAIRS},
    "final": dict.fromkeys(PAIRS, 0.999),
    "turns": dict.fromkeys(PAIRS, 4000),
    "learnt": {(pair, hops): 1000 + 1000 * hops for pair in PAIRS for hops in (1, 2, 3, 4)},
}


def study(seeds: int = 8, **changes) -> Study:
    """A study in which all findings carry over, but for ``changes`` of `GENERAL`, which may be functions of the seed.

    Accuracy by hops rises to 0.95 at its step of ``learnt``; over all hops it is 0.1 before half of them are learnt,
    0.6 before all are, then ``final``. Heads have both scores 1 before step ``turns`` and are of their kind after.
    """
    accuracy, scores = [], []
    for seed in range(seeds):
        recipe = {**GENERAL, **{key: value(seed) if callable(value) else value for key, value in changes.items()}}
        for pair in PAIRS:
            final = recipe["final"][pair]
            for step in STEPS:
                known = [step >= recipe["learnt"][pair, hops] for hops in (1, 2, 3, 4)]
                overall = final if step == STEPS[-1] or all(known) else 0.6 if sum(known) >= 2 else 0.1
                by_hops = [0.95 if each else 0.1 for each in known]
                accuracy += [(*pair, step, seed, "validation", h, a) for h, a in enumerate([overall, *by_hops])]
                for layer, kind in enumerate(recipe["kinds"][pair]):
                    values = ENDS[kind] if step >= recipe["turns"][pair] else (1.0, 1.0)
                    scores.append((*pair, step, seed, layer, 0, *values))
            accuracy += [(*pair, STEPS[-1], seed, "test", hops, final) for hops in range(5)]
    key = ["setting", "task", "step", "seed"]
    accuracy = pd.DataFrame(accuracy, columns=[*key, "split", "hops", "accuracy"])
    scores = pd.DataFrame(scores, columns=[*key, "layer", "head", "positional", "symbolic"])
    heads = pd.concat(
        [
            pure_heads(rows, gamma).assign(setting=setting)
            for setting, rows in scores.groupby("setting", sort=False)
            for gamma in (0.1, 0.05)
        ],
        ignore_index=True,
    )
    tables = {"accuracy": accuracy, "scores": scores, "heads": heads}
    return Study(tables, {}, {"config": {"preset": "paper"}})
