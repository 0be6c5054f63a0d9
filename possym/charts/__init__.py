"""The book's charts: colours, Altair theme, shared marks and the renderer that needs no network.

* ``POSITIONAL``, ``SYMBOLIC``, ``NEUTRAL``: one colour each through the whole book;
* ``CATEGORIES``: colours for everything else;
* ``enable()``: theme and renderer on, tables typeset and never cut, called once at the top of a chapter;
* ``kind_color``, ``interval_band``, ``tile_font``: marks that several charts share;
* ``dynamic_title``, ``slider_over``, ``slider_label``, ``click_menu``: titles, sliders and menus
  that say what is shown at any setting.

Hues are Okabe and Ito's; the pairs that meet most often differ in lightness too, and so in print without colour.
Text, axes and rules are drawn in ``currentColor`` (``INK``): a chart takes the colour of the text around it, so
light and dark pages show the same drawing and nothing is drawn again when the mode changes.
A subject's charts live in a module of their own beside this one.
"""

import base64
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape, unescape
from importlib.resources import files
from pathlib import Path

import altair as alt
import pandas as pd
import vl_convert

from possym.charts.typography import SPACE, typeset, typeset_html

POSITIONAL = "#006BA8"
SYMBOLIC = "#E06608"
NEUTRAL = "#7f7f7f"
INK = "currentColor"
LAYERS = alt.SchemeParams("viridis", extent=[0.25, 1])  # without its darkest, which a dark page swallows
CATEGORIES = ("#007A58", "#CC79A7", "#E69F00", "#56B4E9", NEUTRAL, "#F0E442")
KINDS = {"positional": POSITIONAL, "symbolic": SYMBOLIC, "neither": NEUTRAL}

__all__ = [
    "CATEGORIES",
    "INK",
    "KINDS",
    "LAYERS",
    "NEUTRAL",
    "POSITIONAL",
    "SYMBOLIC",
    "enable",
    "following",
    "interval_band",
    "kind_color",
    "picked",
    "said",
    "slider_over",
    "tile_font",
]

_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_STILL_WIDTH = 640


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

        display({"text/html": _lab_scripts(), "text/plain": ""}, raw=True)


def kind_color(field: str = "kind", title: str | None = None) -> alt.Color:
    """Colour encoding of a column that holds the names in ``KINDS``.

    >>> kind_color("head").to_dict()["scale"]["range"][:2]
    ['#006BA8', '#E06608']
    """
    return alt.Color(f"{field}:N", title=title).scale(domain=list(KINDS), range=list(KINDS.values()))


def interval_band(data, x: alt.X, y: str, low: str, high: str, color=POSITIONAL) -> alt.LayerChart:
    """A line through column ``y`` over a band from column ``low`` to column ``high``.

    ``color`` is a colour or an Altair encoding, the same for line and band.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"step": [0, 1], "mean": [0.2, 0.4], "low": [0.1, 0.3], "high": [0.3, 0.5]})
    >>> chart = interval_band(table, alt.X("step:Q"), "mean", "low", "high")
    >>> [layer["mark"]["type"] for layer in chart.to_dict()["layer"]]
    ['area', 'line']
    """
    channel = color if isinstance(color, alt.Color) else alt.value(color)
    base = alt.Chart(data).encode(x=x, color=channel)
    axis = alt.Y(f"{y}:Q")
    band = base.mark_area(opacity=0.2).encode(y=alt.Y(f"{low}:Q").title(axis.shorthand.split(":")[0]), y2=f"{high}:Q")
    return band + base.mark_line().encode(y=axis)


def tile_font(characters: int) -> alt.ExprRef:
    """Size in pixels of a text of so many characters in a tile of a heat map; 0 where nobody could read it.

    >>> tile_font(4).expr
    "bandwidth('x') < 16 ? 0 : min(10, bandwidth('x') / 2.4)"
    """
    width = round(0.6 * characters, 1)  # in letters' heights
    return alt.ExprRef(f"bandwidth('x') < {round(6.5 * width)} ? 0 : min(10, bandwidth('x') / {width})")


