"""A study as the first paper says it comes out, and ways to change it."""

import itertools

import numpy as np
import pandas as pd
import torch

from possym.experiments.canonical import TASKS, angle
from possym.results import Study
from possym.tasks import IndexTask

IDS = [*range(1, 13), 16, 20, 24, 32, 0]
FEW = [0, 1, 7, 13, 20]
SEEDS, PLACES = 8, 9
LEARNT = {
    "index": [1, 2, 3, 4, 5, 6, 7],
    "retrieval": [10, 11, 12, 16, 20, 24, 32, 0],
    "partial-induction": [],
}
# Angles in between, with the bend that the paper sees there.
BENT = {"index": ([8, 9, 10], 0.2), "retrieval": ([7, 8, 9], -0.2), "partial-induction": ([], 0.0)}
PAPER_LIKE = {
    "learnt": LEARNT,
    "many_learnt": {},
    "fixed_learnt": {},
    "pairs": {(0, 7): 0.97, (0, 13): 0.85, (0, 1): 0.3},
    "bent": BENT,
    "kind": {"index": (0.97, 0.03), "retrieval": (0.03, 0.97), "partial-induction": (0.5, 0.5)},
    "plane": (1.0, 0.0, -1.0),
}


def off(seed):
    """A little spread over seeds, mean zero."""
    return (-0.01, 0.01, -0.02, 0.02)[seed % 4]


def study(**changes):
    """Return a study with the tables that the claims read; `changes` replace entries of PAPER_LIKE."""
    settings = PAPER_LIKE | changes
    accuracy, by_place, scores = [], [], []
    place = np.linspace(-1, 1, PLACES)
    for task, planes, first, seed in itertools.product(TASKS, (1, 16), IDS, range(SEEDS)):
        learnt = settings["learnt"]
        bent, bend = settings["bent"][task]
        with_many = planes > 1 and first in settings["many_learnt"].get(task, [])
        mean = 0.95 if first in learnt[task] or with_many else 0.5 if first in bent else 0.1
        row = ("one-angle", task, 32, "learnt", first, -1, planes, seed)
        accuracy += [(*row, 0, 0.05), (*row, 100, mean + off(seed))]
        fixed = ("fixed-maps", task, 32, "fixed", first, -1, planes, seed)
        also = planes > 1 and first in settings["fixed_learnt"].get(task, [])
        accuracy.append((*fixed, 100, (0.97 if also else mean - 0.02) + off(seed)))
        scores += [(*fixed, t, *settings["kind"][task]) for t in (1e-4, 0.1)]
        curve = mean + off(seed) + (bend + off(seed)) * (place**2 - 0.4 if first in bent else 0 * place)
        by_place += [(*row, p, a) for p, a in enumerate(curve)]
        scores += [(*row, t, *settings["kind"][task]) for t in (1e-4, 0.1)]
    for pair, planes, seed in itertools.product(itertools.combinations_with_replacement(FEW, 2), (1, 16), range(SEEDS)):
        mean = settings["pairs"].get(pair, 0.4)
        accuracy.append(("two-angles", TASKS[2], 32, "learnt", *pair, planes, seed, 100, mean + off(seed)))
    head = ["piece", "task", "length", "maps", "first_id", "second_id", "planes", "seed"]
    tables = {
        "accuracy": pd.DataFrame(accuracy, columns=[*head, "step", "accuracy"]),
        "by_place": pd.DataFrame(by_place, columns=[*head, "place", "accuracy"]),
        "scores": pd.DataFrame(scores, columns=[*head, "temperature", "positional", "symbolic"]),
    }
    arrays = {f"index/final_{side}": table for side, table in planes_of(*settings["plane"]).items()}
    traced = [i for i in IDS if i in FEW]
    return Study(tables, arrays, {"traced_ids": traced, "config": {"preset": "paper"}})


def planes_of(keys, scatter, direction):
    """Contents of one-plane heads: keys in one direction (1) or spread (0), queries turned with the distance."""
    symbols, ids = IndexTask().symbols, [i for i in IDS if i in FEW]
    phase = torch.zeros(SEEDS, len(ids), symbols + 31)
    phase[..., :symbols] = (1 - keys) * torch.arange(symbols) * 2 * torch.pi / symbols
    for row, frequency_id in enumerate(ids):
        phase[:, row, symbols:] = direction * angle(frequency_id) * torch.arange(1, 32)
    phase += scatter * torch.randn(phase.shape, generator=torch.Generator().manual_seed(0))
    both = torch.stack([phase.cos(), phase.sin()], -1)
    return {"query": both, "key": both}
