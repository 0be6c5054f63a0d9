"""Profile a language model: does each head attend by position or by content on these prompts?

- `possym.profiling.profile.profile` scores every layer, head and, on request, RoPE frequency in one forward pass per
  prompt; `possym.profiling.profile.Profile` holds the tables, prints, draws, saves, loads and concatenates.
- `possym.profiling.prompts` reads the users' prompts, `possym.profiling.scoring` runs them and collects the scores.
- `possym.profiling.arrays.scores_from` scores one's own queries and keys, from any program.
- `possym.profiling.compare.compare` lists the changes between two profiles of the same prompts.
- `possym.profiling.atlas.atlas` finds the heads of known kinds and where they lie in the plane.
- `possym.profiling.monitor` scores heads while a model trains.

Prompts are never padded: those of one length run together, the rest one after the other.
"""

from possym.profiling.arrays import scores_from
from possym.profiling.atlas import Atlas, atlas
from possym.profiling.compare import Comparison, compare
from possym.profiling.profile import Profile, profile

__all__ = ["Atlas", "Comparison", "Profile", "atlas", "compare", "profile", "scores_from"]
