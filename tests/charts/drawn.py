"""Read a chart as a reader gets it: drawn by Vega, its marks described by their aria-labels, its texts."""

import copy
import itertools
import re
from html import unescape

import altair as alt
import vl_convert

import possym.charts  # noqa: F401 (registers the theme)

alt.theme.enable("possym")


def draw(chart, **params) -> str:
    """The SVG of a chart, its sliders and menus set to ``params``."""
    spec = copy.deepcopy(chart.to_dict())
    if "layer" in spec or "mark" in spec:
        spec.setdefault("width", 600)
    svg = vl_convert.vegalite_to_svg(set_to(spec, params))
    for wrong in ("NaN", "undefined", "null", "Infinity"):
        assert wrong not in svg
    symbols = re.findall(r'role-legend-symbol"[^>]*><path[^>]*>', svg)
    assert not [symbol for symbol in symbols if re.search(r'(fill|stroke)="(black|#000)', symbol)], "dark on dark pages"
    return svg


def set_to(spec: dict, params: dict) -> dict:
    """The specification with its sliders and menus set to ``params``."""
    known = {param["name"]: param for param in spec.get("params", [])}
    for name, value in params.items():
        options = known[name]["bind"].get("options")
        assert options is None or value in options, f"{name} does not offer {value}"
        known[name]["value"] = value
    return spec


def value_of(chart, expression: str, **params) -> str:
    """What a Vega expression of the chart's parameters says, its sliders and menus set to ``params``."""
    spec = set_to(copy.deepcopy(chart.to_dict()), params)
    mark = {"type": "text", "text": {"expr": expression}}
    svg = vl_convert.vegalite_to_svg({"data": {"values": [{}]}, "params": spec.get("params", []), "mark": mark})
    return texts(svg)[0].replace("\xa0", " ")


def title_of(chart, **params) -> str:
    """The title of a chart, its sliders and menus set to ``params``."""
    title = chart.to_dict()["title"]
    text = title if isinstance(title, str) else title["text"]
    return text if isinstance(text, str) else value_of(chart, text["expr"], **params)


def titles_at_every_setting(chart) -> dict[tuple, str]:
    """The title for every combination of the entries of menus and the ends of sliders."""
    spec = chart.to_dict()
    computed = isinstance(spec["title"], dict) and isinstance(spec["title"]["text"], dict)
    bound = [param for param in spec.get("params", []) if "bind" in param and computed]
    choices = [param["bind"].get("options") or [param["bind"]["min"], param["bind"]["max"]] for param in bound]
    names = [param["name"] for param in bound]
    return {
        setting: title_of(chart, **dict(zip(names, setting, strict=True))) for setting in itertools.product(*choices)
    }


def marks(svg: str, kind: str) -> list[dict[str, str]]:
    """What every mark of a kind (aria-roledescription) says of itself: "Step: 0; Accuracy: 0.1" as a dict."""
    labels = re.findall(rf'aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="{kind}"', svg)
    assert labels, f"nothing drawn as {kind}"
    return [dict(part.split(": ", 1) for part in unescape(label).split("; ")) for label in labels]


def texts(svg: str) -> list[str]:
    """Every text of the picture, lines of one joined by spaces."""
    found = [re.split("<[^>]*>", text) for text in re.findall(r"<text[^>]*>(.*?)</text>", svg)]
    return [unescape(" ".join(filter(None, lines))) for lines in found]


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
    """A chart can be read alone: a title at any setting of its controls, an alternative text, and axes with names."""
    spec = chart.to_dict()
    titles = titles_at_every_setting(chart)
    assert len(spec["description"]) > 40
    for title in titles.values():
        assert len(title) > 10 and not re.search("undefined|NaN|null|Infinity", title)
    for words in (*titles.values(), spec["title"].get("subtitle") if isinstance(spec["title"], dict) else None):
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
