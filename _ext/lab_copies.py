"""Put working copies of the book's pages where JupyterLab opens them, so that its autosave never writes into a chapter.

python _ext/lab_copies.py _build/lab        copies what lies in the current folder

A copy that was not edited follows its page, and goes with it. An edited copy is kept, and named; delete it to have the
page again.
"""

import re
import sys
from pathlib import Path

import chapter_format
from pybtex.database import Entry, parse_file

LINKED = ("_assets", "sweeps")  # what pages show beside themselves
# Outputs go into a notebook beside the text, so that they are still there when a page is closed and opened again.
PAIRED = 'formats = "ipynb,md:myst"\n'


MODEL = re.compile(r"```\{page-model\}.*?```", re.DOTALL)  # made by the build; controls in JupyterLab call the model


CITED = re.compile(r"\{cite(?::\w+)?\}`([^`]+)`")  # JupyterLab knows no list of sources


def link(source: Entry) -> str:
    """Authors and year of a source, as the book cites it, with its address.

    >>> from pybtex.database import Person
    >>> link(Entry("misc", {"year": "2024", "eprint": "2104.09864"}, {"author": [Person("Su, J."), Person("Lu, Y.")]}))
    '[Su and Lu, 2024](https://arxiv.org/abs/2104.09864)'
    """
    names = [" ".join(author.last_names).strip("{}") for author in source.persons["author"]]
    names = names if len(names) < 3 else [f"{names[0]} et al."]
    fields, arxiv = source.fields, "https://arxiv.org/abs/"
    address = fields.get("url") or (f"{arxiv}{fields['eprint']}" if "eprint" in fields else "")
    said = f"{' and '.join(names)}, {fields['year']}"
    return f"[{said}]({address})" if address else said


def shown(page: Path, sources: dict[str, str]) -> str:
    """A page as JupyterLab shows and stores it: the solutions of its exercises are folded, as in the book."""
    text = page.read_text(encoding="utf-8")
    text = chapter_format.written(page, folded="solution") if chapter_format.runs(text) else text
    text = CITED.sub(lambda found: f"({', '.join(sources.get(key.strip(), key) for key in found[1].split(','))})", text)
    return MODEL.sub("*The model runs in the built page.*", text)


def copy_pages(book: Path, lab: Path) -> list[Path]:
    """Bring the working copies in ``lab`` up to date with ``book``; the edited ones, which are kept."""
    kept = []
    works = book / "references.bib"
    sources = {key: link(source) for key, source in parse_file(works).entries.items()} if works.exists() else {}
    for page in sorted([*book.glob("*.md"), *book.glob("chapters/*.md")]):
        name = page.relative_to(book)
        copy, original = lab / name, lab / ".originals" / name  # as the page was when it was copied
        if copy.exists() and not (original.exists() and copy.read_bytes() == original.read_bytes()):
            kept.append(copy)
            continue
        text = shown(page, sources)
        if copy.exists() and copy.read_text(encoding="utf-8") == text:
            continue
        copy.with_suffix(".ipynb").unlink(missing_ok=True)  # outputs of the page as it was
        for target in (original, copy):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
    for original in sorted((lab / ".originals").rglob("*.md")):
        if (book / (name := original.relative_to(lab / ".originals"))).exists():
            continue
        if (copy := lab / name).exists() and copy.read_bytes() != original.read_bytes():
            kept.append(copy)
            continue
        for gone in (copy, copy.with_suffix(".ipynb"), original):
            gone.unlink(missing_ok=True)
    settings = book / "jupytext.toml"
    (lab / "jupytext.toml").write_text(PAIRED + (settings.read_text(encoding="utf-8") if settings.exists() else ""))
    for name in LINKED:
        if (book / name).exists() and not (lab / name).is_symlink():
            (lab / name).symlink_to((book / name).absolute(), target_is_directory=True)
    return kept


if __name__ == "__main__":
    for edited in copy_pages(Path.cwd(), Path(sys.argv[1])):
        print(f"Kept as you edited it: {edited} (delete it to start from the page again)")
