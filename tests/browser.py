"""A real browser, one for all tests of a worker, and what goes wrong on the pages that it opens."""

import contextlib
import shutil
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pytest

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# By what axe-core judges colours, of an element and of all around it. Of elements that are alike in these and in their
# classes it judges the first with words of its own: contrast takes it longest, up to five seconds a page.
LOOKS = """color backgroundColor backgroundImage opacity fontSize fontWeight textDecorationLine textShadow display
  filter mixBlendMode""".split()
MARK = """looks => {
  const kinds = new Map(), kindOf = new Map(), seen = new Set();
  for (const element of document.querySelectorAll("*")) {
    const style = getComputedStyle(element), names = element.getAttribute("class")?.replace(/\\brow\\d+\\b/, "");
    const own = [element.localName, names];  // pandas names the rows of a table by their numbers
    const key = [kindOf.get(element.parentElement), ...own, ...looks.map(name => style[name])].join("|");
    if (!kinds.has(key)) kinds.set(key, kinds.size);
    const kind = kinds.get(key);
    kindOf.set(element, kind);
    element.removeAttribute("data-judged");
    const words = [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (seen.has(kind) || !(words || element.matches("input, select, textarea, button"))) continue;
    if (!element.checkVisibility({ checkVisibilityCSS: true })) continue;
    seen.add(kind);
    element.setAttribute("data-judged", "");
  }
  axe.configure({rules: [{id: "color-contrast", selector: "[data-judged]"},
    {id: "link-in-text-block", selector: "a[href][data-judged]"}]});
}"""
# Most elements of a page are marks of charts, and axe-core takes longest to find what lies around an element. Of parts
# of a chart that stand side by side and are alike in all but their numbers and words, only the first stays meanwhile.
TAKE_OUT = """() => {
  const taken = [], telling = /^(role|class|tabindex|aria-(?!label$))/;  // of any other it matters whether it is empty
  const said = ({ name, value }) => name + (telling.test(name) ? value : !!value.trim());
  const alike = whole => {
    const seen = new Set();
    for (const part of [...whole.children]) {
      const key = [part.localName, ...[...part.attributes].map(said), alike(part)].join("|");
      if (seen.has(key)) {
        taken.push([whole, part, part.nextSibling]);
        part.remove();
      }
      seen.add(key);
    }
    return [...seen].join();
  };
  document.querySelectorAll("figure.possym-chart svg.marks").forEach(alike);
  return taken;
}"""
PUT_BACK = "taken => taken.reverse().forEach(([whole, part, next]) => whole.insertBefore(part, next))"
FINDINGS = """({only, without}) => axe.run(document, {resultTypes: ["violations"], preload: false,
  ...only.length && {runOnly: only}, rules: Object.fromEntries(without.map(rule => [rule, {enabled: false}]))})
  .then(found => found.violations.flatMap(rule =>
  rule.nodes.map(node => [rule.impact, rule.id, node.html.slice(0, 120)].join(" | "))))"""


# A chart at another width than it was drawn at is drawn anew; until that is done, both drawings are there.
DRAWN = """figure => {
  const view = figure.querySelector(".possym-view"), width = view.clientWidth;  // 0 where it is hidden
  const fits = () => view.children.length === 1 && (!width || Math.abs(width - figure.drawnWidth) <= 8);
  return figure.dataset.drawn === "failed" || figure.dataset.drawn === "true" && fits();
}"""
# The browser itself finds no other machine. Stopping requests one by one would turn its cache off.
OFFLINE = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
LOCAL = "http://127.0.0.1:", "http://localhost:", "file:", "data:", "blob:"


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if found is None and not Path(playwright.chromium.executable_path).exists():
            pytest.fail("The pages are tested in Chromium: apt-get install chromium, or playwright install chromium")
        args = ["--no-sandbox", "--disable-gpu", f"--host-resolver-rules={OFFLINE}"]
        instance = playwright.chromium.launch(executable_path=found, args=args)
        yield instance
        instance.close()


@dataclass
class Visit:
    """A page open in the browser, and everything that went wrong on it."""

    page: object
    problems: list[str] = field(default_factory=list)

    def open(self, address: str, unfolded: bool = True) -> "Visit":
        """Open a page, with all its folds open unless told otherwise."""
        self.page.goto(address, wait_until="load")
        if unfolded:
            self.page.evaluate(
                "document.querySelectorAll('details.possym-fold').forEach(fold => { fold.open = true; })"
            )
        return self

    def open_in_lab(self, lab: str, chapter: str) -> None:
        """Open a chapter in JupyterLab, beside no other."""
        for kernel in self.page.request.get(f"{lab}/api/kernels?token=secret").json():
            self.page.request.delete(f"{lab}/api/kernels/{kernel['id']}?token=secret")
        self.open(f"{lab}/lab/tree/chapters/{chapter}.md?token=secret&reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
        self.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)

    def run_in_lab(self, lab: str, chapter: str) -> None:
        """Open a chapter in JupyterLab, beside no other, and run all of it."""
        self.open_in_lab(lab, chapter)
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()

    def wait_for_charts(self) -> int:
        """Wait until every chart is drawn, at the width that it has now, or given up; how many there are."""
        figures = "[...document.querySelectorAll('figure.possym-chart')]"
        self.page.wait_for_function(f"{figures}.every({DRAWN})")
        return self.page.evaluate(f"{figures}.length")

    def wait_for_formulas(self) -> None:
        """Wait until every formula is typeset."""
        self.page.wait_for_function("!window.MathJax?.startup || MathJax.startup.promise.then(() => true)")

    def findings(self, *rules: str, without: tuple[str, ...] = ()) -> list[str]:
        """What axe-core finds wrong with the page, by all its rules or by these, but not by those ``without``."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE)
        taken = self.page.evaluate_handle(TAKE_OUT)
        self.page.evaluate(MARK, LOOKS)
        found = self.page.evaluate(FINDINGS, {"only": rules, "without": without})
        taken.evaluate(PUT_BACK)
        return found


NOTES = (
    'Dropping "fit-',  # a chart in steps fits one way alone
    "Infinite extent for field",  # a layer has no rows for what a menu shows
    "Cross reference target was not found",  # JupyterLab, which knows one page: of terms, sources and other chapters
    "Legacy syntax used for link target",
    "did not appear within 10000 ms",  # JupyterLab on a slow machine, of a cell that it scrolls to
    " to activate.",  # JupyterLab on a slow machine, of its plugins
    "Log scale domain includes zero: [Infinity,-Infinity]",
)


def _complains(line) -> bool:
    """Whether a console line reports a fault, and not what Vega-Lite merely notes."""
    return line.type in ("error", "warning") and not any(note in line.text for note in NOTES)


@pytest.fixture
def visit(browser):
    """Context manager: a fresh page that may reach this machine alone and notes every problem."""

    @contextlib.contextmanager
    def open_page(width: int = 1200, reduced_motion: str = "reduce", **options):
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, reduced_motion=reduced_motion, **options)
        visit = Visit(context.new_page())
        note = visit.problems.append

        context.on("request", lambda asked: asked.url.startswith(LOCAL) or note(f"asked the network for {asked.url}"))
        visit.page.on("response", lambda answer: answer.status >= 400 and note(f"{answer.status} for {answer.url}"))
        visit.page.on("pageerror", lambda error: note(f"script error: {error}"))
        visit.page.on("console", lambda line: _complains(line) and note(f"console {line.type}: {line.text}"))
        yield visit
        context.close()

    return open_page
