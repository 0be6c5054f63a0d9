# Studies -> stored results; chapters -> executed notebooks -> site.
#   snakemake book               the site                           -> _build/html/index.html
#   snakemake notebooks          the executed notebooks alone       -> _build/stage/
#   snakemake smoke              every chapter, in the contents or not, at the small preset, computed anew -> _build/smoke/
# Settings: --config preset=paper|smoke build=_build compute=stored|auto|always, and --resources gpu=2
#   stored    chapters show what results/ holds
#   auto      a study that a chapter shows runs first if its result is not stored
#   always    every study that a chapter shows runs first, once in a build folder
# Studies run in the rule study, chapters in notebook; a job that can use a GPU holds one (resource gpu).
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import yaml

include: "_ext/jobs.smk"

import times

PRESET, COMPUTE = config.get("preset", "paper"), config.get("compute", "stored")
if COMPUTE not in ("stored", "auto", "always") or PRESET not in ("paper", "smoke"):
    raise WorkflowError(f"preset={PRESET} compute={COMPUTE}: preset is paper or smoke, compute is stored, auto or always")
STAGE, SITE, MARKS = BUILD / "stage", BUILD / "html", BUILD / "studies" / PRESET
STARTED = time.time()
FURNITURE = [*CODE.glob("_assets/**/*"), *CODE.glob("_ext/*.*"), *Path().glob("references.bib"), *Path().glob("CITATION.cff")]
RESULTS = Path(os.environ.get("POSSYM_RESULTS") or CODE / "results").expanduser().absolute()
os.environ["POSSYM_RESULTS"] = str(RESULTS)
RESULTS = RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS


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
SUMMARIES = [page for page in NOTEBOOKS if not page.startswith("chapters/")]
TEXTS = [page for page in PAGES if page not in NOTEBOOKS]
CHAPTERS = sorted({*NOTEBOOKS, *(str(path.with_suffix("")) for path in Path("chapters").glob("*.md"))} - {*SUMMARIES})
STAGED = expand(f"{STAGE}/{{page}}.ipynb", page=NOTEBOOKS)

if BUILD.name != "_build":
    raise WorkflowError(f"build={BUILD}: the folder's own name must be _build, e.g. build=/tmp/somewhere/_build")


def manifest(result):
    return RESULTS / result.study / result.name / "manifest.json"


def note(manifest):
    """The file that says which files of a stored result are no longer as they were stored: none, most often."""
    return BUILD / "stored" / manifest.parent.parent.name / manifest.parent.name


def mark(name):
    """The file that says that a study has run in this build; what ran for ``always`` will do for ``auto``."""
    always = MARKS / f"{name}.always"
    return always if COMPUTE == "always" or always.exists() else MARKS / f"{name}.{COMPUTE}"


def made(result):
    """What a page waits for: the manifest of a result, or a mark where settings differ from the preset's."""
    return mark(",".join([result.study, *result.settings])) if result.settings else manifest(result)


def shown(page):
    """The results that a page shows: those that this build computes and those that are stored."""
    loads = dependencies.shown(Path(f"{page}.md"), PRESET)
    computed = {made(result) for result in loads if COMPUTE != "stored" and result.name == PRESET}
    stored = [manifest(result) for result in loads if not result.settings]
    return computed | {path for path in stored if path.exists()} | {*map(note, stored)}


LOADS = {result for page in {*CHAPTERS, *NOTEBOOKS} for result in dependencies.shown(Path(f"{page}.md"), PRESET)}
if workflow.is_main_process:
    for path in {*RESULTS.glob("*/*/manifest.json"), *map(manifest, LOADS)}:
        dependencies.note_changes(path, note(path))


def marks(pages):
    """What ``always`` asks for beside the pages: Snakemake makes a missing mark anew only if someone wants it."""
    loads = {result for page in pages if COMPUTE == "always" for result in dependencies.shown(Path(f"{page}.md"), PRESET)}
    return sorted(mark(",".join([result.study, *result.settings])) for result in loads if result.name == PRESET)


