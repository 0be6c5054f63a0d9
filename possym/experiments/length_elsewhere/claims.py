"""Whether the tasks' difference at length carries over to settings that the paper did not study."""

from possym.charts.typography import percent
from possym.experiments.claim import OWN, SEED_RANGE, UNTESTABLE, Measurement, claims_in, judge
from possym.experiments.generality.summaries import LABELS, LEARNT
from possym.experiments.generalization.summaries import crossings, learnt
from possym.results import Study
from possym.results.published import papers

CHAPTER = "09b-length-in-other-models"
STUDY = "length_elsewhere"
TASKS = ("number", "letter")


def letter_goes_further(study: Study) -> Measurement:
    """Measure the 90 % points of models that learn, by setting and task."""
    accuracy = study.tables["accuracy"]
    model = ["setting", "task", "seed"]
    able = learnt(accuracy, model[:2]).query("learnt")[model]
    curves = accuracy[accuracy["hops"] == 0].merge(able, on=model)
    apart, further, words, left_out = [], [], [], []
    for setting in accuracy["setting"].unique():
        mine = curves[curves["setting"] == setting]
        if missing := [task for task in TASKS if task not in set(mine["task"])]:
            left_out.append(f"{LABELS[setting]} left out: no model learns the {' or the '.join(missing)} task")
            continue
        points = crossings(mine, model).groupby("task")["point"].agg(["min", "median", "max", "size"])
        number, letter = (points.loc[task] for task in TASKS)
        apart.append(letter["min"] > number["max"])
        further.append(letter["median"] / number["median"])
        ranges = [f"{p['median']:,.0f} ({p['min']:,.0f} to {p['max']:,.0f})" for p in (number, letter)]
        words.append(f"{LABELS[setting]} {' and '.join(ranges)}, {number['size']:.0f} and {letter['size']:.0f} seeds")
    if not words:
        return Measurement("in no setting are both tasks learnt", "; ".join(left_out), UNTESTABLE)
    later = sum(times > 1 for times in further)
    return Measurement(
        f"in {sum(apart)} of {len(apart)} settings apart, in {later} the median further: {min(further):.1f} to "
        f"{max(further):.1f} times as far",
        "; ".join(["90 % points of the number and the letter task", *words, *left_out]),
        judge(all(apart), later > len(further) / 2),
    )


claim = claims_in(OWN, CHAPTER, STUDY)

CLAIMS = (
    claim(
        "length-elsewhere",
        f"after {papers()['P2']['arxiv']}, Fig. 5B",
        "In other settings too, models of the letter task keep their accuracy to greater lengths than models of the "
        "number task.",
        "not studied",
        f"models that answer {percent(LEARNT)} or more at training length, in every setting in which some do on both "
        "tasks; a model's point is the length where accuracy first falls below 90 %. Holds if in all these settings "
        "the letter task's shortest point lies beyond the number task's longest; in part if in most its median does; "
        "not testable if there is no such setting",
        letter_goes_further,
        SEED_RANGE,
    ),
)
