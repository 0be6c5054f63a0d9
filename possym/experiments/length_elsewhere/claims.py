"""Whether the tasks' difference at length carries over to settings that the paper did not study."""

from possym.charts.typography import percent
from possym.experiments.claim import EXTENT, OWN, SEED_RANGE, UNTESTABLE, Measurement, claims_in, judge
from possym.experiments.generality.summaries import LABELS, LEARNT
from possym.experiments.generalization import judging
from possym.experiments.generalization.summaries import crossings, learnt
from possym.results import Study
from possym.results.published import papers

CHAPTER = "11-length-in-other-models"
STUDY = "length_elsewhere"
TASKS = ("number", "letter")
RANK = 0.5


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
        f"every letter model gets further than every number model in {sum(apart)} of {len(apart)} settings, the median "
        f"letter model than the median number model in {later}, {min(further):.1f} to {max(further):.1f} times as far",
        f"90 % points of the number and the letter task: {'; '.join([*words, *left_out])}",
        judge(all(apart), later > len(further) / 2),
    )


def forecast_ranks(study: Study) -> Measurement:
    """Measure how the forecast ranks the models of one setting and task."""
    kind = ["setting", "task"]
    points = judging.predicted_points(study.tables["accuracy"], study.tables["forecast"], kind)
    table, mean = judging.ranks_within(points, kind)
    if table.empty:
        return Measurement("in no setting do four models fall at different lengths", "", UNTESTABLE)
    words = [f"{LABELS[row.setting]}, {row.task} {row.rank:.2f} ({row.models})" for row in table.itertuples()]
    return Measurement(
        f"mean rank correlation {mean.value:.2f} over {len(table)} settings and tasks (p = {mean.p_value:.4f})",
        "; ".join(words),
        judge(mean.value >= RANK and mean.p_value < 0.05, mean.p_value < 0.05, undecided=mean.p_value >= 0.05),
        (mean,),
    )


claim = claims_in(OWN, CHAPTER, STUDY)

CLAIMS = (
    claim(
        "length-elsewhere",
        f"after {papers()['P2']['arxiv']}, Fig. 5B",
        "In other settings too, models of the letter task keep their accuracy to greater lengths than models of the "
        "number task.",
        "not studied",
        f"models that answer {percent(LEARNT)} or more at training length, in every setting that has such models of "
        "both tasks; a model's point is the length where accuracy first falls below 90 %. Holds if in all these "
        "settings the letter task's shortest point lies beyond the number task's longest; in part if in most settings "
        "its median point lies beyond the number task's; not testable if there is no such setting",
        letter_goes_further,
        SEED_RANGE,
        changed="the criterion is as it was; the statement said “far greater lengths”, and the criterion asks for no "
        "size",
    ),
    claim(
        "forecast-ranks-elsewhere",
        f"after {papers()['P2']['arxiv']}, Fig. 5B",
        "In other settings, too, the forecast ranks the models of one setting by the length they reach.",
        "not studied",
        "models that have learnt their task and fall below 90 % at the lengths run, in every setting and task with at "
        "least four such models. Spearman's rank correlation of forecast and measured length within each setting and "
        "task, and the mean of these correlations; p by permuting forecasts within settings, one-sided. Holds if the "
        f"mean is {RANK} or more with p < 0.05; in part if p < 0.05; not shown otherwise; not testable without such a "
        "setting",
        forecast_ranks,
        EXTENT,
    ),
)
