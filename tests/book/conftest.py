"""What the tests of the book share: make, a real browser, a book of two pages, the built site."""

import contextlib
import functools
import http.server
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import filelock
import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = """---
jupytext: {text_representation: {extension: .md, format_name: myst}}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""
AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
FINDINGS = """() => axe.run(document, {resultTypes: ["violations"], preload: false})
  .then(found => found.violations.flatMap(rule =>
  rule.nodes.map(node => [rule.impact, rule.id, node.html.slice(0, 120)].join(" | "))))"""
PARAMETERS = '```{code-cell} ipython3\n:tags: [parameters]\npreset = "paper"\ncompute = "stored"\n```\n'


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment without what an outer make hands down."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))} | extra


def make_command(*words: str, code: Path = ROOT) -> list[str]:
    return ["make", "-f", str(code / "Makefile"), f"VENV={sys.prefix}", *words]


@pytest.fixture(scope="session")
def make_words():
    """The words of a call of make with this environment."""
    return make_command


@pytest.fixture(scope="session")
def make():
    """Call make with this environment in a folder, with the code of the checkout or of a copy; the finished process."""

    def call(*words: str, folder: Path = ROOT, code: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
        command = make_command(*words, code=code)
        return subprocess.run(command, cwd=folder, env=clean_environment(**environment), capture_output=True, text=True)

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


@pytest.fixture
def own_book(book):
    """As `book`, with a copy of the code beside it, to be changed, and a study of its own."""

    def write(study: str, **chapters: str) -> Path:
        folder = book(**chapters)
        for name in ("possym", "_ext", "_assets", "profiles"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Makefile", "Snakefile", "sweeps.smk", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        (folder / "possym/experiments/tiny.py").write_text(study)
        return folder

    return write


@pytest.fixture(scope="session")
def dependencies():
    """The module that finds what a chapter depends on."""
    spec = importlib.util.spec_from_file_location("dependencies", ROOT / "_ext/dependencies.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def site(make, tmp_path_factory) -> Path:
    """The whole book, where ``make book`` builds it: what was built before and is up to date is not built again."""
    with filelock.FileLock(tmp_path_factory.getbasetemp().parent / "site.lock"):  # of all processes that test
        result = make("book")
    assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / "_build/html"


@pytest.fixture(scope="session")
def pages(site) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if "_static" not in path.parts)


@pytest.fixture(scope="session")
def kinds_of_pages(pages) -> list[str]:
    """All pages, but one alone of those of the reference, a page a module, which are laid out alike."""
    return [page for page in pages if not page.startswith("api/") or page == "api/possym.scores.html"]


@pytest.fixture(scope="session")
def chart_pages(site, pages) -> list[str]:
    found = [page for page in pages if '<figure class="possym-chart"' in (site / page).read_text(encoding="utf-8")]
    assert found, "no page of the book has a chart"
    return found


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
def smoke(make, tmp_path_factory):
    """Every chapter run once at its small preset: the folder of notebooks, that of the results, and what was said."""
    folder = tmp_path_factory.mktemp("smoke")
    result = make("smoke", f"BUILD={folder / '_build'}", POSSYM_RESULTS=str(folder / "results"))
    return folder / "_build/smoke/chapters", folder / "results", result.stdout + result.stderr


@pytest.fixture(scope="session")
def start_lab():
    """Context manager: the address of a JupyterLab that ``make lab`` starts in a folder."""

    @contextlib.contextmanager
    def start(folder: Path, **environment: str):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        flags = f"--no-browser --allow-root --port={port} --ServerApp.port_retries=0 --IdentityProvider.token=secret"
        with (folder / "lab.log").open("w") as log:
            process = subprocess.Popen(
                make_command("lab", f"LAB_FLAGS={flags}"), cwd=folder, stdout=log, stderr=log, start_new_session=True,
                env=clean_environment(HOME=str(folder), **environment),
            )  # fmt: skip
        address = f"http://127.0.0.1:{port}"
        try:
            for _ in range(600):
                assert process.poll() is None, (folder / "lab.log").read_text()
                try:
                    urllib.request.urlopen(f"{address}/api?token=secret").close()
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.1)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()

    return start


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

    def run_in_lab(self, lab: str, chapter: str) -> None:
        """Open a chapter in JupyterLab, beside no other, and run all of it."""
        for kernel in self.page.request.get(f"{lab}/api/kernels?token=secret").json():
            self.page.request.delete(f"{lab}/api/kernels/{kernel['id']}?token=secret")
        self.open(f"{lab}/lab/tree/chapters/{chapter}.md?token=secret&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()

    def wait_for_charts(self) -> int:
        """Wait until every chart is drawn or given up; how many there are."""
        figures = "[...document.querySelectorAll('figure.possym-chart')]"
        self.page.wait_for_function(f"{figures}.every(f => ['true', 'failed'].includes(f.dataset.drawn))")
        return self.page.evaluate(f"{figures}.length")

    def wait_for_formulas(self) -> None:
        """Wait until every formula is typeset."""
        self.page.wait_for_function("!window.MathJax?.startup || MathJax.startup.promise.then(() => true)")

    def findings(self) -> list[str]:
        """What axe-core finds wrong with the page."""
        self.page.evaluate(AXE)
        return self.page.evaluate(FINDINGS)


NOTES = (
    'Dropping "fit-',  # a chart in steps fits one way alone
    "Infinite extent for field",  # a layer has no rows for what a menu shows
    "Log scale domain includes zero: [Infinity,-Infinity]",
)


def _complains(line) -> bool:
    """Whether a console line reports a fault, and not what Vega-Lite merely notes."""
    return line.type in ("error", "warning") and not any(note in line.text for note in NOTES)


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
