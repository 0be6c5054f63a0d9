"""The papers' constructed heads as real attention heads: tables of queries, keys and values, run through RoPE.

- `ConstructedHead` runs any such head on tokens, with hard attention or a softmax.
- `t_index`, `t_retrieval`, `t_reflexive` are the layers of 2605.31558; stacked, they solve its two tasks.
- `h_pos`, `h_sym`, `two_angle` are the heads of 2511.11579 for Index, Retrieval and Partial induction.
- `number_head`, `letter_head` read a task's vocabulary.

Positions count from 0, and the query at position i sees the keys at positions j ≤ i, its own included.
"""

import math

import torch
from torch import Tensor, nn

from possym.errors import InputError, require_type, to_float, to_int
from possym.rope import as_float, check_planes, rotate
from possym.scores import relocated_logits
from possym.theory.inputs import letter_vocabulary

MATCH = 3.0  # logit of a matching symbol, over 2 so that no cosine outweighs it


class ConstructedHead(nn.Module):
    """One attention head whose queries, keys and values are read from tables, token by token.

    Args:
        query_table: (V, D) query content W_Q E(σ) of every token, before rotation.
        key_table: (V, D) key content W_K E(σ) of every token, before rotation.
        value_table: (V, O) value W_V E(σ) of every token.
        frequencies: (F,) angles in radians per position; dimensions past the first 2F do not rotate.
        residual: None, or (V, O): what the query's own token adds to the output.

    Raises:
        InputError: tables that do not fit together.

    >>> head = t_index(torch.tensor([0, 0, 1, 2]), theta=0.8)  # letters a, b and the integers 1, 2
    >>> head(torch.tensor([0, 1, 3]))[-1]  # "a b 2": two positions back stands a
    tensor(0)
    """

    query_table: Tensor
    key_table: Tensor
    value_table: Tensor
    frequencies: Tensor
    residual: Tensor | None

    def __init__(
        self,
        query_table: Tensor,
        key_table: Tensor,
        value_table: Tensor,
        frequencies: Tensor,
        residual: Tensor | None = None,
    ):
        super().__init__()
        tables = {"query_table": query_table, "key_table": key_table, "value_table": value_table}
        for name, table in {**tables, **({} if residual is None else {"residual": residual})}.items():
            as_float(table, name)
        check_planes(query_table.shape[-1], frequencies, "interleaved")
        if query_table.shape != key_table.shape or query_table.ndim != 2 or len(value_table) != len(query_table):
            shapes = [tuple(table.shape) for table in (query_table, key_table, value_table)]
            raise InputError(f"query, key and value tables {shapes}: expected (V, D), (V, D) and (V, O)")
        if residual is not None and residual.shape != value_table.shape:
            raise InputError(f"residual {tuple(residual.shape)}: expected the values' shape {tuple(value_table.shape)}")
        self.register_buffer("query_table", query_table)
        self.register_buffer("key_table", key_table)
        self.register_buffer("value_table", value_table)
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("residual", residual)

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits (..., n, n) of every query i and key j ≤ i; −∞ where j > i."""
        tokens = self.check_tokens(tokens)
        positions = torch.arange(tokens.shape[-1], device=tokens.device)
        query = rotate(self.query_table[tokens], positions, self.frequencies, "interleaved")
        key = rotate(self.key_table[tokens], positions, self.frequencies, "interleaved")
        hidden = positions[None, :] > positions[:, None]
        return (query @ key.transpose(-1, -2)).masked_fill(hidden, -math.inf)

    def relocated(self, tokens: Tensor) -> Tensor:
        """Return the relocated logits (..., n−1, n−1) of the keys before the last position, which holds the query."""
        tokens = self.check_tokens(tokens)
        last = tokens.shape[-1] - 1
        return relocated_logits(
            self.query_table[tokens[..., -1]],
            self.key_table[tokens[..., :-1]],
            query_position=last,
            positions=torch.arange(last),
            frequencies=self.frequencies,
            layout="interleaved",
            scale=1.0,
        )

    def attention(self, tokens: Tensor, beta: float | None = None) -> Tensor:
        """Return the weights (..., n, n): a softmax of β · logit, or for ``beta=None`` hard attention.

        Hard attention shares its weight equally among the keys whose logit is exactly the largest.
        """
        logits = self.logits(tokens)
        if beta is None:
            largest = (logits == logits.amax(-1, keepdim=True)).to(logits.dtype)
            return largest / largest.sum(-1, keepdim=True)
        inverse = to_float(beta)
        if inverse is None or not 0 <= inverse < math.inf:
            raise InputError(f"beta = {beta!r:.40}: give a finite number of at least 0, or None for hard attention")
        return (inverse * logits).softmax(-1)

    def output(self, tokens: Tensor, beta: float | None = None) -> Tensor:
        """Return the output coordinates (..., n, O): attended values plus the query's residual."""
        attended = self.attention(tokens, beta) @ self.value_table[tokens]
        return attended if self.residual is None else attended + self.residual[tokens]

    def forward(self, tokens: Tensor, beta: float | None = None) -> Tensor:
        """Return the answer (..., n) at every position, the largest output coordinate."""
        return self.output(tokens, beta).argmax(-1)

    def check_tokens(self, tokens: Tensor) -> Tensor:
        """Return ``tokens``, or raise an InputError unless they are int64 ids of this head's vocabulary."""
        size = len(self.query_table)
        if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64 or tokens.ndim == 0:
            given = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"tokens: got {given}, expected an int64 tensor (..., n) of token ids")
        if tokens.numel() == 0 or tokens.min() < 0 or tokens.max() >= size:
            raise InputError(f"tokens {tuple(tokens.shape)}: give at least one id, each between 0 and {size - 1}")
        return tokens


