"""A chart as a page holds it, without a network: caption, still picture, specification, and the drawing scripts."""

import base64
import json
import re
from functools import cache
from html import escape, unescape
from importlib.resources import files
from pathlib import Path

import altair as alt
import vl_convert

from possym.charts.typography import typeset

SHARES = ("Accuracy", "Attention")
_STILL_WIDTH = 640
_STILL_SIZE = re.compile(r'width="[\d.]+" height="[\d.]+"')


def _render(spec: dict, **_) -> dict[str, str]:
    """MIME bundle of one chart: title, still picture and specification; ``charts.js`` turns the still into a chart.

    A title that is an expression becomes the parameter ``title``, which the script follows.
    """
    spec = _rounded(spec)
    spec = _in_per_cent(_typeset(spec))
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
    still = _still(spec)
    size = _STILL_SIZE.search(still)[0]
    html = (
        f'<figure class="possym-chart">{_caption(**words)}<div class="possym-view">'
        f'<img class="possym-still" {size} alt="{escape(description)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(still.encode()).decode()}"></div>'
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


def _in_per_cent(spec):
    """A copy whose axes of accuracy and attention are in per cent, unless they say how they count."""
    if isinstance(spec, list):
        return [_in_per_cent(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    found = {name: part if name in ("data", "datasets") else _in_per_cent(part) for name, part in spec.items()}
    for channel in (found[name] for name in ("x", "y") if isinstance(found.get(name), dict)):
        axis = channel.get("axis", {})
        if channel.get("title") in SHARES and channel.get("type") == "quantitative" and isinstance(axis, dict):
            channel["axis"] = {"format": "%", **axis}
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


def lab_scripts() -> str:
    """Return the style and scripts that draw charts in a page of JupyterLab."""
    style, script = (asset(name).read_text(encoding="utf-8") for name in ("charts.css", "charts.js"))
    # A script element would end at the first "</script" inside the text.
    vega, script = (text.replace("</script", "<\\/script") for text in (vega_script(), script))
    return f"<style>{style}</style><script>{vega}</script><script>{script}</script>"
