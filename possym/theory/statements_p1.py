"""Checks of the theorems of 2511.11579, each named after its statement."""

import math

import torch
from torch import Tensor

from possym.scores import exclusion
from possym.theory.answer_weight import positional_slope, positional_weight, shape, symbolic_weight
from possym.theory.check import check, sequences
from possym.theory.exclusion import mixed_head, permutation_deviations, tightness
from possym.theory.heads import ConstructedHead, h_pos, h_sym, pair_tables, two_angle

P1 = "2511.11579"


def symbolic_head(scores: Tensor, values: Tensor) -> ConstructedHead:
    """Return a purely symbolic head: the logit of a key is the score of its content for the query's token.

    Args:
        scores: (V, V), entry [q, k] for query token q and key token k.
        values: (V, O).

    >>> symbolic_head(torch.eye(2), torch.eye(2)).logits(torch.tensor([0, 1, 1]))[-1]
    tensor([0., 1., 1.])
    """
    return ConstructedHead(scores, torch.eye(len(scores), dtype=scores.dtype), values, torch.zeros(0))


def index_pairs(symbols: int, length: int) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of Index inputs that hold the same keys in another order and have different answers.

    Tokens are those of `h_pos`; the question stands last.

    >>> index_pairs(2, 2)[0]
    (tensor([0, 1, 2]), tensor([1, 0, 2]))
    """
    keys = sequences(symbols, length)
    contents = keys.sort(-1).values
    pairs = []
    for place in range(length):
        for i, first in enumerate(keys):
            same = (contents == contents[i]).all(-1) & (keys[:, place] != first[place])
            same[: i + 1] = False
            question = torch.tensor([symbols + place])
            pairs += [(torch.cat([first, question]), torch.cat([other, question])) for other in keys[same]]
    return pairs


def one_answer_inputs(length: int) -> tuple[Tensor, Tensor]:
    """Return Retrieval inputs with the asked pair (0, 0) at each place in turn and (1, 1) at all others.

    Tokens are those of `h_sym` with two symbols and two attributes; all answers are attribute 0.

    >>> one_answer_inputs(2)
    (tensor([[0, 3, 4],
            [3, 0, 4]]), tensor([0, 0]))
    """
    keys = torch.full((length, length), 3).fill_diagonal_(0)
    return torch.cat([keys, torch.full((length, 1), 4)], 1), torch.zeros(length, dtype=torch.int64)


def retrieval_inputs(symbols: int, attributes: int, length: int, last: bool) -> tuple[Tensor, Tensor]:
    """Return every valid input of Retrieval, or with ``last`` of Partial induction, and its answer.

    Retrieval asks for a symbol that stands in the keys with one attribute only; Partial induction for the
    attribute at the symbol's last occurrence.
    """
    pairs = symbols * attributes
    keys, asked = sequences(pairs, length), torch.arange(symbols)
    tokens = torch.cat([keys.repeat_interleave(symbols, 0), (pairs + asked).repeat(len(keys))[:, None]], 1)
    match = tokens[:, :-1] // attributes == tokens[:, -1:] - pairs
    attribute = tokens[:, :-1] % attributes
    place = torch.where(match, torch.arange(length), -1).amax(-1)
    answer = attribute.gather(1, place.clamp(min=0)[:, None])[:, 0]
    valid = match.any(-1)
    if not last:
        valid &= (~match | (attribute == answer[:, None])).all(-1)
    return tokens[valid], answer[valid]


def pair_margins(seed: int = 0, beta: float = 4.0) -> list[dict[str, str | float]]:
    """Return by how much each head's right answer leads on the two inputs that no head of the wrong kind tells apart.

    For Index, Retrieval and Partial induction, two keys each: a random head of the wrong kind, whose two margins add
    up to at most 0, and the head built for the task, whose margins are both positive.

    Args:
        seed: of the random heads.
        beta: inverse temperature of the softmax.

    Returns:
        Rows with task, head, input and margin, the right answer's output coordinate minus the wrong one's.

    Source: 2511.11579, theorems 2 to 6 and corollary 1.

    >>> [round(row["margin"], 2) for row in pair_margins() if row["head"] == "symbolic, no angle"]
    [0.95, 0.95]
    """
    generator = torch.Generator().manual_seed(seed)
    draw = {"generator": generator, "dtype": torch.float64}
    _, attributes = pair_tables(2, 2)
    counting, last = h_pos(2, 2, math.pi / 2), torch.tensor([[0, 1, 4], [1, 0, 4]])
    alike = [torch.randn(1, 4, **draw).expand(6, 4) for _ in range(2)]
    by_place = ConstructedHead(*alike, attributes, torch.tensor([1.0, 0.1], dtype=torch.float64))
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
    names = {"Index": ["a", "b", "first?", "second?"], "pairs": ["a1", "a2", "b1", "b2", "a?", "b?"]}
    rows = []
    for task, kind, head, tokens in studies:
        output = head.output(tokens, beta)[:, -1]
        for row, right, values in zip(tokens.tolist(), answers[task].tolist(), output.tolist(), strict=True):
            words = names.get(task, names["pairs"])
            text = " ".join(words[token] for token in row)
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
def p1_theorem_1() -> tuple[bool, bool, str]:
    """Check the exclusion principle, and that its constant is the best possible."""
    generator = torch.Generator().manual_seed(0)
    largest, agree, reached = 0.0, True, True
    for count in range(2, 7):
        for _ in range(40):
            relocated = torch.randn(count, count, generator=generator, dtype=torch.float64)
            by_permutation = sum(permutation_deviations(relocated)) / (math.factorial(count) * count)
            agree &= bool(torch.isclose(by_permutation, exclusion(relocated).bound, rtol=1e-12))
            largest = max(largest, float(tightness(relocated)))
            logits = torch.randn(count, generator=generator, dtype=torch.float64)
            for mix in (0.0, 0.3, 0.5, 1.0):
                largest = max(largest, float(tightness(mixed_head(logits, mix))))
            reached &= abs(float(tightness(mixed_head(logits, 0.5))) - 1) < 1e-12
    holds = agree and reached and largest <= 1 + 1e-12
    return holds, holds, f"none; variance/bound reaches {largest:.3f}, at M[a, b] = (λ_a + λ_b)/2"


@check(
    P1,
    "Theorem 2",
    "No purely symbolic head solves Index.",
    "at least two keys and two symbols",
    "search for two inputs with the same keys in another order; random symbolic heads on every such pair",
    "n = 2 … 4 keys, 2 symbols, 20 heads each, softmax outputs",
)
def p1_theorem_2() -> tuple[bool, bool, str]:
    """Check that every pair of reordered inputs gets one output from a symbolic head but needs two."""
    generator = torch.Generator().manual_seed(0)
    holds, example = True, None
    for length in (2, 3, 4):
        pairs = index_pairs(2, length)
        holds &= bool(pairs)
        example = example or pairs[0]
        first, second = (torch.stack(side) for side in zip(*pairs, strict=True))
        for _ in range(20):
            scores = torch.randn(2 + length, 2 + length, generator=generator, dtype=torch.float64)
            values = torch.randn(2 + length, 3, generator=generator, dtype=torch.float64)
            head = symbolic_head(scores, values)
            outputs = head.output(first, 1.0)[:, -1], head.output(second, 1.0)[:, -1]
            holds &= bool(torch.allclose(*outputs, rtol=0, atol=1e-12))
    text = " and ".join("".join("ab"[t] for t in side[:-1]) for side in example)
    return holds, holds, f"none; the pair {text}, asked for the first place, has one output and two answers"


@check(
    P1,
    "Theorem 3",
    "One purely positional head with a single RoPE angle solves Index.",
    "mθ is no multiple of 2π for 1 ≤ m < n (θ = π/n will do)",
    "H_POS on every input, hard attention; A = 0 on relocated logits",
    "n = 1 … 6, 2 and 3 symbols, all questions; θ = π/n and 1",
)
def p1_theorem_3() -> tuple[bool, bool, str]:
    """Check H_POS on every input for two angles that meet the condition, and one that does not."""
    holds = True
    for symbols in (2, 3):
        for length in range(1, 7):
            keys = sequences(symbols, length)
            for theta in (math.pi / length, 1.0):
                head = h_pos(symbols, length, theta)
                for place in range(length):
                    tokens = torch.cat([keys, torch.full((len(keys), 1), symbols + place)], 1)
                    holds &= bool((head(tokens)[:, -1] == keys[:, place]).all())
                    if length > 1:
                        holds &= bool((exclusion(head.relocated(tokens)).positional_deviation < 1e-20).all())
    broken = h_pos(2, 4, 2 * math.pi / 3)
    logits = broken.logits(torch.tensor([0, 1, 1, 1, 2]))[-1, :4]
    tie = bool((logits[0] - logits[3]).abs() < 1e-12)
    return holds and tie, holds, "none under the condition; θ = 2π/3 with n = 4 gives places 0 and 3 one logit"


@check(
    P1,
    "Theorem 4",
    "No purely positional head solves Retrieval.",
    "as printed: identity values, a projection as F, one-hot embeddings; at least two keys",
    "one input for each place of the answer; random positional heads",
    "n = 2 … 6, 200 heads each",
)
def p1_theorem_4() -> tuple[bool, bool, str]:
    """Check that no weights by place answer all inputs that differ in the answer's place alone."""
    generator = torch.Generator().manual_seed(0)
    holds = True
    _, values = pair_tables(2, 2)
    for length in range(2, 7):
        tokens, answer = one_answer_inputs(length)
        logits = 3 * torch.randn(200, length + 1, generator=generator, dtype=torch.float64)
        output = torch.einsum("hj,bjo->hbo", logits.softmax(-1), values[tokens])
        right = output.argmax(-1) == answer
        holds &= not right.all(-1).any()
    return holds, holds, "none; a1 b2 | a? needs w₀ > w₁, b2 a1 | a? needs w₁ > w₀"


