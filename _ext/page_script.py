"""A script of this folder beside the pages that Sphinx builds."""

from pathlib import Path


def add_page_script(app, name: str) -> None:
    """Put a script of this folder, by its name, beside the pages and have every page run it."""
    static = Path(app.doctreedir) / f"script_{Path(name).stem}"
    static.mkdir(parents=True, exist_ok=True)
    (static / name).write_text((Path(__file__).parent / name).read_text(encoding="utf-8"), encoding="utf-8")
    app.config.html_static_path.append(str(static))
    app.add_js_file(name, loading_method="defer")
