"""A control for JupyterLab on a language model: type a prompt, pick a head, see it in the plane, by frequency, at work.

Wrong input is said in the status line, and the picture of what was asked before goes.
"""

from html import escape
from typing import Any

import torch
from torch import nn

from possym.capture import Capture
from possym.charts import NEUTRAL, POSITIONAL, SYMBOLIC
from possym.charts.typography import percent
from possym.charts.widgets import heat_table, ipywidgets
from possym.errors import InputError, PossymError
from possym.profiling import profile
from possym.profiling.charts import HARDLY

LONGEST = 256
WIDE, SIDE = 340, 260  # pixels of the pictures
PROMPT = (
    "Alice likes red. Bob likes tea. Carol likes music. Dave likes chess.\n"
    "Question: What does Bob like?\nAnswer: Bob likes"
)


class ProfileExplorer:
    """A prompt, a layer and a head: the plane of all heads, the head's profile by frequency, its attention.

    ``numbers`` holds what is shown: heads (DataFrame), frequencies (DataFrame of one head), tokens, attention, answer.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, prompt: str = PROMPT) -> None:
        """Build the controls and compute once.

        Raises:
            UnsupportedModelError: a model that possym cannot read.
            InputError: no tokenizer.
        """
        if not callable(tokenizer) or not hasattr(tokenizer, "convert_ids_to_tokens"):
            raise InputError(f"tokenizer is a {type(tokenizer).__name__}: give the model's tokenizer")
        self.model, self.tokenizer = model, tokenizer
        self.capture = Capture(model)
        self.numbers: dict = {}
        self.found: Any = None
        wide = ipywidgets.Layout(width="100%")
        self.prompt = ipywidgets.Textarea(prompt, description="Prompt", continuous_update=False, layout=wide, rows=4)
        layers = sorted(self.capture.layers)
        self.layer = ipywidgets.SelectionSlider(options=layers, description="Layer", continuous_update=False)
        self.head = ipywidgets.IntSlider(0, 0, self.heads() - 1, description="Head", continuous_update=False)
        self.status, self.picture = ipywidgets.HTML(), ipywidgets.HTML()
        self.prompt.observe(lambda _: self.read(), "value")
        self.layer.observe(lambda _: self.choose(), "value")
        self.head.observe(lambda _: self.choose(), "value")
        self.read()
        controls = ipywidgets.HBox([self.layer, self.head])
        self.widget = ipywidgets.VBox([self.prompt, controls, self.status, self.picture])

    def heads(self) -> int:
        """Return the number of heads of the chosen layer."""
        return self.capture.layers[self.layer.value].heads

    def read(self) -> None:
        """Profile the typed prompt, then show the chosen head."""
        try:
            ids = self.tokenizer(self.prompt.value)["input_ids"]
            if len(ids) > LONGEST:
                raise InputError(f"{len(ids)} tokens: give at most {LONGEST}, so that the answer comes in seconds")
            self.status.value = "Asking the model …"
            self.found = profile(self.model, [list(ids)], hold="first", per_frequency=True, progress=False)
        except PossymError as error:
            self.refuse(error)
            return
        told = self.found.prompts["predicted"].dropna().tolist()
        answer = self.tokenizer.decode(told) if told else "none: the model's logits are no numbers"
        self.numbers = {
            "heads": self.found.heads,
            "tokens": self.tokenizer.convert_ids_to_tokens(ids),
            "answer": answer,
        }
        self.ids = torch.tensor(ids)
        self.choose()

    def choose(self) -> None:
        """Show the chosen head on the prompt that was read last, if that was one to read."""
        if not self.numbers:
            return
        try:
            self.head.max = self.heads() - 1
            layer, head = self.layer.value, self.head.value
            rows = self.found.head_frequencies(layer, head) if self.rotates(layer) else self.found.frequencies.iloc[:0]
            self.numbers |= {"frequencies": rows, "attention": self.attention(layer, head)}
            self.picture.value, self.status.value = self.drawing(layer, head), self.words(layer, head)
        except PossymError as error:
            self.refuse(error)

    def rotates(self, layer: int) -> bool:
        """Return whether a layer has RoPE planes."""
        return self.capture.layers[layer].rope_layout is not None

    def refuse(self, error: PossymError) -> None:
        """Say what is wrong with the input, and drop what was shown."""
        self.numbers, self.picture.value = {}, ""
        self.status.value = f'<span role="alert">{escape(str(error))}</span>'

    def attention(self, layer: int, head: int) -> list[float]:
        """Return the attention of the last token over all tokens, its own last; 0 where the mask hides a token."""
        weights = torch.zeros(len(self.ids))

        def visit(inputs) -> None:
            some = slice(head, head + 1)
            moved = inputs.relocated_logits(some).diagonal(dim1=-2, dim2=-1)[0, 0]
            share = torch.cat([moved, inputs.extra_logits(some)[0, 0]]).softmax(-1).cpu()
            positions = [*inputs.moved.tolist(), *inputs.unmoved.tolist()]
            weights[positions] = share[: len(positions)]

        self.capture.run(self.ids, visit, layers=[layer])
        return weights.tolist()

    def words(self, layer: int, head: int) -> str:
        """Return the chosen head's scores and the model's answer in words."""
        row = self.numbers["heads"].query("layer == @layer and head == @head").iloc[0]
        return (
            f"Next token: <b>{escape(repr(self.numbers['answer']))}</b>. Layer {layer}, head {head}: positional "
            f"{row['positional']:.3f}, symbolic {row['symbolic']:.3f}, entropy {row['entropy']:.2f} nats, "
            f"{percent(row['attention_moved'])} of its attention on what moves (the first token is held in place)."
        )

    def drawing(self, layer: int, head: int) -> str:
        """Return the plane, the profile and the attention as HTML."""
        plane = plane_picture(self.numbers["heads"], layer, head)
        rows = self.numbers["frequencies"]
        profile_ = profile_picture(rows) if len(rows) else "<p>This layer does not rotate: it has no frequencies.</p>"
        table = heat_table([("attention", self.numbers["tokens"], self.numbers["attention"])])
        return f'<div style="display:flex;flex-wrap:wrap;gap:1rem">{plane}{profile_}</div>{table}'


def plane_picture(heads, layer: int, head: int) -> str:
    """Return all heads in the plane of both scores as SVG, faint where they hardly attend to what moves."""
    marks = []
    for row in heads.itertuples():
        if row.positional == row.positional:
            chosen = row.layer == layer and row.head == head
            x, y = 20 + row.positional * (SIDE - 40), SIDE - 20 - row.symbolic * (SIDE - 40)
            color, radius = (SYMBOLIC, 7) if chosen else (NEUTRAL, 3)
            opacity = 0.7 if chosen or row.attention_moved >= HARDLY else 0.2
            marks.append(
                (chosen, f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}" fill-opacity="{opacity}"/>')
            )
    drawn = "".join(mark for _, mark in sorted(marks))
    frame = f'<rect x="20" y="20" width="{SIDE - 40}" height="{SIDE - 40}" fill="none" stroke="currentColor"/>'
    style = 'font-size="12" fill="currentColor"'
    labels = (
        f'<text x="{SIDE / 2}" y="{SIDE - 4}" text-anchor="middle" {style}>positional, 0 to 1</text>'
        f'<text x="20" y="14" {style}>symbolic, 0 to 1</text>'
    )
    words = f"Heads by positional and symbolic score; layer {layer}, head {head} is marked"
    return f'<svg role="img" aria-label="{words}" width="{SIDE}" height="{SIDE}">{frame}{labels}{drawn}</svg>'


def profile_picture(rows) -> str:
    """Return one head's scores by frequency, fastest first, as SVG."""
    count = max(1, len(rows) - 1)
    lines = []
    for score, color in (("positional", POSITIONAL), ("symbolic", SYMBOLIC)):
        points = " ".join(
            f"{20 + k * (WIDE - 40) / count:.1f},{SIDE - 20 - value * (SIDE - 40):.1f}"
            for k, value in enumerate(rows[score])
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
    words = (
        f'<text x="20" y="14" font-size="12" fill="{POSITIONAL}">positional</text>'
        f'<text x="90" y="14" font-size="12" fill="{SYMBOLIC}">symbolic</text>'
        f'<text x="{WIDE / 2}" y="{SIDE - 4}" text-anchor="middle" font-size="12" fill="currentColor">'
        "frequency, fastest to slowest</text>"
    )
    frame = f'<rect x="20" y="20" width="{WIDE - 40}" height="{SIDE - 40}" fill="none" stroke="currentColor"/>'
    label = "Scores of the chosen head by RoPE frequency, from fastest to slowest"
    return f'<svg role="img" aria-label="{label}" width="{WIDE}" height="{SIDE}">{frame}{"".join(lines)}{words}</svg>'
