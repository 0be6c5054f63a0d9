"""The ledger's page, links, search and sharing, and whether the back matter has everything that it promises."""

import ast
import contextlib
import html
import json
import re
import struct
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import jupytext
import pytest
import yaml
from playwright.sync_api import TimeoutError, expect

from possym import claims
from possym.claims.table import anchor
from possym.results.published import papers

pytestmark = pytest.mark.book

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(ROOT.glob("chapters/*.md"))
ROWS = ".possym-ledger tbody tr:visible"


@pytest.fixture(scope="module")
def ledger():
    return claims.ledger()


def test_the_ledger_is_filtered_without_a_kernel(address, visit, ledger):
    with visit() as v:
        v.open(f"{address}/ledger.html")
        page, rows = v.page, v.page.locator(ROWS)
        assert rows.count() == len(ledger)
        page.locator("select[name=verdict]").select_option("does not hold")
        wrong = ledger[ledger["verdict"] == "does not hold"].sort_values("chapter", kind="stable")
        names = [f"claim-{name.replace('.', '-')}" for name in wrong.index]
        assert [row.get_attribute("id") for row in rows.all()] == names
        page.get_by_label("Paper").select_option("P2")
        assert rows.count() == (wrong["paper"] == "P2").sum()
        assert page.locator(".possym-ledger output").text_content() == f"{rows.count()} of {len(ledger)} rows"
        page.reload()  # the choice is in the address
        assert rows.count() == (wrong["paper"] == "P2").sum()
        page.get_by_role("button", name="Show all").click()
        expect(rows).to_have_count(len(ledger))
        page.get_by_label("Text").fill("EXCLUSION PRINCIPLE")
        named = ledger["claim"].str.contains("exclusion principle", case=False)
        assert 0 <= rows.count() < len(ledger) and rows.count() >= named.sum()
        one = ledger.loc["real-trade"]
        said = f"{one['measured']}; 95 % intervals {one['interval']}"  # as a keyboard has it
        page.get_by_label("Text").fill(said.replace("−", "-").replace("\N{NO-BREAK SPACE}", " "))
        assert rows.count() == 1
        page.get_by_label("Text").fill("")
        page.get_by_label("Kind").select_option("theorem")
        assert rows.count() == (ledger["kind"] == "theorem").sum()
        page.get_by_label("Kind").select_option("")
        chapter = ledger["chapter"].iloc[-1]
        page.get_by_label("Chapter").select_option(chapter)
        assert rows.count() == (ledger["chapter"] == chapter).sum()
        rows.first.locator("summary").click()
        assert rows.first.get_by_text("Criterion:").is_visible()
        assert v.problems == []


def test_back_and_forward_undo_and_redo_filters(address, visit, ledger):
    with visit() as v:
        v.open(f"{address}/index.html")
        page, rows = v.page, v.page.locator(ROWS)
        page.goto(f"{address}/ledger.html")
        holding = ledger[ledger["verdict"] == "holds"]
        both = holding[holding["paper"] == "P2"]
        page.locator("select[name=verdict]").select_option("holds")
        page.get_by_label("Paper").select_option("P2")
        page.get_by_label("Text").press_sequentially("symbolic")
        few = rows.count()
        assert 0 < few < len(both)
        page.go_back()  # a word is one step
        expect(rows).to_have_count(len(both))
        page.go_back()
        expect(rows).to_have_count(len(holding))
        assert page.get_by_label("Paper").input_value() == ""
        page.go_back()
        expect(rows).to_have_count(len(ledger))
        for count in (len(holding), len(both), few):
            page.go_forward()
            expect(rows).to_have_count(count)
        assert page.get_by_label("Text").input_value() == "symbolic"
        filtered = page.url
        page.goto(f"{address}/index.html")
        page.goto(filtered)  # can be linked to
        expect(rows).to_have_count(few)
        page.get_by_role("button", name="Show all").click()
        expect(rows).to_have_count(len(ledger))
        assert page.url == f"{address}/ledger.html"
        assert v.problems == []


