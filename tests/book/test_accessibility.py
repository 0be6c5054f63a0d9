"""What `test_every_kind_of_page_is_whole_at_every_width` would find with axe-core, and the book by keyboard alone."""

import pytest

pytestmark = pytest.mark.book


def test_axe_would_find_something(address, visit):
    with visit(color_scheme="dark") as v:
        v.open(f"{address}/index.html").wait_for_charts()
        v.page.add_style_tag(content=".bd-article p { color: #333 !important }")
        assert any("color-contrast" in finding for finding in v.findings("color-contrast", "link-in-text-block"))
        v.page.evaluate("document.querySelector('.bd-article').insertAdjacentHTML('beforeend', '<img src=\"x.svg\">')")
        assert any("image-alt" in finding for finding in v.findings(without=("color-contrast",)))
        assert not any("color-contrast" in finding for finding in v.findings(without=("color-contrast",)))


def test_every_chart_says_what_it_shows(chart_pages, address, visit):
    short = []
    with visit(java_script_enabled=False) as v:
        for page in chart_pages:
            v.open(f"{address}/{page}")
            texts = [still.get_attribute("alt") for still in v.page.locator("img.possym-still").all()]
            short += [f"{page}: {text}" for text in texts if len(text) < 40 or "without a description" in text]
    assert short == []


def test_controls_of_a_chart_are_reached_and_moved_by_keyboard(address, visit):
    with visit() as v:
        v.open(f"{address}/chapters/02-exclusion-principle.html").wait_for_charts()
        reached = []
        for _ in range(120):
            v.page.keyboard.press("Tab")
            reached.append(v.page.evaluate("document.activeElement.type || document.activeElement.tagName"))
            if reached[-1] == "range":
                break
        assert reached[-1] == "range", reached
        chart = v.page.locator("figure.possym-chart:has(input:focus) svg.marks")
        before = chart.inner_html()
        v.page.keyboard.press("Home")
        v.page.wait_for_timeout(300)
        assert chart.inner_html() != before


FOCUSED = """async () => {
  const element = document.activeElement, style = getComputedStyle(element);
  await Promise.allSettled(element.getAnimations().map(animation => animation.finished));
  const shown = (style.outlineStyle !== "none" || style.boxShadow !== "none") && style.opacity > 0;
  const fits = element.scrollWidth <= element.clientWidth;
  return [element.tagName, element.className, shown, fits];
}"""


def test_a_formula_is_a_stop_of_the_keyboard_while_it_is_wider_than_the_page(address, visit):
    with visit(200) as v:
        page = v.open(f"{address}/chapters/01-positional-and-symbolic.html").page
        v.wait_for_formulas()
        for width in (200, 1600, 200):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(300)
            formulas = page.evaluate(
                """() => [...document.querySelectorAll('mjx-container[display="true"]')]
                .map(formula => [formula.scrollWidth > formula.clientWidth, formula.tabIndex === 0])"""
            )
            assert all(wide == stop for wide, stop in formulas), (width, formulas)
            assert any(wide for wide, _ in formulas) == (width == 200)
        assert v.problems == []


@pytest.mark.parametrize("width", [360, 1200])
def test_the_keyboard_stops_where_it_can_be_seen_and_at_no_formula_that_fits(address, visit, width):
    with visit(width) as v:
        page = v.open(f"{address}/chapters/02-exclusion-principle.html").page
        v.wait_for_charts()
        v.wait_for_formulas()
        stops = []
        while not stops or stops[-1][0] != "INPUT":
            page.keyboard.press("Tab")
            stops.append(page.evaluate(FOCUSED))
        assert any("copybtn" in name for _, name, *_ in stops), stops
        assert [name for tag, name, shown, fits in stops if not shown or (tag == "MJX-CONTAINER" and fits)] == []
        assert v.problems == []


def test_the_citation_opens_and_closes_by_keyboard(address, visit):
    with visit() as v:
        v.open(f"{address}/chapters/01-positional-and-symbolic.html")
        v.page.locator("button.btn-cite-button").focus()
        v.page.keyboard.press("Enter")
        text = v.page.locator("dialog#cite[open] pre").text_content()
        assert all(part in text for part in ("@software{", "2511.11579", "2605.31558", "{Buc Calderon}"))
        v.page.keyboard.press("Escape")
        v.page.locator("dialog#cite").wait_for(state="hidden")
        v.page.keyboard.press("Enter")  # the button has the focus again
        v.page.locator("dialog#cite").wait_for()
        assert v.problems == []
