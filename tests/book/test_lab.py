"""A chapter in a real JupyterLab, without a network: charts are drawn and their sliders and widgets answer."""

import pytest

pytestmark = pytest.mark.book

CHAPTER = """
import altair as alt, ipywidgets, pandas as pd
from possym import plots, widgets

plots.enable()
size = alt.param(name="size", value=40, bind=alt.binding_range(min=10, max=400, name="Size"))
chart = alt.Chart(pd.DataFrame({"x": [1, 2]}), title="Two points").mark_point(size=alt.expr("size")).encode(x="x:Q")
widgets.show(ipywidgets.interactive(lambda n: print("square", n * n), n=ipywidgets.IntSlider(3, 0, 9)))
chart.add_params(size)
"""


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
