"""What becomes of the second paper's findings in settings that it did not study: questions of our own."""

from possym.charts.typography import percent
from possym.experiments.claim import (
    CONFIDENCE,
    OWN,
    UNTESTABLE,
    Claim,
    Measurement,
    claims_in,
    judge,
    percent_interval,
    proportion,
)
from possym.experiments.generality.summaries import BEFORE, LABELS, LEARNT, before_and_after, course, ends
from possym.experiments.learning_dynamics.claims import step_words
from possym.experiments.learning_dynamics.summaries import learnt_medians, learnt_steps
from possym.results import Study
from possym.results.published import papers

CHAPTER = "08b-how-general-is-it"
STUDY = "generality"
GAMMA = 0.1
LEVEL = 0.9
IN_WORDS = {
    "heads": "With several heads a layer",
    "layers": "With fewer layers",
    "llama": "With Llama's blocks in place of GPT-J's",
    "every-place": "With the loss on every place that has an answer",
    "shares": "With few short paths among the training sequences",
}


def models_of(study: Study):
    """Return what every model ends as, and which have learnt their task."""
    table = ends(study.tables["accuracy"], study.tables["heads"], GAMMA)
    return table.assign(learnt=table["accuracy"] >= LEARNT)


def pure_as_expected(setting: str):
    """Measure in how many models that learn their task the pure heads are of the kinds that the paper found."""

    def measure(study: Study) -> Measurement:
        models = models_of(study)
        models = models[models["setting"] == setting]
        said, counted, good, of = [], [], [], []
        for task in sorted(models["task"].unique(), reverse=True):
            rows = models[models["task"] == task]
            learnt = rows[rows["learnt"]]
            symbolic, positional = learnt["symbolic"] > 0, learnt["positional"] > 0
            fits = symbolic & ~positional if task == "letter" else symbolic & positional
            kinds = "symbolic ones alone" if task == "letter" else "both kinds"
            good.append(int(fits.sum()))
            of.append(len(learnt))
            if learnt.empty:
                said.append(f"{task} task: learnt by none of {len(rows)} models")
            else:
                those = f"{of[-1]} models" + (f" that learn it (of {len(rows)})" if of[-1] < len(rows) else "")
                said.append(f"{task} task: {kinds} in {good[-1]} of {those}")
                median = learnt[["positional", "symbolic", "heads"]].median()
                counted.append(
                    f"{task}: median {median['positional']:g} positional, {median['symbolic']:g} symbolic of "
                    f"{median['heads']:g} heads"
                )
        most = any(fitting > count / 2 for fitting, count in zip(good, of, strict=True))
        verdict = judge(good == of, most) if all(of) else UNTESTABLE
        shares = tuple(proportion(fitting, count) for fitting, count in zip(good, of, strict=True))
        return Measurement("; ".join(said + counted), percent_interval(*shares), verdict, shares)

    return measure


def positional_first(study: Study) -> Measurement:
    """Measure in how many models with heads of both kinds the positional ones have the lower mean layer."""
    models = models_of(study)
    both = models[models["learnt"] & (models["task"] != "letter")].dropna(subset=["positional_depth", "symbolic_depth"])
    earlier = both["positional_depth"] < both["symbolic_depth"]
    by_setting = earlier.groupby(both["setting"], sort=False).agg(["sum", "size"])
    words = ", ".join(f"{LABELS[name]} {row['sum']} of {row['size']}" for name, row in by_setting.iterrows())
    if both.empty:
        return Measurement("no model has heads of both kinds", "", UNTESTABLE)
    verdict = judge(earlier.all(), earlier.mean() > 0.5)
    found = proportion(earlier.sum(), len(both))
    return Measurement(
        f"in {earlier.sum()} of {len(both)} models ({words})", percent_interval(found), verdict, (found,)
    )


def with_success(study: Study) -> Measurement:
    """Measure in how many models the share of pure heads rises between not knowing the task and the end."""
    models = before_and_after(course(study.tables["accuracy"], study.tables["scores"], GAMMA))
    rises = models["after"] > models["before"]
    learnt = models["learnt"]
    if not learnt.any():
        return Measurement("no model learns its task", "", UNTESTABLE)
    medians = models.loc[learnt, ["before", "after"]].median()
    measured = f"in {(rises & learnt).sum()} of {learnt.sum()} models that learn"
    if not learnt.all():
        measured += f", and in {(rises & ~learnt).sum()} of {(~learnt).sum()} that do not"
    verdict = judge(rises[learnt].all(), rises[learnt].mean() > 0.5)
    measured += f"; median share of pure heads {medians['before']:.0%}, then {medians['after']:.0%}"
    found = proportion((rises & learnt).sum(), learnt.sum())
    return Measurement(measured, percent_interval(found), verdict, (found,))


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
    verdict = judge(ordered.all(), ordered.mean() > 0.5)
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
            f"{LEARNS}. Holds if that is so in every model that learns its task; in part if in most of those of one "
            "task; not testable if no model learns one of the tasks",
            pure_as_expected(setting),
            CONFIDENCE,
        )
        for setting, words in IN_WORDS.items()
    ),
    claim(
        "general-mixed",
        SECTION,
        "A model whose task needs hops of both kinds ends with pure heads of both kinds.",
        NOT_STUDIED,
        f"{LEARNS}. Holds if that is so in every model that learns the mixed task; in part if in most of them; not "
        "testable if none does",
        pure_as_expected("mixed"),
        CONFIDENCE,
    ),
    claim(
        "general-positional-first",
        SECTION,
        "Where a model has heads of both kinds, the positional ones come in earlier layers.",
        NOT_STUDIED,
        f"{LEARNS}. Models that learn the number or the mixed task and have pure heads of both kinds. Holds if the "
        "mean layer of the positional ones is below that of the symbolic ones in all of them; in part if in most",
        positional_first,
        CONFIDENCE,
    ),
    claim(
        "general-success",
        SECTION,
        "Pure heads come with learning.",
        NOT_STUDIED,
        f"{LEARNS}. Holds if, in every model that learns, more heads are pure at the end than at the last evaluation "
        f"before accuracy first reached {percent(BEFORE)}; in part if in most",
        with_success,
        CONFIDENCE,
    ),
    claim(
        "general-short-paths-first",
        FIGURE,
        "On the number task short paths are learnt before long ones even where they are rare.",
        NOT_STUDIED,
        "in the setting of unequal shares. A hop count is learnt at its first evaluation with an accuracy of "
        f"{percent(LEVEL)}. Holds if in every model none is learnt before a shorter one, and the shortest before the "
        "longest; in part if in most",
        short_paths_first,
        CONFIDENCE,
    ),
)
