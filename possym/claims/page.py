"""The whole ledger on one page, with filters that need no kernel."""

import html

import pandas as pd

from possym.claims.table import SYMBOLS, Table, anchor
from possym.experiments.claim import KINDS, VERDICTS

FILTERS = ("paper", "kind", "verdict", "chapter")
# Shows the rows that every filter lets through, says how many, and keeps the choice in the address, so that Back
# undoes it. The address of one claim asks for no filter, and so shows its row.
SCRIPT = """
(() => {
  for (const root of document.querySelectorAll(".possym-ledger:not([data-ready])")) {
    root.dataset.ready = "";
    const form = root.querySelector("form"), said = form.querySelector("output");
    const rows = Array.from(root.querySelectorAll("tbody tr"));
    const plain = (text) => text.trim().toLowerCase().replace(/\\s/g, " ").replaceAll("−", "-"); // as a keyboard has it
    const apply = () => {
      const asked = Object.fromEntries(new FormData(form));
      let count = 0;
      const fits = (row, name) => !asked[name] || row.dataset[name] === asked[name];
      for (const row of rows) {
        row.hidden = !["paper", "kind", "verdict", "chapter"].every((name) => fits(row, name))
          || !plain(row.textContent).includes(plain(asked.text));
        count += !row.hidden;
      }
      said.textContent = `${count} of ${rows.length} rows`;
    };
    const fromAddress = () => {
      const asked = new URLSearchParams(location.hash.slice(1));
      for (const field of form.elements) if (field.name) field.value = asked.get(field.name) ?? "";
      apply();
    };
    let typing = false; // letters of one word are one step of the way back
    form.addEventListener("input", ({ target }) => {
      apply();
      const asked = String(new URLSearchParams(Array.from(new FormData(form)).filter(([, value]) => value)));
      const address = location.pathname + location.search + (asked && "#" + asked);
      history[typing && target.name === "text" ? "replaceState" : "pushState"](null, "", address);
      typing = target.name === "text";
    });
    form.addEventListener("reset", () => setTimeout(() => form.dispatchEvent(new Event("input"))));
    form.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("hashchange", () => {
      typing = false;
      fromAddress();
      rows.find((row) => "#" + row.id === location.hash)?.scrollIntoView(); // it may have been hidden
    });
    form.hidden = false;
    // A row that an address leads to stops below the filters, whose lines depend on the width.
    new ResizeObserver(() => root.style.setProperty("--filters", `${form.offsetHeight}px`)).observe(form);
    fromAddress();
  }
})();
"""


class Browser:
    """The rows of a ledger as an HTML table below menus for paper, kind, verdict, chapter and a text."""

    def __init__(self, rows: pd.DataFrame, shown: pd.DataFrame, papers: dict[str, str]) -> None:
        """Hold rows of the ledger, the same as readers see them, and the title that each paper goes by."""
        self.rows, self.papers = rows, papers
        chapters = [link(row.chapter, row.Index) for row in rows.itertuples()]
        frame = shown.assign(Chapter=chapters)
        attributes = [
            {"id": anchor("claim", row.Index), **{f"data-{name}": getattr(row, name) for name in FILTERS}}
            for row in rows.itertuples()
        ]
        self.table = Table(frame, "The ledger of claims", ("Claim", "Measured here", "Verdict", "Chapter"), attributes)
        self.filters = {
            "paper": [name for name in papers if name in set(rows["paper"])],
            "kind": [kind for kind in KINDS if kind in set(rows["kind"])],
            "verdict": [verdict for verdict in VERDICTS if verdict in set(rows["verdict"])],
            "chapter": sorted(set(rows["chapter"])),
        }

    def __repr__(self) -> str:
        """Return the plain text."""
        return repr(self.table)

    def _repr_html_(self) -> str:
        words = {
            "paper": lambda name: self.papers[name],
            "kind": str,
            "verdict": lambda verdict: f"{SYMBOLS[verdict]} {verdict}",
            "chapter": title,
        }
        menus = "".join(menu(name, {key: words[name](key) for key in keys}) for name, keys in self.filters.items())
        return (
            f'<div class="possym-ledger"><form hidden role="search" aria-label="Filter the claims">{menus}'
            '<label>Text <input type="search" name="text"></label><button type="reset">Show all</button>'
            f'<output aria-live="polite"></output></form>{self.table._repr_html_()}<script>{SCRIPT}</script></div>'
        )


def menu(name: str, options: dict[str, str]) -> str:
    """Return a labelled menu: all, or one of the options."""
    escaped = ((html.escape(key), html.escape(text)) for key, text in options.items())
    entries = "".join(f'<option value="{key}">{text}</option>' for key, text in escaped)
    return f'<label>{name.capitalize()} <select name="{name}"><option value="">all</option>{entries}</select></label>'


def link(chapter: str, claim: str) -> str:
    """Return the link to a claim in its chapter; the book's pages lead from there to the built page."""
    address = html.escape(f"chapters/{chapter}.md#{anchor('claim', claim)}")
    return f'<a href="{address}">{html.escape(title(chapter))}</a>'


def title(chapter: str) -> str:
    """Return a chapter's file name as words.

    >>> title("05-canonical-tasks")
    'Canonical tasks'
    >>> title("14-one-hop-prompts")
    'One-hop prompts'
    """
    words = chapter.partition("-")[2].replace("-", " ").capitalize()
    return words.replace("Rope", "RoPE").replace("One hop", "One-hop")
