"""One number for a chapter, its page, sections, equations and figures; old addresses; the book on paper and as EPUB."""

import csv
import posixpath
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.book.conftest import HEADER, PARAMETERS
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
TEXT = "# Chapter {0}\n\n(here-{0})=\n## A section\n\n$$ x = {0} $$ (eq-{0})\n\nSee {{eq}}`eq-{0}`.\n"
FIGURES = """
Compare {numref}`figure-rising` with {ref}`figure-rising`, and {numref}`table-small-numbers`.

```{code-cell} ipython3
import pandas as pd
from possym.charts import alt, enable

enable()
data = pd.DataFrame({"x": [1.5, 2], "name": ["a, b", None]})
chart = alt.Chart(data).mark_line().encode(x="x:Q", y="x:Q")
chart.properties(title="It <rises>", description="A line that rises from left to right, drawn for a test of captions.")
```

(table-small-numbers)=

```{code-cell} ipython3
data
```

```{code-cell} ipython3
data.tail(1)
```

(figure-rising)=

```{code-cell} ipython3
other = alt.Chart(pd.DataFrame({"y": [3]})).mark_rule().encode(y="y:Q")
title = alt.Title("It rises again", subtitle="Said below")
(chart + other).properties(title=title, description="A line that rises from left to right, with a level beside it.")
```
"""


