"""What a chapter or a study depends on, read from its source without running it.

- `files` are the files of possym that imports reach, with the data that these name; `chapter_files` those of a chapter;
- `shown` are the stored results that a chapter loads; `changed` says which of its files were changed.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt  # what jupytext reads cells with; to import all of jupytext takes half a second

OPTIONS = re.compile(r"\A(---\n.*?\n---\n|(:[^\n]*\n)+)", re.DOTALL)  # what a cell begins with: its tags
IMPORTING = ast.Import, ast.ImportFrom, ast.Call, ast.Attribute


class Result(NamedTuple):
    """A stored result: the study, the name of its folder, and settings other than those of the preset."""

    study: str
    name: str
    settings: tuple[str, ...] = ()


class Source(NamedTuple):
    """What a Python file says: names it imports at once, those it imports in ``__getattr__``, names it binds."""

    imports: frozenset[str]
    lazy: frozenset[str]
    bound: frozenset[str]
    data: frozenset[Path]


def files(code: Path, names: set[str]) -> set[Path]:
    """The files of the package possym in folder ``code`` that importing ``names`` reads, data included."""
    found, waiting, seen = set(), set(names), set()
    while waiting:
        seen.add(name := waiting.pop())
        read_here, asked = reached(code, name)
        found |= read_here
        waiting |= asked - seen
    return found


@cache
def reached(code: Path, name: str) -> tuple[frozenset[Path], frozenset[str]]:
    """The files that importing one name reads itself, and the names that these import."""
    found, asked, source, parts = set(), set(), None, name.split(".")
    for end, part in enumerate(parts, start=1):
        path = code.joinpath(*parts[:end])
        file = next((f for f in (path / "__init__.py", path.with_suffix(".py")) if f.is_file()), None)
        if file is None:  # a name in the module before; one that is not bound there comes from __getattr__
            if source and part not in source.bound and not part.startswith("__"):
                asked |= source.lazy
            break
        source = read(file, ".".join(parts[: end if file.name == "__init__.py" else end - 1]), code)
        found |= {file} | source.data
        asked |= source.imports
    return frozenset(found), frozenset(asked)


@cache
def read(file: Path, package: str, code: Path) -> Source:
    """Read a module of possym; ``package`` is the one that its relative imports start from."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), file)
    except SyntaxError:  # whoever imports it will say so
        return Source(frozenset(), frozenset(), frozenset(), frozenset())
    late, now, bound = [], [], set()
    for node in tree.body:
        inner = list(ast.walk(node))
        (late if isinstance(node, ast.FunctionDef) and node.name == "__getattr__" else now).extend(inner)
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                bound |= {(alias.asname or alias.name).split(".")[0] for alias in names}
            case ast.Assign() | ast.AnnAssign():
                bound |= {name.id for name in inner if isinstance(name, ast.Name)}
    data = named_files([*now, *late], file.parent, code / "possym")
    return Source(*(frozenset(names) for names in (imports(now, package), imports(late, package), bound, data)))


def imports(nodes: Iterable[ast.AST], package: str = "") -> set[str]:
    """Every name of possym that some nodes of code import, or take from ``possym`` itself."""
    found = set()
    for node in nodes:
        if not isinstance(node, IMPORTING):  # seldom: to match each node takes long
            continue
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=module, names=names, level=level):
                base = resolve_name("." * level + (module or ""), package or None)
                found |= {f"{base}.{alias.name}" for alias in names}
            case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name)), *_]):
                found.add(resolve_name(name, package or None))
            case ast.Attribute(value=ast.Name(id="possym"), attr=name):
                found.add(f"possym.{name}")
    return {name for name in found if name.split(".")[0] == "possym"}


def named_files(nodes: Iterable[ast.AST], *folders: Path) -> set[Path]:
    """The files below ``folders`` that some nodes of code name in a string, such as ``"charts.css"``."""
    words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    short = {word for word in words if "." in word and len(word) < 200 and "\n" not in word}
    return {folder / word for folder in folders for word in short if (folder / word).is_file()}


def chapter_files(code: Path, chapter: Path) -> set[Path]:
    """The files of possym that a chapter imports, and the stored measurements that it names."""
    try:
        nodes = list(ast.walk(ast.parse("\n".join(cells(chapter)))))
    except SyntaxError:  # such as a magic: nobody knows what it reads
        return {path for path in code.glob("possym/**/*") if path.is_file() and "__pycache__" not in path.parts}
    return files(code, imports(nodes)) | {path for path in named_files(nodes, Path()) if path.parts[0] == "benchmarks"}


