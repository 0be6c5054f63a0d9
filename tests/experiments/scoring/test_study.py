"""The study of weightings: its cosines and weights against the library's, its heads against what they are made of."""

import itertools

import pandas as pd
import pytest
import torch

from possym.experiments import scoring as study
from possym.experiments.scoring import summaries
from possym.results import load_or_run
from possym.scores import DEFAULT_RELATIVE, DEFAULT_TEMPERATURE, effective_swaps, purity, swap_scores

SMALL = study.Config.preset_named("smoke", keys=(8, 24), heads=2, device="cpu")


@pytest.fixture(scope="module")
def cells():
    return study.run(SMALL).tables["cells"]


def one_by_one(relocated, sink, weighting, temperature):
    """Both scores swap by swap, with the sink among the attended."""
    attention = relocated.diagonal().softmax(0) * (1 - sink)
    pairs = list(itertools.combinations(range(len(relocated)), 2))
    gaps = torch.stack([(attention[i] - attention[j]).abs() for i, j in pairs])
    alpha = {
        "absolute": lambda: (gaps / temperature).softmax(0),
        "relative": lambda: (gaps / gaps.max() / temperature).softmax(0),
        "proportional": lambda: gaps ** (1 / temperature) / (gaps ** (1 / temperature)).sum(),
    }[weighting]()
    before = torch.stack([torch.stack([relocated[i, i], relocated[j, j]]) for i, j in pairs]).softmax(-1)
    behind = torch.stack([torch.stack([relocated[j, i], relocated[i, j]]) for i, j in pairs]).softmax(-1)
    same, crossed = (torch.cosine_similarity(behind, v, -1) for v in (before, before.flip(-1)))
    return (alpha @ same).item(), (alpha @ crossed).item(), torch.special.entr(alpha).sum().exp().item()


@pytest.mark.parametrize("kind", study.KINDS)
def test_scores_are_those_of_swapping_one_by_one_and_of_the_library(kind):
    head = study.make_head(study.KINDS[kind], 24, 4, torch.Generator().manual_seed(3))
    found = study.score_by_weighting(head, SMALL)
    for (w, (weighting, temperature)), (s, sink) in itertools.product(
        enumerate(SMALL.weightings()), enumerate(SMALL.sinks)
    ):
        expected = one_by_one(head.double(), sink, weighting, temperature)
        assert found[:2, w, s].tolist() == pytest.approx(expected[:2], abs=2e-4)
        assert found[2, w, s].item() == pytest.approx(expected[2], rel=2e-3)
        if weighting != "relative":
            logits = head.diagonal()
            extra = logits.logsumexp(0, keepdim=True) + torch.tensor([sink / (1 - sink)]).log() if sink else None
            options = dict(extra_logits=extra, temperature=temperature, relative=weighting == "proportional")
            scores = swap_scores(head, **options)
            assert found[:2, w, s].tolist() == pytest.approx([x.item() for x in scores[:2]], abs=1e-3)
            assert found[2, w, s].item() == pytest.approx(effective_swaps(logits, **options).item(), rel=5e-3)


@pytest.mark.parametrize("attended", [1, 4])
def test_heads_attend_by_position_and_by_content_as_they_are_made_to(attended):
    for share in (0.0, 0.25, 1.0):
        weights = study.make_head(share, 40, attended, torch.Generator().manual_seed(1)).double().exp()
        by_position, by_content = weights.mean(0) - weights.mean(), weights.mean(1) - weights.mean()
        remade = by_position + by_content[:, None] + weights.mean()
        torch.testing.assert_close(remade, weights, atol=1e-6, rtol=0)  # one part by position and one by content
        for part, of_it in ((by_position, share), (by_content, 1 - share)):
            assert (part.max() - part.median()).item() == pytest.approx(of_it * 0.9 / attended, abs=0.03)
        assert weights.diagonal().sum().item() == pytest.approx(1, abs=1e-5)
        if share == 1.0:
            assert weights.diagonal().topk(attended).values.sum().item() == pytest.approx(0.9, abs=0.05)


def test_a_cell_is_the_mean_of_its_heads_and_its_error_the_larger_one(cells):
    generator = torch.Generator().manual_seed(SMALL.seed)
    heads = {
        (keys, kind): [study.make_head(share, keys, attended, generator) for attended in (1, 4)]
        for keys in SMALL.keys
        for kind, share in study.KINDS.items()
    }
    for row in cells[cells["weighting"].eq("absolute") & cells["temperature"].eq(0.1)].to_dict("records"):
        scores = []
        for head in heads[row["keys"], row["kind"]]:
            sinks = (0.0, row["sink"])
            scores.append([one_by_one(head.double(), sink, "absolute", 0.1)[:2] for sink in sinks])
        positional, symbolic = torch.tensor(scores)[:, 1].T
        share = study.KINDS[row["kind"]]
        wanted = (1.0, 1.0) if share is None else (share, 1 - share)
        mean = [positional.mean().item(), symbolic.mean().item()]
        assert [row["positional"], row["symbolic"]] == pytest.approx(mean, abs=1e-3)
        assert row["error"] == pytest.approx(max(abs(a - b) for a, b in zip(mean, wanted, strict=True)), abs=1e-3)
        moved = (torch.tensor(scores)[:, 1] - torch.tensor(scores)[:, 0]).abs().max().item()
        assert row["moved"] == pytest.approx(moved, abs=2e-3)
        right = purity(positional, symbolic) == {"positional": 1, "symbolic": -1}.get(row["kind"], 0)
        assert row["named"] == right.double().mean().item()


def test_weightings_are_summed_up_and_chosen_by_the_criteria(cells):
    errors = summaries.weighting_errors(cells)
    assert len(errors) == len(SMALL.weightings())
    row = errors.set_index(["weighting", "temperature"]).loc[("absolute", 0.1)]
    own = cells[cells["weighting"].eq("absolute") & cells["temperature"].eq(0.1)]
    expected = [own["error"].max(), own["error"].mean(), own["moved"].max()]
    assert row[["worst", "mean", "moved"]].tolist() == pytest.approx(expected)
    assert not row["withstands"] and errors.loc[errors["weighting"] != "absolute", "withstands"].all()
    assert row["named"] == own[own["kind"].isin(["positional", "symbolic"])]["named"].min()


def test_the_smallest_worst_error_wins_among_what_withstands_sinks_and_the_mean_decides_near_ties():
    rows = [("a", 1.0, 0.1, 0.1, 1.0, False), ("b", 1.0, 0.4, 0.3, 0.0, True), ("b", 2.0, 0.409, 0.2, 0.0, True),
            ("b", 3.0, 0.42, 0.1, 0.0, True)]  # fmt: skip
    errors = pd.DataFrame(rows, columns=["weighting", "temperature", "worst", "mean", "moved", "withstands"])
    assert summaries.choose(errors)[:2] == ("b", 2.0)


def test_the_stored_study_chooses_what_profile_does_unless_told_otherwise():
    stored = load_or_run(study, study.Config.preset_named("paper"), "stored")
    choice = summaries.choose(summaries.weighting_errors(stored.tables["cells"]))
    assert ("proportional", DEFAULT_TEMPERATURE) == choice[:2] and DEFAULT_RELATIVE
