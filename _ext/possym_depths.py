"""Sphinx extension: two depths of reading, a main line that is open and checks that are folded.

* A section that begins with the comment ``% check`` is folded below its title, with a line that says what is inside; so
  are **What holds**, whose counts of verdicts stay in sight, and **Exercises**. An address that leads into a fold opens
  it, and paper has no folds.
* Where the numbers of a page come from is folded too (cells tagged ``provenance``).
* Below a chapter's title stands how long it takes to read, the checks apart.
"""

import re

from docutils import nodes
from page_script import add_page_script

FOLDED = {"What holds", "Exercises"}
MARK = "check"
WORDS_A_MINUTE = 220
VERDICT = re.compile(r'class="verdict verdict-[\w-]+"><span aria-hidden="true">(.)</span> ([a-z ]+)<')
SCRIPT = "folds.js"


def fold(app, doctree: nodes.document, page: str) -> None:
    """Fold what a page's reader may leave out, and say how long the rest takes."""
    if app.builder.format != "html":
        return
    folded = [section for section in doctree.findall(nodes.section) if is_folded(section)]
    apart = sum(words(section) for section in outermost(folded))
    if page.startswith("chapters/"):
        add_reading_time(doctree, words(doctree) - apart, apart)
    for section in folded:
        wrap(section, contents(section))
    for cell in list(doctree.findall(is_provenance)):
        at = cell.parent.index(cell)
        cell.parent.insert(at, opening("Where these numbers come from", "possym-provenance"))
        cell.parent.insert(at + 2, nodes.raw("", "</details>", format="html"))


def is_folded(section: nodes.section) -> bool:
    """Whether a section is a check, or one of those that every chapter ends with."""
    marked = any(isinstance(child, nodes.comment) and child.astext().strip() == MARK for child in section.children)
    return marked or title_of(section) in FOLDED


def is_provenance(node: nodes.Node) -> bool:
    """Whether a node is the cell that says where numbers come from."""
    return isinstance(node, nodes.container) and "tag_provenance" in node.get("classes", [])


def title_of(section: nodes.section) -> str:
    """A section's title without its number."""
    title = next((child for child in section.children if isinstance(child, nodes.title)), None)
    return title.astext() if title is not None else ""


def outermost(sections: list[nodes.section]) -> list[nodes.section]:
    """Those sections that lie in no other of the list."""
    inside = set(map(id, sections))

    def within(node: nodes.Node) -> bool:
        return node.parent is not None and (id(node.parent) in inside or within(node.parent))

    return [section for section in sections if not within(section)]


def html_of(node: nodes.Node) -> str:
    """The HTML that a node's cells have put out."""
    return "".join(raw.astext() for raw in node.findall(nodes.raw) if "html" in raw.get("format", ""))


def words(node: nodes.Node) -> int:
    """How many words of prose a node has."""
    return sum(len(text.astext().split()) for text in node.findall(nodes.paragraph))


def contents(section: nodes.section) -> str:
    """What a fold says of its inside."""
    html = html_of(section)
    if title_of(section) == "What holds":
        found = [f"{sign} {verdict}" for sign, verdict in VERDICT.findall(html)]
        counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in dict.fromkeys(sorted(found, key=order)))
        return f"{len(found)} claims: {counts}" if found else "The claims of this chapter"
    if title_of(section) == "Exercises":
        count = sum("exercise" in node.get("classes", []) for node in section.findall(nodes.Admonition))
        return f"{count} exercises with solutions"
    figures, tables = html.count('<figure class="possym-chart"'), html.count("<table")
    parts = [f"{count} {name}{'s' * (count > 1)}" for count, name in ((figures, "figure"), (tables, "table")) if count]
    return f"In detail: {', '.join([*parts, minutes(words(section))])}"


def order(verdict: str) -> int:
    """Where a verdict stands in the ledger's order."""
    return "●◐?○–".index(verdict[0])


def minutes(count: int) -> str:
    """How long so many words take."""
    whole = max(1, round(count / WORDS_A_MINUTE))
    return f"{whole} minute{'s' * (whole > 1)}"


def opening(summary: str, name: str) -> nodes.raw:
    """The beginning of a fold."""
    return nodes.raw("", f'<details class="{name}"><summary>{summary}</summary>', format="html")


def wrap(section: nodes.section, summary: str) -> None:
    """Put all of a section but its title into a fold."""
    at = next(index for index, child in enumerate(section.children) if isinstance(child, nodes.title)) + 1
    section.insert(at, opening(summary, "possym-fold"))
    section.append(nodes.raw("", "</details>", format="html"))


def add_reading_time(doctree: nodes.document, main: int, apart: int) -> None:
    """Say below the title how long a chapter takes."""
    section = next(doctree.findall(nodes.section), None)
    if section is None or main + apart == 0:
        return
    rest = f", {minutes(apart)} more with its checks" if apart else ""
    at = next(index for index, child in enumerate(section.children) if isinstance(child, nodes.title)) + 1
    section.insert(at, nodes.raw("", f'<p class="possym-time">{minutes(main)} to read{rest}</p>', format="html"))


def setup(app) -> dict:
    """Register the handlers."""
    app.connect("builder-inited", lambda app: add_page_script(app, SCRIPT))
    app.connect("doctree-resolved", fold, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
