"""Checks of the theorems, lemmas and remarks of 2605.31558, each named after its statement."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from possym.scores import exclusion, relocated_logits, swap_scores
from possym.theory.check import Found, check, spell
from possym.theory.discrepancy import (
    first_error,
    index_beta,
    index_bound,
    index_gaps,
    lemma_beta,
    measured_beta,
    nearest_turn,
    retrieval_beta,
    retrieval_bound,
    retrieval_error_rate,
    retrieval_gaps,
    retrieval_margin,
)
from possym.theory.functions import index, retrieval
from possym.theory.heads import self_marking_head, stack, symbolic_head, t_index, t_retrieval
from possym.theory.inputs import letter_vocabulary, number_vocabulary, sequences, worst_index_inputs

P2 = "2605.31558"
THETAS = [0.8, 0.866] + [0.1 * k for k in range(1, 32)]


@check(
    P2,
    "Theorem 3.1, Index",
    "T_Index with hard attention computes Index at every length, for θ irrational.",
    "θ/2π, not θ, is irrational (at one length n: mθ is no multiple of 2π for 1 ≤ m < n); every integer points inside "
    "the sequence",
    "head against the function on every valid sequence; exact gaps of irrational and of rational angles; an angle is "
    "alone if no key ties with the right one",
    "n = 2 … 5, 2 letters, integers below n, θ = 0.8, 1, √2; gaps of θ = 2π/7, √2, π/5, 1/2, 4/5, 1, 3 for n ≤ 500",
)
def p2_theorem_3_1_index() -> Found:
    """Check T_Index on every valid sequence, and on angles that are irrational, and irrational over 2π, or not."""
    repaired = True
    for theta in (0.8, 1.0, math.sqrt(2)):
        for length in (2, 3, 4, 5):
            values = number_vocabulary(2, length - 1)
            tokens = sequences(len(values), length)
            inside = (values[tokens] <= torch.arange(length)).all(-1)
            answers = t_index(values, theta)(tokens[inside])
            repaired &= bool((answers == index(tokens[inside], values)).all())
    irrational = {"2π/7": 2 * math.pi / 7, "√2": math.sqrt(2), "π/5": math.pi / 5}
    rational = {"1/2": 0.5, "4/5": 0.8, "1": 1.0, "3": 3.0}
    over_turn = {"√2", *rational}  # π is irrational, so that a rational angle is no rational part of a turn
    ties: dict[str, int] = {}
    for name, theta in (irrational | rational).items():
        tied = [n for n in range(2, 501) if float(index_gaps(n, theta).min()) < 1e-9]
        ties |= {name: tied[0]} if tied else {}
    repaired &= not over_turn & set(ties)
    broken = [f"θ = {name} ties from n = {ties[name]}" for name in irrational if name in ties]
    alone = [name for name in rational if name not in ties]
    text = f"{', '.join(broken)}, though irrational; rational and alone up to 500: {', '.join(alone)}"
    return Found(not broken, repaired, text, f"{len(broken)} of {len(irrational)} irrational angles tie")


@check(
    P2,
    "Theorem 3.1, floating point",
    "A single angle with θ/2π irrational finds its key at every length.",
    "exact arithmetic; in floating point, lengths up to the first m with |mθ mod 2π| < √(ε/2)",
    "continued fraction of θ/2π; then, in float32, the logits at that length and at every shorter one; in float64, "
    "cos(m) alone",
    "θ = 0.8 and 1 in float32, θ = 1 in float64",
)
def p2_theorem_3_1_floating_point() -> Found:
    """Find the shortest length at which two cosines round to one number, and see them tie."""
    found, ties, sharp = [], [], True
    v = torch.tensor([0.0, 1.0])
    for theta in (0.8, 1.0):
        m = nearest_turn(theta, math.sqrt(torch.finfo(torch.float32).eps / 2))
        far, own = relocated_logits(
            v,
            v.expand(2, 2),
            query_position=m,
            positions=torch.tensor([0, m]),
            frequencies=torch.tensor([theta], dtype=torch.float64),
            layout="half",
            scale=1.0,
        ).diagonal()
        ties.append(bool(far >= own))
        sharp &= first_error(theta, torch.float32, m + 1) == m + 1
        found.append(f"θ = {theta:g}, float32: n = {m + 1:,}")
    m = nearest_turn(1.0, math.sqrt(torch.finfo(torch.float64).eps / 2))
    ties.append(math.cos(m) == 1.0)
    found.append(f"θ = 1, float64: n = {m + 1:,}")
    return Found(not any(ties), sharp and all(ties), "ties at " + "; ".join(found), f"{sum(ties)} of {len(ties)} tie")


@check(
    P2,
    "Theorem 3.1, Retrieval",
    "T_Retrieval with hard attention computes Retrieval on proper inputs up to length n₀, for 0 < θ < ω/(2n₀).",
    "as printed; exact limit θ < ω/(2n₀ − 3)",
    "head against the function on every proper sequence; sign of the exact margin at multiples of the limit "
    "ω/(2n − 3); margin of every letter",
    "n = 2 … 4 with 2 letters and 2 integers or 3 and 1, θ = 0.4995·ω/n; margins for |ALPH| = 2 … 8 and "
    "n = 2, 3, 5, 10, 40, θ from 0.1 to 1.5 times the exact limit; letters one by one at n = 8",
)
def p2_theorem_3_1_retrieval() -> Found:
    """Check T_Retrieval on every proper sequence, the exact limit of θ, and that no letter is worse off than others."""
    wrong, spread = 0, 0.0
    for alphabet, integers in ((2, 2), (3, 1)):
        left, right = letter_vocabulary(alphabet, integers)
        for length in (2, 3, 4):
            head = t_retrieval(left, right, 0.999 * math.pi / alphabet / length)
            tokens = sequences(len(left), length)
            answer, proper = retrieval(tokens, left, right)
            wrong += int((head(tokens) != answer)[:, -1][proper[:, -1]].sum())
    fails, right_below, tried = [], 0, 0
    for alphabet in range(2, 9):
        spread = max(spread, margin_spread(alphabet, length=8))
        for length in (2, 3, 5, 10, 40):
            limit = 2 * math.pi / alphabet / (2 * length - 3)
            for step in (0.1, 0.5, 0.9, 0.999, 1.001, 1.1, 1.5):
                if step * limit > math.pi:  # the same as turning the other way, by 2π − θ
                    continue
                positive = retrieval_margin(length, step * limit, alphabet) > 0
                tried += step < 1
                right_below += positive and step < 1
                fails += [] if positive else [step]
    holds = not wrong and right_below == tried and spread < 1e-12
    text = f"the margin is positive at {right_below} of {tried} angles below ω/(2n − 3), and the least multiple of it "
    return Found(holds, holds, f"{text}with a wrong answer is {min(fails):g}", f"{wrong} wrong answers")


def margin_spread(alphabet: int, length: int) -> float:
    """Return how far the margins of single letters lie from the exact smallest one, at 0.9 of the largest angle."""
    left, right = letter_vocabulary(alphabet, 1)
    theta = 0.9 * 2 * math.pi / alphabet / (2 * length - 3)
    head = t_retrieval(left, right, theta)
    target, apart = alphabet**2 + torch.arange(alphabet), 0.0
    for sought in range(alphabet):
        rival = (sought - 1) % alphabet  # the first letter's rival is the last one, ω before it on the circle
        tokens = target[rival].repeat(length)
        tokens[1] = target[sought]
        tokens[-1] = ((left == rival) & (right == sought)).int().argmax()
        logits = head.logits(tokens)[-1]
        margin = float(logits[1] - logits[torch.arange(length) != 1].max())
        apart = max(apart, abs(margin - retrieval_margin(length, theta, alphabet)))
    return apart


@check(
    P2,
    "Theorem 3.1, the kind of T_Retrieval",
    "T_Retrieval is a symbolic head: its logits follow the keys' contents.",
    "θ = 0; for θ > 0 they follow the position too, by little where nθ is small",
    "symbolic deviation B and symbolic score of relocated logits, random tokens",
    "|ALPH| = 8, 16 keys, 500 sequences; θ = 0, 0.0027, 0.01; τ = 1e-4",
)
def p2_theorem_3_1_symbolic() -> Found:
    """Check whether B is zero, and what the score says of it."""
    left, right = letter_vocabulary(8, 8)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(left), (500, 17), generator=generator)
    tokens[:, -1] = torch.randint(64, (500,), generator=generator)  # letter–letter queries
    share, score = {}, {}
    for theta in (0.0, 0.0027, 0.01):
        relocated = t_retrieval(left, right, theta).relocated(tokens)
        found = exclusion(relocated)
        share[theta] = float((found.symbolic_deviation / found.positional_deviation).max())
        score[theta] = float(swap_scores(relocated).symbolic.min())
    printed = all(value < 1e-20 for value in share.values())
    said = ", ".join(
        f"θ = {theta:g}: B/A ≤ {share[theta]:.1g}, score {1 - score[theta]:.0e} below 1" for theta in share
    )
    return Found(printed, share[0.0] < 1e-20, said, f"B up to {max(share.values()):.1%} of A")


@check(
    P2,
    "Lemma F.1",
    "With a large enough β a softmax gives hard attention's answer, for lengths up to n₀.",
    "a positive smallest margin; β > ln(n − 1)/margin suffices",
    "smallest β by bisection on running heads, compared with the exact β and with ln(n − 1)/margin",
    "Index θ = 0.8, n = 2, 3, 8, 24, the worst input of every query value; Retrieval θ = 0.0027, |ALPH| = 3, "
    "n = 2 … 4, every proper input with a letter–letter query",
)
def p2_lemma_f1() -> Found:
    """Check that the measured β is the exact one, and below the lemma's."""
    holds, ratios = True, {}
    for length in (2, 3, 8, 24):
        values = number_vocabulary(2, length - 1)
        tokens, answer = worst_index_inputs(length, values)
        enough = lemma_beta(length, float(index_gaps(length, 0.8).min())) + 1e-6
        exact = index_beta(length, 0.8)
        holds &= exact <= enough
        measured = measured_beta(t_index(values, 0.8), tokens, answer, enough + 1)
        holds &= abs(measured - exact) < 1e-6 * (1 + exact)
        ratios[length] = exact / enough
    left, right = letter_vocabulary(3, 1)
    head = t_retrieval(left, right, 0.0027)
    for length in (2, 3, 4):
        tokens = sequences(len(left), length)
        answer, proper = retrieval(tokens, left, right)
        wanted = proper[:, -1] & (right[tokens[:, -1]] >= 0)
        exact = retrieval_beta(length, 0.0027, 3)
        enough = lemma_beta(length, retrieval_margin(length, 0.0027, 3)) + 1e-6
        holds &= exact <= enough
        measured = measured_beta(head, tokens[wanted], answer[wanted, -1], enough + 1)
        holds &= abs(measured - exact) < 1e-6 * (1 + exact)
    del ratios[2]  # one other key, so that ln(n − 1) is 0
    lengths = ", ".join(map(str, ratios))
    text = f"Index needs {min(ratios.values()):.2f} to {max(ratios.values()):.2f} of the lemma's β (n = {lengths})"
    return Found(holds, holds, text, "a softmax that errs with the lemma's β, or needs another than the exact one")


