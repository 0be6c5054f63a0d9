"""Checks of the theorems of 2511.11579, each named after its statement."""

import math
from typing import Any

import torch

from possym.scores import exclusion
from possym.theory.answer_weight import positional_slope, positional_weight, shape, symbolic_weight
from possym.theory.check import Found, check, spell
from possym.theory.exclusion import mixed_head, permutation_deviations, tightness
from possym.theory.heads import ConstructedHead, h_pos, h_sym, pair_tables, symbolic_head, two_angle
from possym.theory.inputs import index_pairs, one_answer_inputs, retrieval_inputs, sequences

P1 = "2511.11579"
PAIRS = ["a1", "a2", "b1", "b2", "a?", "b?"]  # tokens of two symbols and two attributes


def pair_margins(seed: int = 0) -> list[dict[str, str | float]]:
    """Return the lead of each head's right answer on the two inputs that no head of the wrong kind tells apart.

    For Index, Retrieval and Partial induction, two keys each: a random head of the wrong kind, whose two margins add
    up to at most 0, and the head built for the task, whose margins are both positive.

    Args:
        seed: of the random heads.

    Returns:
        Rows with task, head, input and margin, the right answer's output coordinate minus the wrong one's.

    Source: 2511.11579, theorems 2 to 6 and corollary 1.

    >>> [round(row["margin"], 2) for row in pair_margins() if row["head"] == "symbolic, no angle"]
    [0.95, 0.95]
    """
    generator = torch.Generator().manual_seed(seed)
    draw: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    _, attributes = pair_tables(2, 2)
    counting, last = h_pos(2, 2, math.pi / 2), torch.tensor([[0, 1, 4], [1, 0, 4]])
    query, key = (torch.randn(1, 4, **draw).expand(6, 4) for _ in range(2))
    by_place = ConstructedHead(query, key, attributes, torch.tensor([1.0, 0.1], dtype=torch.float64))
    index_keys, (once, answer) = torch.stack(index_pairs(2, 2)[0]), one_answer_inputs(2)
    studies = [
        ("Index", "symbolic, random", symbolic_head(torch.randn(4, 4, **draw), counting.value_table), index_keys),
        ("Retrieval", "positional, random", by_place, once),
        ("Partial induction", "symbolic, random", symbolic_head(torch.randn(6, 6, **draw), attributes), last),
        ("Index", "positional, one angle", counting, index_keys),
        ("Retrieval", "symbolic, no angle", h_sym(2, 2), once),
        ("Partial induction", "both, two angles", two_angle(2, 2, 1.0), last),
    ]
    answers = {"Index": index_keys[:, 0], "Retrieval": answer, "Partial induction": last[:, 1]}
    names = {"Index": ["a", "b", "first?", "second?"]}
    rows = []
    for task, kind, head, tokens in studies:
        output = head.output(tokens, 4.0)[:, -1]
        for row, right, values in zip(tokens.tolist(), answers[task].tolist(), output.tolist(), strict=True):
            text = spell(row, names.get(task, PAIRS))
            rows.append({"task": task, "head": kind, "input": text, "margin": values[right] - values[1 - right]})
    return rows


@check(
    P1,
    "Theorem 1",
    "Var(λ) ≤ (‖δ_pos‖² + ‖δ_sym‖²)/(N!·N): a head that is nearly both positional and symbolic is nearly uniform.",
    "none",
    "all N! permutations against (A + B)/N² for random heads; variance/bound for random, pure and mixed ones",
    "N = 2 … 6, 40 heads of a kind each, float64",
)
def p1_theorem_1() -> Found:
    """Check the exclusion principle, and that its constant is the best possible."""
    generator = torch.Generator().manual_seed(0)
    largest, at, agree = 0.0, "", True
    for count in range(2, 7):
        for _ in range(40):
            relocated = torch.randn(count, count, generator=generator, dtype=torch.float64)
            by_permutation = sum(permutation_deviations(relocated)) / (math.factorial(count) * count)
            agree &= bool(torch.isclose(torch.as_tensor(by_permutation), exclusion(relocated).bound, rtol=1e-12))
            logits = torch.randn(count, generator=generator, dtype=torch.float64)
            heads = {f"at M[a, b] = {1 - mix:g}·λ_a + {mix:g}·λ_b": mixed_head(logits, mix) for mix in (0, 0.3, 0.5, 1)}
            for name, head in {"of a random head": relocated, **heads}.items():
                if (ratio := float(tightness(head))) > largest + 1e-12:
                    largest, at = ratio, name
    holds = agree and largest <= 1 + 1e-12
    return Found(holds, holds, f"variance/bound reaches {largest:.3f}, {at}", f"variance/bound {largest:.3f}")


