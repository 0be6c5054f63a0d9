"""Claims on length generalization: the accuracy of trained models on longer inputs, and why it falls."""

import pandas as pd

from possym.experiments.claim import (
    EXTENT,
    MOST,
    MOST_BEFORE,
    OWN,
    SEED_RANGE,
    UNTESTABLE,
    Claim,
    Measurement,
    claims_in,
    exact,
    judge,
    judge_most,
    proportion,
    seed_range,
)
from possym.experiments.generalization import judging
from possym.experiments.generalization.summaries import attending_heads, crossings, kept_leads
from possym.experiments.learning_dynamics.summaries import over_seeds
from possym.profiling.statistics import Estimate
from possym.results import Study
from possym.results.published import papers, published

CHAPTER = "10-length-generalization"
STUDY = "generalization"
READING = 0.05
FACTOR = 1.1
HELD_OUT = 8
LEVEL = 0.9
GAIN = 0.1  # of accuracy, that a repair must bring to count
SPARED = 0.01


def whole(study: Study, task: str) -> pd.DataFrame:
    """Return a task's accuracy over all hop counts at the main learning rate."""
    table = study.tables["accuracy"]
    main = study.manifest["config"]["learning_rate"]
    return table[(table["task"] == task) & (table["hops"] == 0) & (table["learning_rate"] == main)]


def above_until(study: Study) -> Measurement:
    """Measure in how many seeds the letter task stays above 90 % up to the paper's length."""
    accuracy = whole(study, "letter")
    until = published("P2.fig5b.letter_above_90_until").value
    upto = accuracy[accuracy["length"] <= until]
    longest = upto["length"].max()
    above = (upto["accuracy"] > LEVEL).groupby(upto["seed"]).all()
    there = upto.loc[upto["length"] == longest, "accuracy"]
    return Measurement(
        f"above 90 % at every length to {longest:,} in {above.sum()} of {len(above)} seeds",
        f"accuracy at {longest:,}: median {there.median():.0%}, {there.min():.0%} to {there.max():.0%}",
        judge(above.mean() > 0.5 and longest == until, above.any()),
        (proportion(above.sum(), len(above)), seed_range(there)),
    )


def readings(task: str):
    """Measure accuracy at the lengths of figure 5B against its readings."""

    def measure(study: Study) -> Measurement:
        here = over_seeds(whole(study, task), ["length"], "accuracy").set_index("length")
        read = published(f"P2.fig5b.{task}").value
        points = [point for point in read if point["length"] in here.index]
        left_out = [f"{point['length']:,}" for point in read if point["length"] not in here.index]
        unread = f"; {len(left_out)} not compared: no input of {', '.join(left_out)} tokens was run"
        inside, words, estimates = [], [], []
        for point in points:
            row = here.loc[point["length"]]
            inside.append(row["low"] - READING <= point["accuracy"] <= row["high"] + READING)
            words.append(f"{point['length']:,}: {row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})")
            estimates.append(Estimate(row["median"], row["low"], row["high"]))
        return Measurement(
            f"{sum(inside)} of {len(inside)} values read off the plot lie within our range over seeds, widened "
            f"by {READING}" + (unread if left_out else ""),
            "; ".join(words),
            judge(bool(inside) and all(inside), 2 * sum(inside) >= len(inside) > 0),
            tuple(estimates),
        )

    return measure


def letter_goes_further(study: Study) -> Measurement:
    """Measure the 90 % points of both tasks."""
    points = {task: crossings(whole(study, task), ["seed"]) for task in ("number", "letter")}
    number, letter = (points[task]["point"] for task in ("number", "letter"))
    medians, ranges = (
        [form.format(task=task, points=table["point"].agg(["min", "median", "max"])) for task, table in points.items()]
        for form in ("{points[median]:,.0f} ({task})", "{task} {points[min]:,.0f} to {points[max]:,.0f}")
    )
    return Measurement(
        f"accuracy falls below 90 % at a median of {' and '.join(medians)} tokens",
        f"{'; '.join(ranges)} over {len(number)} and {len(letter)} seeds",
        judge(letter.min() > number.max(), letter.median() > number.median()),
        (seed_range(number), seed_range(letter)),
    )


def gains(study: Study, task: str, repair: str, heads: str) -> pd.DataFrame:
    """Return what a repair of some heads changes in accuracy, seeds as rows and lengths as columns."""
    rows = study.tables["repairs"]
    rows = rows[rows["task"] == task]
    chosen = rows[rows["repair"] == "none"], rows[(rows["repair"] == repair) & (rows["heads"] == heads)]
    plain, changed = (part.pivot(index="seed", columns="length", values="accuracy") for part in chosen)
    return changed - plain


