"""Every chapter has what a chapter must have, and nothing that it must not."""

import ast
import re
import shutil
from pathlib import Path

import jupytext
import pytest

from possym.claims import CLAIMS
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted(ROOT.glob("chapters/*.md"))
STANDARD = {"preset": "paper", "compute": "stored", "device": "auto", "seed": 0}
SCREEN = 42  # lines of code that fit on one

pytestmark = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def cells_of(chapter):
    return jupytext.read(chapter).cells


def tagged(cells, tag):
    return [cell for cell in cells if tag in cell.metadata.get("tags", [])]


def text_of(chapter):
    return "\n".join(cell.source for cell in cells_of(chapter) if cell.cell_type == "markdown")


LEVELS = {"80 %", "90 %", "95 %", "99 %"}  # of intervals, and those at which a definition draws its line
GUIDE = "16-profile-your-own-model"  # shows how to use the library; no paper claims anything about the reader's model


def test_it_is_stored_as_jupytext_writes_it_and_an_edited_word_is_one_changed_line(chapter, tmp_path):
    stored = load_script("chapter_format")
    text = chapter.read_text(encoding="utf-8")
    assert stored.written(chapter) == text, "python _ext/chapter_format.py chapters/*.md"
    shutil.copy(ROOT / "jupytext.toml", tmp_path)
    notebook = jupytext.read(chapter)
    [first, *_] = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    first.source = re.sub("^# ", "# A word more: ", first.source, count=1, flags=re.MULTILINE)
    edited = tmp_path / chapter.name
    jupytext.write(notebook, edited, fmt="md:myst")
    before, after = text.splitlines(), stored.written(edited).splitlines()
    assert len(before) == len(after) and sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_parameters_come_first_with_the_standard_values(chapter):
    cells = cells_of(chapter)
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert tagged(cells, "parameters") == [code[0]]
    found = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(code[0].source).body}
    assert found.items() >= STANDARD.items()


def test_studies_are_loaded_by_the_parameters_and_say_where_they_come_from(chapter):
    cells = cells_of(chapter)
    source = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    # A study that another chapter runs anew may be taken from there.
    how = r'(?:compute|"auto" if compute == "always" else compute)'
    loads = re.findall(rf"results\.load_or_run\(\s*(\w+), (\w+), {how}\s*\)", source)
    assert len(loads) == source.count("load_or_run(")
    assert all(f"{config} = {module}.Config.preset_named(" in source for module, config in loads)
    assert len(tagged(cells, "provenance")) == len(loads)


def test_it_ends_with_what_holds_and_exercises(chapter):
    titles = re.findall(r"^## (.+)$", text_of(chapter), re.MULTILINE)
    if chapter.stem == GUIDE:
        assert titles[-1] == "Exercises" and not any(claim.chapter == chapter.stem for claim in CLAIMS)
        return
    assert titles[-2:] == ["What holds", "Exercises"]
    source = "\n".join(cell.source for cell in cells_of(chapter) if cell.cell_type == "code")
    assert re.search(rf'claims\.what_holds\(\s*"{chapter.stem}"', source)
    assert any(claim.chapter == chapter.stem for claim in CLAIMS)


def test_every_exercise_has_a_folded_solution_that_runs(chapter):
    cells = cells_of(chapter)
    exercises = re.findall(r"```\{admonition\} Exercise (\d+)", text_of(chapter))
    solutions = tagged(cells, "solution")
    assert 2 <= len(exercises) <= 3 and exercises == [str(n + 1) for n in range(len(exercises))]
    assert len(solutions) == len(exercises)
    for solution in solutions:
        assert "hide-cell" in solution.metadata["tags"]
        assert "solution" in solution.metadata["mystnb"]["code_prompt_show"]
        assert [line for line in solution.source.splitlines() if line and not line.startswith("#")]


def test_sections_say_what_to_remember(chapter):
    assert 2 <= text_of(chapter).count("```{admonition} Remember\n:class: tip")


def test_cells_fit_on_a_screen_and_define_no_classes(chapter):
    for cell in cells_of(chapter):
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            folded = {"hide-input", "remove-input", "hide-cell"} & set(cell.metadata.get("tags", []))
            assert len(lines) <= SCREEN and (folded or max(map(len, lines), default=0) <= 130), cell.source
            assert not any(isinstance(node, ast.ClassDef) for node in ast.walk(ast.parse(cell.source)))


def test_charts_come_from_the_library(chapter):
    source = "\n".join(cell.source for cell in cells_of(chapter) if cell.cell_type == "code")
    assert "import altair" not in source and "matplotlib" not in source
    assert "enable()" in source


def test_links_stay_in_the_book(chapter):
    text = chapter.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe)\b", text)
    assert not re.search(r"\]\([^)]*\.md\)", text), "link chapters with {doc}"


def test_the_prose_states_no_measured_number(chapter):
    """Percentages and decimals in prose come from code; what remains are definitions."""
    prose = re.sub(r"\$\$?.*?\$\$?", "", text_of(chapter), flags=re.DOTALL)
    found = set(re.findall(r"\d+(?:\.\d+)? ?%|\b\d\.\d{2,}\b", prose)) - LEVELS
    assert found == set()


def test_no_table_is_unstacked_unsorted(chapter):
    """Before pandas 3.1 ``unstack(sort=False)`` gives some rows the numbers of others."""
    assert not re.search(r"unstack\([^)]*sort=False", chapter.read_text(encoding="utf-8"))