@check(
    P1,
    "Theorem 2",
    "No purely symbolic head solves Index.",
    "at least two keys and two symbols",
    "search for two inputs with the same keys in another order; random symbolic heads on every such pair",
    "n = 2 … 4 keys, 2 symbols, 20 heads each, softmax outputs",
)
def p1_theorem_2() -> Found:
    """Check that every pair of reordered inputs gets one output from a symbolic head but needs two."""
    generator = torch.Generator().manual_seed(0)
    told_apart = 0
    example: Any = None
    for length in (2, 3, 4):
        pairs = index_pairs(2, length)
        example = example or pairs[0]
        first, second = (torch.stack(side) for side in zip(*pairs, strict=True))
        for _ in range(20):
            scores = torch.randn(2 + length, 2 + length, generator=generator, dtype=torch.float64)
            values = torch.randn(2 + length, 3, generator=generator, dtype=torch.float64)
            head = symbolic_head(scores, values)
            outputs = head.output(first, 1.0)[:, -1], head.output(second, 1.0)[:, -1]
            told_apart += int(((outputs[0] - outputs[1]).abs() > 1e-12).any(-1).sum())
    holds = example is not None and not told_apart
    question = example[0][-1].item() - 2
    words = " and ".join(spell(side[:-1].tolist(), ["a", "b"]) for side in example)
    answers = " and ".join("ab"[side[question]] for side in example)
    text = f"{words}, asked for place {question}, have one output and the answers {answers}"
    return Found(holds, holds, text, f"{told_apart} pairs told apart")


@check(
    P1,
    "Theorem 3",
    "One purely positional head with a single RoPE angle solves Index.",
    "mθ is no multiple of 2π for 1 ≤ m < n (θ = π/n will do)",
    "the paper's head H_POS on every input, hard attention; A = 0 on its relocated logits",
    "n = 1 … 6, 2 and 3 symbols, all questions; θ = π/n and 1",
)
def p1_theorem_3() -> Found:
    """Check H_POS on every input for two angles that meet the condition, and one that does not."""
    holds = True
    for symbols in (2, 3):
        for length in range(1, 7):
            keys = sequences(symbols, length)
            for theta in (math.pi / length, 1.0):
                head = h_pos(symbols, length, theta)
                for position in range(length):
                    tokens = torch.cat([keys, torch.full((len(keys), 1), symbols + position)], 1)
                    holds &= bool((head(tokens)[:, -1] == keys[:, position]).all())
                    if length > 1:
                        holds &= bool((exclusion(head.relocated(tokens)).positional_deviation < 1e-20).all())
    logits = h_pos(2, 4, 2 * math.pi / 3).logits(torch.tensor([0, 1, 1, 1, 2]))[-1, :4]
    ties = [b for b in range(1, 4) if (logits[0] - logits[b]).abs() < 1e-12]
    text = f"outside the condition, θ = 2π/3 with n = 4: positions with the logit of position 0: {ties}"
    return Found(holds, holds, text, "wrong answers under the condition")


