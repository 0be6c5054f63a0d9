"""Store chapters as Jupytext writes them, so that a word edited in JupyterLab is one changed line; outputs are refused.

python _ext/chapter_format.py chapters/*.md      rewrite those that differ; the exit status is 1 if there are any
"""

import sys
from pathlib import Path

import jupytext
from jupytext.config import load_jupytext_config

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}  # as JupyterLab names it


def written(chapter: Path, folded: str | None = None) -> str:
    """The text that JupyterLab would store for a chapter, the code of cells with the tag ``folded`` out of sight."""
    config = load_jupytext_config(str(chapter.absolute()))
    notebook = jupytext.read(chapter, fmt="md:myst", config=config)
    notebook.metadata["kernelspec"] = KERNEL
    for cell in notebook.cells:
        if folded in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
            cell.source = f"# {folded.capitalize()}\n{cell.source}"  # the first line is what JupyterLab leaves in sight
    return jupytext.writes(notebook, fmt="md:myst", config=config)


def runs(text: str) -> bool:
    """Whether the text of a page names a kernel, so that it is a notebook."""
    return "kernelspec:" in text.split("\n---\n")[0]


def main(names: list[str]) -> int:
    """Rewrite the pages among ``names`` that run code; 1 if one was different, or is a notebook with outputs."""
    wrong = [name for name in names if name.endswith(".ipynb") and not name.startswith("sweeps/")]
    for name in wrong:
        print(f"{name}: a chapter is a text file, chapters/*.md, without outputs: store it as jupytext does")
    for path in map(Path, names):
        text = path.read_text(encoding="utf-8") if path.suffix == ".md" else ""
        if runs(text) and text != (new := written(path)):
            path.write_text(new, encoding="utf-8")
            wrong.append(str(path))
            print(f"{path}: rewritten")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
