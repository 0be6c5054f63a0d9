"""The models in the page: their JavaScript, in a real browser and from disk, against possym in float32."""

import copy
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from possym.ensembles.last_token import attention, last_token_logits, swapped_attention
from possym.experiments.learning_dynamics import trained_model
from possym.experiments.mechanism.interventions import keep_layers
from possym.scores import swap_scores
from possym.tasks import LetterTask, NumberTask
from tests.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 5_000_000  # bytes of both tasks' weights
TASKS = {"number": NumberTask(), "letter": LetterTask()}
SEQUENCES = 500  # a task
RUN = """({task, sequences, off, all}) => {
  const engine = (window.engine ??= possymEngine());
  const model = ((window.models ??= {})[task] ??= engine.unpack(possymModels[task]));
  return sequences.map(words => {
    const tokens = words.map(word => model.ids.get(word)), {logits, seen} = engine.forward(model, tokens, off);
    const layers = all && {own: seen.map(layer => layer.own), relocated: seen.map(layer => [...layer.relocated]),
      scores: seen.map(layer => Object.values(engine.scores(layer)))};
    return {logits: [...logits], ...layers};
  });
}"""


@pytest.fixture(scope="module")
def extension():
    return load_script("possym_model")


@pytest.fixture(scope="module")
def folder(extension, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    names = extension.write(folder)
    scripts = "".join(f"<script src='{name}'></script>" for name in (*names.values(), "model_engine.js"))
    (folder / "engine.html").write_text(f"<!doctype html><meta charset=utf-8><title>Engine</title>{scripts}")
    return folder


@pytest.fixture(scope="module")
def engine(folder, browser):
    page = browser.new_page()
    page.goto((folder / "engine.html").as_uri())
    yield page
    page.close()


@pytest.fixture(scope="module")
def stored(extension):
    study, config = extension.stored()
    return {task: trained_model(study, config, task) for task in TASKS}


def stepped_by_hand(model, steps=46, group=128):
    """The model with each weight on the nearest of the steps that the largest of its group of inputs sets."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name in ("query", "key", "value", "attention_output", "mlp_in", "mlp_output", "head", "embedding"):
            weight = getattr(model, name).double().numpy()
            across = weight if name == "embedding" else weight.swapaxes(-1, -2)  # inputs last
            parts = across.reshape(*across.shape[:-1], -1, group)
            largest = np.float32(np.abs(parts).max(-1, keepdims=True))
            step = (largest / np.float32(steps)).astype(np.float16).astype(np.float64)
            near = (np.rint(np.clip(parts / step, -steps, steps)) * step).reshape(across.shape)
            near = near if name == "embedding" else near.swapaxes(-1, -2)
            getattr(model, name).copy_(torch.from_numpy(near))
    return model


def asked(page, task, tokens, off=(), all_of_it=False):
    """What the browser finds: logits (N, V), and by layer relocated logits, the query's own, and scores."""
    words = TASKS[task].decode(tokens)
    found = page.evaluate(RUN, {"task": task, "sequences": words, "off": list(off), "all": all_of_it})
    return {name: torch.tensor([each[name] for each in found], dtype=torch.float64) for name in found[0]}


def answers(model, tokens, **options):
    with torch.no_grad():
        return model(tokens, **options)[0].double()


def largest(found, expected):
    return (found - expected).abs().max().item()


def test_weights_fit_and_say_where_they_come_from(extension, folder):
    files = sorted(folder.glob("*.*.js"))
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) <= LIMIT
    manifest = json.loads((ROOT / "results/learning_dynamics/paper/manifest.json").read_text(encoding="utf-8"))
    for task, file in zip(sorted(TASKS), files, strict=True):
        model = json.loads(file.read_text(encoding="ascii").partition(" = ")[2].rstrip(";\n"))
        assert model["made"]["commit"] == manifest["commit"][:10]
        assert model["made"]["seed"] == manifest["config"]["seed"]
        assert model["words"] == TASKS[task].vocabulary
        extension.script.cache_clear()
        assert extension.script(task)[1] == file.read_bytes(), "the same weights give other bytes"