def page_needs(found):
    """What a page is made from. Pages outside chapters/ sum up all results with any part of the library."""
    if found.page not in SUMMARIES:
        return sorted(dependencies.chapter_files(CODE, Path(f"{found.page}.md")) | shown(found.page))
    stored = {path for path in RESULTS.glob("*/*/manifest.json") if not path.parent.name.startswith(f"{PRESET}-")}
    return sorted({*CODE.glob("possym/**/*.py"), *stored, *map(note, stored)}.union(*map(shown, NOTEBOOKS)))


def study_needs(found):
    """The modules that a study uses; with ``auto`` their age makes no stored result stale."""
    modules = sorted(dependencies.files(CODE, {f"possym.experiments.{found.study}"}))
    return modules if COMPUTE == "always" else [ancient(module) for module in modules]


def priority(found):
    """Studies go before pages, and the longest first, by what they took when they were stored: none is left over at the end."""
    return 1 + (times.noted(RESULTS, PRESET, found.study, "seconds") or 0)


def page_priority(found):
    """Among pages those go first that run a language model, which take longest."""
    return 0.5 if "hub.load(" in Path(f"{found.page}.md").read_text(encoding="utf-8") else 0


def smoke_notebooks(_):
    if (PRESET, COMPUTE) != ("smoke", "always"):
        raise WorkflowError("smoke: say make smoke, or snakemake smoke --config preset=smoke compute=always")
    return marks(CHAPTERS) + expand(f"{BUILD}/smoke/{{page}}.ipynb", page=CHAPTERS)


# Whoever wants no GPUs says GPUS=0, which makes none visible.
NO_GPUS = workflow.is_main_process and not GPUS and "CUDA_VISIBLE_DEVICES" not in os.environ
if NO_GPUS and (PRESET, COMPUTE) == ("paper", "always") and marks(NOTEBOOKS):
    raise WorkflowError(
        "preset=paper compute=always is for a CUDA device, and nvidia-smi finds none here: say GPUS=0 to compute on the CPU,"
        " however long that takes, or make smoke to compute everything at its small size"
    )


wildcard_constraints:
    page="|".join(CHAPTERS + SUMMARIES) or "none",
    study="[a-z0-9_]+" if COMPUTE != "stored" else "(?!)",


localrules:
    book,
    notebooks,
    smoke,
    result,


rule book:
    default_target: True
    input:
        marks(NOTEBOOKS),
        SITE / "index.html",


rule notebooks:
    input:
        marks(NOTEBOOKS),
        STAGED,


rule smoke:
    input:
        smoke_notebooks,


