"""The ledger: every claim is complete, shown once, counted once, and stands on its pages as it was judged."""

import importlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from possym import claims
from possym.charts.typography import typeset
from possym.claims import CLAIMS, COUNTED, INTERVALS, KINDS, VERDICTS, figures
from possym.claims.figures import FIGURES
from possym.claims.rows import measure
from possym.errors import InputError, ResultsError
from possym.experiments.claim import OWN, Claim, Measurement, judge
from possym.experiments.generality import claims as generality
from possym.experiments.one_hop.protocol import table3
from possym.results import published

from ..experiments.generality.synthetic import study as general_study
from ..experiments.learning_dynamics.synthetic import study
from . import stored_numbers

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = "07-learning-dynamics"


def test_every_claim_is_complete_and_named_once():
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert isinstance(claim, Claim) and claim.paper in {*published.papers(), OWN}
        assert claim.kind in KINDS and claim.interval_kind in INTERVALS
        assert claim.paper == OWN or claim.kind != "own question"
        assert claim.kind not in COUNTED or claim.paper != OWN
        assert claim.where.startswith("after ") <= (claim.paper == OWN)
        assert all(
            getattr(claim, name).strip() for name in ("where", "statement", "chapter", "paper_value", "criterion")
        )
        if claim.study:
            assert importlib.import_module(f"possym.experiments.{claim.study}").NAME == claim.study


def test_every_claim_is_shown_once_by_a_label_of_its_chapter():
    """A label stands before the cell that draws the figure or the table, or before the title of a section."""
    assert sorted(id for shown in FIGURES.values() for id in shown) == sorted(claim.id for claim in CLAIMS)
    for claim in CLAIMS:
        label = figures.LABELS[claim.id]
        text = (ROOT / f"chapters/{claim.chapter}.md").read_text()
        follows = {"figure": "```{code-cell}", "table": "```{code-cell}", "section": "#"}[label.partition("-")[0]]
        shown = re.findall(rf"\n\({label}\)=\n\n?{follows}", text)
        assert len(shown) == 1, f"{claim.id}: {label} in {claim.chapter}"


def test_models_out_of_reach_have_no_numbers_of_ours():
    rows = claims.ledger().loc[
        ["gemma-trade", "gemma-layers", "gemma-keys-gather", "real-other-families", "prompts-published-models"]
    ]
    assert set(rows["verdict"]) == {"not testable here"}
    assert not rows["measured"].str.contains(r"\d").any() and (rows["interval"] == "").all()
    said = " ".join(rows["claim"])
    assert all(name in said for name in ("gemma-2-2b-it", "Qwen-2", "Llama-3", *table3()["model"].unique()))


@pytest.mark.parametrize("room", stored_numbers.ROOMS)
def test_stored_results_give_the_verdicts_and_numbers_that_are_written_down(room):
    """Changed on purpose? python tests/claims/stored_numbers.py writes them anew."""
    assert stored_numbers.numbers(room) == json.loads(stored_numbers.FILE.read_text())[room]


def test_intervals_that_are_compared_are_those_that_are_printed():
    compared = 0
    for claim in CLAIMS:
        if claim.study is None:
            continue
        found = measure(claim, {})
        for value, low, high, _ in found.estimates:
            assert low <= value <= high or value != value, claim.id
        ranges = re.findall(r"([−+]?[\d,.]*\d)\xa0?(%?) to ([−+]?[\d,.]*\d)\xa0?(%?)", found.interval)
        if len(ranges) != len(found.estimates) or re.search(r"\d of \d", found.measured):
            continue  # what is printed is the range of something else, beside a share
        for (low, _, high, percent), estimate in zip(ranges, found.estimates, strict=True):
            scale = 100 if percent else 1
            for text, end in ((low, estimate.low), (high, estimate.high)):
                printed, digits = float(text.replace(",", "").replace("−", "-")), len(text.partition(".")[2])
                assert abs(printed - scale * end) <= 0.51 / 10**digits, (claim.id, text, end)
                compared += 1
    assert compared > 40


def test_there_are_claims_enough():
    assert len(claims.ledger()) >= 35


def test_ledger_has_the_columns_of_the_contract():
    rows = claims.ledger("03-scoring-a-head")
    assert rows.columns.tolist() == [
        "claim",
        "paper",
        "where",
        "measured",
        "interval",
        "paper_value",
        "verdict",
        "chapter",
        "kind",
        "interval_kind",
        "criterion",
        "changed",
    ]
    assert set(rows["verdict"]) <= set(VERDICTS)


