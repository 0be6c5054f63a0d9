"""Verdicts follow from what was measured, on tables made to have one; without a study nothing is judged."""

import itertools
import zlib

import pandas as pd
import pytest

from possym.claims.rows import CLAIMS as LEDGER
from possym.experiments.cache_plans import Config, claims, summaries
from possym.experiments.cache_plans.measures import DOSE, OTHER
from possym.experiments.claim import COUNTED, FAILS, HOLDS, NOT_SHOWN, OWN, UNTESTABLE
from possym.experiments.language_models import summaries as language_models
from possym.kv_cache import RULES
from possym.results import Study

MODELS = [*itertools.product((claims.MAIN, OTHER), range(4)), (claims.REAL, 0)]
COST = {
    "none": 0.0, "positional": 0.4, "kind_distance": 0.2, "fitted": 0.1, "combined": 0.25, "beyond": 0.3, "area": 0.5,
    "entropy": 0.8, "random": 1.0, "oracle": 0.05,
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(language_models, "DRAWS", 100)


def wobble(*key):
    """A small number that differs from row to row, the same each time."""
    return (zlib.crc32(repr(key).encode()) % 97) / 97 * 0.01


ARMS = [*itertools.product(("symbolic", "retrieval", "positional"), ("group", "matched"))]


def dose_rows(at, recall, slowest):
    """Recall that falls by ``slowest`` in a group's own heads, a tenth of that in positional ones, else by 0.02."""
    planes = [(*arm, "slowest") for arm in ARMS] + [("retrieval", "group", "random")]
    for (group, arm, which), dose in itertools.product(planes, (0, 8, 32)):
        gone = slowest if (arm, which) == ("group", "slowest") else 0.02
        gone *= (dose > 0) * (0.1 if group == "positional" else 1)
        named = dict(group=group, arm=arm, planes=which, mode="silence", dose=dose)
        yield {**at, **named, "right": recall - gone + wobble(named, at)}


def probe_rows(at, intact, order):
    """Look-up that falls without symbolic and retrieval heads, counting that falls without positional ones."""
    for group, arm in [("none", "none"), *ARMS]:
        own = order * (arm == "group")
        lost = {"look-up": 0.7 * own * (group != "positional"), "counting": 1.5 * own * (group == "positional")}
        for probe, whole in intact.items():
            value = whole - lost[probe] + wobble(group, arm, probe, at)
            yield {**at, "group": group, "arm": arm, "probe": probe, "value": value}


def study(cost=COST, recall=0.9, slowest=0.6, counting=2.0, order=1.0):
    rows = {name: [] for name in ("loss", "needle", "copying", "dose", "knock_out", "kinds", "groups")}
    for (model, seed), sequence in itertools.product(MODELS, range(4)):
        at = dict(model=model, seed=seed, sequence=sequence)
        for rule, share in [("none", 0.0), *itertools.product([*cost][1:], (0.25, 0.5, 0.75))]:
            named = dict(at, rule=rule, draw=0, share=share)
            right = (seed + sequence) % 4 < 4 * (1 - cost[rule])
            if model == claims.REAL:
                right = 1 - cost[rule] + wobble(named, "found")  # of many needles, as each sequence is a unit
            rows["loss"].append({**named, "loss": 3 + seed + share * cost[rule] + wobble(named)})
            rows["needle"].append({**named, "right": right})
            rows["copying"].append({**named, "accuracy": 0.9 - 0.5 * cost[rule] + wobble(named, "copied")})
        rows["dose"] += dose_rows(at, recall, slowest)
        rows["knock_out"] += probe_rows(at, {"look-up": recall, "counting": counting}, order)
    for (model, seed), layer, head in itertools.product(MODELS, range(4), range(8)):
        symbolic = 0.5 + order * (0.4 if head < 2 else -0.1 - 0.01 * head)
        at = dict(model=model, seed=seed, layer=layer, head=head)
        rows["kinds"].append({**at, "positional": 1 - symbolic, "symbolic": symbolic})
        if head < 2:
            rows["groups"].append({**at, "group": "retrieval", "arm": "group"})
    held = pd.DataFrame({"bytes": [8, 16], "planned": [8, 16], "off": [1e-6, 0.0]})
    return Study({name: pd.DataFrame(found) for name, found in rows.items()} | {"held": held})


def verdicts(found):
    return {claim.id: claim.measure(found).verdict for claim in claims.CLAIMS}


def test_what_was_asked_holds_on_tables_that_say_so():
    assert set(verdicts(study()).values()) == {HOLDS}


def test_and_fails_on_tables_that_say_the_opposite():
    cost = COST | {"random": 0.0, "positional": 0.1, "beyond": 0.15, "kind_distance": 0.4, "fitted": 0.5, "area": 0.02}
    found = verdicts(study(cost | {"combined": 0.6, "oracle": 0.9}, slowest=-0.3, order=-1.0))
    assert found.pop("forget-bytes") == HOLDS and set(found.values()) == {FAILS}


def test_a_row_reads_its_own_share_and_its_own_model():
    found = study()
    loss = found.tables["loss"]
    there = (loss["share"] == 0.75) & (loss["rule"] != "oracle")  # near random all, at this share alone
    far = loss["loss"].mask(there, 3.7 + loss["seed"] + (loss["rule"] == "random") * 0.01)
    real = loss["loss"].mask((loss["model"] == claims.REAL) & (loss["rule"] == "beyond"), 3.0)
    before = verdicts(found)
    after = [
        {name: verdict for name, verdict in verdicts(changed).items() if verdict != before[name]}
        for changed in (Study(found.tables | {"loss": loss.assign(loss=each)}) for each in (far, real))
    ]
    assert {*after[0]} == {"forget-oracle-75", "forget-best-75", "forget-best-smollm2-75"}
    assert {*after[1]} == {"forget-smollm2-mass", *(f"forget-best-smollm2-{share}" for share in (25, 50, 75))}


def test_no_difference_is_not_shown():
    found = verdicts(study(dict.fromkeys(COST, 0.0), order=0.0))
    assert (
        found["forget-positional"]
        == found["forget-copying"]
        == found["forget-counting"]
        == found["P3-retrieval-causal"]
        == NOT_SHOWN
    )


def test_a_model_that_neither_recalls_nor_counts_answers_nothing():
    found = verdicts(study(recall=0.1, counting=0.2))
    unanswered = {name for name, verdict in found.items() if verdict == UNTESTABLE}
    assert unanswered == {
        f"{name}{model}"
        for model in ("", "-smollm2")
        for name in (
            "forget-needle", "forget-counting", "forget-look-up", "forget-dose-symbolic", "P3-retrieval-causal",
            "P3-dose-planes", "P3-dose-heads",
        )
    }  # fmt: skip


def test_two_seeds_or_no_real_model_answer_nothing():
    whole = study()
    tables = {name: t for name, t in whole.tables.items() if name != "held"}
    tables = {name: t[(t["seed"] < 2) & (t["model"] != claims.REAL)] for name, t in tables.items()}
    few = Study(tables | {"held": whole.tables["held"]})
    found = verdicts(few)
    assert found.pop("forget-bytes") == HOLDS and set(found.values()) == {UNTESTABLE}
    assert claims.CLAIMS[0].measure(few).measured == "2 seeds so far"


def test_an_interval_is_over_seeds_and_for_one_model_over_sequences():
    loss = study().tables["loss"]
    for model, unit in ((claims.MAIN, "seed"), (claims.REAL, "sequence")):
        rows = loss[(loss["model"] == model) & (loss["share"] == 0.5)]
        wide = rows.pivot_table(index=unit, columns="rule", values="loss")
        values = wide["positional"] - wide["random"]
        found = summaries.rule_less_rule(loss, model, "positional", "random", 0.5)
        assert found.value == pytest.approx(values.mean())
        assert found.high - found.value == pytest.approx(values.sem() * 3.182446)  # t of 3 degrees of freedom


def test_every_claim_is_named_once_and_in_the_ledger():
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS) == 37
    assert all(claim.criterion and claim.study == "cache_plans" for claim in claims.CLAIMS)
    assert {claim.paper for claim in claims.CLAIMS} == {OWN, claims.THIRD}
    assert all(claim.kind in COUNTED for claim in claims.CLAIMS if claim.paper == claims.THIRD)
    assert {claim.id for claim in claims.CLAIMS} <= {claim.id for claim in LEDGER}
    assert set(summaries.COMPARED) == set(RULES) - {"oracle"} and set(COST) == {*RULES, "none"}
    asked = Config.preset_named("paper")
    assert DOSE in asked.doses and {0.25, 0.5, 0.75} <= set(asked.shares)
    assert {claims.MAIN, OTHER, claims.REAL} == {name for name, _ in asked.subjects()}


def test_needles_of_real_models_lie_where_the_criteria_say_and_such_rows_say_what_was_known():
    assert Config.depths == (0.0, 0.5, 1.0) and claims.TRAINED_DEPTHS == "0, 0.5 and 1"
    assert Config.real_depths == (0.25, 0.5, 0.75) and claims.REAL_DEPTHS == "0.25, 0.5 and 0.75"
    for claim in claims.CLAIMS:
        if "recall of needles at depths" in claim.criterion:
            real = claims.REAL_DEPTHS in claim.criterion
            assert real == claim.id.endswith("-smollm2"), claim.id
            assert real == (bool(claim.changed) or "written after the first run" in claim.criterion), claim.id
