"""The one-hop study: its replies are the model's own, it goes on where it was cut, and refuses what cannot run."""

import pandas as pd
import pytest

from possym import results
from possym.errors import InputError
from possym.experiments import one_hop
from possym.experiments.one_hop import Config
from possym.experiments.one_hop import protocol as onehop
from possym.models import hub
from possym.models.runners import LocalRunner


def config(**changes):
    return Config.preset_named("smoke", **{"device": "cpu", "lengths": (8, 16), "max_new_tokens": 3} | changes)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def study(root):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSSYM_RESULTS", str(root))
        return results.load_or_run(one_hop, config(), "always")


def test_every_prompt_is_asked_in_every_form(study):
    answers = study.tables["answers"]
    assert answers.groupby(["form", "kind", "length", "run"]).size().tolist() == [1] * 16
    assert study.manifest["seeds"] == [0, 1]
    drawn = onehop.draw(1, lengths=(8, 16), runs=2)
    pd.testing.assert_frame_equal(study.tables["prompts"], drawn.drop(columns="text"))


@pytest.mark.parametrize("form", ["chat", "plain"])
def test_replies_are_the_model_s_own(study, form):
    prompts = onehop.draw(1, lengths=(8, 16), runs=2).iloc[[1, 6]]
    runner = LocalRunner(*hub.load(device="cpu"), chat=form == "chat", max_new_tokens=3)
    mine = study.tables["answers"].merge(prompts[onehop.KEYS]).query("form == @form")
    for row, text in zip(mine.itertuples(), prompts["text"], strict=True):
        (reply,) = runner.answer([text], beginnings=list("abcdefghijklmnopqrstuvwxyz"), progress=False)
        assert (row.reply, row.tokens, row.ended, row.first) == reply
        assert row.prompt_tokens == len(runner.encode(text))


def test_answers_are_graded_with_their_own_prompts(study):
    for form in ("chat", "plain"):
        rows = one_hop.answers(study, form)
        assert len(rows) == 8 and set(rows.form) == {form}
        assert (rows.correct == (rows.reply.str.strip() == rows.answer)).all()
        assert (
            rows.chosen == [first == answer[0] for first, answer in zip(rows["first"], rows.answer, strict=True)]
        ).all()
        for row in rows.itertuples():
            assert row.items.split()[row.place] == row.answer and len(row.items.split()) == row.length
    with pytest.raises(InputError, match="this study has chat, plain"):
        one_hop.answers(study, "poem")


def test_items_are_cut_as_the_tokenizer_cuts_them(study):
    cut = study.tables["cut"]
    assert set(cut.kind) == {"number", "letter"} and len(cut) == 16
    assert all(pieces.replace("|", "").strip() == item for item, pieces in zip(cut["item"], cut.pieces, strict=True))
    assert cut.loc[cut.item.str.fullmatch(r"[a-z]\d"), "pieces"].str.count(r"\|").eq(1).all()


def test_an_interrupted_run_goes_on_after_its_last_cell(study, tmp_path, monkeypatch):
    monkeypatch.setenv("POSSYM_RESULTS", str(tmp_path))
    real, calls = LocalRunner.answer, []

    def cut_off(self, texts, **more):
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, texts, **more)

    monkeypatch.setattr(LocalRunner, "answer", cut_off)
    half = config(forms=("plain",))
    with pytest.raises(KeyboardInterrupt):
        results.load_or_run(one_hop, half, "auto")
    again = results.load_or_run(one_hop, half, "auto")
    assert len(calls) == 3 + 4 - 2
    for name, table in study.tables.items():
        of_half = table[table["form"] == "plain"].reset_index(drop=True) if "form" in table else table
        pd.testing.assert_frame_equal(again.tables[name], of_half)


def test_the_paper_preset_is_the_papers_protocol():
    paper = Config.preset_named("paper")
    assert paper.lengths == (12, 16, 24, 32, 48, 64, 80, 100, 150, 200, 300) and paper.runs == 5
