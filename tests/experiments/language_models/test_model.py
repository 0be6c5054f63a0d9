"""The model against transformers' own Llama, whose angles are set to the same."""

import pytest
import torch

import possym
from possym.experiments.language_models import measures
from possym.experiments.language_models.model import ENCODINGS, LanguageModel, Sizes, as_llama
from possym.rope import frequencies


def model_of(encoding: str, scale: float = 8.0) -> LanguageModel:
    """A small model whose attention is far from even."""
    model = LanguageModel(Sizes(40, layers=2, heads=4, width=64, encoding=encoding), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for block in model.blocks:
            block.queries_keys_values.weight.mul_(scale)
    return model


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_logits_are_those_of_llama(encoding):
    model = model_of(encoding)
    tokens = torch.randint(40, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        ours, theirs = model(tokens, model.turns(17)), as_llama(model)(tokens).logits
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    assert ours.std() > 0.1


def test_encodings_stop_the_planes_they_name():
    angles = {name: make(16) for name, make in ENCODINGS.items()}
    full = frequencies(16)
    assert angles["slow_half_still"].tolist() == [*full[:4].tolist(), 0, 0, 0, 0]
    assert angles["fast_half_still"].tolist() == [0, 0, 0, 0, *full[4:].tolist()]
    assert not angles["nope"].any() and angles["rope_million"][1] == pytest.approx(1e6 ** (-2 / 16))


def test_head_scores_are_those_of_profile():
    model = model_of("rope")
    tokens = torch.randint(40, (4, 12), generator=torch.Generator().manual_seed(2))
    found = measures.head_scores(model, tokens, [11]).query("weighting == 'absolute'")
    profile = possym.profile(as_llama(model), list(tokens), temperature=1e-4, relative=False)
    expected = profile.heads.groupby(["layer", "head"])[["positional", "symbolic", "entropy"]].mean().reset_index()
    for column in ("positional", "symbolic", "entropy"):
        assert found[column].to_numpy() == pytest.approx(expected[column].to_numpy(), abs=2e-5)
