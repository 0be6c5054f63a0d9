"""Sweeps: one chapter over a grid of its parameters, described by a small YAML file.

A sweep's file names the ``chapter`` and, under ``parameters``, a list of values for each parameter that is to differ
from the chapter's own; every combination is a *point*, one executed notebook::

    chapter: 07-learning-dynamics
    parameters:
      preset: [smoke]
      seed: [0, 1, 2]

Optional are ``about`` (a sentence for the gallery), ``prepare`` (a Python script that runs once, before the points) and
``resources`` of one point: ``cores`` (1), ``gpus`` (0) and ``memory`` (such as 4GB). `possym.sweeps.gallery`
joins what comes out; the Snakefile of sweeps is ``sweeps.smk``.
"""

import ast
import hashlib
import itertools
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from possym.errors import ConfigError

FOLDER = Path("sweeps")  # where the galleries of sweeps lie, each in a folder of its name
KEYS = ("chapter", "parameters", "about", "prepare", "resources")
# As in possym.results.config, which needs torch: every job of a workflow reads this module, none has a use for torch.
CHOICES = {"preset": ("smoke", "paper"), "compute": ("stored", "auto", "always")}
SEEDS = 2**30
RESOURCES = {"cores": 1, "gpus": 0, "memory": "4GB"}
MOST_POINTS = 10_000
LONGEST_NAME = 150


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep: its name and file, the chapter's file, parameters by the name of a point, and what one point needs."""

    name: str
    file: Path
    chapter: Path
    points: dict[str, dict[str, Any]]
    about: str
    prepare: Path | None
    resources: dict[str, Any]


def read(path: Path) -> Sweep:
    """Return the sweep that a YAML file describes; chapters are those of the working folder.

    Raises:
        ConfigError: the file cannot be read, names an unknown chapter, parameter or key, gives a value of the wrong
            type or one value twice, or has no point or more than 10,000.
    """
    path = Path(path)
    given = mapping(load(path), f"{path}", KEYS)
    for needed in ("chapter", "parameters"):
        if needed not in given:
            raise ConfigError(f"{path} has no {needed!r}: give a mapping of {', '.join(KEYS)}")
    if not re.fullmatch(r"\w[\w.-]*", path.stem, re.ASCII):
        raise ConfigError(
            f"{path}: the file's name becomes a folder's, so begin with a letter and use letters, digits, '.', '_', '-'"
        )
    about = given.get("about", "")
    if not isinstance(about, str):
        raise ConfigError(f"{path}: about = {about!r}: give a text")
    chapter = chapter_named(given["chapter"], path)
    return Sweep(
        name=path.stem,
        file=path,
        chapter=chapter,
        points=points(given["parameters"], parameters_of(chapter), path),
        about=" ".join(about.split()),
        prepare=script(given.get("prepare"), path),
        resources=resources(given.get("resources", {}), path),
    )


def load(path: Path) -> Any:
    """Return what a YAML file holds, or raise a ConfigError."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(keys)) < len(keys):
                raise yaml.constructor.ConstructorError(problem="a key is given twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): give a sweep's YAML file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None


def mapping(value: Any, what: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return ``value`` if it is a mapping whose keys are all known."""
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is {value!r}: give a mapping of {', '.join(known)}")
    for key in value:
        if key not in known:
            raise ConfigError(f"{what} has {key!r}: known are {', '.join(known)}")
    return value


def chapter_named(name: Any, path: Path) -> Path:
    """Return the file of a chapter of the working folder."""
    known = sorted(file.stem for file in Path("chapters").glob("*.md"))
    if name not in known:
        raise ConfigError(f"{path}: chapter = {name!r}: known chapters are {', '.join(known)}")
    return Path("chapters", f"{name}.md")


def parameters_of(chapter: Path) -> dict[str, Any]:
    """Return the values in the cell of a chapter that is tagged ``parameters``."""
    import jupytext

    for cell in jupytext.read(chapter).cells:
        if "parameters" in cell.metadata.get("tags", []):
            nodes = [node for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)]
            return {node.targets[0].id: ast.literal_eval(node.value) for node in nodes}
    return {}


