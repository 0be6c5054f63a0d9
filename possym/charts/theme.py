"""The look of the book's charts: colours, Altair theme, marks that several charts share.

Hues are after Okabe and Ito's, darkened to a contrast of 3:1 on light and dark pages, yellow apart; the pairs that meet
most often differ in lightness too, and so in print without colour.
Text, axes and rules are drawn in ``currentColor`` (``INK``): a chart takes the colour of the text around it, so
light and dark pages show the same drawing and nothing is drawn again when the mode changes.
"""

import altair as alt

from possym.charts.typography import SPACE

POSITIONAL = "#006BA8"
SYMBOLIC = "#E06608"
NEUTRAL = "#7f7f7f"
INK = "currentColor"
LAYERS = alt.SchemeParams("viridis", extent=[0.25, 1])  # without its darkest, which a dark page swallows
CATEGORIES = ("#007A58", "#CC79A7", "#B08046", "#4596E8", NEUTRAL, "#F0E442")
KINDS = {"positional": POSITIONAL, "symbolic": SYMBOLIC, "neither": NEUTRAL}
ASKS = {"where": CATEGORIES[0], "what": CATEGORIES[1]}
KNOWN_HEADS = {"previous-token": CATEGORIES[3], "induction": CATEGORIES[2], "other": NEUTRAL}

_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def kind_color(field: str = "kind", title: str | None = None) -> alt.Color:
    """Colour encoding of a column that holds the names in ``KINDS``.

    >>> kind_color("head").to_dict()["scale"]["range"][:2]
    ['#006BA8', '#E06608']
    """
    return alt.Color(f"{field}:N", title=title).scale(domain=list(KINDS), range=list(KINDS.values()))


def tile_font(characters: int) -> alt.ExprRef:
    """Size in pixels of a text of so many characters in a tile of a heat map; 0 where nobody could read it.

    >>> tile_font(4).expr
    "bandwidth('x') < 16 ? 0 : min(10, bandwidth('x') / 2.4)"
    """
    width = round(0.6 * characters, 1)  # in letters' heights
    return alt.ExprRef(f"bandwidth('x') < {round(6.5 * width)} ? 0 : min(10, bandwidth('x') / {width})")


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


def paper_and_here(
    paper: alt.Chart | alt.LayerChart, here: alt.Chart | alt.LayerChart, source: str
) -> alt.HConcatChart:
    """Return what a paper shows and what this book measured side by side, on the same scales.

    Args:
        paper, here: the two panels, with the same fields and axes.
        source: where in the paper the left one is from.
    """
    left, right = (
        panel.properties(title=alt.Title(said, fontSize=12))
        for panel, said in ((paper, f"The paper, {source}"), (here, "Here"))
    )
    return alt.hconcat(left, right).resolve_scale(x="shared", y="shared")