def sharper_logits(study: Study) -> Measurement:
    """Measure what logits that grow with the logarithm of the length gain on the letter task's longest input."""
    found = gains(study, "letter", "log length", "all")
    longest = found.columns.max()
    gain = found[longest]
    return Measurement(
        f"at {longest:,} tokens accuracy changes by {gain.median():+.2f} (median over seeds)",
        f"{gain.min():+.2f} to {gain.max():+.2f} over {len(gain)} seeds",
        judge(
            bool((gain > 0).all() and gain.median() >= GAIN), proportion((gain > 0).sum(), len(gain)).low > 0.5,
            undecided=proportion((gain > 0).sum(), len(gain)).low <= 0.5 < (gain > 0).mean(),
        ),
        (seed_range(gain),),
    )  # fmt: skip


def rotation_taken(study: Study) -> Measurement:
    """Measure what the letter task's symbolic heads lose without rotation, at training length and far out."""
    found = gains(study, "letter", "no rotation", "symbolic")
    home, far = found[found.columns.min()], found[found.columns.max()]
    spared = bool((home >= -SPARED).all())
    return Measurement(
        f"accuracy changes by {home.median():+.2f} at {found.columns.min():,} tokens and {far.median():+.2f} at "
        f"{found.columns.max():,} (medians over seeds)",
        f"{home.min():+.2f} to {home.max():+.2f} and {far.min():+.2f} to {far.max():+.2f} over {len(far)} seeds",
        judge(spared and bool((far < 0).all()), spared and proportion((far < 0).sum(), len(far)).low > 0.5),
        (seed_range(home), seed_range(far)),
    )


def angles_changed(study: Study) -> Measurement:
    """Measure the most that any change of angles gains on the number task's longest input."""
    rows = study.tables["repairs"].query("task == 'number' and repair not in ['none', 'log length']")
    pairs = rows[["repair", "heads"]].drop_duplicates().itertuples(index=False, name=None)
    changes = {pair: gains(study, "number", *pair) for pair in pairs}
    longest = max(found.columns.max() for found in changes.values())
    (repair, heads), best = max(changes.items(), key=lambda item: item[1][longest].median())
    gain = best[longest]
    return Measurement(
        f"at {longest:,} tokens the best of {len(changes)} changes, {repair} of {heads} heads, gains "
        f"{gain.median():+.2f} (median over seeds)",
        f"{gain.min():+.2f} to {gain.max():+.2f} over {len(gain)} seeds",
        judge(gain.max() < GAIN, gain.median() < GAIN),
        (seed_range(gain),),
    )


def leads_fall(study: Study) -> Measurement:
    """Measure how much of the right key's lead is left at the longest length, by task."""
    leads = attending_heads(study.tables["leads"], study.tables["looks"])
    tasks = ("number", "letter")
    if missing := [task for task in tasks if task not in set(leads["task"])]:
        return Measurement(f"no head of the {missing[0]} task looks at one step of the path", "", judge(False))
    kept = kept_leads(leads)
    both = kept.dropna()
    less = int((both["number"] < both["letter"]).sum())
    words = " and ".join(f"{kept[task].median():.0%} ({task})" for task in tasks)
    ranges = "; ".join(f"{task} {kept[task].min():.0%} to {kept[task].max():.0%}" for task in tasks)
    return Measurement(
        f"at {leads['length'].max():,} tokens the median seed's lead is {words} of that at training length; "
        "below 0 a wrong key leads",
        f"{ranges} over seeds",
        judge_most(less, len(both)),
        tuple(seed_range(kept[task].dropna()) for task in tasks),
    )


def at_main_rate(study: Study, task: str) -> list[pd.DataFrame]:
    """Return a task's tables accuracy, forecast and heads at the main learning rate."""
    rate = study.manifest["config"]["learning_rate"]
    tables = (study.tables[name] for name in ("accuracy", "forecast", "heads"))
    return [table[(table["task"] == task) & (table["learning_rate"] == rate)] for table in tables]