@pytest.mark.parametrize("task", TASKS)
def test_answers_and_logits_are_possyms(task, engine, stored):
    """The same answers as the stored model's; from it the logits differ by the steps of the weights, below 0.2 of a
    range of 17, and from possym with the page's own weights by rounding alone."""
    tokens = TASKS[task].sample(SEQUENCES, generator=torch.Generator().manual_seed(7)).tokens
    found = asked(engine, task, tokens)["logits"]
    whole, stepped = (answers(model, tokens) for model in (stored[task], stepped_by_hand(stored[task])))
    print(f"{task}: largest difference {largest(found, stepped):.1e} by rounding, {largest(found, whole):.3f} in all")
    assert (found.argmax(-1) == whole.argmax(-1)).all()
    assert largest(found, stepped) < 2e-5
    assert largest(found, whole) < 0.2


@pytest.mark.parametrize("task", TASKS)
def test_scores_and_relocated_logits_are_possyms(task, engine, stored):
    tokens = TASKS[task].sample(12, length=25, generator=torch.Generator().manual_seed(8)).tokens
    found = asked(engine, task, tokens, all_of_it=True)
    found["relocated"] = found["relocated"].unflatten(-1, (24, 24))
    relocated, own = (
        part[0, :, :, 0].transpose(0, 1) for part in last_token_logits(stepped_by_hand(stored[task]), tokens)
    )
    assert largest(found["relocated"], relocated) < 1e-4
    assert largest(found["own"], own[..., 0]) < 1e-4
    expected = swap_scores(found["relocated"], extra_logits=found["own"].unsqueeze(-1), temperature=1e-4)
    assert largest(found["scores"][..., 0], expected.positional) < 1e-9
    assert largest(found["scores"][..., 1], expected.symbolic) < 1e-9


@pytest.mark.parametrize("task", TASKS)
def test_a_layer_that_is_off_looks_at_itself_alone(task, engine, stored):
    tokens = TASKS[task].sample(8, generator=torch.Generator().manual_seed(9)).tokens
    model, off = stepped_by_hand(stored[task]), [1, 5, 11]
    kept = torch.ones(1, 12, dtype=torch.bool)
    kept[0, off] = False
    expected = answers(model, tokens, attend=keep_layers(model, kept, "self"))
    assert largest(asked(engine, task, tokens, off)["logits"], expected) < 2e-5
    assert largest(asked(engine, task, tokens)["logits"], expected) > 0.1


@pytest.mark.parametrize("task", TASKS)
def test_sequences_are_drawn_and_solved_as_the_task_says(task, engine):
    drawn = engine.evaluate(
        """task => { let state = 11; const engine = possymEngine();
        const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
        return Array.from({length: 400}, (_, i) => {
          const words = engine.draw(task, 1 + i % 4, random), path = engine.solve(task, words);
          const more = Array.from({length: 5}, () => engine.extra(task, path.map(place => words[place]), random));
          return {words, path, more};
        }); }""",
        task,
    )
    rule = TASKS[task]
    ids = {word: index for index, word in enumerate(rule.vocabulary)}
    for hops, found in zip([1, 2, 3, 4] * 100, drawn, strict=True):
        words, path = found["words"], found["path"]
        assert len(words) == 17
        assert len(path) == hops + 1
        assert path[-1] < 8 <= min(path[:-1])
        longer = torch.tensor([[ids[word] for word in found["more"] + words]])
        assert rule.decode(rule.solve(longer)) == [words[path[-1]]]
        if task == "letter":  # nothing off the path points at it
            followed = {letter for place in path for letter in re.findall("[a-h]", words[place])}
            rest = [word for place, word in enumerate(words) if place not in path] + found["more"]
            assert not followed & {letter for word in rest for letter in re.findall("[a-h]", word)}
    reached = {place for found in drawn for place in found["path"]}
    assert reached == set(range(17))


