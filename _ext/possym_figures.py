"""Sphinx extension: the charts and tables of a chapter are numbered, and ``{numref}`` and ``{ref}`` refer to them.

* A chart's title is its caption, before which its number stands: the chapter's, then its own. A table's caption is its
  number and the words of its label, if it has one; **What holds** has none.
* The label above a cell is its chart's or table's, so that an address leads there and not to the code.
* Where a table names the figure or table that shows a claim, it says the number too.
"""

import re
from html import escape, unescape

from docutils import nodes
from sphinx.transforms import SphinxTransform

CHART = re.compile(r'<figure class="possym-chart"><figcaption><strong>(.*?)</strong>', re.DOTALL)
TABLE = re.compile(r'<table\b[^>]*\bclass="dataframe[^>]*>')
NAMED = re.compile(r'(<a\b[^>]*\bhref="[^"#]*#((?:figure|table)-[\w-]+)"[^>]*>(?:Figure|Table))(?=: )')


class chart(nodes.General, nodes.Element):
    """The picture that a cell puts out, with a number."""


class data_table(nodes.General, nodes.Element):
    """The table that a cell puts out, with a number."""


class NumberCharts(SphinxTransform):
    """Put every chart and table of a chapter into a node that Sphinx counts, before it looks for labels."""

    default_priority = 700

    def apply(self, **_) -> None:
        """Move a cell's label to its first chart or table; one without a label gets an address of its own."""
        if not self.env.docname.startswith("chapters/"):
            return
        for output in list(self.document.findall(is_output)):
            if title_of(output) is not None:
                number = chart("")
            elif has_table(output):
                number = data_table("")
            else:
                continue
            output.replace_self(number)
            number += output
            cell = number.parent
            while cell is not None and not (isinstance(cell, nodes.container) and "cell" in cell["classes"]):
                cell = cell.parent
            if cell is not None and cell["ids"]:
                number["ids"], number["names"], cell["ids"], cell["names"] = cell["ids"], cell["names"], [], []
                self.document.ids |= dict.fromkeys(number["ids"], number)
            else:
                self.document.set_id(number, suggested_prefix="chart" if isinstance(number, chart) else "data")


def is_output(node: nodes.Node) -> bool:
    """Whether a node is one output of a cell, in all of its forms."""
    return isinstance(node, nodes.container) and node.get("nb_element") == "mime_bundle"


def title_of(node: nodes.Element) -> str | None:
    """The title of the chart in a node, without marks; None where there is no chart with a title."""
    html = (raw.astext() for raw in node.findall(nodes.raw) if raw.get("format") == "html")
    found = next(filter(None, map(CHART.search, html)), None)
    return unescape(re.sub("<[^>]+>", "", found[1])) if found else None


def has_table(node: nodes.Element) -> bool:
    """Whether a node shows a data frame."""
    return any(TABLE.search(raw.astext()) for raw in node.findall(nodes.raw) if raw.get("format") == "html")


def words_of(node: nodes.Element) -> str:
    """The words of a table's label.

    >>> words_of(data_table("", ids=["table-random-heads"]))
    'Random heads'
    """
    label = next((name for name in node["ids"] if name.startswith("table-")), "")
    return label.removeprefix("table-").replace("-", " ").capitalize()


def print_numbers(app, doctree: nodes.document, page: str) -> None:
    """Write each chart's number before its title, and each table's into its caption."""
    for kind, name in ((chart, "figure"), (data_table, "table")):
        counted = app.env.toc_fignumbers.get(page, {}).get(name, {})
        for node in doctree.findall(kind):
            number = ".".join(map(str, counted.get(node["ids"][0], ())))
            said = f'<b class="possym-number">{app.config.numfig_format[name] % number}</b> '
            for raw in node.findall(nodes.raw) if number else ():
                if kind is chart:
                    text = raw.astext().replace("<figcaption>", f"<figcaption>{said}", 1)
                else:
                    caption = f"<caption>{said}<span>{escape(words_of(node))}</span></caption>"
                    text = TABLE.sub(lambda found, caption=caption: found[0] + caption, raw.astext(), count=1)
                raw.children = [nodes.Text(text)]


def name_numbers(app, page, template, context, doctree) -> None:
    """Say the number of a figure or table where a table links to it by its label."""
    numbers = {
        label: ".".join(map(str, number))
        for counted in app.env.toc_fignumbers.values()
        for kind in ("figure", "table")
        for label, number in counted.get(kind, {}).items()
    }

    def named(link: re.Match) -> str:
        return f"{link[1]} {numbers[link[2]]}" if link[2] in numbers else link[0]

    context["body"] = NAMED.sub(named, context.get("body") or "")


def setup(app) -> dict:
    """Register the nodes, the transform and the handlers."""
    around = (
        lambda self, node: self.body.append(self.starttag(node, "div", CLASS="possym-numbered")),
        lambda self, node: self.body.append("</div>"),
    )
    # Beside it, not around it: the theme makes a wide `.cell_output > .output` a stop of the keyboard.
    before = (
        lambda self, node: self.body.append(f"{self.starttag(node, 'span', '')}</span>"),
        lambda self, node: None,
    )
    app.add_enumerable_node(chart, "figure", title_of, html=around)
    # Sphinx gives no number to what has no title.
    app.add_enumerable_node(data_table, "table", lambda node: words_of(node) or "Table", html=before)
    app.add_transform(NumberCharts)
    app.connect("doctree-resolved", print_numbers, priority=800)
    app.connect("html-page-context", name_numbers, priority=800)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
