"""Charts of the cost of larger studies, from `possym.costs`."""

import pandas as pd

from possym import costs
from possym.charts import CATEGORIES, INK, alt, dynamic_title
from possym.errors import InputError

MODELS = ("Llama-3-8B", "Llama-3-70B", "Llama-3-405B")
NAMES = {
    "planes": "planes",
    "heads": "heads",
    "forward": "forward pass",
    "capture": "capture",
}
LONGEST = 20  # log₂ of the most tokens that are drawn
CARDS = 8
HEIGHT = 340
UNITS = {0.001: "1 ms", 1: "1 s", 60: "1 min", 3600: "1 h", 86400: "1 day", 864000: "10 days", 8640000: "100 days"}


def times() -> pd.DataFrame:
    """Return the seconds of each part of a profile by model and tokens, from 512 to 2²⁰.

    >>> times().columns.tolist()
    ['model', 'tokens', 'part', 'seconds']
    """
    rows = [
        [model, 2**power, NAMES[part], seconds]
        for model in MODELS
        for power in range(9, LONGEST + 1)
        for part, seconds in costs.profile_seconds(costs.shapes()[model], 2**power).items()
    ]
    return pd.DataFrame(rows, columns=["model", "tokens", "part", "seconds"])


def limits() -> pd.DataFrame:
    """Return the longest prompt by model, kind and number of cards, in tokens and in words.

    >>> limits().query("model == 'Llama-3-405B' and cards == 1")["words"].tolist()[0]
    '1 × H100: the weights alone do not fit'
    """
    rows = []
    for model in MODELS:
        shape = costs.shapes()[model]
        for card, entry in costs.read()["cards"].items():
            for count in range(1, CARDS + 1):
                tokens = costs.longest(shape, entry["memory"], count)
                said = f"up to {tokens:,} tokens" if tokens else "the weights alone do not fit"
                rows.append([model, card, count, tokens, f"{count} × {card}: {said}"])
    return pd.DataFrame(rows, columns=["model", "card", "cards", "tokens", "words"])


def time_by_tokens(model: str = "Llama-3-70B", tokens: int = 2**17) -> alt.LayerChart:
    """Return the time of a profile's parts by tokens; a menu picks the model, a slider the cards that hold it.

    Args:
        model: whose times the title states, and that the menu starts with.
        tokens: of the prompt that the title speaks of.

    Raises:
        InputError: a model that the chart does not show, or no number of tokens.
    """
    if model not in MODELS:
        raise InputError(f"model = {model!r}: known models are {', '.join(MODELS)}")
    titles = {f"{name}, {count}": hours(name, tokens, count) for name in MODELS for count in range(1, CARDS + 1)}
    menu = alt.param(name="model", value=model, bind=alt.binding_select(options=list(MODELS), name="Model "))
    slider = alt.param(name="cards", value=CARDS, bind=alt.binding_range(min=1, max=CARDS, step=1, name="Cards "))
    labels = " : ".join(f"datum.value == {value} ? '{text}'" for value, text in UNITS.items())
    y = alt.Y("seconds:Q", title="Time on one H200").scale(type="log", domain=[1e-3, 8.64e6], nice=False)
    y = y.axis(values=list(UNITS), labelExpr=f"{labels} : ''", grid=True)
    x = alt.X("tokens:Q", title="Tokens of the prompt").scale(type="log", base=2, domain=[512, 2**LONGEST], nice=False)
    x = x.axis(values=[512, 2048, 8192, 32768, 131072, 524288], format=",d", labelOverlap="greedy", labelSeparation=6)
    color = alt.Color("part:N", title=None).scale(domain=list(NAMES.values()), range=list(CATEGORIES[:4]))
    color = color.legend(columns=2, symbolType="stroke")
    lines = (
        alt.Chart(times())
        .transform_filter("datum.model == model")
        .mark_line(clip=True)
        .encode(x=x, y=y, color=color, tooltip=["part:N", "tokens:Q", alt.Tooltip("seconds:Q", format=",.3~g")])
    )
    ends = alt.Chart(limits()).transform_filter("datum.model == model && datum.cards == cards")
    rules = (
        ends.transform_filter("datum.tokens > 0")
        .mark_rule(color=INK, opacity=0.7)
        .encode(
            x=x,
            y=alt.value(40),  # below the words
            y2=alt.value(HEIGHT),
            strokeDash=alt.StrokeDash("card:N", legend=None).scale(domain=["H100", "H200"], range=[[2, 3], [7, 3]]),
            tooltip=["words:N"],
        )
    )
    words = [
        ends.transform_filter(f"datum.card == '{card}'")
        .mark_text(align="left", baseline="top", dx=6)
        .encode(text="words:N", x=alt.value(0), y=alt.value(4 + 16 * row))
        for row, card in enumerate(costs.read()["cards"])
    ]
    return (
        alt.layer(lines, rules, *words)
        .add_params(menu, slider)
        .properties(
            height=HEIGHT,
            title=alt.Title(
                dynamic_title("model + ', ' + cards", titles),
                subtitle="At rates measured on a smaller prompt. Vertical: memory limit, dotted H100, dashed H200",
            ),
            description="Line chart on logarithmic axes with a menu and a slider: time of a profile's parts by tokens. "
            + titles[f"{model}, {CARDS}"],
        )
    )


def hours(model: str, tokens: int, cards: int) -> str:
    """Return what a profile of so many tokens takes, and which cards hold it, so many of a kind, in words.

    >>> hours("Llama-3-405B", 2**17, 1).partition("; ")[2]
    'it fits neither 1 × H100 nor 1 × H200'
    """
    found = costs.profile_seconds(costs.shapes()[model], tokens)
    share, whole = found["planes"] / sum(found.values()), sum(found.values()) / 3600
    held = {
        f"{cards} × {card}": costs.longest(costs.shapes()[model], entry["memory"], cards) >= tokens
        for card, entry in costs.read()["cards"].items()
    }
    fits, too_small = ([name for name in held if held[name] is there] for there in (True, False))
    where = f"it fits {' and '.join(fits)}" + (f", not {too_small[0]}" if too_small else "")
    if not fits:
        where = f"it fits neither {' nor '.join(too_small)}"
    return f"Profiling {model} at {tokens:,} tokens takes {whole:.1f} hours, {share:.0%} of them for planes; {where}"