def turned(angles: Tensor) -> Tensor:
    """Return v = (0, 1) turned by each angle (...,) in radians, float64: (..., 2).

    Raises:
        InputError: angles in another type, whose rounding would be felt at distant positions.
    """
    if angles.dtype != torch.float64:
        raise InputError(f"angles are {angles.dtype}: give float64")
    return torch.stack([-angles.sin(), angles.cos()], -1)


def angle(theta: float) -> float:
    """Return an angle in radians per position as a float, or raise an InputError."""
    found = to_float(theta)
    if found is None or not math.isfinite(found):
        raise InputError(f"theta = {theta!r:.40}: give a finite angle in radians per position")
    return found


def whole(value: int, name: str, least: int) -> int:
    """Return a whole number of at least ``least``, or raise an InputError."""
    found = to_int(value)
    if found is None or found < least:
        raise InputError(f"{name} = {value!r:.40}: give a whole number of at least {least} that 64 bits hold")
    return found


def t_index(values: Tensor, theta: float) -> ConstructedHead:
    """Return T_Index: the query token σ looks σ positions back, by one angle.

    Every key is v = (0, 1); the query of the integer σ is v turned by −σθ, that of a letter v itself, so that
    the logit is cos((i − j − σ)θ) with σ = 0 for letters. The output is the query's one-hot vector plus twice
    the attended letter's, so an attended letter wins by 1 and an attended integer changes nothing.

    Args:
        values: (V,) int64, the integer a token stands for, 0 for a letter.
        theta: the angle, in radians per position.

    Raises:
        InputError: values that are not whole numbers of at least 0, or an angle that is not finite.

    Source: 2605.31558, theorem 3.1 and appendix F.

    >>> t_index(torch.tensor([0, 0, 1, 2]), theta=0.8)(torch.tensor([0, 1, 2]))  # "a b 1" reads a, b, b
    tensor([0, 1, 1])
    """
    theta = angle(theta)
    if not isinstance(values, Tensor) or values.dtype != torch.int64 or values.ndim != 1 or (values < 0).any():
        raise InputError(f"values = {values!r}: give (V,) int64, an integer's value or 0 for a letter")
    one_hot = torch.eye(len(values), dtype=torch.float64)
    return ConstructedHead(
        turned(-values.double() * theta),
        turned(torch.zeros(len(values), dtype=torch.float64)),
        2 * one_hot * (values == 0)[:, None],
        torch.tensor([theta], dtype=torch.float64),
        residual=one_hot,
    )