@cache
def shown(chapter: Path, preset: str) -> frozenset[Result]:
    """The stored results that a chapter loads at a preset.

    Found are ``results.load_or_run(study, config, ...)`` with ``config = study.Config.preset_named(preset, ...)``, and
    ``results.load(results.results_root() / study.NAME / "folder")``. Of ``if preset == "paper":`` the branch that is
    taken counts. Settings that are no literals, such as a chapter's parameters, count as the preset's own.
    """
    nodes = [node for cell in cells(chapter) for node in walk_cell(cell, preset)]
    studies, configs, found = {}, {}, set()
    for node in nodes:
        match node:
            case ast.ImportFrom(module="possym.experiments", names=names):
                studies |= {alias.asname or alias.name: alias.name for alias in names}
            case ast.Assign([ast.Name(id=name)], ast.Call(func=ast.Attribute(attr="preset_named")) as call):
                asked = call.args[0] if call.args else None
                configs[name] = (asked.value if isinstance(asked, ast.Constant) else preset, settings(call))
    for node in nodes:
        match node:
            case ast.Call(ast.Attribute(attr="load_or_run"), [ast.Name(id=study), ast.Name(id=config), *_]):
                found.add((study, *configs.get(config, (preset, ()))))
            case ast.Call(
                ast.Attribute(attr="load"),
                [ast.BinOp(ast.BinOp(right=ast.Attribute(ast.Name(id=study), "NAME")), right=ast.Constant(str(name)))],
            ):
                found.add((study, name, ()))
    return frozenset(Result(studies[study], *rest) for study, *rest in found if study in studies)


def changed(manifest: Path) -> list[str]:
    """The files that a stored result's manifest lists and that are gone, or younger than the manifest, written last."""
    try:
        listed = [manifest.parent / name for name in json.loads(manifest.read_text(encoding="utf-8"))["files"]]
        stored = manifest.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):  # no manifest: whoever loads it will say so
        return []
    times = {file.name: file.stat().st_mtime if file.exists() else None for file in listed}
    return [f"{name} {time}" for name, time in sorted(times.items()) if time is None or time > stored]


def note_changes(manifest: Path, note: Path) -> None:
    """Write into a file what has changed, if that is not what it says; Snakemake compares what small files hold."""
    text = "\n".join(changed(manifest))
    if not note.exists() or note.read_text(encoding="utf-8") != text:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(text, encoding="utf-8")


@cache
def cells(chapter: Path) -> tuple[str, ...]:
    """The source of each code cell."""
    blocks = MarkdownIt().disable("inline").parse(chapter.read_text(encoding="utf-8"))
    code = [block.content for block in blocks if block.level == 0 and block.info.startswith("{code-cell}")]
    return tuple(OPTIONS.sub("", text).strip("\n") for text in code)


def walk_cell(cell: str, preset: str) -> Iterator[ast.AST]:
    """Every node of a cell's code that can run at a preset; none where it is no Python."""
    try:
        yield from ast.walk(Taken(preset).visit(ast.parse(cell)))
    except SyntaxError:
        return


class Taken(ast.NodeTransformer):
    """Leaves of ``if preset == "paper":`` the branch that is taken."""

    def __init__(self, preset: str):
        self.preset = preset

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Decide a test of the preset."""
        self.generic_visit(node)
        match node.test:
            case ast.Compare(ast.Name("preset"), [ast.Eq() | ast.NotEq() as sign], [ast.Constant(value)]):
                return node.body if (value == self.preset) == isinstance(sign, ast.Eq) else node.orelse
        return node


def settings(call: ast.Call) -> tuple[str, ...]:
    """The settings, as ``name=value``, by which a configuration differs from its preset."""
    return tuple(
        f"{word.arg}={ast.unparse(word.value)}"
        for word in call.keywords
        if word.arg != "device" and isinstance(word.value, ast.Constant)
    )


def has_parameter(chapter: Path, name: str) -> bool:
    """Whether a chapter's parameters have this one."""
    nodes = [node for cell in cells(chapter) for node in walk_cell(cell, "")]
    return any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name for node in nodes)
