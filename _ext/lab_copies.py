"""Put working copies of the book's pages where JupyterLab opens them, so that its autosave never writes into a chapter.

python _ext/lab_copies.py _build/lab        copies what lies in the current folder

A copy that was not edited follows its page. An edited copy is kept, and named; delete it to have the page again.
"""

import re
import sys
from pathlib import Path

import chapter_format

LINKED = ("_assets", "sweeps")  # what pages show beside themselves
# Outputs go into a notebook beside the text, so that they are still there when a page is closed and opened again.
PAIRED = 'formats = "ipynb,md:myst"\n'


MODEL = re.compile(r"```\{page-model\}.*?```", re.DOTALL)  # made by the build; controls in JupyterLab call the model


def shown(page: Path) -> str:
    """A page as JupyterLab shows and stores it: the solutions of its exercises are folded, as in the book."""
    text = page.read_text(encoding="utf-8")
    text = chapter_format.written(page, folded="solution") if chapter_format.runs(text) else text
    return MODEL.sub("*The model runs in the built page.*", text)


def copy_pages(book: Path, lab: Path) -> list[Path]:
    """Bring the working copies in ``lab`` up to date with ``book``; the edited ones, which are kept."""
    kept = []
    for page in sorted([*book.glob("*.md"), *book.glob("chapters/*.md")]):
        name = page.relative_to(book)
        copy, original = lab / name, lab / ".originals" / name  # as the page was when it was copied
        if copy.exists() and not (original.exists() and copy.read_bytes() == original.read_bytes()):
            kept.append(copy)
            continue
        text = shown(page)
        if copy.exists() and copy.read_text(encoding="utf-8") == text:
            continue
        copy.with_suffix(".ipynb").unlink(missing_ok=True)  # outputs of the page as it was
        for target in (original, copy):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    settings = book / "jupytext.toml"
    (lab / "jupytext.toml").write_text(PAIRED + (settings.read_text(encoding="utf-8") if settings.exists() else ""))
    for name in LINKED:
        if (book / name).exists() and not (lab / name).is_symlink():
            (lab / name).symlink_to((book / name).absolute(), target_is_directory=True)
    return kept


if __name__ == "__main__":
    for edited in copy_pages(Path.cwd(), Path(sys.argv[1])):
        print(f"Kept as you edited it: {edited} (delete it to start from the page again)")
