"""The landing page: the swap by hand, the findings, and what a reader sees first."""

import re

import pandas as pd
import pytest

from possym import claims

pytestmark = pytest.mark.book
BARS = """() => [...document.querySelectorAll(".swap-head")].map(head =>
  [...head.querySelectorAll(".swap-bar")]
    .map(bar => ["--at", "--share"].map(name => +bar.style.getPropertyValue(name)))
    .sort((a, b) => a[0] - b[0]).map(([, share]) => share))"""


def words(v, head: int = 0) -> list[str]:
    """The words of a head from left to right."""
    found = v.page.locator(".swap-head").nth(head).locator(".swap-word").all()
    boxes = [(word.bounding_box()["x"], word.text_content()) for word in found]
    return [text for _, text in sorted(boxes)]


@pytest.mark.parametrize("width", [360, 1440])
def test_attention_stays_in_one_head_and_follows_in_the_other(address, visit, width):
    with visit(width) as v:
        page = v.open(f"{address}/index.html").page
        before = page.evaluate(BARS)
        head = page.locator(".swap-head").first
        alice, bob = (head.locator(".swap-word", has_text=name) for name in ("Alice", "Bob"))
        alice.scroll_into_view_if_needed()
        alice.drag_to(bob)
        assert words(v) == words(v, 1) == ["Bob", "likes", "red", "Alice", "likes", "blue"]
        stayed, followed = page.evaluate(BARS)
        assert stayed == pytest.approx(before[0], abs=1e-3)
        swapped = before[1].copy()
        swapped[0], swapped[3] = swapped[3], swapped[0]
        assert followed == pytest.approx(swapped, abs=1e-3)
        said = page.locator(".swap-foot p").text_content()
        assert "positional head: attention stays" in said and "symbolic head: attention follows the word" in said
        page.get_by_role("button", name="Start again").click()
        assert words(v)[0] == "Alice" and page.evaluate(BARS) == before
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert v.problems == []


def test_words_are_swapped_by_clicks_and_by_keys(address, visit):
    with visit() as v:
        page = v.open(f"{address}/index.html").page
        right = page.locator(".swap-head").nth(1)
        right.locator(".swap-word").nth(0).click()
        right.locator(".swap-word").nth(2).click()
        assert words(v)[:3] == ["red", "likes", "Alice"]
        page.get_by_role("button", name="Start again").click()
        page.keyboard.press("Enter")  # the focus is on Alice
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert words(v)[:4] == ["Bob", "likes", "red", "Alice"]
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
        assert page.locator(".swap-word[aria-pressed=true]").count() == 0
        assert v.problems == []


def test_the_first_swap_moves_by_itself_within_two_seconds_above_the_fold(address, visit):
    with visit(1440, reduced_motion="no-preference") as v:
        page = v.open(f"{address}/index.html").page
        stage = page.locator(".swap-stage").first.bounding_box()
        assert stage["y"] + stage["height"] < 900
        page.wait_for_function("document.querySelector('.swap-bar').getAnimations().length || "
                               "document.querySelector('.swap-word').getAnimations().length", timeout=2000)  # fmt: skip
        assert v.problems == []


def test_nothing_moves_by_itself_where_motion_is_unwelcome(address, visit):
    with visit(1440) as v:
        page = v.open(f"{address}/index.html").page
        page.wait_for_timeout(1500)
        assert words(v)[0] == "Alice"


def test_findings_say_what_the_ledger_says(site):
    page = (site / "index.html").read_text(encoding="utf-8")
    cards = re.findall(r'<li class="possym-card">.*?<b>(.*?)</b>', page, re.DOTALL)
    chapters = ("05-canonical-tasks", "07-learning-dynamics", "10-length-generalization", "13-profiling-real-models")
    rows = pd.concat(map(claims.ledger, chapters))["measured"]
    known = [rows[name] for name in ("known-previous-token-positional", "known-induction-symbolic")]
    areas = [re.search(r"papers: ([\d.]+)", text)[1] for text in known]
    lengths = re.search(r"median of (\d+) \(number\) and (\d+) \(letter\)", rows["letter-goes-further"]).groups()
    heads = [re.search(r"mean ([\d.]+)", rows[f"{task}-positional-0.1"])[1] for task in ("number", "letter")]
    of = [
        re.match(r"(\d+) of (\d+)", rows[f"canonical-{n}"]).groups() for n in ("index-positional", "retrieval-symbolic")
    ]
    learnt = [sum(map(int, pair)) for pair in zip(*of, strict=True)]
    assert cards == [
        "0 of 12,500",
        "{} of {}".format(*learnt),
        " against ".join(heads),
        " against ".join(lengths),
        " and ".join(f"{float(area):.0%}".replace("%", "\u00a0%") for area in areas),
    ]
