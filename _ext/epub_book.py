"""Put the built site into one EPUB: the pages of the table of contents, without the reference and without scripts.

python _ext/epub_book.py _build/html _build/possym.epub

A page is a file of its own, folds are open, and a chart is its still picture. Formulas are MathML, which MathJax writes
in Chromium and readers of EPUB 3 show. Links within the book stay links; those to what it leaves out become text. The
same site makes the same file, byte by byte.
"""

import re
import shutil
import sys
import uuid
import zipfile
from html import escape
from pathlib import Path
from posixpath import join, normpath
from urllib.parse import unquote

import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright
from print_book import LEFT_OUT, UNSET, pages

import possym

NOT_IN_A_BOOK = f"{LEFT_OUT}, style, link, button, input, select, .possym-model, .possym-data"
LAYOUT = re.compile("on|data-|align$|border$")  # attributes that EPUB does not know
HTML = "http://www.w3.org/1999/xhtml"
OPS = "http://www.idpf.org/2007/ops"
MATHML = """<!DOCTYPE html><html><head><meta charset="utf-8"><script>
window.MathJax = {
  options: { enableMenu: false, processHtmlClass: "math", renderActions: { assistiveMml: [], typeset: [150,
    (page) => { for (const math of page.math) MathJax.config.asMathML(math); },
    (math) => MathJax.config.asMathML(math)] } },
  asMathML(math) {
    math.typesetRoot = document.createElement("mjx-container");
    math.typesetRoot.innerHTML = MathJax.startup.toMML(math.root);
  },
};
</script><script defer src="_static/mathjax/tex-mml-chtml.js"></script></head><body>"""
SERIALIZE = """() => {
  document.querySelectorAll("mjx-container").forEach((formula) => formula.replaceWith(...formula.childNodes));
  const text = new XMLSerializer();
  return [...document.querySelectorAll("body > section")].map((page) => text.serializeToString(page));
}"""
PAGE = f"""<?xml version="1.0" encoding="utf-8"?>
<html xmlns="{HTML}" xmlns:epub="{OPS}" lang="en" xml:lang="en"><head><title>{{title}}</title>
<link rel="stylesheet" href="{{up}}book.css"/></head><body>{{body}}</body></html>
"""
STYLE = """body { line-height: 1.45; } img { max-width: 100%; height: auto; } figure { margin: 1em 0; }
figcaption strong, figcaption span { display: block; } figcaption b + strong { display: inline; }
pre { white-space: pre-wrap; font-size: 0.85em; } table { border-collapse: collapse; font-size: 0.85em; }
th, td { padding: 0.15em 0.5em; text-align: left; vertical-align: top; border-bottom: 1px solid #bbb; }
.admonition { border-left: 3px solid #888; padding-left: 0.8em; } .admonition-title { font-weight: bold; }
.eqno { float: right; }
"""
CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="book/content.opf" media-type="application/oebps-package+xml"/></rootfiles></container>
"""
PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">urn:uuid:{id}</dc:identifier>
<dc:title>{title}</dc:title><dc:language>en</dc:language>{people}<dc:date>{date}</dc:date>
<meta property="dcterms:modified">{date}T00:00:00Z</meta></metadata>
<manifest><item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
<item id="style" href="book.css" media-type="text/css"/>
{items}</manifest><spine>{spine}</spine></package>
"""
KINDS = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg"}


