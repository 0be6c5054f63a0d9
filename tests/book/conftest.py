"""What the tests of the book share: make, a real browser, a book of two pages, the built site."""

import contextlib
import functools
import http.server
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import filelock
import pytest

from tests.scripts import load_script

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
    return load_script("dependencies")


@pytest.fixture(scope="session")
def site(make, tmp_path_factory) -> Path:
    """The whole book, where ``make book`` builds it: what was built before and is up to date is not built again."""
    folder = tmp_path_factory.getbasetemp().parent
    made = folder / f"site-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    with filelock.FileLock(folder / "site.lock"):  # of all processes that test, of which the first one builds
        if not made.exists():
            result = make("book")
            assert result.returncode == 0, result.stdout + result.stderr
            made.touch()
    return ROOT / "_build/html"


@pytest.fixture(scope="session")
def pages(site) -> list[str]:
    """All pages, but those at old addresses, which lead on to another."""
    moved = {site / f"{old}.html" for old in load_script("possym_numbers").MOVED}
    found = (path for path in site.rglob("*.html") if "_static" not in path.parts and path not in moved)
    return sorted(path.relative_to(site).as_posix() for path in found)


@pytest.fixture(scope="session")
def kinds_of_pages(site, pages) -> list[str]:
    """All pages, but of the reference, a page a module, those alone with a class of element that none before has."""
    found, seen = [], set()
    for page in sorted(pages, key=lambda page: page.startswith("api/")):
        named = re.findall(r'<([a-z]\w*)[^>]*? class="([^"]*)"', (site / page).read_text(encoding="utf-8"))
        classes = {(tag, name) for tag, names in named for name in names.split()}
        if not page.startswith("api/") or classes - seen:
            found.append(page)
        seen |= classes
    assert found[-1].startswith("api/")
    return found


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

        def end_headers(self):
            self.send_header("Cache-Control", "max-age=3600")  # scripts that many pages share are read once
            super().end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def smoke(make, shallow, tmp_path_factory):
    """Every chapter run once at its small preset: the folder of notebooks, that of the results, and what was said."""
    folder = tmp_path_factory.mktemp("smoke")
    stores = {"POSSYM_RESULTS": str(folder / "results"), "POSSYM_CACHE": str(shallow)}
    result = make("smoke", f"BUILD={folder / '_build'}", **stores)
    return folder / "_build/smoke/chapters", folder / "results", result.stdout + result.stderr


@pytest.fixture(scope="session")
def start_lab():
    """Context manager: the address of a JupyterLab that ``make lab`` starts in a folder."""

    @contextlib.contextmanager
    def start(folder: Path, code: Path = ROOT, **environment: str):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        flags = f"--no-browser --allow-root --port={port} --ServerApp.port_retries=0 --IdentityProvider.token=secret"
        with (folder / "lab.log").open("w") as log:
            process = subprocess.Popen(
                make_command("lab", f"LAB_FLAGS={flags}", code=code), cwd=folder, stdout=log, stderr=log,
                start_new_session=True, env=clean_environment(HOME=str(folder), **environment),
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
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:  # told to stop while a kernel starts, a server goes on for ever
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    return start
