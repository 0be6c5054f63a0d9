"""Every statement of the audit has a test of its name: the verdict, and its counterexample seen anew."""

import math

import pytest
import torch

from possym.scores import exclusion
from possym.theory import (
    h_pos,
    index_gaps,
    positional_weight,
    retrieval,
    retrieval_gaps,
    retrieval_margin,
    stack,
    symbolic_weight,
    t_index,
    t_retrieval,
)
from possym.theory.audit import audit
from possym.theory.check import CHECKS, FAILS, HOLDS, REPAIRED
from possym.theory.heads import self_marking_head
from possym.theory.inputs import letter_vocabulary, number_vocabulary


@pytest.fixture(scope="module")
def verdicts():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # many small tensors: threads only get in each other's way
    yield {verdict.name: verdict for verdict in audit()}
    torch.set_num_threads(threads)


def test_every_statement_has_a_test_of_its_name(verdicts):
    assert set(verdicts) == set(CHECKS)
    assert {name.removeprefix("test_") for name in globals() if name.startswith("test_p")} == set(verdicts)
    for verdict in verdicts.values():
        assert verdict.verdict in (HOLDS, REPAIRED, FAILS)
        assert all(vars(verdict).values())
        assert verdict.counterexample.startswith("none") == (verdict.violation == "none") == (verdict.verdict == HOLDS)