@check(
    P1,
    "Theorem 5",
    "A purely symbolic head without positions (NoPE) solves Retrieval.",
    "the asked symbol stands in the keys with one attribute",
    "H_SYM on every valid input, hard attention, and softmax with β just over ln(n − 1); B = 0",
    "n = 1 … 4, 2 symbols, 2 attributes; 3 × 2 up to n = 3",
)
def p1_theorem_5() -> tuple[bool, bool, str]:
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
    return holds, holds, "none"


@check(
    P1,
    "Corollary 1",
    "Neither a purely positional nor a purely symbolic head solves Partial induction.",
    "as for theorem 4; at least two keys",
    "theorem 4's inputs for positional heads; for symbolic ones two keys of one symbol, reordered; random heads",
    "positional: n = 2 … 6, 200 heads each; symbolic: n = 2 … 4, 20 heads each",
)
def p1_corollary_1() -> tuple[bool, bool, str]:
    """Check both halves on the inputs that break them."""
    generator = torch.Generator().manual_seed(0)
    holds = p1_theorem_4().verdict == "holds"
    for length in (2, 3, 4):
        tokens, answer = retrieval_inputs(2, 2, length, last=True)
        first = torch.tensor([0, 1] + [3] * (length - 2) + [4])
        second = torch.tensor([1, 0] + [3] * (length - 2) + [4])
        answers = [answer[(tokens == side).all(-1)].item() for side in (first, second)]
        holds &= answers == [1, 0]
        for _ in range(20):
            scores = torch.randn(6, 6, generator=generator, dtype=torch.float64)
            head = symbolic_head(scores, torch.randn(6, 2, generator=generator, dtype=torch.float64))
            outputs = head.output(first, 1.0)[-1], head.output(second, 1.0)[-1]
            holds &= bool(torch.allclose(*outputs, rtol=0, atol=1e-12))
    return holds, holds, "none; a symbolic head has one output for a1 a2 | a? and a2 a1 | a?, which have two answers"


