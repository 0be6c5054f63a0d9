"""Sphinx extension: what a link leads to is shown beside it, and below a figure the claims that rest on it.

Terms, citations, equations, figures and claims of the finished pages become one script of cards, which a page loads
when a reader first points at a link. Nothing is fetched from elsewhere, and a page opened from disk has its cards too.
"""

import json
import re
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from page_script import add_page_script

CARDS, SCRIPT = "cards_data.js", "cards.js"
LABEL = re.compile(r"^(figure|table)-")
SHOWN = re.compile(r"(?:Figure(?: [\d.]+)?|Table|Section): ")  # where a row names what shows its claim
LONGEST = 600  # characters of a card


def write_cards(app, exception) -> None:
    """Collect the cards of all pages, write them, and put its claims below each figure."""
    if exception or app.builder.format != "html":
        return
    site, cards = Path(app.outdir), {}
    pages = [*sorted(site.glob("*.html")), *sorted(site.glob("chapters/*.html"))]
    for path in pages:
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        article = soup.select_one("article.bd-article")
        if article is None:
            continue
        name = path.relative_to(site).as_posix()
        cards |= {f"{name}#{anchor}": card for anchor, card in cards_of(article).items()}
    text = f"window.possymCards = {json.dumps(cards, ensure_ascii=False, separators=(',', ':'))};\n"
    (site / "_static" / CARDS).write_text(text, encoding="utf-8")
    for path in pages:
        before = path.read_text(encoding="utf-8")
        after = with_claims(before)
        if after != before:
            path.write_text(after, encoding="utf-8")


def cards_of(article: Tag) -> dict[str, str]:
    """What a page's anchors stand for, as HTML: terms, works, equations, figures and claims."""
    found = {}
    for term in article.select("dl.glossary dt[id]"):
        meaning = term.find_next_sibling("dd")
        found[term["id"]] = f"<b>{escape(plain(term))}</b> {inner(meaning)}"
    for work in article.select("div.citation[id]"):
        found[work["id"]] = inner(work, skip="span.label")
    for equation in article.select("div.math[id]"):
        found[equation["id"]] = inner(equation, skip=".eqno")
    for row in article.select("tr[id^=claim-]"):
        found[row["id"]] = claim(row)
    for anchor in article.select("[id]"):
        if LABEL.match(anchor["id"]) and (title := anchor.find_next(["figcaption", "caption"])):
            number = title.select_one(".possym-number")
            name = plain(number) if number else anchor["id"].partition("-")[0].capitalize()
            words = " ".join(plain(part) for part in title.select("strong, span")) or plain(title)
            found[anchor["id"]] = f"<b>{name}</b> {escape(words)}"
    return {anchor: card for anchor, card in found.items() if card}


def claim(row: Tag) -> str:
    """A claim with its verdict, what is measured and the criterion."""
    head, *cells = row.find_all(["th", "td"], recursive=False)
    said = head.select_one("summary")
    criterion = plain(head).removeprefix(plain(said)) if said else ""
    badge = next((str(sign) for sign in row.select("span.verdict")), "")
    measured = SHOWN.split(plain(cells[2]))[0] if len(cells) > 2 else ""
    short = criterion.split(". Kind:")[0]
    statement = plain(said) if said else plain(head)
    return f"{badge} {escape(statement)}<br><small>Here: {escape(measured)}<br>{escape(short)}.</small>"


def plain(tag: Tag) -> str:
    """A tag's words, without the sign that links to a heading."""
    return " ".join(tag.get_text(" ").replace("#", "").split())


def inner(tag: Tag | None, skip: str = "") -> str:
    """A tag's HTML without ids and links, which would stand twice on a page; its words where it is long."""
    if tag is None:
        return ""
    copy = BeautifulSoup(str(tag), "html.parser")
    for left_out in copy.select(", ".join(filter(None, [skip, "a.headerlink", "script"]))):
        left_out.decompose()
    for part in copy.find_all(True):
        part.attrs = {name: value for name, value in part.attrs.items() if name == "class"}
    for link in copy.select("a"):
        link.unwrap()
    whole = "".join(str(part) for part in copy.contents[0].contents) if copy.contents else ""
    return whole if len(whole) < 4 * LONGEST else escape(copy.get_text(" ")[:LONGEST]) + " …"


def with_claims(page: str) -> str:
    """A page with a line below each figure or table that names the claims resting on it, with their verdicts."""
    rows = {}
    for row in re.finditer(r'<tr id="(claim-[^"]+)"(.*?)</tr>', page, re.DOTALL):
        verdict = re.search(r'<span class="verdict .*?</span>[^<]*</span>', row[2], re.DOTALL)
        figure = re.search(r'href="#((?:figure|table)-[\w-]+)"', row[2])
        if verdict and figure and "<th scope" in row[2]:
            rows.setdefault(figure[1], []).append((row[1], verdict[0]))
    if "possym-ledger" in page or not rows:
        return page
    for label, claims in rows.items():
        at = page.find(f'id="{label}"')
        ends = {"figure": "</figure>", "table": "</table>"}[label.partition("-")[0]]
        end = page.find(ends, at)
        if at < 0 or end < 0:
            continue
        links = " ".join(f'<a class="possym-rest" href="#{name}">{badge}</a>' for name, badge in claims)
        word = "Claims" if len(claims) > 1 else "Claim"
        line = f'<p class="possym-rests">{word} resting on this {label.partition("-")[0]}: {links}</p>'
        page = page[: end + len(ends)] + line + page[end + len(ends) :]
    return page


def setup(app) -> dict:
    """Register the handlers; cards are made of pages that are mended already."""
    app.connect("builder-inited", lambda app: add_page_script(app, SCRIPT))
    app.connect("build-finished", write_cards, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
