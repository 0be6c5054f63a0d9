"""Sphinx extension of the book: everything a page needs travels with it, nothing is fetched from elsewhere.

* Vega (from vl-convert), MathJax (from django-static-mathjax) and the chart script (from possym) are put beside the
  pages, each loaded only by pages that need it;
* a chart's still picture and its specification become files, so that pages stay small, and the numbers that it draws a
  CSV file beside the picture, to which its caption links;
* where scripts do not run, one line says what formulas and charts are missing;
* links of tables to a page's source, which open it in JupyterLab, lead to the built page;
* scripts of Thebe are dropped, and a page that loads a script or style from the network fails the build.
"""

import base64
import csv
import gc
import hashlib
import io
import json
import posixpath
import re
import shutil
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

from sphinx.errors import ExtensionError

MATHJAX = "mathjax/tex-mml-chtml.js"
WIDE_FORMULAS = "wide_formulas.js"
FONTS = "output/chtml/fonts/woff-v2"
CHART = re.compile(
    r'<figure class="possym-chart">(?P<before>.*?)src="data:image/svg\+xml;base64,(?P<still>[^"]+)"(?P<after>.*?)'
    r'<script type="application/json">(?P<spec>.*?)</script></figure>',
    re.DOTALL,
)
OUTSIDE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")
SOURCE = re.compile(r'(?<=href=")([^":#]+)\.md(?=[#"])')
FORMULA = re.compile(r'<(?:span|div) class="math\b')
NO_SCRIPT = "<noscript><p>{} on this page need JavaScript. Without it you see {}.</p></noscript>"
DATA = ' <a class="possym-csv" href="{}" download aria-label="Numbers of this figure as CSV">CSV</a>'
NOT_FETCHED = re.compile(r"""<link\b[^>]*\brel=["']?(?:canonical|author|license|me)\b""")


def add_assets(app) -> None:
    """Write the scripts into a folder that Sphinx copies to ``_static``."""
    static = Path(app.doctreedir) / "possym_static"
    mathjax = static / "mathjax"
    (mathjax / FONTS).mkdir(parents=True, exist_ok=True)
    installed = Path(str(files("mathjax"))) / "static/mathjax/es5"
    shutil.copy(installed / Path(MATHJAX).name, mathjax)
    shutil.copytree(installed / FONTS, mathjax / FONTS, dirs_exist_ok=True)
    shutil.copy(Path(__file__).parent / WIDE_FORMULAS, static)
    app.config.html_static_path.append(str(static))


def finish_page(app, pagename, templatename, context, doctree) -> None:
    """Add the chart script where there is a chart, move stills to files, drop Thebe."""
    context["script_files"][:] = [script for script in context["script_files"] if not is_thebe(script)]
    context["css_files"][:] = [style for style in context["css_files"] if not is_thebe(style)]
    body = context.get("body") or ""
    if "possym-chart" in body:
        add_chart_scripts(Path(app.outdir) / "_static/charts")
        app.add_css_file("charts/charts.css")
        for script in ("vega.js", "charts.js"):
            app.add_js_file(f"charts/{script}", loading_method="defer")
        body = CHART.sub(partial(store_chart, Path(app.outdir), "../" * pagename.count("/")), body)
    body = SOURCE.sub(partial(built_page, app.env.found_docs, pagename), body)
    if FORMULA.search(body):
        app.add_js_file(WIDE_FORMULAS, loading_method="defer")
    context["body"] = body.replace("</h1>", f"</h1>\n{without_scripts(body)}", 1)


@cache
def add_chart_scripts(folder: Path) -> None:
    """Write what draws charts beside the pages, once, where there is a chart: to put Vega together takes seconds."""
    from possym.charts.renderer import asset, vega_script

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vega.js").write_text(vega_script(), encoding="utf-8")
    for name in ("charts.js", "charts.css"):
        shutil.copy(asset(name), folder)


