"""A control for JupyterLab that runs a trained model at a chosen length: its answer, and where each layer looks.

`length_explorer` returns a `LengthExplorer`; ``possym.charts.widgets.show(explorer.widget)`` displays it.
"""

from html import escape

import torch
from torch import Tensor

from possym.charts.widgets import heat_table, ipywidgets
from possym.ensembles.gptj import GPTJEnsemble
from possym.errors import PossymError
from possym.experiments.generalization.attending import all_frequencies, causal, rotate_pair
from possym.experiments.generalization.long_inputs import WINDOW, answer, last_logits
from possym.tasks import LetterTask, NumberTask

LONGEST = 2000
COUNTED = 32


class LengthExplorer:
    """A length, a number of hops, one sequence at a time; ``numbers`` holds what the table shows."""

    def __init__(self, model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> None:
        """Build the controls and answer a first sequence; the ensemble's first member is asked."""
        self.model, self.task = model.member(0), task
        self.source = torch.Generator().manual_seed(seed)
        self.numbers: dict = {}
        wide = {"description_width": "80px"}
        steps = sorted({*range(WINDOW, 100, 3), *range(100, 500, 20), *range(500, LONGEST + 1, 100)})
        self.length = ipywidgets.SelectionSlider(options=steps, value=steps[0], description="Length", style=wide)
        self.hops = ipywidgets.IntSlider(2, 1, 4, description="Hops", style=wide)
        self.draw = ipywidgets.Button(description="Draw a sequence")
        self.count = ipywidgets.Button(description=f"Answer {COUNTED} sequences")
        self.status, self.accuracy, self.table = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        for control in (self.length, self.hops):
            control.observe(lambda _: self.fill(), "value")
        self.draw.on_click(lambda _: self.fill())
        self.count.on_click(lambda _: self.measure())
        buttons = ipywidgets.HBox([self.draw, self.count])
        self.widget = ipywidgets.VBox([self.length, self.hops, buttons, self.status, self.accuracy, self.table])
        self.fill()

    def fill(self) -> None:
        """Draw a sequence, answer it and redraw."""
        self.accuracy.value, self.status.value = "", "Asking the model …"
        batch = self.task.sample(1, hops=self.hops.value, length=self.length.value, generator=self.source)
        self.answer(batch.tokens)

    def answer(self, tokens: Tensor) -> None:
        """Answer one sequence (1, T) and show where each layer's last query attends, or say what is wrong with it."""
        try:
            right = self.task.solve(tokens)
        except PossymError as error:
            self.numbers, self.table.value = {}, ""
            self.status.value = f'<span role="alert">{escape(str(error))}</span>'
            return
        frequencies, seen = all_frequencies(self.model.config), []

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key = rotate_pair(query, key, frequencies)
            seen.append(last_logits(query[:, :, -1:], key).softmax(-1)[0, 0].mean(0))  # over heads
            return causal(query, key, value, torch.float32)

        with torch.no_grad():
            probabilities = self.model(tokens, attend=attend)[0, 0].softmax(-1)
        best = probabilities.argmax()
        self.numbers = {
            "tokens": self.task.decode(tokens[0, -WINDOW:]),
            "right": self.task.decode(right)[0],
            "answer": self.task.decode(best),
            "probability": probabilities[best].item(),
            "outside": [weights[:-WINDOW].sum().item() for weights in seen],
            "window": [weights[-WINDOW:].tolist() for weights in seen],
        }
        found = self.numbers
        verdict = "right" if found["answer"] == found["right"] else f"wrong, it is {found['right']}"
        answer, probability = escape(found["answer"]), found["probability"]
        self.status.value = (
            f"The model answers <b>{answer}</b> with probability {probability:.3f}: {verdict}. First column: attention "
            "to everything before the window of 17."
        )
        before = f"{tokens.shape[1] - WINDOW} before"
        self.table.value = heat_table(
            [
                (f"layer {layer}", [before, *found["tokens"]], [outside, *window])
                for layer, (outside, window) in enumerate(zip(found["outside"], found["window"], strict=True))
            ]
        )

    def measure(self) -> None:
        """Answer `COUNTED` sequences of the chosen length, all numbers of hops, and say how many are right."""
        self.accuracy.value = "Counting …"
        correct = answer(self.model, self.task, self.length.value, COUNTED, self.source).correct
        self.numbers["correct"] = int(correct.sum())
        self.accuracy.value = (
            f"{self.numbers['correct']} of {COUNTED} sequences of {self.length.value} tokens are right."
        )


def length_explorer(model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> LengthExplorer:
    """Return an explorer of lengths; ``possym.charts.widgets.show(explorer.widget)`` displays it.

    Args:
        model: an ensemble trained on the task; its first member is asked.
        task: the task.
        seed: of the sequences.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> len(length_explorer(model, NumberTask()).numbers["outside"])
    2
    """
    return LengthExplorer(model, task, seed)
