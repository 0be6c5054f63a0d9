"""A chapter in a real JupyterLab, without a network: charts are drawn and their sliders and widgets answer."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.book

CHAPTER = """
import altair as alt, ipywidgets, pandas as pd
from possym import charts
from possym.charts import widgets

charts.enable()
size = alt.param(name="size", value=40, bind=alt.binding_range(min=10, max=400, name="Size"))
shape = alt.param(name="shape", value="circle", bind=alt.binding_select(options=["circle", "square"], name="Shape"))
mark = {"size": alt.expr("size"), "shape": alt.expr("shape")}
chart = alt.Chart(pd.DataFrame({"x": [1, 2]}), title="Two points").mark_point(**mark).encode(x="x:Q")
word = ipywidgets.Dropdown(options=["one", "two"])
widgets.show(ipywidgets.interactive(lambda n, w: print("square", n * n, w), n=ipywidgets.IntSlider(3, 0, 9), w=word))
chart.add_params(size, shape)
"""


ACTIVE = "cells => cells.map(cell => cell.classList.contains('jp-mod-active'))"
TABLE = """
from possym import claims

claims.what_holds("01-positional-and-symbolic")
"""


def test_what_holds_leads_to_the_ledger_in_jupyterlab(book, start_lab, visit):
    folder = book(one=TABLE)
    (folder / "ledger.md").write_text((folder / "chapters/one.md").read_text().replace("Chapter one", "The ledger"))
    with start_lab(folder) as address, visit() as v:
        v.run_in_lab(address, "one")
        v.page.get_by_role("link", name="in the ledger").first.click(timeout=60_000)
        v.page.get_by_role("tab", name="ledger.md").wait_for(timeout=60_000)
        v.page.get_by_role("heading", name="The ledger").wait_for(timeout=60_000)
        assert v.problems == []


@pytest.fixture
def lab(book, start_lab):
    folder = book(one=CHAPTER)
    with start_lab(folder) as address:
        yield address, folder


def test_charts_and_widgets_answer_in_jupyterlab_which_writes_into_no_chapter(lab, visit):
    lab, folder = lab
    page_of_book = (folder / "chapters/one.md").read_bytes()
    with visit() as v:
        page = v.page
        v.run_in_lab(lab, "one")
        chart = page.locator("figure.possym-chart[data-drawn=true]")
        chart.wait_for(timeout=60_000)

        points = chart.locator("svg.marks")
        before = points.inner_html()
        chart.locator("input[type=range]").press("End")
        page.wait_for_timeout(500)
        assert points.inner_html() != before

        at = page.locator(".jp-Cell").evaluate_all(ACTIVE)  # keys move what has the focus, and no cell of the notebook
        for control in ("input[type=range]", "select"):
            before, value = points.inner_html(), chart.locator(control).input_value()
            chart.locator(control).focus()
            page.keyboard.press("ArrowLeft" if control.startswith("input") else "ArrowDown")
            page.wait_for_timeout(500)
            assert chart.locator(control).input_value() != value
            assert points.inner_html() != before
            assert page.locator(".jp-Cell").evaluate_all(ACTIVE) == at

        page.get_by_text("square 9 one", exact=True).wait_for()
        handle = page.locator(".jupyter-widgets .noUi-handle").first
        handle.focus()
        handle.press("ArrowRight")
        page.get_by_text("square 16 one", exact=True).wait_for()
        page.locator(".jupyter-widgets select").focus()
        page.keyboard.press("ArrowDown")
        page.get_by_text("square 16 two", exact=True).wait_for()
        assert page.locator(".jp-Cell").evaluate_all(ACTIVE) == at
        assert v.problems == []

        page.locator(".jp-CodeCell .jp-InputPrompt").first.click()
        page.keyboard.press("Control+S")
        for _ in range(100):
            notebook = folder / "_build/lab/chapters/one.ipynb"
            if notebook.exists() and "square" in notebook.read_text():  # it is empty while it is being written
                break
            page.wait_for_timeout(100)
        assert "square" in notebook.read_text()
        assert (folder / "chapters/one.md").read_bytes() == page_of_book
        v.open(f"{lab}/lab/tree/chapters/one.md?token=secret&reset")  # what it showed is there without running it again
        page.locator("figure.possym-chart").wait_for(timeout=60_000)


def test_a_working_copy_follows_its_page_until_it_is_edited(book):
    folder = book(one="1 + 1")
    command = [sys.executable, str(ROOT / "_ext/lab_copies.py"), "_build/lab"]
    copy = folder / "_build/lab/chapters/one.md"

    def call() -> str:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

    assert call() == ""
    page = folder / "chapters/one.md"
    page.write_text(page.read_text().replace("1 + 1", "2 + 2"))
    assert call() == ""
    assert copy.read_text() == page.read_text()
    copy.write_text(copy.read_text().replace("2 + 2", "3 + 3"))
    page.write_text(page.read_text().replace("2 + 2", "4 + 4"))
    assert call().startswith("Kept as you edited it: _build/lab/chapters/one.md")
    assert "3 + 3" in copy.read_text()
    copy.unlink()
    assert call() == ""
    assert copy.read_text() == page.read_text()
