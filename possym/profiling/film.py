"""The heads of one model at many steps of its training, as a chart with a slider over the steps."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from possym.charts import slider_over
from possym.errors import InputError, require_type
from possym.profiling.charts import number
from possym.profiling.compare import SCORES, check_comparable
from possym.profiling.profile import Profile


def film(profiles: Mapping[int, Profile]) -> alt.TopLevelMixin:
    """Draw the plane of heads at every step of a training, a slider over the steps.

    Args:
        profiles: a profile a step, of the same prompts.

    Raises:
        InputError: no profiles, or such as cannot be compared with the first.

    >>> film({})
    Traceback (most recent call last):
    possym.errors.InputError: profiles: give two or more, by step
    """
    require_type(profiles, Mapping, "profiles")
    if len(profiles) < 2:
        raise InputError("profiles: give two or more, by step")
    steps = sorted(profiles)
    for step in steps[1:]:
        check_comparable(profiles[steps[0]], profiles[step])
    table = pd.concat([profiles[step].summary().assign(at=k, step=step) for k, step in enumerate(steps)])
    last = len(steps) - 1
    means = table.groupby("step")[list(SCORES)].mean()
    ends = [f"positional {row.positional:.2f}, symbolic {row.symbolic:.2f}" for row in (means.iloc[0], means.iloc[-1])]
    return (
        alt.Chart(table[["at", "step", "layer", "head", *SCORES]].round(4))
        .mark_circle(size=55, opacity=0.85)
        .encode(
            x=alt.X("positional:Q").title("Positional score").scale(domain=[0, 1]),
            y=alt.Y("symbolic:Q").title("Symbolic score").scale(domain=[0, 1]),
            color=alt.Color("layer:Q").scale(scheme="viridis").title("layer"),
            tooltip=["step:Q", "layer:Q", "head:Q", number("positional"), number("symbolic")],
        )
        .add_params(*slider_over("at", [f"{step:,}" for step in steps], last, "Step"))
        .transform_filter("datum.at == at")
        .properties(
            title=alt.TitleParams(
                f"Means over heads from step {steps[0]:,} to {steps[-1]:,}",
                subtitle=[f"From {ends[0]}", f"to {ends[1]}; the slider goes through the steps"],
            ),
            width=380,
            height=380,
            description=f"Plane of positional (across) and symbolic score (up), one point a head, at {len(steps)} "
            f"steps: means from {ends[0]} to {ends[1]}.",
        )
    )
