"""The heads of one model at many steps of its training, as a chart with a slider over the steps."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from possym.charts import alt, slider_over
from possym.profiling.charts import heads_in_plane, number
from possym.profiling.compare import SCORES
from possym.profiling.profile import Profile
from possym.profiling.steps import in_order, spelt


def film(profiles: Mapping[Any, Profile]) -> alt.TopLevelMixin:
    """Draw the plane of heads at every step of a training, a slider over the steps.

    Args:
        profiles: as in `possym.profiling.steps.changes`.

    Raises:
        InputError: fewer than two profiles, or such as cannot be compared with the first.

    >>> film({})
    Traceback (most recent call last):
    possym.errors.InputError: profiles: give two or more, by step
    """
    steps = in_order(profiles)
    table = pd.concat([each.summary().assign(at=k, step=spelt(step)) for k, (step, each) in enumerate(steps)])
    means = table.groupby("at")[list(SCORES)].mean()
    ends = [f"positional {row.positional:.2f}, symbolic {row.symbolic:.2f}" for row in (means.iloc[0], means.iloc[-1])]
    names = [spelt(step) for step, _ in steps]
    tooltip = ["step:N", "layer:Q", "head:Q", number("positional"), number("symbolic")]
    return (
        heads_in_plane(table[["at", "step", "layer", "head", *SCORES]].round(4), tooltip)
        .encode(opacity=alt.value(0.85))
        .add_params(*slider_over("at", names, len(steps) - 1, "Step"))
        .transform_filter("datum.at == at")
        .properties(
            title=alt.TitleParams(
                f"Means over heads from step {names[0]} to {names[-1]}",
                subtitle=[f"From {ends[0]}", f"to {ends[1]}; the slider goes through the steps"],
            ),
            description=f"Plane of positional (across) and symbolic score (up), one point a head, at {len(steps)} "
            f"steps: means from {ends[0]} to {ends[1]}.",
        )
    )
