"""A control for JupyterLab: queries and keys of any layer, plane and sequence, asked of a trained model live.

`plane_explorer` returns a `PlaneExplorer`; ``possym.charts.widgets.show(explorer.widget)`` displays it.
"""

import torch
from torch import Tensor

from possym.charts.typography import percent
from possym.charts.widgets import heat_table, ipywidgets
from possym.ensembles.explorer import Explorer
from possym.ensembles.gptj import GPTJEnsemble
from possym.ensembles.last_token import attention, last_token_logits
from possym.ensembles.planes import plane_contents, plane_weights
from possym.experiments.canonical.explorer import plane_picture
from possym.tasks import LetterTask, NumberTask


class PlaneExplorer(Explorer):
    """A sequence, a layer and a plane: where queries and keys point in it, and where the last position looks."""

    def __init__(self, model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> None:
        """Build the controls and compute once."""
        super().__init__(model, task, seed)
        planes = len(model.config.frequencies)
        self.layer = ipywidgets.IntSlider(0, 0, model.config.layers - 1, description="Layer")
        self.plane = ipywidgets.IntSlider(0, 0, planes, description="Frequency")
        self.turned = ipywidgets.Checkbox(True, description="turned, as the head sees them")
        note = ipywidgets.HTML("Frequency 0 is the plane of most energy on this sequence; 1 is the fastest.")
        self.widget = self.start(self.layer, self.plane, note, self.turned)

    def compute(self, tokens: Tensor) -> dict:
        """Return the plane's frequency ID, its queries and keys (T, 2), and the attention of the last position."""
        layer = self.layer.value
        energy = plane_weights(self.model, tokens)["energy"][0, layer, 0]
        frequency_id = self.plane.value or int(energy.argmax()) + 1
        table = plane_contents(self.model, self.task, tokens[0], layer=layer, frequency_id=frequency_id)
        columns = ["turned_x", "turned_y"] if self.turned.value else ["x", "y"]
        queries, keys = (torch.tensor(table.loc[table["kind"] == k, columns].to_numpy()) for k in ("query", "key"))
        seen = attention(*last_token_logits(self.model, tokens))
        return {
            "tokens": self.task.decode(tokens[0]),
            "frequency_id": frequency_id,
            "share": (energy[frequency_id - 1] / energy.sum()).item(),
            "queries": queries.tolist(),
            "keys": keys.tolist(),
            "attention": seen[0, layer, 0, 0].tolist(),
        }

    def words(self) -> str:
        """Return which plane is shown and how much of the logits' energy it holds."""
        found = self.numbers
        return (
            f"Plane of frequency ID {found['frequency_id']}, {percent(found['share'])} of the logits' energy at the "
            "last position. Circles: queries; triangles: keys; the longest of each at the rim."
        )

    def drawing(self) -> str:
        """Return the plane and, below it, the attention of the last position."""
        queries, keys = (torch.tensor(self.numbers[side]) for side in ("queries", "keys"))
        looks = heat_table([("looks at", self.numbers["tokens"], self.numbers["attention"])])
        return plane_picture(queries, keys) + looks


def plane_explorer(model: GPTJEnsemble, task: NumberTask | LetterTask, seed: int = 0) -> PlaneExplorer:
    """Return an explorer of planes; ``possym.charts.widgets.show(explorer.widget)`` displays it.

    Source: 2605.31558, Fig. 4.

    >>> from possym.ensembles.gptj import GPTJConfig
    >>> model = GPTJEnsemble(GPTJConfig(vocabulary_size=136, layers=2, width=8), seeds=[0])
    >>> len(plane_explorer(model, NumberTask()).numbers["keys"])
    17
    """
    return PlaneExplorer(model, task, seed)
