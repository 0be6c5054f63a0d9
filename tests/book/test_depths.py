"""Two depths of reading, cards beside links, claims below figures, the foot, and what is printed."""

import json
import re

import pytest

import possym

pytestmark = pytest.mark.book
MAIN_LINE = 110  # screens of 900 px at a width of 1440, all chapters


def test_the_main_line_is_short(pages, address, visit):
    with visit(1440) as v:
        heights = {}
        for chapter in (page for page in pages if page.startswith("chapters/")):
            v.open(f"{address}/{chapter}", unfolded=False)
            heights[chapter] = v.page.evaluate("document.documentElement.scrollHeight") / 900
    assert sum(heights.values()) <= MAIN_LINE, heights


def test_an_address_opens_the_fold_that_it_leads_into(address, visit):
    with visit() as v:
        page = v.open(f"{address}/chapters/07-learning-dynamics.html#claim-letter-learnt", unfolded=False).page
        assert page.locator("#claim-letter-learnt").is_visible()
        assert not page.locator("#exercises details.possym-fold > :nth-child(2)").is_visible()
        v.open(f"{address}/chapters/07-learning-dynamics.html", unfolded=False)
        said = page.locator("#what-holds > details > summary").text_content()
        assert re.match(r"\d+ claims: \d+ ● holds", said)
        assert re.match(r"\d+ minutes to read, \d+ minutes more", page.locator(".possym-time").text_content())
        assert v.problems == []


def test_a_folded_chart_is_drawn_when_it_is_opened(address, visit):
    with visit() as v:
        page = v.open(f"{address}/chapters/07-learning-dynamics.html", unfolded=False).page
        figure = page.locator("details.possym-fold figure.possym-chart").first
        page.wait_for_function("figure => figure.dataset.drawn === 'folded'", arg=figure.element_handle())
        page.locator("details.possym-fold:has(figure.possym-chart) > summary").first.click()
        page.wait_for_function("figure => figure.dataset.drawn === 'true'", arg=figure.element_handle())
        assert v.problems == []


def test_every_dotted_term_has_its_definition(site, pages):
    text = (site / "_static/cards_data.js").read_text(encoding="utf-8")
    cards = json.loads(text.partition(" = ")[2].rstrip(";\n"))
    missing = set()
    for page in pages:
        for target in re.findall(
            r'href="[^"#]*glossary\.html(#term-[^"]+)"', (site / page).read_text(encoding="utf-8")
        ):
            if len(cards.get(f"glossary.html{target}", "")) < 30:
                missing.add(target)
    assert missing == set()
    kinds = ("bibliography.html#", "#equation-", "#figure-", "ledger.html#claim-")
    assert all(any(kind in key for key in cards) for kind in kinds)


def test_a_term_shows_its_definition_and_escape_hides_it(address, visit):
    with visit() as v:
        page = v.open(f"{address}/chapters/02-exclusion-principle.html").page
        v.wait_for_formulas()
        page.locator("a.reference:has(> .std-term)").first.hover()
        card = page.locator(".possym-hover")
        card.wait_for()
        assert len(card.text_content()) > 40
        page.keyboard.press("Escape")
        assert card.count() == 0
        assert v.problems == []


def test_claims_stand_below_the_figure_that_they_rest_on(site):
    page = (site / "chapters/07-learning-dynamics.html").read_text(encoding="utf-8")
    figure = page[page.index('id="figure-heads-in-the-plane"') :]
    line = re.search(r'<p class="possym-rests">(.*?)</p>', figure)[1]
    assert 'href="#claim-start-both-scores"' in line and "holds" in line


def test_a_slider_plays_to_where_it_starts(address, visit):
    with visit() as v:
        page = v.open(f"{address}/index.html").page
        v.wait_for_charts()
        slider, button = page.locator("input[name=at]"), page.locator(".possym-play")
        start = slider.input_value()
        slider.press("Home")
        assert slider.input_value() == "0"
        button.click()
        page.wait_for_function("([slider, start]) => slider.value === start", arg=[slider.element_handle(), start])
        assert v.problems == []


def test_the_foot_and_llms_txt_say_what_this_is(site):
    foot = re.search(
        r'<div class="extra_footer">(.*?)</div>', (site / "index.html").read_text(encoding="utf-8"), re.DOTALL
    )[1]
    assert f"Version {possym.__version__}" in foot and "MIT" in foot
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# Positional and Symbolic Attention Heads\n\n> ")
    named = re.findall(r"^- \[.+\]\((.+)\): .{40,}", text, re.MULTILINE)
    assert len(named) > 14 and all((site / name).exists() for name in named)


def test_search_names_each_page_once_and_reads_formulas(address, visit):
    with visit() as v:
        page = v.open(f"{address}/search.html?q=discrepancy").page
        page.get_by_text("Search finished").wait_for()
        page.wait_for_timeout(800)
        links = [
            link.get_attribute("href").split("#")[0].split("?")[0]
            for link in page.locator("#search-results li > a").all()
        ]
        assert len(links) == len(set(links)) > 3
        assert "\\(" not in page.locator("#search-results").text_content()
        assert v.problems == []
