"""Checks of the theorems, lemmas and remarks of 2605.31558, each named after its statement."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from possym.scores import exclusion, relocated_logits
from possym.theory.check import check, sequences
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
    retrieval_gaps,
    retrieval_margin,
)
from possym.theory.functions import index, retrieval
from possym.theory.heads import ConstructedHead, stack, t_index, t_retrieval, turned
from possym.theory.statements_p1 import symbolic_head

P2 = "2605.31558"


def number_vocabulary(letters: int, integers: int) -> Tensor:
    """Return the values of a vocabulary of letters (0) followed by the integers 1, 2, …

    >>> number_vocabulary(2, 3)
    tensor([0, 0, 1, 2, 3])
    """
    return torch.cat([torch.zeros(letters, dtype=torch.int64), torch.arange(1, integers + 1)])


def letter_vocabulary(alphabet: int, integers: int) -> tuple[Tensor, Tensor]:
    """Return left and right letters of all letter–letter tokens, then of all letter–integer tokens (right −1).

    >>> letter_vocabulary(2, 1)
    (tensor([0, 0, 1, 1, 0, 1]), tensor([ 0,  1,  0,  1, -1, -1]))
    """
    letters = torch.arange(alphabet)
    left = torch.cat([letters.repeat_interleave(alphabet), letters.repeat_interleave(integers)])
    return left, torch.cat([letters.repeat(alphabet), torch.full((alphabet * integers,), -1)])


def worst_index_inputs(length: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return inputs where the asked place holds letter 0 and all others letter 1, one for each query value ≥ 1.

    The vocabulary starts with two letters; the answers are all 0.
    """
    value = torch.arange(1, length)
    tokens = torch.ones(length - 1, length, dtype=torch.int64)
    tokens[value - 1, length - 1 - value] = 0
    tokens[:, -1] = (values[None, :] == value[:, None]).int().argmax(-1)
    return tokens, torch.zeros(length - 1, dtype=torch.int64)


def worst_retrieval_inputs(length: int, alphabet: int) -> tuple[Tensor, Tensor]:
    """Return the inputs on which T_Retrieval's softmax needs the largest β, and their answers.

    One key has the sought first letter, every other token one wrong left letter, the last of the alphabet, ω
    before the sought one on the circle. One input for each distance 0 … n − 1 of the answer; at distance 0 the
    query seeks itself, else all wrong tokens are the query's own.

    >>> worst_retrieval_inputs(2, 2)  # "b1 aa" and "a1 ba"
    (tensor([[5, 0],
            [4, 2]]), tensor([0, 4]))
    """
    query, target = alphabet * (alphabet - 1), alphabet**2
    tokens = torch.full((length, length), query)
    tokens[1:, :-1] = tokens[1:, :-1].fill_diagonal_(target)
    tokens[0, :-1] = target + alphabet - 1
    tokens[0, -1] = 0
    answer = torch.full((length,), target)
    answer[0] = 0
    return tokens, answer


def self_marking_head(alphabet: int, integers: int, length: int) -> ConstructedHead:
    """Return a purely positional head that computes Retrieval, with values that are not the identity.

    All keys are alike and all queries too, so a logit depends on the distance alone. The angles 2πk/n,
    k = 1 … n − 1, add up to the same logit at every distance from 1 to n − 1 and a larger one at 0, so that the
    query's own place gets over nine tenths of the weight and the other places share the rest evenly. The value
    of a token is its one-hot vector plus, for a letter–letter token, 3 at every token whose left letter is its
    right letter. So the query marks the tokens that it could become, and the small weights say which is there.

    Args:
        alphabet, integers: see `letter_vocabulary`.
        length: longest input n, the query included.

    >>> left, right = letter_vocabulary(2, 1)  # aa ab ba bb a1 b1
    >>> self_marking_head(2, 1, 3)(torch.tensor([4, 5, 1]), beta=1.0)[-1]  # "a1 b1 ab" reads b1
    tensor(5)
    """
    left, right = letter_vocabulary(alphabet, integers)
    marks = (left[None, :] == right[:, None]).double()
    angles = 2 * math.pi / length * torch.arange(1, length, dtype=torch.float64)
    strength = math.log(9 * length) / length
    v = turned(torch.zeros(len(left), length - 1, dtype=torch.float64)).flatten(1)
    values = torch.eye(len(left), dtype=torch.float64) + 3 * marks
    return ConstructedHead(strength * v, v, values, angles)


