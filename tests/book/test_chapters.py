"""Every chapter runs from top to bottom at its small preset, computed anew."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

pytestmark = pytest.mark.book

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(path.stem for path in ROOT.glob("chapters/*.md"))


@pytest.fixture(scope="session")
def smoke(make, tmp_path_factory):
    """Run all chapters once; the folder of notebooks, and what was said."""
    folder = tmp_path_factory.mktemp("smoke")
    result = make("smoke", f"BUILD={folder / '_build'}", POSSYM_RESULTS=str(folder / "results"))
    return folder / "_build/smoke/chapters", result.stdout + result.stderr


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_runs(chapter, smoke):
    folder, said = smoke
    assert (folder / f"{chapter}.ipynb").exists(), said
    cells = nbformat.read(folder / f"{chapter}.ipynb", as_version=4).cells
    injected = [cell.source for cell in cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert len(injected) == 1, "a chapter needs one cell tagged 'parameters'"
    assert 'preset = "smoke"' in injected[0]
    assert 'compute = "always"' in injected[0]
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    assert all(cell.execution_count for cell in code)
    complaints = [
        output.text for cell in code for output in cell.outputs if output.output_type == "stream"
        and output.name == "stderr" and "Warning" in output.text
    ]  # fmt: skip
    assert complaints == []


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    named = {entry["file"] for part in toc["parts"] for entry in part["chapters"]}
    missing = {chapter for chapter in CHAPTERS if f"chapters/{chapter}" not in named}
    # They show a study whose paper preset is still to be run; once its result is stored they belong in the contents.
    awaited = {"10-profiling-real-models", "12-profile-your-own-model"}
    assert missing == (set() if (ROOT / "results/real_models/paper").exists() else awaited)


def test_chapters_run_in_the_kernel_of_this_environment(tmp_path, book):
    """A kernel of the same name in the user's own folder is not taken, though the user prefers that folder."""
    folder = book(one="import sys\nprint(sys.executable)")
    kernel = tmp_path / "home/.local/share/jupyter/kernels/python3"
    kernel.mkdir(parents=True)
    false = shutil.which("false")
    (kernel / "kernel.json").write_text(f'{{"argv": ["{false}"], "display_name": "other", "language": "python"}}')
    command = [sys.executable, str(ROOT / "_ext/execute_chapter.py"), "chapters/one.md", "one.ipynb"]
    environment = {"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "JUPYTER_PREFER_ENV_PATH": "0"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    printed = nbformat.read(folder / "one.ipynb", as_version=4).cells[-1].outputs[0].text.strip()
    assert Path(printed).parent == Path(sys.executable).parent
