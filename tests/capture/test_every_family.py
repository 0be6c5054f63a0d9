"""The promise of the page *Which models are read*: a sample of the families always, all of them behind a marker."""

import importlib.metadata
import warnings

import pytest
import transformers

from possym.models.families import read_families

from . import every_family

STORED, VERSIONS = read_families()
STORED = STORED.set_index("family")
# Of the families that could be built, every twelfth, and those whose attention is unlike Llama's.
UNLIKE = ["deepseek_v32", "diffllama", "dory", "gemma4_text", "longcat_flash", "moshi", "recurrent_gemma", "zaya"]
BUILT = STORED.index[STORED.status != "not built"]
SAMPLE = sorted({*BUILT[::12], *UNLIKE})


def check_family(family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = every_family.try_family(family)
    assert row["status"] == STORED.status[family], row
    assert row.get("difference", 0) <= every_family.RIGHT


@pytest.mark.parametrize("family", SAMPLE)
def test_a_sample_of_families_is_as_the_page_says(family):
    check_family(family)


@pytest.mark.families
@pytest.mark.parametrize("family", every_family.model_types())
def test_every_family_is_as_the_page_says(family):
    check_family(family)


def test_the_page_is_of_the_installed_transformers_and_shows_nothing_wrong():
    assert VERSIONS["transformers"] == importlib.metadata.version("transformers") == transformers.__version__
    assert set(STORED.status) == {"right", "refused", "not built"}
    assert (STORED.status == "right").sum() >= 160
    assert set(STORED.index) == set(every_family.model_types())


def test_the_brute_force_sees_a_wrong_reading(monkeypatch):
    """A key head taken for another, and a position too far, are found."""
    model = every_family.build("llama")
    honest = every_family.attention_of

    def shifted(inputs, order):
        inputs.moved = inputs.moved.roll(1)
        return honest(inputs, order)

    assert every_family.check(model)["status"] == "right"
    monkeypatch.setattr(every_family, "attention_of", shifted)
    assert every_family.check(model)["status"] == "wrong"
