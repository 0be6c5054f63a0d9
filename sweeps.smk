# One chapter over a grid of its parameters; possym/sweeps.py says what a sweep's file holds.
#   snakemake --snakefile sweeps.smk --config sweep=sweeps/small-models.yaml     -> sweeps/small-models/
# Settings: --config build=_build, and --resources gpu=2
import re
import shlex
import sys
from pathlib import Path

import yaml

include: "_ext/jobs.smk"

from possym import sweeps
from possym.errors import PossymError

try:
    SWEEP = sweeps.read(Path(str(config.get("sweep", "no sweep"))))
    if workflow.is_main_process:
        sweeps.check_name(SWEEP)
except PossymError as error:
    raise WorkflowError(str(error))
if workflow.is_main_process and SWEEP.resources["gpus"] > len(GPUS):
    raise WorkflowError(f"each point asks for {SWEEP.resources['gpus']} GPUs of {len(GPUS)}: say gpus: 0 to compute on the CPU")
WORK = BUILD / "sweeps" / SWEEP.name
NOTEBOOKS = [WORK / f"{point}.ipynb" for point in SWEEP.points]
SHOWN, JOINED = sweeps.FOLDER / SWEEP.name / "manifest.json", WORK / "joined"


def flags(found):
    """The parameters of a point as words of a command line."""
    point = {"compute": "auto", **SWEEP.points[found.point]}
    written = {name: yaml.safe_dump(value, default_flow_style=True, width=10**6) for name, value in point.items()}
    return " ".join(f"-p {name} {shlex.quote(text)}" for name, text in written.items())


wildcard_constraints:
    point="|".join(map(re.escape, SWEEP.points)),


localrules:
    sweep,
    gallery,


rule gallery:
    input:
        NOTEBOOKS,
    output:
        SHOWN,
        touch(JOINED),
    params:
        points=SWEEP.points,
        about=SWEEP.about,
    run:
        from possym.sweeps import gallery

        gallery.store(SWEEP, WORK)


rule sweep:
    default_target: True
    input:
        rules.gallery.output,
        NOTEBOOKS,


rule prepare:
    input:
        SWEEP.prepare or [],
    output:
        touch(WORK / "prepared"),
    log:
        WORK / "logs/prepare.log",
    shell:
        "echo 'Preparing: {input}' >&2; {PYTHON:q} {input:q} > {log:q} 2>&1 || {{ cat {log:q} >&2; exit 1; }}"


rule point:
    input:
        SWEEP.chapter,
        CODE / "_ext/execute_chapter.py",
        sorted(dependencies.chapter_files(CODE, SWEEP.chapter)),
        rules.prepare.output if SWEEP.prepare else [],
    output:
        f"{WORK}/{{point}}.ipynb",
    log:
        f"{WORK}/logs/{{point}}.log",
    benchmark:
        f"{WORK}/{{point}}.tsv"
    threads: SWEEP.resources["cores"]
    resources:
        gpu=SWEEP.resources["gpus"],
        mem=SWEEP.resources["memory"],
    params:
        flags=flags,
    shell:
        job("{wildcards.point}", "{input[1]:q} {input[0]:q} {output:q} {params.flags}")


onstart:
    alone(WORK)
    without_rate_limit()


onerror:
    failed = {}
    for point in SWEEP.points:
        log = WORK / f"logs/{point}.log"
        if not (WORK / f"{point}.ipynb").exists():
            lines = failures(log) if log.exists() else []
            failed[point] = lines[-1] if lines else "not run to its end"
    if len(failed) < len(SWEEP.points):
        from possym.sweeps import gallery

        gallery.store(SWEEP, WORK, failed)
        JOINED.unlink(missing_ok=True)  # what is joined in part is joined again, even if no point is left to run
    print("\n".join(["", "Not every point was run.", *(f"{point}: {line}" for point, line in failed.items())]), file=sys.stderr)
