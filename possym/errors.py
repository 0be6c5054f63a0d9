"""The errors that possym raises, each with what was given, what was expected and what to do; and the rules for numbers.

A whole number is an int or anything equivalent (a numpy integer, a tensor or array without dimensions that holds one
integer); likewise for real numbers. True, False and integers beyond 64 bits are not numbers.
"""

import numbers
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class PossymError(Exception):
    """Any error that possym raises on purpose."""


class InputError(PossymError, ValueError):
    """An argument has the wrong type, shape or value."""


def to_int(value: Any) -> int | None:
    """Return a whole number as an int, None for anything else.

    >>> import numpy as np
    >>> to_int(np.int32(3)), to_int(3.0), to_int(True), to_int(10**30)
    (3, None, None, None)
    """
    if is_bool(value) or getattr(value, "ndim", 0) > 0:
        return None
    try:
        number = operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number if -(2**63) <= number < 2**63 else None


def to_float(value: Any) -> float | None:
    """Return a real number as a float, None for anything else.

    >>> import numpy as np
    >>> to_float(np.float32(0.5)), to_float(2), to_float("2"), to_float(10**400)
    (0.5, 2.0, None, None)
    """
    single = isinstance(value, numbers.Real) or (hasattr(value, "dtype") and not getattr(value, "ndim", 1))
    if is_bool(value) or not single:
        return None
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError, RuntimeError):
        return None


def is_bool(value: Any) -> bool:
    """Return whether a value is True or False, of Python, numpy or torch."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


def require_type(value: object, kind: type | tuple[type, ...], name: str) -> Any:
    """Return ``value``, or raise an InputError unless it is of a kind; whole and real numbers come as int and float.

    >>> require_type(3, (int, float), "margin")
    3.0
    >>> require_type("3", int, "layer")
    Traceback (most recent call last):
    possym.errors.InputError: layer is of type str ('3'): give an int
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    number = to_float(value) if float in kinds else to_int(value) if int in kinds else None
    if number is not None:
        return number
    if isinstance(value, int) and not is_bool(value) and int in kinds:
        raise InputError(f"{name} is a number of {value.bit_length()} bits: give a smaller one")
    if not isinstance(value, kinds) or (is_bool(value) and bool not in kinds and {int, float} & {*kinds}):
        given, names = repr(value), " or ".join(type_name(each) for each in kinds)
        said = f" ({given})" if len(given) <= 40 and given[0] != "<" else ""
        article = "an" if names[0].lower() in "aeiou" else "a"
        raise InputError(f"{name} is of type {type(value).__name__}{said}: give {article} {names}")


def type_name(kind: type) -> str:
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


class EndpointError(PossymError):
    """A model's endpoint refused, or did not answer as its protocol says."""


class DeviceError(PossymError):
    """A process on one of several devices failed or was killed."""


class MissingPackageError(PossymError, ImportError):
    """A package is needed that is not installed; the message names the extra that brings it."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra: in the checkout possym runs from, else into the installed package.

    >>> "[plots]'" in install_command("plots")
    True
    """
    if (Path(__file__).resolve().parents[1] / "pyproject.toml").exists():
        return f"pip install '.[{extra}]' in the checkout of possym"
    return f"pip install 'possym[{extra}]'"


@contextmanager
def needed(what: str, extra: str) -> Iterator[None]:
    """Import what an extra brings; where it is missing, say which extra that is.

    Args:
        what: what cannot be done without it, such as "charts need".
        extra: the name in pyproject.toml.

    >>> with needed("stars need", "plots"):
    ...     import no_such_package  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    possym.errors.MissingPackageError: stars need no_such_package: pip install ...
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(f"{what} {error.name}: {install_command(extra)}") from None
