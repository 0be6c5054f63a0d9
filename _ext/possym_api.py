"""Sphinx extension: docstrings become the pages that ``api_pages.py`` has laid out."""

import re
import types

from sphinx.ext.autodoc import FunctionDocumenter

KEPT = re.compile(r"(``.+?``|`[^`]+`|(?<![\w*])(\*{1,2})(?=[^\s*])[^*]+(?<=[^\s*])\2(?![\w*]))")  # code and emphasis
ITEM = re.compile(r"\s*([-*]|\d+\.) ")
# Other stars, bars of a size, and a name's last underscore: mathematics to a reader, markup to docutils.
SIGNS = re.compile(r"[*|]|(?<=\w)_(?=\W|$)")


def escaped(line: str) -> str:
    """A line in which nothing but code, emphasis and the sign of an item is markup.

    >>> print(escaped("*x* of shape (E, *shape), |x| and `x_`"))
    *x* of shape (E, \\*shape), \\|x\\| and `x_`
    """
    item = ITEM.match(line)
    start = item.end() if item else 0
    pieces, end = [line[:start]], start
    for kept in KEPT.finditer(line, start):
        pieces += [SIGNS.sub(r"\\\g<0>", line[end : kept.start()]), kept[0]]
        end = kept.end()
    return "".join([*pieces, SIGNS.sub(r"\\\g<0>", line[end:])])


def tidy(app, what, name, thing, options, lines: list[str]) -> None:
    """Keep mathematics from being read as markup, and set lists apart from the lines around them."""
    result, example, bullet = [], False, None
    for line in lines:
        depth = len(line) - len(line.lstrip())
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example and not line.lstrip().startswith(".. "):
            line = escaped(line)
            before = result[-1] if result else ""
            starts = bool(ITEM.match(line))
            ends = bullet is not None and not starts and depth <= bullet
            if before.strip() and (ends or (starts and bullet is None)):
                result.append("")
            if starts:
                bullet = depth
            elif ends or not line.strip():
                bullet = None
        result.append(line)
    lines[:] = result


def made_of(thing) -> types.FunctionType | None:
    """The function that an operator of PyTorch or a kernel of Triton was made of."""
    kept_as = {"CustomOpDef": "_init_fn", "JITFunction": "fn"}.get(type(thing).__name__)
    return kept_as and getattr(thing, kept_as)


class CompiledDocumenter(FunctionDocumenter):
    """Documents what was compiled from a function as that function."""

    objtype = "compiled"
    directivetype = "function"

    @classmethod
    def can_document_member(cls, member, membername, isattr, parent) -> bool:
        """Whether it was compiled from a function."""
        return made_of(member) is not None

    def import_object(self, raiseerror: bool = False) -> bool:
        """Go on with the function itself."""
        imported = super().import_object(raiseerror)
        self.object = made_of(self.object) or self.object
        return imported


def skip(app, what, name, thing, skipped, options) -> bool | None:
    """Leave out what only says that it is a field of a named tuple; keep what hides the docstring of its function."""
    if made_of(thing) is not None:
        return False
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field number") else None


def setup(app) -> dict:
    """Register the handlers."""
    app.setup_extension("sphinx.ext.napoleon")
    app.setup_extension("sphinx.ext.autodoc")
    app.add_autodocumenter(CompiledDocumenter)
    app.connect("autodoc-process-docstring", tidy, priority=400)  # before napoleon writes markup of its own
    app.connect("autodoc-skip-member", skip)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