def t_retrieval(left: Tensor, right: Tensor, theta: float, alphabet: int | None = None) -> ConstructedHead:
    """Return T_Retrieval: the query looks for the key whose left letter is its own right letter.

    Letters stand on a circle, ω = 2π/|ALPH| apart. The key of a token is v turned by −φ(left)·ω, its query v
    turned by −φ(right)·ω, or by −φ(left)·ω where the token has no right letter and so looks for itself. The
    logit is cos((φ(left of key) − φ(right of query))ω + (i − j)θ). Values are one-hot, without a residual.

    Args:
        left: (V,) int64 letter φ(σ^L) of every token, from 0.
        right: (V,) int64 letter φ(σ^R), −1 for a letter–integer token.
        theta: the angle, in radians per position.
        alphabet: |ALPH|; None takes the largest letter + 1.

    Raises:
        InputError: letters outside the alphabet, shapes that differ, or an angle that is not finite.

    Source: 2605.31558, theorem 3.1 and appendix F.

    >>> left, right = torch.tensor([0, 1, 0]), torch.tensor([-1, -1, 1])  # tokens "a5", "b7", "ab"
    >>> t_retrieval(left, right, theta=0.01)(torch.tensor([0, 1, 2]))[-1]  # "a5 b7 ab" reads b7
    tensor(1)
    """
    theta = angle(theta)
    require_type(left, Tensor, "left")
    require_type(right, Tensor, "right")
    if not left.numel():
        raise InputError("left and right are empty: give a letter for every token")
    if left.dtype != torch.int64 or right.dtype != torch.int64 or left.shape != right.shape or left.ndim != 1:
        raise InputError(f"left {tuple(left.shape)} and right {tuple(right.shape)}: give two int64 tensors (V,)")
    largest = int(torch.maximum(left, right).max())
    alphabet = largest + 1 if alphabet is None else whole(alphabet, "alphabet", 1)
    if left.min() < 0 or right.min() < -1 or largest >= alphabet:
        raise InputError(f"letters run from {int(left.min())} to {largest}: expected 0 to {alphabet - 1}")
    omega = 2 * math.pi / alphabet
    return ConstructedHead(
        turned(-torch.where(right < 0, left, right).double() * omega),
        turned(-left.double() * omega),
        torch.eye(len(left), dtype=torch.float64),
        torch.tensor([theta], dtype=torch.float64),
    )


def t_reflexive(vocabulary: int) -> ConstructedHead:
    """Return T_Reflexive: values are zero and the residual passes every token on as it is.

    Source: 2605.31558, appendix F.

    >>> t_reflexive(4)(torch.tensor([3, 1, 2]))
    tensor([3, 1, 2])
    """
    vocabulary = whole(vocabulary, "vocabulary", 1)
    one_hot = torch.eye(vocabulary, dtype=torch.float64)
    nothing = torch.zeros(vocabulary, 2, dtype=torch.float64)
    return ConstructedHead(nothing, nothing, 0 * one_hot, torch.zeros(1, dtype=torch.float64), residual=one_hot)


def stack(head: ConstructedHead, hops: int, layers: int) -> nn.Sequential:
    """Return ``hops`` copies of a head followed by T_Reflexive up to ``layers`` layers, for hard attention.

    Each layer hands on the token it reads out.

    Raises:
        InputError: fewer layers than hops.

    Source: 2605.31558, appendix F: f = Reflexive^(ℓ−h) ∘ Index^h, or Retrieval^h.

    >>> layers = stack(t_index(torch.tensor([0, 1, 2]), theta=0.8), hops=2, layers=3)
    >>> layers(torch.tensor([0, 1, 1]))[-1]  # "a 1 1": two hops of one position reach a
    tensor(0)
    """
    require_type(head, ConstructedHead, "head")
    hops, layers = whole(hops, "hops", 1), whole(layers, "layers", 1)
    if layers < hops:
        raise InputError(f"layers = {layers} and hops = {hops}: give at least one layer for each hop")
    return nn.Sequential(*[head] * hops, *[t_reflexive(len(head.query_table))] * (layers - hops))


