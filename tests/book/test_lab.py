"""A chapter in a real JupyterLab, without a network: charts are drawn and their sliders and widgets answer."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

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
def lab(book, make_words):
    """The address of a JupyterLab that ``make lab`` started on a small book."""
    folder = book(one=CHAPTER)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = f"--no-browser --allow-root --port={port} --ServerApp.port_retries=0 --IdentityProvider.token=secret"
    with (folder / "lab.log").open("w") as log:
        process = subprocess.Popen(
            make_words("lab", f"LAB_FLAGS={flags}"), cwd=folder, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {"HOME": str(folder)},
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "lab.log").read_text()
            try:
                urllib.request.urlopen(f"{address}/api?token=secret").close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def test_charts_and_widgets_answer_in_jupyterlab(lab, visit):
    with visit() as v:
        page = v.page
        v.open(f"{lab}/lab/tree/chapters/one.md?token=secret")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
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
