"""The theory study: its tables agree with each other, with the tasks, and with what they are made from."""

import pandas as pd
import pytest
import torch

from possym.experiments import theory
from possym.scores import exclusion, swap_scores
from possym.tasks import LetterTask, NumberTask
from possym.theory import letter_head, number_head, stack
from possym.theory.check import CHECKS


@pytest.fixture(scope="module")
def tables():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield theory.run(theory.Config.preset_named("smoke", device="cpu")).tables
    torch.set_num_threads(threads)


def test_audit_is_whole(tables):
    assert list(tables["audit"]["name"]) == list(CHECKS)
    assert tables["audit"].notna().all(axis=None)


def test_measured_temperatures_are_the_exact_ones(tables):
    for name in ("index", "retrieval"):
        table = tables[name].dropna(subset="beta_measured")
        assert len(table) >= 7
        assert table["beta_measured"].to_numpy() == pytest.approx(table["beta"].to_numpy(), abs=1e-6)
        assert (table["beta"] <= table["beta_lemma"] + 1e-9).all()


def test_discrepancies_are_ordered(tables):
    for name in ("index", "retrieval"):
        assert (tables[name]["smallest"] <= tables[name]["largest"]).all()
    retrieval = tables["retrieval"]
    assert (retrieval["smallest_with_copies"] <= retrieval["smallest"]).all()
    assert retrieval["margin"].to_numpy() == pytest.approx(retrieval["smallest"].to_numpy())


def test_two_angles_work_up_to_the_limit(tables):
    table = tables["two_angle"]
    assert ((table["accuracy"] == 1) == (table["theta"] < table["limit"])).all()


def test_ratios_of_known_heads(tables):
    ratio = tables["tightness"].groupby("head")["ratio"].agg(["min", "max"])
    for head, expected in [("positional", 0.5), ("symbolic", 0.5), ("half and half", 1.0)]:
        assert ratio.loc[head].tolist() == pytest.approx([expected, expected])
    assert ratio["max"].max() <= 1 + 1e-12


def test_disagreement_holds_the_two_examples(tables):
    for name, group in tables["disagreement"].groupby("example"):
        head = torch.tensor(group.pivot(index="a", columns="b", values="logit").to_numpy())
        scores, deviations = swap_scores(head), exclusion(head)
        assert scores.positional > scores.symbolic
        assert deviations.positional_deviation > (0 if name == "unseen deviation" else deviations.symbolic_deviation)


def test_stacks_answer_exactly_when_they_have_a_layer_a_hop(tables):
    table = tables["composition"]
    assert len(table) == 2 * 4 * 6
    enough = table["layers"] >= table["hops"]
    assert (table["correct"][enough] == table["sequences"][enough]).all()
    assert (table["correct"][~enough] == 0).all()


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_constructions_solve_the_tasks_for_every_hop_count(device, hops):
    for task, head in (
        (NumberTask(), number_head(NumberTask().vocabulary, 0.8)),
        (LetterTask(), letter_head(LetterTask().vocabulary, 0.0027)),
    ):
        batch = task.sample(200, hops=hops, generator=torch.Generator().manual_seed(hops))
        answers = stack(head, hops, 4).to(device)(batch.tokens.to(device))[:, -1].cpu()
        assert torch.equal(answers, batch.answer)
        assert torch.equal(answers, task.solve(batch.tokens))
        assert torch.equal(stack(head, 4, 4)(batch.tokens)[:, -1], batch.answer)


def test_letter_layers_walk_the_path_and_number_layers_wait_for_its_end():
    """Retrieval takes the query one place further a layer; Index leaves it until its target is a letter."""
    for task, head in (
        (NumberTask(), number_head(NumberTask().vocabulary, 0.8)),
        (LetterTask(), letter_head(LetterTask().vocabulary, 0.0027)),
    ):
        batch = task.sample(50, hops=4)
        tokens = batch.tokens
        for step in range(1, 5):
            tokens = head(tokens)
            walked = batch.tokens.gather(1, batch.path[:, step : step + 1])[:, 0]
            waiting = batch.tokens[:, -1] if step < 4 else batch.answer
            assert torch.equal(tokens[:, -1], waiting if isinstance(task, NumberTask) else walked)


def test_same_seed_same_tables(tables):
    again = theory.tightness_table(theory.Config.preset_named("smoke"))
    pd.testing.assert_frame_equal(again, tables["tightness"])
    other = theory.tightness_table(theory.Config.preset_named("smoke", seed=1))
    assert not other.equals(again)