@check(
    P2,
    "Theorem 3.1, Index",
    "T_Index with hard attention computes Index, for θ irrational.",
    "mθ is no multiple of 2π for 1 ≤ m < n (for all lengths: θ/2π irrational); every integer points inside",
    "head against the function on every valid sequence; exact gaps",
    "n = 2 … 5, 2 letters, integers below n, θ = 0.8, 1, √2; gaps up to n = 500; θ = 2π/7 at n = 8",
)
def p2_theorem_3_1_index() -> tuple[bool, bool, str]:
    """Check T_Index on every valid sequence, and the angle 2π/7."""
    repaired = True
    for theta in (0.8, 1.0, math.sqrt(2)):
        repaired &= all(float(index_gaps(n, theta).min()) > 1e-9 for n in range(2, 501))
        for length in (2, 3, 4, 5):
            values = number_vocabulary(2, length - 1)
            tokens = sequences(len(values), length)
            inside = (values[tokens] <= torch.arange(length)).all(-1)
            answers = t_index(values, theta)(tokens[inside])
            repaired &= bool((answers == index(tokens[inside], values)).all())
    printed = float(index_gaps(8, 2 * math.pi / 7).min()) > 1e-12
    return printed, repaired, "θ = 2π/7 is irrational; at n = 8 the places 0 and 7 have one logit"


@check(
    P2,
    "Theorem 3.1, irrational θ",
    "An irrational θ makes the largest logit of T_Index unique at every length.",
    "the condition is on θ/2π: 2π/7 is irrational and fails; since π is irrational, every rational θ ≠ 0 meets it",
    "exact gaps in float64",
    "θ = 2π/7, √2, π/5, 1/2, 4/5, 1, 3; n ≤ 500",
)
def p2_theorem_3_1_irrational() -> tuple[bool, bool, str]:
    """Check uniqueness on angles known to be rational or irrational."""
    irrational = {"2π/7": 2 * math.pi / 7, "√2": math.sqrt(2), "π/5": math.pi / 5}
    rational = {"1/2": 0.5, "4/5": 0.8, "1": 1.0, "3": 3.0}
    unique = {
        name: all(float(index_gaps(n, theta).min()) > 1e-9 for n in range(2, 501))
        for name, theta in (irrational | rational).items()
    }
    broken = [name for name in irrational if not unique[name]]
    working = [name for name in rational if unique[name]]
    return not broken, False, f"irrational but not alone: {', '.join(broken)}; rational and alone: {', '.join(working)}"


@check(
    P2,
    "Theorem 3.1, floating point",
    "A single angle with θ/2π irrational finds its key at every length.",
    "exact arithmetic; in floating point lengths are at most the first m with |mθ mod 2π| < √(ε/2)",
    "continued fraction of θ/2π; in float32 then the logits, of every shorter length too; in float64 cos(m) alone",
    "θ = 0.8 and 1 in float32, θ = 1 in float64",
)
def p2_theorem_3_1_floating_point() -> tuple[bool, bool, str]:
    """Find the shortest length at which two cosines round to one number, and see them tie."""
    found, tie, sharp = [], True, True
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
        tie &= bool(far >= own)
        sharp &= first_error(theta, torch.float32, m + 1) == m + 1
        found.append(f"θ = {theta:g}, float32: n = {m + 1:,}")
    m = nearest_turn(1.0, math.sqrt(torch.finfo(torch.float64).eps / 2))
    tie &= math.cos(m) == 1.0
    found.append(f"θ = 1, float64: n = {m + 1:,}")
    return not tie, sharp, "ties at " + "; ".join(found)