def points(grid: Any, own: dict[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    """Return every combination of the grid's values by the point's name, parameters in the chapter's order."""
    mapping(grid, f"{path}: parameters", tuple(own))
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{path}: {name} = {values!r}: give a list of values, one or more")
        for value in values:
            if not fits(value, own[name]):
                given, wanted = type(value).__name__, type(own[name]).__name__
                hint = ", such as 1.0e-5" if type(own[name]) is float and type(value) is str else ""
                raise ConfigError(f"{path}: {name} has {value!r}, of type {given}: give values of type {wanted}{hint}")
            if not plain(value):
                raise ConfigError(f"{path}: {name} has {value!r}: give numbers, texts, true, false, lists or mappings")
        if name in CHOICES and (other := [value for value in values if value not in CHOICES[name]]):
            raise ConfigError(f"{path}: {name} has {other[0]!r}: known are {', '.join(CHOICES[name])}")
        if name == "seed" and (wrong := [value for value in values if not 0 <= value < SEEDS]):
            raise ConfigError(f"{path}: seed has {wrong[0]}: give whole numbers from 0 to below {SEEDS:,}")
        if twice := [value for place, value in enumerate(values) if value in values[:place]]:
            raise ConfigError(f"{path}: {name} has {twice[0]!r} twice: give every value once")
    count = math.prod(map(len, grid.values()))
    if not grid or count > MOST_POINTS:
        raise ConfigError(f"{path}: {count if grid else 0} points: give 1 to {MOST_POINTS}, or several sweeps")
    names = [name for name in own if name in grid]
    found: dict[str, dict[str, Any]] = {}
    for values in itertools.product(*(grid[name] for name in names)):
        point = dict(zip(names, values, strict=True))
        if point_name(point).lower() in map(str.lower, found):
            raise ConfigError(f"{path}: two points would both be called {point_name(point)}: rename one of the values")
        found[point_name(point)] = point
    return found


def fits(value: Any, own: Any) -> bool:
    """Return whether a value has the type of the chapter's own; a whole number may stand for a real one.

    >>> fits(1, 0.5), fits(0.5, 1), fits(True, 1), fits("auto", "cpu")
    (True, False, False, True)
    """
    return own is None or type(value) is type(own) or (type(own) is float and type(value) is int)


def plain(value: Any) -> bool:
    """Return whether a value is one that JSON has too, and every tool reads alike: YAML has dates, sets and more.

    >>> import datetime
    >>> plain([1, {"a": None}]), plain([datetime.date(2000, 1, 1)]), plain(float("nan")), plain(2**70)
    (True, False, False, False)
    """
    if isinstance(value, list):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and plain(entry) for key, entry in value.items())
    if isinstance(value, int | float):
        return math.isfinite(value) and abs(value) < 2**63
    return value is None or isinstance(value, str)


def point_name(point: dict[str, Any]) -> str:
    """Return a point's name: its parameters, readable and safe as a file's name.

    >>> point_name({"preset": "smoke", "model": "owner/a model", "seed": 3})
    'preset=smoke,model=owner-a-model,seed=3'
    """
    name = ",".join(f"{key}={written(value)}" for key, value in point.items())
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(repr(point).encode()).hexdigest()[:8]}"


def written(value: Any) -> str:
    """Return a value with characters that are safe in a file's name; a number keeps its sign."""
    return str(value) if isinstance(value, int | float) else re.sub(r"[^A-Za-z0-9_.+-]+", "-", str(value)).strip("-")


def script(name: Any, path: Path) -> Path | None:
    """Return the script that prepares the sweep, None where there is none."""
    if name is None:
        return None
    if not isinstance(name, str) or not name.endswith(".py") or not Path(name).is_file():
        raise ConfigError(f"{path}: prepare = {name!r}: give the path of a Python script, from the book's folder")
    return Path(name)


def resources(given: Any, path: Path) -> dict[str, Any]:
    """Return what one point needs: cores, gpus, memory."""
    found = {**RESOURCES, **mapping(given, f"{path}: resources", tuple(RESOURCES))}
    for name, least in (("cores", 1), ("gpus", 0)):
        if type(found[name]) is not int or found[name] < least:
            raise ConfigError(f"{path}: {name} = {found[name]!r}: give a whole number from {least}")
    if not isinstance(found["memory"], str) or not re.fullmatch(r"[1-9]\d* ?[MG]B", found["memory"]):
        raise ConfigError(f"{path}: memory = {found['memory']!r}: give a size such as 4GB or 800MB")
    return found


def check_name(sweep: Sweep) -> None:
    """Raise a ConfigError if the gallery that is stored under a sweep's name is that of another file."""
    path = FOLDER / sweep.name / "manifest.json"
    try:
        made_from = json.loads(path.read_text(encoding="utf-8")).get("file")
    except FileNotFoundError:
        return
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): restore it, or delete {path.parent}") from None
    if made_from != str(file_of(sweep)):
        raise ConfigError(
            f"{sweep.file}: {path.parent} is the gallery of {made_from}: give the file another name, or delete that "
            "folder to give its name away"
        )


def file_of(sweep: Sweep) -> Path:
    """Return a sweep's file as its gallery names it: from the working folder on where it lies there."""
    path, here = sweep.file.resolve(), Path.cwd().resolve()
    return path.relative_to(here) if path.is_relative_to(here) else path