IN_FRONT = """selector => {
  const element = document.querySelector(selector), { left, top } = element.getBoundingClientRect();
  return element.contains(document.elementFromPoint(left + 20, top + 5));
}"""


@pytest.mark.parametrize("width", [360, 1200])
def test_what_holds_leads_to_the_claims_row_in_the_ledger(address, visit, ledger, width):
    claim = ledger.index[ledger["verdict"] == "does not hold"][-1]
    chapter, row = ledger.loc[claim, "chapter"], f"#{anchor('claim', claim)}"
    with visit(width) as v:
        page = v.open(f"{address}/chapters/{chapter}.html").page
        page.locator(f"{row} a", has_text="in the ledger").click()
        page.wait_for_url("**/ledger.html#*")
        expect(page.locator(row)).to_be_in_viewport()
        plain = page.locator(f"tr[id]:not({row})").first.evaluate("row => getComputedStyle(row).backgroundColor")
        expect(page.locator(row)).not_to_have_css("background-color", plain)  # marked
        assert in_front(page, f"{row} summary")
        page.locator("select[name=verdict]").select_option("holds")
        expect(page.locator(row)).to_be_hidden()
        page.evaluate("address => { location.hash = address }", row)
        expect(page.locator(row)).to_be_in_viewport()
        expect(page.locator("select[name=verdict]")).to_have_value("")
        assert v.problems == []


def in_front(page, selector: str) -> bool:
    """Whether the first line of what a selector finds is covered by nothing, once the page has scrolled."""
    with contextlib.suppress(TimeoutError):
        page.wait_for_function(IN_FRONT, arg=selector, timeout=5000)
        return True
    return False


@pytest.mark.parametrize("width", [390, 1440])
def test_addresses_land_on_what_they_name(site, address, visit, width):
    """Every tenth figure or table that the ledger leads to, within 4 px of the room that the page keeps above it."""
    whole = Addresses((site / "ledger.html").read_text(encoding="utf-8"))
    links = sorted(link for link in whole.links if re.match(r"chapters/.*#(figure|table)-", link))[::10]
    assert len(links) >= 5
    with visit(width) as v:
        for link in links:
            v.open(f"{address}/{link}", unfolded=False).wait_for_formulas()
            v.page.wait_for_timeout(700)  # charts near the target are drawn meanwhile
            off = v.page.evaluate("""() => {
              const target = document.getElementById(location.hash.slice(1)), root = document.documentElement;
              const room = [[root, "scrollPaddingTop"], [target, "scrollMarginTop"]];
              const kept = room.reduce((sum, [of, name]) => sum + (parseFloat(getComputedStyle(of)[name]) || 0), 0);
              const left = root.scrollHeight - innerHeight - scrollY; // how far the page could still be scrolled
              return Math.min(target.getBoundingClientRect().top - kept, left);
            }""")
            assert abs(off) <= 4, (link, off)
        assert v.problems == []


def test_every_row_of_what_holds_leads_to_the_ledger(site, ledger):
    whole = Addresses((site / "ledger.html").read_text(encoding="utf-8"))
    for chapter, rows in ledger.groupby("chapter"):
        here = Addresses((site / f"chapters/{chapter}.html").read_text(encoding="utf-8"))
        for claim in rows.index:
            assert f"../ledger.html#{anchor('claim', claim)}" in here.links, claim
            assert anchor("claim", claim) in whole.anchors & here.anchors


def test_counts_on_the_landing_page_lead_to_their_claims(address, visit, ledger):
    with visit() as v:
        v.open(f"{address}/index.html")
        link = v.page.locator('.possym-table a[href*="does+not+hold"]').first
        count = int(link.text_content())
        link.click()
        v.page.wait_for_url("**/ledger.html#*")
        assert v.page.locator(ROWS).count() == count
        assert v.problems == []


def test_the_ledger_is_whole_where_scripts_do_not_run(address, visit, ledger):
    with visit(java_script_enabled=False) as v:
        v.open(f"{address}/ledger.html")
        assert v.page.locator(ROWS).count() == len(ledger)
        assert not v.page.locator(".possym-ledger form").is_visible()


