"""Sphinx extension: mends the finished pages.

* What the theme, docutils and pandas write that a screen reader cannot use: each repair is a pattern and what it
  becomes. ``tests/book/test_accessibility.py`` finds what is left to mend.
* Marks on code that no colour hangs on (names, punctuation, space) are dropped: they are a fifth of a page.
* A link to a claim leads to where its chapter tells the finding, below the figure, if it does so before **What holds**.
"""

import re
from functools import partial
from pathlib import Path

CLAIM = re.compile(r'href="(?P<page>[^"#]+)#claim-(?P<claim>[^"]+)"')
REPAIRS = {
    # the theme: a fold of the contents that has no name, and a sidebar outside every landmark
    r'<summary>(?=<span class="toctree-toggle")': '<summary aria-label="Pages below this one">',
    r'<div class="bd-sidebar-primary': '<div role="region" aria-label="The book" class="bd-sidebar-primary',
    # the theme: a script of 1.5 MB that draws the icons which its fonts have drawn, and hides from screen readers
    r'<script src="[^"]*/fontawesome/[^"]*"></script>': "",
    r'<i class="(?=[^"]*\bfa)': '<i aria-hidden="true" class="',
    # docutils: a list whose entries are no items, and a role that is no more
    r'<div role="list" class="citation-list">': '<div class="citation-list">',
    r' role="doc-biblioentry"': "",
    # pygments: marks in the text's own colour
    r'<span class="[npw]">([^<]*)</span>': r"\1",
    # pandas: an empty corner that calls itself a header
    r'<th( class="blank[^"]*")?\s*>(?:&nbsp;|\xa0)?</th>': r"<td\1></td>",
}


def nearest(folder: Path, link: re.Match) -> str:
    """The link to a claim, to its finding where the page that it leads to has one."""
    target = folder / link["page"]
    told = target.exists() and f'id="finding-{link["claim"]}"' in target.read_text(encoding="utf-8")
    return f'href="{link["page"]}#{"finding" if told else "claim"}-{link["claim"]}"'


def mend(app, exception) -> None:
    """Apply the repairs to every finished page."""
    if exception or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = before = page.read_text(encoding="utf-8")
        for pattern, better in REPAIRS.items():
            text = re.sub(pattern, better, text)
        text = CLAIM.sub(partial(nearest, page.parent), text)
        if text != before:
            page.write_text(text, encoding="utf-8")


def setup(app) -> dict:
    """Register the handler."""
    app.connect("build-finished", mend)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
