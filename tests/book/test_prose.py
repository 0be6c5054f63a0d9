"""The text of the book as a reader meets it: how long it is, how chapters are named, and where claims are shown."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

from possym.claims import CLAIMS
from possym.claims.figures import LABELS

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(ROOT.glob("chapters/*.md"))
SITTING = 120 * 220  # words in two hours, at a careful pace
LONGEST = 3200
TAG = r"</?[a-z][^<>]*>"  # no sign of inequality in a formula


def argument(notebook) -> str:
    """The words of a chapter up to What holds, with those that its cells write, without displayed formulas.

    What a no-break space joins, such as a number and its percent sign, is one word.
    """
    written = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            written.append(cell.source)
        for output in cell.get("outputs", []):
            written.append(output.get("data", {}).get("text/markdown", ""))
    text = re.sub(rf"\$\$.*?\$\$|{TAG}", " ", "\n".join(written).split("\n## What holds")[0], flags=re.DOTALL)
    return re.sub(r"^\([\w-]+\)=$|^```.*$|^:class:.*$|\N{NO-BREAK SPACE}", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_chapters_are_named_by_links(chapter):
    """The number of a file is not the number that a reader sees."""
    assert not re.search(r"\bchapters? \d", chapter.read_text(encoding="utf-8"), re.IGNORECASE)


def test_the_argument_is_read_in_one_sitting(site):
    stage = site.parent / "stage/chapters"
    words = {path.stem: len(argument(jupytext.read(path)).split()) for path in sorted(stage.glob("*.ipynb"))}
    assert max(words.values()) <= LONGEST, words
    assert sum(words.values()) <= SITTING, words


def test_tags_are_no_words_and_inequalities_hide_none():
    cell = nbformat.v4.new_markdown_cell('One <span id="a"></span> word, $a < b$, and 90\N{NO-BREAK SPACE}% > 3.')
    assert argument(nbformat.v4.new_notebook(cells=[cell])).split() == "One word, $a < b$, and 90% > 3.".split()


def test_numbers_have_a_space_before_percent_and_a_minus_that_is_no_hyphen(site):
    """In what pages say and what cells write; charts are typeset as they are drawn, and code is left as it is."""
    for notebook in sorted((site.parent / "stage").rglob("*.ipynb")):
        for cell in jupytext.read(notebook).cells:
            said = [re.sub(r"`[^`]*`", "", cell.source)] if cell.cell_type == "markdown" else []
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                if "possym-chart" not in data.get("text/html", ""):
                    said += [
                        re.sub(rf"<(script|style).*?</\1>|{TAG}", " ", data.get(kind, ""), flags=re.DOTALL)
                        for kind in ("text/markdown", "text/html")
                    ]
            for text in said:
                assert not re.search(r"\d%", text), f"{notebook.stem}: {re.search(r'.{0,40}[0-9]%', text)[0]}"
            for output in cell.get("outputs", []):
                text = output.get("data", {}).get("text/markdown", "")
                assert not re.search(r"(?<![\w.])-\d", re.sub(r"`[^`]*`", "", text)), f"{notebook.stem}: {text}"


def test_every_claim_of_the_ledger_leads_to_what_shows_it(site):
    ledger = (site / "ledger.html").read_text(encoding="utf-8")
    pages = {}
    for claim in CLAIMS:
        page = f"chapters/{claim.chapter}.html"
        if not (site / page).exists():
            continue
        label = LABELS[claim.id]
        assert f'href="{page}#{label}"' in ledger, claim.id
        text = pages.setdefault(page, (site / page).read_text(encoding="utf-8"))
        assert f'href="#{label}"' in text, f"{page} does not link to {label}"
        shown = text[text.index(f'id="{label}"') :]
        wanted = {"figure": '<figure class="possym-chart"', "table": "<table", "section": "<h"}[label.partition("-")[0]]
        assert 0 <= shown.find(wanted) < 40_000, f"{label} shows no {label.partition('-')[0]}"


def test_the_filters_of_the_ledger_do_not_cover_its_header(address, visit):
    with visit() as v:
        v.open(f"{address}/ledger.html")
        form, header = (v.page.locator(f".possym-ledger {name}").bounding_box() for name in ("form", "thead"))
        assert form["y"] + form["height"] <= header["y"]