def check_vocabulary(vocabulary: list[str]) -> None:
    """Raise an InputError unless ``vocabulary`` is a list of strings, not empty."""
    if not isinstance(vocabulary, list) or not vocabulary or not all(isinstance(token, str) for token in vocabulary):
        raise InputError(f"vocabulary = {vocabulary!r}: give a list of tokens, as a task's vocabulary")


def number_head(vocabulary: list[str], theta: float) -> ConstructedHead:
    """Return T_Index over a number task's vocabulary, where digits are integers and the rest are letters.

    >>> number_head(["a", "dp", "1", "2"], theta=0.8)(torch.tensor([0, 1, 3]))[-1]
    tensor(0)
    """
    check_vocabulary(vocabulary)
    return t_index(torch.tensor([int(token) if token.isdigit() else 0 for token in vocabulary]), theta)


def letter_head(vocabulary: list[str], theta: float) -> ConstructedHead:
    """Return T_Retrieval over a letter task's vocabulary of pairs such as "c2" and "dh".

    >>> letter_head(["a5", "b7", "ab"], theta=0.01)(torch.tensor([0, 1, 2]))[-1]
    tensor(1)
    """
    check_vocabulary(vocabulary)
    if short := [token for token in vocabulary if len(token) != 2 or not token[0].isalpha()]:
        raise InputError(f"token {short[0]!r}: give pairs of a letter and a letter or digit, such as 'dh' and 'c2'")
    letters = sorted({letter for token in vocabulary for letter in token if letter.isalpha()})
    number = {letter: i for i, letter in enumerate(letters)}
    left = torch.tensor([number[token[0]] for token in vocabulary])
    right = torch.tensor([number.get(token[1], -1) for token in vocabulary])
    return t_retrieval(left, right, theta, len(letters))


def h_pos(symbols: int, length: int, theta: float) -> ConstructedHead:
    """Return H_POS, the purely positional head that solves Index with one angle.

    Tokens 0 … symbols − 1 are symbols, token symbols + p asks for the symbol at position p (from 0) and stands
    at position ``length``. Keys are v; the question's query is v turned by −(length − p)θ, so the logit at position j
    is cos((p − j)θ).

    Source: 2511.11579, theorem 3.

    >>> h_pos(symbols=3, length=4, theta=0.3)(torch.tensor([2, 0, 1, 1, 3 + 0]))[-1]
    tensor(2)
    """
    symbols, length, theta = whole(symbols, "symbols", 1), whole(length, "length", 1), angle(theta)
    back = torch.cat([torch.zeros(symbols), length - torch.arange(length)]).double()
    values = torch.cat([torch.eye(symbols), torch.zeros(length, symbols)]).double()
    return ConstructedHead(
        turned(-back * theta),
        turned(0 * back),
        values,
        torch.tensor([theta], dtype=torch.float64),
    )


def pair_tables(symbols: int, attributes: int) -> tuple[Tensor, Tensor]:
    """Return each token's symbol as one-hot (V, S) and each pair's attribute as one-hot (V, A).

    Token s·A + a is the pair (s, a); token S·A + s asks for symbol s and has no attribute.
    """
    symbols, attributes = whole(symbols, "symbols", 1), whole(attributes, "attributes", 1)
    one_hot = torch.eye(symbols, dtype=torch.float64)
    names = torch.cat([one_hot.repeat_interleave(attributes, 0), one_hot])
    values = torch.eye(attributes, dtype=torch.float64).repeat(symbols, 1)
    return names, torch.cat([values, torch.zeros(symbols, attributes, dtype=torch.float64)])


def h_sym(symbols: int, attributes: int) -> ConstructedHead:
    """Return H_SYM, the purely symbolic head without rotation (NoPE) that solves Retrieval.

    Token s·attributes + a is the pair (s, a), token symbols·attributes + s asks for the attribute of s. Queries
    and keys are the symbol's one-hot vector (zero for the key of a question): the logit is 1 where symbols
    match and 0 elsewhere.

    Source: 2511.11579, theorem 5.

    >>> h_sym(symbols=2, attributes=3)(torch.tensor([0 * 3 + 2, 1 * 3 + 0, 6 + 0]))[-1]
    tensor(2)
    """
    names, values = pair_tables(symbols, attributes)
    keys = names.clone()
    keys[symbols * attributes :] = 0
    return ConstructedHead(names, keys, values, torch.zeros(0, dtype=torch.float64))