def test_what_is_no_sequence_is_said_in_a_sentence(engine):
    wrong = {
        "number a b c": "must be a number",
        "number a 1 9": "leads to no earlier token",
        "letter a1 b2 c3": "must be two letters",
        "letter a1 b2 a2 ha": "it forks",
        "letter a1 b2 cd": "leads to no earlier token",
        "letter a1 b2 de ed": "leads to no earlier token",  # d, then e, which begins a later one
    }
    said = engine.evaluate(
        """tries => tries.map(([task, ...words]) => {
        try { return possymEngine().solve(task, words).join(); } catch (problem) { return problem.message; } })""",
        [text.split() for text in wrong],
    )
    assert [(text, part) for text, part in zip(said, wrong.values(), strict=True) if part not in text] == []


# ---- The page


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A book of one page, with the theme and the style of the real one, that has a model far below the fold."""
    folder = tmp_path_factory.mktemp("book")
    for name in ("_ext", "_assets"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("_config.yml", "references.bib"):
        shutil.copy(ROOT / name, folder)
    (folder / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    text = "# A page\n\n" + "Some words.\n\n" * 60 + "```{page-model} letter\n:hops: 3\n```\n\n" + "Words.\n\n" * 20
    (folder / "index.md").write_text(text)
    command = [Path(sys.executable).parent / "jupyter-book", "build", folder, "-W", "-q"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return (folder / "_build/html/index.html").as_uri()


def ready(page):
    page.wait_for_selector(".possym-model[data-state=ready]", timeout=60_000)


def opened(v, address):
    """The page with its model at work, which it fetches once a reader comes near."""
    v.open(address)
    assert v.page.locator("script[src*='model/letter.']").count() == 0
    assert v.page.locator(".possym-model tbody tr").count() == 12
    v.page.locator(".possym-model").scroll_into_view_if_needed()
    ready(v.page)
    assert v.page.locator("script[src*='model/letter.']").count() == 1
    assert v.page.locator("script[src*='model/number.']").count() == 0
    return v.page


def cells(page, column):
    return [part or "0" for part in page.locator(f".possym-model tbody td.possym-{column}").all_text_contents()]


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (360, "light"), (1600, "dark")])
def test_a_page_opened_from_disk_is_whole_and_axe_finds_nothing(address, visit, width, scheme):
    with visit(width, color_scheme=scheme, reduced_motion="reduce") as v:
        page = opened(v, address)
        for control in (".possym-model thead button >> nth=2", ".possym-model thead button >> nth=15"):
            page.locator(control).click()
        page.locator(".possym-model tbody button >> nth=4").click()
        ready(page)
        assert v.findings() == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_label("number task").check()
        ready(page)
        page.locator(".possym-model input[type=range]").fill("20")
        ready(page)
        assert v.findings() == []
        for letters in ("* {}", "html { font-size: 125% !important } * { font-family: monospace !important }"):
            page.add_style_tag(content=letters)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Chromium refuses the theme's font preloads from disk, and says so.
        assert [problem for problem in v.problems if "console" not in problem] == []


def test_what_the_page_shows_is_what_possym_finds(address, visit, stored):
    """Attention, scores, answer, a swap and a layer that is off, all by keyboard."""
    model, task = stepped_by_hand(stored["letter"]), TASKS["letter"]
    with visit() as v:
        page = opened(v, address)
        words = page.get_by_label("Sequence").input_value().split()
        tokens = torch.tensor([[task.vocabulary.index(word) for word in words]])
        logits = last_token_logits(model, tokens)
        relocated, own = (part[0, :, 0, 0] for part in logits)
        found = swap_scores(relocated, extra_logits=own)
        for name, expected in (("positional", found.positional), ("symbolic", found.symbolic)):
            assert largest(torch.tensor([float(part) for part in cells(page, name)]), expected) < 0.006
        shown = ".possym-model tbody td > span"

        def weights():
            texts = page.locator(shown).all_text_contents()
            return torch.tensor([float(text or 0) for text in texts]).view(12, 18)[:, 1:] / 100

        assert largest(weights(), attention(relocated, own)) < 0.0051
        assert page.locator(".possym-said strong").first.text_content() == task.decode(task.solve(tokens))[0]
        took = []
        for first, second in ((3, 15), (0, 15), (5, 12)):
            for place in (first, second):
                page.locator(".possym-model thead button").nth(0).focus()
                for _ in range(place):
                    page.keyboard.press("ArrowRight")
                page.keyboard.press("Enter")
            ready(page)
            assert largest(weights(), swapped_attention(relocated, own, first, second)) < 0.0051
            took.append(float(page.locator(".possym-model").get_attribute("data-took")))
            for place in (second, first):
                page.locator(".possym-model thead button").nth(place).press("Enter")
            ready(page)
        print(f"a swap's answer takes {min(took):.0f} ms")
        assert min(took) < 100
        page.locator(".possym-model tbody button").nth(0).focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Space")
        ready(page)
        kept = torch.ones(1, 12, dtype=torch.bool)
        kept[0, 1] = False
        without = answers(model, tokens, attend=keep_layers(model, kept, "self"))
        assert page.locator(".possym-said strong").first.text_content() == task.decode(without.argmax(-1))[0]
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Layer 1"
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
        assert v.problems == [] or all("console" in problem for problem in v.problems)


def test_sequences_are_typed_and_lengthened_until_they_break(address, visit):
    with visit() as v:
        page = opened(v, address)
        typed = page.get_by_label("Sequence")
        said, counted = page.locator(".possym-said"), page.locator(".possym-counted")
        for text, words in (
            ("a1 b2 c3 dd ef fb", "b2"),
            ("a1 b2 zz", "“zz” is no token of the letter task"),
            ("a1 b2 c3 hd", "leads to no earlier token"),
        ):
            typed.fill(text)
            typed.press("Enter")
            page.wait_for_function(
                "words => document.querySelector('.possym-said').textContent.includes(words)", arg=words
            )
        page.get_by_label("number task").check()
        page.get_by_role("button", name="New sequence").click()
        ready(page)
        page.get_by_role("button", name="Lengthen until it breaks").click()
        page.get_by_role("button", name="Stop").wait_for()
        page.get_by_role("button", name="Lengthen until it breaks").wait_for(timeout=120_000)
        assert re.search(r"Right up to \d+ tokens, wrong at \d+\.", counted.text_content())
        assert "Wrong:" in said.text_content()
        assert "before" in page.locator(".possym-model thead").text_content()
        page.get_by_role("button", name="New sequence").click()  # of the same length
        page.locator(".possym-model input[type=range]").fill("0")
        page.get_by_role("button", name="Answer 20 others").click()
        page.wait_for_function(
            "document.querySelector('.possym-counted').textContent.includes('of 20 other')", timeout=60_000
        )
        assert "20 of 20 other sequences of 17 tokens are right." in counted.text_content()


def test_a_page_without_scripts_says_what_is_missing(address, visit):
    with visit(java_script_enabled=False) as v:
        assert "needs JavaScript" in v.open(address).page.locator(".possym-model").text_content()


def test_a_working_copy_for_jupyterlab_has_a_line_in_its_place(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "_ext")
    copies = importlib.import_module("lab_copies")
    for page in ROOT.glob("chapters/*.md"):
        asked, shown = page.read_text(encoding="utf-8").count("{page-model}"), copies.shown(page, {})
        assert shown.count("*The model runs in the built page.*") == asked
        assert "page-model" not in shown
