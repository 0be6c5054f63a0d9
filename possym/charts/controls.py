"""Controls of charts: titles, sliders and menus that say what is shown at any setting, without a kernel."""

import json
from collections.abc import Mapping, Sequence

import altair as alt

from possym.charts.typography import typeset


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


def plays(name: str, pause: int = 80) -> alt.Parameter:
    """Return the note by which ``charts.js`` plays the slider ``name`` from its beginning to where it starts.

    That happens once, when the chart is first seen and motion is welcome, and at a button beside the slider.

    Args:
        name: of the slider.
        pause: milliseconds between two steps.

    >>> plays("step").name, plays("step").param.value
    ('step_play', 80)
    """
    return alt.param(name=f"{name}_play", value=pause)


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


def _words(value: dict | list) -> str:
    return json.dumps(value, ensure_ascii=False)