@check(
    P1,
    "Theorem 4",
    "No purely positional head solves Retrieval.",
    "as printed: identity values, a projection as activation F, one-hot embeddings; at least two keys",
    "one input for each position of the answer; random positional heads",
    "n = 2 … 6, 200 heads each",
)
def p1_theorem_4() -> Found:
    """Check that no weights by position answer all inputs that differ in the answer's position alone."""
    generator = torch.Generator().manual_seed(0)
    most = {}
    _, values = pair_tables(2, 2)
    for length in range(2, 7):
        tokens, answer = one_answer_inputs(length)
        logits = 3 * torch.randn(200, length + 1, generator=generator, dtype=torch.float64)
        output = torch.einsum("hj,bjo->hbo", logits.softmax(-1), values[tokens])
        right = output.argmax(-1) == answer
        most[length] = int(right.sum(-1).max())
    holds = all(count < length for length, count in most.items())
    text = ", ".join(f"{count} of {length}" for length, count in most.items())
    example = " and ".join(spell(row, PAIRS) for row in one_answer_inputs(2)[0].tolist())
    return Found(holds, holds, f"the best head answers {text} inputs; for two keys: {example}", f"{text} answered")


@check(
    P1,
    "Theorem 5",
    "A purely symbolic head without positions (NoPE) solves Retrieval.",
    "the asked symbol stands in the keys with one attribute",
    "the paper's head H_SYM on every valid input, hard attention, and softmax with β just over ln(n − 1); B = 0",
    "n = 1 … 4, 2 symbols, 2 attributes; 3 × 2 up to n = 3",
)
def p1_theorem_5() -> Found:
    """Check H_SYM on every valid input."""
    holds = True
    for symbols, attributes, longest in ((2, 2, 4), (3, 2, 3)):
        head = h_sym(symbols, attributes)
        for length in range(1, longest + 1):
            tokens, answer = retrieval_inputs(symbols, attributes, length, last=False)
            holds &= bool((head(tokens)[:, -1] == answer).all())
            beta = math.log(max(length - 1, 1)) + 1e-6
            holds &= bool((head(tokens, beta)[:, -1] == answer).all())
            if length > 1:
                holds &= bool((exclusion(head.relocated(tokens)).symbolic_deviation == 0).all())
    return Found(holds, holds, violation="wrong answers, or B above 0")


@check(
    P1,
    "Corollary 1",
    "Neither a purely positional nor a purely symbolic head solves Partial induction.",
    "as for theorem 4; at least two keys",
    "theorem 4's inputs for positional heads; for symbolic ones two keys of one symbol, reordered; random heads",
    "positional: n = 2 … 6, 200 heads each; symbolic: n = 2 … 4, 20 heads each",
)
def p1_corollary_1() -> Found:
    """Check both halves on the inputs that break them."""
    generator = torch.Generator().manual_seed(0)
    holds, said = p1_theorem_4().verdict == "holds", []
    for length in (2, 3, 4):
        tokens, answer = retrieval_inputs(2, 2, length, last=True)
        first = torch.tensor([0, 1] + [3] * (length - 2) + [4])
        second = torch.tensor([1, 0] + [3] * (length - 2) + [4])
        answers = [answer[(tokens == side).all(-1)].item() for side in (first, second)]
        holds &= len(set(answers)) == 2
        said += [f"{spell(side.tolist(), PAIRS)} → {a + 1}" for side, a in zip((first, second), answers, strict=True)]
        for _ in range(20):
            scores = torch.randn(6, 6, generator=generator, dtype=torch.float64)
            head = symbolic_head(scores, torch.randn(6, 2, generator=generator, dtype=torch.float64))
            outputs = head.output(first, 1.0)[-1], head.output(second, 1.0)[-1]
            holds &= bool(torch.allclose(*outputs, rtol=0, atol=1e-12))
    text = f"a symbolic head has one output for {said[0]} and {said[1]}"
    return Found(holds, holds, text, "inputs told apart, or all answered by one positional head")


