"""A control for JupyterLab that trains one toy head live: choose its angle, see its attention, plane and accuracy.

`canonical_explorer` returns a `CanonicalExplorer`; ``possym.charts.widgets.show(explorer.widget)`` displays it.
"""

import math

import torch
from torch import Tensor

from possym.charts import CATEGORIES
from possym.charts.typography import percent
from possym.charts.widgets import heat_table, ipywidgets
from possym.ensembles.toy import Member, ToyEnsemble
from possym.experiments.canonical import GRID, TASK_NAMES, angle, answer_tokens, make_task

STEPS, BATCH, RATE, LENGTH, WIDTH = 600, 128, 1e-2, 16, 32
PAUSE = 100  # steps between two looks at the head
TESTED = 2000
SIDE = 260  # pixels of the plane


class CanonicalExplorer:
    """Controls of one head, and what it has learnt: ``numbers`` holds what the pictures show."""

    def __init__(self, seed: int = 0, steps: int = STEPS) -> None:
        """Build the controls; nothing is trained until asked for."""
        self.seed, self.steps = seed, steps
        self.numbers: dict = {}
        wide = {"description_width": "110px"}
        names = [(f"{i} ({angle(i):.3g} rad)", i) for i in range(1, GRID + 1)] + [("NoPE (0)", 0)]
        tasks = [(name, task) for task, name in TASK_NAMES.items()]
        self.task = ipywidgets.Dropdown(options=tasks, description="Task", style=wide)
        self.frequency_id = ipywidgets.SelectionSlider(options=names, value=7, description="Frequency ID", style=wide)
        self.planes = ipywidgets.Dropdown(options=[1, 2, 4, 8, 16], description="Planes", style=wide)
        self.button = ipywidgets.Button(description="Train", button_style="primary")
        self.progress = ipywidgets.IntProgress(0, 0, steps, description="Steps", style=wide)
        self.status, self.picture = (
            ipywidgets.HTML("Choose an angle and press Train: it takes seconds."),
            ipywidgets.HTML(),
        )
        self.button.on_click(lambda _: self.train())
        controls = [self.task, self.frequency_id, self.planes, ipywidgets.HBox([self.button, self.progress])]
        self.widget = ipywidgets.VBox([*controls, self.status, self.picture])

    def train(self) -> None:
        """Train a fresh head with the chosen angle, looking at it on the way."""
        self.button.disabled = True
        try:
            task = make_task(self.task.value, LENGTH)
            first, gives = answer_tokens(task)
            member = Member((angle(self.frequency_id.value),), self.planes.value, self.seed)
            model = ToyEnsemble([member], len(task.vocabulary), width=WIDTH, outputs=int(gives.max()) + 1)
            source = torch.Generator().manual_seed(self.seed)
            test = task.sample(TESTED, length=LENGTH, generator=torch.Generator().manual_seed(self.seed + 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)
            falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, self.steps)
            for step in range(1, self.steps + 1):
                batch = task.sample(BATCH, length=LENGTH, generator=source)
                loss = torch.nn.functional.cross_entropy(model(batch.tokens)[0], batch.answer - first)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                falling.step()
                if step % PAUSE == 0 or step == self.steps:
                    self.progress.value = step
                    self.look(model, task, test, first)
        finally:
            self.button.disabled = False

    @torch.no_grad()
    def look(self, model: ToyEnsemble, task, test, first: int) -> None:
        """Measure the head on test sequences and redraw."""
        right = (model(test.tokens)[0].argmax(-1) + first == test.answer).double()
        position = test.path[:, 1]
        counts = torch.bincount(position, minlength=LENGTH - 1)
        query, key = (table[0, :, 0, :2] for table in model.contents())
        asks = torch.zeros(len(task.vocabulary), dtype=torch.bool)
        asks[test.tokens[:, -1]] = True
        stands = torch.zeros_like(asks)
        stands[test.tokens[:, :-1]] = True
        self.numbers = {
            "accuracy": right.mean().item(),
            "by_place": (torch.bincount(position, right, LENGTH - 1) / counts).tolist(),
            "attention": model.attention(test.tokens[:1])[0, 0].tolist(),
            "tokens": task.decode(test.tokens[0]),
            "queries": query[asks].tolist(),
            "keys": key[stands].tolist(),
        }
        found = self.numbers
        self.status.value = (
            f"Accuracy <b>{percent(found['accuracy'], 1)}</b> on {TESTED:,} sequences of {LENGTH} tokens."
        )
        self.picture.value = (
            "<p>Attention of the last token on one sequence:</p>"
            f"{heat_table([('head', found['tokens'], found['attention'])])}"
            "<p>Accuracy by the answer's place:</p>"
            f"{heat_table([('position', [str(i) for i in range(LENGTH - 1)], found['by_place'])])}"
            "<p>The head's first plane before rotation, queries as circles and keys as triangles:</p>"
            f"{plane_picture(query[asks], key[stands])}"
        )


def plane_picture(queries: Tensor, keys: Tensor) -> str:
    """Return queries and keys (n, 2) of one plane as an SVG, the longest of each at the rim.

    >>> picture = plane_picture(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, 2.0]]))
    >>> picture.count("<circle"), picture.count("<polygon")
    (2, 2)
    """
    half, reach = SIDE / 2, SIDE / 2 - 10
    marks = [f'<circle cx="{half}" cy="{half}" r="{reach}" fill="none" stroke="currentColor" opacity="0.3"/>']
    for vectors, color, mark in ((queries, CATEGORIES[0], "circle"), (keys, CATEGORIES[1], "triangle")):
        longest = float(vectors.norm(dim=-1).max()) or 1.0
        for x, y in (vectors / longest * reach).tolist():
            x, y = half + x, half - y
            if mark == "circle":
                marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>')
                continue
            corners = [(x + 5 * math.sin(t), y - 5 * math.cos(t)) for t in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
            points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
            marks.append(f'<polygon points="{points}" fill="{color}"/>')
    frame = f'role="img" aria-label="Queries and keys in the plane" width="{SIDE}" height="{SIDE}"'
    return f"<svg {frame}>{''.join(marks)}</svg>"


def canonical_explorer(seed: int = 0, steps: int = STEPS) -> CanonicalExplorer:
    """Return a control that trains one head with a chosen angle, in seconds on a CPU.

    >>> explorer = canonical_explorer(steps=1)
    >>> explorer.train()
    >>> len(explorer.numbers["by_place"])
    15
    """
    return CanonicalExplorer(seed, steps)
