"""The steps of a training run after which something is measured: many early on, where most happens."""

from possym.errors import ConfigError


def evaluation_steps(steps: int, points: int) -> list[int]:
    """Return ``points`` numbers of updates after which to evaluate, denser early; 0 and ``steps`` are among them.

    Half of them are spaced evenly in the logarithm, half evenly; where these coincide the widest gaps are halved.

    Raises:
        ConfigError: fewer than two points, or more than there are steps.

    >>> evaluation_steps(100, 8)
    [0, 1, 5, 22, 25, 50, 75, 100]
    """
    for name, value in (("steps", steps), ("points", points)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} = {value!r}: give a whole number")
    if steps < 1 or not 2 <= points <= steps + 1:
        raise ConfigError(f"points = {points}, steps = {steps}: give from 2 points to one more than the steps")
    even = [round(steps * k / (points // 2)) for k in range(points // 2 + 1)]
    count = max(points - len(even), 1)
    logarithmic = [round(steps ** (k / count)) for k in range(count)]
    chosen = sorted({*even, *logarithmic})
    while len(chosen) > points:
        del chosen[-2]
    while len(chosen) < points:
        widest = max(range(len(chosen) - 1), key=lambda k: chosen[k + 1] - chosen[k])
        chosen.insert(widest + 1, (chosen[widest] + chosen[widest + 1]) // 2)
    return chosen
