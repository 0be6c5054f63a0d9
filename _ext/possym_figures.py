"""Sphinx extension: the charts of a chapter are numbered figures, which ``{numref}`` and ``{ref}`` refer to.

* A chart's title is its caption, before which its number stands: the chapter's, then its own.
* The label above a cell is its chart's, so that an address leads to the figure and not to the code that draws it.
* Where a table names the figure that shows a claim, it says the number too.
"""

import re
from html import unescape

from docutils import nodes
from sphinx.transforms import SphinxTransform

CHART = re.compile(r'<figure class="possym-chart"><figcaption><strong>(.*?)</strong>', re.DOTALL)
NAMED = re.compile(r'(<a\b[^>]*\bhref="[^"#]*#(figure-[\w-]+)"[^>]*>Figure)(?=: )')


class chart(nodes.General, nodes.Element):
    """The picture that a cell puts out, with a number."""


class NumberCharts(SphinxTransform):
    """Put every chart of a chapter into a node that Sphinx counts, before it looks for labels."""

    default_priority = 700

    def apply(self, **_) -> None:
        """Move a cell's label to its first chart; a chart without a label gets an address of its own."""
        if not self.env.docname.startswith("chapters/"):
            return
        for output in list(self.document.findall(is_output)):
            if title_of(output) is None:
                continue
            number = chart("")
            output.replace_self(number)
            number += output
            cell = number.parent
            while cell is not None and not (isinstance(cell, nodes.container) and "cell" in cell["classes"]):
                cell = cell.parent
            if cell is not None and cell["ids"]:
                number["ids"], number["names"], cell["ids"], cell["names"] = cell["ids"], cell["names"], [], []
                self.document.ids |= dict.fromkeys(number["ids"], number)
            else:
                self.document.set_id(number, suggested_prefix="chart")


def is_output(node: nodes.Node) -> bool:
    """Whether a node is one output of a cell, in all of its forms."""
    return isinstance(node, nodes.container) and node.get("nb_element") == "mime_bundle"


def title_of(node: nodes.Element) -> str | None:
    """The title of the chart in a node, without marks; None where there is no chart with a title."""
    html = (raw.astext() for raw in node.findall(nodes.raw) if raw.get("format") == "html")
    found = next(filter(None, map(CHART.search, html)), None)
    return unescape(re.sub("<[^>]+>", "", found[1])) if found else None


def print_numbers(app, doctree: nodes.document, page: str) -> None:
    """Write each chart's number before its title."""
    counted = app.env.toc_fignumbers.get(page, {}).get("figure", {})
    for figure in doctree.findall(chart):
        number = ".".join(map(str, counted.get(figure["ids"][0], ())))
        words = app.config.numfig_format["figure"] % number
        for raw in figure.findall(nodes.raw) if number else ():
            text = raw.astext().replace("<figcaption>", f'<figcaption><b class="possym-number">{words}</b> ', 1)
            raw.children = [nodes.Text(text)]


def name_numbers(app, page, template, context, doctree) -> None:
    """Say the number of a figure where a table links to it by its label."""
    numbers = {
        label: ".".join(map(str, number))
        for counted in app.env.toc_fignumbers.values()
        for label, number in counted.get("figure", {}).items()
    }

    def named(link: re.Match) -> str:
        return f"{link[1]} {numbers[link[2]]}" if link[2] in numbers else link[0]

    context["body"] = NAMED.sub(named, context.get("body") or "")


def setup(app) -> dict:
    """Register the node, the transform and the handlers."""
    show = (
        lambda self, node: self.body.append(self.starttag(node, "div", CLASS="possym-numbered")),
        lambda self, node: self.body.append("</div>"),
    )
    app.add_enumerable_node(chart, "figure", title_of, html=show)
    app.add_transform(NumberCharts)
    app.connect("doctree-resolved", print_numbers, priority=800)
    app.connect("html-page-context", name_numbers, priority=800)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