def test_p1_theorem_1(verdicts):
    assert verdicts["p1_theorem_1"].verdict == HOLDS
    # By hand, two keys: λ = (0, 1) and logits that follow the place; Var = 1/4, A = 0, B = 2, N!·N = 4.
    result = exclusion(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    assert [result.variance.item(), result.bound.item()] == pytest.approx([0.25, 0.5])


def test_p1_theorem_2(verdicts):
    assert verdicts["p1_theorem_2"].verdict == HOLDS
    assert "a b and b a, asked for place 0," in verdicts["p1_theorem_2"].counterexample


def test_p1_theorem_3(verdicts):
    assert verdicts["p1_theorem_3"].verdict == HOLDS
    good, bad = (h_pos(2, 4, theta)(torch.tensor([1, 0, 0, 0, 2]))[-1] for theta in (math.pi / 4, 2 * math.pi / 3))
    assert good == 1
    assert verdicts["p1_theorem_3"].counterexample.endswith("the logit of position 0: [3]")
    logits = h_pos(2, 4, 2 * math.pi / 3).logits(torch.tensor([1, 0, 0, 0, 2]))[-1]
    assert logits[0].item() == pytest.approx(logits[3].item()) and bad in (0, 1)


def test_p1_theorem_4(verdicts):
    assert verdicts["p1_theorem_4"].verdict == HOLDS
    assert "answers 1 of 2, 1 of 3" in verdicts["p1_theorem_4"].counterexample
    # a1 b2 | a and b2 a1 | a: the output's two coordinates change places, the answer does not.
    for weight in torch.linspace(0, 1, 11):
        first = weight > 1 - weight
        second = 1 - weight > weight
        assert not (first and second)


def test_p1_theorem_5(verdicts):
    assert verdicts["p1_theorem_5"].verdict == HOLDS


def test_p1_corollary_1(verdicts):
    assert verdicts["p1_corollary_1"].verdict == HOLDS


def test_p1_theorem_6(verdicts):
    assert verdicts["p1_theorem_6"].verdict == HOLDS
    # The limit is where the farthest key's cosine climbs to that of the one before it.
    for n in (2, 3, 4):
        limit = 2 * math.pi / (2 * n - 1)
        assert math.cos(n * limit) == pytest.approx(math.cos((n - 1) * limit))
        assert f"{limit:.3f}" in verdicts["p1_theorem_6"].counterexample


def test_p1_theorem_7_positional(verdicts):
    assert verdicts["p1_theorem_7_positional"].verdict == REPAIRED
    weight = positional_weight(4, 1.05 * 2 * math.pi / 4)
    assert weight[1] > weight[0] and weight[2] > weight[3]


def test_p1_theorem_7_symbolic(verdicts):
    assert verdicts["p1_theorem_7_symbolic"].verdict == REPAIRED
    weight = symbolic_weight(16, 1.5 * 2 * math.pi / 16)
    assert (weight[1:8] < weight[0:7]).any() and (weight[1:8] > weight[0:7]).any()


def test_p2_theorem_3_1_index(verdicts):
    assert verdicts["p2_theorem_3_1_index"].verdict == REPAIRED
    logits = t_index(number_vocabulary(2, 7), 2 * math.pi / 7).logits(torch.tensor([1, 0, 0, 0, 0, 0, 0, 0]))[-1]
    assert logits[0].item() == pytest.approx(logits[7].item(), abs=1e-12)
    # The seventh multiple of 2π/7 is one turn, the tenth of π/5 too.
    said = verdicts["p2_theorem_3_1_index"].counterexample
    assert "2π/7 ties from n = 8" in said and "π/5 ties from n = 11" in said and "1/2, 4/5, 1, 3" in said


def test_p2_theorem_3_1_floating_point(verdicts):
    verdict = verdicts["p2_theorem_3_1_floating_point"]
    assert verdict.verdict == REPAIRED
    # 710 radians are 113 turns but for 6·10⁻⁵.
    assert abs(710 - 113 * 2 * math.pi) < 1e-4 and "n = 711" in verdict.counterexample
    assert torch.tensor(710.0).cos() == 1


def test_p2_theorem_3_1_retrieval(verdicts):
    assert verdicts["p2_theorem_3_1_retrieval"].verdict == HOLDS
    # Past the limit, n = 3, two letters: a match two places back loses to a rival one place back.
    left, right = letter_vocabulary(2, 1)
    limit = math.pi / 3
    tokens = torch.tensor([4, 5, 2])  # a1 b1 ba: sought a, the answer a1
    assert retrieval(tokens, left, right)[0][-1] == 4
    assert t_retrieval(left, right, 0.9 * limit)(tokens)[-1] == 4
    tokens = torch.tensor([5, 4, 2])
    assert t_retrieval(left, right, 0.9 * limit)(tokens)[-1] == 4
    assert t_retrieval(left, right, 1.1 * limit)(tokens)[-1] == 5


def test_p2_theorem_3_1_symbolic(verdicts):
    verdict = verdicts["p2_theorem_3_1_symbolic"]
    assert verdict.verdict == REPAIRED and verdict.counterexample.startswith("θ = 0: B/A ≤ 0, ")
    # By hand, two letters: a match two places back at θ = 0.5 loses cos 0 − cos 0.5 against one place back.
    left, right = letter_vocabulary(2, 1)
    relocated = t_retrieval(left, right, 0.5).relocated(torch.tensor([4, 5, 2]))
    assert relocated[0].tolist() == pytest.approx([math.cos(1.0), math.cos(0.5)])
    still = t_retrieval(left, right, 0.0).relocated(torch.tensor([4, 5, 2]))
    assert exclusion(still).symbolic_deviation == 0


def test_p2_lemma_f1(verdicts):
    assert verdicts["p2_lemma_f1"].verdict == HOLDS


def test_p2_theorem_3_2(verdicts):
    verdict = verdicts["p2_theorem_3_2"]
    assert verdict.verdict == FAILS and "n = 9, query value 2" in verdict.counterexample
    # By hand: n = 9, two places back; the other keys stand up to 6 places from the right one.
    second = max(math.cos(m * 0.8) for m in range(1, 7))
    assert 1 - second > 2 * math.pi**2 / 81
    assert index_gaps(9, 0.8)[2].item() == pytest.approx(1 - second)
    # By hand, eight letters: the query seeks itself and the only other key stands opposite.
    gap = 1 - math.cos(math.pi + 0.0027)
    assert retrieval_gaps(2, 0.0027, 8).largest == pytest.approx(gap)
    assert gap > 1.99 > 1 - math.cos(math.pi / 4)
    # Three letters and no angle: every wrong letter lies ω away, and the bound is met with equality.
    assert retrieval_gaps(5, 0.0, 3).largest == pytest.approx(1 - math.cos(2 * math.pi / 3))
    assert "Retrieval at 84 of 90 points, by up to 1.9" in verdict.violation


@pytest.mark.parametrize("theta", [0.1, 0.8, 2.1, 3.1])
def test_the_largest_discrepancy_of_index_is_bounded_as_the_audit_says(verdicts, theta):
    said = verdicts["p2_theorem_3_2"]
    assert said.counterexample.endswith("Index while nθ ≤ 2π: none; to ⌊n/2⌋ + 1: none")
    for n in range(2, 150):
        # A query for the middle has the multiples up to ⌊n/2⌋ in reach, and no query has fewer.
        largest = 1 - max(math.cos(m * theta) for m in range(1, n // 2 + 1))
        assert float(index_gaps(n, theta).max()) == pytest.approx(largest, abs=1e-12)
        assert largest <= min(1 - math.cos(theta), 2 * math.pi**2 / (n // 2 + 1) ** 2) + 1e-12
        if n * theta <= 2 * math.pi:
            assert 1 - math.cos(theta) <= 2 * math.pi**2 / n**2
            assert largest <= 1 - math.cos(theta) + 1e-12


def test_p2_theorem_3_2_smallest(verdicts):
    verdict = verdicts["p2_theorem_3_2_smallest"]
    assert verdict.verdict == REPAIRED and verdict.violation.startswith("Index at 0 of 6567 points; Retrieval at 57 ")
    # By hand, n = 2: the farthest key is one place away, and 1 − cos(ω − θ) > 1 − cos(ω − 2θ).
    assert retrieval_gaps(2, 0.1, 8).smallest > 1 - math.cos(math.pi / 4 - 0.2) + 1e-3


def test_p2_theorem_3_2_theta_zero(verdicts):
    assert verdicts["p2_theorem_3_2_theta_zero"].verdict == REPAIRED
    assert verdicts["p2_theorem_3_2_theta_zero"].counterexample.endswith("logits 1 and 1")
    left, right = letter_vocabulary(2, 2)
    assert t_retrieval(left, right, 0.0).attention(torch.tensor([4, 5]))[-1].tolist() == [0.5, 0.5]


def test_p2_theorem_3_2_gap(verdicts):
    verdict = verdicts["p2_theorem_3_2_gap"]
    assert verdict.verdict == REPAIRED and "n = 147" in verdict.counterexample
    assert retrieval_margin(146, 0.0027, 8) > 0 > retrieval_margin(147, 0.0027, 8)
    assert (2 * 146 - 3) * 0.0027 < math.pi / 4 < (2 * 147 - 3) * 0.0027


def test_p2_remark_3_1_symbolic(verdicts):
    assert verdicts["p2_remark_3_1_symbolic"].verdict == HOLDS


def test_p2_remark_3_1_positional(verdicts):
    assert verdicts["p2_remark_3_1_positional"].verdict == REPAIRED
    # The head again, longer and by drawing: right, though its logits before the query are all one number.
    left, right = letter_vocabulary(3, 2)
    tokens = torch.randint(len(left), (3000, 8), generator=torch.Generator().manual_seed(0))
    answer, proper = retrieval(tokens, left, right)
    chosen = proper[:, -1] & (right[tokens[:, -1]] >= 0)
    assert chosen.sum() > 100
    head = self_marking_head(3, 2, 8)
    assert torch.equal(head(tokens[chosen], 1.0)[:, -1], answer[chosen, -1])
    relocated = head.relocated(tokens[:1])[0]
    assert (relocated - relocated[0, 0]).abs().max() < 1e-12
    assert 0.9 < head.attention(tokens[:1], 1.0)[0, -1, -1] < 1


def test_p2_appendix_f_number(verdicts):
    assert verdicts["p2_appendix_f_number"].verdict == HOLDS


def test_p2_appendix_f_letter(verdicts):
    verdict = verdicts["p2_appendix_f_letter"]
    assert verdict.verdict == REPAIRED
    # ab bd d1 ca: c a → ab, a → … the path runs forwards, so "bd" is gone when the query asks for it.
    names = ["ab", "bd", "d1", "ca"]
    left = torch.tensor(["abcd".index(name[0]) for name in names])
    right = torch.tensor(["abcd".find(name[1]) for name in names])
    theta = 0.9 * math.pi / 16
    forwards, backwards = torch.tensor([0, 1, 2, 3]), torch.tensor([2, 1, 0, 3])
    head = t_retrieval(left, right, theta)
    assert verdict.counterexample == "ab bd d1 ca (3 hops)" and verdict.violation.startswith("32 of 9,684 ")
    assert stack(head, 3, 3)(forwards)[-1] != 2
    assert stack(head, 3, 3)(backwards)[-1] == 2
