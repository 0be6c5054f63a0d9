"""The text of the book as a reader meets it: how long it is, how chapters are named, and where claims are shown."""

import re
from html import unescape
from pathlib import Path

import jupytext
import nbformat
import pytest

from possym.claims import CLAIMS
from possym.claims.figures import LABELS

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(ROOT.glob("chapters/*.md"))
SITTING = 75 * 220  # words of the main line, what is folded left out, in an hour and a quarter at a careful pace
WHOLE = 178 * 220
LONGEST = 4250
NO_PROSE = re.compile(
    r"""<(script|style|pre|code|title)\b.*?</\1>|<(span|div) class="math.*?</\2>|<dt class="sig.*?</dt>""", re.DOTALL
)
TAG = r"</?[a-z][^<>]*>"  # no sign of inequality in a formula


def main_line(notebook):
    """A notebook without the sections that begin with ``% check``."""
    kept, folded = [], 0
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            kept += [] if folded else [cell]
            continue
        parts = []
        for part in re.split(r"^(?=#{1,6} )", cell.source, flags=re.MULTILINE):
            level = len(part) - len(part.lstrip("#"))
            folded = 0 if 0 < level <= folded else folded
            if level and not folded and re.search(r"^% check$", part, re.MULTILINE):
                folded = level
            parts += [] if folded else [part]
        kept.append(nbformat.v4.new_markdown_cell("".join(parts)))
    return nbformat.v4.new_notebook(cells=kept)


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
    """A link is right when a chapter gets another number, and a number in the text is not."""
    assert not re.search(r"\bchapters? \d", chapter.read_text(encoding="utf-8"), re.IGNORECASE)


def test_errata_are_of_versions_and_pages_that_there_are():
    text = (ROOT / "errata.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    corrected = re.findall(r"^## Corrected in (\S+)$", text, re.MULTILINE)
    assert corrected and set(corrected) <= set(released[:-1]), "the first version corrects nothing"
    assert all((ROOT / f"{page}.md").exists() for page in re.findall(r"\{doc\}`(?:.*<)?([^`>]+)>?`", text))


def test_the_argument_is_read_in_one_sitting(site):
    stage = site.parent / "stage/chapters"
    chapters = {path.stem: jupytext.read(path) for path in sorted(stage.glob("*.ipynb"))}
    words = {name: len(argument(notebook).split()) for name, notebook in chapters.items()}
    assert max(words.values()) <= LONGEST, words
    assert sum(words.values()) <= WHOLE, words
    first = {name: len(argument(main_line(notebook)).split()) for name, notebook in chapters.items()}
    assert sum(first.values()) <= SITTING, first


def test_the_main_line_is_what_is_not_folded():
    sources = ["# One\n\nKept.", "## Two\n\n% check\n\nFolded.\n\n### Three\n\nToo.", "## Four\n\nKept."]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(source) for source in sources])
    assert argument(main_line(notebook)).split() == "# One Kept. ## Four Kept.".split()


def test_tags_are_no_words_and_inequalities_hide_none():
    cell = nbformat.v4.new_markdown_cell('One <span id="a"></span> word, $a < b$, and 90\N{NO-BREAK SPACE}% > 3.')
    assert argument(nbformat.v4.new_notebook(cells=[cell])).split() == "One word, $a < b$, and 90% > 3.".split()


@pytest.mark.parametrize("kind", ["html", "svg"])
def test_numbers_have_a_space_before_percent_and_a_minus_that_is_no_hyphen(site, kind):
    """On finished pages, tables included, and in their charts; code and formulas are left as they are."""
    said = {}
    for path in site.rglob(f"*.{kind}"):
        text = path.read_text(encoding="utf-8")
        parts = re.findall("<text.*?</text>", text, re.DOTALL) if kind == "svg" else [NO_PROSE.sub(" ", text)]
        said[path.name] = unescape(re.sub("<[^>]*>", " ", "; ".join(parts)))
    assert any("\N{NO-BREAK SPACE}%" in text for text in said.values())
    assert any(re.search(r"−\d", text) for text in said.values())
    found = {name: re.findall(r".{0,30}(?:\d%|(?<![\w.])-\d).{0,10}", text) for name, text in said.items()}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


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
