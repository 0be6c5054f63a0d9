"""Sphinx extension: a chapter has one number, that of its file, and its old addresses lead to it.

* The number that Sphinx counts is replaced by the one that begins the file's name, in titles, contents, sections and
  equations; a chapter whose file has no number keeps the counted one.
* A page that had another address has a small page there, which leads on with the reader's place (``#...``) kept.
"""

import re
from pathlib import Path, PurePosixPath

from docutils import nodes
from sphinx.environment.collectors.toctree import TocTreeCollector

NUMBER = re.compile(r"chapters/(\d+)-")
MOVED = {
    "chapters/08b-how-general-is-it": "chapters/09-how-general-is-it",
    "chapters/09-length-generalization": "chapters/10-length-generalization",
    "chapters/09b-length-in-other-models": "chapters/11-length-in-other-models",
    "chapters/10-profiling-real-models": "chapters/13-profiling-real-models",
    "chapters/11-one-hop-prompts": "chapters/14-one-hop-prompts",
    "chapters/12-profile-your-own-model": "chapters/16-profile-your-own-model",
}
FORWARD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>This page has moved</title>
<link rel="canonical" href="{address}"><meta name="robots" content="noindex">
<script>location.replace("{address}" + location.search + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={address}"></noscript></head>
<body><p>This page has moved: <a href="{address}">{address}</a></p></body></html>
"""


def number_by_file(app, env) -> list[str]:
    """Give every chapter the number of its file, and return the pages that have to be written anew."""
    changed = []
    for page, places in env.toc_secnumbers.items():
        if found := NUMBER.match(page):
            number = int(found[1])
            for anchor, counted in places.items():
                if counted and counted[0] != number:
                    places[anchor] = (number, *counted[1:])
                    changed.append(page)
            for numbered in (env.titles[page], *env.tocs[page].findall(nodes.reference)):
                if counted := numbered.get("secnumber"):
                    numbered["secnumber"] = [number, *counted[1:]]
    if not changed:
        return []
    return sorted({*changed, *TocTreeCollector.assign_figure_numbers(None, env)})  # equations carry the chapter's


def lead_on(app, exception) -> None:
    """Write a page at every old address of a page of this book."""
    if exception or app.builder.format != "html":
        return
    for old, new in MOVED.items():
        if new in app.env.found_docs:
            (Path(app.outdir) / f"{old}.html").write_text(
                FORWARD.format(address=f"{PurePosixPath(new).name}.html"), encoding="utf-8"
            )


def setup(app) -> dict:
    """Register the handlers: numbers after those that Sphinx counts, old addresses after all that reads the pages."""
    app.connect("env-get-updated", number_by_file, priority=900)
    app.connect("build-finished", lead_on, priority=950)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