def prepared(site: Path, name: str, known: set[str], pictures: set[str]) -> str:
    """The article of a page as a section without what paper lacks; its pictures are added to ``pictures``."""
    soup = BeautifulSoup((site / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
    article = soup.select_one("article.bd-article")
    for part in article.select(NOT_IN_A_BOOK):
        part.decompose()
    here = name.rpartition("/")[0]
    for picture in article.select("img[src]"):
        address = normpath(join(here, unquote(picture["src"])))
        if picture["src"].startswith("data:") or not (site / address).exists():
            picture.decompose()
            continue
        pictures.add(address)
        del picture["loading"]
    for link in article.select("a[href]"):
        path, _, anchor = unquote(link["href"]).partition("#")
        page = normpath(join(here, path)).removesuffix(".html") if path else name
        if re.match("https?:|mailto:", link["href"]):
            continue
        if page not in known or "=" in anchor:
            del link["href"]
        elif path:
            link["href"] = f"{path.removesuffix('.html')}.xhtml{f'#{anchor}' if anchor else ''}"
    for fold in article.select("details"):
        fold["open"] = ""
    for part in article.find_all(True):
        part.attrs = {name: value for name, value in part.attrs.items() if not LAYOUT.match(name)}
    return f"<section>{article.decode_contents()}</section>"


def as_xhtml(site: Path, sections: list[str]) -> list[str]:
    """Sections of HTML as XHTML with their formulas in MathML, by Chromium."""
    page = site / "whole.html"
    page.write_text(f"{MATHML}{''.join(sections)}</body></html>", encoding="utf-8")
    try:
        with sync_playwright() as playwright:
            found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
            tab = browser.new_page()
            tab.set_default_timeout(300_000)
            tab.goto(page.as_uri(), wait_until="load", timeout=300_000)
            if left := tab.evaluate(UNSET):
                raise SystemExit(f"{left} formulas are not typeset: MathJax in {site}/_static did not run")
            written = tab.evaluate(SERIALIZE)
            browser.close()
    finally:
        page.unlink()
    return written


def titles(site: Path, names: list[str]) -> dict[str, str]:
    """The title of each page, with its number."""
    found = {}
    for name in names:
        soup = BeautifulSoup((site / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
        head = soup.select_one("article.bd-article h1")
        for sign in head.select(".headerlink"):
            sign.decompose()
        found[name] = " ".join(head.get_text().split())
    return found


def package(site: Path, names: list[str], book: str, citation: dict) -> dict[str, str | bytes]:
    """The files of an EPUB by their names."""
    known, pictures, named = set(names), set(), titles(site, names)
    written = as_xhtml(site, [prepared(site, name, known, pictures) for name in names])
    files: dict[str, str | bytes] = {"META-INF/container.xml": CONTAINER, "book/book.css": STYLE}
    items, spine = [], []
    for number, (name, body) in enumerate(zip(names, written, strict=True)):
        title, up = escape(named[name]), "../" * name.count("/")
        files[f"book/{name}.xhtml"] = PAGE.format(title=title, up=up, body=body)
        holds = " ".join(kind for kind, tag in (("mathml", "<math"), ("svg", "<svg")) if tag in body)
        holds = f' properties="{holds}"' if holds else ""
        items.append(f'<item id="p{number}" href="{name}.xhtml" media-type="application/xhtml+xml"{holds}/>\n')
        spine.append(f'<itemref idref="p{number}"/>')
    for number, picture in enumerate(sorted(pictures)):
        files[f"book/{picture}"] = (site / picture).read_bytes()
        items.append(f'<item id="i{number}" href="{picture}" media-type="{KINDS[Path(picture).suffix]}"/>\n')
    entries = "".join(f'<li><a href="{name}.xhtml">{escape(named[name])}</a></li>' for name in names)
    nav = f'<nav epub:type="toc"><h1>Contents</h1><ol>{entries}</ol></nav>'
    files["book/nav.xhtml"] = PAGE.format(title="Contents", up="", body=nav)
    authors = [a.get("name") or f"{a['given-names']} {a['family-names']}" for a in citation["authors"]]
    people = "".join(f"<dc:creator>{escape(author)}</dc:creator>" for author in authors)
    files["book/content.opf"] = PACKAGE.format(
        id=uuid.uuid5(uuid.NAMESPACE_URL, f"{book} {possym.__version__}"),
        title=escape(book), people=people, date=possym.__released__, items="".join(items),
        spine="".join(spine),
    )  # fmt: skip
    return files


def write(files: dict[str, str | bytes], target: Path) -> None:
    """Write the archive whole or not at all; its first file says what it is, unpacked, as EPUB wants it."""
    unfinished = target.with_name(f".unfinished-{target.name}")
    date = (*map(int, possym.__released__.split("-")), 0, 0, 0)
    with zipfile.ZipFile(unfinished, "w") as archive:
        archive.writestr(zipfile.ZipInfo("mimetype", date), "application/epub+zip")
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, date), content, zipfile.ZIP_DEFLATED)
    unfinished.replace(target)


def main() -> int:
    """Write the book, and say how many bytes came out."""
    site, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    stage = site.parent / "stage"
    toc, config = (yaml.safe_load((stage / name).read_text(encoding="utf-8")) for name in ("_toc.yml", "_config.yml"))
    names = [name for name in pages(toc) if not name.startswith("api") and (site / f"{name}.html").exists()]
    citation = yaml.safe_load((stage / "CITATION.cff").read_text(encoding="utf-8"))
    write(package(site, names, config["title"], citation), target)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, {len(names)} pages of the site", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
