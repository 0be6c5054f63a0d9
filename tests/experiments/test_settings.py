"""Settings that a study cannot run with: refused by name, before anything runs."""

import pytest

from possym.errors import ConfigError
from possym.experiments import (
    canonical,
    generality,
    generalization,
    learning_dynamics,
    length_elsewhere,
    mechanism,
    one_hop,
    real_models,
    scoring,
    theory,
    two_models,
)

REFUSED = {
    canonical: [
        dict(few_ids=(0, 33)), dict(few_ids=(0, 0)), dict(frequency_ids=()), dict(plane_counts=(0,)),
        dict(temperatures=(0.0,)), dict(seeds=1), dict(steps=0), dict(deviation=0.0), dict(length=3),
        dict(length="32"), dict(final_sequences=127), dict(final_sequences=19, test_sequences=8, long_length=20),
    ],
    generality: [
        dict(settings=()), dict(settings=("heads", "heads")), dict(settings=("width",)), dict(temperature=0.0),
        dict(test_sequences=1), dict(points=1), dict(architecture="mamba"), dict(supervise="first"),
        dict(hop_shares=(1.0,)),
    ],
    generalization: [
        dict(lengths=(16, 40)), dict(lengths=(25, 40)), dict(lengths=()), dict(part_lengths=(17,)),
        dict(letter_lengths=(40, 17)), dict(compared_lengths=(40, 40)), dict(sequences=39), dict(windows=39),
        dict(other_rules=("number",)), dict(rule_members=0), dict(other_rates=(3e-3,)), dict(other_rates=("fast",)),
        dict(other_rates=(1e-2, 1e-2)), dict(temperature=0.0), dict(members=0),
    ],
    learning_dynamics: [
        dict(tasks=()), dict(tasks=("number", "number")), dict(tasks=("digits",)), dict(hops=(0, 1)),
        dict(hops=(2, 1)), dict(hops=()), dict(members=0), dict(other_members=0), dict(test_sequences=1),
        dict(temperature=0.0), dict(layers=0), dict(width=15), dict(learning_rate=-1.0), dict(points=1),
        dict(steps="many"), dict(batch=1_000),
    ],
    length_elsewhere: [
        dict(settings=("heads", "mixed")), dict(tasks=("mixed",)), dict(hops=(1, 2)), dict(lengths=()),
        dict(lengths=(25, 40)), dict(lengths=(17, 40, 30)), dict(test_sequences=39), dict(scored_sequences=0),
        dict(temperature=0.0),
    ],
    mechanism: [
        dict(tracked=0), dict(tracked=3), dict(undropped=3), dict(sequences=1), dict(rule_sequences=0),
        dict(temperature=0.0), dict(points=1), dict(tracked=True), dict(changed_sequences=24.0),
    ],
    one_hop: [
        dict(model=""), dict(dtype="int8"), dict(forms=()), dict(forms=("poem",)), dict(lengths=(16, 12)),
        dict(lengths=(1,)), dict(runs=0), dict(prompts=True),
    ],
    real_models: [
        dict(pairs=(16, 8)), dict(pairs=(7, 8)), dict(prompts=(4,)), dict(reference=64), dict(dtype="float8"),
        dict(temperature=0.0), dict(block_sizes=(0,)), dict(text_length=3), dict(band_draws=0),
        dict(relative_temperatures=(0.1, -1.0)),
    ],
    scoring: [dict(keys=(7,)), dict(heads=0), dict(sinks=(0.5,)), dict(sinks=(0.0, 1.0))],
    theory: [
        dict(longest=2), dict(sequences=0), dict(alphabets=(1,)), dict(shape_lengths=(2,)), dict(longest=3.5),
        dict(alphabets=()),
    ],
    two_models: [dict(models=()), dict(models=("a", "a")), dict(prompts=0), dict(known_heads=0)],
}  # fmt: skip


@pytest.mark.parametrize("study", REFUSED, ids=lambda study: study.NAME)
def test_settings_that_a_study_cannot_run_with_are_refused_by_name(study):
    for changes in REFUSED[study]:
        with pytest.raises(ConfigError, match=next(iter(changes))):
            study.Config.preset_named("smoke", **changes)
