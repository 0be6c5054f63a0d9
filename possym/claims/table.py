"""Tables of claims as HTML, and the sign of each verdict."""

import html
import json
import re
from typing import Any

import pandas as pd

from possym.charts.typography import typeset_html
from possym.experiments.claim import VERDICTS

SYMBOLS = dict(zip(VERDICTS, "●◐?○–", strict=True))
TABULAR = "application/vnd.dataresource+json"  # the Frictionless standard's type for a table in a notebook


class Table:
    """An HTML table with a caption, as notebooks and the book show it; plain text elsewhere."""

    def __init__(
        self,
        frame: pd.DataFrame,
        caption: str,
        markup: tuple[str, ...] = (),
        attributes: list[dict[str, str]] | None = None,
        data: pd.DataFrame | None = None,
    ) -> None:
        """Hold a frame; the columns named in ``markup`` are HTML already, all others are escaped.

        ``attributes`` are those of each row's ``tr``; ``data`` is what a notebook keeps beside the table, for programs.
        """
        self.frame, self.caption, self.markup, self.data = frame, caption, markup, data
        self.attributes = attributes or [{}] * len(frame)

    def __repr__(self) -> str:
        """Return the plain text."""
        plain = self.frame.assign(**{name: [text_of(cell) for cell in self.frame[name]] for name in self.markup})
        return f"{self.caption}\n{plain.to_string()}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if self.data is not None:
            bundle[TABULAR] = json.loads(self.data.to_json(orient="table", index=False))
        return bundle

    def _repr_html_(self) -> str:
        names = list(self.frame.columns)
        head = "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in names)
        lines = []
        for values, attributes in zip(self.frame.itertuples(index=False), self.attributes, strict=True):
            opening = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
            cells = [
                str(value) if name in self.markup else html.escape(str(value))
                for name, value in zip(names, values, strict=True)
            ]
            data = "".join(f"<td>{cell}</td>" for cell in cells[1:])
            lines.append(f'<tr{opening}><th scope="row">{cells[0]}</th>{data}</tr>')
        return typeset_html(
            f'<div class="possym-table" tabindex="0" role="region" aria-label="{html.escape(self.caption)}">'
            f"<table><caption>{html.escape(self.caption)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
        )


def mathematics(text: str) -> str:
    """Return escaped text with single letters' indices set below the line.

    >>> mathematics("Δ_Index(n) of T_Index, self_marking_head")
    'Δ<sub>Index</sub>(n) of T<sub>Index</sub>, self_marking_head'
    """
    return re.sub(r"(?<!\w)([A-Za-zΔΛΘΩαβγδθλσω])_([A-Za-z0-9]+)(?!\w)", r"\1<sub>\2</sub>", text)


def text_of(markup: str) -> str:
    """Return HTML as plain text.

    >>> text_of("1 &lt; 2<br><a>here</a>")
    '1 < 2 here'
    """
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", markup)).split())


def anchor(kind: str, claim: str) -> str:
    """Return the name by which a page is linked to at a claim; dots would end it, since scripts select by it.

    >>> anchor("claim", "number-positional-0.1")
    'claim-number-positional-0-1'
    """
    return f"{kind}-{claim.replace('.', '-')}"


def badge(verdict: str) -> str:
    """Return a verdict as HTML: a sign and the words, so that no meaning hangs on colour."""
    name = verdict.replace(" ", "-")
    return f'<span class="verdict verdict-{name}"><span aria-hidden="true">{SYMBOLS[verdict]}</span> {verdict}</span>'
