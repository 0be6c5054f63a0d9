"""The cost of a study in operations, bytes and hours, from sizes and measured rates.

- `forward_operations`, `relocated_operations`, `swaps` count the work of `possym.profile` on one prompt;
- `profile_bytes`, `peak_bytes` and `longest` give the memory that a card needs, and the most tokens that fit;
- `rates` turns measured times into seconds per operation, `profile_seconds` these into the time of a larger prompt;
- `training_operations` counts one update of one member of a `possym.ensembles.gptj.GPTJEnsemble`.

Sizes: L layers, C width, M inner width of the MLP, H heads, G heads of keys and values, D head width, V vocabulary,
F = D/2 planes, T tokens of the prompt with the query, N = T − 1 keys that are moved. A multiplication and the addition
after it count as two operations, as everywhere; what is not a product of matrices or vectors is not counted.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import accumulate, pairwise
from typing import Any

from possym.capture import TOGETHER
from possym.capture.layer_inputs import MATRIX_ENTRIES
from possym.ensembles.gptj import GPTJConfig
from possym.errors import InputError

PARTS = ("forward", "capture", "heads", "planes")


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-like language model: L, C, M, H, G, D and V, in this order."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int

    @property
    def planes(self) -> int:
        """Number F of planes of a head that rotates whole."""
        return self.head_width // 2

    @property
    def projections(self) -> int:
        """Weights of one layer that every token is multiplied with."""
        mixed = (2 * self.heads + 2 * self.key_heads) * self.head_width
        return self.width * (mixed + 3 * self.inner)

    @property
    def weights(self) -> int:
        """All parameters, embedding and language head both counted.

        >>> shapes()["Llama-3-70B"].weights
        70553706496
        """
        return self.layers * (self.projections + 2 * self.width) + self.width * (2 * self.vocabulary + 1)


@cache
def read() -> dict[str, Any]:
    """Return the data file: cards as their makers specify them, shapes as published, times as measured."""
    return json.loads(files("possym").joinpath("data/costs.json").read_text(encoding="utf-8"))


def shapes() -> dict[str, Shape]:
    """Return the known shapes by name.

    >>> list(shapes())
    ['gemma-2-2b', 'Llama-3-8B', 'Llama-3-70B', 'Llama-3-405B']
    """
    return {
        name: Shape(**{key: value for key, value in entry.items() if key != "source"})
        for name, entry in read()["shapes"].items()
    }


def forward_operations(shape: Shape, tokens: int) -> dict[str, int]:
    """Return the operations of one forward pass, 2·T·L·(weights of a layer) and so on, by part.

    Attention is counted as causal kernels do it: each token with itself and what came before. The language head is
    asked at the query alone.

    >>> {part: f"{count:.1e}" for part, count in forward_operations(shapes()["Llama-3-8B"], 2048).items()}
    {'weights': '2.9e+13', 'attention': '1.1e+12', 'language head': '1.1e+09'}
    """
    T = checked(tokens)
    pairs = T * (T + 1) // 2
    return {
        "weights": 2 * T * shape.layers * shape.projections,
        "attention": 4 * pairs * shape.layers * shape.heads * shape.head_width,
        "language head": 2 * shape.width * shape.vocabulary,
    }


def relocated_operations(shape: Shape, tokens: int) -> int:
    """Return the operations of all heads' relocated logits, 2·L·H·N²·D, and of the query's own.

    A GPU does twice as many, on tensor cores, because each content is the sum of two numbers of float16; a CPU too,
    because it makes the logits of a swap's two keys apart.

    >>> relocated_operations(Shape(1, 8, 8, 2, 2, 4, 10), 4)
    160
    """
    return 2 * shape.head_width * (logits(shape, tokens) + shape.layers * shape.heads)


def logits(shape: Shape, tokens: int) -> int:
    """Return the number of relocated logits, L·H·N².

    >>> logits(Shape(1, 8, 8, 2, 2, 4, 10), 4)
    18
    """
    return shape.layers * shape.heads * (checked(tokens) - 1) ** 2


def swaps(shape: Shape, tokens: int) -> int:
    """Return the number of swaps that the planes are summed over, L·H·F·N(N − 1)/2.

    >>> swaps(Shape(1, 8, 8, 2, 2, 4, 10), 4)
    12
    """
    N = checked(tokens) - 1
    return shape.layers * shape.heads * shape.planes * (N * (N - 1) // 2)


def profile_bytes(shape: Shape, tokens: int) -> dict[str, int]:
    """Return the bytes of memory that a profile needs, by part; attention and MLP are never there at once.

    Weights and activations are bfloat16: the residual stream and its norm, with queries, keys and values while a layer
    attends, with three inner vectors in its MLP. Keys wait in bfloat16 until as many layers as are taken together have
    passed, and are captured in float32; turning them back needs more for a while. Contents are those of as many heads
    as `possym.capture` takes at once, in float32 and as two numbers of float16; of relocated logits no matrix is made.

    >>> {part: round(size / 1e9, 1) for part, size in profile_bytes(shapes()["Llama-3-70B"], 2**17).items()}
    {'weights': 141.1, 'attention': 7.0, 'turning': 1.9, 'captured': 0.5, 'contents': 0.7, 'MLP': 27.1}
    """
    T = checked(tokens)
    N = T - 1
    factors = min(shape.heads, max(1, MATRIX_ENTRIES // (2 * N * shape.head_width)))  # heads whose contents are made
    mixed = (shape.heads + 2 * shape.key_heads) * shape.head_width
    keys = T * shape.key_heads * shape.head_width
    keys *= min(shape.layers, max(1, 2 * TOGETHER // keys))
    return {
        "weights": 2 * shape.weights,
        "attention": 2 * T * (2 * shape.width + mixed),
        "turning": 14 * keys,
        "captured": 4 * keys,
        "contents": 8 * N * (factors + 1) * shape.head_width,
        "MLP": 2 * T * (2 * shape.width + 3 * shape.inner) + 2 * keys,
    }


def peak_bytes(shape: Shape, tokens: int, cards: int = 1) -> float:
    """Return the peak memory of one of several cards: its share of the weights, and the layer at work.

    >>> f"{peak_bytes(shapes()['Llama-3-70B'], 2**17, 8):.2e}"
    '4.48e+10'
    """
    parts = profile_bytes(shape, tokens)
    scoring = max(parts["turning"], parts["captured"] + parts["contents"])
    return parts["weights"] / cards + max(parts["attention"] + scoring, parts["MLP"])


def longest(shape: Shape, memory: float, cards: int = 1) -> int:
    """Return the largest number of tokens whose profile fits into cards of ``memory`` bytes each, 0 if none fits.

    The cards share the weights. No memory is set aside for the system, so this is an upper limit.

    >>> longest(shapes()["Llama-3-70B"], 80e9), longest(shapes()["Llama-3-70B"], 80e9, 8) > 30_000
    (0, True)
    """
    low, high = 2, 2**24
    if peak_bytes(shape, low + 1, cards) > memory:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak_bytes(shape, middle, cards) <= memory else (low, middle)
    return low


def rates(name: str = "Llama-3-8B") -> dict[str, float]:
    """Return the measured seconds per unit of work, for each part of a profile.

    In turn: an operation of the forward pass, a number captured (a query's or key's, a layer and token), a relocated
    logit, a swap of a plane. Each is the whole time by which a profile with that part took longer than one without,
    the host's share included: 0 where it took no longer.

    Raises:
        InputError: a shape that was not measured.

    >>> f"{1 / rates()['forward']:.0e} operations a second"
    '5e+14 operations a second'
    """
    measured = read()["measured"]
    if name not in measured["milliseconds"]:
        raise InputError(f"name = {name!r}: measured shapes are {', '.join(measured['milliseconds'])}")
    times, counts = measured["milliseconds"][name], amounts(shapes()[name], measured["tokens"])
    ends = [0.0, *accumulate((times[name] for name in ("forward", "capture", "profile", "planes")), max)]
    return {part: (end - start) / 1000 / counts[part] for part, (start, end) in zip(PARTS, pairwise(ends), strict=True)}


def amounts(shape: Shape, tokens: int) -> dict[str, int]:
    """Return the amount of work in one profile, by part, in the units of `rates`."""
    T = checked(tokens)
    return {
        "forward": sum(forward_operations(shape, T).values()),
        "capture": shape.layers * T * (shape.heads + shape.key_heads) * shape.head_width,
        "heads": logits(shape, T),
        "planes": swaps(shape, T),
    }


def profile_seconds(shape: Shape, tokens: int, measured: dict[str, float] | None = None) -> dict[str, float]:
    """Return the seconds of each part of a profile of one prompt, at rates that do not change with size.

    Args:
        shape: of the model.
        tokens: T, the query included.
        measured: as `rates` returns them; None for those of the Llama-3-8B shape.

    >>> round(sum(profile_seconds(shapes()["Llama-3-8B"], 2048).values()), 1)
    0.3
    """
    measured = rates() if measured is None else measured
    return {part: count * measured[part] for part, count in amounts(shape, tokens).items()}


def training_operations(config: GPTJConfig, batch: int, tokens: int) -> int:
    """Return the operations of one update of one member that learns the last position's answer.

    Forward, in every layer but the last 2·B·T·(12C² at an inner width of 4C) and 4·B·T²·C; the last layer makes keys
    and values of all positions and the rest of one. Backward twice that, and the embedding's gradient, 2·V·B·T·C.
    Clipping and AdamW are left out.

    >>> f"{training_operations(GPTJConfig(vocabulary_size=136), 64, 17):.3e}"
    '1.476e+10'
    """
    B, T, L, C, V = batch, tokens, config.layers, config.width, config.vocabulary_size
    inner = config.mlp_ratio * C
    entry, output = C * (3 * C + inner), C * (C + inner)
    whole = B * T * (entry + output) + 2 * B * T * T * C
    cut = B * T * 2 * C * C + B * (C * (C + inner) + output) + 2 * B * T * C
    forward = (L - 1) * whole + cut + L * entry + B * C * V
    return 2 * (3 * forward + V * B * T * C)


def checked(tokens: int) -> int:
    """Return the number of tokens, or raise an InputError unless there are two keys to swap before the query."""
    if tokens < 3:
        raise InputError(f"tokens = {tokens!r}: give a whole number from 3, the query and two keys to swap")
    return tokens