@check(
    P2,
    "Theorem 3.1, Retrieval",
    "T_Retrieval with hard attention computes Retrieval on proper inputs up to length n₀, for 0 < θ < ω/(2n₀).",
    "as printed; exact limit θ < ω/(2n₀ − 3)",
    "head against the function on every proper sequence; sign of the exact margin on a grid of θ",
    "n = 2 … 4 with 2 letters and 2 integers or 3 and 1, θ = 0.4995·ω/n; margins for |ALPH| = 2 … 8 and "
    "n = 2, 3, 5, 10, 40, θ from 0.1 to 1.5 times the exact limit",
)
def p2_theorem_3_1_retrieval() -> tuple[bool, bool, str]:
    """Check T_Retrieval on every proper sequence and find the exact limit of θ."""
    holds = True
    for alphabet, integers in ((2, 2), (3, 1)):
        left, right = letter_vocabulary(alphabet, integers)
        for length in (2, 3, 4):
            head = t_retrieval(left, right, 0.999 * math.pi / alphabet / length)
            tokens = sequences(len(left), length)
            answer, proper = retrieval(tokens, left, right)
            right_there = head(tokens) == answer
            holds &= bool(right_there[:, -1][proper[:, -1]].all())
    sharp = True
    for alphabet in range(2, 9):
        for length in (2, 3, 5, 10, 40):
            limit = 2 * math.pi / alphabet / (2 * length - 3)
            for step in (0.1, 0.5, 0.9, 0.999, 1.001, 1.1, 1.5):
                if step * limit > math.pi:  # the same as turning the other way, by 2π − θ
                    continue
                sharp &= (retrieval_margin(length, step * limit, alphabet) > 0) == (step < 1)
    return holds and sharp, holds, "none; at 1.001 times ω/(2n − 3) and above, an input fails"


@check(
    P2,
    "Theorem 3.1, letters on a circle",
    "Every letter has the same margin, the first and the last included.",
    "none: the first letter's rival is the last one, ω before it on the circle",
    "head on one worst input of every sought letter, against the exact smallest margin",
    "|ALPH| = 2 … 8, n = 8, θ = 0.9·ω/(2n − 3)",
)
def p2_theorem_3_1_wrap_around() -> tuple[bool, bool, str]:
    """Check the margin for each sought letter on real tokens."""
    holds, length = True, 8
    for alphabet in range(2, 9):
        left, right = letter_vocabulary(alphabet, 1)
        theta = 0.9 * 2 * math.pi / alphabet / (2 * length - 3)
        head = t_retrieval(left, right, theta)
        exact = retrieval_margin(length, theta, alphabet)
        target = alphabet**2 + torch.arange(alphabet)
        for sought in range(alphabet):
            rival = (sought - 1) % alphabet
            tokens = target[rival].repeat(length)
            tokens[1] = target[sought]
            tokens[-1] = ((left == rival) & (right == sought)).int().argmax()
            logits = head.logits(tokens)[-1]
            wrong = logits[torch.arange(length) != 1].max()
            holds &= abs(float(logits[1] - wrong) - exact) < 1e-12
    return holds, holds, "none"


@check(
    P2,
    "Lemma F.1",
    "With a large enough β a softmax gives hard attention's answer, for lengths up to n₀.",
    "a positive smallest margin; β > ln(n − 1)/margin suffices",
    "bisection on running heads, against the exact β, against ln(n − 1)/margin",
    "Index θ = 0.8, n = 2, 3, 8, 24, the worst input of every query value; Retrieval θ = 0.0027, |ALPH| = 3, "
    "n = 2 … 4, every proper input with a letter–letter query",
)
def p2_lemma_f1() -> tuple[bool, bool, str]:
    """Check that the measured β is the exact one, and below the lemma's."""
    holds, ratios = True, []
    for length in (2, 3, 8, 24):
        values = number_vocabulary(2, length - 1)
        tokens, answer = worst_index_inputs(length, values)
        enough = lemma_beta(length, float(index_gaps(length, 0.8).min())) + 1e-6
        exact = index_beta(length, 0.8)
        holds &= exact <= enough
        measured = measured_beta(t_index(values, 0.8), tokens, answer, enough + 1)
        holds &= abs(measured - exact) < 1e-6 * (1 + exact)
        ratios.append(exact / enough)
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
    return (
        holds,
        holds,
        f"none; Index needs {min(ratios[1:]):.2f} to {max(ratios[1:]):.2f} of the lemma's β (n = 3, 8, 24)",
    )


