"""The book's charts: one look, one renderer that needs no network, controls that answer without a kernel.

* colour roles, each one colour through the whole book: ``POSITIONAL`` blue, ``SYMBOLIC`` vermillion, ``NEUTRAL`` grey
  (neither kind, before, a bound), ``INK`` (the text's own: the paper's values, medians, what a menu picks out),
  ``ASKS`` green (the number task, or what asks where) and pink (the letter task, or what asks what),
  ``KNOWN_HEADS`` sky (a previous-token head) and bronze (an induction head), ``LAYERS`` (depth);
* ``CATEGORIES``: those hues and yellow, in order, for what has no role;
* shares are in per cent, titles state the finding, one slider of length or of training drives a whole figure;
* ``enable()``: theme and renderer on, tables typeset and never cut, called once at the top of a chapter;
* ``kind_color``, ``tile_font``: marks that several charts share; ``paper_and_here``: two panels, the
  paper's numbers and ours;
* ``dynamic_title``, ``slider_over``, ``slider_label``, ``plays``, ``click_menu``: titles, sliders and
  menus that say what is shown at any setting.

``alt`` is altair, which every chart takes from here: where it is missing, the error names the extra that brings it.
The charts of a study live in the study's own room.
"""

import os
import sys

import pandas as pd

from possym.errors import needed

with needed("charts need", "plots"):
    import altair as alt
    import vl_convert  # noqa: F401  draws the stills

from possym.charts.controls import click_menu, dynamic_title, plays, slider_label, slider_over
from possym.charts.renderer import lab_scripts
from possym.charts.theme import (
    ASKS,
    CATEGORIES,
    INK,
    KINDS,
    KNOWN_HEADS,
    LAYERS,
    NEUTRAL,
    POSITIONAL,
    SYMBOLIC,
    kind_color,
    paper_and_here,
    tile_font,
)
from possym.charts.typography import typeset_html

__all__ = [
    "ASKS",
    "CATEGORIES",
    "INK",
    "KINDS",
    "KNOWN_HEADS",
    "LAYERS",
    "NEUTRAL",
    "POSITIONAL",
    "SYMBOLIC",
    "alt",
    "click_menu",
    "dynamic_title",
    "enable",
    "kind_color",
    "paper_and_here",
    "plays",
    "slider_label",
    "slider_over",
    "tile_font",
]


def enable() -> None:
    """Turn on the book's theme and renderer, and pandas' tables in full and with the book's minus and percent signs.

    In JupyterLab it also loads the drawing script.

    >>> enable()
    >>> alt.renderers.active, alt.theme.active
    ('possym', 'possym')
    """
    alt.theme.enable("possym")
    alt.renderers.enable("possym")
    alt.data_transformers.disable_max_rows()
    for limit in ("rows", "columns", "colwidth"):
        pd.set_option(f"display.max_{limit}", None)
    if shell := getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)():
        shown = shell.display_formatter.formatters["text/html"]
        shown.for_type(pd.DataFrame, _table)
        shown.for_type_by_name("pandas.io.formats.style", "Styler", _table)
    if "JPY_SESSION_NAME" in os.environ:  # a kernel with a page in front of it; batch runs leave their output small
        from IPython.display import display

        display({"text/html": lab_scripts(), "text/plain": ""}, raw=True)


def _table(table) -> str:
    page = table._repr_html_()  # None where pandas is set not to write HTML
    return page and typeset_html(page)