def forecast_is_unbiased(task: str):
    """Measure the forecast lengths against the measured ones at every level."""

    def measure(study: Study) -> Measurement:
        accuracy, forecast, _ = at_main_rate(study, task)
        ratios = judging.ratios_by_level(accuracy, forecast, ["task"])
        tested = ratios[2 * ratios["fall"] >= ratios["models"]]
        if tested.empty:
            return Measurement("fewer than half of the models fall below any level", "", UNTESTABLE)
        near = tested["median"].between(1 / FACTOR, FACTOR)
        words = [f"×{row.median:.2f} at {row.level:.0%}" for row in tested.itertuples()]
        ranges = [f"{row.level:.0%}: ×{row.low:.2f} to ×{row.high:.2f}" for row in tested.itertuples()]
        stay = {level: crossings(forecast, ["seed"], level)["censored"] for level in tested["level"]}
        bounds = "".join(
            f"; at {level:.0%} {never.sum()} of {len(never)} forecasts never fall and enter as the longest length, so "
            "that this ratio is a lower bound"
            for level, never in stay.items()
            if never.any()
        )
        return Measurement(
            f"the median forecast is {', '.join(words)} of the measured length{bounds}",
            f"{'; '.join(ranges)} over {int(tested['fall'].max())} models",
            judge(near.all(), 2 * near.sum() >= len(near)),
            tuple(Estimate(row.median, row.low, row.high) for row in tested.itertuples()),
        )

    return measure


def forecast_beats_one_number(task: str):
    """Measure the forecast's error on held-out seeds against that of one number for all."""

    def measure(study: Study) -> Measurement:
        errors = judging.errors_by_level(*at_main_rate(study, task), ["task"])
        errors = errors[errors["seeds"] >= HELD_OUT]
        if errors.empty:
            return Measurement(f"at no level do {HELD_OUT} held-out models fall", "", UNTESTABLE)
        apart = errors["holm"] < 0.05
        less, more = apart & (errors["difference"] < 0), apart & (errors["difference"] > 0)
        words = [f"{row.difference:+.3f} at {row.level:.0%} (p = {row.holm:.3f})" for row in errors.itertuples()]
        return Measurement(
            f"forecast minus one number, mean error in log10 length: {', '.join(words)}",
            f"{', '.join(str(seeds) for seeds in errors['seeds'])} held-out seeds",
            judge(less.all(), less.any() and not more.any(), undecided=not less.any() and not more.any()),
            tuple(exact(value) for value in errors["difference"]),
        )

    return measure


def best_goes_further(study: Study) -> Measurement:
    """Measure how much further the best checkpoint gets than the last one on the letter task."""
    table = study.tables.get("checkpoints")
    if table is None:
        return Measurement("no best checkpoints were run", "", UNTESTABLE)
    table = table[(table["task"] == "letter") & (table["length"] > table["length"].min())]
    means = table.groupby(["seed", "checkpoint"])["accuracy"].mean().unstack()
    gain = means["best"] - means["last"]
    mean, p = judging.sign_test(gain.to_numpy())
    lengths = table["length"].unique()
    return Measurement(
        f"best minus last checkpoint {mean:+.3f} in accuracy, the mean over {len(lengths)} lengths to {max(lengths):,} "
        f"(p = {p:.4f})",
        f"{gain.min():+.3f} to {gain.max():+.3f} over {len(gain)} seeds",
        judge(mean > 0 and p < 0.05, undecided=p >= 0.05),
        (seed_range(gain, "mean"),),
    )


claim, own = claims_in("P2", CHAPTER, STUDY), claims_in(OWN, CHAPTER, STUDY)
AFTER = f"after {papers()['P2']['arxiv']}, Fig. 5B"
NOT_STUDIED = "not studied"

CRITERION_READINGS = (
    "at the lengths that were read off the figure and run here. Holds if every reading lies within the range over "
    f"seeds, widened by {READING:g} for reading a plot; in part if at least half do"
)


def readings_claim(task: str) -> Claim:
    """Return the claim on a task's curve."""
    values = "; ".join(f"{p['length']:,}: {p['accuracy']:g}" for p in published(f"P2.fig5b.{task}").value)
    return claim(
        f"{task}-by-length",
        "Fig. 5B",
        f"On the {task} task accuracy falls with length as the figure shows.",
        f"≈ {values}",
        CRITERION_READINGS,
        readings(task),
        SEED_RANGE,
    )


