"""Claims on one-hop prompts: what Table 3 of 2605.31558 says by itself, and what a model at hand does.

The claim on a model is judged only if the model passes the paper's screens; one that does not cannot speak for or
against it.
"""

from functools import partial

from possym.experiments import one_hop
from possym.experiments.claim import REREADING, Measurement, claims_in, judge, not_testable
from possym.experiments.one_hop.protocol import accuracy, reach, screen, table3
from possym.results import Study

CHAPTER = "14-one-hop-prompts"
STUDY = "one_hop"
LEVEL = 0.5
ENOUGH = 0.9


def letters_ahead() -> Measurement:
    """Count the cells of Table 3 in which letters are answered better than numbers."""
    cells = table3().pivot(index=["model", "length"], columns="kind", values="mean")
    ahead = cells["letter"] > cells["number"]
    behind = ", ".join(f"{model} at {length}" for model, length in cells.index[~ahead])
    return Measurement(
        f"in {ahead.sum()} of {len(ahead)} cells{f', not for {behind}' if behind else ''}", "",
        judge(ahead.all(), ahead.mean() >= ENOUGH),
    )  # fmt: skip


def numbers_first() -> Measurement:
    """Find the lengths at which Table 3 falls below one half."""
    lost = reach(table3(), LEVEL).pivot(index="model", columns="kind", values="lost")
    last = table3()["length"].max()
    sooner = lost["number"].fillna(last + 1) < lost["letter"].fillna(last + 1)
    said = lost.astype("string").radd("at ").fillna(f"not by {last}")
    words = [f"{model}: numbers {row['number']}, letters {row['letter']} items" for model, row in said.iterrows()]
    return Measurement("; ".join(words), "", judge(bool(sooner.all()), bool(sooner.any())))


def numbers_fall() -> Measurement:
    """Compare the first and the last number accuracy of Table 3."""
    rows = table3().query("kind == 'number'").sort_values("length").groupby("model", sort=False)
    falls = {model: (cells["mean"].iloc[0], cells["mean"].iloc[-1]) for model, cells in rows}
    low = [end <= 0.1 for _, end in falls.values()]
    words = "; ".join(f"{model} {start:.2f} at 12 and {end:.2f} at 300" for model, (start, end) in falls.items())
    return Measurement(words, "", judge(all(low), any(low)))


def letters_ahead_here(study: Study) -> Measurement:
    """Compare both kinds on a model of our own, if it passes the screens."""
    by_form = {form: one_hop.answers(study, form) for form in study.manifest["config"]["forms"]}
    screens = {form: screen(rows) for form, rows in by_form.items()}
    passing = [form for form, found in screens.items() if found.passed]
    if not passing:
        said = "; ".join(
            f"{form}: {found.accuracy:.0%} of letters at 16, {found.one_item:.0%} of replies one item"
            for form, found in screens.items()
        )
        model = study.manifest["config"]["model"]
        return not_testable(f"{model} fails the screens ({said})")()
    cells = accuracy(by_form[passing[0]]).pivot(index="length", columns="kind", values=["low", "high"])
    sure = cells["low", "letter"] > cells["high", "number"]
    unsure = cells["high", "letter"] >= cells["low", "number"]
    return Measurement(
        f"letters surely ahead, 95 % intervals apart, at {sure.sum()} of {len(sure)} lengths", "",
        judge(bool(sure.all()), bool((sure.mean() >= 0.5) & unsure.all())),
    )  # fmt: skip


claim = partial(claims_in("P2", CHAPTER), where="Table 3, Appendix H")
CLAIMS = (
    claim(
        id="prompts-letters-ahead",
        kind=REREADING,
        statement="Language models answer letter prompts better than number prompts of the same length.",
        paper_value="letters ahead",
        criterion="on the paper's own table: holds if the letter accuracy is larger in every model at every length; "
        "in part if in 90 % of cells",
        measure=letters_ahead,
    ),
    claim(
        id="prompts-numbers-first",
        kind=REREADING,
        statement="Number prompts fail at shorter lengths than letter prompts.",
        paper_value="numbers first",
        criterion="on the paper's own table, the first length with accuracy below 0.5: holds if smaller for numbers "
        "in every model; in part if in one",
        measure=numbers_first,
    ),
    claim(
        id="prompts-numbers-fall",
        kind=REREADING,
        statement="At 300 items hardly any number prompt is answered correctly.",
        paper_value="0.06, 0.04, 0.05",
        criterion="on the paper's own table: holds if every model's number accuracy at 300 is at most 0.1; in part if "
        "one model's is",
        measure=numbers_fall,
    ),
    claim(
        id="prompts-letters-ahead-here",
        statement="A language model that we could run answers letter prompts better than number prompts.",
        paper_value="letters ahead",
        criterion="judged only on a model that passes the paper's screens (85 % of letters at 16, one item as answer). "
        "Holds if the 95 % intervals are apart at every length; in part if at half of them and never the other way",
        measure=letters_ahead_here,
        study=STUDY,
    ),
    claim(
        id="prompts-published-models",
        statement="GPT 5.4, GPT 5.5 and Claude Sonnet 3.7 answer one-hop prompts with the accuracies of Table 3.",
        paper_value="60 cells",
        criterion="not judged: ask them with possym.models.endpoint, and compare cell by cell",
        measure=not_testable("their endpoints could not be reached where these results were made"),
    ),
)
