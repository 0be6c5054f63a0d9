"""Controls for JupyterLab that ask a trained model: the effect of a swap on a head, and the attention of each layer.

An explorer has controls, a table that it redraws, and ``numbers``, what the table shows. Wrong input is said in
the status line, and the table of what was asked before goes.
"""

from html import escape

import torch
from torch import Tensor

from possym.charts.widgets import heat_table, ipywidgets
from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.last_token import attention, last_token_logits, swapped_attention
from possym.errors import InputError, PossymError, require_type
from possym.scores import swap_scores
from possym.tasks import LetterTask, NumberTask
from possym.tasks.batch import check_count


class Explorer:
    """A sequence that can be typed or drawn, a status line, and a table that follows the controls."""

    def __init__(self, model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> None:
        """Draw a first sequence; ``model`` is an ensemble whose first member is asked."""
        if not isinstance(model, GPTJEnsemble):
            raise InputError(f"model is a {type(model).__name__}: give a GPTJEnsemble, such as trained_model returns")
        require_type(task, (NumberTask, LetterTask), "task")
        seed = check_count("seed", seed, 0)
        if len(task.vocabulary) != model.config.vocabulary_size:
            raise InputError(
                f"the model knows {model.config.vocabulary_size} tokens, the task has {len(task.vocabulary)}: "
                "give the task "
                "that the model was trained on"
            )
        self.model, self.task = model, task
        self.generator = torch.Generator().manual_seed(seed)
        self.numbers: dict = {}
        wide = ipywidgets.Layout(width="100%")
        self.text = ipywidgets.Text(description="Sequence", continuous_update=False, layout=wide)
        self.hops = ipywidgets.IntSlider(2, 1, 4, description="Hops")
        self.draw = ipywidgets.Button(description="Draw a sequence")
        self.status, self.table = ipywidgets.HTML(), ipywidgets.HTML()
        self.draw.on_click(lambda _: self.fill())

    def start(self, *controls: ipywidgets.Widget) -> ipywidgets.VBox:
        """Watch the controls, compute once, and return everything as one widget."""
        for control in (self.text, *controls):
            control.observe(lambda _: self.update(), "value")
        self.fill()
        top = ipywidgets.HBox([self.hops, self.draw])
        return ipywidgets.VBox([top, self.text, *controls, self.status, self.table])

    def fill(self) -> None:
        """Draw a sequence into the text field."""
        batch = self.task.sample(1, hops=self.hops.value, generator=self.generator)
        self.text.value = " ".join(self.task.decode(batch.tokens[0]))

    def tokens(self) -> Tensor:
        """Return the typed sequence as (1, T) ids, or raise an InputError that names the unknown token."""
        words = self.text.value.split()
        ids = {word: index for index, word in enumerate(self.task.vocabulary)}
        if unknown := [word for word in words if word not in ids]:
            raise InputError(
                f"{unknown[0]!r} is no token of this task; its tokens look like {self.task.vocabulary[0]!r}"
            )
        if len(words) < 3:
            raise InputError(f"{len(words)} tokens: give at least three")
        return torch.tensor([[ids[word] for word in words]])

    def update(self) -> None:
        """Compute and redraw; what is wrong with the input goes to the status line."""
        try:
            self.status.value = "Asking the model …"
            self.numbers = self.compute(self.tokens())
            self.table.value, self.status.value = self.drawing(), self.words()
        except PossymError as error:
            self.numbers, self.table.value = {}, ""
            self.status.value = f'<span role="alert">{escape(str(error))}</span>'

    def compute(self, tokens: Tensor) -> dict:
        """Return the numbers to show."""
        raise NotImplementedError

    def drawing(self) -> str:
        """Return the table's HTML."""
        raise NotImplementedError

    def words(self) -> str:
        """Return the line above the table."""
        raise NotImplementedError


class SwapExplorer(Explorer):
    """Two tokens change places: one layer's attention before and after, the swap's cosines, the head's scores."""

    def __init__(self, model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> None:
        """Build the controls and compute once."""
        super().__init__(model, task, seed)
        self.layer = ipywidgets.IntSlider(model.config.layers - 1, 0, model.config.layers - 1, description="Layer")
        self.first = ipywidgets.BoundedIntText(0, 0, 15, description="Swap position")
        self.second = ipywidgets.BoundedIntText(1, 0, 15, description="with position")
        self.temperature = ipywidgets.FloatLogSlider(
            1e-4, min=-4, max=0, step=0.5, description="τ", readout_format=".0e"
        )
        self.widget = self.start(self.layer, self.first, self.second, self.temperature)

    def compute(self, tokens: Tensor) -> dict:
        """Return attention before and after, the swap's two cosines, and the head's two scores."""
        relocated, extra_logits = (
            values[0, self.layer.value, 0, 0] for values in last_token_logits(self.model, tokens)
        )
        first, second = self.first.value, self.second.value
        if first == second:
            raise InputError(f"positions {first} and {second}: choose two different positions")
        if max(first, second) >= len(relocated):
            raise InputError(f"position {max(first, second)}: movable keys are at positions 0 to {len(relocated) - 1}")
        before = attention(relocated, extra_logits)
        after = swapped_attention(relocated, extra_logits, first, second)
        pair = torch.tensor([first, second])
        swap = swap_scores(relocated[pair[:, None], pair])
        head = swap_scores(relocated, extra_logits=extra_logits, temperature=self.temperature.value)
        return {
            "tokens": self.task.decode(tokens[0]),
            "before": before.tolist(),
            "after": after.tolist(),
            "swap": (swap.positional.item(), swap.symbolic.item()),
            "head": (head.positional.item(), head.symbolic.item()),
        }

    def words(self) -> str:
        """Return the two cosines and the two scores in words."""
        return (
            "This swap: cos(v′, v) = {:.3f}, cos(v′, v reversed) = {:.3f}. All swaps: positional {:.3f}, "
            "symbolic {:.3f}."
        ).format(*self.numbers["swap"], *self.numbers["head"])

    def drawing(self) -> str:
        """Return attention before and after, one column per position."""
        names = list(self.numbers["tokens"])
        after = list(names)
        first, second = self.first.value, self.second.value
        after[first], after[second] = after[second], after[first]
        rows = [("before", names, self.numbers["before"]), ("after", after, self.numbers["after"])]
        return heat_table([(name, tokens, weights) for name, tokens, weights in rows])


class HopExplorer(Explorer):
    """A sequence, typed or drawn: the model's answer, the right one, and where each layer's last token looks."""

    def __init__(self, model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> None:
        """Build the controls and compute once."""
        super().__init__(model, task, seed)
        self.widget = self.start()

    def compute(self, tokens: Tensor) -> dict:
        """Return the right answer, the model's, its probability, and the attention of every layer (L, T)."""
        right = self.task.solve(tokens)
        with torch.no_grad():
            probabilities = self.model(tokens)[0, 0].softmax(-1)
        seen = attention(*last_token_logits(self.model, tokens))
        best = probabilities.argmax()
        return {
            "tokens": self.task.decode(tokens[0]),
            "right": self.task.decode(right)[0],
            "answer": self.task.decode(best),
            "probability": probabilities[best].item(),
            "attention": seen[0, :, 0, 0].tolist(),
        }

    def words(self) -> str:
        """Return the answers in words."""
        found = self.numbers
        verdict = "right" if found["answer"] == found["right"] else f"wrong, it is {found['right']}"
        answer, probability = escape(found["answer"]), found["probability"]
        return f"The model answers <b>{answer}</b> with probability {probability:.3f}: {verdict}."

    def drawing(self) -> str:
        """Return the attention of the last token, one row per layer."""
        tokens = self.numbers["tokens"]
        return heat_table([(f"layer {layer}", tokens, row) for layer, row in enumerate(self.numbers["attention"])])


def swap_explorer(model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> SwapExplorer:
    """Return an explorer of swaps; ``possym.charts.widgets.show(explorer.widget)`` displays it.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> sorted(swap_explorer(model, NumberTask()).numbers)
    ['after', 'before', 'head', 'swap', 'tokens']
    """
    return SwapExplorer(model, task, seed)


def hop_explorer(model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> HopExplorer:
    """Return an explorer of sequences; ``possym.charts.widgets.show(explorer.widget)`` displays it.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> len(hop_explorer(model, NumberTask()).numbers["attention"])
    2
    """
    return HopExplorer(model, task, seed)