def dynamic_title(setting: str, titles: Mapping[object, str]) -> alt.ExprRef:
    """Return a title that follows a chart's controls: that of ``titles`` for the value of a Vega expression of them.

    >>> dynamic_title("hops", {"all": "9% are right", 1: "-3 logits"}).expr
    '({"all": "9\\xa0% are right", "1": "−3 logits"})[hops]'
    """
    return alt.expr(f"({_words({str(value): typeset(title) for value, title in titles.items()})})[{setting}]")


def slider_over(name: str, shown: Sequence[str], start: int, label: str) -> tuple[alt.Parameter, alt.Parameter]:
    """Return a slider over a list, which sets a place in it from 0, and the words that the reader sees beside it.

    >>> slider, words = slider_over("at", ["0", "1,000"], 1, "Training step")
    >>> slider.param.value, words.param.expr
    (1, '(["0", "1,000"])[at]')
    """
    last = len(shown) - 1
    slider = alt.param(name=name, value=start, bind=alt.binding_range(min=0, max=last, step=1, name=f"{label} "))
    return slider, slider_label(name, f"({_words(list(shown))})[{name}]")


def slider_label(name: str, expression: str) -> alt.Parameter:
    """Return what ``charts.js`` writes beside the slider ``name`` instead of its number, a Vega expression.

    >>> slider_label("power", "format(pow(2, power), ',')").name
    'power_said'
    """
    return alt.param(name=f"{name}_said", expr=expression)


def click_menu(
    name: str, field: str, options: Sequence, start: object, label: str
) -> tuple[alt.Parameter, alt.Parameter]:
    """Return a menu of a field's values, and the note by which ``charts.js`` lets a click on a mark choose its value.

    A double click chooses ``start`` again.

    >>> menu, note = click_menu("pick", "layer", ["all", 0, 1], "all", "Layer")
    >>> menu.param.bind.options, note.name, note.param.value
    (['all', 0, 1], 'pick_click', 'layer')
    """
    menu = alt.param(name=name, value=start, bind=alt.binding_select(options=list(options), name=f"{label} "))
    return menu, alt.param(name=f"{name}_click", value=field)


def _table(table) -> str:
    page = table._repr_html_()  # None where pandas is set not to write HTML
    return page and typeset_html(page)


def _words(value: dict | list) -> str:
    return json.dumps(value, ensure_ascii=False)


