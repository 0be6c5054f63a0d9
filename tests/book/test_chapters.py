"""Every chapter runs from top to bottom at its small preset, computed anew."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import pytest
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from possym import results
from possym.experiments import learning_dynamics
from possym.experiments.__main__ import setting, studies
from possym.models import hub, random_llama

pytestmark = pytest.mark.book

ROOT = Path(__file__).resolve().parents[2]
FAILED = '.jp-OutputArea-output[data-mime-type$="error"], .jp-OutputArea-output[data-mime-type$="stderr"]'
DONE = """() => {
  const cells = [...document.querySelectorAll(".jp-CodeCell")];
  const marks = cells.map(cell => cell.querySelector(".jp-InputPrompt")?.textContent ?? "");
  return cells.length > 2 && marks.every(mark => mark === "" || /\\[\\d+\\]/.test(mark));  // "": folded
}"""
SEEN = "document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-MarkdownCell :is(h1, h2)').length"
SHOWN = """() => [...document.querySelectorAll(".jupyter-widgets.widget-html, .jupyter-widgets-output-area")]
  .map(shown => shown.innerHTML).join()"""
CHAPTERS = sorted(path.stem for path in ROOT.glob("chapters/*.md"))
TEXTS = {chapter: (ROOT / f"chapters/{chapter}.md").read_text(encoding="utf-8") for chapter in CHAPTERS}
WITH_CONTROLS = [chapter for chapter, text in TEXTS.items() if "widgets.show(" in text]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_runs(chapter, smoke):
    folder, _, said = smoke
    assert (folder / f"{chapter}.ipynb").exists(), said
    cells = nbformat.read(folder / f"{chapter}.ipynb", as_version=4).cells
    injected = [cell.source for cell in cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert len(injected) == 1, "a chapter needs one cell tagged 'parameters'"
    assert 'preset = "smoke"' in injected[0]
    assert 'compute = "stored"' in injected[0]  # studies run before the chapters, each once
    code = [cell for cell in cells if cell.cell_type == "code" and cell.source.strip()]
    assert all(cell.execution_count for cell in code)
    complaints = [
        output.text for cell in code for output in cell.outputs if output.output_type == "stream"
        and output.name == "stderr" and "Warning" in output.text
    ]  # fmt: skip
    assert complaints == []


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_shows_the_results_that_it_waits_for(chapter, smoke, dependencies):
    shown = (smoke[0] / f"{chapter}.ipynb").read_text(encoding="utf-8")
    waited_for = set()
    for study, preset, settings in dependencies.shown(ROOT / f"chapters/{chapter}.md", "smoke"):
        config = studies()[study].Config.preset_named(preset, **dict(map(setting, settings)))
        waited_for.add(config.hash())
    assert set(re.findall(r"configuration `([0-9a-f]{16})`", shown)) == waited_for


@pytest.fixture(scope="module")
def dynamics(smoke):
    """The configuration and the result of the study whose trained models most chapters of that part show."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(smoke[1]))
        config = learning_dynamics.Config.preset_named("smoke")
        yield config, results.load_or_run(learning_dynamics, config, "stored")


def test_both_tasks_are_learnt_well_above_guessing_a_position(dynamics):
    config, result = dynamics
    accuracy = result.tables["accuracy"]
    end = accuracy[(accuracy["step"] == config.steps) & (accuracy["hops"] == 0)]
    assert set(end["split"]) == {"validation", "test"} and len(end) == 2 * 2 * config.members
    assert (end["accuracy"] > 0.25).all()
    start = accuracy[(accuracy["step"] == 0) & (accuracy["hops"] == 0)]
    assert (start["accuracy"] < 0.125).all() and (start["loss"] > math.log(100)).all()


def test_heads_start_uniform_with_both_scores_near_one_and_move(dynamics):
    config, result = dynamics
    scores = result.tables["scores"]
    start, end = (scores[scores["step"] == step] for step in (0, config.steps))
    assert (start[["positional", "symbolic"]] > 0.99).all(axis=None)
    assert ((start["entropy"] - math.log(17)).abs() < 0.01).all()
    assert (end["entropy"] < math.log(17) - 0.1).all()
    assert (end["positional"] + end["symbolic"] < 1.9).all()


def test_the_variant_with_the_studys_own_query_and_temperature_agrees_with_its_scores(dynamics):
    config, result = dynamics
    keys = ["task", "seed", "step", "layer", "head"]
    variants = result.tables["variants"].query("query == 'last'")
    variants = variants[np.isclose(variants["temperature"], config.temperature)]
    assert variants["step"].nunique() == 3 and variants["step"].max() == config.steps
    both = variants.merge(result.tables["scores"], on=keys)
    assert len(both) == len(variants)
    assert (both["positional_x"] - both["positional_y"]).abs().median() < 0.1


