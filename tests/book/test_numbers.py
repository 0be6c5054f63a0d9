"""One number for a chapter's file, its page, its sections and its equations; old addresses lead to the new ones."""

import re
from pathlib import Path

import yaml

from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
TEXT = "# Chapter {0}\n\n(here-{0})=\n## A section\n\n$$ x = {0} $$ (eq-{0})\n\nSee {{eq}}`eq-{0}`.\n"


def contents():
    """The names of all chapters in the order of the book."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [page["file"] for page in toc["parts"][0]["chapters"]]


def test_files_are_numbered_in_the_order_of_the_book():
    numbers = [re.fullmatch(r"chapters/(\d\d)-[a-z-]+", page)[1] for page in contents()]
    assert numbers == sorted(set(numbers))
    assert {f"chapters/{path.stem}" for path in ROOT.glob("chapters/*.md")} == set(contents())
    named = re.findall(r"\{doc\}`(chapters/[^`]+)`", (ROOT / "index.md").read_text(encoding="utf-8"))
    assert named == contents(), "the map of index.md"
    moved = load_script("possym_numbers").MOVED
    assert set(moved.values()) <= set(contents()) and not set(moved) & set(contents())


def test_pages_print_the_number_of_their_file_and_old_addresses_lead_there(book, make, visit):
    """A number that is missing in between moves no other."""
    folder, names = book(), ["01-one", "13-profiling-real-models"]
    for name in names:
        (folder / f"chapters/{name}.md").write_text(TEXT.format(int(name[:2])))
    (folder / "_toc.yml").write_text(
        "format: jb-book\nroot: index\nparts:\n  - numbered: true\n    chapters:\n"
        + "".join(f"      - file: chapters/{name}\n" for name in names)
    )
    result = make("book", folder=folder)
    assert result.returncode == 0, result.stdout
    site = folder / "_build/html/chapters"
    for name in names:
        number, text = int(name[:2]), (site / f"{name}.html").read_text(encoding="utf-8")
        assert re.findall(r'<h[12]><span class="section-number">([\d.]+) ', text) == [f"{number}.", f"{number}.1."]
        assert f'class="eqno">({number}.1)' in text and f">({number}.1)</a>" in text
        assert set(re.findall(r">(\d+)\. Chapter (\d+)", text)) == {("1", "1"), ("13", "13")}, "the contents beside it"
    with visit() as v:
        for old in ("10-profiling-real-models.html", "10-profiling-real-models.html?a=b#here-13"):
            page = v.open(f"{site.as_uri()}/{old}", unfolded=False).page
            page.wait_for_url(f"{site.as_uri()}/{old.replace('10-', '13-')}")
            assert "Chapter 13" in page.locator("h1").first.text_content()
    assert not (site / "11-one-hop-prompts.html").exists(), "a page that this book does not have"
