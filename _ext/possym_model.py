"""Sphinx extension: the trained models in the page, ``{page-model} number`` or ``{page-model} letter``.

* the directive leaves a place that ``model_page.js`` fills, and says what is missing where scripts do not run;
* a page that has one loads the scripts; weights are a script of their own a task, which the page fetches once a reader
  comes near it (a page opened from disk may load scripts, and nothing else);
* a weight is one of 93 printable characters: of each 128 inputs of an output, the largest is 46 steps from zero. What
  needs more, norms, biases and steps, stays in float16, as the study stored it.
"""

import base64
import hashlib
import json
import shutil
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from docutils.parsers.rst import Directive, directives

if TYPE_CHECKING:
    from torch import Tensor

    from possym.ensembles.gptj import GPTJEnsemble
    from possym.experiments import learning_dynamics
    from possym.results import Study

TASKS = "number", "letter"
LEVELS, GROUP = 46, 128
DIGITS = "".join(chr(code) for code in range(32, 127) if chr(code) not in '"\\')
SCRIPTS = "model_engine.js", "model_page.js"
STYLE = "model_page.css"
PLACE = (
    '<figure class="possym-model" {data}><figcaption><strong>The trained model, in this page</strong></figcaption>'
    "<noscript><p>The model runs in your browser, which needs JavaScript.</p></noscript></figure>"
)
LENGTHS = (17, 640)


@cache
def stored() -> "tuple[Study, learning_dynamics.Config]":
    """The study of which the models are, as it is stored."""
    from possym.experiments import learning_dynamics  # a book without a model waits for no torch
    from possym.results import load_or_run

    config = learning_dynamics.Config.preset_named("paper")
    return load_or_run(learning_dynamics, config, compute="stored"), config


def stepped(weight: "Tensor") -> "tuple[str, Tensor]":
    """The characters of a weight (outputs, inputs), row by row, and the float16 steps of its groups of inputs.

    >>> import torch
    >>> stepped(torch.tensor([[0.5, -1.0, 0.25, 0.0]]).repeat(1, 32))[0][:4]
    'g ZO'
    """
    groups = weight.reshape(-1, GROUP)
    steps = (groups.abs().amax(1, keepdim=True) / LEVELS).half()
    counts = (groups / steps.float().clamp(min=1e-8)).round().clamp(-LEVELS, LEVELS).int() + LEVELS
    return "".join(DIGITS[count] for count in counts.flatten().tolist()), steps.flatten()


def packed(model: "GPTJEnsemble", task: str, words: list[str], made: dict) -> dict:
    """A model as ``model_engine.js`` reads it: weights in the order in which its function ``unpack`` asks for them."""
    import torch

    config = model.config
    weights = {name: weight.detach()[0] for name, weight in model.named_parameters()}
    halves, levels = [], []

    def vectors(*names: str, layer: int | None = None) -> None:
        halves.extend(weights[name] if layer is None else weights[name][layer] for name in names)

    def matrix(weight: "Tensor") -> None:
        characters, steps = stepped(weight)
        levels.append(characters)
        halves.append(steps)

    vectors("final_norm_gain", "final_norm_bias", "head_bias")
    matrix(weights["embedding"])
    matrix(weights["head"].mT)
    for layer in range(config.layers):
        vectors("norm_gain", "norm_bias", "mlp_in_bias", "mlp_output_bias", layer=layer)
        for name in ("query", "key", "value", "attention_output", "mlp_in", "mlp_output"):
            matrix(weights[name][layer].mT)
    numbers = torch.cat([part.half().flatten() for part in halves]).numpy().astype("<f2").tobytes()
    sizes = {"vocabulary": config.vocabulary_size, "layers": config.layers, "width": config.width}
    return {
        "task": task,
        "made": made,
        "sizes": sizes | {"inner": config.mlp_ratio * config.width},
        "words": words,
        "halves": base64.b64encode(numbers).decode(),
        "levels": "".join(levels),
    }


@cache
def script(task: str) -> tuple[str, bytes]:
    """The script of a task's model, and its name, which tells its content."""
    from possym.experiments.learning_dynamics import trained_model
    from possym.experiments.trained import task_named

    study, config = stored()
    manifest = study.manifest
    made = {
        "study": manifest["experiment"],
        "seed": config.seed,
        "steps": config.steps,
        "date": manifest["started"][:10],
        "commit": (manifest["commit"] or "unknown")[:10] + (" with changes" if manifest["dirty"] else ""),
    }
    model = packed(trained_model(study, config, task), task, task_named(task).vocabulary, made)
    text = f"(window.possymModels ??= {{}}).{task} = {json.dumps(model, separators=(',', ':'), ensure_ascii=True)};\n"
    return f"{task}.{hashlib.sha256(text.encode()).hexdigest()[:16]}.js", text.encode()


class PageModel(Directive):
    """``{page-model} number``: a place for the models, with the task that is asked first.

    Options: ``hops`` and ``length`` of the first sequence, ``off``, the layers that are switched off, and ``swap``, two
    positions that have changed places.
    """

    required_arguments = 1
    option_spec = {  # noqa: RUF012  (docutils reads it so)
        "hops": lambda text: whole(text, 1, 4),
        "length": lambda text: whole(text, *LENGTHS),
        "off": lambda text: " ".join(str(whole(word, 0, 11)) for word in text.split()),
        "swap": lambda text: " ".join(str(whole(word, 0, 15)) for word in text.split()),
    }

    def run(self) -> list[nodes.Node]:
        """The place, as HTML."""
        task = directives.choice(self.arguments[0], TASKS)
        data = {"task": task} | self.options
        text = " ".join(f'data-{name}="{escape(str(value))}"' for name, value in data.items())
        return [nodes.raw("", PLACE.format(data=text), format="html")]


def whole(text: str, least: int, most: int) -> int:
    """A whole number between two others; docutils says the message, with the page and line."""
    number = directives.nonnegative_int(text)
    if not least <= number <= most:
        raise ValueError(f"give a whole number from {least} to {most}")
    return number


def write(folder: Path) -> dict[str, str]:
    """Write scripts, style and weights into a folder; the weights' file names by task."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*SCRIPTS, STYLE):
        shutil.copy(Path(__file__).with_name(name), folder)
    names = {}
    for task in TASKS:
        names[task], text = script(task)
        (folder / names[task]).write_bytes(text)
    return names


def finish_page(app, pagename, templatename, context, doctree) -> None:
    """Give a page that has a model what it needs."""
    body = context.get("body") or ""
    if 'class="possym-model"' not in body:
        return
    names = write(Path(app.outdir) / "_static/model")
    app.add_css_file(f"model/{STYLE}")
    for name in SCRIPTS:
        app.add_js_file(f"model/{name}", loading_method="defer")
    files = " ".join(f'data-file-{task}="{name}"' for task, name in names.items())
    context["body"] = body.replace('class="possym-model"', f'class="possym-model" {files}')


def setup(app) -> dict:
    """Register directive and handler."""
    app.add_directive("page-model", PageModel)
    app.connect("html-page-context", finish_page, priority=902)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
