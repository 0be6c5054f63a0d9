"""The errors possym raises: each says what was given, what was expected and what to do."""


class PossymError(Exception):
    """Any error that possym raises on purpose."""


class InputError(PossymError, ValueError):
    """An argument has the wrong type, shape or value."""


def need(value: object, kind: type | tuple[type, ...], name: str) -> None:
    """Raise an InputError unless ``value`` is of a kind; True and False are no numbers.

    >>> need("3", int, "layer")
    Traceback (most recent call last):
    possym.errors.InputError: layer is of type str ('3'): give an int
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        given, names = repr(value), " or ".join(spelt(each) for each in kinds)
        said = f" ({given})" if len(given) <= 40 and given[0] != "<" else ""
        article = "an" if names[0].lower() in "aeiou" else "a"
        raise InputError(f"{name} is of type {type(value).__name__}{said}: give {article} {names}")


def spelt(kind: type) -> str:
    """Return a type's name with its package, as a user would write it: int, torch.Tensor."""
    package = kind.__module__.split(".")[0]
    if package == "builtins":
        return kind.__name__.removesuffix("Type")
    return f"{package}.{kind.__name__}"


class ConfigError(PossymError, ValueError):
    """A configuration names something unknown or gives it an impossible value."""


class ResultsError(PossymError):
    """A stored result is missing, altered, or was made with another configuration."""


class UnsupportedModelError(PossymError):
    """A model has no rotary attention that possym can read."""
