"""Wrong keys moved away one at a time and turned as the model turns them."""

import pytest
import torch

from possym.ensembles.gptj import GPTJConfig, GPTJEnsemble
from possym.ensembles.llama import LlamaConfig, LlamaEnsemble
from possym.experiments.generalization.distractors import distractor_logits
from possym.experiments.generalization.long_inputs import sample_members
from possym.rope import rotate
from possym.tasks import NumberTask

SIZES = {"layers": 2, "heads": 2, "width": 16, "init_std": 0.6}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (GPTJEnsemble, GPTJConfig(136, **SIZES)),
        (GPTJEnsemble, GPTJConfig(136, rotary_dim=4, **SIZES)),
        (LlamaEnsemble, LlamaConfig(136, **SIZES)),
    ],
    ids=["gptj", "gptj turned in part", "llama"],
)
def test_gaps_are_those_of_keys_moved_one_at_a_time(kind, config):
    model = kind(config, [0, 1])
    batch = sample_members(NumberTask(), 2, 8, 17, torch.Generator().manual_seed(0))
    found = distractor_logits(model, batch, layer=1, reach=60)
    trace = model.trace(batch.tokens)
    for e in range(2):
        for h in range(2):
            gaps = torch.zeros(61, dtype=torch.float64)
            for b in range(8):
                query, keys = trace.queries[e, 1, b, h].double(), trace.keys[e, 1, b, h].double()
                step = batch.path[e, b, 1].item()
                query = rotate(query, 16, config.frequencies, model.layout) * 8**-0.5
                right = rotate(keys[step], step, config.frequencies, model.layout) @ query
                wrong = [place for place in range(8) if place != step]
                for farther in range(61):
                    moved = rotate(keys[wrong], step - farther, config.frequencies, model.layout) @ query
                    gaps[farther] += (moved - right).mean().item() / 8
            torch.testing.assert_close(found[e, h].double(), gaps, atol=1e-4, rtol=1e-4)