@check(
    P1,
    "Theorem 6",
    "A head with two angles, θ₁ = 0 and a not too large θ₂, solves Partial induction.",
    "'not too large' made exact: 0 < θ₂ < 2π/(2n − 1), n keys",
    "two-angle head on every input, hard attention, for a grid of θ₂",
    "n = 2 … 4, 2 symbols, 2 attributes; 60 angles evenly in (0, π), and 10⁻⁶ to either side of the limit",
)
def p1_theorem_6() -> Found:
    """Check that the working angles of the grid are those below 2π/(2n − 1)."""
    holds, widest, past = True, {}, 0
    for length in (2, 3, 4):
        tokens, answer = retrieval_inputs(2, 2, length, last=True)
        limit = 2 * math.pi / (2 * length - 1)
        grid = [(k - 0.5) / 60 * math.pi for k in range(1, 61)] + [limit - 1e-6, limit + 1e-6]
        works = {theta: bool((two_angle(2, 2, theta)(tokens)[:, -1] == answer).all()) for theta in grid}
        holds &= all(ok == (theta < limit) for theta, ok in works.items())
        past += sum(ok for theta, ok in works.items() if theta > limit)
        widest[length] = max(theta for theta, ok in works.items() if ok)
    text = ", ".join(f"n = {n}: {theta:.3f}" for n, theta in widest.items())
    said = f"largest angle that works, {text}; {past} larger angles of the grid work"
    return Found(holds, holds, said, "angles below the limit that fail, or above it that work")


@check(
    P1,
    "Theorem 7, positional",
    "w_max(j) of the positional construction is U-shaped in the answer's position j.",
    "nθ < 2π",
    "weights of every position against the closed sign sin(nθ/2)·sin((2j − n)θ/2)",
    "n = 4, 8, 16, 33, 64; nθ/2π from 0.05 to 2.95 in steps of 0.1; β = 1 and 5",
)
def p1_theorem_7_positional() -> Found:
    """Check the U-shape, and find where it ends."""
    repaired, examples, points = True, [], 0
    for length in (4, 8, 16, 33, 64):
        for step in range(30):
            turns = 0.05 + 0.1 * step
            theta = 2 * math.pi * turns / length
            for beta in (1.0, 5.0):
                weight = positional_weight(length, theta, beta)
                steps = weight.diff()
                signs = torch.where(steps.abs() < 1e-12, 0.0, steps.sign())
                repaired &= bool((signs == positional_slope(length, theta)).all())
                points += 1
                if (kind := shape(weight)) != "U":
                    repaired &= turns > 1
                    examples.append(f"n = {length}, nθ = {turns:.2f}·2π: {kind}")
    return Found(not examples, repaired, "".join(examples[:1]), f"no U at {len(examples)} of {points} points")


@check(
    P1,
    "Theorem 7, symbolic",
    "w_max(j) of the simplified symbolic construction is inverse-U-shaped in the answer's position j.",
    "(n − 1)θ ≤ π, so that the answer's logit stays positive; as read here: query aimed at the middle",
    "weights of every position",
    "n = 4, 8, 16, 33, 64; nθ/2π from 0.05 to 2.95 in steps of 0.1; β = 1 and 5",
)
def p1_theorem_7_symbolic() -> Found:
    """Check the inverse-U-shape, and find where it ends."""
    repaired, examples, points = True, [], 0
    for length in (4, 8, 16, 33, 64):
        for step in range(30):
            theta = 2 * math.pi * (0.05 + 0.1 * step) / length
            for beta in (1.0, 5.0):
                kind = shape(symbolic_weight(length, theta, beta))
                points += 1
                if kind != "inverse U":
                    repaired &= (length - 1) * theta > math.pi
                    far = (length - 1) * theta / math.pi
                    examples.append(f"n = {length}, (n − 1)θ = {far:.2f}·π, β = {beta:g}: {kind}")
    return Found(not examples, repaired, "".join(examples[:1]), f"no inverse U at {len(examples)} of {points} points")