class Addresses(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])


def test_every_link_within_the_book_leads_somewhere(site, pages):
    found = {page: Addresses((site / page).read_text(encoding="utf-8")) for page in pages}
    broken = []
    for page, here in found.items():
        for link in here.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / page).parent.joinpath(unquote(parts.path)).resolve() if parts.path else site / page
            name = target.relative_to(site).as_posix()
            anchor = unquote(parts.fragment)
            missing = anchor and "=" not in anchor and name in found and anchor not in found[name].anchors
            if not target.exists() or missing:
                broken.append(f"{page}: {link}")
    assert broken == []


def test_every_public_name_is_in_the_reference(site):
    anchors = set()
    for page in site.glob("api/*.html"):
        anchors |= Addresses(page.read_text(encoding="utf-8")).anchors
    missing = []
    for path in sorted({*(ROOT / "possym").rglob("*.py")} - {*(ROOT / "possym").rglob("__main__.py")}):  # a command
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                # What `check` makes of a function is a statement of the audit, which chapter 04 shows.
                audited = any("check" in ast.unparse(decorator) for decorator in node.decorator_list)
                if not audited and f"{module}.{node.name}" not in anchors:
                    missing.append(f"{module}.{node.name}")
    assert missing == []


def test_examples_of_the_reference_are_those_that_the_tests_run(site):
    text = re.sub("<[^>]+>", "", (site / "api/possym.scores.html").read_text(encoding="utf-8"))
    assert "&gt;&gt;&gt; relocated_logits(keys[0], keys, query_position=1" in text
    assert "[0.8415, 0.0000]])" in text


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_equations_are_numbered_and_referred_to(chapter):
    text = chapter.read_text(encoding="utf-8")
    everything = "".join(path.read_text(encoding="utf-8") for path in [*CHAPTERS, ROOT / "glossary.md"])
    assert len(re.findall(r"^\$\$", text, re.MULTILINE)) == 2 * len(
        re.findall(r"^\$\$ \(eq-[\w-]+\)$", text, re.MULTILINE)
    )
    for label in re.findall(r"^\$\$ \((eq-[\w-]+)\)$", text, re.MULTILINE):
        assert f"{{eq}}`{label}`" in everything, f"nothing refers to {label}"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_sections_end_with_what_to_remember(chapter):
    text = "\n\n".join(cell.source for cell in jupytext.read(chapter).cells if cell.cell_type == "markdown")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    folded = [s for s in sections if s.split("\n")[2:3] == ["% check"]]  # an aside: nothing to remember
    lacking = [s.split("\n")[0] for s in sections if "{admonition} Remember" not in s and s not in folded]
    assert set(lacking) <= {"What holds", "Exercises"}
    assert text.count("{term}`") >= 3


