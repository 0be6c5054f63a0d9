# Chapters -> executed notebooks -> site.
#   snakemake book               the site, from stored results      -> _build/html/index.html
#   snakemake notebooks          the executed notebooks alone       -> _build/stage/
#   snakemake smoke              every chapter, in the contents or not, at its small preset, computed anew -> _build/smoke/
# Settings: --config preset=paper|smoke compute=stored|auto|always build=_build
import shutil
import sys
from pathlib import Path

import yaml

CODE = Path(workflow.basedir)
BUILD = Path(config.get("build", "_build"))
PRESET, COMPUTE = config.get("preset", "paper"), config.get("compute", "stored")
STAGE, SITE = BUILD / "stage", BUILD / "html"
FURNITURE = [*CODE.glob("_assets/**/*"), *CODE.glob("_ext/*.py"), *Path().glob("references.bib")]


def pages(entry):
    """Every page that an entry of _toc.yml names, without suffix."""
    for key, value in entry.items():
        if key in ("root", "file"):
            yield value
        elif isinstance(value, list):
            for item in value:
                yield from pages(item)


def runs(page):
    """Whether a page is a notebook: its header names a kernel."""
    text = Path(f"{page}.md").read_text(encoding="utf-8")
    return text.startswith("---\n") and "kernelspec:" in text.split("\n---\n")[0]


PAGES = list(pages(yaml.safe_load(Path("_toc.yml").read_text(encoding="utf-8"))))
MISSING = [page for page in PAGES if not Path(f"{page}.md").exists()]
if MISSING:
    raise WorkflowError(f"_toc.yml names pages without a file: {', '.join(MISSING)}")
NOTEBOOKS = [page for page in PAGES if runs(page)]
TEXTS = [page for page in PAGES if page not in NOTEBOOKS]
CHAPTERS = sorted({*NOTEBOOKS, *(str(path.with_suffix("")) for path in Path("chapters").glob("*.md"))})
RESULTS = sorted(Path("results").glob(f"*/{PRESET}/manifest.json"))

if BUILD.name != "_build":
    raise WorkflowError(f"build={BUILD}: the folder's own name must be _build, e.g. build=/tmp/somewhere/_build")


wildcard_constraints:
    page="|".join(CHAPTERS) or "none",


rule book:
    default_target: True
    input:
        SITE / "index.html",


rule notebooks:
    input:
        expand(f"{STAGE}/{{page}}.ipynb", page=NOTEBOOKS),


rule smoke:
    input:
        expand(f"{BUILD}/smoke/{{page}}.ipynb", page=CHAPTERS),


rule notebook:
    input:
        "{page}.md",
        CODE / "_ext/execute_chapter.py",
        sorted(CODE.glob("possym/**/*.py")),
        RESULTS if COMPUTE != "always" else [],
    output:
        f"{STAGE}/{{page}}.ipynb",
    log:
        f"{BUILD}/logs/{{page}}.log",
    params:
        preset=PRESET,
        compute=COMPUTE,
        python=sys.executable,
    shell:
        "echo 'Running {wildcards.page} (preset {params.preset}, compute {params.compute})' >&2;"
        " if OMP_NUM_THREADS={threads} {params.python:q} {input[1]:q} {input[0]:q} {output:q}"
        " --preset {params.preset:q} --compute {params.compute:q} > {log:q} 2>&1;"
        " then tail -n 1 {log:q} >&2; else cat {log:q} >&2; exit 1; fi"


use rule notebook as smoke_notebook with:
    output:
        f"{BUILD}/smoke/{{page}}.ipynb",
    log:
        f"{BUILD}/logs/smoke/{{page}}.log",
    params:
        preset="smoke",
        compute="always",
        python=sys.executable,


rule site:
    input:
        rules.notebooks.input,
        [f"{page}.md" for page in TEXTS],
        ["_config.yml", "_toc.yml"],
        FURNITURE,
    output:
        SITE / "index.html",
    log:
        f"{BUILD}/logs/site.log",
    params:
        jupyter_book=Path(sys.executable).parent / "jupyter-book",
    run:
        shutil.rmtree(SITE, ignore_errors=True)
        for old in [*STAGE.rglob("*.md"), *STAGE.rglob("*.ipynb")]:  # pages that are gone, or became notebooks
            if str(old) not in rules.notebooks.input:
                old.unlink()
        for page in TEXTS:
            (STAGE / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"{page}.md", STAGE / f"{page}.md")
        for name in ("_config.yml", "_toc.yml", "references.bib"):
            shutil.copy(name, STAGE / name)
        for folder in ("_assets", "_ext"):
            shutil.rmtree(STAGE / folder, ignore_errors=True)
            shutil.copytree(CODE / folder, STAGE / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shell(
            "echo 'Building the pages' >&2; {params.jupyter_book:q} build {STAGE:q} --path-output {BUILD.parent:q}"
            " --all -W --keep-going -n > {log:q} 2>&1 || {{ cat {log:q} >&2; exit 1; }}"
        )


onerror:
    marks = (" failed in the cell that begins ", "WARNING:", "ERROR:")
    failed = [line for log in sorted(BUILD.glob("logs/**/*.log")) for line in log.read_text(encoding="utf-8").splitlines()
              if any(mark in line for mark in marks)]
    print("\n".join(["", "Not everything was built.", *failed]), file=sys.stderr)