@check(
    P2,
    "Theorem 3.2",
    "Δ_Index(n) ≤ min{1 − cos θ, 2π²/n²} and Δ_Retrieval(n) ≤ 1 − cos(ω − nθ), Δ the largest discrepancy over inputs "
    "(definition 3.1 as printed).",
    "for Index: nθ ≤ 2π, where 2π²/n² says nothing, or ⌊n/2⌋ + 1 in place of n; for Retrieval: θ = 0 and three "
    "letters, where no letter is farther than ω",
    "exact gaps for every query value of Index, under the printed bound, while nθ ≤ 2π, and under the bound for "
    "⌊n/2⌋ + 1; exact extremes over all inputs of Retrieval with one matching key",
    "Index: n = 2 … 200, θ = 0.1 to 3.1 in steps of 0.1, and 0.866; Retrieval: |ALPH| = 3, 4, 8; n = 2, 3, 4, 6, 10, "
    "20; θ = 0, 0.01, 0.1, 0.5, 0.9 times ω/(2n − 1)",
)
def p2_theorem_3_2() -> Found:
    """Compare the largest discrepancies with the bounds, and say whether a condition leaves the statement anything."""
    index, retrieval = index_excess("largest", index_bound), retrieval_excess("largest", shift=0)
    short = index_excess("largest", lambda n, theta: index_bound(n, theta) if n * theta <= 2 * math.pi else math.inf)
    half = index_excess("largest", lambda n, theta: index_bound(n // 2 + 1, theta))
    kept = f"Index while nθ ≤ 2π: {short.first or 'none'}; to ⌊n/2⌋ + 1: {half.first or 'none'}"
    # A condition repairs it only if the bound's second term then binds somewhere, and Retrieval keeps most points.
    binds = any(n * t <= 2 * math.pi and 2 * math.pi**2 / n**2 < 1 - math.cos(t) for t in THETAS for n in range(2, 201))
    repaired = not short.count and binds and retrieval.count < retrieval.points / 2
    text = f"{index.first}; {retrieval.first}; {kept}"
    return Found(
        not index.count and not retrieval.count, repaired, text, f"{index.said('Index')}; {retrieval.said('Retrieval')}"
    )


@check(
    P2,
    "Theorem 3.2, with the smallest discrepancy",
    "The bounds of theorem 3.2 hold with Δ the smallest discrepancy over inputs, which a guarantee needs.",
    "for Retrieval n counts the keys before the query (length n + 1), and (2n − 1)θ < ω",
    "as for the printed definition",
    "as for the printed definition",
)
def p2_theorem_3_2_smallest() -> Found:
    """Compare the smallest discrepancies with the bounds, for n with and without the query."""
    index = index_excess("smallest", index_bound)
    printed, repaired = (retrieval_excess("smallest", shift) for shift in (0, 1))
    holds = not index.count and not printed.count
    text = f"{index.first or 'Index: none'}; {printed.first}"
    return Found(
        holds, not index.count and not repaired.count, text, f"{index.said('Index')}; {printed.said('Retrieval')}"
    )


class Excess(NamedTuple):
    """Where a discrepancy exceeds its bound: how often, the first point in words, and the largest excess."""

    count: int  # type: ignore[assignment]
    points: int
    first: str
    largest: float

    def said(self, name: str) -> str:
        """Return count and size in words."""
        return f"{name} at {self.count} of {self.points} points" + (f", by up to {self.largest:.2g}" * bool(self.count))


def index_excess(reading: str, bound: Callable[[int, float], float]) -> Excess:
    """Return where T_Index's smallest or largest discrepancy exceeds a bound(n, θ)."""
    found, largest = [], 0.0
    for theta in THETAS:
        for n in range(2, 201):
            gaps = index_gaps(n, theta)
            gap, query = gaps.min(0) if reading == "smallest" else gaps.max(0)
            limit = bound(n, theta)
            if gap > limit + 1e-12:
                largest = max(largest, float(gap) - limit)
                found.append(f"θ = {theta:g}, n = {n}, query value {int(query)}: {float(gap):.5f} > {limit:.5f}")
    return Excess(len(found), len(THETAS) * 199, "".join(found[:1]), largest)


def retrieval_excess(reading: str, shift: int) -> Excess:
    """Return where T_Retrieval's smallest or largest discrepancy at length n + shift exceeds the bound at n."""
    found, points, largest = [], 0, 0.0
    for alphabet in (3, 4, 8):
        for n in (2, 3, 4, 6, 10, 20):
            for part in (0.0, 0.01, 0.1, 0.5, 0.9):
                theta = part * 2 * math.pi / alphabet / (2 * n - 1)
                gap = getattr(retrieval_gaps(n + shift, theta, alphabet), reading)
                bound = retrieval_bound(n, theta, alphabet)
                points += 1
                if gap > bound + 1e-12:
                    largest = max(largest, gap - bound)
                    found.append(f"|ALPH| = {alphabet}, n = {n}, θ = {theta:.5f}: {gap:.5f} > {bound:.5f}")
    return Excess(len(found), points, "".join(found[:1]), largest)


@check(
    P2,
    "Theorem 3.2, θ = 0",
    "With θ = 0 the discrepancy of T_Retrieval stays above zero for every n.",
    "one key has the sought left letter (no copies of the answer) and the query is a letter–letter token",
    "exact smallest discrepancy; smallest margin",
    "|ALPH| = 3, 4, 8; n = 2, 3, 10, 100",
)
def p2_theorem_3_2_theta_zero() -> Found:
    """Check θ = 0 with one match, with copies, and with a letter–integer query."""
    repaired, zero = True, {"copies of the answer": 0, "a query that keeps itself": 0}
    for alphabet in (3, 4, 8):
        for length in (2, 3, 10, 100):
            expected = 1 - math.cos(2 * math.pi / alphabet)
            repaired &= abs(retrieval_gaps(length, 0.0, alphabet).smallest - expected) < 1e-12
            zero["copies of the answer"] += retrieval_gaps(length, 0.0, alphabet, single=False).smallest <= 0
            zero["a query that keeps itself"] += retrieval_margin(length, 0.0, alphabet, integer_query=True) <= 0
    left, right = letter_vocabulary(3, 2)
    first, second = ((left == 0) & (right < 0)).nonzero().flatten().tolist()
    lost = t_retrieval(left, right, 0.0).logits(torch.tensor([first, second]))[-1]
    text = f"a1 a2, where a2 should keep itself: logits {lost[0]:g} and {lost[1]:g}"
    said = ", ".join(f"zero at {count} of 12 points with {name}" for name, count in zero.items())
    return Found(not any(zero.values()), repaired, text, said)


@check(
    P2,
    "Theorem 3.2, what it is used for",
    "T_Retrieval keeps a gap, and so its answer, where its bound 1 − cos(ω − nθ) stays above zero.",
    "(2n − 3)θ < ω; a bound from above says nothing about how small a gap becomes, and a discrepancy has no sign",
    "bound and exact smallest discrepancy against the exact signed margin; error rate on random inputs",
    "|ALPH| = 8, θ = 0.0027, n = 2 … 290",
)
def p2_theorem_3_2_gap() -> Found:
    """Find lengths where bound and discrepancy are positive and the margin is not, and how often answers are wrong."""
    lengths = range(2, 291)
    margins = {n: retrieval_margin(n, 0.0027, 8) for n in lengths}
    positive = [n for n in lengths if retrieval_bound(n, 0.0027, 8) > 0]
    wrong = [n for n in positive if margins[n] <= 0]
    repaired = all((margins[n] > 0) == ((2 * n - 3) * 0.0027 < 2 * math.pi / 8) for n in lengths)
    first, last = (wrong or [0])[0], (wrong or [0])[-1]
    seen = wrong[::24]
    unsigned = [n for n in seen if retrieval_gaps(n, 0.0027, 8).smallest > 0]
    text = (
        f"wrong answers from n = {first}, where the bound still reads {retrieval_bound(max(first, 2), 0.0027, 8):.4f}; "
        f"the discrepancy is positive at {len(unsigned)} of {len(seen)} such lengths"
    )
    rates = ", ".join(f"{retrieval_error_rate(n, 0.0027, 8):.2g} at {n}" for n in (first, 200, last) if n > 1)
    size = f"margin down to {min(margins.values()):.2f}; on random inputs the share of wrong answers is {rates}"
    return Found(not wrong, repaired, text, size)


@check(
    P2,
    "Remark 3.1, symbolic",
    "A purely symbolic head cannot compute Index.",
    "at least two keys before the query (n ≥ 3)",
    "two inputs with the same keys in another order; random symbolic heads with random values",
    "n = 3 … 5, 2 letters, integers below n, 20 heads each",
)
def p2_remark_3_1_symbolic() -> Found:
    """Check that a symbolic head has one output where Index has two answers."""
    generator = torch.Generator().manual_seed(0)
    told_apart, answers, shown = 0, set(), ""
    for length in (3, 4, 5):
        values = number_vocabulary(2, length - 1)
        filler = [1] * (length - 3)
        pair = torch.tensor([[*filler, 0, 1, 2], [*filler, 1, 0, 2]])
        found = index(pair, values)[:, -1].tolist()
        answers |= {tuple(found)}
        words = ["a", "b", *map(str, range(1, length))]
        said = [f"{spell(row, words)} → {words[answer]}" for row, answer in zip(pair.tolist(), found, strict=True)]
        shown = shown or " and ".join(said)
        size = len(values)
        for _ in range(20):
            scores, outputs = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(2))
            result = symbolic_head(scores, outputs).output(pair, 1.0)[:, -1]
            told_apart += not torch.allclose(result[0], result[1], rtol=0, atol=1e-12)
    holds = not told_apart and all(one != other for one, other in answers)
    return Found(holds, holds, f"one output for {shown}", f"{told_apart} pairs told apart")


@check(
    P2,
    "Remark 3.1, positional",
    "A purely positional head cannot compute Retrieval.",
    "values are the identity (no linear map, no residual that reads the query's token)",
    "for identity values the inputs of theorem 4 of 2511.11579; for others a positional head on every proper input",
    "identity: n = 3 … 6, 200 heads each; other values: 2 letters, 2 integers, n = 2 … 4",
)
def p2_remark_3_1_positional() -> Found:
    """Check both: identity values cannot, and a linear map of the values can."""
    generator = torch.Generator().manual_seed(0)
    left, right = letter_vocabulary(2, 2)
    query = int(((left == 0) & (right == 1)).int().argmax())
    target = [int(((left == letter) & (right < 0)).int().argmax()) for letter in (0, 1)]
    repaired = True
    for length in range(3, 7):
        keys = torch.full((length - 1, length - 1), target[0]).fill_diagonal_(target[1])
        tokens = torch.cat([keys, torch.full((length - 1, 1), query)], 1)
        repaired &= bool((retrieval(tokens, left, right)[0][:, -1] == target[1]).all())
        logits = 3 * torch.randn(200, length, generator=generator, dtype=torch.float64)
        one_hot = torch.eye(len(left), dtype=torch.float64)
        answers = torch.einsum("hj,bjo->hbo", logits.softmax(-1), one_hot[tokens]).argmax(-1)
        repaired &= not bool((answers == target[1]).all(-1).any())
    solved, counted = True, 0
    for length in (2, 3, 4):
        head = self_marking_head(2, 2, length)
        tokens = sequences(len(left), length)
        answer, proper = retrieval(tokens, left, right)
        right_there = (head(tokens, 1.0)[:, -1] == answer[:, -1])[proper[:, -1]]
        solved, counted = solved and bool(right_there.all()), counted + len(right_there)
        if length > 2:
            solved &= bool((exclusion(head.relocated(tokens[::50])).positional_deviation < 1e-20).all())
    text = (
        f"self_marking_head, positional before the query: {'right' if solved else 'wrong'} on {counted:,} proper inputs"
    )
    return Found(not solved, repaired, text, "every proper input answered")


@check(
    P2,
    "Appendix F, number task",
    "f_NUM = Reflexive^(ℓ−h)(Index^h(σ)) at the last position follows h hops.",
    "every integer on the path points inside; Reflexive is not needed, Index^ℓ gives the same",
    "stack of heads against following the integers one by one",
    "2 letters, integers below n, n = 3 … 5, every sequence whose path ends at a letter; ℓ = h … h + 2",
)
def p2_appendix_f_number() -> Found:
    """Check the composition on every sequence with a path that stays inside."""
    holds = True
    for length in (3, 4, 5):
        values = number_vocabulary(2, length - 1)
        tokens = sequences(len(values), length)
        position, hops = torch.full((len(tokens),), length - 1), torch.zeros(len(tokens), dtype=torch.int64)
        for _ in range(length):
            jump = values[tokens.gather(1, position.clamp(min=0)[:, None])[:, 0]]
            hops += ((jump > 0) & (position >= 0)).long()
            position = torch.where(position >= 0, position - jump, position)
        head = t_index(values, 0.8)
        for h in range(1, length):
            chosen = (position >= 0) & (hops == h)
            answer = tokens[chosen].gather(1, position[chosen][:, None])[:, 0]
            for layers in (h, h + 1, h + 2):
                holds &= bool((stack(head, h, layers)(tokens[chosen])[:, -1] == answer).all())
                holds &= bool((stack(head, layers, layers)(tokens[chosen])[:, -1] == answer).all())
    return Found(holds, holds, violation="wrong answers")


@check(
    P2,
    "Appendix F, letter task",
    "f_LET = Reflexive^(ℓ−h)(Retrieval^h(σ)) at the last position follows h hops, for a path unique in its letters.",
    "every letter–letter token of the path stands before the one that points to it",
    "stack of heads against following the letters one by one",
    "4 letters, 1 integer, n = 4, every sequence with a unique path; θ = 0.9·ω/(2n); ℓ = h … h + 2",
)
def p2_appendix_f_letter() -> Found:
    """Check the composition on paths that run backwards, and find one that does not."""
    left, right = letter_vocabulary(4, 1)
    names = ["abcd"[a] + ("abcd"[b] if b >= 0 else "1") for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    tokens = sequences(len(left), 4)
    head = t_retrieval(left, right, 0.9 * 2 * math.pi / 4 / 8)
    rows = torch.arange(len(tokens))
    position, hops = torch.full((len(tokens),), 3), torch.zeros(len(tokens), dtype=torch.int64)
    unique, backwards = torch.ones(len(tokens), dtype=torch.bool), torch.ones(len(tokens), dtype=torch.bool)
    for _ in range(3):
        sought = right[tokens[rows, position]]
        going = sought >= 0
        match = left[tokens] == sought[:, None]
        unique &= ~going | (match.sum(-1) == 1)
        following = match.int().argmax(-1)
        backwards &= ~going | (following < position) | (right[tokens[rows, following]] < 0)
        hops += going.long()
        position = torch.where(going, following, position)
    ends = unique & (right[tokens[rows, position]] < 0)
    repaired, examples, wrong_of, counted = True, [], 0, 0
    for h in (1, 2, 3):
        chosen = ends & (hops == h)
        for layers in (h, h + 1, h + 2):
            wrong = stack(head, h, layers)(tokens[chosen])[:, -1] != tokens[rows, position][chosen]
            repaired &= not bool((wrong & backwards[chosen]).any())
            examples += [f"{spell(row, names)} ({h} hops)" for row in tokens[chosen][wrong][:1].tolist()]
        wrong_of, counted = wrong_of + int(wrong.sum()), counted + len(wrong)
    size = f"{wrong_of:,} of {counted:,} sequences answered wrongly, {wrong_of / counted:.1%}"
    return Found(not examples, repaired, "".join(examples[:1]), size)
