"""What becomes of the second paper's findings in settings that it did not study: questions of our own."""

from possym.charts.typography import percent
from possym.experiments.claim import (
    CONFIDENCE,
    FAILS,
    MOST,
    MOST_BEFORE,
    OWN,
    UNTESTABLE,
    VERDICTS,
    Claim,
    Measurement,
    claims_in,
    judge_most,
    percent_interval,
    proportion,
)
from possym.experiments.generality.summaries import BEFORE, LABELS, LEARNT, course, final_purity, gained_while_learning
from possym.experiments.learning_dynamics.claims import step_words
from possym.experiments.learning_dynamics.summaries import learnt_medians, learnt_steps
from possym.results import Study
from possym.results.published import papers

CHAPTER = "09-how-general-is-it"
STUDY = "generality"
GAMMA = 0.1
LEVEL = 0.9
TASKS = ("number", "letter", "mixed")
IN_WORDS = {
    "heads": "With several heads per layer",
    "layers": "With fewer layers",
    "llama": "With Llama's blocks in place of GPT-J's",
    "every-place": "With the loss on every position that has an answer",
    "shares": "With few short paths among the training sequences",
}


def models_of(study: Study):
    """Return what every model ends as, and which have learnt their task."""
    table = final_purity(study.tables["accuracy"], study.tables["heads"], GAMMA)
    return table.assign(learnt=table["accuracy"] >= LEARNT)


def pure_as_expected(setting: str):
    """Measure in how many models that learn their task the pure heads are of the kinds that the paper found."""

    def measure(study: Study) -> Measurement:
        models = models_of(study)
        models = models[models["setting"] == setting]
        said, counted, good, of = [], [], [], []
        for task in [name for name in TASKS if name in set(models["task"])]:
            rows = models[models["task"] == task]
            learnt = rows[rows["learnt"]]
            symbolic, positional = learnt["symbolic"] > 0, learnt["positional"] > 0
            fits = symbolic & ~positional if task == "letter" else symbolic & positional
            kinds = "symbolic ones alone" if task == "letter" else "both kinds"
            good.append(int(fits.sum()))
            of.append(len(learnt))
            if learnt.empty:
                said.append(f"{task} task: learnt by none of {len(rows)} models, so not testable")
            else:
                those = f"{of[-1]} models" + (f" that learn it (of {len(rows)})" if of[-1] < len(rows) else "")
                said.append(f"{task} task: {kinds} in {good[-1]} of {those}")
                median = learnt[["positional", "symbolic", "heads"]].median()
                counted.append(
                    f"{task}: median {median['positional']:g} positional, {median['symbolic']:g} symbolic of "
                    f"{median['heads']:g} heads"
                )
        shares = tuple(proportion(fitting, count) for fitting, count in zip(good, of, strict=True))
        tested = [judge_most(fitting, count) for fitting, count in zip(good, of, strict=True) if count]
        # One failed task refutes what is said of both; that it holds takes both.
        verdict = max(tested, key=VERDICTS.index) if all(of) or FAILS in tested else UNTESTABLE
        return Measurement("; ".join(said + counted), percent_interval(*shares), verdict, shares)

    return measure


def positional_first(study: Study) -> Measurement:
    """Measure in how many models with heads of both kinds the positional ones have the lower mean layer."""
    models = models_of(study)
    both = models[models["learnt"] & models["task"].isin(["number", "mixed"])].dropna(
        subset=["positional_depth", "symbolic_depth"]
    )
    earlier = both["positional_depth"] < both["symbolic_depth"]
    by_setting = earlier.groupby(both["setting"], sort=False).agg(["sum", "size"])
    words = ", ".join(f"{LABELS[name]} {row['sum']} of {row['size']}" for name, row in by_setting.iterrows())
    if both.empty:
        return Measurement("no model has heads of both kinds", "", UNTESTABLE)
    verdict = judge_most(int(earlier.sum()), len(both))
    found = proportion(earlier.sum(), len(both))
    return Measurement(
        f"in {earlier.sum()} of {len(both)} models ({words})", percent_interval(found), verdict, (found,)
    )


def with_success(study: Study) -> Measurement:
    """Measure in how many models more heads turn pure while the task is learnt than a constant drift would turn."""
    models = gained_while_learning(course(study.tables["accuracy"], study.tables["scores"], GAMMA))
    models = models[models["task"].isin(TASKS)]
    learnt = models[models["learnt"]]
    if learnt.empty:
        return Measurement("no model learns its task", "", UNTESTABLE)
    more = int((learnt["gained"] > learnt["drift"]).sum())
    others = models[~models["learnt"]]
    measured = (
        f"in {more} of {len(learnt)} models that learn; meanwhile {learnt['gained'].median():.0%} of the heads turn "
        f"pure, and {learnt['drift'].median():.0%} would at a steady rate (medians)"
    )
    if len(others):
        measured += f"; {(others['rise'] > 0).sum()} of {len(others)} models that do not learn end with more pure heads"
    found = proportion(more, len(learnt))
    return Measurement(measured, percent_interval(found), judge_most(more, len(learnt)), (found,))


