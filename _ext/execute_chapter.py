"""Run one chapter (Jupytext MyST text) with papermill and write the executed notebook.

python _ext/execute_chapter.py chapters/01-heads.md _build/stage/chapters/01-heads.ipynb --preset smoke --compute always

``-p name value`` sets another parameter; the value is read as YAML, so that ``3`` is a number and ``"3"`` a text. A
name that the chapter's cell of parameters does not have is refused.

The notebook appears only when every cell has run. Otherwise the report on standard error names the chapter and the
cell and shows its output, and the exit status is 1.
"""

import argparse
import ast
import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, never one of the same name elsewhere

import jupytext
import nbformat
import papermill
import yaml
from papermill.exceptions import PapermillExecutionError

from possym.errors import ConfigError

# Not as possym.results.files: its package imports torch and pandas, two seconds that every page would wait for.
FILES = importlib.util.spec_from_file_location("files", Path(__file__).parents[1] / "possym/results/files.py")
FILES.loader.exec_module(files := importlib.util.module_from_spec(FILES))
STANDARD = {"device": "'auto'", "seed": "0"}  # as every chapter's own cell of parameters has them


def execute(chapter: Path, notebook: Path, standard: dict[str, Any], more: dict[str, Any]) -> None:
    """Run ``chapter`` in the current folder and write ``notebook`` in one step.

    A page without a cell of parameters, such as the landing page, is run without the ``standard`` ones too.
    """
    notebook.parent.mkdir(parents=True, exist_ok=True)
    with files.scratch(notebook.parent) as folder:
        source, executed = folder / "source.ipynb", folder / "executed.ipynb"
        jupytext.write(jupytext.read(chapter), source)
        known = parameter_names(source)
        if unknown := more.keys() - (known or ()):
            raise ConfigError(
                f"{chapter}: unknown parameter {', '.join(sorted(unknown))}: known are {', '.join(known or ['none'])}"
            )
        parameters = {} if known is None else standard | more
        papermill.execute_notebook(
            source, executed, parameters, kernel_name="python3", cwd=Path.cwd(), progress_bar=sys.stderr.isatty(),
            stderr_file=sys.stderr if sys.stderr.isatty() else None,
        )  # fmt: skip
        finished = nbformat.read(executed, as_version=4)
        prepare_for_page(finished)
        nbformat.write(finished, executed)
        os.replace(executed, notebook)


def parameter_names(notebook: Path) -> list[str] | None:
    """The names that the cell tagged ``parameters`` sets; None where no cell is."""
    for cell in nbformat.read(notebook, as_version=4).cells:
        if "parameters" in cell.metadata.get("tags", []):
            return [
                ast.unparse(node.targets[0]) for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)
            ]
    return None


def changed_parameters(chapter: Path) -> str:
    """What the chapter's own cell of parameters says that no committed chapter does, such as ``seed = 5``; often ""."""
    for cell in jupytext.read(chapter).cells:
        if "parameters" in cell.metadata.get("tags", []):
            lines = [node for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)]
            own = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in lines}
            return ", ".join(
                f"{name} = {own[name]}" for name in STANDARD if own.get(name, STANDARD[name]) != STANDARD[name]
            )
    return ""


def prepare_for_page(notebook: nbformat.NotebookNode) -> None:
    """Fold parameters and the code of charts and sentences, hide and drop what papermill and widgets left behind."""
    notebook.metadata.pop("papermill", None)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "parameters" in tags:
            tags = sorted({*tags, "hide-input"})
            cell.metadata["mystnb"] = {"code_prompt_show": "Parameters", "code_prompt_hide": "Parameters"}
        if "injected-parameters" in tags:
            tags = sorted({*tags, "remove-cell"})
        if draws_or_tells(cell) and not any(tag.startswith(("hide-", "remove-")) for tag in tags):
            tags = sorted({*tags, "hide-input"})
        cell.metadata = nbformat.from_dict({**cell.metadata, "tags": tags} if tags else dict(cell.metadata))
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = [part for part in cell.outputs if not is_progress(part)]


def is_progress(output: nbformat.NotebookNode) -> bool:
    """Whether an output is a bar of progress, which begins by going back in its line, or the line's end after it."""
    return output.get("name") == "stderr" and (output.text.startswith("\r") or not output.text.strip())


def draws_or_tells(cell: nbformat.NotebookNode) -> bool:
    """Whether all that a cell puts out are charts and sentences, which are read without the call that makes them."""
    shown = [output.get("data", {}) for output in cell.get("outputs", [])]
    return bool(shown) and all(
        "text/markdown" in data or '<figure class="possym-chart"' in "".join(data.get("text/html", ""))
        for data in shown
    )


def report(chapter: Path, error: PapermillExecutionError) -> str:
    """Chapter, cell, its source and the traceback."""
    first, *rest = error.source.strip().splitlines() or [""]
    where = f"{chapter} failed in the cell that begins {first + (' ...' if rest else '')!r}"
    said = [f"{where}: {error.ename}: {error.evalue}"]
    if changed := changed_parameters(chapter):
        said.append(f"{chapter}: the chapter's own parameters cell says {changed}")
    return "\n".join(["", error.source.rstrip(), "", *error.traceback, "", *said])


def main() -> int:
    """Parse the command line, run, report; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapter", type=Path)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--compute", default="stored", choices=["stored", "auto", "always"])
    parser.add_argument("-p", nargs=2, action="append", default=[], dest="parameters", metavar=("name", "value"))
    arguments = parser.parse_args()
    more = {name: yaml.safe_load(value) for name, value in arguments.parameters}
    start = time.perf_counter()
    try:
        execute(arguments.chapter, arguments.notebook, {"preset": arguments.preset, "compute": arguments.compute}, more)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except PapermillExecutionError as error:
        print(report(arguments.chapter, error), file=sys.stderr)
        return 1
    print(f"{arguments.chapter} ran in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