@alt.theme.register("possym", enable=False)
def _theme() -> alt.theme.ThemeConfig:
    # d3 writes a minus by itself, not the space before the percent sign.
    number = {"decimal": ".", "thousands": ",", "grouping": [3], "currency": ["$", ""], "percent": f"{SPACE}%"}
    label = {"labelColor": INK, "titleColor": INK, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": 500}
    return {
        "config": {
            "background": "transparent",
            "font": _FONT,
            "locale": {"number": number},
            "view": {"stroke": None, "continuousHeight": 300, "continuousWidth": 420},
            "title": {
                "color": INK, "subtitleColor": INK, "anchor": "start", "fontSize": 14, "fontWeight": 600,
                "subtitleFontSize": 12, "offset": 12,
            },
            "axis": {
                **label, "labelOpacity": 0.85, "domainColor": INK, "domainOpacity": 0.45, "gridColor": INK,
                "gridOpacity": 0.1, "tickColor": INK, "tickOpacity": 0.45, "tickSize": 4, "labelPadding": 4,
                "titlePadding": 8, "labelSeparation": 3,
            },
            "axisX": {"grid": False},
            "header": {**label, "labelFontWeight": 500},
            "legend": {
                **label, "labelOpacity": 0.85, "orient": "top", "symbolSize": 90, "labelLimit": 0, "offset": 6,
                "symbolBaseFillColor": INK,
            },
            "line": {"strokeWidth": 2.25},
            "point": {"filled": True, "size": 50},
            "rule": {"color": INK, "opacity": 0.6},
            "text": {"color": INK, "fontSize": 12},
            "tick": {"color": INK},
            "range": {
                "category": list(CATEGORIES),
                "diverging": [POSITIONAL, "#efefef", SYMBOLIC],
                "heatmap": {"scheme": "viridis"},
                "ramp": {"scheme": LAYERS.name, "extent": LAYERS.extent},
            },
        }
    }  # fmt: skip


def _render(spec: dict, **_) -> dict[str, str]:
    """MIME bundle of one chart: title, still picture and specification; ``charts.js`` turns the still into a chart.

    A title that is an expression becomes the parameter ``title``, which the script follows.
    """
    spec = _rounded(spec)
    spec = _typeset(spec)
    spec.pop("$schema", None)
    title = spec.pop("title", None)
    if isinstance(title, dict) and isinstance(title["text"], dict):
        spec["params"] = [*spec.get("params", []), {"name": "title", **title["text"]}]
        title = title | {"text": _at_first(spec["params"])}
    words = {part: typeset(" ".join(_lines(_text(title, part)))) for part in ("text", "subtitle")}
    faceted = {"row", "column", "facet"} & set(spec.get("encoding", {}))
    if ("mark" in spec or "layer" in spec) and not faceted and "width" not in spec:
        spec |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    description = spec["description"] = typeset(
        spec.get("description") or words["text"] or "Chart without a description"
    )
    html = (
        f'<figure class="possym-chart">{_caption(**words)}<div class="possym-view">'
        f'<img class="possym-still" alt="{escape(description)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(_still(spec).encode()).decode()}"></div>'
        f'<script type="application/json">{_script_json(spec)}</script></figure>'
    )
    return {"text/html": html, "text/plain": description}


alt.renderers.register("possym", _render)


def _still(spec: dict) -> str:
    """The chart as an SVG picture, at a fixed width."""
    spec = spec | ({"width": _STILL_WIDTH} if spec.get("width") == "container" else {})
    return vl_convert.vegalite_to_svg(spec, vl_version=alt.SCHEMA_VERSION.rpartition(".")[0])


def _rounded(spec: dict) -> dict:
    """A copy with numbers at six significant digits: no eye sees more, and the page is half as long."""
    return json.loads(json.dumps(spec), parse_float=lambda number: float(f"{float(number):.6g}"))


def _typeset(spec):
    """A copy with its words typeset: titles, those of axes and legends too, and texts; its data are as they are."""
    if isinstance(spec, list):
        return [_typeset(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    found = {name: part if name in ("data", "datasets") else _typeset(part) for name, part in spec.items()}
    for name in found.keys() & {"title", "subtitle", "text"}:
        if isinstance(found[name], str):
            found[name] = typeset(found[name])
        elif isinstance(found[name], list):  # lines
            found[name] = [typeset(line) if isinstance(line, str) else line for line in found[name]]
    return found


def _script_json(spec: dict) -> str:
    return json.dumps(spec, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _at_first(params: list[dict]) -> str:
    """The value of the parameter ``title`` while every control stands where it starts."""
    known = [param for param in params if "select" not in param]
    mark = {"type": "text", "text": {"expr": "title"}}
    svg = vl_convert.vegalite_to_svg({"data": {"values": [{}]}, "params": known, "mark": mark})
    return unescape(re.search(r"<text[^>]*>([^<]*)</text>", svg)[1])


def _text(title: str | list | dict | None, part: str) -> str | list:
    if isinstance(title, dict):
        return title.get(part) or ""
    return (title or "") if part == "text" else ""


def _lines(text: str | list) -> list[str]:
    return [text] if isinstance(text, str) else text


def _caption(text: str, subtitle: str) -> str:
    """Title and subtitle as HTML, which wraps on a narrow page as a drawn title cannot."""
    head, rest = escape(text), escape(subtitle)
    if not head:
        return ""
    return f"<figcaption><strong>{head}</strong>{f'<span>{rest}</span>' if rest else ''}</figcaption>"


@cache
def vega_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, from the installed vl-convert.

    >>> "vegaEmbed" in vega_script()
    True
    """
    bundle = vl_convert.javascript_bundle(vl_version=alt.SCHEMA_VERSION.rpartition(".")[0])
    return f"(function(){{{bundle}\n}})();"  # the bundle's one-letter names stay out of the page's own


def asset(name: str) -> Path:
    """Path of ``charts.js`` or ``charts.css``.

    >>> asset("charts.js").name
    'charts.js'
    """
    return Path(str(files("possym.charts"))) / name


def _lab_scripts() -> str:
    style, script = (asset(name).read_text(encoding="utf-8") for name in ("charts.css", "charts.js"))
    # A script element would end at the first "</script" inside the text.
    vega, script = (text.replace("</script", "<\\/script") for text in (vega_script(), script))
    return f"<style>{style}</style><script>{vega}</script><script>{script}</script>"
