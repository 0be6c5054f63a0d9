"""Read a chart as a reader gets it: drawn by Vega, its marks described by their aria-labels, its texts."""

import copy
import re
from html import unescape

import altair as alt
import vl_convert

import possym.plots  # noqa: F401  (importing registers the book's theme)

alt.theme.enable("possym")


def draw(chart, **params) -> str:
    """The SVG of a chart, its sliders and menus set to ``params``."""
    spec = copy.deepcopy(chart.to_dict())
    if "layer" in spec or "mark" in spec:
        spec.setdefault("width", 600)
    known = {param["name"]: param for param in spec.get("params", [])}
    for name, value in params.items():
        options = known[name]["bind"].get("options")
        assert options is None or value in options, f"{name} does not offer {value}"
        known[name]["value"] = value
    svg = vl_convert.vegalite_to_svg(spec)
    for wrong in ("NaN", "undefined", "null", "Infinity"):
        assert wrong not in svg
    symbols = re.findall(r'role-legend-symbol"[^>]*><path[^>]*>', svg)
    assert not [symbol for symbol in symbols if re.search(r'(fill|stroke)="(black|#000)', symbol)], "dark on dark pages"
    return svg


def marks(svg: str, kind: str) -> list[dict[str, str]]:
    """What every mark of a kind (aria-roledescription) says of itself: "Step: 0; Accuracy: 0.1" as a dict."""
    labels = re.findall(rf'aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="{kind}"', svg)
    assert labels, f"nothing drawn as {kind}"
    return [dict(part.split(": ", 1) for part in unescape(label).split("; ")) for label in labels]


def texts(svg: str) -> list[str]:
    """Every text of the picture."""
    return [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def unpacked(frame, columns) -> list[dict]:
    """The rows that `transform_flatten` makes of packed columns."""
    rows = []
    for record in frame.to_dict("records"):
        rest = {key: value for key, value in record.items() if key not in columns}
        rows += [
            {**rest, **dict(zip(columns, values, strict=True))}
            for values in zip(*(record[c] for c in columns), strict=True)
        ]
    return rows


def follows_the_convention(words) -> bool:
    """Title and subtitle are one line of text each, open with a capital, a digit or a sign, and have no last stop."""
    return isinstance(words, str) and words == words.strip() and not words[0].islower() and words[-1] not in ".;:,"


def is_complete(chart) -> None:
    """A chart can be read alone: a title, an alternative text, and axes with names."""
    spec = chart.to_dict()
    title = spec["title"]["text"] if isinstance(spec["title"], dict) else spec["title"]
    assert len(title) > 10 and len(spec["description"]) > 40
    for words in (title, spec["title"].get("subtitle") if isinstance(spec["title"], dict) else None):
        assert words is None or follows_the_convention(words)
    named = []

    def walk(node):
        if isinstance(node, dict):
            for channel in ("x", "y"):
                entry = node.get("encoding", {}).get(channel)
                if isinstance(entry, dict) and "field" in entry:
                    named.append(
                        bool(entry.get("title")) or entry.get("title", "") is None or entry.get("axis", "") is None
                    )
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(spec)
    assert any(named)
