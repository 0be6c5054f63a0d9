"""Sphinx extension: what a page needs to be found, shared and cited.

* search that puts what explains a word before the names in the library that contain it;
* a description on every page and, where the site's address is known, a social card, which no one finds by a relative
  address; it is drawn around ``_assets/kinds_over_training.svg``;
* a citation button that shows ``CITATION.cff`` as BibTeX;
* a sitemap, where ``POSSYM_ADDRESS`` or ``html_baseurl`` says where the site will live;
* a foot that says version, commit, date, licence and, where ``possym_source`` gives its address, the source;
* ``llms.txt``: the pages with what each is about, for programs that read.
"""

import os
import re
import subprocess
from html import escape
from pathlib import Path

import vl_convert
import yaml
from docutils import nodes

import possym

CARD = "card.png"
CITE = "document.getElementById('cite').showModal()"
COPY = "navigator.clipboard.writeText(this.closest('dialog').querySelector('pre').textContent)"
KEEP_KEYS = "event.stopPropagation()"  # Sphinx's search takes Escape from every page, and the dialog would stay open
CARD_DRAWING = """<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="630" viewBox="0 0 1200 630">
<rect width="1200" height="630" fill="white"/><rect width="600" height="14" fill="#006ba8"/>
<rect x="600" width="600" height="14" fill="#e06608"/>
<g font-family="sans-serif" fill="#16181c"><text x="60" y="122" font-size="54" font-weight="600">{title}</text>
<text x="60" y="186" font-size="31">Does a head look at a place or at a content? Two papers,</text>
<text x="60" y="228" font-size="31">re-run claim by claim in front of the reader.</text></g>
<svg x="40" y="285" width="1120" height="310" viewBox="{size}">{picture}</svg>"""
LENGTH = 200  # characters of a description


def draw_card(app) -> None:
    """Draw the social card into a folder that Sphinx copies to ``_static``."""
    picture = (Path(app.srcdir) / "_assets/kinds_over_training.svg").read_text(encoding="utf-8")
    size, opening = re.search(r'viewBox="([^"]+)"', picture)[1], picture.index(">") + 1
    drawing = CARD_DRAWING.format(title=escape(app.config.html_title), size=size, picture=picture[opening:])
    static = Path(app.doctreedir) / "possym_sharing"
    static.mkdir(parents=True, exist_ok=True)
    (static / CARD).write_bytes(vl_convert.svg_to_png(drawing))
    app.config.html_static_path.append(str(static))
    app.possym_addresses, app.possym_pages = [], {}


def add_foot(app, config) -> None:
    """Take the site's address from the environment, and say in the foot of every page which version it is of."""
    config.html_baseurl = os.environ.get("POSSYM_ADDRESS") or config.html_baseurl
    made = f"Version {possym.__version__}{commit(Path(app.srcdir))}"
    parts = [made, "MIT licence", "made with possym"]
    if config.possym_source:
        parts.append(f'<a href="{escape(config.possym_source)}">source</a>')
    config.html_theme_options["extra_footer"] = f"<p>{' · '.join(parts)}</p>"


def commit(folder: Path) -> str:
    """The commit of a checkout and its date, or nothing where there is no git."""
    command = ["git", "log", "-1", "--format=, commit %h of %ad", "--date=format:%-d %B %Y"]
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip("\n")
    except (OSError, subprocess.CalledProcessError):
        return ""


def finish_page(app, pagename, templatename, context, doctree) -> None:
    """Add description, card and citation button, and note the page's address."""
    base = app.config.html_baseurl.rstrip("/")
    title = re.sub("<[^>]+>", "", context.get("title") or app.config.html_title)
    tags = {"og:type": "article", "og:title": title, "og:site_name": app.config.html_title}
    about = description(doctree)
    if about:
        app.possym_pages[pagename] = (title, about)
        tags |= {"description": about, "og:description": about}
    if base:
        tags |= {"og:image": f"{base}/_static/{CARD}", "twitter:card": "summary_large_image"}
        tags["og:image:alt"] = "Heads of twelve layers turn positional or symbolic while two models learn"
        tags["og:url"] = f"{base}/{pagename}.html"
        app.possym_addresses.append(tags["og:url"])
    context["metatags"] = context.get("metatags", "") + "".join(
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" content="{escape(content)}">\n'
        for name, content in tags.items()
    )
    citation = Path(app.srcdir) / "CITATION.cff"
    if citation.exists() and "header_buttons" in context:
        context["header_buttons"].append(
            {"type": "javascript", "javascript": CITE, "tooltip": "Cite this book", "icon": "fas fa-quote-right",
             "label": "cite-button"}
        )  # fmt: skip
        context["body"] = (context.get("body") or "") + dialog(yaml.safe_load(citation.read_text(encoding="utf-8")))