@check(
    P2,
    "Theorem 3.2, Index, maximum over inputs",
    "Δ_Index(n) ≤ min{1 − cos θ, 2π²/n²}, Δ the largest discrepancy over inputs (definition 3.1 as printed).",
    "nθ ≤ 2π, where 1 − cos θ is the smaller term and 2π²/n² says nothing; past it 2π²/(⌊n/2⌋ + 1)² in its place",
    "exact gaps for every query value",
    "n = 2 … 200, θ = 0.1 to 3.1 in steps of 0.1, and 0.866",
)
def p2_theorem_3_2_index_max() -> tuple[bool, bool, str]:
    """Compare the largest discrepancy with the bound, with it while nθ ≤ 2π, and with it at ⌊n/2⌋ + 1."""
    worst = index_exceeds("largest", index_bound)
    short = index_exceeds("largest", lambda n, theta: index_bound(n, theta) if n * theta <= 2 * math.pi else math.inf)
    half = index_exceeds("largest", lambda n, theta: index_bound(n // 2 + 1, theta))
    kept = f"while nθ ≤ 2π: {short or 'none'}; to min{{1 − cos θ, 2π²/(⌊n/2⌋ + 1)²}}: {half or 'none'}"
    return worst is None, False, f"{worst or 'none'}; {kept}"


@check(
    P2,
    "Theorem 3.2, Index, minimum over inputs",
    "Δ_Index(n) ≤ min{1 − cos θ, 2π²/n²}, Δ the smallest discrepancy over inputs (what a guarantee needs).",
    "none",
    "exact gaps for every query value",
    "n = 2 … 200, θ = 0.1 to 3.1 in steps of 0.1, and 0.866",
)
def p2_theorem_3_2_index_min() -> tuple[bool, bool, str]:
    """Compare the smallest discrepancy with the bound."""
    worst = index_exceeds("smallest", index_bound)
    return worst is None, worst is None, worst or "none"


def index_exceeds(reading: str, bound: Callable[[int, float], float]) -> str | None:
    """Return the first (θ, n) where T_Index's smallest or largest discrepancy exceeds a bound(n, θ)."""
    for theta in [0.8, 0.866] + [0.1 * k for k in range(1, 32)]:
        for n in range(2, 201):
            gaps = index_gaps(n, theta)
            gap, query = gaps.min(0) if reading == "smallest" else gaps.max(0)
            limit = bound(n, theta)
            if gap > limit + 1e-12:
                return f"θ = {theta:g}, n = {n}, query value {int(query)}: {float(gap):.5f} > {limit:.5f}"
    return None


@check(
    P2,
    "Theorem 3.2, Retrieval, maximum over inputs",
    "Δ_Retrieval(n) ≤ 1 − cos(ω − nθ), Δ the largest discrepancy over inputs (definition 3.1 as printed).",
    "θ = 0 and three letters, where no letter is farther than ω; else keys beyond ω widen the gap",
    "exact extremes over all inputs with one matching key",
    "|ALPH| = 3, 4, 8; n = 2, 3, 4, 6, 10, 20; θ = 0, 0.01, 0.1, 0.5, 0.9 times ω/(2n − 1)",
)
def p2_theorem_3_2_retrieval_max() -> tuple[bool, bool, str]:
    """Compare the largest discrepancy with the bound."""
    worst, points = retrieval_exceeds("largest", shift=0)
    return not worst, False, f"{worst[0]}; so at {len(worst)} of {points} points" if worst else "none"


@check(
    P2,
    "Theorem 3.2, Retrieval, minimum over inputs",
    "Δ_Retrieval(n) ≤ 1 − cos(ω − nθ), Δ the smallest discrepancy over inputs (what a guarantee needs).",
    "n counts the keys before the query (length n + 1), and (2n − 1)θ < ω",
    "exact extremes over all inputs with one matching key",
    "|ALPH| = 3, 4, 8; n = 2, 3, 4, 6, 10, 20; θ = 0, 0.01, 0.1, 0.5, 0.9 times ω/(2n − 1)",
)
def p2_theorem_3_2_retrieval_min() -> tuple[bool, bool, str]:
    """Compare the smallest discrepancy with the bound, for n with and without the query."""
    (worst, _), (repaired, _) = (retrieval_exceeds("smallest", shift) for shift in (0, 1))
    return not worst, not repaired, worst[0] if worst else "none"


def retrieval_exceeds(reading: str, shift: int) -> tuple[list[str], int]:
    """Return where T_Retrieval's discrepancy at length n + shift exceeds the bound at n, and the points tried."""
    found, points = [], 0
    for alphabet in (3, 4, 8):
        for n in (2, 3, 4, 6, 10, 20):
            for part in (0.0, 0.01, 0.1, 0.5, 0.9):
                theta = part * 2 * math.pi / alphabet / (2 * n - 1)
                gap = getattr(retrieval_gaps(n + shift, theta, alphabet), reading)
                bound = retrieval_bound(n, theta, alphabet)
                points += 1
                if gap > bound + 1e-12:
                    found.append(f"|ALPH| = {alphabet}, n = {n}, θ = {theta:.5f}: {gap:.5f} > {bound:.5f}")
    return found, points


@check(
    P2,
    "Theorem 3.2, θ = 0",
    "With θ = 0 the discrepancy of T_Retrieval stays above zero for every n.",
    "one key has the sought left letter (no copies of the answer) and the query is a letter–letter token",
    "exact smallest discrepancy; smallest margin",
    "|ALPH| = 3, 4, 8; n = 2, 3, 10, 100",
)
def p2_theorem_3_2_theta_zero() -> tuple[bool, bool, str]:
    """Check θ = 0 with one match, with copies, and with a letter–integer query."""
    repaired = copies = integers = True
    for alphabet in (3, 4, 8):
        for length in (2, 3, 10, 100):
            expected = 1 - math.cos(2 * math.pi / alphabet)
            repaired &= abs(retrieval_gaps(length, 0.0, alphabet).smallest - expected) < 1e-12
            copies &= retrieval_gaps(length, 0.0, alphabet, single=False).smallest > 0
            integers &= retrieval_margin(length, 0.0, alphabet, integer_query=True) > 0
    left, right = letter_vocabulary(3, 2)
    first, second = ((left == 0) & (right < 0)).nonzero().flatten().tolist()
    lost = t_retrieval(left, right, 0.0).logits(torch.tensor([first, second]))[-1]
    tie = bool(lost[0] == lost[1])
    return copies and integers, repaired and tie, "a1 a2: the query a2 should keep itself, but a1 has the same logit"


@check(
    P2,
    "Theorem 3.2, past nθ = ω",
    "A discrepancy above zero means that the right key is found.",
    "(2n − 3)θ < ω; past it an input has a gap above zero under a wrong key; the bound grows again after nθ = ω",
    "exact smallest discrepancy against exact signed margin; the bound itself",
    "|ALPH| = 8, θ = 0.0027: every n up to the first wrong answer, then 200 and 291; the bound from 291 to 400",
)
def p2_theorem_3_2_past_omega() -> tuple[bool, bool, str]:
    """Find the length where the margin turns negative, while discrepancy and bound stay positive."""
    first = next(n for n in range(2, 161) if retrieval_margin(n, 0.0027, 8) <= 0)
    wrong = [n for n in (first, 200, 291) if retrieval_margin(n, 0.0027, 8) <= 0]
    blind = all(retrieval_gaps(n, 0.0027, 8).smallest > 0 for n in wrong)
    predicted = math.floor((2 * math.pi / 8 / 0.0027 + 3) / 2) + 1
    past = [retrieval_bound(n, 0.0027, 8) for n in range(291, 401)]
    repaired = first == predicted and blind and len(wrong) == 3 and past == sorted(past)
    bound = retrieval_bound(first, 0.0027, 8)
    return not blind, repaired, f"wrong answers from n = {first}, where the bound still reads {bound:.4f}"


@check(
    P2,
    "Remark 3.1, symbolic",
    "A purely symbolic head cannot compute Index.",
    "at least two keys before the query (n ≥ 3)",
    "two inputs with the same keys in another order; random symbolic heads with random values",
    "n = 3 … 5, 2 letters, integers below n, 20 heads each",
)
def p2_remark_3_1_symbolic() -> tuple[bool, bool, str]:
    """Check that a symbolic head has one output where Index has two answers."""
    generator = torch.Generator().manual_seed(0)
    holds = True
    for length in (3, 4, 5):
        values = number_vocabulary(2, length - 1)
        filler = [1] * (length - 3)
        pair = torch.tensor([[*filler, 0, 1, 2], [*filler, 1, 0, 2]])
        holds &= index(pair, values)[:, -1].tolist() == [1, 0]
        size = len(values)
        for _ in range(20):
            scores, outputs = (torch.randn(size, size, generator=generator, dtype=torch.float64) for _ in range(2))
            result = symbolic_head(scores, outputs).output(pair, 1.0)[:, -1]
            holds &= bool(torch.allclose(result[0], result[1], rtol=0, atol=1e-12))
    return holds, holds, "none; a b 1 and b a 1 have one output and two answers"


@check(
    P2,
    "Remark 3.1, positional",
    "A purely positional head cannot compute Retrieval.",
    "values are the identity (no linear map, no residual that reads the query's token)",
    "2511.11579's theorem 4's inputs for identity values; a positional head with other values on every proper input",
    "identity: n = 3 … 6, 200 heads each; other values: 2 letters, 2 integers, n = 2 … 4",
)
def p2_remark_3_1_positional() -> tuple[bool, bool, str]:
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
    printed = False
    for length in (2, 3, 4):
        head = self_marking_head(2, 2, length)
        tokens = sequences(len(left), length)
        answer, proper = retrieval(tokens, left, right)
        solved = bool((head(tokens, 1.0)[:, -1] == answer[:, -1])[proper[:, -1]].all())
        if length > 2:
            solved &= bool((exclusion(head.relocated(tokens[::50])).positional_deviation < 1e-20).all())
        printed |= not solved
    return (
        printed,
        repaired,
        "self_marking_head: uniform over the keys before the query, and right on every proper input",
    )


@check(
    P2,
    "Appendix F, number task",
    "f_NUM = Reflexive^(ℓ−h)(Index^h(σ)) at the last place follows h hops.",
    "every integer on the path points inside; Reflexive is not needed, Index^ℓ gives the same",
    "stack of heads against following the integers one by one",
    "2 letters, integers below n, n = 3 … 5, every sequence whose path ends at a letter; ℓ = h … h + 2",
)
def p2_appendix_f_number() -> tuple[bool, bool, str]:
    """Check the composition on every sequence with a path that stays inside."""
    holds = True
    for length in (3, 4, 5):
        values = number_vocabulary(2, length - 1)
        tokens = sequences(len(values), length)
        place, hops = torch.full((len(tokens),), length - 1), torch.zeros(len(tokens), dtype=torch.int64)
        for _ in range(length):
            jump = values[tokens.gather(1, place.clamp(min=0)[:, None])[:, 0]]
            hops += ((jump > 0) & (place >= 0)).long()
            place = torch.where(place >= 0, place - jump, place)
        head = t_index(values, 0.8)
        for h in range(1, length):
            chosen = (place >= 0) & (hops == h)
            answer = tokens[chosen].gather(1, place[chosen][:, None])[:, 0]
            for layers in (h, h + 1, h + 2):
                holds &= bool((stack(head, h, layers)(tokens[chosen])[:, -1] == answer).all())
                holds &= bool((stack(head, layers, layers)(tokens[chosen])[:, -1] == answer).all())
    return holds, holds, "none"


@check(
    P2,
    "Appendix F, letter task",
    "f_LET = Reflexive^(ℓ−h)(Retrieval^h(σ)) at the last place follows h hops, for a path unique in its letters.",
    "every letter–letter token of the path is found before the one that points to it",
    "stack of heads against following the letters one by one",
    "4 letters, 1 integer, n = 4, every sequence with a unique path; θ = 0.9·ω/(2n); ℓ = h … h + 2",
)
def p2_appendix_f_letter() -> tuple[bool, bool, str]:
    """Check the composition on paths that run backwards, and find one that does not."""
    left, right = letter_vocabulary(4, 1)
    names = ["abcd"[a] + ("abcd"[b] if b >= 0 else "1") for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    tokens = sequences(len(left), 4)
    head = t_retrieval(left, right, 0.9 * 2 * math.pi / 4 / 8)
    rows = torch.arange(len(tokens))
    place, hops = torch.full((len(tokens),), 3), torch.zeros(len(tokens), dtype=torch.int64)
    unique, backwards = torch.ones(len(tokens), dtype=torch.bool), torch.ones(len(tokens), dtype=torch.bool)
    for _ in range(3):
        sought = right[tokens[rows, place]]
        going = sought >= 0
        match = left[tokens] == sought[:, None]
        unique &= ~going | (match.sum(-1) == 1)
        following = match.int().argmax(-1)
        backwards &= ~going | (following < place) | (right[tokens[rows, following]] < 0)
        hops += going.long()
        place = torch.where(going, following, place)
    ends = unique & (right[tokens[rows, place]] < 0)
    printed = repaired = True
    example = "none"
    for h in (1, 2, 3):
        chosen = ends & (hops == h)
        for layers in (h, h + 1, h + 2):
            wrong = stack(head, h, layers)(tokens[chosen])[:, -1] != tokens[rows, place][chosen]
            repaired &= not bool((wrong & backwards[chosen]).any())
            if printed and wrong.any():
                printed = False
                example = " ".join(names[t] for t in tokens[chosen][wrong][0].tolist()) + f" ({h} hops)"
    return printed, repaired, example