rule study:
    input:
        study_needs,
    output:
        touch(f"{MARKS}/{{study}}.{COMPUTE}"),
    log:
        f"{BUILD}/logs/studies/{PRESET}/{{study}}.log",
    benchmark:
        f"{BUILD}/benchmarks/studies/{PRESET}/{{study}}.tsv"
    params:
        settings="",
    threads: max(1, workflow.cores // len(GPUS)) if GPUS else 1  # a GPU's share of the cores, for what runs beside it
    resources:
        gpu=min(1, len(GPUS)),
    priority: priority
    shell:
        job(
            "the study {wildcards.study}{params.settings}",
            "-m possym.experiments {wildcards.study} --preset {PRESET:q} --compute {COMPUTE:q}{params.settings}",
        )


use rule study as study_with_settings with:
    output:
        touch(f"{MARKS}/{{study}},{{settings}}.{COMPUTE}"),
    log:
        f"{BUILD}/logs/studies/{PRESET}/{{study}},{{settings}}.log",
    benchmark:
        f"{BUILD}/benchmarks/studies/{PRESET}/{{study}},{{settings}}.tsv"
    params:
        settings=lambda found: f" --set {shlex.join(found.settings.split(','))}",


# A study replaces its stored result by itself, whole; here the result becomes newer than the mark of the study.
rule result:
    input:
        lambda found: mark(found.study),
    output:
        update(f"{RESULTS}/{{study}}/{PRESET}/manifest.json"),
    shell:
        "touch --no-create {output:q}"


rule notebook:
    input:
        "{page}.md",
        CODE / "_ext/execute_chapter.py",
        page_needs,
        lambda found: sorted(Path().glob("sweeps/*/manifest.json")) if found.page in SUMMARIES else [],
    output:
        f"{STAGE}/{{page}}.ipynb",
    log:
        f"{BUILD}/logs/{{page}}.log",
    benchmark:
        f"{BUILD}/benchmarks/stage/{{page}}.tsv"
    params:
        preset=PRESET,
    priority: page_priority
    resources:
        gpu=lambda found: min(1, len(GPUS)) if dependencies.has_parameter(Path(f"{found.page}.md"), "device") else 0,
    shell:
        job("{wildcards.page}", "{input[1]:q} {input[0]:q} {output:q} --preset {params.preset:q} --compute stored")


use rule notebook as smoke_notebook with:
    output:
        f"{BUILD}/smoke/{{page}}.ipynb",
    log:
        f"{BUILD}/logs/smoke/{{page}}.log",
    benchmark:
        f"{BUILD}/benchmarks/smoke/{{page}}.tsv"


rule site:
    input:
        STAGED,
        [f"{page}.md" for page in TEXTS],
        sorted(CODE.glob("possym/**/*.py")) if "api" in TEXTS else [],
        ["_config.yml", "_toc.yml"],
        FURNITURE,
    output:
        SITE / "index.html",
    log:
        f"{BUILD}/logs/site.log",
    benchmark:
        f"{BUILD}/benchmarks/site.tsv"
    params:
        jupyter_book=Path(sys.executable).parent / "jupyter-book",
        python=sys.executable,
        address=os.environ.get("POSSYM_ADDRESS", ""),  # another one makes the pages anew
    run:
        shutil.rmtree(SITE, ignore_errors=True)
        for old in [*STAGE.rglob("*.md"), *STAGE.rglob("*.ipynb")]:  # pages that are gone, or became notebooks
            if str(old) not in STAGED:
                old.unlink()
        for page in TEXTS:
            (STAGE / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"{page}.md", STAGE / f"{page}.md")
        for name in ("_config.yml", "_toc.yml", "references.bib", *filter(os.path.exists, ["CITATION.cff"])):
            shutil.copy(name, STAGE / name)
        for folder in ("_assets", "_ext"):
            shutil.rmtree(STAGE / folder, ignore_errors=True)
            shutil.copytree(CODE / folder, STAGE / folder, ignore=shutil.ignore_patterns("__pycache__"))
        if (STAGE / "api.md").exists():
            shell("{params.python:q} {STAGE:q}/_ext/api_pages.py {STAGE:q}")
        shell(
            "echo 'Building the pages' >&2; {params.jupyter_book:q} build {STAGE:q} --path-output {BUILD.parent:q}"
            " --all -W --keep-going -n > {log:q} 2>&1 || {{ cat {log:q} >&2; exit 1; }}"
        )
        for chapter in Path().glob("chapters/*-profile-your-own-model.md"):  # it links to itself as a notebook
            shell("{params.python:q} {CODE:q}/_ext/hosted_notebook.py {chapter:q} {SITE:q}/profile-your-own-model.ipynb")
        for sweep in Path().glob("sweeps/*/manifest.json"):  # what the page of sweeps links to
            shutil.copytree(sweep.parent, SITE / sweep.parent)


onstart:
    alone(BUILD)
    without_rate_limit()


onsuccess:
    times.report(BUILD, RESULTS, STARTED)


onerror:
    times.report(BUILD, RESULTS, STARTED)
    logs = [log for log in sorted(BUILD.glob("logs/**/*.log")) if log.stat().st_mtime >= STARTED]
    failed = [line for log in logs for line in failures(log, "WARNING:", "ERROR:")]
    print("\n".join(["", "Not everything was built.", *failed]), file=sys.stderr)