def two_angle(symbols: int, attributes: int, theta: float) -> ConstructedHead:
    """Return the head with angles 0 and θ that solves Partial induction.

    Dimensions that do not rotate give `MATCH` where the symbols agree, as in `h_sym`; one plane adds
    cos((i − j)θ), which is larger for later keys. Tokens are those of `h_sym`.

    Args:
        symbols, attributes: their numbers.
        theta: the second angle, in radians per position; the first is 0.

    Source: 2511.11579, theorem 6.

    >>> two_angle(2, 3, theta=0.1)(torch.tensor([0 * 3 + 2, 0 * 3 + 1, 1 * 3 + 0, 6 + 0]))[-1]
    tensor(1)
    """
    theta = angle(theta)
    names, values = pair_tables(symbols, attributes)
    v = turned(torch.zeros(len(names), dtype=torch.float64))
    keys = torch.cat([v, names], 1)
    keys[symbols * attributes :] = 0
    queries = torch.cat([v, MATCH * names], 1)
    return ConstructedHead(queries, keys, values, torch.tensor([theta], dtype=torch.float64))


def symbolic_head(scores: Tensor, values: Tensor) -> ConstructedHead:
    """Return a purely symbolic head: the logit of a key is the score of its content for the query's token.

    Args:
        scores: (V, V), entry [q, k] for query token q and key token k.
        values: (V, O).

    >>> symbolic_head(torch.eye(2), torch.eye(2)).logits(torch.tensor([0, 1, 1]))[-1]
    tensor([0., 1., 1.])
    """
    return ConstructedHead(scores, torch.eye(len(scores), dtype=scores.dtype), values, torch.zeros(0))


def simplified_symbolic(symbols: int, attributes: int, length: int, theta: float) -> ConstructedHead:
    """Return a symbolic head with one angle θ in every plane, one plane per symbol, aimed at the middle position.

    The key of symbol s is v in plane s; the question's query is v in plane s turned by −(length + 1)θ/2, so
    that the logit of the asked symbol at position j of ``length`` is cos((j − (length − 1)/2)θ), and 0 elsewhere.
    Tokens are those of `h_sym`.

    Source: 2511.11579, theorem 7; the paper's simplified construction as read here.

    >>> head = simplified_symbolic(2, 2, length=3, theta=0.1)
    >>> head.logits(torch.tensor([2, 0, 2, 4]))[-1].round(decimals=4)  # symbol 0 stands in the middle
    tensor([0., 1., 0., 0.], dtype=torch.float64)
    """
    length, theta = whole(length, "length", 1), angle(theta)
    names, values = pair_tables(symbols, attributes)
    aim = torch.tensor([0.0, -(length + 1) / 2 * theta], dtype=torch.float64)
    key, query = turned(aim)
    keys = (names[..., None] * key).flatten(1)
    keys[symbols * attributes :] = 0
    queries = (names[..., None] * query).flatten(1)
    return ConstructedHead(queries, keys, values, torch.full((symbols,), theta, dtype=torch.float64))


def self_marking_head(alphabet: int, integers: int, length: int) -> ConstructedHead:
    """Return a purely positional head that computes Retrieval, with values that are not the identity.

    All keys are alike and all queries too, so a logit depends on the distance alone. The angles 2πk/n,
    k = 1 … n − 1, add up to the same logit at every distance from 1 to n − 1 and a larger one at 0, so that the
    query's own position gets over nine tenths of the weight and the other positions share the rest evenly. The value
    of a token is its one-hot vector plus, for a letter–letter token, 3 at every token whose left letter is its
    right letter. So the query marks the tokens that it could become, and the small weights say which is there.

    Args:
        alphabet, integers: see `possym.theory.inputs.letter_vocabulary`.
        length: longest input n, the query included.

    >>> from possym.theory.inputs import letter_vocabulary
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
