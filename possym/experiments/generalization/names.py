"""How trained models do at lengths they were not trained on: measured, foretold, explained and repaired.

- `sweep`: accuracy, the right key's lead and attention that leaves the window, at any length;
- `forecast`: the same accuracy from inputs of training length alone; `measured_parts`: what each layer does to it;
- `wrong_keys`: a head's logit of a wrong key by its distance, from inputs of training length;
- `repaired`: other rotations and scales at test time;
- `crossings`, `failing_layers`, `foretold_points`, `judged`, `repair_gains` and others: what the tables say.

Ensembles of any kind of blocks will do (`possym.ensembles.ensemble`).
"""

from possym.experiments.generalization.distance import wrong_keys
from possym.experiments.generalization.forecasting import forecast, measured_parts
from possym.experiments.generalization.repairs import REPAIRS, repaired, settings
from possym.experiments.generalization.summaries import (
    crossing,
    crossings,
    failing_layers,
    foretold_points,
    held_out_predictions,
    judged,
    kept_leads,
    layer_agreement,
    learnt,
    looking,
    predictions,
    quality,
    repair_gains,
)
from possym.experiments.generalization.sweep import (
    EXACT,
    Looks,
    Precision,
    Sweep,
    looked_at,
    plane_norms,
    sample_members,
    sweep,
)

__all__ = [
    "EXACT",
    "REPAIRS",
    "Looks",
    "Precision",
    "Sweep",
    "crossing",
    "crossings",
    "failing_layers",
    "forecast",
    "foretold_points",
    "held_out_predictions",
    "judged",
    "kept_leads",
    "layer_agreement",
    "learnt",
    "looked_at",
    "looking",
    "measured_parts",
    "plane_norms",
    "predictions",
    "quality",
    "repair_gains",
    "repaired",
    "sample_members",
    "settings",
    "sweep",
    "wrong_keys",
]
