"""How soon a page of the built book shows its first chart and all its charts, and how large it is.

python benchmarks/pages.py _build/html

Each page is opened from disk in a fresh Chromium profile, the network cut off. Milliseconds count from the start of the
navigation until a chart answers to the mouse, and are medians over repeats.
"""

import argparse
import shutil
import statistics
from pathlib import Path

import torch
from common import file_to_write, positive, report
from playwright.sync_api import Browser, sync_playwright

WATCH = """
window.drawn = [];
new MutationObserver(() => {
  const count = document.querySelectorAll("figure.possym-chart[data-drawn=true]").length;
  while (window.drawn.length < count) window.drawn.push(performance.now());
}).observe(document, {subtree: true, attributes: true, attributeFilter: ["data-drawn"]});
"""
FIGURES = "[...document.querySelectorAll('figure.possym-chart')]"
SETTLED = f"{FIGURES}.every(f => ['true', 'failed'].includes(f.dataset.drawn))"


def drawn(browser: Browser, page: Path) -> list[float]:
    """The moments, in ms after the start of the navigation, at which a page's charts were there."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)
    tab = context.new_page()
    tab.add_init_script(WATCH)
    tab.goto(page.resolve().as_uri(), wait_until="load")
    tab.wait_for_function(SETTLED)
    moments = tab.evaluate("window.drawn")
    context.close()
    return moments


def main() -> None:
    """Measure every page that has a chart."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("site", type=Path)
    options.add_argument("--repeats", type=positive, default=3)
    options.add_argument("--output", type=file_to_write, default=Path(__file__).parent / "measured/pages.json")
    arguments = options.parse_args()
    if not (arguments.site / "index.html").exists():
        options.error(f"{str(arguments.site)!r} is no built site: give a folder such as _build/html")
    rows = []
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for page in sorted(arguments.site.rglob("*.html")):
            text = page.read_text(encoding="utf-8")
            if '<figure class="possym-chart"' not in text:
                continue
            runs = [drawn(browser, page) for _ in range(arguments.repeats)]
            rows.append(
                {
                    "page": page.relative_to(arguments.site).as_posix(),
                    "html_bytes": page.stat().st_size,
                    "charts": len(runs[0]),
                    "first_chart_ms": round(statistics.median(run[0] for run in runs)),
                    "all_charts_ms": round(statistics.median(run[-1] for run in runs)),
                }
            )
        browser.close()
    report(rows, arguments.output, torch.device("cpu"), repeats=arguments.repeats)


if __name__ == "__main__":
    main()