def description(doctree) -> str:
    """The first sentences of a page, or nothing for pages without text."""
    for paragraph in doctree.findall(nodes.paragraph) if doctree is not None else ():
        text = " ".join(paragraph.astext().split())
        if isinstance(paragraph.parent, nodes.section) and len(text) > 60:
            return text if len(text) <= LENGTH else text[:LENGTH].rsplit(" ", 1)[0] + " …"
    return ""


def dialog(citation: dict) -> str:
    """The citation as a dialog that the button opens."""
    entries = "\n\n".join(bibtex(entry) for entry in (citation, *citation.get("references", [])))
    return (
        f'<dialog id="cite" aria-labelledby="cite-title" onkeydown="{KEEP_KEYS}">'
        f'<h2 id="cite-title">Cite this book</h2><p>{escape(citation["message"])}</p>'
        f'<pre tabindex="0">{escape(entries)}</pre>'
        f'<form method="dialog"><button type="button" onclick="{COPY}">Copy</button> <button>Close</button></form>'
        "</dialog>"
    )


def bibtex(entry: dict) -> str:
    """One work of a CITATION.cff as a BibTeX entry.

    >>> print(bibtex({"title": "A: b", "authors": [{"family-names": "Roe"}], "year": 2026, "type": "article"}))
    @misc{roe2026a,
      title = {{A: b}},
      author = {Roe},
      year = {2026},
    }
    """
    people = [
        " ".join(filter(None, (author.get("given-names"), f"{{{name}}}" if " " in name else name)))
        for author in entry["authors"]
        for name in [author.get("family-names") or author["name"]]
    ]
    year = str(entry.get("year") or str(entry.get("date-released", ""))[:4])
    fields = {"title": f"{{{entry['title']}}}", "author": " and ".join(people), "year": year}
    fields |= {"version": str(entry.get("version", "")), "note": entry.get("notes", "")}
    for identifier in entry.get("identifiers", []):
        if identifier["value"].startswith("arXiv:"):
            fields |= {"eprint": identifier["value"].removeprefix("arXiv:"), "archiveprefix": "arXiv"}
    word = entry["title"].split()[0]
    first = entry["authors"][0].get("family-names") or word
    kind = "software" if entry["type"] == "software" else "misc"
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    key = re.sub("[^a-z0-9]", "", f"{first}{year}{word if word != first else ''}".lower())
    return f"@{kind}{{{key},\n{lines}}}"


def write_sitemap(app, exception) -> None:
    """Write ``sitemap.xml``; the protocol wants whole addresses, so only where the site's own is known."""
    if exception or not app.possym_addresses:
        return
    entries = "".join(f"<url><loc>{escape(address)}</loc></url>\n" for address in sorted(app.possym_addresses))
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n'
    (Path(app.outdir) / "sitemap.xml").write_text(text, encoding="utf-8")


def write_llms(app, exception) -> None:
    """Write ``llms.txt`` in the form of llmstxt.org: title, summary, and the pages in the order of the book."""
    if exception or app.builder.format != "html":
        return
    base = f"{app.config.html_baseurl.rstrip('/')}/" if app.config.html_baseurl else ""
    pages = [page for page in app.env.toctree_includes.get("index", []) if page in app.possym_pages]
    entries = [
        f"- [{title}]({base}{page}.html): {about}" for page in pages for title, about in [app.possym_pages[page]]
    ]
    about = app.possym_pages.get("index", ("", ""))[1]
    text = [f"# {app.config.html_title}", "", f"> {about}", "", "## Pages", "", *entries, ""]
    (Path(app.outdir) / "llms.txt").write_text("\n".join(text), encoding="utf-8")


def setup(app) -> dict:
    """Register the handlers."""
    app.add_config_value("possym_source", "", "html")
    app.connect("config-inited", add_foot)
    app.connect("build-finished", write_llms)
    app.config.html_search_scorer = str(Path(__file__).with_name("search_order.js"))
    app.connect("builder-inited", draw_card)
    app.connect("html-page-context", finish_page, priority=901)
    app.connect("build-finished", write_sitemap)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
