"""Queries and keys of every attention layer of a Hugging Face RoPE model, taken in one forward pass.

- `Capture(model)` finds the RoPE planes of each layer by running the model itself, and checks its reading against the
  model's own rotation at other positions.
- `Capture.run(tokens, visit)` runs the model once and hands each layer's `LayerInputs` to ``visit`` while the pass
  goes on, so that memory does not grow with the layers; small layers that are alike can come together.
- `LayerInputs.relocated_logits` gives the logit of every key content at every key position.
- `rope_audit` compares the measured rotation with the model's configuration.

What is captured is handed on unchanged, under the model's own mask. A softcap counts where it is applied, which SDPA
does not. `possym.capture.hooks` attaches to a model; `possym.capture.probe` and `possym.capture.rope_layout` find its
rotation.

Keys are contents as they were computed. In layer 0, relocating a key equals moving its token; in deeper layers it is a
counterfactual, as in the papers' code.
"""

from possym.capture.audit import rope_audit
from possym.capture.capture import TOGETHER, Capture
from possym.capture.layer_inputs import LayerInputs
from possym.capture.probe import Layer

__all__ = ["TOGETHER", "Capture", "Layer", "LayerInputs", "rope_audit"]
