"""Write the pages of the API reference into a staged book: one a module, below the page of its group.

python _ext/api_pages.py _build/stage

A page ``api/<group>.md`` lists modules in a fenced block named ``api``, one a line. ``possym.theory.*`` means the
package and what is in it; ``rest`` means every module that no group lists, so that none can be forgotten. The block
becomes a table of the modules, each module gets a page, and the staged ``_toc.yml`` gets the pages as sections of
their group.
"""

import ast
import importlib.util
import pkgutil
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import yaml

import possym

BLOCK = re.compile(r"^```\{api\}\n(?P<patterns>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = """# {module}

```{{eval-rst}}
.. automodule:: {module}
   :members:
   :ignore-module-all:
```
"""


def modules() -> list[str]:
    """Every public module, packages before what is in them."""
    found = pkgutil.walk_packages(possym.__path__, "possym.")
    return [module.name for module in found if not any(part.startswith("_") for part in module.name.split("."))]


def matching(pattern: str) -> list[str]:
    """The modules that one line of a block means."""
    package = pattern.removesuffix(".*")
    found = [name for name in modules() if name == package or (package != pattern and fnmatch(name, pattern))]
    if not found:
        raise SystemExit(f"the API reference lists {pattern}, which possym does not have")
    return found


def groups(pages: dict[str, str]) -> dict[str, list[str]]:
    """The modules of each page's block, by page; each module on the page whose line names it most closely."""
    lines = {
        page: [line for block in BLOCK.finditer(text) for line in block["patterns"].split()]
        for page, text in pages.items()
    }
    closest: dict[str, tuple[int, str]] = {}
    for page, patterns in lines.items():
        for line in patterns:
            for name in matching(line) if line != "rest" else ():
                closest[name] = max((len(line), page), closest.get(name, (0, "")))
    home = {name: closest[name][1] if name in closest else rest_page(lines) for name in modules()}
    return {page: [name for name, where in home.items() if where == page] for page in pages}


def rest_page(lines: dict[str, list[str]]) -> str:
    """The page that takes the modules which no line names."""
    return next(page for page, patterns in lines.items() if "rest" in patterns)


def about(module: str) -> str:
    """The first sentence of a module's documentation."""
    source = Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
    first = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0]
    return " ".join(first.replace("``", "`").split()).replace("|", "\\|")


def table(found: list[str]) -> str:
    """The modules with what each is about, linked to their pages."""
    rows = "".join(f"| {{doc}}`{name}` | {about(name)} |\n" for name in found)
    return f"| Module | What it holds |\n|---|---|\n{rows}" if found else ""


def add_sections(entries: list[dict], found: dict[str, list[str]]) -> None:
    """Put each group's modules below it in the table of contents."""
    for entry in entries:
        if names := found.get(entry.get("file", "")):
            entry["sections"] = [{"file": f"api/{name}"} for name in names]
        for value in entry.values():
            if isinstance(value, list):
                add_sections(value, found)


def main() -> None:
    """Write the pages."""
    stage = Path(sys.argv[1])
    pages = {f"api/{path.stem}": path.read_text(encoding="utf-8") for path in sorted(stage.glob("api/*.md"))}
    found = groups(pages)
    for page, text in pages.items():
        (stage / f"{page}.md").write_text(BLOCK.sub(table(found[page]).replace("\\", r"\\"), text), encoding="utf-8")
        for module in found[page]:
            (stage / f"api/{module}.md").write_text(PAGE.format(module=module), encoding="utf-8")
    toc = yaml.safe_load((stage / "_toc.yml").read_text(encoding="utf-8"))
    add_sections([toc], found)
    (stage / "_toc.yml").write_text(yaml.safe_dump(toc, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()
