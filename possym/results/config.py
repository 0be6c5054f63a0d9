"""The configuration of a study: its fields and presets, what is refused, and the hash that names it."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from possym.errors import ConfigError, InputError
from possym.results.devices import known_device

COMPUTE = ("stored", "auto", "always")
SEEDS = 2**30  # torch's CPU generator tells no more apart


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Base of every study's configuration: a frozen dataclass whose presets are in `PRESETS`.

    Names and types are checked on construction. `device` says where to run and is no part of a result's
    identity; every other field is.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Config(ExperimentConfig):
    ...     steps: int = 100
    ...     PRESETS: ClassVar = {"smoke": {"steps": 2}, "paper": {}}
    >>> Config.preset_named("smoke").steps
    2
    >>> Config.preset_named("fast")
    Traceback (most recent call last):
    possym.errors.ConfigError: preset = 'fast': known presets are smoke, paper
    """

    preset: str = "smoke"
    device: str = "auto"
    seed: int = 0

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        """Refuse values of the wrong type, unknown presets and unknown devices."""
        expected = get_type_hints(type(self))
        for entry in dataclasses.fields(self):
            value, kind = getattr(self, entry.name), expected[entry.name]
            if not _matches(value, kind):
                raise ConfigError(f"{entry.name} = {value!r}: expected {kind if get_origin(kind) else kind.__name__}")
        if self.preset not in self.PRESETS:
            raise ConfigError(f"preset = {self.preset!r}: known presets are {', '.join(self.PRESETS)}")
        known_device(self.device)
        if not 0 <= self.seed < SEEDS:
            raise ConfigError(f"seed = {self.seed}: give a whole number from 0 to below {SEEDS:,}")

    def each_at_least(self, least: int, *names: str) -> None:
        """Raise a ConfigError unless each number in these fields is at least so large."""
        self._each(f"whole numbers from {least}", lambda value: value >= least, names)

    def each_positive(self, *names: str) -> None:
        """Raise a ConfigError unless each number in these fields is above 0."""
        self._each("positive numbers", lambda value: value > 0, names)

    def each_once(self, *names: str, known: Iterable[Any] = ()) -> None:
        """Raise a ConfigError unless these fields hold one value or more, none twice, and only known ones."""
        for name in names:
            values, known = getattr(self, name), list(known)
            if not values or len(set(values)) < len(values) or (known and not set(values) <= set(known)):
                some = f" of {', '.join(map(str, known))}" if known else ""
                raise ConfigError(f"{name} = {values!r}: give one or more{some}, each once")

    def ascending(self, least: int, *names: str) -> None:
        """Raise a ConfigError unless these fields hold ascending numbers, one or more, from so large a one."""
        for name in names:
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)) or values[0] < least:
                raise ConfigError(f"{name} = {values!r}: give ascending numbers from {least}")

    def _each(self, wanted: str, fits: Callable[[Any], bool], names: tuple[str, ...]) -> None:
        for name in names:
            value = getattr(self, name)
            if not all(map(fits, value if isinstance(value, tuple) else (value,))):
                raise ConfigError(f"{name} = {value!r}: give {wanted}")

    @classmethod
    def preset_named(cls, name: str, **overrides: Any) -> Self:
        """Return the configuration of a preset, some fields replaced.

        Raises:
            ConfigError: unknown preset or field, or a value of the wrong type; the known names are listed.
        """
        if not isinstance(name, str) or name not in cls.PRESETS:
            raise ConfigError(f"preset = {name!r}: known presets are {', '.join(cls.PRESETS)}")
        known = [entry.name for entry in dataclasses.fields(cls)]
        for key in overrides:
            if key not in known or key == "preset":
                raise ConfigError(f"unknown setting {key!r}: known settings are {', '.join(known[1:])}")
        return cls(preset=name, **{**cls.PRESETS[name], **overrides})

    def hash(self) -> str:
        """Return 16 hexadecimal digits that name this configuration, the device left out."""
        return config_hash(self)


def _matches(value: Any, expected: Any) -> bool:
    if get_origin(expected) is tuple:
        (element, *_) = get_args(expected)
        return isinstance(value, tuple) and all(_matches(item, element) for item in value)
    if expected is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, expected)


def identity(config: Any) -> dict[str, Any]:
    """Return the fields that make a result what it is, as JSON values: all but the device."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise InputError(f"config is a {type(config).__name__}: give the study's Config, a dataclass instance")
    values = dataclasses.asdict(config)
    values.pop("device", None)
    return json.loads(json.dumps(values))


def config_hash(config: Any) -> str:
    """Return 16 hexadecimal digits that name a configuration, the device left out."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:16]
