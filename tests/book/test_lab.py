"""A chapter in a real JupyterLab, without a network: charts are drawn and their sliders and widgets answer."""

import pytest

pytestmark = pytest.mark.book

CHAPTER = """
import altair as alt, ipywidgets, pandas as pd
from possym import charts
from possym.charts import widgets

charts.enable()
size = alt.param(name="size", value=40, bind=alt.binding_range(min=10, max=400, name="Size"))
chart = alt.Chart(pd.DataFrame({"x": [1, 2]}), title="Two points").mark_point(size=alt.expr("size")).encode(x="x:Q")
widgets.show(ipywidgets.interactive(lambda n: print("square", n * n), n=ipywidgets.IntSlider(3, 0, 9)))
chart.add_params(size)
"""


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
    with start_lab(book(one=CHAPTER)) as address:
        yield address


def test_charts_and_widgets_answer_in_jupyterlab(lab, visit):
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

        page.get_by_text("square 9", exact=True).wait_for()
        handle = page.locator(".jupyter-widgets .noUi-handle").first
        handle.focus()
        handle.press("ArrowRight")
        page.get_by_text("square 16", exact=True).wait_for()
        assert v.problems == []