def contents():
    """The names of all chapters in the order of the book."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [page["file"] for page in toc["parts"][0]["chapters"]]


def test_files_are_numbered_in_the_order_of_the_book():
    numbers = [re.fullmatch(r"chapters/(\d\d)-[a-z-]+", page)[1] for page in contents()]
    assert numbers == sorted(set(numbers))
    assert {f"chapters/{path.stem}" for path in ROOT.glob("chapters/*.md")} == set(contents())
    named = re.findall(r"\{doc\}`(chapters/[^`]+)`", (ROOT / "index.md").read_text(encoding="utf-8"))
    assert named == contents(), "the map of index.md"
    moved = load_script("possym_numbers").MOVED
    assert set(moved.values()) <= set(contents()) and not set(moved) & set(contents())


@pytest.fixture(scope="module")
def built(tmp_path_factory, make) -> Path:
    """The chapters of a book of two, whose numbers have a gap between them, the second with two charts."""
    folder = tmp_path_factory.mktemp("numbered")
    shutil.copy(ROOT / "_config.yml", folder)
    shutil.copy(ROOT / "CITATION.cff", folder)
    (folder / "references.bib").write_text("")
    (folder / "index.md").write_text("# A small book\n\n```{tableofcontents}\n```\n")
    (folder / "chapters").mkdir()
    (folder / "chapters/01-one.md").write_text(TEXT.format(1))
    (folder / "chapters/13-profiling-real-models.md").write_text(
        f"{HEADER}\n{TEXT.format(13)}\n{PARAMETERS}\n{FIGURES}"
    )
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nparts:\n  - numbered: true\n    chapters:\n"
        "      - file: chapters/01-one\n      - file: chapters/13-profiling-real-models\n"
    )
    result = make("book", folder=folder)
    assert result.returncode == 0, result.stdout
    return folder / "_build/html/chapters"


@pytest.mark.parametrize("name", ["01-one", "13-profiling-real-models"])
def test_pages_print_the_number_of_their_file(built, name):
    """A number that is missing in between moves no other."""
    number, text = int(name[:2]), (built / f"{name}.html").read_text(encoding="utf-8")
    assert re.findall(r'<h[12]><span class="section-number">([\d.]+) ', text) == [f"{number}.", f"{number}.1."]
    assert f'class="eqno">({number}.1)' in text and f">({number}.1)</a>" in text
    assert set(re.findall(r">(\d+)\. Chapter (\d+)", text)) == {("1", "1"), ("13", "13")}, "the contents beside it"


def test_old_addresses_lead_to_the_new_ones(built, visit):
    with visit() as v:
        for old in ("10-profiling-real-models.html", "10-profiling-real-models.html?a=b#here-13"):
            page = v.open(f"{built.as_uri()}/{old}", unfolded=False).page
            page.wait_for_url(f"{built.as_uri()}/{old.replace('10-', '13-')}")
            assert "Chapter 13" in page.locator("h1").first.text_content()
    assert not (built / "11-one-hop-prompts.html").exists(), "a page that this book does not have"


def test_figures_have_numbers_that_text_refers_to_and_the_live_chart_keeps_its_words(built, visit):
    with visit() as v:
        page = v.open((built / "13-profiling-real-models.html").as_uri()).page
        stills = re.findall(r'possym-still"[^>]* alt="([^"]+)"', (built / "13-profiling-real-models.html").read_text())
        v.wait_for_charts()
        captions = page.locator("figure.possym-chart figcaption").all_text_contents()
        assert [" ".join(words.split()) for words in captions] == [
            "Figure 13.1 It <rises> CSV", "Figure 13.2 It rises againSaid below CSV",
        ]  # fmt: skip
        links = page.locator('.bd-article p a[href="#figure-rising"]').all_text_contents()
        assert links == ["Figure 13.2", "It rises again"]
        assert page.locator("#figure-rising").get_by_text("It rises again").count() == 1
        live = page.locator("figure.possym-chart [role=graphics-document]").all()
        assert [chart.get_attribute("aria-label") for chart in live] == stills and len(stills) == 2
        assert v.findings() == []


def test_tables_have_numbers_that_text_refers_to(built):
    text = (built / "13-profiling-real-models.html").read_text(encoding="utf-8")
    captions = re.findall(r"<caption>(.*?)</caption>", text)
    assert [re.sub("<[^>]+>", "", words).strip() for words in captions] == ["Table 13.1 Small numbers", "Table 13.2"]
    assert re.search(r'href="#table-small-numbers"><span class="std std-numref">Table 13.1</span>', text)
    beside = (
        r'cell_output docutils container">\s*<span id="table-small-numbers"></span>\s*<div class="output text_html">'
    )
    assert re.search(beside, text), "the theme makes a wide output a stop of the keyboard, if nothing is around it"


def test_numbers_of_a_figure_lie_beside_its_picture(built):
    text = (built / "13-profiling-real-models.html").read_text(encoding="utf-8")
    found = re.findall(r'class="possym-csv" href="([^"]+)".*?src="([^"]+)"', text, re.DOTALL)
    files = [(built / address).resolve() for address, _ in found]
    assert [path.parent for path in files] == [(built / picture).resolve().parent for _, picture in found]
    one, two = (list(csv.reader(path.read_text(encoding="utf-8").splitlines())) for path in files)
    assert one == [["x", "name"], ["1.5", "a, b"], ["2.0", ""]]
    rows = [["table", "x", "name", "y"], ["1", "1.5", "a, b", ""], ["1", "2.0", "", ""], ["2", "", "", "3"]]
    assert sorted(two) == sorted(rows)


def test_the_epub_holds_all_pages_formulas_and_pictures_and_its_links_lead_somewhere(built, tmp_path):
    books = [tmp_path / "one.epub", tmp_path / "two.epub"]
    for book in books:
        subprocess.run(
            [sys.executable, ROOT / "_ext/epub_book.py", built.parent, book], check=True, capture_output=True
        )
    assert books[0].read_bytes() == books[1].read_bytes()
    with zipfile.ZipFile(books[0]) as archive:
        kind, *_ = archive.infolist()
        assert (kind.filename, kind.compress_type) == ("mimetype", zipfile.ZIP_STORED)
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files["mimetype"] == b"application/epub+zip"
    trees = {name: ElementTree.fromstring(text) for name, text in files.items() if name.endswith((".xhtml", ".opf"))}
    opf = trees.pop("book/content.opf")
    listed = {f"book/{item.get('href')}" for item in opf.findall(".//{*}item")}
    assert listed | {"book/content.opf", "mimetype", "META-INF/container.xml"} == set(files)
    assert len(opf.findall(".//{*}itemref")) == 3 and len(trees) == 4
    anchors = {name: {part.get("id") for part in tree.iter()} for name, tree in trees.items()}
    for name, tree in trees.items():
        for part in tree.iter():
            address = part.get("href") or part.get("src") or ""
            if not re.match("https?:", address):
                path, _, anchor = address.partition("#")
                target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
                assert target in files and (not anchor or anchor in anchors[target]), f"{name}: {address}"
    assert {item.get("properties") for item in opf.findall(".//{*}item")} == {"nav", "mathml", None}
    chapter = trees["book/chapters/13-profiling-real-models.xhtml"]
    assert "".join(chapter.find(".//{*}math").itertext()).split() == ["x", "=", "13"]
    assert len(chapter.findall(".//{*}figure//{*}img")) == 2 and "Figure 13.2" in "".join(chapter.itertext())
    assert not [part.tag for part in chapter.iter() if part.tag.endswith(("}script", "}style", "}button"))]


def test_the_book_on_paper_has_its_formulas_typeset(built, tmp_path):
    paper = tmp_path / "book.pdf"
    command = [sys.executable, ROOT / "_ext/print_book.py", built.parent, paper]
    assert "3 pages of the site" in subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert paper.read_bytes().startswith(b"%PDF-")
