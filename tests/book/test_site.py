"""The built site in a real browser, every request to the network blocked and counted."""

import json
import re

import pytest

pytestmark = pytest.mark.book

PAGE_LIMIT = 150_000  # bytes of HTML beside shared scripts and pictures
CONTRAST = """selector => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const element = document.querySelector(selector), back = rgb(getComputedStyle(document.body).backgroundColor);
  const style = getComputedStyle(element), alpha = Number(style.opacity);
  const ink = rgb(style.fill).slice(0, 3).map((v, i) => alpha * v + (1 - alpha) * back[i]);
  const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}"""
LABEL = "figure.possym-chart svg .role-axis-label text"
SLIDER = "figure.possym-chart .vega-bind input[type=range]"


@pytest.fixture(scope="session")
def pages(site) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if "_static" not in path.parts)


@pytest.fixture(scope="session")
def chart_pages(site, pages) -> list[str]:
    found = [page for page in pages if '<figure class="possym-chart"' in (site / page).read_text(encoding="utf-8")]
    assert found, "no page of the book has a chart"
    return found


def test_every_page_opens_whole_at_every_width(pages, address, visit):
    problems = []
    for width in (360, 800, 1600):
        for page in pages:
            with visit(width) as v:
                v.open(f"{address}/{page}")
                charts = v.wait_for_charts()
                drawn = v.page.locator("figure.possym-chart[data-drawn=true] svg.marks").count()
                if drawn != charts:
                    v.problems.append(f"{drawn} of {charts} charts drawn")
                named = v.page.locator("figure.possym-chart [role=graphics-document][aria-label]").count()
                if named != charts:
                    v.problems.append(f"{named} of {charts} charts have an alternative text")
                v.page.wait_for_function("!window.MathJax?.startup || MathJax.startup.promise.then(() => true)")
                formulas, typeset = (v.page.locator(s).count() for s in (".bd-article .math", "mjx-container"))
                if typeset < formulas:
                    v.problems.append(f"{typeset} of {formulas} formulas typeset")
                across = v.page.evaluate("document.documentElement.scrollWidth")
                if across > width:
                    v.problems.append(f"{across} pixels wide")
                problems += [f"{page} at {width}: {problem}" for problem in v.problems]
    assert problems == []


def test_pages_are_small(site, pages):
    sizes = {page: (site / page).stat().st_size for page in pages}
    assert {page: size for page, size in sizes.items() if size > PAGE_LIMIT} == {}


def test_charts_work_from_disk(site, chart_pages, visit):
    with visit() as v:
        v.open((site / chart_pages[0]).as_uri())
        assert v.wait_for_charts() == v.page.locator("figure.possym-chart[data-drawn=true]").count()
        # Chromium refuses the theme's font preloads from disk, and says so; the page is whole without them.
        assert [problem for problem in v.problems if "console" not in problem] == []


def test_stills_show_where_scripts_do_not_run(address, chart_pages, visit):
    with visit(java_script_enabled=False) as v:
        v.open(f"{address}/{chart_pages[0]}")
        stills = v.page.locator("img.possym-still")
        assert stills.count() > 0
        for still in stills.all():
            still.scroll_into_view_if_needed()
            assert still.bounding_box()["height"] > 50
            assert len(still.get_attribute("alt")) > 10
        assert v.problems == []


def test_sliders_change_their_charts(site, address, chart_pages, visit):
    moved = 0
    for page in chart_pages:
        with visit() as v:
            v.open(f"{address}/{page}").wait_for_charts()
            for slider in v.page.locator(SLIDER).all():
                svg = slider.locator("xpath=ancestor::figure").locator("svg.marks")
                before = svg.inner_html()
                slider.focus()
                value = slider.input_value()
                slider.press("End")
                if slider.input_value() == value:
                    slider.press("Home")
                v.page.wait_for_timeout(300)
                assert svg.inner_html() != before, f"{page}: a slider leaves its chart as it was"
                moved += 1
            assert v.problems == []
    assert moved, "no chart of the book has a slider"


def test_dark_mode_keeps_charts_readable_and_sliders_where_they_are(address, chart_pages, visit):
    page = next(p for p in chart_pages if _has_slider(p, address, visit))
    with visit(color_scheme="light") as v:
        v.open(f"{address}/{page}").wait_for_charts()
        slider = v.page.locator(SLIDER).first
        slider.focus()
        slider.press("ArrowRight")
        value, contrast, ink = slider.input_value(), v.page.evaluate(CONTRAST, LABEL), _ink(v.page)
        assert contrast >= 4.5
        while v.page.evaluate("document.documentElement.dataset.theme") != "dark":
            v.page.locator("button.theme-switch-button:visible").first.click()
        v.page.wait_for_timeout(500)
        assert _ink(v.page) != ink
        assert v.page.evaluate(CONTRAST, LABEL) >= 4.5
        assert slider.input_value() == value
        assert v.problems == []


def _has_slider(page, address, visit) -> bool:
    with visit() as v:
        v.open(f"{address}/{page}").wait_for_charts()
        return v.page.locator(SLIDER).count() > 0


def _ink(page) -> str:
    return page.evaluate("selector => getComputedStyle(document.querySelector(selector)).fill", LABEL)


def test_download_button_gives_the_executed_notebook(site, chart_pages):
    for page in chart_pages:
        html = (site / page).read_text(encoding="utf-8")
        link = re.search(r'href="([^"]+\.ipynb)"', html)
        assert link, f"{page} offers no notebook"
        notebook = json.loads((site / page).parent.joinpath(link[1]).read_text(encoding="utf-8"))
        ran = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in ran)
        assert all(cell["execution_count"] for cell in ran if "".join(cell["source"]).strip())


def test_injected_parameters_are_hidden_and_parameters_folded(site, chart_pages):
    for page in chart_pages:
        html = (site / page).read_text(encoding="utf-8")
        assert "tag_injected-parameters" not in html
        if "tag_parameters" in html:
            assert re.search(r'class="[^"]*tag_hide-input[^"]*tag_parameters', html)


def test_search_works_offline(address, visit):
    with visit() as v:
        v.open(f"{address}/search.html?q=attention")
        v.page.wait_for_selector("#search-results li a")
        assert v.problems == []


def test_a_page_that_loads_from_the_network_fails_the_build(book, make):
    folder = book(one="1 + 1")
    (folder / "index.md").write_text('# Leaky\n\n<script src="https://example.org/tracker.js"></script>\n')
    result = make("book", folder=folder)
    assert result.returncode != 0
    assert "index.html loads https://example.org/tracker.js" in result.stdout


def test_pages_that_are_gone_or_became_notebooks_leave_nothing_behind(book, make):
    folder = book(one="1 + 1", two="2 + 2")
    assert make("book", folder=folder).returncode == 0
    toc, notebook = folder / "_toc.yml", (folder / "chapters/one.md").read_text()
    toc.write_text(toc.read_text().replace("  - file: chapters/two\n", ""))
    (folder / "index.md").write_text(notebook.replace("Chapter one", "A small book, with code"))
    result = make("book", folder=folder)
    assert result.returncode == 0, result.stdout
    assert {path.stem for path in (folder / "_build/html/chapters").glob("*.html")} == {"one"}
    assert "with code" in (folder / "_build/html/index.html").read_text()
