"""Print the built site as one PDF: the pages of the table of contents, stitched together, by Chromium.

python _ext/print_book.py _build/html _build/possym.pdf

Folds are open on paper, charts are their still pictures, and formulas are typeset before the page is printed. Links
between pages lead within the document.
"""

import re
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote

import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import sync_playwright

LEFT_OUT = (
    "script, noscript, .headerlink, dialog, .possym-ledger form, .prev-next-footer, .possym-time, .possym-csv, iframe"
)
PAGE = """<!DOCTYPE html><html lang="en" data-theme="light" data-content_root="./"><head><meta charset="utf-8">
<title>{title}</title>{styles}<style>
@page {{ size: A4; margin: 18mm 16mm 18mm; }}
body {{ background: #fff; }} .bd-article {{ max-width: none; padding: 0; }}
.printed {{ break-before: page; }} .printed:first-of-type {{ break-before: auto; }}
img.possym-still {{ filter: none !important; max-width: 100%; }}
</style><script>window.MathJax = {mathjax}</script><script defer src="_static/mathjax/tex-mml-chtml.js"></script></head>
<body><main class="bd-main"><div class="bd-content"><div class="bd-article-container">{body}</div></div></main></body>
</html>"""
# Text outside formulas is marked as none of MathJax's business, and so each formula has to say that it is.
MATHJAX = '{"options": {"enableMenu": false, "processHtmlClass": "math"}}'
UNSET = """async () => {
  await MathJax.startup.promise;
  return [...document.querySelectorAll(".math")].filter((formula) => !formula.querySelector("mjx-container")).length;
}"""
FOOT = (
    '<div style="font: 8px sans-serif; width: 100%; padding: 0 16mm; display: flex; justify-content: space-between">'
    '<span class="title"></span><span class="pageNumber"></span></div>'
)


def pages(entry: dict):
    """Every page that an entry of the contents names, in order; the reference stays on the screen."""
    for key, value in entry.items():
        if key in ("root", "file"):
            yield value
        elif isinstance(value, list):
            for item in value:
                yield from pages(item)


def stitched(site: Path, names: list[str]) -> str:
    """The articles of pages as one document, whose anchors carry the name of their page."""
    parts, known = [], set(names)
    for name in names:
        soup = BeautifulSoup((site / f"{name}.html").read_text(encoding="utf-8"), "html.parser")
        article = soup.select_one("article.bd-article")
        for part in article.select(LEFT_OUT):
            part.decompose()
        folder = Path(name).parent
        for part in article.find_all(True):
            if part.get("id"):
                part["id"] = f"{name}--{part['id']}"
            for attribute in ("src", "href"):
                if part.get(attribute) and not re.match(r"[a-z]+:", part[attribute]):
                    part[attribute] = within(part[attribute], name, folder, known)
        for fold in article.select("details"):
            fold["open"] = ""
        parts.append(f'<article class="bd-article printed" id="{name}--">{article.decode_contents()}</article>')
    return "".join(parts)


def within(address: str, name: str, folder: Path, known: set[str]) -> str:
    """An address of a page as one of the stitched document."""
    path, _, anchor = unquote(address).partition("#")
    whole = str((Path("/") / folder / path).resolve().relative_to("/")) if path else f"{name}.html"
    page = whole.removesuffix(".html")
    return f"#{page}--{'' if '=' in anchor else anchor}" if page in known else whole


def main() -> int:
    """Stitch, print, and say how many bytes came out."""
    site, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    toc = yaml.safe_load((site.parent / "stage/_toc.yml").read_text(encoding="utf-8"))
    names = [name for name in pages(toc) if not name.startswith("api") and (site / f"{name}.html").exists()]
    first = BeautifulSoup((site / "index.html").read_text(encoding="utf-8"), "html.parser")
    styles = "".join(str(link) for link in first.select('link[rel="stylesheet"]'))
    styles += '<link rel="stylesheet" href="_static/charts/charts.css">'
    title = first.title.get_text()
    whole = PAGE.format(title=title, styles=styles, mathjax=MATHJAX, body=stitched(site, names))
    page = site / "whole.html"
    page.write_text(whole, encoding="utf-8")
    try:
        with sync_playwright() as playwright:
            found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
            tab = browser.new_page()
            tab.goto(page.as_uri(), wait_until="load", timeout=300_000)
            if left := tab.evaluate(UNSET):
                raise SystemExit(f"{left} formulas are not typeset: MathJax in {site}/_static did not run")
            tab.pdf(
                path=target, format="A4", prefer_css_page_size=True, display_header_footer=True, outline=True,
                tagged=True, header_template="<span></span>", footer_template=FOOT,
            )  # fmt: skip
            browser.close()
    finally:
        page.unlink()
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, {len(names)} pages of the site", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
