"""A chapter in a real JupyterLab, without a network: charts are drawn and their sliders and widgets answer."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.book

CHAPTER = """
import altair as alt, ipywidgets, pandas as pd, possym
from possym import charts
from possym.charts import widgets

charts.enable()
size = alt.param(name="size", value=40, bind=alt.binding_range(min=10, max=400, name="Size"))
shape = alt.param(name="shape", value="circle", bind=alt.binding_select(options=["circle", "square"], name="Shape"))
mark = {"size": alt.expr("size"), "shape": alt.expr("shape")}
chart = alt.Chart(pd.DataFrame({"x": [1, 2]}), title="Two points").mark_point(**mark).encode(x="x:Q")
word = ipywidgets.Dropdown(options=["one", "two"], description="A word that is long")
turn = ipywidgets.SelectionSlider(options=["angle 2.7182818284 radians", "angle 3.14"])
widgets.show(ipywidgets.interactive(lambda n, w: print("square", n * n, w), n=ipywidgets.IntSlider(3, 0, 9), w=word))
widgets.show(ipywidgets.VBox([turn, ipywidgets.Button(description="Answer a thousand sequences")]))
display(pd.DataFrame({"word": ["left"]}))
print("possym of", possym.__file__)
chart.add_params(size, shape)
```

```{admonition} Remember
Attention falls on {term}`places`, as $a^2 = 4$ says.
```

```{code-cell} ipython3
:tags: [hide-cell, solution]

print("the answer is", 6 * 7)
"""


ACTIVE = "cells => cells.map(cell => cell.classList.contains('jp-mod-active'))"
CUT = """() => [...document.querySelectorAll(
    ".jupyter-widgets .widget-label, .jupyter-widgets .widget-readout, .widget-button")]
  .filter(shown => shown.scrollWidth > shown.clientWidth).map(shown => shown.textContent)"""
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
        v.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        assert v.problems == []


@pytest.fixture
def lab(own_book, start_lab):
    """A JupyterLab of a copy of the code, which saves by itself every two seconds instead of minutes; its folder."""
    folder = own_book("", one=CHAPTER)
    settings = folder / "_ext/jupyter/labconfig/default_setting_overrides.json"
    saving = json.loads(settings.read_text())
    saving["@jupyterlab/docmanager-extension:plugin"]["autosaveInterval"] = 2
    settings.write_text(json.dumps(saving))
    for words in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm book"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    with start_lab(folder, code=folder, PYTHONPATH="") as address:
        yield address, folder


def until(true, page) -> None:
    """Wait until something is true, a minute at most."""
    for _ in range(600):
        if true():
            return
        page.wait_for_timeout(100)
    pytest.fail("a minute was not enough")


def test_charts_and_widgets_answer_in_jupyterlab_which_writes_into_no_chapter(lab, visit):
    lab, folder = lab
    copy = folder / "_build/lab/chapters/one.md"
    copied = copy.read_bytes()
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

        admonition = page.locator("aside, .admonition, .myst-admonition").filter(has_text="Remember")
        assert admonition.locator(".katex").count() == 1 and "{term}" not in admonition.text_content()
        page.get_by_text("the answer is 42", exact=True).wait_for()
        assert page.get_by_text("# Solution").count() == 1 and page.get_by_text("6 * 7").count() == 0
        assert page.get_by_text(f"possym of {folder / 'possym/__init__.py'}").count() == 1
        assert page.get_by_role("cell", name="left").evaluate("cell => getComputedStyle(cell).textAlign") == "left"
        assert page.evaluate(CUT) == []

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

        notebook = folder / "_build/lab/chapters/one.ipynb"
        until(notebook.exists, page)  # JupyterLab has saved by itself
        page.locator(".jp-CodeCell .jp-InputPrompt").first.click()
        page.keyboard.press("Control+S")  # a save that takes long makes it wait ten times as long before the next
        until(lambda: "the answer is 42" in notebook.read_text(), page)  # it is empty while it is being written
        assert copy.read_bytes() == copied  # so that it still follows its page
        assert subprocess.run(["git", "diff", "--stat"], cwd=folder, capture_output=True, text=True).stdout == ""
        v.open(f"{lab}/lab/tree/chapters/one.md?token=secret&reset")  # what it showed is there without running it again
        page.locator("figure.possym-chart").wait_for(timeout=60_000)


def test_a_working_copy_follows_its_page_until_it_is_edited(book):
    folder = book(one="1 + 1")
    shutil.copy(ROOT / "references.bib", folder)
    page = folder / "chapters/one.md"
    page.write_text(page.read_text() + "Both {cite}`su2021roformer,elhage2021framework` and {cite}`nobody2020`.\n")
    command = [sys.executable, str(ROOT / "_ext/lab_copies.py"), "_build/lab"]
    copy = folder / "_build/lab/chapters/one.md"

    def call() -> str:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

    assert call() == ""
    both = (
        "([Su et al., 2024](https://arxiv.org/abs/2104.09864), [Elhage et al., 2021](https://transformer-circuits.pub/"
    )
    assert both in copy.read_text() and "(nobody2020)" in copy.read_text()  # sources as the book names them
    page.write_text(page.read_text().replace("1 + 1", "2 + 2"))
    assert call() == ""
    assert "2 + 2" in copy.read_text()
    copy.write_text(copy.read_text().replace("2 + 2", "3 + 3"))
    page.write_text(page.read_text().replace("2 + 2", "4 + 4"))
    assert call().startswith("Kept as you edited it: _build/lab/chapters/one.md")
    assert "3 + 3" in copy.read_text()
    copy.unlink()
    assert call() == ""
    assert "4 + 4" in copy.read_text()
    for name in ("renamed", "edited"):  # pages under another name: of the old ones only what was edited stays
        shutil.copy(page, folder / f"chapters/{name}.md")
    assert call() == ""
    renamed, edited = (copy.with_stem(name) for name in ("renamed", "edited"))
    renamed.with_suffix(".ipynb").write_text("{}")
    edited.write_text("mine")
    for name in ("renamed", "edited"):
        (folder / f"chapters/{name}.md").unlink()
    assert call().startswith("Kept as you edited it: _build/lab/chapters/edited.md")
    assert sorted(path.name for path in copy.parent.iterdir()) == ["edited.md", "one.md"]