def short_paths_first(study: Study) -> Measurement:
    """Measure in how many models a number path is never learnt before a shorter one, though short ones are rare."""
    accuracy = study.tables["accuracy"]
    accuracy = accuracy[(accuracy["setting"] == "shares") & (accuracy["task"] == "number")]
    steps = learnt_steps(accuracy, LEVEL).pivot(index="seed", columns="hops", values="step")
    if steps.isna().all(axis=None):
        return Measurement(f"no hop count reaches {LEVEL:.0%}", "", UNTESTABLE)
    filled = steps.fillna(float("inf"))
    gaps = filled.iloc[:, 1:].to_numpy() >= filled.iloc[:, :-1].to_numpy()
    ordered = gaps.all(axis=1) & (filled.iloc[:, -1] > filled.iloc[:, 0]).to_numpy()
    medians = ", ".join(map(step_words, learnt_medians(accuracy, LEVEL)["median"]))
    verdict = judge_most(int(ordered.sum()), len(ordered))
    found = proportion(ordered.sum(), len(ordered))
    measured = f"in {ordered.sum()} of {len(ordered)} models; median steps {medians}"
    return Measurement(measured, percent_interval(found), verdict, (found,))


claim = claims_in(OWN, CHAPTER, STUDY)
LEARNS = f"A model learns a task if its test accuracy ends at {percent(LEARNT)} or more; γ = {GAMMA:g}"
NOT_STUDIED = "not studied"
SECTION, FIGURE = (f"after {papers()['P2']['arxiv']}, {where}" for where in ("section 3.1", "Fig. 2"))

CLAIMS: tuple[Claim, ...] = (
    *(
        claim(
            f"general-{setting}",
            SECTION,
            f"{words}, learning still ends in pure heads: of both kinds on the number task, symbolic alone on the "
            "letter task.",
            NOT_STUDIED,
            f"{LEARNS}. Each task is judged by the models that learn it. Holds if all of them end so; in part if most "
            "do on each task, and the 95 % intervals of their shares lie above one half; not shown if one of these "
            "intervals reaches one half; does not hold if at most half do on one task; else not testable if no model "
            "learns one of the tasks",
            pure_as_expected(setting),
            CONFIDENCE,
            changed="it held in part if most models of one task ended so, and was not testable if no model learnt one "
            "of the tasks, even if the models of the other failed; before that, " + MOST_BEFORE,
        )
        for setting, words in IN_WORDS.items()
    ),
    claim(
        "general-mixed",
        SECTION,
        "A model whose task needs hops of both kinds ends with pure heads of both kinds.",
        NOT_STUDIED,
        f"{LEARNS}. Holds if every model that learns the mixed task ends so; {MOST}; not testable if none learns it",
        pure_as_expected("mixed"),
        CONFIDENCE,
        changed=MOST_BEFORE,
    ),
    claim(
        "general-positional-first",
        SECTION,
        "Where a model has heads of both kinds, the positional ones are in earlier layers.",
        NOT_STUDIED,
        f"{LEARNS}. Counted are models that learn the number or the mixed task and have pure heads of both kinds. "
        "Holds if the mean layer of the positional heads is below that of the symbolic ones in all these models; "
        f"{MOST}",
        positional_first,
        CONFIDENCE,
        changed=MOST_BEFORE,
    ),
    claim(
        "general-success",
        SECTION,
        "Pure heads appear when the task is learnt.",
        NOT_STUDIED,
        f"{LEARNS}. A task is learnt between the last evaluation before accuracy first reached {percent(BEFORE)} and "
        f"the first at {percent(LEARNT)}. The null is a drift: the share of pure heads rises from the first evaluation "
        "to the last at a constant pace. Holds if in every model that learns, the share rises more during that time "
        f"than the drift does; {MOST}",
        with_success,
        CONFIDENCE,
        changed="more pure heads at the end than before the task was learnt were enough, which any drift gives; "
        + MOST_BEFORE,
    ),
    claim(
        "general-short-paths-first",
        FIGURE,
        "On the number task short paths are learnt before long ones even where they are rare.",
        NOT_STUDIED,
        "in the setting of unequal shares. A hop count is learnt at its first evaluation with an accuracy of "
        f"{percent(LEVEL)}. Holds if in every model none is learnt before a shorter one, and the shortest before the "
        f"longest; {MOST}",
        short_paths_first,
        CONFIDENCE,
        changed=MOST_BEFORE,
    ),
)