def forecast_claims(task: str) -> tuple[Claim, Claim]:
    """Return the claims on the forecast of a task's models, fixed before the lengths they are judged on were run."""
    levels = ", ".join(f"{level:.0%}" for level in judging.LEVELS)
    return (
        own(
            f"forecast-{task}",
            AFTER,
            f"From inputs of 17 tokens, the forecast predicts the length at which {task} models fail, neither too "
            "short nor too long.",
            NOT_STUDIED,
            f"models at the main learning rate, at the levels of accuracy {levels}. A model's ratio at a level: the "
            "length where the forecast first falls below it, over the length where the measured accuracy does. A level "
            "counts if at least half of the models fall below it. Holds if the median ratio of those that do lies "
            f"between 1/{FACTOR} and {FACTOR} at each level; in part if at half of the levels",
            forecast_is_unbiased(task),
            SEED_RANGE,
        ),
        own(
            f"forecast-or-one-number-{task}",
            AFTER,
            f"For single models of the {task} task, the forecast errs less than one number used for all of them.",
            NOT_STUDIED,
            "at the main learning rate the second half of the seeds is held out, and the one number is the median "
            f"length of the first half. At each of the levels {levels} below which at least {HELD_OUT} held-out "
            "models fall, the forecast's error is compared with the one number's, by the mean difference over seeds in "
            "log10 length. p comes from a two-sided sign-flip test over seeds with Holm's correction over levels. "
            "Holds if the forecast errs less with p < 0.05 at every level; in part if at some, "
            "while at none it errs more with p < 0.05; not shown if p ≥ 0.05 at every level",
            forecast_beats_one_number(task),
            EXTENT,
        ),
    )


CLAIMS = (
    claim(
        "letter-above-90",
        published("P2.fig5b.letter_above_90_until").where,
        "On the letter task accuracy stays above 90 % up to length 850.",
        "850",
        "holds if most seeds are above 90 % at every length measured up to 850; in part if any seed is",
        above_until,
        SEED_RANGE,
    ),
    readings_claim("number"),
    readings_claim("letter"),
    claim(
        "letter-goes-further",
        "Fig. 5B",
        "Models of the letter task, whose heads are symbolic, keep their accuracy to far greater lengths than models "
        "of the number task.",
        "850 against less than 100",
        "a model's point is the length where accuracy first falls below 90 %. Holds if the letter task's shortest "
        "point lies beyond the number task's longest; in part if the median does",
        letter_goes_further,
        SEED_RANGE,
    ),
    claim(
        "discrepancy-of-trained-heads",
        "Theorem 3.2, Fig. 5",
        "As inputs grow, the discrepancy of heads that compute Index shrinks; that of heads that compute Retrieval "
        "shrinks much less.",
        "faster on the number task",
        "counted are heads of trained models that at training length look at one step of the path. Their lead is the "
        "right key's logit minus the best other one, a seed's median over sequences, heads and hops. What is "
        "kept is the lead at the longest length over that at training length. Holds if less is kept on the number task "
        f"in every seed; {MOST}",
        leads_fall,
        SEED_RANGE,
        changed=MOST_BEFORE,
    ),
    *forecast_claims("number"),
    *forecast_claims("letter"),
    own(
        "letter-best-checkpoint",
        AFTER,
        "On the letter task, the checkpoint that is best on validation is more accurate at length than the last one.",
        NOT_STUDIED,
        "the mean accuracy over all lengths above 17 of the same seed's best and last weights; p from a two-sided "
        "sign-flip test over seeds. Holds if the best one is higher with p < 0.05, does not hold if "
        "it is lower with p < 0.05, not shown otherwise; not testable where no best checkpoint was run",
        best_goes_further,
        SEED_RANGE,
    ),
    own(
        "repair-sharper-logits",
        AFTER,
        "On the letter task, scaling logits with the logarithm of the length repairs accuracy at great lengths.",
        NOT_STUDIED,
        "all heads, at the longest length that repairs were tried at, each seed against itself. Holds if every seed "
        f"gains and the median gains at least {GAIN:g}; in part if most gain, with the 95 % interval of their share "
        "above one half; not shown if most gain, but that interval reaches one half",
        sharper_logits,
        SEED_RANGE,
    ),
    own(
        "repair-no-rotation",
        AFTER,
        "The letter task's symbolic heads can do without rotation at training length, but not at great lengths.",
        NOT_STUDIED,
        f"each seed against itself. Holds if at training length no seed loses more than {SPARED:g} without the "
        "rotation of its symbolic heads, and at the longest length every seed loses; in part if at the longest length "
        "most lose, with the 95 % interval of their share above one half",
        rotation_taken,
        SEED_RANGE,
    ),
    own(
        "repair-no-angles",
        AFTER,
        "On the number task, no change of angles restores accuracy at great lengths.",
        NOT_STUDIED,
        "every repair except sharper logits, made in all heads, in the symbolic ones or in the others, at the longest "
        f"length. Holds if the repair with the best median gains less than {GAIN:g} in every seed; in part if the "
        "median does",
        angles_changed,
        SEED_RANGE,
    ),
)
