"""Whether the tasks' difference at length carries over to settings that the paper did not study."""

from ..generalization import crossings, learnt
from ..published import papers
from ..results import Study
from ..settings import LEARNT
from ..typography import percent
from .claim import OWN, VERDICTS, Measurement, claims_in, judge

CHAPTER = "09b-length-in-other-models"
STUDY = "length_elsewhere"
TASKS = ("number", "letter")


def letter_goes_further(study: Study) -> Measurement:
    """Measure the 90 % points of models that learn, by setting and task."""
    accuracy = study.tables["accuracy"]
    model = ["setting", "task", "seed"]
    able = learnt(accuracy, model[:2]).query("learnt")[model]
    curves = accuracy[accuracy["hops"] == 0].merge(able, on=model)
    apart, later, words, left_out = [], [], [], []
    for setting in accuracy["setting"].unique():
        mine = curves[curves["setting"] == setting]
        if set(mine["task"]) != {*TASKS}:
            left_out.append(setting)
            continue
        points = crossings(mine, model).groupby("task")["point"].agg(["min", "median", "max", "size"])
        number, letter = (points.loc[task] for task in TASKS)
        apart.append(letter["min"] > number["max"])
        later.append(letter["median"] > number["median"])
        ranges = [f"{p['median']:,.0f} ({p['min']:,.0f} to {p['max']:,.0f})" for p in (number, letter)]
        words.append(f"{setting} {' and '.join(ranges)}, {number['size']:.0f} and {letter['size']:.0f} seeds")
    without = f"a task is learnt by no model in {', '.join(left_out)}" if left_out else ""
    if not words:
        return Measurement("in no setting are both tasks learnt", without, VERDICTS[3])
    return Measurement(
        f"in {sum(apart)} of {len(apart)} settings apart, in {sum(later)} the median further",
        "; ".join(["90 % points of the number and the letter task", *words, *([without] if without else [])]),
        judge(all(apart), sum(later) > len(later) / 2),
    )


claim = claims_in(OWN, CHAPTER, STUDY)

CLAIMS = (
    claim(
        "length-elsewhere",
        f"after {papers()['P2']['arxiv']}, Fig. 5B",
        "In other settings too, models of the letter task keep their accuracy to far greater lengths than models of "
        "the number task.",
        "not studied",
        f"models that answer {percent(LEARNT)} or more at training length, in every setting in which some do on both "
        "tasks; a model's point is the length where accuracy first falls below 90 %. Holds if in all these settings "
        "the letter task's shortest point lies beyond the number task's longest; in part if in most its median does; "
        "not testable if there is no such setting",
        letter_goes_further,
    ),
)
