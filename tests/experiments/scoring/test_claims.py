"""Verdicts on heads and their scores: they hold for pure heads alone."""

from possym.experiments.scoring import claims as heads


def test_heads_that_are_not_pure_fail_their_claims():
    mixed = heads.random_logits()
    found = [measure(mixed) for measure in (heads.one_content, heads.no_rotation, heads.uniform_scores)]
    found += [heads.own_score(kind, mixed) for kind in ("positional", "symbolic")]
    assert {each.verdict for each in found} == {"does not hold"}
