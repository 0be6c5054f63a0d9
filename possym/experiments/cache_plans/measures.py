"""How the claims of this study are measured: differences unit by unit, each with its interval and its verdict."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from possym.experiments.cache_plans import summaries
from possym.experiments.cache_plans.summaries import RULE_NAMES
from possym.experiments.claim import UNTESTABLE, Measurement, judge
from possym.experiments.language_models.claims import by_interval
from possym.profiling.statistics import Estimate
from possym.results import Study

FEWEST = 3
MAIN, OTHER, REAL = "rope", "slow_half_still", "SmolLM2-135M-Instruct"
DOSE = 0.25  # of the planes: the paper's 32 of 128 dimensions
Units = Callable[[Study, str], pd.Series | Estimate]


def missing(study: Study, model: str) -> str:
    """Return why one model answers nothing in this run, or nothing."""
    seeds = summaries.of_model(study.tables["kinds"], model)["seed"].nunique()
    if not seeds:
        return f"no {model} in this run"
    return f"{seeds} seed{'s' * (seeds > 1)} so far" if model != REAL and seeds < FEWEST else ""


def asked(words: str, take: Units, sign: int, model: str = MAIN, *needs: tuple[str, float]) -> Callable:
    """Return the measure of a difference; ``needs`` are probes and the least that the intact model must have."""

    def measure(study: Study) -> Measurement:
        if why := missing(study, model):
            return Measurement(why, "", UNTESTABLE)
        for probe, least in needs:
            intact = summaries.probe_intact(study.tables["knock_out"], model, probe)
            if not intact >= least:
                return Measurement(f"the intact model's {probe} is {intact:.2f}, below {least}", "", UNTESTABLE)
        found = estimated(take(study, model))
        chance = "nothing tells them apart" if np.isnan(found.p_value) else f"p = {found.p_value:.2g}"
        beside = ""
        if model == MAIN and not missing(study, OTHER):
            beside = f" with p-RoPE {estimated(take(study, OTHER)).value:+.3f}, with RoPE"
        return Measurement(
            f"{words}{beside} {found.value:+.3f} ({chance})",
            "the same in every seed or sequence" if np.isnan(found.p_value) else f"{found.low:.3f} to {found.high:.3f}",
            by_interval(found, sign),
            (found,),
        )

    return measure


def with_levels(measure: Callable, group: str, model: str) -> Callable:
    """Return a measure that also says the recall of the intact model, without a group, and without matched heads."""

    def levels(study: Study) -> Measurement:
        found = measure(study)
        if found.verdict == UNTESTABLE:
            return found
        intact = summaries.probe_intact(study.tables["knock_out"], model, "look-up")
        left = [intact - float(without("look-up", group, arm)(study, model).mean()) for arm in ("group", "matched")]
        words = f"recall {intact:.2f}, without them {left[0]:.2f}, without matched heads {left[1]:.2f}"
        return found._replace(measured=f"{words}; {found.measured}")

    return levels


def estimated(found: pd.Series | Estimate) -> Estimate:
    """Return one value a unit as an estimate."""
    return found if isinstance(found, Estimate) else summaries.estimate(found)


def named(rule: str) -> str:
    """Return the shortest name of a rule that the chapter gives it."""
    return RULE_NAMES[rule].removeprefix("kind × distance, ")


def rules(first: str, second: str, model: str = MAIN) -> Callable:
    """Return the measure of one rule's excess loss less another's; below 0 is for the first."""
    return asked(
        f"{named(first)} minus {named(second)}, nats per token:",
        lambda study, name: summaries.rule_less_rule(study.tables["loss"], name, first, second, 0.5),
        -1,
        model,
    )


def best_at(share: float, model: str = MAIN) -> Callable:
    """Return the measure of whether a rule of scores alone costs least at a share."""

    def measure(study: Study) -> Measurement:
        if why := missing(study, model):
            return Measurement(why, "", UNTESTABLE)
        loss = study.tables["loss"]
        ours, theirs = (
            summaries.best_rule(loss, model, share, rules) for rules in (summaries.SCORE_RULES, summaries.BASELINES)
        )
        found = summaries.rule_less_rule(loss, model, ours, theirs, share)
        return Measurement(
            f"best of all: {named(summaries.best_rule(loss, model, share))}; best of scores alone minus best of the "
            f"others ({named(ours)} minus {named(theirs)}): {found.value:+.3f} nats per token "
            f"(p = {found.p_value:.2g})",
            f"{found.low:.3f} to {found.high:.3f}",
            by_interval(found, -1),
            (found,),
        )

    return measure


def near_oracle(share: float, model: str = MAIN) -> Callable:
    """Return the measure of what part of the way from random to the oracle the best rule goes at a share."""

    def measure(study: Study) -> Measurement:
        if why := missing(study, model):
            return Measurement(why, "", UNTESTABLE)
        loss = study.tables["loss"]
        best = summaries.best_rule(loss, model, share)
        found = summaries.estimate(summaries.gap_closed(loss, model, best, share))
        return Measurement(
            f"{named(best)}: saves {found.value:.0%} of what trying each head alone saves over random heads",
            f"{found.low:.0%} to {found.high:.0%}",
            judge(found.low >= 0.5, found.value >= 0.5, undecided=found.value >= 0.5 > found.low),
            (found,),
        )

    return measure


def needle_less(study: Study, model: str) -> pd.Series:
    """Return per unit the recall under kind × distance less that under random, half of the heads windowed."""
    rows = summaries.of_model(study.tables["needle"], model)
    rows = rows.assign(right=rows["right"].astype(float))[rows["share"].sub(0.5).abs() < 1e-6]
    return summaries.units(rows[rows["rule"] == "kind_distance"], "right") - summaries.units(
        rows[rows["rule"] == "random"], "right"
    )


def copying_less(study: Study, model: str) -> pd.Series:
    """Return per unit the copying under kind × distance less that under attention beyond, at one half."""
    rows = summaries.of_model(study.tables["copying"], model)
    rows = rows[rows["share"].sub(0.5).abs() < 1e-6]
    first, second = (summaries.units(rows[rows["rule"] == rule], "accuracy") for rule in ("kind_distance", "beyond"))
    return first - second


def bytes_held(study: Study) -> Measurement:
    """Compare the bytes held with those planned, and the logits with those under the mask."""
    rows = study.tables["held"]
    same = int((rows["bytes"] == rows["planned"]).sum())
    off = float(rows["off"].max())
    return Measurement(
        f"{same} of {len(rows)} caches have the planned bytes; logits differ by at most {off:.0e} of the largest",
        f"all {len(rows)} caches",
        judge(same == len(rows) and off < 1e-3),
    )


def lost(group: str, arm: str = "group", planes: str = "slowest") -> Units:
    """Return what takes the recall lost at the dose asked, one value a unit."""
    return lambda study, model: summaries.recall_lost(study.tables["dose"], model, group, arm, planes, DOSE)


def minus(first: Units, second: Units) -> Units:
    """Return the difference of two, unit by unit."""
    return lambda study, model: first(study, model) - second(study, model)


def without(probe: str, group: str, arm: str = "group") -> Units:
    """Return what a probe loses without a group's heads, one value a unit."""
    return lambda study, model: summaries.probe_lost(study.tables["knock_out"], model, probe, group, arm)


def corner(model: str) -> Callable:
    """Return the measure of whether retrieval heads are the more symbolic ones."""

    def measure(study: Study) -> Measurement:
        if why := missing(study, model):
            return Measurement(why, "", UNTESTABLE)
        found = summaries.retrieval_auc(study.tables["kinds"], study.tables["groups"], model)
        return Measurement(
            f"a retrieval head is more symbolic than another in {found.value:.0%} of pairs (p = {found.p_value:.2g})",
            f"{found.low:.0%} to {found.high:.0%}",
            judge(found.low > 0.5, undecided=found.low <= 0.5 <= found.high),
            (found,),
        )

    return measure