@check(
    P1,
    "Theorem 6",
    "A head with two angles, θ₁ = 0 and a not too large θ₂, solves Partial induction.",
    "'not too large' made exact: 0 < θ₂ < 2π/(2n − 1), n keys",
    "two-angle head on every input, hard attention, for a grid of θ₂",
    "n = 2 … 4, 2 symbols, 2 attributes; 60 angles evenly in (0, π), and 10⁻⁶ to either side of the limit",
)
def p1_theorem_6() -> tuple[bool, bool, str]:
    """Check that the working angles of the grid are those below 2π/(2n − 1)."""
    holds, widest = True, {}
    for length in (2, 3, 4):
        tokens, answer = retrieval_inputs(2, 2, length, last=True)
        limit = 2 * math.pi / (2 * length - 1)
        grid = [(k - 0.5) / 60 * math.pi for k in range(1, 61)] + [limit - 1e-6, limit + 1e-6]
        works = {theta: bool((two_angle(2, 2, theta)(tokens)[:, -1] == answer).all()) for theta in grid}
        holds &= all(ok == (theta < limit) for theta, ok in works.items())
        widest[length] = limit
    text = ", ".join(f"n = {n}: θ₂ < {limit:.3f}" for n, limit in widest.items())
    return holds, holds, f"none below the limit ({text}); every larger angle of the grid fails"