def without_scripts(body: str) -> str:
    """The line that a page shows where scripts do not run; none where it needs no scripts."""
    what = {"formulas": ("TeX source", FORMULA.search(body)), "charts": ("still pictures", "possym-chart" in body)}
    needing = {name: instead for name, (instead, found) in what.items() if found}
    return NO_SCRIPT.format(" and ".join(needing).capitalize(), " and ".join(needing.values())) if needing else ""


def is_thebe(item) -> bool:
    """Whether a script or style of a page is Thebe's."""
    attributes = getattr(item, "attributes", {})
    return "thebe" in f"{getattr(item, 'filename', item)} {attributes.get('body', '')}"


def built_page(pages: set[str], here: str, address: re.Match) -> str:
    """The address of the page built from a source file, as seen from the page ``here``; others stay as they are."""
    name = posixpath.normpath(posixpath.join(posixpath.dirname(here), address[1]))
    return f"{address[1]}.html" if name in pages else address[0]


def store_chart(site: Path, up: str, chart: re.Match) -> str:
    """Write a chart's still, numbers and specification, named by their content; the figure that points to them."""
    still, spec = base64.b64decode(chart["still"]), chart["spec"]
    picture = f"_images/chart-{hashlib.sha256(still).hexdigest()[:16]}.svg"
    name = hashlib.sha256(spec.encode()).hexdigest()[:16]
    script = f"(window.possymSpecs ??= {{}})[{name!r}] = {spec};\n"
    numbers, before = table(json.loads(spec)), chart["before"]
    table_file = f"_images/data-{name}.csv"
    files = {picture: still, f"_static/charts/specs/{name}.js": script.encode()}
    if numbers and "</figcaption>" in before:
        files[table_file] = numbers.encode()
        before = before.replace("</figcaption>", f"{DATA.format(up + table_file)}</figcaption>", 1)
    for path, content in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    return (
        f'<figure class="possym-chart" data-spec="{name}">{before}src="{up}{picture}" loading="lazy"'
        f"{chart['after']}</figure>"
    )


def table(spec: dict) -> str:
    """The numbers that a chart draws, as CSV; several tables stand below each other, counted by a first column.

    >>> print(table({"datasets": {"a": [{"n": 1}, {"n": 2}]}}), end="")
    n
    1
    2
    >>> print(table({"datasets": {"a": [{"n": 1}], "b": [{"n": None, "at": [3, 4]}]}}), end="")
    table,n,at
    1,1,
    2,,"[3, 4]"
    """
    tables = [rows for rows in spec.get("datasets", {}).values() if rows and isinstance(rows[0], dict)]
    counted = [
        ({"table": count} if len(tables) > 1 else {}) | {name: cell(value) for name, value in row.items()}
        for count, rows in enumerate(tables, 1)
        for row in rows
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in counted for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(counted)
    return text.getvalue() if counted else ""


def cell(value) -> object:
    """A value as a CSV file holds it."""
    return json.dumps(value) if isinstance(value, dict | list) else value


def refuse_outside_addresses(app, exception) -> None:
    """Fail the build when a page would fetch something from the network."""
    if exception or app.builder.format != "html":
        return
    found = []
    for page in sorted(Path(app.outdir).rglob("*.html")):
        for match in OUTSIDE.finditer(page.read_text(encoding="utf-8")):
            if not NOT_FETCHED.match(match[0]):
                found.append(f"{page.relative_to(app.outdir)} loads {match[1]}")
    if found:
        raise ExtensionError("pages must work without a network, but " + "; ".join(found))


def setup(app) -> dict:
    """Register the handlers."""
    gc.set_threshold(200_000, 20, 100)  # looking at the nodes, which live on, is a third of Sphinx's time
    app.config.mathjax_path = MATHJAX
    app.connect("builder-inited", add_assets)
    app.connect("html-page-context", finish_page, priority=900)
    app.connect("build-finished", refuse_outside_addresses)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
