"""What the tests of the book share: make, a real browser, a book of two pages, the built site."""

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""
PARAMETERS = '```{code-cell} ipython3\n:tags: [parameters]\npreset = "paper"\ncompute = "stored"\n```\n'


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without what an outer make hands down."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))} | extra


def make_command(*words: str) -> list[str]:
    return ["make", "-f", str(ROOT / "Makefile"), f"VENV={sys.prefix}", *words]


@pytest.fixture(scope="session")
def make_words():
    """The words of a call of make with this environment."""
    return make_command


@pytest.fixture(scope="session")
def make():
    """Call make with this environment in a folder; the finished process."""

    def call(*words: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            make_command(*words), cwd=folder, env=clean_environment(**environment), capture_output=True, text=True
        )

    return call


@pytest.fixture
def book(tmp_path):
    """A function that writes a small book: page names and the Python of their one cell."""

    def write(**chapters: str) -> Path:
        (tmp_path / "chapters").mkdir()
        (tmp_path / "index.md").write_text("# A small book\n\n```{tableofcontents}\n```\n")
        (tmp_path / "references.bib").write_text("")
        shutil.copy(ROOT / "_config.yml", tmp_path)
        toc = "format: jb-book\nroot: index\nchapters:\n"
        for name, code in chapters.items():
            cell = f"```{{code-cell}} ipython3\n{code}\n```\n"
            (tmp_path / "chapters" / f"{name}.md").write_text(f"{HEADER}\n# Chapter {name}\n\n{PARAMETERS}\n{cell}")
            toc += f"  - file: chapters/{name}\n"
        (tmp_path / "_toc.yml").write_text(toc)
        return tmp_path

    return write


@pytest.fixture(scope="session")
def site(make, tmp_path_factory) -> Path:
    """The whole book, built by ``make book`` outside the checkout."""
    build = tmp_path_factory.mktemp("site") / "_build"
    result = make("book", f"BUILD={build}")
    assert result.returncode == 0, result.stdout + result.stderr
    return build / "html"


@pytest.fixture(scope="session")
def address(site):
    """The built site on a local server."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.fail("The pages are tested in Chromium: apt-get install chromium, or playwright install chromium")
        instance = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield instance
        instance.close()


@dataclass
class Visit:
    """A page open in the browser, and everything that went wrong on it."""

    page: object
    problems: list[str] = field(default_factory=list)

    def open(self, address: str) -> "Visit":
        self.page.goto(address, wait_until="load")
        return self

    def wait_for_charts(self) -> int:
        """Wait until every chart is drawn or given up; how many there are."""
        figures = "[...document.querySelectorAll('figure.possym-chart')]"
        self.page.wait_for_function(f"{figures}.every(f => ['true', 'failed'].includes(f.dataset.drawn))")
        return self.page.evaluate(f"{figures}.length")


def _complains(line) -> bool:
    """Whether a console line reports a fault (Vega-Lite also notes that a chart in steps fits one way alone)."""
    return line.type in ("error", "warning") and 'Dropping "fit-' not in line.text


@pytest.fixture
def visit(browser):
    """Context manager: a fresh page that may reach this machine alone and notes every problem."""

    @contextlib.contextmanager
    def open_page(width: int = 1200, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        visit = Visit(context.new_page())
        note = visit.problems.append

        def gate(route):
            url = route.request.url
            if url.startswith(("http://127.0.0.1:", "http://localhost:", "file:", "data:", "blob:")):
                route.continue_()
            else:
                note(f"asked the network for {url}")
                route.abort()

        context.route("**/*", gate)
        visit.page.on("response", lambda answer: answer.status >= 400 and note(f"{answer.status} for {answer.url}"))
        visit.page.on("pageerror", lambda error: note(f"script error: {error}"))
        visit.page.on("console", lambda line: _complains(line) and note(f"console {line.type}: {line.text}"))
        yield visit
        context.close()

    return open_page
