"""Verdicts on real models follow the data: as the paper says, every claim holds; each change flips its own."""

import itertools

import numpy as np
import pandas as pd
import pytest

from possym import claims
from possym.experiments.real_models import claims as real
from possym.results import Study

LAYERS, HEADS, PLANES = 10, 6, 12
TASK = "binding, 256 pairs"


def study(*, noise=0.03, step=0.4, symbolic=-1.0, slow=(0.5, 0.98), middle=(0.9, 0.6), fast=(0.95, 0.7),
          fastest=(0.97, 0.96), fastest_norm=0.5, key_spread=0.1, over_bound=1):  # fmt: skip
    """A study of which everything is known."""
    random = np.random.default_rng(0)
    rows = []
    for prompt, layer, head in itertools.product(range(3), range(LAYERS), range(HEADS)):
        positional = 0.5 + step * (0.5 - layer / (LAYERS - 1)) + noise * random.normal()
        other = 1 + symbolic * positional + noise * random.normal()
        rows.append((TASK, "statements", prompt, layer, head, positional, other, 1.0, 0.5 * over_bound, 0.6))
    heads = pd.DataFrame(
        rows,
        columns=["task", "blocks", "prompt", "layer", "head", "positional", "symbolic", "entropy", "variance", "bound"],
    )
    parts = [fastest, *[fast] * 3, *[middle] * 4, *[slow] * 4]
    frequencies = pd.DataFrame(
        [
            (
                TASK,
                "statements",
                layer,
                head,
                number + 1,
                0.5**number,
                *parts[number],
                fastest_norm if number == 0 else 1.0,
            )
            for layer, head, number in itertools.product(range(LAYERS), range(HEADS), range(PLANES))
        ],
        columns=["task", "blocks", "layer", "head", "frequency_id", "angle", "positional", "symbolic", "logit_norm"],
    )
    points = []
    for kind, number in itertools.product(("positional", "symbolic"), (1, 2, 3)):
        for role, spread in (("key", key_spread * (number if key_spread > 1 else 1)), ("query", 2.0)):
            for angle in spread * random.normal(size=200):
                points.append((kind, number, role, np.cos(angle), np.sin(angle)))
    planes = pd.DataFrame(points, columns=["kind", "frequency_id", "role", "x", "y"])
    manifest = {"config": {"pairs": [8, 256], "preset": "paper"}}
    return Study({"heads": heads, "frequencies": frequencies, "planes": planes}, {}, manifest)


def verdicts(**changes):
    found = claims.ledger(real.CHAPTER, {"real_models": study(**changes)})["verdict"].to_dict()
    return {claim.id: found[claim.id] for claim in real.CLAIMS if claim.study}


@pytest.fixture(scope="module")
def as_published():
    return verdicts()


def test_a_study_as_published_makes_every_claim_hold(as_published):
    assert set(as_published.values()) == {"holds"}


FLIPS = [
    ("real-trade", {"symbolic": -0.4, "noise": 0.16}, "holds in part"),
    ("real-trade", {"symbolic": 0.0}, "does not hold"),
    ("real-early-positional", {"step": 0.1, "noise": 0.1}, "not shown"),
    ("real-early-positional", {"step": 0.08, "noise": 0.1}, "not shown"),
    ("real-early-positional", {"step": -0.4}, "does not hold"),
    ("real-late-symbolic", {"step": 0.1, "noise": 0.1}, "not shown"),
    ("real-late-symbolic", {"step": 0.08, "noise": 0.1}, "not shown"),
    ("real-late-symbolic", {"symbolic": 1.0}, "does not hold"),
    ("real-slow-symbolic", {"slow": (0.95, 0.98)}, "holds in part"),
    ("real-slow-symbolic", {"slow": (0.98, 0.95)}, "does not hold"),
    ("real-fast-positional", {"middle": (0.6, 0.9)}, "holds in part"),
    ("real-fast-positional", {"fast": (0.95, 0.9)}, "holds in part"),
    ("real-fast-positional", {"middle": (0.6, 0.9), "fast": (0.6, 0.9)}, "does not hold"),
    ("real-fastest-both", {"fastest_norm": 1.5}, "holds in part"),
    ("real-fastest-both", {"middle": (0.99, 0.95)}, "holds in part"),
    ("real-fastest-both", {"middle": (0.99, 0.97)}, "does not hold"),
    ("real-fastest-both", {"fastest": (0.97, 0.5)}, "does not hold"),
    ("real-keys-gather", {"key_spread": 20.0}, "does not hold"),
    ("real-exclusion", {"over_bound": 1.3}, "does not hold"),
]


@pytest.mark.parametrize(("name", "changes", "expected"), FLIPS)
def test_a_change_flips_its_claim(name, changes, expected, as_published):
    found = verdicts(**changes)
    assert found[name] == expected
    changed = {key for key in found if found[key] != as_published[key]}
    # Heads share one table, and so do planes: what moves early against late moves the correlation too.
    heads = {"real-trade", "real-early-positional", "real-late-symbolic"}
    planes = {"real-slow-symbolic", "real-fast-positional", "real-fastest-both"}
    assert changed <= next((shared for shared in (heads, planes) if name in shared), {name})


def test_claims_of_frequencies_do_not_look_at_heads(as_published):
    changes = {"slow": (0.98, 0.95), "middle": (0.6, 0.9), "fastest": (0.8, 0.5)}
    assert verdicts(**changes)["real-trade"] == "holds"


def test_every_testable_claim_has_a_flip():
    assert {name for name, *_ in FLIPS} == {claim.id for claim in real.CLAIMS if claim.study}