@pytest.fixture(scope="module")
def lab(smoke, shallow, start_lab, tmp_path_factory):
    """A JupyterLab on all chapters at their small preset, with the results that the runs above have stored."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "chapters").mkdir()
    for chapter, text in TEXTS.items():
        small = text.replace('preset = "paper"', 'preset = "smoke"').replace('compute = "stored"', 'compute = "auto"')
        (folder / f"chapters/{chapter}.md").write_text(small, encoding="utf-8")
    stores = {"POSSYM_RESULTS": str(smoke[1]), "POSSYM_CACHE": str(shallow)}
    with start_lab(folder, **stores, OMP_NUM_THREADS="1") as address:
        yield address


def test_chapters_without_controls_open_in_jupyterlab(lab, visit):
    """Beside each other. What their cells do and draw there, they do in `test_chapter_runs` and on the built pages."""
    first, *others = (chapter for chapter in CHAPTERS if chapter not in WITH_CONTROLS)
    with visit() as v:
        v.open_in_lab(lab, first)
        for chapter in [first, *others]:
            v.page.locator(".jp-DirListing-item", has_text=f"{chapter}.md").dblclick()
            v.page.get_by_role("tab", name=f"{chapter}.md", selected=True).wait_for(timeout=60_000)
            texts = [
                cell.source for cell in jupytext.reads(TEXTS[chapter], "md:myst").cells if cell.cell_type == "markdown"
            ]
            headings = re.findall(r"^##? ", "\n".join(texts), re.MULTILINE)
            v.page.wait_for_function(f"{SEEN} === {len(headings)}", timeout=60_000)
            v.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
            assert v.problems == [], chapter


@pytest.mark.parametrize("chapter", WITH_CONTROLS)
def test_chapter_runs_in_jupyterlab_and_its_controls_answer(chapter, lab, visit):
    with visit() as v:
        v.run_in_lab(lab, chapter)
        v.page.wait_for_function(DONE, timeout=240_000)
        v.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=240_000)
        wrong = v.page.locator(FAILED)
        assert wrong.count() == 0, wrong.first.text_content()
        charts = v.page.locator("figure.possym-chart")
        assert charts.count() == v.wait_for_charts()
        assert v.page.locator("figure.possym-chart[data-drawn=true]").count() == charts.count()
        before = v.page.evaluate(SHOWN)
        if (buttons := v.page.locator(".jupyter-widgets button:visible")).count():
            buttons.first.click()
        else:
            v.page.locator(".jupyter-widgets .noUi-handle").first.press("ArrowRight")
        v.page.wait_for_function(f"before => ({SHOWN})() !== before", arg=before, timeout=60_000)
        v.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)
        assert wrong.count() == 0
        assert v.problems == []


def test_every_chapter_is_in_the_table_of_contents():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    named = {entry["file"] for part in toc["parts"] for entry in part["chapters"]}
    assert {chapter for chapter in CHAPTERS if f"chapters/{chapter}" not in named} == set()


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


def test_the_guide_runs_on_a_model_of_a_single_head(tmp_path):
    tokenizer = hub.load(str(random_llama.save(tmp_path / "llama")), device="cpu").tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    for part in (LlamaForCausalLM(config), tokenizer):
        part.save_pretrained(tmp_path / "one-head")
    (chapter,) = (ROOT / "chapters").glob("*-profile-your-own-model.md")
    command = [sys.executable, str(ROOT / "_ext/execute_chapter.py"), str(chapter), str(tmp_path / "done.ipynb")]
    command += ["--preset", "smoke", "-p", "model", str(tmp_path / "one-head")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]


def test_a_chapter_that_fails_says_what_its_own_parameters_cell_changed(book):
    folder = book(one="raise ValueError(seed)")
    chapter = folder / "chapters/one.md"
    chapter.write_text(chapter.read_text().replace('compute = "stored"\n', 'compute = "stored"\nseed = 5\n'))
    command = [sys.executable, str(ROOT / "_ext/execute_chapter.py"), "chapters/one.md", "one.ipynb"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 1
    assert "chapters/one.md: the chapter's own parameters cell says seed = 5\n" in result.stderr


def test_papermill_shows_how_far_a_study_is_and_the_book_does_not(book):
    folder = book(one="from possym.results.progress import tqdm\nprint(sum(tqdm(range(4), desc='updates')))")
    command = [sys.executable, str(ROOT / "_ext/execute_chapter.py"), "chapters/one.md", "one.ipynb"]
    subprocess.run(command, cwd=folder, check=True)
    notebook = nbformat.read(folder / "one.ipynb", as_version=4)
    assert [output.text for output in notebook.cells[-1].outputs] == ["6\n"]
    command = [sys.executable, "-m", "papermill", "--log-output", "one.ipynb", "again.ipynb"]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stderr
    assert "updates: 100%" in said