@check(
    P1,
    "Theorem 7, positional",
    "w_max(j) of the positional construction is U-shaped in the answer's place j.",
    "nθ < 2π",
    "weights of every place against the closed sign sin(nθ/2)·sin((2j − n)θ/2)",
    "n = 4, 8, 16, 33, 64; nθ/2π from 0.05 to 2.95 in steps of 0.1; β = 1 and 5",
)
def p1_theorem_7_positional() -> tuple[bool, bool, str]:
    """Check the U-shape, and find where it ends."""
    printed, repaired, example = True, True, ""
    for length in (4, 8, 16, 33, 64):
        for step in range(30):
            turns = 0.05 + 0.1 * step
            theta = 2 * math.pi * turns / length
            for beta in (1.0, 5.0):
                weight = positional_weight(length, theta, beta)
                steps = weight.diff()
                signs = torch.where(steps.abs() < 1e-12, 0.0, steps.sign())
                repaired &= bool((signs == positional_slope(length, theta)).all())
                u_shaped = shape(weight) == "U"
                repaired &= u_shaped or turns > 1
                if not u_shaped and printed:
                    printed, example = False, f"n = {length}, nθ = {turns:.2f}·2π: {shape(weight)}"
    return printed, repaired, example


@check(
    P1,
    "Theorem 7, symbolic",
    "w_max(j) of the simplified symbolic construction is inverse-U-shaped in the answer's place j.",
    "(n − 1)θ ≤ π, so that the answer's logit stays positive; as read here: query aimed at the middle",
    "weights of every place",
    "n = 4, 8, 16, 33, 64; nθ/2π from 0.05 to 2.95 in steps of 0.1; β = 1 and 5",
)
def p1_theorem_7_symbolic() -> tuple[bool, bool, str]:
    """Check the inverse-U-shape, and find where it ends."""
    printed, repaired, example = True, True, ""
    for length in (4, 8, 16, 33, 64):
        for step in range(30):
            theta = 2 * math.pi * (0.05 + 0.1 * step) / length
            for beta in (1.0, 5.0):
                kind = shape(symbolic_weight(length, theta, beta))
                repaired &= kind == "inverse U" or (length - 1) * theta > math.pi
                if kind != "inverse U" and printed:
                    printed = False
                    example = f"n = {length}, (n − 1)θ = {(length - 1) * theta / math.pi:.2f}·π, β = {beta:g}: {kind}"
    return printed, repaired, example