def test_missing_results_say_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    with pytest.raises(
        ResultsError,
        match="stored result of learning_dynamics: .* run python -m possym.experiments learning_dynamics on",
    ):
        claims.ledger(CHAPTER)


def test_a_stored_file_that_changes_is_noticed_after_its_study_was_measured(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "results/theory", tmp_path / "theory")
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    assert len(claims.ledger("02-exclusion-principle"))
    (table, *_) = (tmp_path / "theory/paper").glob("*.parquet")
    table.write_bytes(table.read_bytes() + b"x")
    with pytest.raises(ResultsError, match=f"{table.name} does not match the hash"):
        claims.ledger("02-exclusion-principle")


@pytest.mark.parametrize("call", [claims.ledger, claims.what_holds])
def test_unknown_chapter_lists_the_known(call):
    with pytest.raises(InputError, match="chapter = '99': .*07-learning-dynamics"):
        call("99")
    with pytest.raises(InputError, match="studies.* is of type int"):
        call("04-rope-geometry", {"theory": 3})


def test_unknown_claim_lists_the_known():
    with pytest.raises(InputError, match="claim 'no such': .*nope-symbolic"):
        claims.finding("no such")


class Cells(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.rows, self.scopes, self.tags = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.scopes.append(dict(attributes).get("scope"))

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_what_holds_shows_the_ledgers_rows():
    made = {"learning_dynamics": study()}
    rows = claims.ledger(CHAPTER, made)
    shown = Cells(claims.what_holds(CHAPTER, made)._repr_html_())
    assert len(shown.rows) == len(rows) + 1
    for row, (_, claim) in zip(shown.rows[1:], rows.iterrows(), strict=True):
        assert row[0].startswith(typeset(claim["claim"]) + "Criterion: ")
        assert row[3].startswith(claim["measured"])
        assert row[4].endswith(f" {claim['verdict']}in the ledger")
    assert shown.scopes.count("col") == 5 and shown.scopes.count("row") == len(rows)
    assert "caption" in shown.tags


def test_small_presets_are_marked_as_such():
    made = study()
    made.manifest["config"]["preset"] = "smoke"
    assert "smoke preset: too small" in claims.what_holds(CHAPTER, {"learning_dynamics": made}).caption


def test_table_escapes_what_is_not_markup():
    table = claims.Table(pd.DataFrame({"a": ["<b>"], "b": ["<i>x</i>"]}), 'say "so"', markup=("b",))
    html = table._repr_html_()
    assert "&lt;b&gt;" in html and "<i>x</i>" in html and 'aria-label="say &quot;so&quot;"' in html


ROWS = pd.DataFrame(
    {
        "claim": ["One < two.", "Two.", "Three."],
        "paper": ["P1", "P2", "P2"],
        "where": "Fig. 1",
        "measured": "1",
        "interval": ["0 to 2", "", ""],
        "paper_value": "1",
        "verdict": ["holds", "holds", "does not hold"],
        "chapter": ["05-canonical-tasks", "05-canonical-tasks", "07-learning-dynamics"],
        "kind": ["theorem", "replication", "replication"],
        "interval_kind": ["range over seeds", "none", "none"],
        "criterion": "holds if it is",
        "changed": ["", "", "it held if it was not"],
    },
    index=["canonical-tension", "letter-learnt", "number-learnt"],
)


def test_summary_counts_every_claim_once():
    summary = claims.summary(ROWS)
    frame = summary.frame
    assert summary.caption == (
        "Verdicts on 3 replications and theorems: holds 2, holds in part 0, not shown 0, does not hold 1, "
        "not testable here 0"
    )
    counts = frame.iloc[:, 2:].map(lambda cell: int(re.sub("<[^>]+>", "", cell)))
    assert frame["Claims"].tolist() == ["theorems", "replications"]
    assert counts.to_numpy().tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 1, 0]]
    assert 'href="ledger.md#paper=P2&kind=replication&verdict=does+not+hold"' in frame.iloc[1, 5]


def test_our_own_questions_count_for_no_paper():
    rows = claims.ledger(generality.CHAPTER, {"generality": general_study()})
    counted = claims.summary(rows)
    assert counted.frame.empty and counted.caption == "Verdicts on 0 replications and theorems"
    table = claims.summary(rows, ["own question"])
    counts = table.frame.iloc[:, 2:].map(lambda cell: int(re.sub("<[^>]+>", "", cell))).sum(axis=1)
    assert counts.tolist() == [len(rows)]
    assert 'href="ledger.md#paper=own&kind=own+question&verdict=holds"' in table.frame.iloc[0, 2]
    page = claims.browser(rows)._repr_html_()
    assert '<option value="own">Questions of our own' in page and '<option value="P2">' not in page
    shown = Cells(page)
    assert all(row[1].startswith("after 2605.31558, ") for row in shown.rows[1:])