def test_works_in_the_bibliography_can_be_found():
    entries = re.split(r"^@", (ROOT / "references.bib").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(entries) > 10
    for entry in entries:
        assert re.search(r"^ +(doi|eprint|url) = ", entry, re.MULTILINE), entry


@pytest.mark.parametrize("word", ["purity", "frequency", "discrepancy", "induction"])
def test_search_finds_explanations_before_names(address, visit, word):
    with visit() as v:
        page = v.open(f"{address}/search.html?q={word}").page
        page.get_by_text("Search finished").wait_for()
        found = [urlsplit(link.get_attribute("href")).path for link in page.locator("#search-results li > a").all()]
        kinds = ["names" if name.startswith("api") else "words" for name in found]
        explaining = [name for name in found if name.startswith(("chapters/", "glossary"))]
        assert len(explaining) >= 3 and found[: len(explaining)] == explaining
        assert set(kinds) == {"names", "words"} and kinds == sorted(kinds, reverse=True)
        assert v.problems == []


def test_search_works_in_a_folder_of_files(site, visit):
    with visit() as v:
        page = v.open(f"{site.as_uri()}/search.html?q=discrepancy").page
        page.get_by_text("Search finished").wait_for()
        names = [link.get_attribute("href") for link in page.locator("#search-results li > a").all()]
        assert any(name.startswith("chapters/04-rope-geometry.html") for name in names)
        page.wait_for_timeout(300)
        # Chromium refuses the theme's font preloads from disk, as in test_charts_work_from_disk.
        assert [problem for problem in v.problems if "font" not in problem and "ERR_FAILED" not in problem] == []


def test_the_book_is_cited_as_its_bibliography_cites(site):
    """Keys hold a year, so that two entries differ, and an entry of the citation is the bibliography's of that key."""
    shown = html.unescape(
        re.search(r'id="cite".*?<pre[^>]*>(.*?)</pre>', (site / "index.html").read_text(), re.DOTALL)[1]
    )
    bibliography = (ROOT / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{(.*),$", shown, re.MULTILINE)
    assert keys[0] == "possym2026" and keys[1:] == [paper["cite"] for paper in papers().values()]
    for key in keys[1:]:
        fields = [
            dict(re.findall(r"^ +(\w+) = \{(.*)\},$", text.split(f"{{{key},")[1].split("\n}")[0], re.MULTILINE))
            for text in (shown, bibliography)
        ]
        assert {name: re.sub("[{}]", "", value) for name, value in fields[0].items()} == {
            name: re.sub("[{}]", "", value) for name, value in fields[1].items()
        }


def test_pages_say_what_they_need_scripts_for(address, kinds_of_pages, visit):
    with visit(java_script_enabled=False) as v:
        for name in kinds_of_pages:
            page = v.open(f"{address}/{name}").page
            line = page.locator(".bd-article noscript p", has_text="need JavaScript")
            needed = {
                "ormulas": page.locator(".bd-article .math").count(),
                "harts": page.locator(".possym-view").count(),
            }
            said = " ".join(line.all_inner_texts())
            assert {word for word in needed if word in said} == {word for word in needed if needed[word]}, name
            assert line.count() == any(needed.values()), name
        assert v.problems == []


def test_pages_carry_a_description_and_a_card_is_drawn(site, pages):
    """Which no page of a site without an address names: no one finds a picture by a relative address."""
    title = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["title"]
    card = (site / "_static/card.png").read_bytes()
    assert struct.unpack(">II", card[16:24]) == (1200, 630)
    assert len(card) > 20_000  # drawn, not blank
    for page in pages:
        text = (site / page).read_text(encoding="utf-8")
        assert 'property="og:image' not in text, page
        assert f'<meta property="og:site_name" content="{title}"' in text, page
        if not page.startswith(("api", "search", "bibliography")):
            assert re.search(r'<meta name="description" content="[^"]{60,}"', text), page


def test_a_book_that_knows_its_address_has_a_sitemap(book, make):
    folder = book(one="1 + 1")
    result = make("book", "POSSYM_ADDRESS=https://book.example/", folder=folder)
    assert result.returncode == 0, result.stdout
    built = folder / "_build/html"
    named = re.findall(r"<loc>https://book\.example/([^<]+)</loc>", (built / "sitemap.xml").read_text())
    assert {"index.html", "chapters/one.html"} <= set(named)
    assert all((built / name).exists() for name in named)
    assert not (built / "_static/charts").exists()  # no page has a chart
    assert 'property="og:image" content="https://book.example/_static/card.png"' in (built / "index.html").read_text()


def test_at_least_eight_figures_answer_without_a_kernel(site, chart_pages):
    specs = {
        name
        for page in chart_pages
        for name in re.findall(r'data-spec="(\w+)"', (site / page).read_text(encoding="utf-8"))
    }
    interactive = 0
    for name in specs:
        text = (site / f"_static/charts/specs/{name}.js").read_text(encoding="utf-8")
        spec = json.loads(text[text.index("] = ") + 4 : text.rindex(";")])
        interactive += any("bind" in param or "select" in param for param in spec.get("params", []))
    assert interactive >= 8