def test_rows_that_are_not_the_ledgers_are_refused():
    for call in (claims.summary, claims.browser):
        with pytest.raises(InputError, match="rows lack where"):
            call(ROWS.drop(columns="where"))


def test_browser_shows_every_row_and_offers_what_there_is():
    page = claims.browser(ROWS)
    assert page.filters == {
        "paper": ["P1", "P2"],
        "kind": ["replication", "theorem"],
        "verdict": ["holds", "does not hold"],
        "chapter": ["05-canonical-tasks", "07-learning-dynamics"],
    }
    html = page._repr_html_()
    shown = Cells(html)
    assert [row[0].split("Criterion")[0] for row in shown.rows[1:]] == ["One < two.", "Two.", "Three."]
    assert [row[3] for row in shown.rows[1:]] == [
        "1; range over seeds 0 to 2Figure: accuracy by angle",
        "1Figure: accuracy on letters",
        "1Figure: accuracy on numbers",
    ]  # fmt: skip
    pattern = r'<tr id="claim-([^"]+)" data-paper="P2" data-kind="replication" data-verdict="([^"]+)"'
    assert re.findall(pattern, html) == [
        ("letter-learnt", "holds"), ("number-learnt", "does not hold")
    ]  # fmt: skip
    assert 'href="chapters/07-learning-dynamics.md#claim-number-learnt"' in html
    assert 'href="chapters/07-learning-dynamics.md#figure-accuracy-on-numbers"' in html
    assert '<option value="not testable here">' not in html
    assert "<" not in repr(page).replace("One < two.", "")


def test_the_book_has_the_verdicts_of_every_chapter_in_its_contents():
    """The ledger leaves out studies that are still to be run; their chapters must not be in the book."""
    contents = (ROOT / "_toc.yml").read_text()
    shown = [claim for claim in CLAIMS if f"chapters/{claim.chapter}\n" in contents]
    assert claims.ledger().index.tolist() == [claim.id for claim in shown]
    assert claims.studies().keys() == {claim.study for claim in shown} - {None}


def test_a_study_that_is_not_stored_leaves_its_chapter_out(tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    made = {"learning_dynamics": study()}
    assert set(claims.ledger(studies=made)["chapter"]) >= {CHAPTER, "01-positional-and-symbolic"}
    assert not set(claims.ledger(studies=made)["chapter"]) & {"05-canonical-tasks", "13-profiling-real-models"}


def test_finding_is_the_ledgers_row():
    made = {"learning_dynamics": study()}
    row = claims.ledger(CHAPTER, made).loc["letter-learnt"]
    text = claims.finding("letter-learnt", made)
    pattern = r'<span id="finding-letter-learnt"></span>\*(.+)\* \*\*(.+)\*\*: (.+)\.'
    said = re.fullmatch(pattern, text)
    assert said.groups() == (row["claim"], row["verdict"].capitalize(), f"{row['measured']}; {row['interval']}")


def test_judge_never_invents_a_verdict():
    assert [judge(True), judge(True, True), judge(False, True), judge(False)] == [
        "holds", "holds", "holds in part", "does not hold"
    ]  # fmt: skip
    undecided = [judge(*given, undecided=True) for given in ((True, True), (False, True), (False, False))]
    assert undecided == ["holds", "not shown", "not shown"]
    assert isinstance(Measurement("", "", judge(True)), tuple)


def test_an_interval_is_named_where_there_is_one_and_only_there():
    rows = claims.ledger()
    unnamed = rows["interval_kind"] == "none"
    assert not rows["interval"][unnamed].any()
    tested = ~unnamed & (rows["verdict"] != "not testable here")
    assert rows["interval"][tested].all(), rows.index[tested & (rows["interval"] == "")].tolist()


def test_what_is_folded_under_a_claim_says_kind_interval_and_what_was_changed():
    first, _, third = (Cells(claims.browser(ROWS)._repr_html_()).rows[1:][i][0] for i in range(3))
    assert "Kind: theorem." in first and "Interval: range over seeds." in first and "Changed" not in first
    assert third.endswith("Changed after its result was seen: it held if it was not.") and "Interval" not in third


def test_an_unknown_kind_lists_the_known():
    with pytest.raises(InputError, match="kind 'proof': .*replication, theorem"):
        claims.summary(ROWS, ["proof"])
